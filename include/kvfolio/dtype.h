// SPDX-License-Identifier: Apache-2.0
#pragma once

// Element types of keys and values, and the scalar conversions that define their meaning.
// Conversions to a narrower type round to nearest, ties to even. Values that are too large become
// an infinity; NaN stays NaN (quiet). Nothing here knows memory: kernels.h converts rows. Thread
// safety: each function depends only on its arguments.

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kvfolio/export.h"

namespace kvfolio {

enum class DType : std::int32_t {
  kF64 = 0,
  kF32 = 1,
  kF16 = 2,
  kBF16 = 3,
  // Only for caches: -127 .. 127 times an f32 scale for each token and head, see quantize_scale().
  kInt8 = 4,
};

[[nodiscard]] constexpr std::int32_t dtype_bytes(DType dtype) noexcept {
  switch (dtype) {
    case DType::kF64:
      return 8;
    case DType::kF32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kInt8:
      return 1;
  }
  return 0;  // not a DType
}

[[nodiscard]] constexpr const char* to_string(DType dtype) noexcept {
  switch (dtype) {
    case DType::kF64:
      return "f64";
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
    case DType::kInt8:
      return "int8";
  }
  return "invalid";
}

[[nodiscard]] constexpr std::uint16_t bf16_from_f32(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

[[nodiscard]] constexpr float f32_from_bf16(std::uint16_t value) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}

[[nodiscard]] constexpr std::uint16_t f16_from_f32(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);   // NaN
  if (magnitude >= 0x47800000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // >= 65536
  if (magnitude < 0x38800000u) {  // below 2^-14: subnormal, in units of 2^-24
    if (magnitude < 0x33000000u) return static_cast<std::uint16_t>(sign);  // < 2^-25
    const std::uint32_t exponent = magnitude >> 23;
    const std::uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    const std::uint32_t shift = 126u - exponent;  // 14 .. 24
    const std::uint32_t kept = mantissa >> shift;
    const std::uint32_t rest = mantissa & ((1u << shift) - 1u);
    const std::uint32_t half = 1u << (shift - 1u);
    const std::uint32_t up = (rest > half || (rest == half && (kept & 1u) != 0u)) ? 1u : 0u;
    return static_cast<std::uint16_t>(sign | (kept + up));
  }
  const std::uint32_t rebased = magnitude - 0x38000000u;  // exponent bias 127 -> 15
  return static_cast<std::uint16_t>(sign | ((rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13));
}

[[nodiscard]] constexpr float f32_from_f16(std::uint16_t value) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(value & 0x8000u) << 16;
  const std::uint32_t exponent = (value >> 10) & 0x1fu;
  const std::uint32_t mantissa = value & 0x3ffu;
  if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0u) {  // subnormal: exact in f32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0u ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

// int8: a row (one token and head; K and V are separate rows) is converted to f32, and becomes one
// f32 scale and elements -127 .. 127; a value is element * scale. amax is the largest magnitude of
// the row: scale = amax / 127, and element = x * (127 / amax), rounded to nearest, ties to even,
// where each operation is rounded to f32. If amax is below kQuantizeLeast, the row is zeros with
// scale 0. If the row holds a NaN or an infinity (then amax is that), it is zeros with scale NaN.
// Nothing else affects the result.
inline constexpr float kQuantizeLeast = 1e-30f;

[[nodiscard]] constexpr float quantize_scale(float amax) noexcept {
  if (!(amax <= std::numeric_limits<float>::max())) return std::numeric_limits<float>::quiet_NaN();
  return amax < kQuantizeLeast ? 0.0f : amax / 127.0f;
}

// What the values of a row are multiplied by; 0 if its elements are all zeros.
[[nodiscard]] constexpr float quantize_inverse(float amax) noexcept {
  if (!(amax <= std::numeric_limits<float>::max()) || amax < kQuantizeLeast) return 0.0f;
  return 127.0f / amax;
}

// One element of a row whose quantize_inverse() is `inverse`.
[[nodiscard]] inline std::int8_t quantize(float x, float inverse) noexcept {
  if (inverse == 0.0f) return 0;
  const float product = x * inverse;
  const float nearest = std::nearbyint(product);  // in a call, so that nothing is fused
  return static_cast<std::int8_t>(std::fmin(std::fmax(nearest, -127.0f), 127.0f));
}

[[nodiscard]] constexpr float dequantize(std::int8_t element, float scale) noexcept {
  return static_cast<float>(element) * scale;
}

}  // namespace kvfolio
