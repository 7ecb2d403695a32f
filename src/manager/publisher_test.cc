// SPDX-License-Identifier: Apache-2.0
//
// Publisher over rows, tables, a tree and Blocks, without a manager.
#include "manager/publisher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "manager/test_parts.h"

namespace kvfolio {
namespace {

class PublisherTest : public PartsTest {
 protected:
  void SetUp() override {
    PartsTest::SetUp();
    borders_.begin();
    publisher_.begin();
  }
  void TearDown() override {
    for (const std::int32_t row : rows_.open()) {
      if (rows_[row].publishes) publisher_.stop(row);
    }
    PartsTest::TearDown();
  }
  // A sequence at the root of the tokens first, first + 1, ..., all accepted.
  std::int32_t add(std::int32_t first, std::int32_t length) {
    const std::int32_t row = add_row(length);
    Sequence& s = rows_[row];
    s.exact_until = s.unnamed_from = Sequence::kNever;
    rows_.details(row).own_from = Sequence::kNever;
    s.publishes = true;
    s.place = tree_->enter(root_, 0);
    EXPECT_TRUE(spans_.grow(row, length + 1, true));
    s.length = 0;
    EXPECT_TRUE(spans_.grow(row, length, true));
    s.length = length;
    std::iota(pending(row), pending(row) + length, first);
    for (std::int32_t g = 0; g < 2; ++g) {
      for (std::int32_t at = 0; at < length; at += kSize) {
        blocks_.set_written(g, block(row, g, at / kSize), {std::min(kSize, length - at), row, 1});
      }
    }
    return row;
  }
  [[nodiscard]] std::int32_t* pending(std::int32_t row) {
    return tables_.arena().at(rows_[row].pending);
  }
  [[nodiscard]] BlockId block(std::int32_t row, std::int32_t g, std::int32_t logical) const {
    return tables_.of(row, g).at(tables_.arena(), logical);
  }
  [[nodiscard]] bool is_findable(std::int32_t row, std::int32_t logical) const {
    return blocks_.is_findable(kFull, block(row, kFull, logical));
  }

  ManagerOptions options_;
  SequenceSpans spans_{rows_, tables_, groups_, tree_};
  Prompts prompts_{rows_, tables_, tree_};
  Borders borders_{rows_, tables_, groups_, tree_, blocks_};
  Announcements announcements_;
  Publisher publisher_{rows_,    tables_, groups_,  tree_,     steps_,   blocks_,
                       borders_, spans_,  prompts_, counters_, options_, announcements_};
};

TEST_F(PublisherTest, FullBlocksBecomeFindableAndTheRestStaysWithTheSequence) {
  const std::int32_t row = add(100, 10);
  publisher_.publish(row, false);
  EXPECT_EQ(rows_[row].place.position, 8);
  EXPECT_TRUE(is_findable(row, 1));
  EXPECT_FALSE(is_findable(row, 2));
  EXPECT_EQ(pending(row)[0], 108);
  EXPECT_EQ(pending(row)[1], 109);
  EXPECT_EQ(counters_.blocks_published, 4);
  publisher_.publish(row, true);
  EXPECT_TRUE(is_findable(row, 2));
}

TEST_F(PublisherTest, WhatIsNotAcceptedNotNamedOrNotExactIsNot) {
  const std::int32_t row = add(100, 12);
  Sequence& s = rows_[row];
  s.accepted = 11;
  EXPECT_EQ(publisher_.end_now(s), 11);
  s.unnamed_from = 9;
  EXPECT_EQ(publisher_.end_now(s), 9);
  s.exact_until = 5;
  EXPECT_EQ(publisher_.end_now(s), 5);
  publisher_.publish(row, false);
  EXPECT_EQ(rows_[row].place.position, 4);
  EXPECT_TRUE(is_findable(row, 0));
  EXPECT_FALSE(is_findable(row, 1));
}

TEST_F(PublisherTest, AnEqualBlockOfAnotherSequenceStaysTheOneThatIsFound) {
  const std::int32_t first = add(100, 4);
  const std::int32_t second = add(100, 4);
  publisher_.publish(first, false);
  publisher_.publish(second, false);
  EXPECT_TRUE(is_findable(first, 0));
  EXPECT_FALSE(is_findable(second, 0));
  EXPECT_EQ(rows_.details(second).own_from, 0);  // it is offered again when that one has gone
  blocks_.drop_entry(kFull, block(first, kFull, 0));
  publisher_.publish(second, true);
  EXPECT_TRUE(is_findable(second, 0));
}

TEST_F(PublisherTest, WhatHasStoppedLeavesItsWordsAndItsPlace) {
  const std::int32_t row = add(100, 10);
  publisher_.publish(row, false);
  publisher_.stop(row);
  EXPECT_FALSE(rows_[row].publishes);
  EXPECT_FALSE(rows_[row].place.valid());
  EXPECT_EQ(SpanArena::capacity(rows_[row].pending), 0);
  EXPECT_TRUE(is_findable(row, 0));  // what was found is found still
  publisher_.publish(row, true);
  EXPECT_FALSE(is_findable(row, 2));
}

}  // namespace
}  // namespace kvfolio
