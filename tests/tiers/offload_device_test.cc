// SPDX-License-Identifier: Apache-2.0
//
// Offload over cuda::DeviceMemory, whose driver is none (cuda/fake_driver.h): streams that are
// late, overtake each other, and stand; an arena in pinned memory and one that is pageable; kernels
// and none. Each byte is checked against what tokens are (traffic.h), and no poll() of Offload
// waits for the device.
//
// KVFOLIO_SEED: the first seed (default 1). KVFOLIO_OPS: operations of all runs together (default
// 100,000). A failure names its seed.

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <utility>

#include "cuda/device_memory.h"
#include "cuda/fake_driver.h"
#include "kvfolio/cuda_memory.h"
#include "kvfolio/offload.h"
#include "offload/test_offload.h"
#include "operations.h"
#include "tiers/memory_tier.h"
#include "tiers/traffic.h"

namespace kvfolio {
namespace {

using cuda::FakeDriver;
using test::MemoryTier;

// A device, its memory and an engine's stream. The memory may be touched by the CPU, which
// computes.
struct Card {
  explicit Card(unsigned seed) : fake(seed) {
    static const int image = 0;
    fake.touchable = true;
    fake.moves_percent = 2 + static_cast<int>(seed % 30);
    device = cuda::open_device();
    cuda::staged::DeviceMemoryOptions options{.staging_bytes = 4096,
                                              .later_bytes = seed % 2 == 0 ? 4096 : 1 << 16};
    if (seed % 3 != 0) options.kernels = *cuda::MoveModule::load(device, &image);
    memory = *cuda::staged::DeviceMemory::create(device, options);
    pinned = *cuda::PinnedHostMemory::create(device);
    engine = *cuda::Stream::create(device);
    scratch = *memory->allocate(64);
  }
  ~Card() { memory->deallocate(scratch, 64); }
  Card(const Card&) = delete;
  Card& operator=(const Card&) = delete;

  // A step of the engine that takes its time.
  void begin_work() {
    const Status begun = device->run("to work", [&](const cuda::DriverCalls& calls) {
      return calls.memory_set(cuda::address_of(scratch), 1, 64, engine.handle());
    });
    EXPECT_TRUE(begun.ok()) << begun;
    fake.standing.insert(engine.handle());
  }
  void end_work() { fake.standing.clear(); }

  FakeDriver fake;
  std::shared_ptr<cuda::Device> device;
  std::unique_ptr<cuda::staged::DeviceMemory> memory;
  std::unique_ptr<cuda::PinnedHostMemory> pinned;
  cuda::Stream engine;
  std::byte* scratch = nullptr;
};

struct Totals {
  std::uint64_t loads = 0, stores = 0, failed = 0, ready = 0, launches = 0;
};

class Storm : test::Traffic {
 public:
  Storm(std::uint32_t seed, const CacheSpec& spec, Card& card)
      : Traffic(seed, spec, {}, card.memory.get()), card_(card), fails_(seed % 4 == 0) {
    const OffloadTier tiers[] = {{.tier = &tier_}};
    OffloadOptions options;
    options.model = test::toy_of(spec_);
    options.arena_bytes = 1024 * between(4, 60);
    options.bytes_per_poll = chance(50) ? 1500 : 1 << 20;
    if (chance(60)) options.prefill_tokens_per_s = 1e4;
    if (chance(60)) options.tiers = tiers;
    if (seed % 5 != 0) options.resource = card.pinned.get();  // else pageable
    options.stream = card.engine.handle();
    auto made = Offload::create(manager_, options);
    EXPECT_TRUE(made) << made.error();
    offload_ = *std::move(made);
  }
  ~Storm() { offload_.reset(); }  // before its tier

  void step() {
    if (chance(2)) check_all();
    if (chance(5)) card_.begin_work();
    if (chance(15)) card_.end_work();
    // What only submitted copies call here.
    card_.fake.always.clear();
    if (fails_ && chance(3)) {
      const char* const calls[] = {"cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuLaunchKernel",
                                   "cuStreamWaitEvent", "cuEventRecord"};
      card_.fake.always[calls[random_() % 5]] = 999;
    }
    if (random_() % 1000 == 0) return forget();
    if (!chance(40)) return any_operation();
    const int before = card_.fake.waits;
    poll();
    EXPECT_EQ(card_.fake.waits, before) << "poll() waits for the device";
  }
  void end(Totals& totals) {
    card_.fake.always.clear();
    card_.end_work();
    end_step();
    check_all();
    for (int i = 0; i < 5000 && num_pending() > 0; ++i) poll();
    EXPECT_EQ(num_pending(), 0) << "never ready";
    close_all();
    for (int i = 0; i < 300 && offload_->drain(now_us_).any(); ++i) now_us_ += 100;
    for (int i = 0; i < 5000 && !offload_->idle(); ++i) poll();
    check_nothing_is_left();
    totals.loads += offload_->counters().loads;
    totals.stores += offload_->counters().stores;
    totals.failed += offload_->counters().copies_failed;
    totals.ready += ready_;
  }

 private:
  Card& card_;
  bool fails_;
  MemoryTier tier_;
};

TEST(OffloadDevice, EveryRowIsItsTokensHoweverLateTheDeviceIs) {
  const auto first = static_cast<std::uint32_t>(test::from_environment("KVFOLIO_SEED", 1));
  const std::uint64_t operations =
      test::from_environment("KVFOLIO_OPS", test::operations_by_default(100'000));
  constexpr std::uint64_t kOpsPerRun = 2000;
  // Images of the first two have enough runs for a kernel.
  CacheSpec specs[] = {test::full(24), test::window(40), test::mixed(14, 40)};
  specs[0].groups[0].num_layers = specs[1].groups[0].num_layers = 6;
  Totals totals;
  std::uint32_t seed = first;
  for (std::uint64_t left = operations; left > 0; ++seed) {
    SCOPED_TRACE(testing::Message() << "KVFOLIO_SEED=" << seed << " KVFOLIO_OPS=" << kOpsPerRun);
    Card card(seed);
    {
      Storm run(seed, specs[seed % 3], card);
      for (std::uint64_t op = 0; op < kOpsPerRun && !HasFailure(); ++op) run.step();
      if (HasFailure()) return;
      run.end(totals);
    }
    if (HasFailure()) return;
    totals.launches += card.fake.launches.size();
    left -= std::min(left, kOpsPerRun);
  }
  std::printf(
      "[offload] seeds %u to %u on a device: %llu ready, %llu loads, %llu stores, %llu "
      "kernels, %llu copies failed\n",
      first, seed - 1, static_cast<unsigned long long>(totals.ready),
      static_cast<unsigned long long>(totals.loads), static_cast<unsigned long long>(totals.stores),
      static_cast<unsigned long long>(totals.launches),
      static_cast<unsigned long long>(totals.failed));
  if (operations < 100'000) return;
  EXPECT_GT(totals.loads, 300u);
  EXPECT_GT(totals.stores, 1000u);
  EXPECT_GT(totals.launches, 1000u);
  EXPECT_GT(totals.failed, 10u);
}

// What docs/cuda.md shows: records go between the cache and a pinned arena without the CPU.
TEST(OffloadDevice, AnArenaInPinnedMemoryIsTheStagingOfItsCopies) {
  for (const bool is_pinned : {true, false}) {
    Card card(1);
    const ManagerOptions manager_options{.max_sequences = 16, .max_transfers = 8};
    test::Cache cache(test::full(40), manager_options, card.memory.get());
    const std::shared_ptr<cuda::Device> device = card.device;
    void* const engine = card.engine.handle();
    auto pinned = cuda::PinnedHostMemory::create(device);
    OffloadOptions options{.resource = pinned->get(), .stream = engine};
    if (!is_pinned) options.resource = nullptr;
    auto offload = test::offload_of(cache, {}, 1 << 20, options);
    const std::vector<std::int32_t> prompt = test::prompt_of(1, 64);
    cache.compute(prompt);
    card.fake.moves_percent = 0;  // what follows is what one poll() begins
    card.fake.copied_from_host = card.fake.copied_to_host = nullptr;
    offload->poll(1'000'000);
    ASSERT_NE(card.fake.copied_to_host, nullptr);
    const bool in_arena = card.fake.is_pinned_within(card.fake.copied_to_host, 1 << 20);
    EXPECT_EQ(in_arena, is_pinned);
    card.fake.moves_percent = 30;
    for (int i = 0; i < 500; ++i) offload->poll(2'000'000);
    EXPECT_EQ(offload->counters().stores, 8u);
    test::evict_all(cache);
    EXPECT_EQ(test::opened(*offload, cache, prompt).cached_tokens, 63);
    EXPECT_EQ(offload->counters().loads, 8u);
  }
}

// The engine captures its step in a blocking stream: the legacy stream, behind which copies come
// without OffloadOptions::stream, takes no event then.
TEST(OffloadDevice, WhatCannotBeCopiedWhileTheEngineCapturesIsCopiedAfterIt) {
  for (const bool names_stream : {false, true}) {
    Card card(1);
    const ManagerOptions manager_options{.max_sequences = 16, .max_transfers = 8};
    test::Cache cache(test::full(40), manager_options, card.memory.get());
    void* const stream = names_stream ? card.engine.handle() : nullptr;
    auto offload =
        test::offload_of(cache, {}, 1 << 20, {.resource = card.pinned.get(), .stream = stream});
    const std::vector<std::int32_t> prompt = test::prompt_of(1, 64);
    cache.compute(prompt);
    card.fake.capture.streams = {stream};
    for (int i = 0; i < 50; ++i) offload->poll(1'000'000);
    EXPECT_FALSE(offload->idle());
    EXPECT_EQ(offload->counters().stores, 0u);
    card.fake.capture.streams.clear();
    for (int i = 0; i < 500; ++i) offload->poll(1'000'000);
    EXPECT_EQ(offload->counters().stores, 8u);
    test::evict_all(cache);
    card.fake.capture.streams = {stream};
    const auto open = offload->open(prompt);
    ASSERT_TRUE(open && open->pending);
    for (int i = 0; i < 50; ++i) EXPECT_TRUE(offload->poll(1'000'000).empty());
    card.fake.capture.streams.clear();
    std::int32_t cached_tokens = 0;
    for (int i = 0; i < 500; ++i) {
      for (const SequenceReady& one : offload->poll(1'000'000)) cached_tokens = one.cached_tokens;
    }
    EXPECT_EQ(cached_tokens, 63);
    cache.check_sequence(open->sequence, std::span(prompt).first(63));
    EXPECT_EQ(card.fake.capture.broken, 0);
    const OffloadCounters& counters = offload->counters();
    EXPECT_EQ(counters.copies_failed + counters.stores_dropped, 0u);
    EXPECT_TRUE(offload->check_invariants().ok());
  }
}

TEST(OffloadDevice, AContextThatDiesEndsWhatIsOnItsWayAndNothingOfItIsFindable) {
  Card card(1);
  const ManagerOptions manager_options{.max_sequences = 16, .max_transfers = 8};
  test::Cache cache(test::full(40), manager_options, card.memory.get());
  auto offload = test::offload_of(cache, {}, 1 << 20, {.resource = card.pinned.get()});
  cache.compute(test::prompt_of(1, 64));
  for (int i = 0; i < 500; ++i) offload->poll(1'000'000);
  test::evict_all(cache);
  cache.compute(test::prompt_of(2, 64));
  card.fake.moves_percent = 0;
  const auto open = offload->open(test::prompt_of(1, 64));
  ASSERT_TRUE(open && open->pending);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(offload->poll(2'000'000).empty());
  EXPECT_GT(cache.manager.usage(GroupId(0))->loading, 0);
  EXPECT_GT(cache.manager.usage(GroupId(0))->on_hold, 0);
  card.fake.has_ended = true;
  int ready = 0;
  for (int i = 0; i < 20; ++i) {
    for (const SequenceReady& one : offload->poll(3'000'000)) {
      ++ready;
      EXPECT_EQ(one.cached_tokens, 0);
      EXPECT_EQ(one.why, LoadEnd::kPart);
    }
  }
  EXPECT_EQ(ready, 1);
  EXPECT_TRUE(offload->idle());
  EXPECT_GE(offload->counters().copies_failed, 16u);
  EXPECT_EQ(offload->counters().stores, 8u);
  EXPECT_EQ(offload->arena().records, 8);
  EXPECT_EQ(cache.hit(test::prompt_of(1, 64)), 0);
  EXPECT_TRUE(cache.manager.check_invariants().ok());
  EXPECT_TRUE(offload->check_invariants().ok());
}

}  // namespace
}  // namespace kvfolio
