// SPDX-License-Identifier: Apache-2.0
// Steps and tickets (docs/design.md, "Steps"), seen through the manager's API.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine.h"

namespace kvfolio::testing_engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Step, TicketsCountFromOneAndOneStepIsOpen) {
  Engine e({full_group(4, 8)});
  const Ticket first = must(e.manager.begin_step());
  EXPECT_EQ(first.value(), 1u);
  EXPECT_EQ(e.manager.begin_step().error().code(), kMoment);
  must(e.manager.commit(first));
  EXPECT_EQ(must(e.manager.begin_step()).value(), 2u);
}

TEST(Step, AtMostMaxStepsAreInFlight) {
  Engine e({full_group(4, 8)}, {.max_steps_in_flight = 2});
  const SequenceId s = e.open({}).sequence;
  const Ticket first = e.launch(s, {1});
  e.launch(s, {2});
  EXPECT_EQ(e.manager.begin_step().error().code(), kMoment);
  must(e.manager.complete(first));
  EXPECT_TRUE(e.manager.begin_step().has_value());
}

TEST(Step, CompletingAnOpenUnknownOrCompletedTicketIsAnError) {
  Engine e({full_group(4, 8)});
  const Ticket t = must(e.manager.begin_step());
  EXPECT_FALSE(e.manager.complete(t).ok());
  EXPECT_FALSE(e.manager.complete(Ticket(t.value() + 1)).ok());
  EXPECT_FALSE(e.manager.complete(Ticket()).ok());
  must(e.manager.commit(t));
  EXPECT_FALSE(e.manager.commit(t).ok());
  EXPECT_FALSE(e.manager.drop(t).ok());
  must(e.manager.complete(t));
  EXPECT_FALSE(e.manager.complete(t).ok());
  EXPECT_FALSE(e.manager.fail(t).has_value());
}

TEST(Step, CompleteInOrderCompletesAllEarlier) {
  Engine e({full_group(4, 8)}, {.max_steps_in_flight = 3});
  const SequenceId s = e.open({}).sequence;
  const Ticket first = e.launch(s, {1});
  const Ticket second = e.launch(s, {2});
  must(e.manager.complete(second));
  EXPECT_FALSE(e.manager.complete(first).ok());
}

// Fault P5: blocks counted as cached before their data existed.
TEST(Step, InOrderTokensAreFindableAtCommitForLaterSteps) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.open({}).sequence;
  const Ticket t = must(e.manager.begin_step());
  must(e.manager.append(s, tokens(1, 8)));
  EXPECT_EQ(e.probe(tokens(1, 9)), 0);
  must(e.manager.commit(t));
  EXPECT_EQ(e.probe(tokens(1, 9)), 8);
}

// Fault P5, without an order of steps.
TEST(Step, UnorderedTokensAreFindableAtComplete) {
  Engine e({full_group(4, 8)}, {.order = Order::kUnordered});
  const SequenceId s = e.open({}).sequence;
  const Ticket t = e.launch(s, tokens(1, 8));
  EXPECT_EQ(e.probe(tokens(1, 9)), 0);
  must(e.manager.complete(t));
  EXPECT_EQ(e.probe(tokens(1, 9)), 8);
}

TEST(Step, UnorderedTailOfAClosedSequenceWaitsForItsStep) {
  Engine e({full_group(4, 8)}, {.order = Order::kUnordered});
  const SequenceId s = e.open({}).sequence;
  const Ticket t = e.launch(s, tokens(1, 7));
  must(e.manager.close(s));
  EXPECT_EQ(e.probe(tokens(1, 9)), 0);
  must(e.manager.complete(t));
  EXPECT_EQ(e.probe(tokens(1, 9)), 7);
}

TEST(Step, UnorderedStepsCompleteInAnyOrder) {
  Engine e({full_group(4, 8)}, {.order = Order::kUnordered});
  const SequenceId a = e.open({}).sequence;
  const SequenceId b = e.open({}).sequence;
  const Ticket first = e.launch(a, tokens(1, 4));
  const Ticket second = e.launch(b, tokens(50, 4));
  must(e.manager.complete(second));
  EXPECT_EQ(e.probe(tokens(50, 5)), 4);
  EXPECT_EQ(e.probe(tokens(1, 5)), 0);
  must(e.manager.complete(first));
  EXPECT_EQ(e.probe(tokens(1, 5)), 4);
}

TEST(Step, UnorderedSequenceOfAnIncompleteStepCannotEnterTheNext) {
  Engine e({full_group(4, 8)}, {.order = Order::kUnordered});
  const SequenceId parent = e.open({}).sequence;
  const Ticket t = e.launch(parent, tokens(1, 6));
  const SequenceId child = must(e.manager.fork(parent));
  const Ticket next = must(e.manager.begin_step());
  for (const SequenceId s : {parent, child}) {
    const Status early = e.manager.append(s, Tokens{9});
    EXPECT_EQ(early.code(), kMoment);
    EXPECT_THAT(early.message(), HasSubstr(std::to_string(t.value())));
  }
  must(e.manager.complete(t));
  EXPECT_TRUE(e.manager.append(parent, Tokens{9}).ok());
  EXPECT_TRUE(e.manager.append(child, Tokens{8}).ok());
  must(e.manager.finish(next));
}

TEST(Step, InOrderSequenceMayBeInSeveralStepsInFlight) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.open({}).sequence;
  e.launch(s, tokens(1, 3));
  const Ticket second = e.launch(s, tokens(4, 3));
  EXPECT_EQ(e.info(s).length, 6);
  must(e.manager.complete(second));
}

TEST(Step, SequenceAppendsOncePerStep) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.open({}).sequence;
  const Ticket t = must(e.manager.begin_step());
  must(e.manager.append(s, Tokens{1}));
  EXPECT_EQ(e.manager.append(s, Tokens{2}).code(), kMoment);
  EXPECT_EQ(e.info(s).length, 1);
  must(e.manager.finish(t));
}

TEST(Step, AppendWithoutAStepIsAnError) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.open({}).sequence;
  EXPECT_EQ(e.manager.append(s, Tokens{1}).code(), kMoment);
  EXPECT_EQ(e.manager.undo(s).code(), kMoment);
  EXPECT_EQ(e.manager.plan().error().code(), kMoment);
}

TEST(Step, UndoTakesASequenceOutAsIfItHadNotBeenAppendedTo) {
  Engine e({full_group(4, 8)});
  const SequenceId a = e.say(tokens(1, 6));
  const SequenceId b = must(e.manager.fork(a));
  const Tokens before = e.table(b);
  const GroupUsage usage = e.usage();
  const Ticket t = must(e.manager.begin_step());
  must(e.manager.append(b, tokens(50, 5)));
  must(e.manager.append(a, Tokens{70}));
  must(e.manager.undo(b));
  EXPECT_EQ(e.table(b), before);
  EXPECT_EQ(e.info(b).length, 6);
  EXPECT_FALSE(e.info(b).in_open_step);
  EXPECT_EQ(e.usage().free, usage.free);
  const StepPlan& plan = *must(e.manager.plan());
  EXPECT_THAT(plan.sequences, ElementsAre(a));
  EXPECT_THAT(plan.groups[0].copy_src, IsEmpty());
  EXPECT_EQ(e.manager.undo(b).code(), kMoment);
  // And it can enter again.
  must(e.manager.append(b, Tokens{80}));
  must(e.manager.plan());
  must(e.manager.finish(t));
}

TEST(Step, DropUndoesTablesLengthsAndReferences) {
  Engine e({full_group(4, 8), window_group(2, 16, 6)});
  const SequenceId a = e.say(tokens(1, 10));
  const SequenceId b = must(e.manager.fork(a));
  const Tokens tables[] = {e.table(a, 0), e.table(a, 1)};
  const Ticket t = must(e.manager.begin_step());
  must(e.manager.append(a, tokens(50, 5)));
  must(e.manager.append(b, tokens(60, 5)));
  must(e.manager.drop(t));
  for (const SequenceId s : {a, b}) {
    EXPECT_EQ(e.info(s).length, 10);
    EXPECT_EQ(e.table(s, 0), tables[0]);
    EXPECT_EQ(e.table(s, 1), tables[1]);
  }
  EXPECT_EQ(e.usage(0).held, 3);
  EXPECT_EQ(e.counters().block_copies, 0u);
  // The next step gets the next ticket.
  EXPECT_EQ(must(e.manager.begin_step()).value(), t.value() + 1);
}

TEST(Step, DropLeavesEvictedBlocksFree) {
  Engine e({full_group(4, 2)});
  e.cache(tokens(50, 8));
  const SequenceId s = e.open({}).sequence;
  const Ticket t = must(e.manager.begin_step());
  must(e.manager.append(s, tokens(1, 8)));
  must(e.manager.drop(t));
  EXPECT_EQ(e.usage().free, 2);
  EXPECT_EQ(e.counters().blocks_evicted, 2u);
}

TEST(Step, WhatIsInTheOpenStepCannotBeForkedTruncatedTrimmedOrClosed) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.say(tokens(1, 6));
  const Ticket t = must(e.manager.begin_step());
  must(e.manager.append(s, Tokens{7}));
  const auto names_the_step = [&](const Status& status) {
    EXPECT_EQ(status.code(), kMoment);
    EXPECT_THAT(status.message(), HasSubstr("step"));
  };
  names_the_step(e.manager.fork(s).error());
  names_the_step(e.manager.truncate(s, 6));
  names_the_step(e.manager.trim(s, {.num_sinks = 1, .window = 1}).error());
  names_the_step(e.manager.close(s));
  must(e.manager.preempt(s));  // takes it out first
  EXPECT_EQ(must(e.manager.plan())->num_tokens, 0);
  must(e.manager.finish(t));
  EXPECT_EQ(e.probe(tokens(1, 8)), 6);
}

TEST(Step, PreemptMakesRoomInTheSameStep) {
  Engine e({full_group(4, 4)});
  const SequenceId a = e.say(tokens(1, 8));
  const SequenceId b = e.say(tokens(50, 8));
  const Ticket t = must(e.manager.begin_step());
  ASSERT_EQ(e.manager.append(a, Tokens{9}).code(), ErrorCode::kNoBlocks);
  must(e.manager.preempt(b));
  EXPECT_TRUE(e.manager.append(a, Tokens{9}).ok());
  must(e.manager.finish(t));
}

TEST(Step, PreemptOfAMemberMakesRoomInTheSameStep) {
  Engine e({full_group(4, 4)});
  const SequenceId a = e.say(tokens(1, 8));
  const SequenceId b = e.say(tokens(50, 4));
  const Ticket t = must(e.manager.begin_step());
  must(e.manager.append(b, Tokens{60}));
  ASSERT_EQ(e.manager.append(a, Tokens{9}).code(), ErrorCode::kNoBlocks);
  must(e.manager.preempt(b));
  EXPECT_TRUE(e.manager.append(a, Tokens{9}).ok());
  EXPECT_THAT(must(e.manager.plan())->sequences, ElementsAre(a));
  must(e.manager.finish(t));
}

TEST(Step, CloseInFlightIsAllowed) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.open({}).sequence;
  const Ticket t = e.launch(s, tokens(1, 6));
  must(e.manager.close(s));
  EXPECT_EQ(e.usage().retiring, 2);
  must(e.manager.complete(t));
  EXPECT_EQ(e.usage().cached, 2);
}

TEST(Step, FailClosesWhoWroteAndForgetsWhatTheyWrote) {
  Engine e({full_group(4, 16)}, {.max_steps_in_flight = 3});
  const SequenceId safe = e.say(tokens(1, 4));
  const SequenceId writer = e.open({}).sequence;
  const Ticket good = e.launch(writer, tokens(50, 4));
  const Ticket bad = e.launch(writer, tokens(54, 4));
  const Opened reader = e.open(tokens(50, 9));  // hits what the failed step wrote
  EXPECT_EQ(reader.cached_tokens, 8);
  must(e.manager.fail(bad));
  EXPECT_EQ(e.manager.info(writer).error().code(), ErrorCode::kAborted);
  EXPECT_EQ(e.manager.close(reader.sequence).code(), ErrorCode::kAborted);
  EXPECT_EQ(e.info(safe).length, 4);
  EXPECT_EQ(e.probe(tokens(50, 9)), 4);
  EXPECT_EQ(e.counters().sequences_aborted, 2u);
  must(e.manager.complete(good));
  EXPECT_FALSE(e.manager.complete(bad).ok());
  must(e.manager.check_invariants());
  EXPECT_EQ(e.usage().held, 1);
}

TEST(Step, FailEndsTheOpenStepToo) {
  Engine e({full_group(4, 16)});
  const SequenceId a = e.say(tokens(1, 4));
  const SequenceId b = e.open({}).sequence;
  const Ticket bad = e.launch(b, tokens(50, 4));
  must(e.manager.begin_step());
  must(e.manager.append(a, Tokens{5}));
  must(e.manager.fail(bad));
  EXPECT_EQ(e.manager.plan().error().code(), kMoment);
  EXPECT_TRUE(e.manager.begin_step().has_value());
}

TEST(Step, AcceptKeepsTheFirstDraftTokens) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.say(tokens(1, 6));
  e.feed(s, {7, 90, 91, 92}, 3);
  EXPECT_EQ(e.info(s).length, 10);
  EXPECT_EQ(e.info(s).accepted_length, 7);
  must(e.manager.accept(s, 1));
  EXPECT_EQ(e.info(s).length, 8);
  EXPECT_EQ(e.info(s).accepted_length, 8);
  EXPECT_EQ(e.table(s).size(), 2u);
}

TEST(Step, ARolledBackSequenceEqualsOneThatNeverDrafted) {
  Engine drafted({full_group(4, 8), window_group(2, 16, 6)});
  Engine plain({full_group(4, 8), window_group(2, 16, 6)});
  const SequenceId a = drafted.say(tokens(1, 7));
  const SequenceId b = plain.say(tokens(1, 7));
  drafted.feed(a, tokens(90, 6), 6);
  must(drafted.manager.accept(a, 0));
  for (const std::int32_t g : {0, 1}) {
    EXPECT_EQ(drafted.table(a, g), plain.table(b, g));
    EXPECT_EQ(drafted.usage(g).free, plain.usage(g).free);
  }
  drafted.feed(a, tokens(8, 3));
  plain.feed(b, tokens(8, 3));
  for (const std::int32_t g : {0, 1}) EXPECT_EQ(drafted.live(a, g), plain.live(b, g));
  EXPECT_EQ(drafted.probe(tokens(1, 11)), plain.probe(tokens(1, 11)));
}

TEST(Step, WindowsMoveWithAcceptedTokens) {
  Engine e({window_group(2, 16, 4)});
  const SequenceId s = e.say(tokens(1, 8));
  EXPECT_THAT(e.live(s), ElementsAre(2, 3));  // position 8 reads 5, 6, 7
  e.feed(s, tokens(90, 6), 6);
  EXPECT_THAT(e.live(s), ElementsAre(2, 3, 4, 5, 6));
  must(e.manager.truncate(s, 8));
  EXPECT_THAT(e.live(s), ElementsAre(2, 3));
}

TEST(Step, TruncateBelowAcceptedWorksWhereEveryGroupHoldsWhatIsRead) {
  Engine e({full_group(4, 8), window_group(2, 16, 6)});
  const SequenceId s = e.say(tokens(1, 12));
  // Group 1 holds positions 6 .. 11; position 11 reads 6 .. 10, position 10 reads 5 too, which the
  // cache has given up.
  e.evict(8, 1);
  const Status bad = e.manager.truncate(s, 10);
  EXPECT_EQ(bad.code(), kMoment);
  EXPECT_THAT(bad.message(), HasSubstr("group 1"));
  EXPECT_EQ(e.info(s).length, 12);
  must(e.manager.truncate(s, 11));
  EXPECT_EQ(e.info(s).length, 11);
}

TEST(Step, TruncateOfAFullGroupGoesAnywhere) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.say(tokens(1, 12));
  for (const std::int32_t n : {12, 9, 4, 1, 0}) {
    must(e.manager.truncate(s, n));
    EXPECT_EQ(e.info(s).length, n);
    EXPECT_EQ(e.table(s).size(), static_cast<std::size_t>((n + 3) / 4));
  }
}

TEST(Step, ForkWithPendingDraftsIsRefused) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.say(tokens(1, 4));
  e.feed(s, tokens(5, 2), 2);
  EXPECT_EQ(e.manager.fork(s).error().code(), kMoment);
  must(e.manager.accept(s, 1));
  EXPECT_TRUE(e.manager.fork(s).has_value());
}

TEST(Step, AdmitPredictsAppendOfSeveralSequencesTogether) {
  Engine e({full_group(4, 6)}, {.prefix_cache = false});
  const SequenceId a = e.say(tokens(1, 4));
  const SequenceId b = e.say(tokens(50, 4));
  const AppendDemand fits[] = {{a, 8}, {b, 8}};
  const AppendDemand too_much[] = {{a, 8}, {b, 9}};
  EXPECT_TRUE(e.manager.admit(fits).ok());
  const Status full = e.manager.admit(too_much);
  ASSERT_EQ(full.code(), ErrorCode::kNoBlocks);
  EXPECT_EQ(full.shortage()->needed, 5);
  EXPECT_EQ(full.shortage()->free, 4);
  const Ticket t = must(e.manager.begin_step());
  must(e.manager.append(a, tokens(5, 8)));
  EXPECT_EQ(e.manager.append(b, tokens(54, 9)).code(), ErrorCode::kNoBlocks);
  must(e.manager.append(b, tokens(54, 8)));
  must(e.manager.finish(t));
}

TEST(Step, AppendOfNothingReservesNothing) {
  Engine e({full_group(4, 6)});
  const SequenceId a = e.say(tokens(1, 4));
  const Ticket t = must(e.manager.begin_step());
  static_cast<void>(e.manager.append(a, Tokens{}).ok());
  EXPECT_EQ(e.info(a).length, 4);
  EXPECT_EQ(e.usage().held, 1);
  must(e.manager.finish(t));
}

TEST(Step, BlocksOfAStepInFlightAreNotHandedOut) {
  Engine e({full_group(4, 4)}, {.prefix_cache = false});
  const SequenceId a = e.open({}).sequence;
  const Ticket first = e.launch(a, tokens(1, 8));
  const Tokens used = e.table(a);
  must(e.manager.truncate(a, 0));
  const Ticket second = e.launch(a, tokens(50, 8));
  for (const std::int32_t block : e.table(a)) {
    EXPECT_THAT(used, testing::Not(testing::Contains(block)));
  }
  must(e.manager.complete(first));
  must(e.manager.complete(second));
  EXPECT_EQ(e.usage().free, 2);
}

TEST(Step, NamesGoToTheOldestUnnamedTokensInOrder) {
  Engine e({full_group(2, 16)});
  const SequenceId s = e.open({}).sequence;
  const Ticket t = e.launch_count(s, 4);
  must(e.manager.set_tokens(s, Tokens{1, 2}));
  EXPECT_EQ(e.probe(tokens(1, 5)), 2);
  must(e.manager.set_tokens(s, Tokens{3, 4}));
  EXPECT_EQ(e.probe(tokens(1, 5)), 4);
  must(e.manager.complete(t));
}

TEST(Step, TokensThatWereCutOffInFlightWantNoNames) {
  Engine e({full_group(4, 8)}, {.max_steps_in_flight = 4});
  const SequenceId s = e.open({}).sequence;
  Ticket last;
  for (int i = 0; i < 2; ++i) last = e.launch_count(s, 1);
  must(e.manager.clear(s));
  // What comes now waits for names of its own, whatever completes before.
  e.launch_count(s, 1);
  must(e.manager.complete(last));
  EXPECT_EQ(e.manager.set_tokens(s, Tokens{1, 2}).code(), ErrorCode::kInvalidArgument);
  must(e.manager.set_tokens(s, Tokens{1}));
  EXPECT_EQ(e.manager.set_tokens(s, Tokens{1}).code(), ErrorCode::kInvalidArgument);
}

TEST(Step, NamedTokensThatWereCutOffInFlightCountForNothing) {
  Engine e({full_group(4, 16)});
  const SequenceId s = e.open({}).sequence;
  e.launch_count(s, 4);
  must(e.manager.set_tokens(s, tokens(1, 4)));
  must(e.manager.clear(s));
  const Ticket second = e.launch_count(s, 4);
  must(e.manager.truncate(s, 3));
  EXPECT_EQ(e.manager.set_tokens(s, tokens(1, 4)).code(), ErrorCode::kInvalidArgument);
  must(e.manager.set_tokens(s, tokens(1, 3)));
  must(e.manager.complete(second));
  EXPECT_EQ(e.manager.set_tokens(s, Tokens{9}).code(), ErrorCode::kInvalidArgument);
}

// The token at 3 is of a step that completed before it had a name.
TEST(Step, ATokenThatNobodyNamedIsNeverFoundUnderALaterName) {
  Engine e({full_group(4, 16)});
  const SequenceId s = e.open({}).sequence;
  const Ticket first = e.launch_count(s, 4);
  must(e.manager.set_tokens(s, tokens(1, 4)));
  must(e.manager.clear(s));
  e.launch_count(s, 4);
  must(e.manager.truncate(s, 3));
  must(e.manager.complete(first));
  const Ticket third = e.launch_count(s, 1);
  must(e.manager.set_tokens(s, tokens(1, 3)));
  must(e.manager.complete(third));
  e.launch_count(s, 1);
  must(e.manager.set_tokens(s, Tokens{55}));
  EXPECT_EQ(e.probe({1, 2, 3, 55, 9}), 3);  // of the first block
}

// A fork holds nothing that the failed step wrote, and stays; its tokens of that step want no
// names.
TEST(Step, ANamelessTokenOfAFailedStepDoesNotTakeTheNameOfALaterOne) {
  Engine e({window_group(4, 16, 1)});
  const SequenceId s = e.say(tokens(1, 3));
  const Ticket failing =
      e.launch_count(s, 1);  // at the border: a window of one token lets the block go
  const SequenceId child = must(e.manager.fork(s));
  must(e.manager.fail(failing));
  EXPECT_EQ(e.manager.check_invariants().message(), "ok");
  EXPECT_EQ(e.manager.set_tokens(child, Tokens{9}).code(), ErrorCode::kInvalidArgument);
  e.launch_count(child, 1);
  const Ticket last = e.launch_count(child, 1);
  must(e.manager.set_tokens(child, Tokens{50, 60}));  // positions 4 and 5
  must(e.manager.complete(last));
  must(e.manager.close(child));
  EXPECT_EQ(e.probe({1, 2, 3, 50, 60, 9}), 0);
}

TEST(Step, AForkThatWasTrimmedWantsNoNamesOfAFailedStep) {
  Engine e({full_group(4, 16)});
  const SequenceId s = e.open({}).sequence;
  const Ticket failing = e.launch_count(s, 4);
  const SequenceId child = must(e.manager.fork(s));
  EXPECT_EQ(must(e.manager.trim(child, {})), 4);
  must(e.manager.fail(failing));
  EXPECT_EQ(e.info(child).length, 4);
  EXPECT_EQ(e.manager.set_tokens(child, Tokens{1}).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(e.manager.check_invariants().message(), "ok");
}

TEST(Step, AChildOfAStepInFlightTakesNamesHoweverManyCameBefore) {
  Engine e({full_group(4, 16)}, {.max_sequences = 2});
  const SequenceId s = e.open({}).sequence;
  const Ticket flying = e.launch_count(s, 4);
  for (int i = 0; i < 9; ++i) must(e.manager.close(must(e.manager.fork(s))));
  const SequenceId child = must(e.manager.fork(s));
  must(e.manager.set_tokens(child, tokens(1, 4)));
  must(e.manager.complete(flying));
  EXPECT_EQ(e.probe(tokens(1, 5)), 4);
  EXPECT_EQ(e.manager.check_invariants().message(), "ok");
}

TEST(Step, WhatIsLeftOfAStepInFlightWantsAsManyNamesAsItHasTokens) {
  Engine e({full_group(4, 16)});
  const SequenceId s = e.open({}).sequence;
  const Ticket flying = e.launch_count(s, 6);
  must(e.manager.truncate(s, 4));
  const Status surplus = e.manager.set_tokens(s, tokens(1, 5));
  EXPECT_EQ(surplus.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(surplus.message(), HasSubstr("names 5 tokens, 4 are unnamed"));
  must(e.manager.set_tokens(s, tokens(1, 4)));
  EXPECT_EQ(e.probe(tokens(1, 5)), 4);
  must(e.manager.complete(flying));
  must(e.manager.check_invariants());
}

TEST(Step, FailLetsGoOfPinsOnWhatItForgets) {
  Engine e({full_group(4, 16)});
  e.cache(tokens(50, 8));
  const PinId other = must(e.manager.pin(tokens(50, 8))).pin;
  const SequenceId s = e.open({}).sequence;
  const Ticket bad = e.launch(s, tokens(1, 8));
  const Pinned pinned = must(e.manager.pin(tokens(1, 8)));
  EXPECT_EQ(pinned.pinned_tokens, 8);
  must(e.manager.fail(bad));
  EXPECT_EQ(e.manager.unpin(pinned.pin).code(), ErrorCode::kNotFound);
  must(e.manager.unpin(other));
  EXPECT_EQ(e.usage().held, 0);
  must(e.manager.check_invariants());
}

TEST(Step, FailClosesAWriterThatHoldsNothingOfItAnyMore) {
  Engine e({full_group(4, 16)});
  const SequenceId s = e.say(tokens(1, 4));
  const Ticket bad = e.launch(s, tokens(5, 4));
  must(e.manager.truncate(s, 4));
  must(e.manager.fail(bad));
  EXPECT_EQ(e.manager.info(s).error().code(), ErrorCode::kAborted);
  must(e.manager.check_invariants());
}

// Its only token is in the cache already: the row reads, and what it samples is lost.
TEST(Step, FailLeavesASequenceOpenThatWroteNothing) {
  Engine e({full_group(4, 16)});
  e.cache(tokens(1, 10));
  const SequenceId s = e.open(tokens(1, 10)).sequence;
  const SequenceId other = e.open(tokens(1, 10)).sequence;
  must(e.manager.begin_step());
  must(e.manager.append(s, Tokens{10}));
  must(e.manager.append(other, Tokens{11}));  // another token: it writes
  const StepPlan& plan = *must(e.manager.plan());
  EXPECT_EQ(plan.groups[0].slot_mapping[0], -1);
  const Ticket bad = plan.ticket;
  must(e.manager.commit(bad));
  EXPECT_THAT(ids_of(must(e.manager.fail(bad))), ElementsAre(other));
  EXPECT_EQ(e.info(s).length, 10);
  EXPECT_EQ(e.info(s).rewinds, 0);
  must(e.manager.close(s));
  const Opened again = e.open(tokens(1, 10));
  EXPECT_EQ(again.cached_tokens, 9);
  EXPECT_THAT(e.feed(again.sequence, {10}).slots, ElementsAre(-1));
  must(e.manager.check_invariants());
}

TEST(Step, OfTheSequencesOfASlotThatFailClosedTheLastIsAborted) {
  Engine e({full_group(4, 16)}, {.max_sequences = 1});
  const auto failed = [&] {
    const SequenceId s = e.open({}).sequence;
    must(e.manager.fail(e.launch(s, tokens(1, 4))));
    return s;
  };
  const SequenceId first = failed();
  EXPECT_EQ(e.manager.info(first).error().code(), ErrorCode::kAborted);
  const SequenceId second = failed();
  EXPECT_EQ(e.manager.info(second).error().code(), ErrorCode::kAborted);
  EXPECT_EQ(e.manager.info(first).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(e.counters().sequences_aborted, 2u);
}

TEST(Step, UnorderedAChildAppendsOnceTheStepOfItsParentIsComplete) {
  for (const Order order : {Order::kInOrder, Order::kUnordered}) {
    Engine e({full_group(4, 16)}, {.order = order});
    const SequenceId parent = e.open({}).sequence;
    const Ticket flying = e.launch(parent, tokens(1, 6));
    const SequenceId child = must(e.manager.fork(parent));
    const Ticket next = must(e.manager.begin_step());
    const Status status = e.manager.append(child, Tokens{7});
    EXPECT_EQ(status.ok(), order == Order::kInOrder) << status.message();
    must(e.manager.complete(flying));
    if (!status) {
      EXPECT_THAT(status.message(), HasSubstr("which is not complete; complete it first"));
      must(e.manager.append(child, Tokens{7}));
    }
    must(e.manager.plan());
    must(e.manager.finish(next));
    must(e.manager.check_invariants());
  }
}

// A closed sequence waits for its step under kUnordered. Its owner has let it go: that the step
// fails then is no news about its id.
TEST(Step, UnorderedASequenceThatItsOwnerClosedIsNotAborted) {
  Engine e({full_group(4, 16)}, {.order = Order::kUnordered});
  const SequenceId s = e.open(tokens(1, 8)).sequence;
  const Ticket bad = e.launch(s, tokens(1, 8));
  must(e.manager.close(s));
  EXPECT_EQ(e.manager.info(s).error().code(), ErrorCode::kNotFound);
  must(e.manager.fail(bad));
  EXPECT_EQ(e.manager.info(s).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(e.counters().sequences_aborted, 0u);
  EXPECT_EQ(e.probe(tokens(1, 9)), 0);
  EXPECT_EQ(e.usage().free, 16);
  must(e.manager.check_invariants());
}

TEST(Step, UnorderedBlocksOfAnIncompleteStepAreNotAdopted) {
  for (const Order order : {Order::kInOrder, Order::kUnordered}) {
    Engine e({full_group(4, 16)}, {.order = order});
    const SequenceId first = e.open({}).sequence;
    const Ticket t = e.launch(first, tokens(1, 8));
    const SequenceId second = e.open({}).sequence;
    const Tokens blocks = e.table(first);
    const std::span<const std::int32_t> tables[] = {blocks};
    const Status early = e.manager.adopt(second, tables, 8);
    if (order == Order::kUnordered) {
      EXPECT_EQ(early.code(), kMoment);
      EXPECT_THAT(early.message(), HasSubstr("step " + std::to_string(t.value())));
    } else {
      EXPECT_TRUE(early.ok());  // a reader comes later in the stream
    }
    must(e.manager.complete(t));
    if (order == Order::kUnordered) must(e.manager.adopt(second, tables, 8));
    EXPECT_EQ(e.info(second).length, 8);
  }
}

// docs/decisions/0009: blocks alone do not decide.
TEST(Step, WhoWasAdmittedIsAppendedThoughTableRoomIsShort) {
  Engine e({full_group(1, 2048)}, {.max_sequences = 8, .max_table_entries = 512});
  std::vector<SequenceId> all;
  all.reserve(8);
  for (int i = 0; i < 8; ++i) all.push_back(e.open({}).sequence);
  int refused = 0;
  for (std::int32_t round = 0; round < 200; ++round) {
    const SequenceId s = all[static_cast<std::size_t>(round * 5 % 8)];
    const std::int32_t count = 1 + round * 7 % 20;
    const Status admitted = e.manager.admit(s, count);
    if (!admitted.ok()) {
      EXPECT_EQ(admitted.code(), ErrorCode::kResourceExhausted);
      ++refused;
      if (round % 3 == 0) must(e.manager.truncate(s, e.info(s).length / 2));
      continue;
    }
    e.feed(s, tokens(1000 * round, count));  // throws when it does not fit
  }
  EXPECT_GT(refused, 0);
  EXPECT_LT(refused, 150);
}

// Sequences that stay keep the order of appends, whichever go and come back.
TEST(Step, UndoneSequencesLeaveThePlanInAppendOrder) {
  Engine e({full_group(4, 64)}, {.max_sequences = 8});
  std::vector<SequenceId> all;
  all.reserve(8);
  for (int i = 0; i < 8; ++i) all.push_back(e.open({}).sequence);
  const Ticket t = must(e.manager.begin_step());
  for (const SequenceId s : all) must(e.manager.append(s, tokens(1, 3)));
  for (const std::size_t gone : {0U, 2U, 5U}) must(e.manager.undo(all[gone]));
  must(e.manager.check_invariants());
  must(e.manager.append(all[2], tokens(1, 5)));
  const auto planned = [&] {
    const std::span<const SequenceId> sequences = must(e.manager.plan())->sequences;
    return std::vector<SequenceId>(sequences.begin(), sequences.end());
  };
  EXPECT_EQ(planned(), (std::vector{all[1], all[3], all[4], all[6], all[7], all[2]}));
  for (int i = 0; i < 100; ++i) {  // again and again, without a plan in between
    must(e.manager.undo(all[1]));
    must(e.manager.append(all[1], tokens(1, 2)));
  }
  EXPECT_EQ(planned(), (std::vector{all[3], all[4], all[6], all[7], all[2], all[1]}));
  must(e.manager.preempt(all[4]));
  must(e.manager.plan());
  must(e.manager.finish(t));
  must(e.manager.check_invariants());
  EXPECT_EQ(e.info(all[1]).length, 2);
  EXPECT_EQ(e.info(all[2]).length, 5);
  EXPECT_EQ(e.info(all[0]).length, 0);
}

}  // namespace
}  // namespace kvfolio::testing_engine
