// SPDX-License-Identifier: Apache-2.0
// What the manager answers to 20 x 50,000 random operations, as 20 numbers. A change of the inside
// leaves them as they are. A change of behaviour renews them, in a commit of its own that says
// which calls answer otherwise:
//
//   KVFOLIO_DIGESTS=print digest_test | grep 0x     the rows of kDigests
//   KVFOLIO_DIGESTS=DIR digest_test                 DIR/SEED.log: each operation and its digest;
//   two
//                                                   builds differ first where these logs do
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

constexpr std::array<std::uint64_t, 20> kDigests = {
    0xaea98bdde922be57u, 0x283b92ce576641d8u, 0x66c63ea8122aaa7cu, 0x61fd509fd27379dau,
    0x5566454a83e41921u, 0xa5a9897f35749140u, 0x584c558c5d4443f8u, 0x32130fd6bb25d8d5u,
    0x0c5c3864d01f7989u, 0xc7ca113235dc2962u, 0x868eba86d4cbfab9u, 0x386a2270dd791a68u,
    0x572888fbd84f8293u, 0x75653f6fa0e1407fu, 0x51e6043c7729c4a3u, 0xb7222822ded52349u,
    0x853bdfd623ab090au, 0x0cf5131d07bfdffcu, 0x38894109db0fbc2fu, 0x99b49cd7f969abcbu,
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
    const auto family = static_cast<Family>((seed + run) % kNumFamilies);
    Harness harness(make_config(family, 1000 * seed + run));
    for (int op = 0; op < std::min(left, kOpsPerRun); ++op) {
      const std::uint64_t drawn = (seed << 32 | run << 16) + static_cast<std::uint64_t>(op);
      harness.run(Rng(drawn).next());
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

INSTANTIATE_TEST_SUITE_P(Seeds, Digest, testing::Range(0, static_cast<int>(kDigests.size())));

}  // namespace
}  // namespace kvfolio::model_check
