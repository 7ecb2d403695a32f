// SPDX-License-Identifier: Apache-2.0
#include "kvfolio/offload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <optional>

#include "offload/test_cache.h"
#include "tiers/memory_tier.h"

namespace kvfolio {
namespace {

using test::Cache;
using test::MemoryTier;
using test::prompt_of;
using ::testing::HasSubstr;

std::unique_ptr<Offload> offload_of(Cache& cache, std::span<const OffloadTier> tiers = {},
                                    std::int64_t arena_bytes = 1 << 20,
                                    OffloadOptions options = {}) {
  options.model = test::kToy;
  options.arena_bytes = arena_bytes;
  options.tiers = tiers;
  auto offload = Offload::create(cache.manager, options);
  EXPECT_TRUE(offload) << offload.error();
  return offload ? *std::move(offload) : nullptr;
}

// Opens a prompt and polls until it is ready, checks each byte of what came, and leaves it open.
SequenceReady opened(Offload& offload, Cache& cache, std::span<const std::int32_t> tokens,
                     const OpenOptions& options = {}, std::uint64_t now_us = 1000) {
  const auto open = offload.open(tokens, options);
  EXPECT_TRUE(open) << open.error();
  SequenceReady ready{.sequence = open->sequence, .cached_tokens = open->cached_tokens};
  for (int i = 0; open->pending; ++i) {
    const auto all = offload.poll(now_us += 100);
    if (!all.empty()) {
      EXPECT_EQ(all.size(), 1u);
      EXPECT_EQ(all[0].sequence, open->sequence);
      ready = all[0];
      break;
    }
    if (i == 10'000) {
      ADD_FAILURE() << "never ready";
      break;
    }
  }
  EXPECT_EQ(cache.manager.info(ready.sequence)->length, ready.cached_tokens);
  cache.check_sequence(ready.sequence, tokens.first(std::size_t(ready.cached_tokens)));
  EXPECT_TRUE(cache.manager.check_invariants().ok());
  EXPECT_TRUE(offload.check_invariants().ok());
  return ready;
}

void run_to_the_end(Offload& offload, std::uint64_t now_us = 500'000) {
  for (int i = 0; i < 1000; ++i) offload.poll(now_us += 1000);
}

// Evicts all that no sequence holds.
void evict_all(Cache& cache) {
  for (std::size_t g = 0; g < cache.manager.spec().groups.size(); ++g) {
    EXPECT_TRUE(cache.manager.evict(GroupId(std::int32_t(g)), 1 << 20));
  }
}

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

TEST(Offload, AnotherProcessFindsItInTheTier) {
  MemoryTier tier;
  const OffloadTier tiers[] = {{.tier = &tier}};
  {
    Cache before(test::full(40));
    const auto offload = offload_of(before, tiers);
    before.compute(prompt_of(1, 64));
    run_to_the_end(*offload);
    EXPECT_EQ(offload->counters().tier_stores, 8u);
    EXPECT_TRUE(offload->idle());
  }
  MemoryTier reopened;
  reopened.records = tier.records;
  const OffloadTier tiers_after[] = {{.tier = &reopened}};
  Cache after(test::full(19));
  const auto offload = offload_of(after, tiers_after);
  const SequenceReady ready = opened(*offload, after, prompt_of(1, 64));
  EXPECT_EQ(ready.cached_tokens, 63);
  EXPECT_EQ(ready.why, LoadEnd::kLoaded);
  EXPECT_EQ(opened(*offload, after, prompt_of(2, 64)).why, LoadEnd::kNothing);
}

// The same tokens under each other identity, salt or adapter: no hit.
TEST(Offload, ATierAnswersForItsOwnIdentityAndRootOnly) {
  MemoryTier tier;
  const OffloadTier tiers[] = {{.tier = &tier}};
  {
    Cache before(test::full(40));
    const auto offload = offload_of(before, tiers);
    before.compute(prompt_of(1, 64), {.root = {.tenant_salt = "a"}});
    run_to_the_end(*offload);
  }
  const auto found = [&](const OffloadOptions& options, const CacheSpec& spec,
                         const RootKey& root) {
    MemoryTier reopened;
    reopened.records = tier.records;
    const OffloadTier again[] = {{.tier = &reopened}};
    Cache after(spec);
    OffloadOptions all = options;
    all.arena_bytes = 1 << 20;
    all.tiers = again;
    const auto offload = *Offload::create(after.manager, all);
    return opened(*offload, after, prompt_of(1, 64), {.root = root}).cached_tokens;
  };
  const OffloadOptions toy{.model = test::kToy};
  EXPECT_EQ(found(toy, test::full(40), {.tenant_salt = "a"}), 63);
  EXPECT_EQ(found(toy, test::full(40), {.tenant_salt = "b"}), 0);
  EXPECT_EQ(found(toy, test::full(40), {.adapter = "a"}), 0);
  EXPECT_EQ(found(toy, test::full(40), {.tenant_salt = "a", .epoch = 1}), 0);
  OffloadOptions later = toy;
  later.epoch = 1;
  EXPECT_EQ(found(later, test::full(40), {.tenant_salt = "a"}), 0);
  for (auto field : {&ModelIdentity::model, &ModelIdentity::weights, &ModelIdentity::tokenizer,
                     &ModelIdentity::model_dtype, &ModelIdentity::positions, &ModelIdentity::engine,
                     &ModelIdentity::layers, &ModelIdentity::scales}) {
    OffloadOptions other = toy;
    other.model.*field = "other";
    EXPECT_EQ(found(other, test::full(40), {.tenant_salt = "a"}), 0);
  }
  CacheSpec bf16 = test::full(40);
  bf16.groups[0].dtype = DType::kBF16;
  EXPECT_EQ(found(toy, bf16, {.tenant_salt = "a"}), 0);
}

TEST(Offload, ForgettingChangesTheNamesAndErasesTheArena) {
  MemoryTier tier;
  const OffloadTier tiers[] = {{.tier = &tier}};
  Cache cache(test::full(40));
  const auto offload = offload_of(cache, tiers);
  const OpenOptions mine{.root = {.tenant_salt = "a"}};
  const OpenOptions other{.root = {.tenant_salt = "b"}};
  cache.compute(prompt_of(1, 64), mine);
  cache.compute(prompt_of(1, 64), other);
  run_to_the_end(*offload);
  EXPECT_EQ(offload->arena().records, 16);
  EXPECT_GT(offload->forget(mine.root).blocks, 0);
  EXPECT_EQ(offload->arena().records, 8);
  evict_all(cache);
  EXPECT_EQ(opened(*offload, cache, prompt_of(1, 64), mine).cached_tokens, 0);
  EXPECT_EQ(opened(*offload, cache, prompt_of(1, 64), other).cached_tokens, 63);
  // What is computed after that is kept under the new names.
  cache.compute(prompt_of(1, 64), mine);
  run_to_the_end(*offload, 600'000'000);
  offload->reset();
  EXPECT_EQ(offload->arena().records, 0);
  EXPECT_EQ(offload->epoch(), 2u);
  EXPECT_EQ(opened(*offload, cache, prompt_of(1, 64), mine, 700'000'000).cached_tokens, 0);
  EXPECT_EQ(opened(*offload, cache, prompt_of(1, 64), other, 700'000'000).cached_tokens, 0);
}

TEST(Offload, ASilentTierIsWaitedForUntilTheDeadlineOnly) {
  MemoryTier tier(1, {.silent = 1000});
  const OffloadTier tiers[] = {{.tier = &tier}};
  Cache cache(test::full(40));
  const auto offload = offload_of(cache, tiers, 1 << 20, {.timeout_us = 5000});
  const SequenceReady ready = opened(*offload, cache, prompt_of(1, 64));
  EXPECT_EQ(ready.why, LoadEnd::kTimeout);
  EXPECT_EQ(ready.cached_tokens, 0);
  EXPECT_EQ(offload->counters().requests_timed_out, 1u);
}

// The tier holds the memory of its load: the slot is not used before it answers.
TEST(Offload, MemoryOfALateLoadIsNotUsedBefore) {
  MemoryTier tier;
  const OffloadTier tiers[] = {{.tier = &tier}};
  Cache cache(test::full(40));
  constexpr std::int64_t kRecord = 192 + 512;
  const auto offload = offload_of(cache, tiers, 4 * kRecord, {.timeout_us = 5000});
  cache.compute(prompt_of(1, 32));
  run_to_the_end(*offload);
  cache.compute(prompt_of(2, 32));  // pushes the first out of the arena
  run_to_the_end(*offload);
  evict_all(cache);
  ASSERT_EQ(tier.records.size(), 8u);
  const auto open = offload->open(prompt_of(1, 32));
  offload->poll(1'000'000'000);
  offload->poll(1'000'000'100);  // the answers are here, and the loads begin
  ASSERT_EQ(tier.loads_asked, 4u);
  tier.set_faults({.late = 1000});
  const auto ready = offload->poll(1'000'010'000);
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_GE(ready[0].cached_tokens, 0);
  EXPECT_TRUE(cache.manager.close(open->sequence).ok());
  EXPECT_TRUE(offload->check_invariants().ok());
}

TEST(Offload, ATierThatFailedForARecordIsNotAskedForItAgain) {
  MemoryTier tier;
  const OffloadTier tiers[] = {{.tier = &tier}};
  {
    Cache before(test::full(40));
    const auto offload = offload_of(before, tiers);
    before.compute(prompt_of(1, 64));
    run_to_the_end(*offload);
  }
  MemoryTier liar(1, {.io_error = 1000});  // says that it has the records, and fails each load
  liar.records = tier.records;
  const OffloadTier again[] = {{.tier = &liar}};
  Cache after(test::full(40));
  const auto offload = offload_of(after, again);
  const SequenceReady ready = opened(*offload, after, prompt_of(1, 64));
  EXPECT_EQ(ready.cached_tokens, 0);
  EXPECT_EQ(ready.why, LoadEnd::kPart);
  EXPECT_EQ(liar.exists_asked, 8u);
  EXPECT_EQ(liar.loads_asked, 8u);
}

TEST(Offload, ADamagedRecordIsErasedWhereItLay) {
  MemoryTier tier;
  const OffloadTier tiers[] = {{.tier = &tier}};
  {
    Cache before(test::full(40));
    const auto offload = offload_of(before, tiers);
    before.compute(prompt_of(1, 64));
    run_to_the_end(*offload);
  }
  MemoryTier reopened;
  reopened.records = tier.records;
  auto& [key, record] = *reopened.records.begin();
  record[500] ^= std::byte{1};
  const OffloadTier again[] = {{.tier = &reopened}};
  Cache after(test::full(40));
  const auto offload = offload_of(after, again);
  const SequenceReady ready = opened(*offload, after, prompt_of(1, 64));
  EXPECT_LT(ready.cached_tokens, 63);
  EXPECT_EQ(ready.cached_tokens % 8, 0);
  EXPECT_EQ(offload->counters().tier_corrupt, 1u);
  run_to_the_end(*offload);
  EXPECT_EQ(reopened.records.size(), 7u);
}

TEST(Offload, RequestsForTheSameRecordsShareOneLoad) {
  MemoryTier tier;
  const OffloadTier tiers[] = {{.tier = &tier}};
  {
    Cache before(test::full(40));
    const auto offload = offload_of(before, tiers);
    before.compute(prompt_of(1, 64));
    run_to_the_end(*offload);
  }
  MemoryTier reopened;
  reopened.records = tier.records;
  const OffloadTier again[] = {{.tier = &reopened}};
  Cache after(test::full(40));
  const auto offload = offload_of(after, again);
  const auto a = offload->open(prompt_of(1, 64));
  const auto b = offload->open(prompt_of(1, 64));
  std::size_t ready = 0;
  for (int i = 0; i < 100; ++i) ready += offload->poll(1000 + std::uint64_t(i)).size();
  EXPECT_EQ(ready, 2u);
  EXPECT_EQ(reopened.loads_asked, 8u);
  const std::vector<std::int32_t> found = prompt_of(1, 63);
  for (const auto& one : {a->sequence, b->sequence}) {
    EXPECT_EQ(after.manager.info(one)->length, 63);
    after.check_sequence(one, found);
  }
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

TEST(Offload, APollMovesNoMoreThanItsBytes) {
  Cache cache(test::full(40));
  constexpr std::int64_t kRecord = 192 + 512;
  const auto offload = offload_of(cache, {}, 1 << 20, {.bytes_per_poll = 2 * kRecord});
  const std::vector<std::int32_t> prompt = prompt_of(1, 64);
  cache.compute(prompt);
  for (std::uint64_t i = 1; i <= 4; ++i) {
    offload->poll(i);
    EXPECT_EQ(offload->counters().stores, 2 * i);
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

TEST(Offload, TheSecondUseGoesToATierThatAsksForThat) {
  MemoryTier tier;
  const OffloadTier tiers[] = {{.tier = &tier, .policy = WritePolicy::kSecondUse}};
  Cache cache(test::full(40));
  const auto offload = offload_of(cache, tiers);
  cache.compute(prompt_of(1, 64));
  cache.compute(prompt_of(2, 64));
  run_to_the_end(*offload);
  EXPECT_EQ(tier.records.size(), 0u);
  evict_all(cache);
  opened(*offload, cache, prompt_of(1, 64));
  run_to_the_end(*offload);
  EXPECT_EQ(tier.records.size(), 8u);
}

TEST(Offload, ComputesWhatWouldTakeLongerToLoad) {
  MemoryTier tier;
  const OffloadTier tiers[] = {{.tier = &tier}};
  {
    Cache before(test::full(40));
    const auto offload = offload_of(before, tiers);
    before.compute(prompt_of(1, 64));
    run_to_the_end(*offload);
  }
  for (const bool fast : {false, true}) {
    MemoryTier reopened;
    reopened.records = tier.records;
    const OffloadTier again[] = {{.tier = &reopened}};
    Cache after(test::full(40));
    const auto offload = offload_of(
        after, again, 1 << 20, {.load_bytes_per_s = fast ? 1e9 : 1e3, .prefill_tokens_per_s = 100});
    const SequenceReady ready = opened(*offload, after, prompt_of(1, 64));
    EXPECT_EQ(ready.why, fast ? LoadEnd::kLoaded : LoadEnd::kRecompute);
    EXPECT_EQ(reopened.loads_asked, fast ? 8u : 0u);
  }
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

// A small pool, a small arena, and a tier with every fault: prompts are opened, waited for,
// cancelled, closed, computed and forgotten in any order. No byte is ever read that is not its
// token's, and what was taken is given back.
void storm(std::uint32_t seed, const CacheSpec& spec, int steps, OffloadCounters& total) {
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  MemoryTier tier(seed, {.late = 300,
                         .partial = 40,
                         .corrupt = 40,
                         .other = 40,
                         .lie = 40,
                         .miss = 40,
                         .io_error = 40,
                         .twice = 30,
                         .silent = 3,
                         .busy = 30});
  const OffloadTier tiers[] = {
      {.tier = &tier,
       .policy = seed % 2 == 0 ? WritePolicy::kWriteThrough : WritePolicy::kSecondUse}};
  Cache cache(spec);
  auto offload = offload_of(cache, tiers, 30 * 800, {.bytes_per_poll = 4000, .timeout_us = 3000});
  struct Open {
    SequenceId id;
    std::vector<std::int32_t> tokens;
    bool pending;
  };
  std::deque<Open> open;
  std::uint64_t now_us = 1;
  for (int step = 0; step < steps; ++step) {
    switch (random() % 8) {
      case 0:
      case 1: {
        if (open.size() > 5) break;
        std::vector<std::int32_t> tokens =
            prompt_of(int(random() % 6), 1 + std::int32_t(random() % 70));
        const auto opening = offload->open(tokens);
        ASSERT_TRUE(opening) << opening.error();
        open.push_back({opening->sequence, std::move(tokens), opening->pending});
        break;
      }
      case 2: {  // goes on, whether its load is ready or not
        if (open.empty()) break;
        Open& one = open[random() % open.size()];
        auto length = cache.manager.info(one.id)->length;
        if (one.pending) length = *offload->cancel(one.id);
        one.pending = false;
        cache.check_sequence(one.id, std::span(one.tokens).first(std::size_t(length)));
        if (length == std::int32_t(one.tokens.size())) break;
        if (!cache.manager.admit(one.id, std::int32_t(one.tokens.size()) - length).ok()) break;
        cache.go_on(one.id, one.tokens, length);
        break;
      }
      case 3:
        if (open.size() < 2) break;
        EXPECT_TRUE(random() % 2 == 0 ? cache.manager.close(open.front().id).ok()
                                      : cache.manager.preempt(open.front().id).ok());
        open.pop_front();
        break;
      case 4:
        if (random() % 200 == 0) offload->reset();
        if (random() % 200 == 1) offload->forget(RootKey{});
        break;
      default:
        now_us += random() % 500;
        for (const SequenceReady& ready : offload->poll(now_us)) {
          const auto found = std::find_if(
              open.begin(), open.end(), [&](const Open& one) { return one.id == ready.sequence; });
          ASSERT_NE(found, open.end()) << "ready and closed";
          EXPECT_TRUE(found->pending) << "ready twice";
          found->pending = false;
          cache.check_sequence(ready.sequence,
                               std::span(found->tokens).first(std::size_t(ready.cached_tokens)));
        }
    }
    if (step % 16 != 0) continue;
    const Status status = cache.manager.check_invariants();
    ASSERT_TRUE(status.ok()) << status << " at step " << step;
    ASSERT_TRUE(offload->check_invariants().ok());
  }
  total.loads += offload->counters().loads;
  total.tier_loads += offload->counters().tier_loads;
  total.tier_corrupt += offload->counters().tier_corrupt;
  total.unknown_completions += offload->counters().unknown_completions;
  total.requests_timed_out += offload->counters().requests_timed_out;
  for (const Open& one : open) EXPECT_TRUE(cache.manager.close(one.id).ok());
  EXPECT_TRUE(tier.close({}).ok());  // the silent answers, too
  run_to_the_end(*offload, now_us);
  EXPECT_EQ(tier.in_flight(), 0u);
  EXPECT_EQ(offload->arena().pins, 0);
  EXPECT_EQ(offload->arena().quarantined, 0);
  offload.reset();
  for (std::int32_t g = 0; g < std::int32_t(spec.groups.size()); ++g) {
    EXPECT_EQ(cache.manager.usage(GroupId(g))->held, 0);
  }
}

TEST(Offload, NoFaultOfATierGivesOtherBytes) {
  OffloadCounters total;
  for (std::uint32_t seed = 1; seed <= 6; ++seed) {
    storm(seed, test::full(24), 10'000, total);
    storm(seed + 100, test::window(40), 10'000, total);
    storm(seed + 200, test::mixed(14, 40), 10'000, total);
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(total.loads, 500u);
  EXPECT_GT(total.tier_loads, 50u);
  EXPECT_GT(total.tier_corrupt, 10u);
  EXPECT_GT(total.unknown_completions, 10u);
  EXPECT_GT(total.requests_timed_out, 10u);
}

}  // namespace
}  // namespace kvfolio
