// SPDX-License-Identifier: Apache-2.0
//
// Tiers below host memory: what they are given, and asked for.

#include "kvfolio/offload.h"

#include <gtest/gtest.h>

#include "offload/loaded_keys.h"
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

TEST(Offload, AnotherProcessFindsItInTheTier) {
  const auto records = left_by_a_first_process(prompt_of(1, 64));
  MemoryTier reopened;
  reopened.records = records;
  const OffloadTier tiers_after[] = {{.tier = &reopened}};
  Cache after(test::full(19));
  const auto offload = offload_of(after, tiers_after);
  const SequenceReady ready = opened(*offload, after, prompt_of(1, 64));
  EXPECT_EQ(ready.cached_tokens, 63);
  EXPECT_EQ(ready.why, LoadEnd::kLoaded);
  EXPECT_EQ(opened(*offload, after, prompt_of(2, 64)).why, LoadEnd::kNothing);
}

// reserve() comes behind the load: what begin_load() would refuse is not brought.
TEST(Offload, NothingIsReadForASequenceWithAPromise) {
  const auto records = left_by_a_first_process(prompt_of(1, 64));
  for (const bool reserved : {false, true}) {
    MemoryTier reopened;
    reopened.records = records;
    const OffloadTier tiers_after[] = {{.tier = &reopened}};
    Cache after(test::full(40));
    const auto offload = offload_of(after, tiers_after);
    const SequenceId id = offload->open(prompt_of(1, 64))->sequence;
    ASSERT_TRUE(after.manager.reserve(id, reserved ? 64 : 0).ok());
    run_to_the_end(*offload);
    EXPECT_EQ(offload->counters().tier_loads, reserved ? 0u : 8u);
    EXPECT_EQ(after.manager.info(id)->length, reserved ? 0 : 63);
  }
}

// The same tokens under each other identity, salt or adapter: no hit.
TEST(Offload, ATierAnswersForItsOwnIdentityAndRootOnly) {
  const auto records = left_by_a_first_process(prompt_of(1, 64), {.root = {.tenant_salt = "a"}});
  const auto found = [&](const OffloadOptions& options, const CacheSpec& spec,
                         const RootKey& root) {
    MemoryTier reopened;
    reopened.records = records;
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
    other.model.*field = field == &ModelIdentity::layers ? "2-3" : "other";
    EXPECT_EQ(found(other, test::full(40), {.tenant_salt = "a"}), 0);
  }
  CacheSpec bf16 = test::full(40);
  bf16.groups[0].dtype = DType::kBF16;
  EXPECT_EQ(found(toy, bf16, {.tenant_salt = "a"}), 0);
}

TEST(Offload, RequestsForTheSameRecordsShareOneLoad) {
  const auto records = left_by_a_first_process(prompt_of(1, 64));
  MemoryTier reopened;
  reopened.records = records;
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

// The host finds out later whether the bytes are what their names say.
TEST(Offload, WhatIsHeldIsStoredOnceItIsReleased) {
  MemoryTier tier;
  const OffloadTier tiers[] = {{.tier = &tier}};
  Cache cache(test::full(40));
  OffloadOptions options;
  options.hold_stores = true;
  const auto offload = offload_of(cache, tiers, 1 << 20, options);
  cache.compute(prompt_of(1, 64));
  run_to_the_end(*offload);
  EXPECT_EQ(tier.records.size(), 0u);
  EXPECT_EQ(offload->arena().records, 0);
  EXPECT_TRUE(offload->idle());
  EXPECT_FALSE(offload->drain(600'000'000).any());
  EXPECT_EQ(tier.records.size(), 0u);

  offload->release_stores();
  EXPECT_FALSE(offload->idle());
  cache.compute(prompt_of(2, 64));  // behind it
  run_to_the_end(*offload, 700'000'000);
  EXPECT_EQ(tier.records.size(), 8u);
  EXPECT_TRUE(offload->idle());
  EXPECT_TRUE(offload->check_invariants().ok());

  evict_all(cache);  // what waits, too
  offload->release_stores();
  run_to_the_end(*offload, 800'000'000);
  EXPECT_EQ(tier.records.size(), 8u);
  EXPECT_EQ(opened(*offload, cache, prompt_of(1, 64), {}, 900'000'000).cached_tokens, 63);
  EXPECT_EQ(opened(*offload, cache, prompt_of(2, 64), {}, 900'000'000).cached_tokens, 0);
}

// The host looked at nothing that is not written yet.
TEST(Offload, AReleaseLetsGoOfNothingThatAStepInFlightWrites) {
  MemoryTier tier;
  const OffloadTier tiers[] = {{.tier = &tier}};
  OffloadOptions options;
  options.hold_stores = true;
  Cache cache(test::full(40));
  const auto offload = offload_of(cache, tiers, 1 << 20, options);
  cache.compute(prompt_of(1, 64));
  const auto tokens = prompt_of(2, 64);
  const auto sequence = cache.manager.open(tokens);
  ASSERT_TRUE(sequence);
  const Ticket ticket = *cache.manager.begin_step();
  ASSERT_TRUE(cache.manager.append(sequence->sequence, tokens).ok());
  ASSERT_TRUE(cache.manager.plan());
  ASSERT_TRUE(cache.manager.commit(ticket).ok());
  offload->release_stores();
  ASSERT_TRUE(cache.manager.complete(ticket).ok());
  run_to_the_end(*offload);
  EXPECT_EQ(tier.records.size(), 8u);
  EXPECT_TRUE(offload->idle());
  offload->release_stores();
  run_to_the_end(*offload, 700'000'000);
  EXPECT_EQ(tier.records.size(), 16u);
}

// Both are findable; the release sees that neither is written.
TEST(Offload, NothingWaitsBehindABlockThatIsHeld) {
  Cache cache(test::full(40));
  OffloadOptions options;
  options.hold_stores = true;
  const auto offload = offload_of(cache, {}, 1 << 20, options);
  KVCacheManager& manager = cache.manager;
  const std::vector<std::int32_t> first = prompt_of(1, 8), second = prompt_of(2, 8);
  const auto commit = [&](std::span<const std::int32_t> tokens) {
    const SequenceId id = manager.open(tokens)->sequence;
    const Ticket step = *manager.begin_step();
    EXPECT_TRUE(manager.append(id, tokens).ok() && manager.plan() && manager.run_copies().ok());
    EXPECT_TRUE(manager.commit(step).ok());
    return step;
  };
  const Ticket slow = commit(first);  // findable, and being written
  offload->release_stores();
  const Ticket last = commit(second);
  run_to_the_end(*offload);
  EXPECT_TRUE(manager.complete(slow).ok());
  run_to_the_end(*offload, 700'000'000);
  EXPECT_EQ(offload->counters().stores, 0u);
  offload->release_stores();  // of the first alone
  EXPECT_TRUE(manager.complete(last).ok());
  EXPECT_FALSE(offload->idle());
  run_to_the_end(*offload, 800'000'000);
  EXPECT_TRUE(offload->idle());
  EXPECT_FALSE(offload->drain(900'000'000).any());
  EXPECT_EQ(offload->counters().stores, 1u);
  EXPECT_TRUE(offload->check_invariants().ok());
  offload->release_stores();
  run_to_the_end(*offload, 1'000'000'000);
  EXPECT_EQ(offload->counters().stores, 2u);
}

TEST(Offload, WhatIsReleasedAtOnceIsStoredWithinTheBytesOfAPoll) {
  Cache cache(test::full(40));
  OffloadOptions options;
  options.hold_stores = true;
  options.bytes_per_poll = 4 * test::kFullRecord;  // stores: half of it
  const auto offload = offload_of(cache, {}, 1 << 20, options);
  cache.compute(prompt_of(1, 256));
  run_to_the_end(*offload);
  offload->release_stores();
  for (std::uint64_t polls = 1; polls <= 16; ++polls) {
    offload->poll(700'000'000 + polls);
    EXPECT_EQ(offload->counters().stores, 2 * polls);
    EXPECT_TRUE(offload->check_invariants().ok());
  }
  run_to_the_end(*offload, 800'000'000);
  EXPECT_EQ(offload->counters().stores, 32u);
}

// drain() gives a tier no more than it takes, also of what was released at once.
TEST(Offload, ADrainOfWhatWasReleasedDropsNothingBecauseATierIsBehind) {
  MemoryTier tier;
  const OffloadTier tiers[] = {{.tier = &tier, .store_bytes_max = test::kFullRecord}};
  Cache cache(test::full(40));
  OffloadOptions options;
  options.hold_stores = true;
  const auto offload = offload_of(cache, tiers, 6 * test::kFullRecord, options);
  cache.compute(prompt_of(1, 256));
  run_to_the_end(*offload);
  offload->release_stores();
  for (int i = 0; i < 1000 && offload->drain(700'000'000).any(); ++i) {
    EXPECT_TRUE(offload->check_invariants().ok());
  }
  EXPECT_EQ(tier.records.size(), 32u);
  EXPECT_EQ(offload->counters().stores_dropped + offload->counters().tier_stores_dropped, 0u);
}

// Entries that are gone, too, if nothing is ever released.
TEST(Offload, WhatIsHeldAndEvictedIsNotStoredWhenItsBlocksAreReleased) {
  Cache cache(test::full(40));
  OffloadOptions options;
  options.hold_stores = true;
  const auto offload = offload_of(cache, {}, 1 << 20, options);
  for (int number = 0; number < 20; ++number) {
    evict_all(cache);
    cache.compute(prompt_of(number, 64));
    offload->poll(1'000'000 + static_cast<std::uint64_t>(number));
    EXPECT_TRUE(offload->check_invariants().ok());
  }
  run_to_the_end(*offload);
  offload->release_stores();
  run_to_the_end(*offload, 700'000'000);
  EXPECT_EQ(offload->counters().stores, 8u);
  evict_all(cache);
  EXPECT_EQ(opened(*offload, cache, prompt_of(19, 64), {}, 900'000'000).cached_tokens, 63);
}

TEST(Offload, ComputesWhatWouldTakeLongerToLoad) {
  const auto records = left_by_a_first_process(prompt_of(1, 64));
  for (const bool fast : {false, true}) {
    MemoryTier reopened;
    reopened.records = records;
    const OffloadTier again[] = {{.tier = &reopened}};
    Cache after(test::full(40));
    const auto offload = offload_of(
        after, again, 1 << 20, {.load_bytes_per_s = fast ? 1e9 : 1e3, .prefill_tokens_per_s = 100});
    const SequenceReady ready = opened(*offload, after, prompt_of(1, 64));
    EXPECT_EQ(ready.why, fast ? LoadEnd::kLoaded : LoadEnd::kRecompute);
    EXPECT_EQ(reopened.loads_asked, fast ? 8u : 0u);
  }
}

TEST(Offload, TheNextTierIsAskedForWhatAnotherFailedToBring) {
  const auto records = left_by_a_first_process(prompt_of(1, 64));
  for (const bool damaged : {false, true}) {
    MemoryTier bad(1, {.io_error = damaged ? 0u : 1000u});
    MemoryTier good;
    bad.records = good.records = records;
    if (damaged) {
      for (auto& [key, record] : bad.records) record[500] ^= std::byte{1};
    }
    const OffloadTier tiers[] = {{.tier = &bad}, {.tier = &good}};
    Cache cache(test::full(40));
    const auto offload = offload_of(cache, tiers);
    const SequenceReady ready = opened(*offload, cache, prompt_of(1, 64));
    EXPECT_EQ(ready.cached_tokens, 63);
    EXPECT_EQ(ready.why, LoadEnd::kLoaded);
    EXPECT_EQ(bad.loads_asked, 8u);
    EXPECT_EQ(good.loads_asked, 8u);
    EXPECT_EQ(bad.exists_asked, 8u);
  }
}

TEST(Offload, ATierThatWasBusyIsAskedOnceMore) {
  MemoryTier tier(1, {.busy_loads = 1000});
  tier.records = left_by_a_first_process(prompt_of(1, 64));
  const OffloadTier tiers[] = {{.tier = &tier}};
  Cache cache(test::full(40));
  const auto offload = offload_of(cache, tiers);
  const auto open = offload->open(prompt_of(1, 64));
  for (std::uint64_t i = 1; tier.loads_asked < 8; ++i) ASSERT_TRUE(offload->poll(i).empty());
  EXPECT_TRUE(offload->poll(100).empty());  // all were busy
  tier.set_faults({});
  std::size_t ready = 0;
  for (std::uint64_t i = 101; i < 110; ++i) ready += offload->poll(i).size();
  EXPECT_EQ(ready, 1u);
  EXPECT_EQ(cache.manager.info(open->sequence)->length, 63);
}

TEST(Offload, ATierIsNotOfferedMoreThanItsLimit) {
  MemoryTier small;
  MemoryTier large;
  small.says = {kFullRecord, 64};  // of the window group's records; the others are larger
  const OffloadTier tiers[] = {{.tier = &small}, {.tier = &large}};
  Cache cache(test::mixed(40, 40));
  const auto offload = offload_of(cache, tiers);
  cache.compute(prompt_of(1, 64));
  run_to_the_end(*offload);
  EXPECT_EQ(small.stores_asked, 8u);
  EXPECT_EQ(large.stores_asked, 8u + 4u);
  EXPECT_EQ(offload->counters().tier_stores_dropped, 0u);
  evict_all(cache);
  opened(*offload, cache, prompt_of(2, 64));
  EXPECT_EQ(small.exists_asked, 8u);
  EXPECT_EQ(large.exists_asked, 8u + 4u);
  EXPECT_EQ(small.broken_limits, 0u);
}

TEST(Offload, ATierThatCanHoldNothingIsRefusedWithBothNumbers) {
  Cache cache(test::mixed(40, 40));
  MemoryTier none;
  MemoryTier some;
  MemoryTier all;
  none.says = {kFullRecord - 1, 64};
  some.says = {kFullRecord, 64};  // as above
  const auto made = [&](std::vector<OffloadTier> tiers) {
    const auto offload = Offload::create(
        cache.manager,
        {.model = test::toy_of(cache.manager.spec()), .arena_bytes = 1 << 20, .tiers = tiers});
    return offload ? std::string() : std::string(offload.error().message());
  };
  EXPECT_EQ(made({{.tier = &all}, {.tier = &some}}), "");
  EXPECT_NE(made({{.tier = &all}, {.tier = &none}}), "");
  EXPECT_NE(made({{.tier = &some}}), "") << "of the full group it would have nothing";
  const std::string message = made({{.tier = &none}});
  EXPECT_NE(message.find(std::to_string(kFullRecord - 1)), std::string::npos) << message;
  EXPECT_NE(message.find("raise its limit"), std::string::npos) << message;
  EXPECT_NE(made({{.tier = &all}, {.tier = &all}}).find("twice"), std::string::npos);
}

TEST(Offload, ATierThatIsNotUsableIsPassedOver) {
  MemoryTier tier;
  tier.usable = false;
  tier.records = left_by_a_first_process(prompt_of(1, 64));
  const OffloadTier tiers[] = {{.tier = &tier}};
  Cache cache(test::full(40));
  const auto offload = offload_of(cache, tiers);
  const SequenceReady ready = opened(*offload, cache, prompt_of(1, 64));
  EXPECT_EQ(ready.why, LoadEnd::kNothing) << "nobody waits for it";
  EXPECT_TRUE(cache.manager.close(ready.sequence).ok());
  cache.compute(prompt_of(2, 64));
  run_to_the_end(*offload);
  EXPECT_EQ(offload->counters().tier_stores_dropped, 8u);
  EXPECT_EQ(tier.broken_limits, 0u) << "it was asked";
  tier.usable = true;
  EXPECT_EQ(opened(*offload, cache, prompt_of(1, 64), {}, 600'000'000).why, LoadEnd::kLoaded);
}

// Memory that is aligned to 64 and to no more.
class OddMemory final : public MemoryResource {
 public:
  std::int64_t held = 0;
  [[nodiscard]] MemoryKind kind() const noexcept override { return MemoryKind::kHost; }
  Result<std::byte*> allocate(std::int64_t bytes) override {
    auto memory = inner_.allocate(bytes + 4096);
    if (!memory) return memory.error();
    held += bytes;
    return *memory + 64;
  }
  void deallocate(std::byte* memory, std::int64_t bytes) noexcept override {
    held -= bytes;
    inner_.deallocate(memory - 64, bytes + 4096);
  }
  Status copy(std::byte* dst, const std::byte* src, std::int64_t bytes) noexcept override {
    return inner_.copy(dst, src, bytes);
  }

 private:
  HostMemory inner_;
};

TEST(Offload, RecordsLieAsTheMostDemandingTierAsks) {
  OddMemory memory;
  for (const std::int64_t alignment : {1, 512, 4096}) {
    MemoryTier plain;
    MemoryTier demanding;
    demanding.says = {0, alignment};
    const OffloadTier tiers[] = {{.tier = &plain}, {.tier = &demanding}};
    const auto prompt = prompt_of(1, 64);
    for (const CacheSpec& spec : {test::full(40), test::mixed(40, 40)}) {
      Cache cache(spec);
      const auto offload = offload_of(cache, tiers, 1 << 20, {.resource = &memory});
      cache.compute(prompt);
      run_to_the_end(*offload);
    }
    plain.records.clear();
    Cache cache(test::full(40));
    const auto offload = offload_of(cache, tiers, 1 << 20, {.resource = &memory});
    EXPECT_EQ(opened(*offload, cache, prompt).cached_tokens, 63);
    EXPECT_GE(demanding.stores_asked, 16u);
    EXPECT_GE(demanding.loads_asked, 8u);
    EXPECT_EQ(demanding.broken_limits, 0u) << alignment;
  }
  EXPECT_EQ(memory.held, 0);
}

TEST(Offload, WhatATierHasNoRoomForWaitsItsTurn) {
  for (const bool by_bytes : {true, false}) {
    MemoryTier tier;
    if (!by_bytes) tier.queue_max = 3;
    const OffloadTier tiers[] = {
        {.tier = &tier, .store_bytes_max = by_bytes ? 2 * kFullRecord : 1 << 20}};
    Cache cache(test::full(40));
    const auto offload = offload_of(cache, tiers);
    cache.compute(prompt_of(1, 64));
    offload->poll(1);
    EXPECT_EQ(tier.stores_asked, by_bytes ? 2u : 3u);
    EXPECT_FALSE(offload->idle());
    run_to_the_end(*offload);
    EXPECT_TRUE(offload->idle());
    EXPECT_EQ(tier.records.size(), 8u);
    EXPECT_EQ(offload->counters().tier_stores_dropped, 0u);
  }
}

TEST(Offload, WhatTheArenaLosesBeforeItsTurnIsCounted) {
  MemoryTier tier(1, {.silent = 1000});
  const OffloadTier tiers[] = {{.tier = &tier, .store_bytes_max = kFullRecord}};
  Cache cache(test::full(40));
  const auto offload = offload_of(cache, tiers, 4 * kFullRecord);
  cache.compute(prompt_of(1, 64));
  offload->poll(1);
  EXPECT_TRUE(tier.close({}).ok());  // ends the store that is in flight
  run_to_the_end(*offload);
  EXPECT_EQ(offload->counters().tier_stores_dropped, 8u);
  EXPECT_TRUE(offload->idle());
}

TEST(Offload, ALoadBeyondATiersRoomComesPieceByPiece) {
  for (const bool by_bytes : {true, false}) {
    MemoryTier tier;
    tier.records = left_by_a_first_process(prompt_of(1, 64));
    if (!by_bytes) tier.queue_max = 3;
    const OffloadTier tiers[] = {
        {.tier = &tier, .load_bytes_max = by_bytes ? 2 * kFullRecord : 1 << 20}};
    Cache cache(test::full(40));
    const auto offload = offload_of(cache, tiers);
    const SequenceReady ready = opened(*offload, cache, prompt_of(1, 64));
    EXPECT_EQ(ready.cached_tokens, 63);
    EXPECT_EQ(ready.why, LoadEnd::kLoaded);
    EXPECT_EQ(tier.loads_asked, 8u);
  }
}

TEST(Offload, APromptLargerThanTheArenaComesAsFarAsThatHolds) {
  MemoryTier tier;
  tier.records = left_by_a_first_process(prompt_of(1, 64));
  const OffloadTier tiers[] = {{.tier = &tier}};
  Cache cache(test::full(40));
  const auto offload = offload_of(cache, tiers, 5 * kFullRecord);
  const SequenceReady ready = opened(*offload, cache, prompt_of(1, 64));
  EXPECT_EQ(ready.why, LoadEnd::kPart);
  EXPECT_GE(ready.cached_tokens, 24) << tier.loads_asked;
}

TEST(Offload, RecordsThatArriveCountAgainstTheBytesOfAPoll) {
  MemoryTier tier;
  tier.records = left_by_a_first_process(prompt_of(1, 64));
  const OffloadTier tiers[] = {{.tier = &tier}};
  Cache cache(test::full(40));
  const auto offload = offload_of(cache, tiers, 1 << 20, {.bytes_per_poll = 4 * kFullRecord});
  ASSERT_TRUE(offload->open(prompt_of(1, 64))->pending);
  std::uint64_t before = 0;
  for (std::uint64_t i = 1; i < 20; ++i) {
    offload->poll(i);
    EXPECT_LE(offload->counters().tier_loads - before, 2u);
    before = offload->counters().tier_loads;
  }
  EXPECT_EQ(before, 8u);
}

TEST(Offload, ABlockIsStoredWhileATierIsAskedForItsRecord) {
  MemoryTier tier;
  tier.records = left_by_a_first_process(prompt_of(1, 64));
  const OffloadTier tiers[] = {{.tier = &tier, .policy = WritePolicy::kOff}};
  Cache cache(test::full(40));
  const auto offload = offload_of(cache, tiers);
  const auto open = offload->open(prompt_of(1, 64));
  offload->poll(1);
  tier.set_faults({.silent = 1000});
  offload->poll(2);
  ASSERT_EQ(tier.loads_asked, 8u);
  cache.compute(prompt_of(1, 64));
  offload->poll(3);
  EXPECT_EQ(offload->counters().stores, 8u);
  EXPECT_TRUE(offload->check_invariants().ok());
  const auto ready = offload->poll(4);  // and the sequence that waited for the tier has it
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_EQ(ready[0].cached_tokens, 63);
  cache.check_sequence(open->sequence, prompt_of(1, 63));
  EXPECT_TRUE(tier.close({}).ok());
  run_to_the_end(*offload);
  EXPECT_EQ(offload->arena().quarantined, 0);
  EXPECT_EQ(offload->arena().records, 8);
}

TEST(Offload, WhatOneRequestGaveUpIsLoadedAgainForTheNext) {
  MemoryTier tier;
  tier.records = left_by_a_first_process(prompt_of(1, 64));
  const OffloadTier tiers[] = {{.tier = &tier}};
  Cache cache(test::full(40));
  const auto offload = offload_of(cache, tiers, 1 << 20, {.timeout_us = 500});
  ASSERT_TRUE(offload->open(prompt_of(1, 64))->pending);
  offload->poll(1);
  tier.set_faults({.silent = 1000});
  offload->poll(2);
  ASSERT_EQ(offload->poll(1000).size(), 1u);
  EXPECT_EQ(offload->arena().quarantined, 8);
  tier.set_faults({});
  EXPECT_EQ(opened(*offload, cache, prompt_of(1, 64), {}, 2000).cached_tokens, 63);
  EXPECT_EQ(tier.loads_asked, 16u);
  EXPECT_TRUE(tier.close({}).ok());
  run_to_the_end(*offload);
}

TEST(Offload, NothingIsErasedInATierThatIsReadOnly) {
  for (const WritePolicy policy : {WritePolicy::kOff, WritePolicy::kSecondUse}) {
    MemoryTier tier;
    tier.records = left_by_a_first_process(prompt_of(1, 64));
    for (auto& [key, record] : tier.records) record[200] ^= std::byte{1};
    const OffloadTier tiers[] = {{.tier = &tier, .policy = policy}};
    Cache cache(test::full(40));
    const auto offload = offload_of(cache, tiers);
    EXPECT_EQ(opened(*offload, cache, prompt_of(1, 64)).cached_tokens, 0);
    run_to_the_end(*offload);
    EXPECT_EQ(offload->counters().tier_corrupt, 8u);
    EXPECT_EQ(tier.records.size(), policy == WritePolicy::kOff ? 8u : 0u);
  }
}

// A small arena has given them up when the manager lists the loaded blocks as findable.
TEST(Offload, WhatATierHasBroughtIsNotStoredThereAgain) {
  MemoryTier tier;
  for (int i = 0; i < 8; ++i) tier.records.merge(left_by_a_first_process(prompt_of(i, 64)));
  const auto records = tier.records;
  const OffloadTier tiers[] = {{.tier = &tier}};
  Cache cache(test::full(100));
  const auto offload = offload_of(cache, tiers, 10 * kFullRecord, {.timeout_us = 1'000'000});
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(offload->open(prompt_of(i, 64))->pending);
  int ready = 0;
  for (std::uint64_t now_us = 1; ready < 8; now_us += 100) {
    ASSERT_LT(now_us, 10'000'000u);
    for (const SequenceReady& one : offload->poll(now_us)) {
      EXPECT_EQ(one.cached_tokens, 63);
      ++ready;
    }
  }
  run_to_the_end(*offload, 20'000'000);
  EXPECT_EQ(offload->counters().tier_loads, 64u);
  EXPECT_EQ(offload->counters().tier_stores, 0u);
  EXPECT_EQ(offload->counters().tier_stores_dropped, 0u);
  EXPECT_EQ(offload->counters().stores_dropped, 0u);
  EXPECT_EQ(tier.records, records);
  // What is computed is stored as before.
  evict_all(cache);
  cache.compute(prompt_of(100, 64));
  run_to_the_end(*offload, 30'000'000);
  EXPECT_EQ(tier.records.size(), records.size() + 8);
}

// O10. Blocks of sequences that publish nothing never become findable.
TEST(Offload, HoweverMuchWasLoadedAndNeverFoundWhatIsLoadedNowIsNotStoredAgain) {
  constexpr int kBlocks = 1024, kPrompts = 65, kLast = 4;
  static_assert(kPrompts * kBlocks > LoadedKeys::kMost);
  MemoryTier tier;
  const OffloadTier tiers[] = {{.tier = &tier}};
  Cache cache(test::full(kLast * kBlocks));
  const auto offload =
      offload_of(cache, tiers, (kBlocks + 2) * kFullRecord, {.timeout_us = 100'000'000});
  std::uint64_t now_us = 1;
  const auto load = [&](int first, int num_prompts, Publish publish) {
    tier.records.clear();
    for (int i = first; i < first + num_prompts; ++i) {
      const auto prompt = prompt_of(i, kBlocks * 8);
      tier.records.merge(left_by_a_first_process(prompt));
      ASSERT_TRUE(offload->open(prompt, {.publish = publish})->pending);
    }
    for (int ready = 0; ready < num_prompts; now_us += 100) {
      ASSERT_LT(now_us, 100'000'000u);
      for (const SequenceReady& one : offload->poll(now_us)) {
        EXPECT_EQ(one.cached_tokens, kBlocks * 8 - 1);
        EXPECT_TRUE(cache.manager.close(one.sequence).ok());
        ++ready;
      }
    }
    for (; !offload->idle(); now_us += 100) offload->poll(now_us);
  };
  for (int i = 0; i < kPrompts; ++i) {
    load(i, 1, Publish::kNothing);
    ASSERT_EQ(cache.hit(prompt_of(i, kBlocks * 8)), 0);
  }
  // The arena has given up the records of the first ones when the manager lists their blocks.
  load(kPrompts, kLast, Publish::kAll);
  EXPECT_EQ(offload->counters().stores, 0u);
  EXPECT_EQ(offload->counters().tier_stores, 0u);
}

}  // namespace
}  // namespace kvfolio
