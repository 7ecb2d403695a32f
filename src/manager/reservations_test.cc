// SPDX-License-Identifier: Apache-2.0
//
// Reservations alone: lists of blocks and counts, without a manager.

#include "manager/reservations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace kvfolio {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Reservations make() {
  GroupSpec small;
  small.num_blocks = 8;
  GroupSpec large = small;
  large.num_blocks = 16;
  Reservations made;
  const std::vector<GroupSpec> groups = {small, large};
  EXPECT_TRUE(made.allocate(3, groups));
  return made;
}

std::vector<std::int32_t> ready(const Reservations& r, std::int32_t row, std::int32_t g) {
  std::vector<std::int32_t> blocks;
  r.for_each_ready(row, g, [&](BlockId block) { blocks.push_back(block.value()); });
  return blocks;
}

TEST(Reservations, BlocksOfARowAndGroupAreTakenInTheReverseOrder) {
  Reservations r = make();
  r.promise(0, 0, 10, 2);
  r.promise(2, 0, 5, 5);
  r.put(0, 1, BlockId(7));
  r.put(0, 1, BlockId(3));
  r.put(2, 1, BlockId(4));
  EXPECT_THAT(ready(r, 0, 1), ElementsAre(3, 7));
  EXPECT_THAT(ready(r, 0, 0), IsEmpty());
  EXPECT_EQ(r.total_ready(1), 3);
  EXPECT_EQ(r.take(0, 1), BlockId(3));
  EXPECT_EQ(r.num_ready(0, 1), 1);
  EXPECT_EQ(r.total_ready(1), 2);
  EXPECT_TRUE(r.check().ok()) << r.check().message();
}

TEST(Reservations, UndoGivesTokensAndBlocksOfTheOpenStepBack) {
  Reservations r = make();
  r.promise(1, 7, 3, 3);
  r.put(1, 0, BlockId(5));
  r.spend(1, 7, 4, 4);  // one more than is promised
  EXPECT_EQ(r.tokens(1), 0);
  const BlockId taken = r.take_for_step(1, 0);
  EXPECT_EQ(r.num_taken(1, 0), 1);
  r.untake(1, 0, taken);
  r.undo(1);
  EXPECT_EQ(r.tokens(1), 3);
  EXPECT_EQ(r.num_ready(1, 0), 1);
  EXPECT_EQ(r.num_taken(1, 0), 0);
  r.spend(1, 7, 2, 2);
  r.settle(1);
  r.undo(1);  // nothing of a step that was committed comes back
  EXPECT_EQ(r.tokens(1), 1);
}

TEST(Reservations, ABlockHasOneOwner) {
  Reservations r = make();
  r.promise(0, 0, 1, 1);
  r.own(0, 0, BlockId(2), 3);
  EXPECT_EQ(r.owner(0, BlockId(2)), 0);
  EXPECT_EQ(r.owner(1, BlockId(2)), Reservations::kNobody);
  EXPECT_EQ(r.num_own(0, 0), 1);
  EXPECT_EQ(r.logical(0, BlockId(2)), 3);
  r.disown(0, BlockId(2));
  r.disown(0, BlockId(2));
  EXPECT_EQ(r.num_own(0, 0), 0);
}

TEST(Reservations, CheckNamesACountThatIsWrong) {
  Reservations r = make();
  r.promise(0, 0, 1, 1);
  r.own(0, 0, BlockId(2), 3);
  EXPECT_TRUE(r.check().ok());
  r.end(0);                     // with a block of its own still
  EXPECT_TRUE(r.check().ok());  // no row has a promise: nothing is counted
  r.promise(1, 0, 1, 1);
  EXPECT_EQ(r.check().message(),
            "reservations: group 0: 0 blocks lie ready, counted 0; own blocks counted wrong by -1");
}

TEST(Reservations, ACopyIsEqual) {
  Reservations r = make();
  r.promise(0, 0, 9, 4);
  r.put(0, 0, BlockId(1));
  r.own(0, 1, BlockId(9), 4);
  Reservations copy = make();
  copy.promise(2, 0, 1, 1);
  copy.copy_from(r);
  EXPECT_EQ(copy.num_rows(), 1);
  EXPECT_EQ(copy.tokens(0), 9);
  EXPECT_EQ(copy.most_per_step(0), 4);
  EXPECT_THAT(ready(copy, 0, 0), ElementsAre(1));
  EXPECT_EQ(copy.owner(1, BlockId(9)), 0);
  EXPECT_EQ(copy.logical(1, BlockId(9)), 4);
  EXPECT_TRUE(copy.check().ok());
}

TEST(Reservations, WhatWasSpentIsCountedFromAPositionWithoutTheOpenStep) {
  Reservations r = make();
  r.promise(1, 4, 9, 9);
  r.spend(1, 4, 3, 3);
  r.settle(1);
  r.spend(1, 7, 4, 4);
  const auto from = [&](std::int32_t position) {
    const Reservations::Spent spent = r.spent_from(1, position);
    return std::vector<std::int32_t>{spent.begin, spent.end};
  };
  EXPECT_THAT(from(2), ElementsAre(2, 5));
  EXPECT_THAT(from(5), ElementsAre(0, 2));
  EXPECT_THAT(from(7), ElementsAre(0, 0));
  r.settle(1);
  EXPECT_THAT(from(7), ElementsAre(0, 4));
}

TEST(Reservations, ACutPromisesAgainWhatWasSpentBehindIt) {
  Reservations r = make();
  r.promise(1, 4, 5, 5);
  r.spend(1, 4, 3, 3);
  r.settle(1);
  r.spend(1, 7, 4, 4);  // two of them are promised
  r.settle(1);
  EXPECT_EQ(r.spent_behind(1, 0), 5);
  EXPECT_EQ(r.spent_behind(1, 8), 1);
  r.cut(1, 10, true);  // of what the promise did not cover nothing comes back
  EXPECT_EQ(r.tokens(1), 0);
  r.cut(1, 8, true);
  EXPECT_EQ(r.tokens(1), 1);
  r.cut(1, 6, false);  // as by truncate()
  EXPECT_EQ(r.tokens(1), 1);
  r.spend(1, 6, 1, 1);
  r.undo(1);
  EXPECT_EQ(r.tokens(1), 1);
  r.cut(1, 2, true);  // in front of the promise
  EXPECT_EQ(r.tokens(1), 3);
  EXPECT_EQ(r.spent_behind(1, 0), 0);
}

}  // namespace
}  // namespace kvfolio
