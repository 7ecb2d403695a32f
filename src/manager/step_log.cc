// SPDX-License-Identifier: Apache-2.0
//
// Steps move from free to open, to in flight, to free. The vectors have their capacity from
// allocate() on, so nothing here takes memory.

#include "manager/step_log.h"

#include <algorithm>

#include "base/text.h"

namespace kvfolio {

using text::concat;

std::int32_t Step::num_copies(std::int32_t g) const noexcept {
  std::int32_t copies = 0;
  if (num_displaced == 0) return copies;
  for (std::int32_t i = 0; i < num_entries; ++i) copies += change(i, g).copy_to >= 0 ? 1 : 0;
  return copies;
}

bool StepLog::allocate(std::int32_t most_in_flight, std::int32_t num_groups, std::int64_t rows,
                       std::int64_t words) {
  steps_.resize(index(most_in_flight) + 1);
  for (Step& step : steps_) {
    step.num_groups = num_groups;
    // Appends, and the forks of sequences whose tokens wait for names.
    const bool ok = step.entries.allocate_zeroed(2 * rows) &&
                    step.changes.allocate_zeroed(2 * rows * num_groups) &&
                    step.entry_of.allocate_zeroed(rows) && step.words.allocate_zeroed(words) &&
                    step.sequences.allocate_zeroed(rows) && step.caller_ids.allocate_zeroed(rows) &&
                    step.shared.allocate_zeroed(rows * num_groups);
    if (!ok) return false;
    step.group_plans.resize(index(num_groups));
  }
  free_.reserve(steps_.size());
  in_flight_.reserve(steps_.size());
  ended_.reserve(steps_.size());
  for (std::size_t i = steps_.size(); i-- > 0;) free_.push_back(static_cast<std::int32_t>(i));
  return true;
}

Step& StepLog::begin() noexcept {
  KVFOLIO_DCHECK(open_ < 0 && !free_.empty());
  ended_.clear();
  open_ = free_.back();
  free_.pop_back();
  Step& step = at(open_);
  step.ticket = ++last_ticket_;
  step.num_entries = 0;
  step.num_removed = 0;
  step.num_displaced = 0;
  step.has_unnamed = false;
  step.copies_ran = false;
  step.planned_changes = false;
  step.num_planned = Step::kNoPlan;
  step.num_taken_out = 0;
  return step;
}

Step& StepLog::commit() noexcept {
  KVFOLIO_DCHECK(open_ >= 0);
  Step& step = at(open_);
  last_committed_ = step.ticket;
  if (step.planned_changes) last_changes_ = step.plan.number;
  in_flight_.push_back(open_);
  open_ = -1;
  return step;
}

void StepLog::drop() noexcept {
  KVFOLIO_DCHECK(open_ >= 0);
  free_.push_back(open_);
  open_ = -1;
}

Status StepLog::check_open(Ticket ticket, std::string_view what) const {
  if (is_open() && open().ticket == ticket.value()) return {};
  return {ErrorCode::kFailedPrecondition,
          is_open() ? concat(what, ": ticket ", ticket.value(), " is not the open step, ",
                             open().ticket, " is")
                    : concat(what, ": ticket ", ticket.value(), " is not open; no step is")};
}

Status StepLog::check_quiet(std::string_view whose) const {
  if (!is_open() && num_in_flight() == 0) return {};
  if (is_open()) {
    return {ErrorCode::kFailedPrecondition,
            concat("copy_to: step ", last_ticket(), " of ", whose, " is open; finish or drop it")};
  }
  return {ErrorCode::kFailedPrecondition, concat("copy_to: step ", oldest_incomplete(), " of ",
                                                 whose, " is in flight; complete it first")};
}

std::int32_t StepLog::find(std::uint64_t ticket) const noexcept {
  for (std::int32_t i = 0; i < num_in_flight(); ++i) {
    if (in_flight(i).ticket == ticket) return i;
  }
  return -1;
}

void StepLog::end(std::int32_t first, std::int32_t last) noexcept {
  const auto from = in_flight_.begin() + first;
  const auto to = in_flight_.begin() + last;
  ended_.assign(from, to);
  free_.insert(free_.end(), from, to);
  in_flight_.erase(from, to);
}

namespace {

void copy_step(Step& step, const Step& other) noexcept {
  const auto& [ticket, num_groups, num_entries, num_removed, num_displaced, has_unnamed, copies_ran,
               planned_changes, num_planned, num_taken_out, entries, changes, entry_of, words,
               num_words, sequences, caller_ids, shared, num_shared, group_plans, plan] = other;
  step.ticket = ticket;
  step.num_entries = num_entries;
  step.num_removed = num_removed;
  step.num_displaced = num_displaced;
  step.has_unnamed = has_unnamed;
  step.copies_ran = copies_ran;
  step.planned_changes = false;
  step.num_planned = num_planned;
  step.num_taken_out = num_taken_out;
  step.entries.copy_from(entries, num_entries);
  for (std::int32_t i = 0; i < num_entries; ++i) {
    if (entries[i].row >= 0) step.entry_of[entries[i].row] = i;
  }
  step.changes.copy_from(changes, std::int64_t{num_entries} * num_groups);
  // The plan's spans point into the other's words.
  step.num_words = 0;
  step.num_shared = 0;
  step.plan = {};
}

}  // namespace

void StepLog::copy_from(const StepLog& other) noexcept {
  const auto& [steps, free, in_flight, ended, open, last_ticket, last_committed, num_plans,
               last_changes] = other;
  for (std::size_t i = 0; i < steps.size(); ++i) copy_step(steps_[i], steps[i]);
  free_ = free;
  in_flight_ = in_flight;
  ended_.clear();
  open_ = open;
  last_ticket_ = last_ticket;
  last_committed_ = last_committed;
  last_changes_ = 0;  // no engine has seen a plan of these tables (Tables::copy_from())
}

MemoryUse StepLog::memory() const noexcept {
  MemoryUse sum;
  for (const Step& step : steps_) {
    sum += MemoryUse::whole(step.entries.bytes() + step.changes.bytes() + step.entry_of.bytes() +
                            step.sequences.bytes() + step.caller_ids.bytes() + step.shared.bytes());
    sum += {step.words.bytes(), 4 * step.num_words};
  }
  return sum;
}

Status StepLog::check() const {
  const auto broken = [](const std::string& what) {
    return Status(ErrorCode::kFailedPrecondition, "steps: " + what);
  };
  const std::size_t used = in_flight_.size() + (open_ >= 0 ? 1 : 0);
  if (free_.size() + used != steps_.size()) {
    return broken(concat(free_.size(), " are free and ", used, " used, of ", steps_.size()));
  }
  std::uint64_t before = 0;
  for (std::int32_t i = 0; i < num_in_flight(); ++i) {
    const Step& step = in_flight(i);
    if (step.ticket <= before || step.ticket > last_committed_) {
      return broken(concat("ticket ", step.ticket, " is in flight behind ", before));
    }
    if (step.num_removed != 0) return broken(concat("step ", step.ticket, " has gaps"));
    before = step.ticket;
  }
  if (open_ >= 0 && (open().ticket != last_ticket_ || open().ticket <= last_committed_)) {
    return broken(
        concat("the open step has ticket ", open().ticket, ", the last is ", last_ticket_));
  }
  return {};
}

}  // namespace kvfolio
