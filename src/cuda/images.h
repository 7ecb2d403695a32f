// SPDX-License-Identifier: Apache-2.0
#pragma once

// The compiled kernels that are in the library: what nvcc made, embedded as bytes. A build without
// nvcc has an empty table (no_images.cc), tests have tables of their own. Thread safety: constants.

#include <span>
#include <string_view>

namespace kvfolio::cuda {

struct KernelImage {
  std::string_view name;  // "moves", "attend", "attend_bf16_128", ...
  const void* data;       // a cubin or a fatbin
};
[[nodiscard]] std::span<const KernelImage> kernel_images();

}  // namespace kvfolio::cuda
