// SPDX-License-Identifier: Apache-2.0
//
// What was forgotten does not come back.

#include "kvfolio/offload.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <vector>

#include "offload/test_offload.h"

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

// O6. The arena has room for 600,000 records, which no call looks at all of.
TEST(Offload, ForgettingARootIsBoundedWorkForEachCallAndItsRecordsLeaveTheArena) {
  MemoryTier tier;
  const OffloadTier tiers[] = {{.tier = &tier}};
  Cache cache(test::full(400));
  const auto offload = offload_of(cache, tiers, 600'000 * kFullRecord);
  const OpenOptions roots[] = {{.root = {.tenant_salt = "a"}},
                               {.root = {.tenant_salt = "b"}},
                               {.root = {.tenant_salt = "c"}}};
  for (const OpenOptions& root : roots) cache.compute(prompt_of(1, 640), root);
  run_to_the_end(*offload);
  ASSERT_EQ(offload->arena().records, 240);
  EXPECT_TRUE(offload->idle());
  offload->forget(roots[0].root);
  std::uint64_t now_us = 600'000'000;
  for (int i = 0; i < 3; ++i) offload->poll(++now_us);
  offload->forget(roots[1].root);  // while the first one's records leave
  cache.compute(prompt_of(1, 640), roots[0]);
  EXPECT_FALSE(offload->idle());
  for (int polls = 0; !offload->idle(); ++polls) {
    ASSERT_LT(polls, 100);
    offload->poll(++now_us);
    ASSERT_TRUE(offload->check_invariants().ok());
  }
  EXPECT_LE(offload->counters().steps_max, 60'000u);
  EXPECT_EQ(offload->arena().records, 160) << "the third root's, and what was computed since";
  evict_all(cache);
  const auto found = [&](const OpenOptions& root) {
    return opened(*offload, cache, prompt_of(1, 640), root, now_us += 1'000'000).cached_tokens;
  };
  EXPECT_EQ(found(roots[0]), 639);
  EXPECT_EQ(found(roots[1]), 0);
  EXPECT_EQ(found(roots[2]), 639);
}

// The ways in which a host may have the manager forget, beside the Offload.
using Forgetting = void (*)(KVCacheManager& manager, const OpenOptions& mine);
constexpr Forgetting kDirect[] = {
    [](KVCacheManager& manager, const OpenOptions& mine) { manager.forget(mine.root); },
    [](KVCacheManager& manager, const OpenOptions& mine) {
      EXPECT_TRUE(manager.forget(prompt_of(1, 20), mine));
    },
    [](KVCacheManager& manager, const OpenOptions&) { manager.reset(); }};

const OpenOptions kMine{.root = {.tenant_salt = "a"}};
const OpenOptions kOther{.root = {.tenant_salt = "b"}};

TEST(Offload, WhatTheManagerItselfForgotDoesNotComeBackFromAnyTier) {
  for (const Forgetting forget : kDirect) {
    for (const bool evicted : {false, true}) {  // then the cache does not know the root any more
      MemoryTier tier;
      const OffloadTier tiers[] = {{.tier = &tier}};
      Cache cache(test::full(40));
      const auto offload = offload_of(cache, tiers);
      cache.compute(prompt_of(1, 64), kMine);
      run_to_the_end(*offload);
      ASSERT_EQ(tier.records.size(), 8u);
      if (evicted) evict_all(cache);
      forget(cache.manager, kMine);
      evict_all(cache);
      EXPECT_EQ(opened(*offload, cache, prompt_of(1, 64), kMine, 600'000'000).cached_tokens, 0);
      EXPECT_EQ(offload->arena().records, 0);
      EXPECT_EQ(offload->counters().manager_forgets, 1u);
      // What is computed after that comes back.
      cache.compute(prompt_of(1, 64), kMine);
      run_to_the_end(*offload, 700'000'000);
      evict_all(cache);
      EXPECT_EQ(opened(*offload, cache, prompt_of(1, 64), kMine, 800'000'000).cached_tokens, 63);
    }
  }
}

TEST(Offload, TheEpochCountsWhatTheManagerForgotSinceTheLastCall) {
  Cache cache(test::full(40));
  const auto offload = offload_of(cache);
  cache.manager.reset();
  EXPECT_EQ(offload->epoch(), 1u);
  cache.manager.reset();
  offload->poll(1);
  EXPECT_EQ(offload->epoch(), 1u);
  offload->reset();
  EXPECT_EQ(offload->epoch(), 2u);
  EXPECT_EQ(offload->counters().manager_forgets, 1u);
}

// One process after another over one medium.
TEST(Offload, WhatWasForgottenStaysSoInTheNextProcessThatIsGivenTheEpochsAndTheRestIsThere) {
  MemoryTier tier;
  const OffloadTier tiers[] = {{.tier = &tier}};
  NameEpochs kept;
  {
    Cache cache(test::full(80));
    const auto offload = offload_of(cache, tiers);
    for (const OpenOptions* each : {&kMine, &kOther}) cache.compute(prompt_of(1, 64), *each);
    run_to_the_end(*offload);
    EXPECT_EQ(offload->epochs().roots.size(), 0u);
    offload->forget(kMine.root);
    cache.compute(prompt_of(2, 64), kMine);  // after that, under the new names
    run_to_the_end(*offload, 600'000'000);
    kept = offload->epochs();
    EXPECT_EQ(kept.epoch, 0u);
    ASSERT_EQ(kept.roots.size(), 1u);
    EXPECT_EQ(kept.roots[0].epoch, offload->epoch());
  }
  const auto found = [&](const OffloadOptions& options, int prompt, const OpenOptions& root) {
    Cache cache(test::full(80));
    const auto offload = offload_of(cache, tiers, 1 << 20, options);
    return opened(*offload, cache, prompt_of(prompt, 64), root, 700'000'000).cached_tokens;
  };
  const OffloadOptions with{.epoch = kept.epoch, .root_epochs = kept.roots};
  EXPECT_EQ(found(with, 1, kMine), 0);
  EXPECT_EQ(found(with, 2, kMine), 63);
  EXPECT_EQ(found(with, 1, kOther), 63);
  EXPECT_EQ(found({}, 1, kMine), 63) << "nobody kept the epochs";
  EXPECT_EQ(found({.epoch = 1}, 1, kOther), 0) << "the newest alone forgets all";
  // The third process goes on from there.
  Cache cache(test::full(80));
  const auto offload = offload_of(cache, tiers, 1 << 20, with);
  EXPECT_EQ(offload->epochs().roots, kept.roots);
  offload->forget(kMine.root);
  EXPECT_EQ(offload->epochs().roots[0].epoch, 2u);
  offload->forget(kOther.root);
  EXPECT_EQ(offload->epochs().roots.size(), 2u);
  cache.manager.reset();  // and the Offload was not called since
  EXPECT_EQ(offload->epochs().epoch, 4u);
  EXPECT_TRUE(offload->epochs().roots.empty());
  offload->reset();
  EXPECT_EQ(offload->epochs().epoch, 5u);
}

TEST(Offload, EpochsThatAHostGivesNeverLeadBackToAnOlderName) {
  Cache cache(test::full(40));
  const auto root = offload_of(cache)->identity().root(kMine.root, 0);
  const std::vector<RootEpoch> stale = {{root, 3}, {root, 9}, {root, 7}};
  for (const std::uint64_t all : {0u, 8u, 9u, 20u}) {
    const auto offload = offload_of(cache, {}, 1 << 20, {.epoch = all, .root_epochs = stale});
    const NameEpochs epochs = offload->epochs();
    EXPECT_EQ(epochs.epoch, all);
    EXPECT_EQ(epochs.roots,
              all < 9 ? std::vector<RootEpoch>({{root, 9}}) : std::vector<RootEpoch>());
    EXPECT_EQ(offload->epoch(), std::max<std::uint64_t>(all, 9));
  }
  const std::vector<RootEpoch> many(Offload::kRootEpochsMax + 1, RootEpoch{root, 1});
  const auto refused = Offload::create(
      cache.manager, {.model = test::kToy, .arena_bytes = 1 << 20, .root_epochs = many});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("65537 root_epochs, allowed: 65536"), std::string::npos);
}

// Two prompts that share 32 tokens, and one of their own.
std::vector<std::int32_t> begun_alike(int number, std::size_t length = 64) {
  std::vector<std::int32_t> tokens = prompt_of(1, 32);
  const std::vector<std::int32_t> own = prompt_of(100 + number, 32);
  tokens.insert(tokens.end(), own.begin(), own.end());
  tokens.resize(length);
  return tokens;
}

// O7.
TEST(Offload, ForgettingAPrefixForgetsThatBelowTheCacheAndNotItsRootKey) {
  MemoryTier tier;
  const OffloadTier tiers[] = {{.tier = &tier}};
  Cache cache(test::full(160));
  const auto offload = offload_of(cache, tiers);
  const auto find = [&](const std::vector<std::int32_t>& tokens,
                        const OpenOptions& options = kMine) {
    static std::uint64_t now_us = 1'000'000'000;
    evict_all(cache);
    const SequenceReady ready = opened(*offload, cache, tokens, options, now_us += 1'000'000);
    EXPECT_TRUE(cache.manager.close(ready.sequence).ok());
    return ready.cached_tokens;
  };
  for (const OpenOptions* each : {&kMine, &kOther}) {
    for (int i = 0; i < 3; ++i) cache.compute(begun_alike(i), *each);
    cache.compute(prompt_of(2, 64), *each);
  }
  run_to_the_end(*offload);
  EXPECT_FALSE(offload->forget(std::vector<std::int32_t>{-1}, kMine));
  EXPECT_EQ(offload->epoch(), 0u);
  // The prompt with its last 20 tokens, of which 16 are whole units: the two others stay.
  ASSERT_TRUE(offload->forget(begun_alike(0, 52), kMine));
  EXPECT_EQ(offload->epoch(), 1u);
  EXPECT_EQ(find(begun_alike(0)), 40) << "the units before";
  EXPECT_EQ(find(begun_alike(1)), 63);
  EXPECT_EQ(find(prompt_of(2, 64)), 63);
  EXPECT_EQ(find(begun_alike(0), kOther), 63);
  // What is computed after that is kept under the new names, and forgotten as well.
  cache.compute(begun_alike(0), kMine);
  run_to_the_end(*offload, 100'000'000);
  EXPECT_EQ(find(begun_alike(0)), 63);
  ASSERT_TRUE(offload->forget(begun_alike(0), kMine));
  ASSERT_TRUE(offload->forget(begun_alike(0, 48), kMine));
  EXPECT_EQ(find(begun_alike(0)), 40);
  // What they share: all three are gone, and the fourth is there.
  ASSERT_TRUE(offload->forget(begun_alike(0, 32), kMine));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(find(begun_alike(i)), 24);
  EXPECT_EQ(find(prompt_of(2, 64)), 63);
  // The next process, with and without the list.
  const NameEpochs kept = offload->epochs();
  EXPECT_EQ(kept.roots.size(), 3u);  // one was forgotten twice
  for (const bool has_list : {true, false}) {
    Cache next(test::full(160));
    OffloadOptions options;
    if (has_list) options.root_epochs = kept.roots;
    const auto again = offload_of(next, tiers, 1 << 20, options);
    EXPECT_EQ(opened(*again, next, begun_alike(1), kMine).cached_tokens, has_list ? 24 : 63);
    EXPECT_EQ(opened(*again, next, prompt_of(2, 64), kMine, 2000'000).cached_tokens, 63);
  }
  // Shorter than a unit: its root key.
  ASSERT_TRUE(offload->forget(begun_alike(0, 7), kMine));
  EXPECT_EQ(find(prompt_of(2, 64)), 0);
  EXPECT_EQ(find(prompt_of(2, 64), kOther), 63);
  EXPECT_EQ(offload->counters().manager_forgets, 0u);
  EXPECT_TRUE(offload->check_invariants().ok());
}

TEST(Offload, ForgettingAPrefixEndsTheRequestsThatBeginWithItAndNoOther) {
  MemoryTier tier;
  const OffloadTier tiers[] = {{.tier = &tier}};
  Cache cache(test::full(160));
  const auto offload = offload_of(cache, tiers);
  for (int i = 0; i < 2; ++i) cache.compute(begun_alike(i), kMine);
  run_to_the_end(*offload);
  evict_all(cache);
  tier.set_faults({.late = 1000});
  offload->reset();  // nothing in host memory
  for (int i = 0; i < 2; ++i) cache.compute(begun_alike(i), kMine);
  run_to_the_end(*offload, 10'000'000);
  evict_all(cache);
  const auto gone = offload->open(begun_alike(0), kMine);
  const auto kept = offload->open(begun_alike(1), kMine);
  ASSERT_TRUE(gone->pending && kept->pending);
  ASSERT_TRUE(offload->forget(begun_alike(0, 48), kMine));
  std::vector<SequenceReady> ready;
  for (std::uint64_t now_us = 20'000'000; ready.size() < 2; now_us += 100) {
    ASSERT_LT(now_us, 30'000'000u);
    for (const SequenceReady& one : offload->poll(now_us)) ready.push_back(one);
  }
  for (const SequenceReady& one : ready) {
    EXPECT_EQ(one.why, one.sequence == gone->sequence ? LoadEnd::kForgotten : LoadEnd::kLoaded);
    EXPECT_EQ(one.cached_tokens, one.sequence == gone->sequence ? 0 : 63);
  }
}

// O7. In any order, over several generations: what is found was computed since it was forgotten.
TEST(Offload, PrefixesThatAreForgottenInAnyOrderNeverComeBack) {
  std::mt19937 random(5);
  MemoryTier tier;
  const OffloadTier tiers[] = {{.tier = &tier}};
  Cache cache(test::full(60));
  auto offload = offload_of(cache, tiers);
  // By prompt: units that tiers may have of it.
  std::array<std::int32_t, 4> at_most{};
  std::uint64_t now_us = 1;
  for (int step = 0; step < 300; ++step) {
    const int which = static_cast<int>(random() % 4);
    const auto tokens = begun_alike(which);
    now_us += 1'000'000;
    if (random() % 2 == 0) {
      const auto length = static_cast<std::int32_t>(8 + random() % 57);
      ASSERT_TRUE(offload->forget(std::span(tokens).first(std::size_t(length)), kMine));
      for (int i = 0; i < 4; ++i) {
        // The last whole unit and all behind it; the first four are shared.
        if (i == which || length / 8 <= 4)
          at_most[std::size_t(i)] = std::min(at_most[std::size_t(i)], length / 8 - 1);
      }
    } else if (random() % 4 == 0) {
      const NameEpochs kept = offload->epochs();
      evict_all(cache);
      offload = offload_of(cache, tiers, 1 << 20, {.epoch = kept.epoch, .root_epochs = kept.roots});
    } else {
      evict_all(cache);
      const SequenceReady ready = opened(*offload, cache, tokens, kMine, now_us);
      EXPECT_EQ(ready.cached_tokens, std::min(at_most[std::size_t(which)] * 8, 63)) << step;
      cache.go_on(ready.sequence, tokens, ready.cached_tokens);
      EXPECT_TRUE(cache.manager.close(ready.sequence).ok());
      while (offload->drain(now_us += 100).any()) {
      }
      at_most[std::size_t(which)] = 8;
      for (std::int32_t& units : at_most) units = std::max(units, 4);
    }
  }
  EXPECT_GT(offload->epoch(), 100u);
}

TEST(Offload, ForgettingEndsALoadThatIsBeingWritten) {
  for (int way = 0; way < 6; ++way) {
    Cache cache(test::full(40));
    const auto offload = offload_of(cache, {}, 1 << 20, {.bytes_per_poll = 2 * kFullRecord});
    cache.compute(prompt_of(1, 64), kMine);
    run_to_the_end(*offload);
    evict_all(cache);
    const auto open = offload->open(prompt_of(1, 64), kMine);
    EXPECT_TRUE(offload->poll(1'000'000).empty());
    ASSERT_EQ(cache.manager.usage(GroupId(0))->loading, 8);
    if (way < 3) kDirect[way](cache.manager, kMine);
    if (way == 3) offload->forget(kMine.root);
    if (way == 4) {
      EXPECT_TRUE(offload->forget(prompt_of(1, 9), kMine));
    }
    if (way == 5) offload->reset();
    const auto ready = offload->poll(1'000'001);
    ASSERT_EQ(ready.size(), 1u) << way;
    EXPECT_EQ(ready[0].sequence, open->sequence);
    EXPECT_EQ(ready[0].why, LoadEnd::kForgotten);
    EXPECT_EQ(ready[0].cached_tokens, 0);
    EXPECT_EQ(cache.manager.usage(GroupId(0))->loading, 0);
    EXPECT_EQ(offload->arena().pins, 0);
    cache.go_on(open->sequence, prompt_of(1, 64), 0);
    EXPECT_TRUE(cache.manager.close(open->sequence).ok());
    EXPECT_TRUE(offload->check_invariants().ok());
  }
}

TEST(Offload, WhatArrivesAfterItWasForgottenIsDropped) {
  for (const Forgetting forget : kDirect) {
    MemoryTier tier;
    tier.records = left_by_a_first_process(prompt_of(1, 64), kMine);
    const OffloadTier tiers[] = {{.tier = &tier}};
    Cache cache(test::full(40));
    const auto offload = offload_of(cache, tiers);
    ASSERT_TRUE(offload->open(prompt_of(1, 64), kMine)->pending);
    offload->poll(1);
    offload->poll(2);
    ASSERT_EQ(tier.loads_asked, 8u);
    forget(cache.manager, kMine);
    const auto ready = offload->poll(3);
    ASSERT_EQ(ready.size(), 1u);
    EXPECT_EQ(ready[0].why, LoadEnd::kForgotten);
    run_to_the_end(*offload);
    EXPECT_EQ(tier.in_flight(), 0u);
    EXPECT_EQ(offload->arena().records, 0);
    EXPECT_EQ(offload->arena().quarantined, 0);
    EXPECT_EQ(offload->counters().tier_loads, 0u);
  }
}

// Behind the last number comes 0, under which everything was stored once.
TEST(Offload, AnEpochThatCouldWrapToNamesThatWereForgottenIsRefused) {
  MemoryTier tier;
  tier.records = left_by_a_first_process(prompt_of(1, 64), kMine);
  const OffloadTier tiers[] = {{.tier = &tier}};
  constexpr std::uint64_t kMost = ~std::uint64_t{0};
  const RootEpoch root{.root = {}, .epoch = kMost};
  for (const OffloadOptions& last :
       {OffloadOptions{.epoch = kMost}, OffloadOptions{.root_epochs = std::span(&root, 1)}}) {
    Cache cache(test::full(40));
    OffloadOptions options = last;
    options.model = test::kToy;
    options.arena_bytes = 1 << 20;
    options.tiers = tiers;
    const auto offload = Offload::create(cache.manager, options);
    EXPECT_FALSE(offload);
    if (!offload) continue;
    (*offload)->forget(kMine.root);
    EXPECT_EQ(opened(**offload, cache, prompt_of(1, 64), kMine).cached_tokens, 0);
  }
}

}  // namespace
}  // namespace kvfolio
