// SPDX-License-Identifier: Apache-2.0
#include "manager/append_rules.h"

#include <algorithm>

#include "base/mutants.h"

namespace kvfolio {

bool AppendRules::may_write_in_place(std::int32_t g, BlockId block, std::int32_t position,
                                     bool is_writer, bool is_alone) const noexcept {
  const BlockPool& pool = blocks_.pool(g);
  const Group& of = group(g);
  const std::int32_t offset = of.size.offset_of(position);
  const bool partial = pool.valid(block) < of.spec.block_size;
  // Its tokens may be findable at another position than it has here: adopt() puts it anywhere.
  const auto is_findable_beyond = [&] {
    const std::int32_t end = tree_->findable_end(GroupId(g), block);
    return end > 0 && end - of.block_of(end - 1) * of.spec.block_size > offset;
  };
  if (mutant(Mutant::kNoCopyOnSharedWrite)) return true;
  if (mutant(Mutant::kPartialTailSharedInPlace) && partial) return true;
  if (pool.valid(block) == offset && is_writer) return true;
  return is_alone && pool.valid(block) >= offset &&
         (!is_findable_beyond() || mutant(Mutant::kAppendAfterTruncateOverwritesFindable));
}

Demand AppendRules::demand(std::int32_t row, std::int32_t g, std::int32_t write_begin,
                           std::int32_t end) const noexcept {
  Demand needs;
  if (end == write_begin) return needs;
  const Group& of = group(g);
  const std::int32_t have = of.blocks_for(write_begin);
  needs.blocks = of.blocks_for(end) - have;
  const BlockTable& blocks = tables_.of(row, g);
  if (of.size.offset_of(write_begin) != 0) {
    const BlockId tail = blocks.at(tables_.arena(), have - 1);
    const std::int32_t writer = blocks_.pool(g).writer(tail);
    const bool is_writer = writer == row || writer == BlockPool::kNobody;
    const bool is_alone = blocks_.is_alone(g, tail);
    needs.new_tail = !may_write_in_place(g, tail, write_begin, is_writer, is_alone);
    needs.copies = needs.new_tail ? 1 : 0;
    needs.blocks += needs.copies;
    needs.can_reuse = needs.new_tail && is_alone;
  } else if (blocks.size() > have) {
    // The prompt was found whole, but another token comes in place of its last one.
    needs.can_reuse = blocks_.is_alone(g, blocks.at(tables_.arena(), have));
    needs.copies = 1;
  }
  if (mutant(Mutant::kHitTakesRoom)) needs.can_reuse = false;
  if (needs.can_reuse && promised_reuse(row, g)) needs.do_without_a_copy();
  return needs;
}

Demand AppendRules::demand_in_room(std::int32_t row, std::int32_t g, std::int32_t write_begin,
                                   std::int32_t end) const noexcept {
  Demand needs = demand(row, g, write_begin, end);
  needs.ready = from_ready(row, g, needs);
  const bool is_short = !blocks_.has_room(g, needs.blocks - needs.ready);
  if (needs.can_reuse && !needs.reuse && is_short) needs.do_without_a_copy();
  return needs;
}

Demand AppendRules::demand_behind_hit(std::int32_t g, BlockId tail, std::int32_t write_begin,
                                      std::int32_t end) const noexcept {
  Demand needs;
  if (end == write_begin) return needs;
  const Group& of = group(g);
  needs.blocks = of.blocks_for(end) - of.blocks_for(write_begin);
  if (of.size.offset_of(write_begin) == 0) return needs;
  const BlockPool& pool = blocks_.pool(g);
  const bool is_writer = pool.writer(tail) == BlockPool::kNobody;
  const bool is_alone = blocks_.would_be_alone(g, tail);
  needs.new_tail = !may_write_in_place(g, tail, write_begin, is_writer, is_alone);
  needs.copies = needs.new_tail ? 1 : 0;
  needs.blocks += needs.copies;
  needs.can_reuse = needs.new_tail && is_alone && !mutant(Mutant::kHitTakesRoom);
  return needs;
}

std::int32_t AppendRules::from_ready(std::int32_t row, std::int32_t g,
                                     const Demand& needs) const noexcept {
  if (!promises_.has(row)) return 0;
  const std::int32_t required = needs.blocks - (needs.can_reuse && !needs.reuse ? 1 : 0);
  return std::min(required, promises_.num_ready(row, g));
}

bool AppendRules::writes_below_valid(std::int32_t row, std::int32_t g, std::int32_t write_begin,
                                     const Demand& needs) const noexcept {
  const Group& of = group(g);
  const std::int32_t offset = of.size.offset_of(write_begin);
  if (offset == 0 || needs.new_tail) return false;
  const BlockId tail = tables_.of(row, g).at(tables_.arena(), of.block_of(write_begin));
  return blocks_.pool(g).valid(tail) > offset;
}

}  // namespace kvfolio
