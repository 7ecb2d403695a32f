// SPDX-License-Identifier: Apache-2.0
#pragma once

// The plan of a step in device memory: arrays that keep their addresses and their capacity, so that
// a graph captured once serves every step, and block tables that stay there, of which a step sends
// only what changed.
//
//   auto device_plan = cuda::DevicePlan::create(kernels, {.max_sequences = 256, .max_tokens = 256,
//                                                         .num_rows = manager->num_rows(),
//                                                         .groups = groups});
//   const StepPlan& plan = **manager->plan({.block_tables = false, .changed_entries = true});
//   device_plan->upload(plan, stream);  // one copy and two kernels, behind the step before
//   DeviceAttention call = device_plan->attention(plan, GroupId(0));  // for plan_attend(),
//   attend()
//
// The plan's own copies (GroupPlan::copy_src) come in front of all that the step writes:
// run_copies(), or, with ManagerOptions::copies_by_host, cuda::copy_blocks() on the stream.
//
// A step is written to one of `steps_in_flight` pieces of pinned memory, goes up in one copy, and
// lies at the same addresses as the step before. So uploads, and the kernels that read them, go in
// one stream, or the caller lets each upload wait for the kernels of the step before it; under
// kUnordered, too. Arrays have room for max_sequences and max_tokens. What is behind the step's own
// is padding, as PlanOptions pads: row -1, kv_len 0, a query_start of num_tokens, no pages, a last
// page of 1; slot -1 and position 0.
//
// Resident tables are [num_rows, table_stride], by StepPlan::rows. The manager's lists of changed
// entries say what to write there (GroupPlan::changed_rows). They name what changed since a plan
// that this object may never have got: a step that was planned and committed elsewhere, or the
// second plan of one. StepPlan::follows says which plan that is. Where upload() has not seen it, no
// row is trusted any more, and each is sent whole from GroupPlan::block_table when a plan has it
// next. So a stale entry is never served; a plan without block tables is refused instead. The same
// holds behind a call that the driver failed in the middle.
//
// All calls on the device but create(), wait(), verify() and the destructor start work and return:
// they wait for nothing. After create() nothing allocates, but for texts of errors and verify().
// Thread safety: one thread at a time.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "kvfolio/cuda_kernels.h"
#include "kvfolio/export.h"
#include "kvfolio/ids.h"
#include "kvfolio/status.h"
#include "kvfolio/step_plan.h"

namespace kvfolio::cuda {

struct DevicePlanGroup {
  std::int32_t block_size = 16;  // as GroupSpec
  // Columns of its tables: KVCacheManager::widest(), or a bound that the host keeps.
  std::int32_t table_stride = 0;
};

struct DevicePlanOptions {
  std::int32_t max_sequences = 0;             // of a step, padding included: 1 to 2^20
  std::int32_t max_tokens = 0;                // of a step, padding included: 1 to 2^30
  std::int32_t num_rows = 0;                  // KVCacheManager::num_rows(): 1 to 2^24
  std::span<const DevicePlanGroup> groups{};  // by GroupId; copied
  std::int32_t steps_in_flight = 2;           // pieces of pinned memory, 1 to 64
  std::int32_t pad = -1;     // -1 or 0, as PlanOptions::pad; 0 with ManagerOptions::null_block
  bool positions = false;    // of tokens; plans have them, then
  bool int64_slots = false;  // plans have slot_mapping_64, then
  // Block tables in the order of the plan, made on the device from the resident ones: for kernels
  // that do not look up StepPlan::rows, attend() among them.
  bool batch_tables = true;
  // FlashInfer's arrays. Plans have them, then; of kv_indices only the pages in front of gaps are
  // sent (sinks of windows and of trims), the others are made on the device.
  bool flashinfer = false;
  // Entries that one upload may set, all groups together, those of rows that are sent whole among
  // them; four pages in front of gaps count as one. 0: as many as max_sequences rows have, so that
  // none is refused; each takes 16 bytes of every piece of pinned memory, and of the device. With a
  // limit a plan of more is refused, and refused again: where rows have to be whole, undo() all but
  // some sequences of the step and go on with the others in the next ones. What goes up once is
  // trusted from then on. The least is the columns of one row of each group (a quarter more with
  // flashinfer), so that a step of one sequence is never refused for its entries.
  std::int64_t max_changed_entries = 0;
};

// What one group has in device memory.
struct DeviceGroupPlan {
  const std::int32_t* slot_mapping = nullptr;     // [max_tokens]; null with int64_slots
  const std::int64_t* slot_mapping_64 = nullptr;  // [max_tokens]; null without
  // [num_rows, table_stride], resident: row rows[i] is that of the i-th sequence. Its entries that
  // the sequence does not have, or has dropped, may be anything.
  const std::int32_t* table = nullptr;
  // [max_sequences, table_stride], in the order of the plan: entries behind the sequence's last
  // block are `pad`, those of dropped blocks anything; null without batch_tables.
  const std::int32_t* batch_table = nullptr;
  std::int32_t table_stride = 0;
  // As GroupPlan; null without flashinfer. kv_indices: [max_sequences * table_stride].
  const std::int32_t* kv_indptr = nullptr;         // [max_sequences + 1]
  const std::int32_t* kv_indices = nullptr;        // what is behind kv_indptr.back() is anything
  const std::int32_t* kv_last_page_len = nullptr;  // [max_sequences]
  const std::int32_t* kv_first_live = nullptr;     // [max_sequences]
};

// What all groups have together in device memory.
struct DevicePlanArrays {
  const std::int32_t* query_start = nullptr;      // [max_sequences + 1]
  const std::int32_t* rows = nullptr;             // [max_sequences]
  const std::int32_t* kv_lens = nullptr;          // [max_sequences]
  const std::int32_t* trim_sinks = nullptr;       // [max_sequences]
  const std::int32_t* trim_first_kept = nullptr;  // [max_sequences]
  const std::int32_t* positions = nullptr;        // [max_tokens]; null if not wanted
  // [2]: sequences and tokens of the step, without padding.
  const std::int32_t* counts = nullptr;
};

// What the last upload sent.
struct UploadInfo {
  std::int64_t bytes = 0;            // of the one copy
  std::int64_t changed_entries = 0;  // from the manager's lists
  std::int64_t whole_rows = 0;       // rows of a group that were sent whole
  std::int64_t whole_entries = 0;    // the entries of these
};

class KVFOLIO_API DevicePlan {
 public:
  // Takes all memory, sets the tables to `pad`, and waits for that. kInvalidArgument: the options,
  // null kernels. kOutOfMemory, kUnavailable: as every call on the device.
  static Result<std::unique_ptr<DevicePlan>> create(const std::shared_ptr<Kernels>& kernels,
                                                    const DevicePlanOptions& options);
  DevicePlan(const DevicePlan&) = delete;
  DevicePlan& operator=(const DevicePlan&) = delete;
  // Waits for copies that are under way. Kernels that read the arrays have ended before.
  ~DevicePlan();

  // ---- addresses: the same from create() on ----

  [[nodiscard]] const DevicePlanArrays& arrays() const noexcept;
  // Requires: `group` names a group.
  [[nodiscard]] const DeviceGroupPlan& group(GroupId group) const noexcept;
  [[nodiscard]] std::int32_t num_groups() const noexcept;
  // What attend() takes of a plan that was uploaded: its lengths on the host and here, and the
  // batch's table here. The caller adds cache, params, q and out. Requires: batch_tables, a group
  // of the plan; the plan's arrays live.
  [[nodiscard]] DeviceAttention attention(const StepPlan& plan, GroupId group) const noexcept {
    const DevicePlanArrays& all = arrays();
    const DeviceGroupPlan& own = this->group(group);
    DeviceAttention call;
    call.batch.query_start = plan.query_start;
    call.batch.kv_lens = plan.kv_lens;
    call.batch.block_table = {own.batch_table,
                              plan.kv_lens.size() * static_cast<std::size_t>(own.table_stride)};
    call.batch.block_table_stride = own.table_stride;
    call.batch.trim_sinks = plan.trim_sinks;
    call.batch.trim_first_kept = plan.trim_first_kept;
    call.query_start = all.query_start;
    call.kv_lens = all.kv_lens;
    call.trim_sinks = plan.trim_sinks.empty() ? nullptr : all.trim_sinks;
    call.trim_first_kept = plan.trim_first_kept.empty() ? nullptr : all.trim_first_kept;
    return call;
  }
  [[nodiscard]] std::int64_t device_bytes() const noexcept;
  [[nodiscard]] std::int64_t pinned_bytes() const noexcept;

  // ---- a step ----

  // send() and apply(). Reads the plan before it returns. A plan may be uploaded again, and so may
  // another plan of the same step; one that is older than the last is refused.
  // kInvalidArgument, nothing was started: a plan of other groups, of more sequences, tokens,
  // columns or changed entries than fit (both numbers), without an array that the options want,
  // with an entry that the tables do not have, a stream of another device.
  // kFailedPrecondition, nothing was started: the plan is older than the last one; rows have to be
  // sent whole and the plan has no block tables: plan() the step again with these; the stream is
  // being captured; the plan before was sent and not applied.
  // kResourceExhausted, nothing was started: all pieces of pinned memory are on their way; wait(),
  // or come back later. kUnavailable: the driver's; then rows are sent whole next time, and a piece
  // whose copy failed counts as on its way until wait().
  Status upload(const StepPlan& plan, void* stream);
  // upload() would be refused for want of block tables.
  [[nodiscard]] bool needs_block_tables(const StepPlan& plan) const noexcept;
  // Waits until a piece of pinned memory is free.
  Status wait();
  [[nodiscard]] const UploadInfo& last_upload() const noexcept;

  // ---- its two halves, for a graph that has the second one in it ----

  // Copies the arrays, and what apply() does, to the device. Not to be captured: which piece of
  // memory is copied differs from step to step.
  Status send(const StepPlan& plan, void* stream);
  // Sets the changed entries and makes the arrays that are made on the device. Its kernels have the
  // same arguments and grids each time and read counts on the device, so a capture of it is good
  // for every step. It must run once behind each send(), and may run again. kFailedPrecondition:
  // the null stream while a blocking stream is being captured; nothing was begun, and what was sent
  // stays to be applied. Behind another failure rows are sent whole next time.
  Status apply(void* stream);
  // A graph that has apply() in it was launched behind the last send(): this object sees no launch,
  // and without this, or an apply() that is not captured, the next plan is refused. Where the
  // launch failed, resend() takes its place.
  void applied() noexcept;

  // ---- tables that are not trusted ----

  // Sends every row whole when a plan has it next: after memory of the device was lost, or before
  // the plans of another manager.
  void resend() noexcept;
  // For tests: waits for the stream, reads all of it back and compares it with the plan that was
  // uploaded last, which has block tables. Ok, or kCorrupt and the first difference: "group 0, row
  // 3, column 5: the device has 7, the plan 9". kInvalidArgument: arrays that no upload() takes.
  Status verify(const StepPlan& plan, void* stream);

  // For the sources of this library.
  struct Impl;
  explicit DevicePlan(std::unique_ptr<Impl> impl) noexcept;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvfolio::cuda
