// SPDX-License-Identifier: Apache-2.0
#include "kernel_choice.h"

#include <string>

namespace kvfolio::tools {

Result<KernelTarget> resolve_kernel(const llama::ModelConfig& config, DType dtype,
                                    KernelTarget wanted) {
  KVView shape;
  shape.dtype = dtype;
  shape.head_dim_k = shape.head_dim_v = config.head_dim;
  const Result<KernelTarget> target = choose_kernel_target(shape, wanted);
  if (target) return *target;
  // Of what the environment names the message says so.
  const std::string who = wanted == KernelTarget::kAuto ? "" : "--kernel: ";
  return Status(target.error().code(), who + target.error().message());
}

Format auto_format(KernelTarget kernel, std::int32_t block_size) noexcept {
  // A fast target takes f32, f16, bf16 and int8 with head dims that are multiples of 8, and so does
  // the format.
  const bool granule = kernel != KernelTarget::kReference && block_size % kGranuleTokens == 0;
  return granule ? Format::kGranule : Format::kHnd;
}

}  // namespace kvfolio::tools
