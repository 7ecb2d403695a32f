// SPDX-License-Identifier: Apache-2.0
#pragma once

// 8-bit elements to pairs of 16 bits on a card before sm_90, all exact, with the bits that the
// instructions of sm_89 and sm_90 give: those cards have no conversion from e4m3, and of
// arithmetic on pairs of bf16 only fma. Written over four operations, so that a test on a CPU runs
// this very text: __byte_perm, multiply_f16x2, fma_f16x2, fma_bf16x2.

#include <cstdint>

namespace kvfolio::cuda {

// Bytes of x that `select` names (as __byte_perm does) become two bf16.
__device__ __forceinline__ uint32_t int8_to_bf16x2(uint32_t x, uint32_t select) {
  // 0x43bb is 128 + the low 7 bits, or lies in the next binade if bit 7 is set: bit 7 apart.
  const uint32_t t = __byte_perm(x, 0x43434343u, select);
  return fma_bf16x2(t & 0xff7fff7fu, 0x3f803f80u, (t & 0xff80ff80u) ^ 0x80008000u);
}
// Two bytes, in the low half. A NaN stays one.
__device__ __forceinline__ uint32_t e4m3_to_f16x2(uint32_t two_bytes) {
  // As the high bytes of two f16, whose exponent is 8 too low for it; subnormals come out right.
  const uint32_t t = __byte_perm(two_bytes, 0u, 0x1404u);
  const uint32_t u = (t & 0x80008000u) | ((t >> 1) & 0x3f803f80u);
  const uint32_t d = multiply_f16x2(u, 0x5c005c00u);  // times 2^8
  // A NaN byte is 480 here, and 448 is the largest number: times 146 is an infinity or is not.
  // Times zero that is a NaN or a zero of its sign, which added changes nothing.
  return fma_f16x2(multiply_f16x2(d, 0x58905890u), 0u, d);
}
// select moves the two bytes to the high halves. A NaN byte becomes 480 (docs/cuda-attention.md).
__device__ __forceinline__ uint32_t e4m3_to_bf16x2(uint32_t x, uint32_t select) {
  const uint32_t t = __byte_perm(x, 0u, select);
  const uint32_t u = (t & 0x80008000u) | ((t >> 4) & 0x07f007f0u);
  return fma_bf16x2(u, 0x7b807b80u, 0x80008000u);  // times 2^120; adding -0 keeps a zero's sign
}

}  // namespace kvfolio::cuda
