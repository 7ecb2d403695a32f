// SPDX-License-Identifier: Apache-2.0
#pragma once

// The kernels of attention as modules that the driver loads, and a Launcher that starts them on a
// stream of the driver. A module is what nvcc makes of launch.cu ("attend": general and merge), or
// of tiles.cu ("attend_bf16_128": the kernels of one element type and head dim); this file knows
// the names of the kernels in it, their threads and their shared memory. They are for compute
// capability 9.0. Thread safety: an AttendModules may be used by several threads at once.

#include <array>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "cuda/attention/attend.h"
#include "cuda/driver.h"
#include "cuda/images.h"

namespace kvfolio::cuda {

// What a kernel is compiled as.
struct AttendKernel {
  std::string symbol;  // as the compiler mangles it
  std::int32_t threads = 0;
  std::int32_t shared_bytes = 0;
};
// The kernel of a launch; an empty symbol: there is none.
[[nodiscard]] AttendKernel kernel_of(const KernelLaunch& launch);
// The name of the image that has it: "attend", "attend_int8_64", ...
[[nodiscard]] std::string image_of(const KernelLaunch& launch);
// A launch of each kernel of an element type and head dim, and of those that have none.
[[nodiscard]] std::vector<KernelLaunch> launches_of_tiles(Element element, std::int32_t head_dim);
[[nodiscard]] std::vector<KernelLaunch> other_launches();

class AttendModules {
 public:
  AttendModules(std::shared_ptr<Device> device, std::span<const KernelImage> images)
      : device_(std::move(device)), images_(images) {}
  AttendModules(const AttendModules&) = delete;
  AttendModules& operator=(const AttendModules&) = delete;
  ~AttendModules();

  // Loads what attend() may start for this plan. kUnsupported: another architecture, or an element
  // type and head dim that this build has no kernels for. kUnavailable, kOutOfMemory: the driver.
  Status prepare(const AttentionCall& call, const AttentionPlan& plan);
  // Requires: prepare() for a plan of this kernel.
  Status launch(const KernelLaunch& launch, void* stream);

 private:
  // Kernel, element, head dim 64, 128 or 256, group rows 8 or 16, few or many nodes.
  static constexpr std::size_t kFunctions = 7 * 5 * 3 * 2 * 2;
  struct Function {
    void* handle = nullptr;
    std::int32_t threads = 0;
    std::int32_t shared_bytes = 0;
  };
  static std::size_t index_of(const KernelLaunch& launch) noexcept;
  Status load(const std::string& name, std::span<const KernelLaunch> launches);

  std::shared_ptr<Device> device_;
  std::span<const KernelImage> images_;
  std::mutex mutex_;  // of what follows, while it is loaded
  std::vector<std::string> loaded_;
  std::vector<void*> modules_;
  std::array<Function, kFunctions> functions_{};
};

}  // namespace kvfolio::cuda
