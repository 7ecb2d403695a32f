// SPDX-License-Identifier: Apache-2.0
// The rows of plans: when one may change hands.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine.h"

namespace kvfolio::testing_engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr OpenOptions kUnpublished{.prefix_cache = false};

// A step in flight with one new sequence in it, which is closed.
struct Launched {
  Ticket ticket;
  std::int32_t row;
};
Launched launch_and_close(Engine& e, const OpenOptions& options = {}) {
  const SequenceId s = e.open({}, options).sequence;
  const Ticket ticket = must(e.manager.begin_step());
  must(e.manager.append(s, tokens(1, 5)));
  const std::int32_t row = must(e.manager.plan())->rows[0];
  must(e.manager.commit(ticket));
  must(e.manager.close(s));
  must(e.manager.check_invariants());
  return {ticket, row};
}

TEST(Rows, ARowIsNotGivenAwayInFlight) {
  for (const OpenOptions& options : {OpenOptions{}, kUnpublished}) {
    Engine e({full_group(4, 16)},
             {.max_sequences = 2, .max_steps_in_flight = 4, .order = Order::kUnordered});
    std::vector<std::int32_t> rows;
    std::vector<Ticket> tickets;
    for (int i = 0; i < 4; ++i) {
      const Launched launched = launch_and_close(e, options);
      rows.push_back(launched.row);
      tickets.push_back(launched.ticket);
    }
    EXPECT_THAT(rows, testing::UnorderedElementsAre(0, 1, 2, 3));
    // The third step is complete first: its row and no other one is free.
    must(e.manager.complete(tickets[2]));
    EXPECT_EQ(launch_and_close(e, options).row, rows[2]);
  }
}

TEST(Rows, AFullTableOfRowsIsRefusedWithTheOldestStep) {
  for (const OpenOptions& options : {OpenOptions{}, kUnpublished}) {
    Engine e({full_group(4, 16)},
             {.max_sequences = 1, .max_steps_in_flight = 4, .order = Order::kUnordered});
    const Launched first = launch_and_close(e, options);
    const Launched second = launch_and_close(e, options);
    const Ticket open = must(e.manager.begin_step());
    const std::string all =
        "all 2 rows are in use, 2 of them by closed sequences of steps that are not complete, the "
        "oldest ";
    const auto refused = e.manager.open(tokens(1, 3), options);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
    EXPECT_EQ(refused.error().message(), "open: " + all + "1");
    const auto unnamed = e.manager.open_unnamed(3, options);
    ASSERT_FALSE(unnamed.has_value());
    EXPECT_EQ(unnamed.error().code(), ErrorCode::kResourceExhausted);
    EXPECT_THAT(unnamed.error().message(), HasSubstr(all + "1"));
    must(e.manager.check_invariants());
    must(e.manager.complete(first.ticket));
    const SequenceId s = e.open({}, options).sequence;
    must(e.manager.append(s, tokens(1, 3)));
    EXPECT_EQ(must(e.manager.plan())->rows[0], first.row);
    must(e.manager.commit(open));
    must(e.manager.close(s));
    EXPECT_THAT(e.manager.open({}, options).error().message(), HasSubstr(all + "2"));
    must(e.manager.complete(second.ticket));
    e.open({}, options);
    // All open ones are another limit, and say so.
    EXPECT_THAT(e.manager.open({}, options).error().message(),
                HasSubstr("all 1 sequences are open"));
    must(e.manager.check_invariants());
  }
}

TEST(Rows, AForkIsRefusedWhenAllRowsAreInUse) {
  Engine e({full_group(4, 16)},
           {.max_sequences = 2, .max_steps_in_flight = 4, .order = Order::kUnordered});
  const SequenceId parent = e.say(tokens(1, 6));
  for (int i = 0; i < 3; ++i) launch_and_close(e, kUnpublished);
  const auto child = e.manager.fork(parent);
  ASSERT_FALSE(child.has_value());
  EXPECT_EQ(child.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_EQ(child.error().message(),
            "fork: all 4 rows are in use, 3 of them by closed sequences of steps that are not "
            "complete, the oldest 2");
}

TEST(Rows, InOrderARowMayChangeHandsAtOnce) {
  Engine e({full_group(4, 16)}, {.max_sequences = 1, .max_steps_in_flight = 4});
  EXPECT_EQ(e.manager.num_rows(), 1);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(launch_and_close(e).row, 0);
}

TEST(Rows, AForkHasNotUsedItsRowByItsParentsSteps) {
  Engine e({full_group(4, 16)},
           {.max_sequences = 2, .max_steps_in_flight = 4, .order = Order::kUnordered});
  const SequenceId parent = e.open({}, kUnpublished).sequence;
  const Ticket flying = e.launch(parent, tokens(1, 5));
  // Three of these would find no row if they waited for the step.
  for (int i = 0; i < 5; ++i) must(e.manager.close(must(e.manager.fork(parent))));
  must(e.manager.check_invariants());
  must(e.manager.complete(flying));
}

TEST(Rows, WhoWasTakenOutOfAStepHasNotUsedItsRowThere) {
  Engine e({full_group(4, 16)},
           {.max_sequences = 2, .max_steps_in_flight = 4, .order = Order::kUnordered});
  const SequenceId stays = e.open({}, kUnpublished).sequence;
  const Ticket ticket = must(e.manager.begin_step());
  must(e.manager.append(stays, tokens(1, 3)));
  for (int i = 0; i < 5; ++i) {
    const SequenceId undone = e.open({}, kUnpublished).sequence;
    must(e.manager.append(undone, tokens(1, 3)));
    if (i % 2 == 0) must(e.manager.undo(undone));
    must(e.manager.preempt(undone));
  }
  must(e.manager.commit(ticket));
  for (int i = 0; i < 5; ++i) must(e.manager.close(e.open({}, kUnpublished).sequence));
  must(e.manager.check_invariants());
}

TEST(Rows, AFailureFreesTheRowsOfItsSteps) {
  Engine e({full_group(4, 16)},
           {.max_sequences = 1, .max_steps_in_flight = 4, .order = Order::kUnordered});
  const Launched first = launch_and_close(e, kUnpublished);
  const Launched second = launch_and_close(e);
  must(e.manager.fail(second.ticket));
  must(e.manager.check_invariants());
  EXPECT_EQ(launch_and_close(e, kUnpublished).row, second.row);
  EXPECT_FALSE(e.manager.open({}).has_value());
  must(e.manager.fail(first.ticket));
  must(e.manager.check_invariants());
  const SequenceId one = e.open({}).sequence;
  must(e.manager.close(one));
}

TEST(Rows, ACopyKnowsWhichRowsAreInUse) {
  const ManagerOptions options{
      .max_sequences = 1, .max_steps_in_flight = 4, .order = Order::kUnordered};
  Engine from({full_group(4, 16)}, options);
  const Launched first = launch_and_close(from, kUnpublished);
  launch_and_close(from, kUnpublished);
  Engine to({full_group(4, 16)}, options);
  must(from.manager.copy_to(to.manager));
  must(to.manager.check_invariants());
  EXPECT_EQ(to.manager.open({}).error().message(), from.manager.open({}).error().message());
  must(to.manager.complete(first.ticket));
  EXPECT_EQ(launch_and_close(to).row, first.row);
  EXPECT_FALSE(from.manager.open({}).has_value());
}

TEST(Rows, RowsReturnInTheSameOrderWhateverTheOrderOfTheSteps) {
  const auto rows_after = [](bool backwards) {
    Engine e({full_group(4, 32)},
             {.max_sequences = 3, .max_steps_in_flight = 4, .order = Order::kUnordered});
    // Two in one step: they leave their rows together.
    const SequenceId a = e.open({}, kUnpublished).sequence;
    const SequenceId b = e.open({}, kUnpublished).sequence;
    const Ticket ticket = must(e.manager.begin_step());
    must(e.manager.append(a, tokens(1, 5)));
    must(e.manager.append(b, tokens(1, 5)));
    must(e.manager.commit(ticket));
    must(e.manager.close(backwards ? b : a));
    must(e.manager.close(backwards ? a : b));
    must(e.manager.complete(ticket));
    std::vector<std::int32_t> rows;
    rows.reserve(2);
    for (int i = 0; i < 2; ++i) rows.push_back(launch_and_close(e, kUnpublished).row);
    return rows;
  };
  // The row that was left last is taken first.
  EXPECT_THAT(rows_after(false), ElementsAre(1, 0));
  EXPECT_THAT(rows_after(true), ElementsAre(0, 1));
}

}  // namespace
}  // namespace kvfolio::testing_engine
