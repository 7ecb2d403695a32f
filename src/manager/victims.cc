// SPDX-License-Identifier: Apache-2.0
#include "manager/victims.h"

#include <string>

#include "base/text.h"

namespace kvfolio {

using text::concat;

bool Victims::allocate(std::int64_t rows) noexcept {
  num_uses_ = 0;
  end_ = size_ = num_passed_over_ = 0;
  keeps_ = false;
  policy_.reset();
  return last_.allocate_zeroed(rows) && counts_.allocate_zeroed(rows) &&
         order_.allocate_zeroed(rows);
}

// Four chains of minima in pieces: what limits it is how fast the array is read. Only the best
// piece is looked at again for the row. A row that is not open becomes the last of all.
std::int32_t Victims::least_recent() const noexcept {
  constexpr std::int32_t kPiece = 64;
  const auto age = [](std::uint64_t last) { return last - 1; };
  std::uint64_t least = ~std::uint64_t{0};
  std::int32_t from = 0;
  std::int32_t row = 0;
  for (; row + kPiece <= end_; row += kPiece) {
    const std::uint64_t* const last = &last_[row];
    std::uint64_t a = age(last[0]);
    std::uint64_t b = age(last[1]);
    std::uint64_t c = age(last[2]);
    std::uint64_t d = age(last[3]);
    for (std::int32_t i = 4; i < kPiece; i += 4) {
      a = std::min(a, age(last[i]));
      b = std::min(b, age(last[i + 1]));
      c = std::min(c, age(last[i + 2]));
      d = std::min(d, age(last[i + 3]));
    }
    const std::uint64_t here = std::min(std::min(a, b), std::min(c, d));
    if (here >= least) continue;
    least = here;
    from = row;
  }
  for (; row < end_; ++row) {
    if (age(last_[row]) >= least) continue;
    least = age(last_[row]);
    from = row;
  }
  if (least == ~std::uint64_t{0}) return kNoRow;
  while (age(last_[from]) != least) ++from;
  return from;
}

void Victims::drop_kept(std::int32_t row) noexcept {
  const auto end = kept_.begin() + static_cast<std::ptrdiff_t>(num_kept_);
  const auto at = std::find_if(kept_.begin(), end, [row](const Ranked& r) { return r.row == row; });
  if (at == end) return;
  std::move(at + 1, end, at);
  --num_kept_;
}

// Requires: the row is not kept.
void Victims::insert_kept(const Ranked& row) noexcept {
  if (bound_ && kLater(row, *bound_)) return;  // it goes with all the others
  if (num_kept_ == kMostKept) {
    if (kLater(row, kept_[0])) return leave_out(row);
    leave_out(kept_[0]);
    drop_kept(kept_[0].row);
  }
  const auto end = kept_.begin() + static_cast<std::ptrdiff_t>(num_kept_++);
  const auto at = std::find_if(kept_.begin(), end, [&](const Ranked& r) { return kLater(row, r); });
  std::move_backward(at, end, end + 1);
  *at = row;
}

void Victims::restore_passed_over() noexcept {
  const auto end = static_cast<std::int32_t>(order_.size());
  for (; num_passed_over_ > 0; --num_passed_over_) {
    order_[size_++] = order_[end - num_passed_over_];
    std::push_heap(order_.data(), order_.data() + size_, kLater);
  }
}

Victims::Soon Victims::soon() const noexcept {
  Soon soon;
  if (size_ > 0) soon.next = order_[0].row;
  if (size_ > 1) soon.then[0] = order_[1].row;
  if (size_ > 2) soon.then[1] = order_[2].row;
  return soon;
}

// What is kept and the heap are of searches, which begin anew here.
void Victims::copy_from(const Victims& other) noexcept {
  const auto& [last, counts, num_uses, end, changed, num_changes, kept, num_kept, bound, keeps,
               policy, kept_at, scanned_at, order, size, num_passed_over] = other;
  last_.copy_from(last);
  counts_.copy_from(counts);
  num_uses_ = num_uses;
  end_ = end;
  keeps_ = false;
  policy_.reset();
}

Status Victims::check(std::span<const std::int32_t> open_rows) const {
  const auto broken = [](const std::string& what) {
    return Status(ErrorCode::kFailedPrecondition, "victims: " + what);
  };
  for (const std::int32_t row : open_rows) {
    if (row >= end_) return broken(concat("row ", row, " is open, rows end at ", end_));
    if (last_[row] == 0 || last_[row] > num_uses_ || counts_[row] == 0) {
      return broken(concat("open row ", row, " was used ", counts_[row], " times, the last time ",
                           last_[row], " of ", num_uses_));
    }
  }
  if (keeps_ && !std::is_sorted(kept_.begin(),
                                kept_.begin() + static_cast<std::ptrdiff_t>(num_kept_), kLater)) {
    return broken("the rows that are kept are in no order");
  }
  std::size_t used = 0;
  for (std::int32_t row = 0; row < end_; ++row) used += last_[row] != 0 ? 1 : 0;
  if (used == open_rows.size()) return {};
  return broken(concat(used, " rows have a last use, ", open_rows.size(), " are open"));
}

}  // namespace kvfolio
