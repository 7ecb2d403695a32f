// SPDX-License-Identifier: Apache-2.0

// open() of prompts that are cached, and publishing at commit.

#include <algorithm>

#include "cache.h"
#include "family.h"

namespace kvfolio::bench {
namespace {

using Tokens = std::span<const std::int32_t>;

// Many prompts of the same length, all cached, opened in random order.
class CachedPrompts {
 public:
  CachedPrompts(std::int32_t prompts, std::int32_t blocks, bool shuffle)
      : cache_(prompts * blocks, 1024),
        blocks_(blocks),
        order_(shuffled(prompts, 21)),
        tokens_(kAtOnce * size()) {
    if (shuffle) cache_.shuffle_free_blocks();
    for (std::int32_t p = 0; p < prompts; ++p) {
      cache_.cache(prompt(0, p));
    }
    require(cache_->counters().blocks_evicted == 0 && cache_.usage().cached == prompts * blocks,
            "every block is cached");
  }

  // The tables that open gives are those of the first computation.
  void check() {
    for (int i = 0; i < 50; ++i) {
      const std::int32_t p = order_[static_cast<std::size_t>(i) % order_.size()];
      const Tokens tokens = prompt(0, p);
      const Opened opened = take(cache_->open(tokens), "open");
      require(opened.cached_tokens == static_cast<std::int32_t>(tokens.size()) - 1,
              "a prompt that was computed is found whole");
      const auto table = take(cache_->block_table(opened.sequence, GroupId(0)), "block_table");
      require(static_cast<std::int32_t>(table.size()) == blocks_, "all blocks are held");
      for (const std::int32_t block : table) {
        require(take(cache_->ref_count(GroupId(0), BlockId(block)), "ref_count") == 1, "held once");
      }
      cache_.close(opened.sequence);
    }
  }

  // ns per call of open; the sequences are closed again, which is not timed.
  double time_open(std::int32_t calls) {
    Stopwatch watch;
    std::int32_t done = 0;
    Opened opened[kAtOnce];
    while (done < calls) {
      for (std::size_t i = 0; i < kAtOnce; ++i) prompt(i, next());
      watch.start();
      for (std::size_t i = 0; i < kAtOnce; ++i) {
        opened[i] = *cache_->open({tokens_.data() + i * size(), size()});
      }
      watch.stop();
      for (const Opened& one : opened) {
        require(one.cached_tokens == static_cast<std::int32_t>(size()) - 1, "found whole");
        cache_.close(one.sequence);
      }
      done += static_cast<std::int32_t>(kAtOnce);
    }
    return watch.nanoseconds() / done;
  }

 private:
  static constexpr std::size_t kAtOnce = 32;

  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(blocks_) * kBlockSize; }
  std::int32_t next() { return order_[next_++ % order_.size()]; }
  Tokens prompt(std::size_t place, std::int32_t p) {
    const std::span<std::int32_t> to(tokens_.data() + place * size(), size());
    write_prompt(p, to);
    return to;
  }

  Cache cache_;
  std::int32_t blocks_;
  std::vector<std::int32_t> order_;
  std::size_t next_ = 0;
  std::vector<std::int32_t> tokens_;
};

void open_per_block(Session& session) {
  if (!session.wants("open.cached")) return;
  const std::int32_t total = session.size(blocks_beyond_cache(), 1 << 12);
  constexpr std::int32_t kBlocks = 64;
  for (const bool shuffle : {false, true}) {
    CachedPrompts prompts(total / kBlocks, kBlocks, shuffle);
    prompts.check();
    session.measure({.name = "open.cached",
                     .facts = {{"blocks", std::int64_t{total}},
                               {"prompt_blocks", std::int64_t{kBlocks}},
                               {"block_ids", shuffle ? "scattered" : "in order"}},
                     .promise = Promise{40, 15},
                     .note = "per block: match, hold, fill the table; prompts in random order"},
                    [&] { return prompts.time_open(session.size(2048, 32)) / kBlocks; });
  }
}

void open_short(Session& session) {
  if (!session.wants("open.two_blocks")) return;
  struct Case {
    std::int32_t runs;
    Promise promise;
  };
  for (const Case& at : {Case{10'000, {1.0, 0.3}}, Case{1'000'000, {1.5, 0.7}}}) {
    const std::int32_t runs = session.size(at.runs, at.runs / 100);
    CachedPrompts prompts(runs, 2, true);
    prompts.check();
    session.measure({.name = "open.two_blocks",
                     .facts = {{"runs", std::int64_t{runs}}},
                     .unit = "us",
                     .promise = at.promise,
                     .note = "the whole call, prompts in random order"},
                    [&] { return prompts.time_open(session.size(16'384, 32)) / 1000; });
  }
}

// Sequences that all fill a block in the same step, and then one more token. The second step
// publishes nothing: what the first takes longer is the publishing.
void publish_decode(Session& session) {
  if (!session.wants("publish.block")) return;
  const std::int32_t count = session.size(1024, 32);
  const std::int32_t steps = session.size(16, 1);
  // Each round appends `steps` blocks to each.
  const std::int32_t num_blocks = count * (8 + steps * (session.rounds() + 1));
  Cache cache(num_blocks, count);
  cache.shuffle_free_blocks();
  std::vector<SequenceId> sequences;
  std::vector<std::int32_t> tokens(std::size_t{8} * kBlockSize - 1);
  for (std::int32_t i = 0; i < count; ++i) {
    write_block(i, 0, tokens.data());
    sequences.push_back(cache.open({}));
    cache.append(sequences.back(), tokens);
  }
  const auto step = [&](std::int32_t num_tokens) {
    const Ticket ticket = *cache->begin_step();
    for (const SequenceId sequence : sequences) {
      require(cache->append(sequence, Tokens(tokens).first(static_cast<std::size_t>(num_tokens))),
              "append");
    }
    const double time = nanoseconds_of([&] { require(cache->commit(ticket), "commit"); });
    require(cache->complete(ticket), "complete");
    return time;
  };
  const auto round = [&] {
    double with = 0;
    double without = 0;
    for (std::int32_t i = 0; i < steps; ++i) {
      const std::uint64_t before = cache->counters().blocks_published;
      with += step(1);
      require(cache->counters().blocks_published - before == static_cast<std::uint64_t>(count),
              "each sequence publishes a block");
      without += step(1);
      step(kBlockSize - 2);
    }
    return (with - without) / count / steps;
  };
  round();
  session.measure({.name = "publish.block",
                   .facts = {{"sequences", std::int64_t{count}}, {"at", "decode"}},
                   .promise = Promise{60, 20},
                   .note = "commit of a step in which every sequence fills a block, less one in "
                           "which none does"},
                  round);
  cache.check();
}

// Whole prompts: commit over the blocks that it publishes.
void publish_prefill(Session& session) {
  if (!session.wants("publish.block")) return;
  const std::int32_t count = session.size(256, 8);
  constexpr std::int32_t kBlocks = 64;
  Cache cache(count * kBlocks * 2, count);
  cache.shuffle_free_blocks();
  std::vector<std::int32_t> tokens(std::size_t{kBlocks} * kBlockSize);
  std::int32_t prompt = 0;
  const auto round = [&] {
    std::vector<SequenceId> sequences;
    const Ticket ticket = *cache->begin_step();
    for (std::int32_t i = 0; i < count; ++i) {
      write_prompt(prompt++, tokens);
      sequences.push_back(cache.open(tokens));
      require(cache->append(sequences.back(), tokens), "append");
    }
    const std::uint64_t before = cache->counters().blocks_published;
    const double time = nanoseconds_of([&] { require(cache->commit(ticket), "commit"); });
    require(
        cache->counters().blocks_published - before == static_cast<std::uint64_t>(count) * kBlocks,
        "every block is published");
    require(cache->complete(ticket), "complete");
    for (const SequenceId sequence : sequences) cache.close(sequence);
    return time / count / kBlocks;
  };
  round();
  session.measure({.name = "publish.block",
                   .facts = {{"sequences", std::int64_t{count}},
                             {"at", "prefill"},
                             {"prompt_blocks", std::int64_t{kBlocks}}},
                   .promise = Promise{60, 20},
                   .note = "commit of new prompts, all of it, per block"},
                  round);
  cache.check();
}

void measure_open(Session& session) {
  open_per_block(session);
  open_short(session);
  publish_decode(session);
  publish_prefill(session);
}

}  // namespace

Family open_family() { return {{"open.cached", "open.two_blocks", "publish.block"}, measure_open}; }

}  // namespace kvfolio::bench
