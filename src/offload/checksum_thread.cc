// SPDX-License-Identifier: Apache-2.0
#include "offload/checksum_thread.h"

#include <algorithm>
#include <utility>

#include "base/masked_thread.h"
#include "kvfolio/checked_copy.h"
#include "kvfolio/status.h"

namespace kvfolio {
namespace {

// What the thread is woken for: waking it takes as long as the checksum of a block.
constexpr std::int64_t kWorthWaking = 1 << 20;  // bytes

std::int64_t size_of(std::span<const CopyRun> reads) {
  std::int64_t bytes = 0;
  for (const CopyRun& read : reads) bytes += read.bytes;
  return bytes;
}

}  // namespace

ChecksumThread::ChecksumThread() noexcept {
  has_thread_ = create_masked_thread(thread_, &ChecksumThread::main, this) == 0;
}

ChecksumThread::~ChecksumThread() {
  if (!has_thread_) return;
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  added_.notify_one();
  pthread_join(thread_, nullptr);
}

void ChecksumThread::add(std::span<const CopyRun> reads, std::uint64_t seed) {
  std::unique_lock lock(mutex_);
  add_task(reads).seed = seed;
  wake(std::move(lock));
}

void ChecksumThread::add(std::span<const CopyRun> reads, RecordMac mac) {
  std::unique_lock lock(mutex_);
  Task& task = add_task(reads);
  task.mac = std::move(mac);
  task.has_mac = true;
  wake(std::move(lock));
}

ChecksumThread::Task& ChecksumThread::add_task(std::span<const CopyRun> reads) {
  Task& task = tasks_.emplace_back();
  if (!unused_.empty()) {
    task.reads = std::move(unused_.back());
    unused_.pop_back();
  }
  task.reads.assign(reads.begin(), reads.end());
  task.bytes = size_of(reads);
  waiting_bytes_ += task.bytes;
  return task;
}

void ChecksumThread::wake(std::unique_lock<std::mutex> lock) {
  const bool wakes = waiting_bytes_ >= kWorthWaking && std::exchange(thread_waits_, false);
  lock.unlock();
  if (wakes) added_.notify_one();
}

void ChecksumThread::run(Task& task) noexcept {
  if (!task.has_mac) {
    task.seal.checksum = copy_with_checksum(task.reads, task.seed);
    return;
  }
  for (const CopyRun& read : task.reads) {
    task.mac.add({read.src, static_cast<std::size_t>(read.bytes)});
  }
  task.seal.made = task.mac.end(task.seal.mac);
}

ChecksumThread::Seal ChecksumThread::take() {
  std::unique_lock lock(mutex_);
  KVFOLIO_CHECK(!tasks_.empty());
  Task& task = tasks_.front();
  if (task.state == Task::State::kWaits) {
    begin(task);
    lock.unlock();
    run(task);
    lock.lock();
  } else {
    done_.wait(lock, [&] { return task.state == Task::State::kDone; });
  }
  const Seal seal = task.seal;
  unused_.push_back(std::move(task.reads));
  tasks_.pop_front();
  return seal;
}

void ChecksumThread::begin(Task& task) noexcept {
  KVFOLIO_CHECK(task.state == Task::State::kWaits && waiting_bytes_ >= task.bytes);
  task.state = Task::State::kRuns;
  waiting_bytes_ -= task.bytes;
}

void* ChecksumThread::main(void* self) noexcept {
  static_cast<ChecksumThread*>(self)->work();
  return nullptr;
}

void ChecksumThread::work() noexcept {
  std::unique_lock lock(mutex_);
  while (!closing_) {
    Task* const task = first_waiting();
    if (task == nullptr) {
      thread_waits_ = true;
      added_.wait(lock, [&] { return closing_ || !thread_waits_; });
      continue;
    }
    begin(*task);
    lock.unlock();
    run(*task);
    lock.lock();
    KVFOLIO_DCHECK(task->state == Task::State::kRuns);
    task->state = Task::State::kDone;
    done_.notify_one();
  }
}

ChecksumThread::Task* ChecksumThread::first_waiting() noexcept {
  const auto task = std::find_if(tasks_.begin(), tasks_.end(),
                                 [](const Task& one) { return one.state == Task::State::kWaits; });
  return task == tasks_.end() ? nullptr : &*task;
}

}  // namespace kvfolio
