// SPDX-License-Identifier: Apache-2.0

// The AVX-512 target over a plain model of its instructions (model/immintrin.h), for grid_test.cc.

#define avx512_kernels modelled_avx512_kernels
#include "kernels/cpu/target_avx512.cc"  // NOLINT(bugprone-suspicious-include)
