// SPDX-License-Identifier: Apache-2.0
#pragma once

// Where keys lie in hash tables. A key holds a SHA-256, of which who chooses the tokens can choose
// some bits: he tries prompts until they come out as he wants. So they are multiplied by an odd
// number at random, of this process, twice, with the high half folded to the low one: which keys
// share a place cannot be chosen from outside. Thread safety: may be called from any thread.

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kvfolio/tier.h"

namespace kvfolio {

inline std::uint64_t process_factor() noexcept {
  static const std::uint64_t factor = [] {
    std::uint64_t random = 0x9e3779b97f4a7c15u;  // if the system has none
    static_cast<void>(::getentropy(&random, sizeof random));
    return random | 1;
  }();
  return factor;
}

// All bits are spread. `digest`: 32 bytes.
inline std::size_t spread_of(const std::byte* digest, std::uint64_t more = 0) noexcept {
  std::uint64_t bits = 0;
  std::memcpy(&bits, digest, sizeof bits);
  bits += more * 0x9e3779b97f4a7c15u;
  for (int round = 0; round < 2; ++round) {
    bits *= process_factor();
    bits ^= bits >> 32;
  }
  return static_cast<std::size_t>(bits);
}

struct TierKeyHash {
  std::size_t operator()(const TierKey& key) const noexcept {
    std::uint16_t group = 0;
    std::memcpy(&group, key.bytes.data() + 2, sizeof group);
    return spread_of(key.bytes.data() + 24, group);
  }
};

}  // namespace kvfolio
