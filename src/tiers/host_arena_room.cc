// SPDX-License-Identifier: Apache-2.0
//
// Where records lie, and which one gives way. With one size of record the memory is one slab, and
// this is a free list and an order of use. With several, a slab belongs to one size or to none.
// There are at most kSlabs of them, so the search for the coldest one is short.

#include <algorithm>
#include <bit>
#include <limits>

#include "base/invalid.h"
#include "base/text.h"
#include "tiers/host_arena_impl.h"

namespace kvfolio {
namespace {

using text::concat;

constexpr std::int64_t kSlabs = 1024;
constexpr std::int64_t kRecordsMax = 1 << 30;

}  // namespace

Status HostArena::Impl::create(const HostArenaOptions& options) {
  if (options.record_bytes.empty() || options.record_bytes.size() > 16) {
    return invalid(
        concat("host arena: ", options.record_bytes.size(), " sizes of records, allowed: 1 to 16"));
  }
  alignment_ = options.alignment;
  if (alignment_ < 64 || alignment_ > 4096 || (alignment_ & (alignment_ - 1)) != 0) {
    return invalid(concat("host arena: an alignment of ", alignment_,
                          ", allowed: powers of two from 64 to 4096"));
  }
  for (const std::int64_t bytes : options.record_bytes) {
    if (bytes < 64 || bytes > std::int64_t{1} << 31) {
      return invalid(
          concat("host arena: a record of ", bytes, " bytes, allowed: 64 to 2147483648"));
    }
    const Size size{.bytes = rounded(bytes)};
    const auto same = [&](const Size& other) { return other.bytes == size.bytes; };
    if (std::none_of(sizes_.begin(), sizes_.end(), same)) sizes_.push_back(size);
  }
  KVFOLIO_RETURN_IF_ERROR(choose_slabs(options));
  resource_ = options.resource != nullptr ? options.resource : &own_memory_;
  if (resource_->kind() != MemoryKind::kHost) {
    return invalid("host arena: the CPU may not touch the memory of the resource");
  }
  // A resource aligns to 64 or more: the first record may begin later.
  allocated_bytes_ = memory_bytes_ + alignment_ - kMemoryAlignment;
  auto memory = resource_->allocate(allocated_bytes_);
  if (!memory) {
    return {memory.error().code(),
            concat("host arena: ", allocated_bytes_, " bytes: ", memory.error().message())};
  }
  allocated_ = *memory;
  const auto at = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(allocated_) %
                                            static_cast<std::uintptr_t>(alignment_));
  memory_ = allocated_ + (at == 0 ? 0 : alignment_ - at);
  stats_.bytes = options.bytes;
  return {};
}

Status HostArena::Impl::choose_slabs(const HostArenaOptions& options) {
  std::int64_t largest = 0;
  std::int64_t smallest = std::numeric_limits<std::int64_t>::max();
  for (const Size& size : sizes_) {
    largest = std::max(largest, size.bytes);
    smallest = std::min(smallest, size.bytes);
  }
  const auto num_sizes = static_cast<std::int64_t>(sizes_.size());
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 50;
  if (options.bytes > kMostBytes) {
    return invalid(
        concat("host arena: a budget of ", options.bytes, " bytes, allowed: at most ", kMostBytes));
  }
  if (options.bytes < largest * num_sizes) {
    return invalid(concat("host arena: a budget of ", options.bytes, " bytes, needed: at least ",
                          largest * num_sizes, ", for ", num_sizes, " of the largest record"));
  }
  slab_bytes_ = options.bytes / alignment_ * alignment_;
  if (num_sizes > 1) {
    const std::int64_t wanted = std::max(options.bytes / kSlabs, 8 * largest);
    const std::int64_t most = options.bytes / (2 * num_sizes);
    slab_bytes_ = std::max(rounded(std::min(wanted, most)), largest);
  }
  const std::int64_t num_slabs = options.bytes / slab_bytes_;
  memory_bytes_ = num_slabs * slab_bytes_;
  slots_per_slab_ = static_cast<std::int32_t>(std::min(slab_bytes_ / smallest, kRecordsMax));
  if (num_slabs * slots_per_slab_ > kRecordsMax) {
    return invalid(concat("host arena: ", num_slabs * slots_per_slab_, " records of ", smallest,
                          " bytes, allowed: ", kRecordsMax));
  }
  for (Size& size : sizes_) size.per_slab = static_cast<std::int32_t>(slab_bytes_ / size.bytes);
  const auto num_slots = num_slabs * slots_per_slab_;
  const auto index_size = std::bit_ceil(static_cast<std::uint64_t>(num_slots) * 2);
  if (!slabs_.allocate_zeroed(num_slabs) || !slots_.allocate_zeroed(num_slots) ||
      !index_.allocate_zeroed(static_cast<std::int64_t>(index_size))) {
    return {ErrorCode::kOutOfMemory,
            concat("host arena: no memory for the tables of ", num_slots, " records")};
  }
  index_mask_ = index_size - 1;
  for (auto slab = static_cast<std::int32_t>(num_slabs) - 1; slab >= 0; --slab) {
    slabs_[slab].size = kNone;
    link_slab(slab, free_slab_);
  }
  return {};
}

std::int64_t HostArena::Impl::table_bytes() const noexcept {
  return slots_.bytes() + slabs_.bytes() + index_.bytes();
}

// ---- slabs ----

bool HostArena::Impl::has_free(const Slab& slab) const noexcept {
  return slab.free != kNone || slab.fresh < sizes_[static_cast<std::size_t>(slab.size)].per_slab;
}

void HostArena::Impl::link_slab(std::int32_t slab, std::int32_t& head) noexcept {
  slabs_[slab].previous = kNone;
  slabs_[slab].next = head;
  if (head != kNone) slabs_[head].previous = slab;
  head = slab;
}

void HostArena::Impl::unlink_slab(std::int32_t slab, std::int32_t& head) noexcept {
  const Slab& gone = slabs_[slab];
  (gone.previous == kNone ? head : slabs_[gone.previous].next) = gone.next;
  if (gone.next != kNone) slabs_[gone.next].previous = gone.previous;
}

void HostArena::Impl::give_slab(std::int32_t slab, std::int32_t size) noexcept {
  KVFOLIO_CHECK(slabs_[slab].size == kNone && size >= 0 && size < std::ssize(sizes_));
  unlink_slab(slab, free_slab_);
  slabs_[slab] = {.size = size,
                  .used = 0,
                  .busy = 0,
                  .fresh = 0,
                  .free = kNone,
                  .next = kNone,
                  .previous = kNone,
                  .last_use = 0};
  link_slab(slab, sizes_[static_cast<std::size_t>(size)].first_slab);
}

// Evicts all that the slab holds; then it is of no size.
void HostArena::Impl::empty_slab(std::int32_t slab) noexcept {
  KVFOLIO_CHECK(slabs_[slab].busy == 0);
  const std::int32_t fresh = slabs_[slab].fresh;
  for (std::int32_t i = 0; i < fresh && slabs_[slab].size != kNone; ++i) {
    const std::int32_t slot = slab * slots_per_slab_ + i;
    if (at(slot).state != State::kPublished) continue;
    ++stats_.evictions;
    evict(slot);
  }
}

std::int32_t HostArena::Impl::coldest_slab_beside(std::int32_t size) const noexcept {
  std::int32_t coldest = kNone;
  for (std::int32_t slab = 0; static_cast<std::size_t>(slab) < slabs_.size(); ++slab) {
    const Slab& other = slabs_[slab];
    if (other.size == kNone || other.size == size || other.busy > 0) continue;
    if (coldest == kNone || other.last_use < slabs_[coldest].last_use) coldest = slab;
  }
  return coldest;
}

// A slot of this size is free afterwards; or false, and nothing changed.
bool HostArena::Impl::make_room(std::int32_t which) noexcept {
  const Size& size = sizes_[static_cast<std::size_t>(which)];
  if (size.first_slab != kNone) return true;
  if (free_slab_ != kNone) {
    give_slab(free_slab_, which);
    return true;
  }
  const std::int32_t slab = sizes_.size() > 1 ? coldest_slab_beside(which) : kNone;
  if (size.coldest != kNone &&
      (slab == kNone || at(size.coldest).last_use < slabs_[slab].last_use)) {
    ++stats_.evictions;
    evict(size.coldest);
    // With several sizes its slab may be of none now.
    return make_room(which);
  }
  if (slab == kNone) return false;
  empty_slab(slab);
  give_slab(slab, which);
  return true;
}

// ---- slots ----

std::int32_t HostArena::Impl::take_slot(std::int32_t which) noexcept {
  Size& size = sizes_[static_cast<std::size_t>(which)];
  const std::int32_t index = size.first_slab;
  Slab& slab = slabs_[index];
  std::int32_t slot = slab.free;
  if (slot != kNone) {
    slab.free = at(slot).hotter;
  } else {
    slot = index * slots_per_slab_ + slab.fresh++;
  }
  KVFOLIO_DCHECK(at(slot).state == State::kFree && slab.size == which);
  ++slab.used;
  ++slab.busy;
  if (!has_free(slab)) unlink_slab(index, size.first_slab);
  return slot;
}

void HostArena::Impl::free_slot(std::int32_t slot) noexcept {
  const std::int32_t index = slot / slots_per_slab_;
  Slab& slab = slabs_[index];
  KVFOLIO_DCHECK(slab.used > 0 && at(slot).pins == 0);
  Size& size = size_of(slab);
  if (!has_free(slab)) link_slab(index, size.first_slab);
  at(slot).state = State::kFree;
  at(slot).hotter = slab.free;
  slab.free = slot;
  if (--slab.used > 0 || sizes_.size() == 1) return;
  unlink_slab(index, size.first_slab);
  slab.size = kNone;
  link_slab(index, free_slab_);
}

// ---- the order of use ----

void HostArena::Impl::list(std::int32_t index) noexcept {
  Slot& slot = at(index);
  Slab& slab = slab_of(index);
  Size& size = size_of(slab);
  slot.last_use = ++clock_;
  slab.last_use = clock_;
  slot.colder = size.hottest;
  slot.hotter = kNone;
  (size.hottest == kNone ? size.coldest : at(size.hottest).hotter) = index;
  size.hottest = index;
}

void HostArena::Impl::unlist(std::int32_t index) noexcept {
  const Slot& slot = at(index);
  Size& size = size_of(slab_of(index));
  (slot.colder == kNone ? size.coldest : at(slot.colder).hotter) = slot.hotter;
  (slot.hotter == kNone ? size.hottest : at(slot.hotter).colder) = slot.colder;
}

// ---- check ----

Status HostArena::Impl::check_slab(std::int32_t index) const {
  const Slab& slab = slabs_[index];
  const std::int32_t per_slab = sizes_[static_cast<std::size_t>(slab.size)].per_slab;
  std::int32_t used = 0;
  std::int32_t busy = 0;
  for (std::int32_t i = 0; i < slab.fresh; ++i) {
    const Slot& slot = slots_[index * slots_per_slab_ + i];
    if (slot.state == State::kFree) continue;
    ++used;
    if (slot.state != State::kPublished || slot.pins > 0) ++busy;
  }
  if (used == slab.used && busy == slab.busy && slab.fresh <= per_slab) return {};
  return {ErrorCode::kAborted, concat("slab ", index, ": ", used, " slots used and ", busy,
                                      " busy, counted ", slab.used, " and ", slab.busy)};
}

Status HostArena::Impl::check_invariants() const {
  ArenaStats seen;
  for (std::int32_t slab = 0; static_cast<std::size_t>(slab) < slabs_.size(); ++slab) {
    if (slabs_[slab].size == kNone) continue;
    KVFOLIO_RETURN_IF_ERROR(check_slab(slab));
    for (std::int32_t i = 0; i < slabs_[slab].fresh; ++i) {
      const std::int32_t index = slab * slots_per_slab_ + i;
      const Slot& slot = slots_[index];
      seen.pins += slot.state == State::kFree ? 0 : slot.pins;
      seen.quarantined += slot.state == State::kQuarantined ? 1 : 0;
      seen.writing += slot.state >= State::kReserved && slot.state <= State::kSealed ? 1 : 0;
      if (slot.state != State::kPublished) continue;
      ++seen.records;
      seen.bytes_published += slot.bytes;
      if (lookup(slot.key) != index) {
        return {ErrorCode::kAborted, concat("slot ", index, " is published and not found")};
      }
    }
  }
  std::int64_t listed = 0;
  for (const Size& size : sizes_) {
    for (std::int32_t slot = size.coldest; slot != kNone; slot = slots_[slot].hotter) ++listed;
  }
  std::int64_t pinned = 0;
  for (const Slot& slot : std::span(slots_.data(), slots_.size())) {
    pinned += slot.state == State::kPublished && slot.pins > 0 ? 1 : 0;
  }
  seen.bytes = stats_.bytes;
  seen.evictions = stats_.evictions;
  seen.refusals = stats_.refusals;
  if (seen == stats_ && listed + pinned == seen.records) return {};
  return {ErrorCode::kAborted,
          concat("host arena: ", seen.records, " records, ", listed, " listed, ", pinned,
                 " pinned; counted ", stats_.records, " records and ", stats_.pins, " pins")};
}

}  // namespace kvfolio
