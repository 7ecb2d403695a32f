// SPDX-License-Identifier: Apache-2.0
#pragma once

// Prefill with wgmma for what wgmma_kernel.cuh does not take: int8 and e4m3 caches, and head_dim
// 64. The same rounds, two warpgroups that compute and one that loads; rows have the bits of
// node_kernel.
//
// wgmma multiplies elements of one type, so 8-bit rows are converted on their way into the rings: a
// lane copies chunks of 16 bytes to a place of its own, some tiles ahead, and writes them into the
// ring as 16 bits when there is room. K becomes f16 and its scale multiplies the score; V becomes
// bf16 and its scale multiplies the weight before that is rounded, so there are two operands of
// weights: with the scales for the sums, without them for the totals. The dims of K in a step of 16
// stand in the order in which mma.sync has them (WarpTile::load_row), so that an instruction adds
// them in that order; those of Q, too.

#include "cuda/attention/wgmma_kernel.cuh"
#ifndef KVFOLIO_CUDA_HOST_MODEL
#include "cuda/attention/group_sums64.cuh"
#endif

namespace kvfolio::cuda {

template <Element E, int D>
struct GroupTileMemory {
  static constexpr bool kScaled = has_scales(E);
  static constexpr int kHalf = kTileTokens * 128;  // 64 dims of a tile
  static constexpr int kTile = D / 64 * kHalf;
  static constexpr int kStages = kScaled && D == 128 ? 2 : 4;
  static constexpr int kAhead = 2;  // tiles whose 8-bit copies are on their way
  static constexpr int kRaw = kScaled ? kTileTokens * D : 0;
  static constexpr int kRawStages = kAhead + 1;
  // Scales of K and V of a tile come with its K. While they are read, kStages + kAhead + 1 tiles
  // behind it may have been asked for.
  static constexpr int kScaleStages = 8;
  static_assert(kScaleStages >= kAhead + kStages + 2);
  static constexpr int kScales = kScaled ? 2 * kTileTokens * 4 : 0;
  static constexpr int oK = 0, oV = oK + kStages * kTile;
  static constexpr int oRawK = oV + kStages * kTile, oRawV = oRawK + kRawStages * kRaw;
  static constexpr int oScales = oRawV + kRawStages * kRaw;  // [stage][K, V][64]
  static constexpr int oBarriers = oScales + kScaleStages * kScales;
  static constexpr int oFlags = oBarriers + 4 * kStages * 8;  // [stage][2 warps]: V not finite
  static constexpr int oRows = oFlags + kStages * 8;          // [128]: position, or kNoRow
  static constexpr int oState = oRows + kGroupRows * 4;  // [128]: maxima and totals of the results
  static constexpr int oRowScales = oState + kGroupRows * 8;  // [128]: from a product to base 2
  static constexpr int oSights = oRowScales + (kScaled ? kGroupRows * 4 : 0);
  // As in GroupMemory.
  static constexpr int oZeros = oBarriers + (kScaled ? 3072 : 2048) - 256, oOnes = oZeros + 128;
  static constexpr int oQ = oOnes + 128, oAll = oQ + 2 * kTile;
  static constexpr int kBytes = oAll + kGroupRows * D * 4 + 1024;
  static_assert(oFlags % 16 == 0 && oSights % 8 == 0 && oSights + 64 <= oZeros && oQ % 1024 == 0);
  static_assert(kBytes <= 232448);
};

// What each warpgroup keeps of 168 registers a thread, as in wgmma_kernel.cuh. Loops that convert
// want more of them, and sums of 64 dims fewer.
template <int D>
inline constexpr int kTileLoaderRegisters = D == 64 ? 72 : 56;
template <int D>
inline constexpr int kTileComputeRegisters = D == 64 ? 216 : 224;
static_assert(kTileLoaderRegisters<64> + 2 * kTileComputeRegisters<64> <= 3 * 168);
static_assert(kTileLoaderRegisters<128> + 2 * kTileComputeRegisters<128> <= 3 * 168);

// As GroupLoader: two warps bring K and two V, 32 tokens of a tile each.
template <Element E, int D>
struct GroupTileLoader {
  using Memory = GroupTileMemory<E, D>;
  static constexpr bool kScaled = has_scales(E);
  static constexpr int kChunks = D * element_bytes(E) / 16;  // of a row; copies of a lane
  static constexpr int kRowsAtOnce = 32 / kChunks;
  static constexpr int kArrivals = kScaled ? 2 : 64;  // that tell of K or V of a tile
  static constexpr uint32_t kOutside = 0xffffffffu;

  const AttendArgs& a;
  const GroupSights& sights;
  bool several;  // positions of rows
  int sequence, head, lane, warp;
  char* shared;
  uint32_t base;
  int block = -1, offset = 0;  // of this lane's token, asked for a tile ahead

  __device__ __forceinline__ int first_row() const { return 32 * (warp & 1); }
  __device__ __forceinline__ void find(int tile) {
    const int p = tile * kTileTokens + first_row() + lane;
    block = -1;
    if (!sights.sure(GroupSights::kSomeRow, tile) && !sights.any.sees(p)) return;
    const BlockPlace place = block_of(a, p);
    offset = place.offset;
    block = a.table[sequence * a.table_stride + place.number];
  }
  // Copy j of this lane: this chunk of row kRowsAtOnce * j + row() of this warp's 32. Eight lanes
  // that store together write to all banks: two rows by halves where a row becomes 256 bytes.
  __device__ __forceinline__ int chunk() const {
    if constexpr (kScaled && D == 128) return (lane & 3) + (lane >> 4 << 2);
    return lane & (kChunks - 1);
  }
  __device__ __forceinline__ int row() const {
    if constexpr (kScaled && D == 128) return (lane >> 2) & 3;
    return lane / kChunks;
  }
  // Chunk c of a row of 16-bit elements.
  __device__ __forceinline__ static uint32_t place_of_chunk(int r, int c) {
    return static_cast<uint32_t>((c >> 3) * Memory::kHalf) + swizzled<128>(r, c & 7);
  }
  __device__ __forceinline__ uint32_t place_of_copy(int j) const {
    if constexpr (kScaled) return static_cast<uint32_t>(j * 512 + lane * 16);
    return place_of_chunk(first_row() + kRowsAtOnce * j + row(), chunk());
  }
  __device__ __forceinline__ void copy(const char* from, uint32_t to, uint32_t places) const {
    const char* const source = from + chunk() * 16;
    if (__all_sync(kWholeWarp, places != kOutside)) {
#pragma unroll
      for (int j = 0; j < kChunks; ++j) {
        const uint32_t at = __shfl_sync(kWholeWarp, places, kRowsAtOnce * j + row());
        copy_async16(to + place_of_copy(j), source + (static_cast<uint64_t>(at) << 4));
      }
    } else {
#pragma unroll 1
      for (int j = 0; j < kChunks; ++j) {
        const uint32_t at = __shfl_sync(kWholeWarp, places, kRowsAtOnce * j + row());
        const bool seen = at != kOutside;
        copy_async16(to + place_of_copy(j), source + (static_cast<uint64_t>(seen ? at : 0u) << 4),
                     seen ? 16 : 0);
      }
    }
  }
  // Scales of this lane's token.
  __device__ __forceinline__ void copy_scales(int number) const {
    const uint32_t to =
        base + Memory::oScales +
        static_cast<uint32_t>((number & (Memory::kScaleStages - 1)) * Memory::kScales +
                              (first_row() + lane) * 4);
    const bool seen = block >= 0;
    const uint32_t k = seen ? a.k_scale_steps.place(block, head, offset) : 0u;
    const uint32_t v = seen ? a.v_scale_steps.place(block, head, offset) : 0u;
    copy_async4(to, a.cache.k_scales + (static_cast<uint64_t>(k) << 2), seen ? 4 : 0);
    copy_async4(to + kTileTokens * 4, a.cache.v_scales + (static_cast<uint64_t>(v) << 2),
                seen ? 4 : 0);
  }
  template <bool kIsV>
  __device__ __forceinline__ uint32_t place() const {
    return block < 0 ? kOutside : (kIsV ? a.v_steps : a.k_steps).place(block, head, offset);
  }

  // Two words of the ring from four bytes of K: dims 0 and 1, 2 and 3.
  __device__ __forceinline__ static uint2 words_of_k(uint32_t x) {
    if constexpr (E == Element::kInt8) {
      const uint32_t flipped = x ^ 0x80808080u;
      return make_uint2(int8_to_f16x2(flipped, 0x4140), int8_to_f16x2(flipped, 0x4342));
    } else {
      return make_uint2(e4m3_to_f16x2(x), e4m3_to_f16x2(x >> 16));
    }
  }
  __device__ __forceinline__ static uint2 words_of_v(uint32_t x) {
    if constexpr (E == Element::kInt8) {
      return make_uint2(int8_to_bf16x2(x, 0x4140), int8_to_bf16x2(x, 0x4342));
    } else {
      return make_uint2(e4m3_to_bf16x2(x, 0x1404), e4m3_to_bf16x2(x, 0x3424));
    }
  }
  template <bool kIsV>
  __device__ __forceinline__ void store_converted(char* to, int j, const uint32_t (&x)[4]) const {
    const uint32_t place =
        place_of_chunk(first_row() + kRowsAtOnce * j + row(), 2 * chunk());
    char* const at = to + place;
    char* const next = to + (place ^ 16u);  // the chunk behind it
    uint2 w[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) w[e] = kIsV ? words_of_v(x[e]) : words_of_k(x[e]);
    if constexpr (kIsV) {
      *reinterpret_cast<uint4*>(at) = make_uint4(w[0].x, w[0].y, w[1].x, w[1].y);
      *reinterpret_cast<uint4*>(next) = make_uint4(w[2].x, w[2].y, w[3].x, w[3].y);
    } else {
      *reinterpret_cast<uint4*>(at) = make_uint4(w[0].x, w[1].x, w[2].x, w[3].x);
      *reinterpret_cast<uint4*>(next) = make_uint4(w[0].y, w[1].y, w[2].y, w[3].y);
    }
  }
  // What this lane copied, to the ring.
  template <bool kIsV>
  __device__ __forceinline__ void convert(uint32_t raw, char* to) const {
#pragma unroll
    for (int j = 0; j < kChunks; j += 2) {
      uint32_t x[4], y[4];
      load_chunk(x, raw + place_of_copy(j));
      load_chunk(y, raw + place_of_copy(j + 1));
      store_converted<kIsV>(to, j, x);
      store_converted<kIsV>(to, j + 1, y);
    }
  }
  // Whether what this warp copied of V, 16-bit elements, holds something that is not finite.
  __device__ __forceinline__ void flag(int slot) const {
    bool found = false;
#pragma unroll 1
    for (int j = 0; j < kChunks; ++j) {
      uint32_t x[4];
      load_chunk(x, base + Memory::oV + slot * Memory::kTile + place_of_copy(j));
#pragma unroll
      for (int e = 0; e < 4; ++e) found |= not_finite<E == Element::kF16>(x[e]);
    }
    found = __any_sync(kWholeWarp, found);
    if (lane == 0) reinterpret_cast<int*>(shared + Memory::oFlags)[slot * 2 + (warp & 1)] = found;
  }

  // full, empty: the barriers of K or of V.
  template <bool kIsV>
  __device__ __forceinline__ void run(uint32_t full, uint32_t empty) {
    if constexpr (kScaled) {
      run_converted<kIsV>(full, empty);
    } else {
      run_as_they_are<kIsV>(full, empty);
    }
    commit_copies();
    wait_copies<0>();  // a thread may not end before them
  }
  template <bool kIsV>
  __device__ __forceinline__ void run_as_they_are(uint32_t full, uint32_t empty) {
    int tile = sights.next(0), slot = 0, parity = 1;
    find(tile);
    while (tile < sights.nowhere) {
      const int next = sights.next(tile + 1);
      const uint32_t places = place<kIsV>();
      find(next);
      barrier_wait(empty + 8 * slot, parity);
      copy(kIsV ? a.cache.v : a.cache.k,
           base + (kIsV ? Memory::oV : Memory::oK) + slot * Memory::kTile, places);
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
  }
  template <bool kIsV>
  __device__ __forceinline__ void run_converted(uint32_t full, uint32_t empty) {
    // Places of this warp's copies of a tile.
    const uint32_t raw = base + (kIsV ? Memory::oRawV : Memory::oRawK) +
                         static_cast<uint32_t>((warp & 1) * (Memory::kRaw / 2));
    char* const ring = shared + (kIsV ? Memory::oV : Memory::oK);
    int ahead = sights.next(0), number = 0, raw_slot = 0;  // the tile that is asked for next
    find(ahead);
    auto ask = [&] {
      if (ahead < sights.nowhere) {
        const int next = sights.next(ahead + 1);
        const uint32_t places = place<kIsV>();
        if constexpr (!kIsV) copy_scales(number);
        find(next);
        copy(kIsV ? a.cache.v : a.cache.k, raw + raw_slot * Memory::kRaw, places);
        ahead = next;
        ++number;
        raw_slot = raw_slot + 1 == Memory::kRawStages ? 0 : raw_slot + 1;
      }
      commit_copies();
    };
#pragma unroll 1
    for (int i = 0; i < Memory::kAhead; ++i) ask();
    int slot = 0, parity = 1, from = 0;
#pragma unroll 1
    for (int tile = sights.next(0); tile < sights.nowhere; tile = sights.next(tile + 1)) {
      ask();
      wait_copies<Memory::kAhead>();
      barrier_wait(empty + 8 * slot, parity);
      convert<kIsV>(raw + from * Memory::kRaw, ring + slot * Memory::kTile);
      fence_shared_for_groups();  // of the stores above
      __syncwarp();
      if (lane == 0) barrier_arrive(full + 8 * slot);
      from = from + 1 == Memory::kRawStages ? 0 : from + 1;
      slot = slot + 1 == Memory::kStages ? 0 : slot + 1;
      if (slot == 0) parity ^= 1;
    }
  }
};

template <Element E, int D>
__global__ void __launch_bounds__(kGroupThreads, 1)
    wgmma_tiles_kernel(const __grid_constant__ AttendArgs a) {
  using Memory = GroupTileMemory<E, D>;
  using Loader = GroupTileLoader<E, D>;
  constexpr bool kScaled = has_scales(E);
  constexpr bool kQueryF16 = E == Element::kF16 || kScaled;  // K and Q of the first product
  constexpr bool kWeightF16 = E == Element::kF16;            // P and V of the second
  constexpr int kStages = Memory::kStages;
  constexpr int kSums = D / 2;    // of a thread
  constexpr int kChunks = D / 8;  // 16 bytes of a query's row
  KVFOLIO_CUDA_SHARED_MEMORY(raw);
  char* const shared = raw + ((1024 - (shared_address(raw) & 1023)) & 1023);
  const uint32_t base = shared_address(shared);
  const int thread = threadIdx.x & 127, lane = thread & 31, warp = thread >> 5;
  // By a shuffle: see wgmma_kernel.
  const int group = __shfl_sync(kWholeWarp, static_cast<int>(threadIdx.x) >> 7, 0);
  const int head = blockIdx.x % a.cache.num_heads;
  const Item& item = a.prefill_items[blockIdx.x / a.cache.num_heads];
  const SequenceArgs seq(a, item.sequence);
  const int block_rows = min(kGroupRows, seq.queries * a.group_size - item.first_row);
  int* const row_positions = reinterpret_cast<int*>(shared + Memory::oRows);
  float* const row_scales = reinterpret_cast<float*>(shared + Memory::oRowScales);
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
      barrier_init(full_k + 8 * i, Loader::kArrivals);
      barrier_init(full_v + 8 * i, Loader::kArrivals);
      barrier_init(empty_k + 8 * i, 8);
      barrier_init(empty_v + 8 * i, 8);
    }
    fence_barrier_init();
  }
  if (threadIdx.x < kGroupRows)
    row_positions[threadIdx.x] = static_cast<int>(threadIdx.x) < block_rows
                                     ? seq.at(a, item.first_row + static_cast<int>(threadIdx.x))
                                     : kNoRow;
  for (int i = threadIdx.x; i < kGroupRows * kChunks; i += kGroupThreads) {
    const int r = i / kChunks, c = i % kChunks;  // Q: [warpgroup][half of the dims][row][128 bytes]
    uint4 x = make_uint4(0, 0, 0, 0);
    if (r < block_rows) {
      const RowPlace place = place_of_row(a, seq.first_token, head, item.first_row + r);
      x = *reinterpret_cast<const uint4*>(a.q + place.token * a.q_token + place.q_head * a.q_head +
                                          c * 16);
    }
    char* const to = shared + Memory::oQ + (r >> 6) * Memory::kTile;
    if constexpr (!kScaled) {
      *reinterpret_cast<uint4*>(to + Loader::place_of_chunk(r & 63, c)) = x;
    } else {
      uint32_t word[4] = {x.x, x.y, x.z, x.w};
      int power = 0;  // of two, by which the row is divided: see WarpTile::load_row
      if (a.q_element != Element::kF16) {
        uint32_t most = 0;
#pragma unroll
        for (int e = 0; e < 4; ++e)
          most = max(most, max(word[e] & 0x7fffu, (word[e] >> 16) & 0x7fffu));
#pragma unroll
        for (int k = 1; k < kChunks; k *= 2) most = max(most, __shfl_xor_sync(kWholeWarp, most, k));
        const int exponent = static_cast<int>(most >> 7) - 127;
        power = exponent == 128 || exponent <= 14 ? 0 : exponent - 14;
        const float factor = __uint_as_float((127 - power) << 23);
#pragma unroll
        for (int e = 0; e < 4; ++e)
          word[e] = pack2<true>(__fmul_rn(__uint_as_float(word[e] << 16), factor),
                                __fmul_rn(__uint_as_float(word[e] & 0xffff0000u), factor));
      }
      // In the order of K's dims: word i of the first chunk of a step has dims 4i and 4i + 1 of it,
      // of the second 4i + 2 and 4i + 3.
      char* const first = to + 8 * (c & 1);
      *reinterpret_cast<uint2*>(first + Loader::place_of_chunk(r & 63, c & ~1)) =
          make_uint2(word[0], word[2]);
      *reinterpret_cast<uint2*>(first + Loader::place_of_chunk(r & 63, c | 1)) =
          make_uint2(word[1], word[3]);
      if (c == 0) row_scales[r] = __fmul_rn(a.scale_log2, __uint_as_float((127 + power) << 23));
    }
  }
  constexpr uint32_t kOnes = kWeightF16 ? 0x3c003c00u : 0x3f803f80u;
  if (threadIdx.x < 32)
    reinterpret_cast<uint32_t*>(shared + Memory::oZeros)[threadIdx.x] = 0u;
  else if (threadIdx.x < 64)
    reinterpret_cast<uint32_t*>(shared + Memory::oZeros)[threadIdx.x] = kOnes;
  fence_shared_for_groups();
  __syncthreads();

  const bool several = row_positions[0] != row_positions[block_rows - 1];
  if (group == 0) {
    give_registers<kTileLoaderRegisters<D>>();
    Loader loader{a, sights, several, item.sequence, head, lane, warp, shared, base};
    if (warp < 2) {
      loader.template run<false>(full_k, empty_k);
    } else {
      loader.template run<true>(full_v, empty_v);
    }
    return;
  }

  take_registers<kTileComputeRegisters<D>>();
  const int w = group - 1, g8 = lane >> 2, i2 = 2 * (lane & 3);
  const int r0 = 64 * w + 16 * warp + g8;  // of the block; this thread has rows r0 and r0 + 8
  // A leaf's sums, totals ([0] and [2]), maxima; a tile's products, then weights.
  float o[kSums], l[4], m0 = kNothing, m1 = kNothing;
  float s[32];
  uint32_t p[16], plain[kScaled ? 16 : 1];  // plain: without the scales of V, for the totals
  float node[kSums], node_m0 = kNothing, node_m1 = kNothing, node_l0 = 0.0f, node_l1 = 0.0f;
  bool node_begun = false;
  // The nodes before: maximum and total, one for the four lanes of a row, and sums.
  float2* const all_state = reinterpret_cast<float2*>(shared + Memory::oState) + r0;
  float4* const all = reinterpret_cast<float4*>(shared + Memory::oAll) + w * (D / 8) * 128 + thread;
  all_state[0] = all_state[8] = make_float2(kNothing, 0.0f);
#pragma unroll
  for (int i = 0; i < 16; ++i) p[i] = 0u;
  if constexpr (kScaled) {
#pragma unroll
    for (int i = 0; i < 16; ++i) plain[i] = 0u;
  }
#pragma unroll
  for (int i = 0; i < D / 8; ++i) all[i * 128] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  auto begin_leaf = [&] {
    l[0] = l[1] = l[2] = l[3] = 0.0f;
#pragma unroll
    for (int i = 0; i < kSums; ++i) o[i] = 0.0f;
  };
  begin_leaf();
  const uint64_t q_operand = operand_of(base + Memory::oQ + w * Memory::kTile, 0);
  const uint64_t k_operand = operand_of(base + Memory::oK, 0);
  const uint64_t v_operand = operand_of(base + Memory::oV, Memory::kHalf);
  const uint64_t zeros_operand = same_operand_of(base + Memory::oZeros);
  const uint64_t ones_operand = same_operand_of(base + Memory::oOnes);
  auto scores = [&](int slot) {
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      const int step = (k >> 2) * Memory::kHalf + (k & 3) * 32;
      group_scores<kQueryF16>(s, q_operand + (step >> 4),
                              k_operand + ((slot * Memory::kTile + step) >> 4), k != 0);
    }
    group_commit();
  };
  auto totals = [&](const uint32_t* weights) {
#pragma unroll
    for (int k = 0; k < 4; ++k) group_totals<kWeightF16>(l, weights + 4 * k, ones_operand);
  };
  // step: between 16 tokens of the operand. Totals without scales are complete first, so that their
  // registers are free while the sums run.
  auto sums = [&](uint64_t operand, int step) {
    if constexpr (kScaled) {
      totals(plain);
      group_commit();
    }
#pragma unroll
    for (int k = 0; k < 4; ++k)
      group_sums<kWeightF16>(o, p + 4 * k, operand + static_cast<uint64_t>(k * step));
    if constexpr (!kScaled) totals(p);
    group_commit();
  };
  auto release = [&](uint32_t barrier) {
    if (lane == 0) barrier_arrive(barrier);
  };
  auto fold_leaf = [&](float leaf_m0, float leaf_m1) {
    if (!node_begun) {  // what a fold into an empty state gives
      node_begun = true;
#pragma unroll
      for (int i = 0; i < kSums; ++i) node[i] = __fadd_rn(o[i], 0.0f);
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
        for (int i = 0; i < kSums; ++i) node[i] = fold_sum(node[i], o[i], f[(i >> 1) & 1]);
      } else {
#pragma unroll
        for (int i = 0; i < kSums; ++i)
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
    for (int i = 0; i < D / 8; ++i) {
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
  uint32_t hidden = 0;  // a bit for each score of a row that does not see its position
  auto rescale = [&] {
#pragma unroll
    for (int i = 0; i < kSums; ++i) o[i] = __fmul_rn(o[i], (i & 2) == 0 ? f0 : f1);
    l[0] = l[1] = __fmul_rn(l[0], f0);
    l[2] = l[3] = __fmul_rn(l[2], f1);
  };
  // Scales of K or V of a tile, of the two tokens of s[4 * j] and s[4 * j + 1] at [4 * j].
  auto scales_of = [&](int number, bool is_v) {
    return reinterpret_cast<const float2*>(
        shared + Memory::oScales + (number & (Memory::kScaleStages - 1)) * Memory::kScales +
        (is_v ? kTileTokens * 4 : 0) + i2 * 4);
  };
  // Products of a tile become weights. number: of the tile in the order of the rings.
  auto weigh = [&](int tile, bool masked, int number) {
    const int first = tile * kTileTokens;
    float scale0 = a.scale_log2, scale1 = a.scale_log2;
    if constexpr (kScaled) {
      scale0 = row_scales[r0];
      scale1 = row_scales[r0 + 8];
      const float2* const scales = scales_of(number, false);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float2 f = scales[4 * j];
#pragma unroll
        for (int e = 0; e < 4; ++e)
          s[4 * j + e] = __fmul_rn(s[4 * j + e], (e & 1) == 0 ? f.x : f.y);
      }
    }
    if (bends_scores(a)) {
      const int at0 = row_positions[r0], at1 = row_positions[r0 + 8];
      const float slope0 = slope_of(a, place_of_row(a, 0, head, item.first_row + r0).q_head);
      const float slope1 = slope_of(a, place_of_row(a, 0, head, item.first_row + r0 + 8).q_head);
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const int x = first + 8 * (i / 4) + i2 + (i & 1);
        s[i] = (i & 2) == 0 ? bent_score(a, s[i], scale0, slope0, x - at0)
                            : bent_score(a, s[i], scale1, slope1, x - at1);
      }
      scale0 = scale1 = 1.0f;
    }
    if constexpr (kScaled) hidden = 0;
    if (masked) {
      const SequenceArgs again(a, item.sequence);  // registers are short
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const Sight sight = sight_of(a.mask, row_positions[r0 + 8 * e], again.kv_len,
                                     again.trim_sinks, again.first_kept);
#pragma unroll
        for (int i = 2 * e; i < 32; i += (i & 1) == 0 ? 1 : 3)
          if (!sight.sees(first + 8 * (i / 4) + i2 + (i & 1))) {
            s[i] = kNothing;
            if constexpr (kScaled) hidden |= 1u << i;
          }
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
    f0 = grow(m0, __fmul_rn(x0, scale0));
    f1 = grow(m1, __fmul_rn(x1, scale1));
    const float e0 = m0 == kNothing ? 0.0f : m0, e1 = m1 == kNothing ? 0.0f : m1;
#pragma unroll
    for (int i = 0; i < 32; ++i)
      s[i] = (i & 2) == 0 ? weight_of(s[i], scale0, e0) : weight_of(s[i], scale1, e1);
  };
  // Weights become operands, when no product reads those of the tile before.
  auto pack = [&](bool masked, int number) {
    if constexpr (!kScaled) {
#pragma unroll
      for (int j = 0; j < 16; ++j) p[j] = pack2<kWeightF16>(s[2 * j], s[2 * j + 1]);
    } else {
      const float2* const scales = scales_of(number, true);
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        const float2 f = scales[4 * (j / 2)];
        plain[j] = pack2<kWeightF16>(s[2 * j], s[2 * j + 1]);
        p[j] = pack2<kWeightF16>(__fmul_rn(s[2 * j], f.x), __fmul_rn(s[2 * j + 1], f.y));
      }
      if (masked) {  // a scale may be NaN
#pragma unroll
        for (int j = 0; j < 16; ++j) {
          if (((hidden >> (2 * j)) & 1u) != 0) p[j] &= 0xffff0000u;
          if (((hidden >> (2 * j + 1)) & 1u) != 0) p[j] &= 0x0000ffffu;
        }
      }
    }
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
    float kept[kSums];
    uint32_t weights_of[16];
#pragma unroll
    for (int i = 0; i < kSums; ++i) kept[i] = o[i];
#pragma unroll
    for (int i = 0; i < 16; ++i) weights_of[i] = p[i];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint32_t weight[4] = {p[4 * k], p[4 * k + 1], p[4 * k + 2], p[4 * k + 3]};
      multiply<kWeightF16>(l, weight, kOnes, kOnes);
    }
#pragma unroll 1
    for (int j = 0; j < D / 8; ++j) {  // 8 dims
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
          load_matrices_transposed(v, v_rows + Loader::place_of_chunk(16 * k + (lane & 15), j));
          const int token = tile * kTileTokens + 16 * k + i2;
          v[0] &= (sight.sees(token) ? 0xffffu : 0u) | (sight.sees(token + 1) ? 0xffff0000u : 0u);
          v[1] &=
              (sight.sees(token + 8) ? 0xffffu : 0u) | (sight.sees(token + 9) ? 0xffff0000u : 0u);
          const uint32_t weight[4] = {weights_of[4 * k], weights_of[4 * k + 1],
                                      weights_of[4 * k + 2], weights_of[4 * k + 3]};
          multiply<kWeightF16>(d, weight, v[0], v[1]);
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
    for (int i = 0; i < kSums; ++i) o[i] = kept[i];
#pragma unroll
    for (int i = 0; i < 16; ++i) p[i] = 0u;
  };
  // Whether V of a stage, of a tile that some rows see in part, has something that is not finite.
  // Elements of 8 bits have not, and `hidden` takes care of their scales.
  auto not_finite_in = [&](int slot) {
    int found = 0;  // lane 0 reads it, since that gives the stage back
    if (lane == 0) {
      const int2 by_warp = *reinterpret_cast<const int2*>(shared + Memory::oFlags + slot * 8);
      found = by_warp.x | by_warp.y;
    }
    return __shfl_sync(kWholeWarp, found, 0) != 0;
  };

  // The rounds of wgmma_kernel: the scores of `next`, then the sums of `tile`, whose weights are in
  // p, and meanwhile the weights of `next`.
  constexpr int kTilesPerNode = kTilesPerLeaf * kLeavesPerNode;
  int before = -1, tile = -1, next = sights.next(0);
  int number = -1, slot = kStages - 1, parity = 1;  // of `tile`, and of V's stage
  bool masked = false;  // some row of this warpgroup does not see all of `tile`
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
        bool apart = false;
        if constexpr (!kScaled) apart = several && masked && not_finite_in(slot);
        if (apart) {  // so of the whole warpgroup
          if constexpr (!kScaled) sums_apart(tile, slot);
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
        if constexpr (kScaled) __syncwarp();  // all have read the scales of `tile`
        release(empty_k + 8 * next_slot);
        if (next / kTilesPerLeaf != tile / kTilesPerLeaf) m0 = m1 = kNothing;
        weigh(next, next_masked, number + 1);
        keep(s);  // here, while the sums run
      }
      group_wait<0>();
      keep(o);
      keep(l);
      if (tile >= 0) release(empty_v + 8 * slot);
      if (ends) break;
      pack(next_masked, number + 1);
      before = tile;
      tile = next;
      next = sights.next(next + 1);
      ++number;
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
    for (int j = 0; j < D / 8; ++j) {
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
