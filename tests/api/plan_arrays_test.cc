// SPDX-License-Identifier: Apache-2.0
// The arrays of a plan.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "engine.h"

namespace kvfolio::testing_engine {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// Two sequences of different lengths in one step, the second with a moved window in group 1.
struct TwoRows {
  Engine e{{full_group(4, 16), window_group(2, 16, 4)}};
  SequenceId a = e.say(tokens(1, 3));
  SequenceId b = e.say(tokens(50, 9));
  Ticket ticket = must(e.manager.begin_step());
  TwoRows() {
    must(e.manager.append(a, tokens(4, 3)));
    must(e.manager.append(b, Tokens{59}));
  }
};

TEST(Plan, RowsComeInAppendOrder) {
  TwoRows t;
  const StepPlan& plan = *must(t.e.manager.plan());
  EXPECT_EQ(plan.ticket, t.ticket);
  EXPECT_THAT(plan.sequences, ElementsAre(t.a, t.b));
  EXPECT_THAT(plan.query_start, ElementsAre(0, 3, 4));
  EXPECT_THAT(plan.kv_lens, ElementsAre(6, 10));
  EXPECT_THAT(plan.trim_sinks, ElementsAre(0, 0));
  EXPECT_THAT(plan.trim_first_kept, ElementsAre(0, 0));
  EXPECT_EQ(plan.num_tokens, 4);
  EXPECT_THAT(plan.groups, SizeIs(2));
}

TEST(Plan, SlotIsBlockTimesBlockSizePlusOffset) {
  TwoRows t;
  const Tokens a = t.e.table(t.a);
  const Tokens b = t.e.table(t.b);
  EXPECT_THAT(t.e.plan().slots, ElementsAre(a[0] * 4 + 3, a[1] * 4, a[1] * 4 + 1, b[2] * 4 + 1));
  // slot_mapping() of a range says the same.
  Tokens range(3);
  must(t.e.manager.slot_mapping(t.a, GroupId(0), 3, range));
  EXPECT_THAT(range, ElementsAre(a[0] * 4 + 3, a[1] * 4, a[1] * 4 + 1));
}

TEST(Plan, PaddedTablesTakeMinusOneOrZero) {
  for (const std::int32_t pad : {-1, 0}) {
    TwoRows t;
    const StepPlan& plan = *must(t.e.manager.plan({.pad = pad}));
    const GroupPlan& full = plan.groups[0];
    const Tokens a = t.e.table(t.a);
    const Tokens b = t.e.table(t.b);
    ASSERT_GE(full.block_table_stride, 3);
    Tokens expected(static_cast<std::size_t>(2 * full.block_table_stride), pad);
    std::copy(a.begin(), a.end(), expected.begin());
    std::copy(b.begin(), b.end(), expected.begin() + full.block_table_stride);
    EXPECT_THAT(full.block_table, ElementsAreArray(expected));
    // Blocks that the window dropped are padding too.
    const GroupPlan& window = plan.groups[1];
    const auto row = static_cast<std::size_t>(window.block_table_stride);
    EXPECT_EQ(window.block_table[row + 0], pad);
    EXPECT_EQ(window.block_table[row + 3], t.e.table(t.b, 1)[3]);
  }
}

TEST(Plan, OtherPadsAreRefused) {
  TwoRows t;
  const Status bad = t.e.manager.plan({.pad = 7}).error();
  EXPECT_EQ(bad.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(bad.message(), HasSubstr("7"));
}

TEST(Plan, FlashInferArraysListLiveBlocksOnly) {
  TwoRows t;
  const StepPlan& plan = *must(t.e.manager.plan({.block_tables = false, .flashinfer = true}));
  for (const std::int32_t g : {0, 1}) {
    const GroupPlan& group = plan.groups[static_cast<std::size_t>(g)];
    Tokens indices;
    Tokens indptr = {0};
    for (const SequenceId s : {t.a, t.b}) {
      for (const std::int32_t block : t.e.table(s, g)) {
        if (block >= 0) indices.push_back(block);
      }
      indptr.push_back(static_cast<std::int32_t>(indices.size()));
    }
    EXPECT_THAT(group.kv_indptr, ElementsAreArray(indptr));
    EXPECT_THAT(group.kv_indices, ElementsAreArray(indices));
    EXPECT_THAT(group.block_table, IsEmpty());
  }
  EXPECT_THAT(plan.groups[0].kv_last_page_len, ElementsAre(2, 2));
  EXPECT_THAT(plan.groups[1].kv_last_page_len, ElementsAre(2, 2));
  EXPECT_LT(plan.groups[1].kv_indices.size(), t.e.table(t.a, 1).size() + t.e.table(t.b, 1).size());
}

TEST(Plan, LastPageIsFullAtABlockBorder) {
  Engine e({full_group(4, 16)});
  const SequenceId s = e.say(tokens(1, 7));
  must(e.manager.begin_step());
  must(e.manager.append(s, Tokens{8}));
  EXPECT_THAT(must(e.manager.plan({.flashinfer = true}))->groups[0].kv_last_page_len,
              ElementsAre(4));
}

TEST(Plan, PositionsOfTokensStandThereIfAsked) {
  Engine e({full_group(4, 16)});
  const SequenceId a = e.say(tokens(1, 5));
  const SequenceId b = e.open({}).sequence;
  must(e.manager.begin_step());
  must(e.manager.append(a, tokens(6, 2)));
  must(e.manager.append(b, tokens(1, 3)));
  EXPECT_THAT(must(e.manager.plan({.positions = true}))->positions, ElementsAre(5, 6, 0, 1, 2));
  EXPECT_THAT(must(e.manager.plan())->positions, IsEmpty());
}

TEST(Plan, WidestIsTheTableOfTheLongestSequenceThatIsExpected) {
  Engine e({full_group(4, 16), window_group(2, 16, 6)}, {.max_sequence_tokens = 21});
  EXPECT_EQ(must(e.manager.widest(GroupId(0))), 6);
  EXPECT_EQ(must(e.manager.widest(GroupId(1))), 11);
  EXPECT_EQ(e.manager.widest(GroupId(2)).error().message(), "widest: group 2, allowed: 0 to 1");
}

TEST(Plan, EmptyStepHasAnEmptyPlan) {
  Engine e({full_group(4, 16)});
  const Ticket t = must(e.manager.begin_step());
  const StepPlan& plan = *must(e.manager.plan({.flashinfer = true, .shared_prefixes = true}));
  EXPECT_EQ(plan.num_tokens, 0);
  EXPECT_THAT(plan.query_start, ElementsAre(0));
  EXPECT_THAT(plan.groups[0].kv_indptr, ElementsAre(0));
  must(e.manager.finish(t));
}

TEST(Plan, SharedPrefixesOfForks) {
  Engine e({full_group(4, 32)});
  const SequenceId parent = e.say(tokens(1, 10));
  const SequenceId first = must(e.manager.fork(parent));
  const SequenceId second = must(e.manager.fork(parent));
  const SequenceId other = e.say(tokens(90, 10));
  const Ticket t = must(e.manager.begin_step());
  for (const SequenceId s : {parent, first, second, other})
    must(e.manager.append(s, Tokens{s == first ? 7 : 8}));
  const StepPlan& plan = *must(e.manager.plan({.shared_prefixes = true}));
  EXPECT_THAT(plan.groups[0].shared_prefixes,
              ElementsAre(SharedPrefix{.first_sequence = 0, .num_sequences = 3, .num_blocks = 2}));
  must(e.manager.finish(t));
}

TEST(Plan, SharedPrefixesOfHits) {
  Engine e({full_group(4, 32)});
  e.cache(tokens(1, 8));
  const Opened a = e.open(joined(tokens(1, 8), {20, 21}));
  const Opened b = e.open(joined(tokens(1, 8), {30, 31}));
  must(e.manager.begin_step());
  must(e.manager.append(a.sequence, Tokens{20, 21}));
  must(e.manager.append(b.sequence, Tokens{30, 31}));
  EXPECT_THAT(must(e.manager.plan({.shared_prefixes = true}))->groups[0].shared_prefixes,
              ElementsAre(SharedPrefix{.first_sequence = 0, .num_sequences = 2, .num_blocks = 2}));
  EXPECT_THAT(must(e.manager.plan())->groups[0].shared_prefixes, IsEmpty());
}

// Prompts that are in the cache whole compute their last token again, which lies in a shared block.
TEST(Plan, SharedPrefixesLieBelowAllThatTheStepComputes) {
  Engine e({full_group(4, 32)});
  e.cache(tokens(1, 8));
  const Opened a = e.open(tokens(1, 8));
  const Opened b = e.open(tokens(1, 8));
  EXPECT_EQ(b.cached_tokens, 7);
  must(e.manager.begin_step());
  must(e.manager.append(a.sequence, Tokens{8}));
  must(e.manager.append(b.sequence, Tokens{8}));
  EXPECT_THAT(must(e.manager.plan({.shared_prefixes = true}))->groups[0].shared_prefixes,
              ElementsAre(SharedPrefix{.first_sequence = 0, .num_sequences = 2, .num_blocks = 1}));
}

TEST(Plan, CopiesHaveDisjointSourcesAndDestinations) {
  Engine e({full_group(4, 32)});
  const SequenceId parent = e.say(tokens(1, 6));
  std::vector<SequenceId> all = {parent};
  for (int i = 0; i < 4; ++i) all.push_back(must(e.manager.fork(parent)));
  const Ticket t = must(e.manager.begin_step());
  for (const SequenceId s : all) must(e.manager.append(s, Tokens{9}));
  const Planned planned = e.plan();
  EXPECT_THAT(planned.copy_src, testing::Each(e.table(parent)[1]));
  EXPECT_THAT(planned.copy_src, SizeIs(4));
  for (const std::int32_t dst : planned.copy_dst) {
    EXPECT_THAT(planned.copy_src, testing::Not(testing::Contains(dst)));
  }
  must(e.manager.finish(t));
}

TEST(Plan, PlansOfOneStepAgree) {
  TwoRows t;
  const Planned first = t.e.plan();
  const Planned second = t.e.plan();
  EXPECT_EQ(first.slots, second.slots);
}

TEST(Plan, RunCopiesNeedsStorage) {
  TwoRows t;
  EXPECT_EQ(t.e.manager.run_copies().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(t.e.manager.storage(), nullptr);
}

TEST(Plan, SharedPrefixesEndWhereATrimOfAMemberBegins) {
  for (const std::int32_t sinks : {4, 6}) {  // at a border, and inside the second block
    Engine e({full_group(4, 32)});
    const SequenceId parent = e.say(tokens(1, 17));
    const SequenceId child = must(e.manager.fork(parent));
    EXPECT_GT(must(e.manager.trim(child, {.num_sinks = sinks, .window = 4})), 0);
    must(e.manager.begin_step());
    must(e.manager.append(parent, Tokens{70}));
    must(e.manager.append(child, Tokens{80}));
    EXPECT_THAT(
        must(e.manager.plan({.shared_prefixes = true}))->groups[0].shared_prefixes,
        ElementsAre(SharedPrefix{.first_sequence = 0, .num_sequences = 2, .num_blocks = 1}));
  }
}

TEST(Plan, ASequenceKeepsItsRowWhileItIsOpenAndLeavesItToAnother) {
  Engine e({full_group(4, 32)}, {.max_sequences = 2});
  EXPECT_EQ(e.manager.num_rows(), 2);
  const SequenceId a = e.open({}).sequence;
  SequenceId b = e.open({}).sequence;
  const auto rows = [&](std::int32_t token) {
    const Ticket t = must(e.manager.begin_step());
    for (const SequenceId s : {b, a}) must(e.manager.append(s, Tokens{token}));
    const std::span<const std::int32_t> planned = must(e.manager.plan())->rows;
    Tokens kept(planned.begin(), planned.end());
    must(e.manager.finish(t));
    return kept;
  };
  const Tokens first = rows(1);
  EXPECT_THAT(first, testing::UnorderedElementsAre(0, 1));
  EXPECT_EQ(rows(2), first);
  must(e.manager.close(b));
  b = e.open({}).sequence;
  EXPECT_EQ(rows(3), first);
}

// docs/decisions/0008-plans-live-in-their-step.md: one upload is enough.
TEST(Plan, ArraysOfAStepLieInOnePieceWithoutGaps) {
  TwoRows t;
  const StepPlan& plan = *must(t.e.manager.plan({.flashinfer = true}));
  std::vector<std::span<const std::int32_t>> arrays = {plan.query_start,     plan.rows,
                                                       plan.kv_lens,         plan.trim_sinks,
                                                       plan.trim_first_kept, plan.rewinds};
  for (const GroupPlan& group : plan.groups) {
    for (const auto array : {group.slot_mapping, group.block_table, group.kv_indptr,
                             group.kv_indices, group.kv_last_page_len, group.kv_first_live}) {
      arrays.push_back(array);
    }
  }
  std::sort(arrays.begin(), arrays.end(),
            [](const auto& a, const auto& b) { return a.data() < b.data(); });
  for (std::size_t i = 1; i < arrays.size(); ++i) {
    EXPECT_EQ(arrays[i].data(), arrays[i - 1].data() + arrays[i - 1].size());
  }
}

TEST(Plan, ChangedEntriesNameAllBlocksOfASequenceThatStartedAnew) {
  Engine e({full_group(4, 16)});
  const auto changed = [&](SequenceId s, const Tokens& more) {
    const Ticket t = must(e.manager.begin_step());
    must(e.manager.append(s, more));
    const GroupPlan& plan = must(e.manager.plan({.changed_entries = true}))->groups[0];
    std::vector<std::pair<std::int32_t, std::int32_t>> entries;
    for (std::size_t i = 0; i < plan.changed_columns.size(); ++i) {
      entries.emplace_back(plan.changed_columns[i], plan.changed_blocks[i]);
    }
    must(e.manager.finish(t));
    return entries;
  };
  const SequenceId s = e.open({}).sequence;
  const SequenceId other = e.open({}).sequence;
  EXPECT_THAT(changed(s, tokens(1, 8)), SizeIs(2));
  EXPECT_THAT(changed(other, tokens(50, 8)), SizeIs(2));
  must(e.manager.clear(s));
  const Tokens blocks = e.table(other);
  const std::span<const std::int32_t> tables[] = {blocks};
  must(e.manager.adopt(s, tables, 8));
  const auto entries = changed(s, {9});
  const Tokens now = e.table(s);
  EXPECT_THAT(entries,
              ElementsAre(std::pair(0, now[0]), std::pair(1, now[1]), std::pair(2, now[2])));
}

// The last plan of a step is the one that counts.
TEST(Plan, ChangedEntriesOfAPlanThatWasReplacedComeAgain) {
  Engine e({full_group(4, 16)});
  const SequenceId s = e.open({}).sequence;
  Ticket t = must(e.manager.begin_step());
  must(e.manager.append(s, tokens(1, 8)));
  EXPECT_THAT(must(e.manager.plan({.changed_entries = true}))->groups[0].changed_blocks, SizeIs(2));
  EXPECT_THAT(must(e.manager.plan())->groups[0].changed_blocks, SizeIs(0));
  must(e.manager.finish(t));
  t = must(e.manager.begin_step());
  must(e.manager.append(s, Tokens{9}));
  EXPECT_THAT(must(e.manager.plan({.changed_entries = true}))->groups[0].changed_columns,
              ElementsAre(0, 1, 2));
  must(e.manager.drop(t));
}

// So an engine that has not got that plan knows that its table lacks what it named.
TEST(Plan, SaysWhichPlanItsChangedEntriesFollow) {
  Engine e({full_group(4, 16)});
  const SequenceId s = e.open({}).sequence;
  const auto step = [&](bool changed, bool commits) {
    const Ticket t = must(e.manager.begin_step());
    must(e.manager.append(s, Tokens{1}));
    const StepPlan& plan = *must(e.manager.plan({.changed_entries = changed}));
    const std::pair<std::uint64_t, std::uint64_t> numbers{plan.number, plan.follows};
    must(commits ? e.manager.finish(t) : e.manager.drop(t));
    return numbers;
  };
  EXPECT_EQ(step(true, true), std::pair(std::uint64_t{1}, std::uint64_t{0}));
  EXPECT_EQ(step(true, false), std::pair(std::uint64_t{2}, std::uint64_t{1}));
  EXPECT_EQ(step(false, true), std::pair(std::uint64_t{3}, StepPlan::kNoChanges));
  EXPECT_EQ(step(true, true), std::pair(std::uint64_t{4}, std::uint64_t{1}));
  EXPECT_EQ(step(true, true), std::pair(std::uint64_t{5}, std::uint64_t{4}));
  // A plan of fixed shapes counts, too.
  const Ticket t = must(e.manager.begin_step());
  const StepPlan& shaped =
      *must(e.manager.plan({.changed_entries = true, .padded_sequences = 2, .padded_tokens = 2}));
  EXPECT_EQ(shaped.number, 6u);
  EXPECT_EQ(shaped.follows, 5u);
  must(e.manager.drop(t));
}

// A step that failed may have died before it put them where the device reads.
TEST(Plan, ChangedEntriesOfAStepThatFailedComeAgain) {
  Engine e({full_group(4, 16)});
  e.cache(tokens(1, 8));
  const SequenceId s = e.open(tokens(1, 8)).sequence;  // found whole, so it writes nothing
  const Ticket failing = must(e.manager.begin_step());
  must(e.manager.append(s, Tokens{8}));
  EXPECT_THAT(must(e.manager.plan({.changed_entries = true}))->groups[0].changed_columns,
              ElementsAre(0, 1));
  must(e.manager.commit(failing));
  must(e.manager.fail(failing));
  const Ticket next = must(e.manager.begin_step());
  must(e.manager.append(s, Tokens{9}));
  EXPECT_THAT(must(e.manager.plan({.changed_entries = true}))->groups[0].changed_columns,
              ElementsAre(0, 1, 2));
  must(e.manager.drop(next));
}

}  // namespace
}  // namespace kvfolio::testing_engine
