// SPDX-License-Identifier: Apache-2.0
//
// The callers' own ids of sequences.

#include "manager/impl.h"

namespace kvfolio {

using text::concat;

Status KVCacheManager::Impl::check_caller_id(std::string_view what,
                                             const std::optional<std::uint64_t>& id) const {
  if (!id || caller_ids_.find(*id) == CallerIds::kNoRow) return {};
  return {ErrorCode::kInvalidArgument,
          concat(what, ": an open sequence has caller_id ", *id, " already")};
}

Result<SequenceId> KVCacheManager::Impl::find_caller_id(std::uint64_t id) const {
  const std::int32_t found = caller_ids_.find(id);
  if (found != CallerIds::kNoRow) return id_of(rows_[found]);
  return Status(ErrorCode::kNotFound, concat("no open sequence has caller_id ", id));
}

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
  return impl_->find_caller_id(caller_id);
}

}  // namespace kvfolio
