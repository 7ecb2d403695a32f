// SPDX-License-Identifier: Apache-2.0
//
// A process that stores, loads and erases is killed at any moment, again and again on the same
// directory. After each death another one finds no wrong byte, and every record of every sealed
// segment that was not erased, and none that was. KVFOLIO_KILLS: how often, both engines together
// (default 20). KVFOLIO_SEED.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "disk/test_store.h"

namespace kvfolio::disk {
namespace {

constexpr std::uint64_t kNumbersMax = 1 << 20;
constexpr std::uint64_t kNear = 20;

constexpr std::uint8_t kBegun = 1, kEnded = 2;

// What the victim says before it dies, in memory that it shares with us.
struct Said {
  std::atomic<std::uint64_t> stored;  // numbers below this one were begun
  std::atomic<std::uint64_t> stores_ended, erases_ended;
  std::atomic<bool> wrong;
  std::atomic<std::uint8_t> kept[kNumbersMax];  // the tier said that it has this record
  std::atomic<std::uint8_t>
      erased[kNumbersMax];  // kBegun: it was asked to erase it; kEnded: it did
};

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

class Victim {
 public:
  Victim(SegmentStore& store, Said& said, std::uint64_t seed)
      : store_(store), said_(said), random_(seed) {
    for (int i = 0; i < 12; ++i) memory_.emplace_back(5 * kPiece + 192, true);
    busy_.resize(memory_.size());
  }
  [[noreturn]] void live() {
    std::vector<TierDone> done(16);
    for (;;) {
      for (std::size_t slot = 0; slot < memory_.size(); ++slot) {
        if (!busy_[slot].begun) begin(slot);
      }
      done.resize(16);
      done.resize(store_.poll(++now_us_, done));
      for (const TierDone& one : done) end(one);
      if (done.empty()) ::usleep(20);
    }
  }

 private:
  struct Busy {
    bool begun = false;
    TierOp op = TierOp::kStore;
    std::uint64_t number = 0;
  };

  void begin(std::size_t slot) {
    Busy& busy = busy_[slot];
    const std::uint64_t next = said_.stored;
    const auto drawn = random_() % 8;
    const bool stores = (next == 0 || drawn >= 3) && next < kNumbersMax;
    busy.op = stores ? TierOp::kStore : drawn == 2 ? TierOp::kErase : TierOp::kLoad;
    busy.number = stores ? next : random_() % next;
    // Often one of the last, which are on their way.
    if (!stores && random_() % 2 == 0) busy.number = next - 1 - random_() % std::min(next, kNear);
    if (busy.op == TierOp::kErase) said_.erased[busy.number] |= kBegun;
    if (stores) {
      const std::vector<std::byte> bytes = bytes_of(busy.number);
      std::copy(bytes.begin(), bytes.end(), memory_[slot].data());
      said_.stored = next + 1;
    }
    const TierItem item{key_of(busy.number), memory_[slot].data(), size_of(busy.number), slot};
    busy.begun = store_.submit(busy.op, std::span(&item, 1), {kLater}) == 1;
  }
  void end(const TierDone& done) {
    Busy& busy = busy_[done.tag];
    busy.begun = false;
    if (done.result != TierResult::kOk) return;
    if (busy.op == TierOp::kStore) {
      said_.kept[busy.number] = 1;
      ++said_.stores_ended;
    }
    if (busy.op == TierOp::kErase) {
      said_.erased[busy.number] |= kEnded;
      ++said_.erases_ended;
    }
    if (busy.op != TierOp::kLoad) return;
    const std::vector<std::byte> bytes = bytes_of(busy.number);
    if (!std::equal(bytes.begin(), bytes.end(), memory_[done.tag].data())) said_.wrong = true;
  }

  SegmentStore& store_;
  Said& said_;
  std::mt19937_64 random_;
  std::vector<ItemMemory> memory_;
  std::vector<Busy> busy_;
  std::uint64_t now_us_ = 0;
};

// What a directory has before anybody opens it.
struct Remains {
  std::set<std::uint64_t> sealed;  // records of sealed segments
  // The first and the last record that is found in each segment. Segments are filled one behind the
  // other, in the order of the numbers.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  bool all_sealed = true;

  // Whether record i, which was kept, has to be there. In a segment that is not sealed what lies
  // behind a record that is not whole is lost, and a later segment may be sealed: while the write
  // of that record waited, the next segment was filled.
  [[nodiscard]] bool has_to_have(std::uint64_t i) const {
    if (sealed.empty() || i > *sealed.rbegin()) return false;
    return all_sealed || std::any_of(ranges.begin(), ranges.end(), [i](const auto& range) {
             return range.first <= i && i <= range.second;
           });
  }
};

Remains remains_of(const std::string& path, std::uint64_t numbers) {
  std::map<std::vector<std::byte>, std::uint64_t> names;
  for (std::uint64_t i = 0; i < numbers; ++i) {
    const TierKey key = key_of(i);
    names[{key.bytes.begin(), key.bytes.end()}] = i;
  }
  const Result<Directory> directory = Directory::open(system_calls(), path, Directory::Use::kCheck);
  if (!directory) return {};  // killed before it was made
  Remains remains;
  const auto take = [&](FoundSegment& segment) {
    std::set<std::uint64_t> here;
    for (const FooterEntry& entry : segment.entries) {
      const auto name = names.find({entry.key.bytes.begin(), entry.key.bytes.end()});
      EXPECT_NE(name, names.end()) << "a record that was never stored";
      if (name == names.end()) continue;
      here.insert(name->second);
      if (segment.sealed && !entry.erased) remains.sealed.insert(name->second);
    }
    if (!here.empty()) remains.ranges.emplace_back(*here.begin(), *here.rbegin());
    remains.all_sealed = remains.all_sealed && segment.sealed;
    return Status();
  };
  const Status status = find_segments(system_calls(), *directory, {}, take,
                                      [](std::string_view, std::string_view) {});
  EXPECT_TRUE(status.ok()) << status;
  return remains;
}

struct Kills {
  DiskTierOptions options{};
  bool evicts = false;  // the budget is small
  Said* said = nullptr;
  std::uint64_t found = 0, corrupt = 0, erased = 0;

  Status kill_one(std::mt19937_64& random) {
    const auto seed = random();
    const auto wait_us = static_cast<unsigned>(1000 + random() % 25'000);
    const auto moment = random() % 4;
    const auto& awaited = moment == 1 ? said->erases_ended : said->stores_ended;
    const std::uint64_t before = awaited;
    const ::pid_t child = ::fork();
    if (child == 0) {
      auto store = open_store(system_calls(), options);
      if (!store) ::_exit(1);
      Victim(**store, *said, seed).live();
    }
    // Three of four have stored or erased something by then, however busy the machine is.
    if (moment != 0) {
      for (int i = 0; i < 10'000 && awaited == before; ++i) ::usleep(1000);
    }
    ::usleep(wait_us);
    ::kill(child, SIGKILL);
    int result = 0;
    ::waitpid(child, &result, 0);
    if (!WIFSIGNALED(result)) return Status(ErrorCode::kAborted, "the victim could not open it");
    return {};
  }

  void verify() {
    EXPECT_FALSE(said->wrong) << "the victim loaded wrong bytes";
    const std::uint64_t numbers = said->stored;
    const Remains remains = remains_of(std::string(options.directory), numbers);
    auto store = open_store(system_calls(), options);
    ASSERT_TRUE(store) << store.error();
    Waiter<SegmentStore> asks(**store);
    for (std::uint64_t i = 0; i < numbers; ++i) {
      const auto result = asks.load(i);  // checks the bytes
      found += result == TierResult::kOk ? 1 : 0;
      corrupt += result == TierResult::kCorrupt ? 1 : 0;
      if (remains.sealed.count(i) == 1) {
        EXPECT_EQ(result, TierResult::kOk) << "sealed record " << i;
      }
      const std::uint8_t was_erased = said->erased[i];
      if (!evicts && said->kept[i] != 0 && was_erased == 0 && remains.has_to_have(i)) {
        EXPECT_EQ(result, TierResult::kOk) << "kept record " << i;
      }
      if ((was_erased & kEnded) != 0) {
        ++erased;
        EXPECT_EQ(result, TierResult::kMiss) << "erased record " << i;
      } else if (was_erased != 0 && said->kept[i] != 0) {
        EXPECT_NE(result, TierResult::kCorrupt) << "half erased record " << i;
      }
    }
    const Status status = (*store)->check_invariants();
    EXPECT_TRUE(status.ok()) << status;
  }
};

class DiskKill : public ::testing::TestWithParam<DiskEngine> {};

TEST_P(DiskKill, LeavesNoWrongByteAndEverySealedRecord) {
  const std::uint64_t kills = from_environment("KVFOLIO_KILLS", 20) / 2;
  const std::uint64_t seed = from_environment("KVFOLIO_SEED", 1);
  std::mt19937_64 random(seed);
  void* shared =
      ::mmap(nullptr, sizeof(Said), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  Kills all{.said = static_cast<Said*>(shared)};
  for (std::uint64_t done = 0; done < kills && !::testing::Test::HasFailure();) {
    std::string pattern = ::testing::TempDir() + "kvfolio-kill-XXXXXX";
    const std::string parent = ::mkdtemp(pattern.data());
    const std::string path = parent + "/tier";
    std::memset(shared, 0, sizeof(Said));
    all.evicts = random() % 2 == 0;
    all.options = {.directory = path,
                   .bytes = all.evicts ? 1 << 20 : 1 << 28,
                   .segment_bytes = 128 << 10,
                   .engine = GetParam()};
    if (auto first = open_store(system_calls(), all.options); !first) {
      std::filesystem::remove_all(parent);
      ASSERT_EQ(first.error().code(), ErrorCode::kUnsupported) << first.error();
      GTEST_SKIP() << first.error();
    }
    for (int i = 0; i < 5 && done < kills; ++i, ++done) {
      SCOPED_TRACE("KVFOLIO_SEED=" + std::to_string(seed) + ", kill " + std::to_string(done));
      const Status status = all.kill_one(random);
      ASSERT_TRUE(status.ok()) << status;
      all.verify();
    }
    std::filesystem::remove_all(parent);
  }
  std::printf("[kill] seed %llu, %llu kills, %llu records found, %llu cut off, %llu erased\n",
              static_cast<unsigned long long>(seed), static_cast<unsigned long long>(kills),
              static_cast<unsigned long long>(all.found),
              static_cast<unsigned long long>(all.corrupt),
              static_cast<unsigned long long>(all.erased));
  EXPECT_GT(all.found, 0u);
  EXPECT_GT(all.erased, 0u);
  ::munmap(shared, sizeof(Said));
}

INSTANTIATE_TEST_SUITE_P(Engines, DiskKill,
                         ::testing::Values(DiskEngine::kThreads, DiskEngine::kIoUring),
                         [](const auto& info) {
                           return info.param == DiskEngine::kThreads ? "Threads" : "IoUring";
                         });

}  // namespace
}  // namespace kvfolio::disk
