// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "arithmetic.h"

namespace kvfolio::bench {

std::int64_t fma_f32_256(std::int64_t loops) {
  // 12 sums and 2 factors in 16 registers; 12 in flight fill 2 units of up to 6 cycles.
  constexpr int kSums = 12;
  __m256 sums[kSums];
  for (auto& sum : sums) sum = _mm256_set1_ps(1.0F);
  __m256 x = _mm256_set1_ps(0.5F);
  __m256 y = _mm256_set1_ps(0.25F);
  for (std::int64_t i = 0; i < loops; ++i) {
    asm volatile("" : "+x"(x), "+x"(y));  // not known to the compiler
    for (auto& sum : sums) sum = _mm256_fmadd_ps(x, y, sum);
  }
  for (auto& sum : sums) asm volatile("" : : "x"(sum));
  return loops * kSums * 8 * 2;
}

}  // namespace kvfolio::bench
