// SPDX-License-Identifier: Apache-2.0
#pragma once

// LruOrder ranks the cached blocks of one group by when they were last let go, and names the next
// one to evict. It knows only ids; its user says whether a block may go, and in which turn.
//
// A rank is a place in a log of releases; the candidates of each turn are a set of places. So a
// block keeps its rank while it is held and not used. A block that becomes a candidate late,
// because its descendants went first, stands where its rank says. Both cost O(1), which neither a
// list nor a heap gives. The victim is the first member of the first set that is not empty: one
// word for each empty set, then two words up to 2,730 blocks and four up to 11 million.
//
// The log holds three places for two blocks. When its end is reached, the ranks in use move
// together, in order, which costs O(1) per release on average.
//
// Ids are not checked for their range: BlockPool::contains() says which ids are of the group.
// Thread safety: several threads may run const calls at the same time while no other call runs.
// Nothing allocates after create() but the text of an error. A moved-from order may only be
// assigned to or destroyed.

#include <array>
#include <cstdint>

#include "kvfolio/bit_tree.h"
#include "kvfolio/export.h"
#include "kvfolio/fixed_array.h"
#include "kvfolio/ids.h"
#include "kvfolio/status.h"

namespace kvfolio {

// When a candidate leaves: after all of earlier turns, and within its turn the coldest first.
enum class EvictionTurn : std::uint8_t { kFirst = 0, kNormal = 1, kLast = 2, kNever = 3 };

class KVFOLIO_API LruOrder {
 public:
  static constexpr std::int32_t kMaxBlocks = 1 << 29;

  // kInvalidArgument: num_blocks < 1 or over kMaxBlocks; kOutOfMemory.
  static Result<LruOrder> create(std::int32_t num_blocks);

  // The block becomes the warmest one, and is no candidate.
  void touch(BlockId block) noexcept;
  // The block loses its rank, and is no candidate.
  void forget(BlockId block) noexcept;
  [[nodiscard]] bool has_rank(BlockId block) const noexcept { return place_[block.value()] != 0; }
  // True when a was touched longer ago than b. Requires: both have a rank.
  [[nodiscard]] bool colder(BlockId a, BlockId b) const noexcept {
    KVFOLIO_DCHECK(has_rank(a) && has_rank(b));
    return place_[a.value()] < place_[b.value()];
  }

  // The block becomes a candidate of this turn; with kNever it stops being one. It keeps its rank.
  // Requires: has_rank(block).
  void set_turn(BlockId block, EvictionTurn turn) noexcept;
  // kNever if the block is no candidate.
  [[nodiscard]] EvictionTurn turn(BlockId block) const noexcept;

  // The coldest candidate of the first turn that has one; not valid when there is none.
  [[nodiscard]] BlockId victim() const noexcept;
  // The candidate that follows `block`, a candidate itself, in the order of eviction; not valid
  // when there is none.
  [[nodiscard]] BlockId victim_after(BlockId block) const noexcept;
  // Prefetches what forget() reads first.
  void prefetch(BlockId block) const noexcept { __builtin_prefetch(&place_[block.value()], 1); }

  // Becomes an equal of `other`. Requires: created with as many blocks.
  void copy_from(const LruOrder& other) noexcept;

  // Returns ok, or says which rule is broken. O(num_blocks).
  Status check_invariants() const;

 private:
  static constexpr std::size_t kTurns = 3;

  LruOrder() = default;
  void compact() noexcept;

  // What is at a place in the log. An empty place has name 0 and turn kTurns.
  struct Entry {
    std::uint32_t name : 30;  // block + 1
    std::uint32_t turn : 2;   // an EvictionTurn
  };
  [[nodiscard]] BlockId block_at(std::int64_t place) const noexcept {
    return BlockId(static_cast<std::int32_t>(log_[place].name) - 1);
  }

  FixedArray<Entry> log_;
  FixedArray<std::int32_t> place_;          // per block: index in log_ + 1, or 0
  std::array<BitTree, kTurns> candidates_;  // by turn: places in the log
  std::int32_t capacity_ = 0;
  std::int32_t end_ = 0;  // next place in the log
};

// Inline: a few instructions each, called for every block that a sequence lets go.

inline void LruOrder::forget(BlockId block) noexcept {
  std::int32_t& place = place_[block.value()];
  if (place == 0) return;
  Entry& entry = log_[place - 1];
  if (entry.turn < kTurns) candidates_[entry.turn].erase(place - 1);
  entry = {0, kTurns};
  place = 0;
}

inline void LruOrder::touch(BlockId block) noexcept {
  forget(block);
  if (end_ == capacity_) compact();
  log_[end_] = {static_cast<std::uint32_t>(block.value() + 1) & 0x3fffffffu, kTurns};
  place_[block.value()] = ++end_;
}

}  // namespace kvfolio
