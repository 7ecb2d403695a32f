// SPDX-License-Identifier: Apache-2.0
#include "kvfolio/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

namespace kvfolio {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<ThreadPool> make_pool(std::int32_t num_threads) {
  Result<std::unique_ptr<ThreadPool>> pool = ThreadPool::create(num_threads);
  EXPECT_TRUE(pool.has_value());
  return *std::move(pool);
}

TEST(ThreadPool, EveryTaskRunsOnceInEveryLoop) {
  for (const std::int32_t num_threads : {1, 2, 3, 4, 8}) {
    const std::unique_ptr<ThreadPool> pool = make_pool(num_threads);
    EXPECT_EQ(pool->num_threads(), num_threads);
    for (std::int32_t loop = 0; loop < 300; ++loop) {
      const std::int32_t n = loop % 37;
      std::vector<std::atomic<std::int32_t>> runs(static_cast<std::size_t>(n));
      pool->parallel_for(n, [&](std::int32_t i) { ++runs[static_cast<std::size_t>(i)]; });
      for (const auto& count : runs) ASSERT_EQ(count.load(), 1);
    }
  }
}

TEST(ThreadPool, NoTasksIsNothing) {
  const std::unique_ptr<ThreadPool> pool = make_pool(2);
  for (const std::int32_t n : {0, -1, -1000}) {
    pool->parallel_for(n, [](std::int32_t) { FAIL(); });
  }
  EXPECT_EQ(pool->num_threads_that_worked(), 0);
}

TEST(ThreadPool, WhatTasksWroteIsVisibleAfterwards) {
  const std::unique_ptr<ThreadPool> pool = make_pool(4);
  std::vector<std::int32_t> values(1000);
  for (std::int32_t loop = 1; loop <= 50; ++loop) {
    pool->parallel_for(1000, [&](std::int32_t i) { values[static_cast<std::size_t>(i)] += i; });
    EXPECT_EQ(std::accumulate(values.begin(), values.end(), 0), loop * 499'500);
  }
}

TEST(ThreadPool, ManyShortLoopsOfFewerTasksThanThreads) {
  const std::unique_ptr<ThreadPool> pool = make_pool(4);
  std::atomic<std::int64_t> sum{0};
  std::int64_t expected = 0;
  for (std::int32_t loop = 0; loop < 100'000; ++loop) {
    const std::int32_t n = 1 + loop % 4;
    expected += n * (n + 1) / 2;
    pool->parallel_for(n, [&](std::int32_t i) { sum.fetch_add(i + 1, std::memory_order_relaxed); });
  }
  EXPECT_EQ(sum.load(), expected);
}

TEST(ThreadPool, SleepingThreadsWakeUp) {
  const std::unique_ptr<ThreadPool> pool = make_pool(3);
  for (int loop = 0; loop < 3; ++loop) {
    // Longer than threads look for work: they sleep when the next loop begins.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::atomic<std::int32_t> arrived{0};
    // Each task waits for the others: had one thread not woken up, this would never end.
    pool->parallel_for(3, [&](std::int32_t) {
      ++arrived;
      while (arrived.load() < 3) std::this_thread::yield();
    });
    EXPECT_EQ(arrived.load(), 3);
  }
}

TEST(ThreadPool, ACallerThatFinishedItsTasksSleepsUntilTheOthersDid) {
  const std::unique_ptr<ThreadPool> pool = make_pool(2);
  const std::thread::id caller = std::this_thread::get_id();
  for (int loop = 0; loop < 3; ++loop) {
    std::atomic<std::int32_t> arrived{0};
    bool slow_done = false;
    pool->parallel_for(2, [&](std::int32_t) {
      ++arrived;
      while (arrived.load() < 2) std::this_thread::yield();
      if (std::this_thread::get_id() == caller) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      slow_done = true;
    });
    EXPECT_TRUE(slow_done);
  }
}

TEST(ThreadPool, TwoPoolsWorkAtOnce) {
  std::vector<std::int64_t> sums(2);
  std::vector<std::thread> callers;
  for (std::size_t which = 0; which < 2; ++which) {
    callers.emplace_back([&sums, which] {
      const std::unique_ptr<ThreadPool> pool = make_pool(3);
      std::vector<std::int64_t> values(64);
      for (std::int32_t loop = 0; loop < 2000; ++loop) {
        pool->parallel_for(64, [&](std::int32_t i) { values[static_cast<std::size_t>(i)] += i; });
      }
      sums[which] = std::accumulate(values.begin(), values.end(), std::int64_t{0});
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sums[0], 2000 * 2016);
  EXPECT_EQ(sums[1], 2000 * 2016);
}

TEST(ThreadPool, CallsFromSeveralThreadsAreAllDone) {
  const std::unique_ptr<ThreadPool> pool = make_pool(2);
  std::vector<std::int64_t> sums(3);
  std::vector<std::thread> callers;
  for (std::size_t which = 0; which < 3; ++which) {
    callers.emplace_back([&pool, &sums, which] {
      std::vector<std::int64_t> values(8);
      for (std::int32_t loop = 0; loop < 2000; ++loop) {
        pool->parallel_for(8, [&](std::int32_t i) { values[static_cast<std::size_t>(i)] += i; });
      }
      sums[which] = std::accumulate(values.begin(), values.end(), std::int64_t{0});
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const std::int64_t sum : sums) EXPECT_EQ(sum, 2000 * 28);
}

TEST(ThreadPool, ATaskMayRunALoopOfItsOwn) {
  const std::unique_ptr<ThreadPool> pool = make_pool(3);
  std::atomic<std::int32_t> runs{0};
  pool->parallel_for(
      5, [&](std::int32_t) { pool->parallel_for(7, [&](std::int32_t) { runs.fetch_add(1); }); });
  EXPECT_EQ(runs.load(), 35);
}

TEST(ThreadPool, TheExecutorRunsOnThePool) {
  const std::unique_ptr<ThreadPool> pool = make_pool(2);
  const Executor executor = pool->executor();
  EXPECT_EQ(executor.num_threads, 2);
  std::int32_t values[5] = {};
  executor.parallel_for(
      executor.context, 5,
      [](void* arg, std::int32_t index) { static_cast<std::int32_t*>(arg)[index] = index + 1; },
      values);
  EXPECT_THAT(values, ::testing::ElementsAre(1, 2, 3, 4, 5));
  const auto constant = [](std::int32_t) {};
  parallel_for(executor, 3, constant);
}

TEST(ThreadPool, TasksAreHandedOutInIncreasingOrder) {
  const std::unique_ptr<ThreadPool> pool = make_pool(3);
  std::mutex mutex;
  std::map<std::thread::id, std::vector<std::int32_t>> ran;
  for (int loop = 0; loop < 50; ++loop) {
    ran.clear();
    pool->parallel_for(40, [&](std::int32_t i) {
      const std::lock_guard lock(mutex);
      ran[std::this_thread::get_id()].push_back(i);
    });
    std::size_t count = 0;
    for (const auto& [thread, tasks] : ran) {
      EXPECT_TRUE(std::is_sorted(tasks.begin(), tasks.end()));
      count += tasks.size();
    }
    EXPECT_EQ(count, 40u);
  }
}

TEST(ThreadPool, CountsTheThreadsThatRanATask) {
  const std::unique_ptr<ThreadPool> alone = make_pool(1);
  EXPECT_EQ(alone->num_threads_that_worked(), 0);
  alone->parallel_for(3, [](std::int32_t) {});
  EXPECT_EQ(alone->num_threads_that_worked(), 1);
  const std::unique_ptr<ThreadPool> three = make_pool(3);
  std::atomic<int> inside{0};
  // No task ends before three threads are in one each.
  three->parallel_for(3, [&](std::int32_t) {
    inside.fetch_add(1);
    while (inside.load() < 3) std::this_thread::yield();
  });
  EXPECT_EQ(three->num_threads_that_worked(), 3);
  three->forget_work();
  EXPECT_EQ(three->num_threads_that_worked(), 0);
}

TEST(ThreadPool, UnusedPoolEnds) {
  for (int i = 0; i < 20; ++i) make_pool(4);
}

TEST(ThreadPool, SignalsGoToTheThreadsOfTheHost) {
  const std::unique_ptr<ThreadPool> pool = make_pool(2);
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<std::int32_t> arrived{0};
  std::atomic<int> blocked_in_worker{-1};
  int blocked_in_caller = -1;
  pool->parallel_for(2, [&](std::int32_t) {
    ++arrived;
    while (arrived.load() < 2) std::this_thread::yield();
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    const int blocked = sigismember(&mask, SIGINT);
    if (std::this_thread::get_id() == caller) {
      blocked_in_caller = blocked;
    } else {
      blocked_in_worker = blocked;
    }
  });
  EXPECT_EQ(blocked_in_worker.load(), 1);
  EXPECT_EQ(blocked_in_caller, 0);
}

TEST(ThreadPool, ABadNumberOfThreadsIsRefusedWithWhatIsAllowed) {
  for (const std::int32_t num_threads : {0, -1, 1025, INT32_MIN, INT32_MAX}) {
    const Result<std::unique_ptr<ThreadPool>> pool = ThreadPool::create(num_threads);
    ASSERT_FALSE(pool.has_value());
    EXPECT_EQ(pool.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(pool.error().message(), HasSubstr("allowed: 1 to 1024"));
    EXPECT_THAT(pool.error().message(), HasSubstr(std::to_string(num_threads)));
  }
}

// The sanitizers place stacks themselves.
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(ThreadPool, ThreadsThatDoNotStartAreAnError) {
  pthread_attr_t before;
  pthread_attr_t huge;
  ASSERT_EQ(pthread_getattr_default_np(&before), 0);
  ASSERT_EQ(pthread_getattr_default_np(&huge), 0);
  // No address space has room for such a stack.
  ASSERT_EQ(pthread_attr_setstacksize(&huge, std::size_t{1} << 60), 0);
  ASSERT_EQ(pthread_setattr_default_np(&huge), 0);
  const Result<std::unique_ptr<ThreadPool>> pool = ThreadPool::create(4);
  const Result<std::unique_ptr<ThreadPool>> alone = ThreadPool::create(1);
  ASSERT_EQ(pthread_setattr_default_np(&before), 0);
  pthread_attr_destroy(&huge);
  pthread_attr_destroy(&before);
  ASSERT_FALSE(pool.has_value());
  EXPECT_EQ(pool.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(pool.error().message(), HasSubstr("started 0 of the 3 threads"));
  EXPECT_TRUE(alone.has_value());
}
#endif

}  // namespace
}  // namespace kvfolio
