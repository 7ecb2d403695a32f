// SPDX-License-Identifier: Apache-2.0
#include "kernel_choice.h"

#include <cstdlib>
#include <string>
#include <string_view>

#include "json.h"

namespace kvfolio::tools {

Result<KernelTarget> resolve_kernel(const llama::ModelConfig& config, DType dtype,
                                    KernelTarget wanted) {
  KVView shape;
  shape.dtype = dtype;
  shape.head_dim_k = shape.head_dim_v = config.head_dim;
  const Result<KernelTarget> target = choose_kernel_target(shape, wanted);
  if (target) return *target;
  // If the environment names it, the message says so.
  const std::string who = wanted == KernelTarget::kAuto ? "" : "--kernel: ";
  return Status(target.error().code(), who + target.error().message());
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

Format auto_format(KernelTarget kernel, DType dtype, std::int32_t block_size) noexcept {
  // A fast target takes head dims that are multiples of 8, and so does the format.
  const bool granule =
      kernel != KernelTarget::kReference && fits_granule(dtype) && block_size % kGranuleTokens == 0;
  return granule ? Format::kGranule : Format::kHnd;
}

}  // namespace kvfolio::tools
