// SPDX-License-Identifier: Apache-2.0
#pragma once

// MemoryResource provides the large memory of a cache. The library has one, HostMemory; a host
// program derives its own to take memory from an arena, from pinned pages or from a device. It
// knows only sizes: no spec, no blocks, no ids.
//
// Contents of fresh memory are unspecified: do not expect zeros.
// Thread safety: HostMemory keeps no state, so calls from several threads are fine. A resource of
// the host program is called from the thread that calls KVStorage or its manager, one call at a
// time. Two exceptions: copy() runs in several threads at the same time if several threads copy
// managers that share the resource (KVCacheManager::copy_to), and copy_out() if several threads
// read blocks of one storage.

#include <cstddef>
#include <cstdint>
#include <span>

#include "kvfolio/export.h"
#include "kvfolio/memory_kind.h"
#include "kvfolio/status.h"

namespace kvfolio {

// The least alignment that allocate() must give, in bytes.
inline constexpr std::int64_t kMemoryAlignment = 64;

// kWithin: within memory of the resource. kIn: from any memory of the CPU. kOut: to it.
enum class CopyDirection : std::int32_t { kWithin = 0, kIn = 1, kOut = 2 };

// Names what was submitted until poll() has said how it ended.
struct CopyTicket {
  std::uint64_t number = 0;
};

// One piece of a batch of copies: `bytes` bytes from src to dst, which do not overlap.
struct CopyRun {
  std::byte* dst = nullptr;
  const std::byte* src = nullptr;
  std::int64_t bytes = 0;
};

// Copies say whether the bytes arrived. After a failure the destinations of the call may have any
// bytes, no other memory was touched, and nothing of the call is still on its way. A copy that ends
// behind its call, in the order of a stream, and fails there makes each later call fail. Callers of
// KVStorage see kUnsupported as it is (nothing was copied then) and all else as kUnavailable, with
// the sentence of the resource.
//
// A copy waits for nothing earlier: not for a kernel that was enqueued on a stream of the engine,
// nor for another copy that was submitted. Who calls (the host that calls KVStorage or run_copies()
// over memory of a device) has waited for what still writes its sources or uses its destinations.
// Two ways wait for nothing on the host: submit() behind a stream, and copies that the host
// enqueues there itself, cuda::copy_blocks(..., stream) (ManagerOptions::copies_by_host).
//
// A resource whose copies would make the host wait offers submit(), too. What is submitted goes on
// behind the caller's back: sources and destinations stay as they are until poll() has said how it
// ended, or until deallocate() has taken one of them back. All other copies are as ever. A resource
// that does not (copies_later() is false) copies within submit(), so a caller may use these two
// everywhere.
//
// Every member is pure or inline. So a derived class can be compiled with or without RTTI. The type
// information of HostMemory is in the library.
class MemoryResource {
 public:
  virtual ~MemoryResource() = default;

  [[nodiscard]] virtual MemoryKind kind() const noexcept = 0;
  // `bytes` (>= 1) bytes aligned to kMemoryAlignment or more; kOutOfMemory with the numbers.
  virtual Result<std::byte*> allocate(std::int64_t bytes) = 0;
  // Takes back what allocate(bytes) gave. Returns when no copy that was submitted reads or writes
  // it any more, since a storage may end before a poll() has said so, and that poll may never come.
  // A ticket of such a copy may be polled later, too, once.
  virtual void deallocate(std::byte* memory, std::int64_t bytes) noexcept = 0;
  // Copies within memory of this resource. The ranges do not overlap. Returns when the copy is
  // done, or when the resource's own stream orders every later use behind it. What came before is
  // the caller's affair, see above.
  virtual Status copy(std::byte* dst, const std::byte* src, std::int64_t bytes) noexcept = 0;

  // Many copies in one call, within memory of this resource: pieces of any sizes, not blocks
  // (cuda::copy_blocks() knows those). A device may launch one kernel for all of them. No piece
  // reads what another one writes.
  virtual Status copy_batch(std::span<const CopyRun> runs) noexcept {
    for (const CopyRun& run : runs) {
      Status status = copy(run.dst, run.src, run.bytes);
      if (!status.ok()) return status;
    }
    return {};
  }
  // The same from any memory of the CPU into memory of this resource, and back. The caller may
  // reuse its memory, or read it, when the call returns. A resource of host memory copies as it
  // does within its own; one of a device overrides both, or is kUnsupported.
  virtual Status copy_in(std::span<const CopyRun> runs) noexcept {
    return kind() == MemoryKind::kHost ? copy_batch(runs) : no_host_copies();
  }
  virtual Status copy_out(std::span<const CopyRun> runs) noexcept {
    return kind() == MemoryKind::kHost ? copy_batch(runs) : no_host_copies();
  }

  [[nodiscard]] virtual bool copies_later() const noexcept { return false; }
  // Begins copies and never waits for them. They come behind what was enqueued on `stream` before
  // (of the resource's kind; a CUstream as in cuda_device.h), by an event: nothing that is enqueued
  // later waits for them. `runs` may go when the call returns; what they point to may not.
  // Tickets end in any order, and each one ends. An error: nothing was begun. kFailedPrecondition:
  // nothing failed, but copies cannot come behind `stream` now (it is being captured); the same
  // call may be made later, and callers of KVStorage see that code as it is.
  virtual Result<CopyTicket> submit(std::span<const CopyRun> runs, CopyDirection direction,
                                    void* stream) noexcept {
    static_cast<void>(stream);
    Status copied = direction == CopyDirection::kIn    ? copy_in(runs)
                    : direction == CopyDirection::kOut ? copy_out(runs)
                                                       : copy_batch(runs);
    if (!copied.ok()) return copied;
    return CopyTicket{};
  }
  // Never waits. False: it is still on its way. True: it is over, and the bytes arrived. An error:
  // it is over, and they did not; nothing of it is on its way. Requires: a ticket of submit() that
  // is not over.
  virtual Result<bool> poll(CopyTicket ticket) noexcept {
    static_cast<void>(ticket);
    return true;
  }
  // No poll asks for the ticket any more: it goes on as ever, and holds nothing of the resource
  // once it is over. Never waits. Requires: as poll().
  virtual void leave(CopyTicket ticket) noexcept { static_cast<void>(ticket); }

 private:
  static Status no_host_copies() noexcept {
    return {ErrorCode::kUnsupported, "the resource has no copies to and from memory of the CPU"};
  }
};

// Anonymous memory of the process. An allocation of 2 MiB or more is aligned to 2 MiB, rounded up
// to whole huge pages and marked for them (MADV_HUGEPAGE), which a kernel may ignore. A smaller one
// uses plain pages. A page appears at the first write to it, on the NUMA node of the writer, so
// creating a cache costs no time and the first fill runs at the speed of memory. A request larger
// than the machine's memory and swap is kOutOfMemory at once, under every overcommit setting of the
// kernel.
class KVFOLIO_API HostMemory final : public MemoryResource {
 public:
  [[nodiscard]] MemoryKind kind() const noexcept override;
  Result<std::byte*> allocate(std::int64_t bytes) override;
  void deallocate(std::byte* memory, std::int64_t bytes) noexcept override;
  Status copy(std::byte* dst, const std::byte* src, std::int64_t bytes) noexcept override;
};

}  // namespace kvfolio
