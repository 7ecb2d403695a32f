// SPDX-License-Identifier: Apache-2.0
#pragma once

// The kernels of attention as modules that the driver loads, and a Launcher that starts them on a
// stream of the driver. A module is what nvcc makes of launch.cu ("attend": general and merge), or
// of tiles.cu ("attend_bf16_128": the kernels of one element type and head dim); this file knows
// the names of the kernels in it, their threads and their shared memory. There are two sets of them
// (kernel_set.h), of which a device takes one, with what fits its shared memory. Thread safety: an
// AttendModules may be used by several threads at once.

#include <array>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "cuda/attention/attend.h"
#include "cuda/attention/kernel_set.h"
#include "cuda/driver.h"
#include "cuda/images.h"

namespace kvfolio::cuda {

// What a kernel is compiled as.
struct AttendKernel {
  std::string symbol;  // as the compiler mangles it
  std::int32_t threads = 0;
  std::int32_t shared_bytes = 0;
};
// The set that a card of this compute capability takes.
[[nodiscard]] KernelSet set_of(std::int32_t major, std::int32_t minor) noexcept;
// The kernel of a launch; an empty symbol: there is none.
[[nodiscard]] AttendKernel kernel_of(const KernelLaunch& launch, KernelSet set);
// The name of the image that has it: "attend", "attend_int8_64", "attend_sm80_int8_64", ...
[[nodiscard]] std::string image_of(const KernelLaunch& launch, KernelSet set);
// The kernel that makes a padded plan, of the images "attend" and "attend_sm80".
[[nodiscard]] AttendKernel plan_kernel_of();
// A launch of each kernel of an element type and head dim, and of those that have none.
[[nodiscard]] std::vector<KernelLaunch> launches_of_tiles(Element element, std::int32_t head_dim,
                                                          KernelSet set);
[[nodiscard]] std::vector<KernelLaunch> other_launches();

// What the driver says of a card: bytes of shared memory.
struct SharedMemory {
  std::int32_t of_block = 0;       // at most
  std::int32_t of_sm = 0;          // for all of its blocks
  std::int32_t kept_of_block = 0;  // that the driver keeps of each for itself
  // Blocks of so many bytes that an SM has room for.
  [[nodiscard]] std::int32_t blocks(std::int32_t bytes) const noexcept {
    return bytes > of_block ? 0 : of_sm / (bytes + kept_of_block);
  }
};
// What a device starts for calls of one element type and head dim.
struct CardChoice {
  KernelChoice choice;
  std::vector<std::string> left_out;  // a sentence for each kernel that does not fit the card
};

// `card`: its name, for sentences. The call need not have been checked.
[[nodiscard]] CardChoice choose_kernels(const AttentionCall& call, KernelSet set,
                                        const SharedMemory& shared, std::int32_t num_sms,
                                        std::string_view card);

class AttendModules {
 public:
  AttendModules(std::shared_ptr<Device> device, std::span<const KernelImage> images)
      : device_(std::move(device)), images_(images) {}
  AttendModules(const AttendModules&) = delete;
  AttendModules& operator=(const AttendModules&) = delete;
  ~AttendModules();

  // choose_kernels() for this card: a kernel without room is left out, since another one with the
  // same bits takes its calls. kUnavailable: the driver.
  Result<CardChoice> choose(const AttentionCall& call);
  // Loads what attend() may start for this plan of choose(). kUnsupported: a card, or an element
  // type and head dim, that this build has no kernels for, or one that the card has no room for,
  // with the numbers. kUnavailable, kOutOfMemory: the driver.
  Status prepare(const AttentionCall& call, const AttentionPlan& plan);
  // Requires: prepare() for a plan of this kernel.
  Status launch(const KernelLaunch& launch, void* stream);
  // Starts plan_kernel(). kUnsupported: prepare() was not called for any plan.
  Status launch_plan(const PaddedArgs& args, void* stream);

 private:
  // Kernel, element, head dim 64, 128 or 256, group rows 8 or 16, few or many nodes.
  static constexpr std::size_t kFunctions = kKernelNames * 5 * 3 * 2 * 2;
  struct Function {
    void* handle = nullptr;
    std::int32_t threads = 0;
    std::int32_t shared_bytes = 0;
  };
  static std::size_t index_of(const KernelLaunch& launch) noexcept;
  [[nodiscard]] KernelSet set() const noexcept {
    return set_of(device_->capability_major(), device_->capability_minor());
  }
  [[nodiscard]] bool has_image(const std::string& name) const noexcept;
  Status ask_shared_memory();
  // How many of its blocks an SM has room for; 0 also where there is no such kernel.
  [[nodiscard]] std::int32_t blocks_of(const KernelLaunch& launch) const noexcept;
  [[nodiscard]] std::string no_room(const KernelLaunch& launch) const;
  Status load(const std::string& name, std::span<const KernelLaunch> launches);
  Result<Function> find(void* module, const AttendKernel& kernel) const;

  std::shared_ptr<Device> device_;
  std::span<const KernelImage> images_;
  std::mutex mutex_;     // of what follows, while it is loaded
  SharedMemory shared_;  // asked for once; of_block is 0 before
  std::vector<std::string> loaded_;
  std::vector<void*> modules_;
  std::array<Function, kFunctions> functions_{};
  Function plan_;
};

}  // namespace kvfolio::cuda
