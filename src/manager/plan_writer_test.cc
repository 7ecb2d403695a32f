// SPDX-License-Identifier: Apache-2.0
#include "manager/plan_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvfolio/block_table.h"

namespace kvfolio {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Two groups, of blocks of 4 and of 2 tokens; the second one has a window.
class PlanWriterTest : public testing::Test {
 protected:
  void SetUp() override {
    groups_ = {make_group(4, 0), make_group(2, 3)};
    ASSERT_TRUE(rows_.allocate(4, 4, 7));
    ASSERT_TRUE(tables_.allocate(4, 2, 1024, false).ok());
    ASSERT_TRUE(steps_.allocate(1, 2, 4, 1));
    steps_.begin();
  }

  static Group make_group(std::int32_t block_size, std::int32_t window) {
    GroupSpec spec{.num_layers = 1, .num_kv_heads = 1, .head_dim_k = 8, .head_dim_v = 8};
    spec.block_size = block_size;
    spec.window = window;
    spec.kind = window > 0 ? AttentionKind::kSlidingWindow : AttentionKind::kFull;
    return {spec, GroupRule(spec), 64, BlockSize(block_size)};
  }
  // A sequence that appended [begin, end) in the open step, with these blocks in each group.
  std::int32_t add(std::int32_t begin, std::int32_t end, const std::vector<std::int32_t>& full,
                   const std::vector<std::int32_t>& window) {
    const std::int32_t row = rows_.take();
    tables_.begin(row);
    Step& step = steps_.open();
    StepEntry& entry = step.entries[step.num_entries];
    entry = {};
    entry.row = row;
    entry.begin = entry.write_begin = begin;
    entry.end = end;
    for (std::int32_t g = 0; g < 2; ++g) {
      const auto& blocks = g == 0 ? full : window;
      const auto count = static_cast<std::int32_t>(blocks.size());
      EXPECT_TRUE(tables_.of(row, g).reserve(tables_.arena(), count));
      tables_.of(row, g).assign(tables_.arena(), blocks);
      step.change(step.num_entries, g) = TailChange::none();
      const std::int32_t size = groups_[static_cast<std::size_t>(g)].spec.block_size;
      const auto last = static_cast<std::size_t>((end - 1) / size);
      step.change(step.num_entries, g).slot = blocks[last] * size + (end - 1) % size;
    }
    ++step.num_entries;
    return row;
  }
  const StepPlan& plan(const PlanOptions& options) {
    PlanWriter writer(rows_, tables_, groups_, steps_.open());
    EXPECT_TRUE(writer.reserve(options).ok());
    writer.write(options);
    return steps_.open().plan;
  }

  const StepPlan& shaped(const PlanOptions& options) {
    PlanWriter writer(rows_, tables_, groups_, steps_.open());
    const Result<PlanLayout> layout = writer.layout(options);
    EXPECT_TRUE(layout) << layout.error().message();
    EXPECT_TRUE(writer.reserve(*layout).ok());
    writer.write(options, *layout, nullptr);
    return steps_.open().plan;
  }
  std::string refusal(const PlanOptions& options) {
    const Result<PlanLayout> layout =
        PlanWriter(rows_, tables_, groups_, steps_.open()).layout(options);
    return layout ? "" : layout.error().message();
  }

  std::vector<Group> groups_;
  Rows rows_;
  Tables tables_;
  StepLog steps_;
};

TEST_F(PlanWriterTest, SlotsAreThePlacesOfThePositionsThatAreWritten) {
  add(0, 6, {5, 2}, {9, 8, 7});
  add(6, 7, {3, 4}, {-1, -1, 1, 0});
  const StepPlan& p = plan({});
  EXPECT_EQ(p.num_tokens, 7);
  EXPECT_THAT(p.query_start, ElementsAre(0, 6, 7));
  EXPECT_THAT(p.kv_lens, ElementsAre(6, 7));
  EXPECT_THAT(p.groups[0].slot_mapping, ElementsAre(20, 21, 22, 23, 8, 9, 18));
  EXPECT_THAT(p.groups[1].slot_mapping, ElementsAre(18, 19, 16, 17, 14, 15, 0));
}

TEST_F(PlanWriterTest, AReplayWritesNothingForItsFirstToken) {
  add(5, 8, {5, 2}, {9, 8, 7, 6});
  steps_.open().entries[0].write_begin = 6;
  EXPECT_THAT(plan({}).groups[0].slot_mapping, ElementsAre(-1, 10, 11));
}

TEST_F(PlanWriterTest, TableRowsAreAsWideAsTheLongestAndHolesArePadded) {
  add(0, 6, {5, 2}, {9, 8, 7});
  add(6, 7, {3, 4}, {-1, -1, 1, 0});
  const StepPlan& p = plan({.pad = 0});
  EXPECT_EQ(p.groups[1].block_table_stride, 4);
  EXPECT_THAT(p.groups[1].block_table, ElementsAre(9, 8, 7, 0, 0, 0, 1, 0));
  EXPECT_THAT(plan({.pad = -1}).groups[1].block_table, ElementsAre(9, 8, 7, -1, -1, -1, 1, 0));
}

TEST_F(PlanWriterTest, FlashInferNamesOnlyBlocksThatAreThere) {
  add(0, 6, {5, 2}, {9, 8, 7});
  add(6, 7, {3, 4}, {-1, -1, 1, 0});
  const StepPlan& p = plan({.block_tables = false, .flashinfer = true});
  EXPECT_THAT(p.groups[0].block_table, IsEmpty());
  EXPECT_THAT(p.groups[1].kv_indptr, ElementsAre(0, 3, 5));
  EXPECT_THAT(p.groups[1].kv_indices, ElementsAre(9, 8, 7, 1, 0));
  EXPECT_THAT(p.groups[1].kv_last_page_len, ElementsAre(2, 1));
}

TEST_F(PlanWriterTest, FlashInferCannotSayThatHalfABlockIsDropped) {
  const std::int32_t row = add(0, 6, {5, 2}, {9, 8, 7});
  rows_[row].has_trim = true;
  rows_.details(row).trim_sinks = 0;
  rows_.details(row).trim_first_kept = 2;
  const PlanWriter writer(rows_, tables_, groups_, steps_.open());
  EXPECT_THAT(writer.check_flashinfer().message(), HasSubstr("[0, 2), which cuts through a block "
                                                             "of 4 tokens in group 0"));
  rows_.details(row).trim_first_kept = 4;
  EXPECT_TRUE(writer.check_flashinfer().ok());
}

TEST_F(PlanWriterTest, ChangedEntriesAreThoseThatNoPlanHasShown) {
  const std::int32_t row = add(6, 7, {3, 4}, {-1, -1, 1, 0});
  tables_.unplanned_from(row, 0) = 1;
  tables_.unplanned_from(row, 1) = 0;
  const StepPlan& p = plan({.changed_entries = true});
  EXPECT_THAT(p.groups[0].changed_rows, ElementsAre(row));
  EXPECT_THAT(p.groups[0].changed_columns, ElementsAre(1));
  EXPECT_THAT(p.groups[0].changed_blocks, ElementsAre(4));
  EXPECT_THAT(p.groups[1].changed_columns, ElementsAre(2, 3));  // no holes
  EXPECT_THAT(p.groups[1].changed_blocks, ElementsAre(1, 0));
  EXPECT_TRUE(steps_.open().planned_changes);
}

TEST_F(PlanWriterTest, CopiesAreThoseOfTailsThatGaveWay) {
  add(6, 7, {3, 4}, {-1, -1, 1, 0});
  add(6, 7, {3, 5}, {-1, -1, 1, 2});
  Step& step = steps_.open();
  step.num_displaced = 2;
  step.change(1, 0).source = 4;
  step.change(1, 0).copy_to = 5;
  step.change(0, 1).source = 6;  // displaced without a copy
  const StepPlan& p = plan({});
  EXPECT_THAT(p.groups[0].copy_src, ElementsAre(4));
  EXPECT_THAT(p.groups[0].copy_dst, ElementsAre(5));
  EXPECT_THAT(p.groups[1].copy_src, IsEmpty());
}

TEST_F(PlanWriterTest, NeighboursThatBeginWithEqualFullBlocksShareAPrefix) {
  add(8, 9, {1, 2, 3}, {0, 1, 2, 3, 4});
  add(8, 9, {1, 2, 4}, {0, 1, 2, 3, 5});
  add(8, 9, {6, 2, 5}, {6, 7, 8, 9, 10});
  const StepPlan& p = plan({.shared_prefixes = true});
  ASSERT_EQ(p.groups[0].shared_prefixes.size(), 1u);
  EXPECT_EQ(p.groups[0].shared_prefixes[0].first_sequence, 0);
  EXPECT_EQ(p.groups[0].shared_prefixes[0].num_sequences, 2);
  EXPECT_EQ(p.groups[0].shared_prefixes[0].num_blocks, 2);
}

TEST_F(PlanWriterTest, AStepOfNoSequenceHasAPlanOfNoTokens) {
  const StepPlan& p = plan({.flashinfer = true, .positions = true});
  EXPECT_EQ(p.num_tokens, 0);
  EXPECT_THAT(p.query_start, ElementsAre(0));
  EXPECT_THAT(p.groups[0].kv_indptr, ElementsAre(0));
  EXPECT_THAT(p.positions, IsEmpty());
}

// Behind what was counted another array begins, or memory that is not the plan's.
TEST_F(PlanWriterTest, APlanThatIsNotAsLongAsItWasCountedStopsTheProgram) {
  add(0, 6, {5, 2}, {9, 8, 7});
  const PlanOptions with_positions{.positions = true};
  EXPECT_FALSE(plan(with_positions).positions.empty());  // the buffer has room for both
  PlanWriter writer(rows_, tables_, groups_, steps_.open());
  EXPECT_TRUE(writer.reserve(with_positions).ok());
  EXPECT_DEATH(writer.write(PlanOptions{}), "counted_");
  EXPECT_TRUE(writer.reserve(PlanOptions{}).ok());
  EXPECT_DEATH(writer.write(with_positions), "counted_");
  // The table grows between layout() and write().
  const std::array<std::int32_t, 2> strides = {2, 3};
  const PlanOptions fixed{.table_stride = strides, .padded_sequences = 2, .padded_tokens = 8};
  const Result<PlanLayout> layout = writer.layout(fixed);
  ASSERT_TRUE(layout) << layout.error().message();
  EXPECT_TRUE(writer.reserve(*layout).ok());
  tables_.of(0, 0).grow(tables_.arena(), 3);
  EXPECT_DEATH(writer.write(fixed, *layout, nullptr), "written == begin");
}

TEST_F(PlanWriterTest, RowsAndTokensArePaddedToTheirFixedNumbers) {
  add(0, 6, {5, 2}, {9, 8, 7});
  add(6, 7, {3, 4}, {-1, -1, 1, 0});
  const StepPlan& p = shaped({.positions = true, .padded_sequences = 3, .padded_tokens = 9});
  EXPECT_EQ(p.num_tokens, 7);
  EXPECT_EQ(p.sequences.size(), 2u);
  EXPECT_THAT(p.query_start, ElementsAre(0, 6, 7, 7));
  EXPECT_THAT(p.kv_lens, ElementsAre(6, 7, 0));
  EXPECT_EQ(p.rows[2], -1);
  EXPECT_THAT(p.positions, ElementsAre(0, 1, 2, 3, 4, 5, 6, 0, 0));
  EXPECT_THAT(p.groups[0].slot_mapping, ElementsAre(20, 21, 22, 23, 8, 9, 18, -1, -1));
  EXPECT_THAT(p.groups[1].block_table, ElementsAre(9, 8, 7, -1, -1, -1, 1, 0, -1, -1, -1, -1));
}

TEST_F(PlanWriterTest, AFixedStrideIsThatOfItsGroupAlone) {
  add(6, 7, {3, 4}, {-1, -1, 1, 0});
  const std::array<std::int32_t, 2> strides = {3, 0};
  const StepPlan& p = shaped({.pad = 0, .table_stride = strides});
  EXPECT_THAT(p.groups[0].block_table, ElementsAre(3, 4, 0));
  EXPECT_THAT(p.groups[1].block_table, ElementsAre(0, 0, 1, 0));
  EXPECT_EQ(p.groups[0].block_table_stride, 3);
}

TEST_F(PlanWriterTest, FlashInferHasNoPagesForRowsOfPadding) {
  add(6, 7, {3, 4}, {-1, -1, 1, 0});
  const std::array<std::int32_t, 2> strides = {4, 4};
  const StepPlan& p = shaped({.flashinfer = true, .table_stride = strides, .padded_sequences = 3});
  EXPECT_THAT(p.groups[1].kv_indptr, ElementsAre(0, 2, 2, 2));
  EXPECT_THAT(p.groups[1].kv_indices, ElementsAre(1, 0));
  EXPECT_THAT(p.groups[1].kv_last_page_len, ElementsAre(1, 1, 1));
  EXPECT_THAT(p.groups[1].kv_first_live, ElementsAre(4, 0, 0));
}

TEST_F(PlanWriterTest, SlotsMayHave64Bits) {
  add(5, 8, {5, 2}, {9, 8, 7, 6});
  steps_.open().entries[0].write_begin = 6;
  const StepPlan& p = shaped({.padded_tokens = 4, .int64_slots = true});
  EXPECT_THAT(p.groups[0].slot_mapping_64, ElementsAre(-1, 10, 11, -1));
  EXPECT_THAT(p.groups[0].slot_mapping, IsEmpty());
  EXPECT_THAT(plan({}).groups[0].slot_mapping_64, IsEmpty());
}

TEST_F(PlanWriterTest, AStepBeyondAFixedSizeIsRefusedWithBothNumbers) {
  add(0, 6, {5, 2}, {9, 8, 7});
  add(6, 7, {3, 4}, {-1, -1, 1, 0});
  const std::array<std::int32_t, 2> strides = {2, 3};
  EXPECT_EQ(refusal({.table_stride = strides}),
            "plan: table_stride[1] is 3, the step has 4 blocks in a table");
  EXPECT_EQ(refusal({.padded_sequences = 1}),
            "plan: padded_sequences is 1, the step has 2 sequences");
  EXPECT_EQ(refusal({.padded_tokens = 6}), "plan: padded_tokens is 6, the step has 7 tokens");
  EXPECT_EQ(refusal({.padded_sequences = 2, .padded_tokens = 7}), "");
}

}  // namespace
}  // namespace kvfolio
