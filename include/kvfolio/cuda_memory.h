// SPDX-License-Identifier: Apache-2.0
#pragma once

// Memory of a device, and memory of the host that a device reaches.
//
// DeviceMemory is the MemoryResource of a device: what KVStorage takes to keep a cache there.
// Copies from and to the host go through two pieces of pinned memory in turn, so that the host
// fills or empties one while the other is on its way; the caller's memory needs no pinning. They
// have arrived when a call returns. With kernels a batch of runs is one copy and one kernel, else a
// copy for each run.
//
// It copies later, too (MemoryResource::submit(), poll()): on streams of its own, and neither call
// waits for the device. From and to pinned memory (PinnedHostMemory, cudaHostAlloc) the device
// copies itself, with kernels as one kernel and one copy for megabytes at a time. Any other memory
// of the host goes through pinned staging, which submit() fills, and poll() fills and empties: so
// such copies move on only while their direction is polled. The order against `stream` is one event
// that submit() records there; a stream that is being captured is kFailedPrecondition. Copies that
// no poll() asks for any more (leave()) count among max_tickets until they are over.
//
//   auto pinned = cuda::PinnedHostMemory::create(device);   // outlives the Offload
//   OffloadOptions options{.resource = pinned->get(), .stream = engine_stream};
//
//   auto kernels = cuda::Kernels::load(device);                        // cuda_kernels.h
//   auto memory = cuda::DeviceMemory::create(device, {.kernels = *kernels});
//   auto storage = KVStorage::create(spec, memory->get());
//
// Thread safety: calls from several threads wait for each other; submit() and poll() only for
// themselves and for a deallocate() that waits.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "kvfolio/cuda_device.h"
#include "kvfolio/export.h"
#include "kvfolio/memory.h"
#include "kvfolio/memory_kind.h"
#include "kvfolio/status.h"

namespace kvfolio::cuda {

class Kernels;  // cuda_kernels.h

// Memory of the host that every device reads and writes while the host goes on.
class KVFOLIO_API PinnedMemory {
 public:
  // kOutOfMemory, kUnavailable. kInvalidArgument: bytes < 1, a null device.
  static Result<PinnedMemory> allocate(std::shared_ptr<Device> device, std::int64_t bytes);
  PinnedMemory() = default;
  PinnedMemory(PinnedMemory&& other) noexcept { *this = std::move(other); }
  PinnedMemory& operator=(PinnedMemory&& other) noexcept;
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  ~PinnedMemory() { release(); }

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::int64_t bytes() const noexcept { return bytes_; }

 private:
  void release() noexcept;
  std::shared_ptr<Device> device_;
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

// The same as a MemoryResource of the host: for the arena of an Offload, whose records then go to a
// DeviceMemory and come from it without the CPU. Each allocation is pinned as it is made, which
// takes its time. copy() is the CPU's.
class KVFOLIO_API PinnedHostMemory final : public MemoryResource {
 public:
  // kInvalidArgument: a null device.
  static Result<std::unique_ptr<PinnedHostMemory>> create(std::shared_ptr<Device> device);
  [[nodiscard]] MemoryKind kind() const noexcept override { return MemoryKind::kHost; }
  // kOutOfMemory, kUnavailable.
  Result<std::byte*> allocate(std::int64_t bytes) override;
  void deallocate(std::byte* memory, std::int64_t bytes) noexcept override;
  Status copy(std::byte* dst, const std::byte* src, std::int64_t bytes) noexcept override;

 private:
  explicit PinnedHostMemory(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  std::shared_ptr<Device> device_;
};

// Where the memory of a DeviceMemory comes from.
enum class DeviceSource : std::int32_t {
  kPlain = 0,  // cuMemAlloc: freeing it waits for the device
  // The device's pool, in the order of a stream: neither call waits for other streams. What uses
  // the memory has ended before it is given back.
  kPool = 1,
  kLent = 2,  // a piece that the caller owns, an engine's tensor: cut from its beginning
};

struct DeviceMemoryOptions {
  // Pinned, of both pieces together. 128 to 2^32.
  std::int64_t staging_bytes = std::int64_t{16} << 20;
  // Those of the same device; then as much memory of the device is staging too. Null: no kernels.
  std::shared_ptr<Kernels> kernels = nullptr;
  DeviceSource source = DeviceSource::kPlain;
  // kLent: memory of the device, aligned to 64 bytes, that outlives the resource.
  std::byte* lent = nullptr;
  std::int64_t lent_bytes = 0;
  // What submit() copies through: pinned, and with kernels as much of the device. 1,024 to 2^32; 0:
  // none, and submit() copies within the call (copies_later() is false).
  std::int64_t later_bytes = std::int64_t{32} << 20;
  // Submitted copies that are not over: more are kResourceExhausted. An Offload has up to 4,096 of
  // a load and ManagerOptions::max_transfers of stores, and a load that is refused one brings
  // nothing. 1 to 2^20.
  std::int32_t max_tickets = 8192;
};

class KVFOLIO_API DeviceMemory : public MemoryResource {
 public:
  // kOutOfMemory, kUnavailable: as every call on the device. kInvalidArgument: the options, a null
  // device.
  static Result<std::unique_ptr<DeviceMemory>> create(const std::shared_ptr<Device>& device,
                                                      const DeviceMemoryOptions& options = {});
  DeviceMemory() = default;
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  // The first failure since the last call, or ok: also of deallocate(), which says nothing itself.
  // What submit() and poll() refuse is none.
  [[nodiscard]] virtual Status take_error() = 0;
};

// A piece of a DeviceMemory, given back at its end: for rows, slots, tables, images, workspaces.
// The memory outlives it, and work that uses it has passed before it ends.
class KVFOLIO_API DeviceBuffer {
 public:
  // Its bytes may be anything. kOutOfMemory, kUnavailable; kInvalidArgument: bytes < 1.
  static Result<DeviceBuffer> allocate(DeviceMemory& memory, std::int64_t bytes);
  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer() { release(); }

  // Device memory; null and 0 of one that was not allocated, or moved from.
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::int64_t bytes() const noexcept { return bytes_; }
  // All of it as numbers; what is left over behind the last one is not in it.
  template <typename T = std::byte>
  [[nodiscard]] std::span<T> span() const noexcept {
    return {reinterpret_cast<T*>(data_), static_cast<std::size_t>(bytes_) / sizeof(T)};
  }
  // From and to memory of the host, at a byte of the buffer. They wait for nothing that was started
  // on streams, and have arrived when they return. kInvalidArgument: more than it has, with the
  // numbers. kUnavailable, with the driver's sentence.
  Status copy_in(std::span<const std::byte> from, std::int64_t at = 0);
  Status copy_out(std::span<std::byte> to, std::int64_t at = 0) const;
  template <typename T>
  Status copy_in(std::span<const T> from, std::int64_t at = 0) {
    return copy_in(std::as_bytes(from), at);
  }
  template <typename T>
  Status copy_out(std::span<T> to, std::int64_t at = 0) const {
    return copy_out(std::as_writable_bytes(to), at);
  }

 private:
  void release() noexcept;
  [[nodiscard]] Status check(std::size_t count, std::int64_t at) const;
  DeviceMemory* memory_ = nullptr;
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace kvfolio::cuda
