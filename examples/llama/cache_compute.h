// SPDX-License-Identifier: Apache-2.0
#pragma once

// CacheCompute is the machine behind a cache: the memory that its blocks lie in, and what writes
// and reads them there. HostCompute is a CPU's; a backend knows no other difference between a CPU
// and a device.
//
// Thread safety: none; one call at a time.

#include <string>
#include <vector>

#include "kvfolio/memory.h"
#include "kvfolio/status.h"

namespace kvfolio::llama {

struct LayerCall;  // layer_call.h

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
