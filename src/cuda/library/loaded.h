// SPDX-License-Identifier: Apache-2.0
#pragma once

// What Kernels and AttendPlan (cuda_kernels.h) hold.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cuda/attention/attend.h"
#include "cuda/attention/module.h"
#include "cuda/images.h"
#include "cuda/move_module.h"
#include "kvfolio/cuda_kernels.h"

namespace kvfolio::cuda {

struct Kernels::Impl {
  Impl(std::shared_ptr<Device> device_in, const KernelOptions& options_in,
       std::span<const KernelImage> images)
      : device(device_in), options(options_in), attention(std::move(device_in), images) {}

  std::shared_ptr<Device> device;
  KernelOptions options;
  std::shared_ptr<MoveModule> moves;
  AttendModules attention;
};

struct AttendPlan::Impl {
  AttentionCall call;  // that it was made for; its lengths are gone, but for these
  std::size_t num_sequences = 0;
  std::int32_t num_rows = 0;
  bool has_trims = false;
  AttentionPlan plan;
  std::string target;
  std::vector<std::string> left_out;  // CardChoice
};

// Kernels::load() from other images than the library's.
Result<std::shared_ptr<Kernels>> load_kernels(const std::shared_ptr<Device>& device,
                                              const KernelOptions& options,
                                              std::span<const KernelImage> images);

// Checks pointers of one call, if its options want that: the first fault is kept.
class PointerCheck {
 public:
  PointerCheck(Kernels& kernels, void* stream);
  PointerCheck& device(std::string_view name, const void* pointer);
  PointerCheck& host(std::string_view name, const void* pointer);
  // K, V and scales.
  PointerCheck& cache(std::string_view name, const KVView& view);
  [[nodiscard]] Status status() const { return status_; }

 private:
  bool wanted_;
  Device& device_;
  Status status_;
};

}  // namespace kvfolio::cuda
