// SPDX-License-Identifier: Apache-2.0
#pragma once

// Prefill with mma.sync: eight warps of 16 rows share tiles of 64 tokens in a ring of four units (K
// or V of a tile). Each warp folds its own leaves and nodes, so nothing is merged and the rows are
// those of node_kernel to the bit. wgmma_kernel.cuh is faster where it applies.

#include "cuda/attention/node_kernel.cuh"

namespace kvfolio::cuda {

inline constexpr int kPrefillWarps = 8;
inline constexpr int kPrefillRows = 16 * kPrefillWarps;

template <Element E, int D>
struct PrefillMemory {
  static constexpr int kStages = 4;
  static constexpr int kThreads = 32 * kPrefillWarps;
  static constexpr int kUnit = kTileTokens * D * element_bytes(E);
  static constexpr int kRing = kStages * kUnit;
  static constexpr int kSums = kThreads * D / 16 * 2 * 16;  // of a node, or of the result
  static constexpr int oNode = kRing, oAll = oNode + kSums, oState = oAll + kSums;
  static constexpr int oPlaces = oState + 2 * kThreads * 16;  // [4 tiles][K, V][64]
  static constexpr int oScalePlaces = oPlaces + 4 * 2 * kTileTokens * 4;
  static constexpr int oScales = oScalePlaces + (has_scales(E) ? 4 * 2 * kTileTokens * 4 : 0);
  // What a warp's rows see: kept here, since registers are short.
  static constexpr int oSights = oScales + (has_scales(E) ? 4 * 2 * kTileTokens * 4 : 0);
  static constexpr int kBytes = oSights + 2 * kPrefillWarps * 32;
};

template <Element E, int D>
__global__ void __launch_bounds__(32 * kPrefillWarps, 1)
    prefill_kernel(const __grid_constant__ AttendArgs a) {
  constexpr int C = 2;
  using Tile = WarpTile<E, D, C>;
  using Memory = PrefillMemory<E, D>;
  constexpr int kThreads = Memory::kThreads, kStages = Memory::kStages;
  constexpr int kRow = Tile::kRow, kChunks = kRow / 16, kRowsEach = kThreads / kChunks;
  static_assert(kTileTokens % kRowsEach == 0);
  KVFOLIO_CUDA_SHARED_MEMORY(shared);
  const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
  const int head = blockIdx.x % a.cache.num_heads;
  const Item& item = a.prefill_items[blockIdx.x / a.cache.num_heads];
  const SequenceArgs seq(a, item.sequence);
  const int all_rows = seq.queries * a.group_size;
  const int block_rows = min(kPrefillRows, all_rows - item.first_row);
  const Sight any = seq.of_any(a, item.first_row, block_rows);
  // This warp's rows; none if its first row is behind the last one.
  const int first_row = item.first_row + 16 * warp;
  const int num_rows = max(0, min(16, all_rows - first_row));
  const int sure_row = num_rows > 0 ? first_row : item.first_row;
  const int sure_rows = max(1, num_rows);
  Sight* const sights = reinterpret_cast<Sight*>(shared + Memory::oSights) + 2 * warp;
  if (lane == 0) {
    sights[0] = seq.of_any(a, sure_row, sure_rows);
    sights[1] = seq.of_each(a, sure_row, sure_rows);
  }
  __syncwarp();
  const Sight &mine = sights[0], &each = sights[1];
  const bool several = seq.at(a, sure_row) != seq.at(a, sure_row + sure_rows - 1);

  float4* const node_sums = reinterpret_cast<float4*>(shared + Memory::oNode);  // [D/16*C][thread]
  float4* const all_sums = reinterpret_cast<float4*>(shared + Memory::oAll);
  float4* const all_state = reinterpret_cast<float4*>(shared + Memory::oState);  // [C][thread]
  uint32_t* const places = reinterpret_cast<uint32_t*>(shared + Memory::oPlaces);
  uint32_t* const scale_places = reinterpret_cast<uint32_t*>(shared + Memory::oScalePlaces);
  float* const scales = reinterpret_cast<float*>(shared + Memory::oScales);  // [4][K, V][64]
  const uint32_t ring = shared_address(shared);
  const int32_t* const table = a.table + item.sequence * a.table_stride;

  // Tiles that some row sees, in order; `nowhere` behind the last one.
  const int last_tile = any.high < 0 ? -1 : any.high / kTileTokens;
  const int nowhere = last_tile + 1;
  auto next_tile = [&](int tile) {  // the first one from `tile` on
    const int p = any.next(tile * kTileTokens);
    return p > any.high ? nowhere : max(tile, p / kTileTokens);
  };
  auto entry = [&](int tile) {  // threads < 64
    const int p = tile * kTileTokens + thread;
    return tile < nowhere && any.sees(p) ? table[block_of(a, p).number] : -1;
  };
  auto put = [&](int number, int tile, int block) {  // tile `number` in the order of the ring
    const int offset = block_of(a, tile * kTileTokens + thread).offset;
    const int to = (number & 3) * 2 * kTileTokens + thread;
    places[to] = block < 0 ? kNowhere : a.k_steps.place(block, head, offset);
    places[to + kTileTokens] = block < 0 ? kNowhere : a.v_steps.place(block, head, offset);
    if constexpr (has_scales(E)) {
      scale_places[to] = block < 0 ? kNowhere : a.k_scale_steps.place(block, head, offset);
      scale_places[to + kTileTokens] =
          block < 0 ? kNowhere : a.v_scale_steps.place(block, head, offset);
    }
  };
  int tiles[4];  // the tile that is computed and the three behind it
  tiles[0] = next_tile(0);
#pragma unroll
  for (int i = 1; i < 4; ++i) tiles[i] = min(nowhere, next_tile(tiles[i - 1] + 1));
  if (thread < kTileTokens) {
    put(0, tiles[0], entry(tiles[0]));
    put(1, tiles[1], entry(tiles[1]));
  }
  int next_block = thread < kTileTokens ? entry(tiles[2]) : -1;
  __syncthreads();

  const int chunk_row = thread / kChunks, chunk = thread % kChunks;
  auto ask = [&](int unit, bool exists) {  // unit 2n: K of tile number n; 2n + 1: V
    if (exists) {
      const int is_v = unit & 1;
      const uint32_t* from = places + ((unit >> 1) & 3) * 2 * kTileTokens + is_v * kTileTokens;
      const char* base = (is_v ? a.cache.v : a.cache.k) + chunk * 16;
      const uint32_t to = ring + (unit & (kStages - 1)) * Memory::kUnit;
#pragma unroll
      for (int j = 0; j < kTileTokens / kRowsEach; ++j) {
        const int r = j * kRowsEach + chunk_row;
        const uint32_t at = from[r];
        const bool seen = at != kNowhere;
        copy_async16(to + swizzled<kRow>(r, chunk),
                     base + (static_cast<uint64_t>(seen ? at : 0u) << 4), seen ? 16 : 0);
      }
      if constexpr (has_scales(E)) {
        if (thread < kTileTokens) {
          const int slot = ((unit >> 1) & 3) * 2 + is_v;
          const uint32_t at = scale_places[slot * kTileTokens + thread];
          const bool seen = at != kNowhere;
          copy_async4(shared_address(&scales[slot * kTileTokens + thread]),
                      (is_v ? a.cache.v_scales : a.cache.k_scales) +
                          (static_cast<uint64_t>(seen ? at : 0u) << 2),
                      seen ? 4 : 0);
        }
      }
    }
    commit_copies();
  };
  ask(0, tiles[0] < nowhere);
  ask(1, tiles[0] < nowhere);
  ask(2, tiles[1] < nowhere);

  Tile tile;
  tile.load_queries(a, seq, head, sure_row, num_rows, lane);
  tile.reset();
  float node_m[C][2], node_l[C][2];
#pragma unroll
  for (int c = 0; c < C; ++c) {
    all_state[c * kThreads + thread] = make_float4(kNothing, kNothing, 0.0f, 0.0f);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      node_m[c][e] = kNothing;
      node_l[c][e] = 0.0f;
    }
  }
  for (int i = 0; i < D / 16 * C; ++i)
    node_sums[i * kThreads + thread] = all_sums[i * kThreads + thread] =
        make_float4(0.0f, 0.0f, 0.0f, 0.0f);

  auto fold_leaf = [&] {
    Fold f[C][2];
    bool skip[C][2];
#pragma unroll
    for (int c = 0; c < C; ++c)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        skip[c][e] = tile.m[c][e] == kNothing;
        if (!skip[c][e])
          f[c][e] = fold_state(node_m[c][e], node_l[c][e], tile.m[c][e], tile.l[c][e]);
      }
#pragma unroll
    for (int i = 0; i < D / 16; ++i)
#pragma unroll
      for (int c = 0; c < C; ++c) {
        asm volatile("" ::: "memory");  // one load at a time: registers are short here
        float4 x = node_sums[(i * C + c) * kThreads + thread];
        if (!skip[c][0]) {
          x.x = fold_sum(x.x, tile.o[i][c][0], f[c][0]);
          x.z = fold_sum(x.z, tile.o[i][c][2], f[c][0]);
        }
        if (!skip[c][1]) {
          x.y = fold_sum(x.y, tile.o[i][c][1], f[c][1]);
          x.w = fold_sum(x.w, tile.o[i][c][3], f[c][1]);
        }
        node_sums[(i * C + c) * kThreads + thread] = x;
      }
    tile.reset();
  };
  auto fold_node_into_all = [&] {
    Fold f[C][2];
    bool skip[C][2];
#pragma unroll
    for (int c = 0; c < C; ++c) {
      float4 all = all_state[c * kThreads + thread];
      skip[c][0] = node_m[c][0] == kNothing;
      skip[c][1] = node_m[c][1] == kNothing;
      if (!skip[c][0]) f[c][0] = fold_state(all.x, all.z, node_m[c][0], node_l[c][0]);
      if (!skip[c][1]) f[c][1] = fold_state(all.y, all.w, node_m[c][1], node_l[c][1]);
      all_state[c * kThreads + thread] = all;
      node_m[c][0] = node_m[c][1] = kNothing;
      node_l[c][0] = node_l[c][1] = 0.0f;
    }
#pragma unroll 1
    for (int i = 0; i < D / 16; ++i)
#pragma unroll
      for (int c = 0; c < C; ++c) {
        float4 x = all_sums[(i * C + c) * kThreads + thread];
        const float4 y = node_sums[(i * C + c) * kThreads + thread];
        if (!skip[c][0]) {
          x.x = fold_sum(x.x, y.x, f[c][0]);
          x.z = fold_sum(x.z, y.z, f[c][0]);
        }
        if (!skip[c][1]) {
          x.y = fold_sum(x.y, y.y, f[c][1]);
          x.w = fold_sum(x.w, y.w, f[c][1]);
        }
        all_sums[(i * C + c) * kThreads + thread] = x;
        node_sums[(i * C + c) * kThreads + thread] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      }
  };

  for (int number = 0; tiles[0] < nowhere; ++number) {
    const int first = tiles[0] * kTileTokens, last = first + kTileTokens - 1;
    const bool sees = num_rows > 0 && mine.sees_any(first, last);
    const bool masked = !each.surely_sees_all(first, last);
    float s[4][C][4];
    uint32_t weighted[4][C][2], plain[4][C][2];
    const float* k_scales = scales + (number & 3) * 2 * kTileTokens;
    wait_copies<kStages - 2>();
    __syncthreads();
    if (thread < kTileTokens) {
      put(number + 2, tiles[2], next_block);
      next_block = entry(tiles[3]);
    }
    ask(2 * number + 3, tiles[1] < nowhere);
    if (sees) {
      const uint32_t k_rows = ring + ((2 * number) & (kStages - 1)) * Memory::kUnit;
      tile.scores32(s, k_rows, lane);
      tile.scores32(s + 2, k_rows + Memory::kUnit / 2, lane);
    }
    wait_copies<kStages - 2>();
    __syncthreads();
    ask(2 * number + 4, tiles[2] < nowhere);
    if (sees) {
      tile.weights(a, seq, {first, masked, k_scales, k_scales + kTileTokens}, s, weighted, plain,
                   lane);
      const uint32_t v_rows = ring + ((2 * number + 1) & (kStages - 1)) * Memory::kUnit;
#pragma unroll
      for (int half = 0; half < 2; ++half)
        tile.add_sums(a, seq, first + 32 * half, masked && several, weighted + 2 * half,
                      plain + 2 * half, v_rows + half * (Memory::kUnit / 2), lane);
    }
    const int next = tiles[1];
    if (next == nowhere || next / kTilesPerLeaf != tiles[0] / kTilesPerLeaf) {
      fold_leaf();
      if (next == nowhere || next * kTileTokens / kNodeTokens != first / kNodeTokens)
        fold_node_into_all();
    }
    tiles[0] = tiles[1];
    tiles[1] = tiles[2];
    tiles[2] = tiles[3];
    tiles[3] = min(nowhere, next_tile(tiles[3] + 1));
  }
  wait_copies<0>();

#pragma unroll
  for (int c = 0; c < C; ++c) {
    const float4 all = all_state[c * kThreads + thread];
    const float all_m[2] = {all.x, all.y}, all_l[2] = {all.z, all.w};
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int r = Tile::row_of(c, e, lane);
      if (r >= num_rows) continue;
      const RowPlace place = place_of_row(a, seq.first_token, head, first_row + r);
      const RowEnd end(a, place.q_head, all_m[e], all_l[e]);
#pragma unroll
      for (int i = 0; i < D / 16; ++i) {
        const float4 x = all_sums[(i * C + c) * kThreads + thread];
        store_value(a, place, Tile::dim_of(i, 0, lane), end.value(e == 0 ? x.x : x.y));
        store_value(a, place, Tile::dim_of(i, 2, lane), end.value(e == 0 ? x.z : x.w));
      }
      if (lane < 4) store_lse(a, place, end.lse);
    }
  }
}

}  // namespace kvfolio::cuda
