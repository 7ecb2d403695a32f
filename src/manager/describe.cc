// SPDX-License-Identifier: Apache-2.0
//
// Figures for people.

#include "manager/impl.h"

namespace kvfolio {

using text::concat;

std::int64_t KVCacheManager::Impl::bytes_total() const noexcept {
  std::int64_t bytes = 0;
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    bytes += group(g).bytes_per_block * blocks_.pool(g).num_usable();
  }
  return bytes;
}

std::int64_t KVCacheManager::Impl::bytes_used() const noexcept {
  std::int64_t bytes = 0;
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    bytes += group(g).bytes_per_block * blocks_.pool(g).num_held();
  }
  return bytes;
}

MemoryUse KVCacheManager::metadata() const noexcept {
  KVFOLIO_STOP_IF_MOVED("metadata");
  const Impl& m = *impl_;
  MemoryUse sum = m.blocks_.memory();
  sum += m.tree_->memory();
  sum += m.rows_.memory();
  sum += m.tables_.memory();
  sum += m.steps_.memory();
  sum += m.unnamed_.memory();
  sum += m.drafts_.memory();
  sum += m.announcements_.memory();
  sum += m.promises_.memory();
  sum += m.pins_.memory();
  sum += m.transfers_.memory();
  sum += m.caller_ids_.memory();
  sum += m.victims_.memory();
  sum += m.ended_.memory();
  sum += MemoryUse::whole(m.scratch_.bytes());
  return sum;
}

std::string KVCacheManager::describe() const {
  KVFOLIO_STOP_IF_MOVED("describe");
  const Impl& m = *impl_;
  const auto share = [](std::uint64_t part, std::uint64_t whole) {
    const std::uint64_t permille = whole == 0 ? 0 : (part * 1000 + whole / 2) / whole;
    return concat("(", permille / 10, ".", permille % 10, " %)\n");
  };
  const Counters& counters = m.counters_;
  std::string text =
      concat("policy: ", std::string_view(to_string(m.options_.victim_policy)), "\n");
  for (std::int32_t g = 0; g < m.num_groups(); ++g) {
    const BlockPool& pool = m.blocks_.pool(g);
    const GroupSpec& spec = m.group(g).spec;
    const std::string of = m.num_groups() == 1 ? "" : concat("group ", g, " ");
    text += concat(of, "attention: ", std::string_view(to_string(spec.kind)));
    if (m.windowed(g)) text += concat(", window ", spec.window, ", sinks ", spec.num_sinks);
    if (spec.rewind > 0) text += concat(", rewind ", spec.rewind);
    text += concat("\n", of, "block size: ", m.block_size(g), " tokens\n");
    text += concat(of, "blocks used: ", pool.num_held(), "/", pool.num_usable(), " ",
                   share(static_cast<std::uint64_t>(pool.num_held()),
                         static_cast<std::uint64_t>(pool.num_usable())));
    text += concat(of, "blocks cached: ", pool.num_cached(), ", retiring: ", pool.num_retiring(),
                   ", free: ", pool.num_free(), "\n");
    if (pool.has_null_block()) text += concat(of, "null block: 0, held and not counted\n");
  }
  text += concat("bytes used: ", m.bytes_used(), "/", m.bytes_total(), "\n");
  text += concat("sequences: ", m.rows_.open().size(), "\n");
  text += concat("pins: ", m.pins_.num_open(), "\n");
  text += concat("loads: ", m.transfers_.num_loads(), ", holds: ", m.transfers_.num_holds(), "\n");
  text += concat("tokens found: ", counters.tokens_reused, "/", counters.tokens_looked_up, " ",
                 share(counters.tokens_reused, counters.tokens_looked_up));
  text += concat("copies: ", counters.block_copies, " blocks\n");
  text += concat("allocations: ", counters.blocks_allocated, " blocks\n");
  text += concat("frees: ", counters.blocks_freed, " blocks\n");
  text += concat("evictions: ", counters.blocks_evicted, " blocks\n");
  text += concat("preemptions: ", counters.sequences_preempted, " sequences\n");
  text += concat("forks: ", counters.forks, "\n");
  return text;
}

std::int64_t KVCacheManager::bytes_total() const noexcept {
  KVFOLIO_STOP_IF_MOVED("bytes_total");
  return impl_->bytes_total();
}

std::int64_t KVCacheManager::bytes_used() const noexcept {
  KVFOLIO_STOP_IF_MOVED("bytes_used");
  return impl_->bytes_used();
}

}  // namespace kvfolio
