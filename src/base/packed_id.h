// SPDX-License-Identifier: Apache-2.0
#pragma once

// The 64 bits of a SequenceId or a PinId: the manager's tag (16), the generation (24) and the row
// (24). A row gets a new generation each time that what it holds ends, so an id that was given out
// before does not name what comes next. Generations count from 1, so no id is 0.

#include <cstdint>

namespace kvfolio {

struct PackedId {
  static constexpr std::int32_t kMaxRows = 1 << 24;

  std::uint16_t tag;
  std::uint32_t generation;
  std::int32_t row;

  [[nodiscard]] static constexpr PackedId of(std::uint64_t bits) noexcept {
    return {static_cast<std::uint16_t>(bits >> 48),
            static_cast<std::uint32_t>(bits >> 24 & 0xffffffu), row_of(bits)};
  }
  [[nodiscard]] static constexpr std::int32_t row_of(std::uint64_t bits) noexcept {
    return static_cast<std::int32_t>(bits & 0xffffffu);
  }
  [[nodiscard]] constexpr std::uint64_t bits() const noexcept {
    return std::uint64_t{tag} << 48 | std::uint64_t{generation} << 24 |
           static_cast<std::uint64_t>(row);
  }
};

// After the largest one comes 1.
[[nodiscard]] constexpr std::uint32_t next_generation(std::uint32_t generation) noexcept {
  return generation == 0xffffffu ? 1u : generation + 1u;
}

[[nodiscard]] constexpr std::uint32_t previous_generation(std::uint32_t generation) noexcept {
  return generation == 1u ? 0xffffffu : generation - 1u;
}

}  // namespace kvfolio
