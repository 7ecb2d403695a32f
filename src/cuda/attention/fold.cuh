// SPDX-License-Identifier: Apache-2.0
#pragma once

// The operations whose order of rounding is promised: how a score becomes a weight, when the
// maximum of a row moves, how two states of a row become one, how a row ends. All kernels share
// them, and each operation names its rounding, so that a compiler joins none of them.
//
// A state of a row is (maximum, total, sums) in base 2: the sums of weights 2^(score - maximum),
// and of these times V. Folding an empty state (maximum -inf) with x gives x, so cutting a row at a
// leaf border changes no bit.

#include "cuda/attention/args.h"
#include "cuda/attention/device.cuh"

namespace kvfolio::cuda {

inline constexpr float kNothing = -__builtin_huge_valf();  // the maximum of an empty state
inline constexpr float kLog2E = 1.44269504f;
inline constexpr float kLn2 = 0.69314718f;
inline constexpr float kGrowth = 8.0f;  // a maximum moves when it would grow by more, in base 2

struct Fold {
  float a;  // factor of the first state's sums
  float b;  // of the second's
};

// Joins (m2, l2) to (m, l). Not to be called for an empty second state.
__device__ __forceinline__ Fold fold_state(float& m, float& l, float m2, float l2) {
  Fold f;
  if (m == kNothing) {
    f.a = 0.0f;
    f.b = 1.0f;
    m = m2;
    l = l2;
  } else {
    const float most = fmaxf(m, m2);
    f.a = exp2_approx(__fsub_rn(m, most));
    f.b = exp2_approx(__fsub_rn(m2, most));
    m = most;
    l = __fmaf_rn(l2, f.b, __fmul_rn(l, f.a));
  }
  return f;
}
__device__ __forceinline__ float fold_sum(float o, float o2, Fold f) {
  return __fmaf_rn(o2, f.b, __fmul_rn(o, f.a));
}

// Moves the maximum of a row to `most` if it grew enough; answers the factor of its sums.
__device__ __forceinline__ float grow(float& m, float most) {
  if (!(most > __fadd_rn(m, kGrowth))) return 1.0f;
  const float f = exp2_approx(__fsub_rn(m, most));
  m = most;
  return f;
}
__device__ __forceinline__ float weight_of(float score, float scale, float m) {
  return exp2_approx(__fmaf_rn(score, scale, -m));
}

// ---- soft cap and ALiBi
// --------------------------------------------------------------------------

// tanh(z) to 3e-7, which a cap multiplies: enough next to the rounding of the weights.
__device__ __forceinline__ float tanh_of(float z) {
  const float e = exp2_approx(__fmul_rn(z, 2.0f * kLog2E));
  return __fmaf_rn(-2.0f, reciprocal_approx(__fadd_rn(e, 1.0f)), 1.0f);
}
// Whether scores are more than q . k times the scale.
__device__ __forceinline__ bool bends_scores(const AttendArgs& a) {
  return a.cap_log2 > 0.0f || a.slopes != nullptr;
}
// The score in base 2 of a product x; distance: position of the key minus that of the row.
__device__ __forceinline__ float bent_score(const AttendArgs& a, float x, float scale, float slope,
                                            int distance) {
  float y = __fmul_rn(x, scale);
  if (a.cap_log2 > 0.0f) y = __fmul_rn(a.cap_log2, tanh_of(__fmul_rn(y, a.cap_inverse)));
  return __fmaf_rn(static_cast<float>(distance), slope, y);
}
__device__ __forceinline__ float slope_of(const AttendArgs& a, int q_head) {
  return a.slopes == nullptr ? 0.0f : __fmul_rn(a.slopes[q_head], kLog2E);
}

// ---- the end of a row
// ----------------------------------------------------------------------------

// Folds the learned sink of the row's head, which is a state with no sums, and divides.
struct RowEnd {
  Fold sink = {1.0f, 0.0f};
  float total = 0.0f;
  float lse = kNothing;

  __device__ __forceinline__ RowEnd(const AttendArgs& a, int q_head, float m, float l) {
    if (a.sink_logits != nullptr) {
      const float logit = __fmul_rn(a.sink_logits[q_head], kLog2E);
      if (logit != kNothing) sink = fold_state(m, l, logit, 1.0f);
    }
    total = l;
    if (m != kNothing) lse = __fmul_rn(__fadd_rn(m, log2_of(l)), kLn2);
  }
  __device__ __forceinline__ float value(float o) const {
    return total == 0.0f ? 0.0f : __fdiv_rn(__fmul_rn(o, sink.a), total);
  }
};

struct RowPlace {
  int token;   // of q and out
  int q_head;  // of all heads
};
__device__ __forceinline__ RowPlace place_of_row(const AttendArgs& a, int first_token, int head,
                                                 int row) {
  return {first_token + row / a.group_size, head * a.group_size + row % a.group_size};
}

__device__ __forceinline__ void store_value(const AttendArgs& a, RowPlace place, int d,
                                            float value) {
  char* row = a.out + place.token * a.out_token + place.q_head * a.out_head;
  if (a.out_element == Element::kF32) {
    reinterpret_cast<float*>(row)[d] = value;
  } else {
    const uint32_t bits =
        a.out_element == Element::kF16 ? pack2<true>(value, 0.0f) : pack2<false>(value, 0.0f);
    reinterpret_cast<uint16_t*>(row)[d] = static_cast<uint16_t>(bits);
  }
}
__device__ __forceinline__ void store_lse(const AttendArgs& a, RowPlace place, float lse) {
  if (a.lse == nullptr) return;
  const int heads = a.cache.num_heads * a.group_size;
  a.lse[static_cast<int64_t>(place.token) * heads + place.q_head] = lse;
}

}  // namespace kvfolio::cuda
