// SPDX-License-Identifier: Apache-2.0
#pragma once

// An odd number at random, of this process. A hash that is multiplied by it, and of which the high
// bits are taken, cannot be chosen from outside: who picks prompts may pick the bits of their
// digests, but not which of them share a place. Thread safety: may be called from any thread.

#include <unistd.h>

#include <cstdint>

namespace kvfolio {

inline std::uint64_t process_factor() noexcept {
  static const std::uint64_t factor = [] {
    std::uint64_t random = 0x9e3779b97f4a7c15u;  // if the system has none
    static_cast<void>(::getentropy(&random, sizeof random));
    return random | 1;
  }();
  return factor;
}

}  // namespace kvfolio
