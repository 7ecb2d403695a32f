// SPDX-License-Identifier: Apache-2.0
#pragma once

// Decode as a stream, for 16-bit caches and one query for each sequence: a block of four warps
// works through a list of segments (runs of leaves of a sequence and KV head) and never drains its
// ring. All warps share a tile of 64 tokens: warp w has the scores of tokens 16w .. 16w+15 and a
// quarter of the dims of the sums, so a lane holds few sums and folds leaf, node and result in
// registers. One barrier for each tile. The block that finishes the last segment of a group merges
// the states of all of them, in order. Rows have the bits of node_kernel.

#include "cuda/attention/node_kernel.cuh"

namespace kvfolio::cuda {

inline constexpr int kStreamRows = 8;     // of a group
inline constexpr int kStreamBlocks = 3;   // of an SM
inline constexpr int kMostSegments = 24;  // of a block

template <Element E, int D>
struct StreamMemory {
  static constexpr int kStages = 512 / (D * element_bytes(E));
  static constexpr int kUnit = kTileTokens * D * element_bytes(E);
  static constexpr int kQueryRow = 2 * D + 16, kQuery = kStreamRows * kQueryRow;
  static constexpr int kWeights = 4 * 32 * 8;  // of a tile: the second product's operands
  static constexpr int oV = kStages * kUnit, oQueries = 2 * kStages * kUnit;
  static constexpr int oWeights = oQueries + (kStages + 1) * kQuery;
  static constexpr int oMaxima = oWeights + 2 * kWeights;  // [2][warp][row]
  static constexpr int oSegments = oMaxima + 2 * 4 * kStreamRows * 4;
  static constexpr int oFlag = oSegments + kMostSegments * static_cast<int>(sizeof(Segment));
  static constexpr int kBytes = oFlag + 16;
  static_assert(oSegments % 16 == 0);
};

// A row's fold of states, of four dims.
struct StateFold {
  float m = kNothing, l = 0.0f, node_m = kNothing, node_l = 0.0f;
  float o[4] = {0.0f, 0.0f, 0.0f, 0.0f}, node[4] = {0.0f, 0.0f, 0.0f, 0.0f};

  __device__ __forceinline__ void add(int flag, float4 x, float2 y) {
    const float xs[4] = {x.x, x.y, x.z, x.w};
    if (y.x != kNothing) {
      if (flag == kWholeNodes) {
        const Fold f = fold_state(m, l, y.x, y.y);
#pragma unroll
        for (int e = 0; e < 4; ++e) o[e] = fold_sum(o[e], xs[e], f);
      } else {
        const Fold f = fold_state(node_m, node_l, y.x, y.y);
#pragma unroll
        for (int e = 0; e < 4; ++e) node[e] = fold_sum(node[e], xs[e], f);
      }
    }
    if (flag != kEndsNode) return;
    if (node_m != kNothing) {
      const Fold f = fold_state(m, l, node_m, node_l);
#pragma unroll
      for (int e = 0; e < 4; ++e) o[e] = fold_sum(o[e], node[e], f);
    }
    node_m = kNothing;
    node_l = 0.0f;
#pragma unroll
    for (int e = 0; e < 4; ++e) node[e] = 0.0f;
  }
};

// Folds the states of a group in order and writes its rows. One block does it while the others are
// done, so what counts is how often it waits: each thread has four dims of kRows rows, and asks for
// kAhead states of all of them at once.
template <int D>
__device__ void merge_states(const AttendArgs& a, const Segment& segment, int num_rows,
                             int thread) {
  constexpr int kRows = kStreamRows * (D / 4) / 128, kAhead = 6, kApart = kStreamRows / kRows;
  const int n = segment.group_states;
  const int32_t* const flags = a.state_flags + segment.group_state;
  const int64_t first = static_cast<int64_t>(segment.group_state) * kStreamRows;
  const int row = thread / (D / 4), d = (thread % (D / 4)) * 4;  // and kApart rows further
  StateFold folds[kRows];
  for (int from = 0; from < n; from += kAhead) {
    float4 x[kAhead][kRows];
    float2 y[kAhead][kRows];
    int flag[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int j = min(from + u, n - 1);
      flag[u] = flags[j];
#pragma unroll
      for (int k = 0; k < kRows; ++k) {
        const int64_t at = first + j * kStreamRows + row + k * kApart;
        y[u][k] = __ldcg(reinterpret_cast<const float2*>(a.state_totals) + at);
        x[u][k] = __ldcg(reinterpret_cast<const float4*>(a.state_sums + at * D + d));
      }
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      if (from + u >= n) break;
#pragma unroll
      for (int k = 0; k < kRows; ++k) folds[k].add(flag[u], x[u][k], y[u][k]);
    }
  }
#pragma unroll
  for (int k = 0; k < kRows; ++k) {
    const int r = row + k * kApart;
    if (r >= num_rows) continue;
    const RowPlace place = {segment.first_token, segment.head * a.group_size + r};
    const RowEnd end(a, place.q_head, folds[k].m, folds[k].l);
#pragma unroll
    for (int e = 0; e < 4; ++e) store_value(a, place, d + e, end.value(folds[k].o[e]));
    if (d == 0) store_lse(a, place, end.lse);
  }
}

// Sums of a warp's quarter of the dims, for its lanes' two rows; as a leaf, a node or a result.
template <int N>
struct StreamState {
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
  __device__ __forceinline__ void fold(const float (&o2)[N][4], const float* m2, const float* l2) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (m2[e] == kNothing) continue;
      const Fold f = fold_state(m[e], l[e], m2[e], l2[e]);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        o[i][e] = fold_sum(o[i][e], o2[i][e], f);
        o[i][e + 2] = fold_sum(o[i][e + 2], o2[i][e + 2], f);
      }
    }
  }
};

template <Element E, int D>
__global__ void __launch_bounds__(128, kStreamBlocks)
    stream_kernel(const __grid_constant__ AttendArgs a) {
  using Tile = WarpTile<E, D, 1>;
  using Memory = StreamMemory<E, D>;
  static_assert(!has_scales(E));
  constexpr bool kF16 = Tile::kWeightF16;
  constexpr int kStages = Memory::kStages, kUnit = Memory::kUnit;
  constexpr int kRow = Tile::kRow, kChunks = kRow / 16, kRowsEach = 32 / kChunks;
  constexpr int kQuarter = D / 64;  // fragments of 16 dims of a warp
  KVFOLIO_CUDA_SHARED_MEMORY(shared);
  const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
  const int g8 = lane >> 2, i2 = 2 * (lane & 3);
  const uint32_t ring = shared_address(shared);
  Segment* const segments = reinterpret_cast<Segment*>(shared + Memory::oSegments);
  float* const maxima = reinterpret_cast<float*>(shared + Memory::oMaxima);
  int* const flag = reinterpret_cast<int*>(shared + Memory::oFlag);

  begin_overlapped_launch();
  const int per = a.segments_per_block;
  for (int i = thread; i < per * 5; i += 128)
    reinterpret_cast<int4*>(segments)[i] =
        reinterpret_cast<const int4*>(a.segments + static_cast<int64_t>(blockIdx.x) * per)[i];
  __syncthreads();
  int num_segments = 0, total = 0;
  while (num_segments < per && segments[num_segments].num_tiles > 0)
    total += segments[num_segments++].num_tiles;
  if (total == 0) return;
  const int num_rows = a.group_size;

  // ---- loads: each warp its own 16 tokens of each tile ----
  struct Place {
    int block;
    uint32_t inside;
    __device__ __forceinline__ uint32_t in_units(uint32_t block_units) const {
      return block < 0 ? kNowhere : static_cast<uint32_t>(block) * block_units + inside;
    }
  };
  const uint32_t block16 = a.k_steps.block;
  int ask_segment = 0, ask_tile = 0;  // whose table entries are asked for next
  auto lookup = [&]() -> Place {
    Place place{-1, 0};
    if (ask_segment < num_segments) {
      const Segment& s = segments[ask_segment];
      const int tile = s.first_tile + ask_tile;
      const int p = tile * kTileTokens + 16 * warp + (lane & 15);
      if ((tile >= s.first_sure_tile && tile < s.end_sure_tile) || s.sight.sees(p)) {
        const BlockPlace at = block_of(a, p);
        place.block = a.table[s.sequence * a.table_stride + at.number];
        place.inside = a.k_steps.place(0, s.head, at.offset);
      }
      if (++ask_tile == s.num_tiles) {
        ask_tile = 0;
        ++ask_segment;
      }
    }
    return place;
  };
  const int chunk_row = lane / kChunks, chunk = lane % kChunks;
  auto load = [&](const char* from, uint32_t unit, uint32_t at) {  // 16 rows of a tile
    const char* base = from + chunk * 16;
    if (__all_sync(kWholeWarp, at != kNowhere)) {
#pragma unroll
      for (int j = 0; j < 16 / kRowsEach; ++j) {
        const int r = j * kRowsEach + chunk_row;
        copy_async16(unit + swizzled<kRow>(16 * warp + r, chunk),
                     base + (static_cast<uint64_t>(__shfl_sync(kWholeWarp, at, r)) << 4));
      }
      return;
    }
#pragma unroll
    for (int j = 0; j < 16 / kRowsEach; ++j) {
      const int r = j * kRowsEach + chunk_row;
      const uint32_t x = __shfl_sync(kWholeWarp, at, r);
      const bool seen = x != kNowhere;
      copy_async16(unit + swizzled<kRow>(16 * warp + r, chunk),
                   base + (static_cast<uint64_t>(seen ? x : 0u) << 4), seen ? 16 : 0);
    }
  };
  // Q of segment n goes to slot n % (kStages + 1) with the K of its first tile.
  int k_segment = 0, k_tile = 0, k_slot_in = 0, v_slot_in = 0, k_count = 0, v_count = 0;
  int q_slot_in = 0;
  auto ask_k = [&](uint32_t at) {
    if (k_count == total) return;
    load(a.cache.k, ring + k_slot_in * kUnit, at);
    const Segment& s = segments[k_segment];
    if (k_tile == 0) {
      constexpr int kQueryChunks = D / 8;
      for (int i = thread; i < kStreamRows * kQueryChunks; i += 128) {
        const int r = i / kQueryChunks, c = i % kQueryChunks;
        const bool is_row = r < num_rows;
        const char* from = a.q + s.first_token * a.q_token +
                           (s.head * a.group_size + (is_row ? r : 0)) * a.q_head + c * 16;
        copy_async16(
            ring + Memory::oQueries + q_slot_in * Memory::kQuery + r * Memory::kQueryRow + c * 16,
            from, is_row ? 16 : 0);
      }
      q_slot_in = q_slot_in == kStages ? 0 : q_slot_in + 1;
    }
    if (++k_tile == s.num_tiles) {
      k_tile = 0;
      ++k_segment;
    }
    ++k_count;
    k_slot_in = k_slot_in + 1 == kStages ? 0 : k_slot_in + 1;
  };
  auto ask_v = [&](uint32_t at) {
    if (v_count == total) return;
    load(a.cache.v, ring + Memory::oV + v_slot_in * kUnit, at);
    ++v_count;
    v_slot_in = v_slot_in + 1 == kStages ? 0 : v_slot_in + 1;
  };
  // Group t (t = -kStages ..): K of tile t + kStages and V of tile t + kStages - 2.
  uint32_t place[3];  // of tiles t + kStages - 2, - 1 and t + kStages
  Place next;
  {
    Place first[kStages + 1];
#pragma unroll
    for (int j = 0; j <= kStages; ++j) first[j] = lookup();
    next = lookup();
#pragma unroll
    for (int j = 0; j < kStages; ++j) {
      ask_k(first[j].in_units(block16));
      if (j >= 2) ask_v(first[j - 2].in_units(block16));
      commit_copies();
    }
#pragma unroll
    for (int j = 0; j < 3; ++j) place[j] = first[kStages - 2 + j].in_units(block16);
  }
  auto ask_group = [&] {
    ask_k(place[2]);
    ask_v(place[0]);
    commit_copies();
    place[0] = place[1];
    place[1] = place[2];
    place[2] = next.in_units(block16);
    next = lookup();
  };

  // ---- scores ----
  const bool bent = bends_scores(a);
  const float scale = bent ? 1.0f : a.scale_log2;  // of what scores() leaves in s
  uint32_t q[Tile::kSteps][2];
  int score_segment = 0, score_tile = 0, q_slot = 0, k_slot = 0;
  float s[4];
  auto scores = [&](int buffer) {
    const Segment& segment = segments[score_segment];
    if (score_tile == 0) {
      const char* row =
          shared + Memory::oQueries + q_slot * Memory::kQuery + g8 * Memory::kQueryRow;
#pragma unroll
      for (int k = 0; k < Tile::kSteps; ++k) {
        q[k][0] = *reinterpret_cast<const uint32_t*>(row + (16 * k + i2) * 2);
        q[k][1] = *reinterpret_cast<const uint32_t*>(row + (16 * k + 8 + i2) * 2);
      }
      q_slot = q_slot == kStages ? 0 : q_slot + 1;
    }
    s[0] = s[1] = s[2] = s[3] = 0.0f;
    const uint32_t k_rows = ring + k_slot * kUnit;
#pragma unroll
    for (int k = 0; k < Tile::kSteps; ++k) {
      uint32_t x[4];
      load_matrices(x, k_rows + swizzled<kRow>(16 * warp + (lane & 15), 2 * k + (lane >> 4)));
      multiply<kF16>(s, x, q[k][0], q[k][1]);
    }
    const int tile = segment.first_tile + score_tile;
    const int p = tile * kTileTokens + 16 * warp + g8;
    if (bent) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int r = i2 + (e & 1);
        const float slope = slope_of(a, segment.head * a.group_size + (r < num_rows ? r : 0));
        s[e] = bent_score(a, s[e], a.scale_log2, slope, p + 8 * (e >> 1) - segment.sight.high);
      }
    }
    if (tile < segment.first_sure_tile || tile >= segment.end_sure_tile) {
      if (!segment.sight.sees(p)) s[0] = s[1] = kNothing;
      if (!segment.sight.sees(p + 8)) s[2] = s[3] = kNothing;
    }
    float x0 = fmaxf(s[0], s[2]), x1 = fmaxf(s[1], s[3]);
#pragma unroll
    for (int k = 4; k <= 16; k *= 2) {
      x0 = fmaxf(x0, __shfl_xor_sync(kWholeWarp, x0, k));
      x1 = fmaxf(x1, __shfl_xor_sync(kWholeWarp, x1, k));
    }
    if (lane < 4)
      *reinterpret_cast<float2*>(&maxima[(buffer * 4 + warp) * kStreamRows + i2]) =
          make_float2(x0, x1);
    if (++score_tile == segment.num_tiles) {
      score_tile = 0;
      ++score_segment;
    }
    k_slot = k_slot + 1 == kStages ? 0 : k_slot + 1;
  };

  // ---- sums ----
  float o[kQuarter][4], l[4], m[2];  // of the leaf
  StreamState<kQuarter> node, all;
  auto reset_leaf = [&] {
#pragma unroll
    for (int i = 0; i < kQuarter; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) o[i][e] = 0.0f;
    m[0] = m[1] = kNothing;
    l[0] = l[1] = l[2] = l[3] = 0.0f;
  };
  auto dim_of = [&](int i, int e) { return Tile::dim_of(kQuarter * warp + i, e, lane); };
  auto emit = [&](int state, const float(&x)[kQuarter][4], const float* x_m, const float* x_l) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int64_t r = static_cast<int64_t>(state) * kStreamRows + i2 + e;
#pragma unroll
      for (int i = 0; i < kQuarter; ++i) {
        a.state_sums[r * D + dim_of(i, 0)] = x[i][e];
        a.state_sums[r * D + dim_of(i, 2)] = x[i][e + 2];
      }
      if (warp == 0 && lane < 4)
        reinterpret_cast<float2*>(a.state_totals)[r] = make_float2(x_m[e], x_l[e]);
    }
  };
  int sum_segment = 0, sum_tile = 0, v_slot = 0, state = 0;
  bool apart = false;  // the node began in an earlier segment
  auto begin_segment = [&] {
    const Segment& segment = segments[sum_segment];
    state = segment.state;
    apart = segment.first_tile % (kNodeTokens / kTileTokens) != 0 &&
            segment.first_tile != segment.group_first_tile;
    reset_leaf();
    node.reset();
    all.reset();
  };
  auto product = [&](int buffer) {
    const uint32_t ones[4] = {Tile::kOnes, Tile::kOnes, Tile::kOnes, Tile::kOnes};
    const uint32_t v_rows = ring + Memory::oV + v_slot * kUnit;
    const char* weights_at = shared + Memory::oWeights + buffer * Memory::kWeights;
    const int r8 = lane & 7, matrix = lane >> 3;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const uint2 w = *reinterpret_cast<const uint2*>(weights_at + (t * 32 + lane) * 8);
      multiply<kF16>(l, ones, w.x, w.y);
      const int row = t * 16 + r8 + (matrix >> 1) * 8;
#pragma unroll
      for (int i = 0; i < kQuarter; ++i) {
        uint32_t x[4];
        load_matrices_transposed(
            x, v_rows + swizzled<kRow>(row, 2 * (kQuarter * warp + i) + (matrix & 1)));
        multiply<kF16>(o[i], x, w.x, w.y);
      }
    }
    v_slot = v_slot + 1 == kStages ? 0 : v_slot + 1;
  };
  auto end_segment = [&](const Segment& segment, int leaf, bool node_end, bool from_start) {
    if (segment.whole) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int r = i2 + e;
        if (r >= num_rows) continue;
        const RowPlace to = {segment.first_token, segment.head * a.group_size + r};
        const RowEnd end(a, to.q_head, all.m[e], all.l[e]);
#pragma unroll
        for (int i = 0; i < kQuarter; ++i)
#pragma unroll
          for (int z = 0; z < 4; z += 2)
            store_value(a, to, dim_of(i, z), end.value(all.o[i][e + z]));
        if (warp == 0 && lane < 4) store_lse(a, to, end.lse);
      }
      return;
    }
    const int first_leaf = segment.group_first_tile / kTilesPerLeaf;
    if (from_start && (leaf + 1) / kLeavesPerNode > first_leaf / kLeavesPerNode)
      emit(state++, all.o, all.m, all.l);
    if (!node_end && !apart) emit(state++, node.o, node.m, node.l);
    // The barriers order the block's stores before its arrival, and its loads behind that.
    __syncthreads();
    if (thread == 0) *flag = arrive(&a.arrivals[segment.group]) == segment.group_segments - 1;
    __syncthreads();
    if (*flag) {
      merge_states<D>(a, segment, num_rows, thread);
      if (thread == 0) a.arrivals[segment.group] = 0;
    }
  };
  // After the product of a tile: folds, states, results.
  auto after = [&] {
    const Segment& segment = segments[sum_segment];
    const bool segment_end = ++sum_tile == segment.num_tiles;
    const int tile = segment.first_tile + sum_tile;  // the next one
    if (tile % kTilesPerLeaf != 0 && !segment_end) return;
    const int leaf = (tile - 1) / kTilesPerLeaf;
    const bool node_end =
        leaf % kLeavesPerNode == kLeavesPerNode - 1 || leaf == segment.group_last_leaf;
    const bool from_start = segment.first_tile == segment.group_first_tile;
    if (apart) {
      emit(state++, o, m, l);
    } else {
      node.fold(o, m, l);
      if (node_end && from_start) all.fold(node.o, node.m, node.l);
      if (node_end && !from_start) emit(state++, node.o, node.m, node.l);
    }
    reset_leaf();
    if (segment_end) {
      end_segment(segment, leaf, node_end, from_start);
      ++sum_segment;
      sum_tile = 0;
      if (sum_segment < num_segments) begin_segment();
      return;
    }
    if (node_end) {
      apart = false;
      node.reset();
    }
  };
  auto weights = [&](int buffer) {
    float2 x = *reinterpret_cast<const float2*>(&maxima[buffer * 4 * kStreamRows + i2]);
#pragma unroll
    for (int w = 1; w < 4; ++w) {
      const float2 y =
          *reinterpret_cast<const float2*>(&maxima[(buffer * 4 + w) * kStreamRows + i2]);
      x.x = fmaxf(x.x, y.x);
      x.y = fmaxf(x.y, y.y);
    }
    const float most[2] = {__fmul_rn(x.x, scale), __fmul_rn(x.y, scale)};
    const bool grows = most[0] > __fadd_rn(m[0], kGrowth) || most[1] > __fadd_rn(m[1], kGrowth);
    if (__any_sync(kWholeWarp, grows)) {
      const float f[2] = {grow(m[0], most[0]), grow(m[1], most[1])};
#pragma unroll
      for (int e = 0; e < 2; ++e) l[e] = l[e + 2] = __fmul_rn(l[e], f[e]);
#pragma unroll
      for (int i = 0; i < kQuarter; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[i][e] = __fmul_rn(o[i][e], f[e & 1]);
    }
    const float m0 = m[0] == kNothing ? 0.0f : m[0], m1 = m[1] == kNothing ? 0.0f : m[1];
    const uint32_t w0 =
        transpose_matrix(pack2<kF16>(weight_of(s[0], scale, m0), weight_of(s[1], scale, m1)));
    const uint32_t w1 =
        transpose_matrix(pack2<kF16>(weight_of(s[2], scale, m0), weight_of(s[3], scale, m1)));
    *reinterpret_cast<uint2*>(shared + Memory::oWeights + buffer * Memory::kWeights +
                              (warp * 32 + lane) * 8) = make_uint2(w0, w1);
  };

  begin_segment();
  wait_copies<kStages - 1>();  // K of tile 0 and its Q
  __syncthreads();
  scores(0);
  wait_copies<kStages - 2>();  // K of tile 1
  for (int t = 0;; ++t) {
    __syncthreads();
    ask_group();
    if (t > 0) {
      product((t - 1) & 1);
      after();
      if (t == total) break;
    }
    weights(t & 1);
    if (t + 1 < total) scores((t + 1) & 1);
    wait_copies<kStages - 2>();  // V of tile t, K of tile t + 2
  }
  wait_copies<0>();
}

}  // namespace kvfolio::cuda
