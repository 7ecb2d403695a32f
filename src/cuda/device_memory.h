// SPDX-License-Identifier: Apache-2.0
#pragma once

// DeviceMemory is the MemoryResource of a device: what KVStorage takes to keep a cache there.
// Copies from and to the host go through two pieces of pinned memory in turn, so that the host
// fills or empties one while the other is on its way; the caller's memory needs no pinning. Copies
// that are submitted go their own way: later_copies.h.
//
// Each call says whether its bytes arrived. The first failure is also kept, that of deallocate(),
// too, which can say nothing: take_error() answers it.
// Thread safety: calls from several threads wait for each other; submit() and poll() only for
// themselves and for a deallocate() that waits.

#include <array>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>

#include "cuda/driver.h"
#include "cuda/later_copies.h"
#include "cuda/move_module.h"
#include "kvfolio/cuda_memory.h"
#include "kvfolio/memory.h"

// What cuda_memory.h makes: its DeviceMemory with the kernels of a MoveModule.
namespace kvfolio::cuda::staged {

struct DeviceMemoryOptions {
  // Pinned, of both pieces together. 128 to 2^32.
  std::int64_t staging_bytes = std::int64_t{16} << 20;
  // A queue of the same device; then as much memory of the device is staging too. Null: no kernels.
  std::shared_ptr<MoveModule> kernels = nullptr;
  DeviceSource source = DeviceSource::kPlain;
  std::byte* lent = nullptr;  // kLent
  std::int64_t lent_bytes = 0;
  // As in cuda_memory.h.
  std::int64_t later_bytes = std::int64_t{32} << 20;
  std::int32_t max_tickets = 8192;
};

class DeviceMemory final : public cuda::DeviceMemory {
 public:
  // kOutOfMemory, kUnavailable: as Device::run(). kInvalidArgument: the options.
  static Result<std::unique_ptr<DeviceMemory>> create(const std::shared_ptr<Device>& device,
                                                      const DeviceMemoryOptions& options = {});
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() override;

  [[nodiscard]] MemoryKind kind() const noexcept override { return MemoryKind::kDevice; }
  Result<std::byte*> allocate(std::int64_t bytes) override;
  void deallocate(std::byte* memory, std::int64_t bytes) noexcept override;
  // All of these wait until the bytes have arrived, and for nothing that was submitted.
  Status copy(std::byte* dst, const std::byte* src, std::int64_t bytes) noexcept override;
  Status copy_batch(std::span<const CopyRun> runs) noexcept override;
  Status copy_in(std::span<const CopyRun> runs) noexcept override;
  Status copy_out(std::span<const CopyRun> runs) noexcept override;

  [[nodiscard]] bool copies_later() const noexcept override { return later_ != nullptr; }
  Result<CopyTicket> submit(std::span<const CopyRun> runs, CopyDirection direction,
                            void* stream) noexcept override;
  Result<bool> poll(CopyTicket ticket) noexcept override;
  void leave(CopyTicket ticket) noexcept override;

  // The first failure since the last call; ok if there was none.
  [[nodiscard]] Status take_error() override;

 private:
  // Half of the staging, and what it holds of a copy.
  struct Half {
    std::byte* data = nullptr;
    void* event = nullptr;
    bool in_flight = false;
    std::int64_t used = 0;
    // For copy_out, and for what kernels move: in order.
    struct Piece {
      std::byte* to;  // on the host, null on the way in
      DeviceAddress device;
      std::int64_t at;
      std::int64_t bytes;
    };
    std::array<Piece, kMaxRuns> pieces;
    std::size_t num_pieces = 0;
  };

  explicit DeviceMemory(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  Result<std::byte*> cut_from_lent(std::int64_t bytes);
  Status copy_within(std::span<const CopyRun> runs);
  Status move_in(std::span<const CopyRun> runs);
  Status move_out(std::span<const CopyRun> runs);
  Status move_staged(std::span<const CopyRun> runs, bool in);
  Status start_half(Half& half, bool in);  // what kernels move
  Status finish_half(Half& half);          // waits for it, and empties it
  Status record_half(Half& half);          // what was started for it so far ends at its event
  Status settle(Status status);            // after a failure nothing is on its way
  Status keep(Status status);
  void keep_failure(const Status& status);

  std::shared_ptr<Device> device_;
  PinnedMemory staging_;
  std::shared_ptr<MoveModule> kernels_;
  DeviceAddress device_staging_ = 0;  // with kernels
  std::int64_t half_bytes_ = 0;
  std::array<Half, 2> halves_;
  void* stream_ = nullptr;
  DeviceSource source_ = DeviceSource::kPlain;
  // Lent memory: how much is given out, in how many pieces.
  std::byte* lent_ = nullptr;
  std::int64_t lent_bytes_ = 0;
  std::int64_t lent_used_ = 0;
  std::int64_t lent_pieces_ = 0;
  std::unique_ptr<LaterCopies> later_;  // null: submit() copies within the call
  std::mutex mutex_;
  std::mutex error_mutex_;
  Status error_;  // guarded by error_mutex_
};

}  // namespace kvfolio::cuda::staged
