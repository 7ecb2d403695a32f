// SPDX-License-Identifier: Apache-2.0
#pragma once

// Prefill where a block has too little shared memory for prefill_kernel: eight warps of 8 rows
// share the same ring of tiles, and a warp has the sums of its leaf, node and result in registers,
// 8 rows being few enough for that. So each row of a matrix that is loaded serves half as many
// products. Rows are those of node_kernel to the bit.

#include "cuda/attention/node_kernel.cuh"

namespace kvfolio::cuda {

inline constexpr int kNarrowWarps = 8;
inline constexpr int kNarrowThreads = 32 * kNarrowWarps;
inline constexpr int kNarrowRows = 8 * kNarrowWarps;

template <Element E, int D>
struct NarrowMemory {
  static constexpr int kStages = 4;
  static constexpr int kUnit = kTileTokens * D * element_bytes(E);
  static constexpr int kOfTiles = 4 * 2 * kTileTokens * 4;  // [4 tiles][K, V][64]
  static constexpr int oPlaces = kStages * kUnit;
  static constexpr int oScalePlaces = oPlaces + kOfTiles;
  static constexpr int oScales = oScalePlaces + (has_scales(E) ? kOfTiles : 0);
  static constexpr int oSights = oScales + (has_scales(E) ? kOfTiles : 0);
  static constexpr int kBytes = oSights + 2 * kNarrowWarps * 32;
};

// Sums of a warp's rows, as a node or a result.
template <int N>
struct NarrowState {
  float o[N][4];
  float m[2], l[2];
  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int i = 0; i < N; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) o[i][e] = 0.0f;
    m[0] = m[1] = kNothing;
    l[0] = l[1] = 0.0f;
  }
  // sum(i, e): of the other state.
  template <typename Sum>
  __device__ __forceinline__ void fold(Sum&& sum, const float* m2, const float* l2) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (m2[e] == kNothing) continue;
      const Fold f = fold_state(m[e], l[e], m2[e], l2[e]);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        o[i][e] = fold_sum(o[i][e], sum(i, e), f);
        o[i][e + 2] = fold_sum(o[i][e + 2], sum(i, e + 2), f);
      }
    }
  }
};

template <Element E, int D>
__global__ void __launch_bounds__(kNarrowThreads, 1)
    narrow_kernel(const __grid_constant__ AttendArgs a) {
  using Tile = WarpTile<E, D, 1>;
  using Memory = NarrowMemory<E, D>;
  constexpr int kStages = Memory::kStages;
  constexpr int kRow = Tile::kRow, kChunks = kRow / 16, kRowsEach = kNarrowThreads / kChunks;
  static_assert(kTileTokens % kRowsEach == 0);
  KVFOLIO_CUDA_SHARED_MEMORY(shared);
  const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
  const int head = blockIdx.x % a.cache.num_heads;
  const Item& item = a.prefill_items[blockIdx.x / a.cache.num_heads];
  const SequenceArgs seq(a, item.sequence);
  const int all_rows = seq.queries * a.group_size;
  const Sight any = seq.of_any(a, item.first_row, min(kNarrowRows, all_rows - item.first_row));
  // This warp's rows; none if its first row is behind the last one.
  const int first_row = item.first_row + 8 * warp;
  const int num_rows = max(0, min(8, all_rows - first_row));
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

  uint32_t* const places = reinterpret_cast<uint32_t*>(shared + Memory::oPlaces);
  uint32_t* const scale_places = reinterpret_cast<uint32_t*>(shared + Memory::oScalePlaces);
  float* const scales = reinterpret_cast<float*>(shared + Memory::oScales);  // [4][K, V][64]
  const uint32_t ring = shared_address(shared);
  const int32_t* const table = a.table + item.sequence * a.table_stride;

  // Tiles that some row sees, in order; `nowhere` behind the last one.
  const int nowhere = any.high < 0 ? 0 : any.high / kTileTokens + 1;
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
      const int is_v = unit & 1, slot = ((unit >> 1) & 3) * 2 + is_v;
      const char* base = (is_v ? a.cache.v : a.cache.k) + chunk * 16;
      const uint32_t to = ring + (unit & (kStages - 1)) * Memory::kUnit;
#pragma unroll
      for (int j = 0; j < kTileTokens / kRowsEach; ++j) {
        const int r = j * kRowsEach + chunk_row;
        const uint32_t at = places[slot * kTileTokens + r];
        const bool seen = at != kNowhere;
        copy_async16(to + swizzled<kRow>(r, chunk),
                     base + (static_cast<uint64_t>(seen ? at : 0u) << 4), seen ? 16 : 0);
      }
      if constexpr (has_scales(E)) {
        if (thread < kTileTokens) {
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
  NarrowState<D / 16> node, all;
  node.reset();
  all.reset();

  for (int number = 0; tiles[0] < nowhere; ++number) {
    const int first = tiles[0] * kTileTokens, last = first + kTileTokens - 1;
    const bool sees = num_rows > 0 && mine.sees_any(first, last);
    const bool masked = !each.surely_sees_all(first, last);
    float s[4][1][4];
    uint32_t weighted[4][1][2], plain[4][1][2];
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
      node.fold([&](int i, int e) { return tile.o[i][0][e]; }, tile.m[0], tile.l[0]);
      tile.reset();
      if (next == nowhere || next * kTileTokens / kNodeTokens != first / kNodeTokens) {
        all.fold([&](int i, int e) { return node.o[i][e]; }, node.m, node.l);
        node.reset();
      }
    }
    tiles[0] = tiles[1];
    tiles[1] = tiles[2];
    tiles[2] = tiles[3];
    tiles[3] = min(nowhere, next_tile(tiles[3] + 1));
  }
  wait_copies<0>();

#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int r = Tile::row_of(0, e, lane);
    if (r >= num_rows) continue;
    const RowPlace place = place_of_row(a, seq.first_token, head, first_row + r);
    const RowEnd end(a, place.q_head, all.m[e], all.l[e]);
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      store_value(a, place, Tile::dim_of(i, 0, lane), end.value(all.o[i][e]));
      store_value(a, place, Tile::dim_of(i, 2, lane), end.value(all.o[i][e + 2]));
    }
    if (lane < 4) store_lse(a, place, end.lse);
  }
}

}  // namespace kvfolio::cuda
