// SPDX-License-Identifier: Apache-2.0
#include "kvfolio/block_table.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace kvfolio {
namespace {

TEST(BlockTable, GrowsWithDroppedEntriesAndKeepsTheOthers) {
  SpanArena arena = *SpanArena::create(256);
  BlockTable table;
  EXPECT_EQ(table.size(), 0);
  EXPECT_TRUE(table.blocks(arena).empty());
  for (std::int32_t size = 1; size <= 40; ++size) {
    ASSERT_TRUE(table.reserve(arena, size));
    table.grow(arena, size);
    ASSERT_EQ(table.size(), size);
    ASSERT_EQ(table.at(arena, size - 1).value(), BlockTable::kDropped);
    ASSERT_FALSE(table.at(arena, size - 1).valid());
    table.set(arena, size - 1, BlockId(100 + size));
  }
  for (std::int32_t i = 0; i < 40; ++i) EXPECT_EQ(table.at(arena, i), BlockId(101 + i));
  EXPECT_EQ(table.blocks(arena).size(), 40u);
  table.release(arena);
  EXPECT_EQ(table.size(), 0);
  EXPECT_EQ(arena.free_words(), arena.num_words());
}

TEST(BlockTable, ATruncatedTableForgetsEntriesAndKeepsItsMemory) {
  SpanArena arena = *SpanArena::create(64);
  BlockTable table;
  ASSERT_TRUE(table.reserve(arena, 16));
  table.grow(arena, 16);
  for (std::int32_t i = 0; i < 16; ++i) table.set(arena, i, BlockId(i));
  const std::int64_t free = arena.free_words();
  table.truncate(20);
  EXPECT_EQ(table.size(), 16);
  table.truncate(5);
  EXPECT_EQ(table.size(), 5);
  EXPECT_EQ(arena.free_words(), free);
  ASSERT_TRUE(table.reserve(arena, 16));
  table.grow(arena, 16);
  EXPECT_EQ(table.at(arena, 4), BlockId(4));
  for (std::int32_t i = 5; i < 16; ++i) EXPECT_FALSE(table.at(arena, i).valid());
  table.release(arena);
}

TEST(BlockTable, AFullArenaRefusesAndChangesNothing) {
  SpanArena arena = *SpanArena::create(32);
  BlockTable table;
  BlockTable other;
  ASSERT_TRUE(table.reserve(arena, 8));
  table.grow(arena, 8);
  for (std::int32_t i = 0; i < 8; ++i) table.set(arena, i, BlockId(i));
  ASSERT_TRUE(other.reserve(arena, 16));
  EXPECT_FALSE(table.reserve(arena, 9));
  EXPECT_EQ(table.size(), 8);
  for (std::int32_t i = 0; i < 8; ++i) EXPECT_EQ(table.at(arena, i), BlockId(i));
  table.release(arena);
  other.release(arena);
}

TEST(BlockTableDeathTest, GrowingWithoutRoomStopsTheProgram) {
  SpanArena arena = *SpanArena::create(32);
  BlockTable table;
  ASSERT_TRUE(table.reserve(arena, 8));
  EXPECT_DEATH(table.grow(arena, 9), "broken invariant");
  table.release(arena);
}

}  // namespace
}  // namespace kvfolio
