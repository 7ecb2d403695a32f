// SPDX-License-Identifier: Apache-2.0
#pragma once

// Steps are what one call of an Offload may look at: blocks of prompts, units that are hashed,
// questions and answers. So no call takes longer because there are more of them: it stops, and the
// next one goes on. A part of them is kept for stores, whatever prompts there are to look at.
// Thread safety: none.

#include <algorithm>
#include <cstdint>

#include "kvfolio/status.h"

namespace kvfolio {

class Steps {
 public:
  static constexpr std::int64_t kOfCall = std::int64_t{1} << 15;
  static constexpr std::int64_t kOfStores = kOfCall / 4;

  // `most` is the most that a call took so far; it outlives this.
  explicit Steps(std::uint64_t& most) noexcept : most_(most) {}

  void begin_call() noexcept { taken_ = 0; }
  void keep_for_stores() noexcept { allowed_ = kOfCall - kOfStores; }
  void give_to_stores() noexcept { allowed_ = kOfCall; }

  [[nodiscard]] bool has_any() const noexcept { return taken_ < allowed_; }
  // Also more than there are: an answer that came is looked at.
  void took(std::int64_t steps) noexcept {
    KVFOLIO_DCHECK(steps >= 0);
    taken_ += steps;
    most_ = std::max(most_, static_cast<std::uint64_t>(taken_));
  }
  // What the call has left; below 0 if it took more.
  [[nodiscard]] std::int64_t left() const noexcept { return kOfCall - taken_; }

 private:
  static_assert(kOfStores > 0 && kOfStores < kOfCall);

  std::int64_t taken_ = 0, allowed_ = kOfCall;
  std::uint64_t& most_;
};

}  // namespace kvfolio
