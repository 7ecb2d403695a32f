// SPDX-License-Identifier: Apache-2.0
#pragma once

// ThreadPool runs the parts of one loop on a fixed set of threads; the caller is one of them.
// Parts are handed out in increasing order to whoever is free, so a part must not depend on which
// thread runs it: that is what keeps the bits of a result independent of the thread count.
//
//   ThreadPool pool(4);
//   pool.parallel_for(num_tiles, [&](std::int32_t tile) { compute(tile); });
//
// Thread safety: one parallel_for at a time, from one thread. Not reentrant.
// parallel_for allocates nothing. Idle workers spin for some microseconds, then sleep.

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace kvfolio::llama {

class ThreadPool {
 public:
  // num_threads >= 1, the caller's included: ThreadPool(1) starts none.
  explicit ThreadPool(std::int32_t num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] std::int32_t num_threads() const noexcept {
    return static_cast<std::int32_t>(workers_.size()) + 1;
  }
  // How many of the threads ran a part since the last forget_work(). Between two loops.
  [[nodiscard]] std::int32_t num_threads_that_worked() const noexcept;
  void forget_work() noexcept;

  // Calls body(0) .. body(num_parts-1), each once, and returns when all have returned. `body` must
  // not throw.
  template <typename Body>
  void parallel_for(std::int32_t num_parts, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run(
        num_parts, [](void* context, std::int32_t part) { (*static_cast<Plain*>(context))(part); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using Call = void (*)(void* context, std::int32_t part);

  void run(std::int32_t num_parts, Call call, void* context);
  void take_parts(std::uint32_t round, std::int32_t thread);
  void work(std::int32_t thread);
  void note_work(std::int32_t thread) noexcept;

  // The loop of the current round. The caller writes it before it publishes the round, and only
  // when no part is claimed; others read it only while they hold a part.
  Call call_ = nullptr;
  void* context_ = nullptr;
  std::int32_t num_parts_ = 0;

  // Round number in the high half, parts not yet claimed in the low half. One word, so that a
  // thread that comes late cannot claim a part of a round that it did not see begin; nobody waits
  // for a thread that holds no part, which matters where other processes want the cores.
  std::atomic<std::uint64_t> unclaimed_{0};
  std::atomic<std::int32_t> unfinished_{0};  // parts that have not returned
  std::atomic<std::uint32_t> round_{0};      // what idle workers wait for
  std::atomic<bool> stop_{false};
  std::unique_ptr<std::atomic<bool>[]> worked_;  // by thread, the caller is 0
  std::vector<std::thread> workers_;
};

}  // namespace kvfolio::llama
