// SPDX-License-Identifier: Apache-2.0
// Drafts with steps in flight: a sequence goes on behind guesses that accept() has not decided on.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine.h"

namespace kvfolio::testing_engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr ManagerOptions kThreeInFlight{.max_steps_in_flight = 3};

// A step in flight of one sequence: so many tokens, the last ones guesses.
Ticket launch(Engine& e, SequenceId s, const Tokens& more, std::int32_t draft) {
  const Ticket ticket = must(e.manager.begin_step());
  must(e.manager.append(s, more, {.draft = draft}));
  must(e.manager.plan());
  must(e.manager.commit(ticket));
  return ticket;
}

TEST(Drafts, AnAppendBehindThemAssumesThatAllStand) {
  Engine e({full_group(4, 16)}, kThreeInFlight);
  const SequenceId s = e.say(tokens(1, 4));
  launch(e, s, {5, 6, 7}, 2);
  launch(e, s, {8, 9}, 1);
  EXPECT_EQ(e.info(s).length, 9);
  EXPECT_EQ(e.info(s).accepted_length, 5);
  must(e.manager.accept(s, 2));
  EXPECT_EQ(e.info(s).accepted_length, 8);  // up to the next guess
  must(e.manager.accept(s, 1));
  EXPECT_EQ(e.info(s).accepted_length, 9);
  EXPECT_EQ(e.info(s).rewinds, 0);
  must(e.manager.check_invariants());
}

// The oldest is decided before or after its step is complete.
TEST(Drafts, BelowTheDraftLaterRowsAreVoid) {
  for (const bool late : {false, true}) {
    Engine e({full_group(4, 16)}, kThreeInFlight);
    const SequenceId s = e.say(tokens(1, 4));
    const Ticket first = launch(e, s, {5, 6, 7}, 2);
    const Ticket second = must(e.manager.begin_step());
    must(e.manager.append(s, Tokens{8, 9}, {.draft = 1}));
    const std::int32_t then = must(e.manager.plan())->rewinds[0];
    must(e.manager.commit(second));
    if (late) must(e.manager.complete(second));
    must(e.manager.accept(s, 1));
    EXPECT_EQ(e.info(s).length, 6);
    EXPECT_EQ(e.info(s).accepted_length, 6);
    EXPECT_NE(e.info(s).rewinds, then);
    // The next one goes on behind what stands, in a slot that the void row wrote.
    const Ticket third = must(e.manager.begin_step());
    must(e.manager.append(s, Tokens{70}));
    const StepPlan& plan = *must(e.manager.plan());
    EXPECT_EQ(plan.kv_lens[0], 7);
    EXPECT_EQ(plan.rewinds[0], e.info(s).rewinds);
    EXPECT_EQ(plan.groups[0].slot_mapping[0] % 4, 2);
    must(e.manager.commit(third));
    must(e.manager.complete(late ? third : first));
    must(e.manager.check_invariants());
  }
}

TEST(Drafts, BlocksOfVoidRowsRetireUntilTheirStepsAreComplete) {
  Engine e({full_group(2, 8)}, kThreeInFlight);
  const SequenceId s = e.say(tokens(1, 2));
  launch(e, s, {3, 4}, 1);
  const Ticket second = launch(e, s, tokens(5, 4), 0);
  must(e.manager.accept(s, 0));
  EXPECT_EQ(e.info(s).length, 3);
  EXPECT_EQ(e.usage().held, 2);
  EXPECT_EQ(e.usage().retiring, 2);
  must(e.manager.complete(second));
  EXPECT_EQ(e.usage().retiring, 0);
  EXPECT_EQ(e.usage().free, 6);
}

TEST(Drafts, NothingBehindOneThatIsNotDecidedIsFindable) {
  Engine e({full_group(2, 16)}, kThreeInFlight);
  const SequenceId s = e.say(tokens(1, 2));
  launch(e, s, {3, 4}, 1);
  launch(e, s, tokens(5, 4), 0);
  EXPECT_EQ(e.info(s).published_length, 2);
  EXPECT_EQ(e.probe(tokens(1, 9)), 2);
  must(e.manager.accept(s, 1));
  EXPECT_EQ(e.info(s).published_length, 8);  // what has no guesses stands with what is before it
  EXPECT_EQ(e.probe(tokens(1, 9)), 8);
}

TEST(Drafts, WhatIsVoidIsNeverFindable) {
  Engine e({full_group(2, 16)}, kThreeInFlight);
  const SequenceId s = e.say(tokens(1, 2));
  launch(e, s, {3, 4}, 1);
  const Ticket second = launch(e, s, tokens(5, 4), 2);
  must(e.manager.accept(s, 0));
  EXPECT_EQ(e.probe(tokens(1, 9)), 2);
  must(e.manager.complete(second));
  must(e.manager.close(s));
  EXPECT_EQ(e.probe(tokens(1, 9)), 3);
}

TEST(Drafts, WindowsDoNotMovePastWhatIsNotDecided) {
  Engine e({window_group(2, 32, 4)}, kThreeInFlight);
  const SequenceId s = e.say(tokens(1, 8));
  EXPECT_THAT(e.live(s), ElementsAre(2, 3));
  launch(e, s, {9, 10}, 2);
  launch(e, s, tokens(11, 6), 2);
  EXPECT_THAT(e.live(s), ElementsAre(2, 3, 4, 5, 6, 7));
  must(e.manager.accept(s, 0));  // all that position 8 reads is there
  EXPECT_THAT(e.live(s), ElementsAre(2, 3));
  launch(e, s, {9, 10}, 1);
  must(e.manager.accept(s, 1));
  EXPECT_THAT(e.live(s), ElementsAre(3, 4));
  must(e.manager.check_invariants());
}

TEST(Drafts, AtMostAsManyAsMayBeInFlightAreNotDecided) {
  Engine e({full_group(4, 16)}, {.max_steps_in_flight = 2});
  const SequenceId s = e.say(tokens(1, 4));
  must(e.manager.complete(launch(e, s, {5, 6}, 1)));
  must(e.manager.complete(launch(e, s, {7}, 0)));
  must(e.manager.begin_step());
  const Status refused = e.manager.append(s, Tokens{8});
  EXPECT_EQ(refused.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("2 draft tokens of 2 appends"));
  EXPECT_EQ(e.manager.admit(s, 1).code(), ErrorCode::kFailedPrecondition);
  must(e.manager.accept(s, 1));
  must(e.manager.append(s, Tokens{8}));
}

TEST(Drafts, WithoutOrderAnAppendWaitsForThem) {
  Engine e({full_group(4, 16)}, {.max_steps_in_flight = 2, .order = Order::kUnordered});
  const SequenceId s = e.say(tokens(1, 4));
  must(e.manager.complete(launch(e, s, {5, 6}, 1)));
  must(e.manager.begin_step());
  const Status refused = e.manager.append(s, Tokens{7});
  EXPECT_EQ(refused.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("accept() first"));
}

TEST(Drafts, ForksTrimsAndLoadsWaitForThem) {
  Engine e({full_group(4, 16)}, {.max_transfers = 1, .max_steps_in_flight = 3});
  const SequenceId s = e.say(tokens(1, 4));
  launch(e, s, {5, 6}, 1);
  launch(e, s, {7}, 0);
  const auto waits = [](const Status& status) {
    EXPECT_EQ(status.code(), ErrorCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr("has 2 draft tokens"));
  };
  waits(e.manager.fork(s).error());
  waits(e.manager.trim(s, {.num_sinks = 1, .window = 2}).error());
  waits(e.manager.begin_load(s, tokens(1, 12), 12).error());
  must(e.manager.accept(s, 1));
  must(e.manager.trim(s, {.num_sinks = 1, .window = 2}));
}

TEST(Drafts, AcceptTakesNoMoreThanTheOldestHas) {
  Engine e({full_group(4, 16)}, kThreeInFlight);
  const SequenceId s = e.say(tokens(1, 4));
  launch(e, s, {5, 6}, 1);
  launch(e, s, {7, 8, 9}, 3);
  EXPECT_EQ(e.manager.accept(s, 2).code(), ErrorCode::kInvalidArgument);
  const Ticket third = must(e.manager.begin_step());
  must(e.manager.append(s, Tokens{10}));
  EXPECT_EQ(e.manager.accept(s, 1).code(), ErrorCode::kFailedPrecondition);  // in the open step
  must(e.manager.drop(third));
  must(e.manager.accept(s, 1));
  must(e.manager.accept(s, 3));
  EXPECT_EQ(e.info(s).accepted_length, 9);
}

TEST(Drafts, ATruncateCutsThem) {
  Engine e({full_group(4, 16)}, kThreeInFlight);
  const SequenceId s = e.say(tokens(1, 4));
  launch(e, s, {5, 6, 7}, 2);
  launch(e, s, {8, 9}, 1);
  must(e.manager.truncate(s, 8));  // the guess of the second
  EXPECT_EQ(e.info(s).accepted_length, 5);
  must(e.manager.truncate(s, 6));
  EXPECT_EQ(e.manager.accept(s, 2).code(), ErrorCode::kInvalidArgument);
  must(e.manager.accept(s, 1));
  EXPECT_EQ(e.info(s).accepted_length, 6);
  launch(e, s, {7, 8}, 2);
  must(e.manager.truncate(s, 6));  // no guess is left: nothing is to be decided
  must(e.manager.fork(s));
  must(e.manager.check_invariants());
}

TEST(Drafts, ATruncateInsideThemLeavesThoseInFrontUndecided) {
  Engine e({full_group(2, 16)}, kThreeInFlight);
  const SequenceId s = e.say(tokens(1, 2));
  launch(e, s, {3, 4, 5, 6}, 3);
  launch(e, s, {7, 8}, 1);
  must(e.manager.truncate(s, 5));  // 4 and 5 are left of the guesses 4, 5, 6
  EXPECT_EQ(e.info(s).length, 5);
  EXPECT_EQ(e.info(s).accepted_length, 3);
  EXPECT_EQ(e.info(s).rewinds, 1);  // both rows are void
  EXPECT_EQ(e.probe(tokens(1, 6)), 2);
  launch(e, s, {60}, 0);  // behind those that are left, as if they stood
  must(e.manager.accept(s, 2));
  EXPECT_EQ(e.info(s).accepted_length, 6);
  EXPECT_EQ(e.probe({1, 2, 3, 4, 5, 60, 1}), 6);
  must(e.manager.check_invariants());
}

TEST(Drafts, TokensWithoutNamesAreNamedAsFarAsTheyStand) {
  Engine e({full_group(2, 16)}, kThreeInFlight);
  const SequenceId s = e.open({}, {.late_names = true}).sequence;
  e.feed(s, tokens(1, 2));
  for (const std::int32_t draft : {2, 1}) {
    const Ticket ticket = must(e.manager.begin_step());
    must(e.manager.append_unnamed(s, 3, {.draft = draft}));
    must(e.manager.plan());
    must(e.manager.finish(ticket));
  }
  must(e.manager.accept(s, 1));
  EXPECT_EQ(e.info(s).num_unnamed, 2);
  must(e.manager.set_tokens(s, tokens(3, 2)));
  EXPECT_EQ(e.probe(tokens(1, 5)), 4);
}

TEST(Drafts, AFailedStepTakesItsSequenceAlong) {
  Engine e({full_group(4, 16)}, kThreeInFlight);
  const SequenceId s = e.say(tokens(1, 4));
  launch(e, s, {5, 6}, 1);
  const Ticket second = launch(e, s, {7}, 0);
  EXPECT_THAT(ids_of(must(e.manager.fail(second))), ElementsAre(s));
  must(e.manager.check_invariants());
  EXPECT_EQ(e.usage().held, 0);
}

TEST(Drafts, ACopyOfTheManagerDecidesOnThemToo) {
  Engine e({full_group(4, 16)}, kThreeInFlight);
  const SequenceId s = e.say(tokens(1, 4));
  must(e.manager.complete(launch(e, s, {5, 6}, 1)));
  must(e.manager.complete(launch(e, s, {7, 8}, 2)));
  Engine other({full_group(4, 16)}, kThreeInFlight);
  must(e.manager.copy_to(other.manager));
  EXPECT_EQ(must(e.manager.state_hash()), must(other.manager.state_hash()));
  must(e.manager.accept(s, 0));
  must(other.manager.accept(s, 1));
  EXPECT_EQ(e.info(s).length, 5);
  EXPECT_EQ(other.info(s).accepted_length, 6);
  must(other.manager.accept(s, 1));
  EXPECT_EQ(other.info(s).length, 7);
  must(other.manager.check_invariants());
}

// The same length and accepted length, and other answers to come.
TEST(Drafts, TheStateSaysWhichOfThemAreGuesses) {
  const auto hash = [](std::int32_t second) {
    Engine e({full_group(4, 16)}, kThreeInFlight);
    const SequenceId s = e.say(tokens(1, 4));
    must(e.manager.complete(launch(e, s, {5, 6}, 1)));
    must(e.manager.complete(launch(e, s, {7, 8}, second)));
    return must(e.manager.state_hash());
  };
  EXPECT_NE(hash(1), hash(2));
}

// Tokens that are rejected use nothing up, as far as the promise was spent on them.
TEST(Drafts, WhatAcceptCutsOffIsPromisedAgain) {
  Engine e({full_group(2, 8)}, kThreeInFlight);
  const SequenceId s = e.say(tokens(1, 2));
  must(e.manager.reserve(s, 6));
  launch(e, s, {3, 4, 5}, 2);
  const Ticket second = launch(e, s, {6, 7, 8, 9}, 3);  // one more than was left
  EXPECT_EQ(e.info(s).reserved_tokens, 0);
  must(e.manager.accept(s, 1));
  EXPECT_EQ(e.info(s).length, 4);
  EXPECT_EQ(e.info(s).reserved_tokens, 4);
  must(e.manager.complete(second));
  while (e.usage().free + e.usage().evictable > 0) e.say_count(2, {.prefix_cache = false});
  must(e.manager.truncate(s, 3));  // what was promised stays as it is
  EXPECT_EQ(e.info(s).reserved_tokens, 4);
  launch(e, s, {5, 6}, 0);
  const Ticket last = launch(e, s, {7, 8}, 1);
  EXPECT_EQ(e.info(s).reserved_tokens, 0);
  must(e.manager.check_invariants());
  must(e.manager.accept(s, 1));  // nothing comes back: the promise ends
  must(e.manager.complete(last));
  EXPECT_EQ(e.usage().reserved, 0);
  must(e.manager.check_invariants());
}

// What was appended before reserve() is not of its promise.
TEST(Drafts, WhatWasThereBeforeAPromiseDoesNotComeBackToIt) {
  Engine e({full_group(2, 16)}, kThreeInFlight);
  const SequenceId s = e.say(tokens(1, 2));
  launch(e, s, {3, 4, 5}, 2);
  must(e.manager.reserve(s, 6));
  launch(e, s, {6}, 0);
  must(e.manager.accept(s, 0));
  EXPECT_EQ(e.info(s).length, 3);
  EXPECT_EQ(e.info(s).reserved_tokens, 6);
  must(e.manager.check_invariants());
}

TEST(Drafts, APromiseBoundsWhatLiesBehindTheAcceptedTokens) {
  Engine e({window_group(2, 8, 4)}, kThreeInFlight);
  const SequenceId s = e.say(tokens(1, 6));
  must(e.manager.reserve(s, 40, {.most_per_step = 4}));
  // Others take the rest.
  while (e.usage().free + e.usage().evictable > 0) e.say_count(2, {.prefix_cache = false});
  for (std::int32_t i = 0; i < 8; ++i) {
    launch(e, s, {7, 8}, 1);
    const Ticket second = launch(e, s, {9, 10}, 1);
    must(e.manager.accept(s, 1));
    must(e.manager.accept(s, i % 2));
    must(e.manager.complete(second));
    must(e.manager.check_invariants());
  }
}

}  // namespace
}  // namespace kvfolio::testing_engine
