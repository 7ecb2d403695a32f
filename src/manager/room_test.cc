// SPDX-License-Identifier: Apache-2.0
//
// The room alone: no tree, no sequences.

#include "manager/room.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace kvfolio {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Two groups: a full one of 4 blocks and a window group of 3.
Room make_room() {
  const std::array<GroupSpec, 2> groups = {
      GroupSpec{
          .num_layers = 1, .num_kv_heads = 1, .head_dim_k = 8, .head_dim_v = 8, .num_blocks = 4},
      GroupSpec{.num_layers = 1,
                .num_kv_heads = 1,
                .head_dim_k = 8,
                .head_dim_v = 8,
                .kind = AttentionKind::kSlidingWindow,
                .window = 16,
                .num_blocks = 3}};
  Room room;
  const Status made = room.allocate(groups);
  EXPECT_TRUE(made.ok()) << made.message();
  return room;
}

// Takes a block and lets it go again: it is cached, and a candidate.
BlockId cache_one(Room& room, std::int32_t g, EvictionTurn turn = EvictionTurn::kNormal) {
  const BlockId block = room.acquire(g);
  room.pool(g).set_touched(block, true);
  EXPECT_TRUE(room.pool(g).release(block));
  room.make_cached(g, block);
  room.set_turn(g, block, turn);
  return block;
}

TEST(RoomAlone, APlanNamesTheGroupThatIsShortAndChangesNothing) {
  Room room = make_room();
  const BlockId held = room.acquire(1);
  cache_one(room, 1);
  EXPECT_TRUE(room.plan({{4, 2}}).fits());
  const Room::Plan plan = room.plan({{4, 3}});
  EXPECT_EQ(plan.short_of, 1);
  const Shortage why = room.shortage(1, 3);
  EXPECT_EQ(
      why,
      (Shortage{.group = 1, .needed = 3, .free = 1, .evictable = 1, .pinned = 1, .num_blocks = 3}));
  EXPECT_EQ(room.available(1), 2);
  EXPECT_EQ(room.pool(1).num_cached(), 1);
  EXPECT_EQ(room.pool(1).refs(held), 1);
  EXPECT_TRUE(room.check().ok()) << room.check().message();
}

TEST(RoomAlone, WhatWasPlannedIsTaken) {
  Room room = make_room();
  for (int i = 0; i < 4; ++i) static_cast<void>(room.acquire(0));
  ASSERT_FALSE(room.plan({{1, 0}}).fits());
  ASSERT_TRUE(room.pool(0).release(BlockId(2)));
  room.pool(0).set_touched(BlockId(2), true);
  room.make_cached(0, BlockId(2));
  room.set_turn(0, BlockId(2), EvictionTurn::kNormal);
  const BlockId window = cache_one(room, 1);
  static_cast<void>(room.acquire(1));  // the one that was cached is free no more
  const Room::Plan plan = room.plan({{1, 2}});
  ASSERT_TRUE(plan.fits());
  std::vector<std::int32_t> evicted;
  const auto leave = [&](std::int32_t g, BlockId block) {
    evicted.push_back(block.value());
    room.forget(g, block, BlockId());
    room.make_free(g, block);
  };
  // What goes in the first group takes a block of the second along, as heads do.
  room.take(plan, [&](std::int32_t g) {
    leave(g, room.victim(g));
    if (g == 0) leave(1, window);
  });
  EXPECT_THAT(evicted, ElementsAre(2, window.value()));
  EXPECT_EQ(room.acquire(0), BlockId(2));
  EXPECT_EQ(room.pool(1).num_free(), 2);
  EXPECT_TRUE(room.check().ok()) << room.check().message();
}

TEST(RoomAlone, ABlockThatWasHeldAndNotUsedStandsWhereItStood) {
  Room room = make_room();
  const BlockId cold = cache_one(room, 0);
  // The free list is a stack: the next one must be another block.
  room.set_turn(0, cold, EvictionTurn::kNever);
  room.pool(0).hold(cold);
  const BlockId warm = cache_one(room, 0);
  ASSERT_NE(cold, warm);
  ASSERT_TRUE(room.pool(0).release(cold));
  room.make_cached(0, cold);
  room.set_turn(0, cold, EvictionTurn::kNormal);
  EXPECT_EQ(room.victim(0), cold);
  EXPECT_EQ(room.victim_after(0, cold), warm);
}

TEST(RoomAlone, AgesOfAllGroupsAreOfOneClock) {
  Room room = make_room();
  const BlockId window = cache_one(room, 1);
  const BlockId full = cache_one(room, 0);
  EXPECT_EQ(room.coldest(), (LruOrder::Member{GroupId(1), window}));
  EXPECT_EQ(room.coldest(1), (LruOrder::Member{GroupId(0), full}));
  room.set_turn(0, full, EvictionTurn::kFirst);
  EXPECT_EQ(room.coldest(), (LruOrder::Member{GroupId(0), full}));
}

TEST(RoomAlone, ASuccessorInheritsWhatWasWantedOfABlock) {
  Room room = make_room();
  const BlockId block = cache_one(room, 1);
  const BlockId successor = room.acquire(1);
  room.pool(1).set_wanted(block, true);
  room.count_border(1, block, 2);
  EXPECT_TRUE(room.is_border(1, block));
  room.forget(1, block, successor);
  room.make_free(1, block);
  EXPECT_TRUE(room.pool(1).wanted(successor));
  EXPECT_TRUE(room.is_border(1, successor));
  EXPECT_FALSE(room.is_border(1, block));
  room.count_border(1, successor, -3);  // never below none
  EXPECT_FALSE(room.is_border(1, successor));
  EXPECT_FALSE(room.is_border(0, room.acquire(0)));  // a full group has no border
  EXPECT_TRUE(room.check().ok()) << room.check().message();
}

TEST(RoomAlone, CheckNamesABlockInTheWrongState) {
  Room room = make_room();
  const BlockId block = cache_one(room, 0);
  room.pool(0).hold(block);  // and it is a candidate still
  EXPECT_THAT(room.check().message(), HasSubstr("is a candidate and not cached"));
}

TEST(RoomAlone, ACopyIsEqualAndIndependent) {
  Room room = make_room();
  const BlockId block = cache_one(room, 0);
  Room copy = make_room();
  copy.copy_from(room);
  EXPECT_EQ(copy.victim(0), block);
  room.forget(0, block, BlockId());
  room.make_free(0, block);
  EXPECT_EQ(copy.victim(0), block);
  EXPECT_EQ(copy.pool(0).num_cached(), 1);
  EXPECT_TRUE(copy.check().ok()) << copy.check().message();
}

}  // namespace
}  // namespace kvfolio
