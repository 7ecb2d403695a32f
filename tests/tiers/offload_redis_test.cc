// SPDX-License-Identifier: Apache-2.0
//
// Three engines share one Redis through networks of their own that delay, cut and damage. Each byte
// of each sequence is compared with what its tokens say, by whichever process it was computed.
// KVFOLIO_SEED and KVFOLIO_OPS (default 3,000; scripts/nightly asks for 10^6) choose the run; a
// failure names its seed.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <random>

#include "kvfolio/redis_tier.h"
#include "offload/test_offload.h"
#include "tiers/now.h"
#include "tiers/proxy.h"
#include "tiers/servers.h"

namespace kvfolio {
namespace {

using test::Cache;
using test::now_us;
using test::Proxy;
using test::ProxyFault;
using test::Server;

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? otherwise : std::strtoull(value, nullptr, 0);
}

// A prompt of one of a few families, so that most of them begin alike.
std::vector<std::int32_t> any_prompt(std::mt19937& random) {
  const auto family = static_cast<int>(random() % 12);
  const auto length = static_cast<std::int32_t>(9 + random() % 70);
  std::vector<std::int32_t> tokens = test::prompt_of(family, length);
  if (random() % 3 == 0) tokens[tokens.size() / 2] = static_cast<std::int32_t>(random() % 4);
  return tokens;
}

struct Engine {
  Proxy proxy;
  std::string address;
  std::unique_ptr<RedisTier> tier;
  Cache cache{test::full(40)};
  OffloadTier below;
  std::unique_ptr<Offload> offload;
  std::uint64_t loaded = 0, corrupt = 0;

  Engine(const Server& server, std::uint32_t seed)
      : proxy(server.port(), seed), address("127.0.0.1:" + std::to_string(proxy.port())) {
    tier = *RedisTier::create(
        {.servers = address, .breaker_us_min = 20'000, .breaker_us_max = 50'000});
    EXPECT_TRUE(tier->wait_until_ready(now_us(), 5'000'000).ok());
    below = {.tier = tier.get()};
    // An arena of a few prompts, so that most of what is found comes from Redis.
    offload = test::offload_of(cache, {&below, 1}, 40 * test::kFullRecord, {.timeout_us = 50'000});
  }

  void run(const std::vector<std::int32_t>& tokens) {
    const auto open = offload->open(tokens);
    ASSERT_TRUE(open) << open.error();
    std::int32_t cached = open->cached_tokens;
    for (bool pending = open->pending; pending;) {
      for (const SequenceReady& ready : offload->poll(now_us())) {
        cached = ready.cached_tokens;
        pending = false;
      }
    }
    cache.check_sequence(open->sequence, std::span(tokens).first(std::size_t(cached)));
    cache.go_on(open->sequence, tokens, cached);
    cache.check_sequence(open->sequence, tokens);
    ASSERT_TRUE(cache.manager.close(open->sequence).ok());
    offload->poll(now_us());
  }
};

TEST(OffloadOverRedis, ThreeEnginesNeverSeeAByteThatIsNotTheirs) {
  if (!test::redis_program("redis-server")) GTEST_SKIP() << "no redis-server: scripts/redis-here";
  const auto seed = static_cast<std::uint32_t>(from_environment("KVFOLIO_SEED", 1));
  const std::uint64_t operations = from_environment("KVFOLIO_OPS", 3000);
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  Server server(test::free_port(), {"--maxmemory", "8mb", "--maxmemory-policy", "allkeys-lru"});
  std::vector<std::unique_ptr<Engine>> engines;
  for (std::uint32_t i = 0; i < 3; ++i)
    engines.push_back(std::make_unique<Engine>(server, seed + i));
  for (std::uint64_t done = 0; done < operations && !::testing::Test::HasFailure(); ++done) {
    Engine& engine = *engines[random() % engines.size()];
    const auto what = random() % 100;
    if (what < 70) {
      engine.run(any_prompt(random));
    } else if (what < 80) {
      test::evict_all(engine.cache);
    } else if (what < 95) {
      const auto fault = random() % (2 * test::kNumProxyFaults);
      engine.proxy.set(fault < test::kNumProxyFaults ? static_cast<ProxyFault>(fault)
                                                     : ProxyFault::kNone);
    } else if (what < 96) {
      server.ask({"flushall"});
    } else {
      for (int i = 0; i < 20; ++i) engine.offload->poll(now_us());
    }
  }
  std::uint64_t loaded = 0;
  for (const auto& engine : engines) {
    engine->proxy.set(ProxyFault::kNone);
    loaded += engine->offload->counters().tier_loads;
    const std::uint64_t end = now_us() + 10'000'000;
    while (engine->offload->drain(now_us()).any() && now_us() < end) {
    }
    EXPECT_FALSE(engine->offload->drain(now_us()).any()) << engine->tier->describe();
    EXPECT_TRUE(engine->offload->check_invariants().ok());
    EXPECT_TRUE(engine->cache.manager.check_invariants().ok());
    EXPECT_EQ(engine->offload->arena().pins, 0);
  }
  EXPECT_GT(loaded, operations / 100) << "Redis is used at all";
}

// O4. Children that are made while replies are on their way, and end in three ways.
TEST(OffloadOverRedis, ChildrenOfForkTakeNoReplyFromTheirParent) {
  if (!test::redis_program("redis-server")) GTEST_SKIP() << "no redis-server: scripts/redis-here";
  constexpr int kPrompts = 16;
  Server server(test::free_port(), {});
  const std::string address = "127.0.0.1:" + std::to_string(server.port());
  for (const bool stored : {true, false}) {
    auto tier = *RedisTier::create({.servers = address, .bytes_per_poll = 4096});
    ASSERT_TRUE(tier->wait_until_ready(now_us(), 5'000'000).ok());
    const OffloadTier below[] = {{.tier = tier.get()}};
    Cache cache(test::full(700));
    auto offload =
        test::offload_of(cache, below, 700 * test::kFullRecord, {.timeout_us = 10'000'000});
    if (stored) {
      for (int i = 0; i < kPrompts; ++i) cache.compute(test::prompt_of(i, 320));
      while (offload->drain(now_us()).any()) {
      }
      continue;
    }
    std::int32_t found = 0;
    for (int i = 0; i < kPrompts; ++i) {
      const auto open = offload->open(test::prompt_of(i, 320));
      ASSERT_TRUE(open->pending);
      int polls = 0;
      for (bool pending = true; pending; ++polls) {
        if (polls >= 1 && polls < 7) {  // questions or loads are on their way
          const pid_t child = ::fork();
          ASSERT_GE(child, 0);
          if (child == 0) {
            const int how = polls % 3;
            std::array<TierDone, 64> done;
            if (how == 1) offload->poll(now_us());
            if (how == 2) tier->poll(now_us(), done);
            const bool right = how == 0 || (!tier->health().usable || how == 1);
            offload.reset();
            tier.reset();
            ::_exit(right ? 0 : 1);
          }
          int status = 0;
          ASSERT_EQ(::waitpid(child, &status, 0), child);
          EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
        }
        for (const SequenceReady& ready : offload->poll(now_us())) {
          found += ready.cached_tokens;
          pending = false;
          EXPECT_EQ(ready.why, LoadEnd::kLoaded);
        }
      }
      EXPECT_GE(polls, 4);
      EXPECT_TRUE(cache.manager.close(open->sequence).ok());
    }
    EXPECT_EQ(found, kPrompts * 319);
    EXPECT_EQ(tier->counters().connections_lost, 0u);
    EXPECT_EQ(tier->counters().replies_refused, 0u);
  }
}

}  // namespace
}  // namespace kvfolio
