// SPDX-License-Identifier: Apache-2.0
#pragma once

// How an element of a cache is stored, as kernels of a device know it.

#include <cstdint>

#if defined(__CUDACC__)
#define KVFOLIO_CUDA_BOTH __host__ __device__ __forceinline__
#else
#define KVFOLIO_CUDA_BOTH inline
#endif

namespace kvfolio::cuda {

// kE4M3 is OCP's e4m3fn. int8 and e4m3 have an f32 scale for each token and head.
enum class Element : std::int32_t { kF32 = 0, kF16 = 1, kBF16 = 2, kInt8 = 3, kE4M3 = 4 };

[[nodiscard]] KVFOLIO_CUDA_BOTH constexpr int element_bytes(Element element) noexcept {
  switch (element) {
    case Element::kF32:
      return 4;
    case Element::kF16:
    case Element::kBF16:
      return 2;
    case Element::kInt8:
    case Element::kE4M3:
      return 1;
  }
  return 0;
}
// Whether each token and head has an f32 scale of K and one of V.
[[nodiscard]] KVFOLIO_CUDA_BOTH constexpr bool has_scales(Element element) noexcept {
  return element == Element::kInt8 || element == Element::kE4M3;
}

}  // namespace kvfolio::cuda
