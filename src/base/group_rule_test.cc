// SPDX-License-Identifier: Apache-2.0
#include "kvfolio/group_rule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace kvfolio {
namespace {

constexpr GroupRule kFull;
constexpr GroupRule kWindow(AttentionKind::kSlidingWindow, 4, 2);

TEST(GroupRule, AFullGroupReadsAndKeepsEverything) {
  EXPECT_EQ(kFull.first_read(0), 0);
  EXPECT_EQ(kFull.first_read(1000), 0);
  EXPECT_TRUE(kFull.reads(1000, 0, 1));
  EXPECT_EQ(kFull.keep_from(1000), 0);
  EXPECT_TRUE(kFull.keeps_all());
  EXPECT_TRUE(kFull.only_leaves_evictable());
}

TEST(GroupRule, AWindowReadsItselfTheTokensBeforeItAndTheSinks) {
  EXPECT_EQ(kWindow.first_read(0), 0);
  EXPECT_EQ(kWindow.first_read(3), 0);
  EXPECT_EQ(kWindow.first_read(4), 1);
  EXPECT_EQ(kWindow.first_read(10), 7);
  EXPECT_EQ(kWindow.keep_from(10), 7);
  EXPECT_FALSE(kWindow.keeps_all());
  EXPECT_FALSE(kWindow.only_leaves_evictable());
}

TEST(GroupRule, ARangeIsReadByItsLastPositionOrAsASink) {
  EXPECT_TRUE(kWindow.reads(10, 4, 8));   // 7
  EXPECT_FALSE(kWindow.reads(10, 4, 7));  // 4, 5 and 6
  EXPECT_TRUE(kWindow.reads(10, 1, 2));   // 1 is a sink
  EXPECT_FALSE(kWindow.reads(10, 2, 7));
}

TEST(GroupRule, TheLargestWindowAndPositionDoNotOverflow) {
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  const GroupRule huge(AttentionKind::kSlidingWindow, kMost, kMost);
  EXPECT_EQ(huge.first_read(kMost), 1);
  EXPECT_EQ(huge.first_read(kMost - 1), 0);
  EXPECT_EQ(kWindow.first_read(kMost), kMost - 3);
  EXPECT_EQ(huge.first_read(std::int64_t{kMost} + 5), 6);
}

TEST(GroupRule, AgreesWithTheDefinitionPositionByPosition) {
  for (std::int32_t window = 1; window < 8; ++window) {
    for (std::int32_t sinks = 0; sinks < 6; ++sinks) {
      const GroupRule rule(AttentionKind::kSlidingWindow, window, sinks);
      for (std::int32_t p = 0; p < 20; ++p) {
        for (std::int32_t j = 0; j <= p; ++j) {
          EXPECT_EQ(rule.reads(p, j, j + 1), j > p - window || j < sinks);
        }
        std::int32_t most = 0;
        for (std::int32_t q = 0; q <= p; ++q) most = std::max(most, q - rule.first_read(q));
        EXPECT_EQ(rule.most_read(p), most);
        EXPECT_EQ(GroupRule().most_read(p), p);
      }
    }
  }
}

TEST(GroupRule, AChunkReadsFromItsBeginToItselfAndTheSinks) {
  constexpr GroupRule kChunk = GroupRule::of_chunk(4, 2);
  EXPECT_EQ(kChunk.kind(), AttentionKind::kChunked);
  EXPECT_FALSE(kChunk.keeps_all());
  for (std::int32_t p = 0; p < 30; ++p) {
    EXPECT_EQ(kChunk.first_read(p), p / 4 * 4);
    EXPECT_EQ(kChunk.keep_from(p), p / 4 * 4);
    for (std::int32_t j = 0; j <= p; ++j) {
      EXPECT_EQ(kChunk.reads(p, j, j + 1), j / 4 == p / 4 || j < 2);
    }
    std::int32_t most = 0;
    for (std::int32_t q = 0; q <= p; ++q) most = std::max(most, q - kChunk.first_read(q));
    EXPECT_EQ(kChunk.most_read(p), most);
  }
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  EXPECT_EQ(GroupRule::of_chunk(kMost).first_read(kMost), kMost);
  EXPECT_EQ(GroupRule::of_chunk(kMost).first_read(kMost - 1), 0);
}

}  // namespace
}  // namespace kvfolio
