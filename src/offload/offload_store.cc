// SPDX-License-Identifier: Apache-2.0
//
// Stores: a block is copied in the same call that learns of it, so nothing has to be held: no other
// call of the manager runs meanwhile. From the arena its record goes on to the tiers that want it,
// now or when they have room.

#include <algorithm>
#include <array>

#include "kvfolio/checked_copy.h"
#include "offload/offload_impl.h"

namespace kvfolio {

namespace {
// What it costs to find that there is nothing to copy, in bytes that could be copied meanwhile.
constexpr std::int64_t kLookBytes = 4096;
constexpr std::size_t kBacklogMax = std::size_t{1} << 16;  // keys, of each tier
}  // namespace

RecordInfo Offload::Impl::record_of(GroupId group, std::int32_t end, const TierKey& key) const {
  return {.key = key,
          .layout = identity_.layout_namespace(group),
          .payload_bytes = record_bytes(group) - kRecordHeaderBytes,
          .begin = end - block_size(group),
          .end = end,
          .epoch = 0,  // the key has it
          .writer = 0};
}

void Offload::Impl::store_findable(bool draining) {
  std::array<FindableBlock, 64> blocks;
  more_findable_ = true;
  if (!draining) budget_ = std::min(budget_, options_.bytes_per_poll - options_.bytes_per_poll / 2);
  while (budget_ > 0) {
    if (draining && !has_room_to_drain()) return;
    const std::int64_t fit = draining ? 1 : budget_ / largest_record_;
    const auto wanted = static_cast<std::size_t>(std::clamp<std::int64_t>(fit, 1, 64));
    const std::int32_t taken = manager_.take_findable(std::span(blocks).first(wanted));
    for (const FindableBlock& block :
         std::span(blocks).first(static_cast<std::size_t>(std::max(taken, 0)))) {
      // A tail waits for the tokens that fill its block.
      const bool is_whole = block.end % block_size(block.group) == 0;
      budget_ -= is_whole && store_block(block) ? record_bytes(block.group) : kLookBytes;
    }
    if (static_cast<std::size_t>(taken) < wanted) {
      // Steps in flight keep theirs in the list.
      more_findable_ = manager_.num_steps() > 0;
      return;
    }
  }
}

// A block more can be taken without losing its record: no tier is behind, and the arena has a slot
// that nobody uses.
bool Offload::Impl::has_room_to_drain() const {
  for (const TierState& tier : tiers_) {
    if (tier.options.policy != WritePolicy::kWriteThrough || !tier.usable) continue;
    if (!tier.backlog.empty()) return false;
    if (tier.store_bytes > 0 && tier.store_bytes + largest_record_ > tier.options.store_bytes_max) {
      return false;
    }
  }
  const ArenaStats stats = arena_->stats();
  const std::int64_t busy = stats.pins + stats.writing + stats.quarantined;
  return busy == 0 || (busy + 1) * largest_record_ <= stats.bytes;
}

// Returns whether bytes were copied.
bool Offload::Impl::store_block(const FindableBlock& block) {
  const auto name = names_.name(block.group, block.block);
  if (!name) return false;
  const TierKey key = identity_.key(block.group, name->tokens);
  if (const ArenaPin there = arena_->find(key)) {
    if (there.uses() == 1) store_to_tiers(key, record_bytes(block.group), true);
    return false;
  }
  const std::int64_t bytes = record_bytes(block.group);
  const auto slot = arena_->reserve(key, bytes);
  if (!slot) {
    ++counters_.stores_dropped;
    return false;
  }
  RecordInfo info = record_of(block.group, name->end, key);
  info.owner = root_owner(name->root);
  if (!read_block(block, info, arena_->fill(*slot))) {
    ++counters_.stores_dropped;
    arena_->abandon(*slot);
    return false;
  }
  arena_->seal(*slot);
  if (arena_->publish(*slot)) ++counters_.stores;
  arrived_otherwise(key);
  store_to_tiers(key, bytes, false);
  return true;
}

// Makes the record of a block: from memory of the host in one pass.
bool Offload::Impl::read_block(const FindableBlock& block, RecordInfo info,
                               std::span<std::byte> record) {
  const auto payload = record.subspan(static_cast<std::size_t>(kRecordHeaderBytes));
  KVStorage& storage = *manager_.storage();
  if (storage.memory_kind() != MemoryKind::kHost) {
    const std::int32_t number = block.block.value();
    if (!storage.read_blocks(block.group, std::span(&number, 1), payload).ok()) return false;
    seal_record(info, record);
    return true;
  }
  const auto runs = runs_of(block.group, block.block);
  if (!runs) return false;
  copies_.clear();
  for (const KVStorage::ImageRun& run : *runs) {
    copies_.push_back({payload.data() + run.offset, run.memory, run.bytes});
  }
  info.checksum = copy_with_checksum(copies_, payload_seed(info.key));
  write_record_header(info, record.first<kRecordHeaderBytes>());
  return true;
}

// The record is in the arena before the tier that is asked for it has brought it: nobody waits for
// that tier any more.
void Offload::Impl::arrived_otherwise(const TierKey& key) {
  const auto place = arriving_.find(key);
  if (place == arriving_.end()) return;
  for (const std::uint64_t id : place->second.waiters) {
    const auto request = requests_.find(id);
    if (request != requests_.end()) --request->second.waiting;
  }
  give_up(place);
}

// ---- to the tiers ----

void Offload::Impl::count_dropped(TierState& tier) noexcept {
  ++tier.counters.stores_dropped;
  ++counters_.tier_stores_dropped;
}

void Offload::Impl::store_to_tiers(const TierKey& key, std::int64_t bytes, bool second_use) {
  const WritePolicy wanted = second_use ? WritePolicy::kSecondUse : WritePolicy::kWriteThrough;
  for (std::size_t t = 0; t < tiers_.size(); ++t) {
    TierState& tier = tiers_[t];
    if (tier.options.policy != wanted || exceeds_limit(tier, bytes)) continue;
    const Begun begun = tier.backlog.empty() ? store_to(static_cast<std::int32_t>(t), key)
                                             : Begun::kLater;  // behind those that wait
    if (begun == Begun::kLater && tier.backlog.size() < kBacklogMax) {
      tier.backlog.push_back(key);
    } else if (begun != Begun::kYes) {
      count_dropped(tier);
    }
  }
}

void Offload::Impl::store_backlog() {
  for (std::size_t t = 0; t < tiers_.size(); ++t) {
    std::deque<TierKey>& backlog = tiers_[t].backlog;
    while (!backlog.empty()) {
      const Begun begun = store_to(static_cast<std::int32_t>(t), backlog.front());
      if (begun == Begun::kLater) break;
      if (begun == Begun::kNo) count_dropped(tiers_[t]);
      backlog.pop_front();
    }
  }
}

Offload::Impl::Begun Offload::Impl::store_to(std::int32_t index, const TierKey& key) {
  TierState& tier = tier_at(index);
  ArenaPin pin = arena_->hold(key);
  if (!pin) return Begun::kNo;
  const std::span<const std::byte> record = pin.record();
  const auto bytes = static_cast<std::int64_t>(record.size());
  if (!takes(tier, bytes)) return Begun::kNo;
  if (tier.store_bytes + bytes > tier.options.store_bytes_max) {
    return tier.store_bytes > 0 ? Begun::kLater : Begun::kNo;
  }
  const bool works = tier.num_in_flight > 0;
  // A tier reads what it stores; one type of item serves both ways.
  add_item(
      {.kind = TierOp::kStore, .tier = index, .key = key, .bytes = bytes, .pin = std::move(pin)},
      const_cast<std::byte*>(record.data()));
  if (submit(index, TierOp::kStore, store_deadline()) == 1) return Begun::kYes;
  return works ? Begun::kLater : Begun::kNo;
}

}  // namespace kvfolio
