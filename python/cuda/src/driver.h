// SPDX-License-Identifier: Apache-2.0
#pragma once

// Where devices and kernels come from: NVIDIA's driver and libkvfolio_cuda (driver.cc), or a driver
// that is none, in the tests' twin of this extension (tests/python_cuda).

#include <cstdint>
#include <memory>

#include "kvfolio/cuda_device.h"
#include "kvfolio/cuda_kernels.h"
#include "kvfolio/status.h"

namespace kvfolio::python::driver {

// Whether nvcc was there when the library was built.
bool has_kernels();
Status available();
Result<std::int32_t> num_devices();
Result<std::shared_ptr<cuda::Device>> open(std::int32_t ordinal);
Result<std::shared_ptr<cuda::Kernels>> load(const std::shared_ptr<cuda::Device>& device);

}  // namespace kvfolio::python::driver
