// SPDX-License-Identifier: Apache-2.0
//
// TableBlocks over rows, tables, a step and Blocks, without a manager.
#include "manager/table_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "manager/test_parts.h"

namespace kvfolio {
namespace {

class TableBlocksTest : public PartsTest {
 protected:
  void SetUp() override {
    PartsTest::SetUp();
    ASSERT_TRUE(promises_.allocate(4, specs_));
    borders_.begin();
  }
  // A sequence that wrote `length` tokens.
  std::int32_t add(std::int32_t length) {
    const std::int32_t row = add_row(length);
    for (std::int32_t g = 0; g < 2; ++g) {
      for (std::int32_t at = 0; at < length; at += kSize) {
        blocks_.set_written(g, entry(row, g, at / kSize), {std::min(kSize, length - at), row, 1});
      }
    }
    return row;
  }
  [[nodiscard]] BlockId entry(std::int32_t row, std::int32_t g, std::int32_t logical) const {
    return tables_.of(row, g).at(tables_.arena(), logical);
  }
  [[nodiscard]] std::vector<std::int32_t> entries(std::int32_t row, std::int32_t g) const {
    const auto blocks = tables_.of(row, g).blocks(tables_.arena());
    return {blocks.begin(), blocks.end()};
  }
  // append() of positions [begin, end) in both groups, as the open step's next entry.
  void append(std::int32_t row, std::int32_t begin, std::int32_t end) {
    Step& step = steps_.open();
    for (std::int32_t g = 0; g < 2; ++g) {
      table_blocks_.append(step, row, g, begin, end, rules_.demand(row, g, begin, end));
    }
    StepEntry& e = step.entries[step.num_entries++];
    e = {};
    e.row = row;
    e.begin = e.write_begin = begin;
    e.end = end;
  }

  Promises promises_{rows_, tables_, groups_, steps_, blocks_, Order::kInOrder};
  AppendRules rules_{rows_, tables_, groups_, tree_, steps_, blocks_, promises_};
  Borders borders_{rows_, tables_, groups_, tree_, blocks_};
  TableBlocks table_blocks_{rows_,   tables_,   groups_,  steps_,
                            blocks_, promises_, borders_, Order::kInOrder};
};

TEST_F(TableBlocksTest, AnAppendInPlaceIsUndoneToWhatWasValid) {
  const std::int32_t row = add(6);
  const std::vector<std::int32_t> before = entries(row, kFull);
  steps_.begin();
  append(row, 6, 11);
  EXPECT_EQ(entries(row, kFull).size(), 3U);
  EXPECT_EQ(blocks_.pool(kFull).valid(entry(row, kFull, 1)), 4);
  EXPECT_EQ(blocks_.pool(kFull).valid(entry(row, kFull, 2)), 3);
  table_blocks_.undo(steps_.open(), 0);
  EXPECT_EQ(entries(row, kFull), before);
  EXPECT_EQ(blocks_.pool(kFull).valid(entry(row, kFull, 1)), 2);
  EXPECT_EQ(blocks_.pool(kFull).num_free(), 4);
}

TEST_F(TableBlocksTest, ATailThatAnotherHoldsMovesToTheStepAndComesBack) {
  const std::int32_t row = add(6);
  const BlockId tail = entry(row, kFull, 1);
  blocks_.set_writer(kFull, tail, row + 1);  // as of a fork that wrote first
  blocks_.hold(kFull, std::array{tail.value()});
  steps_.begin();
  append(row, 6, 7);
  EXPECT_NE(entry(row, kFull, 1), tail);
  EXPECT_EQ(steps_.open().change(0, kFull).source, tail.value());
  EXPECT_EQ(steps_.open().change(0, kFull).copy_to, entry(row, kFull, 1).value());
  EXPECT_EQ(steps_.open().num_displaced, 1);
  table_blocks_.undo(steps_.open(), 0);
  EXPECT_EQ(entry(row, kFull, 1), tail);
  EXPECT_EQ(steps_.open().num_displaced, 0);
  EXPECT_EQ(blocks_.pool(kFull).num_free(), 4);
  blocks_.let_go(kFull, tail, false);
}

TEST_F(TableBlocksTest, AWindowLetsGoOfWhatNoLaterQueryReads) {
  const std::int32_t row = add(14);
  rows_[row].publishes = false;
  const std::vector<std::int32_t> full = entries(row, kFull);
  table_blocks_.move_windows(row);
  EXPECT_EQ(entries(row, kFull), full);
  EXPECT_EQ(tables_.window_begin(row, kWindow), 2);
  EXPECT_FALSE(entry(row, kWindow, 1).valid());
  EXPECT_TRUE(entry(row, kWindow, 2).valid());
  EXPECT_EQ(blocks_.pool(kWindow).num_held(), 2);
}

TEST_F(TableBlocksTest, WhatIsReplacedIsLetGoAndIsNewToTheEngine) {
  const std::int32_t row = add(8);
  tables_.unplanned_from(row, kFull) = 2;
  const BlockId fresh = blocks_.acquire(kFull);
  const std::array<std::int32_t, 1> with{fresh.value()};
  table_blocks_.replace(row, kFull, 1, with);
  EXPECT_EQ(entry(row, kFull, 1), fresh);
  EXPECT_EQ(tables_.unplanned_from(row, kFull), 1);
  EXPECT_EQ(blocks_.pool(kFull).num_held(), 2);
}

TEST_F(TableBlocksTest, ATruncatedTableKeepsTheBlockThatTheLengthEndsIn) {
  const std::int32_t row = add(12);
  table_blocks_.truncate(row, 5);
  EXPECT_EQ(entries(row, kFull).size(), 2U);
  EXPECT_EQ(blocks_.pool(kFull).num_held(), 2);
  table_blocks_.drop(row, kFull, 0, 1, 5);
  EXPECT_FALSE(entry(row, kFull, 0).valid());
  EXPECT_EQ(blocks_.pool(kFull).num_held(), 1);
  table_blocks_.let_go(row);
  EXPECT_EQ(blocks_.pool(kFull).num_held(), 0);
  EXPECT_EQ(blocks_.pool(kWindow).num_held(), 0);
}

}  // namespace
}  // namespace kvfolio
