// SPDX-License-Identifier: Apache-2.0
//
// LoadBlocks over rows, tables, a tree and Blocks, without a manager.
#include "manager/load_blocks.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "manager/test_parts.h"

namespace kvfolio {
namespace {

// A prompt of 16 tokens, of which the cache has the first 8; an empty sequence waits for all of it.
class LoadBlocksTest : public PartsTest {
 protected:
  void SetUp() override {
    PartsTest::SetUp();
    ASSERT_TRUE(promises_.allocate(4, specs_));
    ASSERT_TRUE(transfers_.allocate(2, 2, 0));
    prefix_ = publish(100, 8);
    let_go(prefix_);
    prompt_.resize(16);
    std::iota(prompt_.begin(), prompt_.end(), 100);
    row_ = add_row(0);
    rows_[row_].publishes = true;
    rows_[row_].place = tree_->enter(root_, 0);
  }
  void TearDown() override {
    tree_->leave(rows_[row_].place);
    PartsTest::TearDown();
  }
  // The whole prompt behind nothing: what the cache has joins the load's table.
  LoadPlan plan() {
    LoadPlan plan;
    plan.load = transfers_.next_load();
    plan.end = 16;
    EXPECT_TRUE(load_blocks_.lay_out(row_, prompt_, {}, plan));
    return plan;
  }

  Promises promises_{rows_, tables_, groups_, steps_, blocks_, Order::kInOrder};
  Transfers transfers_;
  LoadBlocks load_blocks_{rows_, tables_, groups_, tree_, transfers_, blocks_, promises_};
  Prefix prefix_;
  std::vector<std::int32_t> prompt_;
  std::int32_t row_ = -1;
};

// Position 16 reads all of the full group, and of the window group only what begins at 12.
TEST_F(LoadBlocksTest, WhatTheCacheHasIsNotLoadedAndWhatAWindowPassesIsNotThere) {
  LoadPlan laid = plan();
  EXPECT_EQ(laid.fresh.blocks[kFull], 2);
  EXPECT_EQ(laid.fresh.blocks[kWindow], 1);
  const BlockTable& full = transfers_.table(laid.load, kFull);
  EXPECT_EQ(full.at(tables_.arena(), 0).value(), prefix_.tables[kFull][0]);
  EXPECT_FALSE(full.at(tables_.arena(), 2).valid());
  const Revived revived = load_blocks_.revived_by(laid, kFull);
  EXPECT_EQ(revived.cached, 2);
  EXPECT_EQ(revived.last.value(), prefix_.tables[kFull][1]);
  EXPECT_EQ(load_blocks_.revived_by(laid, kWindow).cached, 0);
  load_blocks_.drop(laid);
}

TEST_F(LoadBlocksTest, ALoadHoldsItsBlocksAndGivesBackWhatDidNotArrive) {
  LoadPlan laid = plan();
  load_blocks_.hold(laid);
  load_blocks_.take(laid);
  EXPECT_EQ(state(kFull, prefix_.tables[kFull][0]), BlockState::kHeld);
  EXPECT_EQ(transfers_.num_waiting(laid.load, kFull), 2);
  EXPECT_EQ(blocks_.pool(kFull).num_held(), 4);
  EXPECT_EQ(blocks_.pool(kWindow).num_held(), 1);
  load_blocks_.let_go(laid.load);
  EXPECT_EQ(transfers_.num_waiting(laid.load, kFull), 0);
  EXPECT_EQ(blocks_.pool(kFull).num_held(), 0);
  EXPECT_EQ(state(kFull, prefix_.tables[kFull][0]), BlockState::kCached);
  load_blocks_.drop(laid);
}

TEST_F(LoadBlocksTest, ALoadStandsAsFarAsEveryGroupHasWhatItReads) {
  LoadPlan laid = plan();
  load_blocks_.hold(laid);
  load_blocks_.take(laid);
  transfers_.load(laid.load).row = row_;
  EXPECT_EQ(load_blocks_.stands_to(laid.load, 16, {}), 16);
  // 12 reads from position 8 on in the window group, which no one asked to load.
  EXPECT_EQ(load_blocks_.stands_to(laid.load, 12, {}), 0);
  load_blocks_.let_go(laid.load);
  load_blocks_.drop(laid);
}

TEST_F(LoadBlocksTest, WhatIsThereIsMarkedBesideWhatATierHas) {
  std::vector<std::uint8_t> has = {0, 1, 1, 0};
  load_blocks_.mark_present(row_, prompt_, {}, 0, kFull, has);
  constexpr std::uint8_t kInTier = LoadBlocks::kInTier;
  constexpr std::uint8_t kPresent = LoadBlocks::kPresent;
  EXPECT_EQ(has, (std::vector<std::uint8_t>{kPresent, kInTier | kPresent, kInTier, 0}));
}

}  // namespace
}  // namespace kvfolio
