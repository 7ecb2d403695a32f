// SPDX-License-Identifier: Apache-2.0
//
// The blocks that became findable, in a ring (findable_list.h).

#include "manager/findable_list.h"

#include "base/text.h"

namespace kvfolio {

bool FindableList::allocate(std::span<const GroupSpec> groups) noexcept {
  std::int64_t num_blocks = 0;
  num_groups_ = static_cast<std::int32_t>(groups.size());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    first_[g] = num_blocks;
    num_blocks += groups[g].num_blocks;
  }
  return serials_.allocate_zeroed(num_blocks) && waits_.allocate_zeroed(num_blocks) &&
         queue_.allocate_zeroed(num_blocks);
}

void FindableList::push(std::int64_t number) noexcept {
  const auto capacity = static_cast<std::int64_t>(queue_.size());
  KVFOLIO_CHECK(size_ < capacity);
  const std::int64_t at = std::int64_t{begin_} + size_++;
  queue_[at < capacity ? at : at - capacity] = static_cast<std::uint32_t>(number);
  waits_[number] = 1;
}

void FindableList::add(std::int32_t g, std::int32_t block) noexcept {
  const std::int64_t number = number_of(g, block);
  serials_[number] = ++last_serial_;
  if (waits_[number] == 0) push(number);
}

FindableList::Member FindableList::take() noexcept {
  KVFOLIO_CHECK(size_ > 0);
  const std::int64_t number = queue_[begin_];
  --size_;
  if (++begin_ == static_cast<std::int32_t>(queue_.size()) || size_ == 0) begin_ = 0;
  waits_[number] = 0;
  return member_of(number);
}

FindableList::Member FindableList::member_of(std::int64_t number) const noexcept {
  std::int32_t g = num_groups_ - 1;
  while (first_[static_cast<std::size_t>(g)] > number) --g;
  return {g, static_cast<std::int32_t>(number - first_[static_cast<std::size_t>(g)])};
}

void FindableList::put_back(Member member) noexcept { push(number_of(member.group, member.block)); }

// A member that is not named here does not compile.
void FindableList::copy_from(const FindableList& other) noexcept {
  const auto& [serials, waits, queue, first, num_groups, begin, size, last_serial] = other;
  KVFOLIO_CHECK(queue.size() == queue_.size());
  if (!is_on()) return;
  serials_.copy_from(serials);
  waits_.copy_from(waits);
  queue_.copy_from(queue);
  begin_ = begin;
  size_ = size;
  last_serial_ = last_serial;
}

Status FindableList::check() const {
  std::int64_t waiting = 0;
  for (std::size_t i = 0; i < waits_.size(); ++i) waiting += waits_[static_cast<std::int64_t>(i)];
  for (std::int32_t i = 0; i < size_; ++i) {
    const auto capacity = static_cast<std::int64_t>(queue_.size());
    const std::int64_t at = (std::int64_t{begin_} + i) % capacity;
    if (waits_[queue_[at]] != 0) continue;
    return {ErrorCode::kFailedPrecondition,
            text::concat("findable list: block number ", queue_[at], " is listed and not marked")};
  }
  if (waiting == size_) return {};
  return {ErrorCode::kFailedPrecondition,
          text::concat("findable list: ", waiting, " blocks are marked, ", size_, " listed")};
}

}  // namespace kvfolio
