// SPDX-License-Identifier: Apache-2.0
// What the manager answers to 22 x 50,000 random operations, as 22 numbers. A change of the inside
// leaves them as they are. A change of behaviour renews them, in a commit of its own that says
// which calls answer otherwise. By default six of the 22 run; with KVFOLIO_DIGESTS, and so every
// night, all do:
//
//   KVFOLIO_DIGESTS=print digest_test | grep 0x     the rows of kDigests
//   KVFOLIO_DIGESTS=DIR digest_test                 DIR/SEED.log: each operation and its digest;
//                                                   two builds differ where these logs do
//   KVFOLIO_DIGESTS=all digest_test
//
// It says nothing about what is right: model_check_test does.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "model_check/harness.h"

namespace kvfolio::model_check {
namespace {

constexpr int kOperations = 50000;
constexpr int kOpsPerRun = 600;
// Seeds from 20 on draw loads and holds, the others never.
constexpr std::uint64_t kFirstOfTransfers = 20;
constexpr int kNumMixed = static_cast<int>(Family::kTransfers);

constexpr std::array<std::uint64_t, 22> kDigests = {
    0xc9522b1e9f389756u, 0xfde1bf5b1008adbau, 0xe2fdea3b6aa8ee8cu, 0xc744404a23176e02u,
    0x3803498ef51d783bu, 0x88969aa5d7c929a0u, 0x08e3208f36d98e43u, 0x180adbeaff2e2174u,
    0xd216bb9425cceb3bu, 0x86c070e59c504bbcu, 0xd72ea1875910f0c7u, 0xe6dd22da1d1a514eu,
    0x1d07d7c7cc97572du, 0x5c1fbd98a786f495u, 0x82475131cdd2cef9u, 0x11c6359d94bf78cdu,
    0x650f3465b5e92b76u, 0x71adb186cced4b43u, 0x1aea95dc8f8f9487u, 0x8a9a557a596a8054u,
    0x06e59cf3f51bb5cau, 0x7a63dff701469a5du,
};

// Each has runs of every family, those of transfers apart.
std::vector<int> seeds() {
  const bool all = std::getenv("KVFOLIO_DIGESTS") != nullptr;
#ifdef KVFOLIO_MODEL_CHECK_C
  if (!all) return {0, 20};
#else
  if (!all) return {0, 1, 2, 3, 4, 20};
#endif
  std::vector<int> of_all(kDigests.size());
  std::iota(of_all.begin(), of_all.end(), 0);
  return of_all;
}

class Digest : public testing::TestWithParam<int> {};

TEST_P(Digest, TheSameCallsGiveTheSameAnswersAsBefore) {
  const auto seed = static_cast<std::uint64_t>(GetParam());
  const char* wanted = std::getenv("KVFOLIO_DIGESTS");
  const std::string to = wanted != nullptr ? wanted : "";
  std::ofstream log;
  if (!to.empty() && to != "print" && to != "all")
    log.open(to + "/" + std::to_string(seed) + ".log");

  std::uint64_t digest = 0;
  std::uint64_t run = 0;
  for (int left = kOperations; left > 0; left -= kOpsPerRun, ++run) {
    const auto family = seed < kFirstOfTransfers ? static_cast<Family>((seed + run) % kNumMixed)
                                                 : Family::kTransfers;
    Harness harness(make_config(family, 1000 * seed + run));
    for (int op = 0; op < std::min(left, kOpsPerRun); ++op) {
      const std::uint64_t drawn = (seed << 32 | run << 16) + static_cast<std::uint64_t>(op);
      try {
        harness.run(Rng(drawn).next());
      } catch (...) {
        if (log.is_open()) log << run << " " << op << " stops in " << harness.log() << "\n";
        throw;
      }
      if (log.is_open()) {
        log << run << " " << op << " " << std::hex << harness.digest() << std::dec << " "
            << harness.log() << "\n";
      }
    }
    digest = (digest ^ harness.digest()) * 0x9e3779b97f4a7c15u;
  }
  if (to == "print") std::printf("    0x%016llxu,\n", static_cast<unsigned long long>(digest));
  EXPECT_EQ(digest, kDigests[static_cast<std::size_t>(GetParam())])
      << "seed " << seed << ": some answer is another than before";
}

#ifdef KVFOLIO_MODEL_CHECK_C
INSTANTIATE_TEST_SUITE_P(ThroughC, Digest, testing::ValuesIn(seeds()));
#else
INSTANTIATE_TEST_SUITE_P(Seeds, Digest, testing::ValuesIn(seeds()));
#endif

}  // namespace
}  // namespace kvfolio::model_check
