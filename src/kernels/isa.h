// SPDX-License-Identifier: Apache-2.0
#pragma once

// Loops that compilers vectorise, built several times: for the instructions that every processor of
// the architecture has, and on x86-64 for AVX2 and AVX-512, chosen when the call is set up. All
// give the same bits: nothing is fused (-ffp-contract=off) and no loop adds floats in another
// order.
//
//   template <typename From>
//   [[gnu::always_inline]] inline void loop(...) { ... }
//   template <typename From>
//   void baseline(...) { loop<From>(...); }
//   template <typename From>
//   KVFOLIO_AVX2 void avx2(...) { loop<From>(...); }
//   template <typename From>
//   KVFOLIO_AVX512 void avx512(...) { loop<From>(...); }

#include <cstdint>

namespace kvfolio::kernels {

#if defined(__x86_64__) && defined(__GNUC__)
#define KVFOLIO_AVX2 [[gnu::target("avx2")]]
#if defined(__clang__)  // has no such attribute, and takes what it finds best
#define KVFOLIO_AVX512 [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]]
#else
#define KVFOLIO_AVX512 [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")]]
#endif
#else
#define KVFOLIO_AVX2
#define KVFOLIO_AVX512
#endif

// Each has what those before it have.
enum class Isa : std::int32_t { kBaseline = 0, kAvx2 = 1, kAvx512 = 2 };

[[nodiscard]] inline Isa best_isa() noexcept {
#if defined(__x86_64__) && defined(__GNUC__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return Isa::kAvx512;
  }
  return __builtin_cpu_supports("avx2") ? Isa::kAvx2 : Isa::kBaseline;
#else
  return Isa::kBaseline;
#endif
}

}  // namespace kvfolio::kernels
