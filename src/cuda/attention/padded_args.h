// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the kernel that makes a padded plan is told, by value, and what a padded plan has where
// there is no work: host and device write the same. The host checks it (padded.cc).

#include <cstddef>
#include <cstdint>

#include "cuda/attention/args.h"

namespace kvfolio::cuda {

// How much room a padded plan has: in nodes (items and groups), or as a stream.
struct PaddedRoom {
  std::int32_t items = 0;
  std::int32_t groups = 0;  // and one behind them, of all empty items
  bool merges = false;      // a group may have several items
  std::int32_t stream_blocks = 0;
  std::int32_t segments_per_block = 0;
  std::int32_t states = 0;
  std::int32_t stream_groups = 0;
};

struct PaddedArgs {
  const std::int32_t* query_start = nullptr;  // [max_sequences + 1]
  const std::int32_t* kv_lens = nullptr;      // [max_sequences]
  const std::int32_t* trim_sinks = nullptr;   // [max_sequences], null: no trims
  const std::int32_t* trim_first_kept = nullptr;
  const std::int32_t* num_sequences = nullptr;  // null: max_sequences
  std::int32_t max_sequences = 0;
  std::int32_t max_sequence_tokens = 0;
  std::int64_t max_tokens = 0;
  std::int32_t max_queries = 1;
  std::int32_t group_size = 1;
  std::int32_t num_heads = 1;
  std::int32_t group_rows = 8;
  Mask mask = {};
  PaddedRoom room = {};
  // What is written. Items and groups, or segments and state flags, one behind the other.
  char* image = nullptr;
  std::int32_t* arrivals = nullptr;  // [num_arrivals]
  std::int32_t num_arrivals = 0;
  unsigned long long* fault = nullptr;  // may be null
};

// The node of an empty item: no sequence is so long, so no tile of it is seen. Not the last one of
// an int32_t, whose end, which the kernels compute as first + kTileTokens - 1, overflows on its
// way.
inline constexpr std::int32_t kNoNode = (1 << 21) - 2;
// The first row of an empty group: no sequence has it, so the merge leaves it alone.
inline constexpr std::int32_t kNoRows = 1 << 30;

// An empty item is one row of a sequence that has rows, and lengths within the capacity, over a
// node that is not there: its block reads that row of q and no key, and leaves an empty state in
// its own place, which is of no group that is merged. (A row behind the last one would be read,
// too, and may lie outside of q.)
KVFOLIO_CUDA_BOTH Item empty_item(std::int32_t sequence, std::int32_t rows,
                                  std::int32_t behind_groups) {
  return {sequence, rows > 0 ? rows - 1 : 0, kNoNode, behind_groups};
}
// The group of all empty items, behind those that are merged: of no item, so none writes a row.
KVFOLIO_CUDA_BOTH Group group_of_empty_items() { return {0, kNoRows, 0, 0}; }
// One item writes its rows itself, so the merge leaves this group alone whatever lengths say.
KVFOLIO_CUDA_BOTH Group empty_group() { return {0, kNoRows, 0, 1}; }

// Limits of a stream that is planned on the device: its shared memory.
inline constexpr int kMostStreamSequences = 2048;
inline constexpr int kMostStreamBlocks = 4096;

}  // namespace kvfolio::cuda
