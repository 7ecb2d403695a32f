// SPDX-License-Identifier: Apache-2.0

// AVX-512 with the dot products of BF16 and VNNI. The functions of f32 and f16 are those of plain
// AVX-512 (target_avx512.cc).

#include "kernels/cpu/attend_phases.h"
#include "kernels/cpu/simd_avx512.h"

namespace kvfolio::kernels {
namespace {

// vdpbf16ps takes denormals for zero and rounds to nearest even whatever the mode is: the same
// everywhere.
template <class T>
struct DotBf16Element {
  using F = typename T::F;
  using I = typename T::I;
  using Sum = F;
  using Line = I;
  using Factor = I;
  static constexpr int kDims = 2;
  static constexpr int kTokens = 2;
  static constexpr int kLaneBytes = 4;
  static constexpr int kQueryWords = 1;
  static constexpr int kWeightWords = 1;
  static constexpr int kExpDegree = 4;
  static constexpr bool kScaled = false;
  static constexpr bool kRoundsQueries = true;

  static Sum zero() { return T::zero(); }
  static Line load_k(const std::byte* p) { return T::load_words(p); }
  static Line load_v(const std::byte* p) { return T::load_words(p); }
  static Factor load_query(const std::uint32_t* p) { return T::broadcast_word(*p); }
  static Factor load_weight(const std::uint32_t* p) { return T::broadcast_word(*p); }
  static Sum dot_k(Sum sum, Line line, Factor q) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(line), reinterpret_cast<__m512bh>(q));
  }
  static Sum dot_v(Sum sum, Line line, Factor w) { return dot_k(sum, line, w); }
  static void store_query(const float* q, int dims, std::uint32_t* words) {
    for (int d = 0; d < dims; d += 8) {
      const auto half = _mm256_cvtneps_pbh(_mm256_loadu_ps(q + d));
      __builtin_memcpy(words + d / 2, &half, 16);
    }
  }
  static void store_weights(std::uint32_t* row, int token, F w) {
    const auto half = _mm512_cvtneps_pbh(w);
    __builtin_memcpy(reinterpret_cast<std::byte*>(row) + 2 * token, &half, 32);
  }
};

// vpdpbusd: unsigned bytes (K, weights) times signed ones (the query, V), four at a time.
template <class T>
struct DotInt8Element : Int8Words<T> {
  using I = typename T::I;
  using Sum = I;
  using Line = I;
  using Factor = I;
  static constexpr int kQueryWords = 1;
  static constexpr int kWeightWords = 1;

  static Line load_k(const std::byte* p) { return T::load_words(p); }
  static Line load_v(const std::byte* p) { return T::load_words(p); }
  static Factor load_query(const std::uint32_t* p) { return T::broadcast_word(*p); }
  static Factor load_weight(const std::uint32_t* p) { return T::broadcast_word(*p); }
  static Sum dot_k(Sum sum, Line line, Factor q) { return _mm512_dpbusd_epi32(sum, line, q); }
  static Sum dot_v(Sum sum, Line line, Factor w) { return _mm512_dpbusd_epi32(sum, w, line); }
  static float store_query(const float* q, int dims, std::uint32_t* words, std::int32_t* sum) {
    std::int8_t bytes[kMaxHeadDim];
    const float scale = Int8Base<T>::quantize_query(q, dims, bytes, sum);
    __builtin_memcpy(words, bytes, static_cast<std::size_t>(dims));
    return scale;
  }
};

template <template <class> class E, template <class> class Pack>
constexpr AttendFn kAttend = attend_item<Avx512, E<Avx512>, E<Avx512Half>, Pack<Avx512>>;

}  // namespace

TargetKernels avx512_bf16_kernels() noexcept {
  TargetKernels kernels = avx512_kernels();
  kernels.attend[static_cast<std::size_t>(DType::kBF16)] = kAttend<DotBf16Element, PackBf16>;
  kernels.attend[static_cast<std::size_t>(DType::kInt8)] = kAttend<DotInt8Element, PackInt8>;
  return kernels;
}

}  // namespace kvfolio::kernels
