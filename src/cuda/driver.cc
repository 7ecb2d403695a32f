// SPDX-License-Identifier: Apache-2.0

#include "cuda/driver.h"

#include <dlfcn.h>

#include <tuple>
#include <utility>

#include "base/invalid.h"
#include "base/text.h"

namespace kvfolio::cuda {
namespace {

using text::concat;

// Values of the driver's interface that do not change.
constexpr DriverResult kOutOfMemory = 2;
constexpr int kMajor = 75;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
constexpr int kMinor = 76;
constexpr int kMultiprocessors = 16;

// After these the context gives no more answers: the manual says the process has to make another.
bool ends_context(DriverResult error) {
  switch (error) {
    case 4:    // deinitialized
    case 201:  // invalid context: run() makes it current, so it was destroyed
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

// The driver is there and new enough: how many devices it has, at least one.
Result<std::int32_t> count_devices(const DriverCalls& calls) {
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
  return count;
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

Result<std::int32_t> num_devices() {
  const Result<DriverCalls> calls = load_driver();
  if (!calls) return calls.error();
  return count_devices(*calls);
}

Status available() {
  const Result<std::int32_t> count = num_devices();
  return count ? Status() : count.error();
}

Device::Device(const DriverCalls& calls, std::int32_t ordinal)
    : calls_(std::make_unique<const DriverCalls>(calls)), ordinal_(ordinal) {}

Result<std::shared_ptr<Device>> Device::open(std::int32_t ordinal) {
  const Result<DriverCalls> calls = load_driver();
  if (!calls) return calls.error();
  return open(*calls, ordinal);
}

Result<std::shared_ptr<Device>> Device::open(const DriverCalls& calls, std::int32_t ordinal) {
  const Result<std::int32_t> count = count_devices(calls);
  if (!count) return count.error();
  if (ordinal < 0 || ordinal >= *count) {
    return invalid(concat("device ", ordinal, ": devices are 0 to ", *count - 1));
  }
  std::shared_ptr<Device> device(new Device(calls, ordinal));
  const auto ask = [&](std::string_view what, DriverResult error) -> Status {
    if (error == 0) return {};
    return unavailable(concat("device ", ordinal, ": its ", what,
                              " is not to be had: ", error_name(calls, error)));
  };
  char name[256] = {};
  KVFOLIO_RETURN_IF_ERROR(ask("number", calls.device_get(&device->device_, ordinal)));
  KVFOLIO_RETURN_IF_ERROR(ask("name", calls.device_name(name, sizeof name - 1, device->device_)));
  device->name_ = name;
  for (const auto& [value, attribute, what] :
       {std::tuple{&device->major_, kMajor, "capability"},
        {&device->minor_, kMinor, "capability"},
        {&device->num_multiprocessors_, kMultiprocessors, "size"}}) {
    KVFOLIO_RETURN_IF_ERROR(ask(what, calls.device_attribute(value, attribute, device->device_)));
  }
  if (device->major_ < kLeastMajor) {
    return Status(
        ErrorCode::kUnsupported,
        concat("device ", ordinal, " (", device->name_, ") has compute capability ", device->major_,
               ".", device->minor_, ", needed: ", kLeastMajor, ".0 or higher"));
  }
  KVFOLIO_RETURN_IF_ERROR(ask("context", calls.context_retain(&device->context_, device->device_)));
  return device;
}

Device::~Device() {
  if (context_ != nullptr) static_cast<void>(calls_->context_release(device_));
}

std::string Device::target() const { return concat("cuda-sm", major_, minor_); }

Status Device::status() const {
  const std::lock_guard lock(mutex_);
  return death_;
}

Status Device::failed(std::string_view what, int error) {
  std::string text =
      concat("device ", ordinal_, " (", name_, ") failed ", what, ": ", error_name(*calls_, error));
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

int& open_captures() noexcept {
  static thread_local int count = 0;
  return count;
}

Status Device::synchronize() {
  return run("to wait for all of its work",
             [](const DriverCalls& calls) { return calls.context_synchronize(); });
}

Result<bool> Device::is_captured(void* stream) {
  int capturing = 0;
  KVFOLIO_RETURN_IF_ERROR(run("to ask whether a stream is captured", [&](const DriverCalls& calls) {
    const DriverResult error = calls.stream_is_capturing(stream, &capturing);
    if (is_of_capture(error)) capturing = 1;
    return is_of_capture(error) ? 0 : error;
  }));
  return capturing != 0;
}

Status check_not_captured(Device& device, void* stream, std::string_view what) {
  const Result<bool> captured = device.is_captured(stream);
  if (!captured) return captured.error();
  if (!*captured) return {};
  return {ErrorCode::kFailedPrecondition,
          concat("the stream is being captured: ", what, "; nothing was begun")};
}

// ---- events and streams ----

namespace {

// Made by its default constructor, or moved from.
Status check_made(const char* what, const void* handle) {
  if (handle != nullptr) return {};
  return {ErrorCode::kFailedPrecondition, concat("the ", what, " was not made by create()")};
}

// What a query of the driver says: it is no error that something is not ready yet.
template <typename Query>
Result<bool> ask_whether_ready(Device& device, std::string_view what, Query&& query) {
  bool ready = true;
  KVFOLIO_RETURN_IF_ERROR(device.run(what, [&](const DriverCalls& calls) {
    const DriverResult result = query(calls);
    ready = result != kNotReady;
    return ready ? result : 0;
  }));
  return ready;
}

}  // namespace

Result<Event> Event::create(std::shared_ptr<Device> device) {
  KVFOLIO_RETURN_IF_ERROR(check_device(device));
  Event event;
  KVFOLIO_RETURN_IF_ERROR(device->run("to make an event", [&](const DriverCalls& calls) {
    return calls.event_create(&event.handle_, kDisableTiming);
  }));
  event.device_ = std::move(device);
  return event;
}

Event& Event::operator=(Event&& other) noexcept {
  if (this == &other) return *this;
  release();
  device_ = std::move(other.device_);
  handle_ = std::exchange(other.handle_, nullptr);
  return *this;
}

void Event::release() noexcept {
  if (device_ == nullptr || handle_ == nullptr) return;
  static_cast<void>(device_->run(
      "to end an event", [&](const DriverCalls& calls) { return calls.event_destroy(handle_); }));
}

Status Event::record(void* stream) {
  KVFOLIO_RETURN_IF_ERROR(check_made("event", handle_));
  return device_->run("to record an event", [&](const DriverCalls& calls) {
    return calls.event_record(handle_, stream);
  });
}

Result<bool> Event::passed() {
  KVFOLIO_RETURN_IF_ERROR(check_made("event", handle_));
  return ask_whether_ready(*device_, "to look at an event",
                           [&](const DriverCalls& calls) { return calls.event_query(handle_); });
}

Status Event::synchronize() {
  KVFOLIO_RETURN_IF_ERROR(check_made("event", handle_));
  return device_->run("to wait for an event",
                      [&](const DriverCalls& calls) { return calls.event_synchronize(handle_); });
}

Status Event::hold_back(void* stream) {
  KVFOLIO_RETURN_IF_ERROR(check_made("event", handle_));
  return device_->run("to let a stream wait for an event", [&](const DriverCalls& calls) {
    return calls.stream_wait_event(stream, handle_, 0);
  });
}

Result<Stream> Stream::create(std::shared_ptr<Device> device) {
  KVFOLIO_RETURN_IF_ERROR(check_device(device));
  Stream stream;
  KVFOLIO_RETURN_IF_ERROR(device->run("to make a stream", [&](const DriverCalls& calls) {
    return calls.stream_create(&stream.handle_, kNonBlocking);
  }));
  stream.device_ = std::move(device);
  return stream;
}

Stream& Stream::operator=(Stream&& other) noexcept {
  if (this == &other) return *this;
  release();
  device_ = std::move(other.device_);
  handle_ = std::exchange(other.handle_, nullptr);
  return *this;
}

void Stream::release() noexcept {
  if (device_ == nullptr || handle_ == nullptr) return;
  static_cast<void>(device_->run(
      "to end a stream", [&](const DriverCalls& calls) { return calls.stream_destroy(handle_); }));
}

Result<bool> Stream::done() {
  KVFOLIO_RETURN_IF_ERROR(check_made("stream", handle_));
  return ask_whether_ready(*device_, "to look at a stream",
                           [&](const DriverCalls& calls) { return calls.stream_query(handle_); });
}

Status Stream::synchronize() {
  KVFOLIO_RETURN_IF_ERROR(check_made("stream", handle_));
  return device_->run("to wait for a stream",
                      [&](const DriverCalls& calls) { return calls.stream_synchronize(handle_); });
}

}  // namespace kvfolio::cuda
