// SPDX-License-Identifier: Apache-2.0
//
// Attention in FlashInfer's call shape.

#include "capi/read_rows.h"
#include "cuda_capi/cuda_capi.h"

namespace kvfolio::capi {
namespace {

Status read_paged_kv(std::string_view call, const kvfolio_cuda_paged_kv* theirs,
                     cuda::PagedKV& out) {
  kvfolio_cuda_paged_kv ours;
  KVFOLIO_RETURN_IF_ERROR(read_struct(call, "tensors", theirs, ours));
  out.k = static_cast<std::byte*>(ours.k);
  out.v = static_cast<std::byte*>(ours.v);
  KVFOLIO_RETURN_IF_ERROR(read_enum(call, "tensors->layout", ours.layout, KVFOLIO_NHD, out.layout));
  out.num_pages = ours.num_pages;
  out.page_size = ours.page_size;
  out.num_kv_heads = ours.num_kv_heads;
  out.head_dim = ours.head_dim;
  return read_dtype(call, "tensors->dtype", ours.dtype, DType::kBF16, out.dtype);
}

Status read_batch_options(std::string_view call, const kvfolio_cuda_batch_attention_options* theirs,
                          cuda::BatchAttentionOptions& out) {
  kvfolio_cuda_batch_attention_options options;
  KVFOLIO_RETURN_IF_ERROR(read_struct(call, "options", theirs, options));
  out.max_sequences = options.max_sequences;
  out.max_pages_of_sequence = options.max_pages_of_sequence;
  if (options.max_image_bytes != 0) out.max_image_bytes = options.max_image_bytes;
  if (options.workspace_bytes != 0) out.workspace_bytes = options.workspace_bytes;
  out.padded = options.padded != 0;
  if (options.max_queries != 0) out.max_queries = options.max_queries;
  out.max_tokens = options.max_tokens;
  return {};
}

Status read_batch_params(std::string_view call, const kvfolio_cuda_batch_attention_params* theirs,
                         cuda::BatchAttentionPlan& out) {
  kvfolio_cuda_batch_attention_params params;
  KVFOLIO_RETURN_IF_ERROR(read_struct(call, "params", theirs, params));
  out.num_qo_heads = params.num_qo_heads;
  out.causal = params.causal != 0;
  out.sm_scale = params.sm_scale;
  out.logits_soft_cap = params.logits_soft_cap;
  if (params.window < 0 || params.window > kMaxSequenceTokens) {
    return {ErrorCode::kInvalidArgument, concat(call, ": params->window is ", params.window,
                                                ", allowed: 0 to ", kMaxSequenceTokens)};
  }
  out.window_left = params.window - 1;
  KVFOLIO_RETURN_IF_ERROR(
      read_dtype(call, "params->q_data_type", params.q_data_type, DType::kBF16, out.q_data_type));
  return read_dtype(call, "params->o_data_type", params.o_data_type, DType::kBF16, out.o_data_type);
}

Status read_page_arrays(std::string_view call, std::int32_t num_sequences,
                        const std::int32_t* qo_indptr, const std::int32_t* kv_indptr,
                        const std::int32_t* kv_indices, std::int64_t num_kv_indices,
                        const std::int32_t* kv_last_page_len, cuda::BatchAttentionPlan& out) {
  const std::int64_t n = num_sequences;
  KVFOLIO_RETURN_IF_ERROR(check_array(call, "kv_last_page_len", kv_last_page_len, n));
  if (kv_indptr == nullptr) return null_argument(call, "kv_indptr");
  KVFOLIO_RETURN_IF_ERROR(check_array(call, "kv_indices", kv_indices, num_kv_indices));
  out.qo_indptr = span_of(qo_indptr, qo_indptr == nullptr ? 0 : n + 1);
  out.kv_indptr = span_of(kv_indptr, n + 1);
  out.kv_indices = span_of(kv_indices, num_kv_indices);
  out.kv_last_page_len = span_of(kv_last_page_len, n);
  return {};
}

}  // namespace
}  // namespace kvfolio::capi

using namespace kvfolio;
using namespace kvfolio::capi;

extern "C" {

int32_t kvfolio_cuda_paged_kv_view(const kvfolio_cuda_paged_kv* tensors, kvfolio_view** out,
                                   kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(tensors);
  KVFOLIO_C_NEEDS(out);
  cuda::PagedKV ours;
  KVFOLIO_C_RETURN_IF_ERROR(read_paged_kv(__func__, tensors, ours));
  const Result<KVView> view = cuda::paged_kv_view(ours);
  if (!view) return answer(error, view.error());
  kvfolio_view* const handle = new_handle(*view);
  if (handle == nullptr) return answer(error, no_memory(__func__));
  *out = handle;
  return KVFOLIO_OK;
}

int32_t kvfolio_cuda_batch_attention_create(const kvfolio_cuda_kernels* kernels,
                                            const kvfolio_cuda_batch_attention_options* options,
                                            kvfolio_cuda_batch_attention** out,
                                            kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(kernels);
  KVFOLIO_C_NEEDS(out);
  cuda::BatchAttentionOptions ours;
  KVFOLIO_C_RETURN_IF_ERROR(read_batch_options(__func__, options, ours));
  return give(error, cuda::BatchAttention::create(kernels->kernels, ours), out, __func__,
              std::string());
}

void kvfolio_cuda_batch_attention_destroy(kvfolio_cuda_batch_attention* attention) {
  const NothingThrown nothing;
  delete attention;
}

int32_t kvfolio_cuda_batch_attention_plan(kvfolio_cuda_batch_attention* attention,
                                          const kvfolio_cuda_batch_attention_params* params,
                                          int32_t num_sequences, const int32_t* qo_indptr,
                                          const int32_t* kv_indptr, const int32_t* kv_indices,
                                          int64_t num_kv_indices, const int32_t* kv_last_page_len,
                                          const kvfolio_view* paged_kv, void* stream,
                                          kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(attention);
  KVFOLIO_C_NEEDS(paged_kv);
  cuda::BatchAttentionPlan step;
  KVFOLIO_C_RETURN_IF_ERROR(read_batch_params(__func__, params, step));
  KVFOLIO_C_RETURN_IF_ERROR(read_page_arrays(__func__, num_sequences, qo_indptr, kv_indptr,
                                             kv_indices, num_kv_indices, kv_last_page_len, step));
  step.paged_kv = view_of(*paged_kv);
  const Status planned = attention->attention->plan(step, stream);
  attention->target = attention->attention->target();
  return answer(error, planned);
}

int32_t kvfolio_cuda_batch_attention_run(kvfolio_cuda_batch_attention* attention, const void* q,
                                         const kvfolio_rows* q_rows, const kvfolio_view* paged_kv,
                                         int32_t layer, void* out, const kvfolio_rows* out_rows,
                                         float* lse, void* stream, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(attention);
  KVFOLIO_C_NEEDS(paged_kv);
  ConstRowsView from;
  RowsView to;
  KVFOLIO_C_RETURN_IF_ERROR(read_rows(__func__, "q", q, q_rows, from));
  KVFOLIO_C_RETURN_IF_ERROR(read_rows(__func__, "out", out, out_rows, to));
  return answer(error, attention->attention->run(from, view_of(*paged_kv), to, lse, stream, layer));
}

int32_t kvfolio_cuda_batch_attention_get_shape(const kvfolio_cuda_batch_attention* attention,
                                               kvfolio_cuda_attend_shape* out,
                                               kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(attention);
  KVFOLIO_C_RETURN_IF_ERROR(check_out(__func__, "out", out));
  write_shape(out, attention->attention->shape());
  return KVFOLIO_OK;
}

const char* kvfolio_cuda_batch_attention_target(const kvfolio_cuda_batch_attention* attention) {
  return attention == nullptr ? nullptr : attention->target.c_str();
}

int64_t kvfolio_cuda_batch_attention_device_bytes(const kvfolio_cuda_batch_attention* attention) {
  return attention == nullptr ? 0 : attention->attention->device_bytes();
}

int64_t kvfolio_cuda_batch_attention_pinned_bytes(const kvfolio_cuda_batch_attention* attention) {
  return attention == nullptr ? 0 : attention->attention->pinned_bytes();
}

}  // extern "C"
