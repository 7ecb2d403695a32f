// SPDX-License-Identifier: Apache-2.0
//
// An equal of another tree. Runs keep their indices and generations, spans their offsets, so the
// places of the other tree's users are good here. The logs of both are empty.

#include "prefix/tree.h"

namespace kvfolio {

// A member that is not named here does not compile.
void PrefixTree::Impl::copy_from(const Impl& other) noexcept {
  const auto& [log, groups, unit, units, num_runs, num_tokens, num_groups, max_runs, max_root_keys,
               max_root_key_bytes, num_roots, root_key_bytes, hash_seed, runs, run_groups,
               runs_touched, free_runs, tokens, entries, keys, extents, extents_touched,
               free_extents, table] = other;
  KVFOLIO_CHECK(log_.empty() && log.empty());
  KVFOLIO_CHECK(unit_ == unit && num_groups_ == num_groups && max_runs_ == max_runs &&
                max_root_keys_ == max_root_keys && max_root_key_bytes_ == max_root_key_bytes &&
                hash_seed_ == hash_seed);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto& [spec, size, where, num_idle] = groups[g];
    groups_[g].where.copy_from(where);
    groups_[g].num_idle = num_idle;
  }
  num_runs_ = num_runs;
  num_tokens_ = num_tokens;
  num_roots_ = num_roots;
  root_key_bytes_ = root_key_bytes;
  runs_.copy_from(runs, runs_touched);
  run_groups_.copy_from(run_groups, std::int64_t{runs_touched} * num_groups);
  runs_touched_ = runs_touched;
  free_runs_ = free_runs;
  tokens_->copy_from(*tokens);
  entries_->copy_from(*entries);
  keys_->copy_from(*keys);
  extents_.copy_from(extents, extents_touched);
  extents_touched_ = extents_touched;
  free_extents_ = free_extents;
  table_.copy_from(table);
}

}  // namespace kvfolio
