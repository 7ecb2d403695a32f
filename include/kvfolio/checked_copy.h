// SPDX-License-Identifier: Apache-2.0
#pragma once

// Checksums of payloads, and copies that compute one on the way. The checksum is XXH3-64 with a
// seed, the same on every machine. It shows damage, not malice: a writer to a medium can
// also write a checksum.
//
// A copy and a checksum in turn over 4 KiB at a time read memory once: the second of the two finds
// its bytes in the first cache level.
//
// Thread safety: free functions.

#include <cstddef>
#include <cstdint>
#include <span>

#include "kvfolio/export.h"
#include "kvfolio/memory.h"

namespace kvfolio {

[[nodiscard]] KVFOLIO_API std::uint64_t checksum(std::span<const std::byte> bytes,
                                                 std::uint64_t seed) noexcept;
// Copies all runs in order, and returns the checksum of the bytes that were read, one run behind
// the other. Runs do not overlap. A run whose dst is null is read, and not copied.
[[nodiscard]] KVFOLIO_API std::uint64_t copy_with_checksum(std::span<const CopyRun> runs,
                                                           std::uint64_t seed) noexcept;

// CRC-32C (Castagnoli), for headers: short, and a standard that other programs can compute.
[[nodiscard]] KVFOLIO_API std::uint32_t crc32c(std::span<const std::byte> bytes) noexcept;

}  // namespace kvfolio
