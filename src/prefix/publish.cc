// SPDX-License-Identifier: Apache-2.0
//
// Publishing: the path of a sequence grows by the tokens of a step, and its blocks are hung along
// it. What is there already is matched, not made again; a run without children grows at its end;
// everywhere else the path splits at the unit and a child is added. If two blocks have equal
// tokens, a busy one has the entry. If both are busy, the one that came first keeps it, and the log
// says so: the user may hand it over by replace(). A longer block takes the place of a shorter one
// that its tokens begin with. In a full group a block is hung only behind the entry of the block
// before it (entries.cc says why).

#include <algorithm>

#include "base/mutants.h"
#include "prefix/tree.h"

namespace kvfolio {

bool PrefixTree::Impl::covered_below(std::int32_t r, std::int32_t g,
                                     std::int32_t logical) const noexcept {
  // A full group has no gaps: what it keeps below begins with all of the run, or hangs behind that.
  if (group(g).full()) {
    return entries(r, g).live_kids > 0 && (logical + 1) * block_size(g) > run(r).end();
  }
  while (run(r).num_children > 0) {
    r = run(r).children;
    const RunEntries& of = entries(r, g);
    if (logical < of.first) return false;
    if (blocks(r, g)[logical - of.first] != kNone) return true;
  }
  return false;
}

std::int32_t PrefixTree::Impl::whole_block_at(std::int32_t r, std::int32_t g,
                                              std::int32_t end) const noexcept {
  r = runs_.run_of(r, end);
  const std::int32_t block = blocks(r, g)[runs_.index_of(r, g, end)];
  if (block == kNone || entries(r, g).num_partial == 0) return block;
  return group(g).where[block].end() == end ? block : kNone;
}

// Hangs a block that holds positions up to `end` of the path, where the tree has none or one that
// gives way.
bool PrefixTree::Impl::hang_at(std::int32_t r, std::int32_t g, std::int32_t block,
                               std::int32_t logical, std::int32_t end,
                               Published& published) noexcept {
  const FixedArray<Where>& where = group(g).where;
  const auto reach = [&](std::int32_t b) { return where[b].end(); };
  KVFOLIO_DCHECK(!where[block].idle());
  if (where[block].run != 0 && reach(block) >= end) return true;
  const std::int32_t there = blocks(r, g)[logical - entries(r, g).first];
  if (there != kNone && reach(there) > end) return true;
  if (partial(g, end) && covered_below(r, g, logical)) return true;
  if (there != kNone && reach(there) == end) {
    if (mutant(Mutant::kCachedTwinKeepsEntry)) return true;
    if (!where[there].idle()) {
      log_.kept(g, there, block);
      return false;
    }
  }
  hang_over(r, g, block, logical, end);
  ++published.num_hung;
  return true;
}

void PrefixTree::Impl::hang_over(std::int32_t r, std::int32_t g, std::int32_t block,
                                 std::int32_t logical, std::int32_t end) noexcept {
  const FixedArray<Where>& where = group(g).where;
  const auto reach = [&](std::int32_t b) { return where[b].end(); };
  bool read = false;
  const auto give_way = [&](std::int32_t other) {
    read = read || group(g).is_read(other);
    take_entry(g, other);
    if (other != block) log_.unhung(g, other, block);
  };
  const std::int32_t index = logical - entries(r, g).first;
  const std::int32_t there = blocks(r, g)[index];
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
    const std::int32_t above = blocks(at, g)[logical - entries(at, g).first];
    if (above != kNone) give_way(above);
  }
  put_entry(r, g, index, block, end);
  if (read) note_block(g, block);
}

void PrefixTree::Impl::replace(std::int32_t g, std::int32_t block, std::int32_t by) noexcept {
  const Where& where = group(g).where[block];
  KVFOLIO_CHECK(where.run != 0 && !where.idle());
  const std::int32_t end = where.end();
  KVFOLIO_CHECK(group(g).where[by].end() < end);
  hang_over(where.run - 1, g, by, group(g).size.block_of(end - 1), end);
}

// The first of these logical blocks of a full group that would hang behind a gap, or `covered`. A
// block that keeps its entry on another path leaves one: a fork's copies of unnamed tokens may get
// other names.
std::int32_t PrefixTree::Impl::first_gap(std::int32_t r, std::int32_t g,
                                         std::span<const std::int32_t> table, std::int32_t first,
                                         std::int32_t covered) const noexcept {
  const std::int32_t size = block_size(g);
  const auto missing = [&](std::int32_t end) { return whole_block_at(r, g, end) == kNone; };
  if (first > 0 && missing(first * size)) return first;
  for (std::int32_t logical = first; logical + 1 < covered; ++logical) {
    const std::int32_t block = table[static_cast<std::size_t>(logical)];
    const bool hangs_here = block != kNone && group(g).where[block].end() < (logical + 1) * size;
    if (!hangs_here && missing((logical + 1) * size)) return logical + 1;
  }
  return covered;
}

// Logical blocks [first, last) of one group, the last one first: what a run knows of its last entry
// then changes once. `at`: where the path ends.
void PrefixTree::Impl::hang_range(std::int32_t r, std::int32_t g, std::int32_t at,
                                  std::span<const std::int32_t> table, std::int32_t first,
                                  std::int32_t last, Published& published) noexcept {
  const std::int32_t size = block_size(g);
  last = std::min(last, static_cast<std::int32_t>(table.size()));
  if (first >= last) return;
  const bool needs_all = group(g).full() && !mutant(Mutant::kHungBehindAGap);
  const std::int32_t gap = needs_all ? first_gap(r, g, table, first, last) : last;
  for (std::int32_t logical = last - 1; logical >= first; --logical) {
    const std::int32_t block = table[static_cast<std::size_t>(logical)];
    if (block == kNone) continue;
    const std::int32_t end = std::min((logical + 1) * size, at);
    r = runs_.run_of(r, end);
    const std::int32_t begin = logical * size;
    const bool is_new = end - begin == size && begin >= run(r).start && logical < gap &&
                        group(g).where[block].run == 0 &&
                        blocks(r, g)[logical - entries(r, g).first] == kNone;
    if (is_new) {  // what most are: hang_at() would look for others that might give way
      put_entry(r, g, logical - entries(r, g).first, block, end);
      ++published.num_hung;
      continue;
    }
    if (logical < gap && !hang_at(r, g, block, logical, end, published)) continue;
    published.has_gap |= logical >= gap;
    if (group(g).where[block].end() < end) {
      published.missed_from = std::min(published.missed_from, logical * size);
      published.missed_to = std::max(published.missed_to, end);
    }
  }
}

// Own blocks on the path so far come first: they fill the gaps that the new ones would hang behind.
void PrefixTree::Impl::hang_offered(std::int32_t r, std::int32_t at, std::int32_t here,
                                    const PublishOffer& offer, Published& published) noexcept {
  for (std::int32_t g = 0; g < num_groups_; ++g) {
    const BlockSize size = group(g).size;
    const auto ends_by = [&](std::int32_t p) { return size.block_of(p + block_size(g) - 1); };
    const std::span<const std::int32_t> table = offer.tables[static_cast<std::size_t>(g)];
    const std::int32_t first_new = size.block_of(here);
    if (offer.from < here) {
      const std::int32_t last = std::min(ends_by(std::min(offer.to, here)), first_new);
      hang_range(r, g, at, table, size.block_of(offer.from), last, published);
    }
    hang_range(r, g, at, table, first_new, offer.tail ? ends_by(at) : size.block_of(at), published);
  }
}

// What steady decode publishes: one unit behind the end of a run without children, whose blocks are
// all there, in groups whose blocks are units. Returns false if the general way is needed; then
// nothing has changed. It has the same result.
bool PrefixTree::Impl::extend_by_unit(Place& place, std::span<const std::int32_t> tokens,
                                      std::span<const MediaSpan> media, const PublishOffer& offer,
                                      Published& published) noexcept {
  const std::int32_t r = place.run;
  const std::int32_t end = place.position + unit_;
  const Run& at = run(r);
  if (tokens.size() != static_cast<std::size_t>(unit_) || !media.empty() ||
      offer.from < place.position || at.end() != place.position || at.num_children > 0 ||
      runs_.is_root(r) || mutant(Mutant::kHungBehindAGap)) {
    return false;
  }
  const std::int32_t logical = units_.block_of(place.position);
  for (std::int32_t g = 0; g < num_groups_; ++g) {
    const std::span<const std::int32_t> table = offer.tables[static_cast<std::size_t>(g)];
    if (block_size(g) != unit_ || !entries(r, g).whole() ||
        static_cast<std::size_t>(logical) >= table.size()) {
      return false;
    }
    const std::int32_t block = table[static_cast<std::size_t>(logical)];
    if (block == kNone || group(g).where[block].run != 0) return false;
  }
  if (!grow(r, tokens, media)) return false;
  for (std::int32_t g = 0; g < num_groups_; ++g) {
    const std::int32_t block =
        offer.tables[static_cast<std::size_t>(g)][static_cast<std::size_t>(logical)];
    put_entry(r, g, logical - entries(r, g).first, block, end);
    ++published.num_hung;
  }
  place.position = end;
  return true;
}

bool PrefixTree::Impl::extend(Place& place, std::span<const std::int32_t> tokens,
                              std::span<const MediaSpan> media, const PublishOffer& offer,
                              Published& published) noexcept {
  KVFOLIO_DCHECK(place.valid() && MediaExtents::in_order(media));
  KVFOLIO_DCHECK(offer.tables.size() == groups_.size());
  if (extend_by_unit(place, tokens, media, offer, published)) return true;
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
      const std::int32_t common = children_.common_prefix(r, at, rest, media);
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
    if (branches && left >= unit_) child = children_.find(r, rest, media);
    if (branches && child == kNone) {
      const Children::Neighbours nearest = children_.nearest(r, rest, media);
      if (nearest.best != kNone &&
          (nearest.common == left || nearest.common == run(nearest.best).length)) {
        child = nearest.best;
      }
    }
    if (child != kNone) {
      r = child;
      continue;
    }
    if (!runs_.is_root(r) && !branches) {
      if (!grow(r, rest, media)) return false;
    } else {
      r = add_child(r, rest, media);
      if (r == kNone) return false;
    }
    advance(left);
  }

  const std::int32_t here = place.position;
  hang_offered(r, at, here, offer, published);
  const std::int32_t position = units_.begin_of(at);
  if (r == place.run) {
    place.position = position;
  } else {
    const Place moved = enter(r, position);
    leave(place);
    place = moved;
  }
  if (has_windows_) note_branches(place, here);
  return true;
}

std::int32_t PrefixTree::Impl::entry_at(const Place& place, std::int32_t g,
                                        std::int32_t logical) const noexcept {
  const std::int32_t end = (logical + 1) * block_size(g);
  KVFOLIO_CHECK(end <= place.position);
  return whole_block_at(place.run, g, end);
}

}  // namespace kvfolio
