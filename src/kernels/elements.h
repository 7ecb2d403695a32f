// SPDX-License-Identifier: Apache-2.0
#pragma once

// Element types as the loops of kernels see them: load and store of one element, inlined.

#include <bit>
#include <cmath>
#include <cstdint>

#include "kvfolio/dtype.h"

namespace kvfolio::kernels {

// Loops over these are what the compiler vectorises. The f16 conversions choose by masks, since
// compilers make branches of choices between results of float arithmetic; they give the bits of
// f16_from_f32 and f32_from_f16 for every input (convert_test.cc compares them all).

// All ones where the condition holds.
inline std::uint32_t mask_of(bool condition) { return 0u - static_cast<std::uint32_t>(condition); }
// `yes` where the mask is all ones, `no` where it is 0.
inline std::uint32_t choose(std::uint32_t mask, std::uint32_t yes, std::uint32_t no) {
  return no ^ ((yes ^ no) & mask);
}

inline std::uint16_t narrow_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  // Signed, since vector units compare signed numbers.
  const auto compared = static_cast<std::int32_t>(magnitude);
  const std::uint32_t is_small = mask_of(compared < 0x38800000);  // below 2^-14: subnormal results
  // Adding 0.5 makes the adder round at 2^-24.
  const std::uint32_t small =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude & is_small) + 0.5f) - 0x3f000000u;
  const std::uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const std::uint32_t large = 0x7c00u | (0x200u & mask_of(compared > 0x7f800000));  // infinity, NaN
  const std::uint32_t finite = choose(is_small, small, normal);
  return static_cast<std::uint16_t>(sign | choose(mask_of(compared >= 0x47800000), large, finite));
}

inline float widen_f16(std::uint16_t value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value & 0x8000u) << 16;
  const std::uint32_t shifted = static_cast<std::uint32_t>(value & 0x7fffu) << 13;
  const std::uint32_t exponent = shifted & 0x0f800000u;
  const std::uint32_t is_small = mask_of(exponent == 0u);
  // Infinity and NaN, whose exponent is full, get all of the difference of the biases twice.
  const std::uint32_t rebased =
      shifted + 0x38000000u + (0x38000000u & mask_of(exponent == 0x0f800000u));
  // A subnormal as 2^-14 * (1 + mantissa), less 2^-14.
  const std::uint32_t small = std::bit_cast<std::uint32_t>(
      std::bit_cast<float>((shifted & is_small) + 0x38800000u) - 0x1p-14f);
  return std::bit_cast<float>(sign | choose(is_small, small, rebased));
}

// e4m3 in the same way: the bits of e4m3_from_f32 and f32_from_e4m3. Neither makes or needs a
// subnormal of f32, which a thread may count as zero.
inline std::uint8_t narrow_e4m3(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 24) & 0x80u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  const auto compared = static_cast<std::int32_t>(magnitude);
  const std::uint32_t is_small = mask_of(compared < 0x3c800000);  // below 2^-6: subnormal results
  // Adding 2^14 makes the adder round at 2^-9.
  const std::uint32_t small =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude & is_small) + 0x1p14f) & 0xfu;
  const std::uint32_t normal =
      (magnitude - 0x3c000000u + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20;
  const std::uint32_t finite =
      choose(mask_of(compared >= 0x43e00000), 0x7eu, choose(is_small, small, normal));
  return static_cast<std::uint8_t>(choose(mask_of(compared > 0x7f800000), 0x7fu, sign | finite));
}

inline float widen_e4m3(std::uint8_t value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value & 0x80u) << 24;
  const std::uint32_t shifted = static_cast<std::uint32_t>(value & 0x7fu) << 20;
  const std::uint32_t is_small = mask_of(shifted < 0x00800000u);
  const std::uint32_t normal =
      (shifted + 0x3c000000u) | (0x7fc00000u & mask_of(shifted == 0x07f00000u));
  // A subnormal as 2^-6 * (1 + mantissa), less 2^-6.
  const std::uint32_t small = std::bit_cast<std::uint32_t>(
      std::bit_cast<float>((shifted & is_small) + 0x3c800000u) - 0x1p-6f);
  return std::bit_cast<float>(sign | choose(is_small, small, normal));
}

// f64 to f32 with the lost bits folded into the last one ("round to odd"), so that rounding on to a
// 16-bit type rounds once: f32 has more than two bits more than either of them.
inline float odd_f32(double value) {
  const auto nearest = static_cast<float>(value);
  const double back = static_cast<double>(nearest);
  if (back == value || value != value) return nearest;
  auto bits = std::bit_cast<std::uint32_t>(nearest);
  // Away from zero includes a finite value that became infinity: the largest finite one is odd.
  if (std::fabs(back) > std::fabs(value)) --bits;
  return std::bit_cast<float>(bits | 1u);
}

// load gives a float or a double, store takes either; both are exact or round once.
struct F64 {
  using Stored = double;
  static double load(Stored value) { return value; }
  static Stored store(float value) { return static_cast<double>(value); }
  static Stored store(double value) { return value; }
};

struct F32 {
  using Stored = float;
  static float load(Stored value) { return value; }
  static Stored store(float value) { return value; }
  static Stored store(double value) { return static_cast<float>(value); }
};

struct F16 {
  using Stored = std::uint16_t;
  static float load(Stored value) { return widen_f16(value); }
  static Stored store(float value) { return narrow_f16(value); }
  static Stored store(double value) { return narrow_f16(odd_f32(value)); }
};

struct BF16 {
  using Stored = std::uint16_t;
  static float load(Stored value) { return f32_from_bf16(value); }
  static Stored store(float value) { return bf16_from_f32(value); }
  static Stored store(double value) { return bf16_from_f32(odd_f32(value)); }
};

}  // namespace kvfolio::kernels
