// SPDX-License-Identifier: Apache-2.0
#pragma once

// What all objects of one device share: its kernels, its memory, and what streams still read.
//
// Kernels run behind the call that starts them, so what a caller lends to one has to stay. Each
// call keeps its tensors (through DLPack, which keeps their memory) with an event behind its
// kernels; later calls let go of those whose event has passed. So an allocator that hands freed
// memory on at once (torch's) hands on none that a kernel reads.
//
// Thread safety: a mutex, which no thread waits for with the GIL.

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "dlpack.h"
#include "kvfolio/cuda_device.h"
#include "kvfolio/cuda_kernels.h"
#include "kvfolio/cuda_memory.h"

namespace kvfolio::python {

using Owners = std::vector<Owner>;
using SharedEvent = std::shared_ptr<cuda::Event>;
// The last point of each stream that was given work on some memory.
using LastWork = std::map<void*, SharedEvent>;

class DeviceState {
 public:
  // The one of this device, or a new one. Wants no GIL.
  static Result<std::shared_ptr<DeviceState>> of(std::int32_t ordinal);
  explicit DeviceState(std::shared_ptr<cuda::Device> device) : device_(std::move(device)) {}
  DeviceState(const DeviceState&) = delete;
  DeviceState& operator=(const DeviceState&) = delete;
  ~DeviceState();

  [[nodiscard]] cuda::Device& device() const { return *device_; }
  [[nodiscard]] Consumer consumer(void* stream) const {
    return {device_->ordinal(), device_->name(), stream};
  }
  // Loads kernels and memory, at the first call. Requires: no GIL.
  Status load();
  // Requires: load() was ok.
  [[nodiscard]] cuda::Kernels& kernels() const { return *kernels_; }
  [[nodiscard]] cuda::DeviceMemory& memory() const { return *memory_; }

  // Memory from the device's pool: taking it and giving it back waits for no other stream. What
  // uses it has ended before it is given back. Wants no GIL.
  Result<cuda::DeviceMemory*> pool();

  // Starts call() on a stream. Keeps `owners` until the stream has passed, and notes the point in
  // each of `lasts`; none: a caller that keeps its tensors, no event. Under the GIL; runs without.
  template <typename Call>
  void enqueue(const std::vector<LastWork*>& lasts, Owners owners, void* stream, Call&& call) {
    Owners over;
    Status status;
    {
      const ReleasedGil release;
      const std::lock_guard lock(mutex_);
      if (!lasts.empty()) let_go(over);  // no event may be asked while a stream is captured
      status = call();
      if (!lasts.empty() && !is_refused(status)) {
        const Status kept = keep(lasts, owners, stream);
        if (status.ok()) status = kept;
      }
    }
    check(status);
  }
  // Raises FailedPrecondition if it is being captured, before anything is: an event that is waited
  // for or recorded there breaks the capture. Under the GIL.
  void check_not_captured(void* stream, const char* what) const;
  // f() under the mutex of enqueue(). Under the GIL; runs without.
  template <typename F>
  auto locked(F&& f) {
    const ReleasedGil release;
    const std::lock_guard lock(mutex_);
    return f();
  }
  // What `stream` is given from now on comes behind all work in `last`. As enqueue().
  Status order(const LastWork& last, void* stream);
  // The same within the call() of enqueue().
  static Status hold_back(const LastWork& last, void* stream);
  // Waits for that work, and says the first failure. Wants no GIL.
  Status wait(const LastWork& last) noexcept;
  // Waits for all of the device, and lets go of what was kept. Under the GIL.
  void synchronize();
  // How many calls' tensors are kept.
  [[nodiscard]] std::size_t num_kept();

 private:
  struct Kept {
    SharedEvent event;
    Owners owners;
  };

  // Nothing was started.
  static bool is_refused(const Status& status) {
    return status.code() == ErrorCode::kInvalidArgument ||
           status.code() == ErrorCode::kUnsupported ||
           status.code() == ErrorCode::kFailedPrecondition;
  }
  void let_go(Owners& over);
  Status keep(const std::vector<LastWork*>& lasts, Owners& owners, void* stream);
  Result<SharedEvent> new_event();

  std::mutex mutex_;
  std::shared_ptr<cuda::Device> device_;
  std::shared_ptr<cuda::Kernels> kernels_;
  std::unique_ptr<cuda::DeviceMemory> memory_;
  std::unique_ptr<cuda::DeviceMemory> pool_;
  std::map<void*, std::deque<Kept>> kept_;  // by stream, in the order of its work
  std::vector<SharedEvent> free_events_;
};

// f() without the GIL, for what ends on any thread and waits for a device, also behind the end of
// the interpreter.
template <typename F>
void end_without_gil(F&& f) {
  if (Py_IsInitialized() == 0) {
    f();
    return;
  }
  with_gil([&] {
    const ReleasedGil release;
    f();
  });
}

// Loads kernels and memory, then sets `to` to what make(kernels) gives. Under the GIL; runs
// without.
template <typename T, typename Make>
void create_over(const std::shared_ptr<DeviceState>& device, std::unique_ptr<T>& to, Make&& make) {
  const auto create = [&]() -> Status {
    const ReleasedGil release;
    KVFOLIO_RETURN_IF_ERROR(device->load());
    // They belong to the state of the device, which outlives what is made.
    Result<std::unique_ptr<T>> made =
        make(std::shared_ptr<cuda::Kernels>(device, &device->kernels()));
    if (!made) return made.error();
    to = *std::move(made);
    return {};
  };
  check(create());
}

}  // namespace kvfolio::python
