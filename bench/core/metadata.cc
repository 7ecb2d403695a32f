// SPDX-License-Identifier: Apache-2.0

// Memory: the bytes that the manager of ids keeps for each block, tokens apart, as
// KVCacheManager::metadata() counts them: the arrays with a place for each block whole, the stores
// of the prefix tree by what is in them.

#include <algorithm>
#include <vector>

#include "cache.h"
#include "family.h"

namespace kvfolio::bench {
namespace {

// Computes prompts [first, last), each by a sequence of its own, and leaves their blocks to one
// more: its caller_id is `last`, which is returned.
std::int32_t hold_prompts(Cache& cache, std::int32_t first, std::int32_t last,
                          std::span<std::int32_t> tokens) {
  std::vector<SequenceId> writers;
  std::vector<std::int32_t> blocks;
  for (std::int32_t p = first; p < last; ++p) {
    write_prompt(p, tokens);
    writers.push_back(cache.open({}));
    cache.append(writers.back(), tokens);
    const auto table = take(cache->block_table(writers.back(), GroupId(0)), "block_table");
    blocks.insert(blocks.end(), table.begin(), table.end());
  }
  const OpenOptions named{.caller_id = static_cast<std::uint64_t>(last)};
  const SequenceId holder = take(cache->open({}, named), "open").sequence;
  const std::span<const std::int32_t> tables[] = {blocks};
  const auto num_tokens = static_cast<std::int32_t>(blocks.size()) * kBlockSize;
  require(cache->adopt(holder, tables, num_tokens), "adopt");
  for (const SequenceId writer : writers) cache.close(writer);
  return last;
}

void measure_metadata(Session& session) {
  constexpr std::int32_t kRunBlocks = 8;
  constexpr double kTokenBytes = kBlockSize * 4;
  // Every block stands in the table of an open sequence: 256 hold the pool. The tree has a run for
  // each prompt. Then all close, and each block is ranked among the cached.
  constexpr std::int32_t kHolders = 256;
  const std::int32_t num_blocks = session.size(1'000'000, 8'000);
  const std::int32_t prompts = num_blocks / kRunBlocks;
  const std::int32_t share = (prompts + kHolders - 1) / kHolders;
  std::vector<std::int32_t> tokens(std::size_t{kRunBlocks} * kBlockSize);
  Cache cache(num_blocks, kHolders + share);
  const MemoryUse created = cache->metadata();
  std::vector<SequenceId> holders;
  for (std::int32_t p = 0; p < prompts;) {
    p = hold_prompts(cache, p, std::min(prompts, p + share), tokens);
    holders.push_back(take(cache->find(static_cast<std::uint64_t>(p)), "the one that holds"));
  }
  require(cache.usage().held == num_blocks, "every block is held");
  for (const SequenceId holder : holders) cache.close(holder);
  const MemoryUse full = cache->metadata();
  require(cache.usage().cached == num_blocks && cache->counters().blocks_evicted == 0,
          "the pool is full of cached blocks");
  for (const std::int32_t p : {0, prompts / 2, prompts - 1}) {
    write_prompt(p, tokens);
    require(take(cache->probe(tokens), "probe") == kRunBlocks * kBlockSize - 1,
            "every prompt is found");
  }
  cache.check();
  const auto per_block = [&](std::int64_t bytes) {
    return static_cast<double>(bytes) / num_blocks;
  };
  session.report({.name = "metadata.empty",
                  .facts = {{"blocks", std::int64_t{num_blocks}}},
                  .unit = "B",
                  .note = "in use per block after create()"},
                 {{per_block(created.used)}, {}});
  session.report({.name = "metadata.reserved",
                  .facts = {{"blocks", std::int64_t{num_blocks}}},
                  .unit = "B",
                  .note = "reserved per block; pages that were never touched cost nothing"},
                 {{per_block(created.reserved)}, {}});
  session.report(
      {.name = "metadata.block",
       .facts = {{"blocks", std::int64_t{num_blocks}}, {"run_blocks", std::int64_t{kRunBlocks}}},
       .unit = "B",
       .promise = Promise{80, 48},
       .note = "in use per block of a pool full of cached blocks, less 64 B of tokens: "
               "pool, tree and eviction order"},
      {{per_block(full.used) - kTokenBytes}, {}});
}

}  // namespace

Family metadata_family() {
  return {{"metadata.empty", "metadata.reserved", "metadata.block"}, measure_metadata};
}

}  // namespace kvfolio::bench
