// SPDX-License-Identifier: Apache-2.0
#include "manager/plan_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

namespace kvfolio {
namespace {

using testing::HasSubstr;

constexpr std::array<std::int32_t, 2> kTwoStrides = {5, 7};

PlanOptions fixed_options() {
  return {.changed_entries = true,
          .flashinfer = true,
          .positions = true,
          .table_stride = kTwoStrides,
          .padded_sequences = 3,
          .padded_tokens = 9};
}

PlanLayout layout_of(const PlanOptions& options) {
  const Result<PlanSizes> sizes = fixed_sizes(options, 2);
  EXPECT_TRUE(sizes);
  return PlanLayout::of(options, *sizes, 2);
}

// [begin, end) of each array, by place.
std::vector<std::pair<std::int64_t, std::int64_t>> arrays_of(const PlanOptions& options,
                                                             const PlanLayout& layout) {
  std::vector<std::pair<std::int64_t, std::int64_t>> arrays;
  const auto add = [&](std::int64_t begin, std::int64_t words) {
    arrays.emplace_back(begin, begin + words);
  };
  for (int i = 0; i < 6; ++i) add(layout.rows + i * layout.row_words, i == 0 ? 4 : 3);
  add(layout.positions, 9);
  for (std::size_t g = 0; g < 2; ++g) {
    const PlanLayout::Group& group = layout.groups[g];
    const std::int64_t entries = 3 * std::int64_t{kTwoStrides[g]};
    add(group.slots, options.int64_slots ? 18 : 9);
    add(group.table, entries);
    for (int i = 0; i < 3; ++i) add(group.pages + i * layout.row_words, i == 0 ? 4 : 3);
    add(group.indices, entries);
    for (int i = 0; i < 3; ++i) add(group.changed + i * group.changed_words, entries);
    for (int i = 0; i < 2; ++i) add(group.copies + i * group.copy_words, 3);
  }
  std::sort(arrays.begin(), arrays.end());
  return arrays;
}

TEST(PlanLayout, ArraysBeginAtMultiplesOf16BytesAndDoNotOverlap) {
  for (const bool int64_slots : {false, true}) {
    PlanOptions options = fixed_options();
    options.int64_slots = int64_slots;
    const PlanLayout layout = layout_of(options);
    std::int64_t end = 0;
    for (const auto& [begin, array_end] : arrays_of(options, layout)) {
      EXPECT_EQ(begin % 4, 0);
      EXPECT_GE(begin, end);
      end = array_end;
    }
    EXPECT_LE(end, layout.words);
    EXPECT_LT(layout.words, end + 4);
  }
}

TEST(PlanLayout, WhatTheOptionsFixStandsInFrontOfWhatTheStepDecides) {
  PlanOptions options = fixed_options();
  PlanSizes sizes = *fixed_sizes(options, 2);
  sizes.groups[0].is_fixed = false;  // as if its stride were 0
  const PlanLayout layout = PlanLayout::of(options, sizes, 2);
  EXPECT_GT(layout.groups[0].indices, layout.groups[1].indices);
  EXPECT_GT(layout.groups[0].changed, layout.groups[1].changed);
}

TEST(PlanLayout, WhatIsNotAskedForTakesNoRoom) {
  const std::int64_t all = layout_of(fixed_options()).words;
  for (bool PlanOptions::*const option : {&PlanOptions::changed_entries, &PlanOptions::flashinfer,
                                          &PlanOptions::positions, &PlanOptions::block_tables}) {
    PlanOptions options = fixed_options();
    options.*option = false;
    EXPECT_LT(layout_of(options).words, all);
  }
}

TEST(PlanLayout, TheLargestShapesAreCountedWithoutOverflow) {
  std::array<std::int32_t, kMaxGroups> strides{};
  strides.fill(kMaxSequenceTokens);
  PlanOptions options = fixed_options();
  options.table_stride = strides;
  options.padded_sequences = 1 << 23;
  options.padded_tokens = kMaxSequenceTokens;
  options.int64_slots = true;
  GroupSpec spec{.num_layers = 1, .num_kv_heads = 1, .head_dim_k = 8, .head_dim_v = 8};
  spec.block_size = 1;
  const std::vector<Group> groups(kMaxGroups, {spec, GroupRule(spec), 32, BlockSize(1)});
  const ManagerOptions limits{.max_sequences = 1 << 23, .max_table_entries = std::int64_t{1} << 33};
  ASSERT_TRUE(check_shape("plan", options, groups, limits).ok());
  const PlanLayout layout = PlanLayout::of(options, *fixed_sizes(options, kMaxGroups), kMaxGroups);
  EXPECT_GT(layout.bytes(), std::int64_t{kMaxGroups} * 5 * 4 << 53);
}

TEST(PlanLayout, PlansWithoutAShapeAreKnownAtOnce) {
  EXPECT_FALSE(has_shape({}));
  EXPECT_FALSE(has_shape({.flashinfer = true, .positions = true}));
  EXPECT_TRUE(has_shape({.padded_sequences = 1}));
  EXPECT_TRUE(has_shape({.padded_tokens = 1}));
  EXPECT_TRUE(has_shape({.int64_slots = true}));
  EXPECT_TRUE(has_shape({.table_stride = kTwoStrides}));
}

}  // namespace
}  // namespace kvfolio
