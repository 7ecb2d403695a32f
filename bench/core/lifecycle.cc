// SPDX-License-Identifier: Apache-2.0

// The life of 10,000 sequences of 10 blocks of 16 tokens, with the prefix cache and without it.
// Every figure is all that a step needs for the work: begin, commit and complete are in it.

#include <algorithm>
#include <cstring>

#include "cache.h"
#include "family.h"
#include "kvfolio/kernels.h"
#include "kvfolio/storage.h"
#include "kvfolio/view.h"

namespace kvfolio::bench {
namespace {

constexpr std::int32_t kBlocks = 10;

class Sequences {
 public:
  Sequences(std::int32_t count, bool prefix_cache)
      : cache_(count * (2 * kBlocks + 4), 2 * count, 0, prefix_cache), count_(count) {
    cache_.shuffle_free_blocks();
    tokens_.resize(static_cast<std::size_t>(count) * length());
    for (std::int32_t i = 0; i < count; ++i) write_prompt(i, prompt(i));
  }

  Cache& cache() { return cache_; }
  [[nodiscard]] std::int32_t count() const { return count_; }
  [[nodiscard]] const std::vector<SequenceId>& open_ones() const { return sequences_; }

  // ns per sequence: opens all and appends so many tokens to each, in one step.
  double open_all(std::int32_t num_tokens) {
    sequences_.clear();
    const auto size = static_cast<std::size_t>(num_tokens);
    const double time = nanoseconds_of([&] {
      const Ticket ticket = *cache_->begin_step();
      for (std::int32_t i = 0; i < count_; ++i) {
        sequences_.push_back(cache_->open({})->sequence);
        require(cache_->append(sequences_.back(), prompt(i).first(size)), "append");
      }
      require(cache_->finish(ticket), "finish");
    });
    check(num_tokens);
    return time / count_;
  }
  double append_all(std::int32_t num_tokens) {
    const auto size = static_cast<std::size_t>(num_tokens);
    return nanoseconds_of([&] {
             const Ticket ticket = *cache_->begin_step();
             for (const SequenceId sequence : sequences_) {
               require(cache_->append(sequence, std::span<const std::int32_t>(tokens_).first(size)),
                       "append");
             }
             require(cache_->finish(ticket), "finish");
           }) /
           count_;
  }
  double fork_all(std::vector<SequenceId>& children) {
    children.clear();
    children.reserve(sequences_.size());
    const double time = nanoseconds_of([&] {
      for (const SequenceId sequence : sequences_) children.push_back(*cache_->fork(sequence));
    });
    require(cache_.usage().held == count_ * kBlocks, "a fork takes no block");
    return time / count_;
  }
  double close_all(const std::vector<SequenceId>& sequences) {
    return nanoseconds_of([&] {
             for (const SequenceId sequence : sequences) {
               if (!cache_->close(sequence).ok()) require(false, "close");
             }
           }) /
           static_cast<double>(sequences.size());
  }
  // Everything cached goes; not timed.
  void evict_all() { require(cache_->evict(GroupId(0), 1 << 29).has_value(), "evict"); }

 private:
  [[nodiscard]] static std::size_t length() { return std::size_t{kBlocks} * kBlockSize; }
  std::span<std::int32_t> prompt(std::int32_t i) {
    return std::span(tokens_).subspan(static_cast<std::size_t>(i) * length(), length());
  }
  void check(std::int32_t num_tokens) {
    const std::int32_t blocks = (num_tokens + kBlockSize - 1) / kBlockSize;
    require(cache_.usage().held == count_ * blocks, "each sequence holds its blocks");
    const auto table = take(cache_->block_table(sequences_[0], GroupId(0)), "block_table");
    require(static_cast<std::int32_t>(table.size()) == blocks, "the table has them");
  }

  Cache cache_;
  std::int32_t count_;
  std::vector<std::int32_t> tokens_;
  std::vector<SequenceId> sequences_;
};

void control_plane(Session& session, bool prefix_cache) {
  const std::int32_t count = session.size(10'000, 50);
  Sequences sequences(count, prefix_cache);
  Samples allocate;
  Samples append_one;
  Samples append_block;
  Samples fork;
  Samples close_fork;
  Samples close_last;
  std::vector<SequenceId> children;
  for (int round = 0; round < session.rounds() + 1; ++round) {
    const bool warm = round > 0 || session.quick();
    const auto note = [&](Samples& samples, double value) {
      if (warm && samples.ours.size() < static_cast<std::size_t>(session.rounds())) {
        samples.ours.push_back(value);
      }
    };
    note(allocate, sequences.open_all(8 * kBlockSize));
    note(append_one, sequences.append_all(1));
    sequences.append_all(kBlockSize - 1);
    note(append_block, sequences.append_all(kBlockSize));
    note(fork, sequences.fork_all(children));
    note(close_fork, sequences.close_all(children));
    note(close_last, sequences.close_all(sequences.open_ones()));
    sequences.evict_all();
  }
  sequences.cache().check();
  const auto report = [&](const char* name, const Samples& samples, const char* with_tree,
                          const char* always) {
    session.report({.name = name,
                    .facts = {{"sequences", std::int64_t{count}},
                              {"prefix_cache", prefix_cache ? "on" : "off"}},
                    .note = prefix_cache ? with_tree : always},
                   samples);
  };
  report(
      "life.allocate_8_blocks", allocate,
      "open, append and commit of 128 tokens: looks the prompt up, keeps its tokens and publishes "
      "its blocks",
      "open, append and commit");
  report("life.append_1_token", append_one,
         "as a step: what drop() would need is noted, and the token is kept until its block is "
         "published; 10,000 sequences do not fit the caches",
         "as a step: what drop() would need is noted; 10,000 sequences do not fit the caches");
  report("life.append_16_tokens", append_block, "as a step; a full block is published in the tree",
         "as a step");
  report("life.fork_10_blocks", fork,
         "the child takes the parent's place in the tree and its unpublished tokens, too",
         "the references of 10 blocks");
  report("life.close_fork", close_fork,
         "publishes what is left of the last block and leaves the tree",
         "the references of 10 blocks");
  report("life.close_last_owner", close_last,
         "nothing is freed: each block is ranked and stays findable", "10 blocks are freed");
}

// A full pool: each new sequence of 10 blocks drives out as many cached ones.
void evict_and_admit(Session& session) {
  if (!session.wants("life.evict_admit_10")) return;
  const std::int32_t count = session.size(10'000, 50);
  Cache cache(count * kBlocks, 1024);
  cache.shuffle_free_blocks();
  std::vector<std::int32_t> tokens(std::size_t{kBlocks} * kBlockSize);
  std::int32_t next = 0;
  const auto admit_one = [&](Stopwatch& watch) {
    write_prompt(next++, tokens);
    watch.start();
    const Ticket ticket = *cache->begin_step();
    const SequenceId sequence = cache->open(tokens)->sequence;
    require(cache->append(sequence, tokens), "append");
    require(cache->finish(ticket), "finish");
    require(cache->close(sequence), "close");
    watch.stop();
  };
  Stopwatch filling;
  for (std::int32_t i = 0; i < count; ++i) admit_one(filling);
  require(cache.usage().free == 0, "the pool is full of cached blocks");
  const std::int32_t share = session.size(2'000, 5);
  const auto round = [&] {
    Stopwatch watch;
    const std::uint64_t before = cache->counters().blocks_evicted;
    for (std::int32_t i = 0; i < share; ++i) admit_one(watch);
    require(
        cache->counters().blocks_evicted - before == static_cast<std::uint64_t>(share) * kBlocks,
        "as many blocks are evicted as are needed");
    return watch.nanoseconds() / share;
  };
  session.measure({.name = "life.evict_admit_10",
                   .facts = {{"cached_blocks", std::int64_t{count} * kBlocks}},
                   .note = "open, append, evicting 10 blocks, finish and close, a prompt a step"},
                  round);
  cache.check();
}

void slot_mapping(Session& session) {
  if (!session.wants("life.slot_mapping")) return;
  const std::int32_t length = session.size(4096, 64);
  Cache cache(2 * length / kBlockSize, 4);
  cache.shuffle_free_blocks();
  const SequenceId sequence = cache.open({});
  cache.append(sequence, std::vector<std::int32_t>(static_cast<std::size_t>(length), 1));
  std::vector<std::int32_t> slots(static_cast<std::size_t>(length));
  require(cache->slot_mapping(sequence, GroupId(0), 0, slots), "slot_mapping");
  const auto table = take(cache->block_table(sequence, GroupId(0)), "block_table");
  for (std::size_t i = 0; i < slots.size(); ++i) {
    require(
        slots[i] == table[i / kBlockSize] * kBlockSize + static_cast<std::int32_t>(i % kBlockSize),
        "the slot of each position");
  }
  const int repeats = session.quick() ? 1 : 500;
  session.measure({.name = "life.slot_mapping",
                   .facts = {{"tokens", std::int64_t{length}}},
                   .note = "per token; any range, and where a trim left holes"},
                  [&] {
                    return nanoseconds_of([&] {
                             for (int i = 0; i < repeats; ++i) {
                               if (!cache->slot_mapping(sequence, GroupId(0), 0, slots).ok()) {
                                 require(false, "slot_mapping");
                               }
                               keep(slots.data());
                             }
                           }) /
                           length / repeats;
                  });
}

// StreamingLLM: a sequence of n blocks keeps its first and its last.
void trim(Session& session) {
  if (!session.wants("life.trim")) return;
  for (const std::int32_t full : {10, 1'000, 10'000}) {
    const std::int32_t blocks = session.size(full, 10 + full / 100);
    const int repeats = session.quick() ? 1 : 40'000 / full + 1;
    Cache cache(2 * blocks, 4, 0, false);
    cache.shuffle_free_blocks();
    const std::vector<std::int32_t> tokens(static_cast<std::size_t>(blocks) * kBlockSize, 1);
    const auto round = [&] {
      Stopwatch watch;
      for (int i = 0; i < repeats; ++i) {
        const SequenceId sequence = cache.open({});
        cache.append(sequence, tokens);
        watch.start();
        const auto dropped = cache->trim(sequence, {.num_sinks = kBlockSize, .window = kBlockSize});
        watch.stop();
        require(dropped.has_value() && *dropped == (blocks - 2) * kBlockSize,
                "all but the first and the last block are dropped");
        cache.close(sequence);
      }
      return watch.nanoseconds() / repeats;
    };
    session.measure(
        {.name = "life.trim",
         .facts = {{"blocks", std::int64_t{blocks}}},
         .note = "the whole call; keeps 16 sinks and a window of 16. With ten blocks most "
                 "is the call itself"},
        round);
  }
}

// Reading one token's vector of 8 KiB, and copying one block of 512 KiB.
void data_plane(Session& session) {
  if (!session.wants("life.read_token") && !session.wants("life.copy_block")) return;
  const std::int32_t num_blocks = session.size(256, 4);
  KVStorage storage = take(KVStorage::create({.groups = {{.num_layers = 1,
                                                          .num_kv_heads = 1,
                                                          .head_dim_k = 4096,
                                                          .head_dim_v = 4096,
                                                          .block_size = kBlockSize,
                                                          .num_blocks = num_blocks}}}),
                           "storage");
  require(storage.fill(std::byte{1}), "fill");
  const KVView view = take(storage.view(GroupId(0)), "view");
  const auto block_bytes = static_cast<std::size_t>(2 * kBlockSize) * 4096 * 4;
  const auto order = shuffled(num_blocks, 41);
  const Buffer from(static_cast<std::int64_t>(block_bytes) * num_blocks);
  std::memset(from.data(), 1, from.size());
  const auto half = static_cast<std::size_t>(num_blocks) / 2;
  const std::span<const std::int32_t> source(order.data(), half);
  const std::span<const std::int32_t> target(order.data() + half, half);
  std::memset(view.k + static_cast<std::size_t>(source[0]) * block_bytes, 7, block_bytes);
  require(storage.copy_blocks(GroupId(0), source, target), "copy_blocks");
  require(std::memcmp(view.k + static_cast<std::size_t>(source[0]) * block_bytes,
                      view.k + static_cast<std::size_t>(target[0]) * block_bytes, block_bytes) == 0,
          "the copy is the block");
  session.measure(
      {.name = "life.copy_block",
       .facts = {{"bytes", static_cast<std::int64_t>(block_bytes)}},
       .unit = "us",
       .note = "ceiling: memcpy of the block, same order"},
      [&] {
        return nanoseconds_of([&] {
                 require(storage.copy_blocks(GroupId(0), source, target), "copy_blocks");
               }) /
               static_cast<double>(half) / 1000;
      },
      [&] {
        return nanoseconds_of([&] {
                 for (std::size_t i = 0; i < half; ++i) {
                   std::memcpy(from.data() + static_cast<std::size_t>(target[i]) * block_bytes,
                               from.data() + static_cast<std::size_t>(source[i]) * block_bytes,
                               block_bytes);
                 }
                 keep(from.data());
               }) /
               static_cast<double>(half) / 1000;
      });

  std::vector<float> k(2048);
  const RowsView row{reinterpret_cast<std::byte*>(k.data()), 8192, 8192, 1, 1, 2048, DType::kF32};
  KVStorage vectors = take(KVStorage::create({.groups = {{.num_kv_heads = 1,
                                                          .head_dim_k = 2048,
                                                          .block_size = kBlockSize,
                                                          .num_blocks = num_blocks}}}),
                           "storage");
  require(vectors.fill(std::byte{1}), "fill");
  const KVView plain = take(vectors.view(GroupId(0)), "view");
  const int reads = session.quick() ? 4 : 2'000;
  session.measure(
      {.name = "life.read_token",
       .facts = {{"bytes", std::int64_t{8192}}},
       .note = "copies one vector; one that wants no copy reads it in place through the view. "
               "Ceiling: memcpy"},
      [&] {
        return nanoseconds_of([&] {
                 for (int i = 0; i < reads; ++i) {
                   const std::int32_t slot = i % (num_blocks * kBlockSize);
                   require(read_token(plain, {.slot = slot}, row, {}), "read_token");
                   keep(k.data());
                 }
               }) /
               reads;
      },
      [&] {
        return nanoseconds_of([&] {
                 for (int i = 0; i < reads; ++i) {
                   const int slot = i % (num_blocks * kBlockSize);
                   std::memcpy(k.data(), from.data() + static_cast<std::size_t>(slot) * 8192, 8192);
                   keep(k.data());
                 }
               }) /
               reads;
      });
}

// Another manager becomes an equal of one that reserves 256 MiB for vectors of 8 KiB and uses
// little or all of it.
void copy_to(Session& session) {
  if (!session.wants("life.copy_to")) return;
  const std::int32_t num_blocks = session.size(2048, 8);
  constexpr std::size_t kBlockBytes = std::size_t{kBlockSize} * 8192;
  const auto make = [&] {
    return take(
        KVCacheManager::create(take(KVStorage::create({.groups = {{.head_dim_k = 1024,
                                                                   .block_size = kBlockSize,
                                                                   .dtype = DType::kF64,
                                                                   .num_blocks = num_blocks}}}),
                                    "storage")),
        "a manager");
  };
  for (const std::int32_t length : {20, num_blocks * kBlockSize}) {
    KVCacheManager from = make();
    KVCacheManager to = make();
    const KVView source = take(from.storage()->view(GroupId(0)), "view");
    const KVView copy = take(to.storage()->view(GroupId(0)), "view");
    const auto block_of = [](const KVView& view, std::int32_t block) {
      return view.k + static_cast<std::size_t>(block) * kBlockBytes;
    };
    for (std::int32_t block = 0; block < num_blocks; ++block) {
      std::memset(block_of(source, block), 1, kBlockBytes);
      std::memcpy(block_of(source, block), &block, sizeof block);
    }
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(num_blocks) * kBlockSize);
    write_prompt(1, tokens);
    const SequenceId sequence = take(from.open({}), "open").sequence;
    const Ticket ticket = take(from.begin_step(), "begin_step");
    require(from.append(sequence, std::span(tokens).first(static_cast<std::size_t>(length))),
            "append");
    require(from.finish(ticket), "finish");

    require(from.copy_to(to), "copy_to");
    const auto table = take(from.block_table(sequence, GroupId(0)), "block_table");
    const auto copied = take(to.block_table(sequence, GroupId(0)), "block_table of the copy");
    require(std::equal(table.begin(), table.end(), copied.begin(), copied.end()),
            "the copy has the same table");
    for (const std::int32_t block : table) {
      require(std::memcmp(block_of(source, block), block_of(copy, block), kBlockBytes) == 0,
              "the copy has the bytes of every block in use");
    }
    require(to.check_invariants(), "the copy");

    const int repeats = session.quick() ? 1 : std::max(2, 4096 / static_cast<int>(table.size()));
    const auto each_ms = [&](auto&& call) {
      return nanoseconds_of([&] {
               for (int i = 0; i < repeats; ++i) call();
             }) /
             repeats / 1e6;
    };
    session.measure(
        {.name = "life.copy_to",
         .facts = {{"reserved_bytes", std::int64_t{num_blocks} * std::int64_t{kBlockBytes}},
                   {"tokens", std::int64_t{length}}},
         .unit = "ms",
         .note = "to a manager that is there: blocks in use, tables, tree and some words for each "
                 "block, not what is only reserved. Ceiling: memcpy of the blocks in use"},
        [&] { return each_ms([&] { require(from.copy_to(to), "copy_to"); }); },
        [&] {
          return each_ms([&] {
            for (const std::int32_t block : table) {
              std::memcpy(block_of(copy, block), block_of(source, block), kBlockBytes);
            }
            keep(copy.k);
          });
        });
  }
}

void measure_lifecycle(Session& session) {
  control_plane(session, true);
  control_plane(session, false);
  evict_and_admit(session);
  slot_mapping(session);
  trim(session);
  data_plane(session);
  copy_to(session);
}

}  // namespace

Family lifecycle_family() {
  return {{"life.allocate_8_blocks", "life.append_1_token", "life.append_16_tokens",
           "life.fork_10_blocks", "life.close_fork", "life.close_last_owner", "life.evict_admit_10",
           "life.slot_mapping", "life.trim", "life.copy_block", "life.read_token", "life.copy_to"},
          measure_lifecycle};
}

}  // namespace kvfolio::bench
