// SPDX-License-Identifier: Apache-2.0
#pragma once

// ParallelAttend runs kvfolio::attend() on a ThreadPool: it cuts the call into slices of rows and
// KV heads, which changes no bit, and keeps the workspaces.
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
  explicit ParallelAttend(ThreadPool& pool) : pool_(pool) {}

  // args.workspace and args.slice are set here.
  Status run(const AttentionArgs& args);

 private:
  Status size_workspaces(const AttentionArgs& args);

  ThreadPool& pool_;
  std::size_t workspace_bytes_ = 0;  // of one part, a multiple of 64
  std::int32_t sized_for_ = 0;       // tokens
  std::vector<std::byte> workspaces_;
  std::vector<Status> statuses_;  // by part
};

}  // namespace kvfolio::llama
