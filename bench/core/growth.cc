// SPDX-License-Identifier: Apache-2.0

// How figures grow: the same work at sizes that differ by a factor of 10. `ceiling` is the first
// size of the curve and `ratio` its figure over the one of the row: 1 is flat, and work that grows
// with the size has 0.1 at the second.

#include <algorithm>

#include "cache.h"
#include "family.h"

namespace kvfolio::bench {
namespace {

// The figure at each size; a round is a call of `measured(size)` result.
class Curve {
 public:
  Curve(Session& session, Figure figure, std::string size_name)
      : session_(session), figure_(std::move(figure)), size_name_(std::move(size_name)) {}

  void add(std::int32_t size, const std::function<double()>& round) {
    Samples samples = session_.alternate(round, {});
    if (first_.empty()) first_ = samples.ours;
    samples.other = first_;
    Figure figure = figure_;
    figure.facts.insert(figure.facts.begin(), {size_name_, std::int64_t{size}});
    figure.note += "; ceiling: the first size";
    session_.report(figure, samples);
  }

 private:
  Session& session_;
  Figure figure_;
  std::string size_name_;
  std::vector<double> first_;
};

std::vector<std::int32_t> sizes(const Session& session, std::int32_t from, std::int32_t to) {
  std::vector<std::int32_t> all;
  for (std::int64_t size = from; size <= to; size *= 10) {
    all.push_back(static_cast<std::int32_t>(size));
    if (session.quick() && all.size() == 2) break;
  }
  return all;
}

// open of a cached prompt, per block.
void prompt_length(Session& session) {
  if (!session.wants("growth.prompt_tokens")) return;
  Curve curve(session,
              {.name = "growth.prompt_tokens",
               .note = "open of a prompt that is cached whole, per block of 16"},
              "tokens");
  for (const std::int32_t length : sizes(session, 1'000, 1'000'000)) {
    const std::int32_t blocks = length / kBlockSize;
    Cache cache(2 * blocks + 16, 4);
    cache.shuffle_free_blocks();
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(blocks) * kBlockSize);
    write_prompt(1, tokens);
    cache.cache(tokens);
    const int calls = session.quick() ? 1 : std::max(1, 500'000 / length);
    curve.add(length, [&] {
      Stopwatch watch;
      for (int i = 0; i < calls; ++i) {
        watch.start();
        const Opened opened = take(cache->open(tokens), "open");
        watch.stop();
        require(opened.cached_tokens == blocks * kBlockSize - 1, "found whole");
        cache.close(opened.sequence);
      }
      return watch.nanoseconds() / calls / blocks;
    });
    cache.check();
  }
}

// Prompts that were not said before, each computed and closed.
class NewPrompts {
 public:
  NewPrompts(Cache& cache, std::int32_t blocks)
      : cache_(cache), tokens_(static_cast<std::size_t>(blocks) * kBlockSize) {}

  // Nanoseconds for each; writing the prompt is not in it.
  double admit(std::int32_t count) {
    Stopwatch watch;
    for (std::int32_t i = 0; i < count; ++i) {
      write_prompt(next_++, tokens_);
      watch.start();
      cache_.cache(tokens_);
      watch.stop();
    }
    return watch.nanoseconds() / count;
  }

 private:
  Cache& cache_;
  std::vector<std::int32_t> tokens_;
  std::int32_t next_ = 0;
};

// Admitting a prompt of 10 blocks into a full pool.
void pool_size(Session& session) {
  if (!session.wants("growth.pool_blocks")) return;
  constexpr std::int32_t kBlocks = 10;
  Curve curve(session,
              {.name = "growth.pool_blocks",
               .note = "open, append, finish and close of a new prompt of 10 blocks; the pool is "
                       "full of cached blocks and evicts 10"},
              "blocks");
  for (const std::int32_t num_blocks : sizes(session, 1'000, 10'000'000)) {
    Cache cache(num_blocks, 16);
    NewPrompts prompts(cache, kBlocks);
    prompts.admit(num_blocks / kBlocks);
    require(cache.usage().free == 0, "the pool is full");
    const int calls = session.quick() ? 4 : 2'000;
    curve.add(num_blocks, [&] {
      const std::uint64_t before = cache->counters().blocks_evicted;
      const double each = prompts.admit(calls);
      require(
          cache->counters().blocks_evicted - before == static_cast<std::uint64_t>(calls) * kBlocks,
          "as many blocks are evicted as are needed");
      return each;
    });
    if (num_blocks <= 1'000'000) cache.check();
  }
}

// Prompts that share their first block and differ in the second.
void children(Session& session) {
  if (!session.wants("growth.children")) return;
  constexpr std::int32_t kCommon = 1 << 30;
  Curve curve(session,
              {.name = "growth.children",
               .note = "open of a prompt of two blocks, one of many that part after the first"},
              "children");
  for (const std::int32_t count : sizes(session, 100, 100'000)) {
    Cache cache(count + 16, 64);
    std::vector<std::int32_t> tokens(std::size_t{2} * kBlockSize);
    write_block(kCommon, 0, tokens.data());
    for (std::int32_t p = 0; p < count; ++p) {
      write_block(p, 1, tokens.data() + kBlockSize);
      cache.cache(tokens);
    }
    require(cache.usage().cached == count + 1, "the first block is there once");
    const int calls = session.quick() ? 4 : 20'000;
    Random random(51);
    curve.add(count, [&] {
      constexpr std::size_t kAtOnce = 32;
      std::vector<std::int32_t> many(kAtOnce * tokens.size());
      Opened opened[kAtOnce];
      Stopwatch watch;
      int done = 0;
      for (; done < calls; done += static_cast<int>(kAtOnce)) {
        for (std::size_t i = 0; i < kAtOnce; ++i) {
          write_block(kCommon, 0, many.data() + i * tokens.size());
          write_block(static_cast<std::int32_t>(random.below(count)), 1,
                      many.data() + i * tokens.size() + kBlockSize);
        }
        watch.start();
        for (std::size_t i = 0; i < kAtOnce; ++i) {
          opened[i] = *cache->open({many.data() + i * tokens.size(), tokens.size()});
        }
        watch.stop();
        for (const Opened& one : opened) {
          require(one.cached_tokens == 2 * kBlockSize - 1, "found whole");
          cache.close(one.sequence);
        }
      }
      return watch.nanoseconds() / done;
    });
    cache.check();
  }
}

// Publishing new prompts of one block beside many runs.
void runs(Session& session) {
  if (!session.wants("growth.runs")) return;
  Curve curve(session,
              {.name = "growth.runs",
               .note = "open, append, finish and close of a new prompt of one block; the tree has "
                       "a run for each block and gives one up"},
              "runs");
  for (const std::int32_t count : sizes(session, 1'000, 1'000'000)) {
    Cache cache(count, 16);
    NewPrompts prompts(cache, 1);
    prompts.admit(count);
    require(cache.usage().cached == count, "every block is a run of its own");
    const int calls = session.quick() ? 4 : 10'000;
    curve.add(count, [&] { return prompts.admit(calls); });
    require(cache.usage().cached == count, "one came, one went");
    cache.check();
  }
}

void measure_growth(Session& session) {
  prompt_length(session);
  pool_size(session);
  children(session);
  runs(session);
}

}  // namespace

Family growth_family() {
  return {{"growth.prompt_tokens", "growth.pool_blocks", "growth.children", "growth.runs"},
          measure_growth};
}

}  // namespace kvfolio::bench
