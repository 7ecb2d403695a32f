// SPDX-License-Identifier: Apache-2.0
#pragma once

// How many operations a random test makes if KVFOLIO_OPS says nothing.

#include <cstdint>

namespace kvfolio::test {

// A third under a sanitizer, where an operation takes ten times as long: what these tests find in
// an answer they find in release, and scripts/nightly makes all of them under the sanitizers too.
constexpr std::uint64_t operations_by_default(std::uint64_t in_release) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return in_release / 3;
#else
  return in_release;
#endif
}

}  // namespace kvfolio::test
