// SPDX-License-Identifier: Apache-2.0
#pragma once

// Tokens per block, as what positions are divided by: a step asks several times for each sequence,
// so where the size is a power of two nothing is divided. Positions are not negative.

#include <bit>
#include <cstdint>

#include "kvfolio/status.h"

namespace kvfolio {

class BlockSize {
 public:
  constexpr BlockSize() noexcept = default;
  // Requires: tokens >= 1.
  constexpr explicit BlockSize(std::int32_t tokens) noexcept
      : tokens_(tokens),
        shift_(std::has_single_bit(static_cast<std::uint32_t>(tokens))
                   ? std::countr_zero(static_cast<std::uint32_t>(tokens))
                   : -1) {
    KVFOLIO_DCHECK(tokens >= 1);
  }

  // The logical block of a position.
  [[nodiscard]] constexpr std::int32_t block_of(std::int32_t position) const noexcept {
    return shift_ >= 0 ? position >> shift_ : position / tokens_;
  }
  // Where that block begins, and the position's offset in it.
  [[nodiscard]] constexpr std::int32_t begin_of(std::int32_t position) const noexcept {
    return shift_ >= 0 ? position >> shift_ << shift_ : position / tokens_ * tokens_;
  }
  [[nodiscard]] constexpr std::int32_t offset_of(std::int32_t position) const noexcept {
    return position - begin_of(position);
  }

 private:
  std::int32_t tokens_ = 1;
  std::int32_t shift_ = 0;  // log2 of the tokens; -1: they are no power of two
};

static_assert(BlockSize(16).block_of(47) == 2 && BlockSize(16).offset_of(47) == 15);
static_assert(BlockSize(12).block_of(47) == 3 && BlockSize(12).begin_of(47) == 36);

}  // namespace kvfolio
