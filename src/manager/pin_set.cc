// SPDX-License-Identifier: Apache-2.0
//
// Pins: ids and tables of prefixes that stay (pin_set.h). pins.cc decides what a pin holds.

#include "manager/pin_set.h"

#include <tuple>

#include "base/state_writer.h"
#include "base/text.h"

namespace kvfolio {

using text::concat;

bool PinSet::allocate(std::int32_t max_pins, std::int32_t num_groups, std::uint16_t tag) noexcept {
  if (!pins_.allocate_zeroed(max_pins) ||
      !tables_.allocate_zeroed(std::int64_t{max_pins} * num_groups)) {
    return false;
  }
  num_groups_ = num_groups;
  tag_ = tag;
  first_free_ = kNone;
  num_open_ = touched_ = 0;
  for (std::int32_t pin = max_pins - 1; pin >= 0; --pin) {  // pin 0 is taken first
    pins_[pin].generation = 1;
    pins_[pin].next_free = first_free_;
    first_free_ = pin;
    for (std::int32_t g = 0; g < num_groups; ++g) table(pin, g) = BlockTable();
  }
  return true;
}

PinId PinSet::take() noexcept {
  KVFOLIO_CHECK(first_free_ != kNone);
  const std::int32_t pin = first_free_;
  first_free_ = pins_[pin].next_free;
  pins_[pin].open = true;
  ++num_open_;
  touched_ = std::max(touched_, pin + 1);
  return PinId(PackedId{tag_, pins_[pin].generation, pin}.bits());
}

void PinSet::give_back(std::int32_t pin) noexcept {
  KVFOLIO_CHECK(pins_[pin].open);
  pins_[pin].open = false;
  pins_[pin].generation = next_generation(pins_[pin].generation);
  pins_[pin].next_free = first_free_;
  first_free_ = pin;
  --num_open_;
}

std::int32_t PinSet::find(PinId id) const noexcept {
  const std::int32_t pin = PackedId::row_of(id.value());
  if (pin >= touched_ || !pins_[pin].open) return kNone;
  return PackedId{tag_, pins_[pin].generation, pin}.bits() == id.value() ? pin : kNone;
}

void PinSet::copy_from(const PinSet& other) noexcept {
  const auto& [pins, tables, num_groups, tag, first_free, num_open, touched] = other;
  KVFOLIO_CHECK(num_groups == num_groups_ && tag == tag_);
  pins_.copy_from(pins);
  tables_.copy_from(tables);
  first_free_ = first_free;
  num_open_ = num_open;
  touched_ = touched;
}

Status PinSet::check() const {
  const auto broken = [](const std::string& what) {
    return Status(ErrorCode::kFailedPrecondition, "pins: " + what);
  };
  const auto max_pins = static_cast<std::int32_t>(pins_.size());
  std::int32_t open = 0;
  for (std::int32_t pin = 0; pin < max_pins; ++pin) {
    open += pins_[pin].open ? 1 : 0;
    if (pins_[pin].open && pin >= touched_) {
      return broken(concat(pin, " is open, and ", touched_, " was never taken"));
    }
    for (std::int32_t g = 0; g < num_groups_ && !pins_[pin].open; ++g) {
      if (table(pin, g).capacity() == 0) continue;
      return broken(concat(pin, " is free and has a table in group ", g));
    }
  }
  std::int32_t free = 0;
  for (std::int32_t pin = first_free_; pin != kNone && free <= max_pins; ++free) {
    if (pins_[pin].open) return broken(concat(pin, " is open and in the list of the free ones"));
    pin = pins_[pin].next_free;
  }
  if (open == num_open_ && open + free == max_pins) return {};
  return broken(
      concat(open, " are open, counted ", num_open_, ", and ", free, " are free of ", max_pins));
}

bool PinSet::put_state(StateWriter& out, const SpanArena& arena) const {
  struct Named {
    std::uint64_t content;
    std::int32_t pin;
    bool operator<(const Named& other) const noexcept {
      return std::tie(content, pin) < std::tie(other.content, other.pin);
    }
  };
  FixedArray<Named> named;
  if (!named.allocate_zeroed(num_open_)) return false;
  std::int32_t count = 0;
  for_each_open([&](std::int32_t pin) {
    const Place& at = place(pin);
    StateWords content;
    content.put(at.valid() ? out.runs_.peek(at.run) : -1);
    content.put(at.position);
    for (std::int32_t g = 0; g < num_groups_; ++g) {
      for (const std::int32_t block : table(pin, g).blocks(arena)) {
        content.put(out.blocks_.peek(out.number_of(g, block)));
      }
    }
    named[count++] = {content.hash(), pin};
  });
  std::sort(named.data(), named.data() + count);
  out.put(count);
  for (std::int32_t i = 0; i < count; ++i) {
    const std::int32_t pin = named[i].pin;
    out.put_place(place(pin));
    for (std::int32_t g = 0; g < num_groups_; ++g) out.put_table(g, table(pin, g).blocks(arena));
  }
  return true;
}

}  // namespace kvfolio
