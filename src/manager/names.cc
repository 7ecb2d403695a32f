// SPDX-License-Identifier: Apache-2.0
//
// The callers' own ids of sequences.

#include "manager/impl.h"

namespace kvfolio {

using text::concat;

void KVCacheManager::Impl::keep_caller_id(std::int32_t row,
                                          const std::optional<std::uint64_t>& id) noexcept {
  Sequence& s = rows_[row];
  SequenceDetails& d = details(row);
  s.has_caller_id = id.has_value();
  d.caller_id = id.value_or(0);
  if (id) caller_ids_.insert(*id, row);
}

void KVCacheManager::Impl::forget_caller_id(std::int32_t row) noexcept {
  Sequence& s = rows_[row];
  SequenceDetails& d = details(row);
  if (!s.has_caller_id) return;
  s.has_caller_id = false;
  caller_ids_.erase(d.caller_id);
}

Result<SequenceId> KVCacheManager::find(std::uint64_t caller_id) const {
  KVFOLIO_RETURN_IF_MOVED("find");
  const std::int32_t row = impl_->caller_ids_.find(caller_id);
  if (row != CallerIds::kNoRow) return impl_->rows_.id_of(impl_->rows_[row]);
  return Status(ErrorCode::kNotFound, concat("no open sequence has caller_id ", caller_id));
}

}  // namespace kvfolio
