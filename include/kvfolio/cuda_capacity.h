// SPDX-License-Identifier: Apache-2.0
#pragma once

// How large a batch of attention on a device is: the shape of its plan, by which a captured graph
// is known, and the capacity that a plan is padded to (cuda_kernels.h). Thread safety: values.

#include <compare>
#include <cstdint>

#include "kvfolio/export.h"

namespace kvfolio::cuda {

// What the launches of a plan depend on beside the call: how many there are, their grids and where
// they find what in the image and the workspace. A graph that captured attend() serves every plan
// of an equal shape whose call has the same addresses, parameters and numbers of sequences and
// rows: upload its image to the same place, then replay.
struct AttendShape {
  std::int32_t num_sequences = 0;
  std::int32_t num_rows = 0;  // of q
  std::int32_t items = 0;
  std::int32_t groups = 0;
  std::int32_t prefill_items = 0;
  std::int32_t segments = 0;
  std::int32_t segments_per_block = 0;
  std::int32_t states = 0;
  bool many_nodes = false;
  bool merges = false;
  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 takes the comparison for a null
  friend auto operator<=>(const AttendShape&, const AttendShape&) = default;
};

// The largest batch that a captured graph is to serve. A plan that is padded to it has grids, an
// image and a workspace of one size, whatever the lengths: items behind the work are empty.
struct AttendCapacity {
  std::int32_t max_sequences = 0;        // 1 to 2^20
  std::int32_t max_sequence_tokens = 0;  // of K and V of one sequence: 1 to kMaxSequenceTokens
  std::int64_t max_tokens = 0;           // of all together; 0: max_sequences x max_sequence_tokens
  std::int32_t max_queries = 1;          // rows of q of one sequence: 1, a decode, to 2^16
  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 takes the comparison for a null
  friend auto operator<=>(const AttendCapacity&, const AttendCapacity&) = default;
};

}  // namespace kvfolio::cuda
