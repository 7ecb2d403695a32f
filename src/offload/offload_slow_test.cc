// SPDX-License-Identifier: Apache-2.0
//
// Tiers that hang or are slow: what they hold of the arena, when they are passed over, and what
// becomes of the stores that wait for them.

#include "kvfolio/offload.h"

#include <gtest/gtest.h>

#include "kvfolio/tier_metrics.h"
#include "offload/slow_tier.h"
#include "offload/test_offload.h"
#include "offload/tier_port.h"

namespace kvfolio {
namespace {

using test::Cache;
using test::evict_all;
using test::kFullRecord;
using test::left_by_a_first_process;
using test::MemoryTier;
using test::offload_of;
using test::opened;
using test::prompt_of;
using test::run_to_the_end;
using test::SlowTier;

constexpr int kPrompts = 40;
constexpr std::int64_t kArena = 64 * kFullRecord;

// What a first process stored of the prompts, 64 tokens each.
void leave_prompts(MemoryTier::Records& records) {
  for (int i = 0; i < kPrompts; ++i) records.merge(left_by_a_first_process(prompt_of(i, 64)));
  ASSERT_EQ(records.size(), kPrompts * 8u);
}

// The fourth prompt does not wait for the tier any more.
void time_out_three_times(Offload& offload, Cache& cache) {
  for (int i = 0; i < 4; ++i) {
    const SequenceReady ready =
        opened(offload, cache, prompt_of(1, 64), {}, 100'000u * unsigned(i));
    EXPECT_EQ(ready.why, i < 3 ? LoadEnd::kTimeout : LoadEnd::kNothing);
    EXPECT_TRUE(cache.manager.close(ready.sequence).ok());
  }
}

// A tier whose index answers and whose loads never end, in front of one that has everything.
// O1.
TEST(Offload, AHungTierCostsNoTokenThatAnotherOneHas) {
  MemoryTier healthy;
  leave_prompts(healthy.records);
  SlowTier hung;
  hung.records = healthy.records;
  hung.loads_hang = true;
  const OffloadTier tiers[] = {{.tier = &hung}, {.tier = &healthy}};
  Cache cache(test::full(400));
  const auto offload = offload_of(cache, tiers, kArena);
  std::int32_t tokens = 0;
  for (int i = 0; i < kPrompts; ++i) {
    const SequenceReady ready =
        opened(*offload, cache, prompt_of(i, 64), {}, 100'000u * unsigned(i));
    tokens += ready.cached_tokens;
    EXPECT_EQ(ready.why, LoadEnd::kLoaded) << i;
    EXPECT_TRUE(cache.manager.close(ready.sequence).ok());
    EXPECT_LE(offload->arena().quarantined, 64 / 3);
  }
  EXPECT_EQ(tokens, kPrompts * 63);
  EXPECT_TRUE(offload->tier_counters(0).passed_over);
  EXPECT_FALSE(offload->tier_counters(1).passed_over);
  EXPECT_GT(offload->tier_counters(0).bytes_held, 0);
  EXPECT_LE(offload->tier_counters(0).bytes_held, kArena / 3);
  EXPECT_TRUE(hung.health().usable) << "it says so itself";
  EXPECT_FALSE(is_up(offload->tier_counters(0), hung.health()));
  // And what is computed meanwhile is stored.
  evict_all(cache);
  for (int i = 0; i < kPrompts; ++i) cache.compute(prompt_of(1000 + i, 64));
  for (std::uint64_t now_us = 9'000'000; offload->drain(now_us).blocks; now_us += 100) {
  }
  EXPECT_EQ(offload->counters().stores_dropped, 0u);
  EXPECT_EQ(offload->tier_counters(1).stores_dropped, 0u);
  EXPECT_EQ(healthy.records.size(), 2u * kPrompts * 8u);
  EXPECT_TRUE(hung.close({}).ok());
  run_to_the_end(*offload, 10'000'000);
  EXPECT_EQ(offload->arena().quarantined, 0);
}

// All prompts at once: the hung tier's share is used up before it is passed over.
TEST(Offload, PromptsThatComeTogetherPassAHungTierOver) {
  MemoryTier healthy;
  leave_prompts(healthy.records);
  SlowTier hung;
  hung.records = healthy.records;
  hung.loads_hang = true;
  const OffloadTier tiers[] = {{.tier = &hung}, {.tier = &healthy}};
  Cache cache(test::full(400), {.max_sequences = kPrompts});
  const auto offload = offload_of(cache, tiers, kArena);
  for (int i = 0; i < kPrompts; ++i) ASSERT_TRUE(offload->open(prompt_of(i, 64))->pending);
  std::int32_t tokens = 0;
  int ready = 0;
  for (std::uint64_t now_us = 1; ready < kPrompts; now_us += 100) {
    for (const SequenceReady& one : offload->poll(now_us)) {
      ++ready;
      tokens += one.cached_tokens;
    }
    ASSERT_TRUE(offload->check_invariants().ok());
    ASSERT_LT(now_us, 1'000'000u);
  }
  EXPECT_EQ(tokens, kPrompts * 63);
}

// One hot prefix: both wait for the same records. What hangs for one of them hangs for the other.
TEST(Offload, PromptsThatShareAPrefixAreNotKeptByAHungTier) {
  MemoryTier healthy;
  healthy.records = left_by_a_first_process(prompt_of(1, 64));
  SlowTier hung;
  hung.records = healthy.records;
  hung.loads_hang = true;
  const OffloadTier tiers[] = {{.tier = &hung}, {.tier = &healthy}};
  for (const std::uint64_t later_us : {0u, 10'000u, 20'000u, 40'000u}) {
    Cache cache(test::full(40), {.max_sequences = 2});
    const auto offload = offload_of(cache, tiers, kArena);
    std::int32_t tokens = 0;
    int opened = 0, ready = 0;
    for (std::uint64_t now_us = 1; ready < 2; now_us += 100) {
      if (opened < 2 && now_us >= 1 + unsigned(opened) * later_us) {
        ASSERT_TRUE(offload->open(prompt_of(1, 64))->pending);
        ++opened;
      }
      for (const SequenceReady& one : offload->poll(now_us)) {
        ++ready;
        tokens += one.cached_tokens;
        EXPECT_EQ(one.why, LoadEnd::kLoaded) << later_us;
      }
      ASSERT_TRUE(offload->check_invariants().ok());
      ASSERT_LT(now_us, 1'000'000u);
    }
    EXPECT_EQ(tokens, 2 * 63) << later_us;
  }
}

// The one who began the load does not wait for it any more; the other knows where else it is.
TEST(Offload, APromptThatJoinedAHungLoadTurnsToAnotherTier) {
  MemoryTier healthy;
  healthy.records = left_by_a_first_process(prompt_of(1, 64));
  SlowTier hung;
  hung.records = healthy.records;
  hung.loads_hang = true;
  const OffloadTier tiers[] = {{.tier = &hung}, {.tier = &healthy}};
  Cache cache(test::full(40), {.max_sequences = 2});
  const auto offload = offload_of(cache, tiers, kArena);
  const SequenceId first = offload->open(prompt_of(1, 64))->sequence;
  for (std::uint64_t now_us = 1; now_us < 10'000; now_us += 1000) offload->poll(now_us);
  ASSERT_EQ(hung.in_flight(), 8u);
  const SequenceId second = offload->open(prompt_of(1, 64))->sequence;
  for (std::uint64_t now_us = 10'000; now_us < 15'000; now_us += 1000) offload->poll(now_us);
  ASSERT_EQ(hung.loads_asked, 8u) << "they wait for one load";
  ASSERT_TRUE(offload->cancel(first));
  std::span<const SequenceReady> ready;
  for (std::uint64_t now_us = 15'000; ready.empty() && now_us < 1'000'000; now_us += 1000) {
    ready = offload->poll(now_us);
    ASSERT_TRUE(offload->check_invariants().ok());
  }
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_EQ(ready[0].sequence, second);
  EXPECT_EQ(ready[0].cached_tokens, 63);
}

// A tier that does not say what it has, in front of one that does.
TEST(Offload, ATierThatAnswersNoQuestionCostsNoTokenThatAnotherOneHas) {
  MemoryTier healthy;
  leave_prompts(healthy.records);
  MemoryTier silent(1, {.silent = 1000});
  const OffloadTier tiers[] = {{.tier = &silent}, {.tier = &healthy}};
  Cache cache(test::full(400));
  const auto offload = offload_of(cache, tiers, kArena);
  for (int i = 0; i < kPrompts; ++i) {
    const SequenceReady ready =
        opened(*offload, cache, prompt_of(i, 64), {}, 100'000u * unsigned(i));
    EXPECT_EQ(ready.cached_tokens, 63) << i;
    EXPECT_TRUE(cache.manager.close(ready.sequence).ok());
  }
  EXPECT_TRUE(offload->tier_counters(0).passed_over);
}

// It says so itself, when the time is over, as a Redis tier does.
TEST(Offload, ATierWhoseQuestionsTimeOutIsPassedOver) {
  SlowTier slow;
  slow.questions_time_out = true;
  slow.records = left_by_a_first_process(prompt_of(1, 64));
  const OffloadTier tiers[] = {{.tier = &slow}};
  Cache cache(test::full(40));
  const auto offload = offload_of(cache, tiers);
  time_out_three_times(*offload, cache);
  EXPECT_TRUE(offload->tier_counters(0).passed_over);
}

TEST(Offload, AHungTierIsTriedAgainWithGrowingPausesAndThenUsedAgain) {
  SlowTier hung;
  hung.records = left_by_a_first_process(prompt_of(1, 64));
  hung.loads_hang = true;
  const OffloadTier tiers[] = {{.tier = &hung}};
  Cache cache(test::full(40));
  const auto offload = offload_of(cache, tiers, 128 * kFullRecord);
  std::uint64_t now_us = 0;
  const auto ask = [&] {
    const SequenceReady ready = opened(*offload, cache, prompt_of(1, 64), {}, now_us);
    EXPECT_TRUE(cache.manager.close(ready.sequence).ok());
    now_us += 100'000;
    return ready;
  };
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ask().why, LoadEnd::kTimeout);
  const std::uint64_t asked = hung.loads_asked;
  EXPECT_EQ(ask().why, LoadEnd::kNothing) << "nobody waits for it";
  EXPECT_EQ(hung.loads_asked, asked);
  // Probes, each later than the one before: after .5, 1, 2, 4, 8, 16, 30 and 30 s.
  std::vector<std::uint64_t> tried;
  for (; now_us < 100'000'000; now_us += 10'000) {
    const std::uint64_t before = hung.loads_asked;
    EXPECT_TRUE(offload->poll(now_us).empty());
    ASSERT_LE(hung.loads_asked, before + 1);
    if (hung.loads_asked > before) tried.push_back(now_us);
  }
  ASSERT_GE(tried.size(), 7u);
  ASSERT_LE(tried.size(), 9u);
  for (std::size_t i = 2; i < tried.size(); ++i) {
    const std::uint64_t last = tried[i - 1] - tried[i - 2];
    EXPECT_GE(tried[i] - tried[i - 1], std::min<std::uint64_t>(last, 30'000'000)) << i;
  }
  EXPECT_GE(offload->tier_counters(0).pauses, 7u);
  EXPECT_TRUE(offload->tier_counters(0).passed_over);
  hung.wake();
  for (std::uint64_t end_us = now_us + 40'000'000; now_us < end_us; now_us += 10'000) {
    offload->poll(now_us);
  }
  EXPECT_FALSE(offload->tier_counters(0).passed_over);
  EXPECT_EQ(offload->arena().quarantined, 0);
  EXPECT_EQ(ask().cached_tokens, 63);
}

// A tier that answers nothing at all, not even what it has.
TEST(Offload, ASilentTierIsAskedAgainAfterAPause) {
  MemoryTier tier(1, {.silent = 1000});
  tier.records = left_by_a_first_process(prompt_of(1, 64));
  const OffloadTier tiers[] = {{.tier = &tier}};
  Cache cache(test::full(40));
  const auto offload = offload_of(cache, tiers);
  time_out_three_times(*offload, cache);
  tier.set_faults({});
  for (std::uint64_t now_us = 1'000'000; now_us < 2'000'000; now_us += 1000) offload->poll(now_us);
  EXPECT_EQ(opened(*offload, cache, prompt_of(1, 64), {}, 3'000'000).cached_tokens, 63);
  EXPECT_TRUE(tier.close({}).ok());
  run_to_the_end(*offload, 4'000'000);
}

// ---- stores ----

// 60 ms a record, 1,200 records: 72 s of work, in tries of 5 s.
// O2.
TEST(Offload, EveryStoreOfASlowTierIsKeptThoughItsTriesTimeOut) {
  SlowTier slow;
  slow.record_us = 60'000;
  const OffloadTier tiers[] = {{.tier = &slow}};
  Cache cache(test::full(1300));
  const auto offload = offload_of(cache, tiers, 1400 * kFullRecord);
  for (int i = 0; i < 10; ++i) cache.compute(prompt_of(i, 960));
  std::uint64_t now_us = 1;
  for (OffloadLeft left = offload->drain(now_us); left.any(); left = offload->drain(now_us)) {
    now_us += 10'000;
    ASSERT_LT(now_us, 200'000'000u) << left.stores << " stores are left";
    if (now_us % 1'000'000 != 1) continue;
    ASSERT_TRUE(offload->check_invariants().ok());
  }
  EXPECT_EQ(slow.records.size(), 1200u);
  EXPECT_EQ(offload->tier_counters(0).stores, 1200u);
  EXPECT_EQ(offload->tier_counters(0).stores_failed, 0u);
  EXPECT_EQ(offload->tier_counters(0).stores_dropped, 0u);
  EXPECT_GT(offload->tier_counters(0).stores_again, 100u);
  EXPECT_EQ(offload->counters().tier_stores_dropped, 0u);
}

TEST(Offload, AStoreThatATierIsTooBusyForGoesAgain) {
  SlowTier slow;
  slow.stores_are_busy = true;
  const OffloadTier tiers[] = {{.tier = &slow}};
  Cache cache(test::full(40));
  const auto offload = offload_of(cache, tiers);
  cache.compute(prompt_of(1, 64));
  std::uint64_t now_us = 1;
  for (; now_us < 100'000; now_us += 1000) offload->poll(now_us);
  EXPECT_EQ(offload->counters().tier_stores_dropped, 0u);
  EXPECT_FALSE(offload->idle());
  EXPECT_LT(slow.stores_asked, 8u * 5u) << "pauses grow";
  slow.stores_are_busy = false;
  for (; now_us < 2'000'000; now_us += 1000) offload->poll(now_us);
  EXPECT_EQ(slow.records.size(), 8u);
  EXPECT_TRUE(offload->idle());
}

TEST(Offload, AStoreThatIsRefusedForGoodIsCountedAndEnds) {
  SlowTier slow;
  slow.stores_are_busy = true;
  const OffloadTier tiers[] = {{.tier = &slow}};
  Cache cache(test::full(40));
  const auto offload = offload_of(cache, tiers);
  cache.compute(prompt_of(1, 64));
  for (std::uint64_t now_us = 1; now_us < 5'000'000; now_us += 1000) offload->poll(now_us);
  EXPECT_TRUE(offload->idle());
  EXPECT_EQ(slow.stores_asked, 7u * 8u);
  EXPECT_EQ(offload->tier_counters(0).stores_failed, 8u);
  EXPECT_EQ(offload->counters().tier_stores_dropped, 8u);
  EXPECT_EQ(offload->arena().pins, 0);
}

TEST(Offload, AStoreDoesNotGoAgainUnderANameThatWasForgotten) {
  for (const bool by_reset : {false, true}) {
    SlowTier slow;
    slow.stores_are_busy = true;
    const OffloadTier tiers[] = {{.tier = &slow}};
    Cache cache(test::full(40));
    const auto offload = offload_of(cache, tiers);
    cache.compute(prompt_of(1, 64));
    for (std::uint64_t now_us = 1; now_us < 3; ++now_us) offload->poll(now_us);
    ASSERT_EQ(slow.stores_asked, 8u);
    if (by_reset) {
      offload->reset();
    } else {
      offload->forget(RootKey{});
    }
    slow.stores_are_busy = false;
    for (std::uint64_t now_us = 3; now_us < 5'000'000; now_us += 1000) offload->poll(now_us);
    EXPECT_EQ(slow.stores_asked, 8u);
    EXPECT_EQ(slow.records.size(), 0u);
    EXPECT_TRUE(offload->idle());
    EXPECT_EQ(offload->arena().pins, 0);
    EXPECT_TRUE(offload->check_invariants().ok());
  }
}

TEST(Offload, AStoreThatHangsKeepsItsMemoryAndDrainSaysSo) {
  SlowTier hung;
  hung.stores_hang = true;
  MemoryTier healthy;
  const OffloadTier tiers[] = {{.tier = &hung}, {.tier = &healthy}};
  Cache cache(test::full(400));
  const auto offload = offload_of(cache, tiers, kArena);
  for (int i = 0; i < kPrompts; ++i) cache.compute(prompt_of(i, 64));
  OffloadLeft left;
  for (std::uint64_t now_us = 1; now_us < 60'000'000; now_us += 10'000)
    left = offload->drain(now_us);
  EXPECT_FALSE(left.blocks) << "it keeps none from the other tier";
  EXPECT_EQ(healthy.records.size(), kPrompts * 8u);
  EXPECT_GT(left.stores, 0);
  EXPECT_TRUE(offload->tier_counters(0).passed_over);
  EXPECT_LE(offload->tier_counters(0).bytes_held, kArena / 3);
  EXPECT_EQ(offload->tier_counters(0).stores_dropped + std::uint64_t(left.stores), kPrompts * 8u);
  EXPECT_TRUE(offload->check_invariants().ok());
  // The arena is left to the others: a prompt comes back whole.
  evict_all(cache);
  EXPECT_EQ(opened(*offload, cache, prompt_of(1, 64), {}, 70'000'000).cached_tokens, 63);
  hung.wake();
  for (std::uint64_t now_us = 80'000'000; now_us < 160'000'000; now_us += 10'000) {
    left = offload->drain(now_us);
  }
  EXPECT_FALSE(left.any());
  EXPECT_FALSE(offload->tier_counters(0).passed_over);
}

// ---- the time that bytes take ----

// A tier that has the records of one prompt.
struct Paced {
  SlowTier tier;
  std::vector<std::int32_t> prompt;
  std::int64_t arena_bytes;
  Cache cache;
  const OffloadTier tiers[1] = {{.tier = &tier}};
  std::unique_ptr<Offload> offload;

  // The last token is not loaded.
  Paced(const CacheSpec& spec, std::int32_t num_tokens, std::int64_t all_bytes)
      : prompt(prompt_of(1, num_tokens + 1)), arena_bytes(all_bytes), cache(spec) {
    offload = offload_of(cache, tiers, arena_bytes);
    cache.compute(prompt);
    run_to_the_end(*offload);
    EXPECT_TRUE(offload->idle());
  }
  // Each record takes `record_us`, and from `hangs_at_us` on none comes. Returns how the load ended
  // and when.
  std::pair<SequenceReady, std::uint64_t> load(std::uint64_t record_us, OffloadOptions options,
                                               std::uint64_t hangs_at_us = ~std::uint64_t{0}) {
    evict_all(cache);
    offload = offload_of(cache, tiers, arena_bytes, options);
    tier.record_us = record_us;
    const std::uint64_t begin_us = tier.now_us + 10'000'000;
    EXPECT_TRUE(offload->open(prompt)->pending);
    std::pair<SequenceReady, std::uint64_t> end;
    for (std::uint64_t us = 0; end.first.sequence == SequenceId{} && us < 20'000'000; us += 500) {
      tier.loads_hang = us >= hangs_at_us;
      for (const SequenceReady& one : offload->poll(begin_us + us)) end = {one, us};
    }
    tier.wake();
    EXPECT_TRUE(cache.manager.close(end.first.sequence).ok());
    EXPECT_TRUE(offload->check_invariants().ok());
    for (int i = 0; i < 10 && !offload->idle(); ++i) run_to_the_end(*offload, tier.now_us);
    EXPECT_TRUE(offload->idle());
    return end;
  }
};

// O11. 8 records of 2 MiB and 8 of 64 KiB: 34.6 ms at 500 MB/s.
TEST(Offload, TheBytesOfAllGroupsHaveTheirTimeAlsoIfNoRateIsGiven) {
  CacheSpec spec{.groups = {test::group_of(9), test::group_of(9)}};
  for (GroupSpec& group : spec.groups) group.block_size = 1024;
  spec.groups[1].num_kv_heads = 32;
  Paced t(spec, 8 * 1024, 40 << 20);
  const OffloadOptions plain{.timeout_us = 1'000};
  EXPECT_EQ(t.load(2'000, plain).first.why, LoadEnd::kLoaded);
  const auto [ready, at_us] = t.load(5'000, plain);
  EXPECT_NE(ready.why, LoadEnd::kLoaded);  // kTimeout, unless the tier says so first
  EXPECT_GE(at_us, 35'000u);
  EXPECT_LE(at_us, 37'000u);
  const auto at = [](double rate) {
    return OffloadOptions{.timeout_us = 1'000, .load_bytes_per_s = rate};
  };
  EXPECT_EQ(t.load(2'000, at(2e9)).first.why, LoadEnd::kTimeout);
  EXPECT_EQ(t.load(4'000, at(500e6)).first.why, LoadEnd::kLoaded);
}

// O11. 500 records, of which each has 10 ms: 5 s in all.
TEST(Offload, TimeBeyondTwoSecondsComesWithTheBytes) {
  constexpr std::int64_t kRecords = 500;
  Paced t(test::full(kRecords + 2), kRecords * 8, (kRecords + 10) * kFullRecord);
  const OffloadOptions options{.load_bytes_per_s = 2.0 * kFullRecord / 0.01};
  const auto in_time = t.load(9'000, options);
  EXPECT_EQ(in_time.first.why, LoadEnd::kLoaded);
  EXPECT_EQ(in_time.first.cached_tokens, kRecords * 8);
  EXPECT_LE(in_time.second, 4'600'000u);

  const auto slow = t.load(12'000, options);
  EXPECT_EQ(slow.first.why, LoadEnd::kTimeout);
  EXPECT_GE(slow.first.cached_tokens, 400 * 8);
  EXPECT_GE(slow.second, 5'000'000u);
  EXPECT_LE(slow.second, 5'100'000u);

  const auto trickling = t.load(500'000, options);
  EXPECT_EQ(trickling.first.why, LoadEnd::kTimeout);
  EXPECT_EQ(trickling.first.cached_tokens, 4 * 8);
  EXPECT_GE(trickling.second, 2'050'000u);
  EXPECT_LE(trickling.second, 2'100'000u);

  // It has brought more than in its time.
  const auto hanging = t.load(3'000, options, 1'000'000);
  EXPECT_EQ(hanging.first.why, LoadEnd::kTimeout);
  EXPECT_GE(hanging.first.cached_tokens, 330 * 8);
  EXPECT_LE(hanging.second, 3'100'000u) << "what it has earned is not kept";
}

// O11. Questions move no bytes.
TEST(Offload, ATierThatDoesNotSayWhatItHasIsNotGivenTheTimeOfItsBytes) {
  Paced t(test::full(12), 80, 20 * kFullRecord);
  t.tier.questions_time_out = true;
  const auto end = t.load(0, {.load_bytes_per_s = 2.0 * kFullRecord / 0.1});
  EXPECT_EQ(end.first.why, LoadEnd::kTimeout);
  EXPECT_LE(end.second, 51'000u);
}

// ---- many prompts, one arena ----

// O3.
TEST(Offload, ALargePromptBesideSmallOnesComesBackWhole) {
  const std::vector<std::int32_t> large = prompt_of(500, 480);
  for (const bool small_first : {false, true}) {
    MemoryTier tier(7, {.late = 1000});
    tier.records = left_by_a_first_process(large);
    for (int i = 0; i < 10; ++i) tier.records.merge(left_by_a_first_process(prompt_of(i, 64)));
    const OffloadTier tiers[] = {{.tier = &tier}};
    Cache cache(test::full(400));
    const auto offload = offload_of(cache, tiers, kArena);
    SequenceId id;
    if (!small_first) id = offload->open(large)->sequence;
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(offload->open(prompt_of(i, 64))->pending);
    if (small_first) id = offload->open(large)->sequence;
    std::int32_t small_tokens = 0;
    SequenceReady ready;
    int num_ready = 0;
    for (std::uint64_t now_us = 1; num_ready < 11; now_us += 100) {
      ASSERT_LT(now_us, 5'000'000u);
      for (const SequenceReady& one : offload->poll(now_us)) {
        ++num_ready;
        if (one.sequence == id) {
          ready = one;
        } else {
          small_tokens += one.cached_tokens;
          EXPECT_EQ(one.why, LoadEnd::kLoaded) << to_string(one.why) << " at " << now_us;
        }
      }
      ASSERT_TRUE(offload->check_invariants().ok());
    }
    EXPECT_EQ(ready.cached_tokens, 479) << to_string(ready.why);
    EXPECT_EQ(ready.why, LoadEnd::kLoaded);
    EXPECT_EQ(small_tokens, 10 * 63);
    cache.check_sequence(id, std::span(large).first(479));
    EXPECT_EQ(offload->arena().pins, 0);
  }
}

// Two prompts that the arena cannot hold together: the first has its way, the second waits.
TEST(Offload, OfPromptsThatDoNotFitTogetherTheFirstOneGoesFirst) {
  MemoryTier tier(3, {.late = 1000});
  for (int i = 0; i < 3; ++i) tier.records.merge(left_by_a_first_process(prompt_of(i, 320)));
  const OffloadTier tiers[] = {{.tier = &tier}};
  Cache cache(test::full(400));
  const auto offload = offload_of(cache, tiers, 48 * kFullRecord, {.timeout_us = 1'000'000});
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(offload->open(prompt_of(i, 320))->pending);
  std::vector<std::int32_t> tokens;
  for (std::uint64_t now_us = 1; tokens.size() < 3; now_us += 100) {
    ASSERT_LT(now_us, 5'000'000u);
    for (const SequenceReady& one : offload->poll(now_us)) tokens.push_back(one.cached_tokens);
    ASSERT_TRUE(offload->check_invariants().ok());
  }
  EXPECT_EQ(tokens, (std::vector<std::int32_t>{319, 319, 319}));
}

// The deadline comes before the last record: what is there is used, from the beginning on.
TEST(Offload, OfALargePromptThatIsLateTheBeginningComes) {
  const std::vector<std::int32_t> large = prompt_of(500, 480);
  SlowTier slow;
  slow.records = left_by_a_first_process(large);
  slow.record_us = 1000;
  const OffloadTier tiers[] = {{.tier = &slow}};
  Cache cache(test::full(400));
  const auto offload = offload_of(cache, tiers, kArena, {.timeout_us = 30'000});
  const SequenceReady ready = opened(*offload, cache, large);
  EXPECT_EQ(ready.why, LoadEnd::kTimeout);
  EXPECT_GT(ready.cached_tokens, 200);
  EXPECT_LT(ready.cached_tokens, 280);
}

// ---- the time of a call ----

// O6. 50,000 blocks, in 13 parts: the bound does not depend on that.
TEST(Offload, ALongPromptComesBackInPollsOfBoundedWork) {
  constexpr std::int32_t kTokens = 400'000;
  constexpr std::uint64_t kSteps = 60'000;
  const std::vector<std::int32_t> large = prompt_of(1, kTokens);
  SlowTier tier;
  const OffloadTier tiers[] = {{.tier = &tier}};
  {
    Cache cache(test::full(kTokens / 8 + 2));
    const auto offload = offload_of(cache, tiers, 8000 * kFullRecord);
    cache.compute(large);
    std::uint64_t now_us = 1;
    while (offload->drain(now_us += 100).any()) {
    }
    EXPECT_LE(offload->counters().steps_max, kSteps);
    ASSERT_EQ(tier.records.size(), std::size_t(kTokens / 8));
  }
  Cache cache(test::full(kTokens / 8 + 2));
  const auto offload = offload_of(cache, tiers, 40'000 * kFullRecord, {.timeout_us = 1'000'000});
  const auto open = offload->open(large);
  ASSERT_TRUE(open->pending);
  std::uint64_t now_us = 1;
  std::span<const SequenceReady> ready;
  for (int polls = 0; ready.empty(); ++polls) {
    ASSERT_LT(polls, 10'000);
    ready = offload->poll(now_us += 100);
  }
  EXPECT_EQ(ready[0].why, LoadEnd::kLoaded) << to_string(ready[0].why);
  EXPECT_EQ(ready[0].cached_tokens, kTokens - 1);
  EXPECT_LE(offload->counters().steps_max, kSteps);
  EXPECT_EQ(offload->counters().requests, 1u);
  cache.check_sequence(open->sequence, std::span(large).first(kTokens - 1));
  EXPECT_TRUE(offload->check_invariants().ok());
}

// A cache that drops blocks brings a prompt in one part: where it may end is not known before all
// of it was looked at. That takes several polls.
TEST(Offload, ALongPromptOfAWindowModelComesBackInPollsOfBoundedWorkToo) {
  constexpr std::int32_t kTokens = 160'000;
  constexpr std::uint64_t kSteps = 60'000;
  const std::vector<std::int32_t> large = prompt_of(1, kTokens);
  const CacheSpec spec = test::mixed(kTokens / 8 + 10, kTokens / 8 + 10);
  SlowTier tier;
  const OffloadTier tiers[] = {{.tier = &tier}};
  {
    Cache cache(spec);
    const auto offload = offload_of(cache, tiers, 8000 * kFullRecord);
    cache.compute(large);
    std::uint64_t now_us = 1;
    while (offload->drain(now_us += 100).any()) {
    }
    EXPECT_LE(offload->counters().steps_max, kSteps);
  }
  for (const std::uint64_t timeout_us : {1'000'000u, 2'000u}) {
    Cache cache(spec);
    const auto offload =  // bytes take no time
        offload_of(cache, tiers, 45'000 * kFullRecord,
                   {.timeout_us = timeout_us, .load_bytes_per_s = 1e15});
    const auto open = offload->open(large);
    ASSERT_TRUE(open->pending);
    std::uint64_t now_us = 1;
    std::span<const SequenceReady> ready;
    for (int polls = 0; ready.empty(); ++polls) {
      ASSERT_LT(polls, 10'000);
      ready = offload->poll(now_us += 100);
    }
    EXPECT_LE(offload->counters().steps_max, kSteps);
    EXPECT_EQ(ready[0].why, timeout_us > 2'000 ? LoadEnd::kLoaded : LoadEnd::kTimeout);
    EXPECT_EQ(ready[0].cached_tokens == kTokens - 1, timeout_us > 2'000);
    cache.check_sequence(open->sequence,
                         std::span(large).first(std::size_t(ready[0].cached_tokens)));
    EXPECT_TRUE(offload->check_invariants().ok());
    EXPECT_EQ(offload->arena().pins, 0);
  }
}

// The names of what the cache has are forgotten with another root: they are made anew, in steps.
TEST(Offload, ALongPromptThatTheCacheHasInPartTakesBoundedWorkToo) {
  constexpr std::int32_t kTokens = 600'000;
  const std::vector<std::int32_t> large = prompt_of(1, kTokens);
  SlowTier tier;
  const OffloadTier tiers[] = {{.tier = &tier}};
  Cache cache(test::full(kTokens / 8 + 2));
  const auto offload = offload_of(cache, tiers);
  cache.compute(std::span(large).first(560'000));
  run_to_the_end(*offload);
  for (const bool forgets : {false, true}) {
    if (forgets) offload->forget(RootKey{.tenant_salt = "another"});
    const auto open = offload->open(large);
    ASSERT_TRUE(open->pending);
    EXPECT_EQ(open->cached_tokens, 560'000);
    std::uint64_t now_us = forgets ? 20'000'000 : 10'000'000;
    while (offload->poll(now_us += 100).empty()) ASSERT_LT(now_us, 30'000'000u);
    EXPECT_TRUE(cache.manager.close(open->sequence).ok());
  }
  EXPECT_LE(offload->counters().steps_max, 60'000u);
  EXPECT_LE(tier.exists_asked, 2u * 40'000u / 8u) << "what the cache has is not asked for";
}

TEST(Offload, ManyLongPromptsAtOnceTakeNoMoreWorkInAPollThanOne) {
  SlowTier tier;  // has nothing
  const OffloadTier tiers[] = {{.tier = &tier}};
  Cache cache(test::full(40), {.max_sequences = 64, .max_sequence_tokens = 40'000});
  const auto offload = offload_of(cache, tiers);
  for (int i = 0; i < 64; ++i) ASSERT_TRUE(offload->open(prompt_of(i, 32'000))->pending);
  std::size_t ready = 0;
  for (std::uint64_t now_us = 1; ready < 64; now_us += 100) {
    ASSERT_LT(now_us, 1'000'000u);
    ready += offload->poll(now_us).size();
  }
  EXPECT_LE(offload->counters().steps_max, 60'000u);
  EXPECT_EQ(offload->counters().requests_timed_out, 0u);
}

// Long prompts one after another, none of which a tier has, would take all steps of each poll.
TEST(Offload, PromptsThatAreLookedAtLeaveStepsForStores) {
  SlowTier tier;  // has nothing
  const OffloadTier tiers[] = {{.tier = &tier}};
  Cache cache(test::full(40), {.max_sequences = 64, .max_sequence_tokens = 400'000});
  const auto offload = offload_of(cache, tiers, kArena, {.timeout_us = 1'000'000'000});
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(offload->open(prompt_of(i, 400'000))->pending);
  cache.compute(prompt_of(100, 64));
  for (std::uint64_t now_us = 1; now_us < 400; now_us += 100) offload->poll(now_us);
  EXPECT_EQ(offload->counters().stores, 8u);
}

// ---- stores that wait ----

// Found by random operations: such a store was taken for one that has no memory of the arena yet,
// and waited for ever for room that those behind it held.
TEST(TierPort, AStoreWhoseRecordWasGoneDoesNotTakeTheOneThatIsStoredAnew) {
  MemoryTier tier;
  const std::int64_t sizes[] = {kFullRecord};
  auto arena = HostArena::create({.bytes = 8 * kFullRecord, .record_bytes = sizes});
  ASSERT_TRUE(arena);
  const auto key = [](int number) {
    TierKey made;
    made.bytes[0] = static_cast<std::byte>(number);
    return made;
  };
  const auto put = [&](int number) {
    const auto slot = arena->reserve(key(number), kFullRecord);
    ASSERT_TRUE(slot);
    arena->fill(*slot);
    arena->seal(*slot);
    ASSERT_TRUE(arena->publish(*slot));
  };
  TierPort port({.tier = &tier}, 2 * kFullRecord, kFullRecord, 64);
  for (int i = 0; i < 4; ++i) {
    put(i);
    ASSERT_TRUE(port.wait(key(i), *arena));
  }
  EXPECT_EQ(port.held_bytes(), 2 * kFullRecord) << "two are pinned, two are names";
  arena->erase(key(2));
  for (int i = 0; i < 2; ++i) port.pop(1);
  port.pin_waiting(*arena, 10);
  put(2);
  ASSERT_EQ(port.next(1)->key, key(2));
  EXPECT_TRUE(port.next(1)->is_gone);
  port.pop(1);
  ASSERT_EQ(port.next(1)->key, key(3));
  EXPECT_FALSE(port.next(1)->is_gone);
  EXPECT_EQ(port.held_bytes(), kFullRecord);
  EXPECT_TRUE(port.check({}).ok());
  port.drop_all();
}

}  // namespace
}  // namespace kvfolio
