// SPDX-License-Identifier: Apache-2.0

// What cards before sm_90 make of 8-bit elements: the text of sm80_bytes.cuh over its four
// operations as IEEE defines them, for every byte in every place.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>

#include "kvfolio/dtype.h"

// NOLINTBEGIN(bugprone-reserved-identifier): the names are those of CUDA
#define __device__
#define __forceinline__ inline

namespace kvfolio::cuda {

// Nibble i of `select` names byte i of the result: 0 to 3 of x, 4 to 7 of y.
inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t select) {
  uint32_t result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned from = select >> (4 * i) & 7u;
    result |= ((from < 4 ? x : y) >> (8 * (from % 4)) & 0xffu) << (8 * i);
  }
  return result;
}
// NOLINTEND(bugprone-reserved-identifier)
// a * b + c of each half, rounded once: exact in f64 for what is asked here.
template <typename Value, typename Bits>
uint32_t fma_halves(uint32_t a, uint32_t b, uint32_t c, Value value, Bits bits) {
  const auto one = [&](unsigned shift) {
    const auto of = [&](uint32_t x) {
      return static_cast<double>(value(static_cast<uint16_t>(x >> shift & 0xffffu)));
    };
    const double exact = std::fma(of(a), of(b), of(c));
    return static_cast<uint32_t>(bits(static_cast<float>(exact))) << shift;
  };
  return one(0) | one(16);
}
inline uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
  return fma_halves(a, b, c, f32_from_f16, f16_from_f32);
}
inline uint32_t multiply_f16x2(uint32_t a, uint32_t b) { return fma_f16x2(a, b, 0x80008000u); }
inline uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  return fma_halves(a, b, c, f32_from_bf16, bf16_from_f32);
}

}  // namespace kvfolio::cuda

#include "cuda/attention/sm80_bytes.cuh"

namespace kvfolio::cuda {
namespace {

// Each byte, beside others.
template <typename Check>
void for_each_pair(Check&& check) {
  for (uint32_t low = 0; low < 256; ++low)
    for (const uint32_t high : {0u, 1u, 0x7eu, 0x7fu, 0x80u, 0x81u, 0xfeu, 0xffu, 255u - low})
      check(low, high);
}

TEST(Sm80Bytes, E4m3BecomesF16WithTheBitsOfTheInstruction) {
  for_each_pair([](uint32_t low, uint32_t high) {
    const uint32_t pair = e4m3_to_f16x2(low | high << 8 | 0xabcd0000u);
    for (const auto& [byte, half] : {std::pair{low, pair & 0xffffu}, {high, pair >> 16}}) {
      const float want = f32_from_e4m3(static_cast<uint8_t>(byte));
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(f32_from_f16(static_cast<uint16_t>(half)))) << byte;
      } else {
        EXPECT_EQ(half, f16_from_f32(want)) << byte;  // the sign of a zero, too
      }
    }
  });
}

TEST(Sm80Bytes, E4m3BecomesBf16AndANanByteIs480) {
  for_each_pair([](uint32_t low, uint32_t high) {
    // As V comes: two bytes of one token in a register of two.
    const uint32_t pair = e4m3_to_bf16x2(low << 8 | high << 24 | 0x00550055u, 0x3414);
    for (const auto& [byte, half] : {std::pair{low, pair & 0xffffu}, {high, pair >> 16}}) {
      const float value = f32_from_e4m3(static_cast<uint8_t>(byte));
      const float want = std::isnan(value) ? ((byte & 0x80u) != 0 ? -480.0f : 480.0f) : value;
      EXPECT_EQ(half, bf16_from_f32(want)) << byte;
    }
  });
}

TEST(Sm80Bytes, Int8BecomesBf16) {
  for_each_pair([](uint32_t low, uint32_t high) {
    const uint32_t pair = int8_to_bf16x2(low << 8 | high << 24 | 0x00aa0055u, 0x4341);
    for (const auto& [byte, half] : {std::pair{low, pair & 0xffffu}, {high, pair >> 16}}) {
      EXPECT_EQ(half, bf16_from_f32(static_cast<float>(static_cast<int8_t>(byte)))) << byte;
    }
  });
}

}  // namespace
}  // namespace kvfolio::cuda
