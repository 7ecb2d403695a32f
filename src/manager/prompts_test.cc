// SPDX-License-Identifier: Apache-2.0
//
// Prompts over rows, tables and a tree, without a manager.
#include "manager/prompts.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "manager/test_parts.h"

namespace kvfolio {
namespace {

// A sequence whose prompt has 12 tokens, of which the tree keeps 8.
class PromptsTest : public PartsTest {
 protected:
  void SetUp() override {
    PartsTest::SetUp();
    prefix_ = publish(100, 8);
    row_ = add_row(0);
    Sequence& s = rows_[row_];
    s.exact_until = Sequence::kNever;
    s.publishes = true;
    s.place = prefix_.place;
    s.length = s.accepted = 8;
    rows_.details(row_).found_tokens = 8;
    prompt_.resize(12);
    std::iota(prompt_.begin(), prompt_.end(), 100);
    prompts_.keep(row_, prompt_, false);
  }
  void TearDown() override {
    let_go(prefix_);
    PartsTest::TearDown();
  }
  [[nodiscard]] bool is_refused(std::span<const std::int32_t> tokens) const {
    return !prompts_.check_not_again(row_, "append", tokens).ok();
  }

  Prompts prompts_{rows_, tables_, tree_};
  Prefix prefix_;
  std::vector<std::int32_t> prompt_;
  std::int32_t row_ = -1;
};

TEST_F(PromptsTest, TheWholePromptOverAgainIsRefusedAndItsRestIsNot) {
  EXPECT_TRUE(is_refused(prompt_));
  std::vector<std::int32_t> more = prompt_;
  more.push_back(1);
  EXPECT_TRUE(is_refused(more));
  EXPECT_FALSE(is_refused(std::span(prompt_).subspan(8)));
  std::vector<std::int32_t> other = prompt_;
  other.front() = 5;
  EXPECT_FALSE(is_refused(other));
  other = prompt_;
  other.back() = 5;
  EXPECT_FALSE(is_refused(other));
}

TEST_F(PromptsTest, WhatStopsPublishingKnowsItsPromptStill) {
  prompts_.note_unpublished(row_);
  rows_[row_].publishes = false;
  EXPECT_TRUE(is_refused(prompt_));
}

TEST_F(PromptsTest, AStepEndsIt) {
  rows_[row_].has_planned = true;
  EXPECT_FALSE(prompts_.stands_at_open(row_));
  EXPECT_FALSE(is_refused(prompt_));
  EXPECT_EQ(prompts_.behind(row_, prompt_).tokens, 0);
}

TEST_F(PromptsTest, AForkKnowsItWhereItsParentStands) {
  const std::int32_t child = add_row(0);
  rows_.copy_sequence(row_, child);
  rows_[child].publishes = false;
  prompts_.note_fork(row_, child, false);
  EXPECT_FALSE(prompts_.check_not_again(child, "append", prompt_).ok());
  rows_[row_].length = 9;
  prompts_.note_fork(row_, child, false);
  EXPECT_TRUE(prompts_.check_not_again(child, "append", prompt_).ok());
}

TEST_F(PromptsTest, ALoadBehindItCanBringALongerPrompt) {
  std::vector<std::int32_t> longer = prompt_;
  longer.insert(longer.end(), {1, 2, 3, 4});
  const Transfers::Prompt known = prompts_.behind(row_, longer);
  EXPECT_EQ(known.tokens, 16);
  prompts_.note_loaded(row_, 8, known);
  EXPECT_FALSE(is_refused(prompt_));  // of the longer one it is a part only
  EXPECT_TRUE(is_refused(longer));
}

// The host goes by what open() said, and a load has brought more since.
TEST_F(PromptsTest, BehindALoadWhatWasLeftBeforeIsRefused) {
  const auto left_at_open = std::span(prompt_).subspan(8);
  EXPECT_FALSE(is_refused(left_at_open));
  const Transfers::Prompt known = prompts_.behind(row_, prompt_);
  rows_[row_].length = rows_[row_].accepted = 11;
  rows_.details(row_).found_tokens = 8;
  prompts_.note_loaded(row_, 11, known);
  rows_.details(row_).found_tokens = 11;
  EXPECT_TRUE(is_refused(left_at_open));
  EXPECT_FALSE(is_refused(std::span(prompt_).subspan(11)));
  EXPECT_FALSE(is_refused(std::span(prompt_).subspan(8, 3)));  // a text may say such a thing
}

}  // namespace
}  // namespace kvfolio
