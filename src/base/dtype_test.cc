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
  EXPECT_EQ(dtype_bytes(DType::kInt8), 1);
  EXPECT_EQ(dtype_bytes(DType::kE4M3), 1);
  EXPECT_EQ(dtype_bytes(static_cast<DType>(17)), 0);
  EXPECT_EQ(std::string(to_string(DType::kF64)) + to_string(DType::kF32) + to_string(DType::kF16) +
                to_string(DType::kBF16) + to_string(DType::kInt8) + to_string(DType::kE4M3) +
                to_string(DType::kOpaque) + to_string(static_cast<DType>(-1)),
            "f64f32f16bf16int8e4m3opaqueinvalid");
}

// e4m3fn by its definition: 4 bits of exponent with bias 7, 3 of mantissa, no infinity.
double value_of_e4m3(std::uint32_t byte) {
  const int exponent = static_cast<int>(byte >> 3 & 15u);
  const auto mantissa = static_cast<double>(byte & 7u);
  if ((byte & 0x7fu) == 0x7fu) return std::numeric_limits<double>::quiet_NaN();
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(1 + mantissa / 8, exponent - 7);
  return (byte & 0x80u) != 0 ? -magnitude : magnitude;
}

// The nearest of all, the even one of two; 448 where it is more.
std::uint8_t nearest_e4m3(double value) {
  std::uint32_t best = 0;
  for (std::uint32_t byte = 1; byte <= 0x7eu; ++byte) {
    const double here = std::fabs(std::fabs(value) - value_of_e4m3(byte));
    const double there = std::fabs(std::fabs(value) - value_of_e4m3(best));
    if (here < there || (here == there && byte % 2 == 0)) best = byte;
  }
  return static_cast<std::uint8_t>(best | (std::signbit(value) ? 0x80u : 0u));
}

TEST(E4M3, EveryByteHasTheValueThatItsFieldsSayAndComesBack) {
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    const double expected = value_of_e4m3(byte);
    const float got = f32_from_e4m3(static_cast<std::uint8_t>(byte));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(got));
      EXPECT_EQ(e4m3_from_f32(got), 0x7f);
    } else {
      EXPECT_EQ(static_cast<double>(got), expected) << byte;
      EXPECT_EQ(std::signbit(got), byte >= 128) << byte;
      EXPECT_EQ(e4m3_from_f32(got), byte);
    }
  }
}

TEST(E4M3, AFloatBecomesTheNearestTiesToEvenAndSaturates) {
  // Each value, each midpoint and their neighbours; then magnitudes of all kinds.
  for (std::uint32_t byte = 0; byte <= 0x7eu; ++byte) {
    const auto value = static_cast<float>(value_of_e4m3(byte));
    const auto next = static_cast<float>(byte == 0x7eu ? 480 : value_of_e4m3(byte + 1));
    for (const float x : {value, value + (next - value) / 2}) {
      for (const float near : {std::nextafter(x, 0.0f), x, std::nextafter(x, 1e9f)}) {
        ASSERT_EQ(e4m3_from_f32(near), nearest_e4m3(static_cast<double>(near))) << near;
        ASSERT_EQ(e4m3_from_f32(-near), nearest_e4m3(static_cast<double>(-near))) << -near;
      }
    }
  }
  for (std::uint32_t bits = 0; bits < 0x7f800000u; bits += 0x1003u) {
    const auto x = std::bit_cast<float>(bits);
    ASSERT_EQ(e4m3_from_f32(x), nearest_e4m3(static_cast<double>(x))) << x;
  }
  EXPECT_EQ(e4m3_from_f32(std::numeric_limits<float>::infinity()), 0x7e);
  EXPECT_EQ(e4m3_from_f32(-std::numeric_limits<float>::infinity()), 0xfe);
  EXPECT_EQ(e4m3_from_f32(std::numeric_limits<float>::max()), 0x7e);
  static_assert(e4m3_from_f32(-0.0f) == 0x80 && f32_from_e4m3(0x38) == 1.0f);
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
