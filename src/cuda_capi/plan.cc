// SPDX-License-Identifier: Apache-2.0
//
// Plans that stay on a device.

#include <span>

#include "cuda_capi/cuda_capi.h"
#include "kvfolio/cuda_plan.h"
#include "kvfolio/step_plan.h"

namespace kvfolio::capi {
namespace {

// What is missing in an older caller's struct is empty, and refused if it is needed.
template <typename T, typename Array>
Status read_array(std::string_view call, std::string_view name, const Array& array,
                  std::span<const T>& out) {
  KVFOLIO_RETURN_IF_ERROR(check_array(call, name, array.data, array.size));
  out = span_of(array.data, array.size);
  return {};
}

Status read_group_plan(std::string_view call, const kvfolio_group_plan* theirs, GroupPlan& out) {
  kvfolio_group_plan group;
  KVFOLIO_RETURN_IF_ERROR(read_struct(call, "groups", theirs, group));
  out.block_table_stride = group.block_table_stride;
  KVFOLIO_RETURN_IF_ERROR(read_array(call, "slot_mapping", group.slot_mapping, out.slot_mapping));
  KVFOLIO_RETURN_IF_ERROR(
      read_array(call, "slot_mapping_64", group.slot_mapping_64, out.slot_mapping_64));
  KVFOLIO_RETURN_IF_ERROR(read_array(call, "block_table", group.block_table, out.block_table));
  KVFOLIO_RETURN_IF_ERROR(read_array(call, "kv_indptr", group.kv_indptr, out.kv_indptr));
  KVFOLIO_RETURN_IF_ERROR(read_array(call, "kv_indices", group.kv_indices, out.kv_indices));
  KVFOLIO_RETURN_IF_ERROR(
      read_array(call, "kv_last_page_len", group.kv_last_page_len, out.kv_last_page_len));
  KVFOLIO_RETURN_IF_ERROR(
      read_array(call, "kv_first_live", group.kv_first_live, out.kv_first_live));
  KVFOLIO_RETURN_IF_ERROR(read_array(call, "changed_rows", group.changed_rows, out.changed_rows));
  KVFOLIO_RETURN_IF_ERROR(
      read_array(call, "changed_columns", group.changed_columns, out.changed_columns));
  return read_array(call, "changed_blocks", group.changed_blocks, out.changed_blocks);
}

// Its groups stand in the handle.
Status read_plan(std::string_view call, kvfolio_cuda_plan& handle, const kvfolio_step_plan* theirs,
                 const kvfolio_group_plan* groups, std::int32_t num_groups, StepPlan& out) {
  kvfolio_step_plan step;
  if (theirs == nullptr) return null_argument(call, "step");
  KVFOLIO_RETURN_IF_ERROR(read_struct(call, "step", theirs, step));
  KVFOLIO_RETURN_IF_ERROR(check_elements(call, "groups", groups, num_groups));
  if (num_groups != handle.plan->num_groups()) {
    return {ErrorCode::kInvalidArgument, concat(call, ": the step has ", num_groups,
                                                " groups, the plan ", handle.plan->num_groups())};
  }
  for (std::int32_t g = 0; g < num_groups; ++g) {
    GroupPlan& group = handle.groups[static_cast<std::size_t>(g)];
    KVFOLIO_RETURN_IF_ERROR(read_group_plan(call, element(groups, g), group));
  }
  out.ticket = Ticket(step.ticket);
  out.num_tokens = step.num_tokens;
  KVFOLIO_RETURN_IF_ERROR(check_array(call, "sequences", step.sequences, step.num_sequences));
  out.sequences = ids_of(step.sequences, step.num_sequences);
  KVFOLIO_RETURN_IF_ERROR(read_array(call, "rows", step.rows, out.rows));
  KVFOLIO_RETURN_IF_ERROR(read_array(call, "query_start", step.query_start, out.query_start));
  KVFOLIO_RETURN_IF_ERROR(read_array(call, "kv_lens", step.kv_lens, out.kv_lens));
  KVFOLIO_RETURN_IF_ERROR(read_array(call, "trim_sinks", step.trim_sinks, out.trim_sinks));
  KVFOLIO_RETURN_IF_ERROR(
      read_array(call, "trim_first_kept", step.trim_first_kept, out.trim_first_kept));
  KVFOLIO_RETURN_IF_ERROR(read_array(call, "positions", step.positions, out.positions));
  out.groups = handle.groups;
  out.number = step.number;
  out.follows = step.follows;
  return {};
}

Status read_device_plan_options(std::string_view call, const kvfolio_cuda_plan_options* theirs,
                                cuda::DevicePlanOptions& out) {
  kvfolio_cuda_plan_options options;
  KVFOLIO_RETURN_IF_ERROR(read_struct(call, "options", theirs, options));
  out.max_sequences = options.max_sequences;
  out.max_tokens = options.max_tokens;
  out.num_rows = options.num_rows;
  if (options.steps_in_flight != 0) out.steps_in_flight = options.steps_in_flight;
  out.pad = options.pad_with_zero != 0 ? 0 : -1;
  out.positions = options.positions != 0;
  out.int64_slots = options.int64_slots != 0;
  out.batch_tables = options.no_batch_tables == 0;
  out.flashinfer = options.flashinfer != 0;
  out.max_changed_entries = options.max_changed_entries;
  return {};
}

}  // namespace
}  // namespace kvfolio::capi

using namespace kvfolio;
using namespace kvfolio::capi;

extern "C" {

int32_t kvfolio_cuda_plan_create(const kvfolio_cuda_kernels* kernels,
                                 const kvfolio_cuda_plan_options* options,
                                 const int32_t* block_sizes, const int32_t* table_strides,
                                 int32_t num_groups, kvfolio_cuda_plan** out,
                                 kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(kernels);
  KVFOLIO_C_NEEDS(out);
  cuda::DevicePlanOptions ours;
  KVFOLIO_C_RETURN_IF_ERROR(read_device_plan_options(__func__, options, ours));
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "block_sizes", block_sizes, num_groups));
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "table_strides", table_strides, num_groups));
  if (num_groups > kMaxGroups) {
    return answer(error,
                  {ErrorCode::kInvalidArgument,
                   concat(__func__, ": ", num_groups, " groups, allowed: 1 to ", kMaxGroups)});
  }
  std::vector<cuda::DevicePlanGroup> groups;
  groups.reserve(static_cast<std::size_t>(num_groups));
  for (std::int32_t g = 0; g < num_groups; ++g) {
    groups.push_back({.block_size = block_sizes[g], .table_stride = table_strides[g]});
  }
  ours.groups = groups;
  return give(error, cuda::DevicePlan::create(kernels->kernels, ours), out, __func__,
              std::vector<GroupPlan>(groups.size()));
}

void kvfolio_cuda_plan_destroy(kvfolio_cuda_plan* plan) {
  const NothingThrown nothing;
  delete plan;
}

int32_t kvfolio_cuda_plan_get_arrays(const kvfolio_cuda_plan* plan, kvfolio_cuda_plan_arrays* out,
                                     kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(plan);
  KVFOLIO_C_RETURN_IF_ERROR(check_out(__func__, "out", out));
  const cuda::DevicePlanArrays& arrays = plan->plan->arrays();
  write_struct(out, {.struct_size = 0,
                     .num_groups = plan->plan->num_groups(),
                     .query_start = arrays.query_start,
                     .rows = arrays.rows,
                     .kv_lens = arrays.kv_lens,
                     .trim_sinks = arrays.trim_sinks,
                     .trim_first_kept = arrays.trim_first_kept,
                     .positions = arrays.positions,
                     .counts = arrays.counts});
  return KVFOLIO_OK;
}

int32_t kvfolio_cuda_plan_get_group(const kvfolio_cuda_plan* plan, int32_t group,
                                    kvfolio_cuda_plan_group* out, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(plan);
  KVFOLIO_C_RETURN_IF_ERROR(check_out(__func__, "out", out));
  if (group < 0 || group >= plan->plan->num_groups()) {
    return answer(error, {ErrorCode::kInvalidArgument,
                          concat(__func__, ": group is ", group, ", allowed: 0 to ",
                                 plan->plan->num_groups() - 1)});
  }
  const cuda::DeviceGroupPlan& arrays = plan->plan->group(GroupId(group));
  write_struct(out, {.struct_size = 0,
                     .table_stride = arrays.table_stride,
                     .slot_mapping = arrays.slot_mapping,
                     .slot_mapping_64 = arrays.slot_mapping_64,
                     .table = arrays.table,
                     .batch_table = arrays.batch_table,
                     .kv_indptr = arrays.kv_indptr,
                     .kv_indices = arrays.kv_indices,
                     .kv_last_page_len = arrays.kv_last_page_len,
                     .kv_first_live = arrays.kv_first_live});
  return KVFOLIO_OK;
}

int64_t kvfolio_cuda_plan_device_bytes(const kvfolio_cuda_plan* plan) {
  return plan == nullptr ? 0 : plan->plan->device_bytes();
}

int64_t kvfolio_cuda_plan_pinned_bytes(const kvfolio_cuda_plan* plan) {
  return plan == nullptr ? 0 : plan->plan->pinned_bytes();
}

int32_t kvfolio_cuda_plan_upload(kvfolio_cuda_plan* plan, const kvfolio_step_plan* step,
                                 const kvfolio_group_plan* groups, int32_t num_groups, void* stream,
                                 kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(plan);
  StepPlan ours;
  KVFOLIO_C_RETURN_IF_ERROR(read_plan(__func__, *plan, step, groups, num_groups, ours));
  return answer(error, plan->plan->upload(ours, stream));
}

int32_t kvfolio_cuda_plan_needs_block_tables(kvfolio_cuda_plan* plan, const kvfolio_step_plan* step,
                                             const kvfolio_group_plan* groups, int32_t num_groups,
                                             int32_t* out, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(plan);
  KVFOLIO_C_NEEDS(out);
  StepPlan ours;
  KVFOLIO_C_RETURN_IF_ERROR(read_plan(__func__, *plan, step, groups, num_groups, ours));
  *out = plan->plan->needs_block_tables(ours) ? 1 : 0;
  return KVFOLIO_OK;
}

int32_t kvfolio_cuda_plan_wait(kvfolio_cuda_plan* plan, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(plan);
  return answer(error, plan->plan->wait());
}

int32_t kvfolio_cuda_plan_send(kvfolio_cuda_plan* plan, const kvfolio_step_plan* step,
                               const kvfolio_group_plan* groups, int32_t num_groups, void* stream,
                               kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(plan);
  StepPlan ours;
  KVFOLIO_C_RETURN_IF_ERROR(read_plan(__func__, *plan, step, groups, num_groups, ours));
  return answer(error, plan->plan->send(ours, stream));
}

int32_t kvfolio_cuda_plan_apply(kvfolio_cuda_plan* plan, void* stream, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(plan);
  return answer(error, plan->plan->apply(stream));
}

void kvfolio_cuda_plan_applied(kvfolio_cuda_plan* plan) {
  if (plan != nullptr) plan->plan->applied();
}

int32_t kvfolio_cuda_plan_last_upload(const kvfolio_cuda_plan* plan, kvfolio_cuda_upload_info* out,
                                      kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(plan);
  KVFOLIO_C_RETURN_IF_ERROR(check_out(__func__, "out", out));
  const cuda::UploadInfo& info = plan->plan->last_upload();
  write_struct(out, {.struct_size = 0,
                     .reserved = 0,
                     .bytes = info.bytes,
                     .changed_entries = info.changed_entries,
                     .whole_rows = info.whole_rows,
                     .whole_entries = info.whole_entries});
  return KVFOLIO_OK;
}

void kvfolio_cuda_plan_resend(kvfolio_cuda_plan* plan) {
  if (plan != nullptr) plan->plan->resend();
}

int32_t kvfolio_cuda_plan_verify(kvfolio_cuda_plan* plan, const kvfolio_step_plan* step,
                                 const kvfolio_group_plan* groups, int32_t num_groups, void* stream,
                                 kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(plan);
  StepPlan ours;
  KVFOLIO_C_RETURN_IF_ERROR(read_plan(__func__, *plan, step, groups, num_groups, ours));
  return answer(error, plan->plan->verify(ours, stream));
}

}  // extern "C"
