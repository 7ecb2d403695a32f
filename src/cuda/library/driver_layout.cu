// SPDX-License-Identifier: Apache-2.0

// The structs of driver.h are those of NVIDIA's header, which nothing else here includes. Compiled
// with KVFOLIO_BUILD_CUDA, linked nowhere.

#include <cuda.h>

#include <cstddef>

#include "cuda/driver.h"

namespace kvfolio::cuda {

static_assert(sizeof(LaunchAttribute) == sizeof(CUlaunchAttribute));
static_assert(offsetof(LaunchAttribute, value) == offsetof(CUlaunchAttribute, value));
static_assert(kProgrammaticSerialization == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
static_assert(sizeof(LaunchConfig) == sizeof(CUlaunchConfig));
static_assert(offsetof(LaunchConfig, block_x) == offsetof(CUlaunchConfig, blockDimX));
static_assert(offsetof(LaunchConfig, shared_bytes) == offsetof(CUlaunchConfig, sharedMemBytes));
static_assert(offsetof(LaunchConfig, stream) == offsetof(CUlaunchConfig, hStream));
static_assert(offsetof(LaunchConfig, attributes) == offsetof(CUlaunchConfig, attrs));
static_assert(offsetof(LaunchConfig, num_attributes) == offsetof(CUlaunchConfig, numAttrs));
static_assert(kNotReady == CUDA_ERROR_NOT_READY && kInvalidValue == CUDA_ERROR_INVALID_VALUE);
static_assert(kDynamicSharedBytes == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
static_assert(kSharedBytesOfSm == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
static_assert(kSharedBytesOfBlock == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
static_assert(kSharedBytesKept == CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK);
static_assert(sizeof(DeviceAddress) == sizeof(CUdeviceptr));

}  // namespace kvfolio::cuda
