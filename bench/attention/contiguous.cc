// SPDX-License-Identifier: Apache-2.0

// What blocks cost: decode over blocks of 16 in random order against the same kernel over blocks of
// 1024 that lie one behind the other.

#include <memory>

#include "cached_case.h"

namespace kvfolio::bench {
namespace {

void measure_contiguous(const Context& context) {
  if (!context.has_granule()) return;
  Panel panel;
  struct Type {
    std::unique_ptr<CachedCase> paged, contiguous;
    std::unique_ptr<AttentionCall> paged_call, contiguous_call;
    std::vector<std::pair<std::size_t, std::size_t>> pieces;  // by number of threads
    std::vector<ReadProbe> reads;
  };
  std::vector<Type> types;
  for (const DType dtype : context.dtypes()) {
    CaseShape shape{.dtype = dtype, .lengths = {}};
    const std::int64_t token_bytes = std::int64_t{2} * kKvHeads * kHeadDim * dtype_bytes(dtype);
    std::int32_t length = 16'384;
    while (8 * length * token_bytes < 4 * context.l3_bytes) length += 4096;
    shape.lengths.assign(context.session.quick() ? 2 : 8, context.session.quick() ? 320 : length);
    Type type;
    type.paged = std::make_unique<CachedCase>(shape);
    shape.block_size = 1024;
    shape.shuffled = false;
    type.contiguous = std::make_unique<CachedCase>(shape);
    type.paged_call = std::make_unique<AttentionCall>(context, *type.paged, 8, 1);
    type.contiguous_call = std::make_unique<AttentionCall>(context, *type.contiguous, 8, 1);
    Expected expected(context, *type.paged, 1, 4);
    expected.check(*type.paged_call, context, type.paged->shape());
    expected.check(*type.contiguous_call, context, shape);
    for (const std::int32_t threads : context.thread_counts) {
      type.reads.push_back(ReadProbe::of_blocks(panel, context, *type.paged, threads));
      const std::size_t paged =
          panel.add([call = type.paged_call.get(), threads] { call->run(threads); });
      const std::size_t contiguous =
          panel.add([call = type.contiguous_call.get(), threads] { call->run(threads); });
      type.pieces.emplace_back(paged, contiguous);
    }
    types.push_back(std::move(type));
  }
  panel.run(context.session.rounds());
  for (const Type& type : types) {
    for (std::size_t i = 0; i < context.thread_counts.size(); ++i) {
      const std::int32_t threads = context.thread_counts[i];
      Figure figure{.name = "decode.contiguous",
                    .facts = {{"dtype", to_string(type.paged->shape().dtype)},
                              {"format", "granule"},
                              {"threads", std::int64_t{threads}},
                              {"q_per_kv", std::int64_t{8}},
                              {"target", context.target_name()}},
                    .unit = "GB/s",
                    .lower_is_better = false,
                    .promise = Promise{0.90, 0.95},
                    .promise_is_ratio = true,
                    .note = "blocks of 16 in random order; ceiling: blocks of 1024 in order"};
      Context::judge(figure, threads,
                     median(quotients(panel.seconds(type.reads[0].piece(panel)),
                                      panel.seconds(type.reads[i].piece(panel)))));
      context.session.report(figure, {panel.giga_rate(type.pieces[i].first, type.paged->bytes()),
                                      panel.giga_rate(type.pieces[i].second, type.paged->bytes())});
    }
  }
}

}  // namespace

AttentionFamily contiguous_family() { return {{"decode.contiguous"}, measure_contiguous}; }

}  // namespace kvfolio::bench
