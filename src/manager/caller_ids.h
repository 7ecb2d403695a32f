// SPDX-License-Identifier: Apache-2.0
#pragma once

// CallerIds finds the row of a sequence by the 64-bit id that its caller chose. A hash table with
// linear probing that is never more than half full; an id that is erased leaves no mark behind, so
// a table that lives long stays as fast as a new one.
//
// It keeps the ids itself and knows nothing of sequences. Invariants, see check(): from the home of
// an id to its cell no cell is empty, and no id is in two cells.
//
// Thread safety: none; const calls write nothing. Nothing allocates after allocate().

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/hash.h"
#include "kvfolio/fixed_array.h"
#include "kvfolio/status.h"

namespace kvfolio {

class CallerIds {
 public:
  static constexpr std::int32_t kNoRow = -1;

  // Makes room for `rows` ids; the seed decides where they lie. False: no memory.
  [[nodiscard]] bool allocate(std::int64_t rows, std::uint64_t seed) noexcept;

  [[nodiscard]] std::int32_t size() const noexcept { return size_; }

  // The row of this id, or kNoRow.
  [[nodiscard]] std::int32_t find(std::uint64_t id) const noexcept {
    return cells_[cell_of(id)].row_plus_1 - 1;
  }
  // No row has the id, if there is one.
  [[nodiscard]] Status check_free(std::string_view what,
                                  const std::optional<std::uint64_t>& id) const;
  // Requires: find(id) == kNoRow, row >= 0, and fewer than `rows` ids are in the table.
  void insert(std::uint64_t id, std::int32_t row) noexcept;
  // Requires: find(id) != kNoRow.
  void erase(std::uint64_t id) noexcept;

  // Becomes an equal of `other`. Requires: both have room for as many ids.
  void copy_from(const CallerIds& other) noexcept;
  [[nodiscard]] MemoryUse memory() const noexcept { return MemoryUse::whole(cells_.bytes()); }
  [[nodiscard]] Status check() const;

 private:
  struct Cell {
    std::uint64_t id;
    std::int32_t row_plus_1;  // 0: the cell is empty
  };

  [[nodiscard]] std::size_t mask() const noexcept { return cells_.size() - 1; }
  [[nodiscard]] std::size_t home_of(std::uint64_t id) const noexcept {
    return mix_bits(id ^ seed_) & mask();
  }
  // The cell that holds the id, or the empty one where it would go.
  [[nodiscard]] std::size_t cell_of(std::uint64_t id) const noexcept {
    std::size_t cell = home_of(id);
    while (cells_[cell].row_plus_1 != 0 && cells_[cell].id != id) cell = (cell + 1) & mask();
    return cell;
  }

  FixedArray<Cell> cells_;  // their number is a power of two
  std::uint64_t seed_ = 0;
  std::int32_t size_ = 0;
};

}  // namespace kvfolio
