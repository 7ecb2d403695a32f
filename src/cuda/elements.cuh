// SPDX-License-Identifier: Apache-2.0
#pragma once

// Elements of rows on a device: units of 8 elements are read, converted and written here, with the
// bits of dtype.h for every input, NaN too. An instruction that rounds as dtype.h does is used
// where there is one; all of them make a NaN of their own, so a NaN goes beside them.
//
// Compiled by nvcc, and by g++ after on_host.h.

#include <cstdint>

#include "cuda/move_args.h"
#ifndef __CUDACC__
#include "cuda/on_host.h"
#include "kvfolio/dtype.h"
#endif

namespace kvfolio::cuda {

constexpr int kUnit = 8;  // elements

__device__ __forceinline__ std::uint32_t quotient(std::uint32_t n, const Divider& by) {
  return static_cast<std::uint32_t>((static_cast<unsigned long long>(n) * by.magic) >> by.shift);
}

// ---- instructions that a CPU stands in for ----

// e4m3 of one value, saturating: what the instruction makes, which cards before 8.9 do not have.
__device__ __forceinline__ std::uint32_t e4m3_rounded(float x) {
  const std::uint32_t bits = __float_as_uint(x), sign = bits >> 24 & 0x80u, m = bits & 0x7fffffffu;
  if (m > 0x7f800000u) return 0x7fu;
  if (m >= 0x43e00000u) return sign | 0x7eu;  // 448
  // Below 2^-6 units of 2^-9: the adder rounds to them beside 2^14.
  if (m < 0x3c800000u) {
    return sign | (__float_as_uint(__fadd_rn(__uint_as_float(m), 0x1p14f)) & 0xffu);
  }
  const std::uint32_t rebased = m - 0x3c000000u;
  return sign | ((rebased + 0x7ffffu + (rebased >> 20 & 1u)) >> 20);
}

#ifdef __CUDACC__
__device__ __forceinline__ uint4 load16(const void* at) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at));
  return v;
}
__device__ __forceinline__ uint2 load8(const void* at) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];\n"
               : "=r"(v.x), "=r"(v.y)
               : "l"(at));
  return v;
}
// Two elements, the first in the low half; a NaN becomes 0x7fff.
__device__ __forceinline__ std::uint32_t f16x2_of(float lo, float hi) {
  std::uint32_t d;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(d) : "f"(hi), "f"(lo));
  return d;
}
__device__ __forceinline__ std::uint32_t bf16x2_of(float lo, float hi) {
  std::uint32_t d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(d) : "f"(hi), "f"(lo));
  return d;
}
// The larger one of each half, as numbers without a sign.
__device__ __forceinline__ std::uint32_t most_halves(std::uint32_t a, std::uint32_t b) {
  return __vmaxu2(a, b);
}
__device__ __forceinline__ float f32_of_f16(std::uint32_t half) {
  float f;
  asm("{ .reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h; }\n" : "=f"(f) : "r"(half));
  return f;
}
__device__ __forceinline__ std::uint32_t e4m3x2_of(float lo, float hi) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
  return e4m3_rounded(lo) | e4m3_rounded(hi) << 8;
#else
  std::uint16_t d;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;\n" : "=h"(d) : "f"(hi), "f"(lo));
  return d;
#endif
}
#else
// Bytes by themselves, since a row may lie on any multiple of its element.
inline uint4 load16(const void* at) {
  KVFOLIO_CHECK(reinterpret_cast<std::uintptr_t>(at) % 16 == 0);
  uint4 v;
  __builtin_memcpy(&v, at, 16);
  return v;
}
inline uint2 load8(const void* at) {
  KVFOLIO_CHECK(reinterpret_cast<std::uintptr_t>(at) % 8 == 0);
  uint2 v;
  __builtin_memcpy(&v, at, 8);
  return v;
}
inline std::uint32_t f16x2_of(float lo, float hi) {
  const auto one = [](float x) -> std::uint32_t { return x != x ? 0x7fffu : f16_from_f32(x); };
  return one(lo) | one(hi) << 16;
}
inline std::uint32_t bf16x2_of(float lo, float hi) {
  const auto one = [](float x) -> std::uint32_t { return x != x ? 0x7fffu : bf16_from_f32(x); };
  return one(lo) | one(hi) << 16;
}
inline std::uint32_t most_halves(std::uint32_t a, std::uint32_t b) {
  return std::max(a & 0xffffu, b & 0xffffu) | std::max(a >> 16, b >> 16) << 16;
}
inline float f32_of_f16(std::uint32_t half) {
  const bool nan = (half & 0x7fffu) > 0x7c00u;
  return nan ? __uint_as_float(0x7fffffffu) : f32_from_f16(static_cast<std::uint16_t>(half));
}
inline std::uint32_t e4m3x2_of(float lo, float hi) {
  return e4m3_rounded(lo) | e4m3_rounded(hi) << 8;
}
#endif

__device__ __forceinline__ void store16(void* at, const uint4& v) {
#ifndef __CUDACC__
  KVFOLIO_CHECK(reinterpret_cast<std::uintptr_t>(at) % 16 == 0);
#endif
  *reinterpret_cast<uint4*>(at) = v;
}
__device__ __forceinline__ void store8(void* at, const uint2& v) {
#ifndef __CUDACC__
  KVFOLIO_CHECK(reinterpret_cast<std::uintptr_t>(at) % 8 == 0);
#endif
  *reinterpret_cast<uint2*>(at) = v;
}

// ---- values: the bits of dtype.h ----

__device__ __forceinline__ std::uint32_t f16_bits(float lo, float hi) {
  std::uint32_t d = f16x2_of(lo, hi);
  if (lo != lo) d = (d & 0xffff0000u) | (__float_as_uint(lo) >> 16 & 0x8000u) | 0x7e00u;
  if (hi != hi) d = (d & 0x0000ffffu) | (__float_as_uint(hi) & 0x80000000u) | 0x7e000000u;
  return d;
}
__device__ __forceinline__ float f16_value(std::uint32_t half) {  // 16 bits
  const float f = f32_of_f16(half);
  const std::uint32_t nan = (half & 0x8000u) << 16 | 0x7f800000u | (half & 0x3ffu) << 13;
  return (half & 0x7fffu) > 0x7c00u ? __uint_as_float(nan) : f;
}
__device__ __forceinline__ std::uint32_t bf16_bits(float lo, float hi) {
  std::uint32_t d = bf16x2_of(lo, hi);
  if (lo != lo) d = (d & 0xffff0000u) | __float_as_uint(lo) >> 16 | 0x40u;
  if (hi != hi) d = (d & 0x0000ffffu) | (__float_as_uint(hi) & 0xffff0000u) | 0x400000u;
  return d;
}
__device__ __forceinline__ float e4m3_value(std::uint32_t byte) {
  const std::uint32_t sign = (byte & 0x80u) << 24, magnitude = byte & 0x7fu;
  // The exponent moves to the top of f32's, which is 120 too low for it; subnormals come out right.
  const float f = __fmul_rn(__uint_as_float(magnitude << 20), 0x1p120f);
  return __uint_as_float(sign | (magnitude == 0x7fu ? 0x7fc00000u : __float_as_uint(f)));
}

// ---- units: 8 elements as they lie in memory ----

template <int kBytes>
struct Unit {
  std::uint32_t w[kBytes / 4];
};
template <Element kElement>
constexpr int kUnitBytes = kUnit* element_bytes(kElement);
template <Element kElement>
constexpr bool kHasScales = has_scales(kElement);
template <Element kElement>
using UnitOf = Unit<kUnitBytes<kElement>>;

// kAligned: `at` is a multiple of 16, or of 8 for units of 8 bytes. Else a multiple of the element.
template <Element kElement, bool kAligned>
__device__ __forceinline__ UnitOf<kElement> load_unit(const char* at) {
  UnitOf<kElement> u;
  constexpr int kBytes = kUnitBytes<kElement>;
  if constexpr (kAligned && kBytes == 8) {
    const uint2 v = load8(at);
    u.w[0] = v.x;
    u.w[1] = v.y;
  } else if constexpr (kAligned) {
#pragma unroll
    for (int i = 0; i < kBytes / 16; ++i) {
      const uint4 v = load16(at + 16 * i);
      u.w[4 * i] = v.x;
      u.w[4 * i + 1] = v.y;
      u.w[4 * i + 2] = v.z;
      u.w[4 * i + 3] = v.w;
    }
  } else if constexpr (kBytes == 32) {
#pragma unroll
    for (int i = 0; i < kUnit; ++i) u.w[i] = reinterpret_cast<const std::uint32_t*>(at)[i];
  } else if constexpr (kBytes == 16) {
#pragma unroll
    for (int i = 0; i < kUnit / 2; ++i) {
      const auto* pair = reinterpret_cast<const std::uint16_t*>(at) + 2 * i;
      u.w[i] = pair[0] | static_cast<std::uint32_t>(pair[1]) << 16;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kUnit / 4; ++i) {
      const auto* b = reinterpret_cast<const std::uint8_t*>(at) + 4 * i;
      u.w[i] = b[0] | static_cast<std::uint32_t>(b[1]) << 8 |
               static_cast<std::uint32_t>(b[2]) << 16 | static_cast<std::uint32_t>(b[3]) << 24;
    }
  }
  return u;
}

template <Element kElement, bool kAligned>
__device__ __forceinline__ void store_unit(char* at, const UnitOf<kElement>& u) {
  constexpr int kBytes = kUnitBytes<kElement>;
  if constexpr (kAligned && kBytes == 8) {
    store8(at, make_uint2(u.w[0], u.w[1]));
  } else if constexpr (kAligned) {
#pragma unroll
    for (int i = 0; i < kBytes / 16; ++i) {
      store16(at + 16 * i, make_uint4(u.w[4 * i], u.w[4 * i + 1], u.w[4 * i + 2], u.w[4 * i + 3]));
    }
  } else if constexpr (kBytes == 32) {
#pragma unroll
    for (int i = 0; i < kUnit; ++i) reinterpret_cast<std::uint32_t*>(at)[i] = u.w[i];
  } else if constexpr (kBytes == 16) {
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      reinterpret_cast<std::uint16_t*>(at)[i] =
          static_cast<std::uint16_t>(u.w[i / 2] >> 16 * (i % 2));
    }
  } else {
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      reinterpret_cast<std::uint8_t*>(at)[i] = static_cast<std::uint8_t>(u.w[i / 4] >> 8 * (i % 4));
    }
  }
}

// Values of a unit. Elements with scales are times `scale`, rounded to f32, as dtype.h says: where
// the product is a NaN and the scale is one, it is the scale's, as on a CPU.
template <Element kElement>
__device__ __forceinline__ void values_of(const UnitOf<kElement>& u, float scale,
                                          float (&x)[kUnit]) {
#pragma unroll
  for (int i = 0; i < kUnit; ++i) {
    if constexpr (kElement == Element::kF32) {
      x[i] = __uint_as_float(u.w[i]);
    } else if constexpr (kElement == Element::kF16) {
      x[i] = f16_value(u.w[i / 2] >> 16 * (i % 2) & 0xffffu);
    } else if constexpr (kElement == Element::kBF16) {
      x[i] = __uint_as_float(i % 2 == 0 ? u.w[i / 2] << 16 : u.w[i / 2] & 0xffff0000u);
    } else {
      const std::uint32_t byte = u.w[i / 4] >> 8 * (i % 4) & 0xffu;
      float element;
      if constexpr (kElement == Element::kInt8) {
        // 2^23 + 128 + the element, as bits, less 2^23 + 128: the adder is faster than a
        // conversion.
        element = __fadd_rn(__uint_as_float(0x4b000000u | (byte ^ 0x80u)), -8388736.0f);
      } else {
        element = e4m3_value(byte);
      }
      x[i] = __fmul_rn(element, scale);
      if (scale != scale) x[i] = __uint_as_float(__float_as_uint(scale) | 0x400000u);
    }
  }
}

// The bits of the largest magnitude among the values of a unit: they keep the order of floats, and
// put NaN on top. Those of the 16-bit types do, too, before anything is widened.
template <Element kElement>
__device__ __forceinline__ std::uint32_t most_of(const UnitOf<kElement>& u, float scale) {
  if constexpr (kElement == Element::kF16 || kElement == Element::kBF16) {
    std::uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < kUnit / 2; ++i) most = most_halves(most, u.w[i] & 0x7fff7fffu);
    const std::uint32_t half = most >> 16 > (most & 0xffffu) ? most >> 16 : most & 0xffffu;
    return kElement == Element::kBF16 ? half << 16 : __float_as_uint(f16_value(half));
  } else {
    float x[kUnit];
    values_of<kElement>(u, scale, x);
    std::uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      const std::uint32_t m = __float_as_uint(x[i]) & 0x7fffffffu;
      most = m > most ? m : most;
    }
    return most;
  }
}

// Values become a unit without scales.
template <Element kElement>
__device__ __forceinline__ UnitOf<kElement> unit_of(const float (&x)[kUnit]) {
  UnitOf<kElement> u;
  if constexpr (kElement == Element::kF32) {
#pragma unroll
    for (int i = 0; i < kUnit; ++i) u.w[i] = __float_as_uint(x[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kUnit / 2; ++i) {
      if constexpr (kElement == Element::kF16) {
        u.w[i] = f16_bits(x[2 * i], x[2 * i + 1]);
      } else {
        u.w[i] = bf16_bits(x[2 * i], x[2 * i + 1]);
      }
    }
  }
  return u;
}

// ---- rows that get a scale: quantize_scale() and quantize() of dtype.h, with the top of the type
// ----

struct Quantizer {
  float scale = 0;
  float inverse = 0;
  bool zero = true;
};

// `most`: the bits of the largest magnitude, which keep the order of floats and put NaN on top.
template <Element kElement>
__device__ __forceinline__ Quantizer quantizer_of(std::uint32_t most) {
  constexpr float kTop = kElement == Element::kE4M3 ? 448.0f : 127.0f;
  const float amax = __uint_as_float(most);
  Quantizer q;
  const bool bad = most >= 0x7f800000u;
  q.zero = bad || amax < 1e-30f;
  q.scale = bad ? __uint_as_float(0x7fc00000u) : q.zero ? 0.0f : __fdiv_rn(amax, kTop);
  q.inverse = q.zero ? 0.0f : __fdiv_rn(kTop, amax);
  return q;
}

template <Element kElement>
__device__ __forceinline__ UnitOf<kElement> quantized(const float (&x)[kUnit], const Quantizer& q) {
  UnitOf<kElement> u;
#pragma unroll
  for (int i = 0; i < kUnit / 4; ++i) {
    if constexpr (kElement == Element::kE4M3) {
      u.w[i] = e4m3x2_of(__fmul_rn(x[4 * i], q.inverse), __fmul_rn(x[4 * i + 1], q.inverse)) |
               e4m3x2_of(__fmul_rn(x[4 * i + 2], q.inverse), __fmul_rn(x[4 * i + 3], q.inverse))
                   << 16;
    } else {
      // Adding 1.5 * 2^23 rounds to a whole number, ties to even, and leaves it in the low byte.
      std::uint32_t b[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        b[e] = __float_as_uint(__fadd_rn(__fmul_rn(x[4 * i + e], q.inverse), 12582912.0f));
      }
      const std::uint32_t w =
          __byte_perm(__byte_perm(b[0], b[1], 0x0040), __byte_perm(b[2], b[3], 0x0040), 0x5410);
      u.w[i] = w;
    }
    if (q.zero) u.w[i] = 0;
  }
  return u;
}

}  // namespace kvfolio::cuda
