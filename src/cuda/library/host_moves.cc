// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <string>

#include "cuda/host_queue.h"
#include "cuda/library/host_kernels.h"
#include "cuda/move_kernels.cuh"
#include "cuda/move_module.h"
#include "cuda/on_host.h"

namespace kvfolio::cuda {

Status HostQueue::launch(const MoveKernel& kernel, const Grid& grid, const void* args,
                         std::size_t args_bytes) {
  ++launches;
  bool fits = false;
  const bool found = with_kernel(kernel, args, [&](auto type, const auto& typed) {
    fits = sizeof typed == args_bytes;
    on_host::launch({grid.x, grid.y, grid.z}, kThreads, type.kMeets, seed++,
                    [&] { type.run(typed); });
    return true;
  });
  if (found && fits) return {};
  return {ErrorCode::kUnsupported, "no such kernel, or other arguments"};
}

KernelsOnHost moves_on_host() {
  std::map<std::string, MoveKernel> names;
  for (const MoveKernel& kernel : all_move_kernels()) names[symbol_of(kernel)] = kernel;
  return [names](const FakeDriver::Start& start) {
    std::function<void()> work;
    const auto known = names.find(start.name);
    if (known == names.end() || start.threads != kThreads) return work;
    with_kernel(known->second, start.args, [&](auto type, const auto& typed) {
      work = [type, typed, grid = on_host::Dim{start.x, start.y, start.z}] {
        on_host::launch(grid, kThreads, type.kMeets, 1, [&] { type.run(typed); });
      };
      return true;
    });
    return work;
  };
}

}  // namespace kvfolio::cuda
