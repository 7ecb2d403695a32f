// SPDX-License-Identifier: Apache-2.0
// What the manager answers to 22 x 50,000 random operations, as 22 numbers. A change of the inside
// leaves them as they are. A change of behaviour renews them, in a commit of its own that says
// which calls answer otherwise:
//
//   KVFOLIO_DIGESTS=print digest_test | grep 0x     the rows of kDigests
//   KVFOLIO_DIGESTS=DIR digest_test                 DIR/SEED.log: each operation and its digest;
//                                                   two builds differ where these logs do
//
// It says nothing about what is right: model_check_test does.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "model_check/harness.h"

namespace kvfolio::model_check {
namespace {

constexpr int kOperations = 50000;
constexpr int kOpsPerRun = 600;
// Seeds from 20 on draw loads and holds, the others never.
constexpr std::uint64_t kFirstOfTransfers = 20;
constexpr int kNumMixed = static_cast<int>(Family::kTransfers);

constexpr std::array<std::uint64_t, 22> kDigests = {
    0x9c9eefd29d3e7accu, 0x68b6308b957f6656u, 0xed312d18a2c81015u, 0x5f9dae9cccf4a2d0u,
    0x5e26366f1b84092cu, 0xa9b7a4c28c3d6910u, 0xb2b5142f31e45fd1u, 0x972b95e5d55ee57fu,
    0xb3619845f738a459u, 0x996c336844157e04u, 0xf34098070db439a9u, 0x5063f9fa46c46345u,
    0xbc99a9e693ae9426u, 0x522df0d845a9df08u, 0xd4aa2976ca5d6adbu, 0x412d3565bec2bd2au,
    0x863a8cf27e108f4cu, 0xc599bca204f8938cu, 0xda0de4353e3c5013u, 0x4d25f527b91a1476u,
    0x257cbadb44753526u, 0x6c5529a8e9e20d26u,
};

class Digest : public testing::TestWithParam<int> {};

TEST_P(Digest, TheSameCallsGiveTheSameAnswersAsBefore) {
  const auto seed = static_cast<std::uint64_t>(GetParam());
  const char* wanted = std::getenv("KVFOLIO_DIGESTS");
  const std::string to = wanted != nullptr ? wanted : "";
  std::ofstream log;
  if (!to.empty() && to != "print") log.open(to + "/" + std::to_string(seed) + ".log");

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
INSTANTIATE_TEST_SUITE_P(ThroughC, Digest, testing::Values(0, 1, 2, 3, 4, 20));
#else
INSTANTIATE_TEST_SUITE_P(Seeds, Digest, testing::Range(0, static_cast<int>(kDigests.size())));
#endif

}  // namespace
}  // namespace kvfolio::model_check
