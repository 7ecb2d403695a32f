// SPDX-License-Identifier: Apache-2.0
//
// Unnamed tokens alone: a log of steps, and no sequences.

#include "manager/unnamed_tokens.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvfolio {
namespace {

constexpr UnnamedTokens::Owner kFirst{0, 1};
constexpr UnnamedTokens::Owner kChild{1, 2};

struct Log {
  StepLog steps;
  UnnamedTokens unnamed;

  Log() {
    EXPECT_TRUE(steps.allocate(4, 1, 4, 16));
    EXPECT_TRUE(unnamed.allocate(4, 4));
    for (std::int32_t row = 0; row < 4; ++row) unnamed.begin(row);
  }
  // A committed step in which the owner appends positions [begin, begin + n), all unnamed.
  Step& append(UnnamedTokens::Owner owner, std::int32_t begin, std::int32_t n) {
    Step& step = steps.begin();
    StepEntry& e = step.entries[0];
    e = {};
    e.row = owner.row;
    e.birth = owner.birth;
    e.begin = begin;
    e.end = begin + n;
    e.unnamed = n;
    step.num_entries = 1;
    step.clear_changes(0);
    step.has_unnamed = true;
    step.entry_of[owner.row] = 0;
    unnamed.append(owner.row, begin, n);
    return steps.commit();
  }
  // The positions that get names.
  std::vector<std::int32_t> name(std::int32_t row, std::int32_t n) {
    std::vector<std::int32_t> positions;
    unnamed.name(row, n, [&](std::int32_t begin, std::int32_t count) {
      for (std::int32_t i = 0; i < count; ++i) positions.push_back(begin + i);
    });
    return positions;
  }
  Status check(UnnamedTokens::Owner owner) const { return unnamed.check(steps, owner, false, 0); }
};

TEST(UnnamedTokens, AreNamedInTheOrderOfTheirAppends) {
  Log log;
  const Step& first = log.append(kFirst, 0, 3);
  const Step& second = log.append(kFirst, 3, 2);
  EXPECT_EQ(log.unnamed.num_waiting(0), 5);
  log.name(0, 3);
  // All of the first step have names: nothing is lost with it.
  EXPECT_FALSE(log.unnamed.end(first.entries[0], false));
  EXPECT_EQ(log.unnamed.num_waiting(0), 2);
  EXPECT_TRUE(log.check(kFirst).ok()) << log.check(kFirst).message();
  EXPECT_TRUE(log.unnamed.end(second.entries[0], false));
  EXPECT_EQ(log.unnamed.num_waiting(0), 0);
}

TEST(UnnamedTokens, OfAStepThatEndsLoseTheirChance) {
  Log log;
  const Step& first = log.append(kFirst, 0, 3);
  log.append(kFirst, 3, 2);
  log.name(0, 1);
  EXPECT_TRUE(log.unnamed.end(first.entries[0], false));
  EXPECT_EQ(log.unnamed.num_waiting(0), 2);  // those of the second step
}

TEST(UnnamedTokens, OfAFailedStepAreForgottenAndEarlierOnesWait) {
  Log log;
  log.append(kFirst, 0, 3);
  const Step& second = log.append(kFirst, 3, 2);
  log.name(0, 1);
  EXPECT_TRUE(log.unnamed.end(second.entries[0], true));
  EXPECT_EQ(log.unnamed.num_waiting(0), 2);
  EXPECT_EQ(log.unnamed.first(0), 1);
}

TEST(UnnamedTokens, ThatAreCutOffWantNoNames) {
  Log log;
  log.append(kFirst, 0, 3);
  Step& second = log.append(kFirst, 3, 4);
  log.unnamed.truncate(log.steps, kFirst, 5);
  EXPECT_EQ(log.unnamed.num_waiting(0), 5);
  EXPECT_EQ(second.entries[0].unnamed, 2);
  log.unnamed.truncate(log.steps, kFirst, 1);
  EXPECT_EQ(log.unnamed.num_waiting(0), 1);
  EXPECT_EQ(second.entries[0].unnamed, 0);
  // What comes in their place waits for its own step.
  const Step& third = log.append(kFirst, 1, 1);
  EXPECT_FALSE(log.unnamed.end(second.entries[0], false));
  EXPECT_EQ(log.unnamed.num_waiting(0), 2);
  EXPECT_TRUE(log.unnamed.end(third.entries[0], false));
  EXPECT_EQ(log.unnamed.num_waiting(0), 0);
  EXPECT_TRUE(log.check(kFirst).ok()) << log.check(kFirst).message();
}

TEST(UnnamedTokens, OfAForkAreNamedApart) {
  Log log;
  Step& step = log.append(kFirst, 0, 3);
  log.name(0, 1);
  log.unnamed.become(1, 0);
  UnnamedTokens::share(log.steps, kFirst, kChild);
  ASSERT_EQ(step.num_entries, 2);
  EXPECT_EQ(step.entries[1].row, 1);
  EXPECT_EQ(step.entries[1].birth, kChild.birth);
  log.name(1, 2);
  EXPECT_EQ(log.unnamed.num_waiting(0), 2);
  EXPECT_EQ(log.unnamed.num_waiting(1), 0);
  EXPECT_TRUE(log.check(kChild).ok()) << log.check(kChild).message();
  // A later sequence of the parent's row is not in that step.
  log.unnamed.truncate(log.steps, {0, 9}, 0);
  EXPECT_EQ(step.entries[0].unnamed, 3);
}

TEST(UnnamedTokens, UndoTakesTokensAndNamesBack) {
  Log log;
  log.append(kFirst, 0, 2);
  log.append(kFirst, 2, 2);
  log.name(0, 3);
  log.unnamed.cut(0, 2);
  EXPECT_EQ(log.unnamed.num_waiting(0), 0);
  EXPECT_EQ(log.unnamed.first(0), UnnamedTokens::kNone);
}

TEST(UnnamedTokens, LieInStretchesBetweenOtherTokens) {
  Log log;
  log.append(kFirst, 0, 2);
  log.append(kFirst, 5, 1);
  log.append(kFirst, 6, 2);  // the same stretch
  EXPECT_EQ(log.name(0, 3), (std::vector<std::int32_t>{0, 1, 5}));
  EXPECT_EQ(log.unnamed.first(0), 6);
  EXPECT_EQ(log.name(0, 2), (std::vector<std::int32_t>{6, 7}));
  EXPECT_EQ(log.unnamed.first(0), UnnamedTokens::kNone);
}

TEST(UnnamedTokens, HaveRoomForEightStretchesAndForMoreTokensBehindTheLast) {
  Log log;
  for (std::int32_t i = 0; i < 8; ++i) {
    ASSERT_TRUE(log.unnamed.has_room(0, 2 * i));
    log.unnamed.append(0, 2 * i, 1);
  }
  EXPECT_FALSE(log.unnamed.has_room(0, 16));
  EXPECT_TRUE(log.unnamed.has_room(0, 15));
  log.name(0, 1);
  EXPECT_TRUE(log.unnamed.has_room(0, 16));
  EXPECT_TRUE(log.unnamed.check(log.steps, kFirst, true, 0).ok());
}

TEST(UnnamedTokens, CheckCountsThoseThatNoStepHas) {
  Log log;
  log.append(kFirst, 0, 2);
  log.unnamed.append(0, 2, 1);
  EXPECT_EQ(log.check(kFirst).message(), "unnamed tokens: row 0: 3 wait, and 2 are in flight");
  EXPECT_TRUE(log.unnamed.check(log.steps, kFirst, false, 1).ok());
  EXPECT_TRUE(log.unnamed.check(log.steps, kFirst, true, 0).ok());
}

}  // namespace
}  // namespace kvfolio
