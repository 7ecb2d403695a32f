// SPDX-License-Identifier: Apache-2.0

#include <memory>

#include "base/invalid.h"
#include "base/text.h"
#include "cuda/device_memory.h"
#include "cuda/library/loaded.h"

namespace kvfolio::cuda {

Result<std::unique_ptr<DeviceMemory>> DeviceMemory::create(const std::shared_ptr<Device>& device,
                                                           const DeviceMemoryOptions& options) {
  KVFOLIO_RETURN_IF_ERROR(check_device(device));
  if (options.kernels != nullptr && &options.kernels->device() != device.get()) {
    return invalid(text::concat("kernels are those of device ", options.kernels->device().ordinal(),
                                ", needed: device ", device->ordinal(), ", the same Device"));
  }
  Result<std::unique_ptr<staged::DeviceMemory>> memory = staged::DeviceMemory::create(
      device, {.staging_bytes = options.staging_bytes,
               .kernels = options.kernels != nullptr ? options.kernels->impl().moves : nullptr,
               .source = options.source,
               .lent = options.lent,
               .lent_bytes = options.lent_bytes,
               .later_bytes = options.later_bytes,
               .max_tickets = options.max_tickets});
  if (!memory) return memory.error();
  return std::unique_ptr<DeviceMemory>(*std::move(memory));
}

}  // namespace kvfolio::cuda
