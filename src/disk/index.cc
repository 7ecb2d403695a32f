// SPDX-License-Identifier: Apache-2.0
#include "disk/index.h"

#include <utility>

#include "kvfolio/status.h"
#include "tiers/key_spread.h"

namespace kvfolio::disk {

std::uint32_t RecordIndex::add(const Record& record) {
  if (free_.empty()) {
    KVFOLIO_CHECK(records_.size() < kNone);
    records_.push_back(record);
    return static_cast<std::uint32_t>(records_.size() - 1);
  }
  const std::uint32_t id = free_.back();
  free_.pop_back();
  records_[id] = record;
  return id;
}

std::size_t RecordIndex::home(const TierKey& key) const noexcept {
  return TierKeyHash()(key) & (table_.size() - 1);
}

std::size_t RecordIndex::place_of(const TierKey& key) const noexcept {
  std::size_t place = home(key);
  while (table_[place] != kNone && records_[table_[place]].key != key) {
    place = (place + 1) & (table_.size() - 1);
  }
  return place;
}

std::uint32_t RecordIndex::find(const TierKey& key) const noexcept {
  return table_.empty() ? kNone : table_[place_of(key)];
}

void RecordIndex::grow() {
  std::vector<std::uint32_t> old(table_.empty() ? 64 : 2 * table_.size(), kNone);
  std::swap(old, table_);
  for (const std::uint32_t id : old) {
    if (id != kNone) table_[place_of(records_[id].key)] = id;
  }
}

void RecordIndex::publish(std::uint32_t id) {
  if (3 * static_cast<std::size_t>(size_ + 1) > 2 * table_.size()) grow();
  const std::size_t place = place_of(records_[id].key);
  if (table_[place] == kNone) {
    ++size_;
  } else {
    records_[table_[place]].erased = true;
  }
  table_[place] = id;
}

// The places behind the hole move up, unless they would pass their home: no marks of what was there
// are left, so a table never fills with them.
void RecordIndex::erase(std::uint32_t id) noexcept {
  records_[id].erased = true;
  if (table_.empty()) return;
  const std::size_t mask = table_.size() - 1;
  std::size_t hole = place_of(records_[id].key);
  if (table_[hole] != id) return;  // never published, or replaced
  --size_;
  for (std::size_t at = (hole + 1) & mask; table_[at] != kNone; at = (at + 1) & mask) {
    const std::size_t from_home = (at - home(records_[table_[at]].key)) & mask;
    if (from_home < ((at - hole) & mask)) continue;
    table_[hole] = table_[at];
    hole = at;
  }
  table_[hole] = kNone;
}

void RecordIndex::release(std::uint32_t id) {
  KVFOLIO_DCHECK(find(records_[id].key) != id);
  free_.push_back(id);
}

bool RecordIndex::check() const noexcept {
  std::int64_t count = 0;
  for (const std::uint32_t id : table_) {
    if (id == kNone) continue;
    ++count;
    if (records_[id].erased || find(records_[id].key) != id) return false;
  }
  return count == size_;
}

}  // namespace kvfolio::disk
