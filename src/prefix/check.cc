// SPDX-License-Identifier: Apache-2.0
//
// check_invariants: each noun checks itself; then what runs and entries say of each other is
// counted again. It takes no heap memory unless something is broken.

#include "base/text.h"
#include "prefix/tree.h"

namespace kvfolio {

using text::concat;

namespace {

constexpr auto broken = &RunStore::broken;

}  // namespace

Status PrefixTree::Impl::check_invariants() const {
  KVFOLIO_RETURN_IF_ERROR(check_nouns());
  Counts counts;
  for (std::int32_t r = 0; r < runs_.num_touched(); ++r) {
    if (run(r).alive) KVFOLIO_RETURN_IF_ERROR(check_run(r, counts));
  }
  for (std::int32_t g = 0; g < num_groups_; ++g) KVFOLIO_RETURN_IF_ERROR(check_blocks(g, counts));
  return {};
}

Status PrefixTree::Impl::check_nouns() const {
  KVFOLIO_RETURN_IF_ERROR(log_.check());
  KVFOLIO_RETURN_IF_ERROR(runs_.check());
  std::int32_t num_keys = 0;
  std::int64_t key_bytes = 0;
  std::int64_t num_extents = 0;
  for (std::int32_t r = 0; r < runs_.num_touched(); ++r) {
    const Run& at = run(r);
    if (!at.alive) continue;
    KVFOLIO_RETURN_IF_ERROR(children_.check_run(r));
    num_keys += runs_.is_root(r) ? 1 : 0;
    key_bytes += runs_.is_root(r) ? at.key_bytes : 0;
    const std::int32_t extents = media_.check_list(at.extents, at.start, at.end());
    if (extents < 0) return broken(r, "its media are out of order");
    num_extents += extents;
  }
  KVFOLIO_RETURN_IF_ERROR(keys_.check(num_keys, key_bytes));
  return media_.check(num_extents);
}

Status PrefixTree::Impl::check_run(std::int32_t r, Counts& counts) const {
  const Run& at = run(r);
  bool needed = at.num_children > 0 || at.places > 0;
  for (std::int32_t g = 0; g < num_groups_; ++g) needed = needed || entries(r, g).num_live > 0;
  if (!needed) return broken(r, "nothing keeps it alive");
  if (runs_.is_root(r)) return {};
  for (std::int32_t g = 0; g < num_groups_; ++g) {
    KVFOLIO_RETURN_IF_ERROR(check_entries(r, g, counts));
  }
  return {};
}

// The block of one entry thinks of itself what the run does.
Status PrefixTree::Impl::check_entry(std::int32_t r, std::int32_t g, std::int32_t index) const {
  const std::int32_t size = block_size(g);
  const std::int32_t logical = entries(r, g).first + index;
  const std::int32_t block = blocks(r, g)[index];
  const Where& where = group(g).where[block];
  const std::int32_t end = where.end();
  if (where.run != r + 1 || (end - 1) / size != logical || end <= run(r).start ||
      end > run(r).end()) {
    return broken(r, concat("group ", g, " block ", block, " thinks it ends at ", end, " in run ",
                            where.run - 1));
  }
  const std::int32_t begin = logical * size;
  if (group(g).full() && begin > 0 && whole_block_at(r, g, begin) == kNone) {
    return broken(r, concat("group ", g, " block ", block, " hangs behind a gap"));
  }
  return {};
}

Status PrefixTree::Impl::check_entries(std::int32_t r, std::int32_t g, Counts& counts) const {
  const RunEntries& of = entries(r, g);
  RunEntries seen{};
  seen.last_live = seen.last_idle = kNone;
  for (std::int32_t i = 0; i < of.count; ++i) {
    const std::int32_t block = blocks(r, g)[i];
    if (block == kNone) continue;
    KVFOLIO_RETURN_IF_ERROR(check_entry(r, g, i));
    const Where& where = group(g).where[block];
    ++seen.num_live;
    seen.num_partial += partial(g, where.end()) ? 1 : 0;
    seen.last_live = i;
    if (!where.idle()) continue;
    ++seen.num_idle;
    seen.last_idle = i;
  }
  for (std::int32_t c = children_.first(r); c != kNone; c = children_.next(c)) {
    seen.live_kids += has_live(c, g) ? 1 : 0;
    seen.idle_kids += has_idle(c, g) ? 1 : 0;
  }
  counts.live[static_cast<std::size_t>(g)] += seen.num_live;
  counts.idle[static_cast<std::size_t>(g)] += seen.num_idle;
  const bool same = seen.num_live == of.num_live && seen.num_partial == of.num_partial &&
                    seen.num_idle == of.num_idle && seen.last_live == of.last_live &&
                    seen.last_idle == of.last_idle && seen.live_kids == of.live_kids &&
                    seen.idle_kids == of.idle_kids;
  if (same) return {};
  return broken(r, concat("group ", g, " kept live ", of.num_live, "/", of.last_live, " idle ",
                          of.num_idle, "/", of.last_idle, " kids ", of.live_kids, "/", of.idle_kids,
                          "; counted ", seen.num_live, "/", seen.last_live, " idle ", seen.num_idle,
                          "/", seen.last_idle, " kids ", seen.live_kids, "/", seen.idle_kids));
}

Status PrefixTree::Impl::check_blocks(std::int32_t g, const Counts& counts) const {
  const auto at = static_cast<std::size_t>(g);
  const FixedArray<Where>& where = group(g).where;
  std::int64_t findable = 0;
  for (std::size_t b = 0; b < where.size(); ++b) findable += where[b].run != 0 ? 1 : 0;
  for (std::size_t b = 0; b < group(g).read.size(); ++b) {
    if (group(g).read[b] == 0) continue;
    const bool is_whole = where[b].run != 0 && !partial(g, where[b].end());
    if (group(g).read[b] > 1 || !is_whole) {
      return broken(kNone, concat("group ", g, " block ", b, " is read by an end and not whole"));
    }
  }
  if (findable != counts.live[at]) {
    return broken(kNone, concat("group ", g, ": ", findable, " findable blocks, ", counts.live[at],
                                " entries"));
  }
  if (counts.idle[at] != group(g).num_idle) {
    return broken(kNone, concat("group ", g, ": counted ", counts.idle[at], " idle, kept ",
                                group(g).num_idle));
  }
  return {};
}

}  // namespace kvfolio
