// SPDX-License-Identifier: Apache-2.0

// What goes in and out: the append's share of a decode step, and append and gather of many tokens
// against memcpy of their rows.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "cached_case.h"

namespace kvfolio::bench {
namespace {

// K and V of some tokens, each [tokens, heads, head_dim].
class Rows {
 public:
  Rows(std::int32_t tokens, DType dtype)
      : plane_bytes_(std::int64_t{tokens} * kKvHeads * kHeadDim * dtype_bytes(dtype)),
        memory_(2 * plane_bytes_),
        tokens_(tokens),
        dtype_(dtype) {
    std::memset(memory_.data(), 0, memory_.size());
  }
  [[nodiscard]] RowsView plane(int i) const {
    const std::int64_t row = kHeadDim * std::int64_t{dtype_bytes(dtype_)};
    return {memory_.data() + i * plane_bytes_,
            kKvHeads * row,
            row,
            tokens_,
            kKvHeads,
            kHeadDim,
            dtype_};
  }
  [[nodiscard]] const Buffer& memory() const { return memory_; }
  [[nodiscard]] double bytes() const { return 2.0 * static_cast<double>(plane_bytes_); }

  void fill() const {
    Random random(5);
    float values[kHeadDim];
    for (int p = 0; p < 2; ++p) {
      const RowsView rows = plane(p);
      for (std::int32_t t = 0; t < tokens_; ++t) {
        for (std::int32_t h = 0; h < kKvHeads; ++h) {
          for (float& value : values) {
            value = (static_cast<float>(random() >> 48) - 32767.5F) / 32768.0F;
          }
          const RowsView from{
              reinterpret_cast<std::byte*>(values), 0, 0, 1, 1, kHeadDim, DType::kF32};
          const RowsView to{rows.at(t, h), 0, 0, 1, 1, kHeadDim, dtype_};
          require(convert(from, to), "convert");
        }
      }
    }
  }
  // As f32, all of it.
  [[nodiscard]] std::vector<float> values() const {
    std::vector<float> result(2 * static_cast<std::size_t>(tokens_) * kKvHeads * kHeadDim);
    for (int p = 0; p < 2; ++p) {
      const std::int64_t row = kHeadDim * 4;
      auto* data = reinterpret_cast<std::byte*>(result.data()) +
                   static_cast<std::size_t>(p) * result.size() / 2 * 4;
      require(convert(plane(p), RowsView{data, kKvHeads * row, row, tokens_, kKvHeads, kHeadDim,
                                         DType::kF32}),
              "convert");
    }
    return result;
  }

 private:
  std::int64_t plane_bytes_;
  Buffer memory_;
  std::int32_t tokens_;
  DType dtype_;
};

void decode_share(const Context& context) {
  const Session& session = context.session;
  if (!session.wants("append.decode_share")) return;
  constexpr std::int32_t kSequences = 8;
  const std::int32_t length = session.size(2048, 64);
  Panel panel;
  struct Piece {
    std::unique_ptr<CachedCase> cache;
    std::unique_ptr<AttentionCall> call;
    std::unique_ptr<Rows> rows;
    std::vector<std::int32_t> slots;
    std::size_t append = 0;
    std::size_t attend = 0;
  };
  std::vector<Piece> pieces;
  for (const DType dtype : context.dtypes()) {
    for (const Format format : context.formats()) {
      CaseShape shape{.dtype = dtype, .format = format, .lengths = {}};
      shape.lengths.assign(kSequences, length);
      const std::int64_t layer_bytes =
          std::int64_t{kSequences} * length * 2 * kKvHeads * kHeadDim * dtype_bytes(dtype);
      if (!session.quick()) {
        shape.num_layers = context.layers_beyond_cache(layer_bytes);
      }
      Piece piece;
      piece.cache = std::make_unique<CachedCase>(shape);
      piece.call = std::make_unique<AttentionCall>(context, *piece.cache, 8, 1);
      Expected(context, *piece.cache, 1, 2).check(*piece.call, context, shape);
      piece.rows = std::make_unique<Rows>(kSequences, query_dtype(dtype));
      piece.rows->fill();
      for (std::int32_t s = 0; s < kSequences; ++s) {
        piece.slots.push_back(piece.cache->slot(s, length - 1));
      }
      piece.append =
          panel.add([cache = piece.cache.get(), rows = piece.rows.get(), slots = piece.slots] {
            for (std::int32_t layer = 0; layer < cache->shape().num_layers; ++layer) {
              const Status done =
                  append(cache->view(), layer, rows->plane(0), rows->plane(1), slots);
              if (!done.ok()) require(done, "append");
            }
          });
      piece.attend = panel.add([call = piece.call.get()] { call->run(1); });
      pieces.push_back(std::move(piece));
    }
  }
  panel.run(session.rounds());
  for (const Piece& piece : pieces) {
    std::vector<double> shares;
    const std::vector<double>& appended = panel.seconds(piece.append);
    const std::vector<double>& attended = panel.seconds(piece.attend);
    for (std::size_t i = 0; i < appended.size(); ++i) {
      shares.push_back(100 * appended[i] / (appended[i] + attended[i]));
    }
    const CaseShape& shape = piece.cache->shape();
    Figure figure{.name = "append.decode_share",
                  .facts = {{"dtype", to_string(shape.dtype)},
                            {"format", to_string(shape.format)},
                            {"threads", std::int64_t{1}},
                            {"q_per_kv", std::int64_t{8}},
                            {"target", context.target_name()}},
                  .unit = "% of append and attention",
                  .note = "one token for each of 8 sequences of " + std::to_string(length) +
                          " tokens, " + std::to_string(shape.num_layers) + " layers"};
    figure.promise = Promise{2, 1};
    session.report(figure, {std::move(shares), {}});
  }
}

// Append and gather of many tokens of one type and format.
void measure_rows(const Context& context, DType dtype, Format format) {
  const Session& session = context.session;
  const std::int32_t tokens = session.size(32'768, 64);
  const KVStorage storage = take(KVStorage::create({.groups = {{.num_kv_heads = kKvHeads,
                                                                .head_dim_k = kHeadDim,
                                                                .head_dim_v = kHeadDim,
                                                                .block_size = 16,
                                                                .dtype = dtype,
                                                                .format = format,
                                                                .num_blocks = tokens / 16}}}),
                                 "storage");
  const KVView view = take(storage.view(GroupId(0)), "a view");
  const std::vector<std::int32_t> table = shuffled(tokens / 16, 3);
  std::vector<std::int32_t> slots;
  slots.reserve(static_cast<std::size_t>(tokens));
  for (std::int32_t t = 0; t < tokens; ++t) {
    slots.push_back(table[static_cast<std::size_t>(t / 16)] * 16 + t % 16);
  }
  const Rows rows(tokens, query_dtype(dtype));
  const Rows back(tokens, query_dtype(dtype));
  const Buffer copy(static_cast<std::int64_t>(rows.bytes()));
  std::memset(copy.data(), 0, copy.size());
  rows.fill();
  const auto run_append = [&] {
    const Status done = append(view, 0, rows.plane(0), rows.plane(1), slots);
    if (!done.ok()) require(done, "append");
  };
  const auto run_gather = [&] {
    const Status done = gather({.cache = view,
                                .block_table = table,
                                .length = tokens,
                                .count = tokens,
                                .k = back.plane(0),
                                .v = back.plane(1)});
    if (!done.ok()) require(done, "gather");
  };
  const std::string what =
      std::string(to_string(dtype)) + " in " + to_string(format) + ": gather after append";
  run_append();
  run_gather();
  if (dtype == DType::kInt8) {
    const std::vector<float> wanted = rows.values();
    const std::vector<float> got = back.values();
    double error = 0;
    double length = 0;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      error += std::pow(double{got[i]} - double{wanted[i]}, 2);
      length += std::pow(double{wanted[i]}, 2);
    }
    require(std::sqrt(error / length) <= 1.5e-2, what);
  } else {
    require(std::memcmp(rows.memory().data(), back.memory().data(), rows.memory().size()) == 0,
            what);
  }
  const auto figure = [&](const char* name) {
    return Figure{.name = name,
                  .facts = {{"dtype", to_string(dtype)},
                            {"format", to_string(format)},
                            {"rows", to_string(query_dtype(dtype))},
                            {"tokens", std::int64_t{tokens}}},
                  .unit = "GB/s of rows",
                  .lower_is_better = false,
                  .promise_is_ratio = true,
                  .note =
                      "4 heads of 128 in K and in V, blocks of 16 in random order; ceiling: "
                      "memcpy of the rows"};
  };
  const auto rate = [&](const auto& call) { return rows.bytes() / seconds_of(call) * 1e-9; };
  Figure appending = figure("append.prefill");
  appending.promise = Promise{0.5, 0.7};
  session.measure(
      appending, [&] { return rate(run_append); },
      [&] {
        return rate([&] {
          std::memcpy(copy.data(), rows.memory().data(), copy.size());
          keep(copy.data());
        });
      });
  session.measure(
      figure("gather.rows"), [&] { return rate(run_gather); },
      [&] {
        return rate([&] {
          std::memcpy(back.memory().data(), copy.data(), copy.size());
          keep(back.memory().data());
        });
      });
}

void measure_append(const Context& context) {
  decode_share(context);
  if (!context.session.wants("append.prefill") && !context.session.wants("gather.rows")) return;
  for (const DType dtype : context.dtypes()) {
    for (const Format format : context.formats()) measure_rows(context, dtype, format);
  }
}

}  // namespace

AttentionFamily append_family() {
  return {{"append.decode_share", "append.prefill", "gather.rows"}, measure_append};
}

}  // namespace kvfolio::bench
