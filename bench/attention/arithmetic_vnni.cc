// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "arithmetic.h"

namespace kvfolio::bench {

std::int64_t dot_int8_512(std::int64_t loops) {
  constexpr int kSums = 16;
  __m512i sums[kSums];
  for (auto& sum : sums) sum = _mm512_set1_epi32(1);
  __m512i x = _mm512_set1_epi8(3);
  __m512i y = _mm512_set1_epi8(-5);
  for (std::int64_t i = 0; i < loops; ++i) {
    asm volatile("" : "+v"(x), "+v"(y));  // not known to the compiler
    for (auto& sum : sums) sum = _mm512_dpbusd_epi32(sum, x, y);
  }
  for (auto& sum : sums) asm volatile("" : : "v"(sum));
  return loops * kSums * 64 * 2;
}

}  // namespace kvfolio::bench
