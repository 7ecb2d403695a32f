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
  // Only for caches: e4m3fn of OCP's FP8 times an f32 scale for each token and head, see
  // quantize_e4m3(). Not in format granule.
  kE4M3 = 5,
  // One byte of a row whose meaning only the engine knows: a row of K is head_dim_k bytes for each
  // token and head. Rows go in and out as they are; nothing converts them or attends to them. Not
  // in format granule.
  kOpaque = 6,
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
    case DType::kE4M3:
    case DType::kOpaque:
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
    case DType::kE4M3:
      return "e4m3";
    case DType::kOpaque:
      return "opaque";
  }
  return "invalid";
}

// Whether format granule (spec.h) has tiles of it.
[[nodiscard]] constexpr bool fits_granule(DType dtype) noexcept {
  return dtype != DType::kF64 && dtype != DType::kE4M3 && dtype != DType::kOpaque;
}

// Whether each token and head has an f32 scale of K and one of V. Rows outside of caches are never
// of such a type.
[[nodiscard]] constexpr bool has_scales(DType dtype) noexcept {
  return dtype == DType::kInt8 || dtype == DType::kE4M3;
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

// e4m3fn has no infinity: 448 takes what is larger, an infinity too. Its one NaN is all ones.
[[nodiscard]] constexpr std::uint8_t e4m3_from_f32(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 24) & 0x80u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7f;                                      // NaN
  if (magnitude >= 0x43e00000u) return static_cast<std::uint8_t>(sign | 0x7eu);  // >= 448
  if (magnitude < 0x3a800000u) return static_cast<std::uint8_t>(sign);           // < 2^-10
  if (magnitude < 0x3c800000u) {  // below 2^-6: subnormal, in units of 2^-9
    const float sum = std::bit_cast<float>(magnitude) + 0x1p14f;  // where the adder rounds to them
    return static_cast<std::uint8_t>(sign | (std::bit_cast<std::uint32_t>(sum) & 0xfu));
  }
  const std::uint32_t rebased = magnitude - 0x3c000000u;  // exponent bias 127 -> 7
  return static_cast<std::uint8_t>(sign | ((rebased + 0x7ffffu + ((rebased >> 20) & 1u)) >> 20));
}

// Exact, also where subnormals of f32 count as zero.
[[nodiscard]] constexpr float f32_from_e4m3(std::uint8_t value) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(value & 0x80u) << 24;
  const std::uint32_t magnitude = value & 0x7fu;
  if (magnitude == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (magnitude < 8u) {  // subnormal
    const float number = static_cast<float>(magnitude) * 0x1p-9f;
    return sign != 0u ? -number : number;
  }
  return std::bit_cast<float>(sign | ((magnitude << 20) + 0x3c000000u));
}

// Types with scales: a row (one token and head; K and V are separate rows) is converted to f32, and
// becomes one f32 scale and elements; a value is element * scale. amax is the largest magnitude of
// the row, `most` that of an element: scale = amax / most, and element = x * (most / amax), rounded
// to nearest, ties to even, where each operation is rounded to f32. If amax is below
// kQuantizeLeast, the row is zeros with scale 0. If the row holds a NaN or an infinity (then amax
// is that), it is zeros with scale NaN. Nothing else affects the result.
inline constexpr float kQuantizeLeast = 1e-30f;
inline constexpr float kInt8Most = 127.0f;
inline constexpr float kE4M3Most = 448.0f;

[[nodiscard]] constexpr float quantize_scale(float amax, float most = kInt8Most) noexcept {
  if (!(amax <= std::numeric_limits<float>::max())) return std::numeric_limits<float>::quiet_NaN();
  return amax < kQuantizeLeast ? 0.0f : amax / most;
}

// What the values of a row are multiplied by; 0 if its elements are all zeros.
[[nodiscard]] constexpr float quantize_inverse(float amax, float most = kInt8Most) noexcept {
  if (!(amax <= std::numeric_limits<float>::max()) || amax < kQuantizeLeast) return 0.0f;
  return most / amax;
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

// The same of e4m3. A zero keeps its sign where `inverse` is not 0.
[[nodiscard]] constexpr std::uint8_t quantize_e4m3(float x, float inverse) noexcept {
  return inverse == 0.0f ? std::uint8_t{0} : e4m3_from_f32(x * inverse);
}

[[nodiscard]] constexpr float dequantize_e4m3(std::uint8_t element, float scale) noexcept {
  return f32_from_e4m3(element) * scale;
}

}  // namespace kvfolio
