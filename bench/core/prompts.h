// SPDX-License-Identifier: Apache-2.0
#pragma once

// Prompts that are made up on the spot, so that a tree far larger than the caches needs no second
// copy of its tokens: block b of prompt p is a function of (p, b).

#include <cstdint>
#include <span>
#include <vector>

#include "harness.h"

namespace kvfolio::bench {

inline constexpr std::int32_t kBlockSize = 16;

// Tokens of one block; equal (prompt, block) give equal tokens, others differ in the first.
inline void write_block(std::int32_t prompt, std::int32_t block, std::int32_t* out) {
  Random random(static_cast<std::uint64_t>(prompt) << 32 | static_cast<std::uint32_t>(block));
  // 31 bits that no other (prompt, block) of a benchmark has would be too few: two tokens.
  out[0] = prompt;
  out[1] = block;
  for (std::int32_t i = 2; i < kBlockSize; i += 2) {
    const std::uint64_t bits = random();
    out[i] = static_cast<std::int32_t>(bits & 0x7fffffffu);
    out[i + 1] = static_cast<std::int32_t>(bits >> 33);
  }
}

inline void write_prompt(std::int32_t prompt, std::span<std::int32_t> out) {
  for (std::size_t at = 0; at < out.size(); at += kBlockSize) {
    write_block(prompt, static_cast<std::int32_t>(at / kBlockSize), out.data() + at);
  }
}

// Blocks whose tokens and bookkeeping are four times the third-level cache.
[[nodiscard]] std::int32_t blocks_beyond_cache();

}  // namespace kvfolio::bench
