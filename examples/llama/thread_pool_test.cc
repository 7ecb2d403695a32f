// SPDX-License-Identifier: Apache-2.0
#include "thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

namespace kvfolio::llama {
namespace {

TEST(ThreadPool, EveryPartRunsOnceInEveryRound) {
  for (const std::int32_t num_threads : {1, 2, 3, 4, 8}) {
    ThreadPool pool(num_threads);
    EXPECT_EQ(pool.num_threads(), num_threads);
    for (std::int32_t round = 0; round < 300; ++round) {
      const std::int32_t num_parts = round % 37;
      std::vector<std::atomic<std::int32_t>> runs(static_cast<std::size_t>(num_parts));
      pool.parallel_for(num_parts,
                        [&](std::int32_t part) { ++runs[static_cast<std::size_t>(part)]; });
      for (const auto& count : runs) ASSERT_EQ(count.load(), 1);
    }
  }
}

TEST(ThreadPool, WhatPartsWroteIsVisibleAfterwards) {
  ThreadPool pool(4);
  std::vector<std::int32_t> values(1000);
  for (std::int32_t round = 1; round <= 50; ++round) {
    pool.parallel_for(1000,
                      [&](std::int32_t part) { values[static_cast<std::size_t>(part)] += part; });
    EXPECT_EQ(std::accumulate(values.begin(), values.end(), 0), round * 499'500);
  }
}

TEST(ThreadPool, SleepingWorkersWakeUp) {
  ThreadPool pool(3);
  std::atomic<std::int32_t> done{0};
  for (int round = 0; round < 3; ++round) {
    // Longer than workers spin: they sleep when the next round begins.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    pool.parallel_for(3, [&](std::int32_t) { ++done; });
  }
  EXPECT_EQ(done.load(), 9);
}

TEST(ThreadPool, PartsRunOnSeveralThreadsAtOnce) {
  ThreadPool pool(2);
  std::atomic<std::int32_t> arrived{0};
  // Each part waits for the other one: with one thread this would never end.
  pool.parallel_for(2, [&](std::int32_t) {
    ++arrived;
    while (arrived.load() < 2) std::this_thread::yield();
  });
  EXPECT_EQ(arrived.load(), 2);
}

TEST(ThreadPool, UnusedPoolEnds) {
  for (int i = 0; i < 20; ++i) ThreadPool pool(4);
}

TEST(ThreadPool, CountsTheThreadsThatRanAPart) {
  ThreadPool alone(1);
  EXPECT_EQ(alone.num_threads_that_worked(), 0);
  alone.parallel_for(3, [](std::int32_t) {});
  EXPECT_EQ(alone.num_threads_that_worked(), 1);
  ThreadPool three(3);
  std::atomic<int> inside{0};
  // No part ends before three threads are in one each.
  three.parallel_for(3, [&](std::int32_t) {
    inside.fetch_add(1);
    while (inside.load() < 3) std::this_thread::yield();
  });
  EXPECT_EQ(three.num_threads_that_worked(), 3);
  three.forget_work();
  EXPECT_EQ(three.num_threads_that_worked(), 0);
}

}  // namespace
}  // namespace kvfolio::llama
