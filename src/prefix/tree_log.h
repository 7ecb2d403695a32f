// SPDX-License-Identifier: Apache-2.0
#pragma once

// TreeLog keeps the changes of a tree, in order, until the user takes them. It knows groups, blocks
// and kinds of changes; it knows neither runs nor tokens.
//
// Its bound: one entry for each block and kind. During one call of the tree a block is hung at most
// once, is unhung at most once and keeps its entry at most once, since a call offers each block at
// one place only. A kCandidate says only that the tree should be asked again, so a block for which
// one waits needs no second one. The user takes all entries before the next call. So no entry is
// ever dropped, and an array of that size never overflows; append() checks it.
//
// Entries that are appended while the user takes others stand behind these.
// Thread safety: none. Nothing allocates after allocate().

#include <array>
#include <cstdint>
#include <span>

#include "base/text.h"
#include "kvfolio/fixed_array.h"
#include "kvfolio/prefix_tree.h"
#include "kvfolio/spec.h"

namespace kvfolio {

class TreeLog {
 public:
  static constexpr std::int64_t kKinds = 4;

  // False: no memory. Requires: at most kMaxGroups groups of at most 2^29 blocks.
  [[nodiscard]] bool allocate(std::span<const TreeGroup> groups) noexcept {
    KVFOLIO_CHECK(groups.size() <= first_.size());
    std::int64_t num_blocks = 0;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      first_[g] = num_blocks;
      num_blocks += groups[g].num_blocks;
    }
    return changes_.allocate_zeroed(kKinds * num_blocks) &&
           candidates_.allocate_zeroed(num_blocks / kWordBits + 1);
  }

  void hung(std::int32_t g, std::int32_t block) noexcept {
    append(TreeChange::Kind::kHung, g, block, block);
  }
  void unhung(std::int32_t g, std::int32_t block, std::int32_t successor) noexcept {
    append(TreeChange::Kind::kUnhung, g, block, successor);
  }
  void kept(std::int32_t g, std::int32_t block, std::int32_t offered) noexcept {
    append(TreeChange::Kind::kKept, g, block, offered);
  }
  // What eviction may do with the block has changed.
  void candidate(std::int32_t g, std::int32_t block) noexcept {
    std::uint64_t& word = candidates_[word_of(g, block)];
    const std::uint64_t bit = bit_of(g, block);
    if ((word & bit) != 0) return;
    word |= bit;
    append(TreeChange::Kind::kCandidate, g, block, block);
  }

  [[nodiscard]] bool empty() const noexcept { return begin_ == end_; }
  // The oldest entry, which leaves the log; of a kCandidate the user asks the tree. Requires: not
  // empty.
  [[nodiscard]] TreeChange take() noexcept {
    KVFOLIO_CHECK(!empty());
    const Entry entry = changes_[begin_++];
    if (empty()) begin_ = end_ = 0;  // the next ones are written where memory is warm
    const TreeChange change = read(entry);
    if (change.kind == TreeChange::Kind::kCandidate) {
      const std::int32_t g = change.group.value();
      candidates_[word_of(g, change.block.value())] &= ~bit_of(g, change.block.value());
    }
    return change;
  }
  void clear() noexcept {
    while (!empty()) static_cast<void>(take());
  }

  // ok, or which rule is broken: no two entries are of the same block and kind. O(entries squared).
  [[nodiscard]] Status check() const {
    const auto broken = [](std::int64_t i) {
      return Status(ErrorCode::kFailedPrecondition,
                    text::concat("prefix tree, log: entry ", i, " is of a block and kind twice"));
    };
    if (begin_ < 0 || begin_ > end_ || end_ > static_cast<std::int64_t>(changes_.size())) {
      return {ErrorCode::kFailedPrecondition,
              text::concat("prefix tree, log: holds ", begin_, " to ", end_)};
    }
    for (std::int64_t i = begin_; i < end_; ++i) {
      for (std::int64_t j = begin_; j < i; ++j) {
        const TreeChange a = read(changes_[i]);
        const TreeChange b = read(changes_[j]);
        if (a.kind == b.kind && a.group == b.group && a.block == b.block) return broken(i);
      }
    }
    return {};
  }

 private:
  // One word: block (29 bits), successor (29; the block itself: none), group (4), kind (2).
  using Entry = std::uint64_t;
  static constexpr int kIdBits = 29;
  static constexpr int kGroupAt = 2 * kIdBits;
  static constexpr int kKindAt = 62;
  static_assert(kMaxGroups <= 1 << (kKindAt - kGroupAt));
  static constexpr std::int64_t kWordBits = 64;

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
  [[nodiscard]] std::int64_t word_of(std::int32_t g, std::int32_t block) const noexcept {
    return (first_[static_cast<std::size_t>(g)] + block) / kWordBits;
  }
  [[nodiscard]] std::uint64_t bit_of(std::int32_t g, std::int32_t block) const noexcept {
    return std::uint64_t{1} << ((first_[static_cast<std::size_t>(g)] + block) % kWordBits);
  }
  // `successor`: the block itself if there is none.
  void append(TreeChange::Kind kind, std::int32_t g, std::int32_t block,
              std::int32_t successor) noexcept {
    KVFOLIO_CHECK(end_ < static_cast<std::int64_t>(changes_.size()));
    changes_[end_++] = static_cast<Entry>(block) | static_cast<Entry>(successor) << kIdBits |
                       static_cast<Entry>(g) << kGroupAt | static_cast<Entry>(kind) << kKindAt;
  }

  FixedArray<Entry> changes_;                     // entries [begin_, end_) wait
  FixedArray<std::uint64_t> candidates_;          // by block of all groups: a kCandidate waits
  std::array<std::int64_t, kMaxGroups> first_{};  // by group: its first block in candidates_
  std::int64_t begin_ = 0;
  std::int64_t end_ = 0;
};

}  // namespace kvfolio
