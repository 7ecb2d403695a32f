// SPDX-License-Identifier: Apache-2.0
#include "manager/caller_ids.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <map>
#include <random>

namespace kvfolio {
namespace {

CallerIds ids_for(std::int64_t rows, std::uint64_t seed = 0) {
  CallerIds ids;
  EXPECT_TRUE(ids.allocate(rows, seed));
  return ids;
}

TEST(CallerIds, AnIdFindsTheRowThatItWasGivenTo) {
  CallerIds ids = ids_for(4);
  constexpr std::uint64_t kLargest = std::numeric_limits<std::uint64_t>::max();
  ids.insert(0, 3);
  ids.insert(kLargest, 0);
  EXPECT_EQ(ids.find(0), 3);
  EXPECT_EQ(ids.find(kLargest), 0);
  EXPECT_EQ(ids.find(1), CallerIds::kNoRow);
  EXPECT_EQ(ids.size(), 2);
}

TEST(CallerIds, AnErasedIdIsNotFoundAndMayComeBackWithAnotherRow) {
  CallerIds ids = ids_for(1);
  ids.insert(7, 0);
  ids.erase(7);
  EXPECT_EQ(ids.find(7), CallerIds::kNoRow);
  EXPECT_EQ(ids.size(), 0);
  ids.insert(7, 5);
  EXPECT_EQ(ids.find(7), 5);
}

TEST(CallerIds, AsManyIdsAsRowsFitWhateverTheSeed) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    CallerIds ids = ids_for(16, seed);
    const auto id_of = [&](std::int32_t row) {
      return seed * 16 + static_cast<std::uint64_t>(row);
    };
    for (std::int32_t row = 0; row < 16; ++row) ids.insert(id_of(row), row);
    for (std::int32_t row = 0; row < 16; ++row) EXPECT_EQ(ids.find(id_of(row)), row);
    EXPECT_TRUE(ids.check().ok()) << ids.check().message();
  }
}

TEST(CallerIds, WhatIsErasedInAnyOrderHidesNoOtherId) {
  std::mt19937_64 random(1);
  for (int run = 0; run < 20; ++run) {
    // A small table that is kept full: ids share homes, and chains go round its end.
    constexpr std::int32_t kRows = 8;
    CallerIds ids = ids_for(kRows, random());
    std::map<std::uint64_t, std::int32_t> model;
    for (int op = 0; op < 2000; ++op) {
      const std::uint64_t id = random() % 24;
      if (model.count(id) != 0) {
        ids.erase(id);
        model.erase(id);
      } else if (model.size() < kRows) {
        const auto row = static_cast<std::int32_t>(random() % 1000);
        ids.insert(id, row);
        model[id] = row;
      }
      ASSERT_TRUE(ids.check().ok()) << ids.check().message();
      ASSERT_EQ(ids.size(), static_cast<std::int32_t>(model.size()));
      for (std::uint64_t each = 0; each < 24; ++each) {
        const auto found = model.find(each);
        ASSERT_EQ(ids.find(each), found == model.end() ? CallerIds::kNoRow : found->second);
      }
    }
  }
}

TEST(CallerIds, ACopyAnswersTheSameAndIsIndependent) {
  CallerIds ids = ids_for(4, 9);
  ids.insert(1, 2);
  CallerIds copy = ids_for(4, 8);
  copy.insert(5, 3);
  copy.copy_from(ids);
  EXPECT_EQ(copy.find(1), 2);
  EXPECT_EQ(copy.find(5), CallerIds::kNoRow);
  ids.erase(1);
  EXPECT_EQ(copy.find(1), 2);
  EXPECT_EQ(copy.size(), 1);
  EXPECT_TRUE(copy.check().ok());
}

}  // namespace
}  // namespace kvfolio
