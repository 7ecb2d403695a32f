// SPDX-License-Identifier: Apache-2.0
#pragma once

// DeviceCompute is an NVIDIA card: the cache lies in its memory, and libkvfolio_cuda writes and
// attends there. The rows of a layer come from the host and go back to it, so a layer waits for
// them twice: what this is for is to compute the same model over a cache on a device and compare,
// not to be fast.
//
// Thread safety: none; one call at a time.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cache_compute.h"
#include "config.h"
#include "kvfolio/cuda_device.h"
#include "kvfolio/cuda_kernels.h"
#include "kvfolio/cuda_memory.h"
#include "resource_bytes.h"

namespace kvfolio::llama {

class DeviceCompute final : public CacheCompute {
 public:
  // On device number `ordinal`, for a model whose cache has elements of `dtype`. kUnavailable: no
  // driver, an older one, no such device, or no kernels in this build. kUnsupported: an element
  // type or a head_dim that no kernel takes.
  static Result<std::unique_ptr<DeviceCompute>> create(std::int32_t ordinal,
                                                       const ModelConfig& config, DType dtype);
  // On a device that is open, with its kernels.
  static Result<std::unique_ptr<DeviceCompute>> create(std::shared_ptr<cuda::Device> device,
                                                       std::shared_ptr<cuda::Kernels> kernels,
                                                       const ModelConfig& config, DType dtype);

  MemoryResource& memory() noexcept override { return *memory_; }
  Status layer(const LayerCall& call) override;
  // The architecture and the revision of the kernels: "cuda-sm90-r2".
  [[nodiscard]] std::string name() const override;

 private:
  DeviceCompute() = default;
  // At least `bytes` in `array`, which is new then, or what it is.
  Status grow(ResourceBytes& array, std::int64_t bytes);
  Status attend(const cuda::DeviceAttention& call);

  std::shared_ptr<cuda::Device> device_;
  std::shared_ptr<cuda::Kernels> kernels_;
  std::unique_ptr<cuda::DeviceMemory> memory_;
  cuda::Stream stream_;
  // What the members above give back memory to is gone after these.
  ResourceBytes arrays_;
  ResourceBytes image_;      // of the plan
  ResourceBytes workspace_;  // of attend()
  cuda::PinnedMemory pinned_;
  std::vector<CopyRun> runs_;  // of one call
};

}  // namespace kvfolio::llama
