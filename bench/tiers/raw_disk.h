// SPDX-License-Identifier: Apache-2.0
#pragma once

// The other side of the disk's rows: the same bytes with O_DIRECT and nothing else. A file that was
// made at its full size, written from its beginning or read at random places, by bare threads or a
// bare ring.

#include <string>

#include "harness.h"

namespace kvfolio::bench {

inline constexpr int kRawThreads = 8;      // as DiskTierOptions::num_threads
inline constexpr int kRawQueueDepth = 32;  // as DiskTierOptions::queue_depth

class RawFile {
 public:
  RawFile(const std::string& folder, std::int64_t bytes);
  ~RawFile();
  RawFile(const RawFile&) = delete;
  RawFile& operator=(const RawFile&) = delete;
  // Piece i of `order` is the order[i]-th of the file and of `memory`. Wall nanoseconds.
  double by_threads(bool writes, std::byte* memory, std::int64_t piece,
                    std::span<const std::int32_t> order) const;
  double by_ring(bool writes, std::byte* memory, std::int64_t piece,
                 std::span<const std::int32_t> order) const;

 private:
  int file_ = -1;
};

[[nodiscard]] bool has_raw_ring();

}  // namespace kvfolio::bench
