// SPDX-License-Identifier: Apache-2.0
// Going back in a window group: what a sequence keeps for it, and what it takes back from the
// cache.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine.h"

namespace kvfolio::testing_engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

GroupSpec rewinding(std::int32_t block_size, std::int32_t num_blocks, std::int32_t window,
                    std::int32_t rewind, std::int32_t sinks = 0) {
  GroupSpec group = window_group(block_size, num_blocks, window, sinks);
  group.rewind = rewind;
  return group;
}

// A stop string of k tokens is found behind any length: nothing refuses to go back by k.
TEST(Rewind, TruncateByTheRewindIsNeverRefused) {
  for (const std::int32_t sinks : {0, 3}) {
    for (std::int32_t length = 1; length < 60; ++length) {
      for (std::int32_t k = 0; k <= std::min(7, length); ++k) {
        OpenOptions silent;
        silent.publish = Publish::kNothing;  // nothing can be taken back
        Engine e({full_group(4, 32), rewinding(4, 32, 9, 7, sinks)});
        const SequenceId s = e.open({}, silent).sequence;
        for (std::int32_t i = 0; i < length; ++i) e.feed(s, {i});
        ASSERT_EQ(e.info(s).rewind_from, std::max(0, length - 7));
        const Status status = e.manager.truncate(s, length - k);
        ASSERT_TRUE(status.ok()) << length << " - " << k << ": " << status.message();
        ASSERT_EQ(e.info(s).length, length - k);
        e.feed(s, {99});
      }
    }
  }
}

TEST(Rewind, TheSequenceHoldsWhatItMayGoBackToAndNoMore) {
  Engine e({rewinding(2, 64, 4, 6)});
  const SequenceId s = e.say(tokens(1, 20));
  // Position 14 reads 11, 12 and 13: blocks 5 to 9 are held. Without a rewind they were 8 and 9.
  EXPECT_THAT(e.live(s), ElementsAre(5, 6, 7, 8, 9));
  EXPECT_EQ(e.info(s).rewind_from, 14);
}

TEST(Rewind, WhatTheCacheHasIsTakenBack) {
  Engine e({full_group(4, 16), window_group(4, 16, 6)});
  const SequenceId s = e.say(tokens(1, 24));
  EXPECT_THAT(e.live(s, 1), ElementsAre(4, 5));
  EXPECT_EQ(e.info(s).rewind_from, 24);
  must(e.manager.truncate(s, 9));  // reads 4 to 8: blocks 1 and 2, which the window let go of
  EXPECT_THAT(e.live(s, 1), ElementsAre(1, 2));
  EXPECT_EQ(e.info(s).rewind_from, 9);
  EXPECT_EQ(e.info(s).rewinds, 1);
  must(e.manager.check_invariants());
  // What was taken back is a block of the cache: the next token goes to a copy, as after a hit.
  EXPECT_THAT(e.feed(s, {77}).copy_src.size(), 1u);
  EXPECT_EQ(e.probe(tokens(1, 24)), 23);
  must(e.manager.check_invariants());
}

TEST(Rewind, TheWindowMovesOnOverWhatWasTakenBack) {
  Engine e({full_group(4, 16), window_group(4, 16, 6)});
  const SequenceId s = e.say(tokens(1, 24));
  must(e.manager.truncate(s, 9));
  e.feed(s, tokens(50, 12));
  EXPECT_THAT(e.live(s, 1), ElementsAre(4, 5));
  EXPECT_EQ(e.usage(1).held, 2);
  must(e.manager.check_invariants());
}

TEST(Rewind, WhatTheCacheHasNotIsNamed) {
  Engine e({full_group(4, 16), window_group(4, 8, 6)});
  const SequenceId s = e.say(tokens(1, 24));
  ASSERT_GT(e.evict(8, 1), 0);
  const Tokens before = e.table(s, 1);
  const Status refused = e.manager.truncate(s, 9);
  EXPECT_EQ(refused.code(), kMoment);
  EXPECT_THAT(
      refused.message(),
      HasSubstr("truncate to 9: group 1 (window 6) no longer holds block 1, which position 9 "
                "reads: rewind_from is 24, the cache has not kept it"));
  EXPECT_EQ(e.info(s).length, 24);
  EXPECT_EQ(e.info(s).rewinds, 0);
  EXPECT_EQ(e.table(s, 1), before);
  OpenOptions silent;
  silent.publish = Publish::kNothing;
  const SequenceId quiet = e.say(tokens(100, 24), silent);
  EXPECT_THAT(e.manager.truncate(quiet, 9).message(),
              HasSubstr("the sequence is not in the cache"));
}

// A hit brings no more than what its end reads, and the sequence keeps what it computes itself.
TEST(Rewind, AHitNeitherNeedsNorHoldsTheRewind) {
  Engine e({full_group(4, 32), rewinding(4, 32, 6, 8)});
  e.cache(tokens(1, 41));
  const Opened hit = e.open(tokens(1, 41));
  EXPECT_EQ(hit.cached_tokens, 40);
  EXPECT_THAT(e.live(hit.sequence, 1),
              ElementsAre(8, 9, 10));  // and that of the prompt's last token
  EXPECT_EQ(e.info(hit.sequence).rewind_from, 40);
  for (std::int32_t i = 0; i < 12; ++i) e.feed(hit.sequence, {i});
  EXPECT_EQ(e.info(hit.sequence).rewind_from, 44);
  must(e.manager.truncate(hit.sequence, 44));
  EXPECT_EQ(e.info(hit.sequence).rewind_from, 44);
}

TEST(Rewind, AForkGoesBackAsFarAsItsParent) {
  Engine e({rewinding(2, 64, 4, 6)});
  const SequenceId parent = e.say(tokens(1, 20));
  must(e.manager.truncate(parent, 19));
  const SequenceId child = must(e.manager.fork(parent));
  EXPECT_EQ(e.info(child).rewind_from, 14);
  EXPECT_EQ(e.info(child).rewinds, 0);
  must(e.manager.truncate(child, 14));
  EXPECT_EQ(e.info(parent).length, 19);
}

// The promise counts what is kept: without that the second chunk would be short.
TEST(Rewind, ReserveCountsWhatIsKept) {
  Engine e({rewinding(4, 8, 5, 8)});
  const SequenceId s = e.open({}).sequence;
  must(e.manager.reserve(s, 60, {.most_per_step = 4}));
  EXPECT_EQ(e.usage().reserved, 5);  // 4 + 8 + 4 tokens touch five blocks
  for (std::int32_t i = 0; i < 15; ++i) e.feed(s, tokens(10 * i, 4));
  EXPECT_EQ(e.info(s).length, 60);
  must(e.manager.check_invariants());
}

// Two of three sequences ask for the block of which one promises to append in place.
TEST(Rewind, WhatIsTakenBackPaysForAnothersPromise) {
  Engine e({window_group(4, 6, 4)});
  const SequenceId s = e.say(tokens(1, 12));
  const Opened twin = e.open(tokens(1, 6));  // holds block 0 and the inside of block 1
  ASSERT_EQ(twin.cached_tokens, 5);
  must(e.manager.reserve(twin.sequence, 8, {.most_per_step = 1}));
  const Status status = e.manager.truncate(s, 6);
  must(e.manager.check_invariants());
  EXPECT_TRUE(status.ok() || status.code() == ErrorCode::kNoBlocks) << status.message();
  for (std::int32_t i = 0; i < 8; ++i) e.feed(twin.sequence, {50 + i});
  must(e.manager.check_invariants());
}

// ---- rewinds ----

TEST(Rewinds, CountCutsOfCommittedTokensAndNothingElse) {
  Engine e({full_group(4, 16)});
  const SequenceId s = e.say(tokens(1, 9));
  const auto rewinds = [&] { return e.info(s).rewinds; };
  must(e.manager.truncate(s, 9));  // nothing is cut
  EXPECT_EQ(rewinds(), 0);
  const Ticket undone = must(e.manager.begin_step());
  must(e.manager.append(s, Tokens{1}));
  must(e.manager.undo(s));
  must(e.manager.drop(undone));
  EXPECT_EQ(rewinds(), 0);
  e.feed(s, tokens(20, 3), 3);
  must(e.manager.accept(s, 3));
  EXPECT_EQ(rewinds(), 0);
  e.feed(s, tokens(30, 3), 3);
  must(e.manager.accept(s, 1));
  EXPECT_EQ(rewinds(), 1);
  must(e.manager.truncate(s, 10));
  EXPECT_EQ(rewinds(), 2);
  must(e.manager.trim(s, {.num_sinks = 1, .window = 4}));
  EXPECT_EQ(rewinds(), 2);
  must(e.manager.clear(s));
  EXPECT_EQ(rewinds(), 3);
}

// The row of the old step and the sequence now have one id, one row and one length.
TEST(Rewinds, TellAnOldResultFromANewOne) {
  Engine e({full_group(4, 16)}, {.max_steps_in_flight = 3});
  const SequenceId s = e.say(tokens(1, 9));
  const Ticket first = must(e.manager.begin_step());
  must(e.manager.append(s, Tokens{10}));
  const StepPlan old = *must(e.manager.plan());
  const std::int32_t then = old.rewinds[0];
  must(e.manager.commit(first));
  must(e.manager.truncate(s, 9));
  const Ticket second = must(e.manager.begin_step());
  must(e.manager.append(s, Tokens{11}));
  const StepPlan& plan = *must(e.manager.plan());
  EXPECT_EQ(plan.kv_lens[0], 10);
  EXPECT_EQ(then, 0);
  EXPECT_EQ(plan.rewinds[0], 1);
  EXPECT_EQ(e.info(s).rewinds, 1);
  must(e.manager.finish(second));
}

}  // namespace
}  // namespace kvfolio::testing_engine
