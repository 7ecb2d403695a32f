// SPDX-License-Identifier: Apache-2.0
//
// Stores to host memory and loads from it.

#include "kvfolio/offload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "kvfolio/storage.h"
#include "offload/test_offload.h"

namespace kvfolio {
namespace {

using test::Cache;
using test::CountedMemory;
using test::evict_all;
using test::kFullRecord;
using test::left_by_a_first_process;
using test::MemoryTier;
using test::offload_of;
using test::opened;
using test::prompt_of;
using test::run_to_the_end;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(Offload, AColdPromptComesBackFromHostMemory) {
  for (const CacheSpec& spec : {test::full(40), test::window(40), test::mixed(40, 40)}) {
    Cache cache(spec);
    const auto offload = offload_of(cache);
    const std::vector<std::int32_t> prompt = prompt_of(1, 33);
    cache.compute(prompt);
    run_to_the_end(*offload);
    evict_all(cache);
    ASSERT_EQ(cache.hit(prompt), 0);
    const SequenceReady ready = opened(*offload, cache, prompt);
    EXPECT_EQ(ready.cached_tokens, 32);
    EXPECT_EQ(ready.why, LoadEnd::kLoaded);
    cache.go_on(ready.sequence, prompt, ready.cached_tokens);
    EXPECT_TRUE(cache.manager.close(ready.sequence).ok());
    EXPECT_EQ(cache.check_hit(prompt), 32);
  }
}

TEST(Offload, APromptOfWholeUnitsComputesOneToken) {
  Cache cache(test::full(40));
  const auto offload = offload_of(cache);
  cache.compute(prompt_of(1, 32));
  run_to_the_end(*offload);
  evict_all(cache);
  EXPECT_EQ(opened(*offload, cache, prompt_of(1, 32)).cached_tokens, 31);
}

TEST(Offload, EveryLengthComesBackAsFarAsItsUnitsGo) {
  for (const CacheSpec& spec : {test::full(40), test::window(40), test::mixed(40, 40)}) {
    const std::int32_t size = spec.groups[0].block_size;
    for (std::int32_t length = 1; length < 70; ++length) {
      Cache cache(spec);
      const auto offload = offload_of(cache);
      cache.compute(prompt_of(1, length));
      run_to_the_end(*offload);
      evict_all(cache);
      const SequenceReady ready = opened(*offload, cache, prompt_of(1, length));
      EXPECT_EQ(ready.cached_tokens, std::min(length / size * size, length - 1)) << length;
      EXPECT_TRUE(cache.manager.close(ready.sequence).ok());
    }
  }
}

TEST(Offload, OnlyWhatIsMissingIsLoaded) {
  Cache cache(test::full(40));
  const auto offload = offload_of(cache);
  std::vector<std::int32_t> prompt = prompt_of(1, 64);
  cache.compute(prompt);
  run_to_the_end(*offload);
  evict_all(cache);
  cache.compute(std::span(prompt).first(24));
  const SequenceReady ready = opened(*offload, cache, prompt);
  EXPECT_EQ(ready.cached_tokens, 63);
  EXPECT_EQ(offload->counters().loads, 8u - 3u);
}

TEST(Offload, WhatNobodyHasIsNotWaitedFor) {
  Cache cache(test::full(40));
  const auto offload = offload_of(cache);
  const auto open = offload->open(prompt_of(1, 33));
  ASSERT_TRUE(open);
  EXPECT_FALSE(open->pending);
  EXPECT_TRUE(offload->poll(1).empty());
}

TEST(Offload, WhoGoesOnCancelsAndWhoClosesToo) {
  MemoryTier tier(1, {.silent = 1000});
  const OffloadTier tiers[] = {{.tier = &tier}};
  Cache cache(test::full(40));
  const auto offload = offload_of(cache, tiers, 1 << 20, {.timeout_us = 1'000'000'000});
  const std::vector<std::int32_t> prompt = prompt_of(1, 64);
  const auto a = offload->open(prompt);
  const auto b = offload->open(prompt);
  const auto c = offload->open(prompt);
  ASSERT_TRUE(c->pending);
  offload->poll(1);
  cache.go_on(a->sequence, prompt, 0);
  EXPECT_TRUE(cache.manager.close(b->sequence).ok());
  EXPECT_EQ(*offload->cancel(c->sequence), 0);
  EXPECT_TRUE(offload->poll(2).empty());
  EXPECT_TRUE(offload->poll(2'000'000'000).empty());
  EXPECT_EQ(offload->counters().requests_canceled, 3u);
  EXPECT_FALSE(offload->cancel(b->sequence));
}

TEST(Offload, APollLoadsNoMoreThanItsBytesAndStoresHalfOfThem) {
  Cache cache(test::full(40));
  const auto offload = offload_of(cache, {}, 1 << 20, {.bytes_per_poll = 2 * kFullRecord});
  const std::vector<std::int32_t> prompt = prompt_of(1, 64);
  cache.compute(prompt);
  for (std::uint64_t i = 1; i <= 4; ++i) {
    offload->poll(i);
    EXPECT_EQ(offload->counters().stores, i);
  }
  run_to_the_end(*offload);
  evict_all(cache);
  const auto open = offload->open(prompt);
  ASSERT_TRUE(open->pending);
  for (std::uint64_t i = 1; i <= 3; ++i) {
    EXPECT_TRUE(offload->poll(1'000'000 + i).empty());
    EXPECT_EQ(offload->counters().loads, 2 * i);
    EXPECT_EQ(cache.hit(prompt), 0) << "findable before it is finished";
  }
  // In the middle of a load: what is written stands.
  EXPECT_EQ(*offload->cancel(open->sequence), 48);
  cache.check_sequence(open->sequence, std::span(prompt).first(48));
  EXPECT_EQ(cache.hit(prompt), 48);
}

TEST(Offload, APoolWithoutRoomTakesNoLoad) {
  Cache cache(test::full(12));
  const auto offload = offload_of(cache);
  cache.compute(prompt_of(1, 64));
  run_to_the_end(*offload);
  const SequenceId holder = cache.start(prompt_of(2, 64));
  const SequenceReady ready = opened(*offload, cache, prompt_of(1, 64));
  EXPECT_EQ(ready.why, LoadEnd::kNoBlocks);
  EXPECT_TRUE(cache.manager.close(holder).ok());
}

TEST(Offload, WhatIsMissingIsSaidByName) {
  Cache cache(test::full(8));
  const auto refusal = [&](OffloadOptions options) {
    return to_string(Offload::create(cache.manager, options).error());
  };
  EXPECT_THAT(refusal({.model = test::kToy, .arena_bytes = 100}),
              HasSubstr("a budget of 100 bytes, needed: at least 704"));
  EXPECT_THAT(refusal({.arena_bytes = 1 << 20}), HasSubstr("model is empty"));
  const OffloadTier none[] = {{}};
  EXPECT_THAT(refusal({.model = test::kToy, .arena_bytes = 1 << 20, .tiers = none}),
              HasSubstr("a tier is null"));
  auto unlisted = KVCacheManager::create(*KVStorage::create(test::full(8)));
  EXPECT_THAT(
      to_string(Offload::create(*unlisted, {.model = test::kToy, .arena_bytes = 1 << 20}).error()),
      HasSubstr("list_findable"));
}

TEST(Offload, LooksAtABoundedNumberOfBlocksInAPollAlsoIfItCopiesNone) {
  Cache cache(test::full(40));
  const auto offload = offload_of(cache, {}, 1 << 20, {.bytes_per_poll = 2 * kFullRecord});
  cache.compute(prompt_of(1, 64));
  run_to_the_end(*offload);
  ASSERT_TRUE(offload->idle());
  evict_all(cache);
  cache.compute(prompt_of(1, 64));  // eight blocks that the arena has
  int polls = 0;
  for (std::uint64_t now_us = 2'000'000; !offload->idle() && polls < 100; ++polls) {
    offload->poll(++now_us);
  }
  EXPECT_GE(polls, 8);
  EXPECT_EQ(offload->counters().stores, 8u);
}

// ---- ends ----

TEST(Offload, IsNotIdleWhileAStepMayBringSomething) {
  Cache cache(test::full(40));
  const auto offload = offload_of(cache);
  offload->poll(1);
  EXPECT_TRUE(offload->idle());
  const SequenceId sequence = cache.manager.open(prompt_of(1, 64))->sequence;
  const Ticket ticket = *cache.manager.begin_step();
  EXPECT_TRUE(cache.manager.append(sequence, prompt_of(1, 64)).ok());
  offload->poll(2);
  EXPECT_FALSE(offload->idle()) << "open";
  EXPECT_TRUE(cache.manager.commit(ticket).ok());
  offload->poll(3);
  EXPECT_FALSE(offload->idle()) << "in flight";
  EXPECT_TRUE(cache.manager.complete(ticket).ok());
  EXPECT_FALSE(offload->idle()) << "complete, and not stored yet";
  offload->poll(4);
  EXPECT_TRUE(offload->idle());
  EXPECT_EQ(offload->counters().stores, 8u);
}

TEST(Offload, CountsAsPendingWhatPollIsStillToName) {
  MemoryTier tier(1, {.late = 1000});  // answers nothing in time
  const OffloadTier tiers[] = {{.tier = &tier}};
  Cache cache(test::full(40));
  const auto offload = offload_of(cache, tiers, 1 << 20, {.timeout_us = 1000});
  EXPECT_EQ(offload->num_pending(), 0u);
  std::array<SequenceId, 5> sequences{};
  int prompt = 0;
  for (SequenceId& each : sequences) each = offload->open(prompt_of(prompt++, 64))->sequence;
  EXPECT_THAT(offload->poll(1), IsEmpty());
  EXPECT_EQ(offload->num_pending(), 5u);

  const Ticket ticket = *cache.manager.begin_step();
  EXPECT_TRUE(cache.manager.append(sequences[0], prompt_of(0, 64)).ok());
  EXPECT_TRUE(cache.manager.commit(ticket).ok());
  EXPECT_TRUE(cache.manager.complete(ticket).ok());
  EXPECT_TRUE(cache.manager.close(sequences[1]).ok());
  EXPECT_TRUE(offload->cancel(sequences[2]));
  EXPECT_THAT(offload->poll(2), IsEmpty());
  EXPECT_EQ(offload->num_pending(), 2u) << "neither what was appended to nor what was closed";
  EXPECT_THAT(offload->poll(100'000), SizeIs(2));
  EXPECT_EQ(offload->num_pending(), 0u);

  EXPECT_TRUE(offload->open(prompt_of(6, 64))->pending);
  offload->reset();
  EXPECT_EQ(offload->num_pending(), 1u) << "the next poll says so";
  EXPECT_THAT(offload->poll(100'001), SizeIs(1));
  EXPECT_EQ(offload->num_pending(), 0u);
}

TEST(Offload, DrainStoresAllWithoutLosingWhatATierIsTooSlowFor) {
  MemoryTier tier(1, {.late = 1000});
  tier.queue_max = 3;
  const OffloadTier tiers[] = {{.tier = &tier, .store_bytes_max = 2 * kFullRecord}};
  Cache cache(test::full(40));
  const auto offload = offload_of(cache, tiers, 4 * kFullRecord);
  for (const int prompt : {1, 2, 3}) cache.compute(prompt_of(prompt, 64));
  const auto open = offload->open(prompt_of(4, 64));
  ASSERT_TRUE(open->pending);
  int turns = 0;
  for (std::uint64_t now_us = 1; offload->drain(now_us).any(); now_us += 100) {
    ASSERT_LT(++turns, 10'000);
    EXPECT_TRUE(offload->check_invariants().ok());
  }
  EXPECT_EQ(tier.records.size(), 24u);
  EXPECT_EQ(offload->counters().tier_stores, 24u);
  EXPECT_EQ(offload->counters().tier_stores_dropped, 0u);
  EXPECT_EQ(offload->counters().requests_canceled, 1u);
  EXPECT_TRUE(offload->idle());
  EXPECT_TRUE(offload->poll(1'000'000'000).empty()) << "a request that was cancelled is not ready";
}

TEST(Offload, DrainSaysWhatIsLeftAndDoesNotWait) {
  MemoryTier tier(1, {.silent = 1000});
  const OffloadTier tiers[] = {{.tier = &tier}};
  Cache cache(test::full(40));
  const auto offload = offload_of(cache, tiers);
  const SequenceId sequence = cache.manager.open(prompt_of(1, 64))->sequence;
  const Ticket ticket = *cache.manager.begin_step();
  EXPECT_TRUE(cache.manager.append(sequence, prompt_of(1, 64)).ok());
  EXPECT_TRUE(cache.manager.commit(ticket).ok());
  OffloadLeft left = offload->drain(1);
  EXPECT_TRUE(left.blocks);
  EXPECT_EQ(left.stores, 0);
  EXPECT_TRUE(cache.manager.complete(ticket).ok());
  left = offload->drain(2);
  EXPECT_FALSE(left.blocks);
  EXPECT_EQ(left.stores, 8);
  EXPECT_EQ(left.loads + left.questions, 0);
  EXPECT_TRUE(offload->drain(1'000'000'000).any());
  EXPECT_TRUE(tier.close({}).ok());
  EXPECT_FALSE(offload->drain(1'000'000'001).any());
}

TEST(Offload, KeepsItsMemoryWhileATierMayReadAStore) {
  CountedMemory memory;
  MemoryTier tier(1, {.silent = 1000});
  const OffloadTier tiers[] = {{.tier = &tier}};
  Cache cache(test::full(40));
  auto offload = offload_of(cache, tiers, 32 * kFullRecord, {.resource = &memory});
  cache.compute(prompt_of(1, 64));
  offload->poll(1);
  ASSERT_EQ(offload->arena().pins, 8);
  offload.reset();
  EXPECT_FALSE(tier.closed);
  EXPECT_GT(memory.held, 0);
}

TEST(Offload, GivesItsMemoryBackUnlessATierMayTouchItAndClosesNoTier) {
  for (const bool loads : {false, true}) {
    CountedMemory memory;
    MemoryTier tier;
    tier.records = left_by_a_first_process(prompt_of(1, 64));
    const OffloadTier tiers[] = {{.tier = &tier}};
    Cache cache(test::full(40));
    auto offload = offload_of(cache, tiers, 1 << 20, {.resource = &memory});
    ASSERT_TRUE(offload->open(prompt_of(1, 64))->pending);
    if (loads) offload->poll(1);
    tier.set_faults({.silent = 1000});
    offload->poll(2);
    ASSERT_EQ(tier.in_flight(), 8u);
    ASSERT_EQ(tier.loads_asked, loads ? 8u : 0u);
    offload.reset();
    EXPECT_FALSE(tier.closed);
    EXPECT_EQ(memory.held > 0, loads);
    // Its owner closes it: now it writes what it was asked for.
    EXPECT_TRUE(tier.close({}).ok());
    std::array<TierDone, 64> done;
    EXPECT_EQ(tier.poll(3, done), 8u);
  }
}

TEST(Offload, ABudgetOfAllBytesThatThereAreStores) {
  Cache cache(test::full(40));
  const auto offload =
      offload_of(cache, {}, 1 << 20, {.bytes_per_poll = std::numeric_limits<std::int64_t>::max()});
  cache.compute(prompt_of(1, 64));
  offload->poll(1);
  EXPECT_EQ(offload->counters().stores, 8u);
  EXPECT_TRUE(offload->idle());
}

// M5.
TEST(Offload, FollowsItsManagerWhereItIsMoved) {
  Cache cache(test::full(40));
  const auto offload = offload_of(cache);
  const std::vector<std::int32_t> prompt = prompt_of(1, 33);
  cache.compute(prompt);
  KVCacheManager elsewhere = std::move(cache.manager);
  run_to_the_end(*offload);
  EXPECT_TRUE(elsewhere.evict(GroupId(0), 40));
  const auto open = offload->open(prompt);
  ASSERT_TRUE(open && open->pending);
  cache.manager = std::move(elsewhere);  // while a request is pending
  std::uint64_t now_us = 1'000'000;
  while (offload->poll(now_us += 100).empty()) {
  }
  EXPECT_EQ(cache.manager.info(open->sequence)->length, 32);
  cache.check_sequence(open->sequence, std::span(prompt).first(32));
  EXPECT_TRUE(offload->check_invariants().ok());
}

// M5. Another manager took its place, so the blocks that it speaks of are gone.
TEST(Offload, WithoutItsManagerCallsAreRefused) {
  Cache cache(test::full(40));
  Cache other(test::full(40));
  const auto offload = offload_of(cache);
  const std::vector<std::int32_t> prompt = prompt_of(1, 33);
  cache.compute(prompt);
  cache.manager = std::move(other.manager);
  for (const Status& refused :
       {offload->open(prompt).error(), offload->cancel(SequenceId(1)).error(),
        offload->forget(prompt).error(), offload->check_invariants()}) {
    EXPECT_EQ(refused.code(), ErrorCode::kFailedPrecondition);
    EXPECT_THAT(refused.message(), HasSubstr("the manager has ended"));
  }
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(offload->poll(1), "Offload::poll: the manager has ended");
  EXPECT_DEATH(static_cast<void>(offload->idle()), "Offload::idle: the manager has ended");
  EXPECT_DEATH(static_cast<void>(offload->drain(1)), "Offload::drain: the manager has ended");
  EXPECT_DEATH(offload->reset(), "Offload::reset: the manager has ended");
  EXPECT_DEATH(offload->forget(RootKey()), "Offload::forget: the manager has ended");
  EXPECT_DEATH(static_cast<void>(offload->epoch()), "Offload::epoch: the manager has ended");
  EXPECT_DEATH(static_cast<void>(offload->epochs()), "Offload::epochs: the manager has ended");
  const auto of_moved =
      Offload::create(other.manager, {.model = test::kToy, .arena_bytes = 1 << 20});
  EXPECT_EQ(of_moved.error().code(), ErrorCode::kFailedPrecondition);
}

}  // namespace
}  // namespace kvfolio
