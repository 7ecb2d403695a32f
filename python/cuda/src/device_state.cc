// SPDX-License-Identifier: Apache-2.0

#include "device_state.h"

#include "driver.h"

namespace kvfolio::python {

Result<std::shared_ptr<DeviceState>> DeviceState::of(std::int32_t ordinal) {
  static std::mutex mutex;
  static std::map<std::int32_t, std::weak_ptr<DeviceState>> known;
  const std::lock_guard lock(mutex);
  if (std::shared_ptr<DeviceState> state = known[ordinal].lock()) return state;
  Result<std::shared_ptr<cuda::Device>> device = driver::open(ordinal);
  if (!device) return device.error();
  auto state = std::make_shared<DeviceState>(*std::move(device));
  known[ordinal] = state;
  return state;
}

// No caller is left. The kernels still may read what is kept.
DeviceState::~DeviceState() {
  if (kept_.empty()) return;
  if (Py_IsInitialized() == 0) {
    // No deleter may run any more.
    // NOLINTNEXTLINE(bugprone-unhandled-exception-at-new): the process ends, one way or the other
    static_cast<void>(new std::map<void*, std::deque<Kept>>(std::move(kept_)));
    return;
  }
  with_gil([&] {
    {
      const ReleasedGil release;
      static_cast<void>(device_->synchronize());
    }
    kept_.clear();
  });
}

Status DeviceState::load() {
  const std::lock_guard lock(mutex_);
  if (memory_ != nullptr) return {};
  Result<std::shared_ptr<cuda::Kernels>> kernels = driver::load(device_);
  if (!kernels) return kernels.error();
  Result<std::unique_ptr<cuda::DeviceMemory>> memory = cuda::DeviceMemory::create(
      device_, {.kernels = *kernels, .later_bytes = 0});  // nothing in Python submits copies
  if (!memory) return memory.error();
  kernels_ = *std::move(kernels);
  memory_ = *std::move(memory);
  return {};
}

Result<SharedEvent> DeviceState::new_event() {
  // Back to the pool come those that no LastWork names any more.
  for (std::size_t i = 0; i < free_events_.size(); ++i) {
    if (free_events_[i].use_count() > 1) continue;
    SharedEvent event = std::move(free_events_[i]);
    free_events_.erase(free_events_.begin() + static_cast<std::ptrdiff_t>(i));
    return event;
  }
  Result<cuda::Event> event = cuda::Event::create(device_);
  if (!event) return event.error();
  return std::make_shared<cuda::Event>(*std::move(event));
}

Status DeviceState::keep(const std::vector<LastWork*>& lasts, Owners& owners, void* stream) {
  // The event takes the place of an older one with the same handle, which may be of another stream:
  // it comes behind that one.
  Status status;
  for (const LastWork* last : lasts) {
    const auto older = last->find(stream);
    if (older != last->end() && status.ok()) status = older->second->hold_back(stream);
  }
  Result<SharedEvent> event = new_event();
  if (status.ok()) status = event ? (*event)->record(stream) : event.error();
  if (!status.ok()) {
    // Without an event there is no other point to wait for, before the tensors go.
    static_cast<void>(device_->synchronize());
    return status;
  }
  for (LastWork* last : lasts) (*last)[stream] = *event;
  kept_[stream].push_back({*std::move(event), std::move(owners)});
  return {};
}

// An event that cannot be asked (of a stream that is captured, of a context that is dead) keeps
// what it has until synchronize().
void DeviceState::let_go(Owners& over) {
  for (auto it = kept_.begin(); it != kept_.end();) {
    std::deque<Kept>& queue = it->second;
    while (!queue.empty()) {
      const Result<bool> passed = queue.front().event->passed();
      if (!passed || !*passed) break;
      for (Owner& owner : queue.front().owners) over.push_back(std::move(owner));
      free_events_.push_back(std::move(queue.front().event));
      queue.pop_front();
    }
    it = queue.empty() ? kept_.erase(it) : std::next(it);
  }
}

Result<cuda::DeviceMemory*> DeviceState::pool() {
  const std::lock_guard lock(mutex_);
  if (pool_ == nullptr) {
    Result<std::unique_ptr<cuda::DeviceMemory>> pool = cuda::DeviceMemory::create(
        device_, {.staging_bytes = 128, .source = cuda::DeviceSource::kPool, .later_bytes = 0});
    if (!pool) return pool.error();
    pool_ = *std::move(pool);
  }
  return pool_.get();
}

void DeviceState::check_not_captured(void* stream, const char* what) const {
  Status status;
  {
    const ReleasedGil release;
    const Result<bool> captured = device_->is_captured(stream);
    if (!captured) {
      status = captured.error();
    } else if (*captured) {
      status = {ErrorCode::kFailedPrecondition,
                std::string("the stream is being captured: ") + what + "; nothing was begun"};
    }
  }
  check(status);
}

Status DeviceState::order(const LastWork& last, void* stream) {
  const std::lock_guard lock(mutex_);
  return hold_back(last, stream);
}

Status DeviceState::hold_back(const LastWork& last, void* stream) {
  // For the same handle, too, where a wait is free: it may be another stream (that of another
  // thread; a new one after the end of the old).
  for (const auto& [other, event] : last) {
    Status status = event->hold_back(stream);
    if (!status.ok()) return status;
  }
  return {};
}

Status DeviceState::wait(const LastWork& last) noexcept {
  const std::lock_guard lock(mutex_);
  Status first;
  for (const auto& [stream, event] : last) {
    Status status = event->synchronize();
    if (first.ok()) first = std::move(status);
  }
  return first;
}

void DeviceState::synchronize() {
  std::map<void*, std::deque<Kept>> over;
  Status status;
  {
    const ReleasedGil release;
    const std::lock_guard lock(mutex_);
    status = device_->synchronize();
    over.swap(kept_);
    for (auto& [stream, queue] : over) {
      for (Kept& each : queue) free_events_.push_back(std::move(each.event));
    }
  }
  check(status);
}

std::size_t DeviceState::num_kept() {
  const ReleasedGil release;
  const std::lock_guard lock(mutex_);
  std::size_t count = 0;
  for (const auto& [stream, queue] : kept_) count += queue.size();
  return count;
}

}  // namespace kvfolio::python
