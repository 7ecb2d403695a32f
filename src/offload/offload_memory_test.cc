// SPDX-License-Identifier: Apache-2.0
//
// Offload and snapshots over a cache whose memory fails: each copy fails once, and then no wrong
// byte is served, no record holds bytes that did not arrive, and nothing is left behind.

#include <gtest/gtest.h>

#include "kvfolio/snapshot.h"
#include "offload/test_offload.h"
#include "storage/failing_memory.h"

namespace kvfolio {
namespace {

using test::Cache;
using test::evict_all;
using test::FailingMemory;
using test::MemoryFile;
using test::offload_of;
using test::opened;
using test::prompt_of;

constexpr std::int32_t kLongPrompt = 64;

std::vector<CacheSpec> specs() { return {test::full(40), test::mixed(40, 40)}; }

// A cache in memory that fails, and an Offload over it.
struct FailingCache {
  FailingMemory memory;
  Cache cache;
  std::unique_ptr<Offload> offload;

  explicit FailingCache(const CacheSpec& spec)
      : cache(spec, {.max_sequences = 16}, &memory), offload(offload_of(cache)) {}
  // What open() and poll() bring of the prompt, each byte checked; it is closed again.
  SequenceReady bring() {
    const SequenceReady ready =
        opened(*offload, cache, prompt_of(1, kLongPrompt), {}, now_us += 1000);
    EXPECT_TRUE(cache.manager.close(ready.sequence).ok());
    return ready;
  }
  void store() {
    for (int i = 0; i < 20; ++i) offload->poll(now_us += 100);
    EXPECT_TRUE(offload->idle());
    EXPECT_TRUE(offload->check_invariants().ok());
  }
  void expect_whole() const {
    EXPECT_TRUE(cache.manager.check_invariants().ok());
    EXPECT_TRUE(offload->check_invariants().ok());
    EXPECT_EQ(offload->arena().pins, 0);
    EXPECT_EQ(offload->arena().writing, 0);
    for (std::size_t g = 0; g < cache.manager.spec().groups.size(); ++g) {
      EXPECT_EQ(cache.manager.usage(GroupId(std::int32_t(g)))->loading, 0);
    }
  }
  std::uint64_t now_us = 1'000'000;
};

TEST(OffloadMemory, ABlockWhoseBytesDidNotArriveLeavesNoRecord) {
  for (const CacheSpec& spec : specs()) {
    bool fails = true;
    for (std::int64_t at = 1; fails; ++at) {
      FailingCache c(spec);
      c.cache.compute(prompt_of(1, kLongPrompt));
      c.memory.fail_run(at);
      c.store();
      fails = c.memory.num_runs >= at;
      c.memory.fail_run(0);
      const OffloadCounters& counters = c.offload->counters();
      EXPECT_EQ(counters.copies_failed, fails ? 1u : 0u);
      EXPECT_EQ(counters.stores_dropped, counters.copies_failed);
      EXPECT_EQ(c.offload->arena().records, static_cast<std::int64_t>(counters.stores));
      evict_all(c.cache);
      const SequenceReady ready = c.bring();
      // Not every block of a window group is read by this prompt.
      const bool is_missed = fails && spec.groups.size() == 1;
      EXPECT_TRUE(ready.cached_tokens == kLongPrompt - 1 ? !is_missed : fails) << at;
      EXPECT_EQ(counters.arena_corrupt, 0u);
      c.expect_whole();
    }
  }
}

TEST(OffloadMemory, ALoadWhoseBytesDidNotArriveBringsNothingAndTheRecordsStay) {
  for (const CacheSpec& spec : specs()) {
    bool fails = true;
    for (std::int64_t at = 1; fails; ++at) {
      FailingCache c(spec);
      c.cache.compute(prompt_of(1, kLongPrompt));
      c.store();
      const std::int64_t records = c.offload->arena().records;
      evict_all(c.cache);
      c.memory.fail_run(at);
      const SequenceReady ready = c.bring();
      fails = c.memory.num_runs >= at;
      c.memory.fail_run(0);
      EXPECT_EQ(ready.why, fails ? LoadEnd::kPart : LoadEnd::kLoaded) << at;
      EXPECT_EQ(ready.cached_tokens, fails ? 0 : kLongPrompt - 1);
      EXPECT_EQ(c.cache.hit(prompt_of(1, kLongPrompt)), ready.cached_tokens);
      EXPECT_EQ(c.offload->counters().copies_failed, fails ? 1u : 0u);
      EXPECT_EQ(c.offload->counters().arena_corrupt, 0u);
      EXPECT_EQ(c.offload->arena().records, records);
      c.expect_whole();
      EXPECT_EQ(c.bring().cached_tokens, kLongPrompt - 1) << "the next one is right";
      c.expect_whole();
    }
  }
}

TEST(OffloadMemory, ASnapshotIsNotSavedFromBytesThatDidNotArrive) {
  for (const CacheSpec& spec : specs()) {
    bool fails = true;
    for (std::int64_t at = 1; fails; ++at) {
      FailingMemory memory;
      Cache cache(spec, {.max_sequences = 16}, &memory);
      cache.compute(prompt_of(1, kLongPrompt));
      const auto identity = Identity::create(test::toy_of(spec), spec);
      MemoryFile file;
      memory.fail_run(at);
      const auto saved = save(cache.manager, *identity, file);
      fails = !saved;
      EXPECT_EQ(fails ? saved.error().code() : ErrorCode::kUnavailable, ErrorCode::kUnavailable);
      EXPECT_EQ(cache.check_hit(prompt_of(1, kLongPrompt)), kLongPrompt - 1);
    }
  }
}

TEST(OffloadMemory, ARestoreWhoseBytesDidNotArriveFailsAndLeavesNoSequenceOpen) {
  for (const CacheSpec& spec : specs()) {
    Cache before(spec);
    const auto prompt = prompt_of(2, kLongPrompt);
    const SnapshotSequence open{.sequence = before.start(prompt), .tokens = prompt};
    before.compute(prompt_of(1, kLongPrompt));
    const auto identity = Identity::create(test::toy_of(spec), spec);
    MemoryFile file;
    ASSERT_TRUE(save(before.manager, *identity, file, {.sequences = {&open, 1}}));
    bool fails = true;
    for (std::int64_t at = 1; fails; ++at) {
      FailingMemory memory;
      Cache after(spec, {.max_sequences = 16}, &memory);
      memory.fail_run(at);
      const auto restored = restore(after.manager, *identity, file);
      fails = !restored;
      memory.fail_run(0);
      if (fails) {
        EXPECT_EQ(restored.error().code(), ErrorCode::kUnavailable) << restored.error();
        EXPECT_EQ(after.manager.num_sequences(), 0);
      } else {
        EXPECT_EQ(after.hit(prompt), kLongPrompt - 1);
      }
      EXPECT_EQ(after.manager.usage(GroupId(0))->loading, 0);
      for (const int number : {1, 2}) after.check_hit(prompt_of(number, kLongPrompt));
      EXPECT_TRUE(after.manager.check_invariants().ok());
    }
  }
}

}  // namespace
}  // namespace kvfolio
