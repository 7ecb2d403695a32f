// SPDX-License-Identifier: Apache-2.0
#pragma once

// From the name of a kernel to its instance, threads and shared memory. `start` is called as
// start(kernel, threads, shared_bytes) and starts it: on a GPU (launch.cu), or on the model of one.

#include "cuda/attention/attend.h"
#include "cuda/attention/general_kernel.cuh"
#include "cuda/attention/node_kernel.cuh"
#include "cuda/attention/prefill_kernel.cuh"
#include "cuda/attention/stream_kernel.cuh"
#include "cuda/attention/wgmma_kernel.cuh"

namespace kvfolio::cuda {

// Stages of a warp's ring: 24 KiB in flight for each warp whatever a row's size.
template <Element E, int D>
inline constexpr int kNodeStages = 768 / (D * element_bytes(E));

// False: there is no such kernel.
template <Element E, int D, typename Start>
bool start_tiles(const KernelLaunch& launch, Start&& start) {
  constexpr int kStages = kNodeStages<E, D>;
  switch (launch.kernel) {
    case KernelName::kNode:
      if (launch.group_rows == 8) {
        start(node_kernel<E, D, 1, kStages>, 128, NodeMemory<E, D, kStages>::kBytes);
      } else {
        start(node_kernel<E, D, 2, kStages>, 128, NodeMemory<E, D, kStages>::kBytes);
      }
      return true;
    case KernelName::kPrefill:
      start(prefill_kernel<E, D>, PrefillMemory<E, D>::kThreads, PrefillMemory<E, D>::kBytes);
      return true;
    case KernelName::kWgmma:
      if constexpr (D == 128 && !has_scales(E)) {
        start(wgmma_kernel<E == Element::kF16>, kGroupThreads, GroupMemory::kBytes);
        return true;
      }
      return false;
    case KernelName::kStream:
      if constexpr (!has_scales(E)) {
        start(stream_kernel<E, D>, 128, StreamMemory<E, D>::kBytes);
        return true;
      }
      return false;
    default:
      return false;
  }
}

template <typename Start>
bool start_others(const KernelLaunch& launch, Start&& start) {
  if (launch.kernel == KernelName::kGeneral) {
    start(general_kernel<kGeneralThreads>, kGeneralThreads,
          static_cast<int>(sizeof(GeneralMemory)));
    return true;
  }
  if (launch.kernel != KernelName::kMerge) return false;
  if (launch.group_rows == 8) {
    start(merge_kernel<8>, kMergeThreads, 0);
  } else {
    start(merge_kernel<16>, kMergeThreads, 0);
  }
  return true;
}

}  // namespace kvfolio::cuda
