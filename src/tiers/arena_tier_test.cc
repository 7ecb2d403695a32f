// SPDX-License-Identifier: Apache-2.0
#include "kvfolio/arena_tier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>
#include <vector>

namespace kvfolio {
namespace {

constexpr std::int64_t kSizes[] = {128, 320};
using Record = std::vector<std::byte>;

ArenaTier tier_of(std::int64_t bytes) {
  auto tier = ArenaTier::create({.bytes = bytes, .record_bytes = kSizes});
  EXPECT_TRUE(tier) << tier.error();
  return *std::move(tier);
}

TierKey numbered_key(int number) {
  TierKey key;
  key.bytes[24] = static_cast<std::byte>(number & 0xff);
  key.bytes[25] = static_cast<std::byte>(number >> 8);
  return key;
}

// One item, from submit() to its answer.
TierResult ask(ArenaTier& tier, TierOp op, int number, Record& data, std::uint64_t now_us = 0,
               std::uint64_t deadline_us = 1000) {
  const TierItem item{.key = numbered_key(number),
                      .data = data.data(),
                      .bytes = static_cast<std::int64_t>(data.size()),
                      .tag = 77};
  EXPECT_EQ(tier.submit(op, std::span(&item, 1), {deadline_us}), 1u);
  std::array<TierDone, 2> done;
  EXPECT_EQ(tier.poll(now_us, done), 1u);
  EXPECT_EQ(done[0].tag, 77u);
  EXPECT_EQ(tier.poll(now_us, done), 0u);
  return done[0].result;
}

TEST(ArenaTier, GivesBackWhatItWasGiven) {
  ArenaTier tier = tier_of(1 << 16);
  Record first(128, std::byte{1}), other(320, std::byte{2}), got(128), none;
  EXPECT_EQ(ask(tier, TierOp::kLoad, 1, got), TierResult::kMiss);
  EXPECT_EQ(ask(tier, TierOp::kExists, 1, none), TierResult::kMiss);
  EXPECT_EQ(ask(tier, TierOp::kStore, 1, first), TierResult::kOk);
  EXPECT_EQ(ask(tier, TierOp::kStore, 2, other), TierResult::kOk);
  EXPECT_EQ(ask(tier, TierOp::kExists, 1, none), TierResult::kOk);
  EXPECT_EQ(ask(tier, TierOp::kLoad, 1, got), TierResult::kOk);
  EXPECT_EQ(got, first);
  EXPECT_EQ(ask(tier, TierOp::kLoad, 2, got), TierResult::kCorrupt) << "of another size";
  EXPECT_EQ(ask(tier, TierOp::kErase, 1, none), TierResult::kOk);
  EXPECT_EQ(ask(tier, TierOp::kErase, 1, none), TierResult::kOk);
  EXPECT_EQ(ask(tier, TierOp::kLoad, 1, got), TierResult::kMiss);
  EXPECT_EQ(tier.health().stores_ok, 2u);
  EXPECT_EQ(tier.health().loads_ok, 1u);
  EXPECT_EQ(tier.health().failures, 1u);
  EXPECT_EQ(tier.stats().pins, 0);
}

TEST(ArenaTier, AKeyThatIsThereKeepsItsBytes) {
  ArenaTier tier = tier_of(1 << 16);
  Record first(128, std::byte{1}), second(128, std::byte{2}), got(128);
  EXPECT_EQ(ask(tier, TierOp::kStore, 1, first), TierResult::kOk);
  EXPECT_EQ(ask(tier, TierOp::kStore, 1, second), TierResult::kOk);
  EXPECT_EQ(ask(tier, TierOp::kLoad, 1, got), TierResult::kOk);
  EXPECT_EQ(got, first);
}

TEST(ArenaTier, ARecordOfAnUnknownSizeIsNotStored) {
  ArenaTier tier = tier_of(1 << 16);
  Record odd(129);
  EXPECT_EQ(ask(tier, TierOp::kStore, 1, odd), TierResult::kIoError);
  EXPECT_EQ(tier.stats().records, 0);
}

TEST(ArenaTier, TheColdestGoesAndTheBudgetHolds) {
  ArenaTier tier = tier_of(1 << 14);
  Record record(128), got(128);
  for (int i = 0; i < 1000; ++i) {
    record[0] = static_cast<std::byte>(i);
    EXPECT_EQ(ask(tier, TierOp::kStore, i, record), TierResult::kOk);
    EXPECT_EQ(ask(tier, TierOp::kLoad, 0, got), TierResult::kOk) << "what is used stays";
  }
  EXPECT_LE(tier.stats().bytes_published, 1 << 14);
  EXPECT_GT(tier.stats().evictions, 0u);
  EXPECT_EQ(ask(tier, TierOp::kLoad, 1, got), TierResult::kMiss);
  EXPECT_EQ(ask(tier, TierOp::kLoad, 999, got), TierResult::kOk);
  EXPECT_EQ(got[0], std::byte(999 & 0xff));
}

TEST(ArenaTier, WhatIsLateIsNotDone) {
  ArenaTier tier = tier_of(1 << 16);
  Record record(128), none;
  EXPECT_EQ(ask(tier, TierOp::kStore, 1, record, 1001), TierResult::kTimeout);
  EXPECT_EQ(ask(tier, TierOp::kExists, 1, none), TierResult::kMiss);
}

TEST(ArenaTier, AFullQueueAcceptsTheFirstOnes) {
  ArenaTier tier = tier_of(1 << 16);
  const std::vector<TierItem> items(ArenaTier::kQueue + 5);
  EXPECT_EQ(tier.submit(TierOp::kExists, items, {9}), ArenaTier::kQueue);
  EXPECT_EQ(tier.submit(TierOp::kExists, items, {9}), 0u);
  std::vector<TierDone> done(10);
  EXPECT_EQ(tier.poll(1, done), 10u);
  EXPECT_EQ(tier.submit(TierOp::kExists, items, {9}), 10u);
}

TEST(ArenaTier, ClosedItEndsWhatItAccepted) {
  ArenaTier tier = tier_of(1 << 16);
  const std::vector<TierItem> items(3);
  EXPECT_EQ(tier.submit(TierOp::kExists, items, {9}), 3u);
  EXPECT_TRUE(tier.close({}).ok());
  EXPECT_EQ(tier.submit(TierOp::kExists, items, {9}), 0u);
  std::vector<TierDone> done(5);
  ASSERT_EQ(tier.poll(1, done), 3u);
  EXPECT_TRUE(std::all_of(done.begin(), done.begin() + 3,
                          [](const TierDone& one) { return one.result == TierResult::kClosed; }));
}

TEST(ArenaTier, TwoOverOneArenaShareRecordsAndNothingElse) {
  ArenaTier first = tier_of(1 << 16);
  Record record(128, std::byte{3}), got(128);
  {
    ArenaTier second = first.another();
    EXPECT_EQ(ask(second, TierOp::kStore, 1, record), TierResult::kOk);
    EXPECT_TRUE(second.close({}).ok());
    const std::vector<TierItem> items(1);
    EXPECT_EQ(first.submit(TierOp::kExists, items, {9}), 1u);
    std::vector<TierDone> done(5);
    EXPECT_EQ(second.poll(1, done), 0u) << "not its own";
    EXPECT_EQ(first.poll(1, done), 1u);
  }
  EXPECT_EQ(ask(first, TierOp::kLoad, 1, got), TierResult::kOk);
  EXPECT_EQ(got, record);
}

TEST(ArenaTier, SeveralOverOneArenaWorkInSeveralThreads) {
  ArenaTier first = tier_of(1 << 14);
  std::vector<std::thread> threads;
  threads.reserve(4);
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&wrong, t, mine = first.another()]() mutable {
      Record record(128, static_cast<std::byte>(t)), got(128);
      for (int i = 0; i < 300; ++i) {
        const int number = t * 1000 + i % 40;
        record[0] = static_cast<std::byte>(number & 0xff);
        ask(mine, TierOp::kStore, number, record);
        if (ask(mine, TierOp::kLoad, number, got) == TierResult::kOk && got != record) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(first.stats().pins, 0);
}

TEST(ArenaTier, RefusesABudgetBelowOneRecord) {
  EXPECT_FALSE(ArenaTier::create({.bytes = 100, .record_bytes = kSizes}));
}

}  // namespace
}  // namespace kvfolio
