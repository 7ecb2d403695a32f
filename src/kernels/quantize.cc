// SPDX-License-Identifier: Apache-2.0

// Rows become int8 or e4m3 and come back, to the bit as dtype.h defines it. The largest magnitude
// of a row is found among its bits as integers, which vectorises without a special case for NaN.
// The loops are compiled for three instruction sets, see isa.h. rows.cc calls them.
//
// Those of e4m3 know f32 alone, and other rows pass through a piece of f32 on the stack: a loop for
// each type of rows, as int8 has, took 57 KB of code against 13 so.

#include "kernels/quantize.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/convert.h"
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
  const auto of = [](auto loops) -> QuantizeLoops {
    return {kInt8Most, loops.amax, loops.quantize, loops.dequantize};
  };
  if (isa == Isa::kAvx512) return of(Avx512<Row>());
  return isa == Isa::kAvx2 ? of(Avx2<Row>()) : of(Baseline<Row>());
}

[[gnu::always_inline]] inline void narrow_e4m3_loop(const float* __restrict from,
                                                    std::uint8_t* __restrict to, std::int64_t n,
                                                    float inverse) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = narrow_e4m3(from[i] * inverse);
}
[[gnu::always_inline]] inline void widen_e4m3_loop(const std::uint8_t* __restrict from,
                                                   float* __restrict to, std::int64_t n,
                                                   float scale) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = widen_e4m3(from[i]) * scale;
}

// Never inlined, so that there is one copy of each for all types of rows.
struct BaselineE4M3 {
  [[gnu::noinline]] static void narrow(const float* from, std::uint8_t* to, std::int64_t n,
                                       float inverse) {
    narrow_e4m3_loop(from, to, n, inverse);
  }
  [[gnu::noinline]] static void widen(const std::uint8_t* from, float* to, std::int64_t n,
                                      float scale) {
    widen_e4m3_loop(from, to, n, scale);
  }
};
struct Avx2E4M3 {
  KVFOLIO_AVX2 static void narrow(const float* from, std::uint8_t* to, std::int64_t n,
                                  float inverse) {
    narrow_e4m3_loop(from, to, n, inverse);
  }
  KVFOLIO_AVX2 static void widen(const std::uint8_t* from, float* to, std::int64_t n, float scale) {
    widen_e4m3_loop(from, to, n, scale);
  }
};

// Rows of one element type by a loop over f32.
template <DType kRows, typename Loop>
struct ThroughF32 {
  static constexpr std::int64_t kPiece = 256;  // elements

  static void quantize(const std::byte* src, std::byte* dst, std::int64_t n, float inverse,
                       std::uint8_t /*flip*/) {
    if (inverse == 0.0f) {
      std::memset(dst, 0, static_cast<std::size_t>(n));
      return;
    }
    const ConvertFn to_f32 = convert_fn(kRows, DType::kF32);
    alignas(64) float piece[kPiece];
    for (std::int64_t i = 0; i < n; i += kPiece) {
      const std::int64_t count = std::min(kPiece, n - i);
      to_f32(src + i * dtype_bytes(kRows), reinterpret_cast<std::byte*>(piece), count);
      Loop::narrow(piece, reinterpret_cast<std::uint8_t*>(dst) + i, count, inverse);
    }
  }
  static void dequantize(const std::byte* src, std::byte* dst, std::int64_t n, float scale,
                         std::uint8_t /*flip*/) {
    const ConvertFn from_f32 = convert_fn(DType::kF32, kRows);
    alignas(64) float piece[kPiece];
    for (std::int64_t i = 0; i < n; i += kPiece) {
      const std::int64_t count = std::min(kPiece, n - i);
      Loop::widen(reinterpret_cast<const std::uint8_t*>(src) + i, piece, count, scale);
      from_f32(reinterpret_cast<const std::byte*>(piece), dst + i * dtype_bytes(kRows), count);
    }
  }
};

template <DType kRows>
void make_e4m3(QuantizeLoops& loops, Isa isa) {
  const auto take = [&loops](auto of) {
    loops.quantize = of.quantize;
    loops.dequantize = of.dequantize;
  };
  loops.most = kE4M3Most;
  if (isa == Isa::kBaseline) return take(ThroughF32<kRows, BaselineE4M3>());
  take(ThroughF32<kRows, Avx2E4M3>());
}

template <typename Row, DType kRows>
QuantizeLoops loops_for(DType cache, Isa isa) {
  QuantizeLoops loops = loops_of<Row>(isa);
  if (cache == DType::kE4M3) make_e4m3<kRows>(loops, isa);
  return loops;
}

}  // namespace

QuantizeLoops quantize_loops(DType rows, DType cache, Isa isa) noexcept {
  KVFOLIO_DCHECK(dtype_bytes(rows) != 0 && has_scales(cache) && isa <= best_isa());
  switch (rows) {
    case DType::kF64:
      return loops_for<F64, DType::kF64>(cache, isa);
    case DType::kF32:
      return loops_for<F32, DType::kF32>(cache, isa);
    case DType::kF16:
      return loops_for<F16, DType::kF16>(cache, isa);
    case DType::kBF16:
      return loops_for<BF16, DType::kBF16>(cache, isa);
    case DType::kInt8:
    case DType::kE4M3:
    case DType::kOpaque:
      break;
  }
  return {};
}

void dequantize_exactly(DType dtype, const std::byte* src, double* dst, std::int64_t n, float scale,
                        std::uint8_t flip) noexcept {
  const double factor = static_cast<double>(scale);
  if (dtype == DType::kE4M3) {
    for (std::int64_t i = 0; i < n; ++i) {
      dst[i] = static_cast<double>(f32_from_e4m3(std::to_integer<std::uint8_t>(src[i]))) * factor;
    }
    return;
  }
  for (std::int64_t i = 0; i < n; ++i) {
    const auto element = static_cast<std::int8_t>(std::to_integer<std::uint8_t>(src[i]) ^ flip);
    dst[i] = static_cast<double>(element) * factor;
  }
}

}  // namespace kvfolio::kernels
