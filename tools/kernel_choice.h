// SPDX-License-Identifier: Apache-2.0
#pragma once

// What --kernel auto and --format auto mean for a model, and what computes its products.

#include "config.h"
#include "kvfolio/dtype.h"
#include "kvfolio/kernels.h"
#include "kvfolio/spec.h"
#include "model.h"

namespace kvfolio::tools {

// The target that computes. An error when this machine does not run it or it does not take the
// model's head_dim.
Result<KernelTarget> resolve_kernel(const llama::ModelConfig& config, DType dtype,
                                    KernelTarget wanted);

// What the variable KVFOLIO_MATMUL says of the model's products: like --kernel for attention, for a
// fleet whose machines are to compute the same bits. Not set: the fastest of this machine.
Result<llama::LoadOptions> load_options();

// granule where a fast target computes, the block size is a multiple of 16 and the type fits, else
// hnd. `kernel` is resolved.
[[nodiscard]] Format auto_format(KernelTarget kernel, DType dtype,
                                 std::int32_t block_size) noexcept;

}  // namespace kvfolio::tools
