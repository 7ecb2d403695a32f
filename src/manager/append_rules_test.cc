// SPDX-License-Identifier: Apache-2.0
//
// AppendRules over rows, tables and Blocks, without a manager.
#include "manager/append_rules.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <vector>

#include "manager/test_parts.h"

namespace kvfolio {
namespace {

class AppendRulesTest : public PartsTest {
 protected:
  void SetUp() override {
    PartsTest::SetUp();
    ASSERT_TRUE(promises_.allocate(4, specs_));
  }

  // A sequence that wrote `length` tokens.
  std::int32_t add(std::int32_t length) {
    const std::int32_t row = add_row(length);
    for (std::int32_t at = 0; at < length; at += kSize) {
      blocks_.set_written(kFull, tail_of(row, at), {std::min(kSize, length - at), row, 1});
    }
    return row;
  }
  [[nodiscard]] BlockId tail_of(std::int32_t row, std::int32_t position) const {
    return tables_.of(row, kFull).at(tables_.arena(), position / kSize);
  }
  [[nodiscard]] Demand demand(std::int32_t row, std::int32_t write_begin, std::int32_t end) const {
    return rules_.demand(row, kFull, write_begin, end);
  }

  Promises promises_{rows_, tables_, groups_, steps_, blocks_, Order::kInOrder};
  AppendRules rules_{rows_, tables_, groups_, tree_, steps_, blocks_, promises_};
};

TEST_F(AppendRulesTest, ASequenceWritesBehindItsOwnTokensInPlace) {
  const std::int32_t row = add(6);
  EXPECT_EQ(demand(row, 6, 6).blocks, 0);
  const Demand inside = demand(row, 6, 8);
  EXPECT_EQ(inside.blocks, 0);
  EXPECT_FALSE(inside.new_tail);
  EXPECT_EQ(demand(row, 6, 9).blocks, 1);
  EXPECT_EQ(demand(row, 6, 16).blocks, 2);
  EXPECT_FALSE(rules_.writes_below_valid(row, kFull, 6, inside));
}

TEST_F(AppendRulesTest, WhatAnotherOneMayWriteIsCopied) {
  const std::int32_t row = add(6);
  const BlockId tail = tail_of(row, 6);
  blocks_.hold(kFull, std::array{tail.value()});
  EXPECT_FALSE(demand(row, 6, 7).new_tail);  // the right to append is still the row's
  blocks_.set_writer(kFull, tail, row + 1);
  const Demand needs = demand(row, 6, 7);
  EXPECT_TRUE(needs.new_tail);
  EXPECT_EQ(needs.blocks, 1);
  EXPECT_FALSE(needs.can_reuse);
  blocks_.let_go(kFull, tail, false);
}

TEST_F(AppendRulesTest, TheOnlyHolderWritesBelowValidTokensThatNothingFinds) {
  const std::int32_t row = add(7);
  const Demand alone = demand(row, 5, 6);
  EXPECT_FALSE(alone.new_tail);
  EXPECT_TRUE(rules_.writes_below_valid(row, kFull, 5, alone));
  const BlockId tail = tail_of(row, 5);
  blocks_.hold(kFull, std::array{tail.value()});
  EXPECT_TRUE(demand(row, 5, 6).new_tail);
  blocks_.let_go(kFull, tail, false);
}

TEST_F(AppendRulesTest, WhatIsFindableAboveIsCopiedUnlessThereIsNoRoom) {
  Prefix prefix = publish(100, 7);
  const std::int32_t row = add_row(0);
  rows_[row].length = rows_[row].accepted = 5;
  tables_.of(row, kFull).assign(tables_.arena(), prefix.tables[kFull]);
  Demand needs = demand(row, 5, 6);
  EXPECT_TRUE(needs.new_tail);
  EXPECT_TRUE(needs.can_reuse);
  EXPECT_EQ(needs.blocks, 1);
  needs.do_without_a_copy();
  EXPECT_EQ(needs.blocks, 0);
  EXPECT_TRUE(needs.reuse);
  // As admit() notes it for the step that comes next, and for no other.
  rows_.details(row).reuse = 1;
  rows_.details(row).reuse_step = rules_.next_step();
  EXPECT_TRUE(demand(row, 5, 6).reuse);
  steps_.begin();
  EXPECT_TRUE(demand(row, 5, 6).reuse);
  steps_.commit();
  EXPECT_FALSE(demand(row, 5, 6).reuse);
  let_go(prefix);
}

TEST_F(AppendRulesTest, BehindAHitACachedTailIsWrittenByWhoeverRevivesItFirst) {
  Prefix prefix = publish(100, 7);
  let_go(prefix);
  const BlockId tail(prefix.tables[kFull][1]);
  EXPECT_FALSE(rules_.demand_behind_hit(kFull, tail, 7, 8).new_tail);
  const Demand inside = rules_.demand_behind_hit(kFull, tail, 5, 8);
  EXPECT_TRUE(inside.new_tail);
  EXPECT_TRUE(inside.can_reuse);
  EXPECT_EQ(inside.blocks, 1);
  EXPECT_EQ(rules_.demand_behind_hit(kFull, BlockId(), 8, 17).blocks, 3);
}

TEST_F(AppendRulesTest, OnlyWhatIsRequiredComesFromWhatLiesReady) {
  const std::int32_t row = add(4);
  Demand needs;
  needs.blocks = 2;
  EXPECT_EQ(rules_.from_ready(row, kFull, needs), 0);
  promises_.promise(row, promises_.offer(row, 12, 12));
  EXPECT_EQ(rules_.from_ready(row, kFull, needs), 2);
  needs.can_reuse = true;
  EXPECT_EQ(rules_.from_ready(row, kFull, needs), 1);
  promises_.end(row);
}

}  // namespace
}  // namespace kvfolio
