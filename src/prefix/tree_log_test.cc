// SPDX-License-Identifier: Apache-2.0
//
// The log alone, without a tree.

#include "prefix/tree_log.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace kvfolio {
namespace {

using Kind = TreeChange::Kind;

const std::array<TreeGroup, 2> kGroups = {TreeGroup{.num_blocks = 3}, TreeGroup{.num_blocks = 2}};

TreeLog make_log() {
  TreeLog log;
  EXPECT_TRUE(log.allocate(kGroups));
  return log;
}

TEST(TreeLog, ChangesOfEntriesComeInOrderAndCandidatesBehindThem) {
  TreeLog log = make_log();
  EXPECT_TRUE(log.empty());
  log.candidate(1, 1);
  log.hung(1, 0);
  log.unhung(0, 2, 1);
  log.kept(0, 0, 2);
  const TreeChange hung = log.take();
  EXPECT_EQ(hung.kind, Kind::kHung);
  EXPECT_EQ(hung.group, GroupId(1));
  EXPECT_EQ(hung.block, BlockId(0));
  EXPECT_FALSE(hung.successor.valid());
  const TreeChange unhung = log.take();
  EXPECT_EQ(unhung.kind, Kind::kUnhung);
  EXPECT_EQ(unhung.successor, BlockId(1));
  const TreeChange kept = log.take();
  EXPECT_EQ(kept.kind, Kind::kKept);
  EXPECT_EQ(kept.successor, BlockId(2));
  const TreeChange candidate = log.take();
  EXPECT_EQ(candidate.kind, Kind::kCandidate);
  EXPECT_EQ(candidate.group, GroupId(1));
  EXPECT_EQ(candidate.block, BlockId(1));
  EXPECT_FALSE(candidate.successor.valid());
  EXPECT_TRUE(log.empty());
}

TEST(TreeLog, OneEntryOfACandidateWaits) {
  TreeLog log = make_log();
  log.candidate(0, 1);
  log.candidate(1, 1);
  log.candidate(0, 1);
  EXPECT_TRUE(log.check().ok());
  EXPECT_EQ(log.take().group, GroupId(0));
  log.candidate(0, 1);  // what was taken does not wait any more
  EXPECT_EQ(log.take().group, GroupId(1));
  EXPECT_EQ(log.take().group, GroupId(0));
  EXPECT_TRUE(log.empty());
}

TEST(TreeLog, HoldsTheLastBlockOfTheLargestGroup) {
  TreeLog log = make_log();
  constexpr std::int32_t kLast = (1 << 29) - 1;
  log.unhung(15, kLast, kLast - 1);
  log.kept(15, 0, kLast);  // two of the five that there is room for
  const TreeChange unhung = log.take();
  EXPECT_EQ(unhung.group, GroupId(15));
  EXPECT_EQ(unhung.block, BlockId(kLast));
  EXPECT_EQ(unhung.successor, BlockId(kLast - 1));
  EXPECT_EQ(log.take().successor, BlockId(kLast));
}

TEST(TreeLog, HasRoomForOneChangeAndOneCandidateOfEachBlock) {
  TreeLog log = make_log();
  for (int round = 0; round < 3; ++round) {
    for (std::int32_t g = 0; g < 2; ++g) {
      for (std::int32_t b = 0; b < kGroups[static_cast<std::size_t>(g)].num_blocks; ++b) {
        log.unhung(g, b, b);
        log.candidate(g, b);
        log.candidate(g, b);
      }
    }
    EXPECT_EQ(log.check().message(), "ok");
    // Room that was taken is there again, also before all are taken.
    for (int i = 0; i < 3; ++i) static_cast<void>(log.take());
    for (std::int32_t b = 0; b < 3; ++b) log.hung(0, b);
    for (int i = 0; i < 10; ++i) static_cast<void>(log.take());
    EXPECT_TRUE(log.empty());
  }
}

TEST(TreeLog, WhatIsClearedIsGone) {
  TreeLog log = make_log();
  log.hung(0, 0);
  log.candidate(0, 1);
  log.clear();
  EXPECT_TRUE(log.empty());
  log.candidate(0, 1);
  EXPECT_EQ(log.take().block, BlockId(1));
}

TEST(TreeLog, CheckNamesWhatIsThereTwice) {
  TreeLog log = make_log();
  log.hung(0, 0);
  log.unhung(0, 0, 0);
  EXPECT_TRUE(log.check().ok());
  log.hung(0, 0);
  EXPECT_EQ(log.check().message(), "prefix tree, log: entry 2 is of a block and kind twice");
}

TEST(TreeLogDeathTest, AnEntryTooManyStopsTheProgram) {
  TreeLog log = make_log();
  EXPECT_DEATH(static_cast<void>(log.take()), "broken invariant");
  for (int i = 0; i < 5; ++i) log.hung(0, 0);
  EXPECT_DEATH(log.hung(0, 0), "broken invariant");
}

}  // namespace
}  // namespace kvfolio
