// SPDX-License-Identifier: Apache-2.0
#include "offload/held_records.h"

#include <gtest/gtest.h>

#include "offload/test_arena.h"

namespace kvfolio {
namespace {

using test::numbered_key;

HostArena arena_of_eight() {
  HostArena arena = test::arena_of(8);
  for (int i = 0; i < 8; ++i) test::put_record(arena, numbered_key(i));
  return arena;
}

TEST(HeldRecords, TheEndOfThePrefixIsTheFirstToGo) {
  HostArena arena = arena_of_eight();
  HeldRecords held;
  for (const int i : {2, 0, 3, 1}) held.add(8 * (i + 1), arena.hold(numbered_key(i)));
  EXPECT_EQ(arena.stats().pins, 4);
  held.release_last();
  arena.clear();
  EXPECT_FALSE(arena.hold(numbered_key(3)));
  EXPECT_EQ(arena.stats().pins, 3) << "the others stay, whatever becomes of the arena";
  held.release_behind(16);
  EXPECT_EQ(arena.stats().pins, 2) << "what ends at 16 is not behind it";
  EXPECT_TRUE(held.check());
  held.clear();
  EXPECT_TRUE(held.empty());
  EXPECT_EQ(arena.stats().pins, 0);
}

TEST(HeldRecords, OneIsHeldOnceAndEachGroupHasItsOwn) {
  HostArena arena = arena_of_eight();
  HeldRecords held;
  for (const int i : {4, 5, 4}) held.add(16, arena.hold(numbered_key(i)));
  held.add(24, arena.hold(numbered_key(99)));
  EXPECT_EQ(arena.stats().pins, 2) << "4 twice, and 99 is not there";
  EXPECT_TRUE(held.check());
  held.release(16, arena.hold(numbered_key(6)));
  EXPECT_EQ(arena.stats().pins, 2) << "it holds that one not";
  held.release(16, arena.hold(numbered_key(4)));
  EXPECT_EQ(arena.stats().pins, 1);
  held.release(16, arena.hold(numbered_key(5)));
  EXPECT_TRUE(held.empty());
}

}  // namespace
}  // namespace kvfolio
