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

KernelsOnHost tile_attention_on_host() {
  constexpr KernelSet kSet = KernelSet::kSm90a;
  std::map<std::string, KernelLaunch> names;
  for (const Element element : {Element::kBF16, Element::kInt8}) {
    for (const KernelLaunch& launch : launches_of_tiles(element, 64, kSet)) {
      names[kernel_of(launch, kSet).symbol] = launch;
    }
  }
  return [names](const FakeDriver::Start& start) {
    std::function<void()> work;
    const auto known = names.find(start.name);
    if (known == names.end()) return work;
    KernelLaunch launch = known->second;
    launch.grid = static_cast<std::int32_t>(start.x);
    launch.args = *static_cast<const AttendArgs*>(start.args);
    work = [launch] {
      const auto begin = [&](auto kernel, int threads, int shared) {
        model::launch(launch.grid, threads, shared, false, [&] { kernel(launch.args); });
      };
      const bool found = launch.element == Element::kInt8
                             ? start_tiles<Element::kInt8, 64, kSet>(launch, begin)
                             : start_tiles<Element::kBF16, 64, kSet>(launch, begin);
      KVFOLIO_CHECK(found);
    };
    return work;
  };
}

}  // namespace kvfolio::cuda
