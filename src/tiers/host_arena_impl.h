// SPDX-License-Identifier: Apache-2.0
#pragma once

// The inside of HostArena: slots, slabs, the index by key and the order of use. Slot s lies in slab
// s / slots_per_slab_. Thread safety: as HostArena.

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "kvfolio/fixed_array.h"
#include "kvfolio/host_arena.h"

namespace kvfolio {

class HostArena::Impl {
 public:
  static constexpr std::int32_t kNone = -1;

  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl();

  Status create(const HostArenaOptions& options);

  std::optional<ArenaSlot> reserve(const TierKey& key, std::int64_t bytes) noexcept;
  std::span<std::byte> fill(ArenaSlot slot) noexcept;
  [[nodiscard]] std::span<const std::byte> filling(ArenaSlot slot) noexcept;
  void seal(ArenaSlot slot) noexcept;
  bool publish(ArenaSlot slot) noexcept;
  void abandon(ArenaSlot slot) noexcept;
  void quarantine(ArenaSlot slot) noexcept;
  void quiesced(ArenaSlot slot) noexcept;
  std::int32_t pin(const TierKey& key, bool is_use) noexcept;  // a slot, or kNone
  void unpin(std::int32_t slot) noexcept;
  [[nodiscard]] std::span<std::byte> record(std::int32_t slot) noexcept;
  [[nodiscard]] std::int32_t lookup(const TierKey& key) const noexcept;
  void use_now(std::int32_t slot) noexcept;
  bool erase(const TierKey& key) noexcept;
  std::int64_t erase_some_if(std::int64_t most,
                             const std::function<bool(std::span<const std::byte>)>& gone);
  [[nodiscard]] std::int64_t num_slots() const noexcept { return std::ssize(slots_); }
  [[nodiscard]] std::uint32_t uses(std::int32_t slot) const noexcept { return slots_[slot].uses; }
  void clear() noexcept;
  [[nodiscard]] const ArenaStats& stats() const noexcept { return stats_; }
  [[nodiscard]] std::int64_t table_bytes() const noexcept;
  [[nodiscard]] Status check_invariants() const;

 private:
  enum class State : std::uint8_t {
    kFree,
    kReserved,
    kFilling,
    kSealed,
    kPublished,
    kEvicting,
    kQuarantined,
  };

  struct Slot {
    TierKey key;
    std::uint64_t last_use;
    std::int64_t bytes;
    std::uint32_t generation;
    std::int32_t pins;
    std::uint32_t uses;
    std::int32_t colder, hotter;  // in the order of use: published and not pinned. Free: next free.
    State state;
  };
  // Records of one size.
  struct Size {
    std::int64_t bytes = 0;  // rounded()
    std::int32_t per_slab = 0;
    std::int32_t coldest = kNone, hottest = kNone;
    std::int32_t first_slab = kNone;  // of those with a free slot
  };
  struct Slab {
    std::int32_t size;      // which one; kNone: no size
    std::int32_t used;      // slots that are not free
    std::int32_t busy;      // of these, such as may not be evicted now
    std::int32_t fresh;     // slots from here on were never used since the slab changed hands
    std::int32_t free;      // the first free slot below that
    std::int32_t next;      // slabs of this size with a free slot, or slabs of no size
    std::int32_t previous;  // the same
    std::uint64_t last_use;
  };

  [[nodiscard]] std::int64_t rounded(std::int64_t bytes) const noexcept {
    return (bytes + alignment_ - 1) / alignment_ * alignment_;
  }
  [[nodiscard]] Slot& at(std::int32_t slot) noexcept { return slots_[slot]; }
  [[nodiscard]] Slot& checked(ArenaSlot slot, State state) noexcept;
  [[nodiscard]] Slab& slab_of(std::int32_t slot) noexcept { return slabs_[slot / slots_per_slab_]; }
  [[nodiscard]] bool has_free(const Slab& slab) const noexcept;
  [[nodiscard]] Size& size_of(const Slab& slab) noexcept {
    return sizes_[static_cast<std::size_t>(slab.size)];
  }

  [[nodiscard]] bool make_room(std::int32_t size) noexcept;
  [[nodiscard]] std::int32_t coldest_slab_beside(std::int32_t size) const noexcept;
  void give_slab(std::int32_t slab, std::int32_t size) noexcept;
  void empty_slab(std::int32_t slab) noexcept;
  std::int32_t take_slot(std::int32_t size) noexcept;
  void free_slot(std::int32_t slot) noexcept;
  void link_slab(std::int32_t slab, std::int32_t& head) noexcept;
  void unlink_slab(std::int32_t slab, std::int32_t& head) noexcept;
  void evict(std::int32_t slot) noexcept;
  void list(std::int32_t slot) noexcept;    // as the hottest
  void unlist(std::int32_t slot) noexcept;  // out of the order of use

  [[nodiscard]] std::size_t home(const TierKey& key) const noexcept;
  void index_insert(std::int32_t slot) noexcept;
  void index_erase(std::int32_t slot) noexcept;
  Status choose_slabs(const HostArenaOptions& options);
  [[nodiscard]] Status check_slab(std::int32_t slab) const;

  HostMemory own_memory_;
  MemoryResource* resource_ = nullptr;
  std::int64_t alignment_ = 64;  // of each record
  std::byte* allocated_ = nullptr;
  std::int64_t allocated_bytes_ = 0;
  std::byte* memory_ = nullptr;  // where the first slab begins
  std::int64_t memory_bytes_ = 0;
  std::int64_t slab_bytes_ = 0;
  std::int32_t slots_per_slab_ = 0;  // of the smallest size
  std::vector<Size> sizes_;
  FixedArray<Slab> slabs_;
  std::int32_t free_slab_ = kNone;
  FixedArray<Slot> slots_;
  FixedArray<std::int32_t> index_;  // open addressing; slot + 1, 0 is empty
  std::size_t index_mask_ = 0;
  std::uint64_t clock_ = 0;
  std::int32_t next_looked_at_ = 0;  // the slot where erase_some_if() goes on
  ArenaStats stats_;
};

}  // namespace kvfolio
