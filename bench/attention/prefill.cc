// SPDX-License-Identifier: Apache-2.0

// Prefill: 512 new tokens behind 4096 that the cache has, causal, 8 query heads for each KV head,
// beside the peak arithmetic of the same rounds.

#include <map>
#include <memory>

#include "cached_case.h"

namespace kvfolio::bench {
namespace {

std::optional<Promise> promised_flops(const Context& context, const CaseShape& shape) {
  if (shape.format != Format::kGranule) return {};
  if (shape.dtype == DType::kF32) return Promise{0.78, 0.90};
  if (shape.dtype == DType::kBF16 && context.has_dot_products()) return Promise{0.65, 0.80};
  return {};
}

void measure_prefill(const Context& context) {
  const Session& session = context.session;
  const std::int32_t old_tokens = session.size(4096, 96);
  const std::int32_t new_tokens = session.size(512, 40);
  Panel panel;
  struct Peak {
    std::size_t piece = 0;
    double operations = 0;
  };
  // By index of arithmetic() and threads.
  std::map<std::pair<std::size_t, std::int32_t>, Peak> peaks;
  const std::int64_t loops = session.quick() ? 10'000 : 1'000'000;
  for (std::size_t kind = 0; kind < context.arithmetic().size(); ++kind) {
    const ArithmeticLoop loop = context.arithmetic()[kind].loop;
    for (const std::int32_t threads : context.thread_counts) {
      Peak peak;
      peak.operations = static_cast<double>(loop(loops)) * threads;
      peak.piece = panel.add([&context, loop, loops, threads] {
        parallel_for(context.executor(threads), threads, [&](std::int32_t) { loop(loops); });
      });
      peaks[{kind, threads}] = peak;
    }
  }
  struct Piece {
    std::unique_ptr<CachedCase> cache;
    std::unique_ptr<AttentionCall> call;
    std::map<std::int32_t, std::size_t> by_threads;
  };
  std::vector<Piece> pieces;  // dtype by dtype, format by format
  for (const DType dtype : context.dtypes()) {
    std::optional<Expected> expected;
    for (const Format format : context.formats()) {
      const CaseShape shape{.dtype = dtype, .format = format, .lengths = {old_tokens + new_tokens}};
      Piece piece;
      piece.cache = std::make_unique<CachedCase>(shape);
      piece.call = std::make_unique<AttentionCall>(context, *piece.cache, 8, new_tokens);
      if (!expected) expected.emplace(context, *piece.cache, new_tokens, 12);
      expected->check(*piece.call, context, shape);
      for (const std::int32_t threads : context.thread_counts) {
        piece.by_threads[threads] =
            panel.add([call = piece.call.get(), threads] { call->run(threads); });
      }
      pieces.push_back(std::move(piece));
    }
  }
  panel.run(session.rounds());

  const std::string work = std::to_string(new_tokens) + " new tokens behind " +
                           std::to_string(old_tokens) + ", causal, 4 KV heads of 128";
  const auto facts = [&](const Piece& piece, std::int32_t threads) {
    return std::vector<std::pair<std::string, Fact>>{
        {"dtype", to_string(piece.cache->shape().dtype)},
        {"format", to_string(piece.cache->shape().format)},
        {"threads", std::int64_t{threads}},
        {"q_per_kv", std::int64_t{8}},
        {"target", context.target_name()}};
  };
  // How much faster several threads compute on registers than one does.
  const auto scaling = [&](std::size_t kind, std::int32_t threads) {
    return threads * median(quotients(panel.seconds(peaks[{kind, 1}].piece),
                                      panel.seconds(peaks[{kind, threads}].piece)));
  };
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    const CaseShape& shape = piece.cache->shape();
    const std::size_t kind = context.peak_of(shape.dtype);
    for (const auto& [threads, number] : piece.by_threads) {
      const Peak& peak = peaks[{kind, threads}];
      Figure figure{.name = "prefill.flops",
                    .facts = facts(piece, threads),
                    .unit = "Gop/s",
                    .lower_is_better = false,
                    .promise = promised_flops(context, shape),
                    .promise_is_ratio = true,
                    .note = work + "; ceiling: the peak of " + context.arithmetic()[kind].kind};
      Context::judge(figure, threads, scaling(kind, threads));
      session.report(figure, {panel.giga_rate(number, piece.call->operations()),
                              panel.giga_rate(peak.piece, peak.operations)});
    }
  }
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    const Piece& granule = pieces[i / context.formats().size() * context.formats().size()];
    if (piece.cache->shape().format == Format::kGranule || !context.has_granule()) continue;
    for (const auto& [threads, number] : piece.by_threads) {
      Figure figure{.name = "prefill.format",
                    .facts = facts(piece, threads),
                    .unit = "Gop/s",
                    .lower_is_better = false,
                    .promise_is_ratio = true,
                    .note = work + "; ceiling: format granule"};
      if (piece.cache->shape().dtype != DType::kInt8) figure.promise = Promise{0.8, 0.9};
      Context::judge(figure, threads, scaling(0, threads));
      session.report(figure,
                     {panel.giga_rate(number, piece.call->operations()),
                      panel.giga_rate(granule.by_threads.at(threads), piece.call->operations())});
    }
  }
}

}  // namespace

AttentionFamily prefill_family() { return {{"prefill.flops", "prefill.format"}, measure_prefill}; }

}  // namespace kvfolio::bench
