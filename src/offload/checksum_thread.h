// SPDX-License-Identifier: Apache-2.0
#pragma once

// Checksums and MACs of memory, computed by a second thread while the owner's reads or writes the
// next bytes of a file. What the second thread has not come to when the owner asks for it, the
// owner computes: with one processor, or where the system gives no thread, this is a queue and
// nothing else.
//
// Thread safety: one owner.

#include <pthread.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <vector>

#include "kvfolio/memory.h"
#include "kvfolio/record.h"

namespace kvfolio {

class ChecksumThread {
 public:
  ChecksumThread() noexcept;
  // Waits for what is being computed.
  ~ChecksumThread();
  ChecksumThread(const ChecksumThread&) = delete;
  ChecksumThread& operator=(const ChecksumThread&) = delete;

  // What is computed of a payload: a checksum, or a MAC.
  struct Seal {
    std::uint64_t checksum = 0;
    Digest mac{};
    bool made = true;  // false: libcrypto had no memory for the MAC
  };

  // What `reads` describes stays as it is until its seal is taken; `reads` itself need not.
  void add(std::span<const CopyRun> reads, std::uint64_t seed);
  // The MAC, which was begun, of what is read.
  void add(std::span<const CopyRun> reads, RecordMac mac);
  // The seal of what was added first of all that was not taken yet. Requires: pending() > 0.
  Seal take();
  // Added, and not taken yet.
  [[nodiscard]] std::size_t pending() const noexcept { return tasks_.size(); }

 private:
  struct Task {
    enum class State : std::uint8_t { kWaits, kRuns, kDone };
    std::vector<CopyRun> reads;
    std::uint64_t seed = 0;
    RecordMac mac;
    bool has_mac = false;
    std::int64_t bytes = 0;
    Seal seal;
    State state = State::kWaits;
  };

  static void* main(void* self) noexcept;
  void work() noexcept;
  Task* first_waiting() noexcept;
  void begin(Task& task) noexcept;
  Task& add_task(std::span<const CopyRun> reads);
  void wake(std::unique_lock<std::mutex> lock);
  static void run(Task& task) noexcept;

  pthread_t thread_{};
  bool has_thread_ = false;
  std::mutex mutex_;
  std::condition_variable added_, done_;
  std::deque<Task> tasks_;                    // under mutex_, as what follows; they do not move
  std::vector<std::vector<CopyRun>> unused_;  // memory for the next ones
  std::int64_t waiting_bytes_ = 0;            // of tasks that are not begun
  bool thread_waits_ = false, closing_ = false;
};

}  // namespace kvfolio
