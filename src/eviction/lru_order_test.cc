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

LruOrder order_of(std::int32_t num_blocks) {
  Result<LruOrder> order = LruOrder::create(num_blocks);
  EXPECT_TRUE(order) << order.error().message();
  return std::move(*order);
}

TEST(LruOrder, SizesOutOfRangeAreRefusedWithTheNumber) {
  for (const std::int32_t n : {0, -1, (1 << 29) + 1, std::numeric_limits<std::int32_t>::max()}) {
    const Result<LruOrder> order = LruOrder::create(n);
    ASSERT_FALSE(order);
    EXPECT_EQ(order.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(order.error().message(), HasSubstr("num_blocks is " + std::to_string(n)));
  }
}

TEST(LruOrder, NobodyHasARankAtFirst) {
  const LruOrder order = order_of(5);
  for (std::int32_t b = 0; b < 5; ++b) {
    EXPECT_FALSE(order.has_rank(BlockId(b)));
    EXPECT_EQ(order.turn(BlockId(b)), EvictionTurn::kNever);
  }
  EXPECT_EQ(order.victim(), BlockId());
}

TEST(LruOrder, TheVictimIsTheColdestCandidate) {
  LruOrder order = order_of(4);
  for (const std::int32_t b : {2, 0, 3, 1}) order.touch(BlockId(b));
  EXPECT_EQ(order.victim(), BlockId());  // nobody is a candidate
  order.set_turn(BlockId(3), EvictionTurn::kNormal);
  order.set_turn(BlockId(1), EvictionTurn::kNormal);
  EXPECT_EQ(order.victim(), BlockId(3));
  // One that becomes a candidate late stands where its rank says.
  order.set_turn(BlockId(0), EvictionTurn::kNormal);
  EXPECT_EQ(order.victim(), BlockId(0));
  order.set_turn(BlockId(0), EvictionTurn::kNever);
  EXPECT_EQ(order.victim(), BlockId(3));
  order.forget(BlockId(3));
  EXPECT_EQ(order.victim(), BlockId(1));
  EXPECT_TRUE(order.colder(BlockId(2), BlockId(0)));
  EXPECT_FALSE(order.colder(BlockId(1), BlockId(0)));
}

TEST(LruOrder, TouchMakesABlockTheWarmestAndNoCandidate) {
  LruOrder order = order_of(3);
  for (std::int32_t b = 0; b < 3; ++b) order.touch(BlockId(b));
  order.set_turn(BlockId(0), EvictionTurn::kNormal);
  order.touch(BlockId(0));
  EXPECT_EQ(order.turn(BlockId(0)), EvictionTurn::kNever);
  EXPECT_TRUE(order.colder(BlockId(2), BlockId(0)));
}

TEST(LruOrder, CandidatesComeAndGoWithoutLosingTheirRank) {
  LruOrder order = order_of(2);
  order.touch(BlockId(1));
  order.touch(BlockId(0));
  for (int i = 0; i < 5; ++i) {
    order.set_turn(BlockId(0), i % 2 == 0 ? EvictionTurn::kNormal : EvictionTurn::kNever);
    order.set_turn(BlockId(1), i % 2 != 0 ? EvictionTurn::kLast : EvictionTurn::kNever);
    EXPECT_TRUE(order.colder(BlockId(1), BlockId(0)));
    EXPECT_EQ(order.victim(), BlockId(i % 2));
  }
}

TEST(LruOrderDeathTest, ACandidateWithoutARankStopsTheProgram) {
  LruOrder order = order_of(2);
  EXPECT_DEATH(order.set_turn(BlockId(1), EvictionTurn::kNormal), "broken invariant");
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
      order.touch(BlockId(b));
      forget(b);
      rank[static_cast<std::size_t>(b)] = clock;
      by_rank[clock++] = b;
    } else if (what < 6) {
      order.forget(BlockId(b));
      forget(b);
    } else if (what < 9) {
      if (at < 0) continue;
      EvictionTurn& own = turn[static_cast<std::size_t>(b)];
      candidates.erase({own, at});
      own = static_cast<EvictionTurn>(pick(0, 3));
      order.set_turn(BlockId(b), own);
      if (own != EvictionTurn::kNever) candidates.insert({own, at});
    } else if (!candidates.empty()) {
      const BlockId victim = order.victim();
      ASSERT_TRUE(victim.valid());
      order.forget(victim);
      forget(victim.value());
    }
    const BlockId victim = order.victim();
    ASSERT_EQ(victim.valid(), !candidates.empty());
    if (victim.valid()) {
      ASSERT_EQ(victim.value(), by_rank[candidates.begin()->second]);
    }
    const std::int32_t other = pick(0, num_blocks - 1);
    const std::int64_t now = rank[static_cast<std::size_t>(b)];
    const std::int64_t others = rank[static_cast<std::size_t>(other)];
    ASSERT_EQ(order.has_rank(BlockId(b)), now >= 0);
    ASSERT_EQ(order.turn(BlockId(b)), turn[static_cast<std::size_t>(b)]);
    if (now >= 0 && others >= 0) {
      ASSERT_EQ(order.colder(BlockId(b), BlockId(other)), now < others);
    }
    if (turn[static_cast<std::size_t>(b)] != EvictionTurn::kNever) {
      const auto after = candidates.upper_bound({turn[static_cast<std::size_t>(b)], now});
      ASSERT_EQ(order.victim_after(BlockId(b)).value(),
                after == candidates.end() ? -1 : by_rank[after->second]);
    }
    if (i % 64 == 0 || num_blocks < 40) {
      const Status ok = order.check_invariants();
      ASSERT_TRUE(ok.ok()) << ok.message();
    }
  }
  // The whole order, coldest first.
  for (const auto& [when, b] : by_rank) order.set_turn(BlockId(b), EvictionTurn::kNormal);
  for (const auto& [when, b] : by_rank) {
    ASSERT_EQ(order.victim(), BlockId(b));
    order.forget(BlockId(b));
  }
  ASSERT_EQ(order.victim(), BlockId());
}

TEST(LruOrder, AnEarlierTurnLeavesFirstAndTheColdestWithinIt) {
  LruOrder order = order_of(5);
  for (const std::int32_t b : {4, 3, 2, 1, 0}) order.touch(BlockId(b));
  order.set_turn(BlockId(4), EvictionTurn::kLast);
  order.set_turn(BlockId(3), EvictionTurn::kNormal);
  order.set_turn(BlockId(2), EvictionTurn::kNormal);
  order.set_turn(BlockId(1), EvictionTurn::kFirst);
  order.set_turn(BlockId(0), EvictionTurn::kFirst);
  EXPECT_EQ(order.victim_after(BlockId(0)), BlockId(3));
  EXPECT_EQ(order.victim_after(BlockId(2)), BlockId(4));
  EXPECT_EQ(order.victim_after(BlockId(4)), BlockId());
  for (const std::int32_t b : {1, 0, 3, 2, 4}) {
    EXPECT_EQ(order.victim(), BlockId(b));
    order.forget(BlockId(b));
  }
  EXPECT_EQ(order.victim(), BlockId());
}

TEST(LruOrder, ACopyNamesTheSameVictimsAndIsIndependent) {
  LruOrder source = *LruOrder::create(100);
  LruOrder target = *LruOrder::create(100);
  for (std::int32_t b = 0; b < 100; ++b) {
    source.touch(BlockId(b * 37 % 100));
    target.touch(BlockId(b));
    target.set_turn(BlockId(b), EvictionTurn::kNormal);
  }
  for (std::int32_t b = 0; b < 100; b += 3) source.set_turn(BlockId(b), EvictionTurn::kNormal);
  target.copy_from(source);
  ASSERT_TRUE(target.check_invariants().ok());
  const BlockId first = source.victim();
  std::vector<BlockId> victims;
  for (BlockId victim; (victim = target.victim()).valid();) {
    victims.push_back(victim);
    target.forget(victim);
  }
  EXPECT_EQ(source.victim(), first);
  for (const BlockId victim : victims) {
    ASSERT_EQ(source.victim(), victim);
    source.forget(victim);
  }
  EXPECT_EQ(source.victim(), BlockId());
  EXPECT_EQ(victims.size(), 34u);
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
