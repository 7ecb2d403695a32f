// SPDX-License-Identifier: Apache-2.0
#include "kvfolio/checked_copy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "tiers/checksum_targets.h"

namespace kvfolio {
namespace {

std::vector<std::byte> noise(std::size_t size, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

std::vector<checksum_targets::Functions> targets() {
  std::vector<checksum_targets::Functions> all = {checksum_targets::portable};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) all.push_back(checksum_targets::avx2);
  if (__builtin_cpu_supports("avx512f")) all.push_back(checksum_targets::avx512);
#endif
  return all;
}

TEST(CheckedCopy, EveryTargetCopiesAndGivesTheSameChecksum) {
  std::mt19937 random(1);
  constexpr std::size_t kSizes[] = {0, 1, 63, 64, 240, 241, 1024, 4095, 4096, 4097, 8192, 70'001};
  for (const std::size_t size : kSizes) {
    const std::vector<std::byte> from = noise(size, static_cast<std::uint32_t>(size) + 7);
    const std::uint64_t expected = hash_bytes(from.data(), size, 42);
    EXPECT_EQ(checksum(from, 42), expected) << size;
    for (const checksum_targets::Functions& target : targets()) {
      EXPECT_EQ(target.whole(from.data(), size, 42), expected) << size;
      std::vector<std::byte> to(size);
      std::vector<CopyRun> runs;  // the same bytes in pieces of any length
      for (std::size_t at = 0; at < size;) {
        const std::size_t n = std::min<std::size_t>(size - at, random() % 9000);
        runs.push_back({to.data() + at, from.data() + at, static_cast<std::int64_t>(n)});
        at += n;
      }
      EXPECT_EQ(target.copy(runs.data(), runs.size(), 42), expected) << size;
      EXPECT_EQ(to, from) << size;
    }
  }
}

TEST(CheckedCopy, ChecksumDependsOnEachByteAndOnTheSeed) {
  std::vector<std::byte> bytes = noise(5000, 3);
  const std::uint64_t before = checksum(bytes, 1);
  EXPECT_NE(checksum(bytes, 2), before);
  for (std::size_t i = 0; i < bytes.size(); i += 61) {
    bytes[i] ^= std::byte{1};
    EXPECT_NE(checksum(bytes, 1), before) << i;
    bytes[i] ^= std::byte{1};
  }
}

// Vectors of RFC 3720, B.4, and the check value of the catalogue of CRCs.
TEST(CheckedCopy, CrcIsCastagnolis) {
  const std::vector<std::byte> zeros(32);
  EXPECT_EQ(crc32c(zeros), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::vector<std::byte>(32, std::byte{0xff})), 0x62a8ab43u);
  constexpr std::string_view kCheck = "123456789";
  EXPECT_EQ(crc32c(std::as_bytes(std::span(kCheck))), 0xe3069283u);
  EXPECT_EQ(crc32c({}), 0u);
}

}  // namespace
}  // namespace kvfolio
