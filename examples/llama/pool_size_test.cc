// SPDX-License-Identifier: Apache-2.0
#include "pool_size.h"

#include <gtest/gtest.h>

namespace kvfolio::llama {
namespace {

TEST(BlocksNeeded, OfOneSequenceRoundUp) {
  const GroupSpec group{.block_size = 16};
  EXPECT_EQ(blocks_needed(group, {.num_tokens = 1}), 1);
  EXPECT_EQ(blocks_needed(group, {.num_tokens = 16}), 1);
  EXPECT_EQ(blocks_needed(group, {.num_tokens = 17}), 2);
}

TEST(BlocksNeeded, BranchesShareFullBlocksOnly) {
  const GroupSpec group{.block_size = 16};
  EXPECT_EQ(blocks_needed(group, {.num_shared = 33, .num_tokens = 50, .num_branches = 4}),
            2 + 4 * 2);
}

TEST(BlocksNeeded, AWindowHoldsNoMoreThanItReadsAndWrites) {
  const GroupSpec group{.block_size = 4, .kind = AttentionKind::kSlidingWindow, .window = 6};
  // 6 live tokens touch at most 3 blocks of 4: ...X XXXX X...
  EXPECT_EQ(blocks_needed(group, {.num_tokens = 1000}), 3);
  // 13 live tokens: 4 blocks, or 5 when they begin on the last slot of one.
  EXPECT_EQ(blocks_needed(group, {.num_tokens = 1000, .step_tokens = 8}), 4);
  EXPECT_EQ(blocks_needed(group, {.num_tokens = 5}), 2);
}

}  // namespace
}  // namespace kvfolio::llama
