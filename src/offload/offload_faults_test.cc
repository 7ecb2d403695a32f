// SPDX-License-Identifier: Apache-2.0
//
// Tiers that fail, lie or say nothing.

#include "kvfolio/offload.h"

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <array>

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
  const auto offload = offload_of(cache, tiers, 8 * kFullRecord, {.timeout_us = 5000});
  cache.compute(prompt_of(1, 32));
  run_to_the_end(*offload);
  cache.compute(prompt_of(2, 64));  // pushes the first out of the arena
  run_to_the_end(*offload);
  evict_all(cache);
  ASSERT_EQ(tier.records.size(), 12u);
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
  const auto records = left_by_a_first_process(prompt_of(1, 64));
  MemoryTier liar(1, {.io_error = 1000});  // says that it has the records, and fails each load
  liar.records = records;
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
  const auto records = left_by_a_first_process(prompt_of(1, 64));
  MemoryTier reopened;
  reopened.records = records;
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

// Says ok for the tags of others, and always has more to say.
class Chatterbox final : public Tier {
 public:
  std::uint64_t polls = 0;
  [[nodiscard]] std::string_view name() const noexcept override { return "chatterbox"; }
  [[nodiscard]] TierLimits limits() const noexcept override { return {}; }
  std::size_t submit(TierOp, std::span<const TierItem>, Deadline) noexcept override { return 0; }
  std::size_t poll(std::uint64_t, std::span<TierDone> done) noexcept override {
    ++polls;
    for (TierDone& each : done) each = {++tag_ % 100, TierResult::kOk};
    return polls % 2 == 0 ? done.size() : done.size() + 1000;
  }
  [[nodiscard]] int event_fd() const noexcept override { return -1; }
  [[nodiscard]] TierHealth health() const noexcept override { return {}; }
  Status close(Deadline) noexcept override { return {}; }

 private:
  std::uint64_t tag_ = 0;
};

TEST(Offload, ATierNeitherEndsTheWorkOfAnotherNorKeepsAPoll) {
  MemoryTier tier;
  tier.records = left_by_a_first_process(prompt_of(1, 64));
  Chatterbox chatterbox;
  const OffloadTier tiers[] = {{.tier = &tier}, {.tier = &chatterbox}};
  Cache cache(test::full(40));
  const auto offload = offload_of(cache, tiers);
  ASSERT_TRUE(offload->open(prompt_of(1, 64))->pending);
  offload->poll(1);
  tier.set_faults({.silent = 1000});
  for (std::uint64_t i = 2; i < 10; ++i) EXPECT_TRUE(offload->poll(i).empty());
  EXPECT_EQ(tier.in_flight(), 8u);
  EXPECT_EQ(offload->arena().writing, 8) << "memory of loads that go on was given away";
  EXPECT_EQ(offload->arena().records, 0);
  EXPECT_GT(offload->counters().unknown_completions, 100u);
  EXPECT_LE(chatterbox.polls, 9u * 4u);
  EXPECT_TRUE(offload->check_invariants().ok());
  EXPECT_TRUE(tier.close({}).ok());
  run_to_the_end(*offload);
}

TEST(Offload, QuestionsToASilentTierTakeNoMoreMemoryThanThereAreRequests) {
  MemoryTier tier(1, {.silent = 1000});
  tier.queue_max = 100;
  const OffloadTier tiers[] = {{.tier = &tier}};
  Cache cache(test::full(40));
  const auto offload = offload_of(cache, tiers, 1 << 20, {.timeout_us = 10});
  for (int i = 0; i < 100; ++i) {
    // After three it is passed over, and is not waited for.
    EXPECT_EQ(opened(*offload, cache, prompt_of(i, 64), {}, 1000u * unsigned(i + 1)).why,
              i < 3 ? LoadEnd::kTimeout : LoadEnd::kNothing);
    std::array<SequenceId, 16> open;
    const auto count = cache.manager.sequences(open);
    for (std::int32_t k = 0; k < count; ++k) {
      EXPECT_TRUE(cache.manager.close(open[std::size_t(k)]).ok());
    }
  }
  EXPECT_LE(tier.in_flight(), 100u);
}

TEST(Offload, ADeadlineBehindTheEndOfTheClockIsItsEnd) {
  MemoryTier tier(1, {.silent = 1000});
  const OffloadTier tiers[] = {{.tier = &tier}};
  Cache cache(test::full(40));
  const auto offload = offload_of(cache, tiers);
  const std::uint64_t end = ~std::uint64_t{0};
  const auto open = offload->open(prompt_of(1, 64));
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(offload->poll(end - 10).empty());
  EXPECT_EQ(offload->poll(end).size(), 1u);
  EXPECT_TRUE(cache.manager.close(open->sequence).ok());
}

// ---- fork ----

// O4. A load, a store and a question are in flight, and a tier that is late has them. The child
// ends at once, frees all memory, and never speaks to the tier.
TEST(Offload, AChildOfForkFreesItsMemoryAndLeavesTheTiersToItsParent) {
  for (const bool polls : {false, true}) {
    MemoryTier tier;
    tier.records = left_by_a_first_process(prompt_of(1, 64));
    const OffloadTier tiers[] = {{.tier = &tier}};
    Cache cache(test::full(60));
    CountedMemory memory;
    auto offload = offload_of(cache, tiers, 64 * kFullRecord, {.resource = &memory});
    cache.compute(prompt_of(2, 64));
    ASSERT_TRUE(offload->open(prompt_of(1, 64))->pending);
    offload->poll(1);
    tier.set_faults({.silent = 1000});
    ASSERT_TRUE(offload->open(prompt_of(3, 64))->pending);
    offload->poll(2);
    ASSERT_GE(tier.in_flight(), 16u);
    const std::uint64_t said = tier.polls + tier.submits;
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      bool right = true;
      if (polls) {
        for (std::uint64_t i = 3; i < 10; ++i) offload->poll(1'000'000 * i);
        right = offload->idle() && offload->check_invariants().ok() &&
                !offload->drain(20'000'000).any();
        evict_all(cache);
        // What host memory has comes back.
        right =
            right && opened(*offload, cache, prompt_of(2, 64), {}, 21'000'000).cached_tokens == 63;
      }
      offload.reset();
      right = right && memory.held == 0 && tier.polls + tier.submits == said && !tier.closed;
      ::_exit(right && !testing::Test::HasFailure() ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    EXPECT_TRUE(offload->check_invariants().ok());
    EXPECT_TRUE(tier.close({}).ok());
    run_to_the_end(*offload);
  }
}

// ---- the copy to the cache ----

TEST(Offload, OneLoadAtATimeHoldsBlocksHoweverManyWait) {
  Cache cache(test::full(40));
  const auto offload = offload_of(cache, {}, 1 << 20, {.bytes_per_poll = kFullRecord});
  for (const int prompt : {1, 2, 3}) cache.compute(prompt_of(prompt, 64));
  run_to_the_end(*offload);
  evict_all(cache);
  for (const int prompt : {1, 2, 3}) {
    ASSERT_TRUE(offload->open(prompt_of(prompt, 64))->pending);
  }
  std::vector<std::int32_t> lengths;
  for (std::uint64_t i = 1; i < 100 && lengths.size() < 3; ++i) {
    for (const SequenceReady& ready : offload->poll(1'000'000 + i)) {
      lengths.push_back(ready.cached_tokens);
      EXPECT_EQ(ready.why, LoadEnd::kLoaded);
    }
    EXPECT_LE(cache.manager.usage(GroupId(0))->loading, 8);
    EXPECT_TRUE(offload->check_invariants().ok());
  }
  EXPECT_EQ(lengths, (std::vector<std::int32_t>{63, 63, 63}));
}

TEST(Offload, ACopyThatLastsTooLongEndsWithWhatIsCopied) {
  Cache cache(test::full(40));
  const auto offload =
      offload_of(cache, {}, 1 << 20, {.bytes_per_poll = 2 * kFullRecord, .copy_timeout_us = 1000});
  for (const int prompt : {1, 2}) cache.compute(prompt_of(prompt, 64));
  run_to_the_end(*offload);
  evict_all(cache);
  const auto first = offload->open(prompt_of(1, 64));
  const auto second = offload->open(prompt_of(2, 64));
  EXPECT_TRUE(offload->poll(2'000'000).empty());
  EXPECT_TRUE(offload->poll(2'000'999).empty());
  // Six blocks of the first are there. The second had no turn yet.
  const auto ready = offload->poll(2'001'000);
  ASSERT_EQ(ready.size(), 2u);
  EXPECT_EQ(ready[0].sequence, first->sequence);
  EXPECT_EQ(ready[0].why, LoadEnd::kTimeout);
  EXPECT_EQ(ready[0].cached_tokens, 48);
  cache.check_sequence(first->sequence, prompt_of(1, 48));
  EXPECT_EQ(ready[1].sequence, second->sequence);
  EXPECT_EQ(ready[1].why, LoadEnd::kTimeout);
  EXPECT_EQ(ready[1].cached_tokens, 0);
  EXPECT_EQ(cache.manager.usage(GroupId(0))->loading, 0);
  EXPECT_EQ(offload->arena().pins, 0);
}

}  // namespace
}  // namespace kvfolio
