// SPDX-License-Identifier: Apache-2.0
#pragma once

// HostCompute is a CPU: kvfolio::append() and kvfolio::attend() on the threads of a pool, over a
// workspace that it keeps.
//
// Thread safety: none; one call at a time.

#include <cstddef>
#include <string>
#include <vector>

#include "cache_compute.h"
#include "kvfolio/executor.h"
#include "kvfolio/kernel_target.h"

namespace kvfolio::llama {

class HostCompute final : public CacheCompute {
 public:
  // `pool` outlives the object.
  HostCompute(ThreadPool& pool, KernelTarget kernel)
      : executor_(pool.executor()), kernel_(kernel) {}

  MemoryResource& memory() noexcept override { return memory_; }
  Status layer(const LayerCall& call) override;
  [[nodiscard]] std::string name() const override { return to_string(kernel_); }
  std::vector<std::string> take_kernels() override;

 private:
  HostMemory memory_;
  Executor executor_;
  KernelTarget kernel_;
  std::vector<std::byte> workspace_;
  bool attended_ = false;  // since take_kernels()
};

}  // namespace kvfolio::llama
