// SPDX-License-Identifier: Apache-2.0
//
// Questions about sequences. They change nothing.

#include <algorithm>

#include "manager/impl.h"

namespace kvfolio {

using text::concat;

Result<SequenceInfo> KVCacheManager::info(SequenceId id) const {
  KVFOLIO_RETURN_IF_MOVED("info");
  const Impl& m = *impl_;
  std::int32_t row = 0;
  KVFOLIO_RETURN_IF_ERROR(m.find(id, row));
  const Sequence& s = m.rows_[row];
  const SequenceDetails& d = m.details(row);
  SequenceInfo info;
  info.length = s.length;
  info.accepted_length = s.accepted;
  info.published_length = s.publishes ? s.place.position : 0;
  info.trim_sinks = d.trim_sinks;
  info.trim_first_kept = d.trim_first_kept;
  info.in_open_step = s.step_entry >= 0;
  info.num_unnamed = m.unnamed_.num_waiting(row);
  info.reserved_tokens = m.promises_.tokens(row);
  if (s.has_caller_id) info.caller_id = d.caller_id;
  info.max_tokens = d.max_tokens;
  info.priority = d.priority;
  info.last_use = m.victims_.last_use(row);
  info.use_count = m.victims_.use_count(row);
  if (s.has_load) info.load = m.transfers_.load_id(d.load);
  info.rewinds = d.rewinds;
  info.rewind_from = m.rewind_from(row);
  return info;
}

std::int32_t KVCacheManager::sequences(std::span<SequenceId> out) const noexcept {
  KVFOLIO_STOP_IF_MOVED("sequences");
  const Impl& m = *impl_;
  const std::size_t count = std::min(out.size(), m.rows_.open().size());
  for (std::size_t i = 0; i < count; ++i) out[i] = m.rows_.id_of(m.rows_[m.rows_.open()[i]]);
  return static_cast<std::int32_t>(count);
}

Result<std::span<const std::int32_t>> KVCacheManager::block_table(SequenceId id,
                                                                  GroupId group_id) const {
  KVFOLIO_RETURN_IF_MOVED("block_table");
  const Impl& m = *impl_;
  std::int32_t row = 0;
  KVFOLIO_RETURN_IF_ERROR(m.find(id, row));
  KVFOLIO_RETURN_IF_ERROR(m.check_group("block_table", group_id));
  return m.table(row, group_id.value()).blocks(m.arena());
}

Status KVCacheManager::slot_mapping(SequenceId id, GroupId group_id, std::int32_t begin,
                                    std::span<std::int32_t> out) const {
  KVFOLIO_RETURN_IF_MOVED("slot_mapping");
  const Impl& m = *impl_;
  std::int32_t row = 0;
  KVFOLIO_RETURN_IF_ERROR(m.find(id, row));
  KVFOLIO_RETURN_IF_ERROR(m.check_group("slot_mapping", group_id));
  const std::int32_t length = m.rows_[row].length;
  if (begin < 0 || begin > length || out.size() > static_cast<std::size_t>(length - begin)) {
    return {ErrorCode::kInvalidArgument,
            concat("slot_mapping of ", out.size(), " tokens from position ", begin, ", but ",
                   to_string(id), " has ", length)};
  }
  const std::int32_t g = group_id.value();
  const std::int32_t size = m.block_size(g);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::int32_t position = begin + static_cast<std::int32_t>(i);
    const BlockId block = m.table(row, g).at(m.arena(), position / size);
    out[i] = block.valid() ? block.value() * size + position % size : -1;
  }
  return {};
}

std::int32_t KVCacheManager::num_steps() const noexcept {
  KVFOLIO_STOP_IF_MOVED("num_steps");
  return impl_->steps_.num_in_flight() + (impl_->steps_.is_open() ? 1 : 0);
}
std::int32_t KVCacheManager::num_sequences() const noexcept {
  KVFOLIO_STOP_IF_MOVED("num_sequences");
  return static_cast<std::int32_t>(impl_->rows_.open().size());
}

std::int32_t KVCacheManager::num_rows() const noexcept {
  KVFOLIO_STOP_IF_MOVED("num_rows");
  return impl_->rows_.size();
}

Result<std::int32_t> KVCacheManager::ref_count(GroupId group, BlockId block) const {
  KVFOLIO_RETURN_IF_MOVED("ref_count");
  KVFOLIO_RETURN_IF_ERROR(impl_->check_block("ref_count", group, block));
  return impl_->blocks_.pool(group.value()).refs(block);
}

Result<bool> KVCacheManager::is_findable(GroupId group, BlockId block) const {
  KVFOLIO_RETURN_IF_MOVED("is_findable");
  KVFOLIO_RETURN_IF_ERROR(impl_->check_block("is_findable", group, block));
  return impl_->tree_->is_findable(group, block);
}

Result<std::int32_t> KVCacheManager::findable_end(GroupId group, BlockId block) const {
  KVFOLIO_RETURN_IF_MOVED("findable_end");
  KVFOLIO_RETURN_IF_ERROR(impl_->check_block("findable_end", group, block));
  return impl_->tree_->findable_end(group, block);
}

Result<BlockState> KVCacheManager::block_state(GroupId group, BlockId block) const {
  KVFOLIO_RETURN_IF_MOVED("block_state");
  KVFOLIO_RETURN_IF_ERROR(impl_->check_block("block_state", group, block));
  const BlockPool& pool = impl_->blocks_.pool(group.value());
  return pool.held_by_steps(block) ? BlockState::kRetiring : pool.state(block);
}

Result<std::int32_t> KVCacheManager::widest(GroupId group) const {
  KVFOLIO_RETURN_IF_MOVED("widest");
  KVFOLIO_RETURN_IF_ERROR(impl_->check_group("widest", group));
  return impl_->blocks_for(group.value(), impl_->options_.max_sequence_tokens);
}

}  // namespace kvfolio
