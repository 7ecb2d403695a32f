// SPDX-License-Identifier: Apache-2.0
#pragma once

// Decode and short extends: a block of four warps for each node (1,024 positions) of a group of up
// to 8 or 16 rows, and a warp for each leaf of the node. A warp copies its own tokens into a ring
// of its own and waits for no other warp, so the four run apart until their leaves are folded.
//
// A group of one node writes its rows; others leave a state for each node, which merge_kernel folds
// in order.

#include "cuda/attention/warp_tile.cuh"

namespace kvfolio::cuda {

inline constexpr uint32_t kNowhere = 0xffffffffu;  // of a slot that no row sees

template <Element E, int D, int kStages>
struct NodeMemory {
  static constexpr int kUnit = 32 * D * element_bytes(E);  // 32 tokens of K or of V
  static constexpr int kRing = kLeavesPerNode * kStages * kUnit;
  static constexpr int kPlaces = kLeavesPerNode * kLeafTokens * 4;  // of K, and as many of V
  static constexpr int kScales = has_scales(E) ? kLeavesPerNode * kLeafTokens * 8 : 0;
  static constexpr int kBytes = kRing + 2 * kPlaces + kScales;
};

// Where the tokens of a leaf lie, in units of 16 bytes; scales are asked for at once.
template <Element E>
struct LeafPlaces {
  uint32_t* k;      // [256], then as many of V where it has other strides
  int v_shift;      // from a place of K to that of V
  float* k_scales;  // [256], then as many of V

  // kSure: the rows see all of it.
  template <bool kSure>
  __device__ __forceinline__ void find(const AttendArgs& a, const Sight& sight, int sequence,
                                       int head, int first, int lane) const {
    constexpr int kEach = kLeafTokens / 32;
    const int32_t* table = a.table + sequence * a.table_stride;
    int block[kEach], offset[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int p = first + i * 32 + lane;
      const BlockPlace place = block_of(a, p);
      offset[i] = place.offset;
      block[i] = kSure || sight.sees(p) ? table[place.number] : -1;
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = i * 32 + lane;
      const bool seen = kSure || block[i] >= 0;
      const uint32_t k_place = a.k_steps.place(block[i], head, offset[i]);
      k[at] = seen ? k_place : kNowhere;
      if (v_shift != 0) {
        const uint32_t v_place = a.v_steps.place(block[i], head, offset[i]);
        k[at + v_shift] = seen ? v_place : kNowhere;
      }
      if constexpr (has_scales(E)) {
        const int64_t k_at = a.k_scale_steps.place(block[i], head, offset[i]);
        const int64_t v_at = a.v_scale_steps.place(block[i], head, offset[i]);
        const int bytes = seen ? 4 : 0;
        copy_async4(shared_address(k_scales + at), a.cache.k_scales + (seen ? 4 * k_at : 0), bytes);
        copy_async4(shared_address(k_scales + kLeafTokens + at),
                    a.cache.v_scales + (seen ? 4 * v_at : 0), bytes);
      }
    }
  }
};

// Writes four sums of a row and, where d is 0, its log-sum-exp.
__device__ __forceinline__ void end_row(const AttendArgs& a, const SequenceArgs& seq, int head,
                                        int row, int d, float m, float l, const float (&o)[4]) {
  const RowPlace place = place_of_row(a, seq.first_token, head, row);
  const RowEnd end(a, place.q_head, m, l);
#pragma unroll
  for (int e = 0; e < 4; ++e) store_value(a, place, d + e, end.value(o[e]));
  if (d == 0) store_lse(a, place, end.lse);
}

// Folds the leaves of a node, which lie in shared memory, and writes rows or a state.
// sums [leaf][row][pitch], totals [leaf][row][2].
__device__ __forceinline__ void fold_node(const AttendArgs& a, const SequenceArgs& seq,
                                          const Item& item, int head, int num_rows, int row_slots,
                                          int dims, const float* sums, int pitch,
                                          const float* totals, int thread, int threads) {
  const bool alone = a.groups[item.group].num_items == 1;
  const int64_t state =
      (static_cast<int64_t>(&item - a.items) * a.cache.num_heads + head) * row_slots;
  const int quads = dims / 4;
  for (int i = thread; i < num_rows * quads; i += threads) {
    const int r = i / quads, d = (i % quads) * 4;
    float m = kNothing, l = 0.0f;
    float o[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int leaf = 0; leaf < kLeavesPerNode; ++leaf) {
      const int at = leaf * row_slots + r;
      const float m2 = totals[2 * at], l2 = totals[2 * at + 1];
      if (m2 == kNothing) continue;
      const float4 x = *reinterpret_cast<const float4*>(sums + at * pitch + d);
      const Fold f = fold_state(m, l, m2, l2);
      o[0] = fold_sum(o[0], x.x, f);
      o[1] = fold_sum(o[1], x.y, f);
      o[2] = fold_sum(o[2], x.z, f);
      o[3] = fold_sum(o[3], x.w, f);
    }
    if (alone) {
      end_row(a, seq, head, item.first_row + r, d, m, l, o);
    } else {
      __stcg(reinterpret_cast<float4*>(a.state_sums + (state + r) * dims + d),
             make_float4(o[0], o[1], o[2], o[3]));
      if (d == 0) __stcg(reinterpret_cast<float2*>(a.state_totals) + state + r, make_float2(m, l));
    }
  }
}

// kBlocks: of an SM.
template <Element E, int D, int C, int kStages, int kBlocks>
__global__ void __launch_bounds__(kLeavesPerNode * 32, kBlocks)
    node_kernel(const __grid_constant__ AttendArgs a) {
  using Tile = WarpTile<E, D, C>;
  using Memory = NodeMemory<E, D, kStages>;
  constexpr int kRow = Tile::kRow, kChunks = kRow / 16, kRowsEach = 32 / kChunks;
  constexpr int kPitch = D + 4, kSlots = 8 * C;
  static_assert(kLeavesPerNode * kSlots * kPitch * 4 <= Memory::kRing);
  KVFOLIO_CUDA_SHARED_MEMORY(shared);
  begin_overlapped_launch();
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int head = blockIdx.x % a.cache.num_heads;
  const Item& item = a.items[blockIdx.x / a.cache.num_heads];
  const SequenceArgs seq(a, item.sequence);
  const int num_rows = min(kSlots, seq.queries * a.group_size - item.first_row);
  const Sight any = seq.of_any(a, item.first_row, num_rows);
  const Sight each = seq.of_each(a, item.first_row, num_rows);
  const bool several = seq.at(a, item.first_row) != seq.at(a, item.first_row + num_rows - 1);

  // The tiles of the leaf from the first to the last one that is seen.
  const int leaf_first = item.node * kNodeTokens + warp * kLeafTokens;
  int begin = kTilesPerLeaf, end = 0;
#pragma unroll
  for (int t = 0; t < kTilesPerLeaf; ++t) {
    const int first = leaf_first + t * kTileTokens;
    if (any.sees_any(first, first + kTileTokens - 1)) {
      begin = min(begin, t);
      end = t + 1;
    }
  }
  const int num_tiles = max(0, end - begin);

  char* const after_ring = shared + Memory::kRing;
  LeafPlaces<E> places;
  places.k = reinterpret_cast<uint32_t*>(after_ring) + warp * kLeafTokens;
  places.v_shift = a.k_steps == a.v_steps ? 0 : Memory::kPlaces / 4;
  places.k_scales =
      reinterpret_cast<float*>(after_ring + 2 * Memory::kPlaces) + warp * 2 * kLeafTokens;
  if (any.surely_sees_all(leaf_first, leaf_first + kLeafTokens - 1)) {
    places.template find<true>(a, any, item.sequence, head, leaf_first, lane);
  } else if (num_tiles > 0) {
    places.template find<false>(a, any, item.sequence, head, leaf_first, lane);
  }
  __syncwarp();

  Tile tile;
  tile.load_queries(a, seq, head, item.first_row, num_rows, lane);

  // For each tile: K, K, V, V of 32 tokens each.
  const uint32_t ring = shared_address(shared) + warp * (kStages * Memory::kUnit);
  const int chunk_row = lane / kChunks, chunk = lane % kChunks;
  const int num_units = num_tiles * 4;
  int slot_in = 0;
  auto ask = [&](int unit) {
    if (unit < num_units) {
      const bool is_k = (unit & 2) == 0;
      const char* base = (is_k ? a.cache.k : a.cache.v) + chunk * 16;
      const uint32_t* from = places.k + (is_k ? 0 : places.v_shift) +
                             (begin + (unit >> 2)) * kTileTokens + (unit & 1) * 32 + chunk_row;
      const uint32_t to = ring + slot_in * Memory::kUnit;
#pragma unroll
      for (int j = 0; j < 32 / kRowsEach; ++j) {
        const uint32_t at = from[j * kRowsEach];
        const bool seen = at != kNowhere;
        copy_async16(to + swizzled<kRow>(j * kRowsEach + chunk_row, chunk),
                     base + (static_cast<uint64_t>(seen ? at : 0u) << 4), seen ? 16 : 0);
      }
    }
    slot_in = slot_in + 1 == kStages ? 0 : slot_in + 1;
    commit_copies();
  };
#pragma unroll
  for (int unit = 0; unit < kStages - 1; ++unit) ask(unit);

  tile.reset();
  int slot = 0;
  auto next_unit = [&](int unit) {  // answers where it lies, once it is there
    wait_copies<kStages - 2>();
    __syncwarp();
    ask(unit + kStages - 1);
    const uint32_t at = ring + slot * Memory::kUnit;
    slot = slot + 1 == kStages ? 0 : slot + 1;
    return at;
  };
  for (int t = 0; t < num_tiles; ++t) {
    const int first = leaf_first + (begin + t) * kTileTokens;
    const bool masked = !each.surely_sees_all(first, first + kTileTokens - 1);
    float s[4][C][4];
    uint32_t weighted[4][C][2], plain[4][C][2];
    tile.scores32(s, next_unit(4 * t), lane);
    tile.scores32(s + 2, next_unit(4 * t + 1), lane);
    tile.weights(a, seq,
                 {first, masked, places.k_scales + (begin + t) * kTileTokens,
                  places.k_scales + kLeafTokens + (begin + t) * kTileTokens},
                 s, weighted, plain, lane);
#pragma unroll
    for (int half = 0; half < 2; ++half)
      tile.add_sums(a, seq, first + 32 * half, masked && several, weighted + 2 * half,
                    plain + 2 * half, next_unit(4 * t + 2 + half), lane);
  }
  wait_copies<0>();
  __syncthreads();  // the rings and places are free

  float* const sums = reinterpret_cast<float*>(shared);        // [leaf][slot][kPitch]
  float* const totals = reinterpret_cast<float*>(after_ring);  // [leaf][slot][2]
#pragma unroll
  for (int c = 0; c < C; ++c)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int at = warp * kSlots + Tile::row_of(c, e, lane);
#pragma unroll
      for (int i = 0; i < D / 16; ++i) {
        sums[at * kPitch + Tile::dim_of(i, 0, lane)] = tile.o[i][c][e];
        sums[at * kPitch + Tile::dim_of(i, 2, lane)] = tile.o[i][c][e + 2];
      }
      if (lane < 4) {
        totals[2 * at] = tile.m[c][e];
        totals[2 * at + 1] = tile.l[c][e];
      }
    }
  __syncthreads();
  fold_node(a, seq, item, head, num_rows, kSlots, D, sums, kPitch, totals, threadIdx.x,
            kLeavesPerNode * 32);
}

// A block for each row of a group and KV head: folds the states of its nodes in order. row_slots:
// rows that a state has room for.
__device__ __forceinline__ void merge_row(const AttendArgs& a, int row_slots, int thread,
                                          int threads) {
  constexpr int kAhead = 8;
  const int r = blockIdx.x % row_slots;
  const int head = blockIdx.x / row_slots % a.cache.num_heads;
  const Group& group = a.groups[blockIdx.x / row_slots / a.cache.num_heads];
  const SequenceArgs seq(a, group.sequence);
  if (group.num_items == 1 || group.first_row + r >= seq.queries * a.group_size) return;
  const int n = group.num_items, dims = a.cache.dim_v;
  for (int d = 4 * thread; d < dims; d += 4 * threads) {
    float m = kNothing, l = 0.0f;
    float o[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int first = 0; first < n; first += kAhead) {
      float4 x[kAhead];
      float2 y[kAhead];
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const int64_t item = group.first_item + min(first + u, n - 1);
        const int64_t at = (item * a.cache.num_heads + head) * row_slots + r;
        y[u] = __ldcg(reinterpret_cast<const float2*>(a.state_totals) + at);
        x[u] = __ldcg(reinterpret_cast<const float4*>(a.state_sums + at * dims + d));
      }
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        if (first + u >= n || y[u].x == kNothing) continue;
        const Fold f = fold_state(m, l, y[u].x, y[u].y);
        o[0] = fold_sum(o[0], x[u].x, f);
        o[1] = fold_sum(o[1], x[u].y, f);
        o[2] = fold_sum(o[2], x[u].z, f);
        o[3] = fold_sum(o[3], x[u].w, f);
      }
    }
    end_row(a, seq, head, group.first_row + r, d, m, l, o);
  }
}

inline constexpr int kMergeThreads = 32;
template <int kRowSlots>
__global__ void __launch_bounds__(kMergeThreads)
    merge_kernel(const __grid_constant__ AttendArgs a) {
  begin_overlapped_launch();
  merge_row(a, kRowSlots, threadIdx.x, kMergeThreads);
}

}  // namespace kvfolio::cuda
