// SPDX-License-Identifier: Apache-2.0
#pragma once

// A program that links this counts its calls of the heap: operator new in every form, and calloc,
// from which the library's arrays come. Sanitizers bring an allocator of their own, whose calloc is
// not counted.

#include <cstdint>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KVFOLIO_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define KVFOLIO_TEST_SANITIZED 1
#endif
#endif

namespace kvfolio::testing_heap {

// Since the program began; from any thread.
[[nodiscard]] std::uint64_t num_heap_calls() noexcept;

}  // namespace kvfolio::testing_heap
