// SPDX-License-Identifier: Apache-2.0
//
// The disk tier on a real file system, with each of its engines.

#include "kvfolio/disk_tier.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <thread>

#include "disk/test_store.h"

namespace kvfolio {
namespace {

using disk::bytes_of;
using disk::ItemMemory;
using disk::key_of;
using disk::kLater;
using disk::size_of;
using ::testing::HasSubstr;

class TestDirectory {
 public:
  TestDirectory() {
    std::string pattern = ::testing::TempDir() + "kvfolio-disk-XXXXXX";
    path_ = std::string(::mkdtemp(pattern.data())) + "/tier";
  }
  ~TestDirectory() {
    std::error_code error;
    std::filesystem::remove_all(std::filesystem::path(path_).parent_path(), error);
  }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::vector<std::filesystem::path> segments() const {
    std::vector<std::filesystem::path> found;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      if (entry.path().filename().string().starts_with("segment-")) found.push_back(entry.path());
    }
    std::sort(found.begin(), found.end());
    return found;
  }
  [[nodiscard]] std::int64_t bytes() const {
    std::int64_t sum = 0;
    std::error_code error;  // a file may go while we look
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      const auto size = entry.file_size(error);
      if (!error) sum += std::int64_t(size);
    }
    return sum;
  }

 private:
  std::string path_;
};

// What each file has, and when it was changed last; of what is no file nothing.
using Contents = std::map<std::string, std::pair<std::string, std::int64_t>>;

Contents contents_of(const std::string& path) {
  Contents contents;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    struct stat about {};
    ::lstat(entry.path().c_str(), &about);
    std::string text;
    if (S_ISREG(about.st_mode)) {
      std::ifstream file(entry.path(), std::ios::binary);
      text.assign(std::istreambuf_iterator<char>(file), {});
    }
    contents[entry.path().filename().string()] = {
        std::move(text), about.st_mtim.tv_sec * 1'000'000'000 + about.st_mtim.tv_nsec};
  }
  return contents;
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

void flip_byte(const std::filesystem::path& path, std::int64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const int byte = file.get();
  file.seekp(at);
  file.put(char(byte ^ 1));
}

class DiskTierEngine : public ::testing::TestWithParam<DiskEngine> {
 protected:
  void SetUp() override {
    options.directory = directory.path();
    options.engine = GetParam();
    open();
    if (tier == nullptr) GTEST_SKIP() << status;
  }
  void open() {
    waiter.reset();
    tier.reset();
    Result<std::unique_ptr<DiskTier>> opened = DiskTier::open(options);
    status = opened ? Status() : opened.error();
    // Where a system has no io_uring for us there is nothing to test. Anything else is a failure.
    if (!opened) {
      ASSERT_EQ(status.code(), ErrorCode::kUnsupported) << status;
      return;
    }
    tier = *std::move(opened);
    waiter.emplace(*tier);
  }

  TestDirectory directory;
  DiskTierOptions options{.bytes = 8 << 20, .segment_bytes = 1 << 20};
  std::unique_ptr<DiskTier> tier;
  std::optional<disk::Waiter<DiskTier>> waiter;
  Status status;
};

TEST_P(DiskTierEngine, GivesBackWhatItWasGivenAlsoLater) {
  const char* name = GetParam() == DiskEngine::kThreads ? "threads" : "io_uring";
  EXPECT_THAT(tier->describe(), HasSubstr(name));
  for (std::uint64_t i = 0; i < 200; ++i) {
    EXPECT_EQ(waiter->store(i, i % 2 == 0), TierResult::kOk);
  }
  for (int life = 0; life < 2; ++life) {
    for (std::uint64_t i = 0; i < 200; ++i) {
      EXPECT_EQ(waiter->load(i, i % 3 == 0), TierResult::kOk) << i;
    }
    EXPECT_EQ(waiter->load(1000), TierResult::kMiss);
    open();
    EXPECT_EQ(tier->stats().recovered_by_footer, 200u);
  }
}

TEST_P(DiskTierEngine, ManyAtATimeAreEachAnsweredOnce) {
  constexpr std::uint64_t kCount = 400;
  std::vector<ItemMemory> memory;
  std::vector<TierItem> items;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    memory.emplace_back(size_of(i), true);
    const auto bytes = bytes_of(i);
    std::copy(bytes.begin(), bytes.end(), memory.back().data());
    items.push_back({key_of(i), memory.back().data(), size_of(i), i});
  }
  for (const TierOp op : {TierOp::kStore, TierOp::kLoad}) {
    ASSERT_EQ(tier->submit(op, items, {kLater}), kCount);
    std::set<std::uint64_t> answered;
    while (!tier->idle()) {
      for (const TierDone& done : waiter->poll()) {
        EXPECT_TRUE(answered.insert(done.tag).second);
        EXPECT_EQ(done.result, TierResult::kOk);
      }
    }
    EXPECT_EQ(answered.size(), kCount);
    for (std::uint64_t i = 0; i < kCount; ++i) {
      const auto bytes = bytes_of(i);
      EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), memory[i].data())) << i;
      std::memset(memory[i].data(), 0, memory[i].span().size());
    }
  }
  EXPECT_EQ(tier->health().stores_ok, kCount);
  EXPECT_EQ(tier->health().loads_ok, kCount);
}

TEST_P(DiskTierEngine, KeepsItsBudgetAndWhatIsUsed) {
  for (std::uint64_t i = 0; i < 2000; ++i) {
    EXPECT_EQ(waiter->store(i), TierResult::kOk);
    if (i % 20 == 0) {
      EXPECT_EQ(waiter->load(0), TierResult::kOk);
      EXPECT_LE(directory.bytes(), options.bytes);
    }
  }
  EXPECT_GT(tier->stats().evicted, 500u);
  EXPECT_GT(tier->stats().reinserted, 0u);
  EXPECT_LE(tier->stats().bytes, options.bytes);
}

TEST_P(DiskTierEngine, AnIdleTierDoesNotWakeItsOwner) {
  for (std::uint64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(waiter->store(i), TierResult::kOk);
    // A worker may write to event_fd once more for each job that has ended: no more often.
    std::array<TierDone, 4> done;
    pollfd event{.fd = tier->event_fd(), .events = POLLIN, .revents = 0};
    int polls = 0;
    do {
      EXPECT_EQ(tier->poll(++waiter->now_us, done), 0u);
    } while (++polls < 100 && ::poll(&event, 1, 0) == 1);
    EXPECT_LT(polls, 100);
  }
}

TEST_P(DiskTierEngine, OnlyTheUserMayRead) {
  ASSERT_EQ(waiter->store(1), TierResult::kOk);
  struct stat about {};
  ASSERT_EQ(::stat(directory.path().c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777u, 0700u);
  for (const auto& entry : std::filesystem::directory_iterator(directory.path())) {
    ASSERT_EQ(::stat(entry.path().c_str(), &about), 0);
    EXPECT_EQ(about.st_mode & 0777u, 0600u) << entry.path();
  }
}

TEST_P(DiskTierEngine, AnotherProcessIsRefusedByName) {
  const auto owner = std::to_string(::getpid());
  const ::pid_t child = ::fork();
  if (child == 0) {
    const Result<std::unique_ptr<DiskTier>> second = DiskTier::open(options);
    const bool refused = !second && second.error().code() == ErrorCode::kFailedPrecondition &&
                         second.error().message().find("process " + owner) != std::string::npos &&
                         second.error().message().find(directory.path()) != std::string::npos;
    ::_exit(refused ? 0 : 1);
  }
  int result = 0;
  ASSERT_EQ(::waitpid(child, &result, 0), child);
  EXPECT_EQ(result, 0);
  const Result<DiskCheck> check = check_disk_directory({.directory = directory.path()});
  ASSERT_FALSE(check);
  EXPECT_EQ(check.error().code(), ErrorCode::kFailedPrecondition);
}

TEST_P(DiskTierEngine, ADirectoryThatIsDeletedGivesMissesAndErrors) {
  for (std::uint64_t i = 0; i < 50; ++i) EXPECT_EQ(waiter->store(i), TierResult::kOk);
  waiter->settle();  // it may make a file behind the last answer
  std::filesystem::remove_all(directory.path());
  for (std::uint64_t i = 0; i < 50; ++i) waiter->load(i);
  for (std::uint64_t i = 50; i < 1000 && tier->health().usable; ++i) waiter->store(i);
  open();
  EXPECT_EQ(waiter->load(1), TierResult::kMiss);
  EXPECT_EQ(waiter->store(1), TierResult::kOk);
}

// Two tiers over one path: the first one's directory is gone, the second made it anew.
TEST_P(DiskTierEngine, ADirectoryThatIsMadeAnewBelongsToWhoMadeIt) {
  for (std::uint64_t i = 0; i < 50; ++i) EXPECT_EQ(waiter->store(i), TierResult::kOk);
  waiter->settle();  // it may make a file behind the last answer
  std::filesystem::remove_all(directory.path());
  Result<std::unique_ptr<DiskTier>> second = DiskTier::open(options);
  ASSERT_TRUE(second) << second.error();
  disk::Waiter<DiskTier> second_asks(**second);
  for (std::uint64_t i = 100; i < 400; ++i) EXPECT_EQ(second_asks.store(i), TierResult::kOk);
  second_asks.settle();
  const Contents before = contents_of(directory.path());
  for (std::uint64_t i = 1000; i < 3000 && tier->health().usable; ++i) {
    waiter->store(i);
    waiter->now_us += 100'000;
  }
  EXPECT_FALSE(tier->health().usable);
  waiter.reset();
  tier.reset();
  EXPECT_EQ(contents_of(directory.path()), before);
  for (std::uint64_t i = 100; i < 400; ++i) EXPECT_EQ(second_asks.load(i), TierResult::kOk) << i;
  EXPECT_EQ(DiskTier::open(options).error().code(), ErrorCode::kFailedPrecondition);
}

TEST_P(DiskTierEngine, ADirectoryWhoseFilesAreDeletedStaysInUse) {
  for (std::uint64_t i = 0; i < 50; ++i) EXPECT_EQ(waiter->store(i), TierResult::kOk);
  waiter->settle();  // it may make a file behind the last answer
  for (const auto& entry : std::filesystem::directory_iterator(directory.path())) {
    std::filesystem::remove(entry.path());
  }
  const Status second = DiskTier::open(options).error();
  EXPECT_EQ(second.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(second.message(), HasSubstr("is in use by another process"));
  EXPECT_TRUE(contents_of(directory.path()).empty());
  open();
  EXPECT_EQ(waiter->store(1), TierResult::kOk);
}

// What came into the directory later stays, whatever its name.
TEST_P(DiskTierEngine, FilesBesideOursStay) {
  const std::map<std::string, std::string> others = {{"probe", "mine"},
                                                     {"manifest.new", ""},
                                                     {"notes.txt", "read me"},
                                                     {disk::segment_name(3), "%PDF-1.4"},
                                                     {disk::segment_name(77), "x"}};
  tier.reset();
  for (const auto& [name, text] : others) write_file(directory.path() + "/" + name, text);
  for (int life = 0; life < 2; ++life) {
    open();
    ASSERT_TRUE(tier) << status;
    for (std::uint64_t i = 0; i < 1000; ++i) EXPECT_EQ(waiter->store(i), TierResult::kOk);
  }
  EXPECT_GT(tier->stats().evicted, 0u);
  tier.reset();
  const Contents left = contents_of(directory.path());
  for (const auto& [name, text] : others) EXPECT_EQ(left.at(name).first, text) << name;
  for (const auto& [name, file] : left) EXPECT_FALSE(name.starts_with(".kvfolio")) << name;
}

TEST_P(DiskTierEngine, TheCheckFindsAFlippedByteAndErasesItsRecord) {
  for (std::uint64_t i = 0; i < 30; ++i) EXPECT_EQ(waiter->store(i), TierResult::kOk);
  tier.reset();
  const std::int64_t at = 2 * disk::kPiece + 50;  // in the body of the first record
  flip_byte(directory.segments()[0], at);
  std::int64_t told = 0;
  const auto progress = [&](std::int64_t read, std::int64_t all) {
    EXPECT_LE(read, all);
    ++told;
    return true;
  };
  for (int round = 0; round < 4; ++round) {
    const bool erase = round == 1, gone = round >= 2;
    if (round == 3) {  // without its footer, too
      flip_byte(directory.segments()[0],
                std::int64_t(std::filesystem::file_size(directory.segments()[0])) - 4000);
    }
    const Result<DiskCheck> check =
        check_disk_directory({.directory = directory.path(), .erase = erase, .progress = progress});
    ASSERT_TRUE(check) << check.error();
    EXPECT_EQ(check->damaged, gone ? 0 : 1);
    EXPECT_EQ(check->records, 29);
    EXPECT_EQ(check->erased, erase ? 1 : 0);
    if (!gone) {
      EXPECT_EQ(check->faults.at(0).offset, disk::kPiece);
    }
  }
  EXPECT_EQ(told, 30 + 30 + 29 + 29);
  open();
  EXPECT_EQ(waiter->load(0), TierResult::kMiss);
  for (std::uint64_t i = 1; i < 30; ++i) EXPECT_EQ(waiter->load(i), TierResult::kOk);
}

TEST_P(DiskTierEngine, AFlippedByteIsCorruptAndForgotten) {
  for (std::uint64_t i = 0; i < 30; ++i) EXPECT_EQ(waiter->store(i), TierResult::kOk);
  open();
  flip_byte(directory.segments()[0], 2 * disk::kPiece + 50);
  EXPECT_EQ(waiter->load(0), TierResult::kCorrupt);
  EXPECT_EQ(waiter->load(0), TierResult::kMiss);
  EXPECT_EQ(waiter->store(0), TierResult::kOk);
  EXPECT_EQ(waiter->load(0), TierResult::kOk);
}

TEST_P(DiskTierEngine, WhatIsErasedIsNotFoundAfterARestart) {
  for (std::uint64_t i = 0; i < 400; ++i) EXPECT_EQ(waiter->store(i), TierResult::kOk);
  const auto erase = [&](std::uint64_t number) {
    return (*waiter)(TierOp::kErase, key_of(number), {});
  };
  for (std::uint64_t life = 0; life < 3; ++life) {
    for (std::uint64_t i = 100 * life; i < 400; i += 7) EXPECT_EQ(erase(i), TierResult::kOk);
    EXPECT_EQ(erase(1000), TierResult::kOk);
    EXPECT_LE(directory.bytes(), options.bytes);
    open();
    for (std::uint64_t i = 0; i < 400; ++i) {
      bool gone = false;
      for (std::uint64_t past = 0; past <= life; ++past) {
        gone = gone || (i >= 100 * past && (i - 100 * past) % 7 == 0);
      }
      EXPECT_EQ(waiter->load(i), gone ? TierResult::kMiss : TierResult::kOk) << i;
    }
  }
  tier.reset();
  const Result<DiskCheck> check = check_disk_directory({.directory = directory.path()});
  ASSERT_TRUE(check) << check.error();
  EXPECT_EQ(check->damaged, 0);
}

TEST_P(DiskTierEngine, ErasingGivesRoomBackWhereTheFileSystemCan) {
  std::vector<ItemMemory> memory;
  for (std::uint64_t i = 0; i < 8; ++i) memory.emplace_back(256 << 10, true);
  for (std::uint64_t i = 0; i < 8; ++i) {
    EXPECT_EQ((*waiter)(TierOp::kStore, key_of(i), memory[i].span()), TierResult::kOk);
  }
  open();
  const auto taken = [&] {
    std::int64_t bytes = 0;
    for (const auto& path : directory.segments()) {
      struct stat about {};
      EXPECT_EQ(::stat(path.c_str(), &about), 0);
      bytes += std::int64_t{about.st_blocks} * 512;
    }
    return bytes;
  };
  const std::string other = directory.path() + "-holes";
  const int file = ::open(other.c_str(), O_RDWR | O_CREAT, 0600);
  ASSERT_EQ(::fallocate(file, 0, 0, 1 << 20), 0);
  const bool can = ::fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 1 << 20) == 0;
  ::close(file);
  const std::int64_t before = taken();
  for (std::uint64_t i = 0; i < 7; i += 2) {
    EXPECT_EQ((*waiter)(TierOp::kErase, key_of(i), {}), TierResult::kOk);
  }
  EXPECT_EQ(tier->stats().records, 4);
  if (can) {
    EXPECT_LE(taken(), before - 4 * (256 << 10));
  }
}

// ---- no call of the owner waits ----

std::atomic<int> first_forbidden{-1};

void on_forbidden(int /*signal*/, siginfo_t* info, void* /*context*/) {
  int expected = -1;
  first_forbidden.compare_exchange_strong(expected, info->si_syscall);
}

// From now on this thread may make only calls of the system that cannot wait for a disk. The others
// are not made and are noted. False: this system has no seccomp for us.
bool forbid_waiting(int event_fd) {
#define KVFOLIO_ALLOW(number) \
  BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      // memory, time, chance, locks that are held for a few instructions
      KVFOLIO_ALLOW(SYS_futex), KVFOLIO_ALLOW(SYS_mmap), KVFOLIO_ALLOW(SYS_munmap),
      KVFOLIO_ALLOW(SYS_mremap), KVFOLIO_ALLOW(SYS_mprotect), KVFOLIO_ALLOW(SYS_madvise),
      KVFOLIO_ALLOW(SYS_brk), KVFOLIO_ALLOW(SYS_clock_gettime), KVFOLIO_ALLOW(SYS_getrandom),
      KVFOLIO_ALLOW(SYS_sched_yield), KVFOLIO_ALLOW(SYS_exit), KVFOLIO_ALLOW(SYS_rt_sigreturn),
      KVFOLIO_ALLOW(SYS_rt_sigprocmask), KVFOLIO_ALLOW(SYS_sigaltstack), KVFOLIO_ALLOW(SYS_gettid),
      KVFOLIO_ALLOW(SYS_getpid),
      // 8 bytes to an eventfd, and from the one that does not block
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 0, 4),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 8, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_read, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[0])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(event_fd), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP)};
#undef KVFOLIO_ALLOW
  const sock_fprog program{static_cast<unsigned short>(std::size(filter)), filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// The life of an owner: stores, loads, erases, eviction, close. Polls without a wait.
void live(DiskTier& tier, const std::vector<TierItem>& items, std::uint64_t* answered) {
  std::array<TierDone, 32> done;
  std::uint64_t now_us = 1;
  for (std::size_t at = 0; at < items.size();) {
    const auto some = std::span(items).subspan(at, std::min<std::size_t>(16, items.size() - at));
    *answered -= some.size();
    at += tier.submit(at % 32 == 0 ? TierOp::kStore : TierOp::kLoad, some, {kLater});
    if (at % 64 == 0) *answered -= tier.submit(TierOp::kErase, some, {kLater});
    while (!tier.idle()) {
      *answered += tier.poll(++now_us, done);
      ::sched_yield();
    }
  }
  static_cast<void>(tier.close({kLater}));
  while (!tier.idle()) {
    *answered += tier.poll(++now_us, done);
    ::sched_yield();
  }
}

// The child has none of the engine's threads; waiting for them would hang.
TEST_P(DiskTierEngine, AChildOfForkLetsItGoAndTheParentGoesOn) {
  for (std::uint64_t i = 0; i < 50; ++i) EXPECT_EQ(waiter->store(i), TierResult::kOk);
  const ::pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    tier.reset();
    ::_exit(0);
  }
  int result = 0;
  ASSERT_EQ(::waitpid(child, &result, 0), child);
  EXPECT_TRUE(WIFEXITED(result) && WEXITSTATUS(result) == 0);
  for (std::uint64_t i = 0; i < 50; ++i) EXPECT_EQ(waiter->load(i), TierResult::kOk);
  EXPECT_EQ(waiter->store(50), TierResult::kOk);
  EXPECT_EQ(DiskTier::open(options).error().code(), ErrorCode::kFailedPrecondition)
      << "the directory is still the parent's";
}

TEST_P(DiskTierEngine, NoCallOfTheOwnerMayWait) {
  std::vector<ItemMemory> memory;
  std::vector<TierItem> items;
  for (std::uint64_t i = 0; i < 2000; ++i) {
    const std::uint64_t number = i % 32 < 16 ? i : i - 16;  // stored, and then loaded
    memory.emplace_back(size_of(number), i % 3 != 0);
    items.push_back({key_of(number), memory.back().data(), size_of(number), i});
  }
  struct sigaction action {};
  struct sigaction before {};
  action.sa_sigaction = on_forbidden;
  action.sa_flags = SA_SIGINFO;
  ASSERT_EQ(::sigaction(SIGSYS, &action, &before), 0);
  first_forbidden = -1;
  std::uint64_t answered = 0;
  bool filtered = false;
  // The first time that glibc gives memory of a thread back, it reads a file of /proc. The
  // allocator of the address sanitizer knows no such option and needs none.
  static_cast<void>(::mallopt(M_TRIM_THRESHOLD, 1 << 30));
  std::thread owner([&] {
    filtered = forbid_waiting(tier->event_fd());
    if (!filtered) return;
    live(*tier, items, &answered);
    // The filter works: a call that may wait is noted.
    if (first_forbidden == -1) {
      ::fsync(tier->event_fd());
      if (first_forbidden == SYS_fsync) first_forbidden = -2;
    }
  });
  owner.join();
  ASSERT_EQ(::sigaction(SIGSYS, &before, nullptr), 0);
  if (!filtered) GTEST_SKIP() << "no seccomp here";
  EXPECT_EQ(first_forbidden, -2) << "the number of a call of the system";
  EXPECT_EQ(answered, 0u);  // as many as were accepted
  EXPECT_GT(tier->stats().evicted, 0u);
  EXPECT_GT(tier->stats().loaded, 0u);
}

INSTANTIATE_TEST_SUITE_P(Engines, DiskTierEngine,
                         ::testing::Values(DiskEngine::kThreads, DiskEngine::kIoUring),
                         [](const auto& info) {
                           return info.param == DiskEngine::kThreads ? "Threads" : "IoUring";
                         });

TEST(DiskTier, ChoosesAnEngineThatWorks) {
  const TestDirectory directory;
  const DiskTierOptions options{.directory = directory.path(), .bytes = 8 << 20};
  const auto tier = DiskTier::open(options);
  ASSERT_TRUE(tier) << tier.error();
  EXPECT_THAT((*tier)->describe(), ::testing::ContainsRegex("io_uring|threads"));
  EXPECT_EQ((*tier)->limits().data_alignment, 4096);
}

TEST(DiskTier, ADirectoryThatCannotBeMadeIsRefused) {
  const auto tier = DiskTier::open({.directory = "/proc/kvfolio/tier", .bytes = 8 << 20});
  ASSERT_FALSE(tier);
  EXPECT_EQ(tier.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(tier.error().message(), HasSubstr("/proc/kvfolio/tier"));
}

// ---- directories that are not ours ----

constexpr const char* kOurManifest = "kvfolio disk tier\nversion 2\n";

// Opens a tier in the directory, and checks it, with erasing. Each is refused, and nothing changes.
Status refuse_untouched(const std::string& path) {
  const Contents before = contents_of(path);
  struct stat first {};
  EXPECT_EQ(::stat(path.c_str(), &first), 0);
  const Result<std::unique_ptr<DiskTier>> tier =
      DiskTier::open({.directory = path, .bytes = 8 << 20});
  EXPECT_FALSE(tier);
  for (const bool erase : {false, true}) {
    EXPECT_FALSE(check_disk_directory({.directory = path, .erase = erase}));
  }
  EXPECT_EQ(contents_of(path), before);
  struct stat last {};
  EXPECT_EQ(::stat(path.c_str(), &last), 0);
  EXPECT_EQ(first.st_mtim.tv_nsec, last.st_mtim.tv_nsec);
  EXPECT_EQ(first.st_mode, last.st_mode);
  return tier ? Status() : tier.error();
}

TEST(DiskTier, AForeignDirectoryIsRefusedByNameAndLeftAsItIs) {
  struct Case {
    std::map<std::string, std::string> files;
    const char* said;
  };
  const std::string segment = disk::segment_name(1);
  const Case cases[] = {
      {{{"thesis.tex", "x"}}, "has other files, such as thesis.tex"},
      {{{"thesis.tex", "x"}, {segment, "y"}, {"lock", ""}}, "such as thesis.tex"},
      {{{"probe", "mine"}}, "such as probe"},
      {{{"manifest.new", "mine"}}, "such as manifest.new"},
      {{{"lock", ""}}, "such as lock"},
      {{{"lock", "123\n"}, {"probe", ""}}, "such as probe"},
      {{{segment, std::string(8192, 'x')}}, "such as segment-0000000000000001"},
      {{{segment, std::string(8192, '\0')}}, "such as segment-0000000000000001"},
      {{{segment, std::string(8192, 'x')}, {"lock", "123\n"}}, "has other files, such as"},
      {{{segment, std::string(8192, '\0')}, {"lock", "123"}}, "has other files, such as"},
      {{{"manifest", "name: cargo\n"}},
       "manifest is not of a disk tier: it begins with \"name: cargo?\""},
      {{{"manifest", ""}}, "manifest is not of a disk tier: it is empty"},
      {{{"manifest", "kvfolio disk tier\nversion x\n"}}, "manifest is not of a disk tier"},
      {{{"manifest", kOurManifest}, {"lock", "do not touch"}},
       "lock is not of a disk tier: it begins"},
  };
  for (const Case& one : cases) {
    const TestDirectory directory;
    std::filesystem::create_directory(directory.path());
    std::filesystem::permissions(directory.path(), std::filesystem::perms(0700));
    for (const auto& [name, text] : one.files) write_file(directory.path() + "/" + name, text);
    const Status status = refuse_untouched(directory.path());
    EXPECT_EQ(status.code(), ErrorCode::kFailedPrecondition) << one.said;
    EXPECT_THAT(status.message(), HasSubstr(one.said));
    EXPECT_THAT(status.message(), HasSubstr("give the tier a directory of its own"));
  }
}

TEST(DiskTier, ANameOfOursThatIsNoFileIsRefused) {
  for (const char* const name : {"manifest", "lock"}) {
    for (const char* const kind : {"link", "pipe", "directory"}) {
      const TestDirectory directory;
      std::filesystem::create_directory(directory.path());
      std::filesystem::permissions(directory.path(), std::filesystem::perms(0700));
      const std::string path = directory.path() + "/" + name;
      if (name != std::string("manifest")) {
        write_file(directory.path() + "/manifest", kOurManifest);
      }
      const std::string target = directory.path() + "-target";
      write_file(target, name == std::string("manifest") ? kOurManifest : "");
      if (kind == std::string("link")) std::filesystem::create_symlink(target, path);
      if (kind == std::string("pipe")) {
        ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
      }
      if (kind == std::string("directory")) std::filesystem::create_directory(path);
      const Contents before = contents_of(directory.path());
      const auto tier = DiskTier::open({.directory = directory.path(), .bytes = 8 << 20});
      ASSERT_FALSE(tier) << name << " as a " << kind;
      EXPECT_THAT(tier.error().message(), HasSubstr(path));
      Contents after = contents_of(directory.path());
      if (before.count("lock") == 0) after.erase("lock");  // the directory is ours
      EXPECT_EQ(after, before) << name << " as a " << kind;
      EXPECT_EQ(contents_of(directory.path() + "/..").at("tier-target").first.size(),
                name == std::string("manifest") ? std::string(kOurManifest).size() : 0u);
    }
  }
}

// What another program put there under the name of a segment is left out, and the check says so.
TEST(DiskTier, AFileOfOthersUnderANameOfOursStaysAndIsNamedByTheCheck) {
  for (const char* const kind : {"link", "pipe", "directory", "text"}) {
    const TestDirectory directory;
    const DiskTierOptions options{
        .directory = directory.path(), .bytes = 8 << 20, .segment_bytes = 1 << 20};
    ASSERT_TRUE(DiskTier::open(options)) << kind;
    const std::string name = disk::segment_name(~std::uint64_t{0});
    const std::string path = directory.path() + "/" + name;
    const std::string target = directory.path() + "-target";
    write_file(target, "");
    write_file(directory.path() + "/notes.txt", "read me");
    if (kind == std::string("link")) std::filesystem::create_symlink(target, path);
    if (kind == std::string("pipe")) {
      ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    }
    if (kind == std::string("directory")) std::filesystem::create_directory(path);
    if (kind == std::string("text")) write_file(path, "mine");
    {
      auto tier = DiskTier::open(options);
      ASSERT_TRUE(tier) << kind << ": " << tier.error();
      disk::Waiter<DiskTier> asks(**tier);
      for (std::uint64_t i = 0; i < 1000; ++i) ASSERT_EQ(asks.store(i), TierResult::kOk) << kind;
      EXPECT_GT((*tier)->stats().evicted, 0u);
    }
    const Contents left = contents_of(directory.path());
    EXPECT_EQ(left.count(name), 1u) << kind;
    EXPECT_EQ(left.at("notes.txt").first, "read me");
    EXPECT_EQ(std::filesystem::file_size(target), 0u);
    const Result<DiskCheck> check = check_disk_directory({.directory = directory.path()});
    ASSERT_TRUE(check) << check.error();
    EXPECT_EQ(check->unused, 2);
    EXPECT_EQ(check->damaged, 0);
    std::vector<std::string> named;
    for (const DiskFault& fault : check->faults) {
      EXPECT_THAT(fault.what, HasSubstr("is not used"));
      named.push_back(fault.file);
    }
    EXPECT_THAT(named, ::testing::UnorderedElementsAre(name, "notes.txt")) << kind;
  }
}

TEST(DiskTier, WhatIsNoDirectoryGetsNoAdviceAboutItsMode) {
  const TestDirectory directory;
  write_file(directory.path(), "a file");
  for (const std::string& path : {std::string("/dev/null"), directory.path()}) {
    for (const Status& status : {DiskTier::open({.directory = path, .bytes = 8 << 20}).error(),
                                 check_disk_directory({.directory = path}).error()}) {
      EXPECT_EQ(status.code(), ErrorCode::kFailedPrecondition);
      EXPECT_THAT(status.message(), HasSubstr(path + " is not a directory"));
      EXPECT_THAT(status.message(), ::testing::Not(HasSubstr("chmod")));
    }
  }
}

// A mode is changed only where that is the owner's to do and all that is missing.
TEST(DiskTier, AdviceToChangeTheModeIsGivenForOurOwnDirectoryOnly) {
  struct Case {
    unsigned mode;
    std::map<std::string, std::string> files;
    bool chmod;
  };
  const Case cases[] = {{0777, {}, true},
                        {0770, {{"manifest", kOurManifest}}, true},
                        {01777, {}, false},
                        {01777, {{"thesis.tex", ""}}, false},
                        {0777, {{"thesis.tex", ""}}, false}};
  for (const Case& one : cases) {
    const TestDirectory directory;
    std::filesystem::create_directory(directory.path());
    for (const auto& [name, text] : one.files) write_file(directory.path() + "/" + name, text);
    ASSERT_EQ(::chmod(directory.path().c_str(), one.mode), 0);
    const Status status = refuse_untouched(directory.path());
    EXPECT_EQ(status.code(), ErrorCode::kFailedPrecondition);
    EXPECT_EQ(status.message().find("chmod 700 it") != std::string::npos, one.chmod)
        << status.message();
  }
}

TEST(DiskTier, AnUnfinishedBeginningIsBegunAgain) {
  const TestDirectory directory;
  std::filesystem::create_directory(directory.path());
  std::filesystem::permissions(directory.path(), std::filesystem::perms(0700));
  write_file(directory.path() + "/" + disk::temporary_name(), "kvfolio di");
  ASSERT_TRUE(DiskTier::open({.directory = directory.path(), .bytes = 8 << 20}));
  const Contents left = contents_of(directory.path());
  EXPECT_EQ(left.size(), 2u);
  EXPECT_EQ(left.at("manifest").first, kOurManifest);
}

TEST(DiskTier, ACheckWritesNothingAndKeepsWritersOut) {
  const TestDirectory directory;
  const DiskTierOptions options{.directory = directory.path(), .bytes = 8 << 20};
  {
    const auto tier = DiskTier::open(options);
    ASSERT_TRUE(tier) << tier.error();
    disk::Waiter<DiskTier> asks(**tier);
    for (std::uint64_t i = 0; i < 20; ++i) EXPECT_EQ(asks.store(i), TierResult::kOk);
  }
  for (const bool has_lock : {true, false}) {
    if (!has_lock) std::filesystem::remove(directory.path() + "/lock");
    const Contents before = contents_of(directory.path());
    bool asked = false;
    const auto progress = [&](std::int64_t /*read*/, std::int64_t /*all*/) {
      if (!std::exchange(asked, true)) {
        EXPECT_EQ(DiskTier::open(options).error().code(), ErrorCode::kFailedPrecondition);
      }
      return true;
    };
    const Result<DiskCheck> check =
        check_disk_directory({.directory = directory.path(), .progress = progress});
    ASSERT_TRUE(check) << check.error();
    EXPECT_EQ(check->records, 20);
    EXPECT_TRUE(asked);
    EXPECT_EQ(contents_of(directory.path()), before);
  }
  std::filesystem::remove(directory.path() + "/manifest");
  EXPECT_EQ(check_disk_directory({.directory = directory.path()}).error().code(),
            ErrorCode::kNotFound);
  EXPECT_TRUE(DiskTier::open(options)) << "its segments say what they are";
}

// As the message about a damaged manifest advises, where there is no segment yet.
TEST(DiskTier, ADirectoryWithNothingButItsLockIsUsed) {
  for (const bool has_segment : {false, true}) {  // one without its header: the writer was killed
    const TestDirectory directory;
    const DiskTierOptions options{.directory = directory.path(), .bytes = 8 << 20};
    ASSERT_TRUE(DiskTier::open(options));
    EXPECT_EQ(contents_of(directory.path()).size(), 2u);
    std::filesystem::remove(directory.path() + "/manifest");
    if (has_segment) {
      write_file(directory.path() + "/" + disk::segment_name(1), std::string(8192, '\0'));
    }
    const auto tier = DiskTier::open(options);
    ASSERT_TRUE(tier) << tier.error();
    disk::Waiter<DiskTier> asks(**tier);
    EXPECT_EQ(asks.store(1), TierResult::kOk);
  }
}

TEST(DiskTier, TheCheckSaysThatThereIsNoTier) {
  const TestDirectory directory;
  const Result<DiskCheck> check = check_disk_directory({.directory = directory.path()});
  ASSERT_FALSE(check);
  EXPECT_EQ(check.error().code(), ErrorCode::kNotFound);
}

// ---- a ring whose answers are not what was asked ----

class DrawnFaults final : public disk::RingFaults {
 public:
  std::int64_t bytes_asked(const disk::IoStep& /*step*/, std::int64_t bytes) noexcept override {
    if (bytes <= disk::kPiece || random_() % 3 != 0) return bytes;
    return disk::kPiece * std::int64_t(1 + random_() % unsigned(bytes / disk::kPiece));
  }
  std::int64_t answer(const disk::IoStep& step, std::int64_t answer) noexcept override {
    if (error != 0 && step.is_transfer()) return error;
    if (random_() % 5 == 0) return random_() % 2 == 0 ? -EINTR : -EAGAIN;
    return answer;
  }
  std::atomic<std::int64_t> error{0};

 private:
  std::mt19937 random_{11};
};

TEST(DiskRing, GoesOnFromShortAnswersAndInterruptions) {
  const TestDirectory directory;
  DrawnFaults faults;
  auto store = disk::open_store(disk::system_calls(),
                                {.directory = directory.path(),
                                 .bytes = 8 << 20,
                                 .segment_bytes = 1 << 20,
                                 .engine = DiskEngine::kIoUring},
                                &faults);
  if (!store && store.error().code() == ErrorCode::kUnsupported) GTEST_SKIP() << store.error();
  ASSERT_TRUE(store) << store.error();
  disk::Waiter<disk::SegmentStore> asks(**store);
  for (std::uint64_t i = 0; i < 100; ++i) EXPECT_EQ(asks.store(i), TierResult::kOk);
  for (std::uint64_t i = 0; i < 100; ++i) EXPECT_EQ(asks.load(i), TierResult::kOk);
  faults.error = -EIO;
  EXPECT_EQ(asks.load(3), TierResult::kIoError);
  EXPECT_EQ(asks.store(500), TierResult::kIoError);
  faults.error = 0;
  EXPECT_EQ(asks.load(3), TierResult::kMiss);
  EXPECT_EQ(asks.load(4), TierResult::kOk);
  EXPECT_EQ(asks.store(500), TierResult::kOk);
}

}  // namespace
}  // namespace kvfolio
