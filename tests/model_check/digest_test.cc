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
    0x9feef864e230ffafu, 0x422e7795f5017b65u, 0x5165785b5139402bu, 0xc3721d1e5319fe77u,
    0xe9ded5d1835dee9du, 0xb48d738a854b0f98u, 0x8360afccbeb11ebcu, 0x988ca93c549b07aau,
    0x9ed562865df805d6u, 0xe1ebb76d0c05f75eu, 0x9ff4faa4f99d13d9u, 0xdbda1dd355fbb3bfu,
    0x58f2293b4235445cu, 0xcdc4b7b72a512b7cu, 0xc7a94efdbe9e461au, 0x7124941c00f901b7u,
    0x5b521314e0cea515u, 0x7388bb7bec3d80bfu, 0x0557b96478eb9cd4u, 0x1d68209ca6483d51u,
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
