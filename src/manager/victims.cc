// SPDX-License-Identifier: Apache-2.0
//
// The parts of the search for a victim that ask nothing of the rows; victims.h has the others and
// says how the heap of snapshots stays right though ranks change.

#include "manager/victims.h"

#include <string>

#include "base/member_sum.h"
#include "base/text.h"

namespace kvfolio {

using text::concat;

bool Victims::allocate(std::int64_t rows) noexcept {
  drop_heap();
  num_uses_ = 0;
  return heap_.allocate_zeroed(2 * rows) && passed_over_.allocate_zeroed(rows) &&
         changed_.allocate_zeroed(rows) && is_changed_.allocate_zeroed(rows) &&
         versions_.allocate_zeroed(rows) && uses_.allocate_zeroed(rows);
}

void Victims::push(const Snapshot& snapshot) noexcept {
  heap_[size_++] = snapshot;
  std::push_heap(heap_.data(), heap_.data() + size_, kLater);
}

void Victims::pop() noexcept {
  std::pop_heap(heap_.data(), heap_.data() + size_, kLater);
  --size_;
}

void Victims::restore_passed_over() noexcept {
  for (; num_passed_over_ > 0; --num_passed_over_) push(passed_over_[num_passed_over_ - 1]);
}

Victims::Soon Victims::soon() const noexcept {
  Soon soon;
  if (size_ < 3) return soon;
  const std::int32_t next = kLater(heap_[1], heap_[2]) ? 2 : 1;
  soon.next = heap_[next].row;
  std::size_t n = 0;
  for (const std::int32_t at : {3 - next, 2 * next + 1, 2 * next + 2}) {
    if (at < size_) soon.then[n++] = heap_[at].row;
  }
  return soon;
}

void Victims::drop_heap() noexcept {
  size_ = num_passed_over_ = num_changed_ = 0;
  policy_.reset();
  scanned_policy_.reset();
  scanned_at_ = 0;
}

void Victims::copy_from(const Victims& other) noexcept {
  const auto& [heap, passed_over, changed, is_changed, versions, size, num_passed_over, num_changed,
               policy, uses, num_uses, scanned_policy, scanned_at] = other;
  KVFOLIO_CHECK(versions.size() == versions_.size());
  std::fill_n(is_changed_.data(), is_changed_.size(), std::uint8_t{0});
  drop_heap();
  uses_.copy_from(uses);
  num_uses_ = num_uses;
}

Status Victims::check(std::span<const std::int32_t> open_rows) const {
  const auto broken = [](const std::string& what) {
    return Status(ErrorCode::kFailedPrecondition, "victims: " + what);
  };
  if (num_passed_over_ != 0) return broken(concat(num_passed_over_, " rows are passed over"));
  if (!std::is_heap(heap_.data(), heap_.data() + size_, kLater)) return broken("not a heap");
  std::int32_t marked = 0;
  for (std::size_t row = 0; row < is_changed_.size(); ++row) marked += is_changed_[row];
  for (std::int32_t i = 0; i < num_changed_; ++i) {
    if (is_changed_[changed_[i]] != 1) {
      return broken(concat("row ", changed_[i], " is on the list of changes without a mark"));
    }
  }
  if (marked != num_changed_) {
    return broken(concat(marked, " rows are marked as changed, ", num_changed_, " are listed"));
  }
  if (!policy_) return {};
  const auto for_each_snapshot = [&](const auto& visit) {
    for (std::int32_t i = 0; i < size_; ++i) {
      if (counts(heap_[i]) && is_changed_[heap_[i].row] == 0) visit(heap_[i].row);
    }
  };
  MemberSum in_heap;
  MemberSum unchanged;
  for_each_snapshot([&](std::int32_t row) { in_heap.add(row); });
  for (const std::int32_t row : open_rows) unchanged.add(row, is_changed_[row] != 0 ? 0 : 1);
  if (in_heap == unchanged) return {};
  for (const std::int32_t row : open_rows) {
    if (is_changed_[row] != 0) continue;
    std::int32_t found = 0;
    for_each_snapshot([&](std::int32_t other) { found += other == row ? 1 : 0; });
    if (found != 1) return broken(concat("row ", row, " has ", found, " snapshots that count"));
  }
  return broken("a row that is not open has a snapshot that counts");
}

}  // namespace kvfolio
