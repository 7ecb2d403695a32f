// SPDX-License-Identifier: Apache-2.0
#include "kvfolio/openmp.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <vector>

namespace kvfolio {
namespace {

TEST(OpenmpExecutor, EveryTaskRunsOnce) {
  for (const std::int32_t num_threads : {1, 2, 3}) {
    const Executor executor = openmp_executor(num_threads);
    EXPECT_EQ(executor.num_threads, num_threads);
    for (std::int32_t n = 0; n < 20; ++n) {
      std::vector<std::atomic<std::int32_t>> runs(static_cast<std::size_t>(n));
      parallel_for(executor, n, [&](std::int32_t i) { ++runs[static_cast<std::size_t>(i)]; });
      for (const auto& count : runs) ASSERT_EQ(count.load(), 1);
    }
  }
}

TEST(OpenmpExecutor, TakesWhatOpenmpWouldTake) {
  EXPECT_EQ(openmp_executor().num_threads, omp_get_max_threads());
  EXPECT_EQ(openmp_executor(-1).num_threads, omp_get_max_threads());
}

TEST(OpenmpExecutor, TasksRunOnSeveralThreads) {
  std::atomic<std::int32_t> arrived{0};
  // Each task waits for the other one: with one thread this would never end.
  parallel_for(openmp_executor(2), 2, [&](std::int32_t) {
    ++arrived;
    while (arrived.load() < 2) {
    }
  });
  EXPECT_EQ(arrived.load(), 2);
}

TEST(OpenmpExecutor, WorksWithinARegionOfTheCaller) {
  std::vector<std::int32_t> sums(2);
#pragma omp parallel for num_threads(2)
  for (std::int32_t part = 0; part < 2; ++part) {
    std::vector<std::int32_t> values(10);
    parallel_for(openmp_executor(2), 10,
                 [&](std::int32_t i) { values[static_cast<std::size_t>(i)] = i; });
    sums[static_cast<std::size_t>(part)] = std::accumulate(values.begin(), values.end(), 0);
  }
  EXPECT_EQ(sums, std::vector<std::int32_t>({45, 45}));
}

}  // namespace
}  // namespace kvfolio
