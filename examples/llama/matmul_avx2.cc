// SPDX-License-Identifier: Apache-2.0

// x86-64 with AVX2 and FMA. Built with flags of its own; called only after CPUID said yes.
#include <immintrin.h>

#include "matmul_kernel.h"

namespace kvfolio::llama {
namespace {

struct Avx2 {
  using Vector = __m256;
  static constexpr int kLanes = 8;
  static Vector zero() { return _mm256_setzero_ps(); }
  static Vector broadcast(float value) { return _mm256_set1_ps(value); }
  static Vector load(const float* from) { return _mm256_load_ps(from); }
  static void store(float* to, Vector value) { _mm256_storeu_ps(to, value); }
  static Vector multiply_add(Vector a, Vector b, Vector sum) { return _mm256_fmadd_ps(a, b, sum); }
};

}  // namespace

// 4 x 3 sums, 3 weights and a broadcast in 16 registers.
const MatmulTargetCode kMatmulAvx2{24, 4, &multiply_part<Avx2, 4, 3>};

}  // namespace kvfolio::llama
