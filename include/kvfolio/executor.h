// SPDX-License-Identifier: Apache-2.0
#pragma once

// An Executor gives a kernel the threads of its caller: it is a function that runs numbered tasks.
// A host that has a thread pool wraps it in an Executor; ThreadPool is a pool for a host that has
// none; openmp.h uses OpenMP. No call of kvfolio starts a thread unless its executor does. An
// Executor knows only task numbers: neither kernels nor what a task does.
//
// Invariants: each task of a call runs once, and none runs after the call.
// Thread safety: an Executor is plain data. Its host says how many threads may call it at a time;
// any number may call that of a ThreadPool (below).
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
// when all of these calls have returned. Its caller then sees what they wrote. It may run them in
// any order, on any threads, several at a time or one after the other, since no task waits for
// another. Kernels use n <= num_threads, on the thread that called the kernel. If kernels that run
// at the same time share an Executor, its parallel_for must allow that. Tasks do not throw. An
// Executor is plain data, as in C; it owns nothing, and `context` must outlive its use.
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
  KVFOLIO_DCHECK(executor.parallel_for != nullptr);
  using Plain = std::remove_reference_t<Body>;
  executor.parallel_for(
      executor.context, n,
      [](void* arg, std::int32_t index) { (*static_cast<Plain*>(arg))(index); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

// A fixed set of threads; the caller of parallel_for is one of them. Tasks go to free threads in
// increasing order. Idle threads look for work for some microseconds, then sleep. Nothing allocates
// after create().
//
// Invariants: a task runs once; no thread holds a task when parallel_for returns.
// Thread safety: parallel_for may be called from several threads and from within a task. While one
// call runs, another call does not wait for it, but runs its own tasks on its own thread, one after
// the other. Destroy the pool when no call runs.
class ThreadPool {
 public:
  static constexpr std::int32_t kMaxThreads = 1024;

  // num_threads counts the caller, so 1 starts no thread. The threads take no signals.
  // kInvalidArgument: num_threads is not in 1 .. kMaxThreads. kResourceExhausted: the system
  // started fewer threads; none of them is left running. kOutOfMemory.
  KVFOLIO_API static Result<std::unique_ptr<ThreadPool>> create(std::int32_t num_threads);

  KVFOLIO_API ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] KVFOLIO_API std::int32_t num_threads() const noexcept;
  // Valid until the pool is destroyed.
  [[nodiscard]] KVFOLIO_API Executor executor() noexcept;
  // The same as the free function, for any n; n <= 0 does nothing.
  template <typename Body>
  void parallel_for(std::int32_t n, Body&& body) {
    kvfolio::parallel_for(executor(), n, body);
  }

  // The number of threads that ran a task since the last forget_work(); the callers of parallel_for
  // count as one. Call both between two loops.
  [[nodiscard]] KVFOLIO_API std::int32_t num_threads_that_worked() const noexcept;
  KVFOLIO_API void forget_work() noexcept;

 private:
  struct State;

  explicit ThreadPool(std::unique_ptr<State> state) noexcept;

  std::unique_ptr<State> state_;
};

}  // namespace kvfolio
