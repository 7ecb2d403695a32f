// SPDX-License-Identifier: Apache-2.0
#pragma once

// 16 rows of K or V, as HND and NHD keep them, become a tile of format granule.
// Included by targets only; everything is local to the target's source.

#include <cstddef>
#include <cstdint>

#include "kvfolio/dtype.h"
#include "kvfolio/spec.h"

namespace kvfolio::kernels {
namespace {

// dst[i][t] = word i of row t.
template <class T>
inline void transpose_rows(const std::byte* const* rows, int words, std::byte* dst) {
  int i = 0;
  for (; i + T::kTransposed <= words; i += T::kTransposed) {
    T::transpose_words(rows, i * 4, dst + i * 64);
  }
  for (; i < words; ++i) {
    for (int t = 0; t < kGranuleTokens; ++t) {
      __builtin_memcpy(dst + i * 64 + t * 4, rows[t] + i * 4, 4);
    }
  }
}

// A row of e4m3 becomes f32: element * scale. As dtype.h has it and as elements.h does it, but
// local to the target; nothing here is a subnormal of f32, which a thread may count as zero.
inline void decode_e4m3(const std::byte* row, float scale, int dims, std::byte* dst) {
  for (int d = 0; d < dims; ++d) {
    const auto byte = static_cast<std::uint32_t>(row[d]);
    const std::uint32_t sign = (byte & 0x80u) << 24;
    const std::uint32_t shifted = (byte & 0x7fu) << 20;
    const std::uint32_t is_small = 0u - static_cast<std::uint32_t>(shifted < 0x00800000u);
    const std::uint32_t is_nan = 0u - static_cast<std::uint32_t>(shifted == 0x07f00000u);
    // A subnormal as 2^-6 * (1 + mantissa), less 2^-6.
    std::uint32_t bits = (shifted & is_small) + 0x3c800000u;
    float element;
    __builtin_memcpy(&element, &bits, 4);
    element -= 0x1p-6f;
    std::uint32_t small;
    __builtin_memcpy(&small, &element, 4);
    const std::uint32_t normal = (shifted + 0x3c000000u) | (0x7fc00000u & is_nan);
    bits = sign | (normal ^ ((normal ^ small) & is_small));
    __builtin_memcpy(&element, &bits, 4);
    element *= scale;
    __builtin_memcpy(dst + std::ptrdiff_t{4} * d, &element, 4);
  }
}

// 16 rows, side by side in dst, which are then what `rows` points at.
[[gnu::noinline]] inline void decode_rows(const std::byte** rows, const float* scales, int dims,
                                          std::byte* dst) {
  for (int t = 0; t < kGranuleTokens; ++t, dst += std::ptrdiff_t{4} * dims) {
    decode_e4m3(rows[t], scales[t], dims, dst);
    rows[t] = dst;
  }
}

template <class T>
struct PackF32 {
  static void k(const std::byte* const* rows, int dims, std::byte* dst) {
    transpose_rows<T>(rows, dims, dst);
  }
  static void v(const std::byte* const* rows, int dims, std::byte* dst) {
    const auto bytes = static_cast<std::size_t>(dims) * 4;
    for (std::size_t t = 0; t < kGranuleTokens; ++t) {
      __builtin_memcpy(dst + bytes * t, rows[t], bytes);
    }
  }
};

template <class T>
struct PackBf16 {
  static void k(const std::byte* const* rows, int dims, std::byte* dst) {
    transpose_rows<T>(rows, dims / 2, dst);
  }
  static void v(const std::byte* const* rows, int dims, std::byte* dst) {
    for (int t = 0; t < kGranuleTokens; t += 2) {
      const std::byte* a = rows[t];
      const std::byte* b = rows[t + 1];
      for (int d = 0; d < dims; ++d) {
        std::uint16_t low;
        std::uint16_t high;
        __builtin_memcpy(&low, a + 2 * d, 2);
        __builtin_memcpy(&high, b + 2 * d, 2);
        const std::uint32_t word = low | static_cast<std::uint32_t>(high) << 16;
        __builtin_memcpy(dst + 4 * d, &word, 4);
      }
      dst += std::ptrdiff_t{4} * dims;
    }
  }
};

template <class T>
struct PackF16 {
  // Pairs of dims come out of the transposition together, and part in registers or here.
  static void k(const std::byte* const* rows, int dims, std::byte* dst) {
    alignas(64) std::byte pairs[T::kTransposed * 64];
    int i = 0;
    if constexpr (requires { &T::transpose_pairs; }) {
      for (; i + T::kTransposed <= dims / 2; i += T::kTransposed) {
        T::transpose_pairs(rows, i * 4, dst + i * 64);
      }
    }
    for (; i < dims / 2; i += T::kTransposed) {
      const int left = dims / 2 - i;
      const int count = left < T::kTransposed ? left : T::kTransposed;
      const std::byte* from[kGranuleTokens];
      for (int t = 0; t < kGranuleTokens; ++t) from[t] = rows[t] + std::ptrdiff_t{4} * i;
      transpose_rows<T>(from, count, pairs);
      for (int j = 0; j < count; ++j) {
        std::byte* to = dst + std::ptrdiff_t{64} * (i + j);
        for (int t = 0; t < kGranuleTokens; ++t) {
          std::uint32_t word;
          __builtin_memcpy(&word, pairs + 64 * j + 4 * t, 4);
          const auto low = static_cast<std::uint16_t>(word);
          const auto high = static_cast<std::uint16_t>(word >> 16);
          __builtin_memcpy(to + 2 * t, &low, 2);
          __builtin_memcpy(to + 32 + 2 * t, &high, 2);
        }
      }
    }
  }
  static void v(const std::byte* const* rows, int dims, std::byte* dst) {
    const auto bytes = static_cast<std::size_t>(dims) * 2;
    for (std::size_t t = 0; t < kGranuleTokens; ++t) {
      __builtin_memcpy(dst + bytes * t, rows[t], bytes);
    }
  }
};

template <class T>
struct PackInt8 {
  static void k(const std::byte* const* rows, int dims, std::byte* dst) {
    transpose_rows<T>(rows, dims / 4, dst);
    for (int i = 0; i < dims / 4 * 16; ++i) {  // signed to offset by 128
      std::uint32_t word;
      __builtin_memcpy(&word, dst + 4 * i, 4);
      word ^= 0x80808080u;
      __builtin_memcpy(dst + 4 * i, &word, 4);
    }
  }
  static void v(const std::byte* const* rows, int dims, std::byte* dst) {
    for (int t = 0; t < kGranuleTokens; t += 4) {
      const auto* a = reinterpret_cast<const std::uint8_t*>(rows[t]);
      const auto* b = reinterpret_cast<const std::uint8_t*>(rows[t + 1]);
      const auto* c = reinterpret_cast<const std::uint8_t*>(rows[t + 2]);
      const auto* e = reinterpret_cast<const std::uint8_t*>(rows[t + 3]);
      for (int d = 0; d < dims; ++d) {
        const std::uint32_t word = a[d] | static_cast<std::uint32_t>(b[d]) << 8 |
                                   static_cast<std::uint32_t>(c[d]) << 16 |
                                   static_cast<std::uint32_t>(e[d]) << 24;
        __builtin_memcpy(dst + 4 * d, &word, 4);
      }
      dst += std::ptrdiff_t{4} * dims;
    }
  }
};

}  // namespace
}  // namespace kvfolio::kernels
