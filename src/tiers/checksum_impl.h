// SPDX-License-Identifier: Apache-2.0
// No #pragma once: each source that is compiled for a target includes this once, with
// KVFOLIO_CHECKSUM_TARGET defined. xxHash chooses its vectors by the flags of the source.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>

#include "tiers/checksum_targets.h"

namespace kvfolio::checksum_targets {
namespace {

constexpr std::size_t kPiece = 4096;

std::uint64_t whole(const std::byte* bytes, std::size_t size, std::uint64_t seed) noexcept {
  return XXH3_64bits_withSeed(bytes, size, seed);
}

// The state is 576 bytes on the stack, aligned to 64.
std::uint64_t copy(const CopyRun* runs, std::size_t count, std::uint64_t seed) noexcept {
  XXH3_state_t state;
  state.seed = 0;  // the reset below reads these two
  state.extSecret = nullptr;
  XXH3_64bits_reset_withSeed(&state, seed);
  for (std::size_t i = 0; i < count; ++i) {
    const std::byte* from = runs[i].src;
    std::byte* to = runs[i].dst;
    for (auto left = static_cast<std::size_t>(runs[i].bytes); left > 0;) {
      const std::size_t piece = left < kPiece ? left : kPiece;
      XXH3_64bits_update(&state, from, piece);
      if (to != nullptr) {
        std::memcpy(to, from, piece);
        to += piece;
      }
      from += piece;
      left -= piece;
    }
  }
  return XXH3_64bits_digest(&state);
}

}  // namespace

extern const Functions KVFOLIO_CHECKSUM_TARGET;
const Functions KVFOLIO_CHECKSUM_TARGET = {whole, copy};

}  // namespace kvfolio::checksum_targets
