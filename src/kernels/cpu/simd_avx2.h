// SPDX-License-Identifier: Apache-2.0
#pragma once

// 256-bit vectors: AVX2, FMA and F16C. Included by one target's source only.

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace kvfolio::kernels {
namespace {

struct Avx2 {
  using F = __m256;
  using I = __m256i;
  static constexpr int kLanes = 8;
  // Of 16 registers 8 are sums.
  static constexpr int kScoreRows = 4;
  static constexpr int score_subtiles(int rows, bool) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }
  static constexpr int many_rows(bool) { return 8; }
  static constexpr int kSumRows = 4;
  static constexpr int sum_vectors(int rows, bool) { return rows == 1 ? 8 : rows == 2 ? 4 : 2; }
  static constexpr int kTransposed = 8;

  static F zero() { return _mm256_setzero_ps(); }
  static F load(const void* p) { return _mm256_loadu_ps(static_cast<const float*>(p)); }
  static void store(void* p, F x) { _mm256_storeu_ps(static_cast<float*>(p), x); }
  static F broadcast(float x) { return _mm256_set1_ps(x); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  // A NaN in b is kept.
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static bool any_greater(F a, F b) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0;
  }
  static bool any_nan(F a) { return _mm256_movemask_ps(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)) != 0; }
  static float largest(F x) {
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
  }
  // bits: a bit for each lane; where it is not set, `other`.
  static F select(std::uint32_t bits, F x, F other) {
    const I bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const I set = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), bit);
    return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, bit)));
  }
  static F from_f16(const void* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  struct Parts {
    F fraction;
    F whole;
  };
  static Parts split(F x) {
    const F near = _mm256_max_ps(_mm256_set1_ps(-256.0f), x);  // -inf too; NaN passes
    const F whole = _mm256_round_ps(near, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return {_mm256_sub_ps(near, whole), whole};
  }
  // 2^whole * y for whole <= 127; 0 below 2^-126.
  static F scale(F y, F whole) {
    const I exponent = _mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127));
    const F power = _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
    const F tiny = _mm256_cmp_ps(whole, _mm256_set1_ps(-126.0f), _CMP_LT_OQ);
    return _mm256_andnot_ps(tiny, _mm256_mul_ps(y, power));
  }

  // ---- words of 4 bytes
  static I load_words(const void* p) { return _mm256_loadu_si256(static_cast<const I*>(p)); }
  static I broadcast_word(std::uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
  static I zero_words() { return _mm256_setzero_si256(); }
  static F low_bf16(I x) { return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)); }
  static F high_bf16(I x) {
    return _mm256_castsi256_ps(
        _mm256_and_si256(x, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  // Pairs of 16-bit numbers of the even and the odd bytes.
  static I even_unsigned(I x) { return _mm256_and_si256(x, _mm256_set1_epi16(0xff)); }
  static I odd_unsigned(I x) { return _mm256_srli_epi16(x, 8); }
  static I even_signed(I x) { return _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8); }
  static I odd_signed(I x) { return _mm256_srai_epi16(x, 8); }
  static I dot_pairs(I sum, I a, I b) { return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)); }
  static I sub_words(I a, I b) { return _mm256_sub_epi32(a, b); }
  static F to_float(I x) { return _mm256_cvtepi32_ps(x); }
  // Nearest even, to lanes of bytes 0 .. 255. Not for NaN.
  static void store_unsigned_bytes(void* p, F x) {
    const I words = _mm256_cvtps_epi32(x);
    const __m128i pairs =
        _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storel_epi64(static_cast<__m128i*>(p), _mm_packus_epi16(pairs, pairs));
  }

  // dst[i][t] = word i of the row at rows[t], for 16 rows and 8 words.
  static void transpose_words(const std::byte* const* rows, std::int64_t offset, std::byte* dst) {
    for (int half = 0; half < 2; ++half) {
      F r[8];
      for (int i = 0; i < 8; ++i) r[i] = load(rows[8 * half + i] + offset);
      transpose(r);
      for (int i = 0; i < 8; ++i) store(dst + 64 * i + 32 * half, r[i]);
    }
  }

 private:
  static void transpose(F* r) {
    F a[8];
    for (int i = 0; i < 8; i += 4) {  // 4x4 words within 128-bit lanes
      const F low01 = _mm256_unpacklo_ps(r[i], r[i + 1]);
      const F high01 = _mm256_unpackhi_ps(r[i], r[i + 1]);
      const F low23 = _mm256_unpacklo_ps(r[i + 2], r[i + 3]);
      const F high23 = _mm256_unpackhi_ps(r[i + 2], r[i + 3]);
      a[i] = _mm256_shuffle_ps(low01, low23, 0x44);
      a[i + 1] = _mm256_shuffle_ps(low01, low23, 0xee);
      a[i + 2] = _mm256_shuffle_ps(high01, high23, 0x44);
      a[i + 3] = _mm256_shuffle_ps(high01, high23, 0xee);
    }
    for (int j = 0; j < 4; ++j) {
      r[j] = _mm256_permute2f128_ps(a[j], a[4 + j], 0x20);
      r[4 + j] = _mm256_permute2f128_ps(a[j], a[4 + j], 0x31);
    }
  }
};

}  // namespace
}  // namespace kvfolio::kernels
