// SPDX-License-Identifier: Apache-2.0
//
// Units of announced tokens and the table that finds them (announcements.h). announce.cc asks it.

#include "manager/announcements.h"

#include <bit>

#include "base/hash.h"
#include "base/mutants.h"
#include "base/state_writer.h"
#include "base/text.h"
#include "manager/media_spans.h"
#include "prefix/media_extents.h"

namespace kvfolio {

using text::concat;

bool Announcements::allocate(std::int64_t rows, std::int64_t units, std::int32_t unit,
                             std::uint64_t seed) noexcept {
  unit_ = unit;
  seed_ = seed;
  num_free_ = static_cast<std::int32_t>(units);
  const auto cells = std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(units, 1)));
  return rows_.allocate_zeroed(rows) && units_.allocate_zeroed(units) &&
         tokens_.allocate_zeroed(units * unit) &&
         cells_.allocate_zeroed(static_cast<std::int64_t>(cells));
}

// ---- hashes ----

std::uint32_t Announcements::hash_of_root(std::int32_t root) const noexcept {
  return static_cast<std::uint32_t>(mix_bits(static_cast<std::uint64_t>(root) ^ seed_));
}

std::uint32_t Announcements::next_hash(std::uint32_t hash, const Prompt& prompt,
                                       std::int32_t at) const noexcept {
  const std::uint64_t of_tokens =
      hash_bytes(prompt.tokens.data() + at, static_cast<std::size_t>(unit_) * 4,
                 seed_ + hash * std::uint64_t{0x9e3779b97f4a7c15});
  return static_cast<std::uint32_t>(MediaExtents::mix(of_tokens, prompt.media, at, unit_));
}

std::int32_t Announcements::same_from(std::int32_t u, std::uint32_t hash,
                                      std::int32_t at) const noexcept {
  if (u == kNone) return kNone;
  const std::int32_t first = first_in(cell_of(hash));
  do {
    const Unit& unit = units_[u];
    if (unit.hash == hash && unit.at == at) return u;
    u = unit.next;
  } while (u != first);
  return kNone;
}

// ---- the store ----

std::int32_t Announcements::take() noexcept {
  --num_free_;
  if (first_free_ == kNone) return num_touched_++;
  const std::int32_t u = first_free_;
  first_free_ = units_[u].next_of_row;
  return u;
}

// The first unit of a row leaves the table and the store.
void Announcements::drop_first(std::int32_t row) noexcept {
  const std::int32_t u = rows_[row].first_unit;
  Unit& unit = units_[u];
  rows_[row].first_unit = unit.next_of_row;
  rows_[row].begin += unit_;
  const std::int32_t cell = cell_of(unit.hash);
  if (unit.next == u) {
    cells_[cell] = 0;
  } else {
    if (first_in(cell) == u) cells_[cell] = unit.next + 1;
    units_[unit.previous].next = unit.next;
    units_[unit.next].previous = unit.previous;
  }
  unit.next_of_row = first_free_;
  first_free_ = u;
  ++num_free_;
}

bool Announcements::open(std::int32_t row, const Prompt& prompt, std::int32_t begin,
                         std::int32_t end) noexcept {
  KVFOLIO_DCHECK(!rows_[row].is_open && begin < end && begin % unit_ == 0 && end % unit_ == 0);
  if ((end - begin) / unit_ > num_free_) return false;
  std::uint32_t hash = hash_of_root(prompt.root);
  for (std::int32_t at = 0; at < begin; at += unit_) hash = next_hash(hash, prompt, at);
  Row& own = rows_[row];
  own = {true, prompt.root, begin, end, kNone, kNone, last_row_};
  (last_row_ == kNone ? first_row_ : rows_[last_row_].next) = row;
  last_row_ = row;
  std::int32_t before = kNone;
  for (std::int32_t at = begin; at < end; at += unit_) {
    hash = next_hash(hash, prompt, at);
    const std::int32_t u = take();
    (before == kNone ? own.first_unit : units_[before].next_of_row) = u;
    before = u;
    std::copy_n(prompt.tokens.data() + at, unit_, tokens_.data() + std::int64_t{u} * unit_);
    const std::int32_t cell = cell_of(hash);
    const std::int32_t first = first_in(cell);
    units_[u] = {hash, row, at, kNone, u, u};
    if (first == kNone) {
      cells_[cell] = u + 1;
      continue;
    }
    const std::int32_t last = units_[first].previous;
    units_[u].next = first;
    units_[u].previous = last;
    units_[last].next = u;
    units_[first].previous = u;
  }
  return true;
}

void Announcements::close(std::int32_t row) noexcept {
  Row& own = rows_[row];
  KVFOLIO_DCHECK(own.is_open);
  while (own.first_unit != kNone) drop_first(row);
  own.is_open = false;
  (own.previous == kNone ? first_row_ : rows_[own.previous].next) = own.next;
  (own.next == kNone ? last_row_ : rows_[own.next].previous) = own.previous;
}

void Announcements::publish(std::int32_t row, std::int32_t position) noexcept {
  const Row& own = rows_[row];
  while (own.first_unit != kNone && own.begin + unit_ <= position) drop_first(row);
  if (own.first_unit == kNone) close(row);
}

// ---- comparing ----

bool Announcements::goes_on_with(std::int32_t row, std::int32_t at,
                                 std::span<const std::int32_t> tokens) const noexcept {
  const Row& own = rows_[row];
  KVFOLIO_DCHECK(own.is_open && at >= own.begin);
  std::int32_t u = own.first_unit;
  while (u != kNone && units_[u].at + unit_ <= at) u = units_[u].next_of_row;
  for (; u != kNone && !tokens.empty(); u = units_[u].next_of_row) {
    const std::int32_t offset = at - units_[u].at;
    const auto count = std::min(static_cast<std::size_t>(unit_ - offset), tokens.size());
    if (!std::equal(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count),
                    tokens_of(u) + offset)) {
      return false;
    }
    tokens = tokens.subspan(count);
    at += static_cast<std::int32_t>(count);
  }
  return true;
}

std::int32_t Announcements::common_end(std::int32_t row, const Prompt& prompt,
                                       std::span<const MediaSpan> media) const noexcept {
  const Row& own = rows_[row];
  const auto size = static_cast<std::int32_t>(prompt.tokens.size());
  std::int32_t end = own.begin;
  for (std::int32_t u = own.first_unit; u != kNone; u = units_[u].next_of_row) {
    const std::int32_t count = std::min(unit_, size - end);
    const std::int32_t* const here = tokens_of(u);
    const std::int32_t* const there = prompt.tokens.data() + end;
    const auto same =
        static_cast<std::int32_t>(std::mismatch(here, here + count, there).first - here);
    end += same;
    if (same < unit_) break;
  }
  if (media.empty() && prompt.media.empty()) return end;
  return same_media(media, prompt.media, own.begin, end);
}

std::span<const std::int32_t> Announcements::unit_at(std::int32_t row,
                                                     std::int32_t position) const noexcept {
  std::int32_t u = rows_[row].first_unit;
  while (units_[u].at != position) u = units_[u].next_of_row;
  return {tokens_of(u), static_cast<std::size_t>(unit_)};
}

// ---- copy and check ----

void Announcements::copy_from(const Announcements& other) noexcept {
  const auto& [rows, units, tokens, cells, unit, seed, num_free, first_free, num_touched, first_row,
               last_row] = other;
  rows_.copy_from(rows);
  units_.copy_from(units, num_touched);
  tokens_.copy_from(tokens, std::int64_t{num_touched} * unit);
  cells_.copy_from(cells);
  unit_ = unit;
  seed_ = seed;
  num_free_ = num_free;
  first_free_ = first_free;
  num_touched_ = num_touched;
  first_row_ = first_row;
  last_row_ = last_row;
}

MemoryUse Announcements::memory() const noexcept {
  MemoryUse use = MemoryUse::whole(rows_.bytes() + cells_.bytes());
  const auto used = std::int64_t{num_touched_} * (std::int64_t{sizeof(Unit)} + 4 * unit_);
  use += {units_.bytes() + tokens_.bytes(), used};
  return use;
}

namespace {

Status not_whole(const std::string& what) {
  return {ErrorCode::kFailedPrecondition, "announcements: " + what};
}

}  // namespace

// The rings hold each used unit once, in the cell of its hash.
Status Announcements::check_table(std::int64_t used) const {
  std::int64_t listed = 0;
  for (std::size_t cell = 0; cell < cells_.size(); ++cell) {
    const std::int32_t first = first_in(static_cast<std::int32_t>(cell));
    if (first == kNone) continue;
    std::int32_t u = first;
    do {
      const Unit& unit = units_[u];
      if (units_[unit.next].previous != u || ++listed > used) {
        return not_whole(concat("the list of cell ", cell, " is no ring at unit ", u));
      }
      if (cell_of(unit.hash) != static_cast<std::int32_t>(cell) || !rows_[unit.row].is_open ||
          unit.at < rows_[unit.row].begin || unit.at >= rows_[unit.row].end) {
        return not_whole(concat("cell ", cell, " has unit ", u, ", position ", unit.at, " of row ",
                                unit.row, ", which does not announce it"));
      }
      u = unit.next;
    } while (u != first);
  }
  if (listed == used) return {};
  return not_whole(concat(listed, " units are in the table, announced: ", used));
}

Status Announcements::check() const {
  std::int64_t used = 0;
  std::int32_t previous = kNone;
  for (std::int32_t row = first_row_; row != kNone; row = rows_[row].next) {
    const Row& own = rows_[row];
    if (!own.is_open || own.previous != previous || own.begin >= own.end) {
      return not_whole(concat("row ", row, " announces [", own.begin, ", ", own.end, ")"));
    }
    previous = row;
    std::int32_t at = own.begin;
    for (std::int32_t u = own.first_unit; u != kNone; u = units_[u].next_of_row) {
      if (units_[u].row != row || units_[u].at != at || at >= own.end) {
        return not_whole(concat("row ", row, " has unit ", u, " at position ", at));
      }
      at += unit_;
      ++used;
    }
    if (at != own.end) return not_whole(concat("row ", row, " has units to ", at, " of ", own.end));
  }
  if (previous != last_row_) return not_whole(concat("the last row is ", last_row_));
  std::int64_t open = 0;
  for (std::size_t row = 0; row < rows_.size(); ++row) open += rows_[row].is_open ? 1 : 0;
  for_each([&](std::int32_t) { --open; });
  if (open != 0) return not_whole(concat(open, " open rows are not in the list"));
  std::int64_t free = static_cast<std::int64_t>(units_.size()) - num_touched_;
  for (std::int32_t u = first_free_; u != kNone && free <= num_free_; u = units_[u].next_of_row) {
    ++free;
  }
  if (free != num_free_ || free + used != static_cast<std::int64_t>(units_.size())) {
    return not_whole(concat(free, " units are free, counted ", num_free_, "; ", used, " of ",
                            units_.size(), " are announced"));
  }
  return check_table(used);
}

void Announcements::put_state(StateWriter& out) const {
  for_each([&](std::int32_t row) {
    out.put(out.rows_.peek(row));
    out.put(end(row));
    for (std::int32_t at = begin(row); at < end(row); at += unit_) {
      for (const std::int32_t token : unit_at(row, at)) out.put(token);
    }
  });
}

}  // namespace kvfolio
