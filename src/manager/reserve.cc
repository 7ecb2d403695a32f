// SPDX-License-Identifier: Apache-2.0
//
// reserve(): appends that are never short of blocks (promises.h), and what the other calls ask of
// promises before they take or share a block.

#include <algorithm>

#include "manager/impl.h"
#include "manager/op_writer.h"

namespace kvfolio {

using text::concat;

Status KVCacheManager::Impl::check_sharing(
    std::span<const std::span<const std::int32_t>> tables) const {
  const Room::Plan plan = promises_.plan_sharing(tables);
  return plan.fits() ? Status() : shortage(plan);
}

// The same of the table of one sequence, for a fork.
Status KVCacheManager::Impl::check_sharing(std::int32_t row) const {
  const Room::Plan plan = promises_.plan_sharing(row);
  return plan.fits() ? Status() : shortage(plan);
}

// The hit of a prompt of `size` tokens leaves room for what it costs the owners of its blocks and
// for the rest of the prompt. Caching never takes room: if not, it is a miss.
bool KVCacheManager::Impl::fits_promises(const PrefixMatch& match,
                                         std::int32_t size) const noexcept {
  for (std::int32_t g = 0; g < num_groups() && promises_.any(); ++g) {
    const Revived held = revived_by(match, g);
    if (held.cost == 0) continue;
    const std::int32_t rest = blocks_for(g, size) - blocks_for(g, match.held_tokens()) + 1;
    if (!blocks_.has_room(g, held.cost + held.cached + rest)) return false;
  }
  return true;
}

Status KVCacheManager::reserve(SequenceId id, std::int64_t num_tokens,
                               const ReserveOptions& options) {
  KVFOLIO_RECORDED(kReserve, reserve(id, num_tokens, options), id, num_tokens, options);
  Impl& m = *impl_;
  std::int32_t row = 0;
  KVFOLIO_RETURN_IF_ERROR(m.find_resting(id, "reserve", row));
  KVFOLIO_RETURN_IF_ERROR(m.check_no_load(row, "reserve"));
  Sequence& s = m.rows_[row];
  KVFOLIO_RETURN_IF_ERROR(m.check_growth(s, "reserve", num_tokens));
  // Without tokens there is no step to bound.
  if (options.most_per_step < 0 || (options.most_per_step > num_tokens && num_tokens > 0)) {
    return {ErrorCode::kInvalidArgument,
            concat("reserve: most_per_step is ", options.most_per_step, ", allowed: 0 to ",
                   num_tokens, ", the tokens that are reserved")};
  }
  if (num_tokens == 0) {
    m.promises_.end(row);
    return {};
  }
  const std::int64_t most = options.most_per_step == 0 ? num_tokens : options.most_per_step;
  const Promises::Offer offer = m.promises_.offer(row, num_tokens, most);
  if (!offer.room.fits()) return m.shortage(offer.room);
  m.promises_.promise(row, offer);
  return {};
}

}  // namespace kvfolio
