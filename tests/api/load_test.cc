// SPDX-License-Identifier: Apache-2.0
//
// Loads: what begin_load() takes, what becomes of it, and what is findable when.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine.h"
#include "kvfolio/manager.h"

namespace kvfolio::testing_engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The logical blocks that a load waits for.
Tokens waits_for(const Engine& e, LoadId load, std::int32_t group = 0) {
  std::vector<LoadBlock> blocks(64);
  const std::int32_t count = must(e.manager.blocks_to_load(load, GroupId(group), blocks));
  Tokens logical;
  for (std::int32_t i = 0; i < count; ++i) {
    logical.push_back(blocks[static_cast<std::size_t>(i)].logical);
  }
  return logical;
}

TEST(Load, IsAnAppendWhoseBytesComeFromElsewhere) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.open(tokens(1, 11)).sequence;
  const Load load = must(e.manager.begin_load(s, tokens(1, 11), 10));
  EXPECT_EQ(load.begin, 0);
  EXPECT_EQ(load.end, 10);
  EXPECT_THAT(waits_for(e, load.id), ElementsAre(0, 1, 2));
  EXPECT_EQ(e.info(s).length, 0);
  EXPECT_EQ(e.info(s).load, load.id);
  EXPECT_EQ(e.usage().held, 3);
  EXPECT_EQ(e.usage().loading, 3);
  must(e.manager.check_invariants());
  EXPECT_EQ(must(e.manager.finish_load(load.id, 10)), 10);
  EXPECT_EQ(e.info(s).length, 10);
  EXPECT_FALSE(e.info(s).load.valid());
  EXPECT_EQ(e.usage().loading, 0);
  EXPECT_EQ(e.counters().tokens_loaded, 10u);
  must(e.manager.check_invariants());
  EXPECT_THAT(e.feed(s, {11}).slots, ElementsAre(e.table(s)[2] * 4 + 2));  // it writes its tail
  must(e.manager.close(s));
  EXPECT_EQ(e.probe(tokens(1, 12)), 11);
}

TEST(Load, NothingIsFindableBeforeItIsFinished) {
  Engine e({full_group(4, 8), window_group(2, 8, 4)});
  const SequenceId s = e.open(tokens(1, 8)).sequence;
  const Load load = must(e.manager.begin_load(s, tokens(1, 8), 8));
  EXPECT_EQ(e.probe(tokens(1, 9)), 0);
  for (std::int32_t b = 0; b < 8; ++b) {
    EXPECT_FALSE(e.findable(b, 0));
    EXPECT_FALSE(e.findable(b, 1));
  }
  EXPECT_EQ(must(e.manager.finish_load(load.id, 8)), 8);
  EXPECT_EQ(e.probe(tokens(1, 9)), 8);
}

TEST(Load, ZeroTokensGiveEverythingBack) {
  Engine e({full_group(4, 8), window_group(2, 8, 4, 2)});
  const SequenceId s = e.say(tokens(1, 5));
  const Tokens table = e.table(s);
  const Load load = must(e.manager.begin_load(s, tokens(1, 20), 16));
  EXPECT_EQ(must(e.manager.finish_load(load.id, 0)), 0);
  EXPECT_EQ(e.info(s).length, 5);
  EXPECT_EQ(e.table(s), table);
  EXPECT_EQ(e.usage(0).held, 2);
  EXPECT_EQ(e.usage(0).free, 6);
  must(e.manager.check_invariants());
  e.feed(s, tokens(6, 3));
  EXPECT_EQ(e.manager.finish_load(load.id, 0).error().code(), ErrorCode::kNotFound);
}

TEST(Load, TheFirstTokensOfOneStandAndTheRestIsFree) {
  Engine e({full_group(8, 8), full_group(4, 16)});
  const SequenceId s = e.open(tokens(1, 30)).sequence;
  const Load load = must(e.manager.begin_load(s, tokens(1, 30), 30));
  EXPECT_EQ(e.manager.finish_load(load.id, 6).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(e.manager.finish_load(load.id, 31).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(e.manager.finish_load(load.id, -4).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(must(e.manager.finish_load(load.id, 20)), 20);
  EXPECT_EQ(e.info(s).length, 20);
  EXPECT_EQ(e.usage(0).held, 3);
  EXPECT_EQ(e.usage(1).held, 5);
  must(e.manager.check_invariants());
  EXPECT_EQ(e.probe(tokens(1, 30)), 16);  // the tail of the large block is not hung
  e.feed(s, tokens(21, 4));
  EXPECT_EQ(e.probe(tokens(1, 30)), 24);
}

TEST(Load, WindowGroupsTakeWhatTheNewLengthReads) {
  Engine e({full_group(4, 16), window_group(4, 16, 6, 1)});
  const SequenceId s = e.open(tokens(1, 41)).sequence;
  const Load load = must(e.manager.begin_load(s, tokens(1, 41), 40));
  EXPECT_THAT(waits_for(e, load.id, 0), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  EXPECT_THAT(waits_for(e, load.id, 1), ElementsAre(0, 8, 9));  // sinks; 35 to 39
  EXPECT_EQ(must(e.manager.finish_load(load.id, 40)), 40);
  EXPECT_THAT(e.live(s, 1), ElementsAre(0, 8, 9));
  must(e.manager.check_invariants());
  EXPECT_EQ(e.probe(tokens(1, 41)), 40);
  e.feed(s, {41});
}

TEST(Load, StandsOnlyWhereEveryWindowIsWhole) {
  Engine e({full_group(4, 16), window_group(4, 16, 6)});
  const SequenceId s = e.say(tokens(1, 8));
  Load load = must(e.manager.begin_load(s, tokens(1, 40), 40));
  EXPECT_THAT(waits_for(e, load.id, 1), ElementsAre(8, 9));
  // Position 36 reads 31, whose block was not loaded.
  EXPECT_EQ(must(e.manager.finish_load(load.id, 28)), 0);
  EXPECT_EQ(e.info(s).length, 8);
  must(e.manager.check_invariants());
  load = must(e.manager.begin_load(s, tokens(1, 40), 16));
  EXPECT_EQ(must(e.manager.finish_load(load.id, 4)), 4);  // 7 to 11: in blocks 1 and 2
  EXPECT_EQ(e.info(s).length, 12);
  must(e.manager.check_invariants());
}

TEST(Load, TakesWhatTheCacheHasByNow) {
  Engine e({full_group(4, 16), window_group(2, 16, 4)});
  const Tokens prompt = tokens(1, 21);
  const SequenceId waiting = e.open(prompt).sequence;
  e.cache(tokens(1, 12));  // another sequence has computed it meanwhile
  const Load load = must(e.manager.begin_load(waiting, prompt, 20));
  EXPECT_EQ(load.begin, 12);
  EXPECT_EQ(e.info(waiting).length, 12);
  EXPECT_THAT(waits_for(e, load.id, 0), ElementsAre(3, 4));
  EXPECT_THAT(waits_for(e, load.id, 1), ElementsAre(8, 9));
  must(e.manager.check_invariants());
  EXPECT_EQ(must(e.manager.finish_load(load.id, 8)), 8);
  must(e.manager.check_invariants());
  e.feed(waiting, {21});
  EXPECT_EQ(e.counters().publications_skipped, 0u);
}

TEST(Load, IsNotNeededIfTheCacheHasItAll) {
  Engine e({full_group(4, 16)});
  const SequenceId s = e.open(tokens(1, 9)).sequence;
  e.cache(tokens(1, 8));
  const Load load = must(e.manager.begin_load(s, tokens(1, 9), 8));
  EXPECT_FALSE(load.id.valid());
  EXPECT_EQ(load.begin, 8);
  EXPECT_EQ(e.info(s).length, 8);
  EXPECT_EQ(e.usage().held, 2);
  must(e.manager.check_invariants());
  e.feed(s, {9});  // no load is open
}

TEST(Load, HoldsWhatOnlySomeGroupsHave) {
  Engine e({full_group(4, 8), window_group(4, 8, 5)});
  const Tokens prompt = tokens(1, 17);
  e.cache(tokens(1, 16));
  e.evict(8, 1);  // of the window group
  const SequenceId s = e.open(prompt).sequence;
  EXPECT_EQ(e.info(s).length, 0);
  const Load load = must(e.manager.begin_load(s, prompt, 16));
  EXPECT_THAT(waits_for(e, load.id, 0), IsEmpty());
  EXPECT_THAT(waits_for(e, load.id, 1), ElementsAre(3));
  EXPECT_EQ(e.usage(0).held, 4);
  EXPECT_EQ(e.usage(0).loading, 0);
  must(e.manager.check_invariants());
  EXPECT_EQ(must(e.manager.finish_load(load.id, 16)), 16);
  EXPECT_EQ(e.usage(0).held, 4);
  EXPECT_EQ(e.usage(0).cached, 0);  // the same blocks, not others beside them
  EXPECT_EQ(e.probe(prompt), 16);
  must(e.manager.check_invariants());
}

// A promise counts on the blocks that its sequence alone holds, and there is no room for others in
// their place. What these would be is lacking; there are no fewer than no evictable blocks.
TEST(Load, LacksWhatSharingCostsAPromise) {
  Engine e({window_group(4, 3, 8)});
  const SequenceId owner = e.open(tokens(1, 8)).sequence;
  e.feed(owner, tokens(1, 8));
  must(e.manager.reserve(owner, 40, {.most_per_step = 1}));
  const SequenceId s = e.open(tokens(1, 9)).sequence;
  ASSERT_EQ(e.info(s).length, 0);
  ASSERT_EQ(e.usage().free, 0);
  const auto load = e.manager.begin_load(s, tokens(1, 8), 8);
  ASSERT_FALSE(load);
  EXPECT_THAT(load.error().message(), HasSubstr("need 2 blocks, 0 free, 0 evictable (3 pinned, "));
  EXPECT_FALSE(load.error().shortage()->never());
  must(e.manager.reserve(owner, 0, {}));
  must(e.manager.begin_load(s, tokens(1, 8), 8));
}

// The tier has the window's first block alone, so the load ends inside a block of the full group.
TEST(Load, HoldsACachedBlockThatItEndsInside) {
  Engine e({full_group(4, 8), window_group(2, 8, 4)});
  const Tokens prompt = tokens(1, 9);
  e.cache(tokens(1, 8));
  e.evict(8, 1);  // of the window group
  const SequenceId s = e.open(prompt).sequence;
  ASSERT_EQ(e.info(s).length, 0);
  std::vector<std::uint8_t> has[] = {{0, 0}, {1, 0, 0, 0}};
  const std::vector<std::span<std::uint8_t>> spans = {has[0], has[1]};
  const Loadable can = must(e.manager.loadable(s, prompt, 8, spans));
  EXPECT_EQ(can.end, 2);
  EXPECT_EQ(can.blocks, 1);
  has[1] = {1, 1, 0};
  const std::vector<std::span<std::uint8_t>> shorter = {std::span(has[0]).first(2), has[1]};
  EXPECT_EQ(must(e.manager.loadable(s, prompt, 6, shorter)).end, 4);
  EXPECT_THAT(has[0], ElementsAre(0, 0));  // the same where `limit` cuts it
  const Load load = must(e.manager.begin_load(s, prompt, can.end));
  EXPECT_THAT(waits_for(e, load.id, 0), IsEmpty());
  EXPECT_THAT(waits_for(e, load.id, 1), ElementsAre(0));
  EXPECT_EQ(must(e.manager.finish_load(load.id, 2)), 2);
  must(e.manager.check_invariants());
  const std::int32_t cached = e.table(s)[0];
  e.feed(s, {77, 78});  // other tokens than those behind: into a copy
  EXPECT_NE(e.table(s)[0], cached);
  EXPECT_TRUE(e.findable(cached, 0));
  must(e.manager.check_invariants());
}

TEST(Load, ReplacesTheBlockThatItBeginsInside) {
  Engine e({full_group(4, 8)});
  e.cache(tokens(1, 8));
  Tokens prompt = joined(tokens(1, 6), tokens(100, 7));
  const Opened opened = e.open(prompt);
  EXPECT_EQ(opened.cached_tokens, 6);
  const std::int32_t shared = e.table(opened.sequence)[1];
  const Load load = must(e.manager.begin_load(opened.sequence, prompt, 12));
  EXPECT_EQ(load.begin, 6);
  EXPECT_THAT(waits_for(e, load.id), ElementsAre(1, 2));
  EXPECT_EQ(must(e.manager.finish_load(load.id, 6)), 6);
  EXPECT_NE(e.table(opened.sequence)[1], shared);
  EXPECT_EQ(must(e.manager.block_state(GroupId(0), BlockId(shared))), BlockState::kCached);
  must(e.manager.check_invariants());
  EXPECT_EQ(e.probe(prompt), 12);
  EXPECT_EQ(e.probe(tokens(1, 9)), 8);
}

TEST(Load, AfterAWholeHitGoesOnFromTheFoundToken) {
  Engine e({full_group(4, 8)});
  e.cache(tokens(1, 8));
  const SequenceId s = e.open(tokens(1, 8)).sequence;  // found whole: 7, and the block of the 8th
  EXPECT_EQ(e.info(s).length, 7);
  const Load load = must(e.manager.begin_load(s, tokens(1, 12), 12));
  EXPECT_EQ(load.begin, 8);  // the tree has the eighth token too
  EXPECT_EQ(must(e.manager.finish_load(load.id, 4)), 4);
  EXPECT_EQ(e.info(s).length, 12);
  must(e.manager.check_invariants());
  e.feed(s, {13});
}

TEST(Load, MeanwhileNobodyAppendsTrimsAdoptsOrReserves) {
  Engine e({full_group(4, 16)});
  const SequenceId s = e.open(tokens(1, 9)).sequence;
  const Load load = must(e.manager.begin_load(s, tokens(1, 9), 8));
  const Ticket t = must(e.manager.begin_step());
  const auto refused = [](const Status& status) {
    EXPECT_EQ(status.code(), ErrorCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr("load 0.1 of sequence 0.1 is open"));
  };
  const std::int32_t token = 1;
  refused(e.manager.append(s, {&token, 1}));
  refused(e.manager.append_unnamed(s, 1));
  std::int32_t joined = -1;
  refused(e.manager.append_each({&s, 1}, {&token, 1}, &joined));
  EXPECT_EQ(joined, 0);
  refused(e.manager.admit(s, 1));
  refused(e.manager.reserve(s, 4));
  refused(e.manager.trim(s, {.num_sinks = 1, .window = 1}).error());
  refused(e.manager.begin_load(s, tokens(1, 9), 8).error());
  must(e.manager.drop(t));
  const Tokens none;
  const std::span<const std::int32_t> table(none);
  refused(e.manager.adopt(s, {&table, 1}, 0));
  EXPECT_EQ(must(e.manager.finish_load(load.id, 8)), 8);
  e.feed(s, {9});
}

TEST(Load, NobodyAppendsOneTokenInsideABlockThatTheSequenceWrites) {
  Engine e({full_group(4, 16)});
  const SequenceId s = e.say(tokens(1, 6));
  const Load load = must(e.manager.begin_load(s, tokens(1, 12), 12));
  const Ticket t = must(e.manager.begin_step());
  const std::int32_t token = 7;
  EXPECT_EQ(e.manager.append(s, {&token, 1}).code(), ErrorCode::kFailedPrecondition);
  must(e.manager.drop(t));
  EXPECT_EQ(must(e.manager.finish_load(load.id, 6)), 6);
}

TEST(Load, ForksShareWhatTheSequenceHasAndGoOn) {
  Engine e({full_group(4, 16)});
  const SequenceId s = e.say(tokens(1, 6));
  const Load load = must(e.manager.begin_load(s, tokens(1, 12), 12));
  const SequenceId child = must(e.manager.fork(s));
  EXPECT_FALSE(e.info(child).load.valid());
  e.feed(child, {50});
  must(e.manager.check_invariants());
  EXPECT_EQ(must(e.manager.finish_load(load.id, 6)), 6);
  EXPECT_EQ(e.info(child).length, 7);
  must(e.manager.check_invariants());
}

// The ends of a sequence while its load is open.
enum class End { kClose, kPreempt, kPreemptTo, kFail, kTruncate };
class LoadOutlives : public ::testing::TestWithParam<std::tuple<End, Order>> {};

TEST_P(LoadOutlives, ItsSequenceAndItsBlocksGoToNobody) {
  const auto [how, order] = GetParam();
  Engine e({full_group(4, 8)}, {.order = order});
  SequenceId s = e.say(tokens(1, 4));
  Ticket flying{};
  if (how == End::kFail) flying = e.launch(s, tokens(5, 4));
  const std::int32_t length = e.info(s).length;
  const Load load = must(e.manager.begin_load(s, tokens(1, 20), 20));
  const int loading = (20 - length) / 4;
  EXPECT_EQ(e.usage().loading, loading);
  switch (how) {
    case End::kClose:
      must(e.manager.close(s));
      break;
    case End::kPreempt:
      must(e.manager.preempt(s));
      break;
    case End::kPreemptTo:
      EXPECT_THAT(ids_of(must(e.manager.preempt_to(0.0))), ElementsAre(s));
      break;
    case End::kFail:
      EXPECT_THAT(ids_of(must(e.manager.fail(flying))), ElementsAre(s));
      break;
    case End::kTruncate:
      must(e.manager.truncate(s, 2));
      break;
  }
  must(e.manager.check_invariants());
  EXPECT_EQ(e.usage().loading, loading);  // the load may still write there
  std::vector<LoadBlock> blocks(8);
  ASSERT_EQ(must(e.manager.blocks_to_load(load.id, GroupId(0), blocks)), loading);
  // Another sequence takes all that there is: none of these is among it.
  const SequenceId other = e.open({}).sequence;
  const std::int32_t room = e.usage().free + e.usage().cached;
  e.feed(other, tokens(50, 4 * room));
  const Tokens taken = e.table(other);
  for (int i = 0; i < loading; ++i) {
    const std::int32_t b = blocks[static_cast<std::size_t>(i)].block.value();
    EXPECT_THAT(taken, ::testing::Not(::testing::Contains(b)));
    EXPECT_EQ(e.refs(b), 1);
  }
  EXPECT_EQ(must(e.manager.finish_load(load.id, load.end - load.begin)), 0);
  EXPECT_EQ(e.usage().loading, 0);
  EXPECT_LE(e.probe(tokens(1, 21)), length);  // nothing of it is findable
  must(e.manager.check_invariants());
}

using Ending = std::tuple<End, Order>;
// Without order no load begins while a step of the sequence is in flight, which could fail.
INSTANTIATE_TEST_SUITE_P(Ends, LoadOutlives,
                         ::testing::Values(Ending{End::kClose, Order::kInOrder},
                                           Ending{End::kClose, Order::kUnordered},
                                           Ending{End::kPreempt, Order::kInOrder},
                                           Ending{End::kPreempt, Order::kUnordered},
                                           Ending{End::kPreemptTo, Order::kInOrder},
                                           Ending{End::kPreemptTo, Order::kUnordered},
                                           Ending{End::kFail, Order::kInOrder},
                                           Ending{End::kTruncate, Order::kInOrder},
                                           Ending{End::kTruncate, Order::kUnordered}));

TEST(Load, FailOfAStepThatTheSequenceIsNotInLeavesItAlone) {
  Engine e({full_group(4, 16)});
  const SequenceId s = e.open(tokens(1, 9)).sequence;
  const Load load = must(e.manager.begin_load(s, tokens(1, 9), 8));
  const SequenceId other = e.open(tokens(50, 4)).sequence;
  const Ticket t = e.launch(other, tokens(50, 4));
  EXPECT_THAT(ids_of(must(e.manager.fail(t))), ElementsAre(other));
  EXPECT_EQ(must(e.manager.finish_load(load.id, 8)), 8);
  EXPECT_EQ(e.probe(tokens(1, 9)), 8);
  must(e.manager.check_invariants());
}

TEST(Load, NothingStandsBehindWhatAFailedStepHadPutIntoTheCache) {
  for (const bool fails : {false, true}) {
    Engine e({full_group(4, 16), full_group(2, 16)});
    const SequenceId s = e.open(tokens(1, 13)).sequence;
    const SequenceId other = e.open(tokens(1, 6)).sequence;
    const Ticket t = e.launch(other, tokens(1, 6));
    const Load load = must(e.manager.begin_load(s, tokens(1, 13), 12));
    ASSERT_EQ(load.begin, 4);                                     // as far as both groups go
    ASSERT_THAT(waits_for(e, load.id, 1), ElementsAre(3, 4, 5));  // block 2 is in the cache
    if (fails) {  // the sequence held a block of the step, too; the load goes on without it
      EXPECT_THAT(ids_of(must(e.manager.fail(t))), ::testing::Contains(s));
    } else {
      must(e.manager.complete(t));
    }
    EXPECT_EQ(must(e.manager.finish_load(load.id, 8)), fails ? 0 : 8);
    EXPECT_EQ(e.probe(tokens(1, 13)), fails ? 0 : 12);
    must(e.manager.check_invariants());
  }
  // Nothing of the sequence is lost, but of what the load had found.
  Engine e({full_group(4, 16), full_group(2, 16)});
  const SequenceId s = e.open(tokens(1, 13)).sequence;
  const SequenceId other = e.open(tokens(1, 3)).sequence;
  const Ticket t = e.launch(other, tokens(1, 3));
  const Load load = must(e.manager.begin_load(s, tokens(1, 13), 12));
  ASSERT_EQ(load.begin, 0);
  ASSERT_THAT(waits_for(e, load.id, 1), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(ids_of(must(e.manager.fail(t))), ElementsAre(other));
  EXPECT_EQ(must(e.manager.finish_load(load.id, 12)), 0);
  EXPECT_EQ(e.probe(tokens(1, 13)), 0);
  must(e.manager.check_invariants());
}

TEST(Load, ABlockThatAFailedStepWroteBeforeIsNotTheLoads) {
  Engine e({full_group(4, 2)});
  must(e.manager.close(e.say(tokens(1, 8), {.publish = Publish::kNothing})));  // step 1 wrote both
  const SequenceId s = e.open(tokens(10, 9)).sequence;
  const Load load = must(e.manager.begin_load(s, tokens(10, 9), 8));
  EXPECT_EQ(must(e.manager.finish_load(load.id, 8)), 8);
  const SequenceId other = e.open({}).sequence;
  const Ticket t = must(e.manager.begin_step());
  must(e.manager.commit(t));
  EXPECT_THAT(must(e.manager.fail(t)), IsEmpty());
  EXPECT_EQ(e.info(s).length, 8);
  static_cast<void>(other);
}

TEST(Load, ResetAndForgetLetItFinishUnfindable) {
  for (const int how : {0, 1, 2, 3}) {
    Engine e({full_group(4, 16)});
    const SequenceId s = e.say(tokens(1, 4));
    const Load load = must(e.manager.begin_load(s, tokens(1, 13), 12));
    if (how == 0) e.manager.reset();
    if (how == 1) e.manager.forget(RootKey{});
    if (how == 2) must(e.manager.forget(tokens(1, 9)));                // what only the load has
    if (how == 3) must(e.manager.forget(joined(tokens(1, 8), {77})));  // not its path
    EXPECT_EQ(must(e.manager.finish_load(load.id, 8)), 8);
    EXPECT_EQ(e.info(s).length, 12);
    EXPECT_EQ(e.probe(tokens(1, 13)), how == 3 ? 12 : how == 2 ? 4 : 0);
    must(e.manager.check_invariants());
    must(e.manager.close(s));
    EXPECT_EQ(e.probe(tokens(1, 13)), how == 3 ? 12 : how == 2 ? 4 : 0);
  }
}

TEST(Load, AShortageChangesNothingAndCountsLoads) {
  Engine e({full_group(4, 6)});
  const SequenceId a = e.open(tokens(1, 9)).sequence;
  const Load load = must(e.manager.begin_load(a, tokens(1, 9), 8));
  const HoldId hold = must(e.manager.hold_blocks(GroupId(0), {}));
  e.cache(tokens(50, 4));
  const SequenceId b = e.open(tokens(50, 20)).sequence;
  const Result<Load> refused = e.manager.begin_load(b, tokens(50, 20), 20);
  ASSERT_FALSE(refused.has_value());
  const Shortage* s = refused.error().shortage();
  ASSERT_NE(s, nullptr);
  EXPECT_EQ(s->needed, 4);  // the block of the hit is the sequence's
  EXPECT_EQ(s->free, 3);
  EXPECT_EQ(s->pinned, 3);
  EXPECT_EQ(s->loads, 1);
  EXPECT_EQ(s->holds, 1);
  EXPECT_EQ(refused.error().message(),
            "group 0: need 4 blocks, 3 free, 0 evictable (3 pinned, 0 retiring; open: 2 sequences, "
            "1 load and 1 hold)");
  EXPECT_EQ(e.info(b).length, 4);
  must(e.manager.check_invariants());
  must(e.manager.release_hold(hold));
  EXPECT_EQ(must(e.manager.finish_load(load.id, 0)), 0);
  EXPECT_TRUE(e.manager.begin_load(b, tokens(50, 20), 20).has_value());
}

TEST(Load, TheHitIsNotTakenIfTheRestDoesNotFit) {
  Engine e({full_group(4, 4)});
  const SequenceId s = e.open(tokens(1, 21)).sequence;
  e.cache(tokens(1, 8));
  EXPECT_EQ(e.manager.begin_load(s, tokens(1, 21), 20).error().code(), ErrorCode::kNoBlocks);
  EXPECT_EQ(e.info(s).length, 0);
  EXPECT_EQ(e.usage().cached, 2);
  must(e.manager.check_invariants());
}

TEST(Load, EvictsWhatIsCached) {
  Engine e({full_group(4, 4)});
  e.cache(tokens(50, 16));
  const SequenceId s = e.open(tokens(1, 17)).sequence;
  const Load load = must(e.manager.begin_load(s, tokens(1, 17), 16));
  EXPECT_EQ(e.usage().held, 4);
  EXPECT_EQ(e.counters().blocks_evicted, 4u);
  EXPECT_EQ(must(e.manager.finish_load(load.id, 16)), 16);
}

TEST(Load, RefusesASequenceThatIsNotWhatAPromptSays) {
  Engine e({full_group(4, 32)});
  const auto code = [&](SequenceId s, const Tokens& prompt, std::int32_t end) {
    const Result<Load> load = e.manager.begin_load(s, prompt, end);
    return load.has_value() ? ErrorCode::kOk : load.error().code();
  };
  const SequenceId plain = e.say(tokens(1, 6));
  EXPECT_EQ(code(plain, tokens(1, 12), 13), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(plain, tokens(1, 12), 5), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(plain, tokens(2, 12), 8), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(plain, joined(tokens(1, 5), tokens(7, 7)), 8), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(plain, {1, 2, 3, 4, 5, 6, -1}, 7), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(SequenceId(), tokens(1, 12), 8), ErrorCode::kNotFound);

  const SequenceId trimmed = e.say(tokens(100, 20));
  must(e.manager.trim(trimmed, {.num_sinks = 4, .window = 4}));
  EXPECT_EQ(code(trimmed, tokens(100, 30), 24), ErrorCode::kFailedPrecondition);
  const SequenceId unnamed = e.say_count(4, {.late_names = true});
  EXPECT_EQ(code(unnamed, tokens(1, 12), 8), ErrorCode::kFailedPrecondition);
  const SequenceId drafting = e.open({}).sequence;
  e.feed(drafting, tokens(1, 3), 2);
  EXPECT_EQ(code(drafting, tokens(1, 12), 8), ErrorCode::kFailedPrecondition);
  const SequenceId promised = e.open({}).sequence;
  must(e.manager.reserve(promised, 4));
  EXPECT_EQ(code(promised, tokens(1, 12), 8), ErrorCode::kFailedPrecondition);
  const SequenceId limited = e.open({}, {.max_tokens = 6}).sequence;
  EXPECT_EQ(code(limited, tokens(1, 12), 8), ErrorCode::kResourceExhausted);
  const Ticket t = must(e.manager.begin_step());
  const std::int32_t token = 7;
  must(e.manager.append(plain, {&token, 1}));
  EXPECT_EQ(code(plain, tokens(1, 12), 12), ErrorCode::kFailedPrecondition);
  must(e.manager.drop(t));
  must(e.manager.check_invariants());
}

TEST(Load, DoesNotEndInsideASpanThatAttendsToItself) {
  Engine e({full_group(4, 32)});
  const std::vector<MediaSpan> media = {
      {.begin = 6, .end = 10, .content_id = {std::byte{1}}, .attends_to_itself = true}};
  const SequenceId s = e.open(tokens(1, 20), {.media = media}).sequence;
  EXPECT_EQ(e.manager.begin_load(s, tokens(1, 20), 8).error().code(), ErrorCode::kInvalidArgument);
  const Load load = must(e.manager.begin_load(s, tokens(1, 20), 16));
  EXPECT_EQ(must(e.manager.finish_load(load.id, 8)), 6);  // it stands up to the span
  EXPECT_EQ(e.info(s).length, 6);
  EXPECT_EQ(e.probe(tokens(1, 20), {.media = media}), 4);
  must(e.manager.check_invariants());
}

TEST(Load, WaitsForTheSequencesStepWithoutOrder) {
  Engine e({full_group(4, 16)}, {.order = Order::kUnordered});
  const SequenceId s = e.open(tokens(1, 4)).sequence;
  const Ticket t = e.launch(s, tokens(1, 4));
  EXPECT_THAT(e.manager.begin_load(s, tokens(1, 9), 8).error().message(),
              HasSubstr("which is not complete"));
  must(e.manager.complete(t));
  const Load load = must(e.manager.begin_load(s, tokens(1, 9), 8));
  EXPECT_EQ(must(e.manager.finish_load(load.id, 4)), 4);
  EXPECT_EQ(e.probe(tokens(1, 9)), 8);
  must(e.manager.check_invariants());
}

TEST(Load, OfASequenceThatPublishesNothingBringsNothingToTheCache) {
  Engine e({full_group(4, 16)});
  const SequenceId s = e.open(tokens(1, 9), {.publish = Publish::kNothing}).sequence;
  const Load load = must(e.manager.begin_load(s, tokens(1, 9), 8));
  EXPECT_EQ(must(e.manager.finish_load(load.id, 8)), 8);
  EXPECT_EQ(e.probe(tokens(1, 9)), 0);
  e.feed(s, {9});
  must(e.manager.check_invariants());
}

TEST(Load, MaxTransfersBoundsThoseThatAreOpen) {
  Engine e({full_group(4, 16)}, {.max_transfers = 1});
  const SequenceId a = e.open(tokens(1, 5)).sequence;
  const SequenceId b = e.open(tokens(1, 5)).sequence;
  const Load load = must(e.manager.begin_load(a, tokens(1, 5), 4));
  EXPECT_EQ(e.manager.begin_load(b, tokens(1, 5), 4).error().code(), ErrorCode::kResourceExhausted);
  const HoldId hold = must(e.manager.hold_blocks(GroupId(0), {}));
  EXPECT_EQ(e.manager.hold_blocks(GroupId(0), {}).error().code(), ErrorCode::kResourceExhausted);
  must(e.manager.release_hold(hold));
  EXPECT_EQ(must(e.manager.finish_load(load.id, 4)), 4);
  EXPECT_EQ(must(e.manager.begin_load(b, tokens(1, 5), 4)).begin, 4);
}

TEST(Load, TwoOfTheSamePromptLeaveOneInTheCache) {
  Engine e({full_group(4, 16)});
  const SequenceId a = e.open(tokens(1, 9)).sequence;
  const SequenceId b = e.open(tokens(1, 9)).sequence;
  const Load first = must(e.manager.begin_load(a, tokens(1, 9), 8));
  const Load second = must(e.manager.begin_load(b, tokens(1, 9), 8));
  EXPECT_EQ(must(e.manager.finish_load(second.id, 8)), 8);
  EXPECT_EQ(must(e.manager.finish_load(first.id, 8)), 8);
  must(e.manager.close(a));
  must(e.manager.close(b));
  EXPECT_EQ(e.usage().cached, 2);
  EXPECT_EQ(e.probe(tokens(1, 9)), 8);
  must(e.manager.check_invariants());
}

TEST(Load, CopyToIsRefusedWhileOneIsOpen) {
  Engine e({full_group(4, 16)});
  Engine target({full_group(4, 16)});
  const SequenceId s = e.open(tokens(1, 9)).sequence;
  const Load load = must(e.manager.begin_load(s, tokens(1, 9), 8));
  const HoldId hold = must(e.manager.hold_blocks(GroupId(0), {}));
  EXPECT_EQ(e.manager.copy_to(target.manager).code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(e.manager.copy_to(target.manager).message(),
              HasSubstr("1 load and 1 hold of this manager are open"));
  EXPECT_THAT(target.manager.copy_to(e.manager).message(),
              HasSubstr("1 load and 1 hold of the target are open"));
  must(e.manager.finish_load(load.id, 8));
  must(e.manager.release_hold(hold));
  must(e.manager.copy_to(target.manager));
  EXPECT_EQ(target.probe(tokens(1, 9)), 8);
  must(target.manager.check_invariants());
  EXPECT_NE(must(target.manager.begin_load(s, tokens(1, 20), 16)).id, load.id);
}

}  // namespace
}  // namespace kvfolio::testing_engine
