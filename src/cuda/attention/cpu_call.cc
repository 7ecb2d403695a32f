// SPDX-License-Identifier: Apache-2.0
#include "cuda/attention/cpu_call.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvfolio/kernels.h"

namespace kvfolio::cuda {
namespace {

DType dtype_of(Element element) {
  switch (element) {
    case Element::kF32:
      return DType::kF32;
    case Element::kF16:
      return DType::kF16;
    case Element::kBF16:
      return DType::kBF16;
    default:
      return DType::kInt8;
  }
}

std::byte* bytes_of(const void* data) { return static_cast<std::byte*>(const_cast<void*>(data)); }

KVView view_of(const CacheArgs& cache) {
  const auto strides = [](const Strides& s) { return KVStrides{0, s.block, s.head, s.token}; };
  KVView view;
  view.num_layers = 1;
  view.num_blocks = cache.num_blocks;
  view.block_size = cache.block_size;
  view.num_kv_heads = cache.num_heads;
  view.head_dim_k = cache.dim_k;
  view.head_dim_v = cache.dim_v;
  view.dtype = dtype_of(cache.element);
  view.k = bytes_of(cache.k);
  view.v = bytes_of(cache.v);
  view.k_scale = bytes_of(cache.k_scales);
  view.v_scale = bytes_of(cache.v_scales);
  view.k_strides = strides(cache.k_strides);
  view.v_strides = strides(cache.v_strides);
  view.k_scale_strides = strides(cache.k_scale_strides);
  view.v_scale_strides = strides(cache.v_scale_strides);
  return view;
}

}  // namespace

Status attend_on_cpu(const AttentionCall& call) {
  const std::int32_t num_rows = call.lengths.query_start.back();
  const std::int32_t q_heads = call.cache.num_heads * call.group_size;
  const auto heads = static_cast<std::size_t>(q_heads);
  AttentionArgs args;
  args.cache = view_of(call.cache);
  args.batch = {
      .query_start = call.lengths.query_start,
      .kv_lens = call.lengths.kv_lens,
      .block_table = {call.block_table, call.lengths.kv_lens.size() *
                                            static_cast<std::size_t>(call.block_table_stride)},
      .block_table_stride = static_cast<std::int32_t>(call.block_table_stride),
      .trim_sinks = call.lengths.trim_sinks,
      .trim_first_kept = call.lengths.trim_first_kept};
  const Mask& mask = call.mask;
  args.params = {.scale = call.scale,
                 .causal = mask.causal != 0,
                 .rule = {static_cast<AttentionKind>(mask.rule), mask.window, mask.num_sinks},
                 .soft_cap = call.soft_cap};
  if (call.alibi_slopes != nullptr) args.params.alibi_slopes = {call.alibi_slopes, heads};
  if (call.sink_logits != nullptr) args.params.sink_logits = {call.sink_logits, heads};
  args.q = {bytes_of(call.q), call.q_token_stride, call.q_head_stride,      num_rows,
            q_heads,          call.cache.dim_k,    dtype_of(call.q_element)};
  args.out = contiguous_rows(static_cast<float*>(call.out), num_rows, q_heads, call.cache.dim_v);
  args.lse = contiguous_rows(call.lse, num_rows, q_heads, 1);
  args.target = KernelTarget::kReference;
  const std::int32_t longest =
      *std::max_element(call.lengths.kv_lens.begin(), call.lengths.kv_lens.end());
  const Result<std::int64_t> bytes =
      attention_workspace_bytes(args.cache, q_heads, longest, args.target);
  if (!bytes) return bytes.error();
  std::vector<std::byte> workspace(static_cast<std::size_t>(*bytes));
  args.workspace = workspace;
  return kvfolio::attend(args);
}

}  // namespace kvfolio::cuda
