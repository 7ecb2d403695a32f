// SPDX-License-Identifier: Apache-2.0
#pragma once

// The arithmetic of attention over a tile: the two passes that do nearly all multiply-adds, and the
// small functions around them. A pass takes up to eight rows at a time and keeps their sums in
// registers: score_pass() goes down the lines of K, sum_pass() down the rows of V.
//
// The one idea: what a row computes never depends on the rows beside it. R, S and N say how many
// sums run side by side; the order within one sum is always that of dims, or of tokens.
//
// T is a target's vectors (simd_*.h), E an element type (elements.h). A pass knows addresses only:
// attend_address.h finds them, and attend_phases.h calls the passes.
//
// Included by targets only; everything is local to the target's source.

#include "kernels/cpu/elements.h"
#include "kernels/cpu/item.h"

namespace kvfolio::kernels {
namespace {

constexpr float kNothing = -__builtin_inff();  // the maximum of a row that has read nothing

template <class T, int kDegree>
inline typename T::F exp2_poly(typename T::F x) {
  using F = typename T::F;
  // 2^f for |f| <= 1/2, least relative error with 2^0 = 1 exactly: 9.1e-8 and 2.8e-6.
  constexpr float kFive[] = {0x1.62e42ap-1f, 0x1.ebf9bcp-3f, 0x1.c6b752p-5f, 0x1.3cea88p-7f,
                             0x1.5bba14p-10f};
  constexpr float kFour[] = {0x1.62e12cp-1f, 0x1.ec0378p-3f, 0x1.c9fc46p-5f, 0x1.3a02ccp-7f};
  const float* c = kDegree == 5 ? kFive : kFour;
  const typename T::Parts parts = T::split(x);
  F y = T::broadcast(c[kDegree - 1]);
  for (int i = kDegree - 2; i >= 0; --i) y = T::fma(y, parts.fraction, T::broadcast(c[i]));
  y = T::fma(y, parts.fraction, T::broadcast(1.0f));
  return T::scale(y, parts.whole);
}

// tanh(x) to 2e-7 of itself.
template <class T>
inline typename T::F tanh_poly(typename T::F x) {
  using F = typename T::F;
  // -|x|, but not where tanh is -1 anyway; a NaN stays.
  const F size = T::max(x, T::sub(T::zero(), x));
  const F n = T::max(T::broadcast(-10.0f), T::sub(T::zero(), size));
  const F e = exp2_poly<T, 5>(T::mul(n, T::broadcast(2.0f * 1.44269504f)));
  const F one = T::broadcast(1.0f);
  const F far = T::div(T::sub(one, e), T::add(one, e));
  // Near 0 that difference is all rounding: x + x^3 P(x^2) instead.
  constexpr float kNear[] = {-5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f,
                             1.33314422036e-1f, -3.33332819422e-1f};
  const F square = T::mul(n, n);
  F y = T::broadcast(kNear[0]);
  for (int i = 1; i < 5; ++i) y = T::fma(y, square, T::broadcast(kNear[i]));
  const F near = T::fma(T::mul(y, square), x, x);
  const F with_sign = T::if_greater(T::zero(), x, T::sub(T::zero(), far), far);
  return T::if_greater(n, T::broadcast(-0.625f), near, with_sign);
}

// One row of `into` and of `part`, which holds positions that follow.
template <class T>
inline void merge_row(const State& into, const State& part, std::int32_t head_dim) {
  const float theirs = *part.totals;
  if (theirs == 0.0f) return;
  const std::int64_t dims = padded(head_dim);
  if (*into.totals == 0.0f) {
    for (std::int64_t d = 0; d < dims; d += T::kLanes) {
      T::store(into.sums + d, T::load(part.sums + d));
    }
    *into.totals = theirs;
    *into.maxima = *part.maxima;
    return;
  }
  const float a = *into.maxima;
  const float b = *part.maxima;
  const float most = b > a ? b : a;
  const typename T::F mine = exp2_poly<T, 5>(T::broadcast(a - most));
  const typename T::F other = exp2_poly<T, 5>(T::broadcast(b - most));
  for (std::int64_t d = 0; d < dims; d += T::kLanes) {
    const typename T::F scaled = T::mul(T::load(part.sums + d), other);
    T::store(into.sums + d, T::fma(T::load(into.sums + d), mine, scaled));
  }
  float first[16];
  float second[16];
  T::store(first, mine);
  T::store(second, other);
  *into.totals = *into.totals * first[0] + theirs * second[0];
  *into.maxima = most;
}

// The largest power of two that is not above x, a normal number > 0.
inline float power_of_two(float x) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  const std::uint32_t exponent = bits & 0x7f800000u;
  float power;
  __builtin_memcpy(&power, &exponent, 4);
  return power;
}

// Into the second level: measured on Zen 4, the first level has too few misses in flight to keep up
// with memory (0.54 against 0.87 of what reading alone reaches).
inline void prefetch(const std::byte* p) { __builtin_prefetch(p, 0, 2); }

// One tile as the kernels read it: up to four subtiles of 16 tokens.
struct TileRows {
  const std::byte* k[kSubtiles];
  const std::byte* v[kSubtiles];
  std::int64_t v_stride[kSubtiles];  // bytes from one row of V to the next
  const float* k_scales[kSubtiles];
  const float* v_scales[kSubtiles];
  // From a line of this tile to the line to ask for when it is read, in bytes: the same line of the
  // tile that follows, or 0. Of V, where its rows would lie packed.
  std::ptrdiff_t k_ahead[kSubtiles];
  std::ptrdiff_t v_ahead[kSubtiles];
};

// Scores of rows 0 .. R-1 with S subtiles: scores[r*kTile + subtile*16 + token].
template <class T, class E, int R, int S>
inline void score_pass(const std::uint32_t* queries, const float* query_scales,
                       const std::int32_t* query_sums, const std::byte* const* k,
                       const float* const* k_scales, const std::ptrdiff_t* ahead, int lines,
                       float* scores) {
  constexpr int kPer = kGranuleTokens / T::kLanes;
  constexpr int kVectors = S * kPer;
  typename E::Sum sums[R][kVectors];
  for (int r = 0; r < R; ++r) {
    for (int x = 0; x < kVectors; ++x) sums[r][x] = E::zero();
  }
  const std::byte* at[S];
  for (int s = 0; s < S; ++s) at[s] = k[s];
  for (int i = 0; i < lines; ++i) {
    typename E::Line line[kVectors];
    for (int s = 0; s < S; ++s) {
      for (int p = 0; p < kPer; ++p) {
        line[s * kPer + p] = E::load_k(at[s] + p * T::kLanes * E::kLaneBytes);
      }
      prefetch(at[s] + ahead[s]);
      at[s] += kGranuleTokens * E::kLaneBytes;
    }
    for (int r = 0; r < R; ++r) {
      const typename E::Factor q = E::load_query(queries + r * kQueryWords + i * E::kQueryWords);
      for (int x = 0; x < kVectors; ++x) sums[r][x] = E::dot_k(sums[r][x], line[x], q);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int s = 0; s < S; ++s) {
      for (int p = 0; p < kPer; ++p) {
        const int x = s * kPer + p;
        float* to = scores + r * kTile + s * kGranuleTokens + p * T::kLanes;
        if constexpr (E::kScaled) {
          const typename T::F scale =
              T::mul(T::load(k_scales[s] + p * T::kLanes), T::broadcast(query_scales[r]));
          T::store(to, T::mul(E::minus(sums[r][x], E::kOffset * query_sums[r]), scale));
        } else {
          T::store(to, sums[r][x]);
        }
      }
    }
  }
}

// What a pass over V needs beside the weights.
struct SumRows {
  int count = 0;  // of subtiles
  const std::byte* v[kSubtiles];
  std::int64_t stride[kSubtiles];
  std::ptrdiff_t ahead[kSubtiles];
  int subtile[kSubtiles];
  std::int64_t packed_stride;
};

// sums[r][d] += weights of the tile times V, for N vectors of dims from dim on.
template <class T, class E, int R, int N>
inline void sum_pass(const std::uint32_t* weights, const float* weight_scales, const SumRows& rows,
                     int dim, float* sums, std::int64_t sums_stride) {
  typename E::Sum acc[R][N];
  for (int r = 0; r < R; ++r) {
    for (int x = 0; x < N; ++x) {
      if constexpr (E::kScaled) {
        acc[r][x] = E::zero();
      } else {
        acc[r][x] = T::load(sums + r * sums_stride + dim + x * T::kLanes);
      }
    }
  }
  constexpr int kSteps = kGranuleTokens / E::kTokens;
  for (int j = 0; j < rows.count; ++j) {
    const std::byte* v = rows.v[j] + dim * E::kLaneBytes;
    const std::byte* ask = v + rows.ahead[j];
    const std::uint32_t* w = weights + rows.subtile[j] * kSteps * E::kWeightWords;
    for (int i = 0; i < kSteps; ++i) {
      typename E::Line line[N];
      for (int x = 0; x < N; ++x) line[x] = E::load_v(v + x * T::kLanes * E::kLaneBytes);
      for (int b = 0; b < N * T::kLanes * E::kLaneBytes; b += 64) prefetch(ask + b);
      v += rows.stride[j];
      ask += rows.packed_stride;
      for (int r = 0; r < R; ++r) {
        const typename E::Factor f = E::load_weight(w + r * kTile + i * E::kWeightWords);
        for (int x = 0; x < N; ++x) acc[r][x] = E::dot_v(acc[r][x], line[x], f);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int x = 0; x < N; ++x) {
      float* to = sums + r * sums_stride + dim + x * T::kLanes;
      if constexpr (E::kScaled) {
        T::store(to, T::fma(E::to_float(acc[r][x]), T::broadcast(weight_scales[r]), T::load(to)));
      } else {
        T::store(to, acc[r][x]);
      }
    }
  }
}

}  // namespace
}  // namespace kvfolio::kernels
