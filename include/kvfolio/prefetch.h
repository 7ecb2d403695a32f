// SPDX-License-Identifier: Apache-2.0
#pragma once

// Asks for a line of the caches before it is needed, where the next addresses are known and lie all
// over a memory that exceeds the caches. Any address does, null too; nothing changes but time.
//
// Not __builtin_prefetch alone: GCC takes a function that does nothing else for one without effect,
// and leaves out each call of it in a file that has its body. An empty asm statement is an effect.

#include "kvfolio/export.h"

namespace kvfolio {

inline void prefetch_to_read(const void* address) noexcept {
  __builtin_prefetch(address);
  asm volatile("");
}
inline void prefetch_to_write(const void* address) noexcept {
  __builtin_prefetch(address, 1);
  asm volatile("");
}

}  // namespace kvfolio
