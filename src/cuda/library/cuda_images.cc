// SPDX-License-Identifier: Apache-2.0

// cuda_images: whether what nvcc made has every kernel that the library starts, by name. Built with
// KVFOLIO_BUILD_CUDA, run by tests/package/check_cuda.

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/attention/module.h"
#include "cuda/images.h"
#include "cuda/move_module.h"

namespace kvfolio::cuda {
namespace {

std::vector<std::string> symbols_in(std::string_view image) {
  std::vector<std::string> symbols;
  if (image == "moves") {
    for (const MoveKernel& kernel : all_move_kernels()) symbols.push_back(symbol_of(kernel));
    return symbols;
  }
  // attend, attend_TYPE_DIM, attend_sm80, attend_sm80_TYPE_DIM
  const KernelSet set = image.starts_with("attend_sm80") ? KernelSet::kSm80 : KernelSet::kSm90a;
  std::vector<KernelLaunch> launches = other_launches();
  for (const Element element : {Element::kF16, Element::kBF16, Element::kInt8, Element::kE4M3}) {
    for (const std::int32_t head_dim : {64, 128, 256}) {
      const std::vector<KernelLaunch> tiles = launches_of_tiles(element, head_dim, set);
      launches.insert(launches.end(), tiles.begin(), tiles.end());
    }
  }
  if (image == "attend" || image == "attend_sm80") symbols.push_back(plan_kernel_of().symbol);
  for (const KernelLaunch& launch : launches) {
    if (image_of(launch, set) == image) symbols.push_back(kernel_of(launch, set).symbol);
  }
  return symbols;
}

int check_images() {
  int faults = kernel_images().empty() ? 1 : 0;
  for (const KernelImage& image : kernel_images()) {
    const std::string_view bytes(static_cast<const char*>(image.data), image.bytes);
    const std::vector<std::string> symbols = symbols_in(image.name);
    if (symbols.empty()) ++faults;
    for (const std::string& symbol : symbols) {
      if (bytes.find(symbol) != std::string_view::npos) continue;
      std::printf("image %s has no kernel %s\n", std::string(image.name).c_str(), symbol.c_str());
      ++faults;
    }
    std::printf("%s: %zu bytes, %zu kernels\n", std::string(image.name).c_str(), bytes.size(),
                symbols.size());
  }
  return faults == 0 ? 0 : 1;
}

}  // namespace
}  // namespace kvfolio::cuda

int main() { return kvfolio::cuda::check_images(); }
