// SPDX-License-Identifier: Apache-2.0
//
// Stores: a block is copied in the same call that learns of it, so nothing has to be held: no other
// call of the manager runs meanwhile. From the arena its record goes on to the tiers that want it,
// now or when they have room.

#include <algorithm>
#include <array>

#include "base/mutants.h"
#include "base/text.h"
#include "kvfolio/checked_copy.h"
#include "kvfolio/storage.h"
#include "offload/offload_impl.h"

namespace kvfolio {

using text::concat;

namespace {
// What it costs to find that there is nothing to copy, in bytes that could be copied meanwhile.
constexpr std::int64_t kLookBytes = 4096;
constexpr int kStoresPerPoll = 1024;  // that leave those which wait, of each tier
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
  while (budget_ > 0 && steps_.has_any()) {
    if (draining && !has_room_to_drain()) return;
    const std::int64_t fit = draining ? 1 : budget_ / largest_record_;
    const auto wanted = static_cast<std::size_t>(std::clamp<std::int64_t>(fit, 1, 64));
    if (!store_unnamed(draining)) return;
    const std::int32_t taken = manager_.take_findable(std::span(blocks).first(wanted));
    steps_.took(taken);
    for (const FindableBlock& block :
         std::span(blocks).first(static_cast<std::size_t>(std::max(taken, 0)))) {
      // A tail waits for the tokens that fill its block.
      if (block.end % block_size(block.group) != 0) {
        budget_ -= kLookBytes;
      } else if (held_.is_on()) {
        held_.hold(block);
      } else {
        unnamed_.push_back(block);
      }
    }
    if (!store_unnamed(draining)) return;
    if (static_cast<std::size_t>(taken) < wanted) {
      // Steps in flight keep theirs in the list. What is held is not waited for.
      more_findable_ = manager_.num_steps() > 0;
      return;
    }
  }
}

// A block more can be taken without losing its record: no tier is behind, and the arena has a slot
// that is not in use.
bool Offload::Impl::has_room_to_drain() const {
  for (const TierPort& port : ports_) {
    // One that does not answer keeps none from the others.
    if (port.policy() != WritePolicy::kWriteThrough || !port.is_written() || port.is_stuck()) {
      continue;
    }
    if (port.num_waiting() > 0) return false;
    if (port.store_bytes() > 0 &&
        port.room_for_store({}, largest_record_, now_us_) != TierPort::Room::kYes) {
      return false;
    }
  }
  const ArenaStats stats = arena_->stats();
  const std::int64_t busy = stats.pins + stats.writing + stats.quarantined;
  return busy == 0 || (busy + 1) * largest_record_ <= stats.bytes;
}

// What the list gives is written; what it keeps, a step in flight still writes.
void Offload::Impl::release_stores() {
  if (!held_.is_on()) return;
  std::array<FindableBlock, 64> blocks;
  std::int32_t taken = 0;
  do {
    taken = manager_.take_findable(blocks);
    for (const FindableBlock& block :
         std::span(blocks).first(static_cast<std::size_t>(std::max(taken, 0)))) {
      if (block.end % block_size(block.group) == 0) held_.hold(block);
    }
  } while (taken == std::ssize(blocks));
  const auto serial_of = [this](GroupId group, BlockId block) {
    const auto serial = manager_.entry_serial(group, block);
    return serial ? *serial : 0;
  };
  // However often this is called between polls, no more wait than there are blocks.
  std::erase_if(unnamed_, [&](const FindableBlock& block) {
    return serial_of(block.group, block.block) != block.serial;
  });
  held_.release(serial_of, [this](const std::vector<FindableBlock>& blocks) {
    unnamed_.insert(unnamed_.end(), blocks.begin(), blocks.end());
  });
  more_findable_ = true;
}

Status Offload::Impl::check_stores() const {
  KVFOLIO_RETURN_IF_ERROR(held_.check());
  if (!unnamed_.empty() && !more_findable_) {
    return {ErrorCode::kAborted, concat("offload: ", unnamed_.size(), " blocks wait for no poll")};
  }
  for (const FindableBlock& block : unnamed_) {
    if (!held_.holds(block)) continue;
    return {ErrorCode::kAborted, concat("offload: block ", block.block.value(), " of group ",
                                        block.group.value(), " waits to be stored and is held")};
  }
  return {};
}

// Blocks that were taken from the manager's list; a long way to a name may take several polls, and
// so may many that were released at once. False: there are more than this poll has room for.
bool Offload::Impl::store_unnamed(bool draining) {
  for (; !unnamed_.empty(); unnamed_.pop_front()) {
    if (budget_ <= 0 || !steps_.has_any() || !has_room_to_store()) return false;
    if (draining && !has_room_to_drain()) return false;
    const FindableBlock& block = unnamed_.front();
    // Another entry of the block has a place in the list of its own.
    const auto serial = manager_.entry_serial(block.group, block.block);
    if (!serial || *serial != block.serial) continue;
    const std::int64_t before = names_.num_steps();
    const auto name = names_.name_within(steps_.left(), block.group, block.block);
    steps_.took(names_.num_steps() - before);
    if (!name) continue;
    if (!*name) return false;
    const Begun begun = store_block(block, **name);
    if (begun == Begun::kLater) return false;  // it stays the first
    budget_ -= begun == Begun::kYes ? record_bytes(block.group) : kLookBytes;
  }
  return true;
}

// Whether bytes are copied; kLater: not in this poll.
Offload::Impl::Begun Offload::Impl::store_block(const FindableBlock& block,
                                                const BlockNames::Name& name) {
  KVFOLIO_DCHECK(name.end > 0 && name.end % block_size(block.group) == 0);
  const TierKey key = identity_.key(block.group, name.tokens);
  const bool was_loaded = loaded_.take(key);
  if (const ArenaPin there = arena_->find(key)) {
    if (there.uses() == 1) store_to_tiers(key, record_bytes(block.group), true);
    return Begun::kNo;
  }
  // The arena gave it up since. Where it came from has it: as a new store it would only be in the
  // way of what is not stored yet.
  if (was_loaded) return Begun::kNo;
  const std::int64_t bytes = record_bytes(block.group);
  const auto slot = arena_->reserve(key, bytes);
  if (!slot) {
    ++counters_.stores_dropped;
    return Begun::kNo;
  }
  RecordInfo info = record_of(block.group, name.end, key);
  info.owner = root_owner(name.root);
  if (manager_.storage()->copies_later()) return begin_store(block, info, *slot);
  if (!read_block(block, info, arena_->fill(*slot))) {
    ++counters_.stores_dropped;
    arena_->abandon(*slot);
    return Begun::kNo;
  }
  arena_->seal(*slot);
  if (arena_->publish(*slot)) ++counters_.stores;
  arrived_otherwise(key);
  store_to_tiers(key, bytes, false);
  return Begun::kYes;
}

// Makes the record of a block: from memory of the host in one pass.
bool Offload::Impl::read_block(const FindableBlock& block, RecordInfo info,
                               std::span<std::byte> record) {
  KVFOLIO_CHECK(std::ssize(record) == record_bytes(block.group));
  const auto payload = record.subspan(static_cast<std::size_t>(kRecordHeaderBytes));
  KVStorage& storage = *manager_.storage();
  if (storage.memory_kind() != MemoryKind::kHost) {
    const std::int32_t number = block.block.value();
    if (!storage.read_blocks(block.group, std::span(&number, 1), payload).ok()) {
      ++counters_.copies_failed;
      if (!mutant(Mutant::kFailedReadSealed)) return false;
    }
    seal_record(info, record);
    return true;
  }
  const auto runs = runs_of(block.group, block.block);
  if (!runs) return false;
  copies_.clear();
  for (const KVStorage::ImageRun& run : *runs) {
    KVFOLIO_DCHECK(run.offset >= 0 && run.offset + run.bytes <= std::ssize(payload));
    copies_.push_back({payload.data() + run.offset, run.memory, run.bytes});
  }
  info.checksum = copy_with_checksum(copies_, payload_seed(info.key));
  write_record_header(info, record.first<kRecordHeaderBytes>());
  return true;
}

// The record is in the arena before the tier that is asked for it has brought it: that tier
// is not waited for any more.
void Offload::Impl::arrived_otherwise(const TierKey& key) {
  if (requests_.arriving(key) == nullptr) return;
  const Arriving arrived = requests_.take_arrived(key);
  for (const Requests::Id id : arrived.waiters) {
    requests_.hold(*requests_.find(id), arrived.expected.end, arena_->hold(key));
  }
  give_up(arrived, false);
}

// ---- to the tiers ----

void Offload::Impl::count_dropped(TierPort& port) noexcept {
  ++port.counters().stores_dropped;
  ++counters_.tier_stores_dropped;
}

void Offload::Impl::store_to_tiers(const TierKey& key, std::int64_t bytes, bool second_use) {
  const WritePolicy wanted = second_use ? WritePolicy::kSecondUse : WritePolicy::kWriteThrough;
  for (std::size_t t = 0; t < ports_.size(); ++t) {
    TierPort& port = ports_[t];
    if (port.policy() != wanted || port.exceeds_limit(bytes)) continue;
    const Begun begun = port.num_waiting() > 0  // behind those that wait
                            ? Begun::kLater
                            : store_to(static_cast<std::int32_t>(t), {.key = key});
    if (begun == Begun::kYes) continue;
    if (begun == Begun::kNo || !port.wait(key, *arena_)) count_dropped(port);
  }
}

void Offload::Impl::store_backlog() {
  for (std::size_t t = 0; t < ports_.size(); ++t) store_backlog(static_cast<std::int32_t>(t));
}

void Offload::Impl::store_backlog(std::int32_t index) {
  TierPort& to = port(index);
  for (int left = kStoresPerPoll; left > 0; --left) {
    const TierPort::Waiting* one = to.next(now_us_);
    if (one == nullptr) break;
    steps_.took(1);
    const Begun begun = store_to(index, *one);
    if (begun == Begun::kLater) break;
    if (begun == Begun::kNo) {
      // It was given once, so the tier did not keep it; else it was never given.
      ++(one->is_again ? to.counters().stores_failed : to.counters().stores_dropped);
      ++counters_.tier_stores_dropped;
    }
    to.pop(now_us_);
  }
  to.pin_waiting(*arena_, kStoresPerPoll);
}

Offload::Impl::Begun Offload::Impl::store_to(std::int32_t index, const TierPort::Waiting& one) {
  TierPort& to = port(index);
  ArenaPin pin = arena_->hold(one.key);
  // Evicted, erased or forgotten since. What was stored anew under the name goes by itself.
  if (!pin || one.is_gone) return Begun::kNo;
  if (one.pin && one.pin.record().data() != pin.record().data()) return Begun::kNo;
  const std::span<const std::byte> record = pin.record();
  if (forgotten_.owns(record)) return Begun::kNo;
  const auto bytes = static_cast<std::int64_t>(record.size());
  if (!to.takes(bytes)) return Begun::kNo;
  const TierPort::Room room = to.room_for_store(one, bytes, now_us_);
  if (room != TierPort::Room::kYes) {
    return room == TierPort::Room::kLater ? Begun::kLater : Begun::kNo;
  }
  const bool works = to.works();
  Op op{.kind = TierOp::kStore, .tier = index, .key = one.key, .bytes = bytes};
  op.pin = std::move(pin);
  op.tries = one.tries;
  op.stores_before = to.counters().stores;
  // A tier reads what it stores; one type of item serves both ways.
  add_item(std::move(op), const_cast<std::byte*>(record.data()));
  if (submit(index, TierOp::kStore, store_deadline()) != 1) {
    return works || to.refused(now_us_) ? Begun::kLater : Begun::kNo;
  }
  to.accepted();
  TierPort::Side& side = to.side(TierOp::kStore);
  if (side.pauses.passed_over()) side.probe_tag = ops_.last_tag();
  return Begun::kYes;
}

// Finds those that are overdue. Deadlines are in the order of the tags.
void Offload::Impl::watch_stores() {
  for (int left = 4 * kStoresPerPoll; left > 0 && ops_.has_watched(); --left) {
    const std::uint64_t tag = ops_.first_watched();
    steps_.took(1);
    if (Op* const watched = ops_.watched()) {
      Op& op = *watched;
      if (now_us_ < op.deadline_us) return;
      TierPort& late = port(op.tier);
      KVFOLIO_CHECK(op.kind == TierOp::kStore && !op.overdue);
      op.overdue = true;
      late.became_overdue(op.kind, op.bytes);
      late.was_late(op.kind, op.key, op.bytes, op.since_us, now_us_);
      if (late.side(op.kind).probe_tag == tag) late.side(op.kind).probe_tag = 0;
    }
    ops_.unwatch();
  }
}

void Offload::Impl::on_stored(std::uint64_t tag, Op op, TierResult result) {
  KVFOLIO_DCHECK(op.pin && std::ssize(op.pin.record()) == op.bytes);
  TierPort& by = port(op.tier);
  TierPort::Side& side = by.side(op.kind);
  if (side.probe_tag == tag) side.probe_tag = 0;
  OffloadTierCounters& counters = by.counters();
  if (result != TierResult::kTimeout) {
    by.answered(op.kind);  // late, perhaps, which hurts no one
  } else if (!op.overdue) {
    by.was_late(op.kind, op.key, op.bytes, op.since_us, now_us_);
  }
  count_latency(counters.store_latency, now_us_ - op.since_us);
  counters.store_us += now_us_ - op.since_us;
  if (result == TierResult::kOk) {
    ++counters_.tier_stores;
    ++counters.stores;
    counters.stores_failed_in_a_row = 0;
    counters.bytes_stored += static_cast<std::uint64_t>(op.bytes);
    return;
  }
  ++counters.stores_failed_in_a_row;
  if (goes_again(by, op, result)) return;
  ++counters.stores_failed;
  ++counters_.tier_stores_dropped;
}

// A tier that was late or busy may take it the next time, unless the record was erased or forgotten
// meanwhile. A try counts only if the tier took nothing else during it.
bool Offload::Impl::goes_again(TierPort& by, Op& op, TierResult result) {
  if (result != TierResult::kTimeout && result != TierResult::kBusy) return false;
  const ArenaPin there = arena_->hold(op.key);
  if (!there || there.record().data() != op.pin.record().data()) return false;
  const bool was_in_vain = by.counters().stores == op.stores_before;
  TierPort::Waiting again{.key = op.key, .pin = std::move(op.pin)};
  again.tries = op.tries + (was_in_vain ? 1 : 0);
  return by.wait_again(std::move(again), now_us_);
}

}  // namespace kvfolio
