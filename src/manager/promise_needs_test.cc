// SPDX-License-Identifier: Apache-2.0
#include "manager/promise_needs.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "kvfolio/block_table.h"

namespace kvfolio {
namespace {

// Two groups, of blocks of 4 tokens; the second one has a window of 5.
class PromiseNeedsTest : public testing::Test {
 protected:
  static constexpr std::int32_t kFull = 0;
  static constexpr std::int32_t kWindow = 1;

  void SetUp() override {
    groups_ = {make_group(0), make_group(5)};
    ASSERT_TRUE(rows_.allocate(4, 4, 7));
    ASSERT_TRUE(tables_.allocate(4, 2, 1024, false).ok());
    ASSERT_TRUE(steps_.allocate(1, 2, 4, 1));
    ASSERT_TRUE(reservations_.allocate(4, std::vector{groups_[0].spec, groups_[1].spec}));
  }

  static Group make_group(std::int32_t window) {
    GroupSpec spec{.num_layers = 1, .num_kv_heads = 1, .head_dim_k = 8, .head_dim_v = 8};
    spec.block_size = 4;
    spec.num_blocks = 16;
    spec.window = window;
    spec.kind = window > 0 ? AttentionKind::kSlidingWindow : AttentionKind::kFull;
    return {spec, GroupRule(spec), 64, BlockSize(4)};
  }
  [[nodiscard]] PromiseNeeds needs(Order order = Order::kInOrder) const {
    return {rows_, tables_, groups_, steps_, reservations_, order};
  }
  static GroupSpec wide(GroupSpec spec) {
    spec.num_blocks = 512;
    return spec;
  }
  // A sequence of `length` tokens that has these blocks in each group.
  std::int32_t add(std::int32_t length, const std::vector<std::int32_t>& blocks) {
    const std::int32_t row = rows_.take();
    rows_[row].length = rows_[row].accepted = length;
    rows_[row].step_entry = -1;
    tables_.begin(row);
    for (std::int32_t g = 0; g < 2; ++g) {
      const auto count = static_cast<std::int32_t>(blocks.size());
      EXPECT_TRUE(tables_.of(row, g).reserve(tables_.arena(), count));
      tables_.of(row, g).assign(tables_.arena(), blocks);
    }
    return row;
  }

  std::vector<Group> groups_;
  Rows rows_;
  Tables tables_;
  StepLog steps_;
  Reservations reservations_;
};

TEST_F(PromiseNeedsTest, AFullGroupNeedsTheBlocksThatTheTokensFill) {
  const PromiseNeeds n = needs();
  EXPECT_EQ(n.ready_for(kFull, {0, 1, 6, 0, true}), 0);
  EXPECT_EQ(n.ready_for(kFull, {2, 1, 6, 0, true}), 0);  // they fit behind the 6
  EXPECT_EQ(n.ready_for(kFull, {3, 1, 6, 0, true}), 1);
  EXPECT_EQ(n.ready_for(kFull, {100, 1, 0, 0, true}), 25);
  EXPECT_EQ(n.ready_for(kFull, {100, 1, 0, 7, true}), 25);  // what it owns does not come back
}

TEST_F(PromiseNeedsTest, ATailThatOthersHoldNeedsABlockForItsCopy) {
  EXPECT_EQ(needs().ready_for(kFull, {2, 1, 6, 0, false}), 1);
  EXPECT_EQ(needs().ready_for(kFull, {3, 1, 6, 0, false}), 2);
}

TEST_F(PromiseNeedsTest, APromiseEndsWhereTheLongestSequenceDoes) {
  EXPECT_EQ(needs().ready_for(kFull, {100, 1, kMaxSequenceTokens - 4, 0, true}), 1);
}

// A query reads 5 tokens, and a step of 2 one more: 6 tokens lie in 3 blocks at most.
TEST_F(PromiseNeedsTest, AWindowNeedsNoMoreThanItAndOneStepLieIn) {
  const PromiseNeeds n = needs();
  EXPECT_EQ(n.ready_for(kWindow, {100, 2, 0, 0, true}), 3);
  EXPECT_EQ(n.ready_for(kWindow, {100, 2, 8, 2, true}), 1);
  EXPECT_EQ(n.ready_for(kWindow, {100, 2, 40, 9, true}), 0);
  EXPECT_EQ(n.ready_for(kWindow, {4, 2, 0, 0, true}), 1);  // fewer tokens than the window
}

TEST_F(PromiseNeedsTest, WithoutOrderAWindowBringsNothingBack) {
  EXPECT_EQ(needs(Order::kUnordered).ready_for(kWindow, {100, 2, 0, 0, true}), 25);
}

TEST_F(PromiseNeedsTest, TheTailIsOwnedByItsRowOrThereIsNone) {
  const std::int32_t row = add(6, {3, 5});
  reservations_.promise(row, rows_[row].length, 10, 2);
  const PromiseNeeds n = needs();
  EXPECT_FALSE(n.owns_tail(row, kFull, 6));
  EXPECT_TRUE(n.owns_tail(row, kFull, 4));
  reservations_.own(row, kFull, BlockId(5), 1);
  EXPECT_TRUE(n.owns_tail(row, kFull, 6));
  EXPECT_EQ(n.ready_for(row, kFull), 2);  // of 16 tokens, beyond the 2 blocks that are there
  EXPECT_FALSE(n.owns_tail(add(6, {3, 5}), kFull, 6));
}

TEST_F(PromiseNeedsTest, OnlyABlockThatIsUsedAgainCostsOneToShare) {
  const std::int32_t row = add(6, {3, 5});
  reservations_.promise(row, rows_[row].length, 10, 2);
  for (const std::int32_t g : {kFull, kWindow}) {
    reservations_.own(row, g, BlockId(3), 0);
    reservations_.own(row, g, BlockId(5), 1);
  }
  const PromiseNeeds n = needs();
  EXPECT_EQ(n.cost_of_sharing(kFull, BlockId()), 0);
  EXPECT_EQ(n.cost_of_sharing(kFull, BlockId(9)), 0);    // it has no owner
  EXPECT_EQ(n.cost_of_sharing(kFull, BlockId(3)), 0);    // full, and kept
  EXPECT_EQ(n.cost_of_sharing(kFull, BlockId(5)), 1);    // the tail would be copied
  EXPECT_EQ(n.cost_of_sharing(kWindow, BlockId(3)), 1);  // the window would bring it back
  EXPECT_EQ(needs(Order::kUnordered).cost_of_sharing(kWindow, BlockId(3)), 0);
  EXPECT_EQ(needs(Order::kUnordered).cost_of_sharing(kWindow, BlockId(5)), 1);
}

TEST_F(PromiseNeedsTest, ABlockWhereADraftOrTheOpenStepBeganIsATailToo) {
  const std::int32_t row = add(8, {3, 5});
  reservations_.promise(row, rows_[row].length, 10, 2);
  reservations_.own(row, kFull, BlockId(3), 0);
  reservations_.own(row, kFull, BlockId(5), 1);
  const PromiseNeeds n = needs();
  EXPECT_EQ(n.cost_of_sharing(kFull, BlockId(5)), 0);
  rows_[row].accepted = 6;  // a draft may be rejected
  EXPECT_EQ(n.cost_of_sharing(kFull, BlockId(5)), 1);
  EXPECT_EQ(n.cost_of_sharing(kFull, BlockId(3)), 0);
  rows_[row].accepted = 2;  // or undo() goes back there
  EXPECT_EQ(n.cost_of_sharing(kFull, BlockId(5)), 1);
  EXPECT_EQ(n.cost_of_sharing(kFull, BlockId(3)), 1);
  rows_[row].accepted = 8;
  steps_.begin();
  Step& step = steps_.open();
  step.entries[0] = {};
  step.entries[0].row = row;
  step.entries[0].begin = 8;
  step.change(0, kFull) = TailChange::none();
  step.num_entries = 1;
  rows_[row].step_entry = 0;
  EXPECT_EQ(n.cost_of_sharing(kFull, BlockId(5)), 0);
  step.change(0, kFull).source = 5;  // it gave way to a copy
  EXPECT_EQ(n.cost_of_sharing(kFull, BlockId(5)), 1);
}

// Each block of a hit is asked about, and the owner may be computing a prompt as long: no answer
// looks at a table, here one that has none of these blocks.
TEST_F(PromiseNeedsTest, WhatABlockCostsIsAnsweredWithoutALookAtTheTable) {
  constexpr std::int32_t kMany = 500;
  ASSERT_TRUE(reservations_.allocate(4, std::vector{wide(groups_[0].spec), wide(groups_[1].spec)}));
  const std::int32_t row = add(4 * kMany, {});
  reservations_.promise(row, rows_[row].length, 10, 2);
  for (std::int32_t i = 0; i < kMany; ++i) reservations_.own(row, kFull, BlockId(i), kMany - 1 - i);
  rows_[row].accepted = 4 * 100 + 2;
  for (std::int32_t i = 0; i < kMany; ++i) {
    EXPECT_EQ(needs().cost_of_sharing(kFull, BlockId(i)), kMany - 1 - i >= 100 ? 1 : 0) << i;
  }
  rows_[row].length = 4 * 200;  // where the table ends
  EXPECT_EQ(needs().cost_of_sharing(kFull, BlockId(kMany - 1 - 199)), 1);
  EXPECT_EQ(needs().cost_of_sharing(kFull, BlockId(kMany - 1 - 200)), 0);
}

}  // namespace
}  // namespace kvfolio
