// SPDX-License-Identifier: Apache-2.0
#pragma once

// The block tables of all rows, and what is known of each beside its entries: what its window has
// let go of, which entries an engine that keeps tables itself has not seen, and its border. The
// arena that the tables lie in also has the pending tokens and media of sequences, and the tables
// of pins. It knows block ids and logical blocks; what they stand for is the manager's.

#include <algorithm>
#include <cstdint>
#include <memory>

#include "kvfolio/block_table.h"
#include "kvfolio/fixed_array.h"
#include "kvfolio/span_arena.h"
#include "kvfolio/status.h"

namespace kvfolio {

// Logical blocks [first, end) of a window group: a sequence's border (borders.h).
struct Border {
  std::int32_t first;
  std::int32_t end;
};

class Tables {
 public:
  // words: int32 of the arena. kOutOfMemory: which of the two has no memory.
  [[nodiscard]] Status allocate(std::int64_t rows, std::int32_t num_groups, std::int64_t words,
                                bool with_borders);

  [[nodiscard]] SpanArena& arena() noexcept { return *arena_; }
  [[nodiscard]] const SpanArena& arena() const noexcept { return *arena_; }

  [[nodiscard]] BlockTable& of(std::int32_t row, std::int32_t g) noexcept {
    return tables_[at(row, g)];
  }
  [[nodiscard]] const BlockTable& of(std::int32_t row, std::int32_t g) const noexcept {
    return tables_[at(row, g)];
  }
  // The first logical block that the window has not let go of.
  [[nodiscard]] std::int32_t& window_begin(std::int32_t row, std::int32_t g) noexcept {
    return window_begins_[at(row, g)];
  }
  [[nodiscard]] std::int32_t window_begin(std::int32_t row, std::int32_t g) const noexcept {
    return window_begins_[at(row, g)];
  }
  // The first logical block whose entry may be new to an engine that keeps a table itself.
  [[nodiscard]] std::int32_t& unplanned_from(std::int32_t row, std::int32_t g) noexcept {
    return unplanned_from_[at(row, g)];
  }
  [[nodiscard]] std::int32_t unplanned_from(std::int32_t row, std::int32_t g) const noexcept {
    return unplanned_from_[at(row, g)];
  }
  // The entries from `logical` on change.
  void note_entries(std::int32_t row, std::int32_t g, std::int32_t logical) noexcept {
    unplanned_from(row, g) = std::min(unplanned_from(row, g), logical);
  }
  // Requires: allocated with borders.
  [[nodiscard]] Border& border(std::int32_t row, std::int32_t g) noexcept {
    return borders_[at(row, g)];
  }
  [[nodiscard]] const Border& border(std::int32_t row, std::int32_t g) const noexcept {
    return borders_[at(row, g)];
  }

  // A row gets another sequence; its tables are empty.
  void begin(std::int32_t row) noexcept;
  // The spans of a row's tables go back to the arena.
  void release(std::int32_t row) noexcept;

  // Becomes an equal of `other`; but no engine has seen a plan with these tables. Requires:
  // allocated alike.
  void copy_from(const Tables& other) noexcept;
  // Words of the arena that the tables of this row hold.
  [[nodiscard]] std::int64_t words_of(std::int32_t row) const noexcept;
  [[nodiscard]] MemoryUse memory() const noexcept {
    MemoryUse sum = MemoryUse::whole(tables_.bytes() + window_begins_.bytes() +
                                     unplanned_from_.bytes() + borders_.bytes());
    sum += arena_->memory();
    return sum;
  }
  // Sizes, beginnings and borders are what they can be.
  [[nodiscard]] Status check() const;

 private:
  [[nodiscard]] std::int64_t at(std::int32_t row, std::int32_t g) const noexcept {
    return std::int64_t{row} * num_groups_ + g;
  }

  std::unique_ptr<SpanArena> arena_;
  std::int32_t num_groups_ = 0;
  // [row][group]
  FixedArray<BlockTable> tables_;
  FixedArray<std::int32_t> window_begins_;
  FixedArray<std::int32_t> unplanned_from_;
  FixedArray<Border> borders_;
};

}  // namespace kvfolio
