// SPDX-License-Identifier: Apache-2.0
//
// Many runs over one directory: a run goes on in the last segment of the one before, however that
// ended; files are opened when they are needed; and what other programs put there counts for
// nothing.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "disk/jobs.h"
#include "disk/test_store.h"

namespace kvfolio::disk {
namespace {

using ::testing::HasSubstr;
using Result = std::optional<TierResult>;

std::size_t segments_on(const SimDisk& disk) {
  std::size_t count = 0;
  for (const auto& [path, file] : disk.files) {
    count += path.find("segment-") != std::string::npos ? 1 : 0;
  }
  return count;
}

// A sealed segment with these records, as a run left it that stored no more.
void write_segment(SimDisk& disk, int directory, std::uint64_t name, std::uint64_t number,
                   std::uint64_t first_record, std::uint64_t num_records,
                   std::uint64_t first_sequence) {
  CreateJob create;
  create.directory = directory;
  create.name = segment_name(name);
  create.header = {.number = number, .epoch = 1000 + name};
  create.bytes = 128 << 10;
  run_job(create, disk);
  ASSERT_EQ(create.result, 0);
  SealJob seal;
  seal.place = {create.file, kPiece, true};
  seal.directory = directory;
  seal.epoch = create.header.epoch;
  for (std::uint64_t i = 0; i < num_records; ++i) {
    const std::uint64_t record = first_record + i;
    const ItemMemory memory(size_of(record), true);
    const std::vector<std::byte> bytes = bytes_of(record);
    std::copy(bytes.begin(), bytes.end(), memory.data());
    StoreJob store;
    store.place = seal.place;
    store.header = {.epoch = seal.epoch,
                    .sequence = first_sequence + i,
                    .key = key_of(record),
                    .data_bytes = size_of(record)};
    store.data = memory.data();
    run_job(store, disk);
    ASSERT_EQ(store.result, 0);
    seal.entries.push_back({.key = store.header.key,
                            .sequence = store.header.sequence,
                            .offset = store.place.offset,
                            .data_bytes = store.header.data_bytes});
    seal.place.offset += record_bytes(size_of(record));
  }
  run_job(seal, disk);
  ASSERT_EQ(seal.result, 0);
  disk.close(create.file);
}

class DiskRuns : public SimStoreTest {
 protected:
  void reopen() {
    sim.close();
    SetUp();
  }
  Result load(std::uint64_t number) { return waiter->load(number); }
  // Segments of earlier runs, of one record each, numbered from 1.
  void make_small_segments(std::uint64_t count) {
    sim.close();
    const int directory = sim.disk->open_directory("/d");
    for (std::uint64_t i = 0; i < count; ++i) {
      write_segment(*sim.disk, directory, i + 1, i + 1, i, 1, i + 1);
    }
    sim.disk->close(directory);
  }
};

// ---- short runs ----

// Each run stores one record, and ends in order, is killed, or has its last segment without a
// footer.
TEST_F(DiskRuns, ThousandsOfShortRunsLeaveFewSegmentsAndLoseNothing) {
  sim.close();
  sim.options.bytes = 64 << 20;
  sim.options.segment_bytes = 256 << 10;
  sim.disk->descriptors_max = 24;
  std::mt19937_64 random(3);
  constexpr std::uint64_t kRuns = 1500;
  for (std::uint64_t run = 0; run < kRuns; ++run) {
    SetUp();
    ASSERT_EQ(waiter->store(run), TierResult::kOk) << "run " << run;
    ASSERT_EQ(load(random() % (run + 1)), TierResult::kOk) << "run " << run;
    if (run % 100 == 0) {
      const Status status = sim.store->check_invariants();
      ASSERT_TRUE(status.ok()) << status;
    }
    if (random() % 20 == 0) {
      std::unique_ptr<SimDisk> left = copy_of(*sim.disk);
      sim.close();
      sim.disk = std::move(left);
      sim.disk->descriptors_max = 24;
    } else {
      sim.close();
    }
  }
  SetUp();
  for (std::uint64_t i = 0; i < kRuns; ++i) ASSERT_EQ(load(i), TierResult::kOk) << i;
  std::int64_t bytes = 0;
  for (std::uint64_t i = 0; i < kRuns; ++i) bytes += record_bytes(size_of(i));
  // As many as one run would have left, and one more.
  EXPECT_LE(sim.store->stats().segments, bytes / ((256 << 10) * 8 / 10) + 2);
}

TEST_F(DiskRuns, ARunThatStoresNothingWritesNothing) {
  store_all(0, 9);
  reopen();
  for (std::uint64_t i = 0; i < 9; ++i) EXPECT_EQ(load(i), TierResult::kOk);
  int writes = 0;
  sim.disk->on_call = [&](const SimDisk::Call& call) {
    writes += std::string(call.name) == "writev" || std::string(call.name) == "truncate" ? 1 : 0;
    return SimDisk::Fault{};
  };
  sim.close();
  EXPECT_EQ(writes, 0);
  sim.disk->on_call = nullptr;
  SetUp();
}

// A crash before each call of the system that the second run makes until its first record is
// written, and until it has ended: killed, and with any part of what was not synced.
TEST_F(DiskRuns, ACrashWhileARunGoesOnInASegmentLosesNoRecordOfIt) {
  for (const bool erased : {false, true}) {
    SCOPED_TRACE(erased);
    const std::uint64_t base = erased ? 100 : 0;
    sim.close();
    sim.disk = std::make_unique<SimDisk>();
    sim.options.segment_bytes = 256 << 10;
    SetUp();
    store_all(base, base + 12);
    reopen();
    if (erased) {  // in the middle, and the last
      for (const std::uint64_t i : {5u, 11u}) {
        ASSERT_EQ((*waiter)(TierOp::kErase, key_of(base + i), {}), TierResult::kOk);
      }
      reopen();
    }
    std::vector<std::unique_ptr<SimDisk>> moments;
    sim.disk->on_call = [&](const SimDisk::Call&) {
      moments.push_back(copy_of(*sim.disk));
      return SimDisk::Fault{};
    };
    store_all(base + 12, base + 15);
    sim.close();
    sim.disk->on_call = nullptr;
    SetUp();
    EXPECT_EQ(sim.store->stats().segments, 1);
    ASSERT_GE(moments.size(), 12u);
    for (std::size_t at = 0; at < moments.size(); ++at) {
      for (std::uint64_t seed = 0; seed < 10; ++seed) {
        SimStore other;
        other.disk = copy_of(*moments[at]);
        std::mt19937_64 random(seed);
        if (seed > 0) {
          other.disk->crash([&](const std::string&, std::int64_t) { return random() % seed == 0; });
        }
        ASSERT_TRUE(other.open().ok());
        Waiter<SegmentStore> asks(*other.store);
        for (std::uint64_t i = 0; i < 12; ++i) {
          const bool is_gone = erased && (i == 5 || i == 11);
          ASSERT_EQ(asks.load(base + i), is_gone ? TierResult::kMiss : TierResult::kOk)
              << "record " << i << " before call " << at << ", seed " << seed;
        }
        for (std::uint64_t i = 12; i < 15; ++i) asks.load(base + i);  // checks the bytes
        // And on from there.
        ASSERT_EQ(asks.store(base + 50), TierResult::kOk);
        ASSERT_TRUE(other.store->check_invariants().ok());
        other.close();
        ASSERT_TRUE(other.open().ok());
        Waiter<SegmentStore> again(*other.store);
        ASSERT_EQ(again.load(base + 50), TierResult::kOk);
        ASSERT_EQ(again.load(base + 4), TierResult::kOk);
      }
    }
  }
}

// Its records would be lost by a crash: their headers are what leads to them then.
TEST_F(DiskRuns, ASegmentWithADamagedHeaderIsNotGoneOnIn) {
  store_all(0, 9);
  sim.close();
  for (auto& [path, file] : sim.disk->files) {
    if (path.find("segment-") == std::string::npos) continue;
    const std::int64_t second = kPiece + record_bytes(size_of(0));
    file->data[std::size_t(second) + 30] ^= std::byte{4};
  }
  SetUp();
  store_all(20, 22);
  EXPECT_EQ(segments_on(*sim.disk), 2u);
  std::unique_ptr<SimDisk> killed = copy_of(*sim.disk);
  SimStore other;
  other.disk = std::move(killed);
  ASSERT_TRUE(other.open().ok());
  Waiter<SegmentStore> asks(*other.store);
  for (std::uint64_t i = 2; i < 9; ++i) EXPECT_EQ(asks.load(i), TierResult::kOk);
  EXPECT_EQ(asks.load(20), TierResult::kOk);
}

// Whichever call fails while a run goes on, its records stay, and stores go on later.
TEST_F(DiskRuns, AnErrorWhileARunGoesOnLosesNothing) {
  store_all(0, 9);
  sim.close();
  for (const std::int64_t error : {-EIO, -ENOSPC, -EFBIG, -EMFILE}) {
    for (int spared = 0; spared < 8; ++spared) {
      SimStore other;
      other.disk = copy_of(*sim.disk);
      ASSERT_TRUE(other.open().ok());
      Waiter<SegmentStore> asks(*other.store);
      int calls = 0;
      other.disk->on_call = [&](const SimDisk::Call&) {
        return SimDisk::Fault{.error = calls++ == spared ? error : 0};
      };
      asks.store(20);
      asks.settle();
      other.disk->on_call = nullptr;
      asks.now_us += 2'000'000;
      asks.poll();
      EXPECT_EQ(asks.store(21), TierResult::kOk) << spared << " " << error;
      ASSERT_TRUE(other.store->check_invariants().ok());
      for (const bool reopened : {false, true}) {
        if (reopened) {
          other.close();
          ASSERT_TRUE(other.open().ok());
        }
        Waiter<SegmentStore> then(*other.store);
        // On a full disk the oldest segment goes, and there is no other.
        for (std::uint64_t i = 0; i < 9 && error != -ENOSPC; ++i) {
          EXPECT_EQ(then.load(i), TierResult::kOk) << i << ": " << spared << " " << error;
        }
        EXPECT_EQ(then.load(21), TierResult::kOk);
      }
    }
  }
  SetUp();
}

// ---- descriptors ----

TEST_F(DiskRuns, ManySmallSegmentsOfEarlierRunsOpenWithFewDescriptors) {
  make_small_segments(1200);
  sim.options.bytes = 64 << 20;
  sim.options.open_files_max = 16;
  sim.disk->descriptors_max = 32;
  sim.disk->descriptors_most = 0;
  SetUp();
  EXPECT_LE(sim.store->open_files(), 16);
  std::mt19937_64 random(8);
  for (int i = 0; i < 2000; ++i) {
    const std::uint64_t number = random() % 1200;
    ASSERT_EQ(load(number), TierResult::kOk) << number;
    if (i % 10 == 0) {
      ASSERT_EQ(waiter->store(2000 + std::uint64_t(i)), TierResult::kOk);
    }
  }
  EXPECT_LE(sim.disk->descriptors_most, 32u);
  EXPECT_EQ(sim.store->stats().io_errors, 0u);
  EXPECT_EQ((*waiter)(TierOp::kErase, key_of(3), {}), TierResult::kOk);
  reopen();
  EXPECT_EQ(load(3), TierResult::kMiss);
  EXPECT_EQ(load(4), TierResult::kOk);
}

// The limit was lowered, or the host has taken all that there were.
TEST_F(DiskRuns, WhereDescriptorsRunOutThoseThatAreOpenMakeRoom) {
  make_small_segments(100);
  sim.options.bytes = 64 << 20;
  SetUp();
  sim.disk->descriptors_max = 60;  // of more than a hundred that are open
  for (std::uint64_t i = 0; i < 100; ++i) ASSERT_EQ(load(i), TierResult::kOk) << i;
  for (std::uint64_t i = 200; i < 400; ++i) ASSERT_EQ(waiter->store(i), TierResult::kOk) << i;
  for (std::uint64_t i = 0; i < 100; ++i) ASSERT_EQ(load(i), TierResult::kOk) << i;
  EXPECT_EQ(sim.store->stats().io_errors, 0u);
  EXPECT_TRUE(sim.store->health().usable);
  EXPECT_LE(sim.store->open_files(), 60);
}

// Not one is left: an item is busy, and its record stays.
TEST_F(DiskRuns, WithoutAnyDescriptorARecordIsBusyAndStays) {
  make_small_segments(40);
  sim.options.bytes = 64 << 20;
  sim.options.open_files_max = 1;
  SetUp();
  sim.disk->on_call = [](const SimDisk::Call& call) {
    return SimDisk::Fault{.error = std::string(call.name) == "open" ? -EMFILE : 0};
  };
  for (std::uint64_t i = 0; i < 30; ++i) EXPECT_EQ(load(i), TierResult::kBusy);
  EXPECT_EQ(waiter->store(100), TierResult::kBusy);
  sim.disk->on_call = nullptr;
  for (std::uint64_t i = 0; i < 40; ++i) EXPECT_EQ(load(i), TierResult::kOk) << i;
  waiter->now_us += 2'000'000;
  waiter->poll();
  EXPECT_EQ(waiter->store(100), TierResult::kOk);
  EXPECT_TRUE(sim.store->health().usable);
}

// Someone has put another file in the place of one that was closed: nothing is read from it, and
// nothing written to it.
TEST_F(DiskRuns, AClosedFileIsOnlyOpenedIfItIsTheSame) {
  make_small_segments(10);
  sim.options.open_files_max = 1;
  SetUp();
  const std::string first = "/d/" + segment_name(1);
  auto other = std::make_shared<SimDisk::File>(*sim.disk->files.at("/d/" + segment_name(2)));
  sim.disk->files[first] = other;
  const std::vector<std::byte> before = other->data;
  EXPECT_EQ(load(0), TierResult::kMiss);
  EXPECT_EQ((*waiter)(TierOp::kErase, key_of(0), {}), TierResult::kOk);  // with its file
  waiter->settle();
  ASSERT_EQ(sim.disk->files.count(first), 1u);
  EXPECT_EQ(other->data, before);
  EXPECT_EQ(load(1), TierResult::kOk);
}

TEST_F(DiskRuns, SmallSegmentsGoWithTheBudget) {
  make_small_segments(300);
  sim.options.bytes = 2 << 20;
  SetUp();
  EXPECT_LE(sim.disk->bytes(), sim.options.bytes);
  for (std::uint64_t i = 1000; i < 1200; ++i) {
    EXPECT_EQ(waiter->store(i), TierResult::kOk);
    EXPECT_LE(sim.disk->bytes(), sim.options.bytes);
  }
  for (std::uint64_t i = 1190; i < 1200; ++i) EXPECT_EQ(load(i), TierResult::kOk);
}

// ---- names ----

TEST_F(DiskRuns, AFileOfAnotherUnderTheHighestNumberCountsForNothing) {
  for (const std::string& text : {std::string("notes"), std::string(8192, 'x')}) {
    sim.close();
    auto file = std::make_shared<SimDisk::File>();
    for (const char c : text) file->data.push_back(std::byte(c));
    const std::string path = "/d/" + segment_name(~std::uint64_t{0});
    sim.disk->files[path] = file;
    SetUp();
    for (std::uint64_t i = 0; i < 200; ++i) ASSERT_EQ(waiter->store(i), TierResult::kOk) << i;
    EXPECT_EQ(sim.store->stats().io_errors, 0u);
    EXPECT_EQ(sim.disk->files.at(path), file);
    EXPECT_EQ(file->data.size(), text.size());
  }
}

TEST_F(DiskRuns, NamesThatOthersHaveTakenAreLeftOut) {
  sim.close();
  const auto file = std::make_shared<SimDisk::File>();
  file->data.resize(100, std::byte{'x'});
  for (std::uint64_t i = 1; i < 40; ++i) sim.disk->files["/d/" + segment_name(i)] = file;
  SetUp();
  for (std::uint64_t i = 0; i < 100; ++i) ASSERT_EQ(waiter->store(i), TierResult::kOk) << i;
  EXPECT_EQ(sim.store->stats().io_errors, 0u);
  for (std::uint64_t i = 1; i < 40; ++i) {
    EXPECT_EQ(sim.disk->files.at("/d/" + segment_name(i)), file);
  }
}

// One of ours has it: there is no number for another.
TEST_F(DiskRuns, AFullSpaceOfNumbersIsAnError) {
  sim.close();
  const int directory = sim.disk->open_directory("/d");
  write_segment(*sim.disk, directory, ~std::uint64_t{0}, ~std::uint64_t{0}, 0, 1, 1);
  sim.disk->close(directory);
  const Status status = sim.open();
  EXPECT_EQ(status.code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("/d/segment-ffffffffffffffff"));
  EXPECT_EQ(segments_on(*sim.disk), 1u);
  // While it is open, it is an error of each store.
  sim.disk->files.clear();
  sim.disk->make_directory("/d");
  const int again = sim.disk->open_directory("/d");
  write_segment(*sim.disk, again, 5, ~std::uint64_t{0} - 1, 0, 20, 1);
  sim.disk->close(again);
  sim.options.bytes = 64 << 20;
  SetUp();
  std::size_t kept = 0;
  for (std::uint64_t i = 100; i < 200; ++i) kept += waiter->store(i) == TierResult::kOk ? 1 : 0;
  EXPECT_GT(kept, 0u);  // the last number
  EXPECT_LT(kept, 100u);
  EXPECT_EQ(load(1), TierResult::kOk);
}

// The name is no more than a name.
TEST_F(DiskRuns, ARenamedOrSwappedSegmentIsUsedAndNeverDeleted) {
  for (const bool sealed : {true, false}) {
    sim.close();
    sim.disk = std::make_unique<SimDisk>();
    sim.options.bytes = 64 << 20;
    SetUp();
    store_all(0, 60);
    std::unique_ptr<SimDisk> left = copy_of(*sim.disk);
    sim.close();
    if (!sealed) sim.disk = std::move(left);
    auto& files = sim.disk->files;
    ASSERT_GE(segments_on(*sim.disk), 4u);
    const auto name = [](std::uint64_t number) { return "/d/" + segment_name(number); };
    std::swap(files.at(name(1)), files.at(name(2)));
    files[name(0xf00d)] = files.extract(name(3)).mapped();
    auto last = files.extract(name(4));
    last.key() = name(~std::uint64_t{0});
    files.insert(std::move(last));
    for (int life = 0; life < 3; ++life) {
      if (life > 0) sim.close();
      SetUp();
      for (std::uint64_t i = 0; i < 60; ++i) ASSERT_EQ(load(i), TierResult::kOk) << i;
      ASSERT_EQ(waiter->store(100 + std::uint64_t(life)), TierResult::kOk);
      ASSERT_TRUE(sim.store->check_invariants().ok());
    }
  }
}

// A copy of a segment, as a restored backup leaves it: an erase takes both.
TEST_F(DiskRuns, ACopyOfASegmentIsErasedWithIt) {
  store_all(0, 9);
  sim.close();
  auto& files = sim.disk->files;
  files["/d/" + segment_name(30)] =
      std::make_shared<SimDisk::File>(*files.at("/d/" + segment_name(1)));
  SetUp();
  EXPECT_EQ(sim.store->stats().segments, 2);
  for (std::uint64_t i = 0; i < 9; ++i) EXPECT_EQ(load(i), TierResult::kOk);
  EXPECT_EQ((*waiter)(TierOp::kErase, key_of(4), {}), TierResult::kOk);
  reopen();
  EXPECT_EQ(load(4), TierResult::kMiss);
  EXPECT_EQ(load(5), TierResult::kOk);
}

}  // namespace
}  // namespace kvfolio::disk
