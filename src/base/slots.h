// SPDX-License-Identifier: Apache-2.0
#pragma once

// How many slots a group may have.

#include <cstdint>

namespace kvfolio {

// A group's slots, block * block_size + offset, must fit int32.
inline constexpr std::int64_t kMaxSlots = (std::int64_t{1} << 31) - 1;

}  // namespace kvfolio
