// SPDX-License-Identifier: Apache-2.0
//
// SequenceSpans over rows, tables and a tree, without a manager.
#include "manager/sequence_spans.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

#include "manager/test_parts.h"

namespace kvfolio {
namespace {

class SequenceSpansTest : public PartsTest {
 protected:
  // A sequence without tokens that publishes from the root.
  std::int32_t add_publishing() {
    const std::int32_t row = rows_.take();
    Sequence& s = rows_[row];
    s.step_entry = -1;
    s.exact_until = Sequence::kNever;
    s.publishes = true;
    tables_.begin(row);
    return row;
  }
  // Takes words until fewer than this many are free.
  void leave_free(std::int64_t words) {
    SpanArena& arena = tables_.arena();
    for (ArenaSpan& span : taken_) {
      std::int64_t size = arena.free_words() - words;
      while (size > 0 && !arena.reserve(span, size, 0)) size /= 2;
      if (size <= 0) break;
    }
    ASSERT_LT(arena.free_words(), words + SpanArena::kGranule);
  }
  void give_back() {
    for (ArenaSpan& span : taken_) tables_.arena().release(span);
  }
  [[nodiscard]] std::int64_t free_words() const { return tables_.arena().free_words(); }

  SequenceSpans spans_{rows_, tables_, groups_, tree_};
  std::array<ArenaSpan, 32> taken_;
};

TEST_F(SequenceSpansTest, ALengthTakesEntriesOfAllGroupsAndTheTokensThatTheTreeLacks) {
  const std::int32_t row = add_publishing();
  Sequence& s = rows_[row];
  EXPECT_EQ(spans_.table_words(9), 6);  // three blocks of four, in two groups
  EXPECT_EQ(spans_.words_for(s, 9), 15);
  s.exact_until = 5;  // what follows is never published
  EXPECT_EQ(spans_.words_for(s, 9), 11);
  s.publishes = false;
  EXPECT_EQ(spans_.words_for(s, 9), 6);
}

TEST_F(SequenceSpansTest, WhereOneSpanIsNotToBeHadNoneIsTaken) {
  const std::int32_t row = add_publishing();
  ASSERT_TRUE(spans_.grow(row, 8, true));
  ASSERT_GE(SpanArena::capacity(rows_[row].pending), 8);
  leave_free(64);
  const std::int64_t before = free_words();
  const std::int64_t capacity = tables_.of(row, kFull).capacity();
  EXPECT_FALSE(spans_.grow(row, 200, true));
  EXPECT_EQ(free_words(), before);
  EXPECT_EQ(tables_.of(row, kFull).capacity(), capacity);
  give_back();
  EXPECT_TRUE(spans_.grow(row, 200, true));
  EXPECT_GE(tables_.of(row, kFull).capacity(), 50);
  EXPECT_GE(SpanArena::capacity(rows_[row].pending), 200);
}

TEST_F(SequenceSpansTest, WhatMovesKeepsItsTokensAndEntries) {
  const std::int32_t row = add_publishing();
  ASSERT_TRUE(spans_.grow(row, 4, true));
  const std::array<std::int32_t, 1> blocks{3};
  for (std::int32_t g = 0; g < 2; ++g) tables_.of(row, g).assign(tables_.arena(), blocks);
  tables_.arena().at(rows_[row].pending)[0] = 77;
  rows_[row].length = 1;
  ASSERT_TRUE(spans_.grow(row, 150, true));
  EXPECT_EQ(tables_.of(row, kWindow).at(tables_.arena(), 0), BlockId(3));
  EXPECT_EQ(tables_.arena().at(rows_[row].pending)[0], 77);
}

TEST_F(SequenceSpansTest, AForkWithoutRoomForTokensHasItsTablesAndDoesNotPublish) {
  const std::int32_t parent = add_publishing();
  ASSERT_TRUE(spans_.grow(parent, 120, true));
  rows_[parent].length = 120;
  const std::int32_t child = rows_.take();
  tables_.begin(child);
  leave_free(48);
  bool publishes = true;
  EXPECT_TRUE(spans_.grow_for_fork(parent, child, publishes));
  EXPECT_FALSE(publishes);
  EXPECT_EQ(SpanArena::capacity(rows_[child].pending), 0);
  give_back();
  EXPECT_TRUE(spans_.grow_for_fork(parent, child, publishes));
  EXPECT_TRUE(publishes);
}

TEST_F(SequenceSpansTest, MediaAreKeptAndAllWordsComeBack) {
  const std::int64_t before = free_words();
  const std::int32_t row = add_publishing();
  const std::array<MediaSpan, 2> media{
      {{.begin = 1, .end = 3, .content_id = {}}, {.begin = 5, .end = 9, .content_id = {}}}};
  ASSERT_TRUE(spans_.keep_media(rows_[row], media));
  ASSERT_TRUE(spans_.grow(row, 40, true));
  const auto kept = spans_.media_of(rows_[row]);
  ASSERT_EQ(kept.size(), 2U);
  EXPECT_EQ(kept[1].begin, 5);
  EXPECT_EQ(kept[1].end, 9);
  spans_.release(row);
  EXPECT_EQ(free_words(), before);
}

TEST_F(SequenceSpansTest, WhatAdmitPromisedStaysWhenTheRestGoes) {
  const std::int32_t row = add_publishing();
  ASSERT_TRUE(spans_.grow(row, 400, true));
  rows_.details(row).admitted = 100;
  spans_.shrink_pending(row, 2);
  EXPECT_GE(SpanArena::capacity(rows_[row].pending), 100);
  spans_.shrink_to_need(row);
  EXPECT_GE(SpanArena::capacity(rows_[row].pending), 100);
  EXPECT_LT(SpanArena::capacity(rows_[row].pending), 400);
  EXPECT_GE(tables_.of(row, kFull).capacity(), 25);
  rows_.details(row).admitted = 0;
  spans_.shrink_to_need(row);
  EXPECT_EQ(SpanArena::capacity(rows_[row].pending), 0);
}

TEST_F(SequenceSpansTest, OfALongPromptThatThePathTookOneUnitStays) {
  const std::int32_t row = add_publishing();
  ASSERT_TRUE(spans_.grow(row, 400, true));
  spans_.shrink_pending(row, 2);
  EXPECT_LT(SpanArena::capacity(rows_[row].pending), 100);
  EXPECT_GE(SpanArena::capacity(rows_[row].pending), kSize);
}

}  // namespace
}  // namespace kvfolio
