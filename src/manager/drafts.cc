// SPDX-License-Identifier: Apache-2.0
#include "manager/drafts.h"

#include <algorithm>

#include "base/text.h"

namespace kvfolio {

void Drafts::add(std::int32_t row, const Stretch& stretch) noexcept {
  KVFOLIO_DCHECK(has_room(row));
  KVFOLIO_DCHECK(stretch.draft > 0 || counts_[row] > 0);
  of(row)[counts_[row]++] = stretch;
}

std::int32_t Drafts::accept(std::int32_t row) noexcept {
  KVFOLIO_DCHECK(counts_[row] > 0);
  Stretch* const all = of(row);
  const std::int32_t count = counts_[row];
  // Stretches without guesses stand with what is before them.
  std::int32_t decided = 1;
  while (decided < count && all[decided].draft == 0) ++decided;
  const std::int32_t end = all[decided - 1].end;
  std::copy(all + decided, all + count, all);
  counts_[row] = count - decided;
  return counts_[row] > 0 ? all[0].end - all[0].draft : end;
}

void Drafts::cut(std::int32_t row, std::int32_t length) noexcept {
  Stretch* const all = of(row);
  std::int32_t& count = counts_[row];
  while (count > 0 && all[count - 1].begin >= length) --count;
  if (count == 0) return;
  Stretch& last = all[count - 1];
  const std::int32_t gone = std::max(0, last.end - length);
  last.end -= gone;
  last.draft = std::max(0, last.draft - gone);
  if (count == 1 && last.draft == 0) count = 0;
}

// A member that is not named here does not compile.
void Drafts::copy_from(const Drafts& other) noexcept {
  const auto& [most, counts, stretches] = other;
  KVFOLIO_CHECK(most_ == most);
  counts_.copy_from(counts);
  stretches_.copy_from(stretches);
}

Status Drafts::check(std::int32_t row, std::int32_t accepted, std::int32_t length) const {
  const auto all = stretches(row);
  bool sound = all.empty() ? accepted == length
                           : all.front().draft > 0 && all.back().end == length &&
                                 accepted == all.front().end - all.front().draft;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Stretch& each = all[i];
    sound = sound && each.begin < each.end && each.draft >= 0 &&
            each.draft <= each.end - each.begin && (i == 0 || all[i - 1].end == each.begin);
  }
  if (sound) return {};
  std::string text = text::concat("drafts: row ", row, " of ", length, " tokens, ", accepted,
                                  " of them accepted, has stretches");
  for (const Stretch& each : all) {
    text += text::concat(" [", each.begin, ", ", each.end, ") with ", each.draft, " guesses");
  }
  return {ErrorCode::kFailedPrecondition, std::move(text)};
}

}  // namespace kvfolio
