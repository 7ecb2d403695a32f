// SPDX-License-Identifier: Apache-2.0

// x86-64 with AVX-512F. Built with flags of its own; called only after CPUID said yes.
#include <immintrin.h>

#include "matmul_kernel.h"

namespace kvfolio::llama {
namespace {

struct Avx512 {
  using Vector = __m512;
  static constexpr int kLanes = 16;
  static Vector zero() { return _mm512_setzero_ps(); }
  static Vector broadcast(float value) { return _mm512_set1_ps(value); }
  static Vector load(const float* from) { return _mm512_load_ps(from); }
  static void store(float* to, Vector value) { _mm512_storeu_ps(to, value); }
  static Vector multiply_add(Vector a, Vector b, Vector sum) { return _mm512_fmadd_ps(a, b, sum); }
};

}  // namespace

// 4 x 4 sums of the 32 registers: two multiply-adds a cycle of 4 cycles each need 8 chains.
const MatmulTargetCode kMatmulAvx512{64, 4, &multiply_part<Avx512, 4, 4>};

}  // namespace kvfolio::llama
