// SPDX-License-Identifier: Apache-2.0
//
// What a call costs does not depend on how much there is: with a million records, a million waiting
// items and a million erases no call of the store looks at more than a bounded number of them. What
// it looks at is counted (SegmentStore::steps()), so the answer is the same on every machine.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <map>

#include "disk/test_store.h"

namespace kvfolio::disk {
namespace {

// A disk that takes everything and keeps nothing but names and sizes.
class VoidDisk final : public DiskCalls {
 public:
  int make_directory(const std::string&) noexcept override { return 0; }
  int open_directory(const std::string&) noexcept override { return 3; }
  int open(int, const std::string& name, int flags) noexcept override {
    if (sizes_.count(name) == 0 && (flags & O_CREAT) == 0) return -ENOENT;
    sizes_[name];
    names_[++last_] = name;
    return last_;
  }
  int close(int file) noexcept override { return names_.erase(file) > 0 ? 0 : -EBADF; }
  std::int64_t readv(int, const iovec* parts, int count, std::int64_t) noexcept override {
    if (bytes_of(parts, count) < kPiece) return 0;           // a text: it is empty
    std::memset(parts[0].iov_base, 0x5a, parts[0].iov_len);  // what the probe of open() writes
    return bytes_of(parts, count);
  }
  std::int64_t writev(int, const iovec* parts, int count, std::int64_t) noexcept override {
    return bytes_of(parts, count);
  }
  int sync(int) noexcept override { return 0; }
  int sync_directory(int) noexcept override { return 0; }
  int allocate(int, std::int64_t) noexcept override { return 0; }
  int punch_hole(int, std::int64_t, std::int64_t) noexcept override { return 0; }
  int truncate(int file, std::int64_t bytes) noexcept override {
    sizes_[names_[file]] = bytes;
    return 0;
  }
  std::int64_t size(int file) noexcept override { return sizes_[names_[file]]; }
  int unlink(int, const std::string& name) noexcept override {
    return sizes_.erase(name) > 0 ? 0 : -ENOENT;
  }
  int rename(int, const std::string& from, const std::string& to) noexcept override {
    sizes_[to] = sizes_[from];
    sizes_.erase(from);
    return 0;
  }
  int owner(int, std::uint32_t& user, std::uint32_t& mode) noexcept override {
    user = ::geteuid();
    mode = 0700;
    return 0;
  }
  int list(int, std::vector<std::string>& names) noexcept override {
    for (const auto& [name, size] : sizes_) names.push_back(name);
    return 0;
  }
  int lock(int) noexcept override { return 0; }
  int make_buffered(int) noexcept override { return 0; }
  int drop_cached(int, std::int64_t, std::int64_t) noexcept override { return 0; }

 private:
  static std::int64_t bytes_of(const iovec* parts, int count) {
    std::int64_t bytes = 0;
    for (int i = 0; i < count; ++i) bytes += std::int64_t(parts[i].iov_len);
    return bytes;
  }
  std::map<std::string, std::int64_t> sizes_;
  std::map<int, std::string> names_;
  int last_ = 10;
};

// Runs each job where it is submitted, or keeps all of them.
class DirectEngine final : public IoEngine {
 public:
  explicit DirectEngine(DiskCalls& calls) : calls_(calls) {}
  [[nodiscard]] std::string_view name() const noexcept override { return "direct"; }
  [[nodiscard]] int depth() const noexcept override { return 32; }
  void submit(IoJob* job) noexcept override {
    if (hangs) return kept_.push(job);
    run_job(*job, calls_);
    done_.push(job);
  }
  std::size_t reap(std::span<IoJob*> done) noexcept override { return done_.pop(done); }
  void end_all() {
    hangs = false;
    while (IoJob* job = kept_.pop()) submit(job);
  }
  bool hangs = false;

 private:
  DiskCalls& calls_;
  JobQueue done_, kept_;
};

TierKey numbered_key(std::uint64_t number) {
  TierKey key;
  const std::uint64_t bits = (number + 1) * 0x9e3779b97f4a7c15u;
  std::memcpy(key.bytes.data() + 24, &bits, sizeof bits);
  std::memcpy(key.bytes.data() + 40, &number, sizeof number);
  return key;
}

class DiskBounds : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kMillion = 1'000'000;
  // Each step may be an item, whose key is looked up in an index of which it sees some places, or
  // add to which moves 16 of them.
  static constexpr std::uint64_t kStepsMax = 10 * SegmentStore::kStepsOfCall;

  void open(std::int64_t bytes, std::int64_t segment_bytes, std::int32_t items_max = 1 << 20) {
    const DiskTierOptions options{
        .directory = "/d", .bytes = bytes, .segment_bytes = segment_bytes, .items_max = items_max};
    const MakeEngine make = [&](int) -> Result<std::unique_ptr<IoEngine>> {
      auto made = std::make_unique<DirectEngine>(disk);
      engine = made.get();
      return std::unique_ptr<IoEngine>(std::move(made));
    };
    auto opened = open_store(disk, options, std::span(&make, 1));
    ASSERT_TRUE(opened) << opened.error();
    store = *std::move(opened);
  }
  std::size_t submit(TierOp op, std::uint64_t number, Deadline deadline = {kLater}) {
    const std::uint64_t before = store->steps();
    const TierItem item{numbered_key(number), data, 64, number};
    const std::size_t n = store->submit(op, std::span(&item, 1), deadline);
    count(before);
    return n;
  }
  std::size_t poll() {
    const std::uint64_t before = store->steps();
    std::array<TierDone, 256> done;
    const std::size_t n = store->poll(now_us, done);
    for (std::size_t i = 0; i < n; ++i) ++results[done[i].result];
    count(before);
    return n;
  }
  void count(std::uint64_t before) { most = std::max(most, store->steps() - before); }
  void store_all(std::uint64_t begin, std::uint64_t end) {
    for (std::uint64_t number = begin; number < end;) {
      number += submit(TierOp::kStore, number);
      if (number % 64 == 0) poll();
    }
    while (!store->idle()) poll();
  }

  VoidDisk disk;
  DirectEngine* engine = nullptr;
  std::unique_ptr<SegmentStore> store;
  alignas(4096) std::byte data[4096]{};
  std::map<TierResult, std::uint64_t> results;
  std::uint64_t now_us = 1, most = 0;
};

// A million records, in segments of a quarter of a million, of which each is sealed, evicted and
// forgotten, and loaded records are chosen to move.
TEST_F(DiskBounds, AMillionRecordsCostACallNoMoreThanAThousand) {
  open((std::int64_t{4} << 30) + (64 << 10), std::int64_t{1} << 30);
  store_all(0, kMillion + kMillion / 2);
  EXPECT_EQ(results[TierResult::kOk], kMillion + kMillion / 2);
  const DiskTierStats stats = store->stats();
  EXPECT_GT(stats.records, 600'000);
  EXPECT_GT(stats.evicted, 400'000u);
  EXPECT_LT(most, kStepsMax);
  const std::uint64_t while_stored = most;
  // Erased all over a sealed segment, whose footer is written again.
  results.clear();
  const std::uint64_t from = kMillion + 100'000;
  std::uint64_t erased = 0;
  for (std::uint64_t number = from; number < from + 60'000; ++number) {
    erased += submit(TierOp::kErase, number);
  }
  EXPECT_EQ(erased, 60'000u);
  while (!store->idle()) poll();
  EXPECT_EQ(results[TierResult::kOk], 60'000u);
  EXPECT_LT(most, kStepsMax);
  store->close({kLater});
  while (!store->idle()) poll();
  EXPECT_LT(most, kStepsMax);
  std::printf("[bounds] most steps of a call: %llu, %llu while records were stored\n",
              static_cast<unsigned long long>(most), static_cast<unsigned long long>(while_stored));
}

// A disk that hangs, and a million stores that wait for it: they end by their deadlines, are
// refused or erased.
TEST_F(DiskBounds, AMillionWaitingItemsCostACallNoMoreThanAThousand) {
  open((std::int64_t{1} << 30) + (64 << 10), std::int64_t{64} << 20);
  store_all(0, 100);
  results.clear();
  most = 0;
  engine->hangs = true;
  constexpr std::uint64_t kItems = kMillion;
  std::mt19937_64 random(4);
  for (std::uint64_t i = 0; i < kItems; ++i) {
    const std::uint64_t due = i % 4 == 0 ? 1000 + random() % 1'000'000 : kLater;
    ASSERT_EQ(submit(TierOp::kStore, 1000 + i, {due}), 1u) << i;
  }
  EXPECT_LT(most, kStepsMax);
  // No more than items_max are accepted, whatever they are.
  std::uint64_t more = 0;
  while (submit(TierOp::kExists, 5) == 1) ++more;
  EXPECT_LE(more + kItems, std::uint64_t{1} << 20);
  std::uint64_t answered = 0;
  for (int i = 0; i < 100; ++i) {
    now_us += 5'000;
    answered += poll();
  }
  EXPECT_LT(most, kStepsMax);
  std::uint64_t erased = 0;
  for (std::uint64_t i = 900'000; i < 900'100; ++i) erased += submit(TierOp::kErase, i);
  EXPECT_GT(erased, 0u);
  store->close({kLater});
  engine->end_all();
  while (!store->idle()) answered += poll();
  EXPECT_EQ(answered, kItems + more + erased);
  EXPECT_LT(most, kStepsMax);
  EXPECT_GT(results[TierResult::kTimeout], 10'000u);
  EXPECT_GT(results[TierResult::kClosed], 500'000u);
}

TEST_F(DiskBounds, ItemsAreBoundedAsBytesAre) {
  open(64 << 20, 1 << 20, 10);
  std::vector<TierItem> questions(25);
  EXPECT_EQ(store->submit(TierOp::kExists, questions, {kLater}), 10u);
  EXPECT_EQ(store->submit(TierOp::kErase, questions, {kLater}), 0u);
  std::array<TierDone, 4> done;
  EXPECT_EQ(store->poll(1, done), 4u);
  EXPECT_EQ(store->submit(TierOp::kExists, questions, {kLater}), 4u);
}

}  // namespace
}  // namespace kvfolio::disk
