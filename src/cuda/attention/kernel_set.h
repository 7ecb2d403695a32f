// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which cards the kernels of attention are compiled for: two sets of images, of which a device
// takes one. Values only.

#include <cstdint>

namespace kvfolio::cuda {

enum class KernelSet : std::int32_t {
  kSm90a = 0,  // machine code for compute capability 9.0 alone: wgmma, launches that overlap
  kSm80 = 1,   // for 8.x, and PTX of which a driver makes machine code for 10.0 on
};

// What a block may have of shared memory on any card of compute capability 8.0 on: 99 KiB, of
// sm_86, sm_89 and sm_120.
inline constexpr std::int32_t kLeastSharedOfBlock = 99 << 10;

}  // namespace kvfolio::cuda
