// SPDX-License-Identifier: Apache-2.0
//
// Caching never takes room: a prompt that fits a pool without the prefix cache fits it with the
// cache, and a sequence that runs alone gets as far with the cache as without it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "engine.h"

namespace kvfolio::testing_engine {
namespace {

using ::testing::ElementsAre;

// Appends `step` tokens at a time until the pool is full or the sequence has `most`.
int grow(Engine& e, SequenceId sequence, std::int32_t token, int step, int most) {
  for (int length = e.info(sequence).length; length < most; length += step) {
    const Ticket ticket = must(e.manager.begin_step());
    const Status status = e.manager.append(sequence, tokens(token + length, step));
    if (!status.ok()) {
      must(e.manager.drop(ticket));
      return length;
    }
    must(e.manager.finish(ticket));
  }
  return most;
}

Status append_in_step(Engine& e, SequenceId sequence, const Tokens& more) {
  const Ticket ticket = must(e.manager.begin_step());
  Status status = e.manager.append(sequence, more);
  must(status.ok() ? e.manager.finish(ticket) : e.manager.drop(ticket));
  return status;
}

// The window blocks of the first prompt are the coldest of all, but the tree is not shorter without
// them.
TEST(Room, AFullTreeMakesRoomThoughManyWindowBlocksAreColder) {
  Engine e({window_group(4, 400, 1024), full_group(16, 100)}, {.max_runs = 3});
  must(e.manager.close(e.say(tokens(1, 640))));
  must(e.manager.close(e.say(tokens(5000, 32))));
  must(e.manager.close(e.say(tokens(9000, 32))));
  EXPECT_EQ(e.probe(tokens(9000, 33)), 32);
  EXPECT_EQ(e.probe(tokens(5000, 33)), 32);
  EXPECT_EQ(e.probe(tokens(1, 641)), 0);  // the oldest went
  EXPECT_EQ(e.manager.counters().publications_skipped, 0u);
  must(e.manager.check_invariants());
}

TEST(Room, AFullTreeMakesRoomBesideAnOpenSequenceThatItsWindowHasPassed) {
  Engine e({full_group(16, 100), window_group(4, 400, 16)}, {.max_runs = 4});
  const SequenceId open = e.say(tokens(1, 640));  // its run stays as long as it is open
  for (const std::int32_t first : {5000, 7000, 9000}) {
    must(e.manager.close(e.say(tokens(first, 32))));
  }
  EXPECT_EQ(e.probe(tokens(9000, 33)), 32);
  EXPECT_EQ(e.probe(tokens(7000, 33)), 32);
  EXPECT_EQ(e.probe(tokens(5000, 33)), 0);
  EXPECT_EQ(e.manager.counters().publications_skipped, 0u);
  EXPECT_LE(e.manager.counters().blocks_evicted, 12u);
  must(e.manager.close(open));
  must(e.manager.check_invariants());
}

// The ages of two groups are compared: the prompt that was let go first goes, whichever of its
// blocks are left.
TEST(Room, AFullTreeGivesUpTheColdestOfAllFullGroups) {
  for (const bool swapped : {false, true}) {
    const GroupSpec small = full_group(4, 16);
    const GroupSpec large = full_group(8, 16);
    Engine e({swapped ? large : small, swapped ? small : large}, {.max_runs = 3});
    must(e.manager.close(e.say(tokens(1, 4))));   // no block of the large group
    must(e.manager.close(e.say(tokens(50, 8))));  // the coldest block of the large group
    must(e.manager.close(e.say(tokens(90, 8))));
    EXPECT_EQ(e.probe(tokens(1, 5)), 0) << swapped;
    EXPECT_EQ(e.probe(tokens(50, 9)), 8) << swapped;
    EXPECT_EQ(e.probe(tokens(90, 9)), 8) << swapped;
    must(e.manager.check_invariants());
  }
}

TEST(Room, APromptThatFitsColdFitsAfterAHitInsideABlock) {
  Engine e({full_group(16, 4)});
  e.cache(joined(tokens(0, 40), tokens(500, 24)));  // the pool is full of it
  const Opened opened = e.open(joined(tokens(0, 40), tokens(1000, 24)));
  ASSERT_EQ(opened.cached_tokens, 40);
  ASSERT_EQ(e.usage().free, 0);
  EXPECT_TRUE(e.manager.admit(opened.sequence, 24).ok());
  const Planned planned = e.feed(opened.sequence, tokens(1000, 24));
  EXPECT_TRUE(planned.copy_src.empty());  // there was no room for a copy
  EXPECT_EQ(e.counters().blocks_unhung, 1U);
  EXPECT_EQ(e.counters().blocks_evicted, 1U);
  must(e.manager.close(opened.sequence));
  // What was shared is found again, and so is the new end.
  EXPECT_EQ(e.probe(joined(tokens(0, 40), tokens(1000, 24))), 63);
  EXPECT_EQ(e.probe(joined(tokens(0, 40), tokens(500, 24))), 40);
  EXPECT_TRUE(e.manager.check_invariants().ok());
}

TEST(Room, ASequenceThatGoesOnAloneReplacesAnEqualPrefixNobodyHolds) {
  Engine e({full_group(4, 8)});
  const Opened a = e.open(tokens(0, 12));
  const Opened b = e.open(tokens(0, 12));
  const Ticket step = must(e.manager.begin_step());
  must(e.manager.append(a.sequence, tokens(0, 12)));
  must(e.manager.append(b.sequence, tokens(0, 12)));
  must(e.manager.finish(step));
  must(e.manager.close(a.sequence));
  EXPECT_EQ(grow(e, b.sequence, 0, 1, 40), 32);
  EXPECT_TRUE(e.manager.check_invariants().ok());
}

TEST(Room, WhatATrimDroppedMakesRoomThoughItsTailIsHeld) {
  Engine e({full_group(4, 10)});
  const SequenceId s = e.say(tokens(0, 36));
  int appended = 0;
  for (; appended < 10; ++appended) {
    if (!append_in_step(e, s, tokens(100 + 4 * appended, 4)).ok()) break;
    must(e.manager.trim(s, {.num_sinks = 4, .window = 16}));
  }
  EXPECT_EQ(appended, 10);
  EXPECT_TRUE(e.manager.check_invariants().ok());
}

TEST(Room, AnotherTokenThanTheOneThatWasFoundTakesItsOnlyBlock) {
  Engine e({full_group(1, 1)});
  e.cache({5});
  const Opened opened = e.open({5});
  EXPECT_EQ(opened.cached_tokens, 0);
  EXPECT_TRUE(append_in_step(e, opened.sequence, {6}).ok());
  must(e.manager.close(opened.sequence));
  EXPECT_EQ(e.probe({6, 0}), 1);
  EXPECT_EQ(e.probe({5, 0}), 0);
}

TEST(Room, ShortOfTableEntriesASequenceStopsPublishingBeforeItIsRefused) {
  for (const int step : {1, 100, 400}) {
    Engine e({full_group(16, 64)}, {.max_table_entries = 256});
    const SequenceId s = e.open({}).sequence;
    EXPECT_EQ(grow(e, s, 0, step, 400), 400) << step;
    EXPECT_TRUE(e.manager.check_invariants().ok());
  }
}

TEST(Room, ShortOfTableEntriesAHitIsAMiss) {
  Engine e({full_group(1, 200)}, {.max_sequences = 4, .max_table_entries = 256});
  e.cache(tokens(0, 80));
  const Opened first = e.open(tokens(0, 80));
  EXPECT_EQ(first.cached_tokens, 79);
  const SequenceId wide = e.say_count(60, {.prefix_cache = false});
  EXPECT_EQ(e.open(tokens(0, 80)).cached_tokens, 0);
  must(e.manager.close(wide));
  EXPECT_TRUE(e.manager.check_invariants().ok());
}

TEST(Room, ShortOfTableEntriesAForkDoesNotPublish) {
  Engine e({full_group(16, 64)}, {.max_sequences = 4, .max_table_entries = 96});
  const SequenceId s = e.open({}).sequence;
  const Ticket step = e.launch_count(s, 60);           // its tokens have no names and are kept
  const Result<SequenceId> child = e.manager.fork(s);  // its table fits, its tokens do not
  ASSERT_TRUE(child) << child.error().message();
  EXPECT_EQ(e.counters().publications_skipped, 1U);
  must(e.manager.set_tokens(*child, tokens(0, 60)));
  EXPECT_EQ(e.info(*child).published_length, 0);
  must(e.manager.complete(step));
  EXPECT_TRUE(e.manager.check_invariants().ok());
}

TEST(Room, ARefusedAppendKeepsPublishing) {
  Engine e({full_group(1, 1000)}, {.max_table_entries = 256});
  const SequenceId s = e.open({}).sequence;
  e.feed(s, tokens(0, 20));
  const Ticket step = must(e.manager.begin_step());
  EXPECT_EQ(e.manager.append(s, tokens(20, 400)).code(), ErrorCode::kResourceExhausted);
  must(e.manager.drop(step));
  EXPECT_EQ(e.manager.admit(s, 400).code(), ErrorCode::kResourceExhausted);
  e.feed(s, tokens(20, 10));
  must(e.manager.close(s));
  EXPECT_EQ(e.probe(tokens(0, 40)), 30);
  EXPECT_EQ(e.counters().publications_skipped, 0U);
}

TEST(Room, AForkMadeInFlightGivesBackWhatItsWindowPassed) {
  for (const bool cached : {false, true}) {
    Engine e({window_group(3, 5, 9)}, {.order = Order::kUnordered});
    const SequenceId parent = e.open({}, {.prefix_cache = cached}).sequence;
    const Ticket step = e.launch(parent, tokens(0, 13));
    const SequenceId child = must(e.manager.fork(parent));
    must(e.manager.close(parent));
    must(e.manager.complete(step));
    e.feed(child, tokens(50, 3));
    EXPECT_TRUE(e.manager.check_invariants().ok());
  }
}

TEST(Room, WithoutOrderAnUndoneAppendInPlaceHasItsRoomAgainAtOnce) {
  Engine e({full_group(1, 3)}, {.order = Order::kUnordered});
  e.cache({1, 2});
  e.launch(e.open({}).sequence, {70});
  const SequenceId s = e.open({1, 2}).sequence;
  const Ticket step = must(e.manager.begin_step());
  must(e.manager.append(s, Tokens{9}));
  must(e.manager.undo(s));
  must(e.manager.append(s, Tokens{9}));
  must(e.manager.commit(step));
  EXPECT_TRUE(e.manager.check_invariants().ok());
}

TEST(Room, ATailIsGivenUpOnlyWhenThereIsNoRoomForACopy) {
  Engine e({full_group(16, 1000)});
  const Tokens shared = tokens(0, 40);
  const Tokens a = joined(shared, tokens(1000, 100));
  const Tokens b = joined(shared, tokens(2000, 100));
  Tokens hits;
  for (int i = 0; i < 3; ++i) {
    for (const Tokens& prompt : {a, b}) {
      const Opened opened = e.open(prompt);
      hits.push_back(opened.cached_tokens);
      e.feed(opened.sequence, Tokens(prompt.begin() + opened.cached_tokens, prompt.end()));
      must(e.manager.close(opened.sequence));
    }
  }
  EXPECT_THAT(hits, ElementsAre(0, 40, 139, 139, 139, 139));
  EXPECT_EQ(e.counters().blocks_unhung, 0U);
}

TEST(Room, TheCachedBlockNextToTheHeldOnesLeavesFirst) {
  Engine e({full_group(1, 12)});
  const SequenceId s = e.say(tokens(0, 10));
  must(e.manager.trim(s, {.num_sinks = 0, .window = 5}));
  must(e.manager.trim(s, {.num_sinks = 0, .window = 1}));
  EXPECT_EQ(e.usage().evictable, 9);
  EXPECT_EQ(e.evict(1), 1);
  EXPECT_EQ(e.counters().blocks_unhung, 1U);  // the last block, which is held
  EXPECT_EQ(e.probe(tokens(0, 10)), 8);
}

TEST(Room, NoEntryStaysThatNoPromptCanReach) {
  Engine e({full_group(1, 3)});
  const SequenceId s = e.say({0, 0, 1});
  must(e.manager.trim(s, {.num_sinks = 0, .window = 1}));
  e.feed(s, {0});
  for (std::int32_t block = 0; block < 3; ++block) {
    // Two are held and not findable any more; the first token's is cached.
    EXPECT_EQ(e.findable(block), e.refs(block) == 0) << block;
  }
  EXPECT_EQ(e.usage().cached, 1);
  EXPECT_TRUE(e.manager.check_invariants().ok());
}

TEST(Room, WhatAdmitPromisesSeveralTogetherTheirAppendsGet) {
  for (const bool other_first : {false, true}) {
    Engine e({full_group(4, 4)});
    e.cache(tokens(0, 8));
    const SequenceId b = e.say_count(1, {.prefix_cache = false});
    const Opened a = e.open({0, 1, 2, 3, 4, 5, 77});
    ASSERT_EQ(a.cached_tokens, 6);
    ASSERT_EQ(e.usage().free, 1);
    const Ticket step = must(e.manager.begin_step());
    const AppendDemand demands[] = {{a.sequence, 1}, {b, 4}};
    ASSERT_TRUE(e.manager.admit(demands).ok());
    const auto append_a = [&] { return e.manager.append(a.sequence, Tokens{77}); };
    const auto append_b = [&] { return e.manager.append_unnamed(b, 4); };
    EXPECT_TRUE((other_first ? append_b() : append_a()).ok());
    EXPECT_TRUE((other_first ? append_a() : append_b()).ok());
    must(e.manager.finish(step));
    EXPECT_TRUE(e.manager.check_invariants().ok());
  }
}

TEST(Room, AnUndoneAppendInPlaceHasOverwrittenTheFoundToken) {
  Engine e({full_group(4, 1)});
  e.cache({1, 2, 3, 4});
  const Opened opened = e.open({1, 2, 3, 4});
  ASSERT_EQ(opened.cached_tokens, 3);
  const Ticket step = must(e.manager.begin_step());
  must(e.manager.append(opened.sequence, Tokens{9}));
  EXPECT_THAT(e.plan().slots, ElementsAre(3));  // the engine writes
  must(e.manager.undo(opened.sequence));
  EXPECT_TRUE(e.manager.check_invariants().ok());
  must(e.manager.append(opened.sequence, Tokens{4}));
  EXPECT_THAT(e.plan().slots, ElementsAre(3));  // not -1: the token's bytes are gone
  must(e.manager.finish(step));
  EXPECT_TRUE(e.manager.check_invariants().ok());
}

TEST(Room, AnUndoneAppendInPlaceOfADisplacedBlockGivesItBack) {
  Engine e({full_group(1, 2), window_group(2, 2, 4)});
  e.cache({1, 2});
  const Opened opened = e.open({1, 2});
  ASSERT_EQ(opened.cached_tokens, 1);
  const Ticket step = must(e.manager.begin_step());
  must(e.manager.append(opened.sequence, Tokens{9}));
  must(e.manager.undo(opened.sequence));
  EXPECT_EQ(e.table(opened.sequence).size(), 1U);
  EXPECT_TRUE(e.manager.check_invariants().ok());
  must(e.manager.append(opened.sequence, Tokens{2}));
  EXPECT_NE(e.plan().slots[0], -1);
  must(e.manager.finish(step));
  EXPECT_TRUE(e.manager.check_invariants().ok());
}

TEST(Room, AnIdlePromptOutlivesTheCopiesOfAnOpenOne) {
  Engine e({full_group(4, 40)});
  const Tokens idle = tokens(5000, 20);
  e.cache(idle);
  const Opened a = e.open(tokens(0, 40));
  const Opened b = e.open(tokens(0, 40));
  const Ticket step = must(e.manager.begin_step());
  must(e.manager.append(a.sequence, tokens(0, 40)));
  must(e.manager.append(b.sequence, tokens(0, 40)));
  must(e.manager.finish(step));
  must(e.manager.close(a.sequence));
  EXPECT_EQ(grow(e, b.sequence, 0, 1, 120), 120);
  EXPECT_EQ(e.probe(joined(idle, {1})), 20);
}

TEST(Room, ABlockThatOnlyStepsHoldComesBackWithThem) {
  Engine e({full_group(4, 2)}, {.order = Order::kUnordered});
  e.cache(tokens(0, 4));
  const SequenceId parent = e.open(tokens(0, 4)).sequence;  // 3 tokens, and the block of the fourth
  const Ticket step = e.launch(parent, {9});                // to a copy
  must(e.manager.close(parent));
  EXPECT_EQ(e.usage().held, 0);
  EXPECT_EQ(e.usage().retiring, 2);
  const SequenceId other = e.open({}).sequence;
  const Ticket next = must(e.manager.begin_step());
  const Status refused = e.manager.append(other, tokens(50, 8));
  ASSERT_NE(refused.shortage(), nullptr);
  EXPECT_EQ(refused.shortage()->pinned, 0);
  EXPECT_EQ(refused.shortage()->retiring, 2);
  must(e.manager.complete(step));
  EXPECT_EQ(e.usage().retiring, 0);
  EXPECT_TRUE(e.manager.append(other, tokens(50, 8)).ok());
  must(e.manager.finish(next));
  EXPECT_TRUE(e.manager.check_invariants().ok());
}

TEST(Room, ABlockWhoseEntryWasLostIsFoundAgainWhenItsSequencePublishes) {
  Engine e({full_group(1, 8)});
  const SequenceId s = e.say(tokens(0, 4));
  const SequenceId child = must(e.manager.fork(s));
  must(e.manager.trim(s, {.num_sinks = 0, .window = 1}));
  must(e.manager.truncate(child, 3));
  must(e.manager.close(child));  // blocks 0 to 2 are cached above the last one, which s holds
  EXPECT_EQ(e.evict(3), 3);
  EXPECT_EQ(e.probe(tokens(0, 5)), 0);
  // Another computes the prefix anew: the way is open, and s offers its own block at its close.
  const SequenceId other = e.say(tokens(0, 3));
  const std::uint64_t published = e.counters().blocks_published;
  must(e.manager.close(s));
  EXPECT_EQ(e.counters().blocks_published, published + 1);
  must(e.manager.close(other));
  EXPECT_EQ(e.probe(tokens(0, 5)), 4);
}

TEST(Room, ALostEntryThatAForkHungInPartIsFoundWholeAgain) {
  Engine e({full_group(4, 16)});
  const SequenceId first = e.say(tokens(1, 4));
  const SequenceId own = e.say(tokens(1, 8), {.look_up = false});
  must(e.manager.close(first));
  EXPECT_EQ(must(e.manager.evict(GroupId(0), 1)), 1);
  EXPECT_EQ(e.counters().blocks_unhung, 1u);  // what `own` had hung behind the block of `first`
  const SequenceId fork = must(e.manager.fork(own));
  must(e.manager.truncate(fork, 6));
  must(e.manager.close(fork));
  EXPECT_EQ(e.probe(tokens(1, 9)), 6);
  e.feed(own, tokens(9, 4));
  EXPECT_EQ(e.probe(tokens(1, 13)), 12);
  EXPECT_EQ(e.counters().publications_skipped, 0u);
  must(e.manager.check_invariants());
}

TEST(Room, NothingHangsBehindAGap) {
  Engine e({full_group(1, 8)});
  const SequenceId s = e.say(tokens(0, 4));
  must(e.manager.trim(s, {.num_sinks = 0, .window = 2}));
  EXPECT_EQ(e.evict(2), 2);
  must(e.manager.close(s));  // it offers its two blocks again, and no prompt could reach them
  EXPECT_EQ(e.counters().publications_skipped, 1U);
  EXPECT_EQ(e.usage().free, 8);
  EXPECT_TRUE(e.manager.check_invariants().ok());
}

// ---- the order of eviction ----

TEST(EvictionOrder, WhatAWindowPassesInOneStepLeavesTailsFirst) {
  Engine e({window_group(2, 20, 4)});
  const SequenceId s = e.open({}).sequence;
  const Ticket step = must(e.manager.begin_step());
  must(e.manager.append(s, tokens(0, 12)));
  const Tokens blocks = e.table(s);
  must(e.manager.finish(step));
  Tokens left;
  for (int i = 0; i < 4; ++i) {
    e.evict(1);
    for (int logical = 0; logical < 4; ++logical) {
      const std::int32_t block = blocks[static_cast<std::size_t>(logical)];
      if (!e.findable(block) && std::find(left.begin(), left.end(), logical) == left.end()) {
        left.push_back(logical);
      }
    }
  }
  EXPECT_THAT(left, ElementsAre(3, 2, 1, 0));
}

TEST(EvictionOrder, TheSharedHeadOfAWindowGroupOutlivesItsTail) {
  Engine e({full_group(4, 100), window_group(4, 60, 8)});
  const Tokens shared = tokens(0, 40);
  e.cache(joined(shared, tokens(1000, 120)));
  EXPECT_EQ(e.evict(10, 1), 10);
  EXPECT_EQ(e.probe(joined(shared, {7})), 40);
}

TEST(EvictionOrder, ShortRequestsDoNotFlushTheCache) {
  Engine e({full_group(16, 110)});
  const Tokens shared = tokens(0, 1600);
  e.cache(shared);
  for (int i = 0; i < 1000; ++i) e.cache(tokens(10'000 + 5 * i, 5));
  EXPECT_EQ(e.probe(joined(shared, {1})), 1600);
}

TEST(EvictionOrder, ATailThatPromptsHitKeepsItsRank) {
  Engine e({full_group(16, 20)});
  const Tokens asked = tokens(0, 15);
  std::int64_t reused = 0;
  for (int i = 0; i < 200; ++i) {
    reused += e.probe(asked);
    e.cache(asked);
    e.cache(tokens(10'000 + 33 * i, 33));
  }
  EXPECT_GE(reused, 2'700);
}

TEST(EvictionOrder, ALostTailCostsLessThanABlockOfWork) {
  Engine e({full_group(16, 64), window_group(16, 64, 64)});
  const SequenceId s = e.open({}).sequence;
  for (int at = 0; at < 207; at += 8) e.feed(s, tokens(at, std::min(8, 207 - at)));
  EXPECT_EQ(e.evict(8, 1), 8);
  EXPECT_EQ(e.usage(1).cached, 1);  // what a hit of 192 tokens reads and the window has passed
  must(e.manager.close(s));
  EXPECT_EQ(e.evict(1, 0), 1);  // the tail
  EXPECT_EQ(e.probe(tokens(0, 300)), 192);
}

TEST(EvictionOrder, ABorderMovesWhenTokensGetTheirNames) {
  Engine e({full_group(4, 64), window_group(4, 64, 8)});
  const SequenceId s = e.say(tokens(0, 16));
  const auto append_unnamed = [&](std::int64_t count) {
    const Ticket step = must(e.manager.begin_step());
    must(e.manager.append_unnamed(s, count));
    must(e.manager.commit(step));
    return step;
  };
  const Ticket first = append_unnamed(3);
  const Ticket second = append_unnamed(5);
  must(e.manager.set_tokens(s, tokens(16, 8)));  // a hit of 24 tokens reads what is still held
  must(e.manager.complete(first));
  must(e.manager.complete(second));
  const Tokens other = tokens(500, 4);
  e.cache(other);
  EXPECT_EQ(e.evict(4, 1), 4);  // those of s, which are older
  EXPECT_EQ(e.probe(joined(other, {1})), 4);
}

TEST(EvictionOrder, ABorderEntersTheOrderWhenItsLastSequenceCloses) {
  Engine e({full_group(4, 64), window_group(4, 64, 8)});
  const SequenceId s = e.say(tokens(0, 19));
  const SequenceId child = must(e.manager.fork(s));
  must(e.manager.close(s));
  // The child still counts block 2 (8 to 11), which a hit of 16 tokens reads: the others go first.
  EXPECT_EQ(e.evict(2, 1), 2);
  EXPECT_EQ(e.probe(tokens(0, 17)), 16);
  must(e.manager.close(child));
  EXPECT_EQ(e.evict(2, 1), 2);  // the tail, and then the coldest
  EXPECT_TRUE(e.manager.check_invariants().ok());
}

}  // namespace
}  // namespace kvfolio::testing_engine
