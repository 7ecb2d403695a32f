// SPDX-License-Identifier: Apache-2.0

// How a loop is handed over. The caller writes the loop (task, arg, n), then publishes it in
// `unclaimed`: the number of the loop in the high half, its tasks not yet claimed in the low half.
// A thread claims a task by taking one from the low half while the high half is the loop that it
// saw begin, in one compare-and-swap. So a thread that comes late claims nothing of a later loop
// with the facts of an earlier one, and no thread ever waits for one that holds no task. That
// matters where other processes want the cores: a worker that got no time costs nothing.
//
// Waiting. A wake-up costs microseconds and loops follow each other within microseconds, so a
// thread first looks for some time. It looks at a clock between its pauses, for two reasons: a
// pause takes 40 to 140 cycles, depending on the processor, and hypervisors take the core from a
// guest that does nothing but pause (measured: 26 us and more per loop, where this needs under 1).

#include "kvfolio/executor.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>

#include "base/masked_thread.h"
#include "base/text.h"

namespace kvfolio {
namespace {

constexpr std::chrono::microseconds kLookFor{20};
constexpr int kPausesPerLook = 4;
constexpr std::size_t kCacheLine = 64;

void pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Whether `done` became true within the time.
template <typename Done>
bool look_for(const Done& done) noexcept {
  if (done()) return true;
  const auto end = std::chrono::steady_clock::now() + kLookFor;
  do {
    for (int i = 0; i < kPausesPerLook; ++i) {
      pause();
      if (done()) return true;
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}  // namespace

struct ThreadPool::State {
  struct Worker {
    State* pool = nullptr;
    pthread_t thread = {};
    std::atomic<bool> worked{false};
  };
  using Task = void (*)(void* arg, std::int32_t index);

  ~State() { stop_workers(); }

  Status start(std::int32_t num_threads);
  void stop_workers() noexcept;
  static void* run_worker(void* argument);
  void work(Worker& worker) noexcept;
  void run(std::int32_t n, Task call, void* call_arg) noexcept;
  void take_tasks(std::uint32_t loop, std::atomic<bool>& worked) noexcept;

  // The caller writes these before it publishes the loop, and only when no task is claimed; others
  // read them only while they hold a task.
  Task task = nullptr;
  void* arg = nullptr;
  std::int32_t num_tasks = 0;

  std::unique_ptr<Worker[]> workers;
  std::int32_t num_workers = 0;
  std::atomic<bool> caller_worked{false};
  std::atomic<bool> busy{false};  // a call has the workers

  alignas(kCacheLine) std::atomic<std::uint64_t> unclaimed{0};
  alignas(kCacheLine) std::atomic<std::int32_t> unfinished{0};  // tasks that have not returned
  alignas(kCacheLine) std::atomic<std::uint32_t> newest{0};     // loop: what idle workers wait for
  std::atomic<bool> stop{false};
};

namespace {

// Set once, then only read: the line stays in every cache.
void note(std::atomic<bool>& worked) noexcept {
  if (!worked.load(std::memory_order_relaxed)) worked.store(true, std::memory_order_relaxed);
}

void run_here(std::int32_t n, void (*task)(void*, std::int32_t), void* arg,
              std::atomic<bool>& worked) noexcept {
  if (n > 0) note(worked);
  for (std::int32_t i = 0; i < n; ++i) task(arg, i);
}

}  // namespace

Status ThreadPool::State::start(std::int32_t num_threads) {
  const std::int32_t wanted = num_threads - 1;
  workers.reset(new (std::nothrow) Worker[static_cast<std::size_t>(wanted)]);
  if (!workers) {
    return {ErrorCode::kOutOfMemory,
            text::concat("no memory for a pool of ", num_threads, " threads")};
  }
  int error = 0;
  while (num_workers < wanted) {
    Worker& worker = workers[static_cast<std::size_t>(num_workers)];
    worker.pool = this;
    error = create_masked_thread(worker.thread, run_worker, &worker);
    if (error != 0) break;
    ++num_workers;
  }
  if (error == 0) return {};
  return {
      ErrorCode::kResourceExhausted,
      text::concat("the system started ", num_workers, " of the ", wanted,
                   " threads that a pool of ", num_threads, " needs: ", strerrordesc_np(error))};
}

void ThreadPool::State::stop_workers() noexcept {
  stop.store(true);
  newest.fetch_add(1);
  newest.notify_all();
  for (std::int32_t i = 0; i < num_workers; ++i) {
    pthread_join(workers[static_cast<std::size_t>(i)].thread, nullptr);
  }
}

void* ThreadPool::State::run_worker(void* argument) {
  Worker& worker = *static_cast<Worker*>(argument);
#if defined(__linux__)
  pthread_setname_np(pthread_self(), "kvfolio");
#endif
  worker.pool->work(worker);
  return nullptr;
}

void ThreadPool::State::work(Worker& worker) noexcept {
  for (std::uint32_t seen = 0;;) {
    if (!look_for([&] { return newest.load() != seen; })) newest.wait(seen);
    seen = newest.load();
    if (stop.load()) return;
    take_tasks(seen, worker.worked);
  }
}

void ThreadPool::State::take_tasks(std::uint32_t loop, std::atomic<bool>& worked) noexcept {
  std::uint64_t seen = unclaimed.load();
  while (seen >> 32 == loop && static_cast<std::uint32_t>(seen) != 0) {
    if (!unclaimed.compare_exchange_weak(seen, seen - 1)) continue;  // `seen` is fresh now
    note(worked);
    task(arg, num_tasks - static_cast<std::int32_t>(static_cast<std::uint32_t>(seen)));
    if (unfinished.fetch_sub(1) == 1) unfinished.notify_one();
    seen = unclaimed.load();
  }
}

void ThreadPool::State::run(std::int32_t n, Task call, void* call_arg) noexcept {
  if (num_workers == 0 || n <= 1 || busy.exchange(true)) {
    run_here(n, call, call_arg, caller_worked);
    return;
  }
  task = call;
  arg = call_arg;
  num_tasks = n;
  unfinished.store(n);
  const std::uint32_t loop = newest.load() + 1;
  unclaimed.store(std::uint64_t{loop} << 32 | static_cast<std::uint32_t>(n));
  newest.store(loop);
  if (n > num_workers) {
    newest.notify_all();
  } else {
    for (std::int32_t i = 1; i < n; ++i) newest.notify_one();
  }
  take_tasks(loop, caller_worked);
  if (!look_for([&] { return unfinished.load() == 0; })) {
    for (std::int32_t left = unfinished.load(); left != 0; left = unfinished.load()) {
      unfinished.wait(left);
    }
  }
  busy.store(false);
}

ThreadPool::ThreadPool(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
ThreadPool::~ThreadPool() = default;

Result<std::unique_ptr<ThreadPool>> ThreadPool::create(std::int32_t num_threads) {
  if (num_threads < 1 || num_threads > kMaxThreads) {
    return Status(ErrorCode::kInvalidArgument,
                  text::concat("num_threads is ", num_threads, ", allowed: 1 to ",
                               std::int32_t{kMaxThreads}));
  }
  std::unique_ptr<State> state(new (std::nothrow) State);
  std::unique_ptr<ThreadPool> pool;
  if (state) {
    KVFOLIO_RETURN_IF_ERROR(state->start(num_threads));
    pool.reset(new (std::nothrow) ThreadPool(std::move(state)));
  }
  if (!pool) {
    return Status(ErrorCode::kOutOfMemory,
                  text::concat("no memory for a pool of ", num_threads, " threads"));
  }
  return pool;
}

std::int32_t ThreadPool::num_threads() const noexcept { return state_->num_workers + 1; }

Executor ThreadPool::executor() noexcept {
  Executor executor;
  executor.context = state_.get();
  executor.num_threads = num_threads();
  executor.parallel_for = [](void* context, std::int32_t n, void (*task)(void*, std::int32_t),
                             void* arg) { static_cast<State*>(context)->run(n, task, arg); };
  return executor;
}

std::int32_t ThreadPool::num_threads_that_worked() const noexcept {
  std::int32_t count = state_->caller_worked.load() ? 1 : 0;
  for (std::int32_t i = 0; i < state_->num_workers; ++i) {
    count += state_->workers[static_cast<std::size_t>(i)].worked.load() ? 1 : 0;
  }
  return count;
}

void ThreadPool::forget_work() noexcept {
  state_->caller_worked.store(false);
  for (std::int32_t i = 0; i < state_->num_workers; ++i) {
    state_->workers[static_cast<std::size_t>(i)].worked.store(false);
  }
}

}  // namespace kvfolio
