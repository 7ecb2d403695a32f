// SPDX-License-Identifier: Apache-2.0
#pragma once

// HeldRecords pins the records of a prompt that are in the arena, until the prompt's turn to be
// written or its deadline. Without it each prompt would evict what another one waits with, and the
// largest would never have all of its records at once. The end of the prefix is the first to go,
// since it is worth nothing without the beginning. Thread safety: none.

#include <cstdint>
#include <iterator>
#include <map>
#include <utility>

#include "kvfolio/host_arena.h"

namespace kvfolio {

class HeldRecords {
 public:
  // `end`: of the record's tokens in the prompt. One that is held already is not held twice.
  void add(std::int32_t end, ArenaPin pin) {
    KVFOLIO_DCHECK(end > 0);
    if (pin && find(end, pin) == pins_.end()) pins_.emplace(end, std::move(pin));
  }
  void release(std::int32_t end, const ArenaPin& pin) {
    const auto found = find(end, pin);
    if (found != pins_.end()) pins_.erase(found);
  }
  // What ends behind `end`.
  void release_behind(std::int32_t end) { pins_.erase(pins_.upper_bound(end), pins_.end()); }
  // Requires: !empty().
  void release_last() {
    KVFOLIO_DCHECK(!pins_.empty());
    pins_.erase(std::prev(pins_.end()));
  }
  void clear() noexcept { pins_.clear(); }
  [[nodiscard]] bool empty() const noexcept { return pins_.empty(); }
  // Each is there, and once.
  [[nodiscard]] bool check() const {
    for (auto at = pins_.begin(); at != pins_.end(); ++at) {
      if (!at->second) return false;
      for (auto next = std::next(at); next != pins_.end() && next->first == at->first; ++next) {
        if (next->second.record().data() == at->second.record().data()) return false;
      }
    }
    return true;
  }

 private:
  using Pins = std::multimap<std::int32_t, ArenaPin>;
  // There is one record for each end and group.
  [[nodiscard]] Pins::iterator find(std::int32_t end, const ArenaPin& pin) {
    for (auto at = pins_.lower_bound(end); at != pins_.end() && at->first == end; ++at) {
      if (at->second.record().data() == pin.record().data()) return at;
    }
    return pins_.end();
  }

  Pins pins_;
};

}  // namespace kvfolio
