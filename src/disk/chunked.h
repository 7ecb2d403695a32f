// SPDX-License-Identifier: Apache-2.0
#pragma once

// Chunked is an array that grows without moving what it has, so growing costs the same whatever its
// size, and that answers false instead of throwing when there is no memory. Thread safety: none.

#include <cstddef>
#include <memory>
#include <new>
#include <vector>

#include "kvfolio/status.h"

namespace kvfolio::disk {

template <typename T, std::size_t kChunk>
class Chunked {
 public:
  // One element more, as T() is. False: no memory, and nothing has changed.
  [[nodiscard]] bool extend() noexcept {
    if (size_ == kChunk * chunks_.size()) {
      std::unique_ptr<T[]> chunk(new (std::nothrow) T[kChunk]);
      if (chunk == nullptr) return false;
      try {
        chunks_.push_back(std::move(chunk));
      } catch (const std::bad_alloc&) {
        return false;
      }
    }
    ++size_;
    return true;
  }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] T& operator[](std::size_t at) noexcept {
    KVFOLIO_DCHECK(at < size_);
    return chunks_[at / kChunk][at % kChunk];
  }
  [[nodiscard]] const T& operator[](std::size_t at) const noexcept {
    KVFOLIO_DCHECK(at < size_);
    return chunks_[at / kChunk][at % kChunk];
  }

 private:
  std::vector<std::unique_ptr<T[]>> chunks_;
  std::size_t size_ = 0;
};

}  // namespace kvfolio::disk
