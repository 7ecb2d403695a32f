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

#include "model_check/runs.h"

namespace kvfolio::model_check {
namespace {

constexpr int kOperations = 50000;
constexpr int kOpsPerRun = 600;
// Seeds from 20 on draw loads and holds, the others never.
constexpr std::uint64_t kFirstOfTransfers = 20;
constexpr int kNumMixed = static_cast<int>(Family::kTransfers);

constexpr std::array<std::uint64_t, 22> kDigests = {
    0xe92351c029fe8257u, 0xc1db4805054e0682u, 0xbb86fda46282313fu, 0xb13f0e9b1d10a569u,
    0xdf9e48acb4dc9671u, 0x9c8148a4f2fa263cu, 0x29597f1e9e6cb4e7u, 0x72c0d873a745ae12u,
    0xc3a36406b524fe7bu, 0x7bef52dcd9ce38f5u, 0x72ae2edefce41737u, 0x5f86c01c08831101u,
    0x7c4e3a92d4a538f9u, 0xf295e58d166a2eb7u, 0x4d93b9dcadbeece7u, 0xa02ad3d3cf9ed92eu,
    0x675681792bae52f5u, 0x050a4b928f901043u, 0x522d015e166cccc1u, 0x5eb2fc02e7b06eb6u,
    0x488e9bd4a01de62du, 0xc192703385b739afu,
};

// Each has runs of every family, those of transfers apart.
std::vector<int> seeds() {
  const bool all = std::getenv("KVFOLIO_DIGESTS") != nullptr;
  if (!all) return {0, 1, 2, 3, 4, 20};
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
    RandomRun harness(make_config(family, 1000 * seed + run));
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

INSTANTIATE_TEST_SUITE_P(Seeds, Digest, testing::ValuesIn(seeds()));

}  // namespace
}  // namespace kvfolio::model_check
