// SPDX-License-Identifier: Apache-2.0
#pragma once

// The kernels of move_kernels.cuh as a module that the driver loads, and a Queue that starts them
// on a stream of the driver. The image is what nvcc makes of move_module.cu; this file knows the
// names. Thread safety: a MoveModule may be used by several threads at once.

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "cuda/driver.h"
#include "cuda/move_args.h"
#include "cuda/queue.h"

namespace kvfolio::cuda {

// Its name in the module: "kvfolio_append_f32_int8_wide_short", "kvfolio_copy_narrow", ...
[[nodiscard]] std::string symbol_of(const MoveKernel& kernel);
// All that move.h starts.
[[nodiscard]] std::vector<MoveKernel> all_move_kernels();

class MoveModule {
 public:
  // `image` is a cubin or a fatbin, which is copied. kUnavailable: the driver refuses it, or it
  // lacks a kernel, which is named. kOutOfMemory.
  static Result<std::shared_ptr<MoveModule>> load(const std::shared_ptr<Device>& device,
                                                  const void* image);
  MoveModule(const MoveModule&) = delete;
  MoveModule& operator=(const MoveModule&) = delete;
  ~MoveModule();

  [[nodiscard]] Device& device() const noexcept { return *device_; }
  // Null: there is no such kernel.
  [[nodiscard]] void* function(const MoveKernel& kernel) const noexcept;

 private:
  static constexpr std::size_t kFunctions = 13 * 5 * 5 * 2 * 2;
  explicit MoveModule(std::shared_ptr<Device> device) : device_(std::move(device)) {}

  std::shared_ptr<Device> device_;
  void* module_ = nullptr;
  std::array<void*, kFunctions> functions_{};
};

// One kernel for `count` runs, at most kMaxRuns: from staging to their places, or back.
Status launch_runs(Queue& queue, bool in, const RunsArgs& args, std::size_t count);

class DriverQueue final : public Queue {
 public:
  // `stream` is a CUstream of the module's device; null: its legacy stream.
  DriverQueue(std::shared_ptr<MoveModule> module, void* stream)
      : module_(std::move(module)), stream_(stream) {}
  Status launch(const MoveKernel& kernel, const Grid& grid, const void* args,
                std::size_t args_bytes) override;

 private:
  std::shared_ptr<MoveModule> module_;
  void* stream_;
};

}  // namespace kvfolio::cuda
