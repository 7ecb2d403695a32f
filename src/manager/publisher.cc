// SPDX-License-Identifier: Apache-2.0
#include "manager/publisher.h"

#include <algorithm>
#include <cstring>

#include "kvfolio/prefetch.h"

namespace kvfolio {

void Publisher::find_lost(std::int32_t row) noexcept {
  Sequence& s = rows_[row];
  SequenceDetails& d = rows_.details(row);
  if (d.losses_seen == blocks_.losses()) return;
  d.losses_seen = blocks_.losses();
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    const auto blocks = tables_.of(row, g).blocks(arena());
    const std::int32_t num_whole =
        std::min(group(g).block_of(s.place.position), static_cast<std::int32_t>(blocks.size()));
    for (std::int32_t logical = 0; logical < num_whole; ++logical) {
      const BlockId block(blocks[static_cast<std::size_t>(logical)]);
      // Another sequence that holds it as well may have hung it again, with fewer tokens.
      const std::int32_t end = (logical + 1) * group(g).spec.block_size;
      if (!block.valid() || tree_->findable_end(GroupId(g), block) >= end) continue;
      d.own_from = std::min(d.own_from, logical * group(g).spec.block_size);
      d.own_to = s.place.position;
      break;
    }
  }
}

void Publisher::prefetch(std::int32_t row) const noexcept {
  const Sequence& s = rows_[row];
  tree_->prefetch_ends(s.place);
  prefetch_to_write(&rows_.details(row));  // where find_lost() looks first
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    const auto blocks = tables_.of(row, g).blocks(tables_.arena());
    const auto first = static_cast<std::size_t>(group(g).block_of(s.place.position));
    if (first < blocks.size()) tree_->prefetch(GroupId(g), blocks.subspan(first, 1));
  }
}

void Publisher::publish(std::int32_t row, bool tail) noexcept {
  Sequence& s = rows_[row];
  SequenceDetails& d = rows_.details(row);
  if (!s.publishes) return;
  tail = tail && !s.full_blocks_only;
  const std::int32_t unit = tree_->unit();
  const std::int32_t limit = end_now(s);
  const std::int32_t from = s.place.position;  // a multiple of the unit
  if (limit < (tail ? from : from + unit)) return;
  find_lost(row);
  if (limit == from && d.own_from >= from) {
    bool inside_a_block = false;  // of a group whose blocks are longer than a unit
    for (std::int32_t g = 0; g < num_groups(); ++g)
      inside_a_block |= group(g).size.offset_of(from) != 0;
    if (!inside_a_block) return;
  }
  const std::int32_t target = tail ? limit : limit / unit * unit;
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    offers_[static_cast<std::size_t>(g)] = tables_.of(row, g).blocks(arena());
  }
  std::int32_t* kept = arena().at(s.pending);
  const std::span<const std::int32_t> tokens(kept, static_cast<std::size_t>(target - from));
  // The tree is full: the coldest blocks go, but not all of them for the sake of one sequence.
  constexpr int kMostEvictions = 64;
  const std::span<const MediaSpan> media = spans_.media_of(s);
  Published published;
  // Where another's block is held, ours need not be offered until something has changed.
  const auto looks_again = [&] { return d.entries_seen != blocks_.entry_changes(); };
  bool looked = looks_again();
  for (int evictions = 0; !tree_->extend(
           s.place, tokens, media,
           {offers_, looks_again() ? d.own_from : Sequence::kNever, tail, d.own_to}, published);
       ++evictions) {
    const bool can_ever_fit = media.size() <= static_cast<std::size_t>(options_.max_media_extents);
    if (!can_ever_fit || evictions == kMostEvictions || !blocks_.evict_to_shorten_tree()) {
      ++counters_.publications_skipped;
      stop(row);
      return;
    }
    find_lost(row);
    looked = looks_again();
  }
  blocks_.follow_tree(&published);
  borders_.note_prompt_on_path(row, from);
  counters_.blocks_published += published.num_hung;
  counters_.publications_skipped += published.has_gap ? 1 : 0;
  d.own_from = looked ? published.missed_from : std::min(d.own_from, published.missed_from);
  d.own_to = looked ? published.missed_to : std::max(d.own_to, published.missed_to);
  d.entries_seen = blocks_.entry_changes();
  // The tree keeps the tokens up to the new place.
  const std::int32_t moved = s.place.position - from;
  if (s.announces) publish_announced(row);
  const std::int32_t rest = s.pending_end() - s.place.position;
  if (moved > 0 && rest > 0) {
    std::memmove(kept, kept + moved, static_cast<std::size_t>(rest) * 4);
  }
  spans_.shrink_pending(row, rest);
}

std::int32_t Publisher::findable_of(std::int32_t size) const noexcept {
  if (mutant(Mutant::kAnnouncedBeyondFullBlocks)) return size / tree_->unit() * tree_->unit();
  std::int32_t end = size;
  for (const Group& group : groups_) end = std::min(end, group.size.begin_of(size));
  return end;
}

void Publisher::close_announcement(std::int32_t row) noexcept {
  announcements_.close(row);
  rows_[row].announces = false;
}

// What is on the tree is found there.
void Publisher::publish_announced(std::int32_t row) noexcept {
  if (mutant(Mutant::kAnnouncedWhenPublished)) return;
  announcements_.publish(row, findable_of(rows_[row].place.position));
  rows_[row].announces = announcements_.is_open(row);
}

void Publisher::stop(std::int32_t row) noexcept {
  Sequence& s = rows_[row];
  end_announcement(row);
  borders_.drop(row);
  prompts_.note_unpublished(row);
  s.publishes = false;
  tree_->leave(s.place);
  arena().release(s.pending);
}

}  // namespace kvfolio
