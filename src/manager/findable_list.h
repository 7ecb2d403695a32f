// SPDX-License-Identifier: Apache-2.0
#pragma once

// FindableList keeps the blocks that became findable until the owner of the manager takes them, and
// a number for each entry that a block got in the tree. It knows groups and blocks, and neither
// tokens nor steps.
//
// A block is in the list once at most. So a queue with a place for each block never overflows, and
// nothing is dropped. A block that loses its entry stays in the list until it comes to the front:
// its serial is 0 then.
//
// Thread safety: none; const calls write nothing. Nothing allocates after allocate(). Without it
// the list is off: empty arrays, which cost nothing.

#include <array>
#include <cstdint>
#include <span>

#include "kvfolio/fixed_array.h"
#include "kvfolio/ids.h"
#include "kvfolio/spec.h"
#include "kvfolio/status.h"

namespace kvfolio {

class FindableList {
 public:
  struct Member {
    std::int32_t group;
    std::int32_t block;
  };

  // Turns it on. False: no memory.
  [[nodiscard]] bool allocate(std::span<const GroupSpec> groups) noexcept;
  [[nodiscard]] bool is_on() const noexcept { return !queue_.empty(); }

  // The block has an entry that it did not have before; it has none any more. Requires: is_on().
  void add(std::int32_t g, std::int32_t block) noexcept;
  void drop(std::int32_t g, std::int32_t block) noexcept { serials_[number_of(g, block)] = 0; }
  // The serial of the block's entry: no other entry ever has the same. 0: it has none, or the list
  // is off.
  [[nodiscard]] std::uint64_t serial(std::int32_t g, std::int32_t block) const noexcept {
    return is_on() ? serials_[number_of(g, block)] : 0;
  }

  // Members, one of which may have lost its entry.
  [[nodiscard]] std::int32_t size() const noexcept { return size_; }
  // The one that waited longest leaves the list; or it goes to the end. Requires: size() > 0.
  Member take() noexcept;
  void put_back(Member member) noexcept;
  // Calls visit(group, block) for each member, the one that waited longest first.
  template <typename Visit>
  void for_each_waiting(const Visit& visit) const {
    const auto capacity = static_cast<std::int64_t>(queue_.size());
    for (std::int64_t i = 0; i < size_; ++i) {
      const Member member = member_of(queue_[(begin_ + i) % capacity]);
      visit(member.group, member.block);
    }
  }

  // Becomes an equal of `other`. Requires: both are off, or allocated alike.
  void copy_from(const FindableList& other) noexcept;
  [[nodiscard]] MemoryUse memory() const noexcept {
    return MemoryUse::whole(serials_.bytes() + waits_.bytes() + queue_.bytes());
  }
  // ok, or which rule is broken. O(blocks).
  [[nodiscard]] Status check() const;

 private:
  [[nodiscard]] std::int64_t number_of(std::int32_t g, std::int32_t block) const noexcept {
    return first_[static_cast<std::size_t>(g)] + block;
  }
  [[nodiscard]] Member member_of(std::int64_t number) const noexcept;
  void push(std::int64_t number) noexcept;

  FixedArray<std::uint64_t> serials_;             // by number: a block among those of all groups
  FixedArray<std::uint8_t> waits_;                // by number: it is in the queue
  FixedArray<std::uint32_t> queue_;               // a ring of numbers
  std::array<std::int64_t, kMaxGroups> first_{};  // by group: the number of its first block
  std::int32_t num_groups_ = 0;
  std::int32_t begin_ = 0;
  std::int32_t size_ = 0;
  std::uint64_t last_serial_ = 0;
};

}  // namespace kvfolio
