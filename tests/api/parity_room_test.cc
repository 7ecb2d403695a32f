// SPDX-License-Identifier: Apache-2.0
// Which sequence goes when the pool is full: policies, watermark, preempt_to.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <random>

#include "engine.h"

namespace kvfolio::testing_engine {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr VictimPolicy kPolicies[] = {VictimPolicy::kLru, VictimPolicy::kLfu,
                                      VictimPolicy::kLongest, VictimPolicy::kLowestPriority};

// Fault T11: there was a policy by priority, and no way to set one.
TEST(ParityRoom, EachPolicyHasItsVictim) {
  Engine e({full_group(16, 20)});
  const SequenceId a = e.say_count(40, {.priority = 2});
  const SequenceId b = e.say_count(10, {.priority = 1});
  const SequenceId c = e.say_count(20, {.priority = 3});
  for (int i = 0; i < 3; ++i) e.feed_count(b, 1);
  for (int i = 0; i < 2; ++i) e.feed_count(a, 1);
  const Tokens table = e.table(a);
  const std::optional<SequenceId> oldest = e.manager.select_victim(VictimPolicy::kLru);
  const std::optional<SequenceId> rarest = e.manager.select_victim(VictimPolicy::kLfu);
  const std::optional<SequenceId> longest = e.manager.select_victim(VictimPolicy::kLongest);
  must(e.manager.set_priority(b, -5));
  const std::optional<SequenceId> least = e.manager.select_victim(VictimPolicy::kLowestPriority);
  EXPECT_EQ(oldest, c);
  EXPECT_EQ(rarest, c);
  EXPECT_EQ(longest, a);
  EXPECT_EQ(least, b);
  EXPECT_EQ(e.manager.num_sequences(), 3);  // without effect
  EXPECT_EQ(e.table(a), table);
}

// Faults T10, T11: ties picked one of several victims by chance.
TEST(ParityRoom, TiesGoToTheLowerId) {
  for (int round = 0; round < 32; ++round) {
    Engine e({full_group(16, 20)});
    for (const std::uint64_t id : {30u, 10u, 20u}) {
      static_cast<void>(e.say_count(16, {.caller_id = id}));
    }
    const SequenceId anonymous = e.say_count(16);
    const SequenceId ten = must(e.manager.find(10));
    EXPECT_EQ(e.manager.select_victim(VictimPolicy::kLfu), ten);
    EXPECT_EQ(e.manager.select_victim(VictimPolicy::kLongest), ten);
    EXPECT_EQ(e.manager.select_victim(VictimPolicy::kLowestPriority), ten);
    for (const std::uint64_t id : {10u, 20u, 30u}) {
      must(e.manager.close(must(e.manager.find(id))));
    }
    EXPECT_EQ(e.manager.select_victim(VictimPolicy::kLfu), anonymous);
  }
}

TEST(ParityRoom, VictimsAreThoseOfAScanOverAllSequences) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    Engine e({full_group(4, 400)}, {.max_sequences = 40});
    std::map<std::uint64_t, SequenceId> open;  // by caller_id
    std::uint64_t next = 100;
    for (int i = 0; i < 600; ++i) {
      const auto pick = [&] {
        auto it = open.begin();
        std::advance(it, static_cast<std::ptrdiff_t>(random() % open.size()));
        return it;
      };
      const auto what = random() % 8;
      if ((what < 2 || open.empty()) && open.size() < 40) {
        const std::uint64_t id = random() % 2 == 0 ? next++ : 10000 - next++;
        open[id] = e.say_count(1 + random() % 6,
                               {.caller_id = id, .priority = static_cast<int>(random() % 3)});
      } else if (what < 5 && !open.empty()) {
        e.feed_count(pick()->second, 1 + random() % 3);
      } else if (what == 5 && !open.empty()) {
        must(e.manager.set_priority(pick()->second, static_cast<int>(random() % 5)));
      } else if (what == 6 && !open.empty()) {
        const auto it = pick();
        must(e.manager.truncate(it->second, e.info(it->second).length / 2));
      } else if (!open.empty()) {
        const auto it = pick();
        must(e.manager.close(it->second));
        open.erase(it);
      }
      const VictimPolicy policy = kPolicies[random() % 4];
      std::optional<SequenceId> expected;
      std::pair<std::int64_t, std::uint64_t> best;
      for (const auto& [id, sequence] : open) {
        const SequenceInfo info = e.info(sequence);
        if (info.length == 0) continue;  // frees nothing
        const std::int64_t rank =
            policy == VictimPolicy::kLru       ? static_cast<std::int64_t>(info.last_use)
            : policy == VictimPolicy::kLfu     ? static_cast<std::int64_t>(info.use_count)
            : policy == VictimPolicy::kLongest ? -info.length
                                               : info.priority;
        if (expected && std::pair(rank, id) >= best) continue;
        best = {rank, id};
        expected = sequence;
      }
      ASSERT_EQ(e.manager.select_victim(policy), expected) << "seed " << seed << " at " << i;
    }
  }
}

TEST(ParityRoom, PreemptToStopsWhereItIsAsked) {
  Engine e({full_group(16, 10)});
  std::vector<SequenceId> all;
  all.reserve(5);
  for (int i = 0; i < 5; ++i) all.push_back(e.say_count(32));
  EXPECT_EQ(e.manager.utilization(), 1.0);
  std::span<const EndedSequence> gone;  // good until the next such call
  if (e.manager.needs_eviction()) {     // from ManagerOptions::high_watermark on, 0.90
    gone = must(e.manager.preempt_to(0.5, VictimPolicy::kLru));
  }
  EXPECT_THAT(ids_of(gone), ElementsAre(all[0], all[1], all[2]));
  EXPECT_EQ(e.manager.utilization(), 0.4);
  EXPECT_EQ(e.counters().sequences_preempted, 3u);
  EXPECT_THAT(ids_of(must(e.manager.preempt_to(0.4))), IsEmpty());  // not above
  must(e.manager.check_invariants());
}

// Fault T12: 8 forks of one sequence were all lost, 7 of them for nothing.
TEST(ParityRoom, WhoseReleaseFreesNothingIsPassedOver) {
  Engine e({full_group(16, 110)});
  const SequenceId parent = e.say_count(1600);
  std::vector<SequenceId> forks;
  forks.reserve(8);
  for (int i = 0; i < 8; ++i) forks.push_back(must(e.manager.fork(parent)));
  const SequenceId other = e.say_count(160);
  EXPECT_EQ(e.manager.select_victim(VictimPolicy::kLru), other);
  EXPECT_THAT(ids_of(must(e.manager.preempt_to(0.5))), ElementsAre(other));
  EXPECT_EQ(e.manager.num_sequences(), 9);
  EXPECT_EQ(e.manager.select_victim(VictimPolicy::kLru), std::nullopt);
  // The last one that shares does free them.
  for (const SequenceId fork : forks) must(e.manager.close(fork));
  EXPECT_EQ(e.manager.select_victim(VictimPolicy::kLru), parent);
}

TEST(ParityRoom, APassedOverForkGoesOnceItsPartnerIsGone) {
  Engine e({full_group(16, 10)});
  const SequenceId parent = e.say_count(32);
  const SequenceId child = must(e.manager.fork(parent));
  e.feed_count(child, 16);  // one block of its own
  // The parent is the older one, but frees nothing while the child is there.
  EXPECT_THAT(ids_of(must(e.manager.preempt_to(0.0))), ElementsAre(child, parent));
  EXPECT_EQ(e.usage().held, 0);
}

TEST(ParityRoom, SequencesOfTheOpenStepAndPinsAreLeftAlone) {
  Engine e({full_group(16, 10)});
  e.cache(tokens(1, 32));
  const PinId pin = must(e.manager.pin(tokens(1, 32))).pin;
  const SequenceId a = e.say_count(32);
  const Ticket step = must(e.manager.begin_step());
  must(e.manager.append_unnamed(a, 1));
  EXPECT_EQ(e.manager.select_victim(VictimPolicy::kLru), std::nullopt);
  EXPECT_THAT(ids_of(must(e.manager.preempt_to(0.0))), IsEmpty());
  must(e.manager.finish(step));
  EXPECT_THAT(ids_of(must(e.manager.preempt_to(0.0))), ElementsAre(a));
  EXPECT_EQ(e.usage().held, 2);  // the pin's
  must(e.manager.unpin(pin));
}

TEST(ParityRoom, APreemptedSequenceInFlightCountsAtOnce) {
  // Otherwise preempt_to would go on and lose everybody while blocks retire.
  Engine e({full_group(16, 4)});
  const SequenceId a = e.open({}).sequence;
  const SequenceId b = e.open({}).sequence;
  const Ticket step = must(e.manager.begin_step());
  must(e.manager.append_unnamed(a, 32));
  must(e.manager.append_unnamed(b, 32));
  must(e.manager.commit(step));
  EXPECT_THAT(ids_of(must(e.manager.preempt_to(0.5))), ElementsAre(a));
  EXPECT_EQ(e.usage().retiring, 2);
  must(e.manager.complete(step));
}

// Faults T13, T14: the threshold never acted, and NaN was accepted.
TEST(ParityRoom, WatermarkIsCheckedAndActs) {
  for (const double bad : {-0.1, 1.1, std::numeric_limits<double>::quiet_NaN(),
                           std::numeric_limits<double>::infinity()}) {
    const auto made =
        KVCacheManager::create(CacheSpec{{full_group(16, 4)}}, {.high_watermark = bad});
    ASSERT_FALSE(made.has_value()) << bad;
    EXPECT_THAT(made.error().message(), testing::HasSubstr("high_watermark"));
  }
  Engine e({full_group(16, 4)}, {.high_watermark = 0.5});
  EXPECT_FALSE(e.manager.needs_eviction());
  static_cast<void>(e.say_count(16));
  EXPECT_FALSE(e.manager.needs_eviction());
  static_cast<void>(e.say_count(16));
  EXPECT_TRUE(e.manager.needs_eviction());  // 0.5 >= 0.5
  EXPECT_EQ(Engine({full_group(16, 4)}).manager.options().high_watermark, 0.90);
  for (const double bad : {-0.1, 1.1, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_EQ(e.manager.preempt_to(bad).error().code(), ErrorCode::kInvalidArgument);
  }
}

TEST(ParityRoom, UtilizationIsThatOfTheFullestGroup) {
  Engine e({full_group(4, 4), window_group(2, 100, 6)});
  static_cast<void>(e.say_count(8));
  EXPECT_EQ(e.manager.utilization(), 0.5);
}

}  // namespace
}  // namespace kvfolio::testing_engine
