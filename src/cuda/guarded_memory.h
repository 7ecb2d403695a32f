// SPDX-License-Identifier: Apache-2.0
#pragma once

// Memory of a test between two pages that may not be touched: a read or a write beside it ends the
// process at once. It lies against the page behind it or against the one before it.

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

#include "kvfolio/status.h"

namespace kvfolio::cuda {

class GuardedMemory {
 public:
  // `against_end`: at most 15 bytes are between its end and the page, if `bytes` is no multiple of
  // 16; else it begins where the page before it ends.
  GuardedMemory(std::int64_t bytes, bool against_end)
      : map_bytes_(((bytes + kPage - 1) / kPage + 2) * kPage) {
    void* const map = mmap(nullptr, static_cast<std::size_t>(map_bytes_), PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    KVFOLIO_CHECK(map != MAP_FAILED);
    map_ = static_cast<std::byte*>(map);
    const std::int64_t inner = map_bytes_ - 2 * kPage;
    if (inner > 0) {
      KVFOLIO_CHECK(
          mprotect(map_ + kPage, static_cast<std::size_t>(inner), PROT_READ | PROT_WRITE) == 0);
    }
    data_ = map_ + kPage + (against_end ? inner - (bytes + 15) / 16 * 16 : 0);
  }
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;
  ~GuardedMemory() { munmap(map_, static_cast<std::size_t>(map_bytes_)); }

  [[nodiscard]] std::byte* data() const noexcept { return data_; }

 private:
  static constexpr std::int64_t kPage = 4096;
  std::int64_t map_bytes_;
  std::byte* map_;
  std::byte* data_;
};

}  // namespace kvfolio::cuda
