// SPDX-License-Identifier: Apache-2.0
// Steady decode allocates nothing: 100 and 20,000 steps make the same number of heap calls.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "kvfolio/fixed_array.h"
#include "kvfolio/manager.h"

namespace {

std::atomic<std::uint64_t> heap_calls{0};

void* counted(std::size_t bytes, std::size_t alignment) {
  heap_calls.fetch_add(1, std::memory_order_relaxed);
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* const memory = alignment <= alignof(std::max_align_t)
                           ? std::malloc(bytes == 0 ? 1 : bytes)
                           : std::aligned_alloc(alignment, rounded);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

// Not inlined: where only one of a pair is, g++ takes free() for the wrong half.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  return counted(bytes, alignof(std::max_align_t));
}
[[gnu::noinline]] void* operator new[](std::size_t bytes) {
  return counted(bytes, alignof(std::max_align_t));
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  heap_calls.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes == 0 ? 1 : bytes);
}
[[gnu::noinline]] void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  heap_calls.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes == 0 ? 1 : bytes);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

// The library's arrays come from calloc. Sanitizers bring an allocator of their own.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KVFOLIO_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define KVFOLIO_TEST_SANITIZED 1
#endif
#endif
#ifndef KVFOLIO_TEST_SANITIZED
// NOLINTNEXTLINE(bugprone-reserved-identifier): glibc's own name for the calloc that is replaced.
extern "C" void* __libc_calloc(std::size_t count, std::size_t size);
extern "C" [[gnu::noinline]] void* calloc(std::size_t count, std::size_t size) noexcept {
  heap_calls.fetch_add(1, std::memory_order_relaxed);
  return __libc_calloc(count, size);
}
#endif

namespace kvfolio {
namespace {

#ifndef KVFOLIO_TEST_SANITIZED
TEST(SteadyHeap, HookCountsCalloc) {
  const std::uint64_t before = heap_calls.load();
  FixedArray<std::int32_t> array;
  ASSERT_TRUE(array.allocate_zeroed(1000));
  EXPECT_EQ(heap_calls.load(), before + 1);
  EXPECT_EQ(array[999], 0);
}
#endif

constexpr int kSequences = 8;

// An engine that decodes eight sequences for ever: a sequence that reaches its length is closed and
// another is opened with a prompt that the cache knows in part.
class Engine {
 public:
  Engine() : manager_(make()) {
    for (int i = 0; i < kSequences; ++i) open(static_cast<std::size_t>(i), 64 + 29 * i);
  }

  void steps(int count) {
    for (int i = 0; i < count; ++i) step();
  }
  [[nodiscard]] const Counters& counters() const { return manager_.counters(); }

 private:
  static KVCacheManager make() {
    CacheSpec spec;
    GroupSpec full;
    full.head_dim_k = 8;
    full.block_size = 16;
    full.num_blocks = 256;
    GroupSpec window = full;
    window.kind = AttentionKind::kSlidingWindow;
    window.window = 32;
    window.block_size = 8;
    spec.groups = {full, window};
    return std::move(*KVCacheManager::create(spec, {.max_sequences = kSequences}));
  }

  void open(std::size_t i, int length) {
    prompt_.clear();
    last_[i] = static_cast<int>(round_++ % 5);
    for (int p = 0; p < 40; ++p) prompt_.push_back(p < 24 ? p : last_[i]);
    const Result<Opened> opened = manager_.open(prompt_);
    sequences_[i] = opened->sequence;
    fed_[i] = opened->cached_tokens;
    until_[i] = length;
  }

  void step() {
    const Ticket ticket = *manager_.begin_step();
    for (std::size_t i = 0; i < kSequences; ++i) {
      batch_.clear();
      do {
        const int p = fed_[i]++;
        batch_.push_back(p < 24 ? p : (p < 40 ? last_[i] : p * 31 % (11 + static_cast<int>(i))));
      } while (fed_[i] < 40);
      const Status appended = manager_.append(sequences_[i], batch_);
      if (!appended.ok()) std::abort();
    }
    const Result<const StepPlan*> plan =
        manager_.plan({.pad = 0, .flashinfer = true, .shared_prefixes = true});
    if (!plan.has_value() || !manager_.finish(ticket).ok()) std::abort();
    for (std::size_t i = 0; i < kSequences; ++i) {
      if (fed_[i] < until_[i]) continue;
      if (!manager_.close(sequences_[i]).ok()) std::abort();
      open(i, 64 + static_cast<int>(round_ % 7) * 31);
    }
  }

  KVCacheManager manager_;
  std::vector<std::int32_t> prompt_;
  std::vector<std::int32_t> batch_;
  SequenceId sequences_[kSequences];
  int fed_[kSequences] = {};
  int until_[kSequences] = {};
  int last_[kSequences] = {};
  std::uint64_t round_ = 0;
};

std::uint64_t heap_calls_of(Engine& engine, int steps) {
  const std::uint64_t before = heap_calls.load();
  engine.steps(steps);
  return heap_calls.load() - before;
}

TEST(SteadyHeap, HookCounts) {
  const std::uint64_t before = heap_calls.load();
  ::operator delete(::operator new(4));  // not an expression that a compiler may leave out
  EXPECT_GT(heap_calls.load(), before);
}

TEST(SteadyHeap, DecodeOf100And20000StepsMakesTheSameNumberOfHeapCalls) {
  Engine engine;
  engine.steps(600);  // buffers of plans reach their size
  const std::uint64_t calls_100 = heap_calls_of(engine, 100);
  const std::uint64_t calls_20000 = heap_calls_of(engine, 20000);
  EXPECT_EQ(calls_100, calls_20000);
  EXPECT_EQ(calls_20000, 0u);
  // The run was not an idle one.
  EXPECT_GT(engine.counters().blocks_evicted, 0u);
  EXPECT_GT(engine.counters().tokens_reused, 0u);
}

TEST(SteadyHeap, ShortageOpenForkTruncateAndCloseAllocateNothing) {
  CacheSpec spec;
  GroupSpec group;
  group.head_dim_k = 8;
  group.block_size = 4;
  group.num_blocks = 8;
  spec.groups = {group};
  KVCacheManager manager = std::move(*KVCacheManager::create(spec, {.max_sequences = 4}));
  const std::vector<std::int32_t> prompt = {1, 2, 3, 4, 5, 6};
  const std::vector<std::int32_t> more(64, 1);
  const auto round = [&] {
    const Result<Opened> opened = manager.open(prompt);
    const Ticket ticket = *manager.begin_step();
    const std::span<const std::int32_t> rest(prompt.begin() + opened->cached_tokens, prompt.end());
    bool ok = manager.append(opened->sequence, rest).ok();
    ok = ok && manager.plan().has_value() && manager.finish(ticket).ok();
    const Result<SequenceId> child = manager.fork(opened->sequence);
    const Ticket next = *manager.begin_step();
    ok = ok && manager.append(*child, more).code() == ErrorCode::kNoBlocks;
    ok = ok && manager.admit(*child, 3).ok() && manager.drop(next).ok();
    ok = ok && manager.truncate(*child, 5).ok();
    ok = ok && manager.close(*child).ok() && manager.close(opened->sequence).ok();
    if (!ok) std::abort();
  };
  round();
  round();
  const std::uint64_t before = heap_calls.load();
  for (int i = 0; i < 100; ++i) round();
  EXPECT_EQ(heap_calls.load() - before, 0u);
}

}  // namespace
}  // namespace kvfolio
