// SPDX-License-Identifier: Apache-2.0
// Steady decode allocates nothing: 100 and 20,000 steps make the same number of heap calls.

#include <gtest/gtest.h>

#include <vector>

#include "heap_calls/heap_calls.h"
#include "kvfolio/fixed_array.h"
#include "kvfolio/manager.h"

namespace kvfolio {
namespace {

using testing_heap::num_heap_calls;

#ifndef KVFOLIO_TEST_SANITIZED
TEST(SteadyHeap, HookCountsCalloc) {
  const std::uint64_t before = num_heap_calls();
  FixedArray<std::int32_t> array;
  ASSERT_TRUE(array.allocate_zeroed(1000));
  asm volatile("" : : "g"(array.data()) : "memory");  // or clang takes the calloc away
  EXPECT_EQ(num_heap_calls(), before + 1);
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
    return *KVCacheManager::create(spec, {.max_sequences = kSequences});
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
  const std::uint64_t before = num_heap_calls();
  engine.steps(steps);
  return num_heap_calls() - before;
}

TEST(SteadyHeap, HookCounts) {
  const std::uint64_t before = num_heap_calls();
  ::operator delete(::operator new(4));  // not an expression that a compiler may leave out
  EXPECT_GT(num_heap_calls(), before);
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
  KVCacheManager manager = *KVCacheManager::create(spec, {.max_sequences = 4});
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
  const std::uint64_t before = num_heap_calls();
  for (int i = 0; i < 100; ++i) round();
  EXPECT_EQ(num_heap_calls() - before, 0u);
}

}  // namespace
}  // namespace kvfolio
