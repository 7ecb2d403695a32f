// SPDX-License-Identifier: Apache-2.0
#pragma once

// GrowingPause is for how long something that failed is left alone: a disk, a server, a tier that
// does not answer. Each pause is twice as long as the one before, until the user says that all is
// well. When a pause begins is the user's to decide; so is who tries when it is over.
// Thread safety: none.

#include <algorithm>
#include <cstdint>

#include "kvfolio/status.h"

namespace kvfolio {

class GrowingPause {
 public:
  struct Limits {
    std::uint64_t shortest_us = 0, longest_us = 0;
  };

  void begin(std::uint64_t now_us, Limits limits) noexcept {
    KVFOLIO_DCHECK(0 < limits.shortest_us && limits.shortest_us <= limits.longest_us);
    length_us_ = std::clamp(2 * length_us_, limits.shortest_us, limits.longest_us);
    until_us_ = now_us + std::min(length_us_, ~now_us);
  }
  // This one is over; the next one is longer.
  void end() noexcept { until_us_ = 0; }
  // The next one is a shortest one. This one goes on.
  void shrink() noexcept { length_us_ = 0; }

  [[nodiscard]] bool is_on(std::uint64_t now_us) const noexcept { return now_us < until_us_; }
  // There was one since the last shrink().
  [[nodiscard]] bool has_grown() const noexcept { return length_us_ > 0; }
  [[nodiscard]] bool check(Limits limits) const noexcept {
    return !has_grown() || (length_us_ >= limits.shortest_us && length_us_ <= limits.longest_us);
  }

 private:
  std::uint64_t length_us_ = 0;  // of the last one
  std::uint64_t until_us_ = 0;
};

}  // namespace kvfolio
