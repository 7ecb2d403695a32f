// SPDX-License-Identifier: Apache-2.0
#include "arithmetic.h"

namespace kvfolio::bench {

std::int64_t fma_f32_plain(std::int64_t loops) {
  // Vectors of 16 bytes, which x86-64 and aarch64 always have.
  using Vector = float __attribute__((vector_size(16)));
  constexpr int kSums = 10;
  Vector sums[kSums] = {};
  Vector x = {0.5F, 0.5F, 0.5F, 0.5F};
  Vector y = {0.25F, 0.25F, 0.25F, 0.25F};
  for (std::int64_t i = 0; i < loops; ++i) {
#if defined(__x86_64__)
    asm volatile("" : "+x"(x), "+x"(y));
#elif defined(__aarch64__)
    asm volatile("" : "+w"(x), "+w"(y));
#else
    asm volatile("" : "+m"(x), "+m"(y));
#endif
    for (auto& sum : sums) sum = sum + x * y;
  }
  for (auto& sum : sums) asm volatile("" : : "m"(sum) : "memory");
  return loops * kSums * 4 * 2;
}

}  // namespace kvfolio::bench
