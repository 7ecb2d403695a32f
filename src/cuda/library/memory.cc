// SPDX-License-Identifier: Apache-2.0

#include <memory>
#include <utility>

#include "base/invalid.h"
#include "base/text.h"
#include "cuda/device_memory.h"
#include "cuda/library/loaded.h"

namespace kvfolio::cuda {

Result<std::unique_ptr<DeviceMemory>> DeviceMemory::create(const std::shared_ptr<Device>& device,
                                                           const DeviceMemoryOptions& options) {
  KVFOLIO_RETURN_IF_ERROR(check_device(device));
  if (options.kernels != nullptr && &options.kernels->device() != device.get()) {
    return invalid(text::concat("kernels are those of device ", options.kernels->device().ordinal(),
                                ", needed: device ", device->ordinal(), ", the same Device"));
  }
  Result<std::unique_ptr<staged::DeviceMemory>> memory = staged::DeviceMemory::create(
      device, {.staging_bytes = options.staging_bytes,
               .kernels = options.kernels != nullptr ? options.kernels->impl().moves : nullptr,
               .source = options.source,
               .lent = options.lent,
               .lent_bytes = options.lent_bytes,
               .later_bytes = options.later_bytes,
               .max_tickets = options.max_tickets});
  if (!memory) return memory.error();
  return std::unique_ptr<DeviceMemory>(*std::move(memory));
}

Result<DeviceBuffer> DeviceBuffer::allocate(DeviceMemory& memory, std::int64_t bytes) {
  const Result<std::byte*> data = memory.allocate(bytes);
  if (!data) return data.error();
  DeviceBuffer buffer;
  buffer.memory_ = &memory;
  buffer.data_ = *data;
  buffer.bytes_ = bytes;
  return buffer;
}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  if (this == &other) return *this;
  release();
  memory_ = std::exchange(other.memory_, nullptr);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void DeviceBuffer::release() noexcept {
  if (data_ != nullptr) memory_->deallocate(data_, bytes_);
}

Status DeviceBuffer::check(std::size_t count, std::int64_t at) const {
  if (at >= 0 && at <= bytes_ && std::cmp_less_equal(count, bytes_ - at)) return {};
  return invalid(text::concat(count, " bytes from byte ", at, " on, of a buffer of ", bytes_));
}

Status DeviceBuffer::copy_in(std::span<const std::byte> from, std::int64_t at) {
  KVFOLIO_RETURN_IF_ERROR(check(from.size(), at));
  if (from.empty()) return {};
  const CopyRun run{data_ + at, from.data(), static_cast<std::int64_t>(from.size())};
  return memory_->copy_in({&run, 1});
}

Status DeviceBuffer::copy_out(std::span<std::byte> to, std::int64_t at) const {
  KVFOLIO_RETURN_IF_ERROR(check(to.size(), at));
  if (to.empty()) return {};
  const CopyRun run{to.data(), data_ + at, static_cast<std::int64_t>(to.size())};
  return memory_->copy_out({&run, 1});
}

}  // namespace kvfolio::cuda
