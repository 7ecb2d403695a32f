// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "arithmetic.h"

namespace kvfolio::bench {

std::int64_t fma_f32_512(std::int64_t loops) {
  constexpr int kSums = 16;
  __m512 sums[kSums];
  for (auto& sum : sums) sum = _mm512_set1_ps(1.0F);
  __m512 x = _mm512_set1_ps(0.5F);
  __m512 y = _mm512_set1_ps(0.25F);
  for (std::int64_t i = 0; i < loops; ++i) {
    asm volatile("" : "+v"(x), "+v"(y));  // not known to the compiler
    for (auto& sum : sums) sum = _mm512_fmadd_ps(x, y, sum);
  }
  for (auto& sum : sums) asm volatile("" : : "v"(sum));
  return loops * kSums * 16 * 2;
}

}  // namespace kvfolio::bench
