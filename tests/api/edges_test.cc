// SPDX-License-Identifier: Apache-2.0
//
// Calls that are allowed and that one would hardly think of, and refusals that must leave nothing.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "engine.h"
#include "kvfolio/storage.h"

namespace kvfolio::testing_engine {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

TEST(ManagerEdges, ASequenceMayAdoptTheBlockItsOwnPromptWasFoundIn) {
  Engine e({full_group(4, 8)});
  e.cache({5});
  const SequenceId longer = must(e.manager.open({})).sequence;
  const SequenceId found = e.open({5}).sequence;  // found whole: holds a block beyond its length
  const Tokens own = e.table(found);
  ASSERT_THAT(own, SizeIs(1));
  e.feed(longer, {5, 6, 7, 8});  // the shorter block gives way and is this sequence's alone
  ASSERT_FALSE(e.findable(own[0]));
  const std::array<std::span<const std::int32_t>, 1> tables{own};
  must(e.manager.adopt(found, tables, 1));
  EXPECT_EQ(e.table(found), own);
  EXPECT_EQ(e.refs(own[0]), 1);
  must(e.manager.check_invariants());
}

// The span that is handed over is the table that is written.
TEST(ManagerEdges, ASequenceMayAdoptItsOwnTableAsTheManagerShowsIt) {
  Engine e({full_group(4, 8)});
  e.cache({5});
  const SequenceId found = e.open({5}).sequence;
  const Tokens own = e.table(found);
  const std::array<std::span<const std::int32_t>, 1> tables{
      must(e.manager.block_table(found, GroupId(0)))};
  must(e.manager.adopt(found, tables, 1));
  EXPECT_EQ(e.table(found), own);
  must(e.manager.check_invariants());
}

TEST(ManagerEdges, TokensInMemoryOfTheManagerAreRefused) {
  Engine e({full_group(1, 64)});
  const SequenceId a = e.say({1, 2, 3, 4, 5, 6, 7, 8});
  const auto table = must(e.manager.block_table(a, GroupId(0)));
  const Ticket ticket = must(e.manager.begin_step());
  const Status refused = e.manager.append(a, table);
  EXPECT_EQ(refused.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("memory of the manager"));
  EXPECT_FALSE(e.manager.open(table).has_value());
  EXPECT_FALSE(e.manager.probe(table).has_value());
  EXPECT_EQ(e.info(a).length, 8);
  must(e.manager.drop(ticket));
}

// Nothing moves for a single token, but the rule is one.
TEST(ManagerEdges, ASingleTokenInMemoryOfTheManagerIsRefused) {
  Engine e({full_group(4, 64)});
  const SequenceId a = e.say(tokens(1, 5));
  const auto table = must(e.manager.block_table(a, GroupId(0)));
  const Ticket ticket = must(e.manager.begin_step());
  EXPECT_THAT(e.manager.append(a, table.first(1)).message(), HasSubstr("memory of the manager"));
  EXPECT_EQ(e.info(a).length, 5);
  must(e.manager.drop(ticket));
}

TEST(ManagerEdges, RefusedOpensAndForksGiveTheirIdToTheNextSequence) {
  const auto next = [](bool refuse_first) {
    Engine e({full_group(4, 2)}, {.max_root_keys = 4});
    if (refuse_first) {
      const Ticket ticket = must(e.manager.begin_step());
      EXPECT_EQ(e.manager.open_unnamed(100).error().code(), ErrorCode::kNoBlocks);
      must(e.manager.drop(ticket));
    }
    const SequenceId sequence = must(e.manager.open({})).sequence;
    return std::pair(sequence, e.info(sequence).last_use);
  };
  EXPECT_EQ(next(true), next(false));
}

// The names of a step that was cut off by truncate() are not those of a later step.
TEST(ManagerEdges, NamesOfALaterStepOutliveAnEarlierOneThatWasCutOff) {
  for (const bool drop_it : {false, true}) {
    Engine e({full_group(4, 16)});
    const SequenceId s = must(e.manager.open({})).sequence;
    const Ticket first = must(e.manager.begin_step());
    must(e.manager.append_unnamed(s, 10));
    must(e.manager.commit(first));
    must(e.manager.truncate(s, 2));
    must(e.manager.set_tokens(s, Tokens{1, 2}));
    const Ticket second = must(e.manager.begin_step());
    must(e.manager.append_unnamed(s, 6));
    if (drop_it) {
      must(e.manager.complete(first));
      must(e.manager.drop(second));
      e.feed(s, {3, 4, 5, 6, 7, 8});
    } else {
      must(e.manager.commit(second));
      must(e.manager.complete(first));
      must(e.manager.set_tokens(s, Tokens{3, 4, 5, 6, 7, 8}));
      must(e.manager.complete(second));
    }
    EXPECT_EQ(e.probe({1, 2, 3, 4, 5, 6, 7, 8, 9}), 8) << "drop " << drop_it;
    must(e.manager.check_invariants());
  }
}

// What is complete is computed, whatever became of steps with smaller tickets.
TEST(ManagerEdges, WithoutOrderAFailureLeavesCompleteStepsAlone) {
  Engine e({full_group(4, 16)}, {.max_steps_in_flight = 3, .order = Order::kUnordered});
  const SequenceId a = must(e.manager.open({})).sequence;
  const SequenceId b = must(e.manager.open({})).sequence;
  const Ticket first = e.launch(a, {1, 2, 3, 4});
  const Ticket second = e.launch(b, {11, 12, 13, 14});
  const Ticket third = e.launch(must(e.manager.open({})).sequence, {21, 22, 23, 24});
  must(e.manager.complete(second));
  must(e.manager.fail(first));
  EXPECT_EQ(e.manager.info(a).error().code(), ErrorCode::kAborted);
  EXPECT_EQ(e.info(b).length, 4);
  EXPECT_EQ(e.probe({11, 12, 13, 14, 15}), 4);
  EXPECT_EQ(e.probe({21, 22, 23, 24, 25}), 0);
  EXPECT_EQ(e.manager.complete(third).code(), ErrorCode::kFailedPrecondition);  // failed with it
  must(e.manager.check_invariants());
}

TEST(ManagerEdges, CopiesDoNotRunBeforeTheirSourceIsWritten) {
  KVCacheManager manager =
      must(KVCacheManager::create(must(KVStorage::create(CacheSpec{{full_group(4, 8)}}))));
  const SequenceId parent = must(manager.open({})).sequence;
  const Ticket first = must(manager.begin_step());
  must(manager.append(parent, Tokens{1, 2}));
  must(manager.commit(first));
  const SequenceId child = must(manager.fork(parent));
  const Ticket second = must(manager.begin_step());
  must(manager.append(child, Tokens{9}));
  must(manager.append(parent, Tokens{8}));
  ASSERT_THAT(must(manager.plan())->groups[0].copy_src, testing::Not(IsEmpty()));
  const Status early = manager.run_copies();
  EXPECT_EQ(early.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(early.message(), HasSubstr("step 1 is in flight"));
  must(manager.complete(first));
  must(manager.run_copies());
  must(manager.commit(second));
  must(manager.complete(second));
  must(manager.check_invariants());
}

TEST(ManagerEdges, APolicyThatIsNoneIsRefused) {
  Engine e({full_group(4, 4)});
  e.say({1, 2, 3, 4});
  const auto none = static_cast<VictimPolicy>(9);
  EXPECT_EQ(e.manager.preempt_to(0.0, none).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(e.manager.select_victim(none), std::nullopt);
  EXPECT_EQ(e.manager.num_sequences(), 1);
}

TEST(ManagerEdges, ACopySaysAllItsTableEntriesInItsFirstPlan) {
  Engine e({full_group(4, 8)});
  Engine to({full_group(4, 8)});
  const PlanOptions changed{.changed_entries = true};
  const SequenceId a = must(e.manager.open({})).sequence;
  const Ticket ticket = must(e.manager.begin_step());
  must(e.manager.append(a, Tokens{1, 2, 3, 4, 5, 6}));
  static_cast<void>(must(e.manager.plan(changed)));
  must(e.manager.copy_to(to.manager));
  must(to.manager.finish(ticket));
  const Ticket next = must(to.manager.begin_step());
  must(to.manager.append(a, Tokens{7}));
  const GroupPlan& group = must(to.manager.plan(changed))->groups[0];
  EXPECT_THAT(group.changed_blocks, testing::ElementsAreArray(to.table(a)));
  must(to.manager.finish(next));
}

}  // namespace
}  // namespace kvfolio::testing_engine
