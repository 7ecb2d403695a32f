// SPDX-License-Identifier: Apache-2.0
#pragma once

// Announcements knows which tokens sequences are going to append and have not published: so that
// requests which begin with the same tokens can wait for them. It keeps these tokens itself, unit
// by unit, and finds by the hash of the path up to a unit's end which sequences announce it. It
// knows rows, positions, tokens and the media behind them; it knows neither blocks nor the tree.
//
// An announcement of a row has the positions [begin, end), multiples of the unit. What stands
// before `begin` is published and not kept here: who asks compares that itself (AnnouncingRows). As
// units are published, `begin` moves on; at `end` the announcement is over.
//
// Units of all rows share one store without gaps: so a row gets a place whenever so many units are
// free as it needs, in whatever order others came and went.
//
// Invariants, see check(): a unit belongs to one announcement or to the list of the free ones, or
// was never used; the units of an announcement are in the table, each in the list of its hash, in
// the order of opening.
//
// Thread safety: none; const calls write nothing. Nothing allocates after allocate() but the text
// of an error.

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <span>

#include "kvfolio/fixed_array.h"
#include "kvfolio/root_key.h"
#include "kvfolio/status.h"

namespace kvfolio {

class StateWriter;

// What is asked of a sequence that announces.
template <typename T>
concept AnnouncingRows = requires(const T& rows, std::int32_t row,
                                  std::span<const std::int32_t> tokens,
                                  std::span<const MediaSpan> media) {
  // It has published these tokens, with these media, as the first ones.
  { rows.begins_with(row, tokens, media) } -> std::same_as<bool>;
  { rows.media_of(row) } -> std::same_as<std::span<const MediaSpan>>;
};

class Announcements {
 public:
  static constexpr std::int32_t kNone = -1;

  // The root, as the tree numbers it.
  struct Prompt {
    std::int32_t root;
    std::span<const std::int32_t> tokens;
    std::span<const MediaSpan> media;
  };
  struct Found {
    std::int32_t row = kNone;
    std::int32_t tokens = 0;  // that the prompt and the announcement have in common
  };

  // Room for so many units of `unit` tokens together. The seed decides where they lie. False: no
  // memory.
  [[nodiscard]] bool allocate(std::int64_t rows, std::int64_t units, std::int32_t unit,
                              std::uint64_t seed) noexcept;

  [[nodiscard]] bool any() const noexcept { return first_row_ != kNone; }
  [[nodiscard]] bool is_open(std::int32_t row) const noexcept { return rows_[row].is_open; }
  [[nodiscard]] std::int32_t begin(std::int32_t row) const noexcept { return rows_[row].begin; }
  [[nodiscard]] std::int32_t end(std::int32_t row) const noexcept { return rows_[row].end; }

  // The row announces the positions [begin, end) of the prompt. False: there is no room. Requires:
  // !is_open(row); begin < end, both multiples of the unit.
  [[nodiscard]] bool open(std::int32_t row, const Prompt& prompt, std::int32_t begin,
                          std::int32_t end) noexcept;
  // Requires: is_open(row).
  void close(std::int32_t row) noexcept;
  // The row has published its tokens before `position`. Closes where nothing is left. Requires:
  // is_open(row).
  void publish(std::int32_t row, std::int32_t position) noexcept;
  // These tokens, from position `at` on, are the announced ones, as far as both reach. Requires:
  // is_open(row), at >= begin(row).
  [[nodiscard]] bool goes_on_with(std::int32_t row, std::int32_t at,
                                  std::span<const std::int32_t> tokens) const noexcept;

  // The row that has the most whole units in common with the prompt, at least one of them
  // announced; among equals the one that announced first. Or kNone.
  template <AnnouncingRows Rows>
  [[nodiscard]] Found find(const Prompt& prompt, const Rows& rows) const noexcept;

  // visit(row) in the order of opening.
  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (std::int32_t row = first_row_; row != kNone; row = rows_[row].next) visit(row);
  }
  // The tokens of the unit that begins at this position. Requires: the row announces it. O(units).
  [[nodiscard]] std::span<const std::int32_t> unit_at(std::int32_t row,
                                                      std::int32_t position) const noexcept;

  // Becomes an equal of `other`. Requires: allocated with the same arguments.
  void copy_from(const Announcements& other) noexcept;
  [[nodiscard]] MemoryUse memory() const noexcept;
  // ok, or which rule is broken. O(units).
  [[nodiscard]] Status check() const;
  // In the order of opening, which decides between equals.
  void put_state(StateWriter& out) const;

 private:
  struct Row {
    bool is_open;
    std::int32_t root;
    std::int32_t begin;
    std::int32_t end;
    std::int32_t first_unit;
    std::int32_t next;  // rows in the order of opening
    std::int32_t previous;
  };
  // [at, at + unit) of a row.
  struct Unit {
    std::uint32_t hash;
    std::int32_t row;
    std::int32_t at;
    std::int32_t next_of_row;  // or of the free ones
    // The list of a cell is a ring: from its first one back is its last one.
    std::int32_t next;
    std::int32_t previous;
  };

  [[nodiscard]] std::uint32_t hash_of_root(std::int32_t root) const noexcept;
  [[nodiscard]] std::uint32_t next_hash(std::uint32_t hash, const Prompt& prompt,
                                        std::int32_t at) const noexcept;
  [[nodiscard]] std::int32_t cell_of(std::uint32_t hash) const noexcept {
    return static_cast<std::int32_t>(hash & static_cast<std::uint32_t>(cells_.size() - 1));
  }
  [[nodiscard]] std::int32_t first_in(std::int32_t cell) const noexcept { return cells_[cell] - 1; }
  // The first one from `u` on, around the ring of its cell, that has this hash and place; or kNone.
  [[nodiscard]] std::int32_t same_from(std::int32_t u, std::uint32_t hash,
                                       std::int32_t at) const noexcept;
  [[nodiscard]] std::int32_t next_same(std::int32_t u) const noexcept {
    const Unit& unit = units_[u];
    const bool is_last = unit.next == first_in(cell_of(unit.hash));
    return is_last ? kNone : same_from(unit.next, unit.hash, unit.at);
  }
  [[nodiscard]] std::int32_t take() noexcept;
  void drop_first(std::int32_t row) noexcept;
  [[nodiscard]] const std::int32_t* tokens_of(std::int32_t u) const noexcept {
    return tokens_.data() + std::int64_t{u} * unit_;
  }
  // Positions from begin(row) on that both have; begin(row): none. It ends before the first unit
  // that is not announced.
  [[nodiscard]] std::int32_t common_end(std::int32_t row, const Prompt& prompt,
                                        std::span<const MediaSpan> media) const noexcept;
  template <AnnouncingRows Rows>
  [[nodiscard]] std::int32_t in_common(std::int32_t row, const Prompt& prompt,
                                       const Rows& rows) const noexcept;
  [[nodiscard]] Status check_table(std::int64_t used) const;

  FixedArray<Row> rows_;
  FixedArray<Unit> units_;
  FixedArray<std::int32_t> tokens_;  // [unit][unit_]
  FixedArray<std::int32_t> cells_;   // their number is a power of two; a unit + 1, 0: empty
  std::int32_t unit_ = 1;
  std::uint64_t seed_ = 0;
  std::int32_t num_free_ = 0;
  std::int32_t first_free_ = kNone;  // of those that were used before
  std::int32_t num_touched_ = 0;     // units from here on were never used
  std::int32_t first_row_ = kNone;
  std::int32_t last_row_ = kNone;
};

template <AnnouncingRows Rows>
std::int32_t Announcements::in_common(std::int32_t row, const Prompt& prompt,
                                      const Rows& rows) const noexcept {
  const std::int32_t published = rows_[row].begin;
  if (rows_[row].root != prompt.root ||
      prompt.tokens.size() < static_cast<std::size_t>(published) ||
      !rows.begins_with(row, prompt.tokens.first(static_cast<std::size_t>(published)),
                        prompt.media)) {
    return 0;
  }
  const std::int32_t end = common_end(row, prompt, rows.media_of(row));
  return end - published >= unit_ ? end : 0;
}

template <AnnouncingRows Rows>
Announcements::Found Announcements::find(const Prompt& prompt, const Rows& rows) const noexcept {
  // Any unit may be the first that is announced, so each is looked for.
  const auto size = static_cast<std::int32_t>(prompt.tokens.size());
  std::int32_t deepest = kNone;
  std::uint32_t hash = hash_of_root(prompt.root);
  for (std::int32_t at = 0; at <= size - unit_; at += unit_) {
    hash = next_hash(hash, prompt, at);
    const std::int32_t found = same_from(first_in(cell_of(hash)), hash, at);
    if (found != kNone) deepest = found;
  }
  if (deepest == kNone) return {};
  const std::int32_t least = units_[deepest].at + unit_;
  for (std::int32_t u = deepest; u != kNone; u = next_same(u)) {
    const std::int32_t common = in_common(units_[u].row, prompt, rows);
    if (common >= least) return {units_[u].row, common};
  }
  // Unequal paths have equal hashes: every announcement is compared.
  Found best;
  for_each([&](std::int32_t row) {
    const std::int32_t common = in_common(row, prompt, rows);
    if (common / unit_ > best.tokens / unit_) best = {row, common};
  });
  return best;
}

}  // namespace kvfolio
