// SPDX-License-Identifier: Apache-2.0
//
// Figures for people.

#include "manager/impl.h"

namespace kvfolio {

using text::concat;

std::int64_t KVCacheManager::Impl::bytes_total() const noexcept {
  std::int64_t bytes = 0;
  for (const Group& g : groups_) bytes += g.bytes_per_block * g.pool.num_blocks();
  return bytes;
}

std::int64_t KVCacheManager::Impl::bytes_used() const noexcept {
  std::int64_t bytes = 0;
  for (const Group& g : groups_) bytes += g.bytes_per_block * g.pool.num_held();
  return bytes;
}

std::string KVCacheManager::Impl::describe() const {
  std::string text = "policy: lru\n";
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    const BlockPool& pool = group(g).pool;
    const std::string of = num_groups() == 1 ? "" : concat("group ", g, " ");
    const std::int64_t permille =
        (std::int64_t{pool.num_held()} * 1000 + pool.num_blocks() / 2) / pool.num_blocks();
    text += concat(of, "block size: ", block_size(g), " tokens\n");
    text += concat(of, "blocks used: ", pool.num_held(), "/", pool.num_blocks(), " (",
                   permille / 10, ".", permille % 10, " %)\n");
  }
  text += concat("bytes used: ", bytes_used(), "/", bytes_total(), "\n");
  text += concat("sequences: ", rows_.open().size(), "\n");
  text += concat("allocations: ", counters_.blocks_allocated, " blocks\n");
  text += concat("frees: ", counters_.blocks_freed, " blocks\n");
  text += concat("evictions: ", counters_.blocks_evicted, " blocks\n");
  text += concat("preemptions: ", counters_.sequences_preempted, " sequences\n");
  text += concat("forks: ", counters_.forks, "\n");
  return text;
}

}  // namespace kvfolio
