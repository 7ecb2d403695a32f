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
    0xfe9ffab83fef9980u, 0x9daddb51e394b4bfu, 0x563e768851865bcfu, 0xb97f108b779778a1u,
    0xec310fb2df7608f8u, 0x73706a0a89fd172cu, 0xbf1fa6158223d17bu, 0x6bfac7678c3a3f3bu,
    0x3efaee2f4bb06bf2u, 0x6aeb297c16db4340u, 0x862b579580900f2du, 0x22a1f5428057b406u,
    0x8bbbc6e6b4f7ebf8u, 0xb7ba72db58cbe542u, 0xa98ac050680ccb06u, 0xb6fa30b386e1ba92u,
    0x012e80fbf4d70c87u, 0x02e71feff4b483b1u, 0xf44f7f5ddd71a03eu, 0x0a6c8dfaa3b0bc3bu,
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
