// SPDX-License-Identifier: Apache-2.0
#include "manager/step_log.h"

#include <gtest/gtest.h>

namespace kvfolio {
namespace {

StepLog make_log(std::int32_t most_in_flight) {
  StepLog log;
  EXPECT_TRUE(log.allocate(most_in_flight, 2, 4, 64));
  return log;
}

TEST(StepLog, TicketsCountStepsAndOneIsOpenAtATime) {
  StepLog log = make_log(2);
  EXPECT_FALSE(log.is_open());
  EXPECT_EQ(log.oldest_incomplete(), 1u);
  EXPECT_EQ(log.begin().ticket, 1u);
  EXPECT_TRUE(log.is_open());
  log.drop();
  EXPECT_FALSE(log.is_open());
  EXPECT_EQ(log.begin().ticket, 2u);
  EXPECT_EQ(log.last_committed(), 0u);
  log.commit();
  EXPECT_EQ(log.last_committed(), 2u);
  EXPECT_EQ(log.oldest_incomplete(), 2u);
  EXPECT_TRUE(log.check().ok());
}

TEST(StepLog, AStepIsCompleteUnlessItIsInFlight) {
  StepLog log = make_log(3);
  for (int i = 0; i < 3; ++i) {
    log.begin();
    log.commit();
  }
  log.end(1, 2);  // the second, out of order
  EXPECT_FALSE(log.is_complete(1));
  EXPECT_TRUE(log.is_complete(2));
  EXPECT_FALSE(log.is_complete(3));
  EXPECT_EQ(log.num_ended(), 1);
  EXPECT_EQ(log.ended(0).ticket, 2u);
  EXPECT_EQ(log.oldest_incomplete(), 1u);
  log.end(0, 2);
  EXPECT_EQ(log.num_in_flight(), 0);
  EXPECT_EQ(log.oldest_incomplete(), 4u);
  EXPECT_TRUE(log.check().ok());
}

TEST(StepLog, EndedStepsCanBeReadUntilTheNextOneBegins) {
  StepLog log = make_log(1);
  Step& step = log.begin();
  step.entries[0].row = 3;
  step.num_entries = 1;
  log.commit();
  log.end(0, 1);
  ASSERT_EQ(log.num_ended(), 1);
  EXPECT_EQ(log.ended(0).entries[0].row, 3);
  EXPECT_EQ(log.begin().num_entries, 0);
  EXPECT_EQ(log.num_ended(), 0);
}

TEST(StepLog, AnEntryIsFoundByItsRowWhereTokensWaitForNames) {
  StepLog log = make_log(1);
  Step& step = log.begin();
  step.num_entries = 2;
  step.entries[0].row = 3;
  step.entries[1].row = 0;
  step.has_unnamed = true;
  step.entry_of[3] = 0;
  step.entry_of[0] = 1;
  step.entry_of[1] = 1;  // of an earlier step
  EXPECT_EQ(step.latest_entry(3), 0);
  EXPECT_EQ(step.latest_entry(0), 1);
  EXPECT_EQ(step.latest_entry(1), -1);
}

TEST(StepLog, ListsFollowTheFinalPlanOfTheLastCommittedStepThatHadSome) {
  StepLog log = make_log(3);
  const auto plan = [&](bool changes) {
    log.note_plan(changes);
    log.open().planned_changes = changes;
    return log.open().plan.follows;
  };
  log.begin();
  EXPECT_EQ(plan(true), 0u);
  EXPECT_EQ(plan(true), 0u);  // the second plan of the step is the one that counts
  EXPECT_EQ(log.open().plan.number, 2u);
  log.commit();
  log.begin();
  EXPECT_EQ(plan(true), 2u);
  log.drop();
  log.begin();
  EXPECT_EQ(plan(false), StepPlan::kNoChanges);
  log.commit();
  log.begin();
  EXPECT_EQ(plan(true), 2u);
  EXPECT_EQ(log.open().plan.number, 5u);
  log.open().planned_changes = false;  // an undo() since
  log.commit();
  log.end(0, 3);
  log.begin();
  EXPECT_EQ(plan(true), 2u);
}

TEST(StepLog, ACopyHasTheSameStepsAndNoPlans) {
  StepLog log = make_log(2);
  log.begin();
  log.commit();
  Step& open = log.begin();
  open.num_entries = 1;
  open.entries[0].row = 2;
  open.clear_changes(0);
  open.change(0, 1).source = 7;
  open.plan.num_tokens = 5;
  StepLog copy = make_log(2);
  copy.copy_from(log);
  EXPECT_EQ(copy.num_in_flight(), 1);
  ASSERT_TRUE(copy.is_open());
  EXPECT_EQ(copy.open().ticket, 2u);
  EXPECT_EQ(copy.open().change(0, 1).source, 7);
  EXPECT_EQ(copy.open().change(0, 0).source, -1);
  EXPECT_EQ(copy.open().plan.num_tokens, 0);
  EXPECT_EQ(copy.open().plan.number, 0u);
  copy.note_plan(true);
  EXPECT_EQ(copy.open().plan.follows, 0u);  // no engine has seen a plan of the copy
  EXPECT_TRUE(copy.check().ok());
  copy.drop();
  EXPECT_TRUE(log.is_open());
}

TEST(StepLog, CheckSeesAStepWithGapsInFlight) {
  StepLog log = make_log(2);
  Step& step = log.begin();
  log.commit();
  EXPECT_TRUE(log.check().ok());
  step.num_removed = 1;
  EXPECT_FALSE(log.check().ok());
}

}  // namespace
}  // namespace kvfolio
