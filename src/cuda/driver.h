// SPDX-License-Identifier: Apache-2.0
#pragma once

// NVIDIA's driver without its header and without a link to it: a table of the calls that this
// library makes, which dlopen fills at run time, or a test with its own. A program therefore starts
// on a machine that has no driver, and is told so when it asks for a device.
//
// A Device keeps the primary context of one card. Every call makes that context current and puts
// back the one that was. Errors become a Status; one that ends the context (an illegal address, a
// failed launch, ...) is kept, and every later call is kUnavailable with the same sentence, without
// asking the driver. Other devices go on.
// Thread safety: a Device may be used by several threads at once.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>

#include "kvfolio/status.h"

namespace kvfolio::cuda {

using DriverResult = int;  // CUresult; 0 is success
using DeviceAddress = unsigned long long;

// member, symbol of libcuda.so.1, arguments
#define KVFOLIO_DRIVER_CALLS(X)                                                                  \
  X(init, "cuInit", (unsigned flags))                                                            \
  X(driver_version, "cuDriverGetVersion", (int* version))                                        \
  X(error_name, "cuGetErrorName", (DriverResult error, const char** name))                       \
  X(device_count, "cuDeviceGetCount", (int* count))                                              \
  X(device_get, "cuDeviceGet", (int* device, int ordinal))                                       \
  X(device_name, "cuDeviceGetName", (char* name, int bytes, int device))                         \
  X(device_attribute, "cuDeviceGetAttribute", (int* value, int attribute, int device))           \
  X(context_retain, "cuDevicePrimaryCtxRetain", (void** context, int device))                    \
  X(context_release, "cuDevicePrimaryCtxRelease_v2", (int device))                               \
  X(context_push, "cuCtxPushCurrent_v2", (void* context))                                        \
  X(context_pop, "cuCtxPopCurrent_v2", (void** context))                                         \
  X(memory_allocate, "cuMemAlloc_v2", (DeviceAddress * address, std::size_t bytes))              \
  X(memory_free, "cuMemFree_v2", (DeviceAddress address))                                        \
  X(host_allocate, "cuMemHostAlloc", (void** memory, std::size_t bytes, unsigned flags))         \
  X(host_free, "cuMemFreeHost", (void* memory))                                                  \
  X(copy_in, "cuMemcpyHtoDAsync_v2",                                                             \
    (DeviceAddress to, const void* from, std::size_t bytes, void* stream))                       \
  X(copy_out, "cuMemcpyDtoHAsync_v2",                                                            \
    (void* to, DeviceAddress from, std::size_t bytes, void* stream))                             \
  X(copy_within, "cuMemcpyDtoDAsync_v2",                                                         \
    (DeviceAddress to, DeviceAddress from, std::size_t bytes, void* stream))                     \
  X(stream_create, "cuStreamCreate", (void** stream, unsigned flags))                            \
  X(stream_destroy, "cuStreamDestroy_v2", (void* stream))                                        \
  X(stream_synchronize, "cuStreamSynchronize", (void* stream))                                   \
  X(event_create, "cuEventCreate", (void** event, unsigned flags))                               \
  X(event_destroy, "cuEventDestroy_v2", (void* event))                                           \
  X(event_record, "cuEventRecord", (void* event, void* stream))                                  \
  X(event_synchronize, "cuEventSynchronize", (void* event))                                      \
  X(module_load, "cuModuleLoadData", (void** module, const void* image))                         \
  X(module_unload, "cuModuleUnload", (void* module))                                             \
  X(module_function, "cuModuleGetFunction", (void** function, void* module, const char* name))   \
  X(launch, "cuLaunchKernel",                                                                    \
    (void* function, unsigned x, unsigned y, unsigned z, unsigned threads_x, unsigned threads_y, \
     unsigned threads_z, unsigned shared_bytes, void* stream, void** parameters, void** extra))

struct DriverCalls {
// NOLINTNEXTLINE(bugprone-macro-parentheses): a name and a list of parameters
#define KVFOLIO_DRIVER_MEMBER(member, symbol, arguments) DriverResult(*member) arguments = nullptr;
  KVFOLIO_DRIVER_CALLS(KVFOLIO_DRIVER_MEMBER)
#undef KVFOLIO_DRIVER_MEMBER
};

// kUnavailable: the library cannot be loaded, or lacks a call. It stays loaded.
Result<DriverCalls> load_driver(const char* library = "libcuda.so.1");

// What kernels are compiled for: CUDA 13.0 and cards of compute capability 8.0 on.
inline constexpr int kLeastDriver = 13000;
inline constexpr int kLeastMajor = 8;

class Device {
 public:
  // kUnavailable: no driver that works, no device; an older driver, with both versions.
  // kInvalidArgument: there is no device of this number. kUnsupported: an older card, by name.
  static Result<std::shared_ptr<Device>> open(const DriverCalls& calls, int ordinal);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device();

  [[nodiscard]] int ordinal() const noexcept { return ordinal_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  // Ok, or what ended the context.
  [[nodiscard]] Status status() const;

  // call(calls) with this device's context current. `what` gives a clause for the sentence, "to
  // copy 16 bytes": the clause or a function that makes it. kOutOfMemory and kUnavailable, with the
  // driver's name of the error.
  template <typename What, typename Call>
  Status run(const What& what, Call&& call) {
    if (dead_.load(std::memory_order_acquire)) return status();
    DriverResult result = calls_.context_push(context_);
    if (result == 0) {
      result = call(calls_);
      void* popped = nullptr;
      const DriverResult back = calls_.context_pop(&popped);
      if (result == 0) result = back;
    }
    if (result == 0) return {};
    if constexpr (std::is_invocable_v<const What&>) {
      return failed(what(), result);
    } else {
      return failed(what, result);
    }
  }

 private:
  Device(const DriverCalls& calls, int ordinal) : calls_(calls), ordinal_(ordinal) {}
  Status failed(std::string_view what, DriverResult error);

  DriverCalls calls_;
  int ordinal_;
  int device_ = 0;
  std::string name_;
  void* context_ = nullptr;
  std::atomic<bool> dead_{false};
  mutable std::mutex mutex_;
  Status death_;  // guarded by mutex_
};

}  // namespace kvfolio::cuda
