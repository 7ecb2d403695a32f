// SPDX-License-Identifier: Apache-2.0

// fit(): as many blocks as a budget of bytes holds.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kvfolio/spec.h"

namespace kvfolio {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kMaxBytes = std::numeric_limits<std::int64_t>::max();

// A block of block_size x 64 bytes.
GroupSpec group(std::int32_t block_size, std::int32_t weight = 0) {
  return {.head_dim_k = 8, .head_dim_v = 8, .block_size = block_size, .num_blocks = weight};
}

std::int64_t total_of(const CacheSpec& spec) {
  std::int64_t total = 0;
  for (const GroupLayout& layout : *plan_layouts(spec)) total += layout.total_bytes;
  return total;
}

// One more block would have slots that do not fit int32.
bool out_of_slots(const GroupSpec& group) {
  return (std::int64_t{group.num_blocks} + 1) * group.block_size >
         std::numeric_limits<std::int32_t>::max();
}

// Within the budget, and one more block of any group is not.
void expect_full(const CacheSpec& spec, std::int64_t bytes) {
  ASSERT_TRUE(plan_layouts(spec)) << plan_layouts(spec).error().message();
  EXPECT_LE(total_of(spec), bytes);
  for (std::size_t g = 0; g < spec.groups.size(); ++g) {
    if (out_of_slots(spec.groups[g])) continue;
    CacheSpec more = spec;
    ++more.groups[g].num_blocks;
    const auto layouts = plan_layouts(more);
    EXPECT_TRUE(!layouts || total_of(more) > bytes) << "group " << g;
  }
}

TEST(Fit, OneGroupGetsExactlyTheBlocksThatTheBudgetHolds) {
  for (const std::int32_t weight : {0, 1, 7, 1 << 30}) {
    for (const std::int64_t bytes : {1024, 2047, 2048, 1024 * 1000 + 1}) {
      const Result<CacheSpec> spec = fit({.groups = {group(16, weight)}}, bytes);
      ASSERT_TRUE(spec) << spec.error().message();
      EXPECT_EQ(spec->groups[0].num_blocks, bytes / 1024);
      CacheSpec want{.groups = {group(16, static_cast<std::int32_t>(bytes / 1024))}};
      EXPECT_EQ(*spec, want);  // nothing else changes
    }
  }
}

TEST(Fit, WeightsAreTheRatioOfTheBlocks) {
  // Blocks of 1024 and of 4096 bytes, 3 to 1: a round takes 7168 bytes.
  const CacheSpec weighted{.groups = {group(16, 3), group(64, 1)}};
  Result<CacheSpec> spec = fit(weighted, 100 * 7168);
  ASSERT_TRUE(spec);
  EXPECT_EQ(spec->groups[0].num_blocks, 300);
  EXPECT_EQ(spec->groups[1].num_blocks, 100);
  // Two more small blocks keep the ratio, then what is left holds a large one.
  spec = fit(weighted, 100 * 7168 + 6 * 1024 + 1023);
  EXPECT_EQ(spec->groups[0].num_blocks, 302);
  EXPECT_EQ(spec->groups[1].num_blocks, 101);
  // The result is a good weight.
  EXPECT_EQ(*fit(*spec, 100 * 7168 + 6 * 1024 + 1023), *spec);
}

TEST(Fit, WithoutWeightsEveryGroupHasRoomForEquallyManyTokens) {
  const Result<CacheSpec> spec = fit({.groups = {group(16), group(64), group(48)}}, 1 << 24);
  ASSERT_TRUE(spec);
  std::vector<std::int32_t> tokens;
  for (const GroupSpec& g : spec->groups) tokens.push_back(g.num_blocks * g.block_size);
  EXPECT_LT(*std::ranges::max_element(tokens) - *std::ranges::min_element(tokens), 3 * 64);
  expect_full(*spec, 1 << 24);
}

TEST(Fit, ATinyWeightStillGetsABlock) {
  const Result<CacheSpec> spec = fit({.groups = {group(16, 1 << 30), group(16, 1)}}, 10 * 1024);
  ASSERT_TRUE(spec);
  EXPECT_EQ(spec->groups[0].num_blocks, 9);
  EXPECT_EQ(spec->groups[1].num_blocks, 1);
}

TEST(Fit, RandomSpecsAndBudgetsAreFullToTheLastBlock) {
  constexpr unsigned kSeed = 20261123;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
  };
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    CacheSpec spec;
    const bool weighted = pick(0, 1) == 1;
    std::int64_t least = 0;
    const auto num_groups = pick(1, 4);
    for (std::int64_t g = 0; g < num_groups; ++g) {
      spec.groups.push_back(
          {.num_layers = static_cast<std::int32_t>(pick(1, 80)),
           .num_kv_heads = static_cast<std::int32_t>(pick(1, 16)),
           .head_dim_k = static_cast<std::int32_t>(pick(1, 256)),
           .head_dim_v = static_cast<std::int32_t>(pick(0, 256)),
           .block_size = static_cast<std::int32_t>(pick(1, 1024)),
           .dtype = pick(0, 1) == 0 ? DType::kBF16 : DType::kInt8,
           .num_blocks = weighted ? static_cast<std::int32_t>(pick(1, 1 << pick(0, 30))) : 0});
      if (g == 0) spec.groups[0].block_size = 1;  // so that all sizes are multiples of it
    }
    CacheSpec one = spec;
    for (GroupSpec& g : one.groups) g.num_blocks = 1;
    least = total_of(one);
    const std::int64_t bytes = pick(1, std::int64_t{1} << pick(20, 62));
    const Result<CacheSpec> full = fit(spec, bytes);
    ASSERT_EQ(full.has_value(), bytes >= least) << "round " << round;
    refused += !full;
    if (!full) continue;
    expect_full(*full, bytes);
    if (!weighted || HasFailure()) continue;
    // Against doubles: no group lacks more than a block of its share, unless its slots ran out.
    std::int64_t largest = 0;
    for (const GroupSpec& g : spec.groups) largest = std::max<std::int64_t>(largest, g.num_blocks);
    double scale = 1e300;
    for (std::size_t g = 0; g < spec.groups.size(); ++g) {
      const GroupSpec& got = full->groups[g];
      if (out_of_slots(got)) continue;
      scale = std::min(scale, (got.num_blocks + 1.0) / spec.groups[g].num_blocks);
    }
    for (std::size_t g = 0; g < spec.groups.size(); ++g) {
      const GroupSpec& got = full->groups[g];
      if (scale == 1e300 || out_of_slots(got)) continue;
      EXPECT_GE(got.num_blocks + 2.0, scale * spec.groups[g].num_blocks * (1 - 1e-9));
    }
  }
  EXPECT_GT(refused, 100);
}

TEST(Fit, ABudgetBelowOneBlockOfEachIsRefusedWithBothNumbers) {
  const CacheSpec spec{.groups = {group(16), group(64)}};
  EXPECT_TRUE(fit(spec, 5120));
  for (const std::int64_t bytes :
       {std::int64_t{5119}, std::int64_t{0}, std::int64_t{-1}, -kMaxBytes}) {
    const Result<CacheSpec> result = fit(spec, bytes);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(result.error().message(),
                HasSubstr("the budget is " + std::to_string(bytes) +
                          " bytes, one block of each of the 2 groups takes 5120"));
  }
}

TEST(Fit, ABudgetWithoutEndStopsAtTheSlotsOfEachGroup) {
  const Result<CacheSpec> spec = fit({.groups = {group(1, 1), group(1024, 1000)}}, kMaxBytes);
  ASSERT_TRUE(spec) << spec.error().message();
  EXPECT_EQ(spec->groups[0].num_blocks, INT32_MAX);
  EXPECT_EQ(spec->groups[1].num_blocks, INT32_MAX / 1024);
}

TEST(Fit, WeightsBelowOneAndBadFieldsAreRefusedByName) {
  struct Case {
    CacheSpec spec;
    const char* says;
  };
  GroupSpec bad = group(16);
  bad.head_dim_k = 0;
  const Case cases[] = {
      {{.groups = {group(16, 4), group(16)}}, "group 1: num_blocks is 0, allowed as a weight"},
      {{.groups = {group(16), group(16, 4)}}, "group 0: num_blocks is 0, allowed as a weight"},
      {{.groups = {group(16, -1)}}, "group 0: num_blocks is -1, allowed as a weight: at least 1"},
      {{.groups = {bad}}, "group 0: head_dim_k is 0"},
      {{.groups = {}}, "the spec has 0 groups"},
  };
  for (const Case& c : cases) {
    const Result<CacheSpec> result = fit(c.spec, 1 << 20);
    ASSERT_FALSE(result) << c.says;
    EXPECT_EQ(result.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(result.error().message(), HasSubstr(c.says));
  }
}

}  // namespace
}  // namespace kvfolio
