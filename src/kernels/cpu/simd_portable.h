// SPDX-License-Identifier: Apache-2.0
#pragma once

// 128-bit vectors in the compiler's own vector types: no instruction set is named, so this is what
// every machine can run. A product and a sum round twice here unless the machine fuses them.
// Included by one target's source only.

#include <cstddef>
#include <cstdint>

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace kvfolio::kernels {
namespace {

struct Vector4 {
  using F = float __attribute__((vector_size(16)));
  using I = std::uint32_t __attribute__((vector_size(16)));
  using S = std::int32_t __attribute__((vector_size(16)));
  static constexpr int kLanes = 4;
  static constexpr int many_rows(bool) { return 8; }
#if defined(__aarch64__)  // 32 registers
  static constexpr int kScoreRows = 4;
  static constexpr int score_subtiles(int rows, bool) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }
  static constexpr int kSumRows = 4;
  static constexpr int sum_vectors(int rows, bool) { return rows == 1 ? 8 : 4; }
#else
  static constexpr int kScoreRows = 2;
  static constexpr int score_subtiles(int rows, bool) { return rows == 1 ? 2 : 1; }
  static constexpr int kSumRows = 4;
  static constexpr int sum_vectors(int rows, bool) { return rows == 1 ? 8 : rows == 2 ? 4 : 2; }
#endif
  static constexpr int kTransposed = 4;

  static F zero() { return F{}; }
  static F load(const void* p) {
    F x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
  }
  static void store(void* p, F x) { __builtin_memcpy(p, &x, sizeof x); }
  static F broadcast(float x) { return F{x, x, x, x}; }
  static F add(F a, F b) { return a + b; }
  static F sub(F a, F b) { return a - b; }
  static F mul(F a, F b) { return a * b; }
  static F div(F a, F b) { return a / b; }
  static F fma(F a, F b, F c) {
#if defined(__aarch64__)
    return vfmaq_f32(c, a, b);
#else
    return a * b + c;
#endif
  }
  // A NaN in b is kept.
  static F max(F a, F b) { return a > b ? a : b; }
  static F if_greater(F a, F b, F x, F other) { return a > b ? x : other; }
  static bool any_greater(F a, F b) { return any(a > b); }
  static bool any_nan(F a) { return any(a != a); }  // NOLINT(misc-redundant-expression)
  static float largest(F x) {
    float most = x[0];
    for (int i = 1; i < kLanes; ++i) most = x[i] > most ? x[i] : most;
    return most;
  }
  // bits: a bit for each lane; where it is not set, `other`.
  static F select(std::uint32_t bits, F x, F other) {
    const I bit{1, 2, 4, 8};
    const I all{bits, bits, bits, bits};
    return (all & bit) != 0 ? x : other;
  }
  static F from_f16(const void* p) {
    std::uint16_t halves[4];
    __builtin_memcpy(halves, p, sizeof halves);
    const I value{halves[0], halves[1], halves[2], halves[3]};
    const I sign = (value & 0x8000u) << 16;
    const I shifted = (value & 0x7fffu) << 13;
    const I exponent = shifted & 0x0f800000u;
    const I normal = shifted + 0x38000000u;
    const I special = shifted + 0x70000000u;  // infinity and NaN: the exponent is full
    // A subnormal as 2^-14 * (1 + mantissa), less 2^-14.
    const F small = as_floats(shifted + 0x38800000u) - 0x1p-14f;
    const I finite = exponent == 0u ? as_words(small) : normal;
    return as_floats(sign | (exponent == 0x0f800000u ? special : finite));
  }
  struct Parts {
    F fraction;
    F whole;
  };
  static Parts split(F x) {
    const F least = broadcast(-256.0f);
    const F near = least > x ? least : x;  // -inf too; NaN passes
    // Whole numbers are all that f32 has beside this constant.
    const F magic = broadcast(12582912.0f);
    const F whole = (near + magic) - magic;
    return {near - whole, whole};
  }
  // 2^whole * y for whole <= 127; 0 below 2^-126.
  static F scale(F y, F whole) {
    const F tiny = broadcast(-126.0f);
    const F safe = whole >= tiny ? whole : tiny;  // no NaN: its conversion is undefined
    const I exponent = __builtin_convertvector(__builtin_convertvector(safe, S) + 127, I);
    const F scaled = y * as_floats(exponent << 23);
    return whole < tiny ? zero() : scaled;
  }

  // ---- words of 4 bytes
  static I load_words(const void* p) {
    I x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
  }
  static F low_bf16(I x) { return as_floats(x << 16); }
  static F high_bf16(I x) { return as_floats(x & 0xffff0000u); }
  static void unsigned_bytes(const void* p, F* x) {
    const I words = load_words(p);
    for (int i = 0; i < 4; ++i) {
      x[i] = __builtin_convertvector(as_signed((words >> (8 * i)) & 0xffu), F);
    }
  }
  static void signed_bytes(const void* p, F* x) {
    const I words = load_words(p);
    for (int i = 0; i < 4; ++i) {
      x[i] = __builtin_convertvector(as_signed(words << (24 - 8 * i)) >> 24, F);
    }
  }
  // Nearest even, to lanes of bytes 0 .. 255. Not for NaN.
  static void store_unsigned_bytes(void* p, F x) {
    const F magic = broadcast(12582912.0f);
    const S words = __builtin_convertvector((x + magic) - magic, S);
    std::uint8_t bytes[4];
    for (int i = 0; i < 4; ++i) bytes[i] = static_cast<std::uint8_t>(words[i]);
    __builtin_memcpy(p, bytes, sizeof bytes);
  }

  // dst[i][t] = word i of the row at rows[t], for 16 rows and 4 words.
  static void transpose_words(const std::byte* const* rows, std::int64_t offset, std::byte* dst) {
    for (int t = 0; t < 16; ++t) {
      for (int i = 0; i < 4; ++i) {
        __builtin_memcpy(dst + 64 * i + 4 * t, rows[t] + offset + 4 * i, 4);
      }
    }
  }

 private:
  static bool any(S set) { return (set[0] | set[1] | set[2] | set[3]) != 0; }
  static F as_floats(I x) { return reinterpret_cast<F>(x); }
  static I as_words(F x) { return reinterpret_cast<I>(x); }
  static S as_signed(I x) { return reinterpret_cast<S>(x); }
};

}  // namespace
}  // namespace kvfolio::kernels
