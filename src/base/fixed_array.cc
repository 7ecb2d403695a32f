// SPDX-License-Identifier: Apache-2.0

// The part of FixedArray that is no template: it asks the system for huge pages. Only whole 2 MiB
// pages inside the range can be had, and a refusal changes nothing but speed. fixed_array.h says
// what the arrays are for.

#include "kvfolio/fixed_array.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace kvfolio {

void prefer_huge_pages([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes) noexcept {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr std::uintptr_t kHugePage = std::uintptr_t{2} << 20;
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const std::uintptr_t last = (begin + bytes) / kHugePage * kHugePage;
  // A kernel without huge pages answers EINVAL, and plain pages do.
  if (first < last) {
    void* inner = static_cast<std::byte*>(memory) + (first - begin);
    static_cast<void>(::madvise(inner, last - first, MADV_HUGEPAGE));
  }
#endif
}

}  // namespace kvfolio
