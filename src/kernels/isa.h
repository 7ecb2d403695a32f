// SPDX-License-Identifier: Apache-2.0
#pragma once

// Loops that compilers vectorise, built twice: for the instructions that every processor of the
// architecture has, and on x86-64 for AVX2, chosen when the call is set up. Both give the same
// bits: nothing is fused (-ffp-contract=off) and no loop adds floats in another order.
//
//   template <typename From>
//   [[gnu::always_inline]] inline void loop(...) { ... }
//   template <typename From>
//   void baseline(...) { loop<From>(...); }
//   template <typename From>
//   KVFOLIO_AVX2 void avx2(...) { loop<From>(...); }

#include <cstdint>

namespace kvfolio::kernels {

#if defined(__x86_64__) && defined(__GNUC__)
#define KVFOLIO_AVX2 [[gnu::target("avx2")]]
#else
#define KVFOLIO_AVX2
#endif

enum class Isa : std::int32_t { kBaseline = 0, kAvx2 = 1 };

[[nodiscard]] inline Isa best_isa() noexcept {
#if defined(__x86_64__) && defined(__GNUC__)
  return __builtin_cpu_supports("avx2") ? Isa::kAvx2 : Isa::kBaseline;
#else
  return Isa::kBaseline;
#endif
}

}  // namespace kvfolio::kernels
