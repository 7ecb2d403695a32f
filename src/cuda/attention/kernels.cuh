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
#include "cuda/attention/wgmma_tiles_kernel.cuh"

namespace kvfolio::cuda {

// Instances of node_kernel. Where few blocks share the card, each warp has 24 KiB in flight; where
// there are many, more of them on an SM hide more than deep rings do.
template <Element E, int D>
struct FewNodes {
  static constexpr int kBlocks = 2, kStages = 768 / (D * element_bytes(E));
};
// One block has the ring and the registers of two.
template <Element E>
struct FewNodes<E, 256> {
  static constexpr int kBlocks = 1, kStages = 1536 / (256 * element_bytes(E));
};
template <Element E, int D>
struct ManyNodes {
  static constexpr int kBlocks = D == 64 ? 4 : 3;
  static constexpr int kShared = (228 << 10) / kBlocks - 1024;  // of a block of sm_90
  using OneStage = NodeMemory<E, D, 1>;
  static constexpr int kStages = (kShared - (OneStage::kBytes - OneStage::kRing)) / OneStage::kRing;
  static_assert(kStages >= 2);
};

template <Element E>
struct ManyNodes<E, 256> : FewNodes<E, 256> {};

// False: there is no such kernel.
template <Element E, int D, typename Start>
bool start_tiles(const KernelLaunch& launch, Start&& start) {
  auto start_nodes = [&]<typename Nodes, int kGroups>() {
    constexpr int kStages = Nodes::kStages;
    start(node_kernel<E, D, kGroups, kStages, Nodes::kBlocks>, 128,
          NodeMemory<E, D, kStages>::kBytes);
  };
  switch (launch.kernel) {
    case KernelName::kNode:
      if (launch.group_rows != 8) {
        if constexpr (D == 256) {
          return false;  // 16 rows of so many dims have no room in registers
        } else {
          start_nodes.template operator()<FewNodes<E, D>, 2>();
        }
      } else if (launch.many_nodes) {
        start_nodes.template operator()<ManyNodes<E, D>, 1>();
      } else {
        start_nodes.template operator()<FewNodes<E, D>, 1>();
      }
      return true;
    case KernelName::kPrefill:
      if constexpr (D <= 128) {
        start(prefill_kernel<E, D>, PrefillMemory<E, D>::kThreads, PrefillMemory<E, D>::kBytes);
        return true;
      }
      return false;
    case KernelName::kWgmma:
      if constexpr (D == 128 && !has_scales(E)) {
        start(wgmma_kernel<E == Element::kF16>, kGroupThreads, GroupMemory::kBytes);
        return true;
      }
      return false;
    case KernelName::kWgmmaTiles:
      if constexpr (D == 64 || (D == 128 && has_scales(E))) {
        start(wgmma_tiles_kernel<E, D>, kGroupThreads, GroupTileMemory<E, D>::kBytes);
        return true;
      }
      return false;
    case KernelName::kStream:
      if constexpr (D <= 128 && !has_scales(E)) {
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
