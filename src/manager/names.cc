// SPDX-License-Identifier: Apache-2.0
//
// The callers' own ids: a hash table of slots with linear probing, never more than half full.

#include "base/hash.h"
#include "manager/impl.h"

namespace kvfolio {

using text::concat;

std::size_t KVCacheManager::Impl::caller_id_home(std::uint64_t id) const noexcept {
  return mix_bits(id ^ options_.hash_seed) & (caller_ids_.size() - 1);
}

// The cell that holds the id, or the empty one where it would go.
std::size_t KVCacheManager::Impl::caller_id_cell(std::uint64_t id) const noexcept {
  std::size_t cell = caller_id_home(id);
  while (caller_ids_[cell] != 0 && sequences_[caller_ids_[cell] - 1].caller_id != id) {
    cell = (cell + 1) & (caller_ids_.size() - 1);
  }
  return cell;
}

Status KVCacheManager::Impl::check_caller_id(std::string_view what,
                                             const std::optional<std::uint64_t>& id) const {
  if (!id || caller_ids_[caller_id_cell(*id)] == 0) return {};
  return {ErrorCode::kInvalidArgument,
          concat(what, ": an open sequence has caller_id ", *id, " already")};
}

Result<SequenceId> KVCacheManager::Impl::find_caller_id(std::uint64_t id) const {
  const std::int32_t found = caller_ids_[caller_id_cell(id)];
  if (found != 0) return id_of(sequences_[found - 1]);
  return Status(ErrorCode::kNotFound, concat("no open sequence has caller_id ", id));
}

void KVCacheManager::Impl::keep_caller_id(std::int32_t slot,
                                          const std::optional<std::uint64_t>& id) noexcept {
  Sequence& s = sequences_[slot];
  s.has_caller_id = id.has_value();
  s.caller_id = id.value_or(0);
  if (id) caller_ids_[caller_id_cell(*id)] = slot + 1;
}

void KVCacheManager::Impl::forget_caller_id(std::int32_t slot) noexcept {
  Sequence& s = sequences_[slot];
  if (!s.has_caller_id) return;
  s.has_caller_id = false;
  const std::size_t mask = caller_ids_.size() - 1;
  std::size_t hole = caller_id_cell(s.caller_id);
  caller_ids_[hole] = 0;
  // Whoever was pushed beyond the hole moves up, so that no probe stops short.
  for (std::size_t cell = (hole + 1) & mask; caller_ids_[cell] != 0; cell = (cell + 1) & mask) {
    const std::size_t home = caller_id_home(sequences_[caller_ids_[cell] - 1].caller_id);
    if (((cell - home) & mask) < ((cell - hole) & mask)) continue;
    caller_ids_[hole] = caller_ids_[cell];
    caller_ids_[cell] = 0;
    hole = cell;
  }
}

}  // namespace kvfolio
