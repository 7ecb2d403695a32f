// SPDX-License-Identifier: Apache-2.0
//
// Publishing: the path of a sequence grows by the tokens of a step, and its blocks are hung along
// it. What is there already is matched, not made again; a run without children grows at its end;
// everywhere else the path splits at the unit and a child is added. Equal tokens keep the entry
// that came first; a longer block takes the place of a shorter one that its tokens begin with.

#include <algorithm>

#include "prefix/tree.h"

namespace kvfolio {

bool PrefixTree::Impl::covered_below(std::int32_t r, std::int32_t g,
                                     std::int32_t logical) const noexcept {
  while (run(r).num_children > 0) {
    r = run(r).children;
    const RunGroup& rg = slots(r, g);
    if (logical < rg.first) return false;
    if (entries(r, g)[logical - rg.first] != kNone) return true;
  }
  return false;
}

bool PrefixTree::Impl::hang_at(std::int32_t r, std::int32_t g, std::int32_t block,
                               std::int32_t logical, std::int32_t end) noexcept {
  FixedArray<Where>& where = group(g).where;
  const auto reach = [&](std::int32_t b) { return static_cast<std::int32_t>(where[b].end); };
  const auto give_way = [&](std::int32_t shorter) {
    take_entry(g, shorter);
    if (shorter != block && observer_ != nullptr) {
      observer_->on_unhung(GroupId(g), BlockId(shorter), BlockId(block));
    }
  };
  if (where[block].run != 0 && reach(block) >= end) return false;
  const std::int32_t index = logical - slots(r, g).first;
  const std::int32_t there = entries(r, g)[index];
  if (there != kNone && reach(there) >= end) return false;
  if (partial(g, end) && covered_below(r, g, logical)) return false;

  if (where[block].run != 0) {
    // A tail hangs where its tokens were found, maybe in a gap of a longer path, and its writer may
    // have gone on otherwise than that path: then its shorter entry is not on the way up from here.
    std::int32_t at = r;
    while (reach(block) <= run(at).start) at = run(at).parent;
    const std::int32_t elsewhere = where[block].run - 1;
    if (elsewhere != at) {
      take_entry(g, block);
      cut(elsewhere);
    }
  }
  if (there != kNone) give_way(there);
  // A block that begins above the run may have a shorter one of the same tokens there.
  const std::int32_t begin = logical * block_size(g);
  for (std::int32_t at = r; run(at).start > begin;) {
    at = run(at).parent;
    const std::int32_t above = entries(at, g)[logical - slots(at, g).first];
    if (above != kNone) give_way(above);
  }
  put_entry(r, g, index, block, end);
  return true;
}

bool PrefixTree::Impl::extend(Place& place, std::span<const std::int32_t> tokens,
                              std::span<const MediaSpan> media, std::span<const BlockOffer> offers,
                              bool tail, std::uint64_t* num_hung) noexcept {
  settle(place);
  std::int32_t r = place.run;
  std::int32_t at = place.position;
  auto rest = tokens;
  const auto advance = [&](std::int32_t n) {
    at += n;
    rest = rest.subspan(static_cast<std::size_t>(n));
  };
  while (!rest.empty()) {
    const auto left = static_cast<std::int32_t>(rest.size());
    if (at < run(r).end()) {
      const std::int32_t common = common_prefix(r, at, rest, media);
      if (common < left && at + common < run(r).end()) {
        const std::int32_t where_to_cut = units_.begin_of(at + common);
        const std::int32_t upper = split(r, where_to_cut);
        if (upper == kNone) return false;
        settle(place);
        advance(where_to_cut - at);
        r = upper;
        continue;
      }
      advance(common);
      if (!rest.empty() && units_.offset_of(at) != 0) {  // a partial tail that ours begins with
        if (!grow(r, rest, media)) return false;
        advance(static_cast<std::int32_t>(rest.size()));
      }
      continue;
    }
    std::int32_t child = kNone;
    const bool branches = run(r).num_children > 0;
    if (branches && left >= unit_) child = find_child(r, rest, media);
    if (branches && child == kNone) {
      const Neighbours nearest = find_nearest(r, rest, media);
      if (nearest.best != kNone &&
          (nearest.common == left || nearest.common == run(nearest.best).length)) {
        child = nearest.best;
      }
    }
    if (child != kNone) {
      r = child;
      continue;
    }
    if (!is_root(r) && !branches) {
      if (!grow(r, rest, media)) return false;
    } else {
      r = add_child(r, rest, media);
      if (r == kNone) return false;
    }
    advance(left);
  }

  for (std::int32_t g = 0; g < num_groups_; ++g) {
    const std::span<const std::int32_t> table = offers[static_cast<std::size_t>(g)].table;
    const std::int32_t size = block_size(g);
    const std::int32_t covered = group(g).size.block_of(tail ? at + size - 1 : at);
    const std::int32_t first = group(g).size.block_of(place.position);
    std::int32_t cursor = r;
    for (std::int32_t logical = std::min(covered, static_cast<std::int32_t>(table.size())) - 1;
         logical >= first; --logical) {
      const std::int32_t block = table[static_cast<std::size_t>(logical)];
      if (block == kNone) continue;
      const std::int32_t end = std::min((logical + 1) * size, at);
      while (end <= run(cursor).start) cursor = run(cursor).parent;
      if (hang_at(cursor, g, block, logical, end) && num_hung != nullptr) ++*num_hung;
    }
  }

  const std::int32_t position = units_.begin_of(at);
  if (r == place.run) {
    place.position = position;
    return true;
  }
  Place moved = enter(r, position);
  leave(place);
  place = moved;
  return true;
}

bool PrefixTree::Impl::offer(const Place& place, GroupId group_id, BlockId block,
                             std::int32_t logical, std::int32_t end) noexcept {
  KVFOLIO_CHECK(end <= place.position);
  std::int32_t r = place.run;
  while (end <= run(r).start) r = run(r).parent;
  return hang_at(r, group_id.value(), block.value(), logical, end);
}

}  // namespace kvfolio
