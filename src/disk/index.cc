// SPDX-License-Identifier: Apache-2.0
#include "disk/index.h"

#include <bit>
#include <utility>

#include "base/hash_hole.h"
#include "kvfolio/status.h"
#include "tiers/key_spread.h"

namespace kvfolio::disk {
namespace {

constexpr std::size_t kTableMin = 64;
// With each add(): a table is doubled when 3 of 4 places are taken, so the old one is empty long
// before the new one is full.
constexpr std::size_t kMovedAtOnce = 16;

}  // namespace

std::uint32_t RecordIndex::add(const Record& record) noexcept {
  if (!make_room()) return kNone;
  std::uint32_t id = free_;
  if (id != kNone) {
    free_ = records_[id].next;
  } else {
    if (records_.size() >= kNone - 1 || !records_.extend()) return kNone;
    id = static_cast<std::uint32_t>(records_.size() - 1);
  }
  records_[id] = record;
  records_[id].live = false;
  records_[id].gone = false;
  insert(id);
  ++in_tables_;
  return id;
}

std::size_t RecordIndex::home(const Table& table, const TierKey& key) const noexcept {
  KVFOLIO_DCHECK(std::has_single_bit(table.size()));
  return TierKeyHash()(key) & (table.size() - 1);
}

std::uint32_t RecordIndex::find(const TierKey& key) const noexcept {
  std::uint32_t found = kNone;
  visit(key, [&](std::uint32_t id) {
    if (!records_[id].live) return false;
    found = id;
    return true;
  });
  return found;
}

void RecordIndex::publish(std::uint32_t id) noexcept {
  KVFOLIO_CHECK(!records_[id].gone);
  if (records_[id].live) return;
  if (const std::uint32_t other = find(records_[id].key); other != kNone) retire(other);
  records_[id].live = true;
  ++live_;
}

void RecordIndex::retire(std::uint32_t id) noexcept {
  KVFOLIO_DCHECK(!records_[id].live || (live_ > 0 && !records_[id].gone));
  live_ -= records_[id].live ? 1 : 0;
  records_[id].live = false;
}

void RecordIndex::drop(std::uint32_t id) noexcept {
  if (records_[id].gone) return;
  KVFOLIO_CHECK(!records_[id].writing);  // its place is not free yet
  retire(id);
  take_out(id);
  --in_tables_;
  records_[id].gone = true;
}

void RecordIndex::release(std::uint32_t id) noexcept {
  drop(id);
  records_[id].next = free_;
  free_ = id;
}

// ---- tables ----

// False: no memory, and the table is too full to go on without.
bool RecordIndex::make_room() noexcept {
  if (old_.size() > 0) move_some();
  if (4 * (in_tables_ + 1) <= 3 * table_.size() || old_.size() > 0) return true;
  Table larger(table_.size() == 0 ? kTableMin : 2 * table_.size());
  if (larger.size() == 0) return 8 * (in_tables_ + 1) <= 7 * table_.size();
  old_ = std::exchange(table_, std::move(larger));
  moved_ = 0;
  return true;
}

void RecordIndex::move_some() noexcept {
  for (std::size_t i = 0; i < kMovedAtOnce && moved_ < old_.size(); ++i, ++moved_) {
    ++steps_;
    const std::uint32_t place = old_[moved_];
    if (place == Table::kEmpty || place == Table::kMoved) continue;
    old_[moved_] = Table::kMoved;  // others were put behind it
    insert(place - 1);
  }
  if (moved_ == old_.size()) old_ = {};
}

void RecordIndex::insert(std::uint32_t id) noexcept {
  KVFOLIO_DCHECK(in_tables_ < table_.size());  // else there is no empty place to find
  std::size_t at = home(table_, records_[id].key);
  for (; table_[at] != Table::kEmpty; at = table_.after(at)) ++steps_;
  table_[at] = id + 1;
}

void RecordIndex::take_out(std::uint32_t id) noexcept {
  const TierKey& key = records_[id].key;
  for (std::size_t at = home(table_, key); table_[at] != Table::kEmpty; at = table_.after(at)) {
    ++steps_;
    if (table_[at] != id + 1) continue;
    const std::size_t hole = close_hole(
        at, table_.size() - 1, [&](std::size_t place) { return table_[place] == Table::kEmpty; },
        [&](std::size_t place) {
          ++steps_;
          return home(table_, records_[table_[place] - 1].key);
        },
        [&](std::size_t from, std::size_t to) { table_[to] = table_[from]; });
    table_[hole] = Table::kEmpty;
    return;
  }
  KVFOLIO_CHECK(old_.size() > 0);
  // A mark is left, since this table only becomes emptier.
  for (std::size_t at = home(old_, key); old_[at] != Table::kEmpty; at = old_.after(at)) {
    ++steps_;
    if (old_[at] != id + 1) continue;
    old_[at] = Table::kMoved;
    return;
  }
  KVFOLIO_CHECK(false);
}

bool RecordIndex::check() const noexcept {
  std::size_t count = 0;
  std::int64_t live = 0;
  for (const Table* table : {&table_, &old_}) {
    for (std::size_t at = 0; at < table->size(); ++at) {
      const std::uint32_t place = (*table)[at];
      if (place == Table::kEmpty || place == Table::kMoved) continue;
      const Record& record = records_[place - 1];
      if (record.gone || (table == &old_ && at < moved_)) return false;
      ++count;
      live += record.live ? 1 : 0;
      if (record.live && find(record.key) != place - 1) return false;
      if (!visit(record.key, [&](std::uint32_t id) { return id == place - 1; })) return false;
    }
  }
  return count == in_tables_ && live == live_;
}

}  // namespace kvfolio::disk
