// SPDX-License-Identifier: Apache-2.0
//
// reset() and forget(): what is gone, what goes on, and that nothing comes back.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine.h"
#include "kvfolio/manager.h"

namespace kvfolio::testing_engine {
namespace {

using ::testing::HasSubstr;

TEST(Forget, ResetMakesEverythingUnfindableAndFreesWhatIsCached) {
  Engine e({full_group(4, 12)});
  e.cache(tokens(1, 8));
  e.cache(tokens(1, 6), {.root = {.model = "b"}});
  const Pinned pinned = must(e.manager.pin(tokens(1, 4)));
  const Forgotten gone = e.manager.reset();
  EXPECT_EQ(gone.blocks, 4);
  EXPECT_EQ(gone.pins, 1);
  EXPECT_EQ(e.usage().free, 12);
  EXPECT_EQ(e.probe(tokens(1, 8)), 0);
  EXPECT_EQ(e.manager.unpin(pinned.pin).code(), ErrorCode::kNotFound);
  EXPECT_EQ(e.counters().blocks_evicted, 0u);
  must(e.manager.check_invariants());
  e.cache(tokens(1, 8));  // and everything works as before
  EXPECT_EQ(e.probe(tokens(1, 9)), 8);
}

TEST(Forget, ASequenceGoesOnAndNothingOfItComesBack) {
  for (const Order order : {Order::kInOrder, Order::kUnordered}) {
    Engine e({full_group(4, 16), window_group(2, 16, 6)}, {.order = order});
    const SequenceId s = e.say(tokens(1, 10));
    const SequenceId before = must(e.manager.fork(s));
    EXPECT_GT(e.manager.reset().blocks, 0);
    EXPECT_EQ(e.info(s).length, 10);
    EXPECT_EQ(e.info(s).published_length, 0);
    const SequenceId after = must(e.manager.fork(s));
    for (const SequenceId each : {s, before, after}) {
      e.feed(each, tokens(11, 6));
      EXPECT_EQ(e.probe(tokens(1, 20)), 0);
      must(e.manager.close(each));
      EXPECT_EQ(e.probe(tokens(1, 20)), 0);
    }
    EXPECT_EQ(e.usage(0).free, 16);
    EXPECT_EQ(e.usage(1).free, 16);
    must(e.manager.check_invariants());
    e.cache(tokens(1, 10));  // computed again, it is found again
    EXPECT_EQ(e.probe(tokens(1, 20)), 10);
  }
}

// Its last token is not computed again: it stands in a block that was found, and is forgotten.
TEST(Forget, TheTokenThatAPromptWasFoundWithDoesNotComeBack) {
  Engine e({full_group(4, 8)});
  e.cache(tokens(1, 8));
  const SequenceId s = e.open(tokens(1, 8)).sequence;
  ASSERT_EQ(e.info(s).length, 7);
  must(e.manager.forget(tokens(1, 8)));
  EXPECT_THAT(e.feed(s, {8}).slots, ::testing::ElementsAre(-1));
  must(e.manager.close(s));
  EXPECT_EQ(e.probe(tokens(1, 9)), 4);
}

TEST(Forget, EachForgettingIsCountedAlsoInVainAndAlsoOfACopy) {
  Engine e({full_group(4, 12)});
  std::uint64_t count = e.manager.forget_count();
  e.manager.reset();
  EXPECT_GT(e.manager.forget_count(), count);
  count = e.manager.forget_count();
  e.manager.forget({.tenant_salt = "nobody"});
  EXPECT_GT(e.manager.forget_count(), count);
  count = e.manager.forget_count();
  must(e.manager.forget(tokens(1, 4), {.root = {.tenant_salt = "nobody"}}));
  EXPECT_GT(e.manager.forget_count(), count);
  count = e.manager.forget_count();
  EXPECT_FALSE(e.manager.forget(std::vector<std::int32_t>{-1}));
  EXPECT_EQ(e.manager.forget_count(), count);
  Engine other({full_group(4, 12)});
  must(other.manager.copy_to(e.manager));
  EXPECT_GT(e.manager.forget_count(), count);
}

TEST(Forget, NamesThatComeLaterBringNothingBack) {
  Engine e({full_group(4, 16)});
  const SequenceId s = e.open({}, {.late_names = true}).sequence;
  e.feed_count(s, 8);
  const Forgotten gone = must(e.manager.forget(tokens(1, 4)));  // it may turn out to have these
  EXPECT_EQ(gone.blocks, 0);
  must(e.manager.set_tokens(s, tokens(1, 8)));
  EXPECT_EQ(e.probe(tokens(1, 9)), 0);
  must(e.manager.close(s));
  EXPECT_EQ(e.probe(tokens(1, 9)), 0);
}

TEST(Forget, OnlyWhatBeginsWithTheTokensGoes) {
  Engine e({full_group(4, 32)});
  e.cache(tokens(1, 12));
  e.cache(joined(tokens(1, 8), tokens(50, 4)));
  e.cache(joined(tokens(1, 4), tokens(70, 4)));
  const Forgotten gone = must(e.manager.forget(tokens(1, 6)));
  EXPECT_EQ(gone.blocks, 3);  // [4, 8), [8, 12) and the other [8, 12)
  EXPECT_EQ(e.probe(tokens(1, 13)), 4);
  EXPECT_EQ(e.probe(joined(tokens(1, 4), tokens(70, 5))), 8);
  must(e.manager.check_invariants());
}

TEST(Forget, ABlockThatEndsBeforeTheLastTokenStays) {
  Engine e({full_group(4, 32)});
  e.cache(tokens(1, 6));  // its tail ends at 6
  EXPECT_EQ(must(e.manager.forget(tokens(1, 7))).blocks, 0);
  EXPECT_EQ(e.probe(tokens(1, 7)), 6);
  EXPECT_EQ(must(e.manager.forget(tokens(1, 6))).blocks, 1);
  EXPECT_EQ(e.probe(tokens(1, 7)), 4);
}

TEST(Forget, TailsThatBeginAlikeInsideAUnitGoTogether) {
  Engine e({full_group(8, 32)});
  e.cache(joined(tokens(1, 3), {100, 101}));
  e.cache(joined(tokens(1, 3), {200, 201}));
  e.cache(joined(tokens(1, 2), {300, 301}));
  EXPECT_EQ(must(e.manager.forget(tokens(1, 3))).blocks, 2);
  EXPECT_EQ(e.probe(joined(tokens(1, 3), {100, 101, 5})), 2);  // of the third
  must(e.manager.check_invariants());
}

TEST(Forget, ARootKeyIsForgottenAlone) {
  Engine e({full_group(4, 32)});
  const RootKey a{.model = "m", .adapter = "a"};
  const RootKey b{.model = "m", .adapter = "b"};
  e.cache(tokens(1, 8), {.root = a});
  e.cache(tokens(1, 8), {.root = b});
  const SequenceId open_a = e.say(tokens(1, 9), {.root = a});
  const Pinned of_a = must(e.manager.pin(tokens(1, 8), {.root = a}));
  const Pinned of_b = must(e.manager.pin(tokens(1, 8), {.root = b}));
  const Forgotten gone = e.manager.forget(a);
  EXPECT_EQ(gone.blocks, 2);
  EXPECT_EQ(gone.pins, 1);
  EXPECT_EQ(e.probe(tokens(1, 9), {.root = a}), 0);
  EXPECT_EQ(e.probe(tokens(1, 9), {.root = b}), 8);
  EXPECT_FALSE(e.manager.unpin(of_a.pin).ok());
  EXPECT_TRUE(e.manager.unpin(of_b.pin).ok());
  must(e.manager.close(open_a));
  EXPECT_EQ(e.probe(tokens(1, 9), {.root = a}), 0);
  EXPECT_EQ(e.manager.forget({.model = "never seen"}).blocks, 0);
}

TEST(Forget, MediaTellPromptsApart) {
  Engine e({full_group(4, 32)});
  MediaSpan one{.begin = 1, .end = 3};
  one.content_id.fill(std::byte{1});
  MediaSpan two = one;
  two.content_id.fill(std::byte{2});
  e.cache(tokens(1, 8), {.media = {&one, 1}});
  const SequenceId s = e.say(tokens(1, 8), {.media = {&two, 1}});
  EXPECT_EQ(must(e.manager.forget(tokens(1, 4), {.media = {&one, 1}})).blocks, 2);
  EXPECT_EQ(e.probe(tokens(1, 9), {.media = {&one, 1}}), 1);  // the other one's token before it
  EXPECT_EQ(e.probe(tokens(1, 9), {.media = {&two, 1}}), 8);
  must(e.manager.close(s));
  EXPECT_EQ(e.probe(tokens(1, 9), {.media = {&two, 1}}), 8);
}

TEST(Forget, BlocksOfStepsInFlightRetireFirst) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.open({}).sequence;
  const Ticket flying = e.launch(s, tokens(1, 8));
  must(e.manager.close(s));
  EXPECT_EQ(e.usage().retiring, 2);
  EXPECT_EQ(e.manager.reset().blocks, 2);
  EXPECT_EQ(e.usage().retiring, 2);
  EXPECT_EQ(e.usage().free, 6);
  must(e.manager.complete(flying));
  EXPECT_EQ(e.usage().free, 8);
  must(e.manager.check_invariants());
}

TEST(Forget, AShorterSequenceIsNotConcerned) {
  Engine e({full_group(4, 16)});
  const SequenceId s = e.say(tokens(1, 5));
  static_cast<void>(must(e.manager.forget(tokens(1, 8))));
  e.feed(s, tokens(6, 3));  // the tokens are computed after the call
  EXPECT_EQ(e.probe(tokens(1, 9)), 8);
}

TEST(Forget, BadTokensAreNamedAndNothingIsForgotten) {
  Engine e({full_group(4, 16)});
  e.cache(tokens(1, 8));
  const Result<Forgotten> bad = e.manager.forget(Tokens{1, -2});
  EXPECT_THAT(bad.error().message(), HasSubstr("forget: token 1 is -2"));
  EXPECT_EQ(e.probe(tokens(1, 9)), 8);
}

TEST(Forget, EvictSaysWhichBlocksWentAndABlockSaysWhereItStands) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.say(tokens(1, 10));
  const Tokens blocks = e.table(s);
  EXPECT_EQ(must(e.manager.block_state(GroupId(0), BlockId(blocks[0]))), BlockState::kHeld);
  EXPECT_EQ(must(e.manager.findable_end(GroupId(0), BlockId(blocks[1]))), 8);
  EXPECT_EQ(must(e.manager.findable_end(GroupId(0), BlockId(blocks[2]))), 0);
  must(e.manager.close(s));
  EXPECT_EQ(must(e.manager.findable_end(GroupId(0), BlockId(blocks[2]))), 10);
  EXPECT_EQ(must(e.manager.block_state(GroupId(0), BlockId(blocks[2]))), BlockState::kCached);
  Tokens evicted(2, -1);
  EXPECT_EQ(must(e.manager.evict(GroupId(0), 3, evicted)), 3);
  EXPECT_EQ(evicted, (Tokens{blocks[2], blocks[1]}));  // as many as fit
  EXPECT_EQ(must(e.manager.block_state(GroupId(0), BlockId(blocks[2]))), BlockState::kFree);
  EXPECT_FALSE(e.manager.block_state(GroupId(0), BlockId(8)).has_value());
  EXPECT_FALSE(e.manager.findable_end(GroupId(1), BlockId(0)).has_value());
}

TEST(Ended, FailAndPreemptToNameTheirSequencesAsTheirCallersDo) {
  Engine e({full_group(4, 8)}, {.victim_policy = VictimPolicy::kLongest});
  const SequenceId longest = e.say(tokens(1, 12), {.caller_id = 77});
  const SequenceId plain = e.say(tokens(50, 8));
  EXPECT_THAT(e.manager.describe(), HasSubstr("policy: longest\n"));
  EXPECT_EQ(e.manager.select_victim(), longest);
  const auto gone = must(e.manager.preempt_to(0.3));
  ASSERT_EQ(gone.size(), 1u);
  EXPECT_EQ(gone[0], (EndedSequence{longest, 77}));
  const Ticket step = e.launch(plain, tokens(60, 1));
  const auto aborted = must(e.manager.fail(step));
  ASSERT_EQ(aborted.size(), 1u);
  EXPECT_EQ(aborted[0], (EndedSequence{plain, std::nullopt}));
}

TEST(Ended, AnUnknownVictimPolicyIsNoOption) {
  const Result<KVCacheManager> bad =
      KVCacheManager::create({{full_group(4, 8)}}, {.victim_policy = static_cast<VictimPolicy>(9)});
  EXPECT_EQ(bad.error().message(), "option victim_policy is 9, allowed: 0 to 3");
}

}  // namespace
}  // namespace kvfolio::testing_engine
