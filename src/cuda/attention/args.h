// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a kernel of attention is told: plain numbers and pointers to device memory, passed by value.
// The host checks them (attend.cc); a kernel trusts them. No CUDA is needed to read this.
//
// A *row* is one query token and one query head. A *group of rows* is what one item of work
// computes together: consecutive rows of one sequence and KV head, in the order of query tokens and
// then of the query heads of that KV head. Row r of a sequence is query token r / group_size, query
// head kv_head * group_size + r % group_size.

#include <cstdint>

#include "cuda/attention/sight.h"
#include "cuda/element.h"

namespace kvfolio::cuda {

// The tree of sums of docs/kernels.md. Positions are absolute, so a border never depends on a
// window, a batch or a chunk.
inline constexpr int kTileTokens = 64;   // one decision whether the maximum of a row moves
inline constexpr int kLeafTokens = 256;  // own maximum, total and sums; tiles in order
inline constexpr int kNodeTokens =
    1024;  // fold of leaves in order; the result folds nodes in order
inline constexpr int kTilesPerLeaf = kLeafTokens / kTileTokens;
inline constexpr int kLeavesPerNode = kNodeTokens / kLeafTokens;

struct Strides {
  std::int64_t block = 0;  // bytes
  std::int64_t head = 0;
  std::int64_t token = 0;
  friend bool operator==(const Strides&, const Strides&) = default;
};

// Strides in units of 16 bytes (rows) or of 4 (scales), so that a place of a layer is 32 bits.
struct Steps {
  std::uint32_t block = 0;
  std::uint32_t head = 0;
  std::uint32_t token = 0;
  KVFOLIO_CUDA_BOTH std::uint32_t place(int block_id, int head_id, int offset) const {
    return static_cast<std::uint32_t>(block_id) * block +
           static_cast<std::uint32_t>(head_id) * head + static_cast<std::uint32_t>(offset) * token;
  }
  friend bool operator==(const Steps&, const Steps&) = default;
};

// One layer of a cache.
struct CacheArgs {
  const char* k = nullptr;
  const char* v = nullptr;
  const char* k_scales = nullptr;  // f32; null where has_scales() is false
  const char* v_scales = nullptr;
  Strides k_strides = {};
  Strides v_strides = {};
  Strides k_scale_strides = {};
  Strides v_scale_strides = {};
  std::int32_t block_size = 0;
  std::int32_t num_blocks = 0;
  std::int32_t num_heads = 0;
  std::int32_t dim_k = 0;
  std::int32_t dim_v = 0;
  Element element = Element::kBF16;
};

// A share of the work of node_kernel and general_kernel: one node of a group of rows.
struct alignas(16) Item {
  std::int32_t sequence = 0;
  std::int32_t first_row = 0;
  std::int32_t node = 0;
  std::int32_t group = 0;  // of the plan
};

// The nodes of a group of rows, which a merge folds in order.
struct alignas(16) Group {
  std::int32_t sequence = 0;
  std::int32_t first_row = 0;
  std::int32_t first_item = 0;
  std::int32_t num_items = 0;
};

// A run of leaves of one sequence and KV head, for one block of stream_kernel. num_tiles 0: none.
struct alignas(16) Segment {
  std::int32_t sequence = 0;
  std::int32_t first_token = 0;  // of q: the one query of the sequence
  std::int32_t head = 0;
  std::int32_t first_tile = 0;
  std::int32_t num_tiles = 0;
  std::int32_t group_first_tile = 0;  // of all segments of this sequence and head
  std::int32_t group_last_leaf = 0;
  std::int32_t whole = 0;  // 1: the only segment of its group; nothing is merged
  std::int32_t group = 0;
  std::int32_t state = 0;        // where its states begin in the workspace
  std::int32_t group_state = 0;  // where those of its group begin
  std::int32_t group_states = 0;
  std::int32_t group_segments = 0;
  // Tiles [first_sure_tile, end_sure_tile) are seen as a whole.
  std::int32_t first_sure_tile = 0;
  std::int32_t end_sure_tile = 0;
  Sight sight = {};
};
static_assert(sizeof(Segment) == 80);

struct AttendArgs {
  CacheArgs cache = {};
  // For kernels that want rows aligned to 16 bytes.
  Steps k_steps = {};
  Steps v_steps = {};
  Steps k_scale_steps = {};
  Steps v_scale_steps = {};
  std::int32_t block_shift = -1;        // log2(block_size), or -1
  const std::int32_t* table = nullptr;  // [sequences, table_stride]
  std::int64_t table_stride = 0;
  const std::int32_t* kv_lens = nullptr;      // [sequences]
  const std::int32_t* query_start = nullptr;  // [sequences + 1]
  const std::int32_t* trim_sinks = nullptr;   // [sequences], null: no trims
  const std::int32_t* trim_first_kept = nullptr;

  const char* q = nullptr;   // [rows of query_start, num_heads * group_size, dim_k]
  std::int64_t q_token = 0;  // bytes
  std::int64_t q_head = 0;
  char* out = nullptr;  // [the same, dim_v]
  std::int64_t out_token = 0;
  std::int64_t out_head = 0;
  float* lse = nullptr;  // [rows, num_heads * group_size], natural logarithm; may be null
  Element q_element = Element::kBF16;    // f32, f16 or bf16
  Element out_element = Element::kBF16;  // f32, f16 or bf16

  std::int32_t group_size = 1;  // query heads for each KV head
  Mask mask = {};
  float scale_log2 = 1.0f;             // of q . k, times log2(e)
  float cap_log2 = 0.0f;               // soft cap of a score, times log2(e); 0: none
  float cap_inverse = 0.0f;            // 1 / cap_log2
  const float* slopes = nullptr;       // [num_heads * group_size]: ALiBi; null: none
  const float* sink_logits = nullptr;  // [num_heads * group_size]; null: none

  // node_kernel, general_kernel, merge_kernel
  const Item* items = nullptr;
  const Group* groups = nullptr;
  std::int32_t num_items = 0;
  std::int32_t num_groups = 0;
  // prefill kernels: {sequence, first_row, -, -}
  const Item* prefill_items = nullptr;
  std::int32_t num_prefill_items = 0;
  // stream_kernel
  const Segment* segments = nullptr;          // [blocks, segments_per_block]
  const std::int32_t* state_flags = nullptr;  // [states], StateFlag
  std::int32_t segments_per_block = 0;
  std::int32_t num_stream_blocks = 0;
  std::int32_t* arrivals = nullptr;  // [groups of the stream], zero before and after each call
  // States that wait to be merged: sums [state][row of the group][dim_v], and maximum and total.
  float* state_sums = nullptr;
  float* state_totals = nullptr;  // [state][row][2]
};

// What a state of the stream is: a whole node (or several, from the first on) is folded into the
// result; others are leaves or parts of a node, which the state with kEndsNode completes.
enum StateFlag : std::int32_t { kPartOfNode = 0, kWholeNodes = 1, kEndsNode = 2 };

}  // namespace kvfolio::cuda
