// SPDX-License-Identifier: Apache-2.0
#include "thread_pool.h"

#include "kvfolio/status.h"

namespace kvfolio::llama {
namespace {

// Rounds of one step follow each other within microseconds; sleeping between them would cost more
// than the work. About 20 us on a processor of today.
constexpr std::int32_t kSpins = 2000;

void pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

ThreadPool::ThreadPool(std::int32_t num_threads) {
  KVFOLIO_CHECK(num_threads >= 1);
  worked_ = std::make_unique<std::atomic<bool>[]>(static_cast<std::size_t>(num_threads));
  for (std::int32_t i = 1; i < num_threads; ++i) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  round_.fetch_add(1);
  round_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

std::int32_t ThreadPool::num_threads_that_worked() const noexcept {
  std::int32_t count = 0;
  for (std::size_t i = 0; i <= workers_.size(); ++i) count += worked_[i].load() ? 1 : 0;
  return count;
}

void ThreadPool::forget_work() noexcept {
  for (std::size_t i = 0; i <= workers_.size(); ++i) worked_[i].store(false);
}

// Written once, then only read: the flags share a cache line.
void ThreadPool::note_work(std::int32_t thread) noexcept {
  std::atomic<bool>& worked = worked_[static_cast<std::size_t>(thread)];
  if (!worked.load(std::memory_order_relaxed)) worked.store(true);
}

void ThreadPool::run(std::int32_t num_parts, Call call, void* context) {
  if (workers_.empty() || num_parts <= 1) {
    if (num_parts > 0) note_work(0);
    for (std::int32_t part = 0; part < num_parts; ++part) call(context, part);
    return;
  }
  call_ = call;
  context_ = context;
  num_parts_ = num_parts;
  unfinished_.store(num_parts);
  const std::uint32_t round = round_.load() + 1;
  unclaimed_.store(std::uint64_t{round} << 32 | static_cast<std::uint32_t>(num_parts));
  round_.store(round);
  round_.notify_all();
  take_parts(round, 0);
  for (std::int32_t spins = 0; spins < kSpins; ++spins) {
    if (unfinished_.load() == 0) return;
    pause();
  }
  for (std::int32_t left = unfinished_.load(); left != 0; left = unfinished_.load()) {
    unfinished_.wait(left);
  }
}

void ThreadPool::take_parts(std::uint32_t round, std::int32_t thread) {
  std::uint64_t seen = unclaimed_.load();
  while (seen >> 32 == round && static_cast<std::uint32_t>(seen) != 0) {
    if (!unclaimed_.compare_exchange_weak(seen, seen - 1)) continue;  // `seen` is fresh now
    note_work(thread);
    call_(context_, num_parts_ - static_cast<std::int32_t>(static_cast<std::uint32_t>(seen)));
    if (unfinished_.fetch_sub(1) == 1) unfinished_.notify_one();
    seen = unclaimed_.load();
  }
}

void ThreadPool::work(std::int32_t thread) {
  for (std::uint32_t seen = 0;;) {
    for (std::int32_t spins = 0; spins < kSpins && round_.load() == seen; ++spins) pause();
    round_.wait(seen);
    seen = round_.load();
    if (stop_.load()) return;
    take_parts(seen, thread);
  }
}

}  // namespace kvfolio::llama
