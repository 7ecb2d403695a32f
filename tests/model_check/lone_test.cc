// SPDX-License-Identifier: Apache-2.0
//
// A sequence that runs alone gets as far with the prefix cache as without it: one at a time takes
// the same random calls on two managers that differ in the cache alone. KVFOLIO_SEED and
// KVFOLIO_OPS change what is run.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "kvfolio/manager.h"
#include "model_check/model.h"
#include "operations.h"

namespace kvfolio::model_check {
namespace {

std::uint64_t env(const char* name, std::uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 0);
}

CacheSpec any_spec(Rng& rng) {
  CacheSpec spec;
  const int unit = rng.between(1, 3);
  for (int g = rng.between(1, 3); g > 0; --g) {
    GroupSpec group;
    group.head_dim_k = 1;
    group.block_size = unit * rng.pick(std::vector<int>{1, 2, 4, 3});
    group.num_blocks = rng.between(1, 14);
    if (rng.chance(40)) {
      group.kind = AttentionKind::kSlidingWindow;
      group.window = rng.between(1, 12);
      group.num_sinks = rng.chance(30) ? rng.between(0, 5) : 0;
    }
    spec.groups.push_back(group);
  }
  spec.groups.back().block_size = unit;
  return spec;
}

struct Lone {
  Lone(const CacheSpec& spec, ManagerOptions options)
      : hot(*KVCacheManager::create(spec, options)),
        cold(*KVCacheManager::create(spec, without_cache(options))) {}

  static ManagerOptions without_cache(ManagerOptions options) {
    options.prefix_cache = false;
    return options;
  }
  // The rest of the tokens in one step. The cold one decides whether there is a step at all.
  bool append(SequenceId in_hot, SequenceId in_cold, const std::vector<std::int32_t>& tokens,
              int cached) {
    const Ticket cold_step = *cold.begin_step();
    if (!cold.append(in_cold, tokens).ok()) {
      EXPECT_TRUE(cold.drop(cold_step).ok());
      return false;
    }
    EXPECT_TRUE(cold.finish(cold_step).ok());
    const Ticket hot_step = *hot.begin_step();
    const Status status =
        hot.append(in_hot, std::span(tokens).subspan(static_cast<std::size_t>(cached)));
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(status.ok() ? hot.finish(hot_step).ok() : hot.drop(hot_step).ok());
    return status.ok();
  }

  KVCacheManager hot;
  KVCacheManager cold;
};

struct Seen {
  std::uint64_t operations = 0;
  std::uint64_t refused = 0;  // also without the cache
  std::uint64_t reused = 0;   // tokens
  std::uint64_t unhung = 0;   // blocks
  std::uint64_t evicted = 0;
};

void run(std::uint64_t seed, int operations, Seen& seen) {
  Rng rng(seed);
  const CacheSpec spec = any_spec(rng);
  Lone both(spec,
            {.max_sequences = 2, .order = rng.chance(40) ? Order::kUnordered : Order::kInOrder});
  const int alphabet = rng.between(2, 3);
  const auto any_tokens = [&](int n) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(n));
    for (std::int32_t& token : tokens) token = rng.below(alphabet);
    return tokens;
  };
  std::vector<std::vector<std::int32_t>> said;
  std::vector<std::int32_t> tokens;
  SequenceId in_hot;
  SequenceId in_cold;
  bool is_open = false;
  std::string last;
  const auto note = [&](const std::string& what) { last += "\n  " + what; };
  for (int op = 0; op < operations && !testing::Test::HasFailure(); ++op) {
    ++seen.operations;
    const int what = rng.below(100);
    if (!is_open) {
      last.clear();
      tokens = said.empty() || rng.chance(20) ? any_tokens(rng.between(1, 24)) : rng.pick(said);
      if (rng.chance(50)) {  // another end
        tokens.resize(static_cast<std::size_t>(rng.between(0, isize(tokens))));
        const std::vector<std::int32_t> more = any_tokens(rng.between(1, 8));
        tokens.insert(tokens.end(), more.begin(), more.end());
      }
      if (tokens.empty()) tokens = any_tokens(1);
      const Opened opened = *both.hot.open(tokens);
      in_hot = opened.sequence;
      in_cold = both.cold.open(tokens)->sequence;
      seen.reused += static_cast<std::uint64_t>(opened.cached_tokens);
      note("open " + std::to_string(tokens.size()) + ", cached " +
           std::to_string(opened.cached_tokens));
      is_open = both.append(in_hot, in_cold, tokens, opened.cached_tokens);
      if (!is_open) {
        ++seen.refused;
        ASSERT_TRUE(both.hot.close(in_hot).ok() && both.cold.close(in_cold).ok());
      }
    } else if (what < 60) {
      const std::vector<std::int32_t> more = any_tokens(rng.between(1, 5));
      note("append " + std::to_string(more.size()));
      if (both.append(in_hot, in_cold, more, 0)) {
        tokens.insert(tokens.end(), more.begin(), more.end());
      } else {
        ++seen.refused;
      }
    } else if (what < 75) {
      const TrimOptions trim{rng.below(4), rng.below(isize(tokens) + 1)};
      note("trim " + std::to_string(trim.num_sinks) + ", " + std::to_string(trim.window));
      ASSERT_EQ(*both.hot.trim(in_hot, trim), *both.cold.trim(in_cold, trim));
    } else if (what < 85) {
      const int n = rng.between(0, isize(tokens));
      note("truncate " + std::to_string(n));
      const Status status = both.cold.truncate(in_cold, n);
      // What the window of the one has let go of, the other may find in its cache.
      if (!status.ok()) continue;
      ASSERT_TRUE(both.hot.truncate(in_hot, n).ok());
      tokens.resize(static_cast<std::size_t>(n));
    } else if (what < 88) {
      const auto g = GroupId(rng.below(isize(spec.groups)));
      note("evict of group " + std::to_string(g.value()));
      ASSERT_TRUE(both.hot.evict(g, rng.below(3)).has_value());
    } else {
      note("close");
      ASSERT_TRUE(both.hot.close(in_hot).ok() && both.cold.close(in_cold).ok());
      is_open = false;
      said.push_back(tokens);
      if (said.size() > 20) said.erase(said.begin());
    }
    const Status invariants = both.hot.check_invariants();
    ASSERT_TRUE(invariants.ok()) << invariants.message() << last;
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed << " operation " << op << last;
  }
  seen.unhung += both.hot.counters().blocks_unhung;
  seen.evicted += both.hot.counters().blocks_evicted;
}

TEST(LoneSequence, GetsAsFarWithTheCacheAsWithoutIt) {
  const std::uint64_t first = env("KVFOLIO_SEED", 1);
  const auto operations =
      static_cast<std::int64_t>(env("KVFOLIO_OPS", test::operations_by_default(100000)));
  constexpr int kOpsPerRun = 200;
  Seen seen;
  for (std::int64_t i = 0; i * kOpsPerRun < operations && !HasFailure(); ++i) {
    run(first + static_cast<std::uint64_t>(i), kOpsPerRun, seen);
  }
  std::printf(
      "[lone] %llu operations from seed %llu: %llu refused, %llu tokens reused, %llu blocks "
      "unhung, %llu evicted\n",
      static_cast<unsigned long long>(seen.operations), static_cast<unsigned long long>(first),
      static_cast<unsigned long long>(seen.refused), static_cast<unsigned long long>(seen.reused),
      static_cast<unsigned long long>(seen.unhung), static_cast<unsigned long long>(seen.evicted));
  EXPECT_GT(seen.unhung, 0U);
  EXPECT_GT(seen.reused, 0U);
}

}  // namespace
}  // namespace kvfolio::model_check
