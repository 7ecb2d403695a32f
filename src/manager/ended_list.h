// SPDX-License-Identifier: Apache-2.0
#pragma once

// EndedList keeps what fail() and preempt_to() return: the sequences that the last such call ended,
// in order. Thread safety: none; const calls write nothing. Nothing allocates after allocate().

#include <cstdint>
#include <span>

#include "kvfolio/fixed_array.h"
#include "kvfolio/manager_types.h"

namespace kvfolio {

class EndedList {
 public:
  // False: no memory.
  [[nodiscard]] bool allocate(std::int64_t most) noexcept { return list_.allocate_zeroed(most); }
  void clear() noexcept { size_ = 0; }
  // Requires: fewer than `most` since clear().
  void add(const EndedSequence& ended) noexcept { list_[size_++] = ended; }
  [[nodiscard]] std::span<const EndedSequence> list() const noexcept {
    return {list_.data(), static_cast<std::size_t>(size_)};
  }
  [[nodiscard]] MemoryUse memory() const noexcept { return MemoryUse::whole(list_.bytes()); }

 private:
  FixedArray<EndedSequence> list_;  // [size_]
  std::int32_t size_ = 0;
};

}  // namespace kvfolio
