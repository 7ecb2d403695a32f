// SPDX-License-Identifier: Apache-2.0
#pragma once

// The instructions of a card before sm_90: those of instructions.cuh but for four that it lacks.
// launch.cu and tiles.cu include this in front of everything where they are compiled for sm_80, so
// that the text of the kernels, which devices have proven as it stands, is the same for both.

// The names of what is replaced step aside while the others are read.
#define begin_overlapped_launch begin_overlapped_launch_of_sm_90
#define int8_to_bf16x2 int8_to_bf16x2_of_sm_90
#define e4m3_to_f16x2 e4m3_to_f16x2_of_sm_90
#define e4m3_to_bf16x2 e4m3_to_bf16x2_of_sm_90
#include "cuda/attention/instructions.cuh"
#undef begin_overlapped_launch
#undef int8_to_bf16x2
#undef e4m3_to_f16x2
#undef e4m3_to_bf16x2

namespace kvfolio::cuda {

__device__ __forceinline__ uint32_t multiply_f16x2(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("mul.rn.f16x2 %0, %1, %2;\n" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
__device__ __forceinline__ uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;\n" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
__device__ __forceinline__ uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;\n" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
// A launch begins when the one in front of it is complete: nothing to wait for. The library starts
// these kernels without the attribute that would let them begin before (module.cc).
__device__ __forceinline__ void begin_overlapped_launch() {}

}  // namespace kvfolio::cuda

#include "cuda/attention/sm80_bytes.cuh"
