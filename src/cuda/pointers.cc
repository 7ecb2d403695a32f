// SPDX-License-Identifier: Apache-2.0

#include "cuda/pointers.h"

#include <cstdint>

#include "base/invalid.h"
#include "base/text.h"

namespace kvfolio::cuda {
namespace {

using text::concat;

// CU_POINTER_ATTRIBUTE_..., and values of CUmemorytype.
constexpr int kMemoryType = 2;
constexpr int kOrdinal = 9;
constexpr unsigned kOfDevice = 2;
constexpr unsigned kManaged = 4;
// cudaStreamLegacy and cudaStreamPerThread name a stream of whichever device is current.
constexpr std::uintptr_t kLastSpecialStream = 2;

// Where memory is: a device's ordinal, or kHost.
constexpr int kHost = -1;
Result<int> owner_of(Device& device, const void* pointer) {
  int owner = kHost;
  KVFOLIO_RETURN_IF_ERROR(
      device.run("to ask whose memory a pointer is", [&](const DriverCalls& calls) {
        const auto address = static_cast<DeviceAddress>(reinterpret_cast<std::uintptr_t>(pointer));
        unsigned type = 0;
        const DriverResult error = calls.pointer_attribute(&type, kMemoryType, address);
        if (error == kInvalidValue) return 0;  // memory that the driver does not know
        if (error != 0 || (type != kOfDevice && type != kManaged)) return error;
        return calls.pointer_attribute(&owner, kOrdinal, address);
      }));
  return owner;
}

}  // namespace

Status check_device_pointer(Device& device, std::string_view name, const void* pointer) {
  if (pointer == nullptr) return {};
  const Result<int> owner = owner_of(device, pointer);
  if (!owner) return owner.error();
  if (*owner == device.ordinal()) return {};
  return invalid(concat(name, " is memory of ", *owner == kHost ? "the host" : "device ",
                        *owner == kHost ? std::string() : std::to_string(*owner),
                        ", needed: memory of device ", device.ordinal(), " (", device.name(), ")"));
}

Status check_host_pointer(Device& device, std::string_view name, const void* pointer) {
  if (pointer == nullptr) return {};
  const Result<int> owner = owner_of(device, pointer);
  if (!owner) return owner.error();
  if (*owner == kHost) return {};
  return invalid(concat(name, " is memory of device ", *owner, ", needed: memory of the host"));
}

Status check_stream(Device& device, void* stream) {
  if (reinterpret_cast<std::uintptr_t>(stream) <= kLastSpecialStream) return {};
  void* context = nullptr;
  KVFOLIO_RETURN_IF_ERROR(device.run("to ask whose stream it is", [&](const DriverCalls& calls) {
    return calls.stream_context(stream, &context);
  }));
  if (context == device.context()) return {};
  return invalid(concat("the stream is of another device, needed: one of device ", device.ordinal(),
                        " (", device.name(), ")"));
}

}  // namespace kvfolio::cuda
