// SPDX-License-Identifier: Apache-2.0
//
// Blocks with a tree and a log of steps, without tables, sequences or a manager.
#include "manager/blocks.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

#include "manager/test_parts.h"

namespace kvfolio {
namespace {

class BlocksTest : public PartsTest {};

TEST_F(BlocksTest, WhatIsNotFindableIsFreeWhenTheLastHolderLetsGo) {
  const BlockId block = blocks_.acquire(kFull);
  blocks_.hold(kFull, std::array{block.value(), -1});
  blocks_.let_go(kFull, block, true);
  EXPECT_EQ(state(kFull, block.value()), BlockState::kHeld);
  blocks_.let_go(kFull, block, true);
  EXPECT_EQ(state(kFull, block.value()), BlockState::kFree);
  EXPECT_EQ(counters_.blocks_allocated, 1u);
  EXPECT_EQ(counters_.blocks_freed, 1u);
}

TEST_F(BlocksTest, WhatIsFindableIsCachedAndComesBack) {
  Prefix prefix = publish(100, 8);
  EXPECT_EQ(last_published_.num_hung, 4u);
  EXPECT_EQ(blocks_.findable().size(), 4);
  let_go(prefix);
  const std::int32_t first = prefix.tables[kFull][0];
  EXPECT_EQ(state(kFull, first), BlockState::kCached);
  EXPECT_TRUE(blocks_.victim(kFull).valid());
  EXPECT_TRUE(blocks_.has_room(kFull, 6));
  blocks_.hold(kFull, prefix.tables[kFull]);
  EXPECT_EQ(state(kFull, first), BlockState::kHeld);
  EXPECT_FALSE(blocks_.victim(kFull).valid());
  EXPECT_TRUE(blocks_.has_room(kFull, 4));
  EXPECT_FALSE(blocks_.has_room(kFull, 5));
  blocks_.let_go_each(kFull, prefix.tables[kFull], true, 0);
}

TEST_F(BlocksTest, ABlockRetiresWhileAStepMayTouchIt) {
  const BlockId block = blocks_.acquire(kFull);
  commit_a_step();
  blocks_.let_go(kFull, block, true);
  EXPECT_EQ(state(kFull, block.value()), BlockState::kRetiring);
  blocks_.drain_retiring();
  EXPECT_EQ(state(kFull, block.value()), BlockState::kRetiring);
  steps_.end(0, 1);
  blocks_.drain_retiring();
  EXPECT_EQ(state(kFull, block.value()), BlockState::kFree);
}

class UnorderedBlocksTest : public PartsTest {
 protected:
  UnorderedBlocksTest() : PartsTest(Order::kUnordered) {}
};

TEST_F(UnorderedBlocksTest, ABlockRestsOnceItsStepsAreComplete) {
  const BlockId block = blocks_.acquire(kFull);
  blocks_.hold(kFull, std::array{block.value()});
  commit_a_step();
  blocks_.let_go(kFull, block, true);
  EXPECT_EQ(blocks_.pool(kFull).refs(block), 1);
  EXPECT_FALSE(blocks_.is_alone(kFull, block));
  steps_.end(0, 1);
  EXPECT_TRUE(blocks_.is_alone(kFull, block));
  blocks_.let_go(kFull, block, true);
}

// What no prompt reaches without the block of the full group goes with it.
TEST_F(BlocksTest, TakeMakesWhatWasPlannedFreeAndNothingMore) {
  Prefix prefix = publish(100, 16);
  let_go(prefix);
  Room::Needs needs;
  needs.blocks = {3, 2};
  const Room::Plan plan = blocks_.plan(needs);
  ASSERT_TRUE(plan.fits());
  blocks_.take(plan);
  EXPECT_EQ(blocks_.pool(kFull).num_free(), 3);
  EXPECT_EQ(blocks_.pool(kWindow).num_free(), 3);
  EXPECT_EQ(counters_.blocks_evicted, 2u);
  needs.blocks = {7, 0};
  EXPECT_EQ(blocks_.plan(needs).short_of, kFull);
}

// The deepest block of a full group, the tail before it; in a window group first what no end reads.
TEST_F(BlocksTest, TheTailLeavesFirst) {
  Prefix prefix = publish(100, 10);
  let_go(prefix);
  const auto& full = prefix.tables[kFull];
  for (std::size_t i = full.size(); i-- > 0;) {
    EXPECT_EQ(blocks_.victim(kFull).value(), full[i]);
    blocks_.evict(kFull);
    EXPECT_EQ(state(kFull, full[i]), BlockState::kFree);
  }
  EXPECT_FALSE(blocks_.victim(kFull).valid());
}

TEST_F(BlocksTest, AHeldBlockKeepsTheEntryThatAnEqualOneOffers) {
  Prefix first = publish(100, 8);
  Prefix second = publish(100, 8);
  EXPECT_EQ(last_published_.num_hung, 0u);
  EXPECT_EQ(last_published_.missed_from, 0);
  EXPECT_EQ(last_published_.missed_to, 8);
  EXPECT_FALSE(tree_->is_findable(GroupId(kFull), BlockId(second.tables[kFull][0])));
  let_go(second);
  EXPECT_EQ(state(kFull, second.tables[kFull][0]), BlockState::kFree);
  let_go(first);
  EXPECT_EQ(state(kFull, first.tables[kFull][0]), BlockState::kCached);
}

// Only a step still reads the first one: it gives way.
TEST_F(BlocksTest, ABlockThatOnlyAStepHoldsGivesItsEntryAway) {
  Prefix first = publish(100, 4);
  const BlockId old(first.tables[kFull][0]);
  blocks_.give_to_step(kFull, old);
  Prefix second = publish(100, 4);
  EXPECT_TRUE(tree_->is_findable(GroupId(kFull), BlockId(second.tables[kFull][0])));
  EXPECT_FALSE(tree_->is_findable(GroupId(kFull), old));
  blocks_.let_go_of_source(kFull, old);
  EXPECT_EQ(state(kFull, old.value()), BlockState::kFree);
}

TEST_F(BlocksTest, OnlyWhatLeavesToMakeRoomCountsAsEvicted) {
  Prefix prefix = publish(100, 8);
  const std::uint64_t losses = blocks_.losses();
  const std::uint64_t changes = blocks_.entry_changes();
  blocks_.drop_entry(kFull, BlockId(prefix.tables[kFull][1]));
  EXPECT_EQ(blocks_.losses(), losses + 2);  // of both groups
  EXPECT_GT(blocks_.entry_changes(), changes);
  EXPECT_EQ(counters_.blocks_unhung, 0u);
  blocks_.evict_entry(kFull, BlockId(prefix.tables[kFull][0]));
  EXPECT_EQ(counters_.blocks_unhung, 2u);
  EXPECT_EQ(counters_.blocks_evicted, 0u);
  EXPECT_EQ(blocks_.findable().serial(kFull, prefix.tables[kFull][0]), 0u);
  let_go(prefix);
}

TEST_F(BlocksTest, ARenewedBlockIsAsANewOne) {
  Prefix prefix = publish(100, 4);
  const BlockId block(prefix.tables[kFull][0]);
  blocks_.renew(kFull, block);
  EXPECT_FALSE(tree_->is_findable(GroupId(kFull), block));
  EXPECT_EQ(blocks_.pool(kFull).valid(block), 0);
  EXPECT_EQ(blocks_.pool(kFull).writer(block), BlockPool::kNobody);
  let_go(prefix);
}

TEST_F(BlocksTest, TheRightToWriteEndsWithItsHolderAndGoesToWhoFindsTheTail) {
  Prefix prefix = publish(100, 6);
  const BlockId tail(prefix.tables[kFull][1]);
  EXPECT_EQ(blocks_.pool(kFull).writer(tail), 0);
  let_go(prefix);
  EXPECT_EQ(blocks_.pool(kFull).writer(tail), BlockPool::kNobody);
  blocks_.hold(kFull, std::array{tail.value()});
  blocks_.note_hit_inside(kFull, tail, 3, 2);  // another hit, which ends before its tokens do
  EXPECT_EQ(blocks_.pool(kFull).writer(tail), BlockPool::kNobody);
  blocks_.note_hit_inside(kFull, tail, 2, 2);
  EXPECT_EQ(blocks_.pool(kFull).writer(tail), 2);
  blocks_.drop_writer(kFull, tail, 1);
  EXPECT_EQ(blocks_.pool(kFull).writer(tail), 2);
  blocks_.let_go(kFull, tail, true, 2);
}

TEST_F(BlocksTest, ABlockThatStandsTwiceIsSeen) {
  const std::int32_t a = blocks_.acquire(kFull).value();
  const std::int32_t b = blocks_.acquire(kFull).value();
  EXPECT_TRUE(blocks_.are_distinct(kFull, std::array{a, -1, b, -1}));
  EXPECT_FALSE(blocks_.are_distinct(kFull, std::array{a, -1, b, a}));
  EXPECT_EQ(blocks_.pool(kFull).refs(BlockId(a)), 1);
  blocks_.free_unwritten(kFull, BlockId(a));
  blocks_.free_unwritten(kFull, BlockId(b));
}

}  // namespace
}  // namespace kvfolio
