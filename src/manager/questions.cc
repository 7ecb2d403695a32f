// SPDX-License-Identifier: Apache-2.0
//
// Questions about sequences. They change nothing.

#include <algorithm>

#include "manager/impl.h"

namespace kvfolio {

using text::concat;

Result<SequenceInfo> KVCacheManager::Impl::info(SequenceId id) const {
  std::int32_t row = 0;
  KVFOLIO_RETURN_IF_ERROR(find(id, row));
  const Sequence& s = rows_[row];
  const SequenceDetails& d = details(row);
  SequenceInfo info;
  info.length = s.length;
  info.accepted_length = s.accepted;
  info.published_length = s.publishes ? s.place.position : 0;
  info.trim_sinks = d.trim_sinks;
  info.trim_first_kept = d.trim_first_kept;
  info.in_open_step = s.step_entry >= 0;
  if (s.has_caller_id) info.caller_id = d.caller_id;
  info.max_tokens = d.max_tokens;
  info.priority = d.priority;
  info.last_use = victims_.last_use(row);
  info.use_count = victims_.use_count(row);
  return info;
}

std::int32_t KVCacheManager::Impl::sequences(std::span<SequenceId> out) const noexcept {
  const std::size_t count = std::min(out.size(), rows_.open().size());
  for (std::size_t i = 0; i < count; ++i) out[i] = id_of(rows_[rows_.open()[i]]);
  return static_cast<std::int32_t>(count);
}

Result<std::span<const std::int32_t>> KVCacheManager::Impl::block_table(SequenceId id,
                                                                        GroupId group_id) const {
  std::int32_t row = 0;
  KVFOLIO_RETURN_IF_ERROR(find(id, row));
  KVFOLIO_RETURN_IF_ERROR(check_group("block_table", group_id));
  return table(row, group_id.value()).blocks(arena());
}

Status KVCacheManager::Impl::slot_mapping(SequenceId id, GroupId group_id, std::int32_t begin,
                                          std::span<std::int32_t> out) const {
  std::int32_t row = 0;
  KVFOLIO_RETURN_IF_ERROR(find(id, row));
  KVFOLIO_RETURN_IF_ERROR(check_group("slot_mapping", group_id));
  const std::int32_t length = rows_[row].length;
  if (begin < 0 || begin > length || out.size() > static_cast<std::size_t>(length - begin)) {
    return {ErrorCode::kInvalidArgument,
            concat("slot_mapping of ", out.size(), " tokens from position ", begin,
                   ", but the sequence has ", length)};
  }
  const std::int32_t g = group_id.value();
  const std::int32_t size = block_size(g);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::int32_t position = begin + static_cast<std::int32_t>(i);
    const BlockId block = table(row, g).at(arena(), position / size);
    out[i] = block.valid() ? block.value() * size + position % size : -1;
  }
  return {};
}

}  // namespace kvfolio
