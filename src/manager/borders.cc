// SPDX-License-Identifier: Apache-2.0
#include "manager/borders.h"

#include <algorithm>
#include <utility>

namespace kvfolio {

void Borders::begin() noexcept {
  for (const Group& group : groups_) any_ |= group.windowed();
}

// Counts the entry at one logical block of the path into the border of one sequence more, or less.
void Borders::count(std::int32_t row, std::int32_t g, std::int32_t logical, int by) noexcept {
  const BlockId block = tree_->entry_at(rows_[row].place, GroupId(g), logical);
  if (block.valid()) blocks_.count_border(g, block, by);
}

void Borders::set(std::int32_t row, std::int32_t g, Border wanted) noexcept {
  Border& now = tables_.border(row, g);
  if (wanted.first == now.first && wanted.end == now.end) return;
  for (std::int32_t logical = now.first; logical < now.end; ++logical) {
    if (logical < wanted.first || logical >= wanted.end) count(row, g, logical, -1);
  }
  for (std::int32_t logical = wanted.first; logical < wanted.end; ++logical) {
    if (logical < now.first || logical >= now.end) count(row, g, logical, 1);
  }
  now = wanted;
}

// The end of the last block of the largest size that is on the tree.
std::int32_t Borders::last_full_border(const Sequence& s) const noexcept {
  std::int32_t largest = 1;
  for (const Group& group : groups_) largest = std::max(largest, group.spec.block_size);
  return s.place.position / largest * largest;
}

void Borders::move_to_place(std::int32_t row) noexcept {
  const Sequence& s = rows_[row];
  if (!s.publishes || s.life != Sequence::Life::kOpen) return;
  const std::int32_t hit = last_full_border(s);
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    if (!group(g).windowed()) continue;
    const GroupRule& rule = group(g).rule;
    Border wanted{
        std::max(group(g).block_of(rule.first_read(hit)), group(g).blocks_for(rule.num_sinks())),
        std::min({tables_.window_begin(row, g), group(g).blocks_for(hit),
                  group(g).block_of(s.place.position)})};
    if (wanted.first >= wanted.end) wanted = {0, 0};
    set(row, g, wanted);
  }
}

void Borders::drop(std::int32_t row) noexcept {
  for (std::int32_t g = 0; g < num_groups() && any_; ++g) set(row, g, {0, 0});
}

void Borders::take_back(std::int32_t row) noexcept {
  const Sequence& s = rows_[row];
  if (!s.publishes || !any_) return;
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    const Border passed = tables_.border(row, g);
    set(row, g, {0, 0});
    for (std::int32_t logical = passed.first; logical < passed.end; ++logical) {
      if (tables_.of(row, g).at(tables_.arena(), logical).valid()) continue;
      const BlockId block = tree_->entry_at(s.place, GroupId(g), logical);
      if (!block.valid()) continue;
      if (blocks_.is_held(g, block)) {
        // It leaves with its other holders. To hold it for a moment would only make it look as if
        // this sequence's steps had read it until now.
        blocks_.touch(g, block, s.used, row);
        continue;
      }
      const std::int32_t alone[] = {block.value()};
      blocks_.hold(g, alone);
      tables_.of(row, g).set(tables_.arena(), logical, block);
    }
  }
}

// ---- ends ----

void Borders::note_prompt(std::int32_t row, std::int32_t size) noexcept {
  if (!any_ || size == 0) return;
  const std::int32_t end = size - 1;
  rows_.details(row).prompt_end = end;
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    if (!group(g).windowed()) continue;
    const auto found = std::as_const(tables_).of(row, g).blocks(std::as_const(tables_).arena());
    const auto of = [&](std::int32_t first, std::int32_t last) {
      last = std::min(last, static_cast<std::int32_t>(found.size()));
      if (first >= last) return;
      tree_->note_read(GroupId(g), found.subspan(static_cast<std::size_t>(first),
                                                 static_cast<std::size_t>(last - first)));
    };
    const GroupRule& rule = group(g).rule;
    of(0, group(g).blocks_for(std::min(rule.num_sinks(), end)));
    of(group(g).block_of(rule.first_read(end)), group(g).blocks_for(end));
  }
  blocks_.follow_tree();
}

void Borders::note_prompt_on_path(std::int32_t row, std::int32_t published_before) noexcept {
  if (!any_) return;
  const std::int32_t end = rows_.details(row).prompt_end;
  // Once the place is behind the block that the end lies inside, all that the end reads is noted.
  if (published_before >= end + kMaxBlockSize) return;
  tree_->note_end(rows_[row].place, end);
  blocks_.follow_tree();
}

void Borders::note_last(std::int32_t row) noexcept {
  const Sequence& s = rows_[row];
  if (!any_ || !s.publishes) return;
  tree_->note_end(s.place, last_full_border(s));
  blocks_.follow_tree();
}

void Borders::note_pinned(std::int32_t g, std::span<const std::int32_t> blocks) noexcept {
  if (!any_) return;
  tree_->note_read(GroupId(g), blocks);
  blocks_.follow_tree();
}

}  // namespace kvfolio
