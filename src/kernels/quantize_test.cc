// SPDX-License-Identifier: Apache-2.0

// The loops over rows of int8 and e4m3 against the rule of dtype.h, element by element.

#include "kernels/quantize.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/test_cache.h"

namespace kvfolio {
namespace {

using testing_cache::element_of;
using testing_cache::kDTypes;
using testing_cache::quantized;
using testing_cache::QuantizedRow;
using testing_cache::TestRows;

std::uint32_t bits(float value) { return std::bit_cast<std::uint32_t>(value); }

constexpr DType kScaled[] = {DType::kInt8, DType::kE4M3};

void expect_rule(const TestRows& rows, DType cache, kernels::Isa isa) {
  const auto loops = [&](DType dtype) { return kernels::quantize_loops(dtype, cache, isa); };
  const int n = rows.rows.head_dim;
  const DType dtype = rows.rows.dtype;
  for (int t = 0; t < rows.rows.num_tokens; ++t) {
    const QuantizedRow want = quantized(rows, t, 0, cache);
    const float most = loops(dtype).most;
    const float amax = loops(dtype).amax(rows.rows.at(t, 0), n);
    ASSERT_EQ(bits(quantize_scale(amax, most)), bits(want.scale));
    for (const std::uint8_t flip : {std::uint8_t{0}, kernels::kGranuleFlip}) {
      if (flip != 0 && cache == DType::kE4M3) continue;
      std::vector<std::byte> bytes(static_cast<std::size_t>(n));
      loops(dtype).quantize(rows.rows.at(t, 0), bytes.data(), n, quantize_inverse(amax, most),
                            flip);
      for (int d = 0; d < n; ++d) {
        const std::byte element = want.elements[static_cast<std::size_t>(d)];
        ASSERT_EQ(bytes[static_cast<std::size_t>(d)] ^ std::byte{flip}, element) << d;
        ASSERT_LE(std::fabs(element_of(element, cache)), static_cast<double>(most));
      }
      for (const DType to : kDTypes) {
        TestRows back(1, 1, n, to);
        loops(to).dequantize(bytes.data(), back.rows.data, n, want.scale, flip);
        for (int d = 0; d < n; ++d) {
          const double element = element_of(want.elements[static_cast<std::size_t>(d)], cache);
          const float value = static_cast<float>(element) * want.scale;
          const double expected = testing_cache::rounded(static_cast<double>(value), to);
          const double got = back.value(0, 0, d);
          ASSERT_TRUE(got == expected || (std::isnan(got) && std::isnan(expected)));
        }
      }
      std::vector<double> exact(static_cast<std::size_t>(n));
      kernels::dequantize_exactly(cache, bytes.data(), exact.data(), n, want.scale, flip);
      for (int d = 0; d < n && !std::isnan(want.scale); ++d) {
        const auto i = static_cast<std::size_t>(d);
        ASSERT_EQ(exact[i], element_of(want.elements[i], cache) * static_cast<double>(want.scale));
      }
    }
  }
}

void expect_rule(const TestRows& rows) {
  for (const DType cache : kScaled) {
    for (const kernels::Isa isa : testing_cache::isas()) expect_rule(rows, cache, isa);
  }
}

TEST(Quantize, RowsOfEveryTypeAndLengthFollowTheRule) {
  std::mt19937 random(3);
  for (const DType dtype : kDTypes) {
    for (int n = 1; n <= 300; n += n < 70 ? 1 : 23) {
      TestRows rows(4, 1, n, dtype);
      rows.fill(random());
      expect_rule(rows);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Quantize, AnyBitsOfF32FollowTheRule) {
  // Rows of wild magnitudes: subnormals, the smallest and the largest scales, ties.
  std::mt19937 random(4);
  for (int round = 0; round < 3000; ++round) {
    TestRows rows(1, 1, 16, DType::kF32);
    const auto exponent = static_cast<int>(random() % 250) - 140;
    for (int d = 0; d < 16; ++d) {
      const auto spread = static_cast<int>(random() % 12);
      const double value = std::ldexp(static_cast<double>(random()) - 0x1p31, exponent - spread);
      rows.set(0, 0, d, static_cast<double>(static_cast<float>(value)));
    }
    expect_rule(rows);
    if (HasFatalFailure()) return;
  }
}

TEST(Quantize, ARowWithoutNumbersIsZerosInEveryType) {
  for (const DType dtype : kDTypes) {
    for (const double bad :
         {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
          std::numeric_limits<double>::quiet_NaN()}) {
      for (const int at : {0, 15, 31, 32}) {
        TestRows rows(1, 1, 33, dtype);
        rows.fill(1);
        rows.set(0, 0, at, bad);
        expect_rule(rows);
        for (const DType cache : kScaled) {
          EXPECT_TRUE(std::isnan(quantized(rows, 0, 0, cache).scale));
        }
      }
    }
  }
}

TEST(Quantize, TheLargestElementIs127AndNothingPassesIt) {
  // Every mantissa's neighbourhood: amax * (127 / amax) rounds to 127, whatever amax is.
  for (std::uint32_t mantissa = 0; mantissa < 0x800000u; mantissa += 97) {
    const auto amax = std::bit_cast<float>(0x3f800000u | mantissa);
    const float inverse = quantize_inverse(amax);
    ASSERT_EQ(quantize(amax, inverse), 127);
    ASSERT_EQ(quantize(-amax, inverse), -127);
    ASSERT_LT(amax * inverse, 127.5f);
  }
}

TEST(Quantize, TheLargestElementOfE4M3Is448WhateverTheRow) {
  for (std::uint32_t mantissa = 0; mantissa < 0x800000u; mantissa += 97) {
    const auto amax = std::bit_cast<float>(0x3f800000u | mantissa);
    const float inverse = quantize_inverse(amax, kE4M3Most);
    ASSERT_EQ(quantize_e4m3(amax, inverse), 0x7e);
    ASSERT_EQ(quantize_e4m3(-amax, inverse), 0xfe);
  }
  EXPECT_EQ(quantize_scale(448.0f, kE4M3Most), 1.0f);
  EXPECT_EQ(quantize_inverse(448.0f, kE4M3Most), 1.0f);
  EXPECT_EQ(quantize_e4m3(1e-31f, 0.0f), 0);
  EXPECT_EQ(quantize_e4m3(-0.0f, 1.0f), 0x80);
}

#if defined(__SSE__)
TEST(Quantize, E4M3IsTheSameWhereAThreadFlushesSubnormals) {
  // All 256 elements, and rows of each magnitude that has a scale.
  std::vector<std::byte> all(256);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::byte>(i);
  std::mt19937 random(8);
  for (const kernels::Isa isa : testing_cache::isas()) {
    const auto loops = kernels::quantize_loops(DType::kF32, DType::kE4M3, isa);
    const auto widened = [&] {
      std::vector<std::uint32_t> values(256);
      loops.dequantize(all.data(), reinterpret_cast<std::byte*>(values.data()), 256, 0.75f, 0);
      for (std::size_t i = 0; i < all.size(); ++i) {
        values.push_back(bits(f32_from_e4m3(static_cast<std::uint8_t>(i))));
      }
      return values;
    };
    const auto flushed_widened = [&] {
      const testing_cache::FlushesSubnormals flushes;
      return widened();
    };
    ASSERT_EQ(flushed_widened(), widened());
    for (int round = 0; round < 2000; ++round) {
      TestRows rows(1, 1, 24, DType::kF32);
      const auto exponent = static_cast<int>(random() % 220) - 120;
      for (int d = 0; d < 24; ++d) {
        const double value = std::ldexp(static_cast<double>(random()) - 0x1p31,
                                        exponent - 31 - static_cast<int>(random() % 24));
        rows.set(0, 0, d, static_cast<double>(static_cast<float>(value)));
      }
      const auto narrowed = [&] {
        std::vector<std::byte> bytes(24);
        const float amax = loops.amax(rows.rows.data, 24);
        loops.quantize(rows.rows.data, bytes.data(), 24, quantize_inverse(amax, kE4M3Most), 0);
        return bytes;
      };
      const auto flushed_narrowed = [&] {
        const testing_cache::FlushesSubnormals flushes;
        return narrowed();
      };
      ASSERT_EQ(flushed_narrowed(), narrowed()) << round;
    }
  }
}
#endif

TEST(Quantize, TiesGoToEvenAndTheEdgesAreAsSaid) {
  // amax 127: the inverse is 1, so x.5 are ties.
  EXPECT_EQ(quantize(0.5f, 1.0f), 0);
  EXPECT_EQ(quantize(1.5f, 1.0f), 2);
  EXPECT_EQ(quantize(2.5f, 1.0f), 2);
  EXPECT_EQ(quantize(-2.5f, 1.0f), -2);
  EXPECT_EQ(quantize(-3.5f, 1.0f), -4);
  EXPECT_EQ(quantize(126.5f, 1.0f), 126);
  EXPECT_EQ(quantize(500.0f, 1.0f), 127);
  EXPECT_EQ(quantize(-500.0f, 1.0f), -127);
  EXPECT_EQ(quantize_scale(127.0f), 1.0f);
  EXPECT_EQ(quantize_inverse(127.0f), 1.0f);
  // Below 1e-30 a row is nothing.
  EXPECT_EQ(quantize_scale(0.0f), 0.0f);
  EXPECT_EQ(quantize_scale(std::nextafter(1e-30f, 0.0f)), 0.0f);
  EXPECT_EQ(quantize_inverse(std::nextafter(1e-30f, 0.0f)), 0.0f);
  EXPECT_EQ(quantize_scale(1e-30f), 1e-30f / 127.0f);
  EXPECT_EQ(quantize(1e-31f, 0.0f), 0);
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float bad : {infinity, nan}) {
    EXPECT_EQ(bits(quantize_scale(bad)), 0x7fc00000u);
    EXPECT_EQ(quantize_inverse(bad), 0.0f);
    EXPECT_EQ(quantize(bad, 0.0f), 0);
  }
  EXPECT_GT(quantize_scale(std::numeric_limits<float>::max()), 1e36f);
}

}  // namespace
}  // namespace kvfolio
