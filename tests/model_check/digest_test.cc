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
    0x7338b9c30442d3e4u, 0xfde1bf5b1008adbau, 0x4d8b9ec059050165u, 0x842727cf746451f5u,
    0x6542bb2cf1c0b9b4u, 0x85a81373d63d6472u, 0x4001588551ad3727u, 0x01aeec206f903f27u,
    0x81493dfaa78ad91bu, 0x25a8ffda45f138f6u, 0xb4451cf6b799cab8u, 0xddafe5d98ddebc5cu,
    0xc73ad8cfa4aa9e66u, 0x9812494e848474e4u, 0xd309194a6f428468u, 0x0291cb5b02c86172u,
    0xe2a6d7b8c2f2cf86u, 0x9cff380669e1bae9u, 0x42c4957144d30ca6u, 0xd289d98aeb2f61fbu,
    0xe666c4cc7085808du, 0x7a63dff701469a5du,
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
