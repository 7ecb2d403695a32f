// SPDX-License-Identifier: Apache-2.0
#pragma once

// The plan of a step for Python: either a copy of its arrays in one piece of memory, or the arrays
// where they lie (then with a lease).

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "arrays.h"
#include "bindings.h"
#include "kvfolio/attention_params.h"
#include "kvfolio/step_plan.h"
#include "plan_array.h"

namespace kvfolio::python {

// The arrays of a step and those of a group; each is made for Python once.
enum StepField : std::size_t {
  kSequences,
  kRows,
  kQueryStart,
  kPositions,
  kKvLens,
  kTrimSinks,
  kTrimFirstKept,
  kRewinds,
  kCallerIds,
  kNumStepFields
};
enum GroupField : std::size_t {
  kSlotMapping,
  kSlotMapping64,
  kBlockTable,
  kKvIndptr,
  kKvIndices,
  kKvLastPageLen,
  kKvFirstLive,
  kCopySrc,
  kCopyDst,
  kSharedPrefixes,
  kChangedRows,
  kChangedColumns,
  kChangedBlocks,
  kNumGroupFields
};

class PlanData {
 public:
  // lease null: copies the arrays, but for those that lie in memory of the caller.
  PlanData(std::shared_ptr<ManagerState> state, const StepPlan& plan, std::shared_ptr<Lease> lease,
           std::optional<Array> callers);
  PlanData(const PlanData&) = delete;  // spans point into it
  PlanData& operator=(const PlanData&) = delete;

  [[nodiscard]] const StepPlan& plan() const { return plan_; }
  [[nodiscard]] const GroupPlan& group(std::size_t index) const { return groups_[index]; }
  [[nodiscard]] std::size_t num_groups() const { return groups_.size(); }
  nb::object array(StepField field);
  nb::object array(std::size_t group, GroupField field);
  // The window and the sinks of a group; scale is not set.
  [[nodiscard]] const AttentionParams& params(std::size_t index) const { return params_[index]; }
  // Raises if the arrays are not valid any more.
  void check_live(const char* name) const;
  [[nodiscard]] Reading reading() const { return Reading(lease_); }

 private:
  nb::object make(std::span<const std::int32_t> numbers, std::vector<std::size_t> shape);
  [[nodiscard]] bool is_the_callers(const void* array) const;
  // What keeps an array alive that is no lease's.
  [[nodiscard]] nb::object owner_of(const void* array) const;

  std::shared_ptr<ManagerState> state_;
  std::shared_ptr<Lease> lease_;
  nb::capsule memory_;            // of copies
  std::optional<Array> callers_;  // memory that the caller gave
  StepPlan plan_;
  std::vector<GroupPlan> groups_;
  std::vector<AttentionParams> params_;
  std::array<nb::object, kNumStepFields> step_arrays_;
  std::vector<std::array<nb::object, kNumGroupFields>> group_arrays_;
};

struct Plan {
  std::shared_ptr<PlanData> data;
  nb::object groups{};  // the tuple, made once
};
struct PlanGroup {
  std::shared_ptr<PlanData> data;
  std::size_t group = 0;

  [[nodiscard]] AttentionBatch batch() const;
};

}  // namespace kvfolio::python
