// SPDX-License-Identifier: Apache-2.0

#include "cuda/driver.h"

#include <dlfcn.h>

#include <utility>

#include "base/text.h"

namespace kvfolio::cuda {
namespace {

using text::concat;

// Values of the driver's interface that do not change.
constexpr DriverResult kOutOfMemory = 2;
constexpr int kMajor = 75;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
constexpr int kMinor = 76;

// After these the context gives no more answers: the manual says the process has to make another.
bool ends_context(DriverResult error) {
  switch (error) {
    case 4:    // deinitialized
    case 214:  // ECC uncorrectable
    case 220:  // NVLink uncorrectable
    case 700:  // illegal address
    case 702:  // launch timeout
    case 709:  // context is destroyed
    case 710:  // assert
    case 714:  // hardware stack error
    case 715:  // illegal instruction
    case 716:  // misaligned address
    case 717:  // invalid address space
    case 718:  // invalid program counter
    case 719:  // launch failed
      return true;
    default:
      return false;
  }
}

std::string error_name(const DriverCalls& calls, DriverResult error) {
  const char* name = nullptr;
  if (calls.error_name(error, &name) != 0 || name == nullptr) return concat("error ", error);
  return concat(std::string_view(name), " (", error, ")");
}

std::string version_text(int version) { return concat(version / 1000, ".", version % 1000 / 10); }

Status unavailable(std::string message) { return {ErrorCode::kUnavailable, std::move(message)}; }

// The driver is there and new enough, and has a device of this number.
Status check_driver(const DriverCalls& calls, int ordinal) {
  if (const DriverResult error = calls.init(0); error != 0) {
    return unavailable(concat("CUDA's driver does not start: ", error_name(calls, error)));
  }
  int version = 0, count = 0;
  if (const DriverResult error = calls.driver_version(&version); error != 0) {
    return unavailable(concat("CUDA's driver has no version: ", error_name(calls, error)));
  }
  if (version < kLeastDriver) {
    return unavailable(concat("CUDA's driver is for CUDA ", version_text(version),
                              ", needed: CUDA ", version_text(kLeastDriver), " or newer"));
  }
  if (const DriverResult error = calls.device_count(&count); error != 0) {
    return unavailable(concat("CUDA's driver counts no devices: ", error_name(calls, error)));
  }
  if (count == 0) return unavailable("CUDA's driver has no device");
  if (ordinal >= 0 && ordinal < count) return {};
  return {ErrorCode::kInvalidArgument,
          concat("device ", ordinal, ": devices are 0 to ", count - 1)};
}

}  // namespace

Result<DriverCalls> load_driver(const char* library) {
  void* const handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = dlerror();
    return unavailable(concat("CUDA's driver cannot be loaded: ",
                              std::string_view(why != nullptr ? why : library)));
  }
  DriverCalls calls;
#define KVFOLIO_DRIVER_SYMBOL(member, symbol, arguments)                              \
  calls.member = reinterpret_cast<decltype(calls.member)>(dlsym(handle, symbol));     \
  if (calls.member == nullptr) {                                                      \
    return unavailable(concat(std::string_view(library),                              \
                              " has no " symbol                                       \
                              ": it is no driver, or too old; needed: that of CUDA ", \
                              version_text(kLeastDriver), " or newer"));              \
  }
  KVFOLIO_DRIVER_CALLS(KVFOLIO_DRIVER_SYMBOL)
#undef KVFOLIO_DRIVER_SYMBOL
  return calls;
}

Result<std::shared_ptr<Device>> Device::open(const DriverCalls& calls, int ordinal) {
  KVFOLIO_RETURN_IF_ERROR(check_driver(calls, ordinal));
  std::shared_ptr<Device> device(new Device(calls, ordinal));
  const auto ask = [&](std::string_view what, DriverResult error) -> Status {
    if (error == 0) return {};
    return unavailable(concat("device ", ordinal, ": its ", what,
                              " is not to be had: ", error_name(calls, error)));
  };
  char name[256] = {};
  int major = 0, minor = 0;
  KVFOLIO_RETURN_IF_ERROR(ask("number", calls.device_get(&device->device_, ordinal)));
  KVFOLIO_RETURN_IF_ERROR(ask("name", calls.device_name(name, sizeof name - 1, device->device_)));
  KVFOLIO_RETURN_IF_ERROR(
      ask("capability", calls.device_attribute(&major, kMajor, device->device_)));
  KVFOLIO_RETURN_IF_ERROR(
      ask("capability", calls.device_attribute(&minor, kMinor, device->device_)));
  device->name_ = name;
  if (major < kLeastMajor) {
    return Status(ErrorCode::kUnsupported,
                  concat("device ", ordinal, " (", device->name_, ") has compute capability ",
                         major, ".", minor, ", needed: ", kLeastMajor, ".0 or higher"));
  }
  KVFOLIO_RETURN_IF_ERROR(ask("context", calls.context_retain(&device->context_, device->device_)));
  return device;
}

Device::~Device() {
  if (context_ != nullptr) static_cast<void>(calls_.context_release(device_));
}

Status Device::status() const {
  const std::lock_guard lock(mutex_);
  return death_;
}

Status Device::failed(std::string_view what, DriverResult error) {
  std::string text =
      concat("device ", ordinal_, " (", name_, ") failed ", what, ": ", error_name(calls_, error));
  if (!ends_context(error)) {
    return {error == kOutOfMemory ? ErrorCode::kOutOfMemory : ErrorCode::kUnavailable,
            std::move(text)};
  }
  const std::lock_guard lock(mutex_);
  if (death_.ok()) {
    death_ = unavailable(text + "; its context is lost, and with it what its memory held");
    dead_.store(true, std::memory_order_release);
  }
  return death_;
}

}  // namespace kvfolio::cuda
