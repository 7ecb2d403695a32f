// SPDX-License-Identifier: Apache-2.0
//
// An equal of another tree. Runs keep their indices and generations, spans their offsets, so the
// places of the other tree's users are good here. The logs of both are empty.

#include "prefix/tree.h"

namespace kvfolio {

// A member that is not named here does not compile.
void PrefixTree::Impl::copy_from(const Impl& other) noexcept {
  const auto& [groups, num_groups, has_windows, unit, units, hash_seed, log, keys, media, runs,
               children] = other;
  KVFOLIO_CHECK(log_.empty() && log.empty());
  KVFOLIO_CHECK(unit_ == unit && num_groups_ == num_groups && hash_seed_ == hash_seed);
  static_cast<void>(units);        // follows from the unit
  static_cast<void>(has_windows);  // follows from the groups
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto& [spec, rule, size, where, read, num_idle] = groups[g];
    groups_[g].where.copy_from(where);
    groups_[g].read.copy_from(read);
    groups_[g].num_idle = num_idle;
  }
  keys_.copy_from(keys);
  media_.copy_from(media);
  runs_.copy_from(runs);
  children_.copy_from(children);
}

}  // namespace kvfolio
