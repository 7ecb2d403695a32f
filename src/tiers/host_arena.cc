// SPDX-License-Identifier: Apache-2.0
//
// HostArena: the calls, and what becomes of a slot. host_arena_room.cc finds room.

#include "kvfolio/host_arena.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/hash_hole.h"
#include "base/mutants.h"
#include "base/text.h"
#include "tiers/host_arena_impl.h"
#include "tiers/key_spread.h"

namespace kvfolio {

HostArena::Impl::~Impl() {
  if (allocated_ == nullptr) return;
  KVFOLIO_CHECK(stats_.pins == 0);
  if (stats_.quarantined == 0) resource_->deallocate(allocated_, allocated_bytes_);
}

// ---- writing ----

HostArena::Impl::Slot& HostArena::Impl::checked(ArenaSlot slot, State state) noexcept {
  KVFOLIO_CHECK(slot.index >= 0 && static_cast<std::size_t>(slot.index) < slots_.size());
  Slot& kept = at(slot.index);
  KVFOLIO_CHECK(kept.generation == slot.generation && kept.state == state);
  return kept;
}

std::optional<ArenaSlot> HostArena::Impl::reserve(const TierKey& key, std::int64_t bytes) noexcept {
  const auto size = std::find_if(sizes_.begin(), sizes_.end(),
                                 [&](const Size& one) { return one.bytes == rounded(bytes); });
  KVFOLIO_CHECK(bytes > 0 && size != sizes_.end());
  const auto which = static_cast<std::int32_t>(size - sizes_.begin());
  if (!make_room(which)) {
    ++stats_.refusals;
    return std::nullopt;
  }
  const std::int32_t index = take_slot(which);
  Slot& slot = at(index);
  slot.key = key;
  slot.bytes = bytes;
  slot.state = State::kReserved;
  ++slot.generation;
  ++stats_.writing;
  return ArenaSlot{index, slot.generation};
}

std::span<std::byte> HostArena::Impl::fill(ArenaSlot slot) noexcept {
  checked(slot, State::kReserved).state = State::kFilling;
  return record(slot.index);
}

std::span<const std::byte> HostArena::Impl::filling(ArenaSlot slot) noexcept {
  static_cast<void>(checked(slot, State::kFilling));
  return record(slot.index);
}

void HostArena::Impl::seal(ArenaSlot slot) noexcept {
  checked(slot, State::kFilling).state = State::kSealed;
}

bool HostArena::Impl::publish(ArenaSlot slot) noexcept {
  Slot& kept = checked(slot, State::kSealed);
  if (lookup(kept.key) != kNone) {
    abandon(slot);
    return false;
  }
  kept.state = State::kPublished;
  kept.uses = 0;
  --stats_.writing;
  ++stats_.records;
  stats_.bytes_published += kept.bytes;
  --slab_of(slot.index).busy;
  index_insert(slot.index);
  list(slot.index);
  return true;
}

void HostArena::Impl::abandon(ArenaSlot slot) noexcept {
  KVFOLIO_CHECK(slot.index >= 0 && at(slot.index).generation == slot.generation);
  const State state = at(slot.index).state;
  KVFOLIO_CHECK(state == State::kReserved || state == State::kFilling || state == State::kSealed);
  --stats_.writing;
  --slab_of(slot.index).busy;
  free_slot(slot.index);
}

void HostArena::Impl::quarantine(ArenaSlot slot) noexcept {
  if (mutant(Mutant::kArenaSlotReusedBeforeDone)) return abandon(slot);
  checked(slot, State::kFilling).state = State::kQuarantined;
  --stats_.writing;
  ++stats_.quarantined;
}

void HostArena::Impl::quiesced(ArenaSlot slot) noexcept {
  if (mutant(Mutant::kArenaSlotReusedBeforeDone)) return;
  static_cast<void>(checked(slot, State::kQuarantined));
  --stats_.quarantined;
  --slab_of(slot.index).busy;
  free_slot(slot.index);
}

// ---- reading ----

std::int32_t HostArena::Impl::pin(const TierKey& key, bool is_use) noexcept {
  const std::int32_t index = lookup(key);
  if (index == kNone) return kNone;
  Slot& slot = at(index);
  if (slot.pins == 0) {
    unlist(index);
    ++slab_of(index).busy;
  }
  ++slot.pins;
  slot.uses += is_use ? 1 : 0;
  ++stats_.pins;
  return index;
}

void HostArena::Impl::unpin(std::int32_t index) noexcept {
  Slot& slot = at(index);
  KVFOLIO_CHECK(slot.pins > 0);
  --stats_.pins;
  if (--slot.pins > 0) return;
  --slab_of(index).busy;
  if (slot.state == State::kPublished) {
    list(index);
  } else {
    free_slot(index);
  }
}

std::span<std::byte> HostArena::Impl::record(std::int32_t index) noexcept {
  const std::int32_t slab = index / slots_per_slab_;
  const std::int64_t offset =
      slab * slab_bytes_ + (index - slab * slots_per_slab_) * size_of(slabs_[slab]).bytes;
  return {memory_ + offset, static_cast<std::size_t>(at(index).bytes)};
}

void HostArena::Impl::use_now(std::int32_t index) noexcept {
  ++at(index).uses;
  if (at(index).pins > 0) return;  // it is listed as the hottest at its last unpin
  unlist(index);
  list(index);
}

bool HostArena::Impl::erase(const TierKey& key) noexcept {
  const std::int32_t index = lookup(key);
  if (index == kNone) return false;
  evict(index);
  return true;
}

std::int64_t HostArena::Impl::erase_some_if(
    std::int64_t most, const std::function<bool(std::span<const std::byte>)>& gone) {
  std::int64_t erased = 0;
  for (most = std::min(most, num_slots()); most > 0; --most) {
    const std::int32_t slot = next_looked_at_;
    next_looked_at_ = slot + 1 < num_slots() ? slot + 1 : 0;
    if (at(slot).state != State::kPublished || !gone(record(slot))) continue;
    evict(slot);
    ++erased;
  }
  return erased;
}

void HostArena::Impl::clear() noexcept {
  for (std::size_t i = 0; i < index_.size(); ++i) {
    while (index_[i] != 0) evict(index_[i] - 1);  // another may move to this place
  }
}

// Out of sight at once; the memory is free when it is not pinned.
void HostArena::Impl::evict(std::int32_t index) noexcept {
  Slot& slot = at(index);
  index_erase(index);
  --stats_.records;
  stats_.bytes_published -= slot.bytes;
  slot.state = State::kEvicting;
  if (slot.pins > 0) return;
  unlist(index);
  free_slot(index);
}

// ---- the index by key ----

std::size_t HostArena::Impl::home(const TierKey& key) const noexcept {
  return TierKeyHash()(key) & index_mask_;
}

std::int32_t HostArena::Impl::lookup(const TierKey& key) const noexcept {
  for (std::size_t i = home(key); index_[i] != 0; i = (i + 1) & index_mask_) {
    const std::int32_t slot = index_[i] - 1;
    if (slots_[slot].key == key) return slot;
  }
  return kNone;
}

void HostArena::Impl::index_insert(std::int32_t slot) noexcept {
  std::size_t i = home(at(slot).key);
  while (index_[i] != 0) i = (i + 1) & index_mask_;
  index_[i] = slot + 1;
}

void HostArena::Impl::index_erase(std::int32_t slot) noexcept {
  std::size_t erased = home(at(slot).key);
  while (index_[erased] != slot + 1) {
    KVFOLIO_CHECK(index_[erased] != 0);
    erased = (erased + 1) & index_mask_;
  }
  const std::size_t hole = close_hole(
      erased, index_mask_, [&](std::size_t i) { return index_[i] == 0; },
      [&](std::size_t i) { return home(at(index_[i] - 1).key); },
      [&](std::size_t from, std::size_t to) { index_[to] = index_[from]; });
  index_[hole] = 0;
}

// ---- the public face ----

Result<HostArena> HostArena::create(const HostArenaOptions& options) {
  auto impl = std::make_unique<Impl>();
  KVFOLIO_RETURN_IF_ERROR(impl->create(options));
  return HostArena(std::move(impl));
}

HostArena::HostArena(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
HostArena::HostArena(HostArena&&) noexcept = default;
HostArena& HostArena::operator=(HostArena&&) noexcept = default;
HostArena::~HostArena() = default;

std::optional<ArenaSlot> HostArena::reserve(const TierKey& key, std::int64_t bytes) noexcept {
  return impl_->reserve(key, bytes);
}
std::span<std::byte> HostArena::fill(ArenaSlot slot) noexcept { return impl_->fill(slot); }
std::span<const std::byte> HostArena::filling(ArenaSlot slot) const noexcept {
  return impl_->filling(slot);
}
void HostArena::seal(ArenaSlot slot) noexcept { impl_->seal(slot); }
bool HostArena::publish(ArenaSlot slot) noexcept { return impl_->publish(slot); }
void HostArena::abandon(ArenaSlot slot) noexcept { impl_->abandon(slot); }
void HostArena::quarantine(ArenaSlot slot) noexcept { impl_->quarantine(slot); }
void HostArena::quiesced(ArenaSlot slot) noexcept { impl_->quiesced(slot); }

ArenaPin HostArena::find(const TierKey& key) noexcept {
  const std::int32_t slot = impl_->pin(key, true);
  return slot == Impl::kNone ? ArenaPin() : ArenaPin(impl_.get(), slot);
}
ArenaPin HostArena::hold(const TierKey& key) noexcept {
  const std::int32_t slot = impl_->pin(key, false);
  return slot == Impl::kNone ? ArenaPin() : ArenaPin(impl_.get(), slot);
}
bool HostArena::contains(const TierKey& key) const noexcept {
  return impl_->lookup(key) != Impl::kNone;
}
bool HostArena::touch(const TierKey& key) noexcept {
  const std::int32_t slot = impl_->lookup(key);
  if (slot == Impl::kNone) return false;
  impl_->use_now(slot);
  return true;
}
bool HostArena::erase(const TierKey& key) noexcept { return impl_->erase(key); }
std::int64_t HostArena::erase_if(const std::function<bool(std::span<const std::byte>)>& gone) {
  return impl_->erase_some_if(impl_->num_slots(), gone);
}
std::int64_t HostArena::erase_some_if(std::int64_t most,
                                      const std::function<bool(std::span<const std::byte>)>& gone) {
  return impl_->erase_some_if(most, gone);
}
std::int64_t HostArena::num_slots() const noexcept { return impl_->num_slots(); }
void HostArena::clear() noexcept { impl_->clear(); }
ArenaStats HostArena::stats() const noexcept { return impl_->stats(); }
std::int64_t HostArena::table_bytes() const noexcept { return impl_->table_bytes(); }
Status HostArena::check_invariants() const { return impl_->check_invariants(); }

std::span<const std::byte> ArenaPin::record() const noexcept {
  KVFOLIO_CHECK(arena_ != nullptr);
  return arena_->record(slot_);
}
std::uint32_t ArenaPin::uses() const noexcept {
  KVFOLIO_CHECK(arena_ != nullptr);
  return arena_->uses(slot_);
}
void ArenaPin::release() noexcept {
  if (arena_ == nullptr) return;
  std::exchange(arena_, nullptr)->unpin(slot_);
}

}  // namespace kvfolio
