// SPDX-License-Identifier: Apache-2.0
#include "compute_choice.h"

#include <cstdlib>
#include <string_view>
#include <utility>

#include "host_compute.h"
#include "json.h"
#include "kvfolio/kernels.h"
#include "kvfolio/view.h"
#if KVFOLIO_WITH_CUDA
#include "device_compute.h"
#endif

namespace kvfolio::tools {
namespace {

Result<std::shared_ptr<llama::CacheCompute>> open_device(const llama::ModelConfig& config,
                                                         DType dtype, std::int32_t number) {
#if KVFOLIO_WITH_CUDA
  Result<std::unique_ptr<llama::DeviceCompute>> device =
      llama::DeviceCompute::create(number, config, dtype);
  if (!device) return std::move(device).error();
  return std::shared_ptr<llama::CacheCompute>(*std::move(device));
#else
  static_cast<void>(config);
  static_cast<void>(dtype);
  return Status(ErrorCode::kUnavailable,
                "cuda:" + std::to_string(number) +
                    ", but this kvfolio was built without CUDA (-DKVFOLIO_BUILD_CUDA=ON)");
#endif
}

}  // namespace

Result<KernelTarget> choose_target(DType dtype, std::int32_t head_dim, KernelTarget wanted) {
  KVView shape;
  shape.dtype = dtype;
  shape.head_dim_k = shape.head_dim_v = head_dim;
  return choose_kernel_target(shape, wanted);
}

Result<ComputeChoice> ComputeChoice::resolve(const llama::ModelConfig& config, DType dtype,
                                             const ComputeOptions& options) {
  ComputeChoice choice;
  if (options.device) {
    if (options.kernel != KernelTarget::kAuto) {
      return Status(ErrorCode::kInvalidArgument,
                    "--kernel: " + std::string(to_string(options.kernel)) +
                        " is a target of the CPU, allowed with --device cuda: auto");
    }
    Result<std::shared_ptr<llama::CacheCompute>> device =
        open_device(config, dtype, *options.device);
    if (!device) {
      return Status(device.error().code(), "--device: " + std::string(device.error().message()));
    }
    choice.device_ = *std::move(device);
    return choice;
  }
  const Result<KernelTarget> target = choose_target(dtype, config.head_dim, options.kernel);
  if (!target) {
    // If the environment names it, the message says so.
    const std::string who = options.kernel == KernelTarget::kAuto ? "" : "--kernel: ";
    return Status(target.error().code(), who + std::string(target.error().message()));
  }
  choice.kernel_ = *target;
  return choice;
}

std::shared_ptr<llama::CacheCompute> ComputeChoice::over(ThreadPool& pool) const {
  if (device_ != nullptr) return device_;
  return std::make_shared<llama::HostCompute>(pool, kernel_);
}

std::string ComputeChoice::name() const {
  return device_ != nullptr ? device_->name() : to_string(kernel_);
}

Format ComputeChoice::auto_format(DType dtype, std::int32_t block_size) const noexcept {
  // A fast target takes head dims that are multiples of 8, and so does the format. A device's
  // kernels know no granules.
  const bool granule = device_ == nullptr && kernel_ != KernelTarget::kReference &&
                       fits_granule(dtype) && block_size % kGranuleTokens == 0;
  return granule ? Format::kGranule : Format::kHnd;
}

Result<llama::LoadOptions> load_options() {
  const char* const name = std::getenv("KVFOLIO_MATMUL");
  if (name == nullptr || *name == '\0') return llama::LoadOptions{};
  std::string allowed;
  for (const auto target : {llama::MatmulTarget::kAuto, llama::MatmulTarget::kBaseline,
                            llama::MatmulTarget::kAvx2, llama::MatmulTarget::kAvx512}) {
    if (!llama::is_available(target)) continue;
    if (std::string_view(name) == to_string(target)) return llama::LoadOptions{target};
    allowed += (allowed.empty() ? "" : ", ") + std::string(to_string(target));
  }
  return Status(ErrorCode::kInvalidArgument, "KVFOLIO_MATMUL: " + llama::in_quotes(name) +
                                                 ", allowed on this machine: " + allowed);
}

}  // namespace kvfolio::tools
