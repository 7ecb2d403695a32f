// SPDX-License-Identifier: Apache-2.0
//
// The shape of runs. A run without children grows at its end, any other path goes on in a child. A
// run is split where paths part, at a multiple of the unit: its name stays with the lower part, so
// places there stay good. It is cut behind the last entry or place that needs it, and vanishes when
// nothing does.

#include <algorithm>

#include "base/mutants.h"
#include "prefix/tree.h"

namespace kvfolio {

// ---- runs grow ----

bool PrefixTree::Impl::grow(std::int32_t r, std::span<const std::int32_t> tokens,
                            std::span<const MediaSpan> media) noexcept {
  Run& at = run(r);
  const std::int32_t length = at.length + static_cast<std::int32_t>(tokens.size());
  if (!runs_.reserve(r, length)) return false;
  if (!media.empty() && !media_.append(at.extents, media, at.end(), at.start + length)) {
    return false;
  }
  runs_.append(r, tokens);
  if (!at.hashed && length >= unit_) {
    at.hash = children_.first_hash(r);
    children_.index(r);
  }
  return true;
}

std::int32_t PrefixTree::Impl::add_child(std::int32_t parent, std::span<const std::int32_t> tokens,
                                         std::span<const MediaSpan> media) noexcept {
  const std::int32_t r = runs_.add();
  if (r == kNone) return kNone;
  run(r).parent = parent;
  run(r).start = run(parent).end();
  if (!grow(r, tokens, media)) {
    free_run(r);
    return kNone;
  }
  children_.insert(parent, r, tokens, media);
  return r;
}

// ---- runs are split ----

std::int32_t PrefixTree::Impl::split(std::int32_t r, std::int32_t cut) noexcept {
  KVFOLIO_CHECK(cut > run(r).start && cut < run(r).end());
  const std::int32_t u = runs_.add();
  if (u == kNone) return kNone;
  Run& lower = run(r);
  Run& upper = run(u);
  upper.parent = lower.parent;
  upper.start = lower.start;
  if (!media_.can_split(lower.extents, cut) || !runs_.reserve(u, cut - lower.start)) {
    free_run(u);
    return kNone;
  }
  // From here on nothing fails. The upper run takes the lower one's place among its siblings.
  children_.unindex(r);
  children_.replace(r, u);
  upper.extents = media_.split(lower.extents, cut);
  runs_.split_tokens(r, u, cut);
  upper.hash = lower.hash;
  upper.chain = children_.chain_of(u);
  if (upper.length >= unit_) children_.index(u);
  upper.children = r;
  upper.num_children = 1;
  lower.parent = u;
  lower.up = lower.left = lower.right = kNone;
  if (lower.length >= unit_) {
    lower.hash = children_.first_hash(r);
    children_.index(r);
  }
  for (std::int32_t g = 0; g < num_groups_; ++g) split_entries(r, u, g);
  return u;
}

// Entries go by the position of their last token.
void PrefixTree::Impl::split_entries(std::int32_t lower, std::int32_t upper,
                                     std::int32_t g) noexcept {
  FixedArray<Where>& where = group(g).where;
  RunEntries& high = entries(upper, g);
  std::int32_t* from = blocks(lower, g);
  std::int32_t* to = blocks(upper, g);
  for (std::int32_t i = 0; i < high.count; ++i) {
    const std::int32_t block = from[i];
    if (block == kNone) continue;
    const bool ends_below = where[block].end() > run(lower).start;
    if (ends_below && !mutant(Mutant::kSplitMovesEntryToWrongSide)) continue;
    to[i] = block;
    where[block].run = upper + 1;
    from[i] = kNone;
  }
  runs_.drop_front(lower, g);
  recount(lower, g);
  recount(upper, g);
  high.live_kids = has_live(lower, g) ? 1 : 0;
  high.idle_kids = has_idle(lower, g) ? 1 : 0;
}

// ---- runs are cut ----

void PrefixTree::Impl::free_run(std::int32_t r) noexcept {
  Run& old = run(r);
  if (runs_.is_root(r)) {
    keys_.drop(old.tokens, old.key_bytes);
  } else {
    media_.cut(old.extents, old.start);
  }
  runs_.remove(r);
}

std::int32_t PrefixTree::Impl::end_of_entries(std::int32_t r) const noexcept {
  std::int32_t end = run(r).start;
  for (std::int32_t g = 0; g < num_groups_; ++g) {
    const std::int32_t last = entries(r, g).last_live;
    if (last == kNone) continue;
    end = std::max(end, group(g).where[blocks(r, g)[last]].end());
  }
  return end;
}

bool PrefixTree::Impl::cut_one(std::int32_t r) noexcept {
  Run& at = run(r);
  if (at.num_children > 0 || at.places > 0) return false;
  const std::int32_t keep = runs_.is_root(r) ? at.start : end_of_entries(r);
  if (keep == at.start) {
    if (!runs_.is_root(r)) children_.remove(r);
    children_.unindex(r);
    free_run(r);
    return true;
  }
  // The first unit stays: it is what the run is found and ordered by.
  const std::int32_t length = std::max(keep - at.start, std::min(at.length, unit_));
  if (length == at.length) return false;
  media_.cut(at.extents, at.start + length);
  runs_.shorten(r, length);
  return false;
}

void PrefixTree::Impl::cut(std::int32_t r) noexcept {
  while (r != kNone) {
    const std::int32_t parent = run(r).parent;
    if (!cut_one(r)) return;
    r = parent;
  }
}

}  // namespace kvfolio
