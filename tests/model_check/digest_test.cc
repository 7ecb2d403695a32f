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
    0x5fdfcba4eb93c63cu, 0x3d8b4a4fb3de23b0u, 0xa81b670adeee3e26u, 0x7570d19e5a153368u,
    0xf8163a12dea68e2bu, 0xdf0e481ad0195c7fu, 0xf30ea4dc68d63774u, 0x7c48f9e21d4296cfu,
    0x235dbc4a0d068713u, 0xeef6e7f7bbafc646u, 0x2d26727bde380074u, 0x2466eeb8b7f91557u,
    0xb6c49d89ce5fb864u, 0xd61250e052d18f5fu, 0x2075f3b0f303b38fu, 0xad88106ceac14091u,
    0xf42457235dde57d2u, 0x6b7ea84cc94825bdu, 0x2cdf83d9285a7369u, 0x2595ed36620e57a1u,
    0xeacd13918fde4deeu, 0xfbd76a0c35cb2a56u,
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
