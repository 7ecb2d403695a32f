// SPDX-License-Identifier: Apache-2.0
#pragma once

// NVIDIA cards, for libkvfolio_cuda: link kvfolio::kvfolio_cuda. Neither this header nor the
// library needs CUDA: NVIDIA's driver (libcuda.so.1) is loaded when a device is asked for, so a
// program starts where there is none and is told so. Events are `void*`: a CUevent or cudaEvent_t.
// So are streams: a CUstream or cudaStream_t. A null stream is the legacy default stream of the
// device in every call that takes one, submit() of its memory and OffloadOptions::stream among
// them; the driver's other name for it, (void*)1, is as good.
//
//   if (Status none = cuda::available(); !none.ok()) return use_the_cpu(none.message());
//   Result<std::shared_ptr<cuda::Device>> device = cuda::Device::open(0);
//
// A Device keeps the primary context of one card, which CUDA's run-time and torch use too. Every
// call of this library makes that context current and puts back the one that was, so one process
// may use several devices. Errors become a Status; one that ends the context (an illegal address, a
// failed launch, ...) is kept, and every later call on that device is kUnavailable with the same
// sentence, without asking the driver. Other devices go on.
// Where a device is asked for, a null pointer is kInvalidArgument ("device is null"). An Event or a
// Stream that was made by its default constructor, or moved from, has no handle: each of its calls
// is kFailedPrecondition, and it may be assigned to and destroyed.
// Graphs that other threads capture, in any mode, neither refuse a call of this library nor are
// broken by one, but for two. The null stream while a blocking stream is captured: what counts on
// its order (DevicePlan, BatchAttention::plan(), submit()) is refused there with
// kFailedPrecondition; append(), gather(), attend() and the like on a null stream break that
// capture, so give them a stream. Device::synchronize(): see there.
// Thread safety: a Device may be used by several threads at once; a Stream or an Event belongs to
// one thread at a time.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "kvfolio/export.h"
#include "kvfolio/status.h"

namespace kvfolio::cuda {

// The calls of the driver (src/cuda/driver.h): the library fills this table, or a test of its own.
struct DriverCalls;

// What kernels are compiled for: CUDA 13.0 and cards of compute capability 8.0 on.
inline constexpr int kLeastDriver = 13000;
inline constexpr int kLeastMajor = 8;

// Ok: a driver that is new enough, and at least one device. kUnavailable: what is missing; of an
// older driver both versions. Whether this build has kernels, Kernels::load() says.
KVFOLIO_API Status available();
// How many devices the driver has. The errors of available().
KVFOLIO_API Result<std::int32_t> num_devices();

class KVFOLIO_API Device {
 public:
  // kUnavailable: see available(). kInvalidArgument: there is no device of this number.
  // kUnsupported: a card below compute capability 8.0, by name.
  static Result<std::shared_ptr<Device>> open(std::int32_t ordinal = 0);
  static Result<std::shared_ptr<Device>> open(const DriverCalls& calls, std::int32_t ordinal);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device();

  [[nodiscard]] std::int32_t ordinal() const noexcept { return ordinal_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  // Compute capability: 9 and 0 of an H100.
  [[nodiscard]] std::int32_t capability_major() const noexcept { return major_; }
  [[nodiscard]] std::int32_t capability_minor() const noexcept { return minor_; }
  [[nodiscard]] std::int32_t num_multiprocessors() const noexcept { return num_multiprocessors_; }
  // "cuda-sm90": the architecture, since others may round otherwise.
  [[nodiscard]] std::string target() const;
  // Ok, or what ended the context.
  [[nodiscard]] Status status() const;
  // Waits for all that was started on the device. The one call that does. Beside a capture of
  // another thread it is not yet run on a device: CUDA's guide forbids to wait for a context that
  // has a captured stream, so it may be refused (kUnavailable) and that capture be lost.
  Status synchronize();
  // Whether a stream is being captured, or is the null stream while a blocking stream is. Asks
  // only, and breaks no capture.
  Result<bool> is_captured(void* stream);

  // For the sources of this library, defined in src/cuda/driver.h: call(calls) with this context
  // current. `what` is a clause for the sentence, "to copy 16 bytes", or a function that makes it.
  template <typename What, typename Call>
  Status run(const What& what, Call&& call);
  // CUcontext.
  [[nodiscard]] void* context() const noexcept { return context_; }

 private:
  friend class RelaxedCapture;  // src/cuda/driver.h
  Device(const DriverCalls& calls, std::int32_t ordinal);
  Status failed(std::string_view what, int error);

  std::unique_ptr<const DriverCalls> calls_;
  std::int32_t ordinal_;
  int device_ = 0;
  std::string name_;
  std::int32_t major_ = 0;
  std::int32_t minor_ = 0;
  std::int32_t num_multiprocessors_ = 0;
  void* context_ = nullptr;
  std::atomic<bool> dead_{false};
  mutable std::mutex mutex_;
  Status death_;  // guarded by mutex_
};

// A point in a stream.
class KVFOLIO_API Event {
 public:
  static Result<Event> create(std::shared_ptr<Device> device);
  Event() = default;
  Event(Event&& other) noexcept { *this = std::move(other); }
  Event& operator=(Event&& other) noexcept;
  ~Event() { release(); }

  [[nodiscard]] void* handle() const noexcept { return handle_; }
  // The point behind all that the stream was given so far. An event is recorded again and again.
  Status record(void* stream);
  // Whether it has passed; true if it was never recorded. Does not wait.
  Result<bool> passed();
  // Waits until it has passed.
  Status synchronize();
  // What `stream` is given from now on begins when the event has passed.
  Status hold_back(void* stream);

 private:
  void release() noexcept;
  std::shared_ptr<Device> device_;
  void* handle_ = nullptr;
};

// A stream that does not wait for the legacy default one. Streams of an engine serve as well: calls
// take their handle.
class KVFOLIO_API Stream {
 public:
  static Result<Stream> create(std::shared_ptr<Device> device);
  Stream() = default;
  Stream(Stream&& other) noexcept { *this = std::move(other); }
  Stream& operator=(Stream&& other) noexcept;
  ~Stream() { release(); }

  [[nodiscard]] void* handle() const noexcept { return handle_; }
  // Whether all that it was given is done. Does not wait.
  Result<bool> done();
  // Waits until it is.
  Status synchronize();

 private:
  void release() noexcept;
  std::shared_ptr<Device> device_;
  void* handle_ = nullptr;
};

}  // namespace kvfolio::cuda
