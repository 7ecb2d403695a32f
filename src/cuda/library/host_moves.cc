// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <string>

#include "cuda/host_machine.h"
#include "cuda/library/host_kernels.h"
#include "cuda/move_module.h"

namespace kvfolio::cuda {

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
