// SPDX-License-Identifier: Apache-2.0
#pragma once

// HeldRecords pins the records of a prompt that are in the arena, until the prompt's turn to be
// written or its deadline. Without it each prompt would evict what another one waits with, and the
// largest would never have all of its records at once. The end of the prefix is the first to go,
// since it is worth nothing without the beginning. Thread safety: none.

#include <cstdint>
#include <map>
#include <utility>

#include "kvfolio/host_arena.h"

namespace kvfolio {

class HeldRecords {
 public:
  // `end`: of the record's tokens in the prompt.
  void add(std::int32_t end, ArenaPin pin) {
    if (pin) pins_.emplace(end, std::move(pin));
  }
  // Requires: !empty().
  void release_last() { pins_.erase(std::prev(pins_.end())); }
  void clear() noexcept { pins_.clear(); }
  [[nodiscard]] bool empty() const noexcept { return pins_.empty(); }

 private:
  std::multimap<std::int32_t, ArenaPin> pins_;
};

}  // namespace kvfolio
