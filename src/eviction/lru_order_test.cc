// SPDX-License-Identifier: Apache-2.0
#include "kvfolio/lru_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace kvfolio {
namespace {

using ::testing::HasSubstr;

constexpr GroupId kOnly(0);

LruOrder order_of(std::int32_t num_blocks) {
  Result<LruOrder> order = LruOrder::create({&num_blocks, 1});
  EXPECT_TRUE(order) << order.error().message();
  return std::move(*order);
}

TEST(LruOrder, SizesOutOfRangeAreRefusedWithTheNumber) {
  for (const std::int32_t n : {0, -1, (1 << 29) + 1, std::numeric_limits<std::int32_t>::max()}) {
    const Result<LruOrder> order = LruOrder::create({&n, 1});
    ASSERT_FALSE(order);
    EXPECT_EQ(order.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(order.error().message(), HasSubstr("num_blocks is " + std::to_string(n)));
  }
}

TEST(LruOrder, NobodyHasARankAtFirst) {
  const LruOrder order = order_of(5);
  for (std::int32_t b = 0; b < 5; ++b) {
    EXPECT_FALSE(order.has_rank(kOnly, BlockId(b)));
    EXPECT_EQ(order.turn(kOnly, BlockId(b)), EvictionTurn::kNever);
  }
  EXPECT_EQ(order.victim(kOnly), BlockId());
}

TEST(LruOrder, TheVictimIsTheColdestCandidate) {
  LruOrder order = order_of(4);
  for (const std::int32_t b : {2, 0, 3, 1}) order.touch(kOnly, BlockId(b));
  EXPECT_EQ(order.victim(kOnly), BlockId());  // nobody is a candidate
  order.set_turn(kOnly, BlockId(3), EvictionTurn::kNormal);
  order.set_turn(kOnly, BlockId(1), EvictionTurn::kNormal);
  EXPECT_EQ(order.victim(kOnly), BlockId(3));
  // One that becomes a candidate late stands where its rank says.
  order.set_turn(kOnly, BlockId(0), EvictionTurn::kNormal);
  EXPECT_EQ(order.victim(kOnly), BlockId(0));
  order.set_turn(kOnly, BlockId(0), EvictionTurn::kNever);
  EXPECT_EQ(order.victim(kOnly), BlockId(3));
  order.forget(kOnly, BlockId(3));
  EXPECT_EQ(order.victim(kOnly), BlockId(1));
  EXPECT_TRUE(order.colder({kOnly, BlockId(2)}, {kOnly, BlockId(0)}));
  EXPECT_FALSE(order.colder({kOnly, BlockId(1)}, {kOnly, BlockId(0)}));
}

TEST(LruOrder, TouchMakesABlockTheWarmestAndNoCandidate) {
  LruOrder order = order_of(3);
  for (std::int32_t b = 0; b < 3; ++b) order.touch(kOnly, BlockId(b));
  order.set_turn(kOnly, BlockId(0), EvictionTurn::kNormal);
  order.touch(kOnly, BlockId(0));
  EXPECT_EQ(order.turn(kOnly, BlockId(0)), EvictionTurn::kNever);
  EXPECT_TRUE(order.colder({kOnly, BlockId(2)}, {kOnly, BlockId(0)}));
}

TEST(LruOrder, CandidatesComeAndGoWithoutLosingTheirRank) {
  LruOrder order = order_of(2);
  order.touch(kOnly, BlockId(1));
  order.touch(kOnly, BlockId(0));
  for (int i = 0; i < 5; ++i) {
    order.set_turn(kOnly, BlockId(0), i % 2 == 0 ? EvictionTurn::kNormal : EvictionTurn::kNever);
    order.set_turn(kOnly, BlockId(1), i % 2 != 0 ? EvictionTurn::kLast : EvictionTurn::kNever);
    EXPECT_TRUE(order.colder({kOnly, BlockId(1)}, {kOnly, BlockId(0)}));
    EXPECT_EQ(order.victim(kOnly), BlockId(i % 2));
  }
}

TEST(LruOrderDeathTest, ACandidateWithoutARankStopsTheProgram) {
  LruOrder order = order_of(2);
  EXPECT_DEATH(order.set_turn(kOnly, BlockId(1), EvictionTurn::kNormal), "broken invariant");
}

// Against a clock per block and a map from clock to block; the log wraps many times.
void compare_with_naive(std::int32_t num_blocks, int operations, std::uint32_t seed) {
  SCOPED_TRACE("blocks " + std::to_string(num_blocks) + " seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  LruOrder order = order_of(num_blocks);
  std::map<std::int64_t, std::int32_t> by_rank;
  std::vector<std::int64_t> rank(static_cast<std::size_t>(num_blocks), -1);
  std::set<std::pair<EvictionTurn, std::int64_t>> candidates;  // turns and ranks
  std::vector<EvictionTurn> turn(static_cast<std::size_t>(num_blocks), EvictionTurn::kNever);
  std::int64_t clock = 0;
  const auto forget = [&](std::int32_t b) {
    std::int64_t& at = rank[static_cast<std::size_t>(b)];
    if (at < 0) return;
    by_rank.erase(at);
    candidates.erase({turn[static_cast<std::size_t>(b)], at});
    turn[static_cast<std::size_t>(b)] = EvictionTurn::kNever;
    at = -1;
  };
  for (int i = 0; i < operations; ++i) {
    const std::int32_t b = pick(0, num_blocks - 1);
    const std::int64_t at = rank[static_cast<std::size_t>(b)];
    const int what = pick(0, 9);
    if (what < 5) {
      order.touch(kOnly, BlockId(b));
      forget(b);
      rank[static_cast<std::size_t>(b)] = clock;
      by_rank[clock++] = b;
    } else if (what < 6) {
      order.forget(kOnly, BlockId(b));
      forget(b);
    } else if (what < 9) {
      if (at < 0) continue;
      EvictionTurn& own = turn[static_cast<std::size_t>(b)];
      candidates.erase({own, at});
      own = static_cast<EvictionTurn>(pick(0, 3));
      order.set_turn(kOnly, BlockId(b), own);
      if (own != EvictionTurn::kNever) candidates.insert({own, at});
    } else if (!candidates.empty()) {
      const BlockId victim = order.victim(kOnly);
      ASSERT_TRUE(victim.valid());
      order.forget(kOnly, victim);
      forget(victim.value());
    }
    const BlockId victim = order.victim(kOnly);
    ASSERT_EQ(victim.valid(), !candidates.empty());
    if (victim.valid()) {
      ASSERT_EQ(victim.value(), by_rank[candidates.begin()->second]);
    }
    const std::int32_t other = pick(0, num_blocks - 1);
    const std::int64_t now = rank[static_cast<std::size_t>(b)];
    const std::int64_t others = rank[static_cast<std::size_t>(other)];
    ASSERT_EQ(order.has_rank(kOnly, BlockId(b)), now >= 0);
    ASSERT_EQ(order.turn(kOnly, BlockId(b)), turn[static_cast<std::size_t>(b)]);
    if (now >= 0 && others >= 0) {
      ASSERT_EQ(order.colder({kOnly, BlockId(b)}, {kOnly, BlockId(other)}), now < others);
    }
    if (turn[static_cast<std::size_t>(b)] != EvictionTurn::kNever) {
      const auto after = candidates.upper_bound({turn[static_cast<std::size_t>(b)], now});
      ASSERT_EQ(order.victim_after(kOnly, BlockId(b)).value(),
                after == candidates.end() ? -1 : by_rank[after->second]);
    }
    if (i % 64 == 0 || num_blocks < 40) {
      const Status ok = order.check_invariants();
      ASSERT_TRUE(ok.ok()) << ok.message();
    }
  }
  // The whole order, coldest first.
  for (const auto& [when, b] : by_rank) order.set_turn(kOnly, BlockId(b), EvictionTurn::kNormal);
  for (const auto& [when, b] : by_rank) {
    ASSERT_EQ(order.victim(kOnly), BlockId(b));
    order.forget(kOnly, BlockId(b));
  }
  ASSERT_EQ(order.victim(kOnly), BlockId());
}

TEST(LruOrder, AnEarlierTurnLeavesFirstAndTheColdestWithinIt) {
  LruOrder order = order_of(5);
  for (const std::int32_t b : {4, 3, 2, 1, 0}) order.touch(kOnly, BlockId(b));
  order.set_turn(kOnly, BlockId(4), EvictionTurn::kLast);
  order.set_turn(kOnly, BlockId(3), EvictionTurn::kNormal);
  order.set_turn(kOnly, BlockId(2), EvictionTurn::kNormal);
  order.set_turn(kOnly, BlockId(1), EvictionTurn::kFirst);
  order.set_turn(kOnly, BlockId(0), EvictionTurn::kFirst);
  EXPECT_EQ(order.victim_after(kOnly, BlockId(0)), BlockId(3));
  EXPECT_EQ(order.victim_after(kOnly, BlockId(2)), BlockId(4));
  EXPECT_EQ(order.victim_after(kOnly, BlockId(4)), BlockId());
  for (const std::int32_t b : {1, 0, 3, 2, 4}) {
    EXPECT_EQ(order.victim(kOnly), BlockId(b));
    order.forget(kOnly, BlockId(b));
  }
  EXPECT_EQ(order.victim(kOnly), BlockId());
}

TEST(LruOrder, ACopyNamesTheSameVictimsAndIsIndependent) {
  LruOrder source = order_of(100);
  LruOrder target = order_of(100);
  for (std::int32_t b = 0; b < 100; ++b) {
    source.touch(kOnly, BlockId(b * 37 % 100));
    target.touch(kOnly, BlockId(b));
    target.set_turn(kOnly, BlockId(b), EvictionTurn::kNormal);
  }
  for (std::int32_t b = 0; b < 100; b += 3)
    source.set_turn(kOnly, BlockId(b), EvictionTurn::kNormal);
  target.copy_from(source);
  ASSERT_TRUE(target.check_invariants().ok());
  const BlockId first = source.victim(kOnly);
  std::vector<BlockId> victims;
  for (BlockId victim; (victim = target.victim(kOnly)).valid();) {
    victims.push_back(victim);
    target.forget(kOnly, victim);
  }
  EXPECT_EQ(source.victim(kOnly), first);
  for (const BlockId victim : victims) {
    ASSERT_EQ(source.victim(kOnly), victim);
    source.forget(kOnly, victim);
  }
  EXPECT_EQ(source.victim(kOnly), BlockId());
  EXPECT_EQ(victims.size(), 34u);
}

TEST(LruOrder, BlocksOfAllGroupsStandInOneOrder) {
  const std::int32_t sizes[] = {2, 3};
  Result<LruOrder> made = LruOrder::create(sizes);
  ASSERT_TRUE(made) << made.error().message();
  LruOrder order = std::move(*made);
  const GroupId a(0);
  const GroupId b(1);
  // More releases than the log is long: ranks move together.
  for (int round = 0; round < 5; ++round) {
    order.touch(b, BlockId(1));
    order.touch(a, BlockId(0));
    order.touch(b, BlockId(2));
    order.touch(a, BlockId(1));
  }
  EXPECT_TRUE(order.colder({b, BlockId(1)}, {a, BlockId(0)}));
  EXPECT_FALSE(order.victim().valid());
  for (const GroupId g : {a, b}) order.set_turn(g, BlockId(1), EvictionTurn::kNormal);
  order.set_turn(a, BlockId(0), EvictionTurn::kNormal);
  order.set_turn(b, BlockId(2), EvictionTurn::kFirst);
  EXPECT_TRUE(order.check_invariants().ok()) << order.check_invariants().message();
  // Each group has its own; of all, an earlier turn comes before an older age.
  EXPECT_EQ(order.victim(a), BlockId(0));
  EXPECT_EQ(order.victim(b), BlockId(2));
  EXPECT_EQ(order.victim_after(a, BlockId(0)), BlockId(1));
  EXPECT_EQ(order.victim_after(b, BlockId(2)), BlockId(1));
  const LruOrder::Member leave[] = {
      {b, BlockId(2)}, {b, BlockId(1)}, {a, BlockId(0)}, {a, BlockId(1)}};
  for (const LruOrder::Member& next : leave) {
    EXPECT_EQ(order.victim(), next);
    order.forget(next.group, next.block);
  }
  EXPECT_FALSE(order.victim().valid());
}

TEST(LruOrder, MoreBlocksTogetherThanItCanNumberAreRefused) {
  const std::int32_t sizes[] = {1 << 28, (1 << 28) + 1};
  const Result<LruOrder> order = LruOrder::create(sizes);
  ASSERT_FALSE(order);
  EXPECT_THAT(order.error().message(), HasSubstr("group 1: num_blocks is 268435457"));
  EXPECT_THAT(order.error().message(), HasSubstr("together have at most 536870912"));
  EXPECT_FALSE(LruOrder::create({}));
}

TEST(LruOrder, RandomOperationsAgreeWithAClockPerBlock) {
  for (std::int32_t n = 1; n <= 200; ++n) {
    compare_with_naive(n, 20 * n + 100, static_cast<std::uint32_t>(n));
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(LruOrder, RanksSurviveManyWrapsOfALogOfSeveralLevels) {
  for (const std::int32_t n : {31, 32, 33, 2047, 2048, 2049}) {
    compare_with_naive(n, 20000, 7);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace kvfolio
