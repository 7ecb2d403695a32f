// SPDX-License-Identifier: Apache-2.0

// The plan of the open step (plan_writer.h), and the copies that it names.

#include "manager/impl.h"
#include "manager/op_writer.h"
#include "manager/plan_writer.h"

namespace kvfolio {

using text::concat;

Result<const StepPlan*> KVCacheManager::plan(const PlanOptions& options) {
  KVFOLIO_RECORDED(kPlan, plan(options), options);
  Impl& m = *impl_;
  if (!m.steps_.is_open()) {
    return Status(ErrorCode::kFailedPrecondition, "plan: no step is open; begin_step() first");
  }
  if (options.pad != -1 && options.pad != 0) {
    return Status(ErrorCode::kInvalidArgument,
                  concat("plan: pad is ", options.pad, ", allowed: -1 and 0"));
  }
  if (!m.options_.null_block || options.pad == 0) return m.plan_open_step(options);
  PlanOptions with_null_block = options;
  with_null_block.pad = 0;
  return m.plan_open_step(with_null_block);
}

Result<const StepPlan*> KVCacheManager::Impl::plan_open_step(const PlanOptions& options) {
  Step& step = steps_.open();
  close_ranks(step);
  PlanWriter writer(rows_, tables_, groups_, step);
  if (options.flashinfer) KVFOLIO_RETURN_IF_ERROR(writer.check_flashinfer());
  if (has_shape(options)) [[unlikely]] {
    return plan_shaped(options, writer);
  }
  KVFOLIO_RETURN_IF_ERROR(writer.reserve(options));
  writer.write(options);
  steps_.note_plan(options.changed_entries);
  return &step.plan;
}

Result<const StepPlan*> KVCacheManager::Impl::plan_shaped(const PlanOptions& options,
                                                          PlanWriter& writer) {
  KVFOLIO_RETURN_IF_ERROR(check_shape("plan", options, groups_, options_));
  const Result<PlanLayout> layout = writer.layout(options);
  if (!layout) return layout.error();
  const auto given = static_cast<std::int64_t>(options.memory.size());
  if (given > 0 && given < layout->bytes()) {
    return Status(ErrorCode::kInvalidArgument,
                  concat("plan: memory has ", given, " bytes, needed: ", layout->bytes()));
  }
  if (given == 0) KVFOLIO_RETURN_IF_ERROR(writer.reserve(*layout));
  writer.write(options, *layout,
               given == 0 ? nullptr : reinterpret_cast<std::int32_t*>(options.memory.data()));
  steps_.note_plan(options.changed_entries);
  return &steps_.open().plan;
}

Result<std::int64_t> KVCacheManager::plan_bytes(const PlanOptions& options) const {
  KVFOLIO_RETURN_IF_MOVED("plan_bytes");
  const Impl& m = *impl_;
  KVFOLIO_RETURN_IF_ERROR(check_shape("plan_bytes", options, m.groups_, m.options_));
  const Result<PlanSizes> sizes = fixed_sizes(options, m.num_groups());
  if (!sizes) return sizes.error();
  return PlanLayout::of(options, *sizes, m.num_groups()).bytes();
}

Status KVCacheManager::run_copies() {
  KVFOLIO_RECORDED(kRunCopies, run_copies());
  Impl& m = *impl_;
  if (!m.storage_ && !m.imagines_storage_) {
    return {ErrorCode::kUnsupported,
            "run_copies: the manager has no storage; run the plan's lists"};
  }
  if (!m.steps_.is_open()) return {ErrorCode::kFailedPrecondition, "run_copies: no step is open"};
  Step& step = m.steps_.open();
  m.close_ranks(step);
  if (step.copies_ran) {
    return {ErrorCode::kFailedPrecondition,
            concat("run_copies: those of step ", step.ticket, " have run already")};
  }
  // They run at once, and a step in flight may not have written yet what they read. Without order
  // no append comes behind tokens of such a step.
  for (std::int32_t g = 0; g < m.num_groups() && m.options_.order == Order::kInOrder; ++g) {
    if (m.steps_.num_in_flight() == 0 || step.num_copies(g) == 0) continue;
    return {ErrorCode::kFailedPrecondition,
            concat("run_copies: step ", m.steps_.oldest_incomplete(),
                   " is in flight and may be writing what is copied; complete it first")};
  }
  // With the mutant, commit() runs them.
  Status copied = mutant(Mutant::kCopyAfterWrite) ? Status() : m.copy_tails(step);
  // Those that failed have not run: all may be run again, since no source is written before.
  step.copies_ran = copied.ok() || mutant(Mutant::kCopiesRanThoughTheyFailed);
  return copied;
}

Status KVCacheManager::Impl::copy_tails(const Step& step) {
  if (!storage_) return {};
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    for (std::int32_t i = 0; i < step.num_entries; ++i) {
      const TailChange& tail = step.change(i, g);
      if (tail.copy_to < 0) continue;
      KVFOLIO_RETURN_IF_ERROR(
          storage_->copy_blocks(GroupId(g), {&tail.source, 1}, {&tail.copy_to, 1}));
    }
  }
  return {};
}

}  // namespace kvfolio
