// SPDX-License-Identifier: Apache-2.0

// Any processor: the compiler's portable vectors of four lanes. A multiply and an add, each rounded
// (the file is built with -ffp-contract=off); a fused one in software would be slower by far.
#include <cstring>

#include "matmul_kernel.h"

namespace kvfolio::llama {
namespace {

struct Portable4 {
  typedef float Vector __attribute__((vector_size(16)));
  static constexpr int kLanes = 4;
  static Vector zero() { return Vector{}; }
  static Vector broadcast(float value) { return Vector{value, value, value, value}; }
  static Vector load(const float* from) {
    Vector value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  static void store(float* to, Vector value) { std::memcpy(to, &value, sizeof value); }
  static Vector multiply_add(Vector a, Vector b, Vector sum) { return a * b + sum; }
};

}  // namespace

// 4 x 2 sums, 2 weights, a broadcast and a product in 16 registers.
const MatmulTargetCode kMatmulBaseline{8, 4, &multiply_part<Portable4, 4, 2>};

}  // namespace kvfolio::llama
