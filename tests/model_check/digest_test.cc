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
    0x13f1f6cc1553cea2u, 0x81018ecc75f87502u, 0xebbd29220fa28220u, 0x52471fcdc17f362bu,
    0x189cea3b9d004951u, 0x9e6f1df2d2790009u, 0xc07f3e87d5050fddu, 0x50cbfddfcc391676u,
    0x38cc1a778b2467cfu, 0xbcfcebfbeb47b672u, 0xea6018f0b09abb93u, 0x11dff7345d14d415u,
    0x5949a70c18882795u, 0xd7ca1f1361030afeu, 0x253856393590443au, 0x655ab807f987b4f5u,
    0xf160624ce034e024u, 0x028d0cd44d4e77c4u, 0x60a965d5da1257afu, 0xcb8d9bfa72965cdeu,
    0xf3d94176b02cf0a7u, 0x3f5a64f48a7256fau,
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

#ifdef KVFOLIO_MODEL_CHECK_C
INSTANTIATE_TEST_SUITE_P(ThroughC, Digest, testing::Values(0, 1, 2, 3, 4, 20));
#else
INSTANTIATE_TEST_SUITE_P(Seeds, Digest, testing::Range(0, static_cast<int>(kDigests.size())));
#endif

}  // namespace
}  // namespace kvfolio::model_check
