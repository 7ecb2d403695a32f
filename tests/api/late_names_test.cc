// SPDX-License-Identifier: Apache-2.0
//
// OpenOptions::late_names: tokens that get their names after their step is complete.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine.h"
#include "kvfolio/manager.h"

namespace kvfolio::testing_engine {
namespace {

using ::testing::HasSubstr;

constexpr OpenOptions kLate{.late_names = true};

TEST(LateNames, ATokenIsNamedAfterItsStepIsComplete) {
  for (const Order order : {Order::kInOrder, Order::kUnordered}) {
    Engine e({full_group(4, 16)}, {.order = order});
    const SequenceId s = e.open({}, kLate).sequence;
    e.feed_count(s, 4);
    e.feed_count(s, 4);
    EXPECT_EQ(e.info(s).num_unnamed, 8);
    EXPECT_EQ(e.probe(tokens(1, 9)), 0);
    must(e.manager.set_tokens(s, tokens(1, 5)));
    EXPECT_EQ(e.info(s).num_unnamed, 3);
    EXPECT_EQ(e.probe(tokens(1, 9)), 4);
    must(e.manager.set_tokens(s, tokens(6, 3)));
    EXPECT_EQ(e.probe(tokens(1, 9)), 8);
  }
}

TEST(LateNames, TheOldestOnesComeFirstAndNamedTokensMayStandBetween) {
  Engine e({full_group(4, 16)});
  const SequenceId s = e.open({}, kLate).sequence;
  e.feed_count(s, 1);
  e.feed(s, {2, 3});
  e.feed_count(s, 1);
  must(e.manager.set_tokens(s, Tokens{1, 4}));
  EXPECT_EQ(e.probe(tokens(1, 5)), 4);
}

TEST(LateNames, AForksCopiesAreNamedForEachOnItsOwn) {
  Engine e({full_group(4, 16)});
  const SequenceId s = e.open({}, kLate).sequence;
  e.feed_count(s, 4);
  const SequenceId child = must(e.manager.fork(s));
  must(e.manager.set_tokens(s, tokens(1, 4)));
  EXPECT_EQ(e.info(s).num_unnamed, 0);
  EXPECT_EQ(e.info(child).num_unnamed, 4);
  must(e.manager.set_tokens(child, tokens(1, 4)));
  EXPECT_EQ(e.probe(tokens(1, 5)), 4);
}

TEST(LateNames, CloseAndPreemptEndThemAndTheTailThatWasNamedIsFindable) {
  for (const bool preempts : {false, true}) {
    Engine e({full_group(4, 16)});
    const SequenceId s = e.open({}, kLate).sequence;
    e.feed_count(s, 8);
    must(e.manager.set_tokens(s, tokens(1, 6)));
    must(preempts ? e.manager.preempt(s) : e.manager.close(s));
    EXPECT_EQ(e.manager.set_tokens(s, Tokens{7}).code(), ErrorCode::kNotFound);
    EXPECT_EQ(e.probe(tokens(1, 9)), 6);
  }
}

TEST(LateNames, FailForgetsThoseOfTheStepsThatItEnds) {
  Engine e({full_group(4, 16)});
  const SequenceId s = e.open({}, kLate).sequence;
  e.feed_count(s, 4);
  const Ticket failing = e.launch_count(s, 4);
  const SequenceId child = must(e.manager.fork(s));
  EXPECT_EQ(must(e.manager.trim(child, {})), 8);  // it holds nothing of the step
  ASSERT_TRUE(e.manager.fail(failing).has_value());
  EXPECT_EQ(e.manager.info(s).error().code(), ErrorCode::kAborted);
  EXPECT_EQ(e.info(child).num_unnamed, 4);  // of the step that was complete
  must(e.manager.check_invariants());
}

TEST(LateNames, ATruncateTakesThemAlong) {
  Engine e({full_group(4, 16)});
  const SequenceId s = e.open({}, kLate).sequence;
  e.feed_count(s, 6);
  must(e.manager.truncate(s, 4));
  EXPECT_EQ(e.info(s).num_unnamed, 4);
  EXPECT_EQ(e.manager.set_tokens(s, tokens(1, 5)).message(),
            "set_tokens names 5 tokens, 4 are unnamed");
  e.feed(s, {5, 6});
  must(e.manager.set_tokens(s, tokens(1, 4)));
  must(e.manager.close(s));
  EXPECT_EQ(e.probe(tokens(1, 7)), 6);
}

TEST(LateNames, MoreThanEightStretchesAreRefusedByName) {
  Engine e({full_group(4, 16)});
  const SequenceId s = e.open({}, kLate).sequence;
  for (int i = 0; i < 8; ++i) {
    e.feed_count(s, 1);
    e.feed(s, {9});
  }
  const Ticket step = must(e.manager.begin_step());
  const Status refused = e.manager.append_unnamed(s, 1);
  EXPECT_EQ(refused.code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("lie in 8 stretches"));
  must(e.manager.set_tokens(s, Tokens{1}));
  must(e.manager.append_unnamed(s, 1));
  must(e.manager.finish(step));
  must(e.manager.check_invariants());
}

TEST(LateNames, WithoutThemATokenLosesItsChanceWithItsStep) {
  Engine e({full_group(4, 16)});
  const SequenceId s = e.open({}).sequence;
  e.feed_count(s, 4);
  EXPECT_EQ(e.info(s).num_unnamed, 0);
  EXPECT_THAT(e.manager.set_tokens(s, Tokens{1}).message(),
              HasSubstr("0 are unnamed in steps that are not complete"));
}

}  // namespace
}  // namespace kvfolio::testing_engine
