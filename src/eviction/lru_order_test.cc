// SPDX-License-Identifier: Apache-2.0
#include "kvfolio/lru_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
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
    EXPECT_THAT(order.error().message(), HasSubstr(std::to_string(n)));
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
  EXPECT_EQ(order.victim(kOnly), BlockId());  // no block is a candidate
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
// Block b of all is block b / num_groups of group b % num_groups.
void compare_with_naive(std::int32_t num_blocks, std::int32_t num_groups, int operations,
                        std::uint32_t seed) {
  SCOPED_TRACE("blocks " + std::to_string(num_blocks) + " groups " + std::to_string(num_groups) +
               " seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  std::vector<std::int32_t> sizes;
  sizes.reserve(static_cast<std::size_t>(num_groups));
  for (std::int32_t g = 0; g < num_groups; ++g) {
    sizes.push_back((num_blocks - g + num_groups - 1) / num_groups);
  }
  Result<LruOrder> made = LruOrder::create(sizes);
  ASSERT_TRUE(made) << made.error().message();
  LruOrder order = std::move(*made);
  const auto group_of = [&](std::int32_t b) { return GroupId(b % num_groups); };
  const auto id_of = [&](std::int32_t b) { return BlockId(b / num_groups); };
  const auto number_of = [&](GroupId group, BlockId block) {
    return block.valid() ? block.value() * num_groups + group.value() : -1;
  };
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
      order.touch(group_of(b), id_of(b));
      forget(b);
      rank[static_cast<std::size_t>(b)] = clock;
      by_rank[clock++] = b;
    } else if (what < 6) {
      order.forget(group_of(b), id_of(b));
      forget(b);
    } else if (what < 9) {
      if (at < 0) continue;
      EvictionTurn& own = turn[static_cast<std::size_t>(b)];
      candidates.erase({own, at});
      own = static_cast<EvictionTurn>(pick(0, 3));
      order.set_turn(group_of(b), id_of(b), own);
      if (own != EvictionTurn::kNever) candidates.insert({own, at});
    } else if (!candidates.empty()) {
      const LruOrder::Member victim = order.victim();
      ASSERT_TRUE(victim.valid());
      order.forget(victim.group, victim.block);
      forget(number_of(victim.group, victim.block));
    }
    // The victim of all, that of one group, and that of all but this one.
    const auto first_of = [&](const auto& may_be) {
      for (const auto& [when, at_rank] : candidates) {
        if (may_be(group_of(by_rank[at_rank]))) return by_rank[at_rank];
      }
      return -1;
    };
    const auto number = [&](const LruOrder::Member& m) { return number_of(m.group, m.block); };
    const GroupId own_group = group_of(b);
    ASSERT_EQ(number(order.victim()), first_of([](GroupId) { return true; }));
    ASSERT_EQ(number_of(own_group, order.victim(own_group)),
              first_of([&](GroupId g) { return g == own_group; }));
    ASSERT_EQ(number(order.victim(~(1u << own_group.value()))),
              first_of([&](GroupId g) { return g != own_group; }));
    const std::int32_t other = pick(0, num_blocks - 1);
    const std::int64_t now = rank[static_cast<std::size_t>(b)];
    const std::int64_t others = rank[static_cast<std::size_t>(other)];
    ASSERT_EQ(order.has_rank(group_of(b), id_of(b)), now >= 0);
    ASSERT_EQ(order.turn(group_of(b), id_of(b)), turn[static_cast<std::size_t>(b)]);
    if (now >= 0 && others >= 0) {
      ASSERT_EQ(order.colder({group_of(b), id_of(b)}, {group_of(other), id_of(other)}),
                now < others);
    }
    if (turn[static_cast<std::size_t>(b)] != EvictionTurn::kNever) {
      auto after = candidates.upper_bound({turn[static_cast<std::size_t>(b)], now});
      while (after != candidates.end() && group_of(by_rank[after->second]) != own_group) ++after;
      ASSERT_EQ(number_of(own_group, order.victim_after(own_group, id_of(b))),
                after == candidates.end() ? -1 : by_rank[after->second]);
    }
    if (i % 64 == 0 || num_blocks < 40) {
      const Status ok = order.check_invariants();
      ASSERT_TRUE(ok.ok()) << ok.message();
    }
  }
  // The whole order, coldest first.
  for (const auto& [when, b] : by_rank)
    order.set_turn(group_of(b), id_of(b), EvictionTurn::kNormal);
  for (const auto& [when, b] : by_rank) {
    ASSERT_EQ(order.victim(), (LruOrder::Member{group_of(b), id_of(b)}));
    order.forget(group_of(b), id_of(b));
  }
  ASSERT_FALSE(order.victim().valid());
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
  EXPECT_EQ(order.error().message(),
            "group 1: num_blocks is 268435457, which makes 536870913 together with the groups "
            "before, allowed: at most 536870912");
  EXPECT_FALSE(LruOrder::create({}));
}

TEST(LruOrder, RandomOperationsAgreeWithAClockPerBlock) {
  for (std::int32_t n = 1; n <= 200; ++n) {
    compare_with_naive(n, 1 + n % std::min(n, 4), 20 * n + 100, static_cast<std::uint32_t>(n));
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(LruOrder, RanksSurviveManyWrapsOfALogOfSeveralLevels) {
  for (const std::int32_t n : {31, 32, 33, 2047, 2048, 2049}) {
    compare_with_naive(n, 3, 20000, 7);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace kvfolio
