// SPDX-License-Identifier: Apache-2.0
#pragma once

// The state of a block, as BlockPool keeps it and KVCacheManager tells it: block_pool.h says what
// each state means. Thread safety: values.

#include <cstdint>

#include "kvfolio/export.h"

namespace kvfolio {

enum class BlockState : std::uint8_t { kFree = 0, kHeld = 1, kCached = 2, kRetiring = 3 };

}  // namespace kvfolio
