// SPDX-License-Identifier: Apache-2.0
#pragma once

// What computes for a verb: ComputeOptions come to a ComputeChoice, which makes the CacheCompute
// that an engine runs over; KVFOLIO_MATMUL says what computes the model's products.
//
// Thread safety: values; a CacheCompute has its own rules.

#include <cstdint>
#include <memory>
#include <string>

#include "cache_compute.h"
#include "compute_options.h"
#include "config.h"
#include "kvfolio/dtype.h"
#include "kvfolio/executor.h"
#include "kvfolio/kernel_target.h"
#include "kvfolio/spec.h"
#include "kvfolio/status.h"
#include "model.h"

namespace kvfolio::tools {

// The target that computes over caches of such elements: `wanted`, or the fastest of this machine
// for kAuto. Errors: those of choose_kernel_target().
Result<KernelTarget> choose_target(DType dtype, std::int32_t head_dim, KernelTarget wanted);

class ComputeChoice {
 public:
  // An error when this machine does not run the target, it does not take the model's head_dim, or
  // it is named beside a device.
  // kUnavailable: there is no such device.
  static Result<ComputeChoice> resolve(const llama::ModelConfig& config, DType dtype,
                                       const ComputeOptions& options);

  // On a CPU with the threads of `pool`, which outlives it. A device's is one for all who ask.
  [[nodiscard]] std::shared_ptr<llama::CacheCompute> over(ThreadPool& pool) const;
  // As CacheCompute::name().
  [[nodiscard]] std::string name() const;
  // What --format auto means: granule where a fast target of the CPU computes, the block size is a
  // multiple of 16 and the type fits, else hnd.
  [[nodiscard]] Format auto_format(DType dtype, std::int32_t block_size) const noexcept;

 private:
  KernelTarget kernel_ = KernelTarget::kReference;  // resolved
  std::shared_ptr<llama::CacheCompute> device_;     // computes instead, if there is one
};

// What the variable KVFOLIO_MATMUL says of the model's products: like --kernel for attention, for a
// fleet whose machines are to compute the same bits. Not set: the fastest of this machine.
Result<llama::LoadOptions> load_options();

}  // namespace kvfolio::tools
