// SPDX-License-Identifier: Apache-2.0
#pragma once

// The disk tier as the chaos run has it: a real directory, calls of the system that hang, fail or
// do less than they were asked, and a witness that writes down what the tier said of each record.
//
// The witness: one name, one payload. What is kept is found, what was erased is not, and no call
// takes more steps than kStepsOfCall. Thread safety: WatchedDisk as Tier; DiskFaults any thread.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "disk/open.h"
#include "kvfolio/record.h"
#include "tiers/said.h"

namespace kvfolio::test {

// Chances in a thousand. A file has two errors at most: after three its segment goes, with all that
// it has.
class DiskFaults final : public disk::DiskCalls, public disk::RingFaults {
 public:
  explicit DiskFaults(std::uint64_t seed) : seed_(seed) {}
  std::atomic<unsigned> reads_fail = 0, writes_fail = 0, less = 0;
  std::atomic<bool> hangs = false;  // of the engine with threads: no transfer comes back
  std::atomic<std::uint64_t> read_errors = 0, write_errors = 0;  // that were made

  // ---- io_uring ----
  std::int64_t bytes_asked(const disk::IoStep& step, std::int64_t bytes) noexcept override {
    const bool is_less = step.is_transfer() && bytes > disk::kPiece && draws(less);
    return is_less ? disk::kPiece : bytes;
  }
  std::int64_t answer(const disk::IoStep& step, std::int64_t answer) noexcept override {
    if (step.kind == disk::IoStep::Kind::kRead && fails(step.file, reads_fail, read_errors)) {
      return -EIO;
    }
    if (step.kind == disk::IoStep::Kind::kWrite && fails(step.file, writes_fail, write_errors)) {
      return -EIO;
    }
    return answer;
  }

  // ---- threads ----
  std::int64_t readv(int file, const iovec* parts, int count, std::int64_t at) noexcept override {
    hang();
    if (fails(file, reads_fail, read_errors)) return -EIO;
    return system_.readv(file, parts, count, at);
  }
  std::int64_t writev(int file, const iovec* parts, int count, std::int64_t at) noexcept override {
    hang();
    if (fails(file, writes_fail, write_errors)) return -EIO;
    iovec first = parts[0];
    if (first.iov_len > std::size_t{disk::kPiece} && draws(less)) {
      first.iov_len = std::size_t{disk::kPiece};
      return system_.writev(file, &first, 1, at);
    }
    return system_.writev(file, parts, count, at);
  }

  // ---- all others are the system's ----
  int make_directory(const std::string& path) noexcept override {
    return system_.make_directory(path);
  }
  int open_directory(const std::string& path) noexcept override {
    return system_.open_directory(path);
  }
  int open(int directory, const std::string& name, int flags) noexcept override {
    return system_.open(directory, name, flags);
  }
  int close(int file) noexcept override { return system_.close(file); }
  int sync(int file) noexcept override { return system_.sync(file); }
  int sync_directory(int directory) noexcept override { return system_.sync_directory(directory); }
  int allocate(int file, std::int64_t bytes) noexcept override {
    return system_.allocate(file, bytes);
  }
  int punch_hole(int file, std::int64_t at, std::int64_t bytes) noexcept override {
    return system_.punch_hole(file, at, bytes);
  }
  int truncate(int file, std::int64_t bytes) noexcept override {
    return system_.truncate(file, bytes);
  }
  std::int64_t size(int file) noexcept override { return system_.size(file); }
  int unlink(int directory, const std::string& name) noexcept override {
    return system_.unlink(directory, name);
  }
  int rename(int directory, const std::string& from, const std::string& to) noexcept override {
    return system_.rename(directory, from, to);
  }
  int owner(int directory, std::uint32_t& user, std::uint32_t& mode) noexcept override {
    return system_.owner(directory, user, mode);
  }
  int list(int directory, std::vector<std::string>& names) noexcept override {
    return system_.list(directory, names);
  }
  int lock(int file) noexcept override { return system_.lock(file); }
  int make_buffered(int file) noexcept override { return system_.make_buffered(file); }
  int drop_cached(int file, std::int64_t at, std::int64_t bytes) noexcept override {
    return system_.drop_cached(file, at, bytes);
  }

 private:
  static constexpr int kErrorsOfFileMax = 2;

  // SplitMix64, of a number that each draw takes.
  bool draws(unsigned chance) noexcept {
    if (chance == 0) return false;
    std::uint64_t x = seed_ + ++drawn_ * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (x ^ (x >> 31)) % 1000 < chance;
  }
  bool fails(int file, unsigned chance, std::atomic<std::uint64_t>& made) noexcept {
    if (!draws(chance) || file < 0 || std::size_t(file) >= errors_.size()) return false;
    if (errors_[std::size_t(file)].fetch_add(1) >= kErrorsOfFileMax) return false;
    ++made;
    return true;
  }
  void hang() const noexcept {
    while (hangs) ::usleep(50);
  }

  disk::DiskCalls& system_ = disk::system_calls();
  const std::uint64_t seed_;
  std::atomic<std::uint64_t> drawn_ = 0;
  std::array<std::atomic<int>, 4096> errors_{};  // by descriptor
};

class WatchedDisk final : public Tier {
 public:
  // A call looks at SegmentStore::kStepsOfCall records, places of the index and items, and at a few
  // more for each job that has ended: 64 at most here (queue_depth 8 and 4 threads, each twice), of
  // which each looks up one key.
  static constexpr std::uint64_t kStepsOfCall =
      std::uint64_t{disk::SegmentStore::kStepsOfCall} + 64 * 16;

  // `claims`: nothing is pushed out by the budget, so what is kept has to be found.
  WatchedDisk(std::unique_ptr<disk::SegmentStore> store, const DiskFaults& faults, Said& said,
              bool claims)
      : store_(std::move(store)), faults_(faults), said_(said), claims_(claims) {
    const std::uint32_t known = said_.num_records;
    for (std::uint32_t i = 0; i < known; ++i) numbers_[text_of(said_.records[i].key)] = i;
    life_.resize(Said::kRecordsMax);
  }

  [[nodiscard]] disk::SegmentStore& store() { return *store_; }

  // Reads all that was ever given to it, before it serves anything else: what a life begins with.
  void look_at_all() {
    std::vector<std::byte> none;
    for (std::uint32_t i = 0; i < said_.num_records; ++i) {
      NamedRecord& record = said_.records[i];
      const disk::AlignedBuffer memory(disk::round_up_to_piece(record.bytes));
      const TierItem item{record.key, memory.data(), record.bytes, kOwnTags};
      ASSERT_EQ(submit_watched(TierOp::kLoad, item, {~std::uint64_t{0}}), 1u);
      std::array<TierDone, 1> done;
      for (int polls = 0; store_->poll(1, done) == 0; ++polls) {
        ASSERT_LT(polls, 100'000) << "a load that does not end: " << store_->describe();
        wait(1);
      }
      const Asked asked = take(done[0].tag);
      found(i, done[0].result, asked);
    }
  }
  // Asks for a record that is known to go. False: there is none.
  bool erase_any(std::uint64_t chosen) {
    const std::uint32_t known = said_.num_records;
    if (known == 0) return false;
    const NamedRecord& record = said_.records[chosen % known];
    const TierItem item{record.key, nullptr, record.bytes, kOwnTags + ++own_};
    if (submit_watched(TierOp::kErase, item, {~std::uint64_t{0}}) == 1) ++said_.counters.erases;
    return true;
  }
  // Until it has something to say, or so long.
  void wait(int milliseconds) const {
    pollfd event{.fd = store_->event_fd(), .events = POLLIN, .revents = 0};
    ::poll(&event, 1, milliseconds);
  }
  void close_store() {
    store_->close({~std::uint64_t{0}});
    std::array<TierDone, 64> done;
    for (int polls = 0; !store_->idle(); ++polls) {
      ASSERT_LT(polls, 100'000) << "it does not end: " << store_->describe();
      poll(1, done);
      wait(1);
    }
  }

  [[nodiscard]] std::string_view name() const noexcept override { return "disk"; }
  [[nodiscard]] TierLimits limits() const noexcept override {
    return {.record_bytes_max = store_->data_bytes_max(),
            .data_alignment = disk::kPiece,
            .verifies = true};
  }
  std::size_t submit(TierOp op, std::span<const TierItem> items,
                     Deadline deadline) noexcept override {
    std::size_t n = 0;
    while (n < items.size() && submit_watched(op, items[n], deadline) == 1) ++n;
    return n;
  }
  std::size_t poll(std::uint64_t now_us, std::span<TierDone> done) noexcept override {
    const std::uint64_t before = store_->steps();
    const std::size_t said = store_->poll(now_us, done);
    count(before);
    std::size_t n = 0;
    for (const TierDone& one : done.first(said)) {
      ended(one.result, take(one.tag));
      if (one.tag < kOwnTags) done[n++] = one;
    }
    return n;
  }
  [[nodiscard]] int event_fd() const noexcept override { return store_->event_fd(); }
  [[nodiscard]] TierHealth health() const noexcept override { return store_->health(); }
  Status close(Deadline deadline) noexcept override {
    store_->close(deadline);
    return {};
  }

 private:
  using State = NamedRecord::State;
  static constexpr std::uint64_t kOwnTags = std::uint64_t{1} << 62;  // from there on

  struct Asked {
    TierOp op = TierOp::kExists;
    std::uint32_t number = 0;
    std::uint64_t turn = 0;  // when, in the order of all
    TierItem item{};
  };
  // What a record went through in this life.
  struct Life {
    int stores = 0, erases = 0;  // that are not answered
    std::uint64_t last_store = 0, last_erase = 0;
  };

  static std::string text_of(const TierKey& key) {
    return {reinterpret_cast<const char*>(key.bytes.data()), key.bytes.size()};
  }
  static std::uint64_t digest_of(const std::byte* data, std::int64_t bytes) {
    std::uint64_t hash = 0xcbf29ce484222325u;
    for (std::int64_t i = kRecordHeaderBytes; i < bytes; ++i) {
      hash = (hash ^ std::uint64_t(data[i])) * 0x100000001b3u;
    }
    return hash;
  }
  void count(std::uint64_t before) {
    const std::uint64_t steps = store_->steps() - before;
    said_.counters.disk_steps_max = std::max(said_.counters.disk_steps_max, steps);
    EXPECT_LE(steps, kStepsOfCall) << "looks of one call";
  }

  // The record is written down before the disk hears of it: the process may end at any moment.
  std::size_t submit_watched(TierOp op, const TierItem& item, Deadline deadline) {
    Asked asked{.op = op, .turn = ++turns_, .item = item};
    if (!number_of(op, item, asked.number)) return pass_on(op, item, deadline, nullptr);
    NamedRecord& record = said_.records[asked.number];
    Life& life = life_[asked.number];
    const State before = record.state;
    if (op == TierOp::kStore) {
      EXPECT_EQ(record.digest, digest_of(item.data, item.bytes)) << "another payload of one name";
      if (life.stores == 0) {
        record.order = ++said_.orders;
        record.storing = true;
      }
      if (before == State::kErased) record.state = State::kUnclaimed;
    }
    if (op == TierOp::kErase) record.state = State::kUnclaimed;
    const std::size_t n = pass_on(op, item, deadline, &asked);
    if (n == 0) {
      record.state = before;
      if (life.stores == 0) record.storing = false;
      return 0;
    }
    if (op == TierOp::kStore) {
      ++life.stores;
      life.last_store = asked.turn;
    }
    if (op == TierOp::kErase) {
      ++life.erases;
      life.last_erase = asked.turn;
    }
    return n;
  }
  std::size_t pass_on(TierOp op, const TierItem& item, Deadline deadline, const Asked* asked) {
    if (asked != nullptr) asked_[item.tag] = *asked;
    const std::uint64_t before = store_->steps();
    const std::size_t n = store_->submit(op, std::span(&item, 1), deadline);
    count(before);
    if (n == 0) asked_.erase(item.tag);
    return n;
  }
  // False: it is not known, and does not become so.
  bool number_of(TierOp op, const TierItem& item, std::uint32_t& number) {
    const std::string name = text_of(item.key);
    const auto known = numbers_.find(name);
    if (known != numbers_.end()) {
      number = known->second;
      return true;
    }
    number = said_.num_records;
    if (op != TierOp::kStore || number == Said::kRecordsMax) return false;
    NamedRecord& record = said_.records[number];
    record.key = item.key;
    record.bytes = item.bytes;
    record.digest = digest_of(item.data, item.bytes);
    said_.num_records = number + 1;
    numbers_[name] = number;
    return true;
  }
  Asked take(std::uint64_t tag) {
    const auto place = asked_.find(tag);
    if (place == asked_.end()) return {};
    const Asked asked = place->second;
    asked_.erase(place);
    return asked;
  }

  void ended(TierResult result, const Asked& asked) {
    if (asked.turn == 0) return;  // not known
    NamedRecord& record = said_.records[asked.number];
    Life& life = life_[asked.number];
    if (asked.op == TierOp::kLoad) return loaded(record, result, asked);
    if (asked.op == TierOp::kErase) {
      --life.erases;
      if (result == TierResult::kOk && life.stores == 0 && life.last_store < asked.turn) {
        record.state = State::kErased;
      }
      return;
    }
    if (asked.op != TierOp::kStore) return;
    --life.stores;
    if (result == TierResult::kOk) {
      ++said_.counters.disk_stores;
      // Before it counts as answered: a kill in between finds it in time, or kept.
      if (life.erases == 0 && life.last_erase < asked.turn) record.state = State::kKept;
    } else if (faults_.write_errors > 0) {
      record.failed = true;  // also where it was late besides
    }
    if (life.stores == 0) record.storing = false;
  }
  void loaded(NamedRecord& record, TierResult result, const Asked& asked) {
    if (result == TierResult::kOk) {
      ++said_.counters.disk_loads;
      EXPECT_EQ(record.digest, digest_of(asked.item.data, asked.item.bytes)) << "wrong bytes";
      EXPECT_NE(record.state, State::kErased) << "erased, and came back";
      return;
    }
    const bool is_gone = result == TierResult::kMiss || result == TierResult::kCorrupt;
    // What could not be read once is not found again by this life.
    const bool is_loss = claims_ && is_gone && record.state == State::kKept &&
                         faults_.read_errors + faults_.write_errors == 0 &&
                         life_[asked.number].last_erase == 0;
    EXPECT_FALSE(is_loss) << "kept, and " << to_string(result) << " in the same life";
    if (result == TierResult::kCorrupt) ++said_.counters.corrupt;
    // Late, and perhaps an error besides: the record goes (docs/tiers.md, "the disk fails").
    const bool may_have_failed = result == TierResult::kIoError || faults_.read_errors > 0;
    if (is_gone || may_have_failed) record.state = State::kUnclaimed;
  }
  // At the begin of a life.
  void found(std::uint32_t number, TierResult result, const Asked& asked) {
    NamedRecord& record = said_.records[number];
    const State state = record.state;
    if (result == TierResult::kOk) {
      EXPECT_EQ(record.digest, digest_of(asked.item.data, asked.item.bytes))
          << "wrong bytes of record " << number;
      EXPECT_NE(state, State::kErased) << "record " << number << " was erased for good";
      said_.counters.kept_found += state == State::kKept ? 1 : 0;
      record.state = State::kKept;
    } else {
      EXPECT_TRUE(result == TierResult::kMiss || result == TierResult::kCorrupt)
          << to_string(result);
      const bool must = claims_ && state == State::kKept && !record.damaged && !record.excused;
      EXPECT_FALSE(must) << "record " << number << " was kept, order " << record.order
                         << ", and is " << to_string(result) << " in the next life";
      said_.counters.corrupt += result == TierResult::kCorrupt ? 1 : 0;
      said_.counters.erased_gone += state == State::kErased ? 1 : 0;
      if (state == State::kKept) record.state = State::kUnclaimed;
    }
    record.damaged = record.excused = record.failed = record.storing = false;
    record.order = 0;
  }

  std::unique_ptr<disk::SegmentStore> store_;
  const DiskFaults& faults_;
  Said& said_;
  const bool claims_;
  std::unordered_map<std::string, std::uint32_t> numbers_;  // by key
  std::vector<Life> life_;
  std::unordered_map<std::uint64_t, Asked> asked_;  // by tag
  std::uint64_t turns_ = 0, own_ = 0;
};

}  // namespace kvfolio::test
