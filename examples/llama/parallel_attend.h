// SPDX-License-Identifier: Apache-2.0
#pragma once

// ParallelAttend runs kvfolio::attend() on the threads of a pool and keeps its workspace.
//
// Thread safety: none; one call at a time.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvfolio/executor.h"
#include "kvfolio/kernels.h"

namespace kvfolio::llama {

class ParallelAttend {
 public:
  // `pool` outlives the object.
  explicit ParallelAttend(ThreadPool& pool) : executor_(pool.executor()) {}

  // args.workspace and args.executor are set here.
  Status run(AttentionArgs args);

 private:
  Executor executor_;
  std::int32_t sized_for_ = 0;  // tokens
  std::vector<std::byte> workspace_;
};

}  // namespace kvfolio::llama
