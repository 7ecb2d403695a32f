// SPDX-License-Identifier: Apache-2.0
#define KVFOLIO_CUDA_HOST_MODEL
#include "cuda/attention/host_model.h"
//
#include <map>
#include <string>

#include "cuda/attention/kernels.cuh"
#include "cuda/attention/module.h"
#include "cuda/library/host_kernels.h"

namespace kvfolio::cuda {

KernelsOnHost general_attention_on_host() {
  std::map<std::string, KernelLaunch> names;
  // The same names in both sets.
  for (const KernelLaunch& launch : other_launches()) {
    names[kernel_of(launch, KernelSet::kSm90a).symbol] = launch;
  }
  return [names](const FakeDriver::Start& start) {
    std::function<void()> work;
    if (start.name == plan_kernel_of().symbol) {
      work = [args = *static_cast<const PaddedArgs*>(start.args)] {
        start_plan([&](auto kernel, int threads, int shared) {
          model::launch(1, threads, shared, false, [&] { kernel(args); });
        });
      };
      return work;
    }
    const auto known = names.find(start.name);
    if (known == names.end()) return work;
    KernelLaunch launch = known->second;
    launch.grid = static_cast<std::int32_t>(start.x);
    launch.args = *static_cast<const AttendArgs*>(start.args);
    work = [launch] {
      const bool found = start_others(launch, [&](auto kernel, int threads, int shared) {
        model::launch(launch.grid, threads, shared, false, [&] { kernel(launch.args); });
      });
      KVFOLIO_CHECK(found);
    };
    return work;
  };
}

}  // namespace kvfolio::cuda
