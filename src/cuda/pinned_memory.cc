// SPDX-License-Identifier: Apache-2.0

#include <cstring>
#include <utility>

#include "base/invalid.h"
#include "base/text.h"
#include "cuda/driver.h"
#include "kvfolio/cuda_memory.h"

namespace kvfolio::cuda {

namespace {

using text::concat;

constexpr unsigned kPortable = 1;  // pinned for every context

}  // namespace

Result<PinnedMemory> PinnedMemory::allocate(std::shared_ptr<Device> device, std::int64_t bytes) {
  KVFOLIO_RETURN_IF_ERROR(check_device(device));
  if (bytes < 1) return invalid(concat("bytes is ", bytes, ", allowed: at least 1"));
  void* memory = nullptr;
  KVFOLIO_RETURN_IF_ERROR(
      device->run([&] { return concat("to pin ", bytes, " bytes of host memory"); },
                  [&](const DriverCalls& calls) {
                    return calls.host_allocate(&memory, static_cast<std::size_t>(bytes), kPortable);
                  }));
  PinnedMemory result;
  result.device_ = std::move(device);
  result.data_ = static_cast<std::byte*>(memory);
  result.bytes_ = bytes;
  return result;
}

PinnedMemory& PinnedMemory::operator=(PinnedMemory&& other) noexcept {
  if (this == &other) return *this;
  release();
  device_ = std::move(other.device_);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void PinnedMemory::release() noexcept {
  if (data_ == nullptr) return;
  static_cast<void>(device_->run("to unpin host memory",
                                 [&](const DriverCalls& calls) { return calls.host_free(data_); }));
  data_ = nullptr;
}

Result<std::unique_ptr<PinnedHostMemory>> PinnedHostMemory::create(std::shared_ptr<Device> device) {
  KVFOLIO_RETURN_IF_ERROR(check_device(device));
  return std::unique_ptr<PinnedHostMemory>(new PinnedHostMemory(std::move(device)));
}

Result<std::byte*> PinnedHostMemory::allocate(std::int64_t bytes) {
  if (bytes < 1) {
    return invalid(concat("pinned memory: ", bytes, " bytes asked, allowed: at least 1"));
  }
  void* memory = nullptr;
  KVFOLIO_RETURN_IF_ERROR(device_->run(
      [&] { return concat("to pin ", bytes, " bytes of host memory"); },
      [&](const DriverCalls& calls) {
        return calls.host_allocate(&memory, static_cast<std::size_t>(bytes), kPortable);
      }));
  return static_cast<std::byte*>(memory);
}

void PinnedHostMemory::deallocate(std::byte* memory, std::int64_t) noexcept {
  static_cast<void>(device_->run(
      "to unpin host memory", [&](const DriverCalls& calls) { return calls.host_free(memory); }));
}

Status PinnedHostMemory::copy(std::byte* dst, const std::byte* src, std::int64_t bytes) noexcept {
  std::memcpy(dst, src, static_cast<std::size_t>(bytes));
  return {};
}

}  // namespace kvfolio::cuda
