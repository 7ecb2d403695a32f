// SPDX-License-Identifier: Apache-2.0
#pragma once

// Prefill with wgmma: f16 and bf16 caches, head_dim 128. One warpgroup copies tiles of 64 tokens
// from their blocks into rings of four; two warpgroups of 64 rows compute. S = Q K^T over dims in
// steps of 16 and O += P V over tokens in steps of 16, as mma.sync does it; the total is a product
// with ones. Rows have the bits of node_kernel.
//
// Each round issues the scores of a tile, and behind them the sums of the tile before. Whatever has
// to be done to the sums first (a leaf that ends, a maximum that moved) is done while the scores
// run, and the weights of the tile are computed while the sums run.
//
// V of a tile that some rows of the block see in part may hold an infinity or a NaN. The warps that
// copy it say so, and then its sums are taken with mma.sync, apart for each position of rows.

#ifdef KVFOLIO_CUDA_HOST_MODEL
#include "cuda/attention/host_model.h"
#else
#include "cuda/attention/group_instructions.cuh"
#endif
#include "cuda/attention/warp_tile.cuh"

namespace kvfolio::cuda {

inline constexpr int kGroupRows = 128;
inline constexpr int kGroupThreads = 384;
// What each warpgroup keeps of the 168 registers that a thread is launched with; more than all of
// them together would let take_registers() wait for ever.
inline constexpr int kLoaderRegisters = 40;
inline constexpr int kComputeRegisters = 232;
static_assert(kLoaderRegisters + 2 * kComputeRegisters <= 3 * 168);

struct GroupMemory {
  static constexpr int kStages = 4;
  static constexpr int kHalf = kTileTokens * 128;  // 64 dims of a tile
  static constexpr int kTile = 2 * kHalf;
  static constexpr int oK = 0, oV = oK + kStages * kTile;
  static constexpr int oBarriers = oV + kStages * kTile;
  static constexpr int oFlags = oBarriers + 4 * kStages * 8;  // [stage][2 warps]: V not finite
  static constexpr int oRows = oFlags + kStages * 8;          // [128]: position, or kNoRow
  static constexpr int oState = oRows + 128 * 4;  // [128]: maxima and totals of the results
  static constexpr int oSights = oState + 128 * 8;
  // 8 x 8 elements each: what stands for V where there is nothing to add, and ones for the totals.
  // In front of Q, since a sanitizer counts all bytes of such operands from their start.
  static constexpr int oZeros = oBarriers + 2048 - 256, oOnes = oZeros + 128;
  static constexpr int oQ = oOnes + 128, oAll = oQ + 2 * 2 * kHalf;
  static constexpr int kBytes = oAll + 2 * 64 * 128 * 4 + 1024;
  static_assert(oFlags % 16 == 0 && oSights + 64 <= oZeros && oQ % 1024 == 0 && kBytes <= 232448);
};

// What the rows of a block see: in shared memory, since the warps that load have few registers.
struct GroupSights {
  Sight any;
  // Tiles that are surely seen as a whole: by some row of the block, by each row of it, by each row
  // of a computing warpgroup.
  int first_sure[4];
  int end_sure[4];
  int nowhere;  // behind the last tile

  __device__ __forceinline__ void set(int which, const Sight& sight) {
    first_sure[which] = (max(sight.low, sight.first_kept) + kTileTokens - 1) / kTileTokens;
    end_sure[which] = (sight.high + 1) / kTileTokens;
  }
  __device__ __forceinline__ bool sure(int which, int tile) const {
    return static_cast<unsigned>(tile - first_sure[which]) <
           static_cast<unsigned>(max(0, end_sure[which] - first_sure[which]));
  }
  __device__ __forceinline__ int next(int tile) const {  // the first tile from `tile` on
    if (sure(kSomeRow, tile)) return tile;
    const int p = any.next(tile * kTileTokens);
    return p > any.high ? nowhere : max(tile, p / kTileTokens);
  }
  static constexpr int kSomeRow = 0, kEachRow = 1, kEachOfGroup = 2;
};

// The warpgroup that loads: two warps copy K and two copy V, 32 tokens of a tile each, so that one
// never waits for room of the other. A barrier is told by the copies themselves when they arrive.
template <bool kF16>
struct GroupLoader {
  using Memory = GroupMemory;
  const AttendArgs& a;
  const GroupSights& sights;
  bool several;  // positions of rows
  int sequence, head, lane, warp;
  char* shared;
  uint32_t base;
  int block = -1, offset = 0;  // of this lane's token, asked for a tile ahead

  static constexpr uint32_t kOutside = 0xffffffffu;

  __device__ __forceinline__ int first_row() const { return 32 * (warp & 1); }
  __device__ __forceinline__ void find(int tile) {
    const int p = tile * kTileTokens + first_row() + lane;
    block = -1;
    if (!sights.sure(GroupSights::kSomeRow, tile) && !sights.any.sees(p)) return;
    const BlockPlace place = block_of(a, p);
    offset = place.offset;
    block = a.table[sequence * a.table_stride + place.number];
  }
  // Chunk lane % 16 of row 2j + lane / 16 of this warp's 32.
  __device__ __forceinline__ static uint32_t place_of_chunk(int row, int c) {
    return static_cast<uint32_t>((c >> 3) * Memory::kHalf) + swizzled<128>(row, c & 7);
  }
  __device__ __forceinline__ void load(const char* from, uint32_t to, uint32_t places) const {
    const int c = lane & 15;
    const char* const source = from + c * 16;
    if (__all_sync(kWholeWarp, places != kOutside)) {
#pragma unroll 1
      for (int j4 = 0; j4 < 4; ++j4)  // the swizzle repeats after 8 rows
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int r = 2 * j + (lane >> 4);
          const uint32_t at = __shfl_sync(kWholeWarp, places, 8 * j4 + r);
          copy_async16(to + static_cast<uint32_t>(j4 * 1024) + place_of_chunk(first_row() + r, c),
                       source + (static_cast<uint64_t>(at) << 4));
        }
    } else {
#pragma unroll 1
      for (int j = 0; j < 16; ++j) {
        const int r = 2 * j + (lane >> 4);
        const uint32_t at = __shfl_sync(kWholeWarp, places, r);
        const bool seen = at != kOutside;
        copy_async16(to + place_of_chunk(first_row() + r, c),
                     source + (static_cast<uint64_t>(seen ? at : 0u) << 4), seen ? 16 : 0);
      }
    }
  }
  // Whether what this warp copied of V holds something that is not finite.
  __device__ __forceinline__ void flag(int slot) const {
    bool found = false;
#pragma unroll 1
    for (int j = 0; j < 16; ++j) {
      uint32_t x[4];
      load_chunk(x, base + Memory::oV + slot * Memory::kTile +
                        place_of_chunk(first_row() + 2 * j + (lane >> 4), lane & 15));
#pragma unroll
      for (int e = 0; e < 4; ++e) found |= not_finite<kF16>(x[e]);
    }
    found = __any_sync(kWholeWarp, found);
    if (lane == 0) reinterpret_cast<int*>(shared + Memory::oFlags)[slot * 2 + (warp & 1)] = found;
  }
  // full, empty: the barriers of K or of V.
  template <bool kIsV>
  __device__ __forceinline__ void run(uint32_t full, uint32_t empty) {
    int tile = sights.next(0), slot = 0, parity = 1;
    find(tile);
    while (tile < sights.nowhere) {
      const int next = sights.next(tile + 1);
      const uint32_t place =
          block < 0 ? kOutside : (kIsV ? a.v_steps : a.k_steps).place(block, head, offset);
      find(next);
      barrier_wait(empty + 8 * slot, parity);
      load(kIsV ? a.cache.v : a.cache.k,
           base + (kIsV ? Memory::oV : Memory::oK) + slot * Memory::kTile, place);
      if (kIsV && several && !sights.sure(GroupSights::kEachRow, tile)) {
        commit_copies();
        wait_copies<0>();
        __syncwarp();
        flag(slot);
        barrier_arrive(full + 8 * slot);
      } else {
        barrier_arrive_after_copies(full + 8 * slot);
      }
      tile = next;
      slot = slot + 1 == Memory::kStages ? 0 : slot + 1;
      if (slot == 0) parity ^= 1;
    }
    commit_copies();
    wait_copies<0>();  // a thread may not end before them
  }
};

template <bool kF16>
__global__ void __launch_bounds__(kGroupThreads, 1)
    wgmma_kernel(const __grid_constant__ AttendArgs a) {
  using Memory = GroupMemory;
  constexpr int kStages = Memory::kStages;
  constexpr int kLoaders = 64;  // threads that copy K, and that copy V
  KVFOLIO_CUDA_SHARED_MEMORY(raw);
  char* const shared = raw + ((1024 - (shared_address(raw) & 1023)) & 1023);
  const uint32_t base = shared_address(shared);
  const int thread = threadIdx.x & 127, lane = thread & 31, warp = thread >> 5;
  // By a shuffle, so that the compiler knows that a warp has one, and keeps operands where wgmma
  // wants them.
  const int group = __shfl_sync(kWholeWarp, static_cast<int>(threadIdx.x) >> 7, 0);
  const int head = blockIdx.x % a.cache.num_heads;
  const Item& item = a.prefill_items[blockIdx.x / a.cache.num_heads];
  const SequenceArgs seq(a, item.sequence);
  const int block_rows = min(kGroupRows, seq.queries * a.group_size - item.first_row);
  int* const row_positions = reinterpret_cast<int*>(shared + Memory::oRows);
  const uint32_t full_k = base + Memory::oBarriers, full_v = full_k + 8 * kStages;
  const uint32_t empty_k = full_v + 8 * kStages, empty_v = empty_k + 8 * kStages;

  GroupSights& sights = *reinterpret_cast<GroupSights*>(shared + Memory::oSights);
  if (threadIdx.x == 0) {
    sights.any = seq.of_any(a, item.first_row, block_rows);
    sights.nowhere = sights.any.high < 0 ? 0 : sights.any.high / kTileTokens + 1;
    sights.set(GroupSights::kSomeRow, sights.any);
    sights.set(GroupSights::kEachRow, seq.of_each(a, item.first_row, block_rows));
    sights.set(GroupSights::kEachOfGroup, seq.of_each(a, item.first_row, min(64, block_rows)));
    sights.set(GroupSights::kEachOfGroup + 1,
               block_rows > 64 ? seq.of_each(a, item.first_row + 64, block_rows - 64) : Sight{});
    for (int i = 0; i < kStages; ++i) {
      barrier_init(full_k + 8 * i, kLoaders);
      barrier_init(full_v + 8 * i, kLoaders);
      barrier_init(empty_k + 8 * i, 8);
      barrier_init(empty_v + 8 * i, 8);
    }
    fence_barrier_init();
  }
  if (threadIdx.x < kGroupRows)
    row_positions[threadIdx.x] = static_cast<int>(threadIdx.x) < block_rows
                                     ? seq.at(a, item.first_row + static_cast<int>(threadIdx.x))
                                     : kNoRow;
  for (int i = threadIdx.x; i < kGroupRows * 16; i += kGroupThreads) {
    const int r = i / 16, c = i % 16;  // Q: [warpgroup][half of the dims][row][128 bytes]
    uint4 x = make_uint4(0, 0, 0, 0);
    if (r < block_rows) {
      const RowPlace place = place_of_row(a, seq.first_token, head, item.first_row + r);
      x = *reinterpret_cast<const uint4*>(a.q + place.token * a.q_token + place.q_head * a.q_head +
                                          c * 16);
    }
    *reinterpret_cast<uint4*>(shared + Memory::oQ + (r >> 6) * 2 * Memory::kHalf +
                              (c >> 3) * Memory::kHalf + swizzled<128>(r & 63, c & 7)) = x;
  }
  constexpr uint32_t kOnes = kF16 ? 0x3c003c00u : 0x3f803f80u;
  if (threadIdx.x < 32)
    reinterpret_cast<uint32_t*>(shared + Memory::oZeros)[threadIdx.x] = 0u;
  else if (threadIdx.x < 64)
    reinterpret_cast<uint32_t*>(shared + Memory::oZeros)[threadIdx.x] = kOnes;
  fence_shared_for_groups();
  __syncthreads();

  const bool several = row_positions[0] != row_positions[block_rows - 1];
  if (group == 0) {
    give_registers<kLoaderRegisters>();
    GroupLoader<kF16> loader{a, sights, several, item.sequence, head, lane, warp, shared, base};
    if (warp < 2) {
      loader.template run<false>(full_k, empty_k);
    } else {
      loader.template run<true>(full_v, empty_v);
    }
    return;
  }

  take_registers<kComputeRegisters>();
  const int w = group - 1, g8 = lane >> 2, i2 = 2 * (lane & 3);
  const int r0 = 64 * w + 16 * warp + g8;  // of the block; this thread has rows r0 and r0 + 8
  // A leaf's sums, totals ([0] and [2]), maxima; a tile's products, then weights.
  float o[64], l[4], m0 = kNothing, m1 = kNothing;
  float s[32];
  uint32_t p[16];
  float node[64], node_m0 = kNothing, node_m1 = kNothing, node_l0 = 0.0f, node_l1 = 0.0f;
  bool node_begun = false;
  // The nodes before: maximum and total, one for the four lanes of a row, and sums.
  float2* const all_state = reinterpret_cast<float2*>(shared + Memory::oState) + r0;
  float4* const all = reinterpret_cast<float4*>(shared + Memory::oAll) + w * 16 * 128 + thread;
  all_state[0] = all_state[8] = make_float2(kNothing, 0.0f);
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    p[i] = 0u;
    all[i * 128] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
  auto begin_leaf = [&] {
    l[0] = l[1] = l[2] = l[3] = 0.0f;
#pragma unroll
    for (int i = 0; i < 64; ++i) o[i] = 0.0f;
  };
  begin_leaf();
  const uint64_t q_operand = operand_of(base + Memory::oQ + w * 2 * Memory::kHalf, 0);
  const uint64_t k_operand = operand_of(base + Memory::oK, 0);
  const uint64_t v_operand = operand_of(base + Memory::oV, Memory::kHalf);
  const uint64_t zeros_operand = same_operand_of(base + Memory::oZeros);
  const uint64_t ones_operand = same_operand_of(base + Memory::oOnes);
  auto scores = [&](int slot) {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int step = (k >> 2) * Memory::kHalf + (k & 3) * 32;
      group_scores<kF16>(s, q_operand + (step >> 4),
                         k_operand + ((slot * Memory::kTile + step) >> 4), k != 0);
    }
    group_commit();
  };
  // step: between 16 tokens of the operand.
  auto sums = [&](uint64_t operand, int step) {
#pragma unroll
    for (int k = 0; k < 4; ++k)
      group_sums<kF16>(o, p + 4 * k, operand + static_cast<uint64_t>(k * step));
#pragma unroll
    for (int k = 0; k < 4; ++k) group_totals<kF16>(l, p + 4 * k, ones_operand);
    group_commit();
  };
  auto release = [&](uint32_t barrier) {
    if (lane == 0) barrier_arrive(barrier);
  };
  auto fold_leaf = [&](float leaf_m0, float leaf_m1) {
    if (!node_begun) {  // what a fold into an empty state gives
      node_begun = true;
#pragma unroll
      for (int i = 0; i < 64; ++i) node[i] = __fadd_rn(o[i], 0.0f);
      node_m0 = leaf_m0;
      node_m1 = leaf_m1;
      node_l0 = l[0];
      node_l1 = l[2];
    } else {
      Fold f[2] = {};
      if (leaf_m0 != kNothing) f[0] = fold_state(node_m0, node_l0, leaf_m0, l[0]);
      if (leaf_m1 != kNothing) f[1] = fold_state(node_m1, node_l1, leaf_m1, l[2]);
      if (!__any_sync(kWholeWarp, leaf_m0 == kNothing || leaf_m1 == kNothing)) {
#pragma unroll
        for (int i = 0; i < 64; ++i) node[i] = fold_sum(node[i], o[i], f[(i >> 1) & 1]);
      } else {
#pragma unroll
        for (int i = 0; i < 64; ++i)
          if (((i & 2) == 0 ? leaf_m0 : leaf_m1) != kNothing)
            node[i] = fold_sum(node[i], o[i], f[(i >> 1) & 1]);
      }
    }
    begin_leaf();
  };
  auto fold_node_into_all = [&] {
    float2 state0 = all_state[0], state1 = all_state[8];
    __syncwarp();
    Fold f[2] = {};
    if (node_m0 != kNothing) f[0] = fold_state(state0.x, state0.y, node_m0, node_l0);
    if (node_m1 != kNothing) f[1] = fold_state(state1.x, state1.y, node_m1, node_l1);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float4 x = all[i * 128];
      if (node_m0 != kNothing) {
        x.x = fold_sum(x.x, node[4 * i], f[0]);
        x.y = fold_sum(x.y, node[4 * i + 1], f[0]);
      }
      if (node_m1 != kNothing) {
        x.z = fold_sum(x.z, node[4 * i + 2], f[1]);
        x.w = fold_sum(x.w, node[4 * i + 3], f[1]);
      }
      all[i * 128] = x;
    }
    if ((lane & 3) == 0) {
      all_state[0] = state0;
      all_state[8] = state1;
    }
    __syncwarp();
    node_begun = false;
  };

  // What sums and totals are multiplied by before the tile with weights in p.
  float f0 = 1.0f, f1 = 1.0f;
  auto rescale = [&] {
#pragma unroll
    for (int i = 0; i < 64; ++i) o[i] = __fmul_rn(o[i], (i & 2) == 0 ? f0 : f1);
    l[0] = l[1] = __fmul_rn(l[0], f0);
    l[2] = l[3] = __fmul_rn(l[2], f1);
  };
  // Products of a tile become weights.
  auto weigh = [&](int tile, bool masked) {
    const int first = tile * kTileTokens;
    float scale = a.scale_log2;
    if (bends_scores(a)) {
      const int at0 = row_positions[r0], at1 = row_positions[r0 + 8];
      const float slope0 = slope_of(a, place_of_row(a, 0, head, item.first_row + r0).q_head);
      const float slope1 = slope_of(a, place_of_row(a, 0, head, item.first_row + r0 + 8).q_head);
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const int x = first + 8 * (i / 4) + i2 + (i & 1);
        s[i] = (i & 2) == 0 ? bent_score(a, s[i], scale, slope0, x - at0)
                            : bent_score(a, s[i], scale, slope1, x - at1);
      }
      scale = 1.0f;
    }
    if (masked) {
      const SequenceArgs again(a, item.sequence);  // registers are short
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const Sight sight = sight_of(a.mask, row_positions[r0 + 8 * e], again.kv_len,
                                     again.trim_sinks, again.first_kept);
#pragma unroll
        for (int i = 2 * e; i < 32; i += (i & 1) == 0 ? 1 : 3)
          if (!sight.sees(first + 8 * (i / 4) + i2 + (i & 1))) s[i] = kNothing;
      }
    }
    float x0 = fmaxf(s[0], s[1]), x1 = fmaxf(s[2], s[3]);
#pragma unroll
    for (int j = 1; j < 8; ++j) {
      x0 = fmaxf(x0, fmaxf(s[4 * j], s[4 * j + 1]));
      x1 = fmaxf(x1, fmaxf(s[4 * j + 2], s[4 * j + 3]));
    }
    x0 = fmaxf(x0, __shfl_xor_sync(kWholeWarp, x0, 1));
    x1 = fmaxf(x1, __shfl_xor_sync(kWholeWarp, x1, 1));
    x0 = fmaxf(x0, __shfl_xor_sync(kWholeWarp, x0, 2));
    x1 = fmaxf(x1, __shfl_xor_sync(kWholeWarp, x1, 2));
    f0 = grow(m0, __fmul_rn(x0, scale));
    f1 = grow(m1, __fmul_rn(x1, scale));
    const float e0 = m0 == kNothing ? 0.0f : m0, e1 = m1 == kNothing ? 0.0f : m1;
#pragma unroll
    for (int i = 0; i < 32; ++i) s[i] = weight_of(s[i], scale, (i & 2) == 0 ? e0 : e1);
  };
  // The sums of a tile whose V has something that is not finite: see WarpTile::sums_apart.
  auto sums_apart = [&](int tile, int slot) {
    const int at0 = row_positions[r0], at1 = row_positions[r0 + 8];
    int low = min(at0 == kNoRow ? 0x7fffffff : at0, at1 == kNoRow ? 0x7fffffff : at1);
    int high = max(at0, at1);
    const SequenceArgs again(a, item.sequence);
#pragma unroll
    for (int k = 4; k <= 16; k *= 2) {
      low = min(low, static_cast<int>(__shfl_xor_sync(kWholeWarp, static_cast<uint32_t>(low), k)));
      high =
          max(high, static_cast<int>(__shfl_xor_sync(kWholeWarp, static_cast<uint32_t>(high), k)));
    }
    const uint32_t v_rows = base + Memory::oV + slot * Memory::kTile;
    // In memory, by indices that are not constant: registers are short around wgmma.
    float kept[64];
    uint32_t weights_of[16];
#pragma unroll
    for (int i = 0; i < 64; ++i) kept[i] = o[i];
#pragma unroll
    for (int i = 0; i < 16; ++i) weights_of[i] = p[i];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint32_t weight[4] = {p[4 * k], p[4 * k + 1], p[4 * k + 2], p[4 * k + 3]};
      multiply<kF16>(l, weight, kOnes, kOnes);
    }
#pragma unroll 1
    for (int j = 0; j < 16; ++j) {  // 8 dims
      float* const to = kept + 4 * j;
      const float before[4] = {to[0], to[1], to[2], to[3]};
#pragma unroll 1
      for (int position = low; position <= high; ++position) {
        const Sight sight =
            sight_of(a.mask, position, again.kv_len, again.trim_sinks, again.first_kept);
        float d[4] = {before[0], before[1], before[2], before[3]};
#pragma unroll 1
        for (int k = 0; k < 4; ++k) {
          uint32_t v[4];  // [0], [1]: tokens 0-7 and 8-15 of chunk j
          load_matrices_transposed(
              v, v_rows + (j >> 3) * Memory::kHalf + swizzled<128>(16 * k + (lane & 15), j & 7));
          const int token = tile * kTileTokens + 16 * k + i2;
          v[0] &= (sight.sees(token) ? 0xffffu : 0u) | (sight.sees(token + 1) ? 0xffff0000u : 0u);
          v[1] &=
              (sight.sees(token + 8) ? 0xffffu : 0u) | (sight.sees(token + 9) ? 0xffff0000u : 0u);
          const uint32_t weight[4] = {weights_of[4 * k], weights_of[4 * k + 1],
                                      weights_of[4 * k + 2], weights_of[4 * k + 3]};
          multiply<kF16>(d, weight, v[0], v[1]);
        }
        if (at0 == position) {
          to[0] = d[0];
          to[1] = d[1];
        }
        if (at1 == position) {
          to[2] = d[2];
          to[3] = d[3];
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 64; ++i) o[i] = kept[i];
#pragma unroll
    for (int i = 0; i < 16; ++i) p[i] = 0u;
  };
  // Whether V of a stage, of a tile that some rows see in part, has something that is not finite.
  auto not_finite_in = [&](int slot) {
    int found = 0;  // lane 0 reads it, since that gives the stage back
    if (lane == 0) {
      const int2 by_warp = *reinterpret_cast<const int2*>(shared + Memory::oFlags + slot * 8);
      found = by_warp.x | by_warp.y;
    }
    return __shfl_sync(kWholeWarp, found, 0) != 0;
  };

  // Each round issues the scores of `next` and adds the sums of `tile`, whose weights are in p. The
  // first one has no sums and the last one no scores: products may not stand in a branch, so those
  // run over zeros, and over what K's stage holds.
  constexpr int kTilesPerNode = kTilesPerLeaf * kLeavesPerNode;
  int before = -1, tile = -1, next = sights.next(0);
  int slot = kStages - 1, parity = 1;  // of V of `tile`
  bool masked = false;                 // some row of this warpgroup does not see all of `tile`
  float leaf_m0 = kNothing, leaf_m1 = kNothing;  // of the leaf of `before`
  if (next < sights.nowhere) {
    for (;;) {
      const bool ends = next >= sights.nowhere;
      const int next_slot = slot + 1 == kStages ? 0 : slot + 1;
      const int next_parity = next_slot == 0 ? parity ^ 1 : parity;
      if (!ends) barrier_wait(full_k + 8 * next_slot, next_parity);
      if (tile >= 0) barrier_wait(full_v + 8 * slot, parity);
      fence_shared_for_groups();  // between the copies of other threads and the products
      group_fence();
      scores(next_slot);
      group_wait<1>();  // says to the compiler that the sums are complete, as they are
      keep(o);
      keep(l);
      if (before >= 0 && before / kTilesPerLeaf != tile / kTilesPerLeaf) {
        fold_leaf(leaf_m0, leaf_m1);
        if (before / kTilesPerNode != tile / kTilesPerNode) fold_node_into_all();
      } else if (__any_sync(kWholeWarp, f0 != 1.0f || f1 != 1.0f)) {
        rescale();
      }
      uint64_t v_now = zeros_operand;
      int step = 0;
      if (tile >= 0) {
        if (several && masked && not_finite_in(slot)) {  // so of the whole warpgroup
          sums_apart(tile, slot);
        } else {
          v_now = v_operand + static_cast<uint64_t>((slot * Memory::kTile) >> 4);
          step = 2048 >> 4;
        }
      }
      group_fence();
      sums(v_now, step);
      group_wait<1>();
      keep(s);
      const bool next_masked = !sights.sure(GroupSights::kEachOfGroup + w, next);
      leaf_m0 = m0;
      leaf_m1 = m1;
      if (!ends) {
        release(empty_k + 8 * next_slot);
        if (next / kTilesPerLeaf != tile / kTilesPerLeaf) m0 = m1 = kNothing;
        weigh(next, next_masked);
        keep(s);  // here, while the sums run
      }
      group_wait<0>();
      keep(o);
      keep(l);
      if (tile >= 0) release(empty_v + 8 * slot);
      if (ends) break;
#pragma unroll
      for (int j = 0; j < 16; ++j) p[j] = pack2<kF16>(s[2 * j], s[2 * j + 1]);
      before = tile;
      tile = next;
      next = sights.next(next + 1);
      masked = next_masked;
      slot = next_slot;
      parity = next_parity;
    }
    fold_leaf(leaf_m0, leaf_m1);
    fold_node_into_all();
  }
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    if (r0 + 8 * e >= block_rows) continue;
    const RowPlace place = place_of_row(a, seq.first_token, head, item.first_row + r0 + 8 * e);
    const float2 state = all_state[8 * e];
    const RowEnd end(a, place.q_head, state.x, state.y);
    char* const row = a.out + place.token * a.out_token + place.q_head * a.out_head;
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      const float4 x = all[j * 128];
      const float y0 = end.value(e == 0 ? x.x : x.z), y1 = end.value(e == 0 ? x.y : x.w);
      const int d = 8 * j + i2;
      if (a.out_element == Element::kF32) {
        *reinterpret_cast<float2*>(row + 4 * d) = make_float2(y0, y1);
      } else {
        *reinterpret_cast<uint32_t*>(row + 2 * d) =
            a.out_element == Element::kF16 ? pack2<true>(y0, y1) : pack2<false>(y0, y1);
      }
    }
    if ((lane & 3) == 0) store_lse(a, place, end.lse);
  }
}

}  // namespace kvfolio::cuda
