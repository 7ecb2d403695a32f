// SPDX-License-Identifier: Apache-2.0
#pragma once

// The steps that are not complete: at most one is open, the others are in flight, in ticket order.
// A step is a list of entries, one for each sequence that appended in it, with what undo() needs,
// and the arrays of its plan. It knows rows, positions and block ids; what they mean is the
// manager's.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kvfolio/block_pool.h"
#include "kvfolio/fixed_array.h"
#include "kvfolio/ids.h"
#include "kvfolio/status.h"
#include "kvfolio/step_plan.h"

namespace kvfolio {

// One sequence in one step.
struct StepEntry {
  std::int32_t row;          // -1: it was taken out of the open step; close_ranks() drops the entry
  std::int32_t begin;        // length before
  std::int32_t end;          // length after
  std::int32_t write_begin;  // first position that is written: begin + 1 in a replay
  std::int32_t draft;
  std::int32_t unnamed;  // tokens that came without a name, from `begin` on
  std::uint64_t birth;   // of the sequence: the row may have another by now
  std::uint64_t last_use_before;
  bool used_before;
  bool replay_before;
};

// What a step did to the last block of an entry, per group, and where it writes first. `source` is
// the block that was in its place when the step wrote to a copy of it: its reference moved from the
// table to the step, until complete.
struct TailChange {
  std::int32_t source;        // -1: none
  std::int32_t copy_to;       // -1: displaced without a copy
  std::int32_t valid_before;  // of the tail written in place, up to there; or:
  std::int32_t writer_before;
  std::uint32_t written_before;
  std::int32_t slot;  // of position write_begin; -1 if nothing is written

  static constexpr std::int32_t kNoTail = -1;  // no block was written in place
  static constexpr std::int32_t kReused = -2;  // the block beyond the length was

  [[nodiscard]] static constexpr TailChange none() noexcept {
    return {-1, -1, kNoTail, BlockPool::kNobody, 0, -1};
  }
};

struct Step {
  static constexpr std::int32_t kNoPlan = -1;

  std::uint64_t ticket = 0;
  std::int32_t num_groups = 0;
  std::int32_t num_entries = 0;
  std::int32_t num_removed = 0;    // entries without a row
  std::int32_t num_displaced = 0;  // changes with a source
  bool has_unnamed = false;        // some of its tokens have no name
  bool copies_ran = false;
  bool planned_changes = false;  // the plan of all its entries had the changed table entries
  // The last plan has the entries in front of this one; kNoPlan: there was none. What is appended
  // stands behind the others, so to append costs nothing for it.
  std::int32_t num_planned = kNoPlan;
  std::int32_t num_taken_out = 0;  // entries that the last plan has and that are gone since
  FixedArray<StepEntry> entries;
  FixedArray<TailChange> changes;  // [entry][group]
  // [sequence]: where its entry is, if it has one; for a committed step with tokens without names.
  FixedArray<std::int32_t> entry_of;
  // The plan's arrays, of this step alone: an engine may still upload those of the last one.
  FixedArray<std::int32_t> words;
  std::int64_t num_words = 0;  // that the last plan took
  FixedArray<SequenceId> sequences;
  FixedArray<std::uint64_t> caller_ids;
  FixedArray<SharedPrefix> shared;
  std::int32_t num_shared = 0;
  std::vector<GroupPlan> group_plans;
  StepPlan plan;

  [[nodiscard]] TailChange& change(std::int32_t entry, std::int32_t g) noexcept {
    return changes[std::int64_t{entry} * num_groups + g];
  }
  [[nodiscard]] const TailChange& change(std::int32_t entry, std::int32_t g) const noexcept {
    return changes[std::int64_t{entry} * num_groups + g];
  }
  // Copies that the plan names in a group.
  [[nodiscard]] std::int32_t num_copies(std::int32_t g) const noexcept;
  // The entry of the last sequence of this row that has one, or -1. Requires: a committed step, or
  // one without unnamed tokens.
  [[nodiscard]] std::int32_t latest_entry(std::int32_t row) const noexcept {
    const std::int32_t at = has_unnamed ? entry_of[row] : num_entries;
    return at < num_entries && entries[at].row == row ? at : -1;
  }
  // Entries that the last plan lacks; 0 without any plan. Requires: num_removed == 0.
  [[nodiscard]] std::int32_t num_behind_plan() const noexcept {
    return num_planned == kNoPlan ? 0 : num_entries - num_planned;
  }
  void clear_changes(std::int32_t entry) noexcept {
    for (std::int32_t g = 0; g < num_groups; ++g) change(entry, g) = TailChange::none();
  }
  // The entry is no more. The others keep their order, and their places until so many are gone that
  // to close ranks costs each of these O(1). Calls moved(row, entry) for each that moves.
  template <typename Moved>
  void remove(std::int32_t entry, const Moved& moved) noexcept {
    entries[entry].row = -1;
    clear_changes(entry);
    ++num_removed;
    num_taken_out += entry < num_planned ? 1 : 0;
    if (2 * num_removed >= num_entries) close_ranks(moved);
  }
  // The entries stand without gaps.
  template <typename Moved>
  void close_ranks(const Moved& moved) noexcept {
    if (num_removed == 0) return;
    std::int32_t kept = 0;
    std::int32_t kept_planned = num_planned;
    for (std::int32_t i = 0; i < num_entries; ++i) {
      if (entries[i].row < 0) {
        kept_planned -= i < num_planned ? 1 : 0;
        continue;
      }
      if (kept != i) {
        entries[kept] = entries[i];
        for (std::int32_t g = 0; g < num_groups; ++g) change(kept, g) = change(i, g);
        moved(entries[kept].row, kept);
      }
      ++kept;
    }
    num_entries = kept;
    num_removed = 0;
    num_planned = kept_planned;
  }
};

class StepLog {
 public:
  // rows: of sequences; words: int32 of the first plan's arrays. False: no memory.
  [[nodiscard]] bool allocate(std::int32_t most_in_flight, std::int32_t num_groups,
                              std::int64_t rows, std::int64_t words);

  // ---- the open step ----

  [[nodiscard]] bool is_open() const noexcept { return open_ >= 0; }
  // Requires: is_open().
  [[nodiscard]] Step& open() noexcept { return at(open_); }
  [[nodiscard]] const Step& open() const noexcept { return at(open_); }
  // Requires: no step is open and fewer than `most_in_flight` are in flight.
  Step& begin() noexcept;
  // The open step is in flight now; it ended without being committed.
  Step& commit() noexcept;
  void drop() noexcept;

  // The plan of the open step was written, with the changed entries or without.
  void note_plan(bool changed_entries) noexcept {
    StepPlan& plan = open().plan;
    plan.number = ++num_plans_;
    plan.follows = changed_entries ? last_changes_ : StepPlan::kNoChanges;
  }

  // The ticket names the open step.
  [[nodiscard]] Status check_open(Ticket ticket, std::string_view what) const;
  // No step is open or in flight: a device may still write to the blocks of one that is not
  // complete. `whose`: the manager that copy_to() names.
  [[nodiscard]] Status check_quiet(std::string_view whose) const;

  // ---- steps in flight ----

  [[nodiscard]] std::int32_t num_in_flight() const noexcept {
    return static_cast<std::int32_t>(in_flight_.size());
  }
  // The i-th oldest.
  [[nodiscard]] Step& in_flight(std::int32_t i) noexcept { return at(in_flight_[index(i)]); }
  [[nodiscard]] const Step& in_flight(std::int32_t i) const noexcept {
    return at(in_flight_[index(i)]);
  }
  // Where the step with this ticket is, or -1.
  [[nodiscard]] std::int32_t find(std::uint64_t ticket) const noexcept;
  // Not in flight: complete, dropped, failed or still open.
  [[nodiscard]] bool is_complete(std::uint64_t ticket) const noexcept { return find(ticket) < 0; }
  // Takes the steps [first, last) in flight away, in ticket order. They are in ended() until the
  // next step begins.
  void end(std::int32_t first, std::int32_t last) noexcept;
  [[nodiscard]] std::int32_t num_ended() const noexcept {
    return static_cast<std::int32_t>(ended_.size());
  }
  [[nodiscard]] Step& ended(std::int32_t i) noexcept { return at(ended_[index(i)]); }
  [[nodiscard]] const Step& ended(std::int32_t i) const noexcept { return at(ended_[index(i)]); }

  // ---- tickets ----

  [[nodiscard]] std::uint64_t last_ticket() const noexcept { return last_ticket_; }
  [[nodiscard]] std::uint64_t last_committed() const noexcept { return last_committed_; }
  // The ticket of the oldest step in flight, or of the next one to be committed at the earliest.
  [[nodiscard]] std::uint64_t oldest_incomplete() const noexcept {
    return in_flight_.empty() ? last_committed_ + 1 : at(in_flight_.front()).ticket;
  }

  // Becomes an equal of `other` but for plans: steps are planned anew, and their numbers go on from
  // the last one here. Requires: allocated alike.
  void copy_from(const StepLog& other) noexcept;
  [[nodiscard]] MemoryUse memory() const noexcept;
  [[nodiscard]] Status check() const;

 private:
  [[nodiscard]] static std::size_t index(std::int32_t i) noexcept {
    return static_cast<std::size_t>(i);
  }
  [[nodiscard]] Step& at(std::int32_t i) noexcept { return steps_[index(i)]; }
  [[nodiscard]] const Step& at(std::int32_t i) const noexcept { return steps_[index(i)]; }

  std::vector<Step> steps_;              // most_in_flight + 1, reused
  std::vector<std::int32_t> free_;       // indices, the last one is taken next
  std::vector<std::int32_t> in_flight_;  // indices, in ticket order
  std::vector<std::int32_t> ended_;      // the same, of the last end()
  std::int32_t open_ = -1;
  std::uint64_t last_ticket_ = 0;
  std::uint64_t last_committed_ = 0;
  std::uint64_t num_plans_ = 0;
  std::uint64_t last_changes_ = 0;  // StepPlan::number of the plan that later lists follow; 0: none
};

}  // namespace kvfolio
