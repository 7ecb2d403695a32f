// SPDX-License-Identifier: Apache-2.0

// Loops that convert elements from one type to another. One template for all pairs of types,
// compiled for three instruction sets (isa.h); convert_fn() picks one, once for a call, so that no
// loop asks for a type. elements.h says how each type is loaded and stored.

#include "kernels/convert.h"

#include <cstring>

#include "kernels/elements.h"
#include "kvfolio/status.h"

namespace kvfolio::kernels {
namespace {

template <typename From, typename To>
[[gnu::always_inline]] inline void convert_loop(const std::byte* src, std::byte* dst,
                                                std::int64_t n) {
  const auto* __restrict from = reinterpret_cast<const typename From::Stored*>(src);
  auto* __restrict to = reinterpret_cast<typename To::Stored*>(dst);
  for (std::int64_t i = 0; i < n; ++i) to[i] = To::store(From::load(from[i]));
}

template <typename From, typename To>
void convert_baseline(const std::byte* src, std::byte* dst, std::int64_t n) {
  convert_loop<From, To>(src, dst, n);
}

template <typename From, typename To>
KVFOLIO_AVX2 void convert_avx2(const std::byte* src, std::byte* dst, std::int64_t n) {
  convert_loop<From, To>(src, dst, n);
}

template <typename From, typename To>
KVFOLIO_AVX512 void convert_avx512(const std::byte* src, std::byte* dst, std::int64_t n) {
  convert_loop<From, To>(src, dst, n);
}

template <typename From, typename To>
ConvertFn convert_elements(Isa isa) {
  if (isa == Isa::kAvx512) return convert_avx512<From, To>;
  return isa == Isa::kAvx2 ? convert_avx2<From, To> : convert_baseline<From, To>;
}

template <std::size_t kBytes>
void copy_elements(const std::byte* src, std::byte* dst, std::int64_t n) {
  std::memcpy(dst, src, static_cast<std::size_t>(n) * kBytes);
}

template <typename From>
ConvertFn convert_from(DType to, Isa isa) {
  switch (to) {
    case DType::kF64:
      return convert_elements<From, F64>(isa);
    case DType::kF32:
      return convert_elements<From, F32>(isa);
    case DType::kF16:
      return convert_elements<From, F16>(isa);
    case DType::kBF16:
      return convert_elements<From, BF16>(isa);
    case DType::kInt8:
    case DType::kE4M3:
    case DType::kOpaque:
      break;
  }
  return nullptr;
}

}  // namespace

ConvertFn convert_fn(DType from, DType to, Isa isa) noexcept {
  KVFOLIO_DCHECK(dtype_bytes(from) != 0 && dtype_bytes(to) != 0);
  KVFOLIO_DCHECK(isa <= best_isa());
  if (from == to) {
    switch (dtype_bytes(from)) {
      case 8:
        return copy_elements<8>;
      case 4:
        return copy_elements<4>;
      case 2:
        return copy_elements<2>;
      default:
        return nullptr;
    }
  }
  switch (from) {
    case DType::kF64:
      return convert_from<F64>(to, isa);
    case DType::kF32:
      return convert_from<F32>(to, isa);
    case DType::kF16:
      return convert_from<F16>(to, isa);
    case DType::kBF16:
      return convert_from<BF16>(to, isa);
    case DType::kInt8:
    case DType::kE4M3:
    case DType::kOpaque:
      break;
  }
  return nullptr;
}

}  // namespace kvfolio::kernels
