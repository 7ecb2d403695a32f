// SPDX-License-Identifier: Apache-2.0
#pragma once

// Whose memory a pointer is, asked of the driver. kInvalidArgument names the argument: memory of
// the host where that of the device is due, the reverse, another device. Null is left to others.
// Thread safety: no state.

#include <string_view>

#include "cuda/driver.h"
#include "kvfolio/status.h"

namespace kvfolio::cuda {

Status check_device_pointer(Device& device, std::string_view name, const void* pointer);
Status check_host_pointer(Device& device, std::string_view name, const void* pointer);
// A stream of the device; null is its legacy stream.
Status check_stream(Device& device, void* stream);

}  // namespace kvfolio::cuda
