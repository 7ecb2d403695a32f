// SPDX-License-Identifier: Apache-2.0
#pragma once

// Rows and parameters of attention as C says them. Inline: libkvfolio and libkvfolio_cuda use them.
// Thread safety: free functions.

#include <cmath>

#include "capi/c_structs.h"
#include "capi/read_prompt.h"
#include "kvfolio/dtype.h"
#include "kvfolio/kernels.h"
#include "kvfolio/view.h"

namespace kvfolio::capi {

template <typename View, typename Data>
Status rows_of(std::string_view call, std::string_view name, Data* data, const kvfolio_rows* rows,
               View& out) {
  if (rows == nullptr) {
    return data == nullptr ? Status()
                           : Status(ErrorCode::kInvalidArgument,
                                    concat(call, ": ", name, " is given without ", name, "_rows"));
  }
  kvfolio_rows ours;
  KVFOLIO_RETURN_IF_ERROR(read_struct(call, name, rows, ours));
  out.data = data;
  out.num_tokens = ours.num_tokens;
  out.num_heads = ours.num_heads;
  out.head_dim = ours.head_dim;
  KVFOLIO_RETURN_IF_ERROR(read_dtype(call, name, ours.dtype, DType::kF32, out.dtype));
  const bool is_dense = ours.token_stride == 0 && ours.head_stride == 0;
  const std::int64_t row = std::int64_t{ours.head_dim} * dtype_bytes(out.dtype);
  out.head_stride = is_dense ? row : ours.head_stride;
  // The product of three int32 fits unless a size is absurd, which the kernel refuses.
  out.token_stride = ours.token_stride;
  if (is_dense && __builtin_mul_overflow(row, std::int64_t{ours.num_heads}, &out.token_stride)) {
    return {ErrorCode::kInvalidArgument,
            concat(call, ": ", name, " has ", ours.num_heads, " heads of ", ours.head_dim,
                   " elements, whose bytes overflow")};
  }
  return {};
}

inline Status read_rows(std::string_view call, std::string_view name, const void* data,
                        const kvfolio_rows* rows, ConstRowsView& out) {
  return rows_of(call, name, static_cast<const std::byte*>(data), rows, out);
}

inline Status read_rows(std::string_view call, std::string_view name, void* data,
                        const kvfolio_rows* rows, RowsView& out) {
  return rows_of(call, name, static_cast<std::byte*>(data), rows, out);
}

// All but the rows. The block table is not read.
inline Status read_gather(std::string_view call, const KVView& cache,
                          const std::int32_t* block_table, std::int64_t num_entries,
                          const kvfolio_gather_options* options, GatherArgs& out) {
  KVFOLIO_RETURN_IF_ERROR(check_array(call, "block_table", block_table, num_entries));
  kvfolio_gather_options ours;
  KVFOLIO_RETURN_IF_ERROR(read_struct(call, "options", options, ours));
  out.cache = cache;
  out.block_table = span_of(block_table, num_entries);
  out.length = ours.length;
  out.first = ours.first;
  out.count = ours.count;
  out.first_layer = ours.first_layer;
  out.num_layers = ours.num_layers == 0 ? 1 : ours.num_layers;
  out.first_head = ours.first_head;
  out.k_layer_stride = ours.k_layer_stride;
  out.v_layer_stride = ours.v_layer_stride;
  return {};
}

// A window, chunks or neither; arrays by query head. They are not read.
inline Status read_params(std::string_view call, const KVView& cache,
                          const kvfolio_attention_options& options, AttentionParams& out) {
  if (options.window != 0 && options.chunk != 0) {
    return {ErrorCode::kInvalidArgument,
            concat(call, ": options->window is ", options.window, " and chunk ", options.chunk,
                   ", allowed: one of them, the other 0")};
  }
  KVFOLIO_RETURN_IF_ERROR(
      check_array(call, "alibi_slopes", options.alibi_slopes, options.num_alibi_slopes));
  KVFOLIO_RETURN_IF_ERROR(
      check_array(call, "sink_logits", options.sink_logits, options.num_sink_logits));
  const AttentionKind kind = options.window != 0  ? AttentionKind::kSlidingWindow
                             : options.chunk != 0 ? AttentionKind::kChunked
                                                  : AttentionKind::kFull;
  out = {.scale = options.scale != 0 ? options.scale : 1.0 / std::sqrt(cache.head_dim_k),
         .causal = options.not_causal == 0,
         .rule = {kind, options.window + options.chunk, options.num_sinks},
         .soft_cap = options.soft_cap,
         .alibi_slopes = span_of(options.alibi_slopes, options.num_alibi_slopes),
         .sink_logits = span_of(options.sink_logits, options.num_sink_logits)};
  return {};
}

}  // namespace kvfolio::capi
