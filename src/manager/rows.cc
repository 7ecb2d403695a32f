// SPDX-License-Identifier: Apache-2.0
//
// The life of a row: taken, open, closing, resting, free (rows.h). The one idea: lists of rows are
// plain arrays, and each open row knows its place among the open ones, so it leaves in O(1).

#include "manager/rows.h"

#include <algorithm>
#include <string>

#include "base/member_sum.h"
#include "base/text.h"

namespace kvfolio {

using text::concat;
using Life = Sequence::Life;

bool Rows::allocate(std::int32_t num_rows, std::int32_t max_open, std::uint16_t tag) noexcept {
  if (!rows_.allocate_zeroed(num_rows) || !details_.allocate_zeroed(num_rows) ||
      !open_.allocate_zeroed(max_open) || !closing_.allocate_zeroed(num_rows) ||
      !resting_.allocate_zeroed(num_rows)) {
    return false;
  }
  max_open_ = max_open;
  tag_ = tag;
  num_open_ = num_closing_ = num_resting_ = 0;
  num_births_ = 0;
  first_free_ = kNone;
  for (std::int32_t row = num_rows - 1; row >= 0; --row) {  // row 0 is taken first
    rows_[row].generation = 1;
    free(row);
  }
  return true;
}

bool Rows::was_aborted(SequenceId id) const noexcept {
  const auto [tag, generation, row] = PackedId::of(id.value());
  return tag == tag_ && generation != 0 && row < size() && details_[row].aborted == generation;
}

std::int32_t Rows::take() noexcept {
  if (num_open_ == max_open_ || first_free_ == kNone) return kNone;
  const std::int32_t row = first_free_;
  Sequence& s = rows_[row];
  SequenceDetails& d = details_[row];
  first_free_ = d.list_link;
  const std::uint32_t generation = s.generation;
  const std::uint32_t aborted = d.aborted;
  s = {};
  d = {};
  s.generation = generation;
  d.aborted = aborted;
  s.birth = ++num_births_;
  s.life = Life::kOpen;
  d.list_link = num_open_;
  open_[num_open_++] = row;
  return row;
}

void Rows::copy_sequence(std::int32_t from, std::int32_t to) noexcept {
  Sequence& s = rows_[to];
  const Sequence own = s;
  s = rows_[from];
  s.generation = own.generation;
  s.life = own.life;
  s.birth = own.birth;
  SequenceDetails& d = details_[to];
  const SequenceDetails own_details = d;
  d = details_[from];
  d.aborted = own_details.aborted;
  d.list_link = own_details.list_link;
}

void Rows::leave_open(std::int32_t row) noexcept {
  const std::int32_t at = details_[row].list_link;
  const std::int32_t last = open_[--num_open_];
  open_[at] = last;
  details_[last].list_link = at;
}

void Rows::close_later(std::int32_t row) noexcept {
  rows_[row].life = Life::kClosing;
  closing_[num_closing_++] = row;
}

void Rows::leave_closing(std::int32_t row) noexcept {
  std::int32_t* end = closing_.data() + num_closing_;
  std::int32_t* at = std::find(closing_.data(), end, row);
  KVFOLIO_CHECK(at != end);
  std::copy(at + 1, end, at);
  --num_closing_;
}

void Rows::end(std::int32_t row, bool aborted) noexcept {
  Sequence& s = rows_[row];
  if (aborted) details_[row].aborted = s.generation;
  s.generation = next_generation(s.generation);
  s.life = Life::kUnused;
}

void Rows::free(std::int32_t row) noexcept {
  details_[row].list_link = first_free_;
  first_free_ = row;
}

void Rows::give_id_again(std::int32_t row) noexcept {
  Sequence& s = rows_[row];
  KVFOLIO_CHECK(s.life == Life::kUnused);
  s.generation = previous_generation(s.generation);
}

void Rows::copy_from(const Rows& other) noexcept {
  const auto& [sequences, details, open, closing, resting, first_free, num_open, num_closing,
               num_resting, max_open, tag, num_births] = other;
  KVFOLIO_CHECK(max_open == max_open_ && tag == tag_);
  rows_.copy_from(sequences);
  details_.copy_from(details);
  open_.copy_from(open, num_open);
  closing_.copy_from(closing, num_closing);
  resting_.copy_from(resting, num_resting);
  first_free_ = first_free;
  num_open_ = num_open;
  num_closing_ = num_closing;
  num_resting_ = num_resting;
  num_births_ = num_births;
}

template <typename Visit>
void Rows::for_each_listed(const Visit& visit) const {
  for (const std::int32_t row : open()) visit(row);
  for (const std::int32_t row : closing()) visit(row);
  for (const std::int32_t row : resting()) visit(row);
  // A list that is a circle ends too.
  std::int32_t row = first_free_;
  for (std::int32_t i = 0; i <= size() && row != kNone; ++i, row = details_[row].list_link) {
    visit(row);
  }
}

Status Rows::check() const {
  const auto broken = [](const std::string& what) {
    return Status(ErrorCode::kFailedPrecondition, "rows: " + what);
  };
  const auto lives = [&](std::int32_t row, Life life) { return rows_[row].life == life; };
  for (std::int32_t i = 0; i < num_open_; ++i) {
    if (lives(open_[i], Life::kOpen) && details_[open_[i]].list_link == i) continue;
    return broken(concat("row ", open_[i], " stands at ", i, " of the open ones and should not"));
  }
  for (const std::int32_t row : closing()) {
    if (!lives(row, Life::kClosing)) return broken(concat("row ", row, " should not be closing"));
  }
  for (const std::int32_t row : resting()) {
    if (!lives(row, Life::kUnused)) return broken(concat("row ", row, " should not be resting"));
  }
  MemberSum listed;
  MemberSum all;
  for_each_listed([&](std::int32_t row) { listed.add(row); });
  for (std::int32_t row = 0; row < size(); ++row) all.add(row);
  for (std::int32_t row = 0; row < size() && listed != all; ++row) {
    std::int32_t times = 0;
    for_each_listed([&](std::int32_t other) { times += other == row ? 1 : 0; });
    if (times != 1) return broken(concat("row ", row, " is ", times, " times in the lists"));
  }
  if (num_open_ <= max_open_) return {};
  return broken(concat(num_open_, " rows are open, allowed: ", max_open_));
}

}  // namespace kvfolio
