// SPDX-License-Identifier: Apache-2.0
#pragma once

// Overflow-checked int64 arithmetic. A chain stays poisoned after its first overflow, so one test
// at the end is enough:  Checked bytes = Checked(layers) * heads * dim;  if (!bytes.ok()) ...

#include <cstdint>

#include "kvfolio/status.h"

namespace kvfolio {

class Checked {
 public:
  constexpr explicit Checked(std::int64_t value) noexcept : value_(value) {}

  [[nodiscard]] constexpr bool ok() const noexcept { return ok_; }
  [[nodiscard]] constexpr std::int64_t value() const noexcept { return value_; }

  constexpr Checked operator*(std::int64_t other) const noexcept {
    Checked result = *this;
    result.ok_ = ok_ && !__builtin_mul_overflow(value_, other, &result.value_);
    return result;
  }
  constexpr Checked operator+(std::int64_t other) const noexcept {
    Checked result = *this;
    result.ok_ = ok_ && !__builtin_add_overflow(value_, other, &result.value_);
    return result;
  }
  constexpr Checked operator*(Checked other) const noexcept {
    Checked result = *this * other.value_;
    result.ok_ = result.ok_ && other.ok_;
    return result;
  }
  constexpr Checked operator+(Checked other) const noexcept {
    Checked result = *this + other.value_;
    result.ok_ = result.ok_ && other.ok_;
    return result;
  }
  // Requires: alignment is a power of two.
  [[nodiscard]] constexpr Checked round_up(std::int64_t alignment) const noexcept {
    KVFOLIO_DCHECK(alignment > 0 && (alignment & (alignment - 1)) == 0);
    Checked result = *this + (alignment - 1);
    result.value_ = result.value_ / alignment * alignment;
    return result;
  }

 private:
  std::int64_t value_;
  bool ok_ = true;
};

}  // namespace kvfolio
