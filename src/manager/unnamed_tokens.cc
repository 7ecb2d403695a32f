// SPDX-License-Identifier: Apache-2.0
//
// What happens to tokens without names when a step ends, when a sequence is cut, and in a fork.

#include "manager/unnamed_tokens.h"

#include <algorithm>

#include "base/text.h"

namespace kvfolio {

void UnnamedTokens::forget_from(std::int32_t row, std::uint64_t number) noexcept {
  Count& count = counts_[row];
  count.appended = std::min(count.appended, number);
  count.named = std::min(count.named, count.appended);
}

bool UnnamedTokens::end(const StepEntry& entry, bool failed) noexcept {
  Count& count = counts_[entry.row];
  const std::uint64_t end = entry.unnamed_begin + static_cast<std::uint64_t>(entry.unnamed);
  if (entry.unnamed == 0 || count.named >= end) return false;
  if (failed) {
    // Steps before this one are still in flight, and their tokens may get names.
    forget_from(entry.row, entry.unnamed_begin);
  } else {
    count.named = end;
  }
  return true;
}

void UnnamedTokens::truncate(StepLog& steps, Owner owner, std::int32_t length) noexcept {
  Count& count = counts_[owner.row];
  if (count.appended == 0) return;
  const auto for_each_entry = [&](const auto& visit) {
    for (std::int32_t i = 0; i < steps.num_in_flight(); ++i) {
      Step& step = steps.in_flight(i);
      if (const std::int32_t at = entry_in(step, owner); at >= 0) visit(step.entries[at]);
    }
  };
  for_each_entry([&](StepEntry& e) {
    const std::int32_t kept = std::max(0, std::min(e.end, length) - e.begin);
    const std::int32_t gone = std::max(0, e.unnamed - kept);
    e.unnamed -= gone;
    count.appended -= static_cast<std::uint64_t>(gone);
  });
  for_each_entry(
      [&](StepEntry& e) { e.unnamed_begin = std::min(e.unnamed_begin, count.appended); });
  count.named = std::min(count.named, count.appended);
}

void UnnamedTokens::share(StepLog& steps, Owner parent, Owner child) const noexcept {
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

Status UnnamedTokens::check(const StepLog& steps, Owner owner, std::int32_t in_open_step) const {
  auto waiting = static_cast<std::uint64_t>(in_open_step);
  for (std::int32_t i = 0; i < steps.num_in_flight(); ++i) {
    const Step& step = steps.in_flight(i);
    const std::int32_t at = entry_in(step, owner);
    if (at >= 0) waiting += static_cast<std::uint64_t>(step.entries[at].unnamed);
  }
  const Count& count = counts_[owner.row];
  if (count.named <= count.appended && count.appended - count.named <= waiting) return {};
  return {ErrorCode::kFailedPrecondition,
          text::concat("unnamed tokens: row ", owner.row, ": ", count.named, " of ", count.appended,
                       " have names, and ", waiting, " are in flight")};
}

}  // namespace kvfolio
