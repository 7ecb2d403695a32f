// SPDX-License-Identifier: Apache-2.0
#pragma once

// Executor is how a kernel reaches the threads of its caller: a function that runs numbered tasks.
// A host fills one in over its own pool; ThreadPool is a pool for who has none; openmp.h has one
// over OpenMP. No call of kvfolio starts a thread unless it is given an executor that does. It
// knows numbers of tasks: neither kernels nor what a task does.
//
// Invariants: each task of a call runs once, and none runs after the call.
// Thread safety: an Executor is plain data; how many threads may call it at a time is its host's
// affair, and any number may call that of a ThreadPool (below).
//
//   Result<std::unique_ptr<ThreadPool>> pool = ThreadPool::create(4);
//   if (!pool) return pool.error();
//   const Executor executor = (*pool)->executor();   // what kernels take

#include <cstdint>
#include <memory>
#include <type_traits>

#include "kvfolio/export.h"
#include "kvfolio/status.h"

namespace kvfolio {

// parallel_for(context, n, task, arg) calls task(arg, i) once for each i in 0 .. n-1 and returns
// when all of these calls have returned; what they wrote is visible to its caller then. It may run
// them in any order, on any threads, several at a time or one after the other: no task waits for
// another one. Kernels ask for n <= num_threads, on the thread that called the kernel; who calls
// kernels at the same time with one Executor has a parallel_for that allows it. Tasks do not throw.
// Plain data, as C has it; it owns nothing, and `context` outlives its use.
struct Executor {
  void* context = nullptr;
  std::int32_t num_threads = 1;
  void (*parallel_for)(void* context, std::int32_t n, void (*task)(void* arg, std::int32_t index),
                       void* arg) = nullptr;
};
static_assert(std::is_standard_layout_v<Executor> && std::is_trivially_copyable_v<Executor>);

// Calls body(0) .. body(n-1) on `executor`. Requires: executor.parallel_for is not null.
template <typename Body>
void parallel_for(const Executor& executor, std::int32_t n, Body&& body) {
  using Plain = std::remove_reference_t<Body>;
  executor.parallel_for(
      executor.context, n,
      [](void* arg, std::int32_t index) { (*static_cast<Plain*>(arg))(index); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

// A fixed set of threads; the caller of parallel_for is one of them. Tasks are handed out in
// increasing order to whoever is free. Idle threads look for work for some microseconds, then
// sleep. Nothing allocates after create().
//
// Invariants: a task runs once; no thread holds a task when parallel_for returns.
// Thread safety: parallel_for may be called from several threads and from within a task. While one
// call runs, another one does not wait for it: it runs its own tasks itself, one after the other.
// The pool is destroyed by one thread, when no call runs.
class ThreadPool {
 public:
  static constexpr std::int32_t kMaxThreads = 1024;

  // num_threads counts the caller: 1 starts none. The threads take no signals.
  // kInvalidArgument: not 1 .. kMaxThreads. kResourceExhausted: the system started fewer threads,
  // none is left running then. kOutOfMemory.
  KVFOLIO_API static Result<std::unique_ptr<ThreadPool>> create(std::int32_t num_threads);

  KVFOLIO_API ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] KVFOLIO_API std::int32_t num_threads() const noexcept;
  // Valid until the pool goes.
  [[nodiscard]] KVFOLIO_API Executor executor() noexcept;
  // As the free function, for any n; n <= 0 is nothing.
  template <typename Body>
  void parallel_for(std::int32_t n, Body&& body) {
    kvfolio::parallel_for(executor(), n, body);
  }

  // How many of the threads ran a task since the last forget_work(); the callers of parallel_for
  // count as one. Between two loops.
  [[nodiscard]] KVFOLIO_API std::int32_t num_threads_that_worked() const noexcept;
  KVFOLIO_API void forget_work() noexcept;

 private:
  struct State;

  explicit ThreadPool(std::unique_ptr<State> state) noexcept;

  std::unique_ptr<State> state_;
};

}  // namespace kvfolio
