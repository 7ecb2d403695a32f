// SPDX-License-Identifier: Apache-2.0
#pragma once

// BitTree is a set of the integers 0 .. size - 1 that finds its smallest member, and the smallest
// member behind a given place, by reading a few words. It is a 64-ary tree of bitmaps: a bit of one
// level says that a word of the level below is not empty. It costs 1.02 bits for each integer that
// may be a member.
//
// Thread safety: none; const calls write nothing. Nothing allocates after allocate().

#include <array>
#include <bit>
#include <cstdint>

#include "kvfolio/fixed_array.h"
#include "kvfolio/status.h"

namespace kvfolio {

class BitTree {
 public:
  static constexpr std::int64_t kNone = -1;

  // Makes an empty set over 0 .. size - 1. Returns false if there is no memory. Requires:
  // 1 <= size <= 2^30.
  [[nodiscard]] bool allocate(std::int64_t size) noexcept {
    KVFOLIO_DCHECK(1 <= size && size <= std::int64_t{1} << 30);
    num_levels_ = 0;
    for (std::int64_t bits = size;;) {
      const std::int64_t words = (bits + 63) / 64;
      if (!levels_[static_cast<std::size_t>(num_levels_++)].allocate_zeroed(words)) return false;
      if (words == 1) return true;
      bits = words;
    }
  }

  // Requires (all four): 0 <= at < size.
  [[nodiscard]] bool contains(std::int64_t at) const noexcept {
    return (levels_[0][at >> 6] >> (at & 63) & 1u) != 0;
  }
  void insert(std::int64_t at) noexcept {
    for (int level = 0; level < num_levels_; ++level, at >>= 6) {
      std::uint64_t& word = words(level)[at >> 6];
      const std::uint64_t before = word;
      word |= std::uint64_t{1} << (at & 63);
      if (before != 0) return;  // the bits above are set already
    }
  }
  // Does nothing if `at` is no member.
  void erase(std::int64_t at) noexcept {
    for (int level = 0; level < num_levels_; ++level, at >>= 6) {
      std::uint64_t& word = words(level)[at >> 6];
      const std::uint64_t mask = std::uint64_t{1} << (at & 63);
      if ((word & mask) == 0) return;
      word &= ~mask;
      if (word != 0) return;
    }
  }
  // The smallest member larger than `at`, or kNone. `at` need not be a member.
  [[nodiscard]] std::int64_t next(std::int64_t at) const noexcept {
    // Up to the first level with a bit behind this place, and down from there.
    for (int level = 0; level < num_levels_; ++level, at >>= 6) {
      const std::uint64_t behind = ~std::uint64_t{1} << (at & 63);
      const std::uint64_t word = words(level)[at >> 6] & behind;
      if (word == 0) continue;
      return descend(level, at >> 6 << 6 | std::countr_zero(word));
    }
    return kNone;
  }
  // The smallest member, or kNone.
  [[nodiscard]] std::int64_t first() const noexcept {
    const std::uint64_t word = words(num_levels_ - 1)[0];
    return word == 0 ? kNone : descend(num_levels_ - 1, std::countr_zero(word));
  }

  [[nodiscard]] std::int64_t bytes() const noexcept {
    std::int64_t bytes = 0;
    for (const auto& level : levels_) bytes += level.bytes();
    return bytes;
  }

  // Becomes an equal of `other`. Requires: allocated for the same size.
  void copy_from(const BitTree& other) noexcept {
    KVFOLIO_CHECK(num_levels_ == other.num_levels_);
    for (std::size_t level = 0; level < levels_.size(); ++level) {
      levels_[level].copy_from(other.levels_[level]);
    }
  }

  // True if each bit above the lowest level says whether its word below is empty.
  [[nodiscard]] bool is_consistent() const noexcept {
    for (int level = 1; level < num_levels_; ++level) {
      const auto& below = words(level - 1);
      for (std::size_t word = 0; word < below.size(); ++word) {
        const bool said = (words(level)[word >> 6] >> (word & 63) & 1u) != 0;
        if ((below[word] != 0) != said) return false;
      }
    }
    return true;
  }

 private:
  static constexpr int kMaxLevels = 5;

  [[nodiscard]] FixedArray<std::uint64_t>& words(int level) noexcept {
    return levels_[static_cast<std::size_t>(level)];
  }
  [[nodiscard]] const FixedArray<std::uint64_t>& words(int level) const noexcept {
    return levels_[static_cast<std::size_t>(level)];
  }
  // The smallest member in the subtree of bit `at` of a level. Requires: the bit is set.
  [[nodiscard]] std::int64_t descend(int level, std::int64_t at) const noexcept {
    KVFOLIO_DCHECK((words(level)[at >> 6] >> (at & 63) & 1u) != 0);
    while (level-- > 0) at = at << 6 | std::countr_zero(words(level)[at]);
    return at;
  }

  std::array<FixedArray<std::uint64_t>, kMaxLevels> levels_;
  int num_levels_ = 0;
};

}  // namespace kvfolio
