// SPDX-License-Identifier: Apache-2.0
#include "manager/tables.h"

#include <gtest/gtest.h>

#include <array>

namespace kvfolio {
namespace {

TEST(Tables, EachRowHasATableForEachGroup) {
  Tables tables;
  ASSERT_TRUE(tables.allocate(3, 2, 256, true).ok());
  ASSERT_TRUE(tables.of(1, 1).reserve(tables.arena(), 4));
  tables.of(1, 1).assign(tables.arena(), std::array{7, 8});
  EXPECT_EQ(tables.of(1, 1).size(), 2);
  EXPECT_EQ(tables.of(1, 0).size(), 0);
  EXPECT_EQ(tables.of(2, 1).size(), 0);
  EXPECT_GE(tables.words_of(1), 4);
  EXPECT_EQ(tables.words_of(0), 0);
  EXPECT_TRUE(tables.check().ok());
}

TEST(Tables, WhatARowReleasesIsFreeAgain) {
  Tables tables;
  ASSERT_TRUE(tables.allocate(2, 2, 256, false).ok());
  const std::int64_t before = tables.arena().free_words();
  for (std::int32_t g = 0; g < 2; ++g) ASSERT_TRUE(tables.of(0, g).reserve(tables.arena(), 9));
  EXPECT_LT(tables.arena().free_words(), before);
  tables.release(0);
  EXPECT_EQ(tables.arena().free_words(), before);
  EXPECT_EQ(tables.words_of(0), 0);
}

TEST(Tables, ChangesAreKnownFromTheFirstOneOn) {
  Tables tables;
  ASSERT_TRUE(tables.allocate(1, 1, 256, false).ok());
  tables.unplanned_from(0, 0) = 9;
  tables.note_entries(0, 0, 5);
  tables.note_entries(0, 0, 7);
  EXPECT_EQ(tables.unplanned_from(0, 0), 5);
  tables.window_begin(0, 0) = 3;
  tables.begin(0);
  EXPECT_EQ(tables.unplanned_from(0, 0), 0);
  EXPECT_EQ(tables.window_begin(0, 0), 0);
}

TEST(Tables, ACopyHasTheEntriesAndNoPlan) {
  Tables tables;
  Tables copy;
  ASSERT_TRUE(tables.allocate(2, 1, 256, true).ok());
  ASSERT_TRUE(copy.allocate(2, 1, 256, true).ok());
  ASSERT_TRUE(tables.of(1, 0).reserve(tables.arena(), 2));
  tables.of(1, 0).assign(tables.arena(), std::array{5, 6});
  tables.unplanned_from(1, 0) = 2;
  tables.border(1, 0) = {1, 2};
  copy.copy_from(tables);
  EXPECT_EQ(copy.of(1, 0).at(copy.arena(), 1), BlockId(6));
  EXPECT_EQ(copy.unplanned_from(1, 0), 0);
  EXPECT_EQ(copy.border(1, 0).end, 2);
  tables.release(1);
  EXPECT_EQ(copy.of(1, 0).size(), 2);
  EXPECT_TRUE(copy.check().ok());
}

TEST(Tables, CheckSeesABorderThatEndsBeforeItBegins) {
  Tables tables;
  ASSERT_TRUE(tables.allocate(1, 1, 256, true).ok());
  tables.border(0, 0) = {3, 1};
  EXPECT_FALSE(tables.check().ok());
}

TEST(Tables, TooManyWordsAreAnErrorThatNamesTheOption) {
  Tables tables;
  EXPECT_EQ(tables.allocate(1, 1, -1, false).message(),
            "no memory for max_table_entries -1; lower it");
}

}  // namespace
}  // namespace kvfolio
