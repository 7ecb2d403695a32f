// SPDX-License-Identifier: Apache-2.0
#pragma once

// Lengths of a batch that is attended over, and their checks: equal for every target, a device's
// too (src/cuda/attention).

#include <cstdint>
#include <span>

#include "kvfolio/status.h"

namespace kvfolio::kernels {

// What AttentionBatch (attention_params.h) says beside its block table.
struct BatchLengths {
  std::span<const std::int32_t> query_start = {};  // [sequences + 1]
  std::span<const std::int32_t> kv_lens = {};      // [sequences]
  std::span<const std::int32_t> trim_sinks = {};   // [sequences], or both empty
  std::span<const std::int32_t> trim_first_kept = {};
};

// Each sequence's tokens stand in a row of `table_stride` blocks. `positions_matter`: a query reads
// what its position allows, so a sequence has a token for each of its queries.
Status check_lengths(const BatchLengths& lengths, std::int64_t table_stride,
                     std::int32_t block_size, bool positions_matter);

}  // namespace kvfolio::kernels
