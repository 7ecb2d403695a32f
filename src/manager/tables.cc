// SPDX-License-Identifier: Apache-2.0
//
// The memory of all block tables: allocation, copies and the check (tables.h).

#include "manager/tables.h"

#include "base/text.h"

namespace kvfolio {

using text::concat;

Status Tables::allocate(std::int64_t rows, std::int32_t num_groups, std::int64_t words,
                        bool with_borders) {
  Result<SpanArena> arena = SpanArena::create(words);
  if (!arena) {
    return {ErrorCode::kOutOfMemory,
            concat("no memory for max_table_entries ", words, "; lower it")};
  }
  arena_ = std::make_unique<SpanArena>(std::move(*arena));
  num_groups_ = num_groups;
  const std::int64_t size = rows * num_groups;
  if (!tables_.allocate_zeroed(size) || !window_begins_.allocate_zeroed(size) ||
      !unplanned_from_.allocate_zeroed(size) ||
      !borders_.allocate_zeroed(with_borders ? size : 0)) {
    return {ErrorCode::kOutOfMemory, concat("no memory for the tables of ", rows, " sequences")};
  }
  for (std::int64_t i = 0; i < size; ++i) tables_[i] = BlockTable();
  return {};
}

void Tables::begin(std::int32_t row) noexcept {
  for (std::int32_t g = 0; g < num_groups_; ++g) {
    KVFOLIO_DCHECK(of(row, g).size() == 0);
    window_begin(row, g) = 0;
    unplanned_from(row, g) = 0;
  }
}

void Tables::release(std::int32_t row) noexcept {
  for (std::int32_t g = 0; g < num_groups_; ++g) of(row, g).release(arena());
}

void Tables::copy_from(const Tables& other) noexcept {
  const auto& [arena, num_groups, tables, window_begins, unplanned_from, borders] = other;
  arena_->copy_from(*arena);
  tables_.copy_from(tables);
  window_begins_.copy_from(window_begins);
  std::fill_n(unplanned_from_.data(), unplanned_from_.size(), 0);
  borders_.copy_from(borders);
}

std::int64_t Tables::words_of(std::int32_t row) const noexcept {
  std::int64_t words = 0;
  for (std::int32_t g = 0; g < num_groups_; ++g) words += of(row, g).capacity();
  return words;
}

Status Tables::check() const {
  const auto broken = [](const std::string& what) {
    return Status(ErrorCode::kFailedPrecondition, "tables: " + what);
  };
  const std::int64_t size = static_cast<std::int64_t>(tables_.size());
  for (std::int64_t i = 0; i < size; ++i) {
    const BlockTable& table = tables_[i];
    if (table.size() > table.capacity() || table.size() < 0) {
      return broken(
          concat("table ", i, " has ", table.size(), " entries and room for ", table.capacity()));
    }
    if (window_begins_[i] < 0 || unplanned_from_[i] < 0) {
      return broken(concat("table ", i, " begins at ", window_begins_[i], ", planned up to ",
                           unplanned_from_[i]));
    }
    if (borders_.size() > 0 && (borders_[i].first < 0 || borders_[i].end < borders_[i].first)) {
      return broken(concat("the border of table ", i, " is [", borders_[i].first, ", ",
                           borders_[i].end, ")"));
    }
  }
  return {};
}

}  // namespace kvfolio
