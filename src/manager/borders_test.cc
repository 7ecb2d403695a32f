// SPDX-License-Identifier: Apache-2.0
//
// Borders over rows, tables, a tree and Blocks, without a manager.
#include "manager/borders.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

#include "manager/test_parts.h"

namespace kvfolio {
namespace {

// A sequence of 26 tokens, of which the tree has 20, in blocks of 4. The window of 26 has passed
// all five of these; a hit at 20, the last full border, reads from position 16 on: the last one.
class BordersTest : public PartsTest {
 protected:
  void SetUp() override {
    PartsTest::SetUp();
    borders_.begin();
    prefix_ = publish(100, 20);
    row_ = add_row(0);
    Sequence& s = rows_[row_];
    s.length = s.accepted = 26;
    s.publishes = true;
    s.place = prefix_.place;
    tables_.of(row_, kWindow).assign(tables_.arena(), prefix_.tables[kWindow]);
    for (std::int32_t logical = 0; logical < 5; ++logical) {
      blocks_.let_go(kWindow, window_block(logical), true, 0);
      tables_.of(row_, kWindow).set(tables_.arena(), logical, BlockId());
    }
    tables_.window_begin(row_, kWindow) = 5;
  }
  void TearDown() override {
    tree_->leave(prefix_.place);
    PartsTest::TearDown();
  }
  [[nodiscard]] BlockId window_block(std::int32_t logical) const {
    return BlockId(prefix_.tables[kWindow][static_cast<std::size_t>(logical)]);
  }
  [[nodiscard]] bool is_border(std::int32_t logical) const {
    return blocks_.room().is_border(kWindow, window_block(logical));
  }

  Borders borders_{rows_, tables_, groups_, tree_, blocks_};
  Prefix prefix_;
  std::int32_t row_ = -1;
};

TEST_F(BordersTest, WhatAHitAtTheLastFullBlockReadsLeavesLast) {
  EXPECT_TRUE(borders_.any());
  borders_.move(row_);
  EXPECT_EQ(tables_.border(row_, kWindow).first, 4);
  EXPECT_EQ(tables_.border(row_, kWindow).end, 5);
  for (std::int32_t logical = 0; logical < 5; ++logical)
    EXPECT_EQ(is_border(logical), logical == 4);
  EXPECT_EQ(blocks_.room().turn(kWindow, window_block(4)), EvictionTurn::kLast);
  borders_.drop(row_);
  EXPECT_FALSE(is_border(4));
  EXPECT_EQ(blocks_.room().turn(kWindow, window_block(4)), EvictionTurn::kFirst);
}

TEST_F(BordersTest, WhatAnEndReadsIsNotAmongTheFirstToLeave) {
  EXPECT_EQ(blocks_.room().turn(kWindow, window_block(0)), EvictionTurn::kFirst);
  borders_.note_pinned(kWindow, std::array{window_block(0).value()});
  EXPECT_EQ(blocks_.room().turn(kWindow, window_block(0)), EvictionTurn::kNormal);
}

TEST_F(BordersTest, ASequenceTakesItsBorderBackAndLetsGoOfItWithTheRest) {
  borders_.move(row_);
  borders_.take_back(row_);
  EXPECT_EQ(tables_.border(row_, kWindow).end, 0);
  EXPECT_EQ(tables_.of(row_, kWindow).at(tables_.arena(), 4), window_block(4));
  EXPECT_EQ(blocks_.pool(kWindow).refs(window_block(4)), 1);
  EXPECT_FALSE(is_border(4));
}

TEST_F(BordersTest, ASequenceThatDoesNotPublishHasNone) {
  rows_[row_].publishes = false;
  borders_.move(row_);
  EXPECT_EQ(tables_.border(row_, kWindow).end, 0);
}

}  // namespace
}  // namespace kvfolio
