// SPDX-License-Identifier: Apache-2.0

// One sequence alone: a long one, which all threads share, and short ones, where a call is nearly
// nothing but its start.

#include <map>
#include <memory>

#include "cached_case.h"

namespace kvfolio::bench {
namespace {

void long_sequence(const Context& context) {
  const Session& session = context.session;
  if (!session.wants("long.scaling") || context.thread_counts.size() < 2) return;
  const std::int32_t threads = context.thread_counts[1];
  Panel panel;
  struct Type {
    std::unique_ptr<CachedCase> cache;
    std::unique_ptr<AttentionCall> call;
    // One thread, all threads.
    std::vector<ReadProbe> reads;
    std::size_t attend[2] = {};
  };
  std::vector<Type> types;
  const std::int32_t length = session.size(32'768, 1500);
  for (const DType dtype : context.dtypes()) {
    CaseShape shape{.dtype = dtype, .lengths = {length}};
    // Layer after layer, as a model does, so that the sequence is not in the cache when it comes
    // again.
    const std::int64_t layer_bytes =
        std::int64_t{length} * 2 * kKvHeads * kHeadDim * dtype_bytes(dtype);
    if (!session.quick()) {
      shape.num_layers = context.layers_beyond_cache(layer_bytes);
    }
    Type type;
    type.cache = std::make_unique<CachedCase>(shape);
    type.call = std::make_unique<AttentionCall>(context, *type.cache, 8, 1);
    Expected(context, *type.cache, 1, 1).check(*type.call, context, shape);
    for (int i = 0; i < 2; ++i) {
      const std::int32_t count = i == 0 ? 1 : threads;
      type.reads.push_back(ReadProbe::of_blocks(panel, context, *type.cache, count));
      type.attend[i] = panel.add([call = type.call.get(), count] { call->run(count); });
    }
    types.push_back(std::move(type));
  }
  panel.run(session.rounds());
  for (const Type& type : types) {
    const std::vector<double> reading = quotients(panel.seconds(type.reads[0].piece(panel)),
                                                  panel.seconds(type.reads[1].piece(panel)));
    Figure figure{.name = "long.scaling",
                  .facts = {{"dtype", to_string(type.cache->shape().dtype)},
                            {"format", "granule"},
                            {"threads", std::int64_t{threads}},
                            {"q_per_kv", std::int64_t{8}},
                            {"target", context.target_name()}},
                  .unit = "x of one thread",
                  .lower_is_better = false,
                  .promise = Promise{0.93, 0.97},
                  .promise_is_ratio = true,
                  .note = "one sequence of " + std::to_string(length) + " tokens in " +
                          std::to_string(type.cache->shape().num_layers) +
                          " layers; ceiling: reading the same blocks"};
    Context::judge(figure, threads, median(reading));
    session.report(
        figure, {quotients(panel.seconds(type.attend[0]), panel.seconds(type.attend[1])), reading});
  }
}

void short_sequences(const Context& context) {
  const Session& session = context.session;
  if (!session.wants("short.latency")) return;
  Panel panel;
  struct Piece {
    std::unique_ptr<CachedCase> cache;
    std::unique_ptr<AttentionCall> call;
    std::map<std::int32_t, std::size_t> by_threads;
  };
  std::vector<Piece> pieces;
  for (const DType dtype : context.dtypes()) {
    for (const std::int32_t length : {64, 256, 1024}) {
      const CaseShape shape{.dtype = dtype, .lengths = {length}};
      Piece piece;
      piece.cache = std::make_unique<CachedCase>(shape);
      piece.call = std::make_unique<AttentionCall>(context, *piece.cache, 8, 1);
      Expected(context, *piece.cache, 1, 1).check(*piece.call, context, shape);
      for (const std::int32_t threads : context.thread_counts) {
        piece.by_threads[threads] =
            panel.add_short([call = piece.call.get(), threads] { call->run(threads); },
                            session.quick() ? 1e-5 : 2e-3);
      }
      pieces.push_back(std::move(piece));
    }
  }
  panel.run(session.rounds());
  for (const Piece& piece : pieces) {
    for (const auto& [threads, number] : piece.by_threads) {
      std::vector<double> microseconds;
      for (const double taken : panel.seconds(number)) microseconds.push_back(taken * 1e6);
      session.report(
          {.name = "short.latency",
           .facts = {{"dtype", to_string(piece.cache->shape().dtype)},
                     {"format", "granule"},
                     {"tokens", std::int64_t{piece.cache->shape().lengths[0]}},
                     {"threads", std::int64_t{threads}},
                     {"q_per_kv", std::int64_t{8}},
                     {"target", context.target_name()}},
           .unit = "us",
           .note = "one query of one sequence, one layer, all of it in the processor's cache"},
          {std::move(microseconds), {}});
    }
  }
}

void measure_lengths(const Context& context) {
  if (!context.has_granule()) return;
  long_sequence(context);
  short_sequences(context);
}

}  // namespace

AttentionFamily lengths_family() { return {{"long.scaling", "short.latency"}, measure_lengths}; }

}  // namespace kvfolio::bench
