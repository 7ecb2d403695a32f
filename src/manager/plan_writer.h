// SPDX-License-Identifier: Apache-2.0
#pragma once

// PlanWriter makes the plan of a step: it counts the words of all arrays, and then writes them one
// behind the other into the step's own buffer, which grows only when a plan is larger than any
// before. It reads sequences and tables, and changes nothing but the step. One writer is made for
// one plan.

#include <cstdint>
#include <span>

#include "kvfolio/status.h"
#include "kvfolio/step_plan.h"
#include "manager/group.h"
#include "manager/rows.h"
#include "manager/step_log.h"
#include "manager/tables.h"

namespace kvfolio {

class PlanWriter {
 public:
  // Requires: the step has no entry without a row (StepLog), and all four outlive the writer.
  PlanWriter(const Rows& rows, const Tables& tables, std::span<const Group> groups,
             Step& step) noexcept
      : rows_(rows), tables_(tables), groups_(groups), step_(step) {}

  // kUnsupported: what FlashInfer's arrays cannot say of this step.
  [[nodiscard]] Status check_flashinfer() const;
  // Makes the step's buffer large enough. kOutOfMemory: nothing changed.
  [[nodiscard]] Status reserve(const PlanOptions& options);
  // Requires: reserve() of the same options, and check_flashinfer() where they want its arrays.
  void write(const PlanOptions& options) noexcept;

 private:
  // Entries of the block tables of the step's sequences: of the longest, and of all together.
  struct TableSizes {
    std::int64_t widest = 0;
    std::int64_t all = 0;
  };

  [[nodiscard]] std::int32_t num_groups() const noexcept {
    return static_cast<std::int32_t>(groups_.size());
  }
  [[nodiscard]] const Group& group(std::int32_t g) const noexcept {
    return groups_[static_cast<std::size_t>(g)];
  }
  [[nodiscard]] std::span<const std::int32_t> blocks_of(std::int32_t row,
                                                        std::int32_t g) const noexcept {
    return tables_.of(row, g).blocks(tables_.arena());
  }
  // A window or a trim left holes in the table.
  [[nodiscard]] bool may_have_dropped(std::int32_t row, std::int32_t g) const noexcept {
    return group(g).windowed() || rows_[row].has_trim;
  }

  [[nodiscard]] TableSizes table_sizes(std::int32_t g) const noexcept;
  // Table entries that no plan with changed entries has shown.
  [[nodiscard]] std::int64_t num_unplanned(std::int32_t g) const noexcept;
  [[nodiscard]] std::int64_t words_for(const PlanOptions& options) const noexcept;

  // Each fills arrays from `at` on, and returns where they end: two of all groups, then one
  // group's.
  std::int32_t* write_rows(std::int32_t* at) noexcept;
  std::int32_t* write_positions(std::int32_t* at) noexcept;
  void write_caller_ids() noexcept;
  std::int32_t* write_group(std::int32_t g, const PlanOptions& options, std::int32_t* at) noexcept;
  std::int32_t* write_slots(std::int32_t g, std::int32_t* at) const noexcept;
  std::int32_t* write_tables(std::int32_t g, std::int32_t pad, std::int64_t stride,
                             std::int32_t* at) const noexcept;
  std::int32_t* write_changes(std::int32_t g, GroupPlan& plan, std::int32_t* at) const noexcept;
  std::int32_t* write_flashinfer(std::int32_t g, GroupPlan& plan, std::int32_t* at) const noexcept;
  std::int32_t* write_copies(std::int32_t g, GroupPlan& plan, std::int32_t* at) const noexcept;
  void find_shared_prefixes(std::int32_t g) noexcept;

  const Rows& rows_;
  const Tables& tables_;
  std::span<const Group> groups_;
  Step& step_;
};

}  // namespace kvfolio
