// SPDX-License-Identifier: Apache-2.0
//
// kErase is for good. The oracle is a copy of the disk at any moment: what a process finds that
// begins after this one was killed then, or power was lost.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "disk/store.h"
#include "disk/test_store.h"

namespace kvfolio::disk {
namespace {

using Result = std::optional<TierResult>;

// What a process finds on a copy of this disk.
std::vector<Result> found_on(std::unique_ptr<SimDisk> disk, std::uint64_t numbers) {
  SimStore sim;
  sim.disk = std::move(disk);
  const Status status = sim.open();
  EXPECT_TRUE(status.ok()) << status;
  std::vector<Result> found;
  Waiter<SegmentStore> asks(*sim.store);
  for (std::uint64_t i = 0; i < numbers; ++i) {
    const bool exists = asks.exists(i);
    found.push_back(asks.load(i));  // checks the bytes
    EXPECT_EQ(exists, found.back() != TierResult::kMiss) << "record " << i;
  }
  EXPECT_TRUE(sim.store->check_invariants().ok());
  return found;
}

class DiskErase : public SimStoreTest {
 protected:
  void reopen() {
    waiter->settle();
    sim.close();
    SetUp();
  }
  Result erase(std::uint64_t number) { return (*waiter)(TierOp::kErase, key_of(number), {}); }
  [[nodiscard]] std::unique_ptr<SimDisk> copy() const { return copy_of(*sim.disk); }
  [[nodiscard]] std::size_t segments() const {
    std::size_t count = 0;
    for (const auto& [path, file] : sim.disk->files) count += path.find("segment-") != path.npos;
    return count;
  }
  [[nodiscard]] bool disk_has(std::span<const std::byte> bytes) const {
    for (const auto& [path, file] : sim.disk->files) {
      const auto& data = file->data;
      if (std::search(data.begin(), data.end(), bytes.begin(), bytes.end()) != data.end()) {
        return true;
      }
    }
    return false;
  }
};

TEST_F(DiskErase, WhatIsErasedIsNotFoundAfterAKillNorALossOfPower) {
  for (const bool sealed : {false, true}) {
    const std::uint64_t base = sealed ? 20 : 0;
    store_all(base, base + 9);
    if (sealed) reopen();
    for (const std::uint64_t number : {base + 0u, base + 4u, base + 8u}) {
      EXPECT_EQ(erase(number), TierResult::kOk);
      EXPECT_FALSE(waiter->exists(number));
      for (int power = 0; power < 3; ++power) {
        std::unique_ptr<SimDisk> disk = copy();
        std::mt19937 random(7);
        if (power == 1) disk->crash([](const std::string&, std::int64_t) { return false; });
        if (power == 2) disk->crash([&](const auto&, std::int64_t) { return random() % 2 > 0; });
        EXPECT_EQ(found_on(std::move(disk), number + 1).at(number), TierResult::kMiss) << power;
      }
    }
    const std::vector<Result> found = found_on(copy(), base + 9);
    for (const std::uint64_t i : {1u, 2u, 3u, 5u, 6u, 7u}) {
      EXPECT_EQ(found.at(base + i), TierResult::kOk) << i;
    }
    reopen();
    for (const std::uint64_t i : {0u, 4u, 8u}) {
      EXPECT_EQ(waiter->load(base + i), TierResult::kMiss);
      EXPECT_EQ(waiter->store(base + i), TierResult::kOk);
      EXPECT_EQ(waiter->load(base + i), TierResult::kOk);
    }
  }
}

// The store is where it was, and only its own bytes are gone.
TEST_F(DiskErase, NothingIsLeftOfAnErasedRecord) {
  for (const bool sealed : {false, true}) {
    for (const bool holes : {true, false}) {
      const std::uint64_t number = 30 + 2 * std::uint64_t(sealed) + std::uint64_t(holes);
      store_all(number, number + 1);
      store_all(number + 10, number + 11);
      if (sealed) reopen();
      sim.disk->cannot_punch = !holes;
      const TierKey key = key_of(number);
      const std::vector<std::byte> data = bytes_of(number);
      const auto body = std::size_t(body_bytes(size_of(number)));
      EXPECT_TRUE(disk_has(key.bytes));
      EXPECT_EQ(erase(number), TierResult::kOk);
      waiter->settle();
      EXPECT_FALSE(disk_has(key.bytes));
      const auto tail = std::span(data).subspan(std::min(data.size(), body));
      if (tail.size() > 16) {
        EXPECT_FALSE(disk_has(tail));
      }
      // Without holes the body lies there until its segment goes.
      const auto head = std::span(data).first(std::min(data.size(), body));
      if (!head.empty()) {
        EXPECT_EQ(disk_has(head), !holes);
      }
    }
  }
}

TEST_F(DiskErase, ASegmentWithoutARecordGoes) {
  store_all(0, 9);
  reopen();
  const std::size_t before = segments();
  std::vector<TierItem> items;
  for (std::uint64_t i = 0; i < 9; ++i) items.push_back({key_of(i), nullptr, 0, i});
  ASSERT_EQ(sim.store->submit(TierOp::kErase, items, {kLater}), items.size());
  std::size_t answered = 0;
  while (!sim.store->idle()) {
    for (const TierDone& done : waiter->poll()) {
      EXPECT_EQ(done.result, TierResult::kOk);
      ++answered;
    }
  }
  EXPECT_EQ(answered, 9u);
  EXPECT_EQ(segments(), before - 1);
}

// Stores, loads and erases of the same keys are given at once, and the disk is looked at when each
// erase is answered.
TEST_F(DiskErase, WhatIsOnItsWayIsErasedToo) {
  for (std::uint64_t seed = 1; seed < 60; ++seed) {
    std::mt19937_64 random(seed);
    const std::uint64_t base = 100 * seed;
    std::vector<ItemMemory> memory;
    std::vector<TierItem> stores, loads, erases;
    for (std::uint64_t i = 0; i < 12; ++i) {
      const std::uint64_t number = base + i;
      memory.emplace_back(size_of(number), true);
      const auto bytes = bytes_of(number);
      std::copy(bytes.begin(), bytes.end(), memory.back().data());
      stores.push_back({key_of(number), memory.back().data(), size_of(number), number});
    }
    ASSERT_EQ(sim.store->submit(TierOp::kStore, stores, {kLater}), stores.size());
    std::map<std::uint64_t, TierResult> answers;
    const auto turn = [&](std::uint64_t polls) {
      for (std::uint64_t i = 0; i < polls; ++i) {
        for (const TierDone& done : waiter->poll()) answers[done.tag] = done.result;
      }
    };
    turn(random() % 12);
    std::vector<ItemMemory> targets;
    for (std::uint64_t i = 0; i < 12; ++i) {
      targets.emplace_back(size_of(base + i), true);
      loads.push_back({key_of(base + i), targets.back().data(), size_of(base + i), 10'000 + i});
      erases.push_back({key_of(base + i), nullptr, 0, 20'000 + i});
    }
    ASSERT_EQ(sim.store->submit(TierOp::kLoad, loads, {kLater}), loads.size());
    turn(random() % 6);
    ASSERT_EQ(sim.store->submit(TierOp::kErase, erases, {kLater}), erases.size());
    while (!sim.store->idle()) turn(1);
    for (std::uint64_t i = 0; i < 12; ++i) {
      EXPECT_EQ(answers.at(20'000 + i), TierResult::kOk);
      const TierResult loaded = answers.at(10'000 + i);
      EXPECT_TRUE(loaded == TierResult::kOk || loaded == TierResult::kMiss) << to_string(loaded);
      const auto bytes = bytes_of(base + i);
      if (loaded == TierResult::kOk) {
        EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), targets[i].data()));
      }
    }
    const Status status = sim.store->check_invariants();
    ASSERT_TRUE(status.ok()) << status;
    SimStore next;
    next.disk = copy();
    ASSERT_TRUE(next.open().ok());
    Waiter<SegmentStore> asks(*next.store);
    for (std::uint64_t i = 0; i < 12; ++i) EXPECT_FALSE(asks.exists(base + i)) << seed;
  }
  EXPECT_EQ(sim.store->stats().corrupt, 0u);
  EXPECT_TRUE(sim.store->health().usable);
}

// A crash before each call of the system that an erase makes: killed, and with any part of what was
// not synced.
TEST_F(DiskErase, ACrashInTheMiddleLeavesTheRecordWholeOrNotFound) {
  for (const bool sealed : {false, true}) {
    const std::uint64_t base = sealed ? 20 : 0;
    store_all(base, base + 9);
    waiter->settle();
    if (sealed) reopen();
    std::vector<std::unique_ptr<SimDisk>> moments;
    sim.disk->on_call = [&](const SimDisk::Call&) {
      moments.push_back(copy());
      return SimDisk::Fault{};
    };
    std::vector<TierItem> items;
    for (const std::uint64_t i : {1u, 5u, 6u}) items.push_back({key_of(base + i), nullptr, 0u, i});
    ASSERT_EQ(sim.store->submit(TierOp::kErase, items, {kLater}), items.size());
    waiter->settle();
    sim.disk->on_call = nullptr;
    EXPECT_GE(moments.size(), sealed ? 6u : 4u);
    moments.push_back(copy());
    for (std::size_t at = 0; at < moments.size(); ++at) {
      for (std::uint64_t seed = 0; seed < 12; ++seed) {
        std::unique_ptr<SimDisk> disk = copy_of(*moments[at]);
        std::mt19937_64 random(seed);
        // What the records were is on the medium, or the test would be of their loss.
        if (seed > 0 && sealed) {
          disk->crash([&](const std::string&, std::int64_t) { return random() % seed == 0; });
        }
        const std::vector<Result> found = found_on(std::move(disk), base + 9);
        for (std::uint64_t i = 0; i < 9; ++i) {
          const bool erased = i == 1 || i == 5 || i == 6;
          const Result result = found.at(base + i);
          EXPECT_TRUE(result == TierResult::kOk || (erased && result == TierResult::kMiss))
              << "record " << i << " before call " << at << ", seed " << seed;
          if (erased && at + 1 == moments.size()) {
            EXPECT_EQ(result, TierResult::kMiss);
          }
        }
      }
    }
  }
}

// What was used is moved when its segment goes. Erased at any moment of that, it does not come
// back.
TEST_F(DiskErase, WhatIsBeingMovedIsErasedToo) {
  std::size_t moved = 0;
  for (std::uint64_t seed = 1; seed < 240; ++seed) {
    std::mt19937_64 random(seed);
    bool moves = false;  // until the store has ended
    SimStore one;
    one.seed = seed;
    one.options.bytes = 400 << 10;
    ASSERT_TRUE(one.open().ok());
    Waiter<SegmentStore> asks(*one.store);
    for (std::uint64_t i = 0; i < 12; ++i) {
      EXPECT_EQ(asks.store(i), TierResult::kOk);
      EXPECT_EQ(asks.load(i), TierResult::kOk);
    }
    asks.settle();
    one.disk->on_call = [&](const SimDisk::Call& call) {
      moves = moves || std::string(call.name) == "readv";  // there are no loads
      return SimDisk::Fault{};
    };
    std::vector<ItemMemory> memory;
    std::array<TierDone, 16> done;
    for (std::uint64_t next = 100; !moves && next < 300; ++next) {
      memory.emplace_back(size_of(next), true);
      const TierItem item{key_of(next), memory.back().data(), size_of(next), next};
      ASSERT_EQ(one.store->submit(TierOp::kStore, std::span(&item, 1), {kLater}), 1u);
      for (int i = 0; !moves && i < 20; ++i) one.store->poll(++asks.now_us, done);
    }
    ASSERT_TRUE(moves);
    for (auto polls = random() % 24; polls > 0; --polls) one.store->poll(++asks.now_us, done);
    std::vector<TierItem> erases;
    // One alone: then nothing else writes the footer of its old segment anew.
    const std::uint64_t first = random() % 12, last = seed % 2 == 0 ? first + 1 : 12;
    for (std::uint64_t i = first; i < last; ++i) {
      erases.push_back({key_of(i), nullptr, 0, 20'000 + i});
    }
    ASSERT_EQ(one.store->submit(TierOp::kErase, erases, {kLater}), erases.size());
    std::size_t answered = 0;
    while (answered < erases.size()) {
      const std::size_t n = one.store->poll(++asks.now_us, done);
      for (std::size_t i = 0; i < n; ++i) {
        if (done[i].tag < 20'000) continue;
        ++answered;
        EXPECT_EQ(done[i].result, TierResult::kOk);
        const std::uint64_t number = done[i].tag - 20'000;
        SimStore next;
        next.disk = copy_of(*one.disk);
        ASSERT_TRUE(next.open().ok());
        EXPECT_FALSE(Waiter<SegmentStore>(*next.store).exists(number)) << "seed " << seed;
      }
    }
    EXPECT_TRUE(one.store->check_invariants().ok());
    moved += one.store->stats().reinserted;
  }
  EXPECT_GT(moved, 0u);
}

// Killed between a move and the end of the old file, a directory has a record twice.
TEST_F(DiskErase, EveryCopyOfARecordIsErased) {
  store_all(0, 9);
  reopen();
  const auto twice = copy();
  // The same records once more, in a younger segment.
  std::uint64_t last = 0;
  for (const auto& [path, file] : twice->files) {
    if (path.find("segment-") != path.npos) last = *segment_number(path.substr(3));
  }
  for (const bool damaged : {false, true}) {
    SimStore both;
    both.disk = copy_of(*twice);
    const auto old = both.disk->files.at("/d/" + segment_name(last));
    auto young = std::make_shared<SimDisk::File>(*old);
    encode(SegmentHeader{.number = last + 1, .epoch = 77},
           std::span<std::byte, kPiece>(young->data.data(), kPiece));
    std::uint64_t sequence = 1000;
    std::int64_t at = kPiece;
    for (std::uint64_t i = 0; i < 9; at += record_bytes(size_of(i)), ++i) {
      const std::span<std::byte, kPiece> piece(young->data.data() + at, kPiece);
      RecordHeader header;
      ASSERT_EQ(decode(piece, header), FormatFault::kNone) << i << " at " << at << " of " << last;
      header.epoch = 77;
      header.sequence = sequence++;
      ASSERT_TRUE(seal(header, bytes_of(i), {}, piece));
    }
    young->data.resize(std::size_t(at));  // not sealed
    young->durable = young->data;
    both.disk->files["/d/" + segment_name(last + 1)] = young;
    if (damaged) young->data[kPiece + 200] ^= std::byte{1};
    ASSERT_TRUE(both.open().ok());
    EXPECT_EQ(both.store->stats().records, 9);
    Waiter<SegmentStore> asks(*both.store);
    for (const std::uint64_t number : {0u, 3u}) {
      asks.load(number);
      EXPECT_EQ(asks(TierOp::kErase, key_of(number), {}), TierResult::kOk);
    }
    EXPECT_TRUE(both.store->check_invariants().ok());
    const std::vector<Result> found = found_on(copy_of(*both.disk), 9);
    for (std::uint64_t i = 0; i < 9; ++i) {
      EXPECT_EQ(found[i], i == 0 || i == 3 ? TierResult::kMiss : TierResult::kOk) << i;
    }
  }
}

TEST_F(DiskErase, AFailureIsSaidAndTheRecordStaysErasedUntilItIsTriedAgain) {
  const struct {
    std::int64_t error;
    TierResult said;
  } cases[] = {
      {-EIO, TierResult::kIoError}, {-ENOSPC, TierResult::kBusy}, {-EDQUOT, TierResult::kBusy}};
  std::uint64_t base = 0;
  for (const auto& one : cases) {
    for (const bool sealed : {false, true}) {
      for (const char* const call_name : {"writev", "sync"}) {
        base += 10;
        store_all(base, base + 3);
        waiter->settle();
        if (sealed) reopen();
        sim.disk->on_call = [&](const SimDisk::Call& call) {
          return SimDisk::Fault{.error = std::string(call.name) == call_name ? one.error : 0};
        };
        EXPECT_EQ(erase(base), one.said) << call_name << ", sealed " << sealed;
        sim.disk->on_call = nullptr;
        EXPECT_FALSE(waiter->exists(base));
        EXPECT_EQ(waiter->load(base + 1), TierResult::kOk);
        EXPECT_TRUE(sim.store->health().usable);
        EXPECT_EQ(erase(base), TierResult::kOk);  // though nothing is found
        EXPECT_EQ(found_on(copy(), base + 1).at(base), TierResult::kMiss);
        EXPECT_EQ(waiter->store(base), TierResult::kOk);
        EXPECT_EQ(waiter->load(base), TierResult::kOk);
        reopen();
      }
    }
  }
}

// Its segment was evicted and its file cannot be removed: the next open() may find the record.
TEST_F(DiskErase, ARecordOfAFileThatCannotBeRemovedIsAFailure) {
  store_all(0, 9);
  reopen();
  bool fails = true;
  sim.disk->on_call = [&](const SimDisk::Call& call) {
    return SimDisk::Fault{.error = fails && std::string(call.name) == "unlink" ? -EPERM : 0};
  };
  for (std::uint64_t i = 100; sim.store->stats().evicted == 0; ++i) waiter->store(i);
  while (!sim.store->idle()) waiter->poll();
  EXPECT_FALSE(waiter->exists(0));
  EXPECT_EQ(erase(0), TierResult::kIoError);
  EXPECT_EQ(found_on(copy(), 1).at(0), TierResult::kOk);
  fails = false;
  waiter->now_us += 2'000'000;
  waiter->poll();
  EXPECT_EQ(erase(0), TierResult::kOk);
  EXPECT_EQ(found_on(copy(), 1).at(0), TierResult::kMiss);
}

TEST_F(DiskErase, ALateEraseIsATimeoutAndGoesOn) {
  store_all(0, 5);
  EXPECT_EQ((*waiter)(TierOp::kErase, key_of(2), {}, {0}), TierResult::kTimeout);
  waiter->settle();
  EXPECT_EQ(found_on(copy(), 5).at(2), TierResult::kMiss);
}

TEST_F(DiskErase, CloseEndsWhatWasAccepted) {
  for (const bool sealed : {false, true}) {
    const std::uint64_t base = sealed ? 20 : 0;
    store_all(base, base + 9);
    if (sealed) reopen();
    std::vector<TierItem> items;
    for (std::uint64_t i = 0; i < 5; ++i) items.push_back({key_of(base + i), nullptr, 0, i});
    ASSERT_EQ(sim.store->submit(TierOp::kErase, items, {kLater}), items.size());
    sim.store->close({kLater});
    std::size_t answered = 0;
    while (!sim.store->idle()) {
      for (const TierDone& done : waiter->poll()) {
        EXPECT_EQ(done.result, TierResult::kOk);
        ++answered;
      }
    }
    EXPECT_EQ(answered, 5u);
    reopen();
    for (std::uint64_t i = 0; i < 9; ++i) EXPECT_EQ(waiter->exists(base + i), i >= 5) << i;
    EXPECT_GT(sim.store->stats().recovered_by_footer, 0u);
  }
}

// A full segment ends where its footer does, so a footer is there although it could not be cut off
// behind it.
TEST_F(DiskErase, AFooterOfASealThatFailedBringsNothingBack) {
  std::string first;
  sim.disk->on_call = [&](const SimDisk::Call& call) {
    const bool seals = std::string(call.name) == "truncate" && call.path == first;
    return SimDisk::Fault{.error = seals ? -EIO : 0};
  };
  store_all(0, 1);
  first = "/d/" + segment_name(1);
  for (std::uint64_t i = 1; i < 14; ++i) store_all(9 * i, 9 * i + 1);  // 8 KiB each
  store_all(3, 4);                                                     // 4 KiB: it is full now
  store_all(1, 2);
  waiter->settle();
  sim.disk->on_call = nullptr;
  EXPECT_GT(sim.store->stats().io_errors, 0u);
  EXPECT_EQ(erase(9), TierResult::kOk);
  const std::vector<Result> found = found_on(copy(), 20);
  EXPECT_EQ(found.at(0), TierResult::kOk);
  EXPECT_EQ(found.at(9), TierResult::kMiss);
}

// A footer that is torn while it is written anew is as good as none: the headers have it all.
TEST_F(DiskErase, ADamagedFooterBringsNothingBack) {
  store_all(0, 9);
  reopen();
  for (const std::uint64_t i : {0u, 4u, 8u}) EXPECT_EQ(erase(i), TierResult::kOk);
  waiter->settle();
  std::unique_ptr<SimDisk> disk = copy();
  for (auto& [path, file] : disk->files) {
    if (path.find("segment-") == path.npos) continue;
    file->data[file->data.size() - kPiece + 30] ^= std::byte{1};
    if (file->data.size() < 2 * kPiece) continue;
  }
  const std::vector<Result> found = found_on(std::move(disk), 9);
  for (std::uint64_t i = 0; i < 9; ++i) {
    EXPECT_EQ(found[i], i % 4 == 0 ? TierResult::kMiss : TierResult::kOk) << i;
  }
}

// A run is killed at any moment of an erase. The footer may leave the record out by then, while its
// header is whole: a later run has to know of it all the same, or it would answer an erase with kOk
// and leave it there, until the footer is damaged.
TEST_F(DiskErase, WhatAKillLeftOfAnEraseIsReachedByTheNextRun) {
  store_all(0, 9);
  reopen();
  std::vector<std::unique_ptr<SimDisk>> moments;
  sim.disk->on_call = [&](const SimDisk::Call&) {
    moments.push_back(copy());
    return SimDisk::Fault{};
  };
  EXPECT_EQ(erase(4), TierResult::kOk);
  waiter->settle();
  sim.disk->on_call = nullptr;
  moments.push_back(copy());
  ASSERT_GT(moments.size(), 4u);
  std::size_t found_whole = 0;
  for (std::size_t m = 0; m < moments.size(); ++m) {
    SCOPED_TRACE(testing::Message() << "killed before call " << m);
    found_whole += found_on(copy_of(*moments[m]), 9)[4] == TierResult::kOk ? 1 : 0;
    SimStore next;
    next.disk = std::move(moments[m]);
    ASSERT_TRUE(next.open().ok());
    Waiter<SegmentStore> asks(*next.store);
    EXPECT_EQ(asks(TierOp::kErase, key_of(4), {}), TierResult::kOk);
    std::unique_ptr<SimDisk> disk = copy_of(*next.disk);
    asks.settle();
    EXPECT_TRUE(next.store->check_invariants().ok());
    next.close();
    for (auto& [path, file] : disk->files) {
      if (path.find("segment-") == path.npos) continue;
      file->data[file->data.size() - kPiece + 30] ^= std::byte{1};
    }
    const std::vector<Result> found = found_on(std::move(disk), 9);
    for (std::uint64_t i = 0; i < 9; ++i) {
      EXPECT_EQ(found[i], i == 4 ? TierResult::kMiss : TierResult::kOk) << i;
    }
  }
  EXPECT_GT(found_whole, 0u);
  EXPECT_LT(found_whole, moments.size());
}

// A record that could not be read once is not found any more, and its header is whole. A footer
// that did not name it would hide it from the erase of a later run, and show it when that is
// damaged.
class DiskEraseLater : public DiskErase, public ::testing::WithParamInterface<bool> {};

TEST_P(DiskEraseLater, ReachesWhatCouldNotBeRead) {
  const bool footer_is_written_anew = GetParam();
  store_all(0, 9);
  if (footer_is_written_anew) reopen();
  sim.disk->on_call = [](const SimDisk::Call& call) {
    return SimDisk::Fault{.error = std::string(call.name) == "readv" ? -EIO : 0};
  };
  EXPECT_EQ(waiter->load(1), TierResult::kIoError);
  sim.disk->on_call = nullptr;
  EXPECT_EQ(waiter->load(1), TierResult::kMiss);
  EXPECT_EQ(erase(4), TierResult::kOk);
  reopen();
  EXPECT_EQ(waiter->load(1), TierResult::kOk) << "the error went by";
  EXPECT_EQ(erase(1), TierResult::kOk);
  waiter->settle();
  std::unique_ptr<SimDisk> disk = copy();
  for (auto& [path, file] : disk->files) {
    if (path.find("segment-") == path.npos) continue;
    file->data[file->data.size() - kPiece + 30] ^= std::byte{1};
  }
  const std::vector<Result> found = found_on(std::move(disk), 9);
  EXPECT_EQ(found[1], TierResult::kMiss);
  EXPECT_EQ(found[2], TierResult::kOk);
  EXPECT_EQ(found[4], TierResult::kMiss);
}

INSTANTIATE_TEST_SUITE_P(Footers, DiskEraseLater, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "WrittenAnew" : "OfTheSeal"; });

}  // namespace
}  // namespace kvfolio::disk
