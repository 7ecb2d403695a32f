// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "arithmetic.h"

namespace kvfolio::bench {

std::int64_t dot_bf16_512(std::int64_t loops) {
  constexpr int kSums = 16;
  __m512 sums[kSums];
  for (auto& sum : sums) sum = _mm512_set1_ps(1.0F);
  // Pairs of bf16 0.5 and of 0.25.
  __m512i x = _mm512_set1_epi32(0x3f003f00);
  __m512i y = _mm512_set1_epi32(0x3e803e80);
  for (std::int64_t i = 0; i < loops; ++i) {
    asm volatile("" : "+v"(x), "+v"(y));  // not known to the compiler
    for (auto& sum : sums) sum = _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)y);
  }
  for (auto& sum : sums) asm volatile("" : : "v"(sum));
  return loops * kSums * 32 * 2;
}

}  // namespace kvfolio::bench
