// SPDX-License-Identifier: Apache-2.0
//
// reserve(): appends that are never short of blocks. PromiseNeeds says how many blocks have to lie
// ready, and Reservations keeps them; this file lets them come and go.
//
// Each append uses as many blocks as both bounds fall by; so what lies ready stays enough. When
// another sequence or a pin comes to hold an own block, that block will not come back: another one
// takes its place at once, or the call that shares it fails, or is a miss.

#include <algorithm>

#include "manager/impl.h"
#include "manager/op_writer.h"

namespace kvfolio {

using text::concat;

// ---- blocks come and go ----

// Blocks that an append takes from those that lie ready. A copy that it could do without comes from
// the others.
std::int32_t KVCacheManager::Impl::from_ready(std::int32_t row, std::int32_t g,
                                              const Demand& needs) const noexcept {
  if (!rows_[row].has_promise) return 0;
  const std::int32_t required = needs.blocks - (needs.can_reuse && !needs.reuse ? 1 : 0);
  return std::min(required, reservations_.num_ready(row, g));
}

// A block for a row with a promise. `from_ready`: how many of the next blocks lie ready.
BlockId KVCacheManager::Impl::acquire_for(std::int32_t row, std::int32_t g,
                                          std::int32_t& from_ready) noexcept {
  BlockId block;
  if (from_ready > 0) {
    --from_ready;
    block = reservations_.take_for_step(row, g);
  } else {
    block = blocks_.acquire(g);
  }
  reservations_.own(row, g, block);
  return block;
}

// For undo(): a block that the open step took and wrote nothing to; those that it took last come
// first. Blocks that lay ready must not become free: a step in flight may still know them.
void KVCacheManager::Impl::give_back(std::int32_t row, std::int32_t g, BlockId block,
                                     std::int32_t& from_pool) noexcept {
  if (!rows_[row].has_promise) {
    blocks_.free_unwritten(g, block);
    return;
  }
  reservations_.disown(g, block);
  if (from_pool > 0) {
    --from_pool;
    blocks_.free_unwritten(g, block);
  } else {
    blocks_.renew(g, block);
    reservations_.untake(row, g, block);
  }
}

// Lets more blocks lie ready, as far as there is room.
void KVCacheManager::Impl::top_up(std::int32_t row, std::int32_t g, std::int32_t needed) noexcept {
  while (reservations_.num_ready(row, g) < needed && blocks_.has_room(g, 1)) {
    if (blocks_.pool(g).num_free() == 0) blocks_.evict(g);
    reservations_.put(row, g, blocks_.acquire(g));
  }
  blocks_.note_peak();
}

void KVCacheManager::Impl::release_entries(std::int32_t row, std::int32_t g, std::int32_t first,
                                           std::int32_t end, std::int32_t length) noexcept {
  const Sequence& s = rows_[row];
  if (s.has_promise) {
    set_entries_aside(row, g, first, end, length);
    return;
  }
  if (first >= end || (mutant(Mutant::kHitReferencedLate) && !s.used)) return;
  const auto blocks = std::as_const(*this).table(row, g).blocks(std::as_const(*this).arena());
  blocks_.let_go_each(
      g, blocks.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(end - first)),
      s.used, row);
}

// The same of a sequence with a promise, whose length is `length` then. Own blocks that
// the promise needs stay with the sequence; those in which something can be found only if there is
// no other room.
void KVCacheManager::Impl::set_entries_aside(std::int32_t row, std::int32_t g, std::int32_t first,
                                             std::int32_t end, std::int32_t length) noexcept {
  const Sequence& s = rows_[row];
  const auto block_at = [&](std::int32_t logical) { return table(row, g).at(arena(), logical); };
  PromiseState after = promise_needs_.state(row, g, length);
  for (std::int32_t logical = first; logical < end; ++logical) {
    const BlockId block = block_at(logical);
    after.own -= block.valid() && reservations_.owner(g, block) == row ? 1 : 0;
  }
  const std::int32_t needed = promise_needs_.ready_for(g, after);
  std::int32_t lack = needed - reservations_.num_ready(row, g);
  for (std::int32_t logical = end - 1; logical >= first; --logical) {
    const BlockId block = block_at(logical);
    if (!block.valid()) continue;
    const bool is_own = reservations_.owner(g, block) == row && blocks_.has_rested(g, block);
    reservations_.disown(g, block);
    const bool findable = tree_->is_findable(GroupId(g), block);
    if (lack > 0 && is_own && (!findable || !blocks_.has_room(g, lack))) {
      blocks_.renew(g, block);  // nothing in it counts any more
      reservations_.put(row, g, block);
      --lack;
    } else {
      blocks_.let_go(g, block, s.used, row);
    }
  }
  top_up(row, g, needed);
  if (reservations_.num_ready(row, g) < needed) reservations_.note_lack(row);
}

void KVCacheManager::Impl::end_promise(std::int32_t row) noexcept {
  Sequence& s = rows_[row];
  if (!s.has_promise) return;
  s.has_promise = false;
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    for (const std::int32_t block : std::as_const(*this).table(row, g).blocks(arena())) {
      if (block >= 0 && reservations_.owner(g, BlockId(block)) == row) {
        reservations_.disown(g, BlockId(block));
      }
    }
    if (mutant(Mutant::kCloseKeepsReservation)) continue;
    while (reservations_.num_ready(row, g) > 0) blocks_.let_go(g, reservations_.take(row, g), true);
  }
  reservations_.end(row);
}

// The append of a row in the open step was undone: its blocks are back already.
void KVCacheManager::Impl::undo_promise(std::int32_t row) noexcept {
  reservations_.undo(row);
  blocks_.note_peak();
}

// The step of an entry whose row has a promise was committed. A tail that gave way to a copy stays
// own until then, since undo() brings it back.
void KVCacheManager::Impl::settle_promise(const Step& step, std::int32_t entry) noexcept {
  const std::int32_t row = step.entries[entry].row;
  for (std::int32_t g = 0; g < num_groups() && step.num_displaced > 0; ++g) {
    const std::int32_t source = step.change(entry, g).source;
    if (source >= 0) reservations_.disown(g, BlockId(source));
  }
  reservations_.settle(row);
  if (reservations_.tokens(row) == 0) end_promise(row);
}

// Gives back the blocks that lie ready and that the promise does not need any more: a sequence that
// was cut back needs fewer for the same tokens, and one at rest needs none for the copies that a
// draft or an undo could have made necessary. Not while a step in flight may still read behind the
// place where it was cut back: then the next append has to copy the tail, though it is own.
void KVCacheManager::Impl::return_surplus(std::int32_t row) noexcept {
  const Sequence& s = rows_[row];
  if (!s.has_promise || s.draft() > 0) return;
  if (options_.order == Order::kUnordered && steps_.num_in_flight() > 0) return;
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    const std::int32_t needed = promise_needs_.ready_for(row, g);
    while (reservations_.num_ready(row, g) > needed)
      blocks_.let_go(g, reservations_.take(row, g), true);
  }
}

// ---- sharing ----

// The blocks have one more holder now. Requires: there was room for cost_of_sharing(), which was
// counted before the call, as admit() does: so all of it is taken.
void KVCacheManager::Impl::note_sharing(std::int32_t g,
                                        std::span<const std::int32_t> blocks) noexcept {
  if (reservations_.num_rows() == 0) return;
  for (const std::int32_t b : blocks) {
    const std::int32_t cost = promise_needs_.cost_of_sharing(g, BlockId(b));
    if (b < 0) continue;
    const std::int32_t owner = reservations_.owner(g, BlockId(b));
    reservations_.disown(g, BlockId(b));
    if (cost == 0) continue;
    const std::int32_t ready = reservations_.num_ready(owner, g);
    top_up(owner, g, ready + cost);
    KVFOLIO_DCHECK(reservations_.num_ready(owner, g) == ready + cost);
  }
}

Status KVCacheManager::Impl::check_sharing(
    std::span<const std::span<const std::int32_t>> tables) const {
  if (reservations_.num_rows() == 0) return {};
  Room::Needs needs;
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    std::int32_t cost = 0;
    std::int32_t cached = 0;
    for (const std::int32_t b : tables[static_cast<std::size_t>(g)]) {
      if (b < 0) continue;
      cost += promise_needs_.cost_of_sharing(g, BlockId(b));
      cached += blocks_.pool(g).state(BlockId(b)) == BlockState::kCached ? 1 : 0;
    }
    needs.blocks[static_cast<std::size_t>(g)] = cost > 0 ? cost + cached : 0;
  }
  const Room::Plan plan = blocks_.plan(needs);
  return plan.fits() ? Status() : shortage(plan);
}

// The same of the table of one sequence, for a fork.
Status KVCacheManager::Impl::check_sharing_table(std::int32_t row) const {
  if (reservations_.num_rows() == 0) return {};
  std::array<std::span<const std::int32_t>, kMaxGroups> tables;
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    tables[static_cast<std::size_t>(g)] = table(row, g).blocks(arena());
  }
  return check_sharing(tables);
}

// The hit of a prompt of `size` tokens leaves room for what it costs the owners of its blocks and
// for the rest of the prompt. Caching never takes room: if not, it is a miss.
bool KVCacheManager::Impl::fits_promises(const PrefixMatch& match,
                                         std::int32_t size) const noexcept {
  for (std::int32_t g = 0; g < num_groups() && reservations_.num_rows() > 0; ++g) {
    const Revived held = revived_by(match, g);
    if (held.cost == 0) continue;
    const std::int32_t rest = blocks_for(g, size) - blocks_for(g, match.held_tokens()) + 1;
    if (!blocks_.has_room(g, held.cost + held.cached + rest)) return false;
  }
  return true;
}

// For a mutant: takes what lies ready for others.
void KVCacheManager::Impl::rob_reservations(const Room::Needs& needs) noexcept {
  for (std::int32_t row = 0; row < num_rows(); ++row) {
    for (std::int32_t g = 0; g < num_groups() && rows_[row].has_promise; ++g) {
      while (!blocks_.has_room(g, needs.blocks[static_cast<std::size_t>(g)]) &&
             reservations_.num_ready(row, g) > 0) {
        blocks_.let_go(g, reservations_.take(row, g), true);
      }
    }
  }
}

// ---- the call ----

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
    m.end_promise(row);
    return {};
  }
  const std::int64_t most = options.most_per_step == 0 ? num_tokens : options.most_per_step;
  return m.promise(row, num_tokens, most);
}

Status KVCacheManager::Impl::promise(std::int32_t row, std::int64_t num_tokens,
                                     std::int64_t most_per_step) {
  Sequence& s = rows_[row];
  Room::Needs needs;
  std::array<std::int32_t, kMaxGroups> needed;
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    PromiseState at{num_tokens, most_per_step, s.length, reservations_.num_own(row, g),
                    promise_needs_.owns_tail(row, g, s.length)};
    const BlockId tail =
        at.owns_tail ? BlockId() : table(row, g).at(arena(), block_of(g, s.length));
    for_each_to_own(row, g, [&](BlockId block) {
      ++at.own;
      at.owns_tail |= block == tail;
    });
    needed[static_cast<std::size_t>(g)] = promise_needs_.ready_for(g, at);
    needs.blocks[static_cast<std::size_t>(g)] =
        std::max(0, needed[static_cast<std::size_t>(g)] - reservations_.num_ready(row, g));
  }
  const Room::Plan plan = blocks_.plan(needs);
  if (!plan.fits()) return shortage(plan);

  // Nothing fails from here on.
  reservations_.promise(row, num_tokens, most_per_step);
  s.has_promise = true;
  blocks_.take(plan);
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    for_each_to_own(row, g, [&](BlockId block) { reservations_.own(row, g, block); });
    const std::int32_t wanted = needed[static_cast<std::size_t>(g)];
    while (reservations_.num_ready(row, g) > wanted) {
      blocks_.let_go(g, reservations_.take(row, g), true);
    }
    top_up(row, g, wanted);
  }
  return {};
}

}  // namespace kvfolio
