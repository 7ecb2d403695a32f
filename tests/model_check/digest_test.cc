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
    0x06f11fcbb52253f1u, 0x201eeca12c4da582u, 0xbda889eeea0c645cu, 0x201668d9f1bc0ec2u,
    0xc19d7c25c5f83135u, 0x25b8e7191ad8791eu, 0x27f0db8c5c3a0ef1u, 0xed4c567ed60ec0eeu,
    0x2185fcd8b5438190u, 0x1e70c6ed9cb536bau, 0xc168a1006813166au, 0x06f5069892e6bcd2u,
    0xdba9a86492262820u, 0x2a4f8f2aa000172bu, 0x13f82461c5780e93u, 0x7cb2582f11f5f2c0u,
    0x619690f59e4dd0ccu, 0x857618396dacf71au, 0x5c4c5c7b59d1074cu, 0x416fdc49dcd4dec8u,
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
