// SPDX-License-Identifier: Apache-2.0
#pragma once

// An engine runs the steps of jobs somewhere else than in the owner's thread. Neither submit() nor
// reap() waits for a disk: they take a lock that is only ever held for a few instructions.
//
//   threads   each worker runs one job after the other with plain calls of the system
//   io_uring  one thread keeps many transfers in flight; calls that a ring does badly (create,
//             grow, unlink) go to a helper thread
//
// Their threads take no signal: those are the host's, and a write beyond RLIMIT_FSIZE is EFBIG. No
// call takes memory. Jobs run in any order. Thread safety: one owner. When an engine is destroyed,
// every job that it was given has been reaped; but not in a child of fork(), which has none of its
// threads: there it closes its descriptors and frees its memory, waits for no lock and submits
// nothing.

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "disk/step.h"
#include "kvfolio/status.h"

namespace kvfolio::disk {

class IoEngine {
 public:
  virtual ~IoEngine() = default;

  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  // How many jobs it works at, at the same time; more wait within it.
  [[nodiscard]] virtual int depth() const noexcept = 0;
  virtual void submit(IoJob* job) noexcept = 0;
  // Jobs that are done, as far as they fit; returns how many.
  virtual std::size_t reap(std::span<IoJob*> done) noexcept = 0;
  // The system took back what it had allowed: -errno, and jobs go on in another way. 0: it did not.
  [[nodiscard]] virtual std::int64_t refused() const noexcept { return 0; }
};

// For tests of the ring: what a ring does can be made to go wrong where the answer comes in.
class RingFaults {
 public:
  virtual ~RingFaults() = default;
  // May ask for less than all of the bytes.
  virtual std::int64_t bytes_asked(const IoStep& step, std::int64_t bytes) noexcept = 0;
  virtual std::int64_t answer(const IoStep& step, std::int64_t answer) noexcept = 0;
};

// Both write to `event_fd`, an eventfd that does not block, when a job is done. kResourceExhausted:
// the system gives no more threads.
Result<std::unique_ptr<IoEngine>> create_thread_engine(DiskCalls& calls, int num_threads,
                                                       int event_fd);
// kUnsupported: this build or this system has no io_uring for us, with the reason.
Result<std::unique_ptr<IoEngine>> create_ring_engine(DiskCalls& calls, int depth, int event_fd,
                                                     RingFaults* faults = nullptr);

}  // namespace kvfolio::disk
