// SPDX-License-Identifier: Apache-2.0
#pragma once

// Erasing from a hash table with linear probing: entries behind the hole move up, and no mark is
// left. So a table that lives long never fills with marks. Thread safety: a free function.

#include <cstddef>

namespace kvfolio {

// The entry at `hole` was erased. An entry behind it moves into the hole unless it would pass its
// home, where a search for it begins; what it leaves is the next hole. Returns the last one, which
// the caller makes empty. is_empty(place), home_of(place) of the entry there, move(from, to).
// Requires: the size of the table is mask + 1, a power of two, and a place of it is empty.
template <typename IsEmpty, typename HomeOf, typename Move>
[[nodiscard]] std::size_t close_hole(std::size_t hole, std::size_t mask, IsEmpty&& is_empty,
                                     HomeOf&& home_of, Move&& move) noexcept {
  for (std::size_t at = (hole + 1) & mask; !is_empty(at); at = (at + 1) & mask) {
    if (((at - home_of(at)) & mask) < ((at - hole) & mask)) continue;
    move(at, hole);
    hole = at;
  }
  return hole;
}

}  // namespace kvfolio
