// SPDX-License-Identifier: Apache-2.0
//
// The store over a disk in memory that fails in every way that tiers.md (e) 1 and 3 name. The
// oracle of all of these tests is in Waiter::load(): kOk with other bytes than those of the record
// fails.

#include "disk/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "disk/test_store.h"
#include "kvfolio/checked_copy.h"

namespace kvfolio::disk {
namespace {

using ::testing::HasSubstr;
using Result = std::optional<TierResult>;

// Opens a store over this disk.
SimStore store_on(std::unique_ptr<SimDisk> disk) {
  SimStore sim;
  sim.disk = std::move(disk);
  const Status status = sim.open();
  EXPECT_TRUE(status.ok()) << status;
  return sim;
}

class DiskStore : public SimStoreTest {
 protected:
  void reopen() {
    sim.close();
    SetUp();
  }
  Result store(std::uint64_t number) { return waiter->store(number); }
  Result load(std::uint64_t number) { return waiter->load(number); }
  // The only segment that there is.
  std::string segment_path() const {
    for (const auto& [path, file] : sim.disk->files) {
      if (path.find("segment-") != std::string::npos) return path;
    }
    return {};
  }
  SimDisk::File& segment_file() { return *sim.disk->files.at(segment_path()); }
};

TEST_F(DiskStore, GivesBackWhatItWasGiven) {
  for (const bool aligned : {true, false}) {
    for (std::uint64_t i = 0; i < 9; ++i) {
      const std::uint64_t number = i + (aligned ? 0 : 9);
      EXPECT_EQ(load(number), TierResult::kMiss);
      EXPECT_EQ(waiter->store(number, aligned), TierResult::kOk);
      EXPECT_EQ(waiter->load(number, aligned), TierResult::kOk);
      EXPECT_EQ(waiter->load(number, !aligned), TierResult::kOk);
      EXPECT_TRUE(waiter->exists(number));
    }
  }
  reopen();
  for (std::uint64_t i = 0; i < 18; ++i) EXPECT_EQ(load(i), TierResult::kOk) << i;
  EXPECT_EQ(sim.store->stats().recovered_by_footer, 18u);
}

TEST_F(DiskStore, KeepsTheFirstBytesOfAKey) {
  EXPECT_EQ(store(1), TierResult::kOk);
  EXPECT_EQ((*waiter)(TierOp::kStore, key_of(1), {}), TierResult::kOk);
  EXPECT_EQ(load(1), TierResult::kOk);
}

TEST_F(DiskStore, ARecordOfAnotherSizeIsCorrupt) {
  store_all(1, 2);
  ItemMemory memory(size_of(1) + 1, true);
  EXPECT_EQ((*waiter)(TierOp::kLoad, key_of(1), memory.span()), TierResult::kCorrupt);
  EXPECT_EQ(load(1), TierResult::kOk);
}

TEST_F(DiskStore, WhatIsErasedIsNotFoundNorSealed) {
  store_all(0, 4);
  EXPECT_EQ((*waiter)(TierOp::kErase, key_of(2), {}), TierResult::kOk);
  EXPECT_EQ((*waiter)(TierOp::kErase, key_of(99), {}), TierResult::kOk);
  EXPECT_EQ(load(2), TierResult::kMiss);
  reopen();
  EXPECT_EQ(load(2), TierResult::kMiss);
  EXPECT_EQ(load(3), TierResult::kOk);
  EXPECT_EQ(store(2), TierResult::kOk);
  EXPECT_EQ(load(2), TierResult::kOk);
}

TEST_F(DiskStore, EachItemGetsOneAnswer) {
  std::vector<ItemMemory> memory;
  std::vector<TierItem> items;
  for (std::uint64_t i = 0; i < 100; ++i) {
    memory.emplace_back(size_of(i), true);
    const std::vector<std::byte> bytes = bytes_of(i);
    std::copy(bytes.begin(), bytes.end(), memory.back().data());
    items.push_back({key_of(i), memory.back().data(), size_of(i), i});
  }
  ASSERT_EQ(sim.store->submit(TierOp::kStore, items, {kLater}), items.size());
  // Again, while they are on their way.
  for (TierItem& item : items) item.tag += 1000;
  ASSERT_EQ(sim.store->submit(TierOp::kStore, items, {kLater}), items.size());
  std::multiset<std::uint64_t> answered;
  while (!sim.store->idle()) {
    for (const TierDone& done : waiter->poll()) answered.insert(done.tag);
  }
  EXPECT_EQ(answered.size(), 200u);
  for (const TierItem& item : items) EXPECT_EQ(answered.count(item.tag), 1u);
}

TEST_F(DiskStore, AFullQueueAcceptsFewer) {
  sim.close();
  sim.options.queued_bytes_max = 3 * size_of(1);
  SetUp();
  const ItemMemory memory(size_of(1), true);
  std::vector<TierItem> items;
  for (std::uint64_t i = 0; i < 10; ++i) {
    items.push_back({key_of(100 + i), memory.data(), size_of(1), i});
  }
  EXPECT_EQ(sim.store->submit(TierOp::kStore, items, {kLater}), 3u);
  waiter->settle();
}

TEST_F(DiskStore, WhatIsLateIsATimeoutAndTouchesNothingAfterwards) {
  store_all(0, 1);
  ItemMemory memory(size_of(0), true);
  EXPECT_EQ((*waiter)(TierOp::kLoad, key_of(0), memory.span(), {0}), TierResult::kTimeout);
  EXPECT_EQ(load(0), TierResult::kOk);
}

TEST_F(DiskStore, CloseAnswersEverything) {
  std::vector<ItemMemory> memory;
  std::vector<TierItem> items;
  for (std::uint64_t i = 0; i < 40; ++i) {
    memory.emplace_back(size_of(i), true);
    items.push_back({key_of(i), memory.back().data(), size_of(i), i});
  }
  ASSERT_EQ(sim.store->submit(TierOp::kStore, items, {kLater}), items.size());
  sim.store->close({0});
  std::size_t answered = 0, closed = 0;
  while (!sim.store->idle()) {
    for (const TierDone& done : waiter->poll()) {
      ++answered;
      closed += done.result == TierResult::kClosed ? 1 : 0;
    }
  }
  EXPECT_EQ(answered, items.size());
  EXPECT_GT(closed, 0u);
  EXPECT_EQ(sim.store->submit(TierOp::kStore, items, {kLater}), 0u);
  EXPECT_FALSE(sim.store->health().usable);
}

// A thread that sleeps on event_fd sleeps: the probe of open(), the last answer, and a worker that
// writes to it after its job was taken wake once each.
TEST_F(DiskStore, AnIdleStoreDoesNotWakeItsOwner) {
  const auto wakes = [&] {
    pollfd event{.fd = sim.store->event_fd(), .events = POLLIN, .revents = 0};
    return ::poll(&event, 1, 0) == 1;
  };
  const auto polled = [&] {
    std::array<TierDone, 4> done;
    return sim.store->poll(++waiter->now_us, done);
  };
  EXPECT_EQ(polled(), 0u);
  EXPECT_FALSE(wakes());
  const TierItem question{key_of(0), nullptr, 0, 1};
  for (int round = 0; round < 3; ++round) {
    store_all(std::uint64_t(round), std::uint64_t(round) + 1);
    waiter->settle();
    const std::uint64_t one = 1;
    ASSERT_EQ(::write(sim.store->event_fd(), &one, sizeof one), 8);  // as a late worker does
    EXPECT_EQ(polled(), 0u);
    EXPECT_FALSE(wakes());
    // New work: an answer that is there, and a job.
    ASSERT_EQ(sim.store->submit(TierOp::kExists, std::span(&question, 1), {kLater}), 1u);
    EXPECT_TRUE(wakes());
    EXPECT_EQ(polled(), 1u);
    EXPECT_FALSE(wakes());
  }
  ItemMemory memory(size_of(0), true);
  const TierItem load{key_of(0), memory.data(), size_of(0), 2};
  ASSERT_EQ(sim.store->submit(TierOp::kLoad, std::span(&load, 1), {kLater}), 1u);
  EXPECT_TRUE(wakes());
  waiter->settle();
}

// ---- eviction and the budget ----

TEST_F(DiskStore, NeverTakesMoreThanItsBudget) {
  sim.disk->on_call = [&](const SimDisk::Call&) {
    EXPECT_LE(sim.disk->bytes(), sim.options.bytes);
    return SimDisk::Fault{};
  };
  for (std::uint64_t i = 0; i < 400; ++i) {
    EXPECT_EQ(store(i), TierResult::kOk) << i;
    if (i % 50 == 0) {
      EXPECT_TRUE(sim.store->check_invariants().ok());
    }
  }
  EXPECT_GT(sim.store->stats().evicted, 100u);
  for (std::uint64_t i = 390; i < 400; ++i) EXPECT_EQ(load(i), TierResult::kOk) << i;
}

TEST_F(DiskStore, WhatIsUsedOutlivesItsSegment) {
  store_all(0, 10);
  for (std::uint64_t i = 10; i < 400; ++i) {
    EXPECT_EQ(store(i), TierResult::kOk) << i;
    EXPECT_EQ(load(3), TierResult::kOk) << i;
  }
  EXPECT_GT(sim.store->stats().reinserted, 0u);
  EXPECT_EQ(load(4), TierResult::kMiss);
  reopen();
  EXPECT_EQ(load(3), TierResult::kOk);
}

TEST_F(DiskStore, ASmallerBudgetEvictsTheOldest) {
  store_all(0, 60);
  sim.close();
  sim.options.bytes = 300 << 10;
  SetUp();
  EXPECT_LE(sim.disk->bytes(), sim.options.bytes);
  EXPECT_EQ(load(0), TierResult::kMiss);
  EXPECT_EQ(load(59), TierResult::kOk);
  const std::string left = std::to_string(sim.store->stats().records);
  const std::string gone = std::to_string(sim.store->stats().evicted);
  EXPECT_THAT(sim.store->describe(), HasSubstr(left + " records, the oldest " + gone +
                                               " removed, which were beyond the budget"));
  reopen();
  EXPECT_THAT(sim.store->describe(), ::testing::Not(HasSubstr("removed")));
}

TEST_F(DiskStore, OneSegmentIsABudget) {
  sim.close();
  sim.options.bytes = sim.options.segment_bytes + kOtherBytes;
  SetUp();
  for (std::uint64_t i = 0; i < 100; ++i) EXPECT_EQ(store(i), TierResult::kOk) << i;
  EXPECT_LE(sim.disk->bytes(), sim.options.bytes);
}

TEST_F(DiskStore, ALargeRecordIsRefused) {
  ItemMemory memory(sim.store->data_bytes_max() + 1, true);
  EXPECT_EQ((*waiter)(TierOp::kStore, key_of(0), memory.span()), TierResult::kUnavailable);
  EXPECT_EQ((*waiter)(TierOp::kStore, key_of(0), memory.span().first(memory.span().size() - 1)),
            TierResult::kOk);
}

// Eviction moves what was used. The end of a life in the middle of that loses nothing.
TEST_F(DiskStore, ClosingDuringAnEvictionKeepsItsSegment) {
  std::uint64_t next = 0;
  for (; next < 60; ++next) {
    store_all(next, next + 1);
    EXPECT_EQ(load(next), TierResult::kOk);
  }
  waiter->settle();
  bool moves = false;
  sim.disk->on_call = [&](const SimDisk::Call& call) {
    moves = moves || std::string(call.name) == "readv";  // there are no loads
    return SimDisk::Fault{};
  };
  std::vector<ItemMemory> memory;
  std::array<TierDone, 16> done;
  for (; !moves && next < 200; ++next) {
    memory.emplace_back(size_of(next), true);
    const TierItem item{key_of(next), memory.back().data(), size_of(next), 1'000'000 + next};
    ASSERT_EQ(sim.store->submit(TierOp::kStore, std::span(&item, 1), {kLater}), 1u);
    for (int i = 0; !moves && i < 20; ++i) sim.store->poll(++waiter->now_us, done);
  }
  ASSERT_TRUE(moves);
  std::vector<TierItem> questions;
  for (std::uint64_t i = 0; i < 60; ++i) questions.push_back({key_of(i), nullptr, 0, i});
  ASSERT_EQ(sim.store->submit(TierOp::kExists, questions, {kLater}), questions.size());
  sim.store->close({kLater});
  std::set<std::uint64_t> found;
  while (!sim.store->idle()) {
    for (const TierDone& one : waiter->poll()) {
      if (one.tag < 60 && one.result == TierResult::kOk) found.insert(one.tag);
    }
  }
  sim.disk->on_call = nullptr;
  EXPECT_TRUE(sim.store->check_invariants().ok());
  reopen();
  EXPECT_GT(found.size(), 20u);
  for (const std::uint64_t number : found) EXPECT_EQ(load(number), TierResult::kOk) << number;
}

// ---- what comes back wrong ----

TEST_F(DiskStore, ShortAnswersAndInterruptionsAreGoneOnFrom) {
  std::mt19937 random(3);
  sim.disk->on_call = [&](const SimDisk::Call& call) {
    SimDisk::Fault fault;
    if (random() % 3 == 0 && call.bytes > kPiece) {
      fault.at_most = 1 + std::int64_t(random() % unsigned(call.bytes));
    }
    if (random() % 7 == 0) fault.error = random() % 2 == 0 ? -EINTR : -EAGAIN;
    return fault;
  };
  for (std::uint64_t i = 0; i < 100; ++i) EXPECT_EQ(store(i), TierResult::kOk) << i;
  for (std::uint64_t i = 90; i < 100; ++i) EXPECT_EQ(load(i), TierResult::kOk) << i;
  EXPECT_EQ(sim.store->stats().io_errors, 0u);
}

TEST_F(DiskStore, AnErrorOfAReadCostsTheRecord) {
  store_all(0, 5);
  sim.disk->on_call = [](const SimDisk::Call& call) {
    return SimDisk::Fault{.error = std::string(call.name) == "readv" ? -EIO : 0};
  };
  EXPECT_EQ(load(1), TierResult::kIoError);
  sim.disk->on_call = nullptr;
  EXPECT_EQ(load(1), TierResult::kMiss);
  EXPECT_EQ(load(2), TierResult::kOk);
  EXPECT_EQ(sim.store->stats().io_errors, 1u);
  EXPECT_TRUE(sim.store->health().usable);
}

TEST_F(DiskStore, ASegmentGoesAfterThreeErrors) {
  store_all(0, 9);
  reopen();
  const std::string path = segment_path();
  sim.disk->on_call = [&](const SimDisk::Call& call) {
    return SimDisk::Fault{.error = call.path == path && call.bytes > 0 ? -EIO : 0};
  };
  for (std::uint64_t i = 0; i < 3; ++i) EXPECT_EQ(load(i), TierResult::kIoError);
  waiter->settle();
  EXPECT_EQ(load(5), TierResult::kMiss);
  waiter->settle();
  EXPECT_EQ(sim.disk->files.count(path), 0u);
  EXPECT_EQ(store(5), TierResult::kOk);
}

TEST_F(DiskStore, AnErrorOfAWriteEndsTheSegment) {
  store_all(0, 5);
  const std::string first = segment_path();
  sim.disk->on_call = [](const SimDisk::Call& call) {
    return SimDisk::Fault{.error = std::string(call.name) == "writev" ? -EIO : 0};
  };
  EXPECT_EQ(store(5), TierResult::kIoError);
  sim.disk->on_call = nullptr;
  EXPECT_EQ(load(5), TierResult::kMiss);
  EXPECT_EQ(store(6), TierResult::kOk);
  reopen();
  for (std::uint64_t i = 0; i < 5; ++i) EXPECT_EQ(load(i), TierResult::kOk);
  EXPECT_EQ(load(6), TierResult::kOk);
  EXPECT_EQ(load(5), TierResult::kMiss);
}

TEST_F(DiskStore, ATierWhoseErrorsDoNotEndIsOff) {
  store_all(0, 30);
  sim.disk->on_call = [](const SimDisk::Call&) { return SimDisk::Fault{.error = -EIO}; };
  for (std::uint64_t i = 0; i < 30 && sim.store->health().usable; ++i) load(i);
  EXPECT_FALSE(sim.store->health().usable);
  const TierItem item{key_of(3), nullptr, 0, 1};
  EXPECT_EQ(sim.store->submit(TierOp::kExists, std::span(&item, 1), {kLater}), 0u);
  EXPECT_THAT(sim.store->describe(), HasSubstr("off after errors"));
}

TEST_F(DiskStore, ADiskThatFailsIsTriedAgainWithGrowingPauses) {
  store_all(0, 3);
  reopen();
  sim.disk->on_call = [](const SimDisk::Call& call) {
    return SimDisk::Fault{.error = std::string(call.name) == "open" ? -ENOENT : 0};
  };
  std::uint64_t number = 100;
  while (sim.store->health().usable) {
    store(number++);
    waiter->now_us += 1'100'000;
    waiter->poll();
    ASSERT_LT(number, 200u);
  }
  // Each chance costs one store, and comes later than the one before.
  std::vector<std::uint64_t> chances;
  const std::uint64_t begin = waiter->now_us;
  while (waiter->now_us < begin + 200'000'000) {
    waiter->now_us += 100'000;
    waiter->poll();
    if (!sim.store->health().usable) continue;
    EXPECT_EQ(store(number++), TierResult::kIoError);
    EXPECT_FALSE(sim.store->health().usable);
    EXPECT_THAT(sim.store->describe(), HasSubstr("off after errors: No such file or directory"));
    chances.push_back(waiter->now_us);
  }
  ASSERT_GE(chances.size(), 8u);
  EXPECT_LE(chances.size(), 13u);
  for (std::size_t i = 2; i < 5; ++i) {
    EXPECT_GT(chances[i] - chances[i - 1], (chances[i - 1] - chances[i - 2]) * 3 / 2);
  }
  sim.disk->on_call = nullptr;
  waiter->now_us += 31'000'000;
  waiter->poll();
  EXPECT_TRUE(sim.store->health().usable);
  EXPECT_EQ(store(number), TierResult::kOk);
  EXPECT_EQ(load(1), TierResult::kOk);
  EXPECT_THAT(sim.store->describe(), ::testing::Not(HasSubstr("off")));
}

TEST_F(DiskStore, ADiskThatHangsIsPassedOverUntilItAnswers) {
  store_all(0, 40);
  sim.engine->hangs = true;
  std::vector<ItemMemory> memory;
  std::uint64_t tag = 1'000'000;
  std::size_t accepted = 0, answered = 0, in_time = 0;
  const auto ask = [&](std::uint64_t number) {
    memory.emplace_back(size_of(number), true);
    const TierItem item{key_of(number), memory.back().data(), size_of(number), ++tag};
    accepted += sim.store->submit(TierOp::kLoad, std::span(&item, 1), {waiter->now_us + 300'000});
  };
  std::vector<std::uint64_t> pauses;  // how long each was
  std::uint64_t off_since = 0;
  const std::uint64_t begin = waiter->now_us;
  while (waiter->now_us < begin + 30'000'000) {
    for (std::uint64_t i = 36; i < 39; ++i) ask(i);
    waiter->now_us += 100'000;
    answered += waiter->poll().size();
    const bool off = !sim.store->health().usable;
    if (off && off_since == 0) off_since = waiter->now_us;
    if (!off && off_since != 0) pauses.push_back(waiter->now_us - std::exchange(off_since, 0));
  }
  EXPECT_THAT(sim.store->describe(), HasSubstr("off after errors: it does not answer"));
  ASSERT_GE(pauses.size(), 3u);
  for (std::size_t i = 1; i < pauses.size(); ++i) EXPECT_GT(pauses[i], pauses[i - 1]);
  EXPECT_LT(accepted, 300u);  // of 900
  sim.engine->hangs = false;
  while (!sim.store->idle()) {
    for (const TierDone& done : waiter->poll()) {
      ++answered;
      in_time += done.result == TierResult::kOk ? 1 : 0;
    }
  }
  EXPECT_EQ(answered, accepted);
  EXPECT_EQ(in_time, 0u);
  EXPECT_TRUE(sim.store->health().usable);
  for (std::uint64_t i = 30; i < 40; ++i) EXPECT_EQ(load(i), TierResult::kOk);
}

TEST_F(DiskStore, AFullDiskEvictsAndThenDrops) {
  store_all(0, 40);
  sim.disk->capacity = sim.disk->bytes();  // no further segment
  std::size_t kept = 0;
  for (std::uint64_t i = 100; i < 200; ++i) kept += store(i) == TierResult::kOk ? 1 : 0;
  EXPECT_GT(kept, 90u);
  EXPECT_GT(sim.store->stats().no_space, 0u);
  EXPECT_GT(sim.store->stats().evicted, 0u);
  // Others fill the disk while we have nothing to give.
  reopen();
  sim.disk->capacity = 1000;
  std::size_t dropped = 0;
  for (std::uint64_t i = 300; i < 400; ++i) dropped += store(i) == TierResult::kBusy ? 1 : 0;
  EXPECT_GT(dropped, 50u);
  EXPECT_TRUE(sim.store->health().usable);
  sim.disk->capacity = 1 << 30;
  waiter->now_us += 2'000'000;
  waiter->poll();
  EXPECT_EQ(store(500), TierResult::kOk);
}

TEST_F(DiskStore, WithoutPreallocationAFullDiskOrQuotaIsFoundByTheWrite) {
  sim.disk->cannot_allocate = true;
  store_all(0, 40);
  std::uint64_t full = 0;
  for (const std::int64_t error : {-ENOSPC, -EDQUOT}) {
    sim.disk->on_call = [&](const SimDisk::Call& call) {
      const bool record = std::string(call.name) == "writev" && call.offset > 0;
      return SimDisk::Fault{.error = record ? error : 0};
    };
    const std::uint64_t number = 100 + full;
    EXPECT_EQ(store(number), TierResult::kBusy);
    EXPECT_EQ(sim.store->stats().no_space, ++full);
    sim.disk->on_call = nullptr;
    EXPECT_EQ(store(number), TierResult::kOk);
    EXPECT_TRUE(sim.store->health().usable);
  }
}

TEST_F(DiskStore, SizesAreSaidAsTheyAreUsed) {
  EXPECT_THAT(sim.store->describe(), HasSubstr("/d: 640 KiB in segments of 128 KiB, "));
  sim.close();
  sim.options.bytes = 64 << 20;
  sim.options.segment_bytes = (8 << 20) - 4096;
  SetUp();
  EXPECT_THAT(sim.store->describe(), HasSubstr("/d: 64 MiB in segments of 8188 KiB, "));
}

TEST_F(DiskStore, GoesThroughThePageCacheWhereODirectIsRefused) {
  EXPECT_THAT(sim.store->describe(), HasSubstr("O_DIRECT"));
  for (const bool at_open : {true, false}) {
    sim.close();
    sim.disk = std::make_unique<SimDisk>();
    (at_open ? sim.disk->refuses_direct_open : sim.disk->refuses_direct_transfer) = true;
    SetUp();
    EXPECT_THAT(sim.store->describe(), HasSubstr("page cache"));
    store_all(0, 9);
    for (std::uint64_t i = 0; i < 9; ++i) EXPECT_EQ(load(i), TierResult::kOk);
  }
}

TEST_F(DiskStore, GivesUpODirectInTheMiddle) {
  store_all(0, 5);
  sim.disk->refuses_direct_transfer = true;
  EXPECT_EQ(store(5), TierResult::kOk);
  for (std::uint64_t i = 0; i < 6; ++i) EXPECT_EQ(load(i), TierResult::kOk);
  EXPECT_THAT(sim.store->describe(), HasSubstr("page cache"));
}

TEST_F(DiskStore, AMisdirectedReadIsCorrupt) {
  store_all(0, 10);
  for (const std::int64_t shift : {-3 * kPiece, -kPiece, kPiece, 2 * kPiece}) {
    sim.disk->on_call = [&](const SimDisk::Call& call) {
      return SimDisk::Fault{.shift = std::string(call.name) == "readv" ? shift : 0};
    };
    const std::uint64_t number = 5 + std::uint64_t(shift / kPiece);
    EXPECT_EQ(load(number), TierResult::kCorrupt);
    sim.disk->on_call = nullptr;
    EXPECT_EQ(load(number), TierResult::kMiss);  // the verdict is not kept
  }
}

TEST_F(DiskStore, AMisdirectedWriteIsCorrupt) {
  store_all(0, 6);
  sim.disk->on_call = [&](const SimDisk::Call& call) {
    return SimDisk::Fault{.shift = std::string(call.name) == "writev" ? -8 * kPiece : 0};
  };
  EXPECT_EQ(store(6), TierResult::kOk);  // the disk says so
  sim.disk->on_call = nullptr;
  EXPECT_EQ(load(6), TierResult::kCorrupt);
  std::size_t right = 0;
  for (std::uint64_t i = 0; i < 6; ++i) right += load(i) == TierResult::kOk ? 1 : 0;
  EXPECT_LT(right, 6u);  // it lies over others
  EXPECT_GT(right, 0u);
}

TEST_F(DiskStore, AFlippedBitIsCorruptWhereverItIs) {
  store_all(0, 4);
  std::mt19937 random(9);
  const std::int64_t begin = kPiece;
  std::int64_t end = begin;
  for (std::uint64_t i = 0; i < 4; ++i) end += record_bytes(size_of(i));
  const std::vector<std::byte> good = segment_file().data;
  for (int round = 0; round < 300; ++round) {
    SimStore other = store_on(copy_of(*sim.disk));
    Waiter<SegmentStore> asks(*other.store);
    for (auto& [path, file] : other.disk->files) {
      if (path.find("segment-") == std::string::npos) continue;
      const auto at = std::size_t(begin) + random() % std::size_t(end - begin);
      file->data[at] ^= std::byte(1u << (random() % 8));
    }
    std::size_t wrong = 0;
    for (std::uint64_t i = 0; i < 4; ++i) wrong += asks.load(i) != TierResult::kOk ? 1 : 0;
    EXPECT_LE(wrong, 1u);  // 0: it is in what only fills a piece
  }
  EXPECT_EQ(segment_file().data, good);
}

TEST_F(DiskStore, TheScrubberFindsAFlippedBit) {
  sim.close();
  sim.options.scrub_bytes_per_s = 1 << 30;
  SetUp();
  store_all(0, 9);
  reopen();
  segment_file().data[std::size_t(kPiece) + 20] ^= std::byte{1};
  for (int i = 0; i < 1000 && sim.store->stats().corrupt == 0; ++i) {
    waiter->now_us += 1000;
    waiter->poll();
  }
  EXPECT_EQ(sim.store->stats().corrupt, 1u);
  EXPECT_EQ(sim.store->health().corrupt_unasked, 1u);
  EXPECT_FALSE(waiter->exists(0));
  EXPECT_EQ(load(1), TierResult::kOk);
}

TEST_F(DiskStore, TheScrubberKeepsItsRate) {
  sim.close();
  sim.options.scrub_bytes_per_s = 1 << 20;
  SetUp();
  store_all(0, 30);
  reopen();
  for (int i = 0; i < 1000; ++i) {  // a tenth of a second
    waiter->now_us += 100;
    waiter->poll();
  }
  EXPECT_GT(sim.store->stats().scrubbed_bytes, std::uint64_t{50} << 10);
  EXPECT_LT(sim.store->stats().scrubbed_bytes, std::uint64_t{200} << 10);
}

TEST_F(DiskStore, ASlowScrubberGoesOnUnderFrequentPolls) {
  sim.close();
  sim.options.scrub_bytes_per_s = 9'000;
  SetUp();
  store_all(0, 9);
  reopen();
  for (int i = 0; i < 40'000; ++i) {  // 4 seconds; each poll earns less than a byte
    waiter->now_us += 99;
    waiter->poll();
  }
  EXPECT_GT(sim.store->stats().scrubbed_bytes, 20'000u);
  EXPECT_LT(sim.store->stats().scrubbed_bytes, 80'000u);
}

// ---- crashes ----

// The last record of a segment is torn at each piece of 4 KiB.
TEST_F(DiskStore, ATornWriteCostsItsRecordOnly) {
  store_all(0, 8);
  const std::int64_t before = std::int64_t(segment_file().unsynced.size());
  store_all(8, 9);
  const std::int64_t after = std::int64_t(segment_file().unsynced.size());
  ASSERT_EQ(after - before, 6);
  for (std::int64_t whole = before; whole <= after; ++whole) {
    std::unique_ptr<SimDisk> disk = copy_of(*sim.disk);
    disk->crash([&](const std::string&, std::int64_t piece) { return piece < whole; });
    SimStore other = store_on(std::move(disk));
    Waiter<SegmentStore> asks(*other.store);
    for (std::uint64_t i = 0; i < 8; ++i) EXPECT_EQ(asks.load(i), TierResult::kOk);
    const Result last = asks.load(8);
    EXPECT_EQ(last, whole == after    ? TierResult::kOk
                    : whole == before ? TierResult::kMiss
                                      : TierResult::kCorrupt);
    EXPECT_EQ(asks.store(8), last == TierResult::kOk ? TierResult::kOk : TierResult::kOk);
    EXPECT_EQ(asks.load(8), TierResult::kOk);
  }
}

TEST_F(DiskStore, ASealedSegmentSurvivesTheLossOfAllThatWasNotSynced) {
  store_all(0, 25);
  reopen();
  const auto found = sim.store->stats().records;
  ASSERT_EQ(found, 25);
  std::unique_ptr<SimDisk> disk = copy_of(*sim.disk);
  disk->crash([](const std::string&, std::int64_t) { return false; });
  SimStore other = store_on(std::move(disk));
  Waiter<SegmentStore> asks(*other.store);
  for (std::uint64_t i = 0; i < 25; ++i) EXPECT_EQ(asks.load(i), TierResult::kOk) << i;
}

// Any part of what was not synced is there, in any order; also if the disk lies about syncing.
TEST_F(DiskStore, AnyPartOfTheUnsyncedWritesIsRightOrNotThere) {
  for (const bool lies : {false, true}) {
    sim.disk->on_call = [&](const SimDisk::Call& call) {
      return SimDisk::Fault{.lie = lies && std::string(call.name) == "sync"};
    };
    store_all(lies ? 60 : 0, lies ? 120 : 60);
    sim.disk->on_call = nullptr;
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
      std::mt19937_64 random(seed);
      std::unique_ptr<SimDisk> disk = copy_of(*sim.disk);
      const auto kept = 1 + random() % 20;
      disk->crash([&](const std::string&, std::int64_t) { return random() % 20 < kept; });
      SimStore other = store_on(std::move(disk));
      Waiter<SegmentStore> asks(*other.store);
      for (std::uint64_t i = 0; i < 120; ++i) asks.load(i);  // checks the bytes
      EXPECT_TRUE(other.store->check_invariants().ok());
      for (std::uint64_t i = 200; i < 210; ++i) EXPECT_EQ(asks.store(i), TierResult::kOk);
      for (std::uint64_t i = 200; i < 210; ++i) EXPECT_EQ(asks.load(i), TierResult::kOk);
    }
  }
}

TEST_F(DiskStore, AFooterWithoutItsDataIsCorrupt) {
  store_all(0, 9);
  reopen();
  auto& data = segment_file().data;
  std::fill(data.begin() + kPiece, data.begin() + kPiece + 3 * kPiece, std::byte{0});
  EXPECT_EQ(load(0), TierResult::kCorrupt);
  EXPECT_EQ(load(0), TierResult::kMiss);
  EXPECT_EQ(load(5), TierResult::kOk);
}

TEST_F(DiskStore, ADamagedFooterCostsNothing) {
  store_all(0, 9);
  sim.close();
  const auto size = segment_file().data.size();
  for (std::size_t i = 0; i < 50; ++i) {
    std::unique_ptr<SimDisk> disk = copy_of(*sim.disk);
    for (auto& [path, file] : disk->files) {
      if (path.find("segment-") == std::string::npos) continue;
      // In the entries, in the trailer, or cut off.
      if (i % 3 == 0) file->data[size - 2 * kPiece + i] ^= std::byte{16};
      if (i % 3 == 1) file->data[size - kPiece + i] ^= std::byte{16};
      if (i % 3 == 2) file->data.resize(size - 100 * i);
      file->durable = file->data;
    }
    SimStore other = store_on(std::move(disk));
    Waiter<SegmentStore> asks(*other.store);
    EXPECT_EQ(other.store->stats().recovered_by_footer, 0u);
    for (std::uint64_t record = 0; record < 9; ++record) {
      EXPECT_EQ(asks.load(record), TierResult::kOk) << record;
    }
  }
}

// Bytes that were right once lie where the next record would be: of another file, and of this one.
TEST_F(DiskStore, AStaleRecordIsNotTheNext) {
  store_all(0, 3);
  const auto used = std::size_t(kPiece + record_bytes(size_of(0)) + record_bytes(size_of(1)) +
                                record_bytes(size_of(2)));
  SimStore other;  // the same records, in another epoch
  ASSERT_TRUE(other.open().ok());
  Waiter<SegmentStore> asks(*other.store);
  for (std::uint64_t i = 0; i < 5; ++i) EXPECT_EQ(asks.store(i), TierResult::kOk);
  std::vector<std::byte> stale;
  for (auto& [path, file] : other.disk->files) {
    if (path.find("segment-") != std::string::npos) stale = file->data;
  }
  const auto size = std::size_t(record_bytes(size_of(3)));
  for (const bool of_other_file : {true, false}) {
    std::unique_ptr<SimDisk> disk = copy_of(*sim.disk);
    for (auto& [path, file] : disk->files) {
      if (path.find("segment-") == std::string::npos) continue;
      // From this file: its second record once more, so its sequence is there twice.
      const auto from = of_other_file ? stale.begin() + std::ptrdiff_t(used)
                                      : file->data.begin() + kPiece + record_bytes(size_of(0));
      const std::vector<std::byte> bytes(from, from + std::ptrdiff_t(size));
      std::copy(bytes.begin(), bytes.end(), file->data.begin() + std::ptrdiff_t(used));
    }
    SimStore third = store_on(std::move(disk));
    EXPECT_EQ(third.store->stats().recovered, 3u);
    Waiter<SegmentStore> third_asks(*third.store);
    for (std::uint64_t i = 0; i < 3; ++i) EXPECT_EQ(third_asks.load(i), TierResult::kOk);
    EXPECT_EQ(third_asks.load(3), TierResult::kMiss);
  }
}

// The header of a segment is not what its records hang on.
TEST_F(DiskStore, AFlippedBitInASegmentHeaderCostsNothing) {
  store_all(0, 9);
  std::unique_ptr<SimDisk> unsealed = copy_of(*sim.disk);
  sim.close();
  for (const bool sealed : {true, false}) {
    for (std::size_t byte = 0; byte < std::size_t{kRecordFieldsBytes}; byte += 5) {
      std::unique_ptr<SimDisk> disk = copy_of(sealed ? *sim.disk : *unsealed);
      disk->files.at(segment_path())->data[byte] ^= std::byte{8};
      SimStore other = store_on(std::move(disk));
      EXPECT_EQ(other.store->stats().recovered, 9u) << "byte " << byte;
      EXPECT_EQ(other.store->stats().recovered_by_footer, sealed ? 9u : 0u);
      Waiter<SegmentStore> asks(*other.store);
      for (std::uint64_t i = 0; i < 9; ++i) EXPECT_EQ(asks.load(i), TierResult::kOk) << i;
    }
  }
}

// Whichever read of open() fails, the file stays as it is, and the next open() finds all of it.
TEST_F(DiskStore, AReadThatFailsAtOpenRemovesNothing) {
  store_all(0, 9);
  std::unique_ptr<SimDisk> unsealed = copy_of(*sim.disk);
  sim.close();
  const std::string path = segment_path();
  for (const bool sealed : {true, false}) {
    for (const std::int64_t error : {-EIO, -ENOMEM, -EAGAIN}) {
      for (const std::int64_t spared : {-1, 0, 1, 2, 5}) {  // how many reads of it end well
        SimStore other;
        other.disk = copy_of(sealed ? *sim.disk : *unsealed);
        const std::vector<std::byte> before = other.disk->files.at(path)->data;
        std::int64_t reads = 0;
        other.disk->on_call = [&](const SimDisk::Call& call) {
          const bool is_read = call.path == path && std::string(call.name) == "readv";
          return SimDisk::Fault{.error = is_read && reads++ >= spared ? error : 0};
        };
        const Status status = other.open();
        ASSERT_TRUE(status.ok()) << status;
        EXPECT_TRUE(other.store->check_invariants().ok());
        EXPECT_GE(other.store->stats().bytes, std::int64_t(before.size()));
        other.close();
        other.disk->on_call = nullptr;
        ASSERT_EQ(other.disk->files.count(path), 1u);
        ASSERT_TRUE(other.open().ok());
        EXPECT_EQ(other.store->stats().recovered, 9u) << spared << " of " << sealed;
        Waiter<SegmentStore> asks(*other.store);
        for (std::uint64_t i = 0; i < 9; ++i) EXPECT_EQ(asks.load(i), TierResult::kOk) << i;
      }
    }
  }
}

// A bad place in the header of a sealed segment: the footer says as much.
TEST_F(DiskStore, AnUnreadableHeaderOfASealedSegmentCostsNothing) {
  store_all(0, 9);
  sim.close();
  const std::string path = segment_path();
  sim.disk->on_call = [&](const SimDisk::Call& call) {
    const bool bad = call.path == path && std::string(call.name) == "readv" && call.offset == 0;
    return SimDisk::Fault{.error = bad ? -EIO : 0};
  };
  SetUp();
  for (std::uint64_t i = 0; i < 9; ++i) EXPECT_EQ(load(i), TierResult::kOk) << i;
  EXPECT_EQ(sim.store->stats().io_errors, 1u);
}

TEST_F(DiskStore, AFileThatCannotBeReadIsEvictedLikeAnother) {
  store_all(0, 9);
  sim.close();
  const std::string path = segment_path();
  sim.disk->on_call = [&](const SimDisk::Call& call) {
    EXPECT_LE(sim.disk->bytes(), sim.options.bytes);
    const bool bad = call.path == path && std::string(call.name) == "readv";
    return SimDisk::Fault{.error = bad ? -EIO : 0};
  };
  SetUp();
  EXPECT_EQ(load(0), TierResult::kMiss);
  store_all(100, 300);
  EXPECT_EQ(sim.disk->files.count(path), 0u);
}

// ---- directories ----

TEST_F(DiskStore, ASecondWriterIsRefusedByName) {
  SimStore second;
  second.disk = std::move(sim.disk);
  const Status status = second.open();
  EXPECT_EQ(status.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("/d is in use by process " + std::to_string(getpid())));
  sim.disk = std::move(second.disk);
  EXPECT_EQ(store(1), TierResult::kOk);
}

TEST_F(DiskStore, ANewerVersionIsRefusedAndKept) {
  store_all(0, 3);
  sim.close();
  const auto before = *sim.disk->files.at(segment_path());
  auto& manifest = sim.disk->files.at("/d/manifest")->data;
  manifest[manifest.size() - 2] = std::byte{'3'};
  Status status = sim.open();
  EXPECT_EQ(status.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("version 3"));
  EXPECT_EQ(segment_file().data, before.data);
  manifest[manifest.size() - 2] = std::byte{'2'};

  std::array<std::byte, kPiece> piece{};
  encode(SegmentHeader{.number = 1, .epoch = 5}, piece);
  piece[4] = std::byte{3};
  const std::uint32_t crc = crc32c(std::span(piece).first(188));
  std::memcpy(piece.data() + 188, &crc, 4);
  std::copy(piece.begin(), piece.end(), segment_file().data.begin());
  status = sim.open();
  EXPECT_EQ(status.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("newer version"));
}

TEST_F(DiskStore, AMissingManifestIsWrittenAgain) {
  store_all(0, 3);
  sim.close();
  sim.disk->files.erase("/d/manifest");
  SetUp();
  EXPECT_EQ(load(1), TierResult::kOk);
  EXPECT_EQ(sim.disk->files.count("/d/manifest"), 1u);
}

TEST_F(DiskStore, ADamagedManifestIsRefusedUntilItIsRemoved) {
  store_all(0, 3);
  sim.close();
  sim.disk->files.at("/d/manifest")->data[3] ^= std::byte{1};
  const Status status = sim.open();
  EXPECT_EQ(status.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("remove this file"));
  sim.disk->files.erase("/d/manifest");
  SetUp();
  for (std::uint64_t i = 0; i < 3; ++i) EXPECT_EQ(load(i), TierResult::kOk) << i;
}

TEST_F(DiskStore, AForeignDirectoryIsRefused) {
  sim.close();
  sim.disk = std::make_unique<SimDisk>();
  sim.disk->files["/d/thesis.tex"] = std::make_shared<SimDisk::File>();
  const Status status = sim.open();
  EXPECT_EQ(status.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("thesis.tex"));
}

TEST_F(DiskStore, ADirectoryThatOthersMayWriteToIsRefused) {
  sim.close();
  sim.disk->directory_mode = 0775;
  Status status = sim.open();
  EXPECT_EQ(status.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("/d; chmod 700"));
  sim.disk->directory_mode = 0755;
  sim.disk->directory_user = ::geteuid() + 1;
  status = sim.open();
  EXPECT_EQ(status.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("belongs to user"));
  sim.disk->directory_user = ::geteuid();
  EXPECT_TRUE(sim.open().ok());
}

TEST_F(DiskStore, AReadOnlyFileSystemIsRefused) {
  sim.close();
  sim.disk->on_call = [](const SimDisk::Call& call) {
    return SimDisk::Fault{.error = std::string(call.name) == "readv" ? 0 : -EROFS};
  };
  const Status status = sim.open();
  EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("/d"));
  EXPECT_THAT(status.message(), HasSubstr("Read-only file system"));
}

TEST_F(DiskStore, FilesThatAreRemovedUnderItAreMisses) {
  store_all(0, 60);
  for (auto at = sim.disk->files.begin(); at != sim.disk->files.end();) {
    at = at->first.find("segment-") != std::string::npos ? sim.disk->files.erase(at) : ++at;
  }
  for (std::uint64_t i = 0; i < 60; ++i) load(i);
  for (std::uint64_t i = 100; i < 300; ++i) EXPECT_EQ(store(i), TierResult::kOk) << i;
  reopen();
  for (std::uint64_t i = 0; i < 300; ++i) load(i);
}

TEST_F(DiskStore, AFileThatBecomesShorterIsAnError) {
  store_all(0, 9);
  segment_file().data.resize(2 * kPiece);
  EXPECT_EQ(load(8), TierResult::kIoError);
  EXPECT_EQ(load(8), TierResult::kMiss);
}

TEST_F(DiskStore, ADirectoryThatGoesAwayTurnsTheTierOff) {
  store_all(0, 3);
  sim.disk->on_call = [](const SimDisk::Call& call) {
    return SimDisk::Fault{.error = std::string(call.name) == "open" ? -ENOENT : 0};
  };
  for (std::uint64_t i = 100; i < 400 && sim.store->health().usable; ++i) {
    store(i);
    waiter->now_us += 2'000'000;
  }
  EXPECT_FALSE(sim.store->health().usable);
}

// A file that cannot be removed takes its part of the budget, and others go in its place.
TEST_F(DiskStore, AFileThatCannotBeRemovedStaysInTheBudget) {
  store_all(0, 9);
  reopen();
  const std::string stuck = segment_path();
  bool fails = true;
  sim.disk->on_call = [&](const SimDisk::Call& call) {
    EXPECT_LE(sim.disk->bytes(), sim.options.bytes);
    const bool of_it = call.path == stuck && std::string(call.name) == "unlink";
    return SimDisk::Fault{.error = fails && of_it ? -EPERM : 0};
  };
  std::size_t kept = 0;
  for (std::uint64_t i = 100; i < 400; ++i) {
    kept += store(i) == TierResult::kOk ? 1 : 0;
    EXPECT_TRUE(sim.store->check_invariants().ok());
    EXPECT_GE(sim.store->stats().bytes, sim.disk->bytes() - kOtherBytes);
    waiter->now_us += 100'000;
  }
  EXPECT_GT(kept, 200u);
  EXPECT_GT(sim.store->stats().io_errors, 0u);
  EXPECT_EQ(sim.disk->files.count(stuck), 1u);
  EXPECT_TRUE(sim.store->health().usable);
  fails = false;
  waiter->now_us += 2'000'000;
  waiter->poll();
  waiter->settle();
  EXPECT_EQ(sim.disk->files.count(stuck), 0u);
}

// No file can be removed, as on a disk that has become read-only: not all that is there is given
// up.
TEST_F(DiskStore, AStoreThatCannotRemoveFilesTurnsOff) {
  store_all(0, 60);
  sim.disk->on_call = [&](const SimDisk::Call& call) {
    return SimDisk::Fault{.error = std::string(call.name) == "unlink" ? -EROFS : 0};
  };
  for (std::uint64_t i = 100; i < 400 && sim.store->health().usable; ++i) {
    store(i);
    waiter->now_us += 300'000;
  }
  EXPECT_FALSE(sim.store->health().usable);
  EXPECT_TRUE(sim.store->check_invariants().ok());
}

// Files that are open can be read for ever: what they answer does not say that stores go well.
TEST_F(DiskStore, LoadsThatSucceedDoNotHideThatStoresCannot) {
  store_all(0, 3);
  reopen();
  sim.disk->on_call = [](const SimDisk::Call& call) {
    return SimDisk::Fault{.error = std::string(call.name) == "open" ? -ENOENT : 0};
  };
  int failed = 0;
  for (; failed < 20 && sim.store->health().usable; ++failed) {
    EXPECT_EQ(load(1), TierResult::kOk);
    store(100 + std::uint64_t(failed));
    waiter->now_us += 2'000'000;
  }
  EXPECT_FALSE(sim.store->health().usable);
  EXPECT_GE(failed, 8);
}

// A store that succeeds now and then does: the tier stays.
TEST_F(DiskStore, AWrittenRecordEndsARowOfFailures) {
  bool fails = false;  // the next record that is written
  sim.disk->on_call = [&](const SimDisk::Call& call) {
    const bool record = call.offset > 0 && std::string(call.name) == "writev";
    return SimDisk::Fault{.error = record && std::exchange(fails, false) ? -EIO : 0};
  };
  for (std::uint64_t i = 0; i < 40; ++i) {
    fails = i % 4 != 0;
    EXPECT_EQ(store(i), i % 4 == 0 ? TierResult::kOk : TierResult::kIoError) << i;
    EXPECT_FALSE(fails);
    waiter->settle();
  }
  EXPECT_TRUE(sim.store->health().usable);
}

TEST(DiskStoreOptions, AreRefusedByName) {
  const struct {
    DiskTierOptions options;
    const char* text;
  } cases[] = {
      {{.directory = "", .bytes = 1 << 30}, "directory"},
      {{.directory = "/d", .bytes = 1000}, "bytes is 1000"},
      {{.directory = "/d", .bytes = 1 << 20, .segment_bytes = 1 << 20}, "one segment needs"},
      {{.directory = "/d", .bytes = 1 << 30, .segment_bytes = 100'000}, "no multiple of 4096"},
      {{.directory = "/d", .bytes = 1 << 30, .num_threads = 0}, "num_threads is 0"},
      {{.directory = "/d", .bytes = 1 << 30, .queue_depth = 5000}, "queue_depth is 5000"},
  };
  for (const auto& one : cases) {
    SimStore sim;
    sim.options = one.options;
    const Status status = sim.open();
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(one.text));
    EXPECT_TRUE(sim.disk->files.empty());
  }
}

// ---- anything, in any order ----

constexpr std::int64_t kForeignBytes = 5000;  // no size of ours

std::size_t foreign_files(const SimDisk& disk) {
  std::size_t count = 0;
  for (const auto& [path, file] : disk.files) {
    count += std::int64_t(file->data.size()) == kForeignBytes ? 1 : 0;
  }
  return count;
}

// What other programs do between two runs: they rename segments, and put files of their own there.
// Returns how many these are.
std::size_t change_files(SimDisk& disk, std::mt19937_64& random) {
  std::vector<std::string> segments;
  for (const auto& [path, file] : disk.files) {
    const bool is_ours = std::int64_t(file->data.size()) != kForeignBytes;
    if (is_ours && path.find("segment-") != std::string::npos) segments.push_back(path);
  }
  if (segments.size() >= 2 && random() % 3 == 0) {
    std::swap(disk.files.at(segments[random() % segments.size()]),
              disk.files.at(segments[random() % segments.size()]));
  }
  if (!segments.empty() && random() % 4 == 0) {
    auto one = disk.files.extract(segments[random() % segments.size()]);
    do {
      one.key() = "/d/" + segment_name(random());
    } while (disk.files.count(one.key()) > 0);
    disk.files.insert(std::move(one));
  }
  if (random() % 4 != 0) return 0;
  const auto foreign = std::make_shared<SimDisk::File>();
  foreign->data.resize(kForeignBytes, std::byte{'x'});
  foreign->durable = foreign->data;
  foreign->name_is_durable = true;
  const std::uint64_t number = random() % 2 == 0 ? random() % 60 : ~(random() % 3);
  return disk.files.emplace("/d/" + segment_name(number), foreign).second ? 1 : 0;
}

// Operations, faults, ends, crashes and what others do, drawn from a seed, against a set of what
// was ever stored. A key that was never stored is never found; one that was has the right bytes or
// is a miss.
class DiskStoreRandom : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(DiskStoreRandom, IsRightOrAMiss) {
  const char* text = std::getenv("KVFOLIO_SEED");
  const std::uint64_t seed = GetParam() + (text != nullptr ? std::strtoull(text, nullptr, 10) : 0);
  SCOPED_TRACE("KVFOLIO_SEED: seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  SimStore sim;
  sim.seed = seed;
  sim.options.bytes = std::int64_t(300 + random() % 500) << 10;
  ASSERT_TRUE(sim.open().ok());
  std::size_t foreigners = 0;
  std::set<std::uint64_t> stored;
  std::set<std::uint64_t> erased;  // kErase said kOk, and it was not stored again
  const bool faults = random() % 2 == 0;
  const bool goes_astray = faults && random() % 2 == 0;  // then nothing is for good
  const auto fault = [&](const SimDisk::Call& call) {
    SimDisk::Fault one;
    if (call.bytes > 0 && random() % 200 == 0) one.error = random() % 2 ? -EIO : -ENOSPC;
    if (call.bytes > kPiece && random() % 50 == 0)
      one.at_most = std::int64_t(random() % 20'000) + 1;
    if (goes_astray && call.bytes > 0 && random() % 300 == 0)
      one.shift = kPiece * (std::int64_t(random() % 9) - 4);
    if (call.offset + one.shift < 0) one.shift = 0;
    return one;
  };
  for (int life = 0; life < 10; ++life) {
    if (faults) sim.disk->on_call = fault;
    Waiter<SegmentStore> asks(*sim.store);
    // Some runs are short.
    const int steps = random() % 2 == 0 ? 300 : int(random() % 6);
    for (int step = 0; step < steps && sim.store->health().usable; ++step) {
      const std::uint64_t number = random() % 150;
      asks.now_us += random() % 10'000;
      switch (random() % 5) {
        case 0:
        case 1:
          erased.erase(number);
          if (asks.store(number, random() % 2 == 0) == TierResult::kOk) stored.insert(number);
          break;
        case 2:
        case 3:
          if (asks.load(number, random() % 2 == 0) == TierResult::kOk) {
            EXPECT_TRUE(goes_astray || stored.count(number) == 1);
            EXPECT_EQ(erased.count(number), 0u);
          }
          break;
        default:
          if (random() % 4 != 0) break;
          if (asks(TierOp::kErase, key_of(number), {}) == TierResult::kOk) erased.insert(number);
          EXPECT_FALSE(asks.exists(number));
      }
      if (step % 50 == 0) {
        const Status status = sim.store->check_invariants();
        ASSERT_TRUE(status.ok()) << status;
        EXPECT_LE(sim.disk->bytes() - std::int64_t(foreigners) * kForeignBytes, sim.options.bytes);
      }
    }
    sim.disk->on_call = nullptr;
    // The end of a life: in order, killed, or without power.
    std::unique_ptr<SimDisk> left = copy_of(*sim.disk);
    const auto end = random() % 3;
    if (end == 1) left->crash([&](const std::string&, std::int64_t) { return random() % 3 > 0; });
    sim.close();
    if (end != 0) sim.disk = std::move(left);
    foreigners += change_files(*sim.disk, random);
    sim.options.open_files_max = std::int32_t(random() % 4);
    const Status status = sim.open();
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(foreign_files(*sim.disk), foreigners);
    Waiter<SegmentStore> after(*sim.store);
    for (const std::uint64_t number : erased) {
      EXPECT_TRUE(goes_astray || !after.exists(number)) << "record " << number;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, DiskStoreRandom, ::testing::Range<std::uint64_t>(1, 41));

}  // namespace
}  // namespace kvfolio::disk
