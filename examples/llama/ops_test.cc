// SPDX-License-Identifier: Apache-2.0
#include "ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace kvfolio::llama {
namespace {

TEST(Ops, RmsNormDividesByTheRootMeanSquare) {
  const float row[] = {1.0f, -2.0f, 2.0f, 4.0f};  // mean square 6.25
  const float weight[] = {1.0f, 2.0f, 0.5f, -1.0f};
  float out[4];
  rms_norm(row, weight, 4, 0.0f, out);
  EXPECT_FLOAT_EQ(out[0], 0.4f);
  EXPECT_FLOAT_EQ(out[1], -1.6f);
  EXPECT_FLOAT_EQ(out[2], 0.4f);
  EXPECT_FLOAT_EQ(out[3], -1.6f);
  const float zero[4] = {};
  rms_norm(zero, weight, 4, 1e-6f, out);
  EXPECT_EQ(out[0], 0.0f);
}

TEST(Ops, RopeTurnsEachPairByItsAngle) {
  const double frequencies[] = {1.0, 0.01};
  for (const std::int32_t position : {0, 1, 100'000}) {
    float table[4];
    rope_table(position, frequencies, table, table + 2);
    float heads[] = {1.0f, 0.0f, 0.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f};  // two heads of 4
    rope_rotate(heads, 2, 4, table, table + 2);
    const double fast = position;
    const double slow = position * 0.01;
    EXPECT_NEAR(heads[0], std::cos(fast), 1e-6);  // pairs: elements 0 and 2, 1 and 3
    EXPECT_NEAR(heads[2], std::sin(fast), 1e-6);
    EXPECT_NEAR(heads[1], -2.0 * std::sin(slow), 1e-6);
    EXPECT_NEAR(heads[3], 2.0 * std::cos(slow), 1e-6);
    EXPECT_NEAR(heads[4], 3.0 * std::cos(fast) - 5.0 * std::sin(fast), 2e-6);
    EXPECT_NEAR(heads[6], 5.0 * std::cos(fast) + 3.0 * std::sin(fast), 2e-6);
  }
}

TEST(Ops, SwigluIsAccurateOverTheWholeRange) {
  for (float gate = -120.0f; gate < 120.0f; gate += 0.0371f) {
    const float up = 1.0f;
    float out = 0.0f;
    swiglu(&gate, &up, 1, &out);
    const double expected = gate / (1.0 + std::exp(-double{gate}));
    EXPECT_NEAR(out, expected, 4e-7 * std::abs(expected) + 1e-36) << gate;
  }
}

TEST(Ops, SwigluOfOneElementEqualsItsPlaceInARow) {
  std::vector<float> gate;
  std::vector<float> up;
  for (int i = 0; i < 67; ++i) {
    gate.push_back(0.31f * static_cast<float>(i - 30));
    up.push_back(1.0f + static_cast<float>(i));
  }
  std::vector<float> out(gate.size());
  swiglu(gate.data(), up.data(), 67, out.data());
  for (std::size_t i = 0; i < gate.size(); ++i) {
    float alone = 0.0f;
    swiglu(&gate[i], &up[i], 1, &alone);
    EXPECT_EQ(alone, out[i]);
  }
}

TEST(Ops, SwigluKeepsNaN) {
  const float gate = std::numeric_limits<float>::quiet_NaN();
  const float up = 1.0f;
  float out = 0.0f;
  swiglu(&gate, &up, 1, &out);
  EXPECT_TRUE(std::isnan(out));
}

}  // namespace
}  // namespace kvfolio::llama
