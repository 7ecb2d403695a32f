// SPDX-License-Identifier: Apache-2.0
//
// A hash table from the callers' ids to rows, open addressing (caller_ids.h). names.cc asks it.

#include "manager/caller_ids.h"

#include <algorithm>
#include <bit>

#include "base/hash_hole.h"
#include "base/text.h"

namespace kvfolio {

using text::concat;

bool CallerIds::allocate(std::int64_t rows, std::uint64_t seed) noexcept {
  seed_ = seed;
  size_ = 0;
  const std::int64_t least = 2 * std::max<std::int64_t>(rows, 1);
  return cells_.allocate_zeroed(
      static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(least))));
}

Status CallerIds::check_free(std::string_view what, const std::optional<std::uint64_t>& id) const {
  if (!id || find(*id) == kNoRow) return {};
  return {ErrorCode::kInvalidArgument,
          concat(what, ": an open sequence has caller_id ", *id, " already")};
}

void CallerIds::insert(std::uint64_t id, std::int32_t row) noexcept {
  KVFOLIO_CHECK(2 * static_cast<std::size_t>(size_) < cells_.size());
  Cell& cell = cells_[cell_of(id)];
  KVFOLIO_CHECK(cell.row_plus_1 == 0 && row >= 0);
  cell = {id, row + 1};
  ++size_;
}

void CallerIds::erase(std::uint64_t id) noexcept {
  const std::size_t erased = cell_of(id);
  KVFOLIO_CHECK(cells_[erased].row_plus_1 != 0);
  --size_;
  const std::size_t hole = close_hole(
      erased, mask(), [&](std::size_t cell) { return cells_[cell].row_plus_1 == 0; },
      [&](std::size_t cell) { return home_of(cells_[cell].id); },
      [&](std::size_t from, std::size_t to) { cells_[to] = cells_[from]; });
  cells_[hole] = {};
}

void CallerIds::copy_from(const CallerIds& other) noexcept {
  const auto& [cells, seed, size] = other;
  cells_.copy_from(cells);
  seed_ = seed;
  size_ = size;
}

Status CallerIds::check() const {
  std::int32_t used = 0;
  for (std::size_t at = 0; at < cells_.size(); ++at) {
    const Cell& cell = cells_[at];
    if (cell.row_plus_1 == 0) continue;
    ++used;
    if (cell_of(cell.id) == at) continue;
    return {ErrorCode::kFailedPrecondition,
            concat("caller ids: ", cell.id, " is in cell ", at, ", a search for it ends in cell ",
                   cell_of(cell.id))};
  }
  if (used == size_ && 2 * static_cast<std::size_t>(used) <= cells_.size()) return {};
  return {ErrorCode::kFailedPrecondition, concat("caller ids: ", used, " cells of ", cells_.size(),
                                                 " hold an id, counted ", size_)};
}

}  // namespace kvfolio
