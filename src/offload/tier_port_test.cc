// SPDX-License-Identifier: Apache-2.0
//
// What a port holds of the arena, whatever its tier does: no Offload, and a tier that is only asked
// for its limits.

#include "offload/tier_port.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <vector>

#include "offload/test_arena.h"
#include "tiers/memory_tier.h"

namespace kvfolio {
namespace {

using test::kSmallRecord;
using test::MemoryTier;
using test::numbered_key;

constexpr std::int64_t kShare = 8 * kSmallRecord;
using Room = TierPort::Room;

struct Port {
  MemoryTier tier;
  HostArena arena = test::arena_of(32);
  TierPort port{{.tier = &tier}, kShare, kSmallRecord, 64};
  TierPort::InFlight seen;

  void add(int number) { test::put_record(arena, numbered_key(number)); }
  void began(TierOp kind) {
    port.began(kind, kSmallRecord);
    seen.add(kind, kSmallRecord, false);
  }
  void ended(TierOp kind, bool overdue = false) {
    port.ended(kind, kSmallRecord, overdue);
    seen.add(kind, kSmallRecord, overdue, -1);
  }
  void became_overdue(TierOp kind) {
    port.became_overdue(kind, kSmallRecord);
    seen.add_overdue(kind, kSmallRecord);
  }
  ~Port() { port.drop_all(); }  // pins end before their arena does
};

#define EXPECT_RIGHT(p) EXPECT_TRUE((p).port.check((p).seen).ok()) << (p).port.check((p).seen)

TEST(TierPort, StoresThatWaitGiveWayToALoadThatFitsThen) {
  Port p;
  for (int i = 0; i < 8; ++i) {
    p.add(i);
    EXPECT_TRUE(p.port.wait(numbered_key(i), p.arena));
  }
  EXPECT_EQ(p.port.held_bytes(), kShare) << "all are pinned";
  EXPECT_EQ(p.port.room_for_load(kSmallRecord), Room::kYes);
  EXPECT_EQ(p.port.held_bytes(), kShare - kSmallRecord);
  EXPECT_EQ(p.port.num_waiting(), 8) << "one of them as a name only";
  p.began(TierOp::kLoad);
  EXPECT_RIGHT(p);
  EXPECT_EQ(p.port.room_for_load(257 * (std::int64_t{1} << 20)), Room::kNever);
  EXPECT_EQ(p.port.num_waiting(), 8);
  p.ended(TierOp::kLoad);
  p.port.pin_waiting(p.arena, 8);
  EXPECT_EQ(p.port.held_bytes(), kShare) << "pinned again";
  EXPECT_RIGHT(p);
}

TEST(TierPort, WhatIsOverdueIsHeldUntilTheTierEndsIt) {
  Port p;
  for (int i = 0; i < 8; ++i) {
    ASSERT_EQ(p.port.room_for_load(kSmallRecord), Room::kYes);
    p.began(TierOp::kLoad);
  }
  EXPECT_EQ(p.port.room_for_load(kSmallRecord), Room::kLater);
  for (int i = 0; i < 8; ++i) p.became_overdue(TierOp::kLoad);
  EXPECT_EQ(p.port.room_for_load(kSmallRecord), Room::kNever) << "not before it ends one, if ever";
  EXPECT_TRUE(p.port.is_stuck());
  EXPECT_FALSE(p.port.works());
  EXPECT_RIGHT(p);
  p.ended(TierOp::kLoad, true);
  EXPECT_EQ(p.port.room_for_load(kSmallRecord), Room::kYes);
  EXPECT_FALSE(p.port.is_stuck());
  EXPECT_RIGHT(p);
}

TEST(TierPort, StoresInFlightTakeAtMostHalfOfTheShare) {
  Port p;
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(p.port.room_for_store({}, kSmallRecord, 0), Room::kYes);
    p.began(TierOp::kStore);
  }
  EXPECT_EQ(p.port.room_for_store({}, kSmallRecord, 0), Room::kLater);
  p.ended(TierOp::kStore);
  // One that goes again keeps its place.
  p.add(1);
  EXPECT_TRUE(p.port.wait_again({.key = numbered_key(1), .pin = p.arena.hold(numbered_key(1))}, 0));
  EXPECT_EQ(p.port.room_for_store({}, kSmallRecord, 0), Room::kLater);
  EXPECT_EQ(p.port.next(0), nullptr) << "after a pause";
  const TierPort::Waiting* again = p.port.next(1'000'000);
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(p.port.room_for_store(*again, kSmallRecord, 1'000'000), Room::kYes);
  EXPECT_RIGHT(p);
  p.port.pop(1'000'000);
  EXPECT_EQ(p.port.num_waiting(), 0);
  EXPECT_RIGHT(p);
}

TEST(TierPort, ATierThatIsLateIsPassedOverAndOneThatAnswersIsNot) {
  Port p;
  std::uint64_t now = 1000;
  for (int round = 0; round < Pauses::kRounds; ++round) {
    EXPECT_TRUE(p.port.is_read());
    p.port.was_late(TierOp::kExists, numbered_key(1), 0, now, now + 10);
    p.port.was_late(TierOp::kExists, numbered_key(1), 0, now, now + 10);  // the same stall
    now += 20;
  }
  EXPECT_FALSE(p.port.is_read());
  EXPECT_TRUE(p.port.is_written()) << "that says nothing of stores";
  EXPECT_FALSE(p.port.side(TierOp::kExists).pauses.may_try(now));
  EXPECT_TRUE(p.port.side(TierOp::kExists).pauses.may_try(now + Pauses::kLimits.longest_us));
  EXPECT_RIGHT(p);
  p.port.answered(TierOp::kExists);
  EXPECT_TRUE(p.port.is_read());
  EXPECT_RIGHT(p);
}

TEST(TierPort, RandomCallsBreakNoRule) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    Port p;
    std::array<int, 2> running{}, overdue{};  // loads, stores
    std::uint64_t now = 1;
    for (int step = 0; step < 3000; ++step) {
      now += random() % 20'000;
      const std::size_t which = random() % 2;
      const TierOp kind = which == 0 ? TierOp::kLoad : TierOp::kStore;
      switch (random() % 6) {
        case 0:
        case 1: {
          const Room room = kind == TierOp::kLoad ? p.port.room_for_load(kSmallRecord)
                                                  : p.port.room_for_store({}, kSmallRecord, now);
          if (room != Room::kYes) break;
          p.began(kind);
          ++running[which];
          break;
        }
        case 2:
          if (overdue[which] == running[which]) break;
          p.became_overdue(kind);
          ++overdue[which];
          break;
        case 3: {
          if (running[which] == 0) break;
          const bool is_overdue = overdue[which] > 0;
          p.ended(kind, is_overdue);
          --running[which];
          overdue[which] -= is_overdue ? 1 : 0;
          break;
        }
        case 4: {
          const auto number = int(random() % 40);
          if (random() % 2 == 0 && !p.arena.contains(numbered_key(number))) p.add(number);
          EXPECT_TRUE(p.port.wait(numbered_key(number), p.arena));
          break;
        }
        default:
          if (p.port.next(now) != nullptr) p.port.pop(now);
          p.port.pin_waiting(p.arena, int(random() % 4));
      }
      ASSERT_TRUE(p.port.check(p.seen).ok()) << p.port.check(p.seen) << " at step " << step;
      ASSERT_LE(p.port.held_bytes(), kShare);
    }
    p.port.drop_all();
    EXPECT_EQ(p.arena.stats().pins, 0);
  }
}

}  // namespace
}  // namespace kvfolio
