// SPDX-License-Identifier: Apache-2.0
#pragma once

// Breaker decides when a connection is begun again after it was lost. After kFailuresMax failures
// without a success it is open: nothing is given to the node, and a connection is tried after a
// GrowingPause. One that is greeted closes it for now; it is not proved yet, so the next failure
// opens it again, for longer. The first success ends all this. Thread safety: none.

#include <cstdint>

#include "kvfolio/status.h"
#include "tiers/growing_pause.h"

namespace kvfolio::redis {

class Breaker {
 public:
  static constexpr int kFailuresMax = 3;
  static constexpr std::uint64_t kRetryUs = 10'000;  // after each failure but those that open it

  // The connection is lost. `counts`: that is a failure.
  void lost(bool counts, std::uint64_t now_us, GrowingPause::Limits pauses) noexcept {
    failures_ += counts ? 1 : 0;
    retry_us_ = now_us + kRetryUs;
    if (is_open()) open(now_us, pauses);
  }
  void open(std::uint64_t now_us, GrowingPause::Limits pauses) noexcept {
    KVFOLIO_DCHECK(pauses.shortest_us > 0 && pauses.shortest_us <= pauses.longest_us);
    failures_ = kFailuresMax;
    pause_.begin(now_us, pauses);
    retry_us_ = 0;
  }
  void greeted() noexcept {
    if (is_open()) --failures_;
    KVFOLIO_DCHECK(!is_open());
  }
  // True: there were failures before.
  bool went_well() noexcept {
    const bool had_failed = failures_ > 0;
    failures_ = 0;
    pause_.shrink();
    return had_failed;
  }

  [[nodiscard]] bool is_open() const noexcept { return failures_ >= kFailuresMax; }
  // A connection may be begun now.
  [[nodiscard]] bool may_try(std::uint64_t now_us) const noexcept {
    return !pause_.is_on(now_us) && now_us >= retry_us_;
  }
  [[nodiscard]] bool check(GrowingPause::Limits pauses) const noexcept {
    return failures_ >= 0 && failures_ <= kFailuresMax && pause_.check(pauses) &&
           (!is_open() || pause_.has_grown());
  }

 private:
  int failures_ = 0;  // without a success between them
  GrowingPause pause_;
  std::uint64_t retry_us_ = 0;
};

}  // namespace kvfolio::redis
