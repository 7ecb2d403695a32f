// SPDX-License-Identifier: Apache-2.0
#pragma once

// CacheCompute is the machine behind a cache: the memory that its blocks lie in, and what writes
// and reads them there. HostCompute is a CPU's; a backend knows no other difference between a CPU
// and a device.
//
// Thread safety: none; one call at a time.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvfolio/kernels.h"
#include "kvfolio/memory.h"
#include "kvfolio/status.h"
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

class CacheCompute {
 public:
  virtual ~CacheCompute() = default;
  // What a cache's storage is made of. Lives as long as this.
  virtual MemoryResource& memory() noexcept = 0;
  // Writes k and v, then attends. `out` is there when it returns.
  virtual Status layer(const LayerCall& call) = 0;
  // The target that computes, as in summaries and in the name of what it computed: another one may
  // give other bits.
  [[nodiscard]] virtual std::string name() const = 0;
  // The kernels that attended since the last call of this, each once, by name in the order of the
  // alphabet. A CPU's target is one.
  virtual std::vector<std::string> take_kernels() = 0;
};

}  // namespace kvfolio::llama
