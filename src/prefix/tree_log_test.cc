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

TEST(TreeLog, EntriesComeInOrder) {
  TreeLog log = make_log();
  EXPECT_TRUE(log.empty());
  log.hung(1, 0);
  log.unhung(0, 2, 1);
  log.kept(0, 0, 2);
  log.candidate(1, 1, Candidate::kHead);
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
  EXPECT_EQ(candidate.candidate, Candidate::kHead);
  EXPECT_TRUE(log.empty());
}

TEST(TreeLog, OfACandidateOnlyTheLastWordWaits) {
  TreeLog log = make_log();
  log.candidate(0, 1, Candidate::kLeaf);
  log.candidate(1, 1, Candidate::kLeaf);
  log.candidate(0, 1, Candidate::kHead);
  EXPECT_TRUE(log.check().ok());
  EXPECT_EQ(log.take().candidate, Candidate::kHead);
  // What was taken is not changed any more.
  log.candidate(0, 1, Candidate::kNone);
  EXPECT_EQ(log.take().group, GroupId(1));
  EXPECT_EQ(log.take().candidate, Candidate::kNone);
  EXPECT_TRUE(log.empty());
  // Nor is an entry of another block that stands where that one stood.
  log.hung(0, 0);
  log.candidate(0, 1, Candidate::kLeaf);
  EXPECT_EQ(log.take().kind, Kind::kHung);
  EXPECT_EQ(log.take().candidate, Candidate::kLeaf);
}

TEST(TreeLog, HasRoomForOneEntryOfEachBlockAndKind) {
  TreeLog log = make_log();
  for (int round = 0; round < 3; ++round) {
    for (std::int32_t g = 0; g < 2; ++g) {
      for (std::int32_t b = 0; b < kGroups[static_cast<std::size_t>(g)].num_blocks; ++b) {
        log.hung(g, b);
        log.unhung(g, b, -1);
        log.kept(g, b, 0);
        log.candidate(g, b, Candidate::kLeaf);
        log.candidate(g, b, Candidate::kNone);
      }
    }
    EXPECT_EQ(log.check().message(), "ok");
    for (int i = 0; i < 20; ++i) static_cast<void>(log.take());
    EXPECT_TRUE(log.empty());
  }
}

TEST(TreeLog, WhatIsClearedIsGone) {
  TreeLog log = make_log();
  log.hung(0, 0);
  log.candidate(0, 1, Candidate::kLeaf);
  log.clear();
  EXPECT_TRUE(log.empty());
  log.candidate(0, 1, Candidate::kHead);
  EXPECT_EQ(log.take().candidate, Candidate::kHead);
}

TEST(TreeLog, CheckNamesWhatIsThereTwice) {
  TreeLog log = make_log();
  log.hung(0, 0);
  log.unhung(0, 0, -1);
  EXPECT_TRUE(log.check().ok());
  log.hung(0, 0);
  EXPECT_EQ(log.check().message(), "prefix tree, log: entry 2 is of a block and kind twice");
}

TEST(TreeLogDeathTest, AnEntryTooManyStopsTheProgram) {
  TreeLog log = make_log();
  EXPECT_DEATH(static_cast<void>(log.take()), "broken invariant");
  for (int i = 0; i < 20; ++i) log.hung(0, 0);
  EXPECT_DEATH(log.hung(0, 0), "broken invariant");
}

}  // namespace
}  // namespace kvfolio
