// SPDX-License-Identifier: Apache-2.0
#pragma once

// K and V of a sequence, out of its blocks into rows that follow each other: for a kernel that
// knows no blocks, to send a sequence elsewhere, or to look at it. The manager has both the table
// and the bytes, so the caller needs neither.
//
//   const std::int32_t n = manager.info(sequence)->length;
//   std::vector<float> k(n * num_kv_heads * head_dim);
//   gather(manager, sequence, {.layer = 3}, contiguous_rows(k.data(), n, num_kv_heads, head_dim));
//
// What is gathered is the caller's: later changes of the sequence do not change it. Thread safety:
// that of a const call of the manager, while no kernel writes to the sequence's blocks.

#include <cstdint>

#include "kvfolio/export.h"
#include "kvfolio/ids.h"
#include "kvfolio/manager.h"
#include "kvfolio/status.h"
#include "kvfolio/view.h"

namespace kvfolio {

// The layer to read, and the position that the first row is of.
struct GatherFrom {
  GroupId group = GroupId(0);
  std::int32_t layer = 0;
  std::int32_t first = 0;
};

// Copies positions from.first, from.first + 1, ... to the rows of k and v:
//   k  [n, num_kv_heads, head_dim_k], any element type and strides
//   v  [n, num_kv_heads, head_dim_v]; if V is a prefix of K, the first elements of K
// A view with null data is not written; if both have a shape, both have n tokens. The tokens of the
// open step count, as in attend(): the caller has run the step's copies, and written their K and V.
// kNotFound, kAborted: the sequence. kInvalidArgument: the group or layer, positions that the
// sequence does not have (names both), another number of rows of v than of k, a shape that does not
// fit, a V that the group does not have. kFailedPrecondition: a trim or a window has dropped a
// position, or the manager was moved from. kUnsupported: the manager has no storage, or the CPU may
// not touch it. Nothing is written then. No heap memory but for the text of an error.
KVFOLIO_API Status gather(const KVCacheManager& manager, SequenceId sequence,
                          const GatherFrom& from, const RowsView& k, const RowsView& v = {});

}  // namespace kvfolio
