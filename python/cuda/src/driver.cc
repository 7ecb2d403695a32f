// SPDX-License-Identifier: Apache-2.0

#include "driver.h"

namespace kvfolio::python::driver {

bool has_kernels() {
#ifdef KVFOLIO_CUDA_HAS_KERNELS
  return true;
#else
  return false;
#endif
}

Status available() { return cuda::available(); }
Result<std::int32_t> num_devices() { return cuda::num_devices(); }
Result<std::shared_ptr<cuda::Device>> open(std::int32_t ordinal) {
  return cuda::Device::open(ordinal);
}
Result<std::shared_ptr<cuda::Kernels>> load(const std::shared_ptr<cuda::Device>& device) {
  return cuda::Kernels::load(device);
}

}  // namespace kvfolio::python::driver
