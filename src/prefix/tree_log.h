// SPDX-License-Identifier: Apache-2.0
#pragma once

// TreeLog keeps the changes of a tree until the user takes them: first those of entries, in order,
// then the blocks of which the tree should be asked again what eviction may do (kCandidate). It
// knows groups, blocks and kinds of changes; it knows neither runs nor tokens.
//
// Its bound: of each block one change of entries and one kCandidate. During one call of the tree a
// block is offered at one place only. There it is hung, or another busy block keeps its entry; and
// what is unhung had an entry before and was not offered. A kept entry names two blocks, and
// replace() makes one unhung and one hung of it. For a kCandidate a bit per block says that one
// waits. The user takes all of them before the next call. So no entry is ever dropped, and arrays
// of one entry per block never overflow; push() checks it.
//
// Entries that are appended while the user takes others stand behind these.
// Thread safety: none. Nothing allocates after allocate().

#include <array>
#include <bit>
#include <cstdint>
#include <span>

#include "base/text.h"
#include "kvfolio/fixed_array.h"
#include "kvfolio/prefix_tree.h"
#include "kvfolio/spec.h"

namespace kvfolio {

class TreeLog {
 public:
  // False: no memory. Requires: at most kMaxGroups groups of at most 2^29 blocks, and fewer than
  // 2^32 blocks together.
  [[nodiscard]] bool allocate(std::span<const TreeGroup> groups) noexcept {
    KVFOLIO_CHECK(groups.size() <= first_.size());
    std::int64_t num_blocks = 0;
    num_groups_ = groups.size();
    for (std::size_t g = 0; g < groups.size(); ++g) {
      first_[g] = num_blocks;
      num_blocks += groups[g].num_blocks;
    }
    return changes_.allocate(num_blocks) && candidates_.allocate(num_blocks) &&
           waits_.allocate_zeroed(num_blocks / kWordBits + 1);
  }

  void hung(std::int32_t g, std::int32_t block) noexcept {
    push(TreeChange::Kind::kHung, g, block, block);
  }
  void unhung(std::int32_t g, std::int32_t block, std::int32_t successor) noexcept {
    push(TreeChange::Kind::kUnhung, g, block, successor);
  }
  void kept(std::int32_t g, std::int32_t block, std::int32_t offered) noexcept {
    push(TreeChange::Kind::kKept, g, block, offered);
  }
  // What eviction may do with the block has changed.
  void candidate(std::int32_t g, std::int32_t block) noexcept {
    const std::int64_t number = first_[static_cast<std::size_t>(g)] + block;
    std::uint64_t& word = waits_[number / kWordBits];
    const std::uint64_t bit = std::uint64_t{1} << (number % kWordBits);
    if ((word & bit) != 0) return;
    word |= bit;
    candidates_.push(static_cast<std::uint32_t>(number));
  }

  [[nodiscard]] bool empty() const noexcept { return changes_.empty() && candidates_.empty(); }
  // The next entry, which leaves the log; of a kCandidate the user asks the tree. Requires: not
  // empty.
  [[nodiscard]] TreeChange take() noexcept {
    if (!changes_.empty()) return read(changes_.pop());
    const std::uint32_t number = candidates_.pop();
    waits_[number / kWordBits] &= ~(std::uint64_t{1} << (number % kWordBits));
    return candidate_of(number);
  }
  void clear() noexcept {
    while (!empty()) static_cast<void>(take());
  }

  [[nodiscard]] MemoryUse memory() const noexcept {
    MemoryUse sum = MemoryUse::whole(waits_.bytes());
    sum += changes_.memory();
    sum += candidates_.memory();
    return sum;
  }

  // ok, or which rule is broken: no two entries are of the same block and kind. O(entries squared).
  [[nodiscard]] Status check() const {
    for (std::int64_t i = 0; i < changes_.size(); ++i) {
      const TreeChange a = read(changes_[i]);
      for (std::int64_t j = 0; j < i; ++j) {
        const TreeChange b = read(changes_[j]);
        if (a.kind != b.kind || a.group != b.group || a.block != b.block) continue;
        return {ErrorCode::kFailedPrecondition,
                text::concat("prefix tree, log: entry ", i, " is of a block and kind twice")};
      }
    }
    std::int64_t waiting = 0;  // each block once: as many bits as entries
    for (std::size_t word = 0; word < waits_.size(); ++word) waiting += std::popcount(waits_[word]);
    if (waiting == candidates_.size()) return {};
    return {ErrorCode::kFailedPrecondition,
            text::concat("prefix tree, log: ", waiting, " blocks wait as candidates, ",
                         candidates_.size(), " are listed")};
  }

 private:
  // One word: block (29 bits), successor (29; the block itself: none), group (4), kind (2).
  using Entry = std::uint64_t;
  static constexpr int kIdBits = 29;
  static constexpr int kGroupAt = 2 * kIdBits;
  static constexpr int kKindAt = 62;
  static_assert(kMaxGroups <= 1 << (kKindAt - kGroupAt));
  static constexpr std::int64_t kWordBits = 64;

  // A queue in an array of fixed size.
  template <typename T>
  class Ring {
   public:
    [[nodiscard]] bool allocate(std::int64_t size) noexcept { return items_.allocate_zeroed(size); }
    [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
    void push(T item) noexcept {
      const auto capacity = static_cast<std::int64_t>(items_.size());
      KVFOLIO_CHECK(size_ < capacity);
      const std::int64_t at = begin_ + size_++;
      items_[at < capacity ? at : at - capacity] = item;
    }
    [[nodiscard]] T pop() noexcept {
      KVFOLIO_CHECK(size_ > 0);
      const T item = items_[begin_];
      --size_;
      // Empty, it begins again where memory is warm.
      if (++begin_ == static_cast<std::int64_t>(items_.size()) || size_ == 0) begin_ = 0;
      return item;
    }
    [[nodiscard]] std::int64_t size() const noexcept { return size_; }
    // The i-th oldest.
    [[nodiscard]] T operator[](std::int64_t i) const noexcept {
      return items_[(begin_ + i) % static_cast<std::int64_t>(items_.size())];
    }
    [[nodiscard]] MemoryUse memory() const noexcept {
      return {items_.bytes(), size_ * std::int64_t{sizeof(T)}};
    }

   private:
    FixedArray<T> items_;
    std::int64_t begin_ = 0;
    std::int64_t size_ = 0;
  };

  [[nodiscard]] static TreeChange read(Entry entry) noexcept {
    const auto bits = [entry](int from, int to) {
      return static_cast<std::int32_t>(entry << (64 - to) >> (64 - to + from));
    };
    const std::int32_t block = bits(0, kIdBits);
    const std::int32_t successor = bits(kIdBits, kGroupAt);
    return {.kind = static_cast<TreeChange::Kind>(bits(kKindAt, 64)),
            .group = GroupId(bits(kGroupAt, kKindAt)),
            .block = BlockId(block),
            .successor = successor != block ? BlockId(successor) : BlockId()};
  }
  [[nodiscard]] TreeChange candidate_of(std::uint32_t number) const noexcept {
    std::size_t g = num_groups_ - 1;
    while (first_[g] > number) --g;
    return {.kind = TreeChange::Kind::kCandidate,
            .group = GroupId(static_cast<std::int32_t>(g)),
            .block = BlockId(static_cast<std::int32_t>(number - first_[g]))};
  }
  // `successor`: the block itself if there is none.
  void push(TreeChange::Kind kind, std::int32_t g, std::int32_t block,
            std::int32_t successor) noexcept {
    changes_.push(static_cast<Entry>(block) | static_cast<Entry>(successor) << kIdBits |
                  static_cast<Entry>(g) << kGroupAt | static_cast<Entry>(kind) << kKindAt);
  }

  Ring<Entry> changes_;
  Ring<std::uint32_t> candidates_;                // numbers of blocks among those of all groups
  FixedArray<std::uint64_t> waits_;               // by number: a kCandidate waits
  std::array<std::int64_t, kMaxGroups> first_{};  // by group: the number of its first block
  std::size_t num_groups_ = 0;
};

}  // namespace kvfolio
