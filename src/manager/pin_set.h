// SPDX-License-Identifier: Apache-2.0
#pragma once

// PinSet keeps the pins: which are open, the id of each, and what each one remembers of the prefix
// that it holds: a block table for each group, of whole blocks, and the place of its end in the
// tree. The verbs pin and unpin (pins.cc) take the references that a pin holds and give them back.
//
// Invariants, see check(): a pin is either open or in the list of the free ones; a free pin's
// tables are empty; no pin from the `touched` mark on was ever taken, so that a walk over the open
// ones ends there.
//
// Thread safety: none; const calls write nothing. Nothing allocates after allocate().

#include <algorithm>
#include <cstdint>

#include "base/packed_id.h"
#include "kvfolio/block_table.h"
#include "kvfolio/fixed_array.h"
#include "kvfolio/ids.h"
#include "kvfolio/prefix_tree.h"
#include "kvfolio/span_arena.h"
#include "kvfolio/status.h"

namespace kvfolio {

class StateWriter;

class PinSet {
 public:
  static constexpr std::int32_t kNone = -1;

  // Makes room for `max_pins` pins, whose ids get this tag. False: no memory.
  [[nodiscard]] bool allocate(std::int32_t max_pins, std::int32_t num_groups,
                              std::uint16_t tag) noexcept;

  [[nodiscard]] std::int32_t num_open() const noexcept { return num_open_; }
  // take() was never called.
  [[nodiscard]] bool is_new() const noexcept { return touched_ == 0; }

  // The pin that take() takes, or kNone when all are open. Its tables may be filled before.
  [[nodiscard]] std::int32_t next_free() const noexcept { return first_free_; }
  // Requires: next_free() != kNone.
  PinId take() noexcept;
  // Requires: the pin is open, and its tables are released.
  void give_back(std::int32_t pin) noexcept;

  // The open pin that the id names, or kNone.
  [[nodiscard]] std::int32_t find(PinId id) const noexcept;
  // Calls visit(pin) for each open pin in ascending order. The visit may give that pin back.
  template <typename Visit>
  void for_each_open(const Visit& visit) const {
    for (std::int32_t pin = 0; pin < touched_ && num_open_ > 0; ++pin) {
      if (pins_[pin].open) visit(pin);
    }
  }

  BlockTable& table(std::int32_t pin, std::int32_t g) noexcept {
    return tables_[std::int64_t{pin} * num_groups_ + g];
  }
  const BlockTable& table(std::int32_t pin, std::int32_t g) const noexcept {
    return tables_[std::int64_t{pin} * num_groups_ + g];
  }
  // Where its prefix ends, always between two blocks of each group; invalid if it holds nothing.
  // Keeps the path alive where no block is held for it: in window groups with a window of 1.
  Place& place(std::int32_t pin) noexcept { return pins_[pin].place; }
  [[nodiscard]] const Place& place(std::int32_t pin) const noexcept { return pins_[pin].place; }

  // Becomes an equal of `other`. Requires: allocated with the same arguments.
  void copy_from(const PinSet& other) noexcept;
  [[nodiscard]] MemoryUse memory() const noexcept {
    return MemoryUse::whole(pins_.bytes() + tables_.bytes());
  }
  [[nodiscard]] Status check() const;
  // In the order of what pins hold, as far as that has names. False: no memory for the order.
  [[nodiscard]] bool put_state(StateWriter& out, const SpanArena& arena) const;

 private:
  struct Pin {
    std::uint32_t generation;
    bool open;
    std::int32_t next_free;
    Place place;
  };

  FixedArray<Pin> pins_;
  FixedArray<BlockTable> tables_;  // [pin][group]
  std::int32_t num_groups_ = 0;
  std::uint16_t tag_ = 0;
  std::int32_t first_free_ = kNone;
  std::int32_t num_open_ = 0;
  std::int32_t touched_ = 0;
};

}  // namespace kvfolio
