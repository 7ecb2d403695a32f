// SPDX-License-Identifier: Apache-2.0
//
// What may not end the process of the host, nor another's: limits of the system, filters that come
// later, signals, closed descriptors, memory that runs out, fork(). Each runs in a child, which
// says by its exit code what went wrong.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <new>

#include "disk/test_store.h"

namespace {

// Allocations of this thread until one fails; 0: none does.
thread_local std::int64_t allocations_left = 0;
thread_local std::int64_t allocations_failed = 0;

void* allocate(std::size_t size) {
  if (allocations_left > 0 && --allocations_left == 0) {
    ++allocations_failed;
    return nullptr;
  }
  return std::malloc(size == 0 ? 1 : size);
}

}  // namespace

void* operator new(std::size_t size) {
  void* memory = allocate(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return allocate(size); }
void* operator new[](std::size_t size) { return operator new(size); }
void* operator new[](std::size_t size, const std::nothrow_t& tag) noexcept {
  return operator new(size, tag);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace kvfolio {
namespace {

using disk::ItemMemory;
using disk::key_of;
using disk::kLater;
using disk::size_of;

constexpr int kNotHere = 77;  // the system has not what the test needs

class DiskProcess : public ::testing::TestWithParam<DiskEngine> {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "kvfolio-process-XXXXXX";
    parent = ::mkdtemp(pattern.data());
    path = parent + "/tier";
    options.directory = path;
    options.engine = GetParam();
    const auto tier = DiskTier::open(options);
    if (!tier) {
      ASSERT_EQ(tier.error().code(), ErrorCode::kUnsupported) << tier.error();
      GTEST_SKIP() << tier.error();
    }
  }
  void TearDown() override {
    std::error_code error;
    std::filesystem::remove_all(parent, error);
  }
  std::unique_ptr<DiskTier> open() {
    auto tier = DiskTier::open(options);
    if (!tier) std::fprintf(stderr, "%s\n", std::string(tier.error().message()).c_str());
    return tier ? *std::move(tier) : nullptr;
  }
  // Runs it in a child, which must end by itself, within four minutes: each run syncs the disk
  // several times, and other tests write to it.
  void in_child(const std::function<int()>& run) {
    const ::pid_t child = ::fork();
    if (child == 0) {
      ::alarm(240);
      ::_exit(run());
    }
    int result = 0;
    ASSERT_EQ(::waitpid(child, &result, 0), child);
    ASSERT_TRUE(WIFEXITED(result)) << "ended by signal " << WTERMSIG(result);
    if (WEXITSTATUS(result) == kNotHere) GTEST_SKIP() << "not on this system";
    EXPECT_EQ(WEXITSTATUS(result), 0) << "see the numbers in the test";
  }

  std::string parent, path;
  DiskTierOptions options{.bytes = 8 << 20, .segment_bytes = 1 << 20};
};

TEST_P(DiskProcess, ManyShortRunsFitIntoFewDescriptors) {
  options.bytes = 64 << 20;
  in_child([&] {
    const rlimit few{40, 40};
    if (::setrlimit(RLIMIT_NOFILE, &few) != 0) return 1;
    constexpr std::uint64_t kRuns = 150;
    for (std::uint64_t run = 0; run < kRuns; ++run) {
      const auto tier = open();
      if (tier == nullptr) return 2;
      disk::Waiter<DiskTier> asks(*tier);
      if (asks.store(run) != TierResult::kOk) return 3;
      if (asks.load(run / 2) != TierResult::kOk) return 4;
    }
    const auto tier = open();
    if (tier == nullptr) return 5;
    disk::Waiter<DiskTier> asks(*tier);
    for (std::uint64_t i = 0; i < kRuns; ++i) {
      if (asks.load(i) != TierResult::kOk) return 6;
    }
    return tier->stats().segments <= 4 ? 0 : 7;
  });
}

// With seccomp, as a sandbox does that comes up after its libraries.
bool refuse_rings() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_enter, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{static_cast<unsigned short>(std::size(filter)), filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
}

TEST_P(DiskProcess, ARingThatIsRefusedLaterGoesOnWithPlainCalls) {
  in_child([&] {
    auto tier = open();
    if (tier == nullptr) return 1;
    disk::Waiter<DiskTier> asks(*tier);
    for (std::uint64_t i = 0; i < 20; ++i) {
      if (asks.store(i) != TierResult::kOk) return 2;
    }
    // Some are under way when it comes.
    std::vector<ItemMemory> memory;
    std::vector<TierItem> items;
    for (std::uint64_t i = 0; i < 60; ++i) {
      const std::uint64_t number = 100 + i;
      memory.emplace_back(size_of(number), true);
      const std::vector<std::byte> bytes = disk::bytes_of(number);
      std::copy(bytes.begin(), bytes.end(), memory.back().data());
      items.push_back({key_of(number), memory.back().data(), size_of(number), 1000 + i});
    }
    if (tier->submit(TierOp::kStore, items, {kLater}) != items.size()) return 3;
    if (!refuse_rings()) return kNotHere;
    std::size_t stored = 0;
    while (!tier->idle()) {
      for (const TierDone& done : asks.poll()) stored += done.result == TierResult::kOk ? 1 : 0;
    }
    if (stored != items.size()) return 4;
    for (std::uint64_t i = 0; i < 60; ++i) {
      if (asks.load(100 + i) != TierResult::kOk || asks.store(300 + i) != TierResult::kOk) return 5;
    }
    const bool said = tier->describe().find("io_uring refused since") != std::string::npos;
    if (said != (GetParam() == DiskEngine::kIoUring)) return 6;
    if (!tier->health().usable) return 7;
    tier.reset();
    return 0;
  });
}

// As a daemon does that is begun late. Nothing it still asks for may end or hold up the process.
TEST_P(DiskProcess, ClosingEveryDescriptorTurnsTheTierOffAndNoMore) {
  in_child([&] {
    auto tier = open();
    if (tier == nullptr) return 1;
    disk::Waiter<DiskTier> asks(*tier);
    for (std::uint64_t i = 0; i < 20; ++i) {
      if (asks.store(i) != TierResult::kOk) return 2;
    }
    for (int file = 3; file < 200; ++file) ::close(file);
    rusage before{}, after{};
    ::getrusage(RUSAGE_SELF, &before);
    for (std::uint64_t i = 0; i < 40 && tier->health().usable; ++i) {
      const auto result = asks.load(i % 20);
      if (result == TierResult::kOk) return 3;
      asks.store(100 + i);
      asks.now_us += 2'000'000;
    }
    if (tier->health().usable) return 4;
    if (tier->describe().find("off after errors: ") == std::string::npos) return 5;
    tier.reset();
    ::getrusage(RUSAGE_SELF, &after);
    return after.ru_utime.tv_sec - before.ru_utime.tv_sec <= 5 ? 0 : 6;
  });
}

// SIGXFSZ ends a process unless it is blocked where the write is made.
TEST_P(DiskProcess, ALimitOfFileSizesIsAnErrorAndNoSignal) {
  in_child([&] {
    const rlimit small{300 << 10, 300 << 10};
    if (::setrlimit(RLIMIT_FSIZE, &small) != 0) return 1;
    {
      const auto tier = open();  // segments of 1 MiB
      if (tier == nullptr) return 2;
      disk::Waiter<DiskTier> asks(*tier);
      for (std::uint64_t i = 0; i < 40 && tier->health().usable; ++i) {
        if (asks.store(i) == TierResult::kOk) return 3;
        asks.now_us += 2'000'000;
        asks.poll();
      }
      if (tier->stats().io_errors == 0) return 4;
    }
    // Where the tier chooses, it keeps to the limit.
    options.segment_bytes = 0;
    options.bytes = 16 << 20;
    const auto tier = open();
    if (tier == nullptr) return 5;
    disk::Waiter<DiskTier> asks(*tier);
    for (std::uint64_t i = 0; i < 200; ++i) {
      if (asks.store(i) != TierResult::kOk) return 6;
    }
    return tier->stats().io_errors == 0 ? 0 : 7;
  });
}

TEST_P(DiskProcess, ItsThreadsTakeNoSignalsOfTheHost) {
  in_child([&] {
    static std::atomic<int> taken{0};
    struct sigaction action {};
    action.sa_handler = [](int) { ++taken; };
    ::sigaction(SIGTERM, &action, nullptr);
    const auto tier = open();
    if (tier == nullptr) return 1;
    sigset_t term;
    ::sigemptyset(&term);
    ::sigaddset(&term, SIGTERM);
    // All of the host's threads block it now: it stays pending.
    ::pthread_sigmask(SIG_BLOCK, &term, nullptr);
    ::kill(::getpid(), SIGTERM);
    disk::Waiter<DiskTier> asks(*tier);
    for (std::uint64_t i = 0; i < 20; ++i) {
      if (asks.store(i) != TierResult::kOk) return 2;
    }
    if (taken != 0) return 3;
    ::pthread_sigmask(SIG_UNBLOCK, &term, nullptr);
    return taken == 1 ? 0 : 4;
  });
}

// Whatever the threads of the parent are at, also within a lock.
TEST_P(DiskProcess, AChildInTheMiddleOfWorkIsAnsweredAndLetsGo) {
  auto tier = open();
  ASSERT_NE(tier, nullptr);
  disk::Waiter<DiskTier> asks(*tier);
  for (std::uint64_t round = 0; round < 40; ++round) {
    std::vector<ItemMemory> memory;
    std::vector<TierItem> items;
    for (std::uint64_t i = 0; i < 40; ++i) {
      const std::uint64_t number = round * 100 + i;
      memory.emplace_back(size_of(number), true);
      const std::vector<std::byte> bytes = disk::bytes_of(number);
      std::copy(bytes.begin(), bytes.end(), memory.back().data());
      items.push_back({key_of(number), memory.back().data(), size_of(number), 1000 + i});
    }
    ASSERT_EQ(tier->submit(TierOp::kStore, items, {kLater}), items.size());
    const ::pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);
      if (tier->submit(TierOp::kStore, items, {kLater}) != 0) ::_exit(1);
      std::array<TierDone, 7> done;
      std::size_t answered = 0;
      while (!tier->idle()) answered += tier->poll(asks.now_us + 1, done);
      if (answered != items.size()) ::_exit(2);
      if (tier->health().usable) ::_exit(3);
      static_cast<void>(tier->close({kLater}));
      tier.reset();
      ::_exit(0);
    }
    std::size_t stored = 0;
    while (!tier->idle()) {
      for (const TierDone& done : asks.poll()) stored += done.result == TierResult::kOk ? 1 : 0;
    }
    EXPECT_EQ(stored, items.size());
    int result = 0;
    ASSERT_EQ(::waitpid(child, &result, 0), child);
    ASSERT_TRUE(WIFEXITED(result) && WEXITSTATUS(result) == 0) << result << ", round " << round;
  }
  tier.reset();
  EXPECT_NE(open(), nullptr) << "the children have given the lock up";
}

// Each allocation of the owner's calls fails once: no item is left without an answer, no answer is
// wrong, and the next open() finds what was kept.
TEST_P(DiskProcess, MemoryThatRunsOutEndsNoProcessAndLosesNoItem) {
  options.bytes = 4 << 20;
  options.segment_bytes = 256 << 10;
  std::uint64_t failures = 0, ended = 0;
  for (std::int64_t nth = 1; nth < 400; nth += 1 + nth / 20) {
    auto tier = open();
    ASSERT_NE(tier, nullptr);
    std::vector<ItemMemory> memory;
    memory.reserve(8);
    for (int i = 0; i < 8; ++i) memory.emplace_back(5 * disk::kPiece + 192, true);
    std::mt19937_64 random(static_cast<std::uint64_t>(nth));
    allocations_failed = 0;
    std::uint64_t now_us = 1;
    std::int64_t accepted = 0, answered = 0, left = nth;
    const auto limited = [&](const auto& call) {
      allocations_left = allocations_failed == 0 ? std::exchange(left, 0) : 0;
      const auto result = call();
      left = std::exchange(allocations_left, 0);
      return result;
    };
    for (int step = 0; step < 60; ++step) {
      const std::uint64_t number = random() % 300;
      const auto op = static_cast<TierOp>(random() % 4);
      if (op == TierOp::kStore) {
        const std::vector<std::byte> bytes = disk::bytes_of(number);
        std::copy(bytes.begin(), bytes.end(), memory[0].data());
      }
      const TierItem item{key_of(number), memory[0].data(), size_of(number), 1};
      accepted +=
          std::int64_t(limited([&] { return tier->submit(op, std::span(&item, 1), {kLater}); }));
      std::array<TierDone, 8> done;
      // One at a time, so that the memory is free again.
      for (int i = 0; answered < accepted; ++i) {
        const std::size_t n = limited([&] { return tier->poll(++now_us, done); });
        answered += std::int64_t(n);
        ASSERT_LT(i, 200'000) << "an item without an answer, allocation " << nth << ", step "
                              << step << ", op " << int(op) << ": " << tier->describe();
        if (n == 0) ::usleep(10);
        if (n == 1 && op == TierOp::kLoad && done[0].result == TierResult::kOk) {
          const std::vector<std::byte> bytes = disk::bytes_of(number);
          ASSERT_TRUE(std::equal(bytes.begin(), bytes.end(), memory[0].data()));
        }
      }
    }
    failures += std::uint64_t(allocations_failed);
    if (!tier->health().usable) {
      ++ended;
      EXPECT_THAT(tier->describe(), ::testing::HasSubstr("off after errors: no memory"));
    }
    tier.reset();
  }
  EXPECT_GT(failures, 25u);
  std::printf("[memory] %llu allocations failed, %llu tiers ended\n",
              static_cast<unsigned long long>(failures), static_cast<unsigned long long>(ended));
}

INSTANTIATE_TEST_SUITE_P(Engines, DiskProcess,
                         ::testing::Values(DiskEngine::kThreads, DiskEngine::kIoUring),
                         [](const auto& info) {
                           return info.param == DiskEngine::kThreads ? "Threads" : "IoUring";
                         });

}  // namespace
}  // namespace kvfolio
