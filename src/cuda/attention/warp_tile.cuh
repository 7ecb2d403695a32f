// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a warp does with a tile of 64 tokens whose K and V lie in shared memory. Products are
// transposed, S^T = K Q^T and O^T = V^T P^T: rows (query token x query head) are the 8 columns of
// mma.m16n8k16, so one to eight rows cost the same, and K and V are the operand that needs no
// padding.
//
// 8-bit caches: K becomes f16 exactly and its scale multiplies the score; V becomes bf16 exactly
// and its scale multiplies the weight before that is rounded. A bf16 query becomes f16; a row whose
// elements do not fit is divided by a power of two, and its scale multiplied by it.
//
// Slots that no row of the group sees are zeros in shared memory. Where some rows see a position
// and others do not, its score becomes -inf for the others, and V is kept from them as well if it
// is not finite (sums_apart), since 0 times NaN is NaN.

#include <type_traits>

#include "cuda/attention/args.h"
#include "cuda/attention/device.cuh"
#include "cuda/attention/fold.cuh"

namespace kvfolio::cuda {

inline constexpr uint32_t kWholeWarp = 0xffffffffu;
inline constexpr int kNoRow = -(1 << 30);  // a position that no row has

// The rows of one sequence, and what a trim left of it.
struct SequenceArgs {
  int first_token;  // of q
  int queries;
  int kv_len;
  int trim_sinks;
  int first_kept;
  __device__ __forceinline__ SequenceArgs(const AttendArgs& a, int sequence)
      : first_token(a.query_start[sequence]),
        queries(a.query_start[sequence + 1] - first_token),
        kv_len(a.kv_lens[sequence]),
        trim_sinks(a.trim_sinks == nullptr ? 0 : a.trim_sinks[sequence]),
        first_kept(a.trim_first_kept == nullptr ? 0 : a.trim_first_kept[sequence]) {}
  // Position of a row of the sequence.
  __device__ __forceinline__ int at(const AttendArgs& a, int row) const {
    return kv_len - queries + row / a.group_size;
  }
  __device__ __forceinline__ Sight of_any(const AttendArgs& a, int first_row, int num_rows) const {
    return sight_of_any(a.mask, at(a, first_row), at(a, first_row + num_rows - 1), kv_len,
                        trim_sinks, first_kept);
  }
  __device__ __forceinline__ Sight of_each(const AttendArgs& a, int first_row, int num_rows) const {
    return sight_of_each(a.mask, at(a, first_row), at(a, first_row + num_rows - 1), kv_len,
                         trim_sinks, first_kept);
  }
};

// The block of a position, as an index of a table row, and the place in it.
struct BlockPlace {
  int number;
  int offset;
};
__device__ __forceinline__ BlockPlace block_of(const AttendArgs& a, int position) {
  if (a.block_shift >= 0) {
    return {position >> a.block_shift, position & (a.cache.block_size - 1)};
  }
  const int number = position / a.cache.block_size;
  return {number, position - number * a.cache.block_size};
}

// Place of chunk c (16 bytes) of row r in rows of kRow bytes: eight rows of one chunk, and eight
// chunks of one row, lie in different banks.
template <int kRow>
__device__ __forceinline__ uint32_t swizzled(int r, int c) {
  if constexpr (kRow >= 128) return static_cast<uint32_t>(r * kRow + ((c ^ (r & 7)) << 4));
  return static_cast<uint32_t>(r * kRow + ((c ^ ((r >> 1) & 3)) << 4));
}

// Whether a pair of 16-bit elements holds an infinity or a NaN.
template <bool kF16>
__device__ __forceinline__ bool not_finite(uint32_t pair) {
  constexpr uint32_t low = kF16 ? 0x7c00u : 0x7f80u, high = low << 16;
  return (pair & low) == low || (pair & high) == high;
}

template <Element E, int D, int C>  // C groups of 8 rows
struct WarpTile {
  static constexpr int kRow = D * element_bytes(E);
  static constexpr bool kScaled = has_scales(E);
  static constexpr bool kQueryF16 = E == Element::kF16 || kScaled;  // K and Q of the first product
  static constexpr bool kWeightF16 = E == Element::kF16;            // P and V of the second
  static constexpr int kSteps = D / 16;
  static constexpr uint32_t kOnes = kWeightF16 ? 0x3c003c00u : 0x3f803f80u;

  uint32_t q[kSteps][C][2];
  float o[D / 16][C][4];  // dims dim_of(i, e), rows 8c + 2(lane%4) + e%2
  float l[C][4];          // [0] and [1]: totals of the two rows
  float m[C][2];
  float scale[C][2];  // of a product, to a score in base 2
  int at[C][2];       // positions of the rows, or kNoRow
  int q_head[C][2];

  // Element e of o[i].
  __device__ static int dim_of(int i, int e, int lane) {
    if constexpr (kScaled) return 16 * i + 2 * (lane >> 2) + (e >> 1);
    return 16 * i + (lane >> 2) + 8 * (e >> 1);
  }
  // The row that this lane's element e belongs to.
  __device__ static int row_of(int c, int e, int lane) { return 8 * c + 2 * (lane & 3) + (e & 1); }

  __device__ void reset() {
#pragma unroll
    for (int c = 0; c < C; ++c) {
      m[c][0] = m[c][1] = kNothing;
#pragma unroll
      for (int e = 0; e < 4; ++e) l[c][e] = 0.0f;
#pragma unroll
      for (int i = 0; i < D / 16; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[i][c][e] = 0.0f;
    }
  }

  // Row r of the group is row first_row + r of the sequence.
  __device__ void load_queries(const AttendArgs& a, const SequenceArgs& seq, int head,
                               int first_row, int num_rows, int lane) {
#pragma unroll
    for (int c = 0; c < C; ++c) {
      const int r = 8 * c + (lane >> 2);
      const bool is_row = r < num_rows;
      const RowPlace place = place_of_row(a, seq.first_token, head, first_row + (is_row ? r : 0));
      const char* from = a.q + place.token * a.q_token + place.q_head * a.q_head;
      const int shift = load_row(a, from, c, lane);
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        if (!is_row) q[k][c][0] = q[k][c][1] = 0u;
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int mine = row_of(c, e, lane), row = first_row + mine;
        at[c][e] = mine < num_rows ? seq.at(a, row) : kNoRow;
        q_head[c][e] = mine < num_rows ? head * a.group_size + row % a.group_size : 0;
        scale[c][e] = a.scale_log2;
        if constexpr (kScaled) {
          const int power = __shfl_sync(kWholeWarp, shift, (2 * (lane & 3) + e) * 4);
          scale[c][e] = __fmul_rn(a.scale_log2, __uint_as_float((127 + power) << 23));
        }
      }
    }
  }

  // The fragments of one row of Q. Answers the power of two by which they were divided.
  __device__ int load_row(const AttendArgs& a, const char* from, int c, int lane) {
    const int i = lane & 3;
    if constexpr (!kScaled) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        q[k][c][0] = *reinterpret_cast<const uint32_t*>(from + 32 * k + 4 * i);
        q[k][c][1] = *reinterpret_cast<const uint32_t*>(from + 32 * k + 16 + 4 * i);
      }
      return 0;
    } else {  // dims 4i .. 4i+3 of each step, as K's bytes come
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        const uint2 x = *reinterpret_cast<const uint2*>(from + 32 * k + 8 * i);
        q[k][c][0] = x.x;
        q[k][c][1] = x.y;
      }
      if (a.q_element == Element::kF16) return 0;
      uint32_t most = 0;  // magnitude of the largest element, as bits
#pragma unroll
      for (int k = 0; k < kSteps; ++k)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const uint32_t x = q[k][c][e] & 0x7fff7fffu;
          most = max(most, max(x & 0xffffu, x >> 16));
        }
      most = max(most, __shfl_xor_sync(kWholeWarp, most, 1));
      most = max(most, __shfl_xor_sync(kWholeWarp, most, 2));
      const int exponent = static_cast<int>(most >> 7) - 127;
      const int power = exponent == 128 || exponent <= 14 ? 0 : exponent - 14;
      const float factor = __uint_as_float((127 - power) << 23);
#pragma unroll
      for (int k = 0; k < kSteps; ++k)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const uint32_t x = q[k][c][e];
          q[k][c][e] = pack2<true>(__fmul_rn(__uint_as_float(x << 16), factor),
                                   __fmul_rn(__uint_as_float(x & 0xffff0000u), factor));
        }
      return power;
    }
  }

  // K's fragment of 16 tokens x 16 dims from registers j of a load of 16 tokens x 32 bytes.
  __device__ static void convert_k(uint32_t (&a)[4], const uint32_t (&x)[4], int j) {
    if constexpr (E == Element::kInt8) {
      const uint32_t low = x[2 * j] ^ 0x80808080u, high = x[2 * j + 1] ^ 0x80808080u;
      a[0] = int8_to_f16x2(low, 0x4140);
      a[2] = int8_to_f16x2(low, 0x4342);
      a[1] = int8_to_f16x2(high, 0x4140);
      a[3] = int8_to_f16x2(high, 0x4342);
    } else {
      a[0] = e4m3_to_f16x2(x[2 * j]);
      a[2] = e4m3_to_f16x2(x[2 * j] >> 16);
      a[1] = e4m3_to_f16x2(x[2 * j + 1]);
      a[3] = e4m3_to_f16x2(x[2 * j + 1] >> 16);
    }
  }
  // V's, where a register holds dims 2d, 2d+1 of token 2i, then of token 2i+1.
  __device__ static void convert_v(uint32_t (&a)[4], const uint32_t (&x)[4], int j) {
    if constexpr (E == Element::kInt8) {
      a[0] = int8_to_bf16x2(x[2 * j], 0x4240);
      a[1] = int8_to_bf16x2(x[2 * j], 0x4341);
      a[2] = int8_to_bf16x2(x[2 * j + 1], 0x4240);
      a[3] = int8_to_bf16x2(x[2 * j + 1], 0x4341);
    } else {
      a[0] = e4m3_to_bf16x2(x[2 * j], 0x2404);
      a[1] = e4m3_to_bf16x2(x[2 * j], 0x3414);
      a[2] = e4m3_to_bf16x2(x[2 * j + 1], 0x2404);
      a[3] = e4m3_to_bf16x2(x[2 * j + 1], 0x3414);
    }
  }

  // Products with 32 tokens of K: s[0], s[1] are 16 tokens each.
  __device__ void scores32(float (*s)[C][4], uint32_t k_rows, int lane) {
#pragma unroll
    for (int t = 0; t < 2; ++t)
#pragma unroll
      for (int c = 0; c < C; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[t][c][e] = 0.0f;
    const int r = lane & 15, next = lane >> 4;  // matrices 0, 1: tokens; 2, 3: the next chunk
    if constexpr (!kScaled) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k)
#pragma unroll
        for (int t = 0; t < 2; ++t) {
          uint32_t a[4];
          load_matrices(a, k_rows + swizzled<kRow>(t * 16 + r, 2 * k + next));
#pragma unroll
          for (int c = 0; c < C; ++c) multiply<kQueryF16>(s[t][c], a, q[k][c][0], q[k][c][1]);
        }
    } else {
#pragma unroll
      for (int k2 = 0; k2 < kSteps / 2; ++k2)
#pragma unroll
        for (int t = 0; t < 2; ++t) {
          uint32_t x[4];
          load_matrices(x, k_rows + swizzled<kRow>(t * 16 + r, 2 * k2 + next));
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            uint32_t a[4];
            convert_k(a, x, j);
#pragma unroll
            for (int c = 0; c < C; ++c)
              multiply<kQueryF16>(s[t][c], a, q[2 * k2 + j][c][0], q[2 * k2 + j][c][1]);
          }
        }
    }
  }

  // Products of a tile become weights; sums are rescaled where a row's maximum moves. masked: some
  // row does not see all of it. weighted: weights times the scale of V, operand of the second
  // product; plain: weights alone, for the totals.
  struct Tile {
    int first;  // position of its first token
    bool masked;
    const float* k_scales;  // [64]
    const float* v_scales;
  };
  __device__ void weights(const AttendArgs& a, const SequenceArgs& seq, const Tile& tile,
                          float (*s)[C][4], uint32_t (*weighted)[C][2], uint32_t (*plain)[C][2],
                          int lane) {
    const bool bent = bends_scores(a);
    if constexpr (kScaled) scale_products(tile, s, lane);
    if (bent) bend(a, tile, s, lane);
    uint32_t hidden = 0;  // a bit for each score
    if (tile.masked) hidden = hide(a, seq, tile, s, lane);
    move_maxima(s, bent);
#pragma unroll
    for (int c = 0; c < C; ++c) {
      const float m0 = m[c][0] == kNothing ? 0.0f : m[c][0];
      const float m1 = m[c][1] == kNothing ? 0.0f : m[c][1];
      const float f0 = bent ? 1.0f : scale[c][0], f1 = bent ? 1.0f : scale[c][1];
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const float p0 = weight_of(s[t][c][0], f0, m0), p1 = weight_of(s[t][c][1], f1, m1);
        const float p2 = weight_of(s[t][c][2], f0, m0), p3 = weight_of(s[t][c][3], f1, m1);
        plain[t][c][0] = transpose_matrix(pack2<kWeightF16>(p0, p1));
        plain[t][c][1] = transpose_matrix(pack2<kWeightF16>(p2, p3));
        if constexpr (!kScaled) {
          weighted[t][c][0] = plain[t][c][0];
          weighted[t][c][1] = plain[t][c][1];
        } else {
          const float v0 = tile.v_scales[t * 16 + (lane >> 2)];
          const float v1 = tile.v_scales[t * 16 + (lane >> 2) + 8];
          float w[4] = {__fmul_rn(p0, v0), __fmul_rn(p1, v0), __fmul_rn(p2, v1), __fmul_rn(p3, v1)};
          if (hidden != 0) {  // a scale may be NaN
#pragma unroll
            for (int e = 0; e < 4; ++e)
              if ((hidden >> ((t * C + c) * 4 + e)) & 1u) w[e] = 0.0f;
          }
          weighted[t][c][0] = transpose_matrix(pack2<kWeightF16>(w[0], w[1]));
          weighted[t][c][1] = transpose_matrix(pack2<kWeightF16>(w[2], w[3]));
        }
      }
    }
  }

  __device__ void scale_products(const Tile& tile, float (*s)[C][4], int lane) {
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const float f0 = tile.k_scales[t * 16 + (lane >> 2)];
      const float f1 = tile.k_scales[t * 16 + (lane >> 2) + 8];
#pragma unroll
      for (int c = 0; c < C; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[t][c][e] = __fmul_rn(s[t][c][e], e < 2 ? f0 : f1);
    }
  }
  __device__ void bend(const AttendArgs& a, const Tile& tile, float (*s)[C][4], int lane) {
#pragma unroll
    for (int c = 0; c < C; ++c)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float slope = slope_of(a, q_head[c][e & 1]);
        const int first = tile.first + (lane >> 2) + 8 * (e >> 1) - at[c][e & 1];
#pragma unroll
        for (int t = 0; t < 4; ++t)
          s[t][c][e] = bent_score(a, s[t][c][e], scale[c][e & 1], slope, first + 16 * t);
      }
  }
  __device__ uint32_t hide(const AttendArgs& a, const SequenceArgs& seq, const Tile& tile,
                           float (*s)[C][4], int lane) {
    uint32_t hidden = 0;
#pragma unroll
    for (int c = 0; c < C; ++c)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const Sight sight =
            sight_of(a.mask, at[c][e & 1], seq.kv_len, seq.trim_sinks, seq.first_kept);
        const int first = tile.first + (lane >> 2) + 8 * (e >> 1);
#pragma unroll
        for (int t = 0; t < 4; ++t)
          if (!sight.sees(first + 16 * t)) {
            s[t][c][e] = kNothing;
            hidden |= 1u << ((t * C + c) * 4 + e);
          }
      }
    return hidden;
  }
  __device__ void move_maxima(float (*s)[C][4], bool bent) {
    float most[C][2];
    bool grows = false;
#pragma unroll
    for (int c = 0; c < C; ++c)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float x = fmaxf(s[0][c][e], s[0][c][e + 2]);
#pragma unroll
        for (int t = 1; t < 4; ++t) x = fmaxf(x, fmaxf(s[t][c][e], s[t][c][e + 2]));
        x = fmaxf(x, __shfl_xor_sync(kWholeWarp, x, 4));
        x = fmaxf(x, __shfl_xor_sync(kWholeWarp, x, 8));
        x = fmaxf(x, __shfl_xor_sync(kWholeWarp, x, 16));
        most[c][e] = bent ? x : __fmul_rn(x, scale[c][e]);
        grows |= most[c][e] > __fadd_rn(m[c][e], kGrowth);
      }
    // A factor of 1 changes nothing, so a row does not depend on its neighbours.
    if (!__any_sync(kWholeWarp, grows)) return;
#pragma unroll
    for (int c = 0; c < C; ++c) {
      float f[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        f[e] = grow(m[c][e], most[c][e]);
        l[c][e] = __fmul_rn(l[c][e], f[e]);
        l[c][e + 2] = l[c][e];
      }
#pragma unroll
      for (int i = 0; i < D / 16; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[i][c][e] = __fmul_rn(o[i][c][e], f[e & 1]);
    }
  }

  // Adds 16 tokens of weights to the totals.
  __device__ void add_totals(uint32_t (&plain)[C][2]) {
    const uint32_t ones[4] = {kOnes, kOnes, kOnes, kOnes};
#pragma unroll
    for (int c = 0; c < C; ++c) multiply<kWeightF16>(l[c], ones, plain[c][0], plain[c][1]);
  }

  // Adds 32 tokens of V; weighted and plain are those of these tokens.
  __device__ void sums32(uint32_t (*weighted)[C][2], uint32_t (*plain)[C][2], uint32_t v_rows,
                         int lane) {
    const int r8 = lane & 7, matrix = lane >> 3;
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      add_totals(plain[t]);
      if constexpr (!kScaled) {
        const int row = t * 16 + r8 + (matrix >> 1) * 8;
#pragma unroll
        for (int i = 0; i < D / 16; ++i) {
          uint32_t a[4];
          load_matrices_transposed(a, v_rows + swizzled<kRow>(row, 2 * i + (matrix & 1)));
#pragma unroll
          for (int c = 0; c < C; ++c)
            multiply<kWeightF16>(o[i][c], a, weighted[t][c][0], weighted[t][c][1]);
        }
      } else {
        const int row = t * 16 + r8 + (matrix & 1) * 8;
#pragma unroll
        for (int i2 = 0; i2 < D / 32; ++i2) {
          uint32_t x[4];
          load_matrices_transposed(x, v_rows + swizzled<kRow>(row, 2 * i2 + (matrix >> 1)));
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            uint32_t a[4];
            convert_v(a, x, j);
#pragma unroll
            for (int c = 0; c < C; ++c)
              multiply<kWeightF16>(o[2 * i2 + j][c], a, weighted[t][c][0], weighted[t][c][1]);
          }
        }
      }
    }
  }

  // Whether 32 tokens of V hold an infinity or a NaN. 8-bit elements are finite, and the scales of
  // hidden positions were taken out of the weights.
  __device__ static bool any_not_finite(uint32_t v_rows, int lane) {
    bool found = false;
    if constexpr (!kScaled) {
      for (int i = lane; i < 2 * kRow; i += 32) {  // chunks of 16 bytes, in any order
        uint32_t x[4];
        load_chunk(x, v_rows + 16 * i);
#pragma unroll
        for (int e = 0; e < 4; ++e) found |= not_finite<kWeightF16>(x[e]);
      }
    }
    return __any_sync(kWholeWarp, found);
  }

  // sums32 where V holds something that is not finite and that some row must not see: the rows of
  // each position are computed with zeros in place of what they do not see. Slow, and the same
  // bits.
  __device__ void sums_apart(const AttendArgs& a, const SequenceArgs& seq, int first,
                             uint32_t (*weighted)[C][2], uint32_t (*plain)[C][2], uint32_t v_rows,
                             int lane) {
    const int r8 = lane & 7, matrix = lane >> 3;
    int low = 0x7fffffff, high = kNoRow;  // positions of the rows of the warp
#pragma unroll
    for (int c = 0; c < C; ++c)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        if (at[c][e] != kNoRow) {
          low = min(low, at[c][e]);
          high = max(high, at[c][e]);
        }
#pragma unroll
    for (int k = 1; k <= 2; k *= 2) {
      low = min(low, static_cast<int>(__shfl_xor_sync(kWholeWarp, static_cast<uint32_t>(low), k)));
      high =
          max(high, static_cast<int>(__shfl_xor_sync(kWholeWarp, static_cast<uint32_t>(high), k)));
    }
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      add_totals(plain[t]);
      const int row = t * 16 + r8 + (matrix >> 1) * 8;
      const int token = first + t * 16 + 2 * (lane & 3);  // of a fragment's first element
#pragma unroll
      for (int i = 0; i < D / 16; ++i) {
        uint32_t v[4];
        load_matrices_transposed(v, v_rows + swizzled<kRow>(row, 2 * i + (matrix & 1)));
        float sums[C][4];
#pragma unroll
        for (int c = 0; c < C; ++c)
#pragma unroll
          for (int e = 0; e < 4; ++e) sums[c][e] = o[i][c][e];
#pragma unroll 1
        for (int position = low; position <= high; ++position) {
          const Sight sight =
              sight_of(a.mask, position, seq.kv_len, seq.trim_sinks, seq.first_kept);
          const uint32_t keep_low =
              (sight.sees(token) ? 0x0000ffffu : 0u) | (sight.sees(token + 1) ? 0xffff0000u : 0u);
          const uint32_t keep_high = (sight.sees(token + 8) ? 0x0000ffffu : 0u) |
                                     (sight.sees(token + 9) ? 0xffff0000u : 0u);
          const uint32_t seen[4] = {v[0] & keep_low, v[1] & keep_low, v[2] & keep_high,
                                    v[3] & keep_high};
#pragma unroll
          for (int c = 0; c < C; ++c) {
            float d[4] = {o[i][c][0], o[i][c][1], o[i][c][2], o[i][c][3]};
            multiply<kWeightF16>(d, seen, weighted[t][c][0], weighted[t][c][1]);
#pragma unroll
            for (int e = 0; e < 4; ++e)
              if (at[c][e & 1] == position) sums[c][e] = d[e];
          }
        }
#pragma unroll
        for (int c = 0; c < C; ++c)
#pragma unroll
          for (int e = 0; e < 4; ++e) o[i][c][e] = sums[c][e];
      }
    }
  }

  // The product with 32 tokens of V from position `first` on. mixed: rows of several positions, and
  // not all of them see the whole tile.
  __device__ void add_sums(const AttendArgs& a, const SequenceArgs& seq, int first, bool mixed,
                           uint32_t (*weighted)[C][2], uint32_t (*plain)[C][2], uint32_t v_rows,
                           int lane) {
    if constexpr (!kScaled) {
      if (mixed && any_not_finite(v_rows, lane)) {
        sums_apart(a, seq, first, weighted, plain, v_rows, lane);
        return;
      }
    }
    sums32(weighted, plain, v_rows, lane);
  }
};

}  // namespace kvfolio::cuda
