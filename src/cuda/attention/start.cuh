// SPDX-License-Identifier: Apache-2.0
#pragma once

// Starts one kernel on the current device.

#include <cuda_runtime.h>

#include "cuda/attention/kernels.cuh"

namespace kvfolio::cuda {

#ifdef KVFOLIO_CUDA_SM80
inline constexpr KernelSet kCompiledSet = KernelSet::kSm80;
#else
inline constexpr KernelSet kCompiledSet = KernelSet::kSm90a;
#endif

struct DeviceStart {
  const KernelLaunch& launch;
  cudaStream_t stream;
  cudaError_t& error;

  template <typename Kernel>
  void operator()(Kernel kernel, int threads, int shared_bytes) const {
    if (shared_bytes > 48 << 10) {
      error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
      if (error != cudaSuccess) return;
    }
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute = {};
    config.gridDim = dim3(static_cast<unsigned>(launch.grid));
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
    config.stream = stream;
    if (launch.overlaps_previous && kCompiledSet == KernelSet::kSm90a) {
      attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attribute.val.programmaticStreamSerializationAllowed = 1;
      config.attrs = &attribute;
      config.numAttrs = 1;
    }
    error = cudaLaunchKernelEx(&config, kernel, launch.args);
  }
};

template <Element E, int D>
bool start_tiles_on_device(const DeviceStart& start);

}  // namespace kvfolio::cuda
