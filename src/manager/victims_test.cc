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

// Sequences as a search sees them. Ranks are the world's own, but for the uses that Victims counts.
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
    victims.begin(row);
    victims.note_use(row);
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
  // By their ranks; and by their last use.
  std::int32_t select() { return victims.select(VictimPolicy::kLongest, View{*this}); }
  std::int32_t select_lru() {
    for (const std::int32_t row : open_rows) at(row).rank = victims.last_use(row);
    return victims.select(VictimPolicy::kLru, View{*this});
  }
  void rank() { victims.rank(View{*this}); }
  std::int32_t next() { return victims.next(View{*this}); }
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
    [[nodiscard]] std::uint64_t rank(std::int32_t row) const {
      ++world.looks;
      return at(row).rank;
    }
    [[nodiscard]] VictimName name(std::int32_t row) const {
      ++world.names;
      return at(row).name;
    }
    [[nodiscard]] bool may_go(std::int32_t row) const { return at(row).may_go; }
    [[nodiscard]] bool frees_a_block(std::int32_t row) const { return at(row).frees_a_block; }
  };

  Victims victims;
  std::vector<Row> rows;
  std::vector<std::int32_t> open_rows;
  mutable int looks = 0;  // at a rank
  mutable int names = 0;  // asked for
};

TEST(Victims, WithoutAnOpenRowThereIsNone) {
  World world(4);
  EXPECT_EQ(world.select(), Victims::kNoRow);
  EXPECT_EQ(world.select_lru(), Victims::kNoRow);
  world.rank();
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

// Each row of a heap has its name there.
TEST(Victims, WhereNoRowThatIsKeptMayGoNoHeapOfAllIsMade) {
  World world(1000);
  for (std::int32_t row = 0; row < 1000; ++row) world.open(row, static_cast<std::uint64_t>(row));
  for (int searches = 0; searches < 2; ++searches) EXPECT_EQ(world.select(), 0);
  for (std::int32_t row = 0; row < 64; ++row) world.at(row).may_go = false;
  world.names = 0;
  for (int searches = 0; searches < 10; ++searches) EXPECT_EQ(world.select(), 64);
  EXPECT_LE(world.names, 10);
  world.at(64).frees_a_block = false;
  EXPECT_EQ(world.select(), 65);
}

TEST(Victims, ARowThatMayNotGoOrFreesNothingIsNotChosen) {
  World world(3);
  for (std::int32_t row = 0; row < 3; ++row) world.open(row, static_cast<std::uint64_t>(row));
  world.at(0).may_go = false;
  world.at(1).frees_a_block = false;
  EXPECT_EQ(world.select(), 2);
  EXPECT_EQ(world.select_lru(), 2);
  world.at(2).frees_a_block = false;
  EXPECT_EQ(world.select(), Victims::kNoRow);
  EXPECT_EQ(world.select_lru(), Victims::kNoRow);
}

TEST(Victims, WhatIsPassedOverComesBackOnceItIsRestored) {
  World world(4);
  for (std::int32_t row = 0; row < 4; ++row) world.open(row, static_cast<std::uint64_t>(row));
  world.at(0).frees_a_block = false;
  world.at(1).frees_a_block = false;
  world.rank();
  EXPECT_EQ(world.next(), 2);
  // The end of row 2 left a block to row 1 alone: it is seen once the row is asked again.
  world.at(1).frees_a_block = true;
  world.victims.restore_passed_over();
  EXPECT_EQ(world.next(), 1);
  EXPECT_EQ(world.next(), 3);
  EXPECT_EQ(world.next(), Victims::kNoRow);
  world.at(0).frees_a_block = true;
  world.victims.restore_passed_over();
  EXPECT_EQ(world.next(), 0);
}

TEST(Victims, EachRowLeavesTheOrderOnce) {
  World world(200);
  std::mt19937_64 random(7);
  for (std::int32_t row = 0; row < 200; ++row) {
    world.open(row, random() % 50);
    world.at(row).frees_a_block = random() % 2 == 0;
  }
  world.rank();
  for (;;) {
    const std::int32_t expected = world.expected();
    ASSERT_EQ(world.next(), expected);
    if (expected == Victims::kNoRow) break;
    world.close(expected);
  }
}

// The array is read in pieces of 64 rows, four at a time.
TEST(Victims, TheLeastRecentRowIsFoundWhereverItLies) {
  for (const std::int32_t num_rows : {1, 3, 4, 63, 64, 65, 130, 257}) {
    World world(num_rows);
    for (std::int32_t row = 0; row < num_rows; ++row) world.open(row, 0);
    for (std::int32_t oldest = 0; oldest < num_rows; ++oldest) {
      for (std::int32_t row = 0; row < num_rows; ++row) {
        if (row != oldest) world.victims.note_use(row);
      }
      ASSERT_EQ(world.select_lru(), oldest) << num_rows << " rows";
      world.victims.note_use(oldest);
    }
  }
}

// The second search keeps 64 rows; each of the next ones takes what is left of them.
TEST(Victims, SearchesThatFollowEachOtherFindTheRowsInTheOrderOfTheirLastUse) {
  World world(1000);
  std::vector<std::int32_t> rows(1000);
  std::iota(rows.begin(), rows.end(), 0);
  std::shuffle(rows.begin(), rows.end(), std::mt19937_64(3));
  for (const std::int32_t row : rows) world.open(row, 0);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i % 7 == 3) world.victims.note_use(rows[i]);  // it is the most recent one now
    if (i % 7 != 3) {
      ASSERT_EQ(world.select_lru(), rows[i]) << "search " << i;
      world.close(rows[i]);
    }
  }
}

TEST(Victims, WhenLittleChangedASearchLooksAtFewRows) {
  World world(1000);
  for (std::int32_t row = 0; row < 1000; ++row) world.open(row, static_cast<std::uint64_t>(row));
  EXPECT_EQ(world.select(), 0);  // one look at each row
  EXPECT_EQ(world.select(), 0);  // another one, and the first rows are kept
  world.looks = 0;
  for (std::int32_t row = 0; row < 60; ++row) {
    EXPECT_EQ(world.select(), row);
    world.set_rank(row, 2000 + static_cast<std::uint64_t>(row));
  }
  EXPECT_LT(world.looks, 100);
  // Beyond the rows that are kept, one look at each brings the next ones.
  for (std::int32_t row = 60; row < 120; ++row) {
    EXPECT_EQ(world.select(), row);
    world.close(row);
  }
  EXPECT_LT(world.looks, 1500);
}

TEST(Victims, AUseThatIsUndoneIsSeenByTheNextSearch) {
  World world(100);
  for (std::int32_t row = 0; row < 100; ++row) world.open(row, 0);
  const std::uint64_t before = world.victims.last_use(0);
  world.victims.note_use(0);
  EXPECT_EQ(world.select_lru(), 1);
  EXPECT_EQ(world.select_lru(), 1);
  world.victims.undo_use(0, before);
  EXPECT_EQ(world.select_lru(), 0);
}

TEST(Victims, AClosedRowIsNotChosenAndItsSuccessorHasUsesOfItsOwn) {
  World world(20);
  for (std::int32_t row = 0; row < 20; ++row) world.open(row, 10 + static_cast<std::uint64_t>(row));
  EXPECT_EQ(world.select_lru(), 0);
  world.close(0);
  EXPECT_EQ(world.select_lru(), 1);
  world.open(0, 100);
  EXPECT_EQ(world.select_lru(), 1);
  for (std::int32_t row = 1; row < 20; ++row) world.close(row);
  EXPECT_EQ(world.select_lru(), 0);
  EXPECT_TRUE(world.victims.check(world.open_rows).ok());
}

TEST(Victims, UsesAreCountedOverAllRowsAndThoseOfAFailedCallAreTakenBack) {
  World world(3);
  for (const std::int32_t row : {0, 1, 2}) world.victims.begin(row);
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

TEST(Victims, TheNextOneIsForeseenAndTheOneAfterItIsOneOfTwo) {
  World world(64);
  std::vector<std::uint64_t> ranks(64);
  std::iota(ranks.begin(), ranks.end(), 0);
  std::shuffle(ranks.begin(), ranks.end(), std::mt19937_64(1));
  for (std::int32_t row = 0; row < 64; ++row) {
    world.open(row, ranks[static_cast<std::size_t>(row)]);
  }
  world.rank();
  std::int32_t next = Victims::kNoRow;
  std::set<std::int32_t> then;
  for (int left = 64; left > 0; --left) {
    const std::int32_t row = world.next();
    if (left < 64) {
      EXPECT_EQ(row, next);
    }
    const Victims::Soon soon = world.victims.soon();
    if (!then.empty()) {
      EXPECT_EQ(then.count(soon.next), 1u);
    }
    next = soon.next;
    then = {soon.then.begin(), soon.then.end()};
    world.close(row);
  }
  EXPECT_EQ(next, Victims::kNoRow);
}

TEST(Victims, ACopyKeepsTheUses) {
  World world(3);
  world.open(0, 2);
  world.open(1, 1);
  world.victims.note_use(0);
  World copy(3);
  copy.open(2, 5);
  copy.victims.copy_from(world.victims);
  copy.rows = world.rows;
  copy.open_rows = world.open_rows;
  EXPECT_EQ(copy.victims.num_uses(), 3u);
  EXPECT_EQ(copy.victims.last_use(0), 3u);
  EXPECT_EQ(copy.victims.use_count(0), 2u);
  EXPECT_EQ(copy.select_lru(), 1);
  EXPECT_TRUE(copy.victims.check(copy.open_rows).ok());
}

TEST(Victims, AnOpenRowWithoutAUseIsBroken) {
  World world(2);
  world.open(0, 1);
  EXPECT_TRUE(world.victims.check(world.open_rows).ok());
  world.victims.forget(0);
  EXPECT_FALSE(world.victims.check(world.open_rows).ok());
  EXPECT_TRUE(world.victims.check({}).ok());
}

TEST(Victims, AnyHistoryLeadsToTheRowThatALookAtEachWouldChoose) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    std::mt19937_64 random(seed);
    const std::uint64_t num_rows = seed % 2 == 0 ? 24 : 300;  // more than are kept
    World world(static_cast<std::int32_t>(num_rows));
    for (int op = 0; op < 3000; ++op) {
      const auto row = static_cast<std::int32_t>(random() % num_rows);
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
          if (open) world.set_rank(row, random() % 50);
          break;
        case 3:
          if (open) world.victims.note_use(row);
          break;
        case 4:
          world.at(row).may_go = random() % 3 != 0;
          break;
        case 5:
          world.at(row).frees_a_block = random() % 3 != 0;
          break;
        case 6: {
          for (int i = 0; i < 3; ++i) {  // the second search keeps rows
            ASSERT_EQ(world.select(), world.expected()) << "seed " << seed << " op " << op;
          }
          for (std::uint64_t i = random() % 100; i-- > 0;) {
            const auto other = static_cast<std::int32_t>(random() % num_rows);
            if (!world.at(other).open) continue;
            if (random() % 8 == 0) {
              world.close(other);
            } else {
              world.set_rank(other, random() % 50);
            }
            if (random() % 8 != 0) continue;
            ASSERT_EQ(world.select(), world.expected()) << "seed " << seed << " op " << op;
          }
          world.rank();
          ASSERT_EQ(world.next(), world.expected()) << "seed " << seed << " op " << op;
          break;
        }
        default: {
          const std::int32_t chosen = world.select_lru();  // which sets the ranks
          ASSERT_EQ(chosen, world.expected()) << "seed " << seed << " op " << op;
          const Status whole = world.victims.check(world.open_rows);
          ASSERT_TRUE(whole.ok()) << whole.message();
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvfolio
