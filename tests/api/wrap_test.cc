// SPDX-License-Identifier: Apache-2.0
// Numbers of the manager that come round again: ids of a slot, after 2^24 sequences, and tickets,
// of which a block keeps 32 bits, so that no step may be too far behind the newest.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine.h"

namespace kvfolio {
namespace {

using testing::HasSubstr;
using testing_engine::Engine;
using testing_engine::full_group;
using testing_engine::must;
using testing_engine::Tokens;

constexpr int kGenerations = (1 << 24) - 1;

// Step by step it would take an hour until the tickets are too far apart for a block to tell which
// was first; a retiring block would be given out while its step is in flight.
TEST(ManagerWrap, AStepThatNobodyCompletesHoldsUpOthersInTime) {
  for (const Order order : {Order::kInOrder, Order::kUnordered}) {
    Engine e({full_group(4, 4)}, {.max_steps_in_flight = 2, .order = order});
    const SequenceId s = must(e.manager.open({})).sequence;
    const Ticket first = e.launch(s, {1, 2, 3, 4});
    Result<Ticket> next = e.manager.begin_step();
    int begun = 0;
    for (; next && begun < 1 << 25; next = e.manager.begin_step(), ++begun) {
      must(e.manager.drop(*next));
    }
    EXPECT_EQ(begun, (1 << 24) - 1);
    EXPECT_EQ(next.error().code(), ErrorCode::kFailedPrecondition);
    EXPECT_THAT(next.error().message(), HasSubstr("step 1 is in flight and 16777215 steps were"));
    must(e.manager.close(s));
    must(e.manager.complete(first));
    EXPECT_EQ(e.probe({1, 2, 3, 4, 5}), 4);
    must(e.manager.drop(must(e.manager.begin_step())));
    must(e.manager.check_invariants());
  }
}

// A step knows its sequences for as long as it is in flight, also where an id came again.
TEST(ManagerWrap, AStepTakesNoLaterSequenceForItsOwn) {
  Engine e({full_group(4, 16)}, {.max_sequences = 1, .max_steps_in_flight = 2});
  const SequenceId a = must(e.manager.open({})).sequence;
  const Ticket first = e.launch_count(a, 3);
  must(e.manager.close(a));
  for (int i = 1; i < kGenerations; ++i) {
    must(e.manager.close(must(e.manager.open({}, {.prefix_cache = false})).sequence));
  }
  const SequenceId b = must(e.manager.open({})).sequence;
  EXPECT_EQ(b, a);
  const Ticket second = e.launch_count(b, 2);
  must(e.manager.truncate(b, 1));
  must(e.manager.check_invariants());
  must(e.manager.complete(first));
  must(e.manager.check_invariants());
  EXPECT_EQ(e.manager.set_tokens(b, Tokens{7, 8}).code(), ErrorCode::kInvalidArgument);
  must(e.manager.set_tokens(b, Tokens{7}));
  must(e.manager.complete(second));
  must(e.manager.check_invariants());
}

}  // namespace
}  // namespace kvfolio
