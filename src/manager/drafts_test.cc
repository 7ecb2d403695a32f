// SPDX-License-Identifier: Apache-2.0
//
// Undecided stretches alone: rows and positions.

#include "manager/drafts.h"

#include <gtest/gtest.h>

namespace kvfolio {
namespace {

// Row 1 of two, which may have three stretches.
struct OneRow {
  static constexpr std::int32_t kRow = 1;
  Drafts drafts;

  OneRow() {
    EXPECT_TRUE(drafts.allocate(2, 3));
    drafts.clear(0);
    drafts.clear(kRow);
  }
  // Behind the others: so many tokens, the last ones guesses.
  void add(std::int32_t tokens, std::int32_t draft) {
    drafts.add(kRow, {length, length + tokens, draft});
    length += tokens;
  }
  [[nodiscard]] bool is_sound(std::int32_t accepted) const {
    return drafts.check(kRow, accepted, length).ok();
  }
  std::int32_t length = 10;
};

TEST(Drafts, AcceptedLengthGoesOnToTheNextGuess) {
  OneRow row;
  row.add(3, 2);
  row.add(4, 1);
  EXPECT_TRUE(row.is_sound(11));
  EXPECT_EQ(row.drafts.next(OneRow::kRow), 2);
  EXPECT_EQ(row.drafts.accept(OneRow::kRow), 16);
  EXPECT_TRUE(row.is_sound(16));
  EXPECT_EQ(row.drafts.next(OneRow::kRow), 1);
  EXPECT_EQ(row.drafts.accept(OneRow::kRow), 17);
  EXPECT_EQ(row.drafts.num(OneRow::kRow), 0);
  EXPECT_EQ(row.drafts.next(OneRow::kRow), 0);
  EXPECT_EQ(row.drafts.num(0), 0);
}

TEST(Drafts, WhatHasNoGuessesIsDecidedWithWhatStandsBefore) {
  OneRow row;
  row.add(2, 1);
  row.add(1, 0);
  row.add(5, 0);
  EXPECT_FALSE(row.drafts.has_room(OneRow::kRow));
  EXPECT_EQ(row.drafts.accept(OneRow::kRow), 18);
  EXPECT_TRUE(row.is_sound(18));
}

TEST(Drafts, ACutTakesTheGuessesBehindIt) {
  OneRow row;
  row.add(3, 2);  // accepted to 11
  row.add(4, 2);  // [13, 17)
  row.add(2, 0);
  row.length = 16;
  row.drafts.cut(OneRow::kRow, 16);
  EXPECT_EQ(row.drafts.num(OneRow::kRow), 2);
  EXPECT_TRUE(row.is_sound(11));
  row.length = 14;  // what is left of the second has no guess, and waits for the first
  row.drafts.cut(OneRow::kRow, 14);
  EXPECT_EQ(row.drafts.num(OneRow::kRow), 2);
  EXPECT_TRUE(row.is_sound(11));
  row.length = 12;
  row.drafts.cut(OneRow::kRow, 12);
  EXPECT_EQ(row.drafts.next(OneRow::kRow), 1);
  EXPECT_TRUE(row.is_sound(11));
  row.length = 11;  // no guess is left
  row.drafts.cut(OneRow::kRow, 11);
  EXPECT_EQ(row.drafts.num(OneRow::kRow), 0);
  EXPECT_TRUE(row.is_sound(11));
}

TEST(Drafts, ACutBehindTheLastTokenChangesNothing) {
  OneRow row;
  row.add(3, 3);
  row.drafts.cut(OneRow::kRow, row.length);
  EXPECT_EQ(row.drafts.next(OneRow::kRow), 3);
  EXPECT_TRUE(row.is_sound(10));
}

TEST(Drafts, ACopyHasTheSameStretches) {
  OneRow row;
  row.add(3, 2);
  OneRow other;
  other.drafts.copy_from(row.drafts);
  other.length = row.length;
  EXPECT_TRUE(other.is_sound(11));
}

TEST(Drafts, CheckSaysWhatIsBroken) {
  OneRow row;
  EXPECT_TRUE(row.is_sound(10));
  EXPECT_FALSE(row.is_sound(9));  // undecided tokens without a stretch
  row.add(3, 1);
  EXPECT_TRUE(row.is_sound(12));
  EXPECT_FALSE(row.is_sound(11));
  ++row.length;
  const Status broken = row.drafts.check(OneRow::kRow, 12, row.length);
  EXPECT_NE(broken.message().find("[10, 13) with 1 guesses"), std::string::npos)
      << broken.message();
}

}  // namespace
}  // namespace kvfolio
