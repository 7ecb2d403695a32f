// SPDX-License-Identifier: Apache-2.0
#include "sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

namespace kvfolio::llama {
namespace {

TEST(Uniform, IsAFunctionOfSeedAndPositionAlone) {
  EXPECT_EQ(uniform(3, 7), uniform(3, 7));
  EXPECT_NE(uniform(3, 7), uniform(3, 8));
  EXPECT_NE(uniform(3, 7), uniform(4, 7));
}

TEST(Uniform, NeighbouringSeedsAreNotShiftedCopies) {
  // Sample i of a request draws with seed + i: its draws must not be another's at other positions.
  int equal = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    for (std::uint64_t position = 0; position < 50; ++position) {
      for (std::uint64_t shift = 0; shift < 5; ++shift) {
        equal += uniform(seed, position + shift) == uniform(seed + 1, position);
      }
    }
  }
  EXPECT_EQ(equal, 0);
}

TEST(Uniform, FillsTheUnitIntervalEvenly) {
  constexpr int kDraws = 100'000;
  std::vector<int> buckets(10);
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    const double u = uniform(i % 100, i / 100);
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    ++buckets[static_cast<std::size_t>(u * 10)];
  }
  for (const int bucket : buckets) EXPECT_NEAR(bucket, kDraws / 10.0, 500.0);
}

TEST(Uniform, KeepsItsValues) {
  // Recorded outputs stay reproducible from release to release.
  EXPECT_EQ(uniform(0, 0), 0x1.4e0dba5e9a32fp-1);
  EXPECT_EQ(uniform(1, 17), 0x1.990ad13227d6bp-1);
}

TEST(Argmax, TakesTheLowerIdOfEquals) {
  EXPECT_EQ(argmax(std::vector<float>{1, 3, 2, 3}), 1);
  EXPECT_EQ(argmax(std::vector<float>{-2, -2}), 0);
}

TEST(IsDistribution, RefusesWhatHasNoProbabilities) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(is_distribution(std::vector<float>{0, -kInf, 5}));
  EXPECT_FALSE(is_distribution(std::vector<float>{0, kNan, 5}));
  EXPECT_FALSE(is_distribution(std::vector<float>{0, kInf}));
  EXPECT_FALSE(is_distribution(std::vector<float>{-kInf, -kInf}));
}

TEST(LogSumExp, DoesNotOverflow) {
  EXPECT_NEAR(log_sum_exp(std::vector<float>{1000, 1000}), 1000 + std::log(2.0), 1e-12);
  EXPECT_NEAR(log_sum_exp(std::vector<float>{-1000, -1001}), -1000 + std::log1p(std::exp(-1.0)),
              1e-12);
}

TEST(Sampler, TemperatureZeroIsGreedy) {
  Sampler sampler;
  const std::vector<float> logits{0.5f, 2.0f, 2.0f, -1.0f};
  for (std::uint64_t position = 0; position < 20; ++position) {
    EXPECT_EQ(sampler.sample(logits, {.temperature = 0.0, .seed = position}, position), 1);
  }
}

TEST(Sampler, TinyTemperatureIsGreedyToo) {
  Sampler sampler;
  const std::vector<float> logits{0.5f, 2.0f, 1.99f};
  for (std::uint64_t position = 0; position < 20; ++position) {
    EXPECT_EQ(sampler.sample(logits, {.temperature = 1e-300}, position), 1);
  }
}

TEST(Sampler, DrawsWithTheModelsProbabilities) {
  Sampler sampler;
  const std::vector<float> logits{std::log(0.5f), std::log(0.3f), std::log(0.2f)};
  std::map<std::int32_t, int> count;
  for (std::uint64_t position = 0; position < 20'000; ++position) {
    ++count[sampler.sample(logits, {.temperature = 1.0, .seed = 5}, position)];
  }
  EXPECT_NEAR(count[0], 10'000, 300);
  EXPECT_NEAR(count[1], 6'000, 300);
  EXPECT_NEAR(count[2], 4'000, 300);
}

TEST(Sampler, TopPKeepsTheSmallestSetThatHoldsTheMass) {
  Sampler sampler;
  const std::vector<float> logits{std::log(0.2f), std::log(0.5f), std::log(0.3f)};
  std::map<std::int32_t, int> count;
  for (std::uint64_t position = 0; position < 2'000; ++position) {
    ++count[sampler.sample(logits, {.temperature = 1.0, .top_p = 0.6, .seed = 5}, position)];
  }
  EXPECT_EQ(count[0], 0);
  EXPECT_NEAR(count[1], 1'250, 100);
  EXPECT_NEAR(count[2], 750, 100);
}

TEST(Sampler, TopPAlwaysKeepsOneToken) {
  Sampler sampler;
  const std::vector<float> logits{1.0f, 1.0f};
  for (std::uint64_t position = 0; position < 20; ++position) {
    EXPECT_EQ(sampler.sample(logits, {.temperature = 1.0, .top_p = 1e-300}, position), 0);
  }
}

}  // namespace
}  // namespace kvfolio::llama
