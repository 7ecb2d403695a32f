// SPDX-License-Identifier: Apache-2.0
//
// Stores: a block is copied in the same call that learns of it, so nothing has to be held: no other
// call of the manager runs meanwhile.

#include "offload/offload_impl.h"

#include "kvfolio/checked_copy.h"

namespace kvfolio {

RecordInfo Offload::Impl::record_of(GroupId group, std::int32_t end, const TierKey& key) const {
  return {.key = key,
          .layout = identity_.layout_namespace(group),
          .payload_bytes = record_bytes(group) - kRecordHeaderBytes,
          .begin = end - block_size(group),
          .end = end,
          .epoch = 0,  // the key has it
          .writer = 0};
}

void Offload::Impl::store_findable() {
  more_findable_ = true;
  while (budget_ > 0) {
    FindableBlock block;
    if (manager_.take_findable(std::span(&block, 1)) == 0) {
      more_findable_ = false;
      return;
    }
    if (block.end % block_size(block.group) != 0) continue;  // a tail, which its next turn extends
    if (store_block(block)) budget_ -= record_bytes(block.group);
  }
}

// Returns whether bytes were copied.
bool Offload::Impl::store_block(const FindableBlock& block) {
  const auto name = names_.name(block.group, block.block);
  if (!name) return false;
  const TierKey key = identity_.key(block.group, name->tokens);
  if (const ArenaPin there = arena_->find(key)) {
    if (there.uses() == 1) store_to_tiers(key, true);
    return false;
  }
  if (arriving_.count(key) > 0) return false;
  const std::int64_t bytes = record_bytes(block.group);
  const auto slot = arena_->reserve(key, bytes);
  if (!slot) {
    ++counters_.stores_dropped;
    return false;
  }
  const std::span<std::byte> record = arena_->fill(*slot);
  const std::int32_t number = block.block.value();
  const Status read =
      manager_.storage()->read_blocks(block.group, std::span(&number, 1),
                                      record.subspan(static_cast<std::size_t>(kRecordHeaderBytes)));
  if (!read.ok()) {
    ++counters_.stores_dropped;
    arena_->abandon(*slot);
    return false;
  }
  RecordInfo info = record_of(block.group, name->end, key);
  info.owner = root_owner(name->root);
  seal_record(info, record);
  arena_->seal(*slot);
  if (arena_->publish(*slot)) ++counters_.stores;
  store_to_tiers(key, false);
  return true;
}

}  // namespace kvfolio
