// SPDX-License-Identifier: Apache-2.0
//
// Promises over rows, tables and Blocks, without a manager.
#include "manager/promises.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "manager/test_parts.h"

namespace kvfolio {
namespace {

class PromisesTest : public PartsTest {
 protected:
  void SetUp() override {
    PartsTest::SetUp();
    ASSERT_TRUE(promises_.allocate(4, specs_));
  }
  void TearDown() override {
    const Status whole = promises_.check();
    EXPECT_TRUE(whole.ok()) << whole.message();
    PartsTest::TearDown();
  }

  [[nodiscard]] std::span<const std::int32_t> table(std::int32_t row, std::int32_t g) {
    return std::as_const(tables_).of(row, g).blocks(std::as_const(tables_).arena());
  }
  void promise(std::int32_t row, std::int64_t num_tokens, std::int64_t most_per_step) {
    const Promises::Offer offer = promises_.offer(row, num_tokens, most_per_step);
    ASSERT_TRUE(offer.room.fits());
    promises_.promise(row, offer);
  }

  Promises promises_{rows_, tables_, groups_, steps_, blocks_, Order::kInOrder};
};

TEST_F(PromisesTest, WhatAPromiseNeedsLiesReadyUntilItEnds) {
  const std::int32_t row = add_row(4);
  EXPECT_FALSE(promises_.any());
  promise(row, 8, 8);
  EXPECT_TRUE(promises_.has(row));
  EXPECT_EQ(promises_.tokens(row), 8);
  EXPECT_EQ(promises_.num_ready(row, kFull), 2);
  EXPECT_TRUE(blocks_.has_room(kFull, 3));
  EXPECT_FALSE(blocks_.has_room(kFull, 4));
  promises_.end(row);
  EXPECT_FALSE(promises_.any());
  EXPECT_EQ(promises_.tokens(row), 0);
  EXPECT_EQ(promises_.num_ready(row, kFull), 0);
  EXPECT_TRUE(blocks_.has_room(kFull, 5));
}

TEST_F(PromisesTest, AnOfferThatDoesNotFitNamesTheGroupAndTakesNothing) {
  const std::int32_t row = add_row(4);
  const Promises::Offer offer = promises_.offer(row, 24, 4);
  EXPECT_FALSE(offer.room.fits());
  EXPECT_EQ(offer.room.short_of, kFull);
  EXPECT_EQ(offer.room.needs.blocks[kFull], 6);
  EXPECT_FALSE(promises_.has(row));
  EXPECT_EQ(blocks_.pool(kFull).num_free(), 5);
}

TEST_F(PromisesTest, APromiseEvictsForItsBlocks) {
  Prefix prefix = publish(100, 20);
  let_go(prefix);
  const std::int32_t row = add_row(4);
  promise(row, 8, 8);
  EXPECT_EQ(promises_.num_ready(row, kFull), 2);
  EXPECT_GT(counters_.blocks_evicted, 0u);
}

TEST_F(PromisesTest, WhatLiesReadyIsTakenFirstAndComesBackByUndo) {
  const std::int32_t row = add_row(4);
  promise(row, 4, 4);
  std::int32_t from_ready = 1;
  const BlockId first = promises_.acquire(row, kFull, 1, from_ready);
  const BlockId second = promises_.acquire(row, kFull, 2, from_ready);
  EXPECT_EQ(from_ready, 0);
  EXPECT_EQ(promises_.num_ready(row, kFull), 0);
  EXPECT_EQ(promises_.reservations().owner(kFull, second), row);
  // What was taken last goes back first: it is free, the other one lies ready again.
  std::int32_t from_pool = promises_.num_from_pool(row, kFull, 2);
  EXPECT_EQ(from_pool, 1);
  promises_.give_back(row, kFull, second, from_pool);
  promises_.give_back(row, kFull, first, from_pool);
  EXPECT_EQ(state(kFull, second.value()), BlockState::kFree);
  EXPECT_EQ(state(kFull, first.value()), BlockState::kHeld);
  EXPECT_EQ(promises_.num_ready(row, kFull), 1);
}

TEST_F(PromisesTest, ARowWithoutAPromiseTakesAndGivesBackAsBlocksDoes) {
  const std::int32_t row = add_row(4);
  std::int32_t from_ready = 0;
  const BlockId block = promises_.acquire(row, kFull, 1, from_ready);
  EXPECT_EQ(promises_.reservations().owner(kFull, block), Reservations::kNobody);
  std::int32_t from_pool = promises_.num_from_pool(row, kFull, 1);
  promises_.give_back(row, kFull, block, from_pool);
  EXPECT_EQ(state(kFull, block.value()), BlockState::kFree);
  const std::int32_t old = table(row, kFull)[0];
  promises_.let_go(row, kFull, 0, 1, 0);
  EXPECT_EQ(state(kFull, old), BlockState::kFree);
  tables_.of(row, kFull).truncate(0);
  // Harmless without a promise.
  promises_.spend(row, 4, 1);
  promises_.undo(row);
  promises_.return_surplus(row);
  promises_.end(row);
}

// A window of 5 and steps of 4 tokens lie in three blocks. Once the sequence has these, what the
// window passes lies ready for it again.
TEST_F(PromisesTest, AnOwnBlockThatTheWindowPassesLiesReady) {
  const std::int32_t row = add_row(12);
  promise(row, 4, 4);
  const std::int32_t ready = promises_.num_ready(row, kWindow);
  const std::int32_t passed = table(row, kWindow)[0];
  promises_.let_go(row, kWindow, 0, 1, 12);
  tables_.of(row, kWindow).set(tables_.arena(), 0, BlockId());
  EXPECT_EQ(state(kWindow, passed), BlockState::kHeld);
  EXPECT_EQ(promises_.num_ready(row, kWindow), ready + 1);
  EXPECT_EQ(promises_.reservations().owner(kWindow, BlockId(passed)), Reservations::kNobody);
}

TEST_F(PromisesTest, WhoSharesAnOwnBlockPaysForAnotherOne) {
  const std::int32_t row = add_row(6);
  promise(row, 4, 4);
  const std::int32_t tail = table(row, kFull)[1];
  EXPECT_EQ(promises_.cost_of_sharing(kFull, BlockId(tail)), 1);
  EXPECT_EQ(promises_.cost_of_sharing(kFull, BlockId(table(row, kFull)[0])), 0);
  const Room::Plan plan = promises_.plan_sharing(row);
  EXPECT_TRUE(plan.fits());
  EXPECT_EQ(plan.needs.blocks[kFull], 1);
  const std::int32_t ready = promises_.num_ready(row, kFull);
  promises_.share([&](const auto& visit) { visit(kFull, std::array{tail}); });
  EXPECT_EQ(promises_.num_ready(row, kFull), ready + 1);
  EXPECT_EQ(promises_.cost_of_sharing(kFull, BlockId(tail)), 0);
  blocks_.let_go(kFull, BlockId(tail), false);
}

TEST_F(PromisesTest, APromiseEndsWithItsLastToken) {
  const std::int32_t row = add_row(4);
  promise(row, 4, 4);
  Step& step = steps_.begin();
  step.entries[0].row = row;
  step.num_entries = 1;
  std::int32_t from_ready = 1;
  const BlockId block = promises_.acquire(row, kFull, 1, from_ready);
  promises_.spend(row, 4, 4);
  rows_[row].step_entry = -1;
  rows_[row].accepted = 7;  // one of them is a guess, which may be rejected
  promises_.settle(step, 0);
  EXPECT_TRUE(promises_.has(row));
  rows_[row].accepted = 8;
  promises_.settle(step, 0);
  EXPECT_FALSE(promises_.has(row));
  blocks_.let_go(kFull, block, true);
  steps_.drop();
}

TEST_F(PromisesTest, ASequenceThatWasCutBackReturnsWhatItDoesNotNeed) {
  const std::int32_t row = add_row(6);
  promise(row, 6, 6);  // up to position 12: two blocks more than the two that it has, or one
  const std::int32_t ready = promises_.num_ready(row, kFull);
  rows_[row].length = rows_[row].accepted = 5;
  promises_.return_surplus(row);
  EXPECT_EQ(promises_.num_ready(row, kFull), ready);  // 5 to 11 end in the same block
  rows_[row].length = rows_[row].accepted = 2;
  promises_.let_go(row, kFull, 1, 2, 2);
  promises_.let_go(row, kWindow, 1, 2, 2);
  for (std::int32_t g = 0; g < 2; ++g) tables_.of(row, g).truncate(1);
  promises_.return_surplus(row);
  EXPECT_EQ(promises_.num_ready(row, kFull), 1);  // 2 to 8: one behind the tail
}

}  // namespace
}  // namespace kvfolio
