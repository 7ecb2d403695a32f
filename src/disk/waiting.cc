// SPDX-License-Identifier: Apache-2.0
#include "disk/waiting.h"

#include <algorithm>
#include <bit>

#include "kvfolio/status.h"
#include "tiers/key_spread.h"

namespace kvfolio::disk {

WaitingItems::WaitingItems(std::size_t most) : chains_(std::bit_ceil(most), kNone) {}

std::uint32_t& WaitingItems::chain_of(const TierKey& key) noexcept {
  return chains_[TierKeyHash()(key) & (chains_.size() - 1)];
}

bool WaitingItems::push(const TierItem& item, Deadline deadline) noexcept {
  if (heap_.size() == size_ && !heap_.extend()) return false;
  std::uint32_t at = free_;
  if (at != kNone) {
    free_ = slots_[at].after;
  } else {
    if (!slots_.extend()) return false;
    at = static_cast<std::uint32_t>(slots_.size() - 1);
  }
  std::uint32_t& chain = chain_of(item.key);
  KVFOLIO_DCHECK(size_ < heap_.size() && (last_ == kNone) == (size_ == 0));
  slots_[at] = {.waiting = {item, deadline},
                .number = ++last_number_,
                .before = last_,
                .in_chain = std::exchange(chain, at)};
  (last_ == kNone ? first_ : slots_[last_].after) = at;
  last_ = at;
  put(size_++, at);
  move_up(size_ - 1);
  return true;
}

WaitingItems::Waiting WaitingItems::take(std::uint32_t at) noexcept {
  Slot& slot = slots_[at];
  KVFOLIO_CHECK(size_ > 0 && slot.in_heap < size_ && heap_[slot.in_heap] == at);
  (slot.before == kNone ? first_ : slots_[slot.before].after) = slot.after;
  (slot.after == kNone ? last_ : slots_[slot.after].before) = slot.before;
  std::uint32_t* link = &chain_of(slot.waiting.item.key);
  while (*link != at) link = &slots_[*link].in_chain;
  *link = slot.in_chain;
  const std::size_t place = slot.in_heap;
  if (place != --size_) {
    put(place, heap_[size_]);
    move_up(place);
    move_down(place);
  }
  slot.after = std::exchange(free_, at);
  return slot.waiting;
}

std::optional<WaitingItems::Waiting> WaitingItems::take_late(std::uint64_t now_us) noexcept {
  if (size_ == 0 || due(0) >= now_us) return {};
  return take(heap_[0]);
}

std::optional<WaitingItems::Waiting> WaitingItems::take(const TierKey& key) noexcept {
  for (std::uint32_t at = chain_of(key); at != kNone; at = slots_[at].in_chain) {
    if (slots_[at].waiting.item.key == key) return take(at);
  }
  return {};
}

void WaitingItems::refuse_all(TierResult result) noexcept {
  KVFOLIO_DCHECK(result != TierResult::kOk && refused_ <= last_number_);
  refused_ = last_number_;
  refusal_ = result;
}

std::optional<WaitingItems::Waiting> WaitingItems::take_refused() noexcept {
  if (!refuses()) return {};
  return take_front();
}

// ---- deadlines ----

void WaitingItems::put(std::size_t place, std::uint32_t slot) noexcept {
  heap_[place] = slot;
  slots_[slot].in_heap = static_cast<std::uint32_t>(place);
}

void WaitingItems::move_up(std::size_t place) noexcept {
  for (; place > 0 && due(place) < due((place - 1) / 2); place = (place - 1) / 2) {
    const std::uint32_t slot = heap_[place];
    put(place, heap_[(place - 1) / 2]);
    put((place - 1) / 2, slot);
  }
}

void WaitingItems::move_down(std::size_t place) noexcept {
  for (;;) {
    std::size_t least = place;
    for (const std::size_t below : {2 * place + 1, 2 * place + 2}) {
      if (below < size_ && due(below) < due(least)) least = below;
    }
    if (least == place) return;
    const std::uint32_t slot = heap_[place];
    put(place, heap_[least]);
    put(least, slot);
    place = least;
  }
}

bool WaitingItems::check() const noexcept {
  std::size_t in_line = 0, in_chains = 0;
  std::uint32_t before = kNone;
  std::uint64_t number = 0;
  for (std::uint32_t at = first_; at != kNone; before = at, at = slots_[at].after) {
    const Slot& slot = slots_[at];
    if (slot.before != before || slot.number <= number || slot.in_heap >= size_ ||
        heap_[slot.in_heap] != at) {
      return false;
    }
    number = slot.number;
    if (++in_line > size_) return false;
  }
  for (std::size_t place = 1; place < size_; ++place) {
    if (due(place) < due((place - 1) / 2)) return false;
  }
  for (const std::uint32_t first : chains_) {
    for (std::uint32_t at = first; at != kNone; at = slots_[at].in_chain) {
      if (++in_chains > size_) return false;
    }
  }
  return last_ == before && in_line == size_ && in_chains == size_;
}

}  // namespace kvfolio::disk
