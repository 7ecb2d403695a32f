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

Status KVCacheManager::Impl::check_chunks(std::string_view what, const ReserveOptions& chunks) {
  if (chunks.most_per_step >= 0) return {};
  return {ErrorCode::kInvalidArgument, concat(what, ": most_per_step is ", chunks.most_per_step,
                                              ", allowed: 0, which is all tokens, and above")};
}

// What a promise of the row would take; the errors of reserve(), but a Shortage. Requires: tokens.
Result<Promises::Offer> KVCacheManager::Impl::offer(std::int32_t row, std::string_view what,
                                                    std::int64_t num_tokens,
                                                    const ReserveOptions& chunks) const {
  KVFOLIO_RETURN_IF_ERROR(check_resting(row, what));
  KVFOLIO_RETURN_IF_ERROR(check_no_load(row, what));
  KVFOLIO_RETURN_IF_ERROR(check_growth(rows_[row], what, num_tokens));
  KVFOLIO_RETURN_IF_ERROR(check_chunks(what, chunks));
  // What is not decided is kept beside what a step appends.
  const bool keeps_drafts = rules_of_ >= kOpLogFormatDrafts;
  const std::int64_t all = num_tokens + (keeps_drafts ? rows_[row].undecided() : 0);
  const std::int64_t most = chunks.most_per_step == 0 ? all : chunks.most_per_step;
  Promises::Offer offer = promises_.offer(row, num_tokens, std::min(most, all));
  if (offer.room.fits()) return offer;
  const std::int32_t g = offer.room.short_of;
  return shortage(offer.room, num_kept(row, g), offer.spared[static_cast<std::size_t>(g)]);
}

Status KVCacheManager::reserve(SequenceId id, std::int64_t num_tokens,
                               const ReserveOptions& options) {
  KVFOLIO_RECORDED(kReserve, reserve(id, num_tokens, options), id, num_tokens, options);
  Impl& m = *impl_;
  std::int32_t row = 0;
  KVFOLIO_RETURN_IF_ERROR(m.find(id, row));
  const Result<Promises::Offer> offer = m.offer(row, "reserve", num_tokens, options);
  if (!offer) return offer.error();
  if (num_tokens == 0) {
    m.promises_.end(row);
  } else {
    m.promises_.promise(row, *offer);
  }
  return {};
}

}  // namespace kvfolio
