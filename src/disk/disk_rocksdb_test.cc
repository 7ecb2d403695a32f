// SPDX-License-Identifier: Apache-2.0
//
// The same random calls go to a disk tier, to RocksDB, which others wrote, and to a map in memory:
// answers and bytes are the same. KVFOLIO_SEED and KVFOLIO_OPS (default 4,000, for each of the four
// tests) choose the run; a failure names its seed. Skipped where there was no librocksdb-dev when
// this was built.

#include <gtest/gtest.h>

#ifndef KVFOLIO_HAS_ROCKSDB

TEST(DiskTierBesideRocksDb, AnswersAsRocksDbDoes) {
  GTEST_SKIP() << "there is no librocksdb-dev here: nothing to compare the disk tier with";
}

#else

#include <rocksdb/db.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>

#include "disk/test_store.h"
#include "kvfolio/disk_tier.h"
#include "tiers/memory_tier.h"

namespace kvfolio::disk {
namespace {

constexpr std::uint64_t kKeys = 200;
constexpr std::uint64_t kCallsPerRun = 4000;

// RocksDB as a tier. It answers at once.
class RocksTier final : public Tier {
 public:
  explicit RocksTier(const std::string& path) {
    rocksdb::Options options;
    options.create_if_missing = true;
    options.write_buffer_size = 256 << 10;  // so that most records are read from its files
    rocksdb::DB* db = nullptr;
    const rocksdb::Status status = rocksdb::DB::Open(options, path, &db);
    EXPECT_TRUE(status.ok()) << status.ToString();
    db_.reset(db);
  }
  [[nodiscard]] std::string_view name() const noexcept override { return "rocksdb"; }
  [[nodiscard]] TierLimits limits() const noexcept override { return {}; }
  std::size_t submit(TierOp op, std::span<const TierItem> items,
                     Deadline /*deadline*/) noexcept override {
    for (const TierItem& item : items) done_.push_back({item.tag, perform(op, item)});
    return items.size();
  }
  std::size_t poll(std::uint64_t /*now_us*/, std::span<TierDone> done) noexcept override {
    const std::size_t n = std::min(done.size(), done_.size());
    std::copy_n(done_.begin(), n, done.begin());
    done_.erase(done_.begin(), done_.begin() + std::ptrdiff_t(n));
    return n;
  }
  [[nodiscard]] int event_fd() const noexcept override { return -1; }
  [[nodiscard]] TierHealth health() const noexcept override { return {}; }
  Status close(Deadline /*deadline*/) noexcept override { return {}; }

 private:
  static rocksdb::Slice slice(const void* data, std::size_t bytes) {
    return {static_cast<const char*>(data), bytes};
  }
  TierResult perform(TierOp op, const TierItem& item) {
    const rocksdb::Slice key = slice(item.key.bytes.data(), TierKey::kBytes);
    if (op == TierOp::kErase) return result_of(db_->Delete({}, key));
    std::string record;
    const TierResult found = result_of(db_->Get({}, key, &record));
    switch (op) {
      case TierOp::kStore:
        if (found != TierResult::kMiss) return found;
        return result_of(db_->Put({}, key, slice(item.data, std::size_t(item.bytes))));
      case TierOp::kLoad:
        if (found != TierResult::kOk) return found;
        if (std::int64_t(record.size()) != item.bytes) return TierResult::kCorrupt;
        std::copy(record.begin(), record.end(), reinterpret_cast<char*>(item.data));
        return found;
      default:
        return found;
    }
  }
  static TierResult result_of(const rocksdb::Status& status) {
    EXPECT_TRUE(status.ok() || status.IsNotFound()) << status.ToString();
    return status.ok() ? TierResult::kOk : TierResult::kMiss;
  }

  std::unique_ptr<rocksdb::DB> db_;
  std::deque<TierDone> done_;
};

struct Call {
  TierOp op = TierOp::kExists;
  std::uint64_t number = 0;
  std::vector<std::byte> data{};  // of a store; a load only takes its size
  bool aligned = true;
};

struct Answer {
  TierResult result = TierResult::kClosed;
  std::vector<std::byte> bytes{};  // of a load that was kOk
  friend bool operator==(const Answer&, const Answer&) = default;
};

// Submits all of them, then waits until each is answered. Their numbers differ, so the order in
// which a tier does them makes no difference.
std::vector<Answer> ask(Tier& tier, const std::vector<Call>& calls) {
  static std::uint64_t now_us = 0;
  std::vector<ItemMemory> memory;
  for (const Call& call : calls) {
    memory.emplace_back(std::int64_t(call.data.size()), call.aligned);
    if (call.op == TierOp::kStore) {
      std::copy(call.data.begin(), call.data.end(), memory.back().data());
    }
  }
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const TierItem item{.key = key_of(calls[i].number),
                        .data = memory[i].data(),
                        .bytes = std::int64_t(calls[i].data.size()),
                        .tag = i};
    EXPECT_EQ(tier.submit(calls[i].op, std::span(&item, 1), {kLater}), 1u) << tier.name();
  }
  std::vector<Answer> answers(calls.size());
  std::array<TierDone, 64> done;
  for (std::size_t answered = 0; answered < calls.size();) {
    const std::size_t n = tier.poll(++now_us, done);
    answered += n;
    for (std::size_t i = 0; i < n; ++i) {
      Answer& answer = answers[done[i].tag];
      answer.result = done[i].result;
      const std::span<std::byte> bytes = memory[done[i].tag].span();
      if (calls[done[i].tag].op == TierOp::kLoad && answer.result == TierResult::kOk) {
        answer.bytes.assign(bytes.begin(), bytes.end());
      }
    }
    pollfd event{.fd = tier.event_fd(), .events = POLLIN, .revents = 0};
    if (n == 0) ::poll(&event, 1, 1);
  }
  for (const ItemMemory& one : memory) EXPECT_TRUE(one.is_whole()) << tier.name();
  return answers;
}

struct Totals {
  std::uint64_t calls = 0, hits = 0, misses = 0, evicted = 0, reopened = 0, stayed_away = 0;
};

// One directory for each, from empty.
class Comparison {
 public:
  Comparison(std::uint64_t seed, DiskEngine engine, bool evicts, Totals& totals)
      : random_(seed), evicts_(evicts), totals_(totals) {
    std::string pattern = ::testing::TempDir() + "kvfolio-rocksdb-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    directory_ = folder_ + "/tier";
    options_ = {.directory = directory_,
                .bytes = (evicts ? 2 : 64) << 20,
                .segment_bytes = 256 << 10,
                .engine = engine};
    open();
  }
  ~Comparison() {
    disk_.reset();
    rocks_.reset();
    std::filesystem::remove_all(folder_);
  }
  // Why there is no disk tier.
  [[nodiscard]] const Status& status() const { return status_; }

  void step() {
    if (random_() % 24 == 0) reopen();
    compare(some_calls());
  }
  void end() {
    EXPECT_EQ(disk_->stats().corrupt, wrong_sizes_);
    EXPECT_TRUE(evicts_ || disk_->stats().evicted == 0) << "the budget is too small for this test";
    totals_.evicted += disk_->stats().evicted;
    disk_.reset();
    const Result<DiskCheck> check = check_disk_directory({.directory = directory_});
    ASSERT_TRUE(check) << check.error();
    EXPECT_EQ(check->damaged, 0) << check->faults.front().what;
  }

 private:
  void open() {
    Result<std::unique_ptr<DiskTier>> opened = DiskTier::open(options_);
    if (!opened) {
      status_ = opened.error();
      return;
    }
    disk_ = *std::move(opened);
    rocks_ = std::make_unique<RocksTier>(folder_ + "/rocksdb");
  }

  std::vector<Call> some_calls() {
    std::set<std::uint64_t> numbers;
    for (auto n = 1 + random_() % 24; n > 0; --n) numbers.insert(random_() % kKeys);
    std::vector<Call> calls;
    for (const std::uint64_t number : numbers) {
      // In ten operations: four loads, three stores, two questions, one erasure.
      const auto draw = random_() % 10;
      Call call{.op = draw < 4   ? TierOp::kLoad
                      : draw < 7 ? TierOp::kStore
                      : draw < 9 ? TierOp::kExists
                                 : TierOp::kErase,
                .number = number,
                .aligned = random_() % 2 == 0};
      if (call.op == TierOp::kLoad || call.op == TierOp::kStore) call.data = bytes_of(number);
      if (call.op == TierOp::kLoad && random_() % 16 == 0) call.data.resize(call.data.size() + 64);
      // The first store of a key wins, so others come with other bytes. Not where records are
      // evicted: RocksDB would have the first one, and the disk another one by right.
      if (call.op == TierOp::kStore && !evicts_) {
        const auto version = std::byte(random_() % 4);
        for (std::byte& byte : call.data) byte ^= version;
      }
      calls.push_back(std::move(call));
    }
    return calls;
  }

  void compare(const std::vector<Call>& calls) {
    for (const Call& call : calls) {
      if (call.op == TierOp::kErase) erased_.insert(call.number);
    }
    const std::vector<Answer> ours = ask(*disk_, calls);
    const std::vector<Answer> theirs = ask(*rocks_, calls);
    const std::vector<Answer> model = ask(memory_, calls);
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const bool reads = calls[i].op == TierOp::kLoad || calls[i].op == TierOp::kExists;
      const bool missed = reads && ours[i].result == TierResult::kMiss;
      totals_.hits += reads && !missed ? 1 : 0;
      totals_.misses += missed ? 1 : 0;
      wrong_sizes_ += ours[i].result == TierResult::kCorrupt ? 1 : 0;
      EXPECT_EQ(theirs[i], model[i]) << "RocksDB is not the map: " << told(calls[i], theirs[i]);
      EXPECT_TRUE(ours[i] == theirs[i] || (evicts_ && missed))
          << told(calls[i], ours[i]) << "; RocksDB: " << to_string(theirs[i].result);
    }
    totals_.calls += calls.size();
  }

  void reopen() {
    totals_.evicted += disk_->stats().evicted;
    EXPECT_EQ(disk_->stats().corrupt, wrong_sizes_);
    wrong_sizes_ = 0;
    disk_.reset();
    rocks_.reset();
    open();
    ASSERT_NE(disk_, nullptr) << status_;
    ++totals_.reopened;
    for (const std::uint64_t number : erased_) expect_gone(number);
  }

  // disk_tier.h on kErase: it is for good.
  void expect_gone(std::uint64_t number) {
    if (memory_.records.contains(bytes_of_key(number))) return;  // stored again since
    const Answer found = ask(*disk_, {{TierOp::kExists, number, {}}}).front();
    EXPECT_EQ(found.result, TierResult::kMiss) << "erased record " << number << " is there again";
    ++totals_.stayed_away;
  }

  static std::vector<std::byte> bytes_of_key(std::uint64_t number) {
    const TierKey key = key_of(number);
    return {key.bytes.begin(), key.bytes.end()};
  }
  static std::string told(const Call& call, const Answer& answer) {
    constexpr const char* kOps[] = {"exists", "load", "store", "erase"};
    return std::string(kOps[int(call.op)]) + " of record " + std::to_string(call.number) + ", " +
           std::to_string(call.data.size()) + " bytes: " + to_string(answer.result);
  }

  std::mt19937_64 random_;
  bool evicts_;
  Totals& totals_;
  std::string folder_, directory_;
  DiskTierOptions options_;
  std::unique_ptr<DiskTier> disk_;
  std::unique_ptr<RocksTier> rocks_;
  test::MemoryTier memory_;  // without faults: a map
  std::set<std::uint64_t> erased_;
  std::uint64_t wrong_sizes_ = 0;  // since it was opened
  Status status_;
};

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

class DiskTierBesideRocksDb : public ::testing::TestWithParam<DiskEngine> {
 protected:
  void run(bool evicts) {
    const std::uint64_t first = from_environment("KVFOLIO_SEED", 1);
    const std::uint64_t calls = from_environment("KVFOLIO_OPS", 4000);
    std::uint64_t seed = first;
    for (std::uint64_t left = calls; left > 0; left -= std::min(left, kCallsPerRun), ++seed) {
      SCOPED_TRACE("KVFOLIO_SEED=" + std::to_string(seed) +
                   " KVFOLIO_OPS=" + std::to_string(kCallsPerRun));
      Comparison one(seed, GetParam(), evicts, totals);
      if (one.status().code() == ErrorCode::kUnsupported) GTEST_SKIP() << one.status();
      ASSERT_TRUE(one.status().ok()) << one.status();
      const std::uint64_t until = totals.calls + kCallsPerRun;
      while (totals.calls < until && !HasFailure()) one.step();
      if (!HasFailure()) one.end();
      if (HasFailure()) return;
    }
    std::printf(
        "[rocksdb] seeds %llu to %llu: %llu calls, %llu hits, %llu misses, %llu records evicted, "
        "%llu reopens, after which %llu erased records were not there\n",
        static_cast<unsigned long long>(first), static_cast<unsigned long long>(seed - 1),
        static_cast<unsigned long long>(totals.calls), static_cast<unsigned long long>(totals.hits),
        static_cast<unsigned long long>(totals.misses),
        static_cast<unsigned long long>(totals.evicted),
        static_cast<unsigned long long>(totals.reopened),
        static_cast<unsigned long long>(totals.stayed_away));
    EXPECT_GT(totals.hits, calls / 10);
    EXPECT_GT(totals.misses, calls / 20);
    EXPECT_GT(totals.stayed_away, 0u);
  }

  Totals totals;
};

TEST_P(DiskTierBesideRocksDb, AnswersAsRocksDbDoes) { run(/*evicts=*/false); }

TEST_P(DiskTierBesideRocksDb, EvictionOnlyTurnsHitsToMisses) {
  run(/*evicts=*/true);
  EXPECT_TRUE(IsSkipped() || HasFailure() || totals.evicted > 0);
}

INSTANTIATE_TEST_SUITE_P(Engines, DiskTierBesideRocksDb,
                         ::testing::Values(DiskEngine::kThreads, DiskEngine::kIoUring),
                         [](const auto& info) {
                           return info.param == DiskEngine::kThreads ? "Threads" : "IoUring";
                         });

}  // namespace
}  // namespace kvfolio::disk

#endif
