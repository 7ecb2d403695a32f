// SPDX-License-Identifier: Apache-2.0
#pragma once

// The checksum, compiled for several CPUs. All give the same numbers. Thread safety: constants.

#include <cstddef>
#include <cstdint>

#include "kvfolio/memory.h"

namespace kvfolio::checksum_targets {

struct Functions {
  std::uint64_t (*whole)(const std::byte* bytes, std::size_t size, std::uint64_t seed) noexcept;
  std::uint64_t (*copy)(const CopyRun* runs, std::size_t count, std::uint64_t seed) noexcept;
};

extern const Functions portable;
#if defined(__x86_64__)
extern const Functions avx2;
extern const Functions avx512;
#endif

}  // namespace kvfolio::checksum_targets
