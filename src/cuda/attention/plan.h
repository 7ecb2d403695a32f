// SPDX-License-Identifier: Apache-2.0
#pragma once

// How a batch is cut into work for kernels: on the host, from lengths alone. No cut changes a bit
// of a row, since every cut lies at a border of the tree of sums (args.h).
//
// Sequences with many rows go to a prefill kernel, which finishes its rows; the others are cut into
// nodes of 1,024 positions, and groups of several nodes are merged. Nodes that no row of a group
// sees (a window, a chunk, a trim) are left out. A group that sees nothing keeps one node, which
// writes zeros.

#include <cstdint>
#include <span>
#include <vector>

#include "cuda/attention/args.h"
#include "kernels/lengths.h"

namespace kvfolio::cuda {

using kernels::BatchLengths;  // on the host

struct PlanOptions {
  std::int32_t group_size = 1;    // query heads for each KV head
  std::int32_t num_heads = 1;     // KV heads
  std::int32_t group_rows = 8;    // rows of a node item: 8 or 16
  std::int32_t prefill_rows = 0;  // rows of a prefill item; 0: no prefill kernel
  std::int32_t prefill_from = 0;  // a sequence with at least so many rows goes to it
  // Blocks of threads that a stream may use; 0: no stream. The kernel takes sequences of one query
  // and up to 8 query heads for each KV head.
  std::int32_t stream_blocks = 0;
  // The stream takes sequences without queries, which have no work, and those that see nothing,
  // whose one leaf writes zeros.
  bool stream_of_any_decode = false;
};

struct WorkPlan {
  std::vector<Item> items;
  std::vector<Group> groups;
  std::vector<Item> prefill_items;
  bool merges = false;  // some group has several items
  // The stream, instead of items and groups, where stream_blocks > 0.
  std::vector<Segment> segments;  // [stream_blocks, segments_per_block]
  std::vector<std::int32_t> state_flags;
  std::int32_t stream_blocks = 0;
  std::int32_t segments_per_block = 0;
  std::int32_t stream_groups = 0;
};

// Requires: lengths that attend() has checked.
[[nodiscard]] WorkPlan plan_work(const BatchLengths& lengths, const Mask& mask,
                                 const PlanOptions& options);

}  // namespace kvfolio::cuda
