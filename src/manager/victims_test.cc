// SPDX-License-Identifier: Apache-2.0
#include "manager/victims.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <tuple>
#include <vector>

namespace kvfolio {
namespace {

// Sequences as a search sees them. Each row counts how often it was asked for its rank.
struct World {
  struct Row {
    bool open = false;
    std::uint64_t rank = 0;
    VictimName name{false, 0};
    bool may_go = true;
    bool frees_a_block = true;
  };

  explicit World(std::int32_t num_rows) : rows(static_cast<std::size_t>(num_rows)) {
    EXPECT_TRUE(victims.allocate(num_rows));
  }

  Row& at(std::int32_t row) { return rows[static_cast<std::size_t>(row)]; }

  void open(std::int32_t row, std::uint64_t rank) {
    at(row) = {true, rank, {false, static_cast<std::uint64_t>(row)}, true, true};
    open_rows.push_back(row);
    victims.note_change(row);
  }
  void close(std::int32_t row) {
    at(row).open = false;
    open_rows.erase(std::find(open_rows.begin(), open_rows.end(), row));
    victims.forget(row);
  }
  void set_rank(std::int32_t row, std::uint64_t rank) {
    at(row).rank = rank;
    victims.note_change(row);
  }
  std::int32_t select(VictimPolicy policy = VictimPolicy::kLru) {
    return victims.select(policy, View{*this});
  }
  std::int32_t next(VictimPolicy policy = VictimPolicy::kLru) {
    victims.refresh(policy, View{*this});
    return victims.next(View{*this});
  }
  // What the search must find, by a look at every row.
  [[nodiscard]] std::int32_t expected() const {
    std::int32_t best = Victims::kNoRow;
    const auto key = [&](std::int32_t row) {
      const Row& r = rows[static_cast<std::size_t>(row)];
      return std::tuple(r.rank, r.name.anonymous, r.name.id);
    };
    for (const std::int32_t row : open_rows) {
      const Row& r = rows[static_cast<std::size_t>(row)];
      if (!r.may_go || !r.frees_a_block) continue;
      if (best == Victims::kNoRow || key(row) < key(best)) best = row;
    }
    return best;
  }

  struct View {
    const World& world;
    [[nodiscard]] const Row& at(std::int32_t row) const {
      return world.rows[static_cast<std::size_t>(row)];
    }
    [[nodiscard]] std::span<const std::int32_t> open() const { return world.open_rows; }
    [[nodiscard]] bool is_open(std::int32_t row) const { return at(row).open; }
    [[nodiscard]] std::uint64_t rank(std::int32_t row) const {
      ++world.looks;
      return at(row).rank;
    }
    [[nodiscard]] VictimName name(std::int32_t row) const { return at(row).name; }
    [[nodiscard]] bool may_go(std::int32_t row) const { return at(row).may_go; }
    [[nodiscard]] bool frees_a_block(std::int32_t row) const { return at(row).frees_a_block; }
  };

  Victims victims;
  std::vector<Row> rows;
  std::vector<std::int32_t> open_rows;
  mutable int looks = 0;
};

TEST(Victims, WithoutAnOpenRowThereIsNone) {
  World world(4);
  EXPECT_EQ(world.select(), Victims::kNoRow);
  EXPECT_EQ(world.next(), Victims::kNoRow);
}

TEST(Victims, TheSmallestRankGoesFirst) {
  World world(3);
  world.open(0, 7);
  world.open(1, 5);
  world.open(2, 6);
  EXPECT_EQ(world.select(), 1);
  world.set_rank(1, 8);
  EXPECT_EQ(world.select(), 2);
}

TEST(Victims, TiesGoToTheSmallerCallerIdAndThenToTheSmallerId) {
  World world(4);
  for (std::int32_t row = 0; row < 4; ++row) world.open(row, 1);
  world.at(0).name = {true, 1};
  world.at(1).name = {true, 2};
  world.at(2).name = {false, 9};
  world.at(3).name = {false, 8};
  for (const std::int32_t row : {3, 2, 0, 1}) {
    EXPECT_EQ(world.select(), row);
    world.close(row);
  }
}

TEST(Victims, ARowThatMayNotGoOrFreesNothingIsPassedOverAndComesBack) {
  World world(3);
  for (std::int32_t row = 0; row < 3; ++row) world.open(row, static_cast<std::uint64_t>(row));
  world.at(0).may_go = false;
  world.at(1).frees_a_block = false;
  EXPECT_EQ(world.next(), 2);
  // What the rows hold changed, and not their rank: only a row that is restored is asked again.
  world.at(1).frees_a_block = true;
  EXPECT_EQ(world.next(), 2);
  world.victims.restore_passed_over();
  EXPECT_EQ(world.next(), 1);
  world.victims.restore_passed_over();
  EXPECT_TRUE(world.victims.check(world.open_rows).ok());
}

TEST(Victims, AClosedRowIsNotChosenAndItsSuccessorHasItsOwnRank) {
  World world(20);
  for (std::int32_t row = 0; row < 20; ++row) world.open(row, 10 + static_cast<std::uint64_t>(row));
  EXPECT_EQ(world.next(), 0);
  world.close(0);
  EXPECT_EQ(world.next(), 1);
  world.open(0, 100);
  EXPECT_EQ(world.next(), 1);
  world.close(0);
  world.open(0, 3);
  EXPECT_EQ(world.next(), 0);
}

TEST(Victims, AnotherPolicyHasItsOwnHeap) {
  World world(2);
  world.open(0, 1);
  world.open(1, 2);
  EXPECT_EQ(world.next(VictimPolicy::kLru), 0);
  world.at(0).rank = 9;  // as the other policy ranks it
  EXPECT_EQ(world.next(VictimPolicy::kLfu), 1);
}

TEST(Victims, WhenLittleChangedASearchLooksAtFewRows) {
  World world(1000);
  for (std::int32_t row = 0; row < 1000; ++row) world.open(row, static_cast<std::uint64_t>(row));
  EXPECT_EQ(world.select(), 0);  // one look at each row
  EXPECT_EQ(world.select(), 0);  // builds the heap
  world.looks = 0;
  for (std::int32_t row = 0; row < 100; ++row) {
    EXPECT_EQ(world.select(), row);
    world.set_rank(row, 2000 + static_cast<std::uint64_t>(row));
  }
  EXPECT_LT(world.looks, 200);
}

TEST(Victims, UsesAreCountedOverAllRowsAndThoseOfAFailedCallAreTakenBack) {
  World world(3);
  world.victims.note_use(2);
  world.victims.note_use(0);
  EXPECT_EQ(world.victims.last_use(2), 1u);
  EXPECT_EQ(world.victims.last_use(0), 2u);
  const std::uint64_t before = world.victims.num_uses();
  world.victims.note_use(1);
  EXPECT_EQ(world.victims.last_use(1), 3u);
  world.victims.take_back_uses(before);
  world.victims.begin(1);
  world.victims.note_use(1);
  EXPECT_EQ(world.victims.last_use(1), 3u);
  EXPECT_EQ(world.victims.use_count(1), 1u);
}

TEST(Victims, AUseThatIsUndoneLeavesTheRowAsItWas) {
  World world(2);
  world.victims.note_use(0);
  const std::uint64_t before = world.victims.last_use(0);
  world.victims.note_use(1);
  world.victims.note_use(0);
  EXPECT_EQ(world.victims.use_count(0), 2u);
  world.victims.undo_use(0, before);
  EXPECT_EQ(world.victims.last_use(0), 1u);
  EXPECT_EQ(world.victims.use_count(0), 1u);
}

TEST(Victims, TheNextOneIsForeseenAndTheOneAfterItIsAmongThree) {
  World world(64);
  std::vector<std::uint64_t> ranks(64);
  std::iota(ranks.begin(), ranks.end(), 0);
  std::shuffle(ranks.begin(), ranks.end(), std::mt19937_64(1));
  for (std::int32_t row = 0; row < 64; ++row) {
    world.open(row, ranks[static_cast<std::size_t>(row)]);
  }
  std::optional<std::int32_t> next;
  std::set<std::int32_t> then;
  for (int left = 64; left >= 3; --left) {
    const std::int32_t row = world.next();
    if (next) {
      EXPECT_EQ(row, *next);
    }
    const Victims::Soon soon = world.victims.soon();
    next = soon.next;
    if (!then.empty()) {
      EXPECT_EQ(then.count(soon.next), 1u);
    }
    then = {soon.then.begin(), soon.then.end()};
    world.close(row);
  }
}

TEST(Victims, ACopyKeepsTheUsesAndMakesItsOwnHeap) {
  World world(3);
  world.open(0, 2);
  world.open(1, 1);
  world.victims.note_use(0);
  EXPECT_EQ(world.next(), 1);
  World copy(3);
  copy.open(2, 5);
  static_cast<void>(copy.next());
  copy.victims.copy_from(world.victims);
  copy.rows = world.rows;
  copy.open_rows = world.open_rows;
  EXPECT_EQ(copy.victims.num_uses(), 1u);
  EXPECT_EQ(copy.victims.last_use(0), 1u);
  EXPECT_EQ(copy.next(), 1);
  EXPECT_EQ(copy.victims.num_uses(), 1u);
}

TEST(Victims, AnyHistoryLeadsToTheRowThatALookAtEachWouldChoose) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    constexpr std::int32_t kRows = 24;
    World world(kRows);
    for (int op = 0; op < 3000; ++op) {
      const auto row = static_cast<std::int32_t>(random() % kRows);
      const bool open = world.at(row).open;
      switch (random() % 8) {
        case 0:
          if (!open) {
            world.open(row, random() % 50);
            world.at(row).name.anonymous = random() % 2 == 0;
          }
          break;
        case 1:
          if (open && random() % 4 == 0) world.close(row);
          break;
        case 2:
        case 3:
          if (open) world.set_rank(row, random() % 50);
          break;
        case 4:
          world.at(row).may_go = random() % 3 != 0;
          break;
        case 5:
          world.at(row).frees_a_block = random() % 3 != 0;
          break;
        case 6:
          ASSERT_EQ(world.select(), world.expected()) << "seed " << seed << " op " << op;
          break;
        default:
          ASSERT_EQ(world.next(), world.expected()) << "seed " << seed << " op " << op;
          world.victims.restore_passed_over();
          ASSERT_TRUE(world.victims.check(world.open_rows).ok())
              << world.victims.check(world.open_rows).message();
      }
    }
  }
}

}  // namespace
}  // namespace kvfolio
