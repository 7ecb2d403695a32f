// SPDX-License-Identifier: Apache-2.0
//
// Attention on a device.

#include "capi/read_rows.h"
#include "cuda_capi/cuda_capi.h"

namespace kvfolio::capi {
namespace {

// What both calls take in host memory.
struct HostLengths {
  std::int32_t num_sequences;
  const std::int32_t* query_start;
  const std::int32_t* kv_lens;
  const std::int32_t* trim_sinks;
  const std::int32_t* trim_first_kept;
};

Status check_lengths(std::string_view call, const HostLengths& host) {
  if (host.query_start == nullptr) return null_argument(call, "query_start");
  return check_array(call, "kv_lens", host.kv_lens, host.num_sequences);
}

// Requires: check_lengths(call, host).ok().
AttentionBatch batch_of(const HostLengths& host) {
  const std::int64_t n = host.num_sequences;
  const auto optional_array = [n](const std::int32_t* data) {
    return span_of(data, data == nullptr ? 0 : n);
  };
  AttentionBatch batch;
  batch.query_start = span_of(host.query_start, n + 1);
  batch.kv_lens = span_of(host.kv_lens, n);
  batch.trim_sinks = optional_array(host.trim_sinks);
  batch.trim_first_kept = optional_array(host.trim_first_kept);
  return batch;
}

Status read_batch(std::string_view call, const HostLengths& host,
                  const kvfolio_cuda_attention& device, AttentionBatch& out) {
  KVFOLIO_RETURN_IF_ERROR(check_lengths(call, host));
  const std::int64_t entries = std::int64_t{host.num_sequences} * device.block_table_stride;
  if (device.block_table_stride < 0 || (device.block_table == nullptr && entries > 0)) {
    return {ErrorCode::kInvalidArgument,
            concat(call, ": on_device->block_table is ",
                   device.block_table == nullptr ? "null" : "given", ", its stride ",
                   device.block_table_stride, ", allowed: 0 and above")};
  }
  out = batch_of(host);
  out.block_table = span_of(device.block_table, entries);
  out.block_table_stride = device.block_table_stride;
  return {};
}

// A device has no targets to choose from, and computes all rows and heads.
Status check_whole(std::string_view call, const kvfolio_attention_options& options) {
  for (const auto& [name, value] :
       {std::pair{"target", options.target}, std::pair{"slice", options.slice},
        std::pair{"first_row", options.first_row}, std::pair{"num_rows", options.num_rows},
        std::pair{"first_kv_head", options.first_kv_head},
        std::pair{"num_kv_heads", options.num_kv_heads}}) {
    if (value == 0) continue;
    return {ErrorCode::kInvalidArgument,
            concat(call, ": options->", name, " is ", value, ", allowed on a device: 0")};
  }
  return {};
}

Status read_call(std::string_view call, const kvfolio_view& cache,
                 const kvfolio_attention_options* their_options,
                 const kvfolio_cuda_attention* their_memory, const HostLengths& host,
                 const kvfolio_rows* q_rows, const kvfolio_rows* out_rows,
                 cuda::DeviceAttention& out) {
  kvfolio_attention_options options;
  KVFOLIO_RETURN_IF_ERROR(read_struct(call, "options", their_options, options));
  KVFOLIO_RETURN_IF_ERROR(check_whole(call, options));
  kvfolio_cuda_attention device;
  KVFOLIO_RETURN_IF_ERROR(read_struct(call, "on_device", their_memory, device));
  KVFOLIO_RETURN_IF_ERROR(read_batch(call, host, device, out.batch));
  out.cache = view_of(cache);
  out.layer = options.layer;
  out.query_start = device.query_start;
  out.kv_lens = device.kv_lens;
  out.trim_sinks = device.trim_sinks;
  out.trim_first_kept = device.trim_first_kept;
  KVFOLIO_RETURN_IF_ERROR(read_params(call, out.cache, options, out.params));
  KVFOLIO_RETURN_IF_ERROR(read_rows(call, "q", device.q, q_rows, out.q));
  KVFOLIO_RETURN_IF_ERROR(read_rows(call, "out", device.out, out_rows, out.out));
  out.lse = device.lse;
  return {};
}

Status read_capacity(std::string_view call, const kvfolio_cuda_attend_capacity* theirs,
                     cuda::AttendCapacity& out) {
  kvfolio_cuda_attend_capacity capacity;
  KVFOLIO_RETURN_IF_ERROR(read_struct(call, "capacity", theirs, capacity));
  out.max_sequences = capacity.max_sequences;
  out.max_sequence_tokens = capacity.max_sequence_tokens;
  if (capacity.max_queries != 0) out.max_queries = capacity.max_queries;
  out.max_tokens = capacity.max_tokens;
  return {};
}

std::int32_t give_plan(kvfolio_error* error, Result<cuda::AttendPlan> plan,
                       kvfolio_cuda_attend_plan** out, std::string_view call) {
  std::string target(plan ? plan->target() : ""), explained;
  if (plan) explained = plan->explain();
  return give(error, std::move(plan), out, call, std::move(target), std::move(explained));
}

}  // namespace
}  // namespace kvfolio::capi

using namespace kvfolio;
using namespace kvfolio::capi;

extern "C" {

int32_t kvfolio_cuda_plan_attend(const kvfolio_cuda_kernels* kernels, const kvfolio_view* cache,
                                 const kvfolio_attention_options* options,
                                 const kvfolio_cuda_attention* on_device, int32_t num_sequences,
                                 const int32_t* query_start, const int32_t* kv_lens,
                                 const int32_t* trim_sinks, const int32_t* trim_first_kept,
                                 const kvfolio_rows* q_rows, const kvfolio_rows* out_rows,
                                 kvfolio_cuda_attend_plan** out, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(kernels);
  KVFOLIO_C_NEEDS(cache);
  KVFOLIO_C_NEEDS(on_device);
  KVFOLIO_C_NEEDS(out);
  cuda::DeviceAttention call;
  KVFOLIO_C_RETURN_IF_ERROR(read_call(
      __func__, *cache, options, on_device,
      {num_sequences, query_start, kv_lens, trim_sinks, trim_first_kept}, q_rows, out_rows, call));
  return give_plan(error, cuda::plan_attend(*kernels->kernels, call), out, __func__);
}

int32_t kvfolio_cuda_plan_attend_padded(
    const kvfolio_cuda_kernels* kernels, const kvfolio_view* cache,
    const kvfolio_attention_options* options, const kvfolio_cuda_attention* on_device,
    int32_t num_sequences, const int32_t* query_start, const int32_t* kv_lens,
    const int32_t* trim_sinks, const int32_t* trim_first_kept, const kvfolio_rows* q_rows,
    const kvfolio_rows* out_rows, const kvfolio_cuda_attend_capacity* capacity,
    kvfolio_cuda_attend_plan** out, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(kernels);
  KVFOLIO_C_NEEDS(cache);
  KVFOLIO_C_NEEDS(on_device);
  KVFOLIO_C_NEEDS(capacity);
  KVFOLIO_C_NEEDS(out);
  cuda::DeviceAttention call;
  cuda::AttendCapacity largest;
  KVFOLIO_C_RETURN_IF_ERROR(read_call(
      __func__, *cache, options, on_device,
      {num_sequences, query_start, kv_lens, trim_sinks, trim_first_kept}, q_rows, out_rows, call));
  KVFOLIO_C_RETURN_IF_ERROR(read_capacity(__func__, capacity, largest));
  return give_plan(error, cuda::plan_attend(*kernels->kernels, call, largest), out, __func__);
}

void kvfolio_cuda_attend_plan_destroy(kvfolio_cuda_attend_plan* plan) {
  const NothingThrown nothing;
  delete plan;
}

const void* kvfolio_cuda_attend_plan_image(const kvfolio_cuda_attend_plan* plan, int64_t* bytes) {
  const std::span<const std::byte> image =
      plan == nullptr ? std::span<const std::byte>() : plan->plan.image();
  if (bytes != nullptr) *bytes = static_cast<std::int64_t>(image.size());
  return image.data();
}

int64_t kvfolio_cuda_attend_plan_workspace_bytes(const kvfolio_cuda_attend_plan* plan) {
  return plan == nullptr ? 0 : plan->plan.workspace_bytes();
}

int64_t kvfolio_cuda_attend_plan_zeroed_bytes(const kvfolio_cuda_attend_plan* plan) {
  return plan == nullptr ? 0 : plan->plan.zeroed_bytes();
}

const char* kvfolio_cuda_attend_plan_target(const kvfolio_cuda_attend_plan* plan) {
  return plan == nullptr ? nullptr : plan->target.c_str();
}

int32_t kvfolio_cuda_attend_plan_get_shape(const kvfolio_cuda_attend_plan* plan,
                                           kvfolio_cuda_attend_shape* out, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(plan);
  KVFOLIO_C_RETURN_IF_ERROR(check_out(__func__, "out", out));
  write_shape(out, plan->plan.shape());
  return KVFOLIO_OK;
}

int32_t kvfolio_cuda_attend_plan_get_capacity(const kvfolio_cuda_attend_plan* plan,
                                              kvfolio_cuda_attend_capacity* out,
                                              kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(plan);
  KVFOLIO_C_RETURN_IF_ERROR(check_out(__func__, "out", out));
  const cuda::AttendCapacity capacity = plan->plan.capacity();
  write_struct(out, {.struct_size = 0,
                     .max_sequences = capacity.max_sequences,
                     .max_sequence_tokens = capacity.max_sequence_tokens,
                     .max_queries = capacity.max_queries,
                     .max_tokens = capacity.max_tokens});
  return KVFOLIO_OK;
}

int32_t kvfolio_cuda_attend_plan_check(const kvfolio_cuda_attend_plan* plan, int32_t num_sequences,
                                       const int32_t* query_start, const int32_t* kv_lens,
                                       const int32_t* trim_sinks, const int32_t* trim_first_kept,
                                       kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(plan);
  const HostLengths host = {num_sequences, query_start, kv_lens, trim_sinks, trim_first_kept};
  KVFOLIO_C_RETURN_IF_ERROR(check_lengths(__func__, host));
  return answer(error, plan->plan.check(batch_of(host)));
}

const char* kvfolio_cuda_attend_plan_explain(const kvfolio_cuda_attend_plan* plan) {
  return plan == nullptr ? nullptr : plan->explained.c_str();
}

int32_t kvfolio_cuda_plan_on_device(const kvfolio_cuda_kernels* kernels, const kvfolio_view* cache,
                                    const kvfolio_attention_options* options,
                                    const kvfolio_cuda_attention* on_device, int32_t num_sequences,
                                    const int32_t* query_start, const int32_t* kv_lens,
                                    const int32_t* trim_sinks, const int32_t* trim_first_kept,
                                    const kvfolio_rows* q_rows, const kvfolio_rows* out_rows,
                                    const kvfolio_cuda_attend_plan* plan, void* image,
                                    void* workspace, void* stream, const int32_t* counts,
                                    uint64_t* fault, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(kernels);
  KVFOLIO_C_NEEDS(cache);
  KVFOLIO_C_NEEDS(on_device);
  KVFOLIO_C_NEEDS(plan);
  KVFOLIO_C_NEEDS(image);
  KVFOLIO_C_NEEDS(workspace);
  cuda::DeviceAttention call;
  KVFOLIO_C_RETURN_IF_ERROR(read_call(
      __func__, *cache, options, on_device,
      {num_sequences, query_start, kv_lens, trim_sinks, trim_first_kept}, q_rows, out_rows, call));
  return answer(error, cuda::plan_on_device(
                           *kernels->kernels, call, plan->plan, static_cast<std::byte*>(image),
                           static_cast<std::byte*>(workspace), stream, counts, fault_of(fault)));
}

int32_t kvfolio_cuda_plan_fault(const kvfolio_cuda_attend_plan* plan, uint64_t fault,
                                kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(plan);
  return answer(error, cuda::plan_fault(plan->plan, fault));
}

int32_t kvfolio_cuda_upload(const kvfolio_cuda_kernels* kernels,
                            const kvfolio_cuda_attend_plan* plan, void* pinned,
                            int64_t pinned_bytes, void* image, void* workspace, void* stream,
                            kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(kernels);
  KVFOLIO_C_NEEDS(plan);
  KVFOLIO_C_NEEDS(pinned);
  KVFOLIO_C_NEEDS(image);
  KVFOLIO_C_NEEDS(workspace);
  if (pinned_bytes < 0) {
    return answer(
        error, {ErrorCode::kInvalidArgument, concat(__func__, ": pinned_bytes is ", pinned_bytes)});
  }
  return answer(error, cuda::upload(*kernels->kernels, plan->plan,
                                    span_of(static_cast<std::byte*>(pinned), pinned_bytes),
                                    static_cast<std::byte*>(image),
                                    static_cast<std::byte*>(workspace), stream));
}

int32_t kvfolio_cuda_attend(const kvfolio_cuda_kernels* kernels, const kvfolio_view* cache,
                            const kvfolio_attention_options* options,
                            const kvfolio_cuda_attention* on_device, int32_t num_sequences,
                            const int32_t* query_start, const int32_t* kv_lens,
                            const int32_t* trim_sinks, const int32_t* trim_first_kept,
                            const kvfolio_rows* q_rows, const kvfolio_rows* out_rows,
                            const kvfolio_cuda_attend_plan* plan, const void* image,
                            void* workspace, void* stream, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(kernels);
  KVFOLIO_C_NEEDS(cache);
  KVFOLIO_C_NEEDS(on_device);
  KVFOLIO_C_NEEDS(plan);
  KVFOLIO_C_NEEDS(image);
  KVFOLIO_C_NEEDS(workspace);
  cuda::DeviceAttention call;
  KVFOLIO_C_RETURN_IF_ERROR(read_call(
      __func__, *cache, options, on_device,
      {num_sequences, query_start, kv_lens, trim_sinks, trim_first_kept}, q_rows, out_rows, call));
  return answer(
      error, cuda::attend(*kernels->kernels, call, plan->plan, static_cast<const std::byte*>(image),
                          static_cast<std::byte*>(workspace), stream));
}

}  // extern "C"
