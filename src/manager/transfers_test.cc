// SPDX-License-Identifier: Apache-2.0
#include "manager/transfers.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvfolio {
namespace {

constexpr std::uint16_t kTransferTag = 5;

struct Fixture {
  Fixture() : arena(*SpanArena::create(256)) {
    EXPECT_TRUE(transfers.allocate(2, 2, kTransferTag));
  }
  LoadId load(std::int32_t g, const std::vector<std::int32_t>& blocks, std::int32_t waiting) {
    const std::int32_t i = transfers.next_load();
    EXPECT_TRUE(transfers.table(i, g).reserve(arena, static_cast<std::int32_t>(blocks.size())));
    transfers.table(i, g).assign(arena, blocks);
    transfers.set_waiting(i, g, waiting);
    return transfers.take_load();
  }
  HoldId hold(std::int32_t g, const std::vector<std::int32_t>& blocks) {
    BlockTable& held = transfers.held(transfers.next_hold());
    EXPECT_TRUE(held.reserve(arena, static_cast<std::int32_t>(blocks.size())));
    held.assign(arena, blocks);
    return transfers.take_hold(g);
  }
  void end(LoadId id) {
    const std::int32_t i = transfers.find(id);
    for (std::int32_t g = 0; g < 2; ++g) transfers.set_waiting(i, g, 0);
    transfers.release_spans(i, arena);
    transfers.give_back_load(i);
  }
  SpanArena arena;
  Transfers transfers;
};

TEST(Transfers, AnIdNamesOneUntilItIsGivenBack) {
  Fixture f;
  const LoadId a = f.load(0, {3, 4}, 2);
  const LoadId b = f.load(1, {}, 0);
  EXPECT_EQ(f.transfers.next_load(), Transfers::kNone);
  EXPECT_EQ(f.transfers.find(a), 0);
  EXPECT_EQ(f.transfers.find(b), 1);
  EXPECT_EQ(f.transfers.load_id(1), b);
  f.end(a);
  EXPECT_EQ(f.transfers.find(a), Transfers::kNone);
  const LoadId c = f.load(0, {5}, 1);
  EXPECT_NE(c, a);
  EXPECT_EQ(f.transfers.find(c), 0);
  EXPECT_TRUE(f.transfers.check().ok());
}

TEST(Transfers, AnotherTagOrAHoldIsNoLoad) {
  Fixture f;
  const LoadId load = f.load(0, {1}, 1);
  EXPECT_EQ(f.transfers.find(LoadId(load.value() ^ std::uint64_t{1} << 48)), Transfers::kNone);
  EXPECT_EQ(f.transfers.find(LoadId()), Transfers::kNone);
  EXPECT_EQ(f.transfers.find(HoldId(load.value())), Transfers::kNone);
}

TEST(Transfers, BlocksAreCountedByGroup) {
  Fixture f;
  const LoadId a = f.load(0, {3, 4, -1}, 2);
  f.load(1, {7}, 1);
  const HoldId h = f.hold(1, {9, 9, 10});
  EXPECT_EQ(f.transfers.num_waiting(0), 2);
  EXPECT_EQ(f.transfers.num_waiting(1), 1);
  EXPECT_EQ(f.transfers.num_held(0), 0);
  EXPECT_EQ(f.transfers.num_held(1), 3);
  EXPECT_TRUE(f.transfers.check().ok());
  f.end(a);
  f.transfers.give_back_hold(f.transfers.find(h), f.arena);
  EXPECT_EQ(f.transfers.num_waiting(0), 0);
  EXPECT_EQ(f.transfers.num_held(1), 0);
  EXPECT_EQ(f.transfers.num_loads(), 1);
  EXPECT_EQ(f.transfers.num_holds(), 0);
  EXPECT_TRUE(f.transfers.check().ok());
}

TEST(Transfers, AllWordsAreCountedAndComeBack) {
  Fixture f;
  const std::int64_t before = f.arena.free_words();
  const LoadId a = f.load(0, {3, 4, 5}, 3);
  const HoldId h = f.hold(0, {1});
  EXPECT_EQ(f.transfers.words(), before - f.arena.free_words());
  f.end(a);
  f.transfers.give_back_hold(f.transfers.find(h), f.arena);
  EXPECT_TRUE(f.transfers.none_open());
  EXPECT_EQ(f.arena.free_words(), before);
  EXPECT_EQ(f.transfers.words(), 0);
}

TEST(Transfers, ACopyGivesTheSameIds) {
  Fixture f;
  Fixture other;
  f.end(f.load(0, {1}, 1));
  other.transfers.copy_from(f.transfers);
  EXPECT_EQ(other.load(0, {1}, 1), f.load(0, {1}, 1));
  EXPECT_TRUE(other.transfers.check().ok());
}

TEST(Transfers, OneThatIsFreeAndHasATableIsBroken) {
  Fixture f;
  EXPECT_TRUE(f.transfers.table(0, 0).reserve(f.arena, 2));
  EXPECT_FALSE(f.transfers.check().ok());
}

}  // namespace
}  // namespace kvfolio
