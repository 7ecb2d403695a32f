// SPDX-License-Identifier: Apache-2.0

#include "cuda/attention/fibers.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace kvfolio::cuda {
namespace {

TEST(Fibers, GoOnWhereTheyYielded) {
  Fibers fibers(2);
  std::string seen;
  for (int i = 0; i < 2; ++i) {
    fibers.start(i, [&fibers, &seen, i] {
      for (int part = 0; part < 3; ++part) {
        seen += static_cast<char>('a' + i);
        seen += static_cast<char>('0' + part);
        fibers.yield();
      }
    });
  }
  while (!fibers.done(0)) {
    fibers.resume(0);
    if (!fibers.done(1)) fibers.resume(1);
  }
  while (!fibers.done(1)) fibers.resume(1);
  EXPECT_EQ(seen, "a0b0a1b1a2b2");
}

// A call that never returns, left on the thread sanitizer's stack of calls by each start, ended the
// process at the 65,536th, in the next function that asked for memory.
TEST(Fibers, StartAnyNumberOfTimes) {
  Fibers fibers(1);
  int ended = 0;
  for (int i = 0; i < 70000; ++i) {
    fibers.start(0, [&ended] { ended += *std::make_unique<int>(1); });
    fibers.resume(0);
    ASSERT_TRUE(fibers.done(0));
  }
  EXPECT_EQ(ended, 70000);
}

}  // namespace
}  // namespace kvfolio::cuda
