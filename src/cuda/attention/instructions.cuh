// SPDX-License-Identifier: Apache-2.0
#pragma once

// The instructions that the kernels are written in, by name. host_model.h has the same names for a
// CPU, so that the text of a kernel runs without a GPU. Kernels use nothing else of CUDA but the
// indices of threads and blocks, shuffles, votes and the f32 operations that name their rounding.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace kvfolio::cuda {

// ---- shared memory
// -------------------------------------------------------------------------------

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
// 16 bytes, or zeros where bytes is 0. They arrive when wait_copies() says so.
__device__ __forceinline__ void copy_async16(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(bytes));
}
__device__ __forceinline__ void copy_async16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(to), "l"(from));
}
__device__ __forceinline__ void copy_async4(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(to), "l"(from), "r"(bytes));
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;\n" ::); }
// All groups of this thread but the last kOpen have arrived.
template <int kOpen>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kOpen) : "memory");
}

// Four matrices of 8 x 8 elements of 16 bits; lane i names row i % 8 of matrix i / 8.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
}
__device__ __forceinline__ void load_chunk(uint32_t (&r)[4], uint32_t from) {
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
}
__device__ __forceinline__ uint32_t transpose_matrix(uint32_t a) {
  uint32_t d;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(d) : "r"(a));
  return d;
}

// ---- arithmetic
// ----------------------------------------------------------------------------------

// d (16 x 8) += a (16 x 16) b (16 x 8), elements f16 or bf16, sums f32.
template <bool kF16>
__device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  if constexpr (kF16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float log2_of(float x) { return log2f(x); }
template <bool kF16>
__device__ __forceinline__ uint32_t pack2(float low, float high) {
  uint32_t d;
  if constexpr (kF16) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(d) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(d) : "f"(high), "f"(low));
  }
  return d;
}
__device__ __forceinline__ float float_of_f16(uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}
__device__ __forceinline__ float float_of_bf16(uint32_t bits) {
  return __uint_as_float(bits << 16);
}

// ---- 8-bit elements to pairs of 16 bits, all exact
// -----------------------------------------------

// Bytes of x that `select` names (as __byte_perm does) become two bf16.
__device__ __forceinline__ uint32_t int8_to_bf16x2(uint32_t x, uint32_t select) {
  // 0x43bb is 128 + the low 7 bits, or lies in the next binade if bit 7 is set: bit 7 apart.
  const uint32_t t = __byte_perm(x, 0x43434343u, select);
  const uint32_t a = t & 0xff7fff7fu, b = t & 0xff80ff80u;
  uint32_t d;
  asm("sub.rn.bf16x2 %0, %1, %2;\n" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
// x: bytes with bit 7 flipped.
__device__ __forceinline__ uint32_t int8_to_f16x2(uint32_t flipped, uint32_t select) {
  const uint32_t t = __byte_perm(flipped, 0x64646464u, select);  // 1024 + (byte + 128)
  uint32_t d;
  asm("sub.rn.f16x2 %0, %1, %2;\n" : "=r"(d) : "r"(t), "r"(0x64806480u));
  return d;
}
__device__ __forceinline__ uint32_t e4m3_to_f16x2(uint32_t two_bytes) {
  uint32_t d;
  asm("{ .reg .b16 h; cvt.u16.u32 h, %1; cvt.rn.f16x2.e4m3x2 %0, h; }\n"
      : "=r"(d)
      : "r"(two_bytes));
  return d;
}
// select moves the two bytes to the high halves. A NaN byte becomes 480 (docs/cuda-attention.md).
__device__ __forceinline__ uint32_t e4m3_to_bf16x2(uint32_t x, uint32_t select) {
  const uint32_t t = __byte_perm(x, 0u, select);
  const uint32_t u = (t & 0x80008000u) | ((t >> 4) & 0x07f007f0u);
  uint32_t d;
  asm("mul.rn.bf16x2 %0, %1, %2;\n" : "=r"(d) : "r"(u), "r"(0x7b807b80u));  // times 2^120
  return d;
}

// ---- between blocks and launches
// -----------------------------------------------------------------

// The first of a kernel that may be launched before the launch in front of it is complete: waits
// until it is and its writes are seen, and lets the launch behind this one do the same.
__device__ __forceinline__ void begin_overlapped_launch() {
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
}
// Adds one; what this block wrote before is seen by a block that sees the sum.
__device__ __forceinline__ int arrive(int* counter) {
  int before;
  asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;\n"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  return before;
}

#define KVFOLIO_CUDA_SHARED_MEMORY(name) extern __shared__ __align__(1024) char name[]

}  // namespace kvfolio::cuda
