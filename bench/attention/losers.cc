// SPDX-License-Identifier: Apache-2.0

// What lost, and is kept because it teaches: other ways to the same result, on one thread, against
// attend() over blocks where they lie. They use nothing that callers do not have.

#include <cmath>
#include <cstring>
#include <memory>

#include "cached_case.h"

namespace kvfolio::bench {
namespace {

constexpr std::int32_t kQueriesPerKv = 8;

// Gathers each sequence into rows [tokens, heads, head_dim], as engines do that have kernels for
// contiguous memory only, and attends over those.
class Gathered {
 public:
  Gathered(const CachedCase& cache, AttentionCall& call)
      : cache_(cache),
        call_(call),
        tokens_(cache.shape().lengths[0]),
        plane_bytes_(static_cast<std::int64_t>(row_bytes(cache.shape().dtype)) * kKvHeads *
                     tokens_),
        memory_(2 * plane_bytes_) {
    for (std::int32_t i = 0; i < tokens_ / cache.shape().block_size; ++i) table_.push_back(i);
  }

  void run() const {
    AttentionArgs args = call_.args();
    const std::vector<std::int32_t>& all_blocks = cache_.table();
    const auto row = static_cast<std::int64_t>(row_bytes(cache_.shape().dtype));
    const RowsView k{memory_.data(), kKvHeads * row,      row, tokens_, kKvHeads,
                     kHeadDim,       cache_.shape().dtype};
    RowsView v = k;
    v.data += plane_bytes_;
    KVView view;
    view.k = k.data;
    view.v = v.data;
    view.k_strides.head = view.v_strides.head = row;
    view.k_strides.token = view.v_strides.token = kKvHeads * row;
    view.k_strides.block = view.v_strides.block = cache_.shape().block_size * kKvHeads * row;
    view.num_layers = 1;
    view.num_blocks = static_cast<std::int32_t>(table_.size());
    view.block_size = cache_.shape().block_size;
    view.num_kv_heads = kKvHeads;
    view.head_dim_k = view.head_dim_v = kHeadDim;
    view.dtype = cache_.shape().dtype;
    const ConstRowsView q = args.q;
    const RowsView out = args.out;
    const std::int32_t one_query[] = {0, 1};
    for (std::int32_t s = 0; s < cache_.num_sequences(); ++s) {
      const auto* blocks = all_blocks.data() + static_cast<std::size_t>(s) *
                                                   static_cast<std::size_t>(cache_.table_stride());
      require(gather({.cache = cache_.view(),
                      .block_table = {blocks, table_.size()},
                      .length = tokens_,
                      .count = tokens_,
                      .k = k,
                      .v = v}),
              "gather");
      args.cache = view;
      args.batch = {.query_start = one_query,
                    .kv_lens = {&tokens_, 1},
                    .block_table = table_,
                    .block_table_stride = static_cast<std::int32_t>(table_.size())};
      args.q.data = q.at(s, 0);
      args.out.data = out.at(s, 0);
      args.q.num_tokens = args.out.num_tokens = 1;
      require(attend(args), "attend over gathered rows");
    }
  }

 private:
  const CachedCase& cache_;
  AttentionCall& call_;
  std::int32_t tokens_;
  std::int64_t plane_bytes_;
  Buffer memory_;
  std::vector<std::int32_t> table_;
};

// A call for each query head of a KV head: K and V are read G times, as by kernels that take one
// row of queries at a time.
void run_head_by_head(AttentionCall& call) {
  AttentionArgs args = call.args();
  const ConstRowsView q = args.q;
  const RowsView out = args.out;
  for (std::int32_t g = 0; g < kQueriesPerKv; ++g) {
    args.q.data = q.at(0, g);
    args.q.head_stride = kQueriesPerKv * q.head_stride;
    args.out.data = out.at(0, g);
    args.out.head_stride = kQueriesPerKv * out.head_stride;
    args.q.num_heads = args.out.num_heads = kKvHeads;
    require(attend(args), "attend for one query head");
  }
}

void measure_losers(const Context& context) {
  const Session& session = context.session;
  if (!context.has_granule()) return;
  Panel panel;
  struct Type {
    std::unique_ptr<CachedCase> cache;
    std::unique_ptr<AttentionCall> call;
    std::unique_ptr<Gathered> gathered;
    ReadProbe probe;
    std::size_t ours = 0, gather_first = 0, head_by_head = 0;
  };
  std::vector<Type> types;
  for (const DType dtype : context.dtypes()) {
    CaseShape shape{.dtype = dtype, .lengths = {}};
    const std::int64_t token_bytes = std::int64_t{2} * kKvHeads * kHeadDim * dtype_bytes(dtype);
    std::int32_t length = 4096;
    while (8 * length * token_bytes < 4 * context.l3_bytes) length += 4096;
    shape.lengths.assign(session.quick() ? 2 : 8, session.quick() ? 320 : length);
    Type type;
    type.cache = std::make_unique<CachedCase>(shape);
    type.call = std::make_unique<AttentionCall>(context, *type.cache, kQueriesPerKv, 1);
    AttentionCall& call = *type.call;
    Expected expected(context, *type.cache, 1, 4);
    expected.check(call, context, shape);
    const std::vector<float> right = call.out();
    // Bits do not depend on where the rows lie, nor on the heads beside a head.
    const auto require_same_bits = [&](const char* what) {
      require(std::memcmp(right.data(), call.out().data(), right.size() * sizeof(float)) == 0,
              std::string(what) + " in " + to_string(dtype) + ": other bits");
    };
    type.ours = panel.add([&call] { call.run(1); });
    run_head_by_head(call);
    require_same_bits("head by head");
    type.head_by_head = panel.add([&call] { run_head_by_head(call); });
    if (dtype != DType::kInt8) {  // whose rows are turned back on their way out
      type.gathered = std::make_unique<Gathered>(*type.cache, call);
      type.gathered->run();
      require_same_bits("gather first");
      type.gather_first = panel.add([gathered = type.gathered.get()] { gathered->run(); });
    }
    type.probe = ReadProbe::of_blocks(panel, context, *type.cache, 1);
    types.push_back(std::move(type));
  }
  panel.run(session.rounds());

  for (const Type& type : types) {
    const double bytes = type.cache->bytes();
    const CaseShape& shape = type.cache->shape();
    const std::string work = std::to_string(shape.lengths.size()) + " sequences x " +
                             std::to_string(shape.lengths[0]) + " tokens";
    const auto figure = [&](const char* name, std::string note) {
      return Figure{.name = name,
                    .facts = {{"dtype", to_string(shape.dtype)},
                              {"format", "granule"},
                              {"threads", std::int64_t{1}},
                              {"q_per_kv", std::int64_t{kQueriesPerKv}},
                              {"target", context.target_name()}},
                    .unit = "GB/s of the cache",
                    .lower_is_better = false,
                    .note = std::move(note)};
    };
    const std::vector<double> ours = panel.giga_rate(type.ours, bytes);
    session.report(
        figure("loser.head_by_head", work + ", a call for each query head; ceiling: one call"),
        {panel.giga_rate(type.head_by_head, bytes), ours});
    if (type.gathered) {
      session.report(figure("loser.gather_first",
                            work + ", gathered, then attended over; ceiling: attended in place"),
                     {panel.giga_rate(type.gather_first, bytes), ours});
    }
    const std::vector<double> best = panel.giga_rate(type.probe.piece(panel), bytes);
    for (const ReadProbe::Way& way : type.probe.ways()) {
      Figure read{.name = "loser.read",
                  .facts = {{"dtype", to_string(shape.dtype)},
                            {"order", to_string(way.order)},
                            {"tiles_ahead", std::int64_t{way.ahead.tiles}},
                            {"into_level", std::int64_t{way.ahead.level}}},
                  .unit = "GB/s",
                  .lower_is_better = false,
                  .note = work + ", only read; ceiling: the best of these ways"};
      session.report(read, {panel.giga_rate(way.piece, bytes), best});
    }
  }
}

}  // namespace

AttentionFamily losers_family() {
  return {{"loser.head_by_head", "loser.gather_first", "loser.read"}, measure_losers};
}

}  // namespace kvfolio::bench
