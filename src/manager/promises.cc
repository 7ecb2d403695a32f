// SPDX-License-Identifier: Apache-2.0
#include "manager/promises.h"

#include <algorithm>
#include <string>

#include "base/mutants.h"
#include "base/text.h"

namespace kvfolio {

using text::concat;

// ---- blocks of a table ----

BlockId Promises::acquire_own(std::int32_t row, std::int32_t g, std::int32_t logical,
                              std::int32_t& from_ready) noexcept {
  BlockId block;
  if (from_ready > 0) {
    --from_ready;
    block = reservations_.take_for_step(row, g);
  } else {
    block = blocks_.acquire(g);
  }
  reservations_.own(row, g, block, logical);
  return block;
}

// Blocks that lay ready must not become free: a step in flight may still know them.
void Promises::give_back(std::int32_t row, std::int32_t g, BlockId block,
                         std::int32_t& from_pool) noexcept {
  if (!has(row)) {
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

// A later step may write it: in order, that comes after what steps in flight read of it; else no
// step in flight did, or it would not have been reused.
void Promises::set_aside_reused(std::int32_t row, std::int32_t g, BlockId block) noexcept {
  KVFOLIO_DCHECK(has(row));
  reservations_.disown(g, block);
  blocks_.renew(g, block);
  reservations_.put(row, g, block);
}

// Lets more blocks lie ready, as far as there is room.
void Promises::top_up(std::int32_t row, std::int32_t g, std::int32_t needed) noexcept {
  while (reservations_.num_ready(row, g) < needed && blocks_.has_room(g, 1)) {
    reservations_.put(row, g, blocks_.acquire_or_evict(g));
  }
  blocks_.note_peak();
}

void Promises::let_ready_go(std::int32_t row, std::int32_t g, std::int32_t needed) noexcept {
  while (reservations_.num_ready(row, g) > needed) {
    blocks_.let_go(g, reservations_.take(row, g), true);
  }
}

void Promises::let_go(std::int32_t row, std::int32_t g, std::int32_t first, std::int32_t end,
                      std::int32_t length) noexcept {
  if (has(row)) {
    set_aside(row, g, first, end, length);
    return;
  }
  const bool used = rows_[row].used;
  if (first >= end || (mutant(Mutant::kHitReferencedLate) && !used)) return;
  blocks_.let_go_each(
      g,
      table(row, g).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(end - first)),
      used, row);
}

// Own blocks that the promise needs stay with the sequence; those in which something can be found
// only if there is no other room.
void Promises::set_aside(std::int32_t row, std::int32_t g, std::int32_t first, std::int32_t end,
                         std::int32_t length) noexcept {
  const auto blocks = table(row, g);
  const auto block_at = [&](std::int32_t logical) {
    return BlockId(blocks[static_cast<std::size_t>(logical)]);
  };
  PromiseState after = needs_.state(row, g, length);
  for (std::int32_t logical = first; logical < end; ++logical) {
    const BlockId block = block_at(logical);
    after.own -= block.valid() && reservations_.owner(g, block) == row ? 1 : 0;
  }
  const std::int32_t needed = needs_.ready_for(g, after);
  std::int32_t lack = needed - reservations_.num_ready(row, g);
  for (std::int32_t logical = end - 1; logical >= first; --logical) {
    const BlockId block = block_at(logical);
    if (!block.valid()) continue;
    const bool is_own = reservations_.owner(g, block) == row && blocks_.has_rested(g, block);
    reservations_.disown(g, block);
    const bool may_stay = !blocks_.is_findable(g, block) || !blocks_.has_room(g, lack);
    if (lack > 0 && is_own && may_stay) {
      blocks_.renew(g, block);  // nothing in it counts any more
      reservations_.put(row, g, block);
      --lack;
    } else {
      blocks_.let_go(g, block, rows_[row].used, row);
    }
  }
  top_up(row, g, needed);
  if (reservations_.num_ready(row, g) < needed) reservations_.note_lack(row);
}

// ---- promising ----

Promises::Offer Promises::offer(std::int32_t row, std::int64_t num_tokens,
                                std::int64_t most_per_step) const noexcept {
  Offer offer{num_tokens, most_per_step, {}, {}, {}};
  Room::Needs needs;
  const std::int32_t length = rows_[row].length;
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    PromiseState at{num_tokens, most_per_step, length, reservations_.num_own(row, g),
                    needs_.owns_tail(row, g, length)};
    const std::int32_t logical = groups_[static_cast<std::size_t>(g)].block_of(length);
    const BlockId tail =
        at.owns_tail ? BlockId() : BlockId(table(row, g)[static_cast<std::size_t>(logical)]);
    for_each_to_own(row, g, [&](BlockId block, std::int32_t) {
      ++at.own;
      at.owns_tail |= block == tail;
    });
    const std::int32_t ready = needs_.ready_for(g, at);
    offer.ready[static_cast<std::size_t>(g)] = ready;
    needs.blocks[static_cast<std::size_t>(g)] =
        std::max(0, ready - reservations_.num_ready(row, g));
    const auto held = table(row, g);
    at.own = static_cast<std::int32_t>(
        std::count_if(held.begin(), held.end(), [](std::int32_t b) { return b >= 0; }));
    at.owns_tail = true;
    offer.spared[static_cast<std::size_t>(g)] = ready - needs_.ready_for(g, at);
  }
  offer.room = blocks_.plan(needs);
  return offer;
}

void Promises::promise(std::int32_t row, const Offer& offer) noexcept {
  reservations_.promise(row, rows_[row].length, offer.num_tokens, offer.most_per_step);
  rows_[row].has_promise = true;
  blocks_.take(offer.room);
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    for_each_to_own(row, g, [&](BlockId block, std::int32_t logical) {
      reservations_.own(row, g, block, logical);
    });
    const std::int32_t ready = offer.ready[static_cast<std::size_t>(g)];
    let_ready_go(row, g, ready);
    top_up(row, g, ready);
  }
}

void Promises::end(std::int32_t row) noexcept {
  if (!has(row)) return;
  rows_[row].has_promise = false;
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    for (const std::int32_t block : table(row, g)) {
      if (block >= 0 && reservations_.owner(g, BlockId(block)) == row) {
        reservations_.disown(g, BlockId(block));
      }
    }
    if (!mutant(Mutant::kCloseKeepsReservation)) let_ready_go(row, g, 0);
  }
  reservations_.end(row);
}

// ---- a step ----

void Promises::undo(std::int32_t row) noexcept {
  if (!has(row)) return;
  reservations_.undo(row);
  blocks_.note_peak();
}

// A tail that gave way to a copy stays own until the commit, since undo() brings it back.
void Promises::settle_promise(const Step& step, std::int32_t entry) noexcept {
  const std::int32_t row = step.entries[entry].row;
  for (std::int32_t g = 0; g < num_groups() && step.num_displaced > 0; ++g) {
    const std::int32_t source = step.change(entry, g).source;
    if (source >= 0) reservations_.disown(g, BlockId(source));
  }
  reservations_.settle(row);
  if (is_spent(row)) end(row);
}

// A sequence that was cut back needs fewer for the same tokens, and one at rest needs none for the
// copies that a draft or an undo could have made necessary. Not while a step in flight may still
// read behind the place where it was cut back: then the next append has to copy the tail, though it
// is own.
void Promises::return_ready(std::int32_t row) noexcept {
  if (is_spent(row)) return end(row);
  if (rows_[row].undecided() > 0) return;
  if (order_ == Order::kUnordered && steps_.num_in_flight() > 0) return;
  for (std::int32_t g = 0; g < num_groups(); ++g) let_ready_go(row, g, needs_.ready_for(row, g));
}

// ---- sharing ----

void Promises::count_revived(std::int32_t g, BlockId block, Revived& revived) const noexcept {
  const BlockPool& pool = blocks_.pool(g);
  const BlockState state = pool.state(block);
  ++revived.blocks;
  revived.alone += blocks_.would_be_alone(g, block) ? 1 : 0;
  revived.cached += state == BlockState::kCached ? 1 : 0;
  revived.retiring += state == BlockState::kRetiring || pool.held_by_steps(block) ? 1 : 0;
  revived.cost += cost_of_sharing(g, block);
  revived.last = block;
}

Room::Plan Promises::plan_sharing(
    std::span<const std::span<const std::int32_t>> tables) const noexcept {
  Room::Needs needs;
  for (std::int32_t g = 0; g < num_groups() && any(); ++g) {
    std::int32_t cost = 0;
    std::int32_t cached = 0;
    for (const std::int32_t b : tables[static_cast<std::size_t>(g)]) {
      if (b < 0) continue;
      cost += cost_of_sharing(g, BlockId(b));
      cached += blocks_.pool(g).state(BlockId(b)) == BlockState::kCached ? 1 : 0;
    }
    needs.blocks[static_cast<std::size_t>(g)] = cost > 0 ? cost + cached : 0;
  }
  return blocks_.plan(needs);
}

Room::Plan Promises::plan_sharing(std::int32_t row) const noexcept {
  std::array<std::span<const std::int32_t>, kMaxGroups> tables;
  for (std::int32_t g = 0; g < num_groups(); ++g)
    tables[static_cast<std::size_t>(g)] = table(row, g);
  return plan_sharing(tables);
}

void Promises::pay_for_sharing(std::int32_t g, std::span<const std::int32_t> blocks) noexcept {
  for (const std::int32_t b : blocks) {
    const std::int32_t cost = cost_of_sharing(g, BlockId(b));
    if (b < 0) continue;
    const std::int32_t owner = reservations_.owner(g, BlockId(b));
    reservations_.disown(g, BlockId(b));
    if (cost == 0) continue;
    const std::int32_t ready = reservations_.num_ready(owner, g);
    top_up(owner, g, ready + cost);
    const bool paid = reservations_.num_ready(owner, g) == ready + cost;
    KVFOLIO_DCHECK(paid);
    if (!paid) reservations_.note_lack(owner);  // an engine that runs goes on
  }
}

void Promises::rob(const Room::Needs& needs) noexcept {
  for (std::int32_t row = 0; row < rows_.size(); ++row) {
    for (std::int32_t g = 0; g < num_groups() && has(row); ++g) {
      while (!blocks_.has_room(g, needs.blocks[static_cast<std::size_t>(g)]) &&
             reservations_.num_ready(row, g) > 0) {
        blocks_.let_go(g, reservations_.take(row, g), true);
      }
    }
  }
}

// ---- check ----

// What lies ready has one holder and nothing in it; what a sequence owns is in its table alone.
Status Promises::check_row(std::int32_t row, std::int32_t g) const {
  const auto broken = [](const std::string& what) {
    return Status(ErrorCode::kFailedPrecondition, "promises: " + what);
  };
  const BlockPool& pool = blocks_.pool(g);
  Status answer;
  reservations_.for_each_ready(row, g, [&](BlockId block) {
    const bool is_bare = pool.refs(block) == 1 && pool.writer(block) == BlockPool::kNobody &&
                         !blocks_.is_findable(g, block) &&
                         reservations_.owner(g, block) == Reservations::kNobody;
    if (!is_bare && answer.ok()) {
      answer = broken(concat("group ", g, " block ", block.value(), " lies ready for sequence ",
                             row, " and is in use"));
    }
  });
  KVFOLIO_RETURN_IF_ERROR(answer);
  std::int32_t own = 0;
  std::int32_t logical = -1;
  for (const std::int32_t b : table(row, g)) {
    ++logical;
    if (b < 0 || reservations_.owner(g, BlockId(b)) != row) continue;
    ++own;
    if (pool.refs(BlockId(b)) == 1 && reservations_.logical(g, BlockId(b)) == logical) continue;
    return broken(concat("group ", g, " block ", b, " is sequence ", row, "'s own, number ",
                         reservations_.logical(g, BlockId(b)), ", and has ", pool.refs(BlockId(b)),
                         " references and stands as number ", logical));
  }
  const std::int32_t ready = reservations_.num_ready(row, g);
  if (rows_[row].step_entry >= 0) {
    const std::int32_t source = steps_.open().change(rows_[row].step_entry, g).source;
    own += source >= 0 && reservations_.owner(g, BlockId(source)) == row ? 1 : 0;
  } else if (!reservations_.lacks(row) && ready < needs_.ready_for(row, g)) {
    return broken(concat("group ", g, ": ", ready, " blocks lie ready for sequence ", row,
                         ", its promise needs ", needs_.ready_for(row, g), " for ",
                         reservations_.tokens(row), " tokens behind ", rows_[row].length, ", ",
                         reservations_.num_own(row, g), " blocks are own"));
  }
  if (own == reservations_.num_own(row, g)) return {};
  return broken(concat("group ", g, ": sequence ", row, " owns ", reservations_.num_own(row, g),
                       " blocks, counted ", own));
}

Status Promises::check() const {
  KVFOLIO_RETURN_IF_ERROR(reservations_.check());
  for (std::int32_t row = 0; row < rows_.size(); ++row) {
    for (std::int32_t g = 0; g < num_groups() && has(row); ++g) {
      KVFOLIO_RETURN_IF_ERROR(check_row(row, g));
    }
  }
  return {};
}

}  // namespace kvfolio
