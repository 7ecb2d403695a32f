// SPDX-License-Identifier: Apache-2.0
#pragma once

// MemberSum tells whether two collections have the same members, each equally often, without memory
// for either: check_invariants() may take no heap and may write nothing. It adds up two hashes of
// each member. Equal collections have equal sums. Unequal ones have equal sums only if the errors
// cancel out in 128 bits; a check may live with that, so nothing else may rely on it.

#include <cstdint>

#include "base/hash.h"

namespace kvfolio {

class MemberSum {
 public:
  // Requires: 0 <= member.
  void add(std::int32_t member, std::int32_t times = 1) noexcept {
    const auto id = static_cast<std::uint64_t>(member);
    const auto count = static_cast<std::uint64_t>(times);
    first_ += count * spread_bits(id);
    second_ += count * spread_bits(~id);
  }

  friend bool operator==(const MemberSum&, const MemberSum&) = default;

 private:
  std::uint64_t first_ = 0;
  std::uint64_t second_ = 0;
};

}  // namespace kvfolio
