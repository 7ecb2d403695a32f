// SPDX-License-Identifier: Apache-2.0
#pragma once

// LruOrder ranks the cached blocks of all groups by when they were last let go, and names the next
// one to evict, of one group or of all. It knows only ids; its user says whether a block may go,
// and in which turn.
//
// A rank is a place in one log of releases, so the ages of blocks of different groups can be
// compared; the candidates of each group and turn are a set of places. So a block keeps its rank
// while it is held and not used. A block that becomes a candidate late, because its descendants
// went first, stands where its rank says. Both cost O(1), which neither a list nor a heap gives.
// The victim of a group is the first member of its first set that is not empty: one word for each
// empty set, then two words up to 2,730 blocks and four up to 11 million. The victim of all is the
// coldest of theirs in the first turn in which a group has one.
//
// The log holds three places for two blocks. When its end is reached, the ranks in use move
// together, in order, which costs O(1) per release on average.
//
// Ids are not checked for their range: BlockPool::contains() says which ids are of a group.
// Thread safety: several threads may run const calls at the same time while no other call runs.
// Nothing allocates after create() but the text of an error. A moved-from order may only be
// assigned to or destroyed.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kvfolio/bit_tree.h"
#include "kvfolio/export.h"
#include "kvfolio/fixed_array.h"
#include "kvfolio/ids.h"
#include "kvfolio/prefetch.h"
#include "kvfolio/spec.h"
#include "kvfolio/status.h"

namespace kvfolio {

// When a candidate leaves: after all of earlier turns, and within its turn the coldest first.
enum class EvictionTurn : std::uint8_t { kFirst = 0, kNormal = 1, kLast = 2, kNever = 3 };

class KVFOLIO_API LruOrder {
 public:
  static constexpr std::int32_t kMaxBlocks = 1 << 29;  // of all groups together

  // Ranks nothing: it may only be assigned to or destroyed.
  LruOrder() = default;
  // num_blocks: by GroupId. kInvalidArgument: no group or more than kMaxGroups, a group of less
  // than one block, or more than kMaxBlocks together; kOutOfMemory.
  static Result<LruOrder> create(std::span<const std::int32_t> num_blocks);

  // The block becomes the warmest one, and is no candidate.
  void touch(GroupId group, BlockId block) noexcept;
  // The block loses its rank, and is no candidate.
  void forget(GroupId group, BlockId block) noexcept;
  [[nodiscard]] bool has_rank(GroupId group, BlockId block) const noexcept {
    return place_of(group, block) != 0;
  }
  struct Member {
    GroupId group{};
    BlockId block{};

    [[nodiscard]] bool valid() const noexcept { return block.valid(); }
    friend bool operator==(const Member&, const Member&) = default;
  };
  // Returns true if a was touched longer ago than b. Requires: both have a rank.
  [[nodiscard]] bool colder(Member a, Member b) const noexcept {
    KVFOLIO_DCHECK(has_rank(a.group, a.block) && has_rank(b.group, b.block));
    return place_of(a.group, a.block) < place_of(b.group, b.block);
  }

  // The block becomes a candidate of this turn; with kNever it stops being one. It keeps its rank.
  // Requires: has_rank(group, block), unless the turn is kNever.
  void set_turn(GroupId group, BlockId block, EvictionTurn turn) noexcept;
  // kNever if the block is no candidate.
  [[nodiscard]] EvictionTurn turn(GroupId group, BlockId block) const noexcept;

  // The coldest candidate of the first turn in which the group has one; not valid if it has none.
  [[nodiscard]] BlockId victim(GroupId group) const noexcept;
  // The same over all groups whose bit is set.
  [[nodiscard]] Member victim(std::uint32_t groups = ~0u) const noexcept;
  // The candidate of the group that follows `block`, a candidate itself, in the order of eviction;
  // not valid if there is none.
  [[nodiscard]] BlockId victim_after(GroupId group, BlockId block) const noexcept;
  // Prefetches what forget() reads first.
  void prefetch(GroupId group, BlockId block) const noexcept {
    prefetch_to_write(&place_of(group, block));
  }

  // Becomes an equal of `other`. Requires: created with as many blocks.
  void copy_from(const LruOrder& other) noexcept;

  [[nodiscard]] MemoryUse memory() const noexcept;

  // Returns ok, or says which rule is broken. O(blocks).
  Status check_invariants() const;

 private:
  static constexpr std::size_t kTurns = 3;
  using Turns = std::array<BitTree, kTurns>;

  void compact() noexcept;

  // What is at a place in the log. An empty place has name 0, and then the turn says nothing.
  struct Entry {
    std::uint32_t name : 30;  // the block's number among those of all groups, + 1
    std::uint32_t turn : 2;   // an EvictionTurn
  };
  [[nodiscard]] static std::size_t index(GroupId group) noexcept {
    return static_cast<std::size_t>(group.value());
  }
  [[nodiscard]] std::int32_t number_of(GroupId group, BlockId block) const noexcept {
    KVFOLIO_DCHECK(index(group) < candidates_.size() && block.value() >= 0 &&
                   block.value() < first_[index(group) + 1] - first_[index(group)]);
    return first_[index(group)] + block.value();
  }
  [[nodiscard]] const std::int32_t& place_of(GroupId group, BlockId block) const noexcept {
    return place_[number_of(group, block)];
  }
  // Requires: a block of this group stands there, or none at all.
  [[nodiscard]] BlockId block_at(std::size_t group, std::int64_t place) const noexcept {
    return BlockId(static_cast<std::int32_t>(log_[place].name) - 1 - first_[group]);
  }
  // The group of the block with this number.
  [[nodiscard]] std::size_t group_of(std::int32_t number) const noexcept {
    std::size_t group = candidates_.size() - 1;
    while (first_[group] > number) --group;
    return group;
  }

  FixedArray<Entry> log_;
  FixedArray<std::int32_t> place_;  // by number: index in log_ + 1, or 0
  std::vector<Turns> candidates_;   // by group and turn: places in the log
  // By group: the number of its first block; and behind the last one the number of all blocks.
  std::array<std::int32_t, kMaxGroups + 1> first_{};
  std::int32_t capacity_ = 0;
  std::int32_t end_ = 0;  // next place in the log
};

// Inline: a few instructions each, called for every block that a sequence lets go.

inline void LruOrder::forget(GroupId group, BlockId block) noexcept {
  std::int32_t& place = place_[number_of(group, block)];
  if (place == 0) return;
  Entry& entry = log_[place - 1];
  if (entry.turn < kTurns) candidates_[index(group)][entry.turn].erase(place - 1);
  entry = {0, kTurns};
  place = 0;
}

inline void LruOrder::touch(GroupId group, BlockId block) noexcept {
  forget(group, block);
  if (end_ == capacity_) compact();
  const std::int32_t number = number_of(group, block);
  log_[end_] = {static_cast<std::uint32_t>(number + 1) & 0x3fffffffu, kTurns};
  place_[number] = ++end_;
}

}  // namespace kvfolio
