// SPDX-License-Identifier: Apache-2.0

// Decode, one query for each of eight long sequences: for each format one panel of rounds with the
// two reads of each type's cache and attention for each type, q_per_kv and number of threads.

#include <algorithm>
#include <map>
#include <memory>
#include <tuple>

#include "cached_case.h"

namespace kvfolio::bench {
namespace {

constexpr std::int32_t kEachQPerKv[] = {1, 4, 5, 7, 8, 12, 16};

// Of G = 8, the case that is promised. See docs/measuring.md.
std::optional<PromiseByClass> promised(const Context& context, const CaseShape& shape) {
  if (!context.is_avx512()) return {};
  if (shape.format != Format::kGranule) {
    if (shape.dtype == DType::kInt8) return {};
    return PromiseByClass{{0.45, 0.60}, {0.38, 0.50}};
  }
  switch (shape.dtype) {
    case DType::kF32:
    case DType::kF16:
      return PromiseByClass{{0.65, 0.75}, {0.50, 0.60}};
    case DType::kBF16:
      if (!context.has_dot_products()) return {};
      return PromiseByClass{{0.70, 0.85}, {0.60, 0.75}};
    case DType::kInt8:
      if (!context.has_dot_products()) return {};
      return PromiseByClass{{0.80, 0.92}, {0.72, 0.85}};
    default:
      return {};
  }
}

std::optional<Promise> promised_of(std::int32_t q_per_kv) {
  if (q_per_kv >= 5 && q_per_kv <= 7) return Promise{0.85, 0.95};
  if (q_per_kv == 12) return Promise{0.60, 0.75};
  return {};
}

// Eight sequences, together four times the third-level cache or more.
CaseShape shape_of(const Context& context, DType dtype, Format format) {
  CaseShape shape{.dtype = dtype, .format = format, .lengths = {}};
  if (context.session.quick()) {
    shape.lengths = {320, 129};
    return shape;
  }
  const std::int64_t token_bytes = std::int64_t{2} * kKvHeads * kHeadDim * dtype_bytes(dtype);
  std::int64_t length = 16'384;
  while (8 * length * token_bytes < 4 * context.l3_bytes) length += 4096;
  shape.lengths.assign(8, static_cast<std::int32_t>(length));
  return shape;
}

class DecodePanel {
 public:
  DecodePanel(const Context& context, Format format, std::map<DType, Expected>& expected)
      : context_(context) {
    for (const DType dtype : context.dtypes()) add(shape_of(context, dtype, format), expected);
    panel_.run(context.session.rounds());
  }

  void report() const {
    for (const Type& type : types_) report_reads(type);
    for (const Type& type : types_) {
      for (const Piece& piece : type.pieces) report_piece(type, piece);
    }
    for (const Type& type : types_) {
      for (const Piece& piece : type.pieces) report_q_per_kv(type, piece);
    }
    report_int8();
  }

 private:
  struct Read {
    ReadProbe blocks;
    ReadProbe in_order;
  };
  struct Piece {
    std::int32_t q_per_kv = 0;
    std::int32_t threads = 1;
    std::size_t piece = 0;
  };
  struct Type {
    std::unique_ptr<CachedCase> cache;
    std::vector<std::unique_ptr<AttentionCall>> calls;
    std::vector<Piece> pieces;
    std::map<std::int32_t, Read> reads;  // by threads
  };

  void add(const CaseShape& shape, std::map<DType, Expected>& expected) {
    Type type;
    type.cache = std::make_unique<CachedCase>(shape);
    const CachedCase& cache = *type.cache;
    auto known = expected.find(shape.dtype);
    if (known == expected.end()) {
      known = expected.emplace(shape.dtype, Expected(context_, cache, 1, 8)).first;
    }
    for (const std::int32_t threads : context_.thread_counts) {
      type.reads.emplace(threads,
                         Read{.blocks = ReadProbe::of_blocks(panel_, context_, cache, threads),
                              .in_order = ReadProbe::of_memory(panel_, context_, cache, threads)});
    }
    for (const std::int32_t q_per_kv : kEachQPerKv) {
      type.calls.push_back(std::make_unique<AttentionCall>(context_, cache, q_per_kv, 1));
      AttentionCall& call = *type.calls.back();
      known->second.check(call, context_, shape);
      for (const std::int32_t threads : context_.thread_counts) {
        type.pieces.push_back(
            {q_per_kv, threads, panel_.add([&call, threads] { call.run(threads); })});
      }
    }
    types_.push_back(std::move(type));
  }

  [[nodiscard]] std::vector<std::pair<std::string, Fact>> facts(const Type& type,
                                                                std::int32_t threads) const {
    return {{"dtype", to_string(type.cache->shape().dtype)},
            {"format", to_string(type.cache->shape().format)},
            {"threads", std::int64_t{threads}}};
  }
  [[nodiscard]] std::string work(const Type& type) const {
    const CaseShape& shape = type.cache->shape();
    return std::to_string(shape.lengths.size()) + " sequences x " +
           std::to_string(shape.lengths[0]) +
           " tokens, 4 KV heads of 128, blocks of 16 in random order";
  }

  [[nodiscard]] const std::vector<double>& read_seconds(const Type& type,
                                                        std::int32_t threads) const {
    return panel_.seconds(type.reads.at(threads).blocks.piece(panel_));
  }
  // How much faster the read in block order is on so many threads than on one.
  [[nodiscard]] double scaling(const Type& type, std::int32_t threads) const {
    return median(quotients(read_seconds(type, 1), read_seconds(type, threads)));
  }

  void report_reads(const Type& type) const {
    const double bytes = type.cache->bytes();
    for (const auto& [threads, read] : type.reads) {
      const std::vector<double> in_order =
          panel_.giga_rate(read.in_order.piece(panel_), type.cache->memory_bytes());
      context_.session.report({.name = "read.in_order",
                               .facts = facts(type, threads),
                               .unit = "GB/s",
                               .lower_is_better = false,
                               .note = "the memory of the cache from front to back"},
                              {in_order, {}});
      auto names = facts(type, threads);
      names.emplace_back("order", to_string(read.blocks.best(panel_).order));
      names.emplace_back("tiles_ahead", std::int64_t{read.blocks.best(panel_).ahead.tiles});
      names.emplace_back("into_level", std::int64_t{read.blocks.best(panel_).ahead.level});
      context_.session.report(
          {.name = "read.blocks",
           .facts = std::move(names),
           .unit = "GB/s",
           .lower_is_better = false,
           .note = work(type) + ", only read, in the best of 18 ways; ceiling: in order. " +
                   std::to_string(threads) + " threads read " + two_digits(scaling(type, threads)) +
                   " x as fast as one"},
          {panel_.giga_rate(read.blocks.piece(panel_), bytes), in_order});
    }
  }

  void report_piece(const Type& type, const Piece& piece) const {
    const CaseShape& shape = type.cache->shape();
    auto names = facts(type, piece.threads);
    names.emplace_back("q_per_kv", std::int64_t{piece.q_per_kv});
    names.emplace_back("target", context_.target_name());
    const double bytes = type.cache->bytes();
    Figure figure{.name = "decode.bytes",
                  .facts = names,
                  .unit = "GB/s",
                  .lower_is_better = false,
                  .promise_is_ratio = true,
                  .note = work(type) + "; ceiling: reading the same blocks"};
    const std::optional<PromiseByClass> promise = promised(context_, shape);
    if (promise && piece.q_per_kv == 8) figure.promise = context_.promise(*promise);
    Context::judge(figure, piece.threads, scaling(type, piece.threads));
    context_.session.report(
        figure, {panel_.giga_rate(piece.piece, bytes),
                 panel_.giga_rate(type.reads.at(piece.threads).blocks.piece(panel_), bytes)});
    std::vector<double> millions = panel_.giga_rate(piece.piece, type.cache->token_heads() * 1e3);
    context_.session.report({.name = "decode.token_heads",
                             .facts = names,
                             .unit = "M/s",
                             .lower_is_better = false,
                             .note = "tokens times KV heads"},
                            {std::move(millions), {}});
  }

  [[nodiscard]] const Piece& piece_of(const Type& type, std::int32_t q_per_kv,
                                      std::int32_t threads) const {
    return *std::find_if(type.pieces.begin(), type.pieces.end(), [&](const Piece& piece) {
      return piece.q_per_kv == q_per_kv && piece.threads == threads;
    });
  }

  void report_q_per_kv(const Type& type, const Piece& piece) const {
    if (piece.q_per_kv == 8) return;
    auto names = facts(type, piece.threads);
    names.emplace_back("q_per_kv", std::int64_t{piece.q_per_kv});
    names.emplace_back("target", context_.target_name());
    Figure figure{.name = "decode.q_per_kv",
                  .facts = std::move(names),
                  .unit = "M token-heads/s",
                  .lower_is_better = false,
                  .promise_is_ratio = true,
                  .note = "ceiling: 8 query heads for each KV head"};
    if (type.cache->shape().format == Format::kGranule) {
      figure.promise = promised_of(piece.q_per_kv);
    }
    Context::judge(figure, piece.threads, scaling(type, piece.threads));
    const double work = type.cache->token_heads() * 1e3;
    context_.session.report(figure,
                            {panel_.giga_rate(piece.piece, work),
                             panel_.giga_rate(piece_of(type, 8, piece.threads).piece, work)});
  }

  void report_int8() const {
    const Type* int8 = nullptr;
    const Type* bf16 = nullptr;
    for (const Type& type : types_) {
      if (type.cache->shape().dtype == DType::kInt8) int8 = &type;
      if (type.cache->shape().dtype == DType::kBF16) bf16 = &type;
    }
    if (int8 == nullptr || bf16 == nullptr) return;
    for (const std::int32_t threads : context_.thread_counts) {
      Figure figure{.name = "decode.int8_over_bf16",
                    .facts = {{"format", to_string(int8->cache->shape().format)},
                              {"threads", std::int64_t{threads}},
                              {"q_per_kv", std::int64_t{8}},
                              {"target", context_.target_name()}},
                    .unit = "M token-heads/s",
                    .lower_is_better = false,
                    .promise_is_ratio = true,
                    .note = "ceiling: bf16; a better kernel for bf16 lowers the ratio"};
      if (int8->cache->shape().format == Format::kGranule && context_.has_dot_products()) {
        figure.promise = Promise{1.5, 1.75};
      }
      Context::judge(figure, threads, scaling(*int8, threads));
      context_.session.report(
          figure,
          {panel_.giga_rate(piece_of(*int8, 8, threads).piece, int8->cache->token_heads() * 1e3),
           panel_.giga_rate(piece_of(*bf16, 8, threads).piece, bf16->cache->token_heads() * 1e3)});
    }
  }

  const Context& context_;
  Panel panel_;
  std::vector<Type> types_;
};

const std::vector<std::string>& names() {
  static const std::vector<std::string> all{"read.in_order",   "read.blocks",
                                            "decode.bytes",    "decode.token_heads",
                                            "decode.q_per_kv", "decode.int8_over_bf16"};
  return all;
}

void measure_decode(const Context& context) {
  std::map<DType, Expected> expected;
  for (const Format format : context.formats()) {
    DecodePanel(context, format, expected).report();
  }
}

}  // namespace

AttentionFamily decode_family() { return {names(), measure_decode}; }

}  // namespace kvfolio::bench
