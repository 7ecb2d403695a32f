// SPDX-License-Identifier: Apache-2.0
#pragma once

// Transfers keeps the loads and holds that are open: the id of each and the blocks that it has. A
// load also knows which positions it stands for, the tokens at them, and the row whose sequence
// waits for it; a hold knows its group. The verbs (loads.cc, holds.cc) take the references that
// transfers have and give them back.
//
// The table of a load has an entry for each logical block from the one that its first token lies in
// to its end; -1 where the new length reads nothing. An entry is a block that the load waits for or
// one that the cache had already: which of the two is the manager's to know, and here only counted.
//
// Invariants, see check(): a transfer is open or in the list of the free ones; the tables of a free
// one are empty; the counts of blocks by group are those of the open ones.
//
// Thread safety: none; const calls write nothing. Nothing allocates after allocate().

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/packed_id.h"
#include "kvfolio/block_table.h"
#include "kvfolio/fixed_array.h"
#include "kvfolio/ids.h"
#include "kvfolio/span_arena.h"
#include "kvfolio/status.h"

namespace kvfolio {

class Transfers {
 public:
  static constexpr std::int32_t kNone = -1;

  // The whole prompt that a load goes into, if its sequence stands where open() left it.
  struct Prompt {
    std::int32_t tokens = 0;
    std::uint64_t tail_hash = 0;  // of those behind what open() found
  };

  struct Load {
    std::int32_t row = kNone;  // kNone: its sequence is gone, or was cut below `begin`
    std::int32_t begin = 0;    // the length of the sequence
    std::int32_t end = 0;
    std::int32_t sound_end = 0;  // behind it a step that failed wrote a block that it had found
    bool unfindable = false;     // what it brings was forgotten since it began
    ArenaSpan tokens{};          // those at [begin, end), if the sequence publishes
    Prompt prompt{};
  };

  // Room for `most` loads and as many holds, whose ids get this tag. False: no memory.
  [[nodiscard]] bool allocate(std::int32_t most, std::int32_t num_groups,
                              std::uint16_t tag) noexcept;

  // ---- loads ----

  [[nodiscard]] std::int32_t num_loads() const noexcept { return loads_.num_open(); }
  // The load that take_load() takes, or kNone when all are open. Its tables and tokens may be
  // filled before.
  [[nodiscard]] std::int32_t next_load() const noexcept { return loads_.next_free(); }
  // Requires: next_load() != kNone.
  LoadId take_load() noexcept;
  // The open load that the id names, or kNone; and its id.
  [[nodiscard]] std::int32_t find(LoadId id) const noexcept {
    return loads_.find(id.value(), tag_);
  }
  [[nodiscard]] LoadId load_id(std::int32_t load) const noexcept {
    return LoadId(loads_.id_of(load, tag_));
  }
  [[nodiscard]] Load& load(std::int32_t load) noexcept { return loads_[load]; }
  [[nodiscard]] const Load& load(std::int32_t load) const noexcept { return loads_[load]; }
  [[nodiscard]] BlockTable& table(std::int32_t load, std::int32_t g) noexcept {
    return load_tables_[std::int64_t{load} * num_groups_ + g];
  }
  [[nodiscard]] const BlockTable& table(std::int32_t load, std::int32_t g) const noexcept {
    return load_tables_[std::int64_t{load} * num_groups_ + g];
  }
  // Blocks that the load waits for; and those of all loads.
  [[nodiscard]] std::int32_t num_waiting(std::int32_t load, std::int32_t g) const noexcept {
    return waiting_[std::int64_t{load} * num_groups_ + g];
  }
  [[nodiscard]] std::int32_t num_waiting(std::int32_t g) const noexcept {
    return totals_[static_cast<std::size_t>(g)].waiting;
  }
  void set_waiting(std::int32_t load, std::int32_t g, std::int32_t count) noexcept;
  // Gives back its spans. The load stays as it was taken, or free.
  void release_spans(std::int32_t load, SpanArena& arena) noexcept;
  // Requires: open, nothing is waiting, its spans are released.
  void give_back_load(std::int32_t load) noexcept;
  // Calls visit(load) for each open load in ascending order.
  template <typename Visit>
  void for_each_load(const Visit& visit) const {
    loads_.for_each_open(visit);
  }

  // ---- holds ----

  [[nodiscard]] std::int32_t num_holds() const noexcept { return holds_.num_open(); }
  // As next_load().
  [[nodiscard]] std::int32_t next_hold() const noexcept { return holds_.next_free(); }
  // Requires: next_hold() != kNone; its table has the blocks.
  HoldId take_hold(std::int32_t g) noexcept;
  [[nodiscard]] std::int32_t find(HoldId id) const noexcept {
    return holds_.find(id.value(), tag_);
  }
  [[nodiscard]] std::int32_t group_of(std::int32_t hold) const noexcept {
    return holds_[hold].group;
  }
  [[nodiscard]] BlockTable& held(std::int32_t hold) noexcept { return hold_tables_[hold]; }
  [[nodiscard]] const BlockTable& held(std::int32_t hold) const noexcept {
    return hold_tables_[hold];
  }
  // References of all holds to blocks of the group.
  [[nodiscard]] std::int32_t num_held(std::int32_t g) const noexcept {
    return totals_[static_cast<std::size_t>(g)].held;
  }
  // Requires: open. Its table is released.
  void give_back_hold(std::int32_t hold, SpanArena& arena) noexcept;
  template <typename Visit>
  void for_each_hold(const Visit& visit) const {
    holds_.for_each_open(visit);
  }

  // None was ever taken.
  [[nodiscard]] bool is_new() const noexcept { return loads_.is_new() && holds_.is_new(); }
  [[nodiscard]] bool none_open() const noexcept { return num_loads() + num_holds() == 0; }
  // The same for a call that needs it. `whose`: the manager that the call names.
  [[nodiscard]] Status check_none_open(std::string_view what, std::string_view whose) const;
  // Becomes an equal of `other`. Requires: allocated with the same arguments; none is open in
  // either.
  void copy_from(const Transfers& other) noexcept;
  // Words of the arena that all of them have.
  [[nodiscard]] std::int64_t words() const noexcept;
  [[nodiscard]] MemoryUse memory() const noexcept {
    return MemoryUse::whole(loads_.bytes() + holds_.bytes() + load_tables_.bytes() +
                            hold_tables_.bytes() + waiting_.bytes());
  }
  [[nodiscard]] Status check() const;

 private:
  struct Hold {
    std::int32_t group = 0;
  };
  struct Totals {
    std::int32_t waiting = 0;
    std::int32_t held = 0;
  };

  // Items that have an id while they are open. The one that was given back last is taken next.
  template <typename Item>
  class Slots {
   public:
    [[nodiscard]] bool allocate(std::int32_t most) noexcept;
    [[nodiscard]] std::int32_t size() const noexcept {
      return static_cast<std::int32_t>(slots_.size());
    }
    [[nodiscard]] std::int32_t num_open() const noexcept { return num_open_; }
    [[nodiscard]] bool is_new() const noexcept { return touched_ == 0; }
    [[nodiscard]] std::int32_t next_free() const noexcept { return first_free_; }
    [[nodiscard]] bool is_open(std::int32_t i) const noexcept { return slots_[i].open; }
    std::uint64_t take(std::uint16_t tag) noexcept;
    void give_back(std::int32_t i) noexcept;
    [[nodiscard]] std::uint64_t id_of(std::int32_t i, std::uint16_t tag) const noexcept {
      return PackedId{tag, slots_[i].generation, i}.bits();
    }
    [[nodiscard]] std::int32_t find(std::uint64_t id, std::uint16_t tag) const noexcept {
      const std::int32_t i = PackedId::row_of(id);
      return i < size() && slots_[i].open && id_of(i, tag) == id ? i : kNone;
    }
    [[nodiscard]] Item& operator[](std::int32_t i) noexcept { return slots_[i].item; }
    [[nodiscard]] const Item& operator[](std::int32_t i) const noexcept { return slots_[i].item; }
    template <typename Visit>
    void for_each_open(const Visit& visit) const {
      for (std::int32_t i = 0; i < touched_ && num_open_ > 0; ++i) {
        if (slots_[i].open) visit(i);
      }
    }
    void copy_from(const Slots& other) noexcept;
    [[nodiscard]] std::int64_t bytes() const noexcept { return slots_.bytes(); }
    [[nodiscard]] Status check(std::string_view name) const;

   private:
    struct Slot {
      std::uint32_t generation;
      bool open;
      std::int32_t next_free;
      Item item;
    };
    FixedArray<Slot> slots_;
    std::int32_t first_free_ = kNone;
    std::int32_t num_open_ = 0;
    std::int32_t touched_ = 0;  // those from here on were never taken
  };

  Slots<Load> loads_;
  Slots<Hold> holds_;
  FixedArray<BlockTable> load_tables_;  // [load][group]
  FixedArray<std::int32_t> waiting_;    // [load][group]
  FixedArray<BlockTable> hold_tables_;  // [hold]
  std::vector<Totals> totals_;          // by group
  std::int32_t num_groups_ = 0;
  std::uint16_t tag_ = 0;
};

}  // namespace kvfolio
