// SPDX-License-Identifier: Apache-2.0

// The names and numbers by which kernels of attention are started are those of their text. The text
// runs on the model of a GPU (attention/host_model.h) for the other tests of this program, too.

#define KVFOLIO_CUDA_HOST_MODEL
#include "cuda/attention/host_model.h"
//
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "cuda/attention/kernels.cuh"
#include "cuda/attention/module.h"
#include "cuda/library/host_kernels.h"

namespace kvfolio::cuda {
namespace {

using testing::HasSubstr;

template <Element E, int D, KernelSet kSet>
void numbers_of_a_set_are_those_of_the_text() {
  using Few = FewNodes<E, D, kSet>;
  using Many = ManyNodes<E, D, kSet>;
  int found = 0;
  for (const KernelLaunch& launch : launches_of_tiles(E, D, kSet)) {
    const AttendKernel kernel = kernel_of(launch, kSet);
    int threads = 128, bytes = 0;
    std::string name;
    if (launch.kernel == KernelName::kNode) {
      const bool many = launch.many_nodes && launch.group_rows == 8;
      bytes =
          many ? NodeMemory<E, D, Many::kStages>::kBytes : NodeMemory<E, D, Few::kStages>::kBytes;
      const int stages = many ? Many::kStages : Few::kStages;
      const int blocks = many ? Many::kBlocks : Few::kBlocks;
      name = text::concat("ELi", D, "ELi", launch.group_rows / 8, "ELi", stages, "ELi", blocks,
                          "EEEv");
    } else if (launch.kernel == KernelName::kPrefill) {
      threads = PrefillMemory<E, D>::kThreads;
      bytes = PrefillMemory<E, D>::kBytes;
    } else if (launch.kernel == KernelName::kNarrow) {
      threads = kNarrowThreads;
      bytes = NarrowMemory<E, D>::kBytes;
    } else if (launch.kernel == KernelName::kWgmma) {
      threads = kGroupThreads;
      bytes = GroupMemory::kBytes;
    } else if (launch.kernel == KernelName::kWgmmaTiles) {
      threads = kGroupThreads;
      if constexpr (D <= 128) bytes = GroupTileMemory<E, D>::kBytes;
    } else {
      if constexpr (!has_scales(E)) bytes = StreamMemory<E, D>::kBytes;
    }
    EXPECT_EQ(kernel.threads, threads) << kernel.symbol;
    EXPECT_EQ(kernel.shared_bytes, bytes) << kernel.symbol;
    EXPECT_THAT(kernel.symbol, HasSubstr(name));
    ++found;
  }
  EXPECT_EQ(found, D == 256 ? 2 : has_scales(E) ? 12 : 16);
}
template <Element E, int D>
void numbers_are_those_of_the_text() {
  numbers_of_a_set_are_those_of_the_text<E, D, KernelSet::kSm90a>();
  if constexpr (D <= 128) numbers_of_a_set_are_those_of_the_text<E, D, KernelSet::kSm80>();
}

TEST(CudaAttendModules, NumbersOfKernelsAreThoseOfTheirText) {
  numbers_are_those_of_the_text<Element::kF16, 64>();
  numbers_are_those_of_the_text<Element::kF16, 128>();
  numbers_are_those_of_the_text<Element::kF16, 256>();
  numbers_are_those_of_the_text<Element::kBF16, 64>();
  numbers_are_those_of_the_text<Element::kBF16, 128>();
  numbers_are_those_of_the_text<Element::kBF16, 256>();
  numbers_are_those_of_the_text<Element::kInt8, 64>();
  numbers_are_those_of_the_text<Element::kInt8, 128>();
  numbers_are_those_of_the_text<Element::kInt8, 256>();
  numbers_are_those_of_the_text<Element::kE4M3, 64>();
  numbers_are_those_of_the_text<Element::kE4M3, 128>();
  numbers_are_those_of_the_text<Element::kE4M3, 256>();
  const std::vector<KernelLaunch> others = other_launches();
  for (const KernelSet set : {KernelSet::kSm90a, KernelSet::kSm80}) {
    EXPECT_EQ(kernel_of(others[0], set).threads, kGeneralThreads);
    const int general_bytes = static_cast<int>(sizeof(GeneralMemory));
    EXPECT_EQ(kernel_of(others[0], set).shared_bytes, general_bytes);
    EXPECT_EQ(kernel_of(others[1], set).threads, kMergeThreads);
  }
  EXPECT_EQ(plan_kernel_of().threads, kPlanThreads);
  EXPECT_EQ(plan_kernel_of().shared_bytes, static_cast<int>(sizeof(PlanMemory)));
  KernelLaunch none;
  none.kernel = KernelName::kStream;
  none.element = Element::kInt8;
  none.head_dim = 64;
  EXPECT_EQ(kernel_of(none, KernelSet::kSm90a).symbol, "");
  none.kernel = KernelName::kNarrow;
  EXPECT_EQ(kernel_of(none, KernelSet::kSm90a).symbol, "");
}

// As nvcc 13.0 and g++ 12 mangle them.
TEST(CudaAttendModules, SymbolsAreThoseOfTheCompiler) {
  KernelLaunch launch;
  launch.kernel = KernelName::kNode;
  launch.element = Element::kBF16;
  launch.head_dim = 128;
  EXPECT_EQ(kernel_of(launch, KernelSet::kSm90a).symbol,
            "_ZN7kvfolio4cuda11node_kernelILNS0_7ElementE2ELi128ELi1ELi3ELi2EEEvNS0_10AttendArgsE");
  EXPECT_EQ(kernel_of(launch, KernelSet::kSm80).symbol,
            "_ZN7kvfolio4cuda11node_kernelILNS0_7ElementE2ELi128ELi1ELi2ELi2EEEvNS0_10AttendArgsE");
  launch.kernel = KernelName::kNarrow;
  EXPECT_EQ(kernel_of(launch, KernelSet::kSm80).symbol,
            "_ZN7kvfolio4cuda13narrow_kernelILNS0_7ElementE2ELi128EEEvNS0_10AttendArgsE");
  launch.kernel = KernelName::kWgmma;
  EXPECT_EQ(kernel_of(launch, KernelSet::kSm90a).symbol,
            "_ZN7kvfolio4cuda12wgmma_kernelILb0EEEvNS0_10AttendArgsE");
  launch.kernel = KernelName::kWgmmaTiles;
  EXPECT_EQ(kernel_of(launch, KernelSet::kSm90a).symbol, "");
  launch.head_dim = 64;
  EXPECT_EQ(kernel_of(launch, KernelSet::kSm90a).symbol,
            "_ZN7kvfolio4cuda18wgmma_tiles_kernelILNS0_7ElementE2ELi64EEEvNS0_10AttendArgsE");
  EXPECT_EQ(kernel_of(launch, KernelSet::kSm80).symbol, "");
  launch.kernel = KernelName::kMerge;
  EXPECT_EQ(kernel_of(launch, KernelSet::kSm90a).symbol,
            "_ZN7kvfolio4cuda12merge_kernelILi8EEEvNS0_10AttendArgsE");
  EXPECT_EQ(plan_kernel_of().symbol, "_ZN7kvfolio4cuda11plan_kernelILi256EEEvNS0_10PaddedArgsE");
}

}  // namespace

KernelsOnHost model_kernels() {
  // Names that are in both sets are of the same text there.
  std::map<std::string, std::pair<KernelLaunch, KernelSet>> names;
  for (const KernelSet set : {KernelSet::kSm90a, KernelSet::kSm80}) {
    std::vector<KernelLaunch> launches = launches_of_tiles(Element::kBF16, 64, set);
    for (const KernelLaunch& launch : other_launches()) launches.push_back(launch);
    for (const KernelLaunch& launch : launches) {
      names[kernel_of(launch, set).symbol] = {launch, set};
    }
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
    auto [launch, set] = known->second;
    launch.grid = static_cast<std::int32_t>(start.x);
    launch.args = *static_cast<const AttendArgs*>(start.args);
    work = [launch = launch, set = set, threads = static_cast<int>(start.threads),
            shared = static_cast<int>(start.shared_bytes)] {
      const auto begin = [&](auto kernel, int text_threads, int text_shared) {
        KVFOLIO_CHECK(threads == text_threads && shared == text_shared);
        model::launch(launch.grid, threads, shared, false, [&] { kernel(launch.args); });
      };
      const bool known = start_others(launch, begin) ||
                         (set == KernelSet::kSm80
                              ? start_tiles<Element::kBF16, 64, KernelSet::kSm80>(launch, begin)
                              : start_tiles<Element::kBF16, 64, KernelSet::kSm90a>(launch, begin));
      KVFOLIO_CHECK(known);
    };
    return work;
  };
}

}  // namespace kvfolio::cuda
