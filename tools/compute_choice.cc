// SPDX-License-Identifier: Apache-2.0
#include "compute_choice.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "choice_option.h"
#include "host_compute.h"
#include "json.h"
#include "kvfolio/kernels.h"
#include "kvfolio/view.h"
#if KVFOLIO_WITH_CUDA
#include "device_compute.h"
#endif

namespace kvfolio::tools {
namespace {

// cpu, cuda or cuda:N.
std::optional<std::int32_t> parse_device(const std::string& text) {
  if (text == "cpu") return std::nullopt;
  if (text == "cuda") return 0;
  std::int32_t number = 0;
  constexpr std::string_view kCuda = "cuda:";
  if (!text.starts_with(kCuda) ||
      !parse_whole(std::string_view(text).substr(kCuda.size()), number) || number < 0) {
    refuse("--device", text, "cpu, cuda, cuda:N");
  }
  return number;
}

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

void add_compute_options(CLI::App& app, ComputeOptions& options) {
  add_kernel_option(app, options.kernel);
  app.add_option_function<std::string>(
         "--device", [&options](const std::string& text) { options.device = parse_device(text); },
         "Where the cache lies and is attended over: cpu, cuda, cuda:N; the rest of the model is "
         "computed on the CPU. Exit code 3 if there is no such device [cpu]")
      ->type_name("NAME");
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
  KVView shape;
  shape.dtype = dtype;
  shape.head_dim_k = shape.head_dim_v = config.head_dim;
  const Result<KernelTarget> target = choose_kernel_target(shape, options.kernel);
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
