// SPDX-License-Identifier: Apache-2.0
// The life of a block (docs/design.md, "Life of a block"), seen through the manager's API.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine.h"

namespace kvfolio::testing_engine {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(BlockLife, OwnerGoesOnInPlaceAfterFork) {
  Engine e({full_group(4, 16)});
  const SequenceId parent = e.say(tokens(1, 6));
  must(e.manager.fork(parent));
  const Tokens before = e.table(parent);
  const Planned planned = e.feed(parent, {70});
  EXPECT_THAT(planned.copy_src, IsEmpty());
  EXPECT_EQ(e.table(parent), before);
  EXPECT_THAT(planned.slots, ElementsAre(before[1] * 4 + 2));
}

// A second user of a sequence costs at most one block, however much is reserved (fault J1).
TEST(BlockLife, ChildCopiesTheSharedTailAtItsFirstAppend) {
  Engine e({full_group(4, 16)});
  const SequenceId parent = e.say(tokens(1, 6));
  const SequenceId child = must(e.manager.fork(parent));
  EXPECT_EQ(e.table(child), e.table(parent));
  EXPECT_EQ(e.refs(e.table(parent)[1]), 2);
  const Planned planned = e.feed(child, {80});
  EXPECT_THAT(planned.copy_src, ElementsAre(e.table(parent)[1]));
  EXPECT_THAT(planned.copy_dst, ElementsAre(e.table(child)[1]));
  EXPECT_NE(e.table(child)[1], e.table(parent)[1]);
  EXPECT_EQ(e.table(child)[0], e.table(parent)[0]);
  EXPECT_THAT(planned.slots, ElementsAre(e.table(child)[1] * 4 + 2));
}

TEST(BlockLife, ForkAtABlockBorderCopiesNothing) {
  Engine e({full_group(4, 16)});
  const SequenceId parent = e.say(tokens(1, 8));
  const SequenceId child = must(e.manager.fork(parent));
  EXPECT_THAT(e.feed(child, {80}).copy_src, IsEmpty());
  EXPECT_THAT(e.feed(parent, {90}).copy_src, IsEmpty());
  EXPECT_NE(e.table(child)[2], e.table(parent)[2]);
}

TEST(BlockLife, NSamplesCostNMinusOneCopies) {
  Engine e({full_group(4, 32)});
  std::vector<SequenceId> samples = {e.say(tokens(1, 6))};
  for (int i = 1; i < 5; ++i) samples.push_back(must(e.manager.fork(samples[0])));
  const Ticket ticket = must(e.manager.begin_step());
  // The children first: the right to write is the parent's whatever the order.
  for (std::size_t i = samples.size(); i-- > 0;) {
    must(e.manager.append(samples[i], Tokens{static_cast<std::int32_t>(100 + i)}));
  }
  must(e.manager.finish(ticket));
  EXPECT_EQ(e.counters().block_copies, 4u);
  EXPECT_EQ(e.usage().held, 1 + 5);  // one shared block and five tails
}

TEST(BlockLife, OwnerGoesOnInPlaceAfterItsTailBecameFindable) {
  Engine e({full_group(4, 16)});
  const SequenceId first = e.say(tokens(1, 6));
  const SequenceId other = must(e.manager.fork(first));
  must(e.manager.close(other));  // hangs the tail that both share
  const Planned planned = e.feed(first, {70});
  EXPECT_THAT(planned.copy_src, IsEmpty());
  EXPECT_EQ(e.probe(joined(tokens(1, 6), {99})), 6);
}

TEST(BlockLife, WhoRevivesACachedTailBecomesItsWriter) {
  Engine e({full_group(4, 16)});
  e.cache(tokens(1, 6));
  const Opened opened = e.open(joined(tokens(1, 6), {70, 71}));
  EXPECT_EQ(opened.cached_tokens, 6);
  const Tokens before = e.table(opened.sequence);
  EXPECT_THAT(e.feed(opened.sequence, {70, 71}).copy_src, IsEmpty());
  EXPECT_EQ(e.table(opened.sequence), before);
}

// Fault P1, for a tail that became findable.
TEST(BlockLife, SecondReaderOfARevivedTailCopies) {
  Engine e({full_group(4, 16)});
  e.cache(tokens(1, 6));
  const Opened first = e.open(joined(tokens(1, 6), {70}));
  const Opened second = e.open(joined(tokens(1, 6), {80}));
  EXPECT_EQ(second.cached_tokens, 6);
  const std::size_t copies =
      e.feed(first.sequence, {70}).copy_src.size() + e.feed(second.sequence, {80}).copy_src.size();
  EXPECT_EQ(copies, 1u);
  EXPECT_NE(e.table(first.sequence)[1], e.table(second.sequence)[1]);
}

TEST(BlockLife, LoneHolderLowersValidAndGoesOnInPlace) {
  Engine e({full_group(4, 16)});
  const SequenceId s = e.say(tokens(1, 7));
  const Tokens before = e.table(s);
  must(e.manager.truncate(s, 5));
  EXPECT_THAT(e.feed(s, {90}).copy_src, IsEmpty());
  EXPECT_EQ(e.table(s), before);
}

TEST(BlockLife, TruncateIntoAFindableBlockCopiesAtTheNextAppend) {
  Engine e({full_group(4, 16)});
  const SequenceId s = e.say(tokens(1, 8));
  const std::int32_t second = e.table(s)[1];
  ASSERT_TRUE(e.findable(second));
  must(e.manager.truncate(s, 6));
  const Planned planned = e.feed(s, {90});
  EXPECT_THAT(planned.copy_src, ElementsAre(second));
  // The findable tokens are as they were.
  EXPECT_EQ(e.probe(tokens(1, 9)), 8);
}

TEST(BlockLife, TruncateIntoASharedBlockCopiesAtTheNextAppend) {
  Engine e({full_group(4, 16)});
  const SequenceId parent = e.say(tokens(1, 7));
  const SequenceId child = must(e.manager.fork(parent));
  must(e.manager.truncate(parent, 6));
  EXPECT_EQ(e.feed(parent, {90}).copy_src.size(), 1u);
  EXPECT_NE(e.table(parent)[1], e.table(child)[1]);
  EXPECT_EQ(e.info(child).length, 7);
}

TEST(BlockLife, FullBlocksAreFindableWithTheirStepAndTailsAtClose) {
  Engine e({full_group(4, 16)});
  const SequenceId s = e.say(tokens(1, 10));
  EXPECT_EQ(e.probe(tokens(1, 12)), 8);
  must(e.manager.close(s));
  EXPECT_EQ(e.probe(tokens(1, 12)), 10);
}

TEST(BlockLife, PreemptPublishesTheTailToo) {
  Engine e({full_group(4, 16)});
  const SequenceId s = e.say(tokens(1, 10));
  must(e.manager.preempt(s));
  EXPECT_EQ(e.probe(tokens(1, 12)), 10);
  EXPECT_EQ(e.counters().sequences_preempted, 1u);
}

TEST(BlockLife, StatesAddUp) {
  Engine e({full_group(4, 8)});
  e.cache(tokens(1, 8));
  const SequenceId held = e.say(tokens(50, 5));
  const GroupUsage usage = e.usage();
  EXPECT_EQ(usage.num_blocks, 8);
  EXPECT_EQ(usage.held, 2);
  EXPECT_EQ(usage.cached, 2);
  EXPECT_EQ(usage.evictable, 2);
  EXPECT_EQ(usage.free, 4);
  EXPECT_EQ(usage.retiring, 0);
  must(e.manager.close(held));
  EXPECT_EQ(e.usage().held, 0);
}

TEST(BlockLife, ReleasedBlocksRetireUntilTheirStepIsComplete) {
  Engine e({full_group(4, 4)}, {.prefix_cache = false});
  const Opened opened = e.open(tokens(1, 8));
  const Ticket t = e.launch(opened.sequence, tokens(1, 8));
  must(e.manager.close(opened.sequence));
  EXPECT_EQ(e.usage().retiring, 2);
  EXPECT_EQ(e.usage().free, 2);
  const Opened next = e.open(tokens(1, 12));
  const Ticket t2 = must(e.manager.begin_step());
  const Status full = e.manager.append(next.sequence, tokens(1, 12));
  ASSERT_EQ(full.code(), ErrorCode::kNoBlocks);
  EXPECT_EQ(*full.shortage(), (Shortage{.group = 0,
                                        .needed = 3,
                                        .free = 2,
                                        .evictable = 0,
                                        .pinned = 0,
                                        .retiring = 2,
                                        .sequences = 1,
                                        .num_blocks = 4}));
  must(e.manager.complete(t));
  EXPECT_EQ(e.usage().retiring, 0);
  EXPECT_TRUE(e.manager.append(next.sequence, tokens(1, 12)).ok());
  must(e.manager.finish(t2));
}

TEST(BlockLife, RetiringFindableBlocksAreHitButNotEvicted) {
  Engine e({full_group(4, 4)});
  const Opened opened = e.open(tokens(1, 8));
  const Ticket t = e.launch(opened.sequence, tokens(1, 8));
  must(e.manager.close(opened.sequence));
  EXPECT_EQ(e.usage().retiring, 2);
  EXPECT_EQ(e.usage().evictable, 0);
  EXPECT_EQ(e.evict(4), 0);
  const Opened again = e.open(tokens(1, 9));
  EXPECT_EQ(again.cached_tokens, 8);
  EXPECT_EQ(e.usage().held, 2);
  must(e.manager.complete(t));
  must(e.manager.close(again.sequence));
  EXPECT_EQ(e.usage().cached, 2);
  EXPECT_EQ(e.evict(4), 2);
}

TEST(BlockLife, AFailingAppendChangesNothing) {
  Engine e({full_group(4, 4)});
  e.cache(tokens(50, 8));
  const SequenceId s = e.say(tokens(1, 4));
  const Ticket t = must(e.manager.begin_step());
  const GroupUsage before = e.usage();
  const Status full = e.manager.append(s, tokens(5, 16));
  ASSERT_EQ(full.code(), ErrorCode::kNoBlocks);
  EXPECT_EQ(full.shortage()->needed, 4);
  EXPECT_EQ(full.shortage()->free, 1);
  EXPECT_EQ(full.shortage()->evictable, 2);
  EXPECT_EQ(full.shortage()->pinned, 1);
  // Decided before the first eviction: what is cached is still there.
  EXPECT_EQ(e.usage().cached, before.cached);
  EXPECT_EQ(e.usage().free, before.free);
  EXPECT_EQ(e.probe(tokens(50, 9)), 8);
  EXPECT_EQ(e.counters().blocks_evicted, 0u);
  // And the step goes on without it.
  EXPECT_TRUE(e.manager.append(s, tokens(5, 12)).ok());
  must(e.manager.finish(t));
}

TEST(BlockLife, ShortageIsASentenceWithTheNumbers) {
  Engine e({full_group(4, 8)}, {.prefix_cache = false});
  const SequenceId s = e.say(tokens(1, 10));
  const Status full = e.manager.admit(s, 100);
  EXPECT_EQ(
      full.message(),
      "group 0: need 25 blocks, 5 free, 0 evictable (3 pinned, 0 retiring; open: 1 sequence); "
      "never: the group has 8 blocks and 3 are kept");
}

TEST(BlockLife, SecondCloseIsAnError) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.say(tokens(1, 4));
  must(e.manager.close(s));
  const Status again = e.manager.close(s);
  EXPECT_EQ(again.code(), ErrorCode::kNotFound);
  EXPECT_THAT(again.message(), testing::Not(IsEmpty()));
}

TEST(BlockLife, WindowsReleaseTheirBlocksAtCommit) {
  Engine e({window_group(2, 16, 6)});
  const Opened opened = e.open(tokens(1, 12));
  const Ticket t = must(e.manager.begin_step());
  must(e.manager.append(opened.sequence, tokens(1, 12)));
  EXPECT_EQ(e.live(opened.sequence).size(), 6u);
  must(e.manager.commit(t));
  // Position 12 reads 7 .. 11.
  EXPECT_THAT(e.live(opened.sequence), ElementsAre(3, 4, 5));
  must(e.manager.complete(t));
  e.feed(opened.sequence, {13, 14, 15});
  EXPECT_THAT(e.live(opened.sequence), ElementsAre(5, 6, 7));
}

TEST(BlockLife, SinksOfAWindowGroupStay) {
  Engine e({window_group(2, 16, 4, 3)});
  const SequenceId s = e.say(tokens(1, 14));
  // Position 14 reads 0, 1, 2 and 11, 12, 13.
  EXPECT_THAT(e.live(s), ElementsAre(0, 1, 5, 6));
}

TEST(BlockLife, EachGroupHasItsOwnTable) {
  Engine e({full_group(4, 16), window_group(2, 16, 6)});
  const SequenceId s = e.say(tokens(1, 12));
  EXPECT_THAT(e.live(s, 0), ElementsAre(0, 1, 2));
  EXPECT_THAT(e.live(s, 1), ElementsAre(3, 4, 5));
}

TEST(BlockLife, ALoneHolderWritesInPlaceBesideAStepThatNeverReadItsBlock) {
  for (const Order order : {Order::kInOrder, Order::kUnordered}) {
    Engine e({full_group(4, 16)}, {.order = order});
    const SequenceId s = e.say(tokens(1, 7));
    const SequenceId other = e.open({}).sequence;
    must(e.manager.truncate(s, 5));
    e.launch(other, tokens(50, 2));
    EXPECT_THAT(e.feed(s, {90}).copy_src, IsEmpty());
  }
}

TEST(BlockLife, WithoutOrderALoneHolderCopiesWhileAStepThatReadItsBlockIsInFlight) {
  for (const Order order : {Order::kInOrder, Order::kUnordered}) {
    Engine e({full_group(4, 16)}, {.max_steps_in_flight = 3, .order = order});
    const SequenceId s = e.say(tokens(1, 8), {.prefix_cache = false});
    const SequenceId reader = must(e.manager.fork(s));
    const Ticket flying = e.launch(reader, {50});
    must(e.manager.close(reader));
    must(e.manager.truncate(s, 5));
    const Ticket step = must(e.manager.begin_step());
    must(e.manager.append(s, Tokens{90}));
    // In order, who reads what is overwritten comes earlier in the stream.
    EXPECT_EQ(e.plan().copy_src.size(), order == Order::kUnordered ? 1u : 0u);
    must(e.manager.drop(step));
    must(e.manager.complete(flying));
    EXPECT_THAT(e.feed(s, {91}).copy_src, IsEmpty());
  }
}

// docs/decisions/0006-closed-sequences-wait.md
TEST(BlockLife, UnorderedClosedSequencesRetireAndAsManyMayWaitAsMayBeOpen) {
  Engine e({full_group(4, 16)},
           {.max_sequences = 1, .max_steps_in_flight = 3, .order = Order::kUnordered});
  EXPECT_EQ(e.manager.num_rows(), 2);
  const SequenceId a = e.open({}).sequence;
  const Ticket first = e.launch(a, tokens(1, 7));
  must(e.manager.close(a));
  EXPECT_EQ(e.usage().retiring, 2);  // not held: a scheduler sees that they are on their way
  EXPECT_EQ(e.usage().held, 0);
  const SequenceId b = e.open({}).sequence;  // the waiting one takes no place
  const Ticket second = e.launch(b, tokens(50, 7));
  must(e.manager.close(b));  // one more than may wait: it is not published
  must(e.manager.complete(first));
  must(e.manager.complete(second));
  EXPECT_EQ(e.probe(tokens(1, 8)), 7);
  EXPECT_EQ(e.probe(tokens(50, 8)), 0);
  EXPECT_EQ(e.usage().free, 14);
  must(e.manager.check_invariants());
}

TEST(BlockLife, UnorderedOnlyASequenceWithTokensOfItsStepWaitsForIt) {
  Engine e({full_group(4, 16)},
           {.max_sequences = 1, .max_steps_in_flight = 3, .order = Order::kUnordered});
  const SequenceId a = e.open({}).sequence;
  const Ticket first = e.launch(a, tokens(1, 7));
  must(e.manager.truncate(a, 0));
  must(e.manager.close(a));  // does not wait
  const SequenceId b = e.open({}).sequence;
  const Ticket second = e.launch(b, tokens(50, 7));
  must(e.manager.close(b));  // so this one may
  must(e.manager.complete(second));
  EXPECT_EQ(e.probe(tokens(50, 8)), 7);
  must(e.manager.complete(first));
  EXPECT_EQ(e.usage().free, 14);
  must(e.manager.check_invariants());
}

TEST(BlockLife, UnorderedATailOfCompleteStepsIsFindableAtClose) {
  Engine e({full_group(4, 16)}, {.order = Order::kUnordered});
  const SequenceId s = e.say(tokens(1, 7));
  const Ticket flying = e.launch(s, tokens(90, 2));
  must(e.manager.truncate(s, 7));
  must(e.manager.close(s));
  EXPECT_EQ(e.probe(tokens(1, 8)), 7);
  // The step in flight may still write behind the tail: the next sequence does so in a copy.
  const SequenceId next = e.open(tokens(1, 8)).sequence;
  const Ticket step = must(e.manager.begin_step());
  must(e.manager.append(next, Tokens{8}));
  EXPECT_EQ(e.plan().copy_src.size(), 1u);
  must(e.manager.finish(step));
  must(e.manager.complete(flying));
  must(e.manager.check_invariants());
}

// Another step may run before the one that makes the copy.
TEST(BlockLife, UnorderedACopyIsNotFindableBeforeItsStepIsComplete) {
  Engine e({full_group(4, 16)}, {.max_steps_in_flight = 2, .order = Order::kUnordered});
  const SequenceId s = e.say(tokens(1, 6));
  const SequenceId child = must(e.manager.fork(s));
  const Ticket flying = e.launch(child, tokens(90, 1));  // into a copy of the tail
  must(e.manager.truncate(child, 6));
  must(e.manager.close(child));
  EXPECT_EQ(e.probe(tokens(1, 7)), 4);
  must(e.manager.complete(flying));
  EXPECT_EQ(e.probe(tokens(1, 7)), 6);
  must(e.manager.check_invariants());
}

TEST(BlockLife, UnorderedWindowsKeepTheirBlocksUntilTheyArePublished) {
  Engine e({full_group(4, 16), window_group(2, 16, 6)}, {.order = Order::kUnordered});
  const SequenceId s = e.open({}).sequence;
  const Ticket t = e.launch(s, tokens(1, 13));
  EXPECT_EQ(e.live(s, 1).size(), 7u);
  must(e.manager.complete(t));
  EXPECT_EQ(e.live(s, 1).size(), 3u);
  must(e.manager.close(s));
  EXPECT_EQ(e.probe(tokens(1, 14)), 13);
}

// Were `valid` not restored, the owner would copy its own tail, and tokens that were never written
// could be adopted.
TEST(BlockLife, WhatDropAndUndoTookBackWasNeverValid) {
  for (const bool drop : {false, true}) {
    Engine e({full_group(4, 16)});
    const SequenceId s = e.say(tokens(1, 6));
    const SequenceId other = e.open({}).sequence;
    const Ticket t = must(e.manager.begin_step());
    must(e.manager.append(s, Tokens{7}));
    if (!drop) must(e.manager.undo(s));
    must(e.manager.drop(t));
    const Tokens blocks = e.table(s);
    const std::span<const std::int32_t> tables[] = {blocks};
    const Status beyond = e.manager.adopt(other, tables, 7);
    EXPECT_THAT(beyond.message(), testing::HasSubstr("holds 2 tokens, wanted: 3"));
    EXPECT_THAT(e.feed(s, {7}).copy_src, IsEmpty());
    must(e.manager.adopt(other, tables, 7));
  }
}

TEST(BlockLife, WhoIsTakenOutOfAStepLosesTheRightThatTheStepGave) {
  for (const bool drop : {false, true}) {
    Engine e({full_group(4, 16)});
    const SequenceId parent = e.say(tokens(1, 6));
    const SequenceId first = must(e.manager.fork(parent));
    const SequenceId second = must(e.manager.fork(parent));
    must(e.manager.close(parent));  // now no sequence has the right to the tail
    const Ticket t = must(e.manager.begin_step());
    must(e.manager.append(first, Tokens{70}));
    if (!drop) must(e.manager.undo(first));
    must(e.manager.drop(t));
    EXPECT_THAT(e.feed(second, {80}).copy_src, IsEmpty());
    EXPECT_THAT(e.feed(first, {70}).copy_src, testing::SizeIs(1));
  }
}

}  // namespace
}  // namespace kvfolio::testing_engine
