// SPDX-License-Identifier: Apache-2.0
#pragma once

// What is done to a disk is a job: a sequence of steps, each one call of the system. An engine runs
// the steps of many jobs; a job says what its next step is when it hears how the last one ended. So
// a job knows nothing of threads or rings, and an engine nothing of records.
//
// Thread safety: a job belongs to its engine between submit() and reap(), and one thread at a time
// runs it.

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "disk/calls.h"

namespace kvfolio::disk {

struct IoStep {
  enum class Kind : std::uint8_t {
    kDone,           // there is no next step
    kRead,           // all parts, from offset; the result is the number of bytes, or -errno
    kWrite,          // the same
    kSync,           // file
    kOpen,           // name within the directory `file`, flags; the result is the file
    kAllocate,       // file, bytes
    kPunchHole,      // file, offset, bytes
    kTruncate,       // file, bytes
    kClose,          // file
    kUnlink,         // name within the directory `file`
    kSyncDirectory,  // file
    kDropCached,     // file, offset, bytes
  };
  Kind kind = Kind::kDone;
  int file = -1;
  int flags = 0;
  int num_parts = 0;
  std::array<iovec, 3> parts{};
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
  const std::string* name = nullptr;  // outlives the step

  // Parts of no bytes are left out.
  void add_part(std::byte* memory, std::int64_t size) noexcept;
  [[nodiscard]] bool is_transfer() const noexcept {
    return kind == Kind::kRead || kind == Kind::kWrite;
  }
};

// A step under way. A disk may do less than it was asked, or ask to come again; take() decides what
// that means, the same for every engine:
//  - fewer bytes: the rest is asked for, from the last whole 4 KiB on, as O_DIRECT needs it
//  - no byte at all: an error, or it would go on for ever
//  - EINTR, EAGAIN: again, a bounded number of times
//  - EINVAL: some file systems refuse O_DIRECT only now. Again through the page cache, once.
class StepRun {
 public:
  StepRun() = default;
  explicit StepRun(const IoStep& step) noexcept;

  // What is still to be done.
  [[nodiscard]] const IoStep& rest() const noexcept { return step_; }
  // Takes the system's answer to rest(). True: the step has ended, and result() says how.
  [[nodiscard]] bool take(std::int64_t answer, DiskCalls& calls) noexcept;
  [[nodiscard]] std::int64_t result() const noexcept { return result_; }
  // It had to give up O_DIRECT.
  [[nodiscard]] bool fell_back() const noexcept { return fell_back_; }

 private:
  bool end(std::int64_t result) noexcept;
  void skip(std::int64_t bytes) noexcept;

  IoStep step_{};
  std::int64_t left_ = 0;  // bytes of a transfer
  std::int64_t done_ = 0;
  std::int64_t result_ = 0;
  int retries_ = 0;
  bool fell_back_ = false;
};

class IoJob {
 public:
  virtual ~IoJob() = default;
  // The first step, and after each the next. `result` is of the last one, 0 at first.
  virtual IoStep next(std::int64_t result) noexcept = 0;
  // Before the first step, of a job that works in a file: that is open now, or cannot be opened.
  virtual void use_file(int /*file*/, bool /*direct*/) noexcept {}
  virtual void fail(std::int64_t /*error*/) noexcept {}

  StepRun run;              // the engine's, as what follows
  IoJob* behind = nullptr;  // in its queue
  std::int64_t answer = 0;  // of the step that ran elsewhere
  bool fell_back = false;   // set by the engine: a step gave up O_DIRECT
};

// Jobs in the order in which they came. Takes no memory.
class JobQueue {
 public:
  [[nodiscard]] bool empty() const noexcept { return first_ == nullptr; }
  void push(IoJob* job) noexcept {
    job->behind = nullptr;
    (first_ == nullptr ? first_ : last_->behind) = job;
    last_ = job;
  }
  // nullptr: there is none.
  IoJob* pop() noexcept {
    IoJob* job = first_;
    if (job != nullptr) first_ = job->behind;
    return job;
  }
  std::size_t pop(std::span<IoJob*> out) noexcept {
    std::size_t n = 0;
    while (n < out.size() && !empty()) out[n++] = pop();
    return n;
  }

 private:
  IoJob *first_ = nullptr, *last_ = nullptr;
};

// One call of the system for `step`.
std::int64_t call_once(const IoStep& step, DiskCalls& calls) noexcept;
// Begins the next step of the job. False: there is none.
bool begin_step(IoJob& job, std::int64_t result) noexcept;
// Takes the answer for the current step, and begins the next where it has ended. False: the job is
// done.
bool continue_job(IoJob& job, std::int64_t answer, DiskCalls& calls) noexcept;
// Runs the whole job in this thread.
void run_job(IoJob& job, DiskCalls& calls) noexcept;

}  // namespace kvfolio::disk
