// SPDX-License-Identifier: Apache-2.0
#pragma once

// A plain model of the intrinsics that simd_avx512.h and target_avx512_bf16.cc use, so that these
// targets can be computed on a machine that lacks them: it stands in front of the compiler's header
// of that name where modelled_avx512.cc and modelled_avx512_bf16.cc are compiled, and nowhere else.
// Written from the Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2: lane by
// lane, in the rounding mode nearest even, without exceptions.
//
// What it does not promise: the order of the additions within _mm512_dpbf16_ps, of which the manual
// says little, so that products of bf16 have not the hardware's bits; and which of several NaN
// comes out.

#include <cstdint>

// NOLINTBEGIN(bugprone-reserved-identifier): these are the names that the targets use

using __m128i = long long __attribute__((vector_size(16)));
using __m128bh = short __attribute__((vector_size(16)));
using __m256 = float __attribute__((vector_size(32)));
using __m256i = long long __attribute__((vector_size(32)));
using __m512 = float __attribute__((vector_size(64)));
using __m512i = long long __attribute__((vector_size(64)));
using __m512bh = short __attribute__((vector_size(64)));
using __mmask16 = unsigned short;

enum : int {
  _CMP_UNORD_Q = 3,
  _CMP_GT_OQ = 30,
  _MM_FROUND_TO_NEAREST_INT = 0,
  _MM_FROUND_NO_EXC = 8,
};

namespace kvfolio::kernels::model {
namespace {

using Words = std::uint32_t __attribute__((vector_size(64)));
using Ints = std::int32_t __attribute__((vector_size(64)));
using Halves = std::uint16_t __attribute__((vector_size(64)));
using Shorts = std::int16_t __attribute__((vector_size(64)));
using Bytes = std::uint8_t __attribute__((vector_size(64)));
using SignedBytes = std::int8_t __attribute__((vector_size(64)));

inline Words words(__m512i x) { return reinterpret_cast<Words>(x); }
inline Words words(__m512 x) { return reinterpret_cast<Words>(x); }
inline Ints ints(__m512i x) { return reinterpret_cast<Ints>(x); }
inline Shorts shorts(__m512i x) { return reinterpret_cast<Shorts>(x); }
template <typename Vector>
inline __m512i whole(Vector x) {
  return reinterpret_cast<__m512i>(x);
}
inline __m512 floats(Words x) { return reinterpret_cast<__m512>(x); }

template <typename To>
inline To load(const void* from) {
  To x;
  __builtin_memcpy(&x, from, sizeof x);
  return x;
}
template <typename To, typename From>
inline To bits_of(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To y;
  __builtin_memcpy(&y, &x, sizeof y);
  return y;
}

inline float float_of_f16(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000u) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fu;
  const std::uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0) {
    const float size = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -size : size;
  }
  if (exponent != 31) return bits_of<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  const std::uint32_t quiet = mantissa == 0 ? 0 : 0x00400000u;
  return bits_of<float>(sign | 0x7f800000u | mantissa << 13 | quiet);
}

// Denormals are zeros to the instructions of BF16, as arguments and as results.
inline float flushed(float x) {
  const auto bits = bits_of<std::uint32_t>(x);
  return (bits & 0x7f800000u) == 0 ? bits_of<float>(bits & 0x80000000u) : x;
}
inline std::uint16_t bf16_of(float value) {
  const auto bits = bits_of<std::uint32_t>(flushed(value));
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
inline float float_of_bf16(std::uint16_t x) {
  return flushed(bits_of<float>(static_cast<std::uint32_t>(x) << 16));
}

}  // namespace
}  // namespace kvfolio::kernels::model

namespace {

// ---- floats
inline __m512 _mm512_setzero_ps() { return __m512{}; }
inline __m512 _mm512_set1_ps(float x) { return x - __m512{}; }  // of -0 too, which -0 + 0 is not
inline __m512 _mm512_loadu_ps(const void* p) { return kvfolio::kernels::model::load<__m512>(p); }
inline void _mm512_storeu_ps(void* p, __m512 x) { __builtin_memcpy(p, &x, sizeof x); }
inline __m256 _mm256_loadu_ps(const float* p) { return kvfolio::kernels::model::load<__m256>(p); }
inline __m512 _mm512_add_ps(__m512 a, __m512 b) { return a + b; }
inline __m512 _mm512_sub_ps(__m512 a, __m512 b) { return a - b; }
inline __m512 _mm512_mul_ps(__m512 a, __m512 b) { return a * b; }
inline __m512 _mm512_div_ps(__m512 a, __m512 b) { return a / b; }
inline __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c) {
  for (int i = 0; i < 16; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
}
// The second where one is NaN, and of two zeros.
inline __m512 _mm512_max_ps(__m512 a, __m512 b) { return a > b ? a : b; }
inline float _mm512_reduce_max_ps(__m512 x) {
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) x[i] = x[i + half] > x[i] ? x[i + half] : x[i];
  }
  return x[0];
}
inline __mmask16 _mm512_cmp_ps_mask(__m512 a, __m512 b, int how) {
  unsigned mask = 0;
  for (int i = 0; i < 16; ++i) {
    const bool set = how == _CMP_GT_OQ ? a[i] > b[i] : __builtin_isunordered(a[i], b[i]) != 0;
    mask |= (set ? 1u : 0u) << i;
  }
  return static_cast<__mmask16>(mask);
}
inline __m512 _mm512_mask_mov_ps(__m512 other, __mmask16 mask, __m512 x) {
  for (int i = 0; i < 16; ++i) {
    if ((mask >> i & 1) != 0) other[i] = x[i];
  }
  return other;
}
inline __m512 _mm512_roundscale_ps(__m512 x, int) {
  for (int i = 0; i < 16; ++i) x[i] = __builtin_rintf(x[i]);
  return x;
}
// y * 2^x of a whole x, rounded once.
inline __m512 _mm512_scalef_ps(__m512 y, __m512 x) {
  for (int i = 0; i < 16; ++i) {
    if (__builtin_isunordered(x[i], y[i]) != 0) {
      y[i] = x[i] + y[i];
      continue;
    }
    const float exponent = x[i] < -1000.0f ? -1000.0f : x[i] > 1000.0f ? 1000.0f : x[i];
    y[i] = __builtin_ldexpf(y[i], static_cast<int>(__builtin_floorf(exponent)));
  }
  return y;
}
inline __m512 _mm512_zextps256_ps512(__m256 x) {
  __m512 y{};
  __builtin_memcpy(&y, &x, sizeof x);
  return y;
}
inline __m512 _mm512_castsi512_ps(__m512i x) { return reinterpret_cast<__m512>(x); }
inline __m512 _mm512_cvtph_ps(__m256i x) {
  std::uint16_t halves[16];
  __builtin_memcpy(halves, &x, sizeof halves);
  __m512 y;
  for (int i = 0; i < 16; ++i) y[i] = kvfolio::kernels::model::float_of_f16(halves[i]);
  return y;
}
inline __m512 _mm512_cvtepi32_ps(__m512i x) {
  return __builtin_convertvector(kvfolio::kernels::model::ints(x), __m512);
}
// What no int holds becomes the lowest one.
inline __m512i _mm512_cvtps_epi32(__m512 x) {
  kvfolio::kernels::model::Ints y;
  for (int i = 0; i < 16; ++i) {
    const float near = __builtin_rintf(x[i]);
    y[i] = near >= -0x1p31f && near < 0x1p31f ? static_cast<std::int32_t>(near) : INT32_MIN;
  }
  return kvfolio::kernels::model::whole(y);
}

// ---- whole numbers
inline __m512i _mm512_setzero_si512() { return __m512i{}; }
inline __m512i _mm512_set1_epi32(int x) {
  return kvfolio::kernels::model::whole(kvfolio::kernels::model::Ints{} + x);
}
inline __m512i _mm512_set1_epi16(short x) {
  return kvfolio::kernels::model::whole(kvfolio::kernels::model::Shorts{} + x);
}
inline __m512i _mm512_loadu_si512(const void* p) {
  return kvfolio::kernels::model::load<__m512i>(p);
}
inline void _mm512_storeu_si512(void* p, __m512i x) { __builtin_memcpy(p, &x, sizeof x); }
inline __m256i _mm256_loadu_si256(const __m256i* p) {
  return kvfolio::kernels::model::load<__m256i>(p);
}
inline void _mm256_storeu_si256(__m256i* p, __m256i x) { __builtin_memcpy(p, &x, sizeof x); }
inline __m128i _mm_loadu_si128(const __m128i* p) {
  return kvfolio::kernels::model::load<__m128i>(p);
}
inline void _mm_storeu_si128(__m128i* p, __m128i x) { __builtin_memcpy(p, &x, sizeof x); }
inline __m512i _mm512_zextsi256_si512(__m256i x) {
  __m512i y{};
  __builtin_memcpy(&y, &x, sizeof x);
  return y;
}
inline __m256i _mm256_zextsi128_si256(__m128i x) {
  __m256i y{};
  __builtin_memcpy(&y, &x, sizeof x);
  return y;
}
inline __m512i _mm512_and_si512(__m512i a, __m512i b) { return a & b; }
inline __m512i _mm512_add_epi32(__m512i a, __m512i b) {
  return kvfolio::kernels::model::whole(kvfolio::kernels::model::words(a) +
                                        kvfolio::kernels::model::words(b));
}
inline __m512i _mm512_sub_epi32(__m512i a, __m512i b) {
  return kvfolio::kernels::model::whole(kvfolio::kernels::model::words(a) -
                                        kvfolio::kernels::model::words(b));
}
inline __m512i _mm512_slli_epi32(__m512i x, unsigned bits) {
  return kvfolio::kernels::model::whole(kvfolio::kernels::model::words(x) << bits);
}
inline __m512i _mm512_srli_epi32(__m512i x, unsigned bits) {
  return kvfolio::kernels::model::whole(kvfolio::kernels::model::words(x) >> bits);
}
inline __m512i _mm512_slli_epi16(__m512i x, unsigned bits) {
  auto y = reinterpret_cast<kvfolio::kernels::model::Halves>(x);
  for (int i = 0; i < 32; ++i) y[i] = static_cast<std::uint16_t>(y[i] << bits);
  return kvfolio::kernels::model::whole(y);
}
inline __m512i _mm512_srli_epi16(__m512i x, unsigned bits) {
  auto y = reinterpret_cast<kvfolio::kernels::model::Halves>(x);
  for (int i = 0; i < 32; ++i) y[i] = static_cast<std::uint16_t>(y[i] >> bits);
  return kvfolio::kernels::model::whole(y);
}
inline __m512i _mm512_srai_epi16(__m512i x, unsigned bits) {
  auto y = kvfolio::kernels::model::shorts(x);
  for (int i = 0; i < 32; ++i) y[i] = static_cast<std::int16_t>(y[i] >> bits);
  return kvfolio::kernels::model::whole(y);
}
// Sums of two products of 16 bits each; the sum wraps.
inline __m512i _mm512_madd_epi16(__m512i a, __m512i b) {
  const auto x = kvfolio::kernels::model::shorts(a);
  const auto y = kvfolio::kernels::model::shorts(b);
  kvfolio::kernels::model::Words sum;
  for (int i = 0; i < 16; ++i) {
    sum[i] = static_cast<std::uint32_t>(x[2 * i] * y[2 * i]) +
             static_cast<std::uint32_t>(x[2 * i + 1] * y[2 * i + 1]);
  }
  return kvfolio::kernels::model::whole(sum);
}
// Unsigned bytes times signed ones.
inline __m512i _mm512_dpbusd_epi32(__m512i sum, __m512i a, __m512i b) {
  auto total = kvfolio::kernels::model::words(sum);
  const auto x = reinterpret_cast<kvfolio::kernels::model::Bytes>(a);
  const auto y = reinterpret_cast<kvfolio::kernels::model::SignedBytes>(b);
  for (int i = 0; i < 64; ++i) total[i / 4] += static_cast<std::uint32_t>(x[i] * y[i]);
  return kvfolio::kernels::model::whole(total);
}
inline __m256i _mm512_cvtepi32_epi16(__m512i x) {
  const auto words = kvfolio::kernels::model::words(x);
  std::uint16_t halves[16];
  for (int i = 0; i < 16; ++i) halves[i] = static_cast<std::uint16_t>(words[i]);
  return kvfolio::kernels::model::load<__m256i>(halves);
}
// Unsigned numbers: what is more than a byte holds is 255.
inline __m128i _mm512_cvtusepi32_epi8(__m512i x) {
  const auto words = kvfolio::kernels::model::words(x);
  std::uint8_t bytes[16];
  for (int i = 0; i < 16; ++i) {
    bytes[i] = static_cast<std::uint8_t>(words[i] > 255 ? 255 : words[i]);
  }
  return kvfolio::kernels::model::load<__m128i>(bytes);
}

// ---- where things lie: within each lane of 128 bits, and of the lanes
inline __m512i _mm512_unpacklo_epi32(__m512i a, __m512i b) {
  const auto x = kvfolio::kernels::model::words(a);
  const auto y = kvfolio::kernels::model::words(b);
  kvfolio::kernels::model::Words out;
  for (int i = 0; i < 16; ++i) out[i] = (i % 2 == 0 ? x : y)[i / 4 * 4 + i % 4 / 2];
  return kvfolio::kernels::model::whole(out);
}
inline __m512i _mm512_unpackhi_epi32(__m512i a, __m512i b) {
  const auto x = kvfolio::kernels::model::words(a);
  const auto y = kvfolio::kernels::model::words(b);
  kvfolio::kernels::model::Words out;
  for (int i = 0; i < 16; ++i) out[i] = (i % 2 == 0 ? x : y)[i / 4 * 4 + 2 + i % 4 / 2];
  return kvfolio::kernels::model::whole(out);
}
inline __m512i _mm512_unpacklo_epi64(__m512i a, __m512i b) {
  __m512i out;
  for (int i = 0; i < 8; ++i) out[i] = (i % 2 == 0 ? a : b)[i / 2 * 2];
  return out;
}
inline __m512i _mm512_unpackhi_epi64(__m512i a, __m512i b) {
  __m512i out;
  for (int i = 0; i < 8; ++i) out[i] = (i % 2 == 0 ? a : b)[i / 2 * 2 + 1];
  return out;
}
inline __m512i _mm512_shuffle_i32x4(__m512i a, __m512i b, int which) {
  __m512i out;
  for (int lane = 0; lane < 4; ++lane) {
    const int from = which >> (2 * lane) & 3;
    for (int i = 0; i < 2; ++i) out[2 * lane + i] = (lane < 2 ? a : b)[2 * from + i];
  }
  return out;
}

// ---- bf16
inline __m128bh _mm256_cvtneps_pbh(__m256 x) {
  std::uint16_t halves[8];
  for (int i = 0; i < 8; ++i) halves[i] = kvfolio::kernels::model::bf16_of(x[i]);
  return kvfolio::kernels::model::load<__m128bh>(halves);
}
inline __m256i _mm512_cvtneps_pbh(__m512 x) {
  std::uint16_t halves[16];
  for (int i = 0; i < 16; ++i) halves[i] = kvfolio::kernels::model::bf16_of(x[i]);
  return kvfolio::kernels::model::load<__m256i>(halves);
}
// The odd product first, then the even one, each added in one rounding.
inline __m512 _mm512_dpbf16_ps(__m512 sum, __m512bh a, __m512bh b) {
  std::uint16_t x[32];
  std::uint16_t y[32];
  __builtin_memcpy(x, &a, sizeof x);
  __builtin_memcpy(y, &b, sizeof y);
  for (int i = 0; i < 16; ++i) {
    float total = kvfolio::kernels::model::flushed(sum[i]);
    for (const int j : {2 * i + 1, 2 * i}) {
      total = kvfolio::kernels::model::flushed(
          __builtin_fmaf(kvfolio::kernels::model::float_of_bf16(x[j]),
                         kvfolio::kernels::model::float_of_bf16(y[j]), total));
    }
    sum[i] = total;
  }
  return sum;
}

}  // namespace

// NOLINTEND(bugprone-reserved-identifier)
