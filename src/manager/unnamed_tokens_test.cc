// SPDX-License-Identifier: Apache-2.0
//
// Unnamed tokens alone: a log of steps, and no sequences.

#include "manager/unnamed_tokens.h"

#include <gtest/gtest.h>

namespace kvfolio {
namespace {

constexpr UnnamedTokens::Owner kFirst{0, 1};
constexpr UnnamedTokens::Owner kChild{1, 2};

struct Log {
  StepLog steps;
  UnnamedTokens unnamed;

  Log() {
    EXPECT_TRUE(steps.allocate(4, 1, 4, 16));
    EXPECT_TRUE(unnamed.allocate(4));
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
    e.unnamed_begin = unnamed.num_appended(owner.row);
    step.num_entries = 1;
    step.clear_changes(0);
    step.has_unnamed = true;
    step.entry_of[owner.row] = 0;
    unnamed.append(owner.row, n);
    return steps.commit();
  }
  Status check(UnnamedTokens::Owner owner) const { return unnamed.check(steps, owner, 0); }
};

TEST(UnnamedTokens, AreNamedInTheOrderOfTheirAppends) {
  Log log;
  const Step& first = log.append(kFirst, 0, 3);
  const Step& second = log.append(kFirst, 3, 2);
  EXPECT_EQ(log.unnamed.num_waiting(0), 5u);
  log.unnamed.name(0, 3);
  // All of the first step have names: nothing is lost with it.
  EXPECT_FALSE(log.unnamed.end(first.entries[0], false));
  EXPECT_EQ(log.unnamed.num_waiting(0), 2u);
  EXPECT_TRUE(log.check(kFirst).ok()) << log.check(kFirst).message();
  EXPECT_TRUE(log.unnamed.end(second.entries[0], false));
  EXPECT_EQ(log.unnamed.num_waiting(0), 0u);
}

TEST(UnnamedTokens, OfAStepThatEndsLoseTheirChance) {
  Log log;
  const Step& first = log.append(kFirst, 0, 3);
  log.append(kFirst, 3, 2);
  log.unnamed.name(0, 1);
  EXPECT_TRUE(log.unnamed.end(first.entries[0], false));
  EXPECT_EQ(log.unnamed.num_waiting(0), 2u);  // those of the second step
}

TEST(UnnamedTokens, OfAFailedStepAreForgottenAndEarlierOnesWait) {
  Log log;
  log.append(kFirst, 0, 3);
  const Step& second = log.append(kFirst, 3, 2);
  log.unnamed.name(0, 1);
  EXPECT_TRUE(log.unnamed.end(second.entries[0], true));
  EXPECT_EQ(log.unnamed.num_appended(0), 3u);
  EXPECT_EQ(log.unnamed.num_waiting(0), 2u);
}

TEST(UnnamedTokens, ThatAreCutOffWantNoNames) {
  Log log;
  log.append(kFirst, 0, 3);
  Step& second = log.append(kFirst, 3, 4);
  log.unnamed.truncate(log.steps, kFirst, 5);
  EXPECT_EQ(log.unnamed.num_waiting(0), 5u);
  EXPECT_EQ(second.entries[0].unnamed, 2);
  log.unnamed.truncate(log.steps, kFirst, 1);
  EXPECT_EQ(log.unnamed.num_waiting(0), 1u);
  EXPECT_EQ(second.entries[0].unnamed, 0);
  // What comes in their place is numbered behind what is left.
  const Step& third = log.append(kFirst, 1, 1);
  EXPECT_EQ(third.entries[0].unnamed_begin, 1u);
  EXPECT_TRUE(log.check(kFirst).ok()) << log.check(kFirst).message();
}

TEST(UnnamedTokens, OfAForkAreNamedApart) {
  Log log;
  Step& step = log.append(kFirst, 0, 3);
  log.unnamed.name(0, 1);
  log.unnamed.become(1, 0);
  log.unnamed.share(log.steps, kFirst, kChild);
  ASSERT_EQ(step.num_entries, 2);
  EXPECT_EQ(step.entries[1].row, 1);
  EXPECT_EQ(step.entries[1].birth, kChild.birth);
  log.unnamed.name(1, 2);
  EXPECT_EQ(log.unnamed.num_waiting(0), 2u);
  EXPECT_EQ(log.unnamed.num_waiting(1), 0u);
  EXPECT_TRUE(log.check(kChild).ok()) << log.check(kChild).message();
  // A later sequence of the parent's row is not in that step.
  log.unnamed.truncate(log.steps, {0, 9}, 0);
  EXPECT_EQ(step.entries[0].unnamed, 3);
}

TEST(UnnamedTokens, UndoTakesNumbersAndNamesBack) {
  Log log;
  log.append(kFirst, 0, 2);
  const Step& second = log.append(kFirst, 2, 2);
  log.unnamed.name(0, 3);
  log.unnamed.undo(second.entries[0]);
  EXPECT_EQ(log.unnamed.num_appended(0), 2u);
  EXPECT_EQ(log.unnamed.num_waiting(0), 0u);
}

TEST(UnnamedTokens, CheckCountsThoseThatNoStepHas) {
  Log log;
  log.append(kFirst, 0, 2);
  log.unnamed.append(0, 1);
  EXPECT_EQ(log.check(kFirst).message(),
            "unnamed tokens: row 0: 0 of 3 have names, and 2 are in flight");
  EXPECT_TRUE(log.unnamed.check(log.steps, kFirst, 1).ok());
}

}  // namespace
}  // namespace kvfolio
