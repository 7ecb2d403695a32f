// SPDX-License-Identifier: Apache-2.0
#pragma once

// The one place that hashes. A hash here only chooses where to look; equality is always decided by
// comparing the things themselves, so a collision costs time and never makes a wrong hit.

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstddef>
#include <cstdint>

#include "base/mutants.h"

namespace kvfolio {

[[nodiscard]] inline std::uint64_t hash_bytes(const void* data, std::size_t size,
                                              std::uint64_t seed) noexcept {
  if (constant_hash()) return 0;
  return XXH3_64bits_withSeed(data, size, seed);
}

// A well-mixed function of one integer (the finaliser of splitmix64).
[[nodiscard]] constexpr std::uint64_t spread_bits(std::uint64_t x) noexcept {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The same as a hash, which the tests of collisions make constant.
[[nodiscard]] inline std::uint64_t mix_bits(std::uint64_t x) noexcept {
  return constant_hash() ? 0 : spread_bits(x);
}

}  // namespace kvfolio
