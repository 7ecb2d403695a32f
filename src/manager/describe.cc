// SPDX-License-Identifier: Apache-2.0
//
// Figures for people.

#include "manager/impl.h"

namespace kvfolio {

using text::concat;

std::int64_t KVCacheManager::Impl::bytes_total() const noexcept {
  std::int64_t bytes = 0;
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    bytes += group(g).bytes_per_block * pool(g).num_blocks();
  }
  return bytes;
}

std::int64_t KVCacheManager::Impl::bytes_used() const noexcept {
  std::int64_t bytes = 0;
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    bytes += group(g).bytes_per_block * pool(g).num_held();
  }
  return bytes;
}

MemoryUse KVCacheManager::metadata() const noexcept {
  const Impl& m = *impl_;
  MemoryUse sum = m.room_.memory();
  sum += m.tree_->memory();
  sum += m.rows_.memory();
  sum += m.tables_.memory();
  sum += m.steps_.memory();
  sum += m.unnamed_.memory();
  sum += m.pins_.memory();
  sum += m.caller_ids_.memory();
  sum += m.victims_.memory();
  sum += MemoryUse::whole(m.scratch_.bytes());
  return sum;
}

std::string KVCacheManager::describe() const {
  const Impl& m = *impl_;
  std::string text = "policy: lru\n";
  for (std::int32_t g = 0; g < m.num_groups(); ++g) {
    const BlockPool& pool = m.pool(g);
    const std::string of = m.num_groups() == 1 ? "" : concat("group ", g, " ");
    const std::int64_t permille =
        (std::int64_t{pool.num_held()} * 1000 + pool.num_blocks() / 2) / pool.num_blocks();
    text += concat(of, "block size: ", m.block_size(g), " tokens\n");
    text += concat(of, "blocks used: ", pool.num_held(), "/", pool.num_blocks(), " (",
                   permille / 10, ".", permille % 10, " %)\n");
  }
  text += concat("bytes used: ", m.bytes_used(), "/", m.bytes_total(), "\n");
  text += concat("sequences: ", m.rows_.open().size(), "\n");
  text += concat("allocations: ", m.counters_.blocks_allocated, " blocks\n");
  text += concat("frees: ", m.counters_.blocks_freed, " blocks\n");
  text += concat("evictions: ", m.counters_.blocks_evicted, " blocks\n");
  text += concat("preemptions: ", m.counters_.sequences_preempted, " sequences\n");
  text += concat("forks: ", m.counters_.forks, "\n");
  return text;
}

std::int64_t KVCacheManager::bytes_total() const noexcept { return impl_->bytes_total(); }

std::int64_t KVCacheManager::bytes_used() const noexcept { return impl_->bytes_used(); }

}  // namespace kvfolio
