// SPDX-License-Identifier: Apache-2.0
#pragma once

// DeviceCompute is an NVIDIA card: the cache lies in its memory, and libkvfolio_cuda writes and
// attends there. The rows of a layer come from the host and go back to it, so a layer waits for
// them twice: what this is for is to compute the same model over a cache on a device and compare,
// not to be fast. Queries go there as f16 or bf16 where tile kernels compute the cache's element
// type and head_dim (query_dtype()), so that rows are computed by the kernels that an engine has.
//
// Thread safety: none; one call at a time.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "cache_compute.h"
#include "config.h"
#include "kvfolio/cuda_device.h"
#include "kvfolio/cuda_kernels.h"
#include "kvfolio/cuda_memory.h"
#include "resource_bytes.h"

namespace kvfolio::llama {

// What queries are rounded to on their way to a device: f16 over a cache of f16, bf16 over one of
// bf16, int8 or e4m3, if head_dim is 64, 128 or 256. Else f32, which the general kernel takes.
[[nodiscard]] DType query_dtype(std::int32_t head_dim, DType cache) noexcept;

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
  // The architecture and the revision of the kernels: "cuda-sm90-r2"; and what queries are rounded
  // to, if they are, since logits have other bits then: "cuda-sm90-r2-qbf16".
  [[nodiscard]] std::string name() const override;
  // "cuda-general", "cuda-node", ..., as AttendPlan::explain() names them.
  std::vector<std::string> take_kernels() override;

 private:
  DeviceCompute() = default;
  // At least `bytes` in `array`, which is new then, or what it is.
  Status grow(ResourceBytes& array, std::int64_t bytes);
  Status attend(const cuda::DeviceAttention& call);
  // The same rows as elements of query_dtype_: themselves, or packed in rounded_.
  ConstRowsView rounded(const ConstRowsView& q);

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
  DType query_dtype_ = DType::kF32;
  std::vector<std::uint16_t> rounded_;           // of one call
  std::set<std::string, std::less<>> attended_;  // kernels, since take_kernels()
};

}  // namespace kvfolio::llama
