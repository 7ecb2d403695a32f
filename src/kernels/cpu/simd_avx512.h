// SPDX-License-Identifier: Apache-2.0
#pragma once

// 512-bit vectors: x86-64-v4 (F, BW, DQ, VL). Included by one target's source only.

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace kvfolio::kernels {
namespace {

struct Avx512 {
  using F = __m512;
  using I = __m512i;
  static constexpr int kLanes = 16;
  // Rows and subtiles of one pass of scores: at most 16 sums, enough of them to hide the latency.
  // 24 rows of plain floats: 10 loads for 24 multiply-adds, where eight rows would have 10 for 16.
  static constexpr int kScoreRows = 8;
  static constexpr int score_subtiles(int rows, bool plain) {
    return rows <= (plain ? 6 : 4) ? 4 : 2;
  }
  // Vectors of V of one pass of sums.
  static constexpr int kSumRows = 8;
  static constexpr int sum_vectors(int rows, bool plain) {
    return rows <= 2 ? 8 : rows <= (plain ? 6 : 4) ? 4 : 2;
  }
  // Rows of a block where there are more than one block takes.
  static constexpr int many_rows(bool plain) { return plain ? 6 : 8; }
  static constexpr int kTransposed = 16;

  static F zero() { return _mm512_setzero_ps(); }
  static F load(const void* p) { return _mm512_loadu_ps(p); }
  static void store(void* p, F x) { _mm512_storeu_ps(p, x); }
  static F broadcast(float x) { return _mm512_set1_ps(x); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  // A NaN in b is kept.
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static bool any_greater(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0; }
  static bool any_nan(F a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q) != 0; }
  static float largest(F x) { return _mm512_reduce_max_ps(x); }
  // bits: a bit for each lane; where it is not set, `other`.
  static F select(std::uint32_t bits, F x, F other) {
    return _mm512_mask_mov_ps(other, static_cast<__mmask16>(bits), x);
  }
  static F from_f16(const void* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  }
  // x - n, and then 2^n * y, n the whole number nearest to x. 2^n of what is far below is 0.
  struct Parts {
    F fraction;
    F whole;
  };
  static Parts split(F x) {
    const F near = _mm512_max_ps(_mm512_set1_ps(-256.0f), x);  // -inf too; NaN passes
    const F whole = _mm512_roundscale_ps(near, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return {_mm512_sub_ps(near, whole), whole};
  }
  static F scale(F y, F whole) { return _mm512_scalef_ps(y, whole); }

  // ---- words of 4 bytes
  static I load_words(const void* p) { return _mm512_loadu_si512(p); }
  static I broadcast_word(std::uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
  static I zero_words() { return _mm512_setzero_si512(); }
  static F low_bf16(I x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); }
  static F high_bf16(I x) {
    return _mm512_castsi512_ps(
        _mm512_and_si512(x, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  // Pairs of 16-bit numbers of the even and the odd bytes.
  static I even_unsigned(I x) { return _mm512_and_si512(x, _mm512_set1_epi16(0xff)); }
  static I odd_unsigned(I x) { return _mm512_srli_epi16(x, 8); }
  static I even_signed(I x) { return _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8); }
  static I odd_signed(I x) { return _mm512_srai_epi16(x, 8); }
  static I dot_pairs(I sum, I a, I b) { return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b)); }
  static I sub_words(I a, I b) { return _mm512_sub_epi32(a, b); }
  static F to_float(I x) { return _mm512_cvtepi32_ps(x); }
  // Nearest even, to lanes of bytes 0 .. 255. Not for NaN.
  static void store_unsigned_bytes(void* p, F x) {
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtusepi32_epi8(_mm512_cvtps_epi32(x)));
  }

  // dst[i][t] = word i of the row at rows[t], for 16 rows and 16 words.
  static void transpose_words(const std::byte* const* rows, std::int64_t offset, std::byte* dst) {
    I r[16];
    for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_si512(rows[i] + offset);
    transpose(r);
    for (int i = 0; i < 16; ++i) _mm512_storeu_si512(dst + 64 * i, r[i]);
  }
  // The same, the words' lower halves in front of their upper ones.
  static void transpose_pairs(const std::byte* const* rows, std::int64_t offset, std::byte* dst) {
    I r[16];
    for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_si512(rows[i] + offset);
    transpose(r);
    for (int i = 0; i < 16; ++i) {
      auto* const to = reinterpret_cast<__m256i*>(dst + 64 * i);
      _mm256_storeu_si256(to, _mm512_cvtepi32_epi16(r[i]));
      _mm256_storeu_si256(to + 1, _mm512_cvtepi32_epi16(_mm512_srli_epi32(r[i], 16)));
    }
  }

 private:
  static void transpose(I* r) {
    I a[16];
    for (int i = 0; i < 16; i += 4) {  // 4x4 words within 128-bit lanes
      const I low01 = _mm512_unpacklo_epi32(r[i], r[i + 1]);
      const I high01 = _mm512_unpackhi_epi32(r[i], r[i + 1]);
      const I low23 = _mm512_unpacklo_epi32(r[i + 2], r[i + 3]);
      const I high23 = _mm512_unpackhi_epi32(r[i + 2], r[i + 3]);
      a[i] = _mm512_unpacklo_epi64(low01, low23);
      a[i + 1] = _mm512_unpackhi_epi64(low01, low23);
      a[i + 2] = _mm512_unpacklo_epi64(high01, high23);
      a[i + 3] = _mm512_unpackhi_epi64(high01, high23);
    }
    for (int j = 0; j < 4; ++j) {  // 4x4 lanes
      const I low = _mm512_shuffle_i32x4(a[j], a[4 + j], 0x44);
      const I high = _mm512_shuffle_i32x4(a[j], a[4 + j], 0xee);
      const I low2 = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0x44);
      const I high2 = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0xee);
      r[j] = _mm512_shuffle_i32x4(low, low2, 0x88);
      r[4 + j] = _mm512_shuffle_i32x4(low, low2, 0xdd);
      r[8 + j] = _mm512_shuffle_i32x4(high, high2, 0x88);
      r[12 + j] = _mm512_shuffle_i32x4(high, high2, 0xdd);
    }
  }
};

// For the last 8 dims of a row of V: loads stop there.
struct Avx512Half : Avx512 {
  static F load(const void* p) {
    return _mm512_zextps256_ps512(_mm256_loadu_ps(static_cast<const float*>(p)));
  }
  static F from_f16(const void* p) {
    return _mm512_cvtph_ps(_mm256_zextsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(p))));
  }
  static I load_words(const void* p) {
    return _mm512_zextsi256_si512(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  }
};

}  // namespace
}  // namespace kvfolio::kernels
