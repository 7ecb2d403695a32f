// SPDX-License-Identifier: Apache-2.0
#pragma once

// PlanWriter makes the plan of a step: it counts the words of all arrays, and then writes them one
// behind the other into the step's own buffer, which grows only when a plan is larger than any
// before. It reads sequences and tables, and changes nothing but the step. One writer is made for
// one plan.
//
// A plan of fixed shapes (plan_layout.h) is made of the same arrays, which stand elsewhere, and of
// what pads them.

#include <cstdint>
#include <span>

#include "kvfolio/status.h"
#include "kvfolio/step_plan.h"
#include "manager/group.h"
#include "manager/plan_layout.h"
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

  // ---- fixed shapes ----

  // Where the arrays of a plan with these options lie. kInvalidArgument: the step does not fit
  // them; names both numbers. Requires: check_shape() of the options.
  [[nodiscard]] Result<PlanLayout> layout(const PlanOptions& options) const;
  // As reserve() and write(). `memory`: where the words are; null: in the step's buffer.
  [[nodiscard]] Status reserve(const PlanLayout& layout) { return reserve(layout.words); }
  void write(const PlanOptions& options, const PlanLayout& layout, std::int32_t* memory) noexcept;

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

  [[nodiscard]] Status reserve(std::int64_t words);

  // Each fills arrays from `at` on, and returns where they end: two of all groups, then one
  // group's. `room`: words from the begin of one array to that of the next; `first` those of an
  // array that has one entry more, and stands in front of the others.
  std::int32_t* write_rows(std::int32_t* at, std::int64_t first, std::int64_t room) noexcept;
  std::int32_t* write_positions(std::int32_t* at) noexcept;
  void write_caller_ids() noexcept;
  std::int32_t* write_group(std::int32_t g, const PlanOptions& options, std::int32_t* at) noexcept;
  template <typename Slot>
  Slot* write_slots(std::int32_t g, Slot* at) const noexcept;
  std::int32_t* write_tables(std::int32_t g, std::int32_t pad, std::int64_t stride,
                             std::int32_t* at) const noexcept;
  std::int32_t* write_changes(std::int32_t g, GroupPlan& plan, std::int32_t* at,
                              std::int64_t room) const noexcept;
  std::int32_t* write_flashinfer(std::int32_t g, GroupPlan& plan, std::int32_t* at,
                                 std::int64_t first, std::int64_t room,
                                 std::int32_t* indices) const noexcept;
  std::int32_t* write_copies(std::int32_t g, GroupPlan& plan, std::int32_t* at,
                             std::int64_t room) const noexcept;
  void find_shared_prefixes(std::int32_t g) noexcept;
  // What the step's plan has besides arrays.
  void note_written(const PlanOptions& options) noexcept;
  void write_group(std::int32_t g, const PlanOptions& options, const PlanLayout& layout,
                   std::int32_t* words) noexcept;
  // Behind the step's sequences, up to the sizes of the layout.
  void pad_rows(const PlanLayout& layout, std::int32_t* words) noexcept;
  void check_written(const PlanLayout& layout) const noexcept;
  void pad_pages(GroupPlan& plan, const PlanLayout& layout, std::int32_t* pages) const noexcept;

  const Rows& rows_;
  const Tables& tables_;
  std::span<const Group> groups_;
  Step& step_;
  std::int64_t counted_ = 0;  // words, by reserve()
};

}  // namespace kvfolio
