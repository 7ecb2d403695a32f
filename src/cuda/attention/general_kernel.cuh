// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the other kernels do not take: f32 caches, queries of another type than the cache, head dims
// from 8 to 576 in steps of 8, K and V of different dims, V that is a prefix of K. Plain f32 sums
// in order of dims and of positions within a tile, then the same tree. It is there to be right.
//
// A block of 128 threads for each node of a group of 8 rows. Threads are tokens (two share one,
// four rows each) while scores are computed, rows while they become weights, and dims of V while it
// is summed.

#include "cuda/attention/node_kernel.cuh"

namespace kvfolio::cuda {

inline constexpr int kGeneralThreads = 128;
inline constexpr int kGeneralRows = 8;
inline constexpr int kMostDim = 576;
inline constexpr int kDimsEach = (kMostDim + kGeneralThreads - 1) / kGeneralThreads;

struct GeneralMemory {
  float q[kGeneralRows][kMostDim];
  float weights[kTileTokens][kGeneralRows];  // scores, then weights times the scale of V
  uint32_t seen[kTileTokens];                // a bit for each row
  int64_t v_places[kTileTokens];             // bytes; -1: no row sees it
  float m[kGeneralRows], l[kGeneralRows];    // of the leaf
  float factor[kGeneralRows];
  float node_m[kGeneralRows], node_l[kGeneralRows];
  Fold fold[kGeneralRows];
  bool empty[kGeneralRows];
};

__device__ __forceinline__ float element_at(const char* row, int d, Element element) {
  switch (element) {
    case Element::kF32:
      return reinterpret_cast<const float*>(row)[d];
    case Element::kF16:
      return float_of_f16(reinterpret_cast<const uint16_t*>(row)[d]);
    case Element::kBF16:
      return float_of_bf16(reinterpret_cast<const uint16_t*>(row)[d]);
    case Element::kInt8:
      return static_cast<float>(reinterpret_cast<const int8_t*>(row)[d]);
    case Element::kE4M3:
      return float_of_f16(e4m3_to_f16x2(static_cast<uint8_t>(row[d])) & 0xffffu);
  }
  return 0.0f;
}
__device__ __forceinline__ int64_t place_in(const Strides& strides, int block, int head,
                                            int offset) {
  return block * strides.block + head * strides.head + offset * strides.token;
}

// Scores of four rows of one token; what a row does not see is -inf.
__device__ __forceinline__ void general_scores(const AttendArgs& a, const SequenceArgs& seq,
                                               const Item& item, const Sight& any, int head,
                                               int num_rows, int first, GeneralMemory& memory,
                                               int thread) {
  const int token = thread % kTileTokens, first_row = thread / kTileTokens * 4;
  const int p = first + token, offset = p % a.cache.block_size;
  const int block =
      any.sees(p) ? a.table[item.sequence * a.table_stride + p / a.cache.block_size] : -1;
  float s[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  if (block >= 0) {
    const char* row = a.cache.k + place_in(a.cache.k_strides, block, head, offset);
    for (int d = 0; d < a.cache.dim_k; ++d) {
      const float x = element_at(row, d, a.cache.element);
#pragma unroll
      for (int r = 0; r < 4; ++r) s[r] = __fmaf_rn(memory.q[first_row + r][d], x, s[r]);
    }
    if (has_scales(a.cache.element)) {
      const float scale = *reinterpret_cast<const float*>(
          a.cache.k_scales + place_in(a.cache.k_scale_strides, block, head, offset));
#pragma unroll
      for (int r = 0; r < 4; ++r) s[r] = __fmul_rn(s[r], scale);
    }
  }
  uint32_t seen = 0;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int row = first_row + r;
    if (row < num_rows) {
      const int at = seq.at(a, item.first_row + row);
      const RowPlace place = place_of_row(a, seq.first_token, head, item.first_row + row);
      s[r] = bent_score(a, s[r], a.scale_log2, slope_of(a, place.q_head), p - at);
      if (block >= 0 && sight_of(a.mask, at, seq.kv_len, seq.trim_sinks, seq.first_kept).sees(p))
        seen |= 1u << row;
    }
    memory.weights[token][row] = (seen >> row) & 1u ? s[r] : kNothing;
  }
  if (first_row == 0) {
    memory.v_places[token] = block < 0 ? -1 : place_in(a.cache.v_strides, block, head, offset);
    memory.seen[token] = 0;
  }
  __syncthreads();
  if (first_row == 0) memory.seen[token] = seen;
  __syncthreads();
  if (first_row != 0) memory.seen[token] |= seen;
}

// Scores of one row become weights; its maximum and total move.
__device__ __forceinline__ void general_weights(const AttendArgs& a, const Item& item, int head,
                                                int first, GeneralMemory& memory, int row) {
  float most = kNothing;
  for (int t = 0; t < kTileTokens; ++t) most = fmaxf(most, memory.weights[t][row]);
  const float f = grow(memory.m[row], most);
  const float m = memory.m[row] == kNothing ? 0.0f : memory.m[row];
  float l = __fmul_rn(memory.l[row], f);
  for (int t = 0; t < kTileTokens; ++t) {
    const float p = weight_of(memory.weights[t][row], 1.0f, m);
    l = __fadd_rn(l, p);
    float w = p;
    if (has_scales(a.cache.element) && memory.v_places[t] >= 0) {
      const int at = first + t, offset = at % a.cache.block_size;
      const int block = a.table[item.sequence * a.table_stride + at / a.cache.block_size];
      w = __fmul_rn(p,
                    *reinterpret_cast<const float*>(
                        a.cache.v_scales + place_in(a.cache.v_scale_strides, block, head, offset)));
    }
    memory.weights[t][row] = w;
  }
  memory.l[row] = l;
  memory.factor[row] = f;
}

template <int kThreads>
__global__ void __launch_bounds__(kThreads, 2)
    general_kernel(const __grid_constant__ AttendArgs a) {
  static_assert(kThreads == kGeneralThreads);
  KVFOLIO_CUDA_SHARED_MEMORY(shared);
  GeneralMemory& memory = *reinterpret_cast<GeneralMemory*>(shared);
  const int thread = threadIdx.x;
  const int head = blockIdx.x % a.cache.num_heads;
  const Item& item = a.items[blockIdx.x / a.cache.num_heads];
  const SequenceArgs seq(a, item.sequence);
  const int num_rows = min(kGeneralRows, seq.queries * a.group_size - item.first_row);
  const Sight any = seq.of_any(a, item.first_row, num_rows);
  const int dims = a.cache.dim_v;

  for (int i = thread; i < kGeneralRows * a.cache.dim_k; i += kGeneralThreads) {
    const int r = i / a.cache.dim_k, d = i % a.cache.dim_k;
    const RowPlace place =
        place_of_row(a, seq.first_token, head, item.first_row + (r < num_rows ? r : 0));
    const char* row = a.q + place.token * a.q_token + place.q_head * a.q_head;
    memory.q[r][d] = r < num_rows ? element_at(row, d, a.q_element) : 0.0f;
  }
  if (thread < kGeneralRows) {
    memory.m[thread] = memory.node_m[thread] = kNothing;
    memory.l[thread] = memory.node_l[thread] = 0.0f;
  }
  float o[kDimsEach][kGeneralRows] = {}, node[kDimsEach][kGeneralRows] = {};
  __syncthreads();

  for (int leaf = 0; leaf < kLeavesPerNode; ++leaf) {
    for (int t = 0; t < kTilesPerLeaf; ++t) {
      const int first = item.node * kNodeTokens + leaf * kLeafTokens + t * kTileTokens;
      if (!any.sees_any(first, first + kTileTokens - 1)) continue;
      general_scores(a, seq, item, any, head, num_rows, first, memory, thread);
      __syncthreads();
      if (thread < num_rows) general_weights(a, item, head, first, memory, thread);
      __syncthreads();
#pragma unroll
      for (int j = 0; j < kDimsEach; ++j) {
        const int d = thread + j * kGeneralThreads;
        if (d >= dims) continue;
#pragma unroll
        for (int r = 0; r < kGeneralRows; ++r)
          if (r < num_rows) o[j][r] = __fmul_rn(o[j][r], memory.factor[r]);
        for (int token = 0; token < kTileTokens; ++token) {
          const uint32_t seen = memory.seen[token];
          if (seen == 0) continue;
          const float v = element_at(a.cache.v + memory.v_places[token], d, a.cache.element);
#pragma unroll
          for (int r = 0; r < kGeneralRows; ++r)
            if ((seen >> r) & 1u) o[j][r] = __fmaf_rn(memory.weights[token][r], v, o[j][r]);
        }
      }
      __syncthreads();
    }
    if (thread < num_rows) {
      memory.empty[thread] = memory.m[thread] == kNothing;
      if (!memory.empty[thread])
        memory.fold[thread] = fold_state(memory.node_m[thread], memory.node_l[thread],
                                         memory.m[thread], memory.l[thread]);
      memory.m[thread] = kNothing;
      memory.l[thread] = 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kDimsEach; ++j)
#pragma unroll
      for (int r = 0; r < kGeneralRows; ++r) {
        if (r < num_rows && !memory.empty[r])
          node[j][r] = fold_sum(node[j][r], o[j][r], memory.fold[r]);
        o[j][r] = 0.0f;
      }
    __syncthreads();
  }

  const bool alone = a.groups[item.group].num_items == 1;
  const int64_t state =
      (static_cast<int64_t>(&item - a.items) * a.cache.num_heads + head) * kGeneralRows;
#pragma unroll
  for (int r = 0; r < kGeneralRows; ++r) {
    if (r >= num_rows) continue;
    const RowPlace place = place_of_row(a, seq.first_token, head, item.first_row + r);
    if (alone) {
      const RowEnd end(a, place.q_head, memory.node_m[r], memory.node_l[r]);
#pragma unroll
      for (int j = 0; j < kDimsEach; ++j) {
        const int d = thread + j * kGeneralThreads;
        if (d < dims) store_value(a, place, d, end.value(node[j][r]));
      }
      if (thread == 0) store_lse(a, place, end.lse);
    } else {
#pragma unroll
      for (int j = 0; j < kDimsEach; ++j) {
        const int d = thread + j * kGeneralThreads;
        if (d < dims) a.state_sums[(state + r) * dims + d] = node[j][r];
      }
      if (thread == 0)
        reinterpret_cast<float2*>(a.state_totals)[state + r] =
            make_float2(memory.node_m[r], memory.node_l[r]);
    }
  }
}

}  // namespace kvfolio::cuda
