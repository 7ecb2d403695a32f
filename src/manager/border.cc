// SPDX-License-Identifier: Apache-2.0
//
// The border of a sequence: the blocks that its windows have passed, but that a hit at its last
// full-block border (of the largest block size) reads. They are let go like all that windows pass;
// yet while the sequence is open and publishes they leave after all other cached blocks of their
// group, so that a lost tail costs less than a block of work. When it closes they enter the order
// of eviction with its other blocks.
//
// A border is a range of logical blocks for each window group. It names entries of the sequence's
// path, so several sequences may count the same block into theirs.

#include <algorithm>

#include "manager/impl.h"

namespace kvfolio {

// Counts the entry at one logical block of the path into the border of one sequence more, or less.
void KVCacheManager::Impl::count_border(std::int32_t row, std::int32_t g, std::int32_t logical,
                                        int by) noexcept {
  const BlockId block = tree_->entry_at(rows_[row].place, GroupId(g), logical);
  if (!block.valid()) return;
  room_.count_border(g, block, by);
  if (pool(g).state(block) == BlockState::kCached) {
    on_candidate(GroupId(g), block, Candidate::kLeaf);
  }
}

void KVCacheManager::Impl::set_border(std::int32_t row, std::int32_t g, Border wanted) noexcept {
  Border& now = tables_.border(row, g);
  if (wanted.first == now.first && wanted.end == now.end) return;
  for (std::int32_t logical = now.first; logical < now.end; ++logical) {
    if (logical < wanted.first || logical >= wanted.end) count_border(row, g, logical, -1);
  }
  for (std::int32_t logical = wanted.first; logical < wanted.end; ++logical) {
    if (logical < now.first || logical >= now.end) count_border(row, g, logical, 1);
  }
  now = wanted;
}

// The windows or the place have moved.
void KVCacheManager::Impl::move_border(std::int32_t row) noexcept {
  const Sequence& s = rows_[row];
  if (!s.publishes || s.life != Life::kOpen) return;
  std::int32_t largest = 1;
  for (const Group& group : groups_) largest = std::max(largest, group.spec.block_size);
  const std::int32_t hit = s.place.position / largest * largest;
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    if (!windowed(g)) continue;
    const GroupRule& rule = group(g).rule;
    Border wanted{std::max(block_of(g, rule.first_read(hit)), blocks_for(g, rule.num_sinks())),
                  std::min({tables_.window_begin(row, g), blocks_for(g, hit),
                            block_of(g, s.place.position)})};
    if (wanted.first >= wanted.end) wanted = {0, 0};
    set_border(row, g, wanted);
  }
}

// Before the sequence leaves its place, or climbs.
void KVCacheManager::Impl::drop_border(std::int32_t row) noexcept {
  for (std::int32_t g = 0; g < num_groups() && has_windows_; ++g) set_border(row, g, {0, 0});
}

// The sequence holds its border again: what closes it lets go of all of its blocks, tails first.
void KVCacheManager::Impl::take_border_back(std::int32_t row) noexcept {
  const Sequence& s = rows_[row];
  if (!s.publishes || !has_windows_) return;
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    const Border passed = tables_.border(row, g);
    set_border(row, g, {0, 0});
    for (std::int32_t logical = passed.first; logical < passed.end; ++logical) {
      if (table(row, g).at(arena(), logical).valid()) continue;
      const BlockId block = tree_->entry_at(s.place, GroupId(g), logical);
      if (!block.valid()) continue;
      const std::int32_t alone[] = {block.value()};
      hold_table(g, alone);
      table(row, g).set(arena(), logical, block);
    }
  }
}

}  // namespace kvfolio
