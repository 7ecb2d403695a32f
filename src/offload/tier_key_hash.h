// SPDX-License-Identifier: Apache-2.0
#pragma once

// Digests and keys in the containers of the standard library. Both hold a SHA-256, of which who
// chooses the tokens chooses some bits. Thread safety: values.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/process_factor.h"
#include "kvfolio/identity.h"
#include "kvfolio/tier.h"

namespace kvfolio {

struct DigestHash {
  std::size_t operator()(const Digest& digest) const noexcept {
    std::uint64_t part = 0;
    std::memcpy(&part, digest.data(), sizeof part);
    return static_cast<std::size_t>(part * process_factor() >> 16);
  }
};

struct TierKeyHash {
  std::size_t operator()(const TierKey& key) const noexcept {
    std::uint64_t part = 0;
    std::memcpy(&part, key.bytes.data() + 24, sizeof part);
    std::uint16_t group = 0;
    std::memcpy(&group, key.bytes.data() + 2, sizeof group);
    return static_cast<std::size_t>((part + group * 0x9e3779b97f4a7c15u) * process_factor() >> 16);
  }
};

}  // namespace kvfolio
