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
  for (std::int32_t i = 1; i < num_threads; ++i) workers_.emplace_back([this] { work(); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  round_.fetch_add(1);
  round_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(std::int32_t num_parts, Call call, void* context) {
  if (workers_.empty() || num_parts <= 1) {
    for (std::int32_t part = 0; part < num_parts; ++part) call(context, part);
    return;
  }
  call_ = call;
  context_ = context;
  num_parts_ = num_parts;
  next_.store(0);
  busy_.store(static_cast<std::int32_t>(workers_.size()));
  round_.fetch_add(1);  // publishes the four above
  round_.notify_all();
  take_parts();
  // Every worker passes through every round: none can still be in this one when the next begins.
  for (std::int32_t spins = 0; spins < kSpins; ++spins) {
    if (busy_.load() == 0) return;
    pause();
  }
  for (std::int32_t busy = busy_.load(); busy != 0; busy = busy_.load()) busy_.wait(busy);
}

void ThreadPool::take_parts() {
  for (std::int32_t part = next_.fetch_add(1); part < num_parts_; part = next_.fetch_add(1)) {
    call_(context_, part);
  }
}

void ThreadPool::work() {
  for (std::uint32_t seen = 0;;) {
    for (std::int32_t spins = 0; spins < kSpins && round_.load() == seen; ++spins) pause();
    round_.wait(seen);
    ++seen;
    if (stop_.load()) return;
    take_parts();
    if (busy_.fetch_sub(1) == 1) busy_.notify_one();
  }
}

}  // namespace kvfolio::llama
