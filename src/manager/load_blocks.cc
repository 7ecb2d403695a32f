// SPDX-License-Identifier: Apache-2.0
#include "manager/load_blocks.h"

#include <algorithm>
#include <utility>

#include "base/joint_hit.h"
#include "base/mutants.h"

namespace kvfolio {

bool LoadBlocks::is_read_at(std::int32_t end, std::int32_t g, std::int32_t logical) const noexcept {
  const std::int32_t size = group(g).spec.block_size;
  if (mutant(Mutant::kLoadsWindowsShort)) end += size;
  return group(g).rule.reads(end, logical * size, (logical + 1) * size);
}

// ---- planning ----

bool LoadBlocks::lay_out(std::int32_t row, std::span<const std::int32_t> prompt,
                         std::span<const MediaSpan> media, LoadPlan& plan) noexcept {
  const Sequence& s = rows_[row];
  ArenaSpan& tokens = transfers_.load(plan.load).tokens;
  if (s.publishes && !arena().reserve(tokens, plan.end - plan.begin, 0)) return false;
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    const Group& of = group(g);
    BlockTable& hits = plan.hits[static_cast<std::size_t>(g)];
    const std::int32_t first_hit = of.block_of(s.length);
    const std::int32_t num_hits = plan.begin > s.length ? of.blocks_for(plan.begin) - first_hit : 0;
    if (!hits.reserve(arena(), num_hits)) return false;
    hits.grow(arena(), num_hits);
    if (num_hits > 0) {
      tree_->fill_table(plan.hit, GroupId(g), hits.blocks(arena()), false, first_hit);
    }

    BlockTable& blocks = transfers_.table(plan.load, g);
    const std::int32_t first = of.block_of(plan.begin);
    const std::int32_t count = plan.end > plan.begin ? of.blocks_for(plan.end) - first : 0;
    if (!blocks.reserve(arena(), count)) return false;
    blocks.grow(arena(), count);
    if (s.publishes && count > 0) {
      tree_->whole_blocks(tree_->root_of(s.place), prompt, media, GroupId(g), first,
                          blocks.blocks(arena()));
    }
    for (std::int32_t i = 0; i < count; ++i) {
      if (!is_read_at(plan.end, g, first + i)) {
        blocks.set(arena(), i, BlockId());
      } else if (!blocks.at(arena(), i).valid()) {
        ++plan.fresh.blocks[static_cast<std::size_t>(g)];
      }
    }
  }
  return true;
}

Revived LoadBlocks::revived_by(const LoadPlan& plan, std::int32_t g) const noexcept {
  Revived revived;
  const BlockTable& hits = plan.hits[static_cast<std::size_t>(g)];
  const auto add = [&](std::int32_t b) {
    if (b >= 0) promises_.count_revived(g, BlockId(b), revived);
  };
  const SpanArena& in = tables_.arena();
  for (const std::int32_t b : hits.blocks(in)) add(b);
  for (const std::int32_t b : std::as_const(transfers_).table(plan.load, g).blocks(in)) {
    // The hit may end inside the first block.
    if (b >= 0 && (hits.size() == 0 || hits.at(in, hits.size() - 1).value() != b)) add(b);
  }
  return revived;
}

void LoadBlocks::drop(LoadPlan& plan) noexcept {
  for (BlockTable& hits : plan.hits) hits.release(arena());
  transfers_.release_spans(plan.load, arena());
}

// ---- taking and giving back ----

void LoadBlocks::hold(const LoadPlan& plan) noexcept {
  promises_.share([&](const auto& visit) {
    const SpanArena& in = tables_.arena();
    for (std::int32_t g = 0; g < num_groups(); ++g) {
      visit(g, plan.hits[static_cast<std::size_t>(g)].blocks(in));
      visit(g, std::as_const(transfers_).table(plan.load, g).blocks(in));
    }
  });
}

void LoadBlocks::take(const LoadPlan& plan) noexcept {
  blocks_.take(blocks_.plan(plan.fresh));
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    BlockTable& blocks = transfers_.table(plan.load, g);
    const std::int32_t first = group(g).block_of(plan.begin);
    for (std::int32_t i = 0; i < blocks.size(); ++i) {
      if (blocks.at(arena(), i).valid() || !is_read_at(plan.end, g, first + i)) continue;
      const BlockId block = blocks_.acquire(g);
      blocks_.set_written(g, block, {0, BlockPool::kNobody, 0});  // by no step
      blocks.set(arena(), i, block);
    }
    transfers_.set_waiting(
        plan.load, g, static_cast<std::int32_t>(plan.fresh.blocks[static_cast<std::size_t>(g)]));
  }
}

void LoadBlocks::let_go(std::int32_t load) noexcept {
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    BlockTable& blocks = transfers_.table(load, g);
    for (std::int32_t i = blocks.size() - 1; i >= 0; --i) {
      const BlockId block = blocks.at(arena(), i);
      if (!block.valid()) continue;
      if (blocks_.pool(g).valid(block) == 0) {
        blocks_.free_unwritten(g, block);  // no step has seen it
      } else {
        blocks_.let_go(g, block, false);
      }
      blocks.set(arena(), i, BlockId());
    }
    transfers_.set_waiting(load, g, 0);
  }
}

// ---- how far ----

std::int32_t LoadBlocks::stands_to(std::int32_t number, std::int32_t end,
                                   std::span<const MediaSpan> media) const noexcept {
  const Transfers::Load& load = transfers_.load(number);
  const auto reach = [&](std::int32_t g, std::int32_t logical) {
    const std::int32_t size = group(g).spec.block_size;
    const std::int32_t first = group(g).block_of(load.begin);
    const BlockId block = logical < first
                              ? tables_.of(load.row, g).at(arena(), logical)
                              : transfers_.table(number, g).at(arena(), logical - first);
    return block.valid() ? std::min((logical + 1) * size, end) : logical * size;
  };
  const std::int32_t stands = joint_hit(
      end, load.begin, media, num_groups(),
      [&](std::int32_t g) -> const GroupRule& { return group(g).rule; },
      [&](std::int32_t g) { return group(g).spec.block_size; }, reach);
  return std::max(stands, load.begin);
}

void LoadBlocks::mark_present(std::int32_t row, std::span<const std::int32_t> prompt,
                              std::span<const MediaSpan> media, std::int32_t begin, std::int32_t g,
                              std::span<std::uint8_t> has) const noexcept {
  constexpr std::size_t kPiece = 256;
  std::array<std::int32_t, kPiece> blocks;
  const Sequence& s = rows_[row];
  const BlockTable& own = std::as_const(tables_).of(row, g);
  const std::int32_t first = group(g).block_of(begin);
  for (std::size_t i = 0; i < has.size(); ++i) {
    const auto logical = static_cast<std::int32_t>(i);
    const bool is_own = logical < first && logical < own.size() && own.at(arena(), logical).valid();
    has[i] = static_cast<std::uint8_t>((has[i] != 0 ? kInTier : 0) | (is_own ? kPresent : 0));
  }
  for (std::size_t at = 0; at < has.size() && s.publishes; at += kPiece) {
    const auto piece = std::span(blocks).first(std::min(kPiece, has.size() - at));
    tree_->whole_blocks(tree_->root_of(s.place), prompt, media, GroupId(g),
                        static_cast<std::int32_t>(at), piece);
    for (std::size_t i = 0; i < piece.size(); ++i) {
      if (piece[i] >= 0) has[at + i] |= kPresent;
    }
  }
}

}  // namespace kvfolio
