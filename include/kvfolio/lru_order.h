// SPDX-License-Identifier: Apache-2.0
#pragma once

// LruOrder ranks the cached blocks of one group by when they were last let go, and names the
// coldest one that may be evicted. It knows ids only; whether a block is a candidate is the prefix
// tree's business.
//
// A rank is a place in a log of releases; candidates are the bits of a 64-ary bitmap over the log.
// So a block keeps its rank while it is held and not used, and one that becomes a candidate late
// (its descendants went first) stands where its rank says, at O(1): neither a list nor a heap gives
// both. The victim is the first set bit: two words up to 2,730 blocks, four up to 11 million.
// The log holds three places for two blocks; when its end is reached the ranks in use move
// together, in order, which costs O(1) per release on average.
//
// Ids out of range are not looked for: BlockPool::contains() says which are of the group.
// Thread safety: none. Nothing allocates after create(). An order that was moved from is only
// assigned to or destroyed.

#include <array>
#include <cstdint>

#include "kvfolio/export.h"
#include "kvfolio/fixed_array.h"
#include "kvfolio/ids.h"
#include "kvfolio/status.h"

namespace kvfolio {

class KVFOLIO_API LruOrder {
 public:
  static constexpr std::int32_t kMaxBlocks = 1 << 29;

  // kInvalidArgument: num_blocks < 1 or over kMaxBlocks; kOutOfMemory.
  static Result<LruOrder> create(std::int32_t num_blocks);

  // The block becomes the warmest; it is no candidate.
  void touch(BlockId block) noexcept;
  // The block has no rank any more; it is no candidate.
  void forget(BlockId block) noexcept;
  [[nodiscard]] bool has_rank(BlockId block) const noexcept { return place_[block.value()] != 0; }
  // True when a was touched longer ago than b. Requires: both have a rank.
  [[nodiscard]] bool colder(BlockId a, BlockId b) const noexcept {
    return place_[a.value()] < place_[b.value()];
  }

  // Requires: has_rank(block). Both keep the rank.
  void set_candidate(BlockId block, bool candidate) noexcept;
  [[nodiscard]] bool is_candidate(BlockId block) const noexcept;

  // The coldest candidate; not valid when there is none.
  [[nodiscard]] BlockId victim() const noexcept;
  // The coldest candidate that is warmer than `block`, which has a rank; likewise.
  [[nodiscard]] BlockId victim_after(BlockId block) const noexcept;
  // What forget() reads first.
  void prefetch(BlockId block) const noexcept { __builtin_prefetch(&place_[block.value()], 1); }

  // Becomes an equal of `other`. Requires: created with as many blocks.
  void copy_from(const LruOrder& other) noexcept;

  // ok, or which rule is broken. O(num_blocks).
  Status check_invariants() const;

 private:
  static constexpr int kMaxLevels = 5;

  LruOrder() = default;
  void set_bit(std::int64_t at) noexcept;
  void clear_bit(std::int64_t at) noexcept;
  [[nodiscard]] bool bit(std::int64_t at) const noexcept {
    return (levels_[0][at >> 6] >> (at & 63) & 1u) != 0;
  }
  void compact() noexcept;

  FixedArray<std::int32_t> log_;    // block + 1, or 0
  FixedArray<std::int32_t> place_;  // per block: index in log_ + 1, or 0
  std::array<FixedArray<std::uint64_t>, kMaxLevels> levels_;
  int num_levels_ = 0;
  std::int32_t capacity_ = 0;
  std::int32_t end_ = 0;  // next place in the log
};

// Inline: a few instructions each, for every block that a sequence lets go of.

inline void LruOrder::clear_bit(std::int64_t at) noexcept {
  for (int level = 0; level < num_levels_; ++level) {
    std::uint64_t& word = levels_[static_cast<std::size_t>(level)][at >> 6];
    const std::uint64_t mask = std::uint64_t{1} << (at & 63);
    if ((word & mask) == 0) return;
    word &= ~mask;
    if (word != 0) return;
    at >>= 6;
  }
}

inline void LruOrder::forget(BlockId block) noexcept {
  std::int32_t& place = place_[block.value()];
  if (place == 0) return;
  clear_bit(place - 1);
  log_[place - 1] = 0;
  place = 0;
}

inline void LruOrder::touch(BlockId block) noexcept {
  forget(block);
  if (end_ == capacity_) compact();
  log_[end_] = block.value() + 1;
  place_[block.value()] = ++end_;
}

}  // namespace kvfolio
