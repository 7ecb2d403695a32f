// SPDX-License-Identifier: Apache-2.0
#pragma once

// Blocks of a group that change their state together: what the tree keeps of a run is then read and
// written once for all that lie on it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace kvfolio {

#ifdef KVFOLIO_MUTANTS
inline constexpr std::int32_t kBlocksAtOnce = 3;  // the short tables of tests take several turns
#else
inline constexpr std::int32_t kBlocksAtOnce = 32;
#endif

class BlockBatch {
 public:
  // Requires: fewer than kBlocksAtOnce are in it.
  void add(std::int32_t block) noexcept { blocks_[size_++] = block; }
  // Those that were added. The batch is empty; they are there until the next add().
  [[nodiscard]] std::span<const std::int32_t> take() noexcept {
    return {blocks_.data(), std::exchange(size_, 0)};
  }

 private:
  std::array<std::int32_t, kBlocksAtOnce> blocks_;
  std::size_t size_ = 0;
};

}  // namespace kvfolio
