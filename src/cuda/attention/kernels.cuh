// SPDX-License-Identifier: Apache-2.0
#pragma once

// From the name of a kernel to its instance, threads and shared memory. `start` is called as
// start(kernel, threads, shared_bytes) and starts it: on a GPU (launch.cu), or on the model of one.

#include "cuda/attention/attend.h"
#include "cuda/attention/general_kernel.cuh"
#include "cuda/attention/kernel_set.h"
#include "cuda/attention/narrow_kernel.cuh"
#include "cuda/attention/node_kernel.cuh"
#include "cuda/attention/plan_kernel.cuh"
#include "cuda/attention/prefill_kernel.cuh"
#include "cuda/attention/stream_kernel.cuh"
#include "cuda/attention/wgmma_kernel.cuh"
#include "cuda/attention/wgmma_tiles_kernel.cuh"

namespace kvfolio::cuda {

// Stages of node_kernel that leave room for kBlocks blocks on an SM of kSharedKiB.
template <Element E, int D, int kSharedKiB, int kBlocks>
constexpr int stages_within() {
  using OneStage = NodeMemory<E, D, 1>;
  constexpr int kShared = (kSharedKiB << 10) / kBlocks - 1024;  // of a block
  return (kShared - (OneStage::kBytes - OneStage::kRing)) / OneStage::kRing;
}

// Instances of node_kernel. Where few blocks share the card, each warp has 24 KiB in flight; where
// there are many, more of them on an SM hide more than deep rings do.
template <Element E, int D, KernelSet kSet>
struct FewNodes {
  static constexpr int kBlocks = 2, kStages = 768 / (D * element_bytes(E));
};
template <Element E, int D, KernelSet kSet>
struct ManyNodes {
  static constexpr int kBlocks = D == 64 ? 4 : 3;
  static constexpr int kStages = stages_within<E, D, 228, kBlocks>();
  static_assert(kStages >= 2);
};
// For all cards from sm_80 on, whose SMs have 100 KiB (sm_86, sm_89, sm_120), 164 (sm_80) or more:
// two blocks on an SM of sm_80 with few nodes, three with many, of which sm_86 has one and two. 16
// bits and head_dim 128 have no smaller ring than of two stages.
template <Element E, int D>
struct FewNodes<E, D, KernelSet::kSm80> {
  static constexpr int kBlocks = 2, kStages = stages_within<E, D, 164, kBlocks>();
  static_assert(kStages >= 2 && NodeMemory<E, D, kStages>::kBytes <= kLeastSharedOfBlock);
};
template <Element E, int D>
struct ManyNodes<E, D, KernelSet::kSm80> {
  static constexpr int kSmall = stages_within<E, D, 100, 2>();
  static constexpr bool kFits = kSmall >= 2;
  static constexpr int kBlocks = kFits ? 3 : FewNodes<E, D, KernelSet::kSm80>::kBlocks;
  static constexpr int kStages = kFits ? kSmall : FewNodes<E, D, KernelSet::kSm80>::kStages;
};

// One block has the ring and the registers of two: more than cards other than sm_90 have, where the
// general kernel takes 256 dims.
template <Element E>
struct FewNodes<E, 256, KernelSet::kSm90a> {
  static constexpr int kBlocks = 1, kStages = 1536 / (256 * element_bytes(E));
};
template <Element E>
struct ManyNodes<E, 256, KernelSet::kSm90a> : FewNodes<E, 256, KernelSet::kSm90a> {};

template <Element E, int D, KernelSet kSet, typename Start>
bool start_compiled_tiles(const KernelLaunch& launch, Start&& start) {
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
          start_nodes.template operator()<FewNodes<E, D, kSet>, 2>();
        }
      } else if (launch.many_nodes) {
        start_nodes.template operator()<ManyNodes<E, D, kSet>, 1>();
      } else {
        start_nodes.template operator()<FewNodes<E, D, kSet>, 1>();
      }
      return true;
    case KernelName::kPrefill:
      if constexpr (D <= 128) {
        start(prefill_kernel<E, D>, PrefillMemory<E, D>::kThreads, PrefillMemory<E, D>::kBytes);
        return true;
      }
      return false;
    case KernelName::kNarrow:
      if constexpr (kSet == KernelSet::kSm80) {
        static_assert(NarrowMemory<E, D>::kBytes <= kLeastSharedOfBlock);
        start(narrow_kernel<E, D>, kNarrowThreads, NarrowMemory<E, D>::kBytes);
        return true;
      }
      return false;
    case KernelName::kWgmma:
      if constexpr (kSet == KernelSet::kSm90a && D == 128 && !has_scales(E)) {
        start(wgmma_kernel<E == Element::kF16>, kGroupThreads, GroupMemory::kBytes);
        return true;
      }
      return false;
    case KernelName::kWgmmaTiles:
      if constexpr (kSet == KernelSet::kSm90a && (D == 64 || (D == 128 && has_scales(E)))) {
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

// False: there is no such kernel.
template <Element E, int D, KernelSet kSet, typename Start>
bool start_tiles(const KernelLaunch& launch, Start&& start) {
  if constexpr (D == 256 && kSet != KernelSet::kSm90a) {
    return false;
  } else {
    return start_compiled_tiles<E, D, kSet>(launch, start);
  }
}

// The kernel that makes a padded plan; start(kernel, threads, shared_bytes) starts one block.
template <typename Start>
void start_plan(Start&& start) {
  start(plan_kernel<kPlanThreads>, kPlanThreads, static_cast<int>(sizeof(PlanMemory)));
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
