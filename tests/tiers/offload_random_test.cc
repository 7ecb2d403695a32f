// SPDX-License-Identifier: Apache-2.0
//
// Offload as a whole against what tokens are (traffic.h), over one to three tiers with faults of
// their own, a small pool and an arena of few records whose memory is damaged at times. In the end
// nothing is pinned, quarantined, loading or held.
//
// KVFOLIO_SEED: the first seed (default 1). KVFOLIO_OPS: operations of all runs together (default
// 600,000, a third under a sanitizer). A failure names its seed.

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "kvfolio/offload.h"
#include "offload/offload_test_cache.h"
#include "operations.h"
#include "storage/late_memory.h"
#include "tiers/memory_tier.h"
#include "tiers/traffic.h"

namespace kvfolio {
namespace {

using test::LateMemory;
using test::MemoryTier;
using test::MemoryTierFaults;

// Memory of an arena that can be damaged.
class FrailMemory final : public MemoryResource {
 public:
  [[nodiscard]] MemoryKind kind() const noexcept override { return MemoryKind::kHost; }
  Result<std::byte*> allocate(std::int64_t bytes) override {
    auto memory = own_.allocate(bytes);
    if (memory) memory_ = {*memory, static_cast<std::size_t>(bytes)};
    return memory;
  }
  void deallocate(std::byte* memory, std::int64_t bytes) noexcept override {
    memory_ = {};
    own_.deallocate(memory, bytes);
  }
  Status copy(std::byte* dst, const std::byte* src, std::int64_t bytes) noexcept override {
    return own_.copy(dst, src, bytes);
  }
  void damage(std::uint64_t at) { memory_[at % memory_.size()] ^= std::byte{0x10}; }

 private:
  HostMemory own_;
  std::span<std::byte> memory_{};
};

struct Totals {
  OffloadCounters counters;
  std::uint64_t ready = 0, forgotten = 0, restarts = 0, in_flight = 0, damaged = 0;
  std::uint64_t releases = 0;
  std::uint64_t copied_late = 0, copies_failed = 0, copies_refused = 0;

  void add(const OffloadCounters& more) {
    counters.stores += more.stores;
    counters.loads += more.loads;
    counters.arena_corrupt += more.arena_corrupt;
    counters.tier_stores += more.tier_stores;
    counters.tier_loads += more.tier_loads;
    counters.tier_corrupt += more.tier_corrupt;
    counters.requests += more.requests;
    counters.requests_canceled += more.requests_canceled;
    counters.requests_timed_out += more.requests_timed_out;
    counters.unknown_completions += more.unknown_completions;
  }
};

class Storm : test::Traffic {
 public:
  Storm(std::uint32_t seed, const CacheSpec& spec, MemoryResource* of_cache)
      : Traffic(seed, spec, {}, of_cache) {
    for (std::size_t t = 1 + random_() % 3; t > 0; --t) {
      tiers_.push_back(
          std::make_unique<MemoryTier>(seed + 7 * static_cast<std::uint32_t>(t), any_faults()));
    }
    options_.model = test::toy_of(spec_);
    options_.arena_bytes = 1024 * between(4, 60);
    options_.bytes_per_poll = std::vector<std::int64_t>{1, 1500, 5000, 1 << 20}[random_() % 4];
    options_.timeout_us = std::vector<std::uint64_t>{1000, 10'000, 50'000}[random_() % 3];
    if (chance(30)) options_.load_bytes_per_s = 1e6;
    if (chance(60)) options_.prefill_tokens_per_s = 1e4;
    options_.resource = &memory_;
    options_.hold_stores = chance(30);
    create();
  }
  ~Storm() { offload_.reset(); }  // before its tiers

  void step() {
    if (chance(2)) check_all();
    switch (random_() % 3000) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4:
        return forget();
      case 5:
      case 6:
        return restart();
      default:
        break;
    }
    if (options_.hold_stores && random_() % 100 == 0) release();
    // What has arrived and is not sealed yet has no checksum that could show damage.
    const bool may_damage = !manager_.storage()->copies_later() || offload_->arena().writing == 0;
    if (random_() % 150 == 0 && may_damage) {
      memory_.damage(random_());
      ++damaged_;
    }
    any_operation();
  }

  // What is pending becomes ready, then everything ends, and nothing is left.
  void end(Totals& totals) {
    end_step();
    check_all();
    for (int i = 0; i < 3000 && num_pending() > 0; ++i) poll();
    EXPECT_EQ(num_pending(), 0) << "never ready";
    close_all();
    for (int i = 0; i < 300 && offload_->drain(now_us_).any(); ++i) now_us_ += 100;
    for (const auto& tier : tiers_) static_cast<void>(tier->close({now_us_}));
    for (int i = 0; i < 3000 && !offload_->idle(); ++i) poll();
    check_nothing_is_left();
    check_held();
    release();
    for (int i = 0; i < 3000 && !offload_->idle(); ++i) poll();
    check_nothing_is_left();
    // What may be stored was taken from the manager's list, and what is held does not stay there.
    FindableBlock block;
    EXPECT_EQ(manager_.take_findable({&block, 1}), 0);
    totals.add(offload_->counters());
    offload_.reset();
    for (const auto& tier : tiers_) EXPECT_EQ(tier->in_flight(), 0u);
    totals.ready += ready_;
    totals.forgotten += forgotten_;
    totals.restarts += restarts_;
    totals.in_flight += polls_in_flight_;
    totals.damaged += damaged_;
    totals.releases += releases_;
    totals.add(before_restarts_);
  }

 private:
  // Each tier has a few kinds of faults, or none.
  MemoryTierFaults any_faults() {
    MemoryTierFaults faults;
    unsigned* const all[] = {&faults.late,   &faults.partial, &faults.corrupt,  &faults.other,
                             &faults.lie,    &faults.miss,    &faults.io_error, &faults.twice,
                             &faults.silent, &faults.busy};
    for (unsigned* each : all) *each = chance(25) ? static_cast<unsigned>(random_() % 120) : 0;
    faults.silent /= 40;
    if (chance(30)) faults.late = 900;
    return faults;
  }
  void create() {
    std::vector<OffloadTier> tiers;
    for (const auto& tier : tiers_) {
      OffloadTier& one = tiers.emplace_back();
      one.tier = tier.get();
      one.policy = static_cast<WritePolicy>(chance(10) ? 0 : between(1, 2));
      if (chance(20)) one.store_bytes_max = 2000;
      if (chance(20)) one.load_bytes_max = 3000;
    }
    options_.tiers = tiers;
    is_released_ = !options_.hold_stores;
    auto made = Offload::create(manager_, options_);
    ASSERT_TRUE(made) << made.error();
    offload_ = *std::move(made);
  }
  // Another process goes on with what the tiers have. Its cache is this one.
  void restart() {
    ++restarts_;
    options_.epoch = offload_->epoch();
    Totals sum;
    sum.add(before_restarts_);
    sum.add(offload_->counters());
    before_restarts_ = sum.counters;
    for (const auto& tier : tiers_) static_cast<void>(tier->close({now_us_}));
    for (int i = 0; i < 100; ++i) poll();
    offload_.reset();
    for (Open& one : open_) {
      if (one.pending) one.there = manager_.info(one.id)->length;
      one.pending = false;
    }
    for (auto& tier : tiers_) {
      EXPECT_EQ(tier->in_flight(), 0u);
      auto next = std::make_unique<MemoryTier>(static_cast<std::uint32_t>(random_()), any_faults());
      next->records = std::move(tier->records);
      tier = std::move(next);
    }
    create();
  }

  void release() {
    check_held();
    offload_->release_stores();
    is_released_ = true;
    ++releases_;
  }
  void check_held() const {
    EXPECT_TRUE(is_released_ || offload_->counters().stores == 0) << "stored what is held";
  }

  FrailMemory memory_;
  std::vector<std::unique_ptr<MemoryTier>> tiers_;
  OffloadOptions options_;
  OffloadCounters before_restarts_;
  std::uint64_t restarts_ = 0, damaged_ = 0, releases_ = 0;
  bool is_released_ = false;  // or stores are not held
};

TEST(OffloadRandom, EveryRowIsItsTokensWhateverTiersDo) {
  const auto first = static_cast<std::uint32_t>(test::from_environment("KVFOLIO_SEED", 1));
  const std::uint64_t operations =
      test::from_environment("KVFOLIO_OPS", test::operations_by_default(600'000));
  constexpr std::uint64_t kOpsPerRun = 3000;
  const CacheSpec specs[] = {test::full(24), test::window(40), test::mixed(14, 40)};
  Totals totals;
  std::uint32_t seed = first;
  for (std::uint64_t left = operations; left > 0; ++seed) {
    SCOPED_TRACE(testing::Message() << "KVFOLIO_SEED=" << seed << " KVFOLIO_OPS=" << kOpsPerRun);
    // Every fourth cache lies in memory that copies late, in any order, and fails at times.
    LateMemory late(seed);
    late.ends_percent = 20 + seed % 60;
    late.fails_permille = seed % 8 == 0 ? 0 : 10;
    late.refused_permille = seed % 12 == 0 ? 0 : 100;
    const bool is_late = seed % 4 == 0;
    Storm run(seed, specs[seed % 3], is_late ? &late : nullptr);
    for (std::uint64_t op = 0; op < kOpsPerRun && !HasFailure(); ++op) run.step();
    if (HasFailure()) return;
    run.end(totals);
    if (HasFailure()) return;
    EXPECT_EQ(late.on_their_way() + late.num_unknown, 0u);
    totals.copied_late += late.num_submitted;
    totals.copies_failed += late.num_failed;
    totals.copies_refused += late.num_refused;
    left -= std::min(left, kOpsPerRun);
  }
  const OffloadCounters& c = totals.counters;
  std::printf(
      "[offload] seeds %u to %u: %llu requests, %llu ready, %llu loads, %llu from tiers, "
      "%llu records damaged there and %llu in the arena, %llu late, %llu cancelled, "
      "%llu stores, %llu to tiers, %llu forgets, %llu restarts, %llu polls in a step, "
      "%llu releases, "
      "%llu copies that came late, %llu that failed, %llu that were refused for a capture\n",
      first, seed - 1, static_cast<unsigned long long>(c.requests),
      static_cast<unsigned long long>(totals.ready), static_cast<unsigned long long>(c.loads),
      static_cast<unsigned long long>(c.tier_loads),
      static_cast<unsigned long long>(c.tier_corrupt),
      static_cast<unsigned long long>(c.arena_corrupt),
      static_cast<unsigned long long>(c.requests_timed_out),
      static_cast<unsigned long long>(c.requests_canceled),
      static_cast<unsigned long long>(c.stores), static_cast<unsigned long long>(c.tier_stores),
      static_cast<unsigned long long>(totals.forgotten),
      static_cast<unsigned long long>(totals.restarts),
      static_cast<unsigned long long>(totals.in_flight),
      static_cast<unsigned long long>(totals.releases),
      static_cast<unsigned long long>(totals.copied_late),
      static_cast<unsigned long long>(totals.copies_failed),
      static_cast<unsigned long long>(totals.copies_refused));
  if (operations < 600'000) return;
  EXPECT_GT(c.loads, 300u);
  EXPECT_GT(c.tier_loads, 100u);
  EXPECT_GT(c.tier_corrupt, 10u);
  EXPECT_GT(c.arena_corrupt, 0u);
  EXPECT_GT(c.requests_timed_out, 10u);
  EXPECT_GT(totals.forgotten, 30u);
  EXPECT_GT(totals.restarts, 3u);
  EXPECT_GT(totals.releases, 300u);
  EXPECT_GT(totals.copied_late, 300u);
  EXPECT_GT(totals.copies_failed, 3u);
  EXPECT_GT(totals.copies_refused, 100u);
}

}  // namespace
}  // namespace kvfolio
