// SPDX-License-Identifier: Apache-2.0

// Copies to the host side of a device. A half of the staging is filled, its copies are started and
// an event is recorded behind them; before the half is used again, that event is waited for. A
// failure ends a call: what it had started is waited for, so that no copy of it writes later into
// staging that another call has filled.

#include "cuda/device_memory.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/invalid.h"
#include "base/text.h"
#include "cuda/pointers.h"

namespace kvfolio::cuda::staged {
namespace {

using text::concat;

// Fewer runs than this are copies of their own: a kernel and its staging cost about as much.
constexpr std::size_t kFewRuns = 4;
constexpr std::int64_t kLeastStaging = 128;
// A kernel finds a run in its half by 32 bits (Run of move_args.h).
constexpr std::int64_t kMostStaging = std::int64_t{1} << 32;

Status check_lent(Device& device, const DeviceMemoryOptions& options) {
  if (options.lent == nullptr) return invalid("lent is null");
  if (address_of(options.lent) % kMemoryAlignment != 0) {
    return invalid(concat("lent is not aligned to ", kMemoryAlignment, " bytes"));
  }
  if (options.lent_bytes < 1) {
    return invalid(concat("lent_bytes is ", options.lent_bytes, ", allowed: at least 1"));
  }
  return check_device_pointer(device, "lent", options.lent);
}

Status check_later(const DeviceMemoryOptions& options) {
  const std::int64_t bytes = options.later_bytes;
  if (bytes != 0 && (bytes < LaterCopies::kLeastBytes || bytes > LaterCopies::kMostBytes)) {
    return invalid(concat("later_bytes is ", bytes, ", allowed: 0, and ", LaterCopies::kLeastBytes,
                          " to ", LaterCopies::kMostBytes));
  }
  if (options.max_tickets < 1 || options.max_tickets > LaterCopies::kMostTickets) {
    return invalid(concat("max_tickets is ", options.max_tickets, ", allowed: 1 to ",
                          LaterCopies::kMostTickets));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<DeviceMemory>> DeviceMemory::create(const std::shared_ptr<Device>& device,
                                                           const DeviceMemoryOptions& options) {
  KVFOLIO_RETURN_IF_ERROR(check_device(device));
  if (options.staging_bytes < kLeastStaging || options.staging_bytes > kMostStaging) {
    return Status(ErrorCode::kInvalidArgument,
                  concat("staging_bytes is ", options.staging_bytes, ", allowed: ", kLeastStaging,
                         " to ", kMostStaging));
  }
  KVFOLIO_RETURN_IF_ERROR(check_later(options));
  if (options.source == DeviceSource::kLent) KVFOLIO_RETURN_IF_ERROR(check_lent(*device, options));
  std::unique_ptr<DeviceMemory> memory(new DeviceMemory(device));
  memory->source_ = options.source;
  memory->lent_ = options.lent;
  memory->lent_bytes_ = options.lent_bytes;
  Result<PinnedMemory> staging = PinnedMemory::allocate(device, options.staging_bytes);
  if (!staging) return staging.error();
  memory->staging_ = *std::move(staging);
  memory->half_bytes_ = options.staging_bytes / 128 * 64;
  memory->kernels_ = options.kernels;
  if (memory->kernels_ != nullptr) {
    KVFOLIO_RETURN_IF_ERROR(device->run("to allocate its staging", [&](const DriverCalls& calls) {
      return calls.memory_allocate(&memory->device_staging_,
                                   static_cast<std::size_t>(options.staging_bytes));
    }));
  }
  KVFOLIO_RETURN_IF_ERROR(device->run("to make a stream", [&](const DriverCalls& calls) {
    return calls.stream_create(&memory->stream_, kNonBlocking);
  }));
  for (std::size_t i = 0; i < 2; ++i) {
    Half& half = memory->halves_[i];
    half.data = memory->staging_.data() + static_cast<std::int64_t>(i) * memory->half_bytes_;
    KVFOLIO_RETURN_IF_ERROR(device->run("to make an event", [&](const DriverCalls& calls) {
      return calls.event_create(&half.event, kDisableTiming);
    }));
  }
  if (options.later_bytes == 0) return memory;
  Result<std::unique_ptr<LaterCopies>> later =
      LaterCopies::create(device, options.kernels, options.later_bytes, options.max_tickets);
  if (!later) return later.error();
  memory->later_ = *std::move(later);
  return memory;
}

DeviceMemory::~DeviceMemory() {
  later_.reset();
  static_cast<void>(device_->run("to end a stream", [&](const DriverCalls& calls) {
    if (device_staging_ != 0) static_cast<void>(calls.memory_free(device_staging_));
    for (const Half& half : halves_) {
      if (half.event != nullptr) static_cast<void>(calls.event_destroy(half.event));
    }
    return stream_ != nullptr ? calls.stream_destroy(stream_) : 0;
  }));
}

Result<std::byte*> DeviceMemory::cut_from_lent(std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::int64_t room = lent_bytes_ - lent_used_;
  if (bytes > room) {
    return Status(ErrorCode::kOutOfMemory,
                  concat("of ", lent_bytes_, " lent bytes ", room, " are left, needed: ", bytes));
  }
  std::byte* const result = lent_ + lent_used_;
  lent_used_ = std::min(lent_bytes_, lent_used_ + (bytes + kMemoryAlignment - 1) /
                                                      kMemoryAlignment * kMemoryAlignment);
  ++lent_pieces_;
  return result;
}

Result<std::byte*> DeviceMemory::allocate(std::int64_t bytes) {
  if (bytes < 1) {
    return invalid(concat("memory of a device: ", bytes, " bytes asked, allowed: at least 1"));
  }
  if (source_ == DeviceSource::kLent) return cut_from_lent(bytes);
  DeviceAddress address = 0;
  KVFOLIO_RETURN_IF_ERROR(device_->run(
      [&] { return concat("to allocate ", bytes, " bytes"); },
      [&](const DriverCalls& calls) {
        const auto size = static_cast<std::size_t>(bytes);
        if (source_ == DeviceSource::kPlain) return calls.memory_allocate(&address, size);
        const DriverResult error = calls.memory_allocate_in_stream(&address, size, stream_);
        // Then it is there for every stream.
        return error != 0 ? error : calls.stream_synchronize(stream_);
      }));
  return pointer_to(address);
}

void DeviceMemory::deallocate(std::byte* memory, std::int64_t bytes) noexcept {
  if (later_ != nullptr) static_cast<void>(keep(later_->let_go(memory, bytes)));
  const std::lock_guard lock(mutex_);
  if (source_ == DeviceSource::kLent) {
    if (--lent_pieces_ == 0) lent_used_ = 0;
    return;
  }
  static_cast<void>(keep(device_->run([&] { return concat("to free ", bytes, " bytes"); },
                                      [&](const DriverCalls& calls) {
                                        return source_ == DeviceSource::kPlain
                                                   ? calls.memory_free(address_of(memory))
                                                   : calls.memory_free_in_stream(address_of(memory),
                                                                                 stream_);
                                      })));
}

Status DeviceMemory::copy(std::byte* dst, const std::byte* src, std::int64_t bytes) noexcept {
  const CopyRun run{dst, src, bytes};
  return copy_batch({&run, 1});
}

Status DeviceMemory::copy_batch(std::span<const CopyRun> runs) noexcept {
  const std::lock_guard lock(mutex_);
  return keep(settle(copy_within(runs)));
}

Status DeviceMemory::copy_in(std::span<const CopyRun> runs) noexcept {
  const std::lock_guard lock(mutex_);
  const bool staged = kernels_ != nullptr && runs.size() >= kFewRuns;
  return keep(settle(staged ? move_staged(runs, true) : move_in(runs)));
}

Status DeviceMemory::copy_out(std::span<const CopyRun> runs) noexcept {
  const std::lock_guard lock(mutex_);
  const bool staged = kernels_ != nullptr && runs.size() >= kFewRuns;
  return keep(settle(staged ? move_staged(runs, false) : move_out(runs)));
}

Result<CopyTicket> DeviceMemory::submit(std::span<const CopyRun> runs, CopyDirection direction,
                                        void* stream) noexcept {
  if (later_ == nullptr) return cuda::DeviceMemory::submit(runs, direction, stream);
  Result<CopyTicket> ticket = later_->submit(runs, direction, stream);
  if (!ticket) keep_failure(ticket.error());
  return ticket;
}

Result<bool> DeviceMemory::poll(CopyTicket ticket) noexcept {
  if (later_ == nullptr) return cuda::DeviceMemory::poll(ticket);
  Result<bool> over = later_->poll(ticket);
  if (!over) keep_failure(over.error());
  return over;
}

void DeviceMemory::leave(CopyTicket ticket) noexcept {
  if (later_ != nullptr) later_->leave(ticket);
}

Status DeviceMemory::take_error() {
  const std::lock_guard lock(error_mutex_);
  return std::exchange(error_, Status());
}

Status DeviceMemory::keep(Status status) {
  if (status.ok()) return status;
  const std::lock_guard lock(error_mutex_);
  if (error_.ok()) error_ = status;
  return status;
}

// A refusal is an answer, and would hide a failure that only take_error() says.
void DeviceMemory::keep_failure(const Status& status) {
  if (status.code() != ErrorCode::kUnavailable && status.code() != ErrorCode::kOutOfMemory) return;
  static_cast<void>(keep(status));
}

Status DeviceMemory::settle(Status status) {
  if (!status.ok()) {
    static_cast<void>(device_->run(
        "to wait", [&](const DriverCalls& calls) { return calls.stream_synchronize(stream_); }));
  }
  for (Half& half : halves_) {
    half.in_flight = false;
    half.used = 0;
    half.num_pieces = 0;
  }
  return status;
}

Status DeviceMemory::copy_within(std::span<const CopyRun> runs) {
  for (const CopyRun& run : runs) {
    KVFOLIO_RETURN_IF_ERROR(
        device_->run([&] { return concat("to copy ", run.bytes, " bytes within its memory"); },
                     [&](const DriverCalls& calls) {
                       return calls.copy_within(address_of(run.dst), address_of(run.src),
                                                static_cast<std::size_t>(run.bytes), stream_);
                     }));
  }
  if (runs.empty()) return {};
  return device_->run("to wait for copies within its memory",
                      [&](const DriverCalls& calls) { return calls.stream_synchronize(stream_); });
}

Status DeviceMemory::record_half(Half& half) {
  if (half.used == 0) return {};
  KVFOLIO_RETURN_IF_ERROR(device_->run("to record an event", [&](const DriverCalls& calls) {
    return calls.event_record(half.event, stream_);
  }));
  half.in_flight = true;
  return {};
}

Status DeviceMemory::finish_half(Half& half) {
  if (half.in_flight) {
    KVFOLIO_RETURN_IF_ERROR(device_->run("to wait for an event", [&](const DriverCalls& calls) {
      return calls.event_synchronize(half.event);
    }));
    half.in_flight = false;
  }
  for (std::size_t i = 0; i < half.num_pieces; ++i) {
    const Half::Piece& piece = half.pieces[i];
    if (piece.to == nullptr) continue;
    std::memcpy(piece.to, half.data + piece.at, static_cast<std::size_t>(piece.bytes));
  }
  half.used = 0;
  half.num_pieces = 0;
  return {};
}

Status DeviceMemory::start_half(Half& half, bool in) {
  if (half.num_pieces == 0) return {};
  const DeviceAddress stage =
      device_staging_ + static_cast<DeviceAddress>(half.data - staging_.data());
  RunsArgs args;
  args.stage = stage;
  for (std::size_t i = 0; i < half.num_pieces; ++i) {
    const Half::Piece& piece = half.pieces[i];
    args.runs[i] = {piece.device, static_cast<std::uint32_t>(piece.at),
                    static_cast<std::uint32_t>(piece.bytes)};
  }
  DriverQueue queue(kernels_, stream_);
  const auto launch = [&] { return launch_runs(queue, in, args, half.num_pieces); };
  if (!in) KVFOLIO_RETURN_IF_ERROR(launch());
  KVFOLIO_RETURN_IF_ERROR(
      device_->run([&] { return concat("to copy ", half.used, " bytes of staging"); },
                   [&](const DriverCalls& calls) {
                     const auto bytes = static_cast<std::size_t>(half.used);
                     return in ? calls.copy_in(stage, half.data, bytes, stream_)
                               : calls.copy_out(half.data, stage, bytes, stream_);
                   }));
  if (in) KVFOLIO_RETURN_IF_ERROR(launch());
  return record_half(half);
}

Status DeviceMemory::move_staged(std::span<const CopyRun> runs, bool in) {
  std::size_t current = 0;
  for (const CopyRun& run : runs) {
    for (std::int64_t done = 0; done < run.bytes;) {
      if (halves_[current].used == half_bytes_ ||
          halves_[current].num_pieces == halves_[current].pieces.size()) {
        KVFOLIO_RETURN_IF_ERROR(start_half(halves_[current], in));
        current ^= 1u;
        KVFOLIO_RETURN_IF_ERROR(finish_half(halves_[current]));
      }
      Half& half = halves_[current];
      const std::int64_t count = std::min(run.bytes - done, half_bytes_ - half.used);
      Half::Piece& piece = half.pieces[half.num_pieces++];
      piece = {in ? nullptr : run.dst + done, address_of(in ? run.dst + done : run.src + done),
               half.used, count};
      if (in) {
        std::memcpy(half.data + half.used, run.src + done, static_cast<std::size_t>(count));
      }
      half.used += (count + 15) / 16 * 16;
      done += count;
    }
  }
  KVFOLIO_RETURN_IF_ERROR(start_half(halves_[current], in));
  KVFOLIO_RETURN_IF_ERROR(finish_half(halves_[current ^ 1u]));
  return finish_half(halves_[current]);
}

Status DeviceMemory::move_in(std::span<const CopyRun> runs) {
  std::size_t current = 0;
  // Pieces that follow each other on both sides are one copy.
  std::byte* dst = nullptr;
  std::int64_t at = 0, bytes = 0;
  const auto start = [&]() -> Status {
    if (bytes == 0) return {};
    const std::int64_t count = std::exchange(bytes, 0);
    return device_->run([&] { return concat("to copy ", count, " bytes to it"); },
                        [&](const DriverCalls& calls) {
                          return calls.copy_in(address_of(dst), halves_[current].data + at,
                                               static_cast<std::size_t>(count), stream_);
                        });
  };
  for (const CopyRun& run : runs) {
    for (std::int64_t done = 0; done < run.bytes;) {
      if (halves_[current].used == half_bytes_) {
        KVFOLIO_RETURN_IF_ERROR(start());
        KVFOLIO_RETURN_IF_ERROR(record_half(halves_[current]));
        current ^= 1u;
        KVFOLIO_RETURN_IF_ERROR(finish_half(halves_[current]));
      }
      Half& half = halves_[current];
      const std::int64_t count = std::min(run.bytes - done, half_bytes_ - half.used);
      std::memcpy(half.data + half.used, run.src + done, static_cast<std::size_t>(count));
      if (bytes > 0 && dst + bytes != run.dst + done) KVFOLIO_RETURN_IF_ERROR(start());
      if (bytes == 0) {
        dst = run.dst + done;
        at = half.used;
      }
      bytes += count;
      half.used += count;
      done += count;
    }
  }
  KVFOLIO_RETURN_IF_ERROR(start());
  KVFOLIO_RETURN_IF_ERROR(record_half(halves_[current]));
  KVFOLIO_RETURN_IF_ERROR(finish_half(halves_[current ^ 1u]));
  return finish_half(halves_[current]);
}

Status DeviceMemory::move_out(std::span<const CopyRun> runs) {
  std::size_t current = 0;
  for (const CopyRun& run : runs) {
    for (std::int64_t done = 0; done < run.bytes;) {
      if (halves_[current].used == half_bytes_ ||
          halves_[current].num_pieces == halves_[current].pieces.size()) {
        KVFOLIO_RETURN_IF_ERROR(record_half(halves_[current]));
        current ^= 1u;
        KVFOLIO_RETURN_IF_ERROR(finish_half(halves_[current]));
      }
      Half& half = halves_[current];
      const std::int64_t count = std::min(run.bytes - done, half_bytes_ - half.used);
      KVFOLIO_RETURN_IF_ERROR(
          device_->run([&] { return concat("to copy ", count, " bytes from it"); },
                       [&](const DriverCalls& calls) {
                         return calls.copy_out(half.data + half.used, address_of(run.src + done),
                                               static_cast<std::size_t>(count), stream_);
                       }));
      half.pieces[half.num_pieces++] = {run.dst + done, 0, half.used, count};
      half.used += count;
      done += count;
    }
  }
  KVFOLIO_RETURN_IF_ERROR(record_half(halves_[current]));
  KVFOLIO_RETURN_IF_ERROR(finish_half(halves_[current ^ 1u]));
  return finish_half(halves_[current]);
}

}  // namespace kvfolio::cuda::staged
