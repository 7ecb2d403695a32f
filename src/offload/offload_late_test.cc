// SPDX-License-Identifier: Apache-2.0
//
// Offload over memory whose copies end late, in any order, or fail (storage/late_memory.h).

#include <gtest/gtest.h>

#include <optional>

#include "offload/test_offload.h"
#include "storage/late_memory.h"

namespace kvfolio {
namespace {

using test::Cache;
using test::evict_all;
using test::kFullRecord;
using test::LateMemory;
using test::offload_of;
using test::prompt_of;

constexpr std::int32_t kPrompt = 64;

// The cache lies in memory whose copies do not end before a test says so.
struct Late {
  LateMemory memory;
  Cache cache;
  std::unique_ptr<Offload> offload;
  std::uint64_t now_us = 1'000'000;

  explicit Late(std::int64_t arena_bytes = 1 << 20,
                ManagerOptions options = {.max_sequences = 16, .max_transfers = 8},
                std::int32_t num_blocks = 40)
      : cache(test::full(num_blocks), options, &memory),
        offload(offload_of(cache, {}, arena_bytes)) {
    memory.ends_percent = 0;
  }
  std::span<const SequenceReady> poll() { return offload->poll(now_us += 100); }
  // A prompt is in the arena, and not in the cache.
  void store(int number) {
    cache.compute(prompt_of(number, kPrompt));
    end_all();
    evict_all(cache);
  }
  void end_all() {
    for (int i = 0; i < 20; ++i) {
      poll();
      memory.end_all();
    }
    EXPECT_TRUE(offload->idle());
  }
  // A load of the prompt whose copies are on their way.
  SequenceId begin_load(int number) {
    const auto open = offload->open(prompt_of(number, kPrompt));
    EXPECT_TRUE(open && open->pending);
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(poll().empty());
    EXPECT_GT(memory.on_their_way(), 0u);
    return open->sequence;
  }
  std::optional<SequenceReady> wait_for(SequenceId sequence) {
    for (int i = 0; i < 20; ++i) {
      for (const SequenceReady& ready : poll()) {
        if (ready.sequence == sequence) return ready;
      }
      memory.end_all();
    }
    return std::nullopt;
  }
  std::int64_t on_hold() { return cache.manager.usage(GroupId(0))->on_hold; }
  std::int64_t loading() { return cache.manager.usage(GroupId(0))->loading; }
  void expect_whole() {
    EXPECT_TRUE(cache.manager.check_invariants().ok());
    EXPECT_TRUE(offload->check_invariants().ok());
  }
};

TEST(OffloadLate, NothingIsFindableBeforeItsBytesHaveArrived) {
  Late t;
  t.cache.compute(prompt_of(1, kPrompt));
  for (int i = 0; i < 10; ++i) t.poll();
  EXPECT_EQ(t.offload->arena().records, 0);
  EXPECT_EQ(t.offload->counters().stores, 0u);
  EXPECT_EQ(t.on_hold(), 8);
  EXPECT_FALSE(t.offload->idle());
  t.end_all();
  EXPECT_EQ(t.offload->arena().records, 8);
  EXPECT_EQ(t.on_hold(), 0);
  evict_all(t.cache);
  const SequenceId loading = t.begin_load(1);
  EXPECT_EQ(t.cache.hit(prompt_of(1, kPrompt)), 0);
  EXPECT_EQ(t.loading(), 8);
  t.expect_whole();
  const auto ready = t.wait_for(loading);
  ASSERT_TRUE(ready);
  EXPECT_EQ(ready->why, LoadEnd::kLoaded);
  EXPECT_EQ(ready->cached_tokens, kPrompt - 1);
  t.cache.check_sequence(loading, prompt_of(1, kPrompt - 1));
  EXPECT_EQ(t.loading(), 0);
  EXPECT_EQ(t.memory.num_unknown, 0u);
  t.expect_whole();
}

// A step may not write to a block that is still read: evicted, it stays with its hold.
TEST(OffloadLate, ABlockOnItsWayIsGivenToNobodyWhateverBecomesOfIt) {
  Late t;
  t.cache.compute(prompt_of(1, kPrompt));
  t.poll();
  evict_all(t.cache);
  for (int number = 2; number < 6; ++number) t.cache.compute(prompt_of(number, kPrompt));
  t.end_all();
  evict_all(t.cache);
  for (int number = 1; number < 6; ++number) {
    const auto ready = t.wait_for(t.begin_load(number));
    ASSERT_TRUE(ready);
    EXPECT_EQ(ready->cached_tokens, kPrompt - 1);
    t.cache.check_sequence(ready->sequence, prompt_of(number, kPrompt - 1));
    EXPECT_TRUE(t.cache.manager.close(ready->sequence).ok());
  }
  EXPECT_EQ(t.offload->counters().arena_corrupt, 0u);
}

// The arena has room for one prompt: what is stored meanwhile finds no room there.
TEST(OffloadLate, ARecordIsNotReusedWhileItIsCopiedToTheCache) {
  Late t(8 * kFullRecord);
  t.store(1);
  const SequenceId loading = t.begin_load(1);
  t.cache.compute(prompt_of(2, kPrompt));
  for (int i = 0; i < 5; ++i) t.poll();
  const auto ready = t.wait_for(loading);
  ASSERT_TRUE(ready);
  EXPECT_EQ(ready->cached_tokens, kPrompt - 1);
  t.cache.check_sequence(loading, prompt_of(1, kPrompt - 1));
  EXPECT_GT(t.offload->counters().stores_dropped, 0u);
  t.expect_whole();
}

TEST(OffloadLate, ALoadOfWhichOneCopyFailsBringsNothingAndTheRecordsStay) {
  Late t;
  t.store(1);
  const SequenceId loading = t.begin_load(1);
  t.memory.fails_permille = 300;
  const auto ready = t.wait_for(loading);
  t.memory.fails_permille = 0;
  ASSERT_TRUE(ready);
  EXPECT_GT(t.memory.num_failed, 0u);
  EXPECT_EQ(t.offload->counters().copies_failed, t.memory.num_failed);
  EXPECT_EQ(ready->why, LoadEnd::kPart);
  EXPECT_EQ(ready->cached_tokens, 0);
  EXPECT_EQ(t.offload->arena().records, 8);
  EXPECT_TRUE(t.cache.manager.close(loading).ok());
  EXPECT_EQ(t.wait_for(t.begin_load(1))->cached_tokens, kPrompt - 1);
  t.expect_whole();
}

// The damage comes while the record is copied.
TEST(OffloadLate, ADamagedRecordIsCountedOnceAndTheLoadEndsInFrontOfItsBlock) {
  Late t;
  t.store(1);
  const SequenceId loading = t.begin_load(1);
  ASSERT_EQ(t.memory.on_their_way(), 8u);
  auto* const record = const_cast<std::byte*>(t.memory.source(3));
  *record ^= std::byte{1};
  const auto ready = t.wait_for(loading);
  ASSERT_TRUE(ready);
  EXPECT_EQ(ready->why, LoadEnd::kPart);
  EXPECT_EQ(ready->cached_tokens, 24);
  t.cache.check_sequence(loading, prompt_of(1, 24));
  const OffloadCounters& counters = t.offload->counters();
  EXPECT_EQ(counters.arena_corrupt, 1u);
  EXPECT_EQ(counters.loads, 7u);
  EXPECT_EQ(counters.tokens_loaded, 24u);
  EXPECT_EQ(counters.copies_failed, 0u);
  EXPECT_EQ(t.offload->arena().records, 7);
  EXPECT_EQ(t.cache.hit(prompt_of(1, kPrompt)), 24);
  t.expect_whole();
}

TEST(OffloadLate, AStoreWhoseCopyFailsLeavesNoRecord) {
  Late t;
  t.cache.compute(prompt_of(1, kPrompt));
  t.memory.fails_permille = 300;
  t.end_all();
  t.memory.fails_permille = 0;
  const OffloadCounters& counters = t.offload->counters();
  EXPECT_GT(t.memory.num_failed, 0u);
  EXPECT_EQ(counters.copies_failed, t.memory.num_failed);
  EXPECT_EQ(counters.stores_dropped, t.memory.num_failed);
  EXPECT_EQ(counters.stores, 8 - t.memory.num_failed);
  EXPECT_EQ(t.offload->arena().records, static_cast<std::int64_t>(counters.stores));
  EXPECT_EQ(t.on_hold(), 0);
  t.expect_whole();
}

TEST(OffloadLate, ACancelIsRefusedWhileBlocksAreCopiedAndTheSequenceIsReadySoonAfter) {
  Late t;
  t.store(1);
  const SequenceId loading = t.begin_load(1);
  EXPECT_EQ(t.offload->cancel(loading).error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_TRUE(t.poll().empty());
  const auto ready = t.wait_for(loading);
  ASSERT_TRUE(ready);
  EXPECT_EQ(t.cache.manager.info(loading)->length, ready->cached_tokens);
  t.cache.check_sequence(loading, prompt_of(1, ready->cached_tokens));
  t.cache.go_on(loading, prompt_of(1, kPrompt), ready->cached_tokens);
  t.expect_whole();
}

// A prompt of two parts, whose second one would begin when the first one has come whole.
struct TwoParts : Late {
  static constexpr std::int32_t kFirst = 4096 * 8;
  const std::vector<std::int32_t> prompt = prompt_of(1, kFirst + kPrompt);
  SequenceId loading{};

  // All copies of the first part are on their way.
  TwoParts() : Late(4 << 20, {.max_sequences = 16, .max_transfers = 4200}, 4200) {
    cache.compute(prompt);
    end_all();
    evict_all(cache);
    const auto open = offload->open(prompt);
    EXPECT_TRUE(open && open->pending);
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(poll().empty());
    EXPECT_EQ(memory.on_their_way(), 4096u);
    loading = open->sequence;
  }
  // It goes on with what it has, and nothing is loaded for it any more.
  void expect_canceled() {
    EXPECT_EQ(offload->num_pending(), 0u);
    EXPECT_EQ(offload->counters().requests_canceled, 1u);
    EXPECT_EQ(cache.manager.info(loading)->length, kFirst);
    EXPECT_TRUE(poll().empty());
    cache.go_on(loading, prompt, kFirst);
    EXPECT_TRUE(poll().empty());
    EXPECT_EQ(offload->counters().requests_canceled, 1u);
    expect_whole();
  }
};

// O8.
TEST(OffloadLate, ACanceledRequestWhoseFirstPartCameWholeDoesNotGoOnWithTheNext) {
  TwoParts t;
  t.memory.end_all();
  const auto length = t.offload->cancel(t.loading);
  ASSERT_TRUE(length) << length.error();
  EXPECT_EQ(*length, TwoParts::kFirst);
  t.expect_canceled();
}

// O8.
TEST(OffloadLate, ADrainEndsARequestWhoseFirstPartCameWhole) {
  TwoParts t;
  t.memory.end_all();
  t.offload->drain(t.now_us += 100);
  t.expect_canceled();
}

// O8.
TEST(OffloadLate, ACancelThatWasRefusedEndsTheRequestWithItsPart) {
  TwoParts t;
  EXPECT_EQ(t.offload->cancel(t.loading).error().code(), ErrorCode::kFailedPrecondition);
  t.memory.end_all();
  const auto ready = t.poll();
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_EQ(ready[0].cached_tokens, TwoParts::kFirst);
  EXPECT_EQ(ready[0].why, LoadEnd::kPart);
  EXPECT_EQ(t.offload->num_pending(), 0u);
  t.cache.go_on(t.loading, t.prompt, TwoParts::kFirst);
  t.expect_whole();
}

TEST(OffloadLate, ALateLoadEndsWhenItsCopiesHaveEndedAndNotBefore) {
  Late t;
  t.store(1);
  const SequenceId loading = t.begin_load(1);
  t.now_us += 3'000'000'000;
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(t.poll().empty());
  EXPECT_EQ(t.loading(), 8);
  const auto ready = t.wait_for(loading);
  ASSERT_TRUE(ready);
  t.cache.check_sequence(loading, prompt_of(1, ready->cached_tokens));
  EXPECT_EQ(t.loading(), 0);
}

TEST(OffloadLate, BlocksOfAClosedSequenceStayWithTheirLoadUntilTheirCopiesHaveEnded) {
  Late t;
  t.store(1);
  const SequenceId loading = t.begin_load(1);
  EXPECT_TRUE(t.cache.manager.close(loading).ok());
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(t.poll().empty());
  EXPECT_EQ(t.loading(), 8);
  for (int number = 2; number < 6; ++number) t.cache.compute(prompt_of(number, kPrompt));
  t.end_all();
  EXPECT_EQ(t.loading(), 0);
  for (int number = 2; number < 6; ++number) t.cache.check_hit(prompt_of(number, kPrompt));
  t.expect_whole();
}

TEST(OffloadLate, WhatIsForgottenOnItsWayIsNeitherStoredNorLoaded) {
  for (const bool all : {false, true}) {
    Late t;
    const auto forget = [&] { all ? t.offload->reset() : t.offload->forget(RootKey{}); };
    t.cache.compute(prompt_of(1, kPrompt));
    t.poll();
    forget();
    t.end_all();
    EXPECT_EQ(t.offload->arena().records, 0);
    t.store(2);
    const SequenceId loading = t.begin_load(2);
    forget();
    EXPECT_EQ(t.loading(), 8);
    const auto ready = t.wait_for(loading);
    ASSERT_TRUE(ready);
    EXPECT_EQ(ready->why, LoadEnd::kForgotten);
    EXPECT_EQ(ready->cached_tokens, 0);
    EXPECT_EQ(t.cache.hit(prompt_of(2, kPrompt)), 0);
    t.expect_whole();
  }
}

// The blocks stay with their hold and their load: what is lost is not given to others.
TEST(OffloadLate, AnOffloadThatEndsLeavesWhatIsStillCopiedAlone) {
  for (const bool ends : {true, false}) {
    Late t;
    t.store(1);
    t.begin_load(1);
    t.cache.compute(prompt_of(2, kPrompt));
    t.poll();
    EXPECT_GT(t.on_hold(), 0);
    t.memory.ends_percent = ends ? 50 : 0;
    t.offload.reset();
    EXPECT_EQ(t.loading(), ends ? 0 : 8);
    EXPECT_EQ(t.on_hold() > 0, !ends);
    EXPECT_EQ(t.memory.num_left, t.memory.on_their_way()) << "no ticket waits for a poll";
    EXPECT_TRUE(t.cache.manager.check_invariants().ok());
    t.memory.end_all();
  }
}

// The storage goes with its manager, and its memory with the storage: MemoryResource::deallocate()
// waits for what is copied there, also if no poll asks for the tickets.
TEST(OffloadLate, AManagerThatEndsWhileItsBlocksAreCopiedLeavesNoCopyBehind) {
  for (const bool large : {false, true}) {
    LateMemory memory;
    memory.ends_percent = 0;
    const CacheSpec spec = test::full(large ? 20'000 : 40);  // large: a mapping of its own
    const ManagerOptions options{.max_sequences = 16, .max_transfers = 8};
    std::optional<Cache> cache(std::in_place, spec, options, &memory);
    auto offload = offload_of(*cache);
    cache->compute(prompt_of(1, kPrompt));
    for (int i = 0; i < 20; ++i) {
      offload->poll(1'000'000);
      memory.end_all();
    }
    evict_all(*cache);
    EXPECT_TRUE(offload->open(prompt_of(1, kPrompt))->pending);
    for (int i = 0; i < 5; ++i) offload->poll(2'000'000);
    cache->compute(prompt_of(2, kPrompt));
    offload->poll(2'000'000);
    ASSERT_EQ(memory.num_moving(), 16u);  // a load and stores
    cache.reset();
    EXPECT_EQ(memory.num_moving(), 0u);
    EXPECT_EQ(offload->open(prompt_of(1, kPrompt)).error().code(), ErrorCode::kFailedPrecondition);
    EXPECT_EQ(offload->counters().loads, 0u);
    offload.reset();
    memory.end_all();
  }
}

// A stream that is being captured takes no event, so copies cannot come behind it: that is no
// failure of memory.
TEST(OffloadLate, AStoreThatCannotBeginWhileAStreamIsCapturedIsMadeAfterIt) {
  Late t;
  t.store(1);
  t.cache.compute(prompt_of(2, kPrompt));
  t.memory.is_captured = true;
  for (int i = 0; i < 20; ++i) t.poll();
  EXPECT_EQ(t.memory.num_refused, 20u) << "one question in each poll";
  EXPECT_FALSE(t.offload->idle());
  EXPECT_TRUE(t.offload->drain(t.now_us).blocks);
  EXPECT_EQ(t.on_hold(), 0);
  EXPECT_EQ(t.offload->arena().writing, 0);
  t.expect_whole();
  t.memory.is_captured = false;
  t.end_all();
  const OffloadCounters& counters = t.offload->counters();
  EXPECT_EQ(counters.stores, 16u);
  EXPECT_EQ(counters.stores_dropped + counters.copies_failed, 0u);
  t.expect_whole();
}

TEST(OffloadLate, ALoadThatCannotBeginWhileAStreamIsCapturedGoesOnAfterIt) {
  Late t;
  t.store(1);
  t.memory.is_captured = true;
  const auto open = t.offload->open(prompt_of(1, kPrompt));
  ASSERT_TRUE(open && open->pending);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(t.poll().empty());
  EXPECT_GT(t.memory.num_refused, 10u);
  EXPECT_GT(t.offload->arena().pins, 0) << "its records stay";
  t.expect_whole();
  t.memory.is_captured = false;
  const auto ready = t.wait_for(open->sequence);
  ASSERT_TRUE(ready);
  EXPECT_EQ(ready->why, LoadEnd::kLoaded);
  EXPECT_EQ(ready->cached_tokens, kPrompt - 1);
  t.cache.check_sequence(open->sequence, prompt_of(1, kPrompt - 1));
  EXPECT_EQ(t.offload->counters().copies_failed, 0u);
  t.expect_whole();
}

TEST(OffloadLate, ALoadWhoseStreamIsCapturedTooLongEndsAtItsDeadline) {
  Late t;
  t.store(1);
  t.memory.is_captured = true;
  const auto open = t.offload->open(prompt_of(1, kPrompt));
  ASSERT_TRUE(open && open->pending);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(t.poll().empty());
  t.now_us += 3'000'000;
  const auto ready = t.wait_for(open->sequence);
  ASSERT_TRUE(ready);
  EXPECT_EQ(ready->why, LoadEnd::kTimeout);
  EXPECT_EQ(ready->cached_tokens, 0);
  EXPECT_EQ(t.loading(), 0);
  EXPECT_EQ(t.offload->counters().copies_failed, 0u);
  EXPECT_EQ(t.offload->arena().records, 8);
  t.expect_whole();
}

TEST(OffloadLate, WithOneTransferOneBlockIsStoredAtATime) {
  Late t(1 << 20, {.max_sequences = 16, .max_transfers = 1});
  t.cache.compute(prompt_of(1, kPrompt));
  t.end_all();
  EXPECT_EQ(t.memory.most_on_their_way, 1u);
  EXPECT_EQ(t.offload->arena().records, 8);
}

}  // namespace
}  // namespace kvfolio
