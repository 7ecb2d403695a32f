// SPDX-License-Identifier: Apache-2.0

// Rows become int8 and come back, to the bit as dtype.h defines it. The largest magnitude of a row
// is found among its bits as integers, which vectorises without a special case for NaN. The loops
// are compiled for three instruction sets, see isa.h. rows.cc calls them.

#include "kernels/quantize.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/elements.h"
#include "kvfolio/status.h"

namespace kvfolio::kernels {
namespace {

float to_f32(float value) { return value; }
float to_f32(double value) { return static_cast<float>(value); }

// Magnitudes are compared as integers: these keep the order of floats, put NaN above infinity, and
// their maximum needs no order of its own, which a maximum of floats with NaN does. So do those of
// the 16-bit types, before anything is widened.
template <typename From>
[[gnu::always_inline]] inline float amax_loop(const std::byte* row, std::int64_t n) {
  const auto* __restrict from = reinterpret_cast<const typename From::Stored*>(row);
  if constexpr (sizeof(typename From::Stored) == 2) {
    std::int16_t most = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      most = std::max(most, static_cast<std::int16_t>(from[i] & 0x7fffu));
    }
    return From::load(static_cast<std::uint16_t>(most));
  } else {
    std::int32_t most = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(to_f32(From::load(from[i])));
      most = std::max(most, static_cast<std::int32_t>(bits & 0x7fffffffu));
    }
    return std::bit_cast<float>(most);
  }
}

// Adding 1.5 * 2^23 makes the adder round to a whole number, ties to even, and leaves it in the low
// bits of the sum: of the sum's pattern only the low byte is wanted, and that of the constant is 0.
// No clamp: |x| <= amax, and two roundings do not carry amax * (127 / amax) up to 127.5.
template <typename From>
[[gnu::always_inline]] inline void quantize_loop(const std::byte* src, std::byte* dst,
                                                 std::int64_t n, float inverse, std::uint8_t flip) {
  if (inverse == 0.0f) {
    std::memset(dst, flip, static_cast<std::size_t>(n));
    return;
  }
  const auto* __restrict from = reinterpret_cast<const typename From::Stored*>(src);
  auto* __restrict to = reinterpret_cast<std::uint8_t*>(dst);
  for (std::int64_t i = 0; i < n; ++i) {
    const float product = to_f32(From::load(from[i])) * inverse;
    const auto bits = std::bit_cast<std::uint32_t>(product + 0x1.8p23f);
    to[i] = static_cast<std::uint8_t>(bits ^ flip);
  }
}

template <typename To>
[[gnu::always_inline]] inline void dequantize_loop(const std::byte* src, std::byte* dst,
                                                   std::int64_t n, float scale, std::uint8_t flip) {
  const auto* __restrict from = reinterpret_cast<const std::uint8_t*>(src);
  auto* __restrict to = reinterpret_cast<typename To::Stored*>(dst);
  for (std::int64_t i = 0; i < n; ++i) {
    to[i] = To::store(dequantize(static_cast<std::int8_t>(from[i] ^ flip), scale));
  }
}

// The loops of one element type of rows.
template <typename Row>
struct Baseline {
  static float amax(const std::byte* row, std::int64_t n) { return amax_loop<Row>(row, n); }
  static void quantize(const std::byte* src, std::byte* dst, std::int64_t n, float inverse,
                       std::uint8_t flip) {
    quantize_loop<Row>(src, dst, n, inverse, flip);
  }
  static void dequantize(const std::byte* src, std::byte* dst, std::int64_t n, float scale,
                         std::uint8_t flip) {
    dequantize_loop<Row>(src, dst, n, scale, flip);
  }
};

template <typename Row>
struct Avx2 {
  KVFOLIO_AVX2 static float amax(const std::byte* row, std::int64_t n) {
    return amax_loop<Row>(row, n);
  }
  KVFOLIO_AVX2 static void quantize(const std::byte* src, std::byte* dst, std::int64_t n,
                                    float inverse, std::uint8_t flip) {
    quantize_loop<Row>(src, dst, n, inverse, flip);
  }
  KVFOLIO_AVX2 static void dequantize(const std::byte* src, std::byte* dst, std::int64_t n,
                                      float scale, std::uint8_t flip) {
    dequantize_loop<Row>(src, dst, n, scale, flip);
  }
};

template <typename Row>
struct Avx512 {
  KVFOLIO_AVX512 static float amax(const std::byte* row, std::int64_t n) {
    return amax_loop<Row>(row, n);
  }
  KVFOLIO_AVX512 static void quantize(const std::byte* src, std::byte* dst, std::int64_t n,
                                      float inverse, std::uint8_t flip) {
    quantize_loop<Row>(src, dst, n, inverse, flip);
  }
  KVFOLIO_AVX512 static void dequantize(const std::byte* src, std::byte* dst, std::int64_t n,
                                        float scale, std::uint8_t flip) {
    dequantize_loop<Row>(src, dst, n, scale, flip);
  }
};

template <typename Row>
QuantizeLoops loops_of(Isa isa) {
  if (isa == Isa::kAvx512) {
    return {Avx512<Row>::amax, Avx512<Row>::quantize, Avx512<Row>::dequantize};
  }
  if (isa == Isa::kAvx2) return {Avx2<Row>::amax, Avx2<Row>::quantize, Avx2<Row>::dequantize};
  return {Baseline<Row>::amax, Baseline<Row>::quantize, Baseline<Row>::dequantize};
}

}  // namespace

QuantizeLoops quantize_loops(DType rows, Isa isa) noexcept {
  KVFOLIO_DCHECK(dtype_bytes(rows) != 0 && isa <= best_isa());
  switch (rows) {
    case DType::kF64:
      return loops_of<F64>(isa);
    case DType::kF32:
      return loops_of<F32>(isa);
    case DType::kF16:
      return loops_of<F16>(isa);
    case DType::kBF16:
      return loops_of<BF16>(isa);
    case DType::kInt8:
      break;
  }
  return {};
}

void dequantize_exactly(const std::byte* src, double* dst, std::int64_t n, float scale,
                        std::uint8_t flip) noexcept {
  const double factor = static_cast<double>(scale);
  for (std::int64_t i = 0; i < n; ++i) {
    const auto element = static_cast<std::int8_t>(std::to_integer<std::uint8_t>(src[i]) ^ flip);
    dst[i] = static_cast<double>(element) * factor;
  }
}

}  // namespace kvfolio::kernels
