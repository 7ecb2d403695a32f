// SPDX-License-Identifier: Apache-2.0

// The target of BF16 and VNNI over a plain model of its instructions (model/immintrin.h), for
// grid_test.cc.

#define avx512_kernels modelled_avx512_kernels
#define avx512_bf16_kernels modelled_avx512_bf16_kernels
#include "kernels/cpu/target_avx512_bf16.cc"  // NOLINT(bugprone-suspicious-include)
