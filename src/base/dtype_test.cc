// SPDX-License-Identifier: Apache-2.0
//
// f16 and bf16 against what their definitions say, computed slowly: the value of a pattern by
// arithmetic on its fields, rounding by a search among all values.
#include "kvfolio/dtype.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace kvfolio {
namespace {

struct Half {
  DType dtype;
  int exponent_bits;
  int mantissa_bits;
  std::uint16_t (*from)(float);
  float (*to)(std::uint16_t);
};

const Half kHalves[] = {{DType::kF16, 5, 10, f16_from_f32, f32_from_f16},
                        {DType::kBF16, 8, 7, bf16_from_f32, f32_from_bf16}};

// NaN stays NaN; infinity counts as the next value beyond the largest.
double value_of(const Half& half, std::uint32_t pattern) {
  const std::uint32_t mantissa = pattern & ((1u << half.mantissa_bits) - 1u);
  const int exponent =
      static_cast<int>(pattern >> half.mantissa_bits & ((1u << half.exponent_bits) - 1u));
  const int bias = (1 << (half.exponent_bits - 1)) - 1;
  const double sign = (pattern & 0x8000u) != 0 ? -1.0 : 1.0;
  const double fraction = static_cast<double>(mantissa) / (1 << half.mantissa_bits);
  if (exponent == (1 << half.exponent_bits) - 1) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias);
  return sign * std::ldexp(1.0 + fraction, exponent - bias);
}

// Nearest, ties to even, by looking for the two neighbours among all magnitudes.
class Rounding {
 public:
  explicit Rounding(const Half& half) {
    const std::uint32_t infinity = ((1u << half.exponent_bits) - 1u) << half.mantissa_bits;
    for (std::uint32_t p = 0; p < infinity; ++p) magnitudes_.push_back(value_of(half, p));
    const std::size_t n = magnitudes_.size();
    magnitudes_.push_back(2 * magnitudes_[n - 1] - magnitudes_[n - 2]);
  }
  [[nodiscard]] std::uint16_t operator()(float value) const {
    const std::uint32_t sign = std::signbit(value) ? 0x8000u : 0u;
    const double magnitude = std::fabs(static_cast<double>(value));
    const auto above = std::lower_bound(magnitudes_.begin(), magnitudes_.end(), magnitude);
    if (above == magnitudes_.end()) {
      return static_cast<std::uint16_t>(sign | (magnitudes_.size() - 1));
    }
    auto nearest = static_cast<std::uint32_t>(above - magnitudes_.begin());
    if (nearest > 0) {
      const double up = *above - magnitude;
      const double down = magnitude - above[-1];
      if (down < up || (down == up && nearest % 2 == 1)) --nearest;
    }
    return static_cast<std::uint16_t>(sign | nearest);
  }
  [[nodiscard]] const std::vector<double>& magnitudes() const { return magnitudes_; }

 private:
  std::vector<double> magnitudes_;
};

TEST(DType, BytesAndNames) {
  EXPECT_EQ(dtype_bytes(DType::kF64), 8);
  EXPECT_EQ(dtype_bytes(DType::kF32), 4);
  EXPECT_EQ(dtype_bytes(DType::kF16), 2);
  EXPECT_EQ(dtype_bytes(DType::kBF16), 2);
  EXPECT_EQ(dtype_bytes(static_cast<DType>(17)), 0);
  EXPECT_EQ(std::string(to_string(DType::kF64)) + to_string(DType::kF32) + to_string(DType::kF16) +
                to_string(DType::kBF16) + to_string(static_cast<DType>(-1)),
            "f64f32f16bf16invalid");
}

TEST(DType, EveryHalfHasTheValueThatItsFieldsSay) {
  for (const Half& half : kHalves) {
    for (std::uint32_t p = 0; p < 65536; ++p) {
      const double expected = value_of(half, p);
      const float got = half.to(static_cast<std::uint16_t>(p));
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(got)) << to_string(half.dtype) << " " << p;
      } else {
        ASSERT_EQ(static_cast<double>(got), expected) << to_string(half.dtype) << " " << p;
        ASSERT_EQ(std::signbit(got), (p & 0x8000u) != 0) << to_string(half.dtype) << " " << p;
      }
    }
  }
}

TEST(DType, EveryHalfComesBackFromF32Unchanged) {
  for (const Half& half : kHalves) {
    const auto quiet = static_cast<std::uint16_t>(1u << (half.mantissa_bits - 1));
    for (std::uint32_t p = 0; p < 65536; ++p) {
      const auto pattern = static_cast<std::uint16_t>(p);
      const std::uint16_t back = half.from(half.to(pattern));
      if (std::isnan(value_of(half, p))) {
        ASSERT_TRUE(std::isnan(value_of(half, back)) && (back & quiet) != 0) << p;
        ASSERT_EQ(back & 0x8000, pattern & 0x8000);
      } else {
        ASSERT_EQ(back, pattern) << to_string(half.dtype);
      }
    }
  }
}

TEST(DType, F32RoundsToTheNearestHalfTiesToEven) {
  for (const Half& half : kHalves) {
    const Rounding rounded(half);
    std::vector<float> hard = {0.0f, std::numeric_limits<float>::max(),
                               std::numeric_limits<float>::denorm_min(),
                               std::numeric_limits<float>::infinity()};
    // Every value, every midpoint, and their neighbours in f32.
    const std::vector<double>& values = rounded.magnitudes();
    for (std::size_t i = 0; i + 1 < values.size(); ++i) {
      for (const double v : {values[i], (values[i] + values[i + 1]) / 2}) {
        const auto middle = static_cast<float>(v);
        hard.push_back(middle);
        hard.push_back(std::nextafter(middle, 0.0f));
        hard.push_back(std::nextafter(middle, std::numeric_limits<float>::infinity()));
      }
    }
    std::mt19937 random(5);
    for (int i = 0; i < 200000; ++i) {
      hard.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
    }
    for (const float value : hard) {
      if (std::isnan(value)) continue;
      ASSERT_EQ(half.from(value), rounded(value)) << to_string(half.dtype) << " of " << value;
      ASSERT_EQ(half.from(-value), rounded(-value)) << to_string(half.dtype) << " of " << -value;
    }
  }
}

TEST(DType, NanStaysAQuietNanWhateverItsPayload) {
  for (const Half& half : kHalves) {
    for (std::uint32_t payload = 1; payload < (1u << 23); payload = payload * 2 + payload / 7 + 1) {
      for (const std::uint32_t sign : {0u, 0x80000000u}) {
        const std::uint16_t got = half.from(std::bit_cast<float>(sign | 0x7f800000u | payload));
        EXPECT_TRUE(std::isnan(value_of(half, got)));
        EXPECT_NE(got & (1u << (half.mantissa_bits - 1)), 0u);
        EXPECT_EQ(got >> 15, sign >> 31);
      }
    }
  }
}

TEST(DType, ConversionsAreConstantExpressions) {
  static_assert(f16_from_f32(1.0f) == 0x3c00);
  static_assert(f32_from_f16(0x0001) == 0x1p-24f);
  static_assert(bf16_from_f32(1.0f) == 0x3f80);
  static_assert(f32_from_bf16(0xbf80) == -1.0f);
}

}  // namespace
}  // namespace kvfolio
