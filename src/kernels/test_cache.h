// SPDX-License-Identifier: Apache-2.0
#pragma once

// For the tests of kernels: a poisoned cache, rows, and scalar access that shares no code with the
// kernels beyond the scalar conversions of dtype.h.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/isa.h"
#include "kvfolio/kernels.h"
#include "kvfolio/spec.h"
#include "kvfolio/view.h"

namespace kvfolio::testing_cache {

inline constexpr std::int32_t kMax = std::numeric_limits<std::int32_t>::max();
inline constexpr std::int32_t kMin = std::numeric_limits<std::int32_t>::min();
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

inline std::uint64_t u(int value) { return static_cast<std::uint64_t>(value); }

// Sizes of rows, and of caches.
inline constexpr DType kDTypes[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16};

// The instruction sets of this machine for which loops are built, the baseline first.
inline std::vector<kernels::Isa> isas() {
  std::vector<kernels::Isa> result;
  for (const auto isa : {kernels::Isa::kBaseline, kernels::Isa::kAvx2, kernels::Isa::kAvx512}) {
    if (isa <= kernels::best_isa()) result.push_back(isa);
  }
  return result;
}
inline constexpr DType kCacheDTypes[] = {DType::kF64,  DType::kF32,  DType::kF16,
                                         DType::kBF16, DType::kInt8, DType::kE4M3};
inline constexpr Format kFormats[] = {Format::kHnd, Format::kNhd, Format::kGranule};

// The scale that TestCache::set() gives every row that has one.
inline constexpr double kTestScale = 1.0 / 32;

inline double load(const std::byte* data, DType dtype) {
  std::uint16_t half = 0;
  float single = 0;
  double real = 0;
  switch (dtype) {
    case DType::kF64:
      std::memcpy(&real, data, 8);
      return real;
    case DType::kF32:
      std::memcpy(&single, data, 4);
      return static_cast<double>(single);
    case DType::kF16:
      std::memcpy(&half, data, 2);
      return static_cast<double>(f32_from_f16(half));
    case DType::kBF16:
      std::memcpy(&half, data, 2);
      return static_cast<double>(f32_from_bf16(half));
    case DType::kInt8:
    case DType::kE4M3:
    case DType::kOpaque:
      break;  // a value only with its scale
  }
  return 0;
}

// An element that has a scale, without it.
inline double element_of(std::byte stored, DType dtype) {
  const auto byte = std::to_integer<std::uint8_t>(stored);
  if (dtype == DType::kE4M3) return static_cast<double>(f32_from_e4m3(byte));
  return static_cast<double>(static_cast<std::int8_t>(byte));
}
// The one that is nearest to a value.
inline std::byte nearest_element(double value, DType dtype) {
  if (dtype == DType::kE4M3) return std::byte{e4m3_from_f32(static_cast<float>(value))};
  return static_cast<std::byte>(static_cast<int>(std::nearbyint(value)));
}

// A value that is no float is rounded twice on its way to f16 or bf16.
inline void store(std::byte* data, DType dtype, double value) {
  const auto single = static_cast<float>(value);
  std::uint16_t half = 0;
  switch (dtype) {
    case DType::kF64:
      std::memcpy(data, &value, 8);
      return;
    case DType::kF32:
      std::memcpy(data, &single, 4);
      return;
    case DType::kF16:
      half = f16_from_f32(single);
      std::memcpy(data, &half, 2);
      return;
    case DType::kBF16:
      half = bf16_from_f32(single);
      std::memcpy(data, &half, 2);
      return;
    case DType::kInt8:
    case DType::kE4M3:
    case DType::kOpaque:
      return;
  }
}

// What `value` becomes in `dtype`; what has a scale under kTestScale.
inline double rounded(double value, DType dtype) {
  if (has_scales(dtype)) {
    return element_of(nearest_element(value / kTestScale, dtype), dtype) * kTestScale;
  }
  std::byte bytes[8];
  store(bytes, dtype, value);
  return load(bytes, dtype);
}

// A float in [-2, 2] that depends on all arguments.
inline double hashed(std::uint64_t a, std::uint64_t b, std::uint64_t c = 0, std::uint64_t d = 0) {
  std::uint64_t x = a * 0x9e3779b97f4a7c15u;
  for (const std::uint64_t next : {b, c, d}) {
    x = (x ^ (x >> 29) ^ (next + 0x165667b19e3779f9u)) * 0xbf58476d1ce4e5b9u;
  }
  x = (x ^ (x >> 32)) * 0x94d049bb133111ebu;
  return static_cast<double>(static_cast<float>(static_cast<double>(x >> 40) * 0x1p-22 - 2.0));
}

// The memory of one group, every byte 0xff: NaN in every element type.
class TestCache {
 public:
  explicit TestCache(const GroupSpec& spec)
      : layout_(plan_layouts({.groups = {spec}})->at(0)),
        memory(static_cast<std::size_t>(layout_.total_bytes) + 64, std::byte{0xff}) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    view = make_view(spec, layout_, memory.data() + (64 - address % 64) % 64);
  }
  TestCache(const TestCache&) = delete;
  TestCache& operator=(const TestCache&) = delete;

  // The place of an element, by the words of spec.h.
  [[nodiscard]] std::byte* at(bool is_v, int layer, int head, int slot, int d) const {
    const std::int32_t block = slot / view.block_size;
    const std::int32_t offset = slot % view.block_size;
    std::byte* const row =
        is_v ? view.v_at(layer, block, head, offset) : view.k_at(layer, block, head, offset);
    const int bytes = dtype_bytes(view.dtype);
    if (!view.granule) return row + d * bytes;
    const int g = view.dtype == DType::kF16 ? 1 : 4 / bytes;
    const int t = offset % 16;
    const int index =
        is_v ? ((t / g) * view.head_dim_v + d) * g + t % g : ((d / g) * 16 + t) * g + d % g;
    return row + index * bytes;
  }
  [[nodiscard]] std::byte* scale_at(bool is_v, int layer, int head, int slot) const {
    const std::int32_t block = slot / view.block_size;
    const std::int32_t offset = slot % view.block_size;
    return is_v ? view.v_scale_at(layer, block, head, offset)
                : view.k_scale_at(layer, block, head, offset);
  }
  // NaN where nothing was written: of what has a scale that is.
  [[nodiscard]] double value(bool is_v, int layer, int head, int slot, int d) const {
    const std::byte* const element = at(is_v, layer, head, slot, d);
    if (!has_scales(view.dtype)) return load(element, view.dtype);
    const std::byte turned = view.granule && !is_v ? std::byte{0x80} : std::byte{0};
    return element_of(*element ^ turned, view.dtype) *
           load(scale_at(is_v, layer, head, slot), DType::kF32);
  }
  // What has a scale: what rounded() says, under kTestScale.
  void set(bool is_v, int layer, int head, int slot, int d, double value) const {
    if (has_scales(view.dtype)) {
      const std::byte turned = view.granule && !is_v ? std::byte{0x80} : std::byte{0};
      *at(is_v, layer, head, slot, d) = nearest_element(value / kTestScale, view.dtype) ^ turned;
      store(scale_at(is_v, layer, head, slot), DType::kF32, kTestScale);
    } else {
      store(at(is_v, layer, head, slot, d), view.dtype, value);
    }
  }

 private:
  GroupLayout layout_;

 public:
  std::vector<std::byte> memory;
  KVView view;
};

// Rows [tokens, heads, dim] with room between tokens and heads, all poison.
class TestRows {
 public:
  TestRows(int tokens, int heads, int dim, DType dtype, int gap = 0) {
    const std::int64_t element = dtype_bytes(dtype);
    rows.head_stride = (dim + gap) * element;
    rows.token_stride = (heads * (dim + gap) + gap) * element;
    rows.num_tokens = tokens;
    rows.num_heads = heads;
    rows.head_dim = dim;
    rows.dtype = dtype;
    memory.assign(static_cast<std::size_t>(rows.token_stride * tokens + 64), std::byte{0xff});
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    rows.data = memory.data() + (64 - address % 64) % 64;
  }
  TestRows(const TestRows&) = delete;
  TestRows& operator=(const TestRows&) = delete;

  [[nodiscard]] double value(int token, int head, int d) const {
    return load(rows.at(token, head) + d * dtype_bytes(rows.dtype), rows.dtype);
  }
  void set(int token, int head, int d, double value) const {
    store(rows.at(token, head) + d * dtype_bytes(rows.dtype), rows.dtype, value);
  }
  // All elements from hashed(key, token, head, d).
  void fill(std::uint64_t key) const {
    for (int t = 0; t < rows.num_tokens; ++t) {
      for (int h = 0; h < rows.num_heads; ++h) {
        for (int d = 0; d < rows.head_dim; ++d) {
          set(t, h, d,
              hashed(key, static_cast<std::uint64_t>(t), static_cast<std::uint64_t>(h),
                     static_cast<std::uint64_t>(d)));
        }
      }
    }
  }

  std::vector<std::byte> memory;
  RowsView rows;
};

// One row of a type with scales by the rule of dtype.h.
struct QuantizedRow {
  float scale = 0;
  std::vector<std::byte> elements = {};
};
inline QuantizedRow quantized(const TestRows& rows, int token, int head, DType dtype) {
  const float most = dtype == DType::kE4M3 ? kE4M3Most : kInt8Most;
  std::vector<float> row;
  float amax = 0;
  for (int d = 0; d < rows.rows.head_dim; ++d) {
    row.push_back(static_cast<float>(rows.value(token, head, d)));
    if (!(std::fabs(row.back()) <= amax)) amax = std::fabs(row.back());
    if (std::isnan(amax)) break;
  }
  QuantizedRow result{.scale = quantize_scale(amax, most)};
  const float inverse = quantize_inverse(amax, most);
  for (int d = 0; d < rows.rows.head_dim; ++d) {
    const float x = std::isnan(amax) ? 0.0f : row[static_cast<std::size_t>(d)];
    result.elements.push_back(dtype == DType::kE4M3 ? std::byte{quantize_e4m3(x, inverse)}
                                                    : static_cast<std::byte>(quantize(x, inverse)));
  }
  return result;
}

// What a cache of `dtype` holds of an element after an append.
inline double appended(const TestRows& rows, int token, int head, int d, DType dtype) {
  if (!has_scales(dtype)) return rounded(rows.value(token, head, d), dtype);
  const QuantizedRow row = quantized(rows, token, head, dtype);
  return element_of(row.elements[static_cast<std::size_t>(d)], dtype) *
         static_cast<double>(row.scale);
}
// What a gather makes of it: element * scale is rounded to f32 first.
inline double gathered(double value, DType from, DType to) {
  return rounded(has_scales(from) ? static_cast<double>(static_cast<float>(value)) : value, to);
}

#if defined(__SSE__)
// A thread may count subnormals as zero, on the way in and on the way out.
class FlushesSubnormals {
 public:
  FlushesSubnormals() { __builtin_ia32_ldmxcsr(before_ | 0x8040u); }
  ~FlushesSubnormals() { __builtin_ia32_ldmxcsr(before_); }
  FlushesSubnormals(const FlushesSubnormals&) = delete;
  FlushesSubnormals& operator=(const FlushesSubnormals&) = delete;

 private:
  unsigned before_ = __builtin_ia32_stmxcsr();
};
#endif

// 0 .. n-1 in an order of the seed.
inline std::vector<std::int32_t> permutation(int n, unsigned seed) {
  std::vector<std::int32_t> result(static_cast<std::size_t>(n));
  std::iota(result.begin(), result.end(), 0);
  std::shuffle(result.begin(), result.end(), std::mt19937(seed));
  return result;
}

}  // namespace kvfolio::testing_cache
