// SPDX-License-Identifier: Apache-2.0
#pragma once

// HostArena keeps records in the memory of the process: the first tier, and the gateway of all
// others, which read and write only memory of the arena. It takes one piece of memory, lays records
// of equal size back to back, and evicts the record that was not used for longest. It knows keys
// and bytes: no token, no block, no file.
//
// A slot is one place for a record. Its states:
//   free -> reserved -> filling -> sealed -> published -> evicting -> free
//  - reserved, filling: one writes the record, and no other sees it.
//  - sealed: the record is complete, and its writer has checked it.
//  - published: find() answers with it. Only these are evicted, and not while they are pinned.
//  - evicting: erased while pinned; find() no longer answers with it. Free at its last unpin.
//  - quarantined: given up while a medium may still touch the memory. Free at quiesced().
//
//   HostArena arena = *HostArena::create({.bytes = 1 << 30, .record_bytes = sizes});
//   std::optional<ArenaSlot> slot = arena.reserve(key, bytes);     // evicts if it must
//   write(arena.fill(*slot));  arena.seal(*slot);  arena.publish(*slot);
//   if (ArenaPin pin = arena.find(key)) read(pin.record());
//
// Records of several sizes (groups whose blocks differ) share the memory by slabs: a slab holds
// records of one size. A size that is short takes a free slab; else its own coldest record or the
// coldest slab of another size that is not in use, whichever was used longer ago.
//
// Invariant: it never takes more memory for records than HostArenaOptions say, plus what the tables
// of slots take: table_bytes(). Nothing allocates after create(). Thread safety: none; the owner
// serialises all calls.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "kvfolio/export.h"
#include "kvfolio/memory.h"
#include "kvfolio/status.h"
#include "kvfolio/tier.h"

namespace kvfolio {

struct HostArenaOptions {
  std::int64_t bytes = 0;  // the budget of all records together
  // The sizes that records have: 1 to 16 of them, each at least 64 and at most 2^31 bytes. A record
  // takes its size rounded up to `alignment`.
  std::span<const std::int64_t> record_bytes{};
  // Must outlive the arena, and be memory that the CPU may touch. Null: HostMemory, huge pages.
  MemoryResource* resource = nullptr;
  std::int64_t alignment = 64;  // of each record: a power of two, 64 to 4096
};

// Names a slot until that is free again.
struct ArenaSlot {
  std::int32_t index = -1;
  std::uint32_t generation = 0;

  friend bool operator==(const ArenaSlot&, const ArenaSlot&) = default;
};

struct ArenaStats {
  std::int64_t bytes = 0;            // the budget
  std::int64_t bytes_published = 0;  // sizes of the published records
  std::int64_t records = 0;          // published
  std::int64_t pins = 0;             // open now
  std::int64_t writing = 0;          // slots that are reserved, filling or sealed
  std::int64_t quarantined = 0;
  std::uint64_t evictions = 0;
  std::uint64_t refusals = 0;  // reserve() found no room: all is pinned or written to
  friend bool operator==(const ArenaStats&, const ArenaStats&) = default;
};

class ArenaPin;

class HostArena {
 public:
  // kInvalidArgument: a size out of range; a budget that does not hold a record of each size (names
  // both numbers); an alignment; memory that the CPU may not touch. kOutOfMemory.
  KVFOLIO_API static Result<HostArena> create(const HostArenaOptions& options);

  KVFOLIO_API HostArena(HostArena&&) noexcept;
  KVFOLIO_API HostArena& operator=(HostArena&&) noexcept;
  // Requires: no pin is open. If something is quarantined, the memory is not given back: a medium
  // may still write to it.
  KVFOLIO_API ~HostArena();

  // Takes a slot for a record of `bytes`, a size of the options, and evicts if it must. nullopt: no
  // room, since everything is pinned or written to. Not a promise that the key is free: publish()
  // decides.
  KVFOLIO_API std::optional<ArenaSlot> reserve(const TierKey& key, std::int64_t bytes) noexcept;
  // The memory of a reserved slot, which is filling from now on.
  KVFOLIO_API std::span<std::byte> fill(ArenaSlot slot) noexcept;
  // The same memory again, of a slot that is filling.
  [[nodiscard]] KVFOLIO_API std::span<const std::byte> filling(ArenaSlot slot) const noexcept;
  // The record is complete and right: filling -> sealed.
  KVFOLIO_API void seal(ArenaSlot slot) noexcept;
  // sealed -> published. False, and the slot is free, if the key has a record already.
  KVFOLIO_API bool publish(ArenaSlot slot) noexcept;
  // reserved, filling or sealed -> free: nothing touches its memory.
  KVFOLIO_API void abandon(ArenaSlot slot) noexcept;
  // The same where a medium may still touch it: it is free after quiesced().
  KVFOLIO_API void quarantine(ArenaSlot slot) noexcept;
  KVFOLIO_API void quiesced(ArenaSlot slot) noexcept;

  // Pins the record of the key and marks it as used now; a pin of nothing if there is none.
  [[nodiscard]] KVFOLIO_API ArenaPin find(const TierKey& key) noexcept;
  // The same without a use.
  [[nodiscard]] KVFOLIO_API ArenaPin hold(const TierKey& key) noexcept;
  [[nodiscard]] KVFOLIO_API bool contains(const TierKey& key) const noexcept;
  // Marks the record as used now. Returns whether there is one.
  KVFOLIO_API bool touch(const TierKey& key) noexcept;
  // Takes the record out; a pinned one stays in memory until its last unpin. Returns whether there
  // was one.
  KVFOLIO_API bool erase(const TierKey& key) noexcept;
  // Takes out the records for which `gone` returns true; returns how many.
  KVFOLIO_API std::int64_t erase_if(const std::function<bool(std::span<const std::byte>)>& gone);
  // The same in pieces: looks at `most` slots, in a circle, and begins where the last call ended.
  KVFOLIO_API std::int64_t erase_some_if(
      std::int64_t most, const std::function<bool(std::span<const std::byte>)>& gone);
  // The slots that one circle of erase_some_if() looks at, whatever they hold.
  [[nodiscard]] KVFOLIO_API std::int64_t num_slots() const noexcept;
  // Takes out every record.
  KVFOLIO_API void clear() noexcept;

  [[nodiscard]] KVFOLIO_API ArenaStats stats() const noexcept;
  [[nodiscard]] KVFOLIO_API std::int64_t table_bytes() const noexcept;
  // Recounts everything, in O(slots). Returns ok, or says which rule is broken.
  [[nodiscard]] KVFOLIO_API Status check_invariants() const;

 private:
  friend class ArenaPin;
  class Impl;
  explicit HostArena(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

// Keeps a published record where it is. Moved, never copied; must not outlive its arena.
class ArenaPin {
 public:
  ArenaPin() noexcept = default;
  ArenaPin(ArenaPin&& other) noexcept : arena_(other.arena_), slot_(other.slot_) {
    other.arena_ = nullptr;
  }
  ArenaPin& operator=(ArenaPin&& other) noexcept {
    if (this == &other) return *this;
    release();
    arena_ = other.arena_;
    slot_ = other.slot_;
    other.arena_ = nullptr;
    return *this;
  }
  ArenaPin(const ArenaPin&) = delete;
  ArenaPin& operator=(const ArenaPin&) = delete;
  ~ArenaPin() { release(); }

  explicit operator bool() const noexcept { return arena_ != nullptr; }
  // Requires: it pins something.
  [[nodiscard]] KVFOLIO_API std::span<const std::byte> record() const noexcept;
  // How often find() and touch() met the record since it was published.
  [[nodiscard]] KVFOLIO_API std::uint32_t uses() const noexcept;
  KVFOLIO_API void release() noexcept;

 private:
  friend class HostArena;
  ArenaPin(HostArena::Impl* arena, std::int32_t slot) noexcept : arena_(arena), slot_(slot) {}
  HostArena::Impl* arena_ = nullptr;  // does not move when the arena does
  std::int32_t slot_ = -1;
};

}  // namespace kvfolio
