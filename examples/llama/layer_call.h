// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a CacheCompute (cache_compute.h) is asked for.

#include <cstdint>
#include <span>

#include "kvfolio/attention_params.h"
#include "kvfolio/view.h"

namespace kvfolio::llama {

// One layer of a step. The cache lies in the memory of the compute; all other rows and arrays in
// the host's.
struct LayerCall {
  KVView cache;
  std::int32_t layer = 0;                    // of the cache
  ConstRowsView k;                           // [num_tokens, num_kv_heads, head_dim] f32
  ConstRowsView v;                           // the same
  std::span<const std::int32_t> slots = {};  // [num_tokens]: where k and v go
  AttentionBatch batch;
  AttentionParams params;
  ConstRowsView q;  // [num_tokens, num_q_heads, head_dim] f32
  RowsView out;     // the same
};

}  // namespace kvfolio::llama
