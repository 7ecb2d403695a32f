// SPDX-License-Identifier: Apache-2.0

// open() of prompts that are cached, and publishing at commit.

#include <algorithm>
#include <cstring>

#include "cache.h"
#include "family.h"
#include "plain.h"

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
    Opened opened[kAtOnce];
    return time(
        calls,
        [&](std::size_t i, std::int32_t, Tokens tokens) { opened[i] = *cache_->open(tokens); },
        [&] {
          for (const Opened& one : opened) {
            require(one.cached_tokens == static_cast<std::int32_t>(size()) - 1, "found whole");
            cache_.close(one.sequence);
          }
        });
  }
  // ns per memcmp of a prompt with the same prompts back to back.
  double time_compare(std::int32_t calls) {
    if (plain_.empty()) {
      plain_.resize(order_.size() * size());
      for (std::size_t p = 0; p < order_.size(); ++p) {
        write_prompt(static_cast<std::int32_t>(p), std::span(plain_).subspan(p * size(), size()));
      }
    }
    bool all = true;
    const double each = time(
        calls,
        [&](std::size_t, std::int32_t p, Tokens tokens) {
          all &= std::memcmp(plain_.data() + static_cast<std::size_t>(p) * size(), tokens.data(),
                             tokens.size_bytes()) == 0;
        },
        [] {});
    require(all, "the same prompts");
    return each;
  }
  [[nodiscard]] std::int64_t metadata_bytes() { return cache_->metadata().used; }

 private:
  // ns of call(place, prompt, tokens) with the prompts in random order; `after` each few of them is
  // not timed.
  template <typename Call, typename After>
  double time(std::int32_t calls, Call&& call, After&& after) {
    Stopwatch watch;
    std::int32_t done = 0;
    std::int32_t prompts[kAtOnce];
    while (done < calls) {
      for (std::size_t i = 0; i < kAtOnce; ++i) {
        prompts[i] = next();
        prompt(i, prompts[i]);
      }
      watch.start();
      for (std::size_t i = 0; i < kAtOnce; ++i) {
        call(i, prompts[i], Tokens(tokens_.data() + i * size(), size()));
      }
      watch.stop();
      after();
      done += static_cast<std::int32_t>(kAtOnce);
    }
    return watch.nanoseconds() / done;
  }

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
  std::vector<std::int32_t> plain_;  // all prompts, where they are compared
};

void open_per_block(Session& session) {
  if (!session.wants("open.cached")) return;
  const std::int32_t total = session.size(blocks_beyond_cache(), 1 << 12);
  constexpr std::int32_t kBlocks = 64;
  for (const bool shuffle : {false, true}) {
    CachedPrompts prompts(total / kBlocks, kBlocks, shuffle);
    prompts.check();
    session.measure(
        {.name = "open.cached",
         .facts = {{"blocks", std::int64_t{total}},
                   {"prompt_blocks", std::int64_t{kBlocks}},
                   {"block_ids", shuffle ? "scattered" : "in order"}},
         .promise = Promise{0.1, 0.25},
         .promise_is_ratio = true,
         .note = "per block: match, hold, fill the table; prompts in random order. "
                 "Ceiling: memcmp with the same prompts back to back"},
        [&] { return prompts.time_open(session.size(2048, 32)) / kBlocks; },
        [&] { return prompts.time_compare(session.size(2048, 32)) / kBlocks; });
  }
}

void open_short(Session& session) {
  if (!session.wants("open.two_blocks")) return;
  // The cell of the hash table names the run, the run names its tokens and its entries, an entry
  // names the block.
  constexpr std::int64_t kDepth = 5;
  for (const std::int32_t full : {10'000, 1'000'000}) {
    const std::int32_t runs = session.size(full, full / 100);
    CachedPrompts prompts(runs, 2, true);
    prompts.check();
    Chase chase(prompts.metadata_bytes());
    const std::int32_t calls = session.size(16'384, 32);
    session.measure(
        {.name = "open.two_blocks",
         .facts = {{"runs", std::int64_t{runs}}},
         .unit = "us",
         .promise = Promise{0.35, 0.7},
         .promise_is_ratio = true,
         .note = "the whole call, prompts in random order. Ceiling: 5 loads that each "
                 "wait for the one before, in as much memory as the bookkeeping has"},
        [&] { return prompts.time_open(calls) / 1000; },
        [&] { return chase.time(kDepth * calls) / calls / 1000; });
  }
}

const std::string kPublishedPlainly =
    "Ceiling: the tokens of a block copied behind those of the last one, and a cell of a table set "
    "at random";

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
  PlainIndex plain(num_blocks);
  std::vector<std::int32_t> last(static_cast<std::size_t>(count) * kBlockSize, 7);
  session.measure({.name = "publish.block",
                   .facts = {{"sequences", std::int64_t{count}}, {"at", "decode"}},
                   .promise = Promise{0.08, 0.25},
                   .promise_is_ratio = true,
                   .note = "commit of a step in which every sequence fills a block, less one in "
                           "which none does. " +
                           kPublishedPlainly},
                  round, [&] {
                    double time = 0;
                    for (std::int32_t i = 0; i < steps; ++i) time += plain.publish(last);
                    return time / count / steps;
                  });
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
  PlainIndex plain(count * kBlocks * 2);
  session.measure({.name = "publish.block",
                   .facts = {{"sequences", std::int64_t{count}},
                             {"at", "prefill"},
                             {"prompt_blocks", std::int64_t{kBlocks}}},
                   .promise = Promise{0.2, 0.5},
                   .promise_is_ratio = true,
                   .note = "commit of new prompts, all of it, per block. " + kPublishedPlainly},
                  round, [&] {
                    double time = 0;
                    for (std::int32_t i = 0; i < count; ++i) time += plain.publish(tokens);
                    return time / count / kBlocks;
                  });
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
