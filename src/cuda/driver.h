// SPDX-License-Identifier: Apache-2.0
#pragma once

// NVIDIA's driver without its header and without a link to it: a table of the calls that this
// library makes, which dlopen fills at run time, or a test with its own. A program therefore starts
// on a machine that has no driver, and is told so when it asks for a device.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <type_traits>

#include "base/mutants.h"
#include "kvfolio/cuda_device.h"
#include "kvfolio/status.h"

namespace kvfolio::cuda {

using DriverResult = int;  // CUresult; 0 is success
using DeviceAddress = unsigned long long;

// Errors that are answers.
inline constexpr DriverResult kNotReady = 600;
inline constexpr DriverResult kInvalidValue = 1;
// A stream is being captured, of this thread or of another one in global mode: the call did
// nothing, and says nothing of the work that it asked for.
[[nodiscard]] inline bool is_of_capture(DriverResult error) noexcept {
  return error >= 900 && error <= 908;
}

// CU_STREAM_CAPTURE_MODE_...: what cannot be captured is refused to the thread that captures, and
// to none.
inline constexpr int kCaptureOfThread = 1;
inline constexpr int kRelaxed = 2;

inline constexpr unsigned kNonBlocking = 1;    // streams that do not wait for the legacy stream
inline constexpr unsigned kDisableTiming = 2;  // events

[[nodiscard]] inline DeviceAddress address_of(const std::byte* memory) noexcept {
  return static_cast<DeviceAddress>(reinterpret_cast<std::uintptr_t>(memory));
}
[[nodiscard]] inline std::byte* pointer_to(DeviceAddress address) noexcept {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): what a driver calls an address
  return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address));
}

// CUlaunchAttribute and CUlaunchConfig; library/driver_layout.cu compares them with NVIDIA's.
struct LaunchAttribute {
  int id = 0;
  char pad[4] = {};
  union {
    int number;
    char bytes[64];
  } value = {};
};
struct LaunchConfig {
  unsigned grid_x = 1, grid_y = 1, grid_z = 1;
  unsigned block_x = 1, block_y = 1, block_z = 1;
  unsigned shared_bytes = 0;
  void* stream = nullptr;
  LaunchAttribute* attributes = nullptr;
  unsigned num_attributes = 0;
};
// Attributes of functions and devices.
inline constexpr int kDynamicSharedBytes = 8;  // that a kernel may be started with
inline constexpr int kSharedBytesOfSm = 81;
inline constexpr int kSharedBytesOfBlock = 97;  // of a kernel that asks for it
inline constexpr int kSharedBytesKept = 111;    // of each block, by the driver

// A launch that may begin before the one in front of it is complete.
inline constexpr int kProgrammaticSerialization = 6;

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
  X(memory_allocate_in_stream, "cuMemAllocAsync",                                                \
    (DeviceAddress * address, std::size_t bytes, void* stream))                                  \
  X(memory_free_in_stream, "cuMemFreeAsync", (DeviceAddress address, void* stream))              \
  X(memory_set, "cuMemsetD8Async",                                                               \
    (DeviceAddress to, unsigned char value, std::size_t bytes, void* stream))                    \
  X(pointer_attribute, "cuPointerGetAttribute",                                                  \
    (void* value, int attribute, DeviceAddress pointer))                                         \
  X(context_synchronize, "cuCtxSynchronize", ())                                                 \
  X(stream_create, "cuStreamCreate", (void** stream, unsigned flags))                            \
  X(stream_destroy, "cuStreamDestroy_v2", (void* stream))                                        \
  X(stream_synchronize, "cuStreamSynchronize", (void* stream))                                   \
  X(stream_query, "cuStreamQuery", (void* stream))                                               \
  X(stream_wait_event, "cuStreamWaitEvent", (void* stream, void* event, unsigned flags))         \
  X(stream_context, "cuStreamGetCtx", (void* stream, void** context))                            \
  X(stream_begin_capture, "cuStreamBeginCapture_v2", (void* stream, int mode))                   \
  X(stream_end_capture, "cuStreamEndCapture", (void* stream, void** graph))                      \
  X(graph_instantiate, "cuGraphInstantiateWithFlags",                                            \
    (void** executable, void* graph, unsigned long long flags))                                  \
  X(graph_launch, "cuGraphLaunch", (void* executable, void* stream))                             \
  X(graph_destroy, "cuGraphDestroy", (void* graph))                                              \
  X(graph_exec_destroy, "cuGraphExecDestroy", (void* executable))                                \
  X(stream_is_capturing, "cuStreamIsCapturing", (void* stream, int* status))                     \
  X(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", (int* mode))                     \
  X(event_create, "cuEventCreate", (void** event, unsigned flags))                               \
  X(event_destroy, "cuEventDestroy_v2", (void* event))                                           \
  X(event_record, "cuEventRecord", (void* event, void* stream))                                  \
  X(event_query, "cuEventQuery", (void* event))                                                  \
  X(event_synchronize, "cuEventSynchronize", (void* event))                                      \
  X(module_load, "cuModuleLoadData", (void** module, const void* image))                         \
  X(module_unload, "cuModuleUnload", (void* module))                                             \
  X(module_function, "cuModuleGetFunction", (void** function, void* module, const char* name))   \
  X(function_attribute, "cuFuncSetAttribute", (void* function, int attribute, int value))        \
  X(launch_with, "cuLaunchKernelEx",                                                             \
    (const LaunchConfig* config, void* function, void** parameters, void** extra))               \
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

// The first check of each call that takes a device.
[[nodiscard]] inline Status check_device(const std::shared_ptr<Device>& device) {
  if (device != nullptr) return {};
  return {ErrorCode::kInvalidArgument, "device is null"};
}

// Captures that this thread began by Graph and has not ended.
int& open_captures() noexcept;

// While it lives, the calls of this thread neither break a capture of another thread nor are
// refused for it: run() has one, since no call of this library has to do with what others capture.
// A thread that captures by Graph stays watched: what cannot be captured is refused to it.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Device& device)
      : calls_(*device.calls_), mode_(open_captures() > 0 ? kCaptureOfThread : kRelaxed) {
    is_set_ = calls_.exchange_capture_mode(&mode_) == 0;
  }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;
  ~RelaxedCapture() {
    if (is_set_) static_cast<void>(calls_.exchange_capture_mode(&mode_));
  }

 private:
  const DriverCalls& calls_;
  int mode_;  // then the one that the thread had
  bool is_set_ = false;
};

// What names the legacy default stream.
[[nodiscard]] inline bool is_legacy(void* stream) noexcept {
  return reinterpret_cast<std::uintptr_t>(stream) <= 1;
}
// kFailedPrecondition: Device::is_captured(). `what` is a clause for the sentence, "copies cannot
// come behind it".
Status check_not_captured(Device& device, void* stream, std::string_view what);

template <typename What, typename Call>
Status Device::run(const What& what, Call&& call) {
  if (dead_.load(std::memory_order_acquire)) return status();
  const RelaxedCapture relaxed(*this);
  DriverResult result = calls_->context_push(context_);
  if (result == 0) {
    result = call(*calls_);
    void* popped = nullptr;
    const DriverResult back =
        mutant(Mutant::kContextStaysCurrent) ? 0 : calls_->context_pop(&popped);
    if (result == 0) result = back;
  }
  if (result == 0) return {};
  if constexpr (std::is_invocable_v<const What&>) {
    return failed(what(), result);
  } else {
    return failed(what, result);
  }
}

}  // namespace kvfolio::cuda
