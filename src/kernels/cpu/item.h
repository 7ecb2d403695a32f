// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the CPU targets share: one item of work, the scratch memory of one thread, and the function
// that a target offers. Plain data only: a target's source is compiled for a CPU that the machine
// may not have, so nothing that it includes may leave an inline function for others to use.
//
// The promise on bits rests on three constants: scores are made and weighed in tiles of kTile
// positions, sums start anew at every kRange positions, and what the ranges give is merged in the
// order of positions. All three are absolute positions of the sequence.

#include <cstddef>
#include <cstdint>

#include "kernels/convert.h"
#include "kernels/visible.h"
#include "kvfolio/attention_params.h"
#include "kvfolio/spec.h"

namespace kvfolio::kernels {

inline constexpr std::int32_t kTile = 64;      // positions
inline constexpr std::int32_t kSubtiles = 4;   // of kGranuleTokens each
inline constexpr std::int32_t kRange = 1024;   // positions
inline constexpr std::int32_t kItemRows = 64;  // rows (query and head) of an item, at most
inline constexpr std::int32_t kBlockRows = 8;  // rows that a kernel takes at a time
inline constexpr std::int32_t kMaxHeadDim = 256;
// Bytes of scratch memory for 16 rows of K or V.
inline constexpr std::int64_t kSubtileBytes = std::int64_t{kGranuleTokens} * kMaxHeadDim * 4;
// Words of 4 bytes from one row of prepared queries to the next. Not a power of two, so that the
// eight rows of a block fall into different sets of the cache.
inline constexpr std::int32_t kQueryWords = kMaxHeadDim + 16;

// The rows of K or V of one layer, from the item's first KV head on.
struct HeadRows {
  const std::byte* rows = nullptr;
  std::int64_t block_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t token_stride = 0;  // granule: of a tile of 16 tokens
  const std::byte* scales = nullptr;
  std::int64_t scale_block_stride = 0;
  std::int64_t scale_head_stride = 0;
  std::int64_t scale_token_stride = 0;
  std::int32_t head_dim = 0;
};

// Rows [first_row, first_row + num_rows) of some queries of one sequence for each of num_heads KV
// heads, over the positions [first_position, end_position), which start and end at multiples of
// kRange or at the ends of the sequence. Row r is query r / q_per_kv, query head r % q_per_kv of
// the KV head. In the scratch memory row r of head h of the item is row h * num_rows + r. Heads
// that lie side by side in memory are done tile by tile together, so that all of a block is read at
// once.
struct Item {
  HeadRows k;
  HeadRows v;
  std::int32_t num_heads = 1;  // num_heads * num_rows <= kItemRows
  bool granule = false;
  bool e4m3 = false;  // what the kernel of f32 decodes on its way into a tile
  std::int32_t block_size = 0;
  std::int32_t num_blocks = 0;
  const std::int32_t* table = nullptr;
  std::int32_t kv_len = 0;
  std::int32_t query_position = 0;  // of query 0
  std::int32_t q_per_kv = 1;        // query heads of a KV head
  std::int32_t first_row = 0;       // below q_per_kv
  std::int32_t num_rows = 0;
  std::int32_t first_position = 0;
  std::int32_t end_position = 0;
  AttentionParams params;
  Trim trim;
  // ALiBi: of the query heads from the item's first one on; null: none.
  const float* slopes = nullptr;
  // Query row r of head h lies at
  // q + (r / q_per_kv) * q_token_stride + (h * q_per_kv + r % q_per_kv) * q_head_stride.
  const std::byte* q = nullptr;
  std::int64_t q_token_stride = 0;
  std::int64_t q_head_stride = 0;
  ConvertFn load_q = nullptr;  // to f32
};

// Sums of some rows over some positions: softmax weights are 2^(score - max).
struct State {
  float* sums = nullptr;    // [rows, sums_stride]: of weight times V
  float* totals = nullptr;  // [rows]: of weights
  float* maxima = nullptr;  // [rows]: the largest score, base 2, as far as it was followed
  std::int64_t sums_stride = 0;
};

// Memory of one thread, 64-byte aligned.
struct Scratch {
  std::uint32_t* queries = nullptr;  // [kItemRows, kQueryWords]
  float* query_scales = nullptr;     // [kItemRows], int8
  std::int32_t* query_sums = nullptr;
  float* sums = nullptr;             // [kItemRows, padded head_dim_v], of the range at hand
  float* lanes = nullptr;            // [kItemRows, 16], totals of the range by lane
  float* maxima = nullptr;           // [kItemRows]
  float* scores = nullptr;           // [kBlockRows, kTile]
  std::uint32_t* weights = nullptr;  // [kBlockRows, kTile], as the dot product wants them
  float* weight_scales = nullptr;    // [kBlockRows], int8
  std::byte* packed_k = nullptr;     // kSubtiles tiles
  std::byte* packed_v = nullptr;
  std::byte* masked_v = nullptr;
  float* scales = nullptr;  // [3, kTile]: of K, of V, of V where some tokens are not visible
  float* row = nullptr;     // [kMaxHeadDim]: a query on its way
  State total;              // [kItemRows]: the ranges that are done
};

// Makes `total` the state of what the rows of `item` read: range by range, merged in order. A row
// that reads nothing has sum 0 and maximum -inf.
using AttendFn = void (*)(const Item& item, const Scratch& scratch) noexcept;
// into.sums and so on of `rows` rows += part, as a range that follows.
using MergeFn = void (*)(const State& into, const State& part, std::int32_t rows,
                         std::int32_t head_dim) noexcept;
// dst[i] = sums[i] / total.
using FinishFn = void (*)(const float* sums, float total, float* dst,
                          std::int32_t head_dim) noexcept;

struct TargetKernels {
  AttendFn attend[5];  // by DType; null where the target does not take the type; e4m3 is f32's
  // The same for calls whose scores are bent, by a soft cap or ALiBi; null where it has none.
  AttendFn bent[5] = {};
  MergeFn merge;
  FinishFn finish;
};

[[nodiscard]] inline constexpr std::int64_t padded(std::int64_t head_dim) noexcept {
  return (head_dim + 15) / 16 * 16;
}

TargetKernels portable_kernels() noexcept;
#if defined(__x86_64__)
TargetKernels avx2_kernels() noexcept;
TargetKernels avx512_kernels() noexcept;
TargetKernels avx512_bf16_kernels() noexcept;
#endif
#if defined(__aarch64__)
TargetKernels neon_kernels() noexcept;
#endif

}  // namespace kvfolio::kernels
