// SPDX-License-Identifier: Apache-2.0
#pragma once

// A program that links this counts its calls of the heap: operator new in every form, and calloc,
// from which the library's arrays come. Sanitizers bring an allocator of their own, whose calloc is
// not counted; clang's thread sanitizer counts nothing, and a test skips what it would say of it.

#include <cstdint>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KVFOLIO_TEST_SANITIZED 1
#endif
#if defined(__SANITIZE_THREAD__) && defined(__clang__)
#define KVFOLIO_TEST_COUNTS_HEAP_CALLS 0
#else
#define KVFOLIO_TEST_COUNTS_HEAP_CALLS 1
#endif

namespace kvfolio::testing_heap {

inline constexpr bool kCountsHeapCalls = KVFOLIO_TEST_COUNTS_HEAP_CALLS;

// Since the program began; from any thread.
[[nodiscard]] std::uint64_t num_heap_calls() noexcept;

}  // namespace kvfolio::testing_heap
