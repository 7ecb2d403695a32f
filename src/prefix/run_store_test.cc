// SPDX-License-Identifier: Apache-2.0
//
// Runs alone, without a tree: their tokens and entries when they grow, split and go.

#include "prefix/run_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <vector>

namespace kvfolio {
namespace {

using ::testing::ElementsAre;
using Tokens = std::vector<std::int32_t>;
constexpr std::int32_t kNoRun = RunStore::kNone;

// Two groups, with blocks of 4 and of 2.
RunStore make_runs(std::int32_t max_runs = 8, std::int64_t max_tokens = 256) {
  RunStore runs;
  const PrefixTreeOptions options{
      .groups = {{.block_size = 4, .num_blocks = 9}, {.block_size = 2, .num_blocks = 9}},
      .max_index_tokens = max_tokens,
      .max_runs = max_runs};
  EXPECT_TRUE(runs.allocate(options).ok());
  return runs;
}

std::int32_t add_run(RunStore& runs, std::int32_t parent, const Tokens& tokens) {
  const std::int32_t r = runs.add();
  runs.run(r).parent = parent;
  runs.run(r).start = runs.run(parent).end();
  EXPECT_TRUE(runs.reserve(r, static_cast<std::int32_t>(tokens.size())));
  runs.append(r, tokens);
  return r;
}

Tokens tokens_of(const RunStore& runs, std::int32_t r) {
  return {runs.tokens(r), runs.tokens(r) + runs.run(r).length};
}

TEST(RunStore, ARunHasAnEntryForEachBlockThatItTouches) {
  RunStore runs = make_runs();
  const std::int32_t root = runs.add();
  const std::int32_t r = add_run(runs, root, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(runs.entries(r, 0).count, 2);
  EXPECT_EQ(runs.entries(r, 1).count, 3);
  EXPECT_EQ(runs.blocks(r, 0)[1], kNoRun);
  const std::int32_t below = add_run(runs, r, {7, 8, 9});  // inside the second block of group 0
  EXPECT_EQ(runs.entries(below, 0).first, 1);
  EXPECT_EQ(runs.entries(below, 0).count, 2);
  EXPECT_EQ(runs.index_of(below, 0, 9), 1);
  EXPECT_EQ(runs.run_of(below, 6), r);
  EXPECT_EQ(runs.run_of(below, 7), below);
  EXPECT_EQ(runs.num_runs(), 3);
  EXPECT_EQ(runs.num_tokens(), 9);
  EXPECT_EQ(runs.check().message(), "ok");
}

TEST(RunStore, TheTokensOfAPathAreCopiedAcrossItsRuns) {
  RunStore runs = make_runs();
  const std::int32_t root = runs.add();
  const std::int32_t r = add_run(runs, root, {1, 2, 3, 4});
  const std::int32_t below = add_run(runs, r, {5, 6, 7});
  Tokens out(4);
  runs.copy_tokens(below, 2, out);
  EXPECT_THAT(out, ElementsAre(3, 4, 5, 6));
  runs.copy_tokens(below, 0, std::span(out).first(2));
  EXPECT_THAT(out, ElementsAre(1, 2, 5, 6));
}

TEST(RunStore, ASplitLeavesTheNameToTheLowerPart) {
  RunStore runs = make_runs();
  const std::int32_t root = runs.add();
  const std::int32_t lower = add_run(runs, root, {1, 2, 3, 4, 5, 6, 7, 8});
  const std::int32_t upper = runs.add();
  runs.run(upper).parent = root;
  runs.run(upper).start = 0;
  ASSERT_TRUE(runs.reserve(upper, 6));
  runs.split_tokens(lower, upper, 6);
  runs.run(lower).parent = upper;
  for (std::int32_t g = 0; g < 2; ++g) runs.drop_front(lower, g);
  EXPECT_THAT(tokens_of(runs, upper), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(tokens_of(runs, lower), ElementsAre(7, 8));
  EXPECT_EQ(runs.entries(lower, 0).first, 1);  // the block of positions 4 to 7 straddles the cut
  EXPECT_EQ(runs.entries(lower, 1).first, 3);
  EXPECT_EQ(runs.num_tokens(), 8);
  EXPECT_EQ(runs.check().message(), "ok");
}

TEST(RunStore, AShorterRunGivesTokensAndEntriesBack) {
  RunStore runs = make_runs();
  const std::int32_t root = runs.add();
  const std::int32_t r = add_run(runs, root, {1, 2, 3, 4, 5, 6, 7, 8});
  runs.shorten(r, 3);
  EXPECT_THAT(tokens_of(runs, r), ElementsAre(1, 2, 3));
  EXPECT_EQ(runs.entries(r, 0).count, 1);
  EXPECT_EQ(runs.entries(r, 1).count, 2);
  EXPECT_EQ(runs.num_tokens(), 3);
  EXPECT_EQ(runs.check().message(), "ok");
}

TEST(RunStore, ANameIsUsedAgainWithAnotherGeneration) {
  RunStore runs = make_runs(2);
  const std::int32_t root = runs.add();
  const std::int32_t r = add_run(runs, root, {1, 2});
  const std::uint32_t generation = runs.run(r).generation;
  EXPECT_EQ(runs.add(), kNoRun);
  runs.remove(r);
  EXPECT_EQ(runs.num_tokens(), 0);
  EXPECT_EQ(runs.add(), r);
  EXPECT_NE(runs.run(r).generation, generation);
}

TEST(RunStore, ARunThatDoesNotFitStaysAsItIs) {
  RunStore runs = make_runs(8, 16);
  const std::int32_t root = runs.add();
  const std::int32_t r = add_run(runs, root, {1, 2, 3});
  EXPECT_FALSE(runs.reserve(r, 17));
  EXPECT_THAT(tokens_of(runs, r), ElementsAre(1, 2, 3));
  EXPECT_EQ(runs.check().message(), "ok");
}

TEST(RunStore, CheckNamesTheRun) {
  RunStore runs = make_runs();
  const std::int32_t root = runs.add();
  const std::int32_t r = add_run(runs, root, {1, 2, 3});
  runs.run(r).start = 1;
  EXPECT_EQ(runs.check().message(), "prefix tree, run 1: does not begin where its parent ends");
}

TEST(RunStore, ACopyHasTheSameRuns) {
  RunStore runs = make_runs();
  RunStore copy = make_runs();
  const std::int32_t root = runs.add();
  const std::int32_t r = add_run(runs, root, {1, 2, 3});
  copy.copy_from(runs);
  EXPECT_THAT(tokens_of(copy, r), ElementsAre(1, 2, 3));
  EXPECT_EQ(copy.num_tokens(), 3);
  EXPECT_EQ(copy.check().message(), "ok");
}

}  // namespace
}  // namespace kvfolio
