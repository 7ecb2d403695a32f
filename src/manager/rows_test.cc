// SPDX-License-Identifier: Apache-2.0
#include "manager/rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <vector>

namespace kvfolio {
namespace {

constexpr std::uint16_t kRowTag = 7;

Rows rows_for(std::int32_t num_rows, std::int32_t max_open) {
  Rows rows;
  EXPECT_TRUE(rows.allocate(num_rows, max_open, kRowTag));
  return rows;
}

SequenceId id_of(const Rows& rows, std::int32_t row) { return rows.id_of(rows[row]); }

// The sequence of the row ends, and no step uses the row.
void close(Rows& rows, std::int32_t row, bool aborted = false) {
  rows.leave_open(row);
  rows.end(row, aborted);
  rows.free(row);
}

TEST(Rows, TheFirstRowIsTakenFirstAndTheOneThatWasFreedLastNext) {
  Rows rows = rows_for(3, 3);
  EXPECT_EQ(rows.take(), 0);
  EXPECT_EQ(rows.take(), 1);
  close(rows, 0);
  EXPECT_EQ(rows.take(), 0);
  EXPECT_EQ(rows.take(), 2);
  EXPECT_EQ(rows.take(), Rows::kNone);
}

TEST(Rows, NoMoreAreOpenThanAllowedThoughRowsAreFree) {
  Rows rows = rows_for(4, 2);
  static_cast<void>(rows.take());
  static_cast<void>(rows.take());
  EXPECT_EQ(rows.take(), Rows::kNone);
  rows.leave_open(0);
  rows.close_later(0);
  EXPECT_EQ(rows.take(), 2);
  EXPECT_TRUE(rows.check().ok()) << rows.check().message();
}

TEST(Rows, AnIdNamesOnlyTheOpenSequenceThatItWasGivenTo) {
  Rows rows = rows_for(2, 2);
  const std::int32_t row = rows.take();
  const SequenceId id = id_of(rows, row);
  EXPECT_EQ(rows.find(id), row);
  EXPECT_EQ(rows.find(SequenceId(0)), Rows::kNone);
  EXPECT_EQ(rows.find(SequenceId(std::numeric_limits<std::uint64_t>::max())), Rows::kNone);
  EXPECT_EQ(rows.find(SequenceId(PackedId{kRowTag + 1, 1, 0}.bits())), Rows::kNone);
  EXPECT_EQ(rows.find(SequenceId(PackedId{kRowTag, 1, 1}.bits())), Rows::kNone);  // free
  EXPECT_EQ(rows.find(SequenceId(PackedId{kRowTag, 1, 2}.bits())), Rows::kNone);  // no such row
  close(rows, row);
  EXPECT_EQ(rows.find(id), Rows::kNone);
  static_cast<void>(rows.take());
  EXPECT_EQ(rows.find(id), Rows::kNone);
}

TEST(Rows, AClosingSequenceHasNoIdAnyMore) {
  Rows rows = rows_for(2, 1);
  const std::int32_t row = rows.take();
  const SequenceId id = id_of(rows, row);
  rows.leave_open(row);
  rows.close_later(row);
  EXPECT_EQ(rows.find(id), Rows::kNone);
  EXPECT_TRUE(rows.check().ok()) << rows.check().message();
}

TEST(Rows, AnIdThatNobodySawIsGivenAgainButWithAnotherBirth) {
  Rows rows = rows_for(1, 1);
  static_cast<void>(rows.take());
  const SequenceId id = id_of(rows, 0);
  const std::uint64_t birth = rows[0].birth;
  close(rows, 0);
  rows.give_id_again(0);
  static_cast<void>(rows.take());
  EXPECT_EQ(id_of(rows, 0), id);
  EXPECT_NE(rows[0].birth, birth);
}

TEST(Rows, OnlyTheLastAbortedIdOfARowIsRemembered) {
  Rows rows = rows_for(1, 1);
  static_cast<void>(rows.take());
  const SequenceId first = id_of(rows, 0);
  EXPECT_FALSE(rows.was_aborted(first));
  close(rows, 0, true);
  EXPECT_TRUE(rows.was_aborted(first));
  EXPECT_FALSE(rows.was_aborted(SequenceId(PackedId{kRowTag + 1, 1, 0}.bits())));
  static_cast<void>(rows.take());
  const SequenceId second = id_of(rows, 0);
  close(rows, 0);
  EXPECT_TRUE(rows.was_aborted(first));
  EXPECT_FALSE(rows.was_aborted(second));
  static_cast<void>(rows.take());
  close(rows, 0, true);
  EXPECT_FALSE(rows.was_aborted(first));
}

TEST(Rows, ATakenRowStartsFromNothing) {
  Rows rows = rows_for(1, 1);
  static_cast<void>(rows.take());
  rows[0].length = 5;
  rows[0].publishes = true;
  rows.details(0).max_tokens = 8;
  close(rows, 0);
  static_cast<void>(rows.take());
  EXPECT_EQ(rows[0].length, 0);
  EXPECT_FALSE(rows[0].publishes);
  EXPECT_EQ(rows.details(0).max_tokens, 0);
}

TEST(Rows, ACopiedSequenceKeepsItsOwnIdBirthAndPlaces) {
  Rows rows = rows_for(3, 3);
  const std::int32_t parent = rows.take();
  rows[parent].length = 9;
  rows.details(parent).priority = 3;
  const std::int32_t child = rows.take();
  const SequenceId id = id_of(rows, child);
  const std::uint64_t birth = rows[child].birth;
  rows.copy_sequence(parent, child);
  EXPECT_EQ(rows[child].length, 9);
  EXPECT_EQ(rows.details(child).priority, 3);
  EXPECT_EQ(id_of(rows, child), id);
  EXPECT_EQ(rows[child].birth, birth);
  EXPECT_TRUE(rows.check().ok()) << rows.check().message();
}

TEST(Rows, ClosingRowsEndInTheOrderInWhichTheyWereClosed) {
  Rows rows = rows_for(4, 4);
  for (int i = 0; i < 4; ++i) static_cast<void>(rows.take());
  for (const std::int32_t row : {2, 0, 3, 1}) {
    rows.leave_open(row);
    rows.close_later(row);
  }
  rows.leave_closing(3);
  rows.end(3, false);
  rows.free(3);
  std::vector<std::int32_t> asked;
  const auto end_if = [&](bool wanted) {
    return [&, wanted](std::int32_t row) {
      asked.push_back(row);
      if (!wanted || row == 0) return false;
      rows.end(row, false);
      rows.rest(row);
      return true;
    };
  };
  rows.end_closing(end_if(false));
  EXPECT_EQ(rows.closing().size(), 3u);
  rows.end_closing(end_if(true));
  EXPECT_EQ(asked, (std::vector<std::int32_t>{2, 0, 1, 2, 0, 1}));
  ASSERT_EQ(rows.closing().size(), 1u);
  EXPECT_EQ(rows.closing()[0], 0);
  EXPECT_EQ(rows.resting().size(), 2u);
  EXPECT_TRUE(rows.check().ok()) << rows.check().message();
}

TEST(Rows, ARestingRowIsNotTakenUntilItIsFreed) {
  Rows rows = rows_for(2, 2);
  static_cast<void>(rows.take());
  rows.leave_open(0);
  rows.end(0, false);
  rows.rest(0);
  EXPECT_EQ(rows.take(), 1);
  EXPECT_EQ(rows.take(), Rows::kNone);
  rows.free_rested([](std::int32_t) { return true; });
  EXPECT_EQ(rows.take(), Rows::kNone);
  rows.free_rested([](std::int32_t) { return false; });
  EXPECT_EQ(rows.take(), 0);
}

TEST(Rows, TheCheckFindsARowInNoList) {
  Rows rows = rows_for(2, 2);
  static_cast<void>(rows.take());
  rows.leave_open(0);
  EXPECT_FALSE(rows.check().ok());
  rows.end(0, false);
  EXPECT_FALSE(rows.check().ok());
  rows.free(0);
  EXPECT_TRUE(rows.check().ok());
}

TEST(Rows, EveryRowIsInOneListAndEveryIdIsGivenOutOnceWhateverHappens) {
  std::mt19937_64 random(1);
  constexpr std::int32_t kRows = 12;
  Rows rows = rows_for(kRows, kRows / 2);
  std::map<std::int32_t, SequenceId> open;
  std::set<std::uint64_t> given;
  std::set<std::uint64_t> births;
  for (int op = 0; op < 5000; ++op) {
    const auto row = static_cast<std::int32_t>(random() % kRows);
    switch (random() % 6) {
      case 0:
      case 1:
        if (const std::int32_t taken = rows.take(); taken != Rows::kNone) {
          open.insert_or_assign(taken, id_of(rows, taken));
          EXPECT_TRUE(given.insert(open.at(taken).value()).second);
          EXPECT_TRUE(births.insert(rows[taken].birth).second);
        } else {
          EXPECT_TRUE(open.size() == kRows / 2 ||
                      open.size() + rows.closing().size() + rows.resting().size() == kRows);
        }
        break;
      case 2:
        if (open.erase(row) != 0) {
          rows.leave_open(row);
          rows.end(row, random() % 2 == 0);
          if (random() % 2 == 0) {
            rows.free(row);
          } else {
            rows.rest(row);
          }
        }
        break;
      case 3:
        if (open.erase(row) != 0) {
          rows.leave_open(row);
          rows.close_later(row);
        }
        break;
      case 4:
        rows.end_closing([&](std::int32_t closing) {
          if (random() % 2 == 0) return false;
          rows.end(closing, false);
          rows.rest(closing);
          return true;
        });
        break;
      default:
        rows.free_rested([&](std::int32_t) { return random() % 2 == 0; });
    }
    ASSERT_TRUE(rows.check().ok()) << rows.check().message();
    ASSERT_EQ(rows.open().size(), open.size());
    for (const auto& [at, id] : open) ASSERT_EQ(rows.find(id), at);
  }
}

TEST(Rows, ACopyHasTheSameSequencesAndGoesItsOwnWay) {
  Rows rows = rows_for(3, 3);
  static_cast<void>(rows.take());
  static_cast<void>(rows.take());
  rows[1].length = 4;
  const SequenceId id = id_of(rows, 1);
  Rows copy = rows_for(3, 3);
  static_cast<void>(copy.take());
  copy.copy_from(rows);
  close(rows, 1);
  EXPECT_EQ(copy.find(id), 1);
  EXPECT_EQ(copy[1].length, 4);
  EXPECT_EQ(copy.take(), 2);
  EXPECT_EQ(copy[2].birth, 3u);
  EXPECT_TRUE(copy.check().ok()) << copy.check().message();
}

}  // namespace
}  // namespace kvfolio
