// SPDX-License-Identifier: Apache-2.0
#pragma once

// The bytes of a plan as a device gets them in one copy: every array that a step sends at a place
// of its own, with room for the largest step, and behind all of these the changed entries and then
// the pages in front of gaps, of which only as many are sent as there are. Checks a plan against
// this room, so that no kernel finds what has no place. Knows no driver. Thread safety: const calls
// write nothing but their output.

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cuda/move_args.h"
#include "kvfolio/cuda_plan.h"
#include "kvfolio/status.h"
#include "kvfolio/step_plan.h"

namespace kvfolio::cuda {

// Which rows of the resident tables the device has as the manager's lists assume it.
//
// A list names what changed since the plan `follows`. So it is enough if the device got that plan.
// It did if that is the last one that was uploaded, or the one which that one followed: then the
// last one's step was dropped, or planned once more. Else each row is sent whole when a plan has it
// next.
class ResidentRows {
 public:
  explicit ResidentRows(std::int32_t num_rows) : known_(static_cast<std::size_t>(num_rows), 0) {}

  // The row needs no more than what the plan's lists name.
  [[nodiscard]] bool trusts(const StepPlan& plan, std::int32_t row) const noexcept {
    if (plan.follows == 0) return true;  // the lists name all entries
    return follows_known(plan) && known_[static_cast<std::size_t>(row)] == age_;
  }
  // The plan was made before the last one that was uploaded.
  [[nodiscard]] bool is_old(const StepPlan& plan) const noexcept { return plan.number < newest_; }
  [[nodiscard]] std::uint64_t newest() const noexcept { return newest_; }
  // The plan is on its way, with the rows whole that are not trusted.
  void note(const StepPlan& plan) noexcept;
  // What is on the device is not known.
  void forget() noexcept {
    ++age_;
    newest_ = base_ = last_ = 0;
  }

 private:
  [[nodiscard]] bool follows_known(const StepPlan& plan) const noexcept;

  std::vector<std::uint64_t> known_;  // [row]: age_ when it was sent
  std::uint64_t age_ = 0;             // another one where all rows are in doubt
  std::uint64_t newest_ = 0;          // StepPlan::number of the last one that was uploaded
  std::uint64_t last_ = 0;            // the same, of the last one with changed entries
  std::uint64_t base_ = 0;            // what that one followed
};

class PlanImage {
 public:
  // kInvalidArgument: the options.
  static Result<PlanImage> create(const DevicePlanOptions& options);

  // Where an array begins, in bytes from the begin of the image.
  struct Group {
    std::int64_t slots = 0;
    std::int64_t indptr = -1;  // these four: -1 without flashinfer
    std::int64_t last_page_len = -1;
    std::int64_t first_live = -1;
    std::int64_t front_at = -1;  // where a sequence's pages begin that stand in front of its gap
  };
  struct Places {
    std::int64_t counts = 0;  // [4]: sequences, tokens, changed entries, 0
    std::int64_t query_start = 0;
    std::int64_t rows = 0;
    std::int64_t kv_lens = 0;
    std::int64_t trim_sinks = 0;
    std::int64_t trim_first_kept = 0;
    std::int64_t positions = -1;
    std::array<Group, kMaxGroups> groups{};
    std::int64_t entries = 0;  // behind all others
  };
  static constexpr int kChangedCount = 2;  // of counts

  [[nodiscard]] const Places& places() const noexcept { return places_; }
  [[nodiscard]] const DevicePlanOptions& options() const noexcept { return options_; }
  [[nodiscard]] const DevicePlanGroup& group(std::int32_t g) const noexcept {
    return groups_[static_cast<std::size_t>(g)];
  }
  [[nodiscard]] std::int32_t num_groups() const noexcept {
    return static_cast<std::int32_t>(groups_.size());
  }
  // Four pages in front of gaps take the room of an entry.
  [[nodiscard]] std::int64_t max_entries() const noexcept { return max_entries_; }
  [[nodiscard]] std::int64_t bytes() const noexcept { return bytes_of(max_entries_, 0); }

  // Columns that a sequence of this length has in a group.
  [[nodiscard]] std::int32_t columns(std::int32_t g, std::int32_t kv_len) const noexcept {
    return kv_len == 0 ? 0 : (kv_len - 1) / group(g).block_size + 1;
  }
  // Pages in front of the gap of a sequence. Requires: check_arrays(), flashinfer.
  [[nodiscard]] std::int32_t front_pages(const StepPlan& plan, std::int32_t g,
                                         std::size_t i) const noexcept;
  // The plan has the arrays that the options want, and they fit. kInvalidArgument.
  [[nodiscard]] Status check_arrays(const StepPlan& plan) const;
  [[nodiscard]] static bool has_table(const StepPlan& plan, std::int32_t g) noexcept;
  // The group's block table has all columns of its sequences. Requires: check_arrays(),
  // has_table().
  [[nodiscard]] Status check_table(const StepPlan& plan, std::int32_t g) const;
  // All that will be sent of it fits, too. Counts what will be sent into
  // `info`. kInvalidArgument, and kFailedPrecondition where rows have to be whole and the plan
  // has no block tables.
  [[nodiscard]] Status check(const StepPlan& plan, const ResidentRows& rows,
                             UploadInfo& info) const;
  // Rows of the plan that have to be whole.
  [[nodiscard]] std::int64_t num_untrusted(const StepPlan& plan, const ResidentRows& rows) const;
  // Writes the image and returns its bytes. Requires: check().
  std::int64_t write(const StepPlan& plan, const ResidentRows& rows, std::byte* image) const;
  // The arrays in front of the changed entries. Requires: check_arrays().
  void write_arrays(const StepPlan& plan, std::byte* image) const;
  // The first word in front of the changed entries that differs from the plan's, as a sentence, or
  // nothing. Requires: check_arrays().
  [[nodiscard]] std::string difference(const StepPlan& plan, const std::byte* image) const;

 private:
  explicit PlanImage(const DevicePlanOptions& options)
      : options_(options), groups_(options.groups.begin(), options.groups.end()) {
    options_.groups = {};
  }
  void place();
  [[nodiscard]] std::int64_t bytes_of(std::int64_t entries, std::int64_t pages) const noexcept {
    return places_.entries + entries * static_cast<std::int64_t>(sizeof(ChangedEntry)) +
           pages * static_cast<std::int64_t>(sizeof(std::int32_t));
  }
  [[nodiscard]] Status check_rows(const StepPlan& plan) const;
  [[nodiscard]] Status check_group(const StepPlan& plan, std::int32_t g) const;
  [[nodiscard]] Status check_pages(const StepPlan& plan, std::int32_t g) const;
  [[nodiscard]] Status check_changes(const StepPlan& plan, std::int32_t g) const;
  // Calls set(group, row, column, block) for each entry that is sent.
  template <typename Set>
  void for_each_entry(const StepPlan& plan, const ResidentRows& rows, std::int32_t g,
                      UploadInfo& info, const Set& set) const;

  DevicePlanOptions options_;  // but for groups
  std::vector<DevicePlanGroup> groups_;
  Places places_;
  std::int64_t max_entries_ = 0;
};

}  // namespace kvfolio::cuda
