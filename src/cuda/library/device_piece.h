// SPDX-License-Identifier: Apache-2.0
#pragma once

// The memory that plans lie in: of a device, by places in bytes, and pinned.
// Thread safety: one thread at a time.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/text.h"
#include "cuda/driver.h"
#include "kvfolio/cuda_memory.h"

namespace kvfolio::cuda {

// Memory of the device, given back at the end.
class DevicePiece {
 public:
  static Result<DevicePiece> allocate(std::shared_ptr<Device> device, std::int64_t bytes) {
    DevicePiece piece;
    KVFOLIO_RETURN_IF_ERROR(device->run(
        [&] { return text::concat("to allocate ", bytes, " bytes for plans"); },
        [&](const DriverCalls& calls) {
          return calls.memory_allocate(&piece.address_, static_cast<std::size_t>(bytes));
        }));
    piece.device_ = std::move(device);
    return piece;
  }
  DevicePiece() = default;
  DevicePiece(DevicePiece&& other) noexcept
      : device_(std::move(other.device_)), address_(std::exchange(other.address_, 0)) {}
  DevicePiece& operator=(DevicePiece&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(address_, other.address_);
    return *this;
  }
  ~DevicePiece() {
    if (address_ == 0) return;
    static_cast<void>(device_->run("to free the memory of plans", [&](const DriverCalls& calls) {
      return calls.memory_free(address_);
    }));
  }
  [[nodiscard]] DeviceAddress address() const noexcept { return address_; }
  template <typename T>
  [[nodiscard]] T* at(std::int64_t byte) const noexcept {
    if (byte < 0) return nullptr;
    return reinterpret_cast<T*>(static_cast<std::uintptr_t>(address_) +
                                static_cast<std::uintptr_t>(byte));
  }

 private:
  std::shared_ptr<Device> device_;
  DeviceAddress address_ = 0;
};

// Pinned memory that a copy of a plan starts from.
struct PinnedPiece {
  PinnedMemory memory;
  Event copied;
  bool lost = false;  // its copy was started, or may have been, and has no event
};

}  // namespace kvfolio::cuda
