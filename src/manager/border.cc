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
//
// Ends (prefix_tree.h) are where the next turn of a chat, or the same prompt again, goes on. Blocks
// of window groups that no end reads leave first. In a long prompt these are all but one window,
// and they must not flush what a hit needs. The manager notes these ends:
//   - position n - 1 of each prompt of n tokens that was given to open(), which is as far as a
//     prompt finds itself. Blocks that open() found are noted then, the others when they are
//     published;
//   - the last full-block border of a sequence, when it closes;
//   - where a pinned prefix ends, when it is pinned.
// The tree notes where paths part. A sequence that was cut back before position n - 1 has no such
// end any more.

#include <algorithm>

#include "manager/impl.h"

namespace kvfolio {

// Counts the entry at one logical block of the path into the border of one sequence more, or less.
void KVCacheManager::Impl::count_border(std::int32_t row, std::int32_t g, std::int32_t logical,
                                        int by) noexcept {
  const BlockId block = tree_->entry_at(rows_[row].place, GroupId(g), logical);
  if (block.valid()) blocks_.count_border(g, block, by);
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

// The end of the last block of the largest size that is on the tree.
std::int32_t KVCacheManager::Impl::last_full_border(const Sequence& s) const noexcept {
  std::int32_t largest = 1;
  for (const Group& group : groups_) largest = std::max(largest, group.spec.block_size);
  return s.place.position / largest * largest;
}

// The windows or the place have moved.
void KVCacheManager::Impl::move_border(std::int32_t row) noexcept {
  const Sequence& s = rows_[row];
  if (!s.publishes || s.life != Life::kOpen) return;
  const std::int32_t hit = last_full_border(s);
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
      blocks_.hold(g, alone);
      table(row, g).set(arena(), logical, block);
    }
  }
}

// ---- ends ----

// The prompt has `size` tokens; what was found of it is in the sequence's tables.
void KVCacheManager::Impl::note_prompt(std::int32_t row, std::int32_t size) noexcept {
  if (size == 0) return;
  const std::int32_t end = size - 1;
  details(row).prompt_end = end;
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    if (!windowed(g)) continue;
    const auto found = std::as_const(*this).table(row, g).blocks(std::as_const(*this).arena());
    const auto of = [&](std::int32_t first, std::int32_t last) {
      last = std::min(last, static_cast<std::int32_t>(found.size()));
      if (first >= last) return;
      tree_->note_read(GroupId(g), found.subspan(static_cast<std::size_t>(first),
                                                 static_cast<std::size_t>(last - first)));
    };
    const GroupRule& rule = group(g).rule;
    of(0, blocks_for(g, std::min(rule.num_sinks(), end)));
    of(block_of(g, rule.first_read(end)), blocks_for(g, end));
  }
  blocks_.follow_tree();
}

// The sequence's place was at `published_before` and has moved.
void KVCacheManager::Impl::note_prompt_on_path(std::int32_t row,
                                               std::int32_t published_before) noexcept {
  const std::int32_t end = details(row).prompt_end;
  // Once the place is behind the block that the end lies inside, all that the end reads is noted.
  if (published_before >= end + kMaxBlockSize) return;
  tree_->note_end(rows_[row].place, end);
  blocks_.follow_tree();
}

void KVCacheManager::Impl::note_last_border(std::int32_t row) noexcept {
  const Sequence& s = rows_[row];
  if (!has_windows_ || !s.publishes) return;
  tree_->note_end(s.place, last_full_border(s));
  blocks_.follow_tree();
}

void KVCacheManager::Impl::note_pin(std::int32_t pin) noexcept {
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    tree_->note_read(GroupId(g), pins_.table(pin, g).blocks(std::as_const(*this).arena()));
  }
  blocks_.follow_tree();
}

}  // namespace kvfolio
