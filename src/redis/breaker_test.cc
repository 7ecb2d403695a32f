// SPDX-License-Identifier: Apache-2.0
#include "redis/breaker.h"

#include <gtest/gtest.h>

namespace kvfolio::redis {
namespace {

constexpr GrowingPause::Limits kPauses{.shortest_us = 1'000'000, .longest_us = 4'000'000};

void fail(Breaker& breaker, std::uint64_t now_us) { breaker.lost(true, now_us, kPauses); }

TEST(Breaker, OpensAfterFailuresInARowAndPausesGrowUntilASuccess) {
  Breaker breaker;
  std::uint64_t now = 100;
  for (int i = 1; i < Breaker::kFailuresMax; ++i) {
    fail(breaker, now);
    EXPECT_FALSE(breaker.is_open());
    EXPECT_FALSE(breaker.may_try(now)) << "a moment later";
    now += Breaker::kRetryUs;
    EXPECT_TRUE(breaker.may_try(now));
  }
  fail(breaker, now);
  for (const std::uint64_t pause_us : {1'000'000u, 2'000'000u, 4'000'000u, 4'000'000u}) {
    EXPECT_TRUE(breaker.is_open());
    EXPECT_FALSE(breaker.may_try(now + pause_us - 1));
    now += pause_us;
    EXPECT_TRUE(breaker.may_try(now));
    EXPECT_TRUE(breaker.check(kPauses));
    breaker.greeted();
    EXPECT_FALSE(breaker.is_open());
    fail(breaker, now);  // not proved: it opens again
  }
  breaker.greeted();
  EXPECT_TRUE(breaker.went_well());
  EXPECT_FALSE(breaker.went_well());
  for (int i = 0; i < Breaker::kFailuresMax; ++i) fail(breaker, now);
  EXPECT_TRUE(breaker.may_try(now + kPauses.shortest_us)) << "the shortest again";
}

TEST(Breaker, AConnectionThatIsLostUnusedIsNoFailure) {
  Breaker breaker;
  for (int i = 0; i < 100; ++i) breaker.lost(false, 5, kPauses);
  EXPECT_FALSE(breaker.is_open());
  EXPECT_FALSE(breaker.went_well());
  EXPECT_TRUE(breaker.check(kPauses));
}

TEST(Breaker, ANodeThatRefusesOpensItAtOnce) {
  Breaker breaker;
  breaker.open(7, kPauses);
  EXPECT_TRUE(breaker.is_open());
  EXPECT_FALSE(breaker.may_try(7));
  EXPECT_TRUE(breaker.check(kPauses));
}

}  // namespace
}  // namespace kvfolio::redis
