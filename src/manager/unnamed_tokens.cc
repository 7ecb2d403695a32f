// SPDX-License-Identifier: Apache-2.0
//
// What happens to tokens without names when a step ends, when a sequence is cut, and in a fork.

#include "manager/unnamed_tokens.h"

#include "base/text.h"

namespace kvfolio {

void UnnamedTokens::become(std::int32_t row, std::int32_t other) noexcept {
  counts_[row] = counts_[other];
  std::copy_n(of(other), counts_[other].stretches, of(row));
}

void UnnamedTokens::append(std::int32_t row, std::int32_t begin, std::int32_t num_tokens) noexcept {
  KVFOLIO_DCHECK(has_room(row, begin));
  Count& count = counts_[row];
  if (count.stretches == 0 || of(row)[count.stretches - 1].end != begin) {
    of(row)[count.stretches++] = {begin, begin};
  }
  of(row)[count.stretches - 1].end += num_tokens;
  count.tokens += num_tokens;
}

void UnnamedTokens::drop_below(std::int32_t row, std::int32_t position) noexcept {
  Count& count = counts_[row];
  Stretch* all = of(row);
  std::int32_t gone = 0;
  while (gone < count.stretches && all[gone].end <= position) {
    count.tokens -= all[gone].end - all[gone].begin;
    ++gone;
  }
  std::copy(all + gone, all + count.stretches, all);
  count.stretches -= gone;
  if (count.stretches == 0 || all[0].begin >= position) return;
  count.tokens -= position - all[0].begin;
  all[0].begin = position;
}

void UnnamedTokens::cut(std::int32_t row, std::int32_t position) noexcept {
  Count& count = counts_[row];
  while (count.stretches > 0) {
    Stretch& last = of(row)[count.stretches - 1];
    const std::int32_t end = std::max(last.begin, std::min(last.end, position));
    count.tokens -= last.end - end;
    last.end = end;
    if (last.end > last.begin) return;
    --count.stretches;
  }
}

bool UnnamedTokens::end(const StepEntry& entry, bool failed) noexcept {
  if (entry.unnamed == 0) return false;
  const std::int32_t before = num_waiting(entry.row);
  if (failed) {
    // Steps before this one are still in flight, and their tokens may get names.
    cut(entry.row, entry.begin);
  } else {
    drop_below(entry.row, entry.begin + entry.unnamed);
  }
  return num_waiting(entry.row) < before;
}

void UnnamedTokens::truncate(StepLog& steps, Owner owner, std::int32_t length) noexcept {
  cut(owner.row, length);
  for (std::int32_t i = 0; i < steps.num_in_flight(); ++i) {
    Step& step = steps.in_flight(i);
    const std::int32_t at = entry_in(step, owner);
    if (at < 0) continue;
    StepEntry& e = step.entries[at];
    e.unnamed = std::min(e.unnamed, std::max(0, length - e.begin));
  }
}

void UnnamedTokens::share(StepLog& steps, Owner parent, Owner child) noexcept {
  for (std::int32_t i = 0; i < steps.num_in_flight(); ++i) {
    Step& step = steps.in_flight(i);
    const std::int32_t from = entry_in(step, parent);
    if (from < 0 || step.entries[from].unnamed == 0) continue;
    // In place of an earlier sequence of this row, unless that holds sources of copies: so there
    // is one for each append and one for each row at most.
    std::int32_t at = step.latest_entry(child.row);
    bool reused = at >= 0;
    for (std::int32_t g = 0; g < step.num_groups && reused; ++g) {
      reused = step.change(at, g).source < 0;
    }
    if (!reused) at = step.num_entries++;
    KVFOLIO_CHECK(static_cast<std::size_t>(at) < step.entries.size());
    step.entries[at] = step.entries[from];
    step.entries[at].row = child.row;
    step.entries[at].birth = child.birth;
    step.clear_changes(at);
    step.entry_of[child.row] = at;
  }
}

// A member that is not named here does not compile.
void UnnamedTokens::copy_from(const UnnamedTokens& other) noexcept {
  const auto& [most_stretches, counts, stretches] = other;
  KVFOLIO_CHECK(most_stretches_ == most_stretches);
  counts_.copy_from(counts);
  stretches_.copy_from(stretches);
}

Status UnnamedTokens::check(const StepLog& steps, Owner owner, bool has_late_names,
                            std::int32_t in_open_step) const {
  const Count& count = counts_[owner.row];
  std::int32_t tokens = 0;
  for (std::int32_t i = 0; i < count.stretches; ++i) {
    const Stretch& stretch = of(owner.row)[i];
    tokens += stretch.end - stretch.begin;
    if (stretch.begin < stretch.end && (i == 0 || of(owner.row)[i - 1].end < stretch.begin)) {
      continue;
    }
    return {ErrorCode::kFailedPrecondition,
            text::concat("unnamed tokens: row ", owner.row, ": stretch ", i, " is [", stretch.begin,
                         ", ", stretch.end, "), not in order")};
  }
  if (tokens != count.tokens) {
    return {ErrorCode::kFailedPrecondition,
            text::concat("unnamed tokens: row ", owner.row, ": ", count.tokens, " wait, ", tokens,
                         " are in stretches")};
  }
  if (has_late_names) return {};
  std::int32_t in_flight = in_open_step;
  for (std::int32_t i = 0; i < steps.num_in_flight(); ++i) {
    const Step& step = steps.in_flight(i);
    const std::int32_t at = entry_in(step, owner);
    if (at >= 0) in_flight += step.entries[at].unnamed;
  }
  if (tokens <= in_flight) return {};
  return {ErrorCode::kFailedPrecondition,
          text::concat("unnamed tokens: row ", owner.row, ": ", tokens, " wait, and ", in_flight,
                       " are in flight")};
}

}  // namespace kvfolio
