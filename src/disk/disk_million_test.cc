// SPDX-License-Identifier: Apache-2.0
//
// Many small records, as a disk of a real size has them: what open() costs after a kill, and what a
// record costs in memory. KVFOLIO_RECORDS: how many (default 30,000; scripts/nightly: a million,
// for which alone the time is checked).

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "disk/test_store.h"

namespace kvfolio {
namespace {

constexpr std::int64_t kBytes = 700;

TierKey numbered_key(std::uint64_t number) {
  TierKey key;
  const std::uint64_t bits = (number + 1) * 0x9e3779b97f4a7c15u;
  std::memcpy(key.bytes.data() + 24, &bits, sizeof bits);
  std::memcpy(key.bytes.data() + 40, &number, sizeof number);
  return key;
}

// Stores them, and dies.
[[noreturn]] void store_and_die(const DiskTierOptions& options, std::uint64_t records) {
  auto tier = DiskTier::open(options);
  if (!tier) ::_exit(1);
  alignas(4096) static std::byte data[4096]{};
  std::array<TierDone, 256> done;
  std::uint64_t stored = 0, next = 0;
  while (stored < records) {
    for (bool more = true; more && next < records; next += more ? 1 : 0) {
      const TierItem item{numbered_key(next), data, kBytes, next};
      more = (*tier)->submit(TierOp::kStore, std::span(&item, 1), {disk::kLater}) == 1;
    }
    const std::size_t n = (*tier)->poll(1, done);
    for (std::size_t i = 0; i < n; ++i) {
      if (done[i].result != TierResult::kOk) ::_exit(2);
    }
    stored += n;
    if (n == 0) ::usleep(50);
  }
  ::raise(SIGKILL);
  ::_exit(3);
}

double processor_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return double(time.tv_sec) + double(time.tv_usec) / 1e6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

TEST(DiskMillion, OpeningAfterAKillIsFastAndARecordTakesLittleMemory) {
  const char* text = std::getenv("KVFOLIO_RECORDS");
  const std::uint64_t records = text != nullptr ? std::strtoull(text, nullptr, 10) : 30'000;
  std::string pattern = ::testing::TempDir() + "kvfolio-million-XXXXXX";
  const std::string parent = ::mkdtemp(pattern.data());
  const std::string path = parent + "/tier";
  const DiskTierOptions options{.directory = path, .bytes = std::int64_t{12} << 30};
  const ::pid_t child = ::fork();
  if (child == 0) store_and_die(options, records);
  int result = 0;
  ASSERT_EQ(::waitpid(child, &result, 0), child);
  ASSERT_TRUE(WIFSIGNALED(result)) << WEXITSTATUS(result);

  const struct mallinfo2 before = ::mallinfo2();
  const double begin = processor_seconds();
  auto tier = DiskTier::open(options);
  const double seconds = processor_seconds() - begin;
  ASSERT_TRUE(tier) << tier.error();
  const struct mallinfo2 after = ::mallinfo2();
  const auto taken = [](const struct mallinfo2& info) { return info.uordblks + info.hblkhd; };
  // Queues, buffers and threads are there without a record, too.
  const double bytes = double(taken(after) - taken(before)) - double(std::int64_t{1} << 20);
  EXPECT_EQ((*tier)->stats().records, std::int64_t(records));
  EXPECT_LE(bytes / double(records), 110) << "of memory for a record";
  if (records >= 1'000'000) {
    EXPECT_LE(seconds, 2.0 * double(records) / 1e6);
  }
  std::printf("[million] %llu records: open() took %.2f s of processor time, %.1f bytes a record\n",
              static_cast<unsigned long long>(records), seconds, bytes / double(records));
  tier->reset();
  std::filesystem::remove_all(parent);
}

}  // namespace
}  // namespace kvfolio
