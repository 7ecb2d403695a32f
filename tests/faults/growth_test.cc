// SPDX-License-Identifier: Apache-2.0
// Costs that grew with the square of the prompt, or with the pool. Processor time of this thread,
// the least of several runs, against bounds far from both what is and what must not be.

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>

#include "engine.h"

namespace kvfolio::testing_engine {
namespace {

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Of `rounds` times open and close of a cached prompt.
double seconds_of_open(Engine& e, const Tokens& prompt, int rounds) {
  double best = 1e9;
  for (int run = 0; run < 7; ++run) {
    const double start = thread_seconds();
    for (int i = 0; i < rounds; ++i) must(e.manager.close(e.open(prompt).sequence));
    best = std::min(best, thread_seconds() - start);
  }
  return best;
}

// Fault P6. Eight times the tokens: 8 if linear, 64 if every block looks at the whole prefix.
TEST(FaultP6, APromptIsFoundInTimeThatGrowsWithItsLength) {
  Engine e({full_group(16, 16384)});
  const Tokens small = tokens(1, 16384);
  const Tokens large = tokens(1, 131072);
  e.cache(large);
  EXPECT_EQ(e.probe(large), 131071);
  EXPECT_LT(seconds_of_open(e, large, 4), 24 * seconds_of_open(e, small, 4));
}

// Fault P6: a touch looked at every cached block. A hundred times the blocks.
TEST(FaultP6, ATouchDoesNotLookAtTheOtherCachedBlocks) {
  const auto seconds = [](std::int32_t blocks) {
    Engine e({full_group(16, blocks)});
    e.cache(tokens(1, 16 * (blocks - 8)));
    e.cache(tokens(2000000, 32));
    return seconds_of_open(e, tokens(2000000, 33), 500);
  };
  EXPECT_LT(seconds(100000), 20 * seconds(1000));
}

}  // namespace
}  // namespace kvfolio::testing_engine
