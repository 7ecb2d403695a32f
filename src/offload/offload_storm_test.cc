// SPDX-License-Identifier: Apache-2.0
//
// Everything at once, in an order that is drawn.

#include "kvfolio/offload.h"

#include <gtest/gtest.h>

#include <array>
#include <deque>

#include "offload/test_offload.h"

namespace kvfolio {
namespace {

using test::Cache;
using test::MemoryTier;
using test::offload_of;
using test::prompt_of;
using test::run_to_the_end;

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
    std::size_t prompt;
    std::int32_t found;  // at open()
  };
  std::deque<Open> open;
  std::array<bool, 6> known{};  // prompts of which something was computed since all was forgotten
  std::uint64_t now_us = 1;
  for (int step = 0; step < steps; ++step) {
    switch (random() % 8) {
      case 0:
      case 1: {
        if (open.size() > 5) break;
        const std::size_t prompt = random() % known.size();
        std::vector<std::int32_t> tokens = prompt_of(int(prompt), 1 + std::int32_t(random() % 70));
        const auto opening = offload->open(tokens);
        ASSERT_TRUE(opening) << opening.error();
        open.push_back({opening->sequence, std::move(tokens), opening->pending, prompt,
                        opening->cached_tokens});
        EXPECT_TRUE(opening->cached_tokens == 0 || known[prompt]) << "came back";
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
        known[one.prompt] = true;
        break;
      }
      case 3:
        if (open.size() < 2) break;
        EXPECT_TRUE(random() % 2 == 0 ? cache.manager.close(open.front().id).ok()
                                      : cache.manager.preempt(open.front().id).ok());
        open.pop_front();
        break;
      case 4:
        // All prompts have one root key, so each of these takes everything below the cache.
        if (random() % 50 != 0) break;
        switch (random() % 4) {
          case 0:
            offload->reset();
            break;
          case 1:
            offload->forget(RootKey{});
            break;
          case 2:
            cache.manager.reset();  // which the Offload is not told
            break;
          default:
            cache.manager.forget(RootKey{});
        }
        known.fill(false);
        break;
      default:
        now_us += random() % 500;
        for (const SequenceReady& ready : offload->poll(now_us)) {
          const auto found = std::find_if(
              open.begin(), open.end(), [&](const Open& one) { return one.id == ready.sequence; });
          ASSERT_NE(found, open.end()) << "ready and closed";
          EXPECT_TRUE(found->pending) << "ready twice";
          found->pending = false;
          EXPECT_TRUE(ready.cached_tokens <= found->found || known[found->prompt]) << "came back";
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
