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
    0xaf719f355f92b71cu, 0xbf1076e169ad42edu, 0x5d5354c14fedab4eu, 0xa2a37126e44c7815u,
    0x33d549ef5430eef2u, 0x8b1bb8e0f36c9f15u, 0x498b4b16dc21fe26u, 0x8d10de2746c169b0u,
    0x4bdf502baeae2ac9u, 0x81d202a158c819d3u, 0xb48bf6146d9babebu, 0x27d5fbe23e08bf57u,
    0xfe4b259ef15b46a9u, 0x4455eeb1ac2c7a90u, 0xf30dc5750115ebacu, 0x52f3f70e30ad1c61u,
    0xab0358e74890d3cdu, 0x6a4ad438eeaddec8u, 0x8d69f201bf503c2du, 0x6ec2502d92e76ca5u,
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
