// SPDX-License-Identifier: Apache-2.0
#include "kernels/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/test_cache.h"
#include "kvfolio/kernels.h"

namespace kvfolio {
namespace {

using kernels::convert_fn;
using ::testing::HasSubstr;
using testing_cache::kDTypes;
using testing_cache::load;
using testing_cache::TestRows;

template <typename To, typename From>
std::vector<To> converted(DType from, DType to, const std::vector<From>& source) {
  std::vector<To> first;
  for (const kernels::Isa isa : testing_cache::isas()) {
    std::vector<To> result(source.size());
    convert_fn(from, to, isa)(reinterpret_cast<const std::byte*>(source.data()),
                              reinterpret_cast<std::byte*>(result.data()),
                              static_cast<std::int64_t>(source.size()));
    if (first.empty()) first = result;
    // NaN included, every instruction set gives the same bits.
    EXPECT_EQ(std::memcmp(first.data(), result.data(), source.size() * sizeof(To)), 0);
  }
  return first;
}

double half_value(std::uint16_t bits, DType half) {
  return static_cast<double>(half == DType::kF16 ? f32_from_f16(bits) : f32_from_bf16(bits));
}

std::vector<std::uint16_t> all_halves() {
  std::vector<std::uint16_t> result(1u << 16);
  for (unsigned i = 0; i < result.size(); ++i) result[i] = static_cast<std::uint16_t>(i);
  return result;
}

// Singles that matter: a walk over all bit patterns, and the surroundings of every value and every
// midpoint of f16 and bf16.
std::vector<float> hard_singles() {
  std::vector<std::uint32_t> bits;
  for (std::uint64_t b = 0; b < (std::uint64_t{1} << 32); b += 1021) {
    bits.push_back(static_cast<std::uint32_t>(b));
  }
  for (std::uint32_t h = 0; h < (1u << 16); ++h) {
    const auto value = std::bit_cast<std::uint32_t>(f32_from_f16(static_cast<std::uint16_t>(h)));
    for (const std::uint32_t near :
         {value, value + (1u << 12), (h << 16), (h << 16) + (1u << 15)}) {
      for (const std::uint32_t step : {0u, 1u, 0xffffffffu}) bits.push_back(near + step);
    }
    // Midpoints of f16's subnormals lie elsewhere in f32.
    const float middle = (static_cast<float>(h & 0x3ffu) + 0.5f) * 0x1p-24f;
    for (const std::uint32_t step : {0u, 1u, 0xffffffffu}) {
      bits.push_back(std::bit_cast<std::uint32_t>(middle) + step);
    }
  }
  std::vector<float> result(bits.size());
  std::memcpy(result.data(), bits.data(), bits.size() * sizeof(float));
  return result;
}

TEST(Convert, HalvesWidenToTheBitsOfTheScalarConversion) {
  const std::vector<std::uint16_t> halves = all_halves();
  const auto f16 = converted<float>(DType::kF16, DType::kF32, halves);
  const auto bf16 = converted<float>(DType::kBF16, DType::kF32, halves);
  for (std::size_t i = 0; i < halves.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(f16[i]),
              std::bit_cast<std::uint32_t>(f32_from_f16(halves[i])));
    ASSERT_EQ(std::bit_cast<std::uint32_t>(bf16[i]),
              std::bit_cast<std::uint32_t>(f32_from_bf16(halves[i])));
  }
}

TEST(Convert, SinglesNarrowToTheBitsOfTheScalarConversion) {
  const std::vector<float> singles = hard_singles();
  const auto f16 = converted<std::uint16_t>(DType::kF32, DType::kF16, singles);
  const auto bf16 = converted<std::uint16_t>(DType::kF32, DType::kBF16, singles);
  for (std::size_t i = 0; i < singles.size(); ++i) {
    ASSERT_EQ(f16[i], f16_from_f32(singles[i])) << singles[i];
    ASSERT_EQ(bf16[i], bf16_from_f32(singles[i])) << singles[i];
  }
}

TEST(Convert, ThereAndBackKeepsEveryHalfBitForBit) {
  for (const DType half : {DType::kF16, DType::kBF16}) {
    const std::vector<std::uint16_t> halves = all_halves();
    const auto through_f32 =
        converted<std::uint16_t>(DType::kF32, half, converted<float>(half, DType::kF32, halves));
    const auto through_f64 =
        converted<std::uint16_t>(DType::kF64, half, converted<double>(half, DType::kF64, halves));
    for (std::size_t i = 0; i < halves.size(); ++i) {
      const double value = half_value(halves[i], half);
      if (std::isnan(value)) continue;
      ASSERT_EQ(through_f32[i], halves[i]);
      ASSERT_EQ(through_f64[i], halves[i]);
    }
  }
}

// The nearest value of a 16-bit type by search among all of them.
class Nearest {
 public:
  explicit Nearest(DType half) {
    for (std::uint32_t bits = 0; bits < 0x8000u; ++bits) {  // not negative, increasing
      const auto h = static_cast<std::uint16_t>(bits);
      const double value = half_value(h, half);
      if (!std::isfinite(value)) break;
      values_.push_back(value);
    }
    // The next value if exponents went on: halfway to it everything becomes infinity.
    values_.push_back(2 * values_.back() - values_[values_.size() - 2]);
  }
  [[nodiscard]] std::uint16_t operator()(double value) const {
    const double magnitude = std::fabs(value);
    const auto above = std::ranges::lower_bound(values_, magnitude);
    std::size_t i = static_cast<std::size_t>(above - values_.begin());
    if (above == values_.end()) {
      i = values_.size() - 1;
    } else if (i > 0) {
      // Exact: neighbours differ by a power of two that a double can halve.
      const double middle = values_[i - 1] + (values_[i] - values_[i - 1]) / 2;
      if (magnitude < middle || (magnitude == middle && i % 2 == 1)) --i;
    }
    return static_cast<std::uint16_t>(i | (std::signbit(value) ? 0x8000u : 0u));
  }

 private:
  std::vector<double> values_;
};

TEST(Convert, DoublesRoundOnceToHalves) {
  std::mt19937_64 random(7);
  for (const DType half : {DType::kF16, DType::kBF16}) {
    const Nearest nearest(half);
    std::vector<double> doubles = {0.0, -0.0, 1e308, -1e308, 5e-324, 65504.0, 65519.999, 65520.0};
    for (int i = 0; i < 300000; ++i) {
      // A value of the type or a midpoint, nudged by less than a float can tell.
      const auto bits = static_cast<std::uint16_t>(random());
      double value = half_value(bits, half);
      if (!std::isfinite(value)) continue;
      const auto next = static_cast<std::uint16_t>(bits ^ 1u);
      const double other = half_value(next, half);
      if (i % 3 != 0 && std::isfinite(other)) value = value + (other - value) / 2;
      if (i % 2 == 0) value = std::nextafter(value, random() % 2 == 0 ? 1e300 : -1e300);
      if (i % 7 == 0) value *= 1.0 + static_cast<double>(random() % 1000) * 1e-6;
      doubles.push_back(value);
    }
    const auto halves = converted<std::uint16_t>(DType::kF64, half, doubles);
    for (std::size_t i = 0; i < doubles.size(); ++i) {
      ASSERT_EQ(halves[i], nearest(doubles[i])) << to_string(half) << " of " << doubles[i];
    }
  }
}

TEST(Convert, NaNInfinityAndTheSignOfZeroSurviveEveryPair) {
  const double special[] = {std::numeric_limits<double>::quiet_NaN(),
                            std::numeric_limits<double>::infinity(),
                            -std::numeric_limits<double>::infinity(), 0.0, -0.0};
  for (const DType from : kDTypes) {
    for (const DType to : kDTypes) {
      for (const double value : special) {
        std::byte source[8];
        std::byte target[8];
        testing_cache::store(source, from, value);
        convert_fn(from, to)(source, target, 1);
        const double got = load(target, to);
        if (std::isnan(value)) {
          EXPECT_TRUE(std::isnan(got)) << to_string(from) << " to " << to_string(to);
        } else {
          EXPECT_EQ(got, value);
          EXPECT_EQ(std::signbit(got), std::signbit(value));
        }
      }
    }
  }
}

TEST(Convert, RowsOfAnyStridesConvertElementByElement) {
  for (const DType from : kDTypes) {
    for (const DType to : kDTypes) {
      for (const int gap : {0, 3}) {
        TestRows source(5, 3, 7, from, gap);
        TestRows target(5, 3, 7, to, gap == 0 ? 0 : 1);
        source.fill(11);
        ASSERT_TRUE(convert(source.rows, target.rows).ok());
        // Backwards into another one: negative strides are strides.
        TestRows reversed(5, 3, 7, to);
        RowsView backwards = reversed.rows;
        backwards.data = reversed.rows.at(4, 2);
        backwards.token_stride = -backwards.token_stride;
        backwards.head_stride = -backwards.head_stride;
        ASSERT_TRUE(convert(source.rows, backwards).ok());
        for (int t = 0; t < 5; ++t) {
          for (int h = 0; h < 3; ++h) {
            for (int d = 0; d < 7; ++d) {
              const double want = testing_cache::rounded(source.value(t, h, d), to);
              ASSERT_EQ(target.value(t, h, d), want);
              ASSERT_EQ(reversed.value(4 - t, 2 - h, d), want);
            }
          }
        }
      }
    }
  }
}

TEST(Convert, ShapesStridesAndAlignmentAreChecked) {
  TestRows source(4, 2, 8, DType::kF32);
  TestRows target(4, 2, 8, DType::kF16);
  const std::vector<std::byte> before = target.memory;
  const auto expect_error = [&](ConstRowsView from, RowsView to, const std::string& says) {
    const Status status = convert(from, to);
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(says));
    EXPECT_EQ(target.memory, before);
  };
  RowsView bad = target.rows;
  bad.num_tokens = 3;
  expect_error(source.rows, bad, "dst is [3 tokens, 2 heads, head_dim 8], allowed: [4, 2, 8]");
  bad = target.rows;
  bad.head_dim = 4;
  expect_error(source.rows, bad, "head_dim 4");
  bad = target.rows;
  bad.data = nullptr;
  expect_error(source.rows, bad, "dst.data is null");
  bad = target.rows;
  bad.data += 1;
  expect_error(source.rows, bad, "aligned");
  bad = target.rows;
  bad.head_stride = 14;
  expect_error(source.rows, bad, "rows of dst overlap");
  bad = target.rows;
  bad.token_stride = 0;
  expect_error(source.rows, bad, "rows of dst overlap");
  bad = target.rows;
  bad.token_stride = 33;
  expect_error(source.rows, bad, "stride of 33");
  bad = target.rows;
  bad.token_stride = std::numeric_limits<std::int64_t>::min();
  expect_error(source.rows, bad, "stride of -9223372036854775808");
  bad = target.rows;
  bad.token_stride = std::numeric_limits<std::int64_t>::max() - 1;
  expect_error(source.rows, bad, "overflows");
  bad = target.rows;
  bad.dtype = static_cast<DType>(9);
  expect_error(source.rows, bad, "dtype is 9");
  ConstRowsView negative = source.rows;
  negative.num_tokens = -1;
  expect_error(negative, target.rows, "-1 tokens");
}

}  // namespace
}  // namespace kvfolio
