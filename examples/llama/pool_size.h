// SPDX-License-Identifier: Apache-2.0
#pragma once

// How many blocks a load needs: for the size of a pool, and to refuse at once what can never run.
//
// Thread safety: no state.

#include <cstdint>

#include "config.h"
#include "kvfolio/spec.h"

namespace kvfolio::llama {

// The groups of a model's layers, num_blocks left at 0: one group, of sliding-window layers when
// the model has them, else of full ones.
struct CacheShape {
  std::int32_t block_size = 16;
  DType dtype = DType::kF32;
  Format format = Format::kHnd;
};
[[nodiscard]] CacheSpec cache_spec(const ModelConfig& config, const CacheShape& shape);
// The shape that all groups of cache_spec() have in common.
[[nodiscard]] CacheShape shape_of(const CacheSpec& spec);

// Sequences that begin with the same tokens and go on apart: samples and beams.
struct Load {
  std::int32_t num_shared = 0;  // tokens that all begin with
  std::int32_t num_tokens = 0;  // of each
  std::int32_t num_branches = 1;
  std::int32_t step_tokens = 1;  // the most that one appends at once: what a window holds beside
};

// Blocks of one group that suffice for the load alone.
[[nodiscard]] std::int64_t blocks_needed(const GroupSpec& group, const Load& load);

}  // namespace kvfolio::llama
