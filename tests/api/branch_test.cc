// SPDX-License-Identifier: Apache-2.0
// Hits where the path of a prompt lacks blocks and a path beside it has them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "engine.h"

namespace kvfolio::testing_engine {
namespace {

using testing::ElementsAre;

void evict_all(Engine& e, std::int32_t group) {
  while (e.evict(1, group) > 0) {
  }
}

// A neighbour at the branch where the path parted serves, although the search went on behind it and
// fell back in front of it.
TEST(Branch, ANeighbourServesWherePathsParted) {
  for (const int shared : {8, 64}) {
    const int window = shared == 8 ? 3 : 18;
    Engine e({full_group(4, 64), window_group(4, 64, window)});
    const Tokens s = tokens(100, shared);
    e.cache(joined(s, {1, 1, 1, 1, 5, 5, 5, 5}));
    evict_all(e, 1);
    // While it is open, its window keeps the blocks from the branch on, and few before it.
    const SequenceId second = e.say(joined(s, {1, 1, 1, 2}), {.look_up = false});
    evict_all(e, 1);
    must(e.manager.close(second));
    const Tokens prompt = joined(s, {1, 1, 1, 1, 9});
    EXPECT_EQ(e.probe(prompt), shared + 3);
    const Opened opened = e.open(prompt);
    EXPECT_EQ(opened.cached_tokens, shared + 3);
    must(e.manager.check_invariants());
    e.feed(opened.sequence, {1, 9});
    must(e.manager.close(opened.sequence));
    must(e.manager.check_invariants());
  }
}

TEST(Branch, BranchesAreAskedUpwardsAndTheLargestPositionWins) {
  Engine e({full_group(4, 64), window_group(4, 64, 2)});
  e.cache(tokens(1, 16));
  evict_all(e, 1);
  const SequenceId shares_11 = e.say(joined(tokens(1, 11), {92}), {.look_up = false});
  const SequenceId shares_6 = e.say(joined(tokens(1, 6), {90, 91}), {.look_up = false});
  evict_all(e, 1);
  must(e.manager.close(shares_11));
  must(e.manager.close(shares_6));
  EXPECT_EQ(e.probe(tokens(1, 17)), 11);
  EXPECT_EQ(e.evict(1, 1), 1);  // that of the deeper branch
  EXPECT_EQ(e.probe(tokens(1, 17)), 6);
  EXPECT_EQ(e.evict(1, 1), 1);
  EXPECT_EQ(e.probe(tokens(1, 17)), 0);
  must(e.manager.check_invariants());
}

TEST(Branch, ThousandsOfBranchesCostNoMoreTriesThanAFew) {
  // A branch behind every block, and no block of the window group anywhere: nothing serves.
  constexpr int kBlocks = 512;
  Engine e({full_group(1, 3 * kBlocks), window_group(1, 3 * kBlocks, 4)},
           {.max_index_tokens = 1 << 20, .max_runs = 8 * kBlocks});
  for (int n = 1; n < kBlocks; n += 2) e.cache(joined(tokens(1, n), {5000 + n}));
  e.cache(tokens(1, kBlocks));
  evict_all(e, 1);
  EXPECT_EQ(e.probe(tokens(1, kBlocks + 1)), 0);
  must(e.manager.check_invariants());
}

TEST(Branch, AWindowOfOneNeedsNothingAtABlockBorder) {
  Engine e({full_group(4, 16), window_group(4, 16, 1)});
  e.cache(tokens(1, 11));
  evict_all(e, 1);
  EXPECT_EQ(e.probe(tokens(1, 12)), 8);
  const Opened opened = e.open(joined(tokens(1, 8), {70}));
  EXPECT_EQ(opened.cached_tokens, 8);
  EXPECT_THAT(e.live(opened.sequence, 1), ElementsAre());
  EXPECT_THAT(e.live(opened.sequence, 0), ElementsAre(0, 1));
  EXPECT_EQ(e.usage(1).held, 0);
  e.feed(opened.sequence, tokens(70, 6));
  must(e.manager.check_invariants());
  must(e.manager.close(opened.sequence));
}

TEST(Branch, AWindowOfOneHoldsNoBlockAtABorderThoughItIsThere) {
  Engine e({full_group(4, 16), window_group(4, 16, 1)});
  const SequenceId s = e.say(tokens(1, 7));
  e.feed(s, {8, 9});  // the window's first two blocks stay cached
  const Opened border = e.open(joined(tokens(1, 8), {70}));
  EXPECT_EQ(border.cached_tokens, 8);
  EXPECT_THAT(e.live(border.sequence, 1), ElementsAre());
  // Inside a block the token before is needed, and the block that it lies in.
  const Opened inside = e.open(joined(tokens(1, 6), {70}));
  EXPECT_EQ(inside.cached_tokens, 6);
  EXPECT_THAT(e.live(inside.sequence, 1), ElementsAre(1));
  // Found whole: the last token is held, and no token before it.
  const Opened whole = e.open(tokens(1, 5));
  EXPECT_EQ(whole.cached_tokens, 4);
  EXPECT_THAT(e.live(whole.sequence, 1), ElementsAre(1));
  EXPECT_THAT(e.feed(whole.sequence, {5}).slots, ElementsAre(-1));
  must(e.manager.check_invariants());
}

TEST(Branch, APinKeepsAPathThatWindowsOfOneNeedNoBlockOf) {
  Engine e({window_group(4, 16, 1)});
  e.cache(tokens(1, 12));
  const SequenceId at_end = e.open(tokens(1, 12)).sequence;
  evict_all(e, 0);
  const Pinned pinned = must(e.manager.pin(tokens(1, 8)));
  EXPECT_EQ(pinned.pinned_tokens, 8);
  must(e.manager.close(at_end));
  evict_all(e, 0);
  must(e.manager.check_invariants());
  EXPECT_EQ(e.probe(tokens(1, 9)), 8);
  must(e.manager.unpin(pinned.pin));
  must(e.manager.check_invariants());
  EXPECT_EQ(e.probe(tokens(1, 9)), 0);
}

// A block of sixteen that the prompt ends inside, under each of two runs that go on.
TEST(Branch, APathThatEndsAtABranchIsServedByAnyRunBelow) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    Engine e({full_group(1, 400), window_group(16, 60, 18)}, {.hash_seed = seed});
    const Tokens shared = tokens(0, 70);
    e.cache(joined(shared, tokens(1000, 10)));
    e.evict(60, 1);
    const SequenceId s = e.open({}).sequence;
    const Tokens second = joined(shared, tokens(2000, 10));
    for (std::size_t at = 0; at < second.size(); at += 16) {
      const std::size_t end = std::min(at + 16, second.size());
      e.feed(s, Tokens(second.begin() + static_cast<std::ptrdiff_t>(at),
                       second.begin() + static_cast<std::ptrdiff_t>(end)));
    }
    must(e.manager.close(s));
    e.evict(3, 1);
    EXPECT_EQ(e.probe(joined(shared, {7})), 70) << seed;
    EXPECT_EQ(e.probe(joined(shared, {2000})), 70) << seed;
  }
}

}  // namespace
}  // namespace kvfolio::testing_engine
