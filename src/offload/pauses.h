// SPDX-License-Identifier: Apache-2.0
#pragma once

// Pauses decides when a tier is passed over whose answers do not come in time. One for each kind of
// question, since a disk may answer from its index what it has while its reads hang.
//
// A round is a time-out of something that was begun after the round before had ended, so a hundred
// items that one stall delays are one round. After kRounds of them without an answer in between the
// tier is passed over for a GrowingPause; then one item tries it. If that is late too, the next
// pause is longer. An answer in time ends all this. Thread safety: none.

#include <cstdint>

#include "kvfolio/status.h"
#include "tiers/growing_pause.h"

namespace kvfolio {

class Pauses {
 public:
  static constexpr int kRounds = 3;
  static constexpr GrowingPause::Limits kLimits{.shortest_us = 500'000, .longest_us = 30'000'000};

  // Something that began at `since_us` did not end by its deadline. True: a pause begins.
  bool timed_out(std::uint64_t since_us, std::uint64_t now_us) noexcept {
    if (rounds_ > 0 && since_us < last_us_) return false;
    last_us_ = now_us;
    ++rounds_;
    if (rounds_ < kRounds) return false;
    rounds_ = kRounds;
    KVFOLIO_DCHECK(since_us <= now_us);
    pause_.begin(now_us, kLimits);
    return true;
  }
  // Something ended in time, with whatever result.
  void answered() noexcept { *this = Pauses(); }

  [[nodiscard]] bool passed_over() const noexcept { return rounds_ >= kRounds; }
  // The pause is over: one item may try.
  [[nodiscard]] bool may_try(std::uint64_t now_us) const noexcept {
    return passed_over() && !pause_.is_on(now_us);
  }
  [[nodiscard]] Status check() const {
    const bool right = rounds_ >= 0 && rounds_ <= kRounds && pause_.check(kLimits) &&
                       passed_over() == pause_.has_grown();
    return right ? Status() : Status(ErrorCode::kAborted, "pauses: a pause without its rounds");
  }

 private:
  int rounds_ = 0;
  std::uint64_t last_us_ = 0;  // when the last round ended
  GrowingPause pause_;
};

}  // namespace kvfolio
