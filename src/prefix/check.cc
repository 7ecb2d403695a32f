// SPDX-License-Identifier: Apache-2.0
//
// check_invariants: everything the tree keeps is counted again from its runs and entries.

#include <algorithm>

#include "base/text.h"
#include "prefix/tree.h"

namespace kvfolio {

Status PrefixTree::Impl::check_invariants() const {
  using text::concat;
  const auto broken = [](std::int32_t r, const std::string& what) {
    return Status(ErrorCode::kFailedPrecondition, concat("prefix tree, run ", r, ": ", what));
  };

  KVFOLIO_RETURN_IF_ERROR(log_.check());
  std::int32_t alive = 0;
  std::int64_t tokens = 0;
  std::array<std::int64_t, kMaxGroups> hung{};
  std::array<std::int32_t, kMaxGroups> num_idle{};
  for (std::int32_t r = 0; r < runs_touched_; ++r) {
    const Run& at = run(r);
    if (!at.alive) continue;
    ++alive;
    const bool root = at.parent == kNone;
    if (!root) {
      tokens += at.length;
      if (!run(at.parent).alive || run(at.parent).end() != at.start) {
        return broken(r, "does not begin where its parent ends");
      }
      if (at.start % unit_ != 0) return broken(r, concat("begins off the grid at ", at.start));
      if (at.length < 1) return broken(r, "is empty");
      if (at.hashed != (at.length >= unit_)) return broken(r, "hashed without a unit, or not");
      if (at.hashed && at.hash != first_hash(r)) return broken(r, "its hash is stale");
      if (at.num_children > 0 && at.chain != chain_of(r)) return broken(r, "its chain is stale");
    }
    if (at.num_children > 0 && at.end() % unit_ != 0) return broken(r, "children off the grid");
    if (at.num_children == 0 && at.places == 0) {
      bool live = false;
      for (std::int32_t g = 0; g < num_groups_; ++g) live = live || slots(r, g).num_live > 0;
      if (!live) return broken(r, "nothing keeps it alive");
    }
    if (at.hashed || root) {
      const auto is_this = [r](std::int32_t other) { return other == r; };
      if (table_.find(at.hash, is_this) == kNone) return broken(r, "is not in the hash table");
    }
    // Children, in order.
    std::int32_t children = 0;
    std::int32_t before = kNone;
    for (std::int32_t c = at.children == kNone ? kNone : leftmost(at.children); c != kNone;
         c = treap_next(c)) {
      if (!run(c).alive || run(c).parent != r) return broken(r, concat("a foreign child ", c));
      if (before != kNone) {
        // Only tokens are compared here; equal tokens with other media are ordered by those.
        const std::span<const std::int32_t> own(tokens_of(c),
                                                static_cast<std::size_t>(run(c).length));
        const std::int32_t n = std::min(run(c).length, run(before).length);
        const std::int32_t same = same_tokens(tokens_of(before), own.data(), n);
        const bool media = run(c).extents != kNone || run(before).extents != kNone;
        if (same == n && !media) return broken(r, concat("child ", before, " is a prefix of ", c));
        if (same < n && tokens_of(before)[same] > own[static_cast<std::size_t>(same)]) {
          if (!media) return broken(r, concat("children ", before, " and ", c, " out of order"));
        }
      }
      before = c;
      ++children;
    }
    if (children != at.num_children) {
      return broken(r, concat("has ", children, " children, kept ", at.num_children));
    }
    for (std::int32_t e = at.extents, last = at.start; e != kNone; e = extents_[e].next) {
      if (extents_[e].begin < last || extents_[e].end <= extents_[e].begin ||
          extents_[e].end > at.end()) {
        return broken(r, "its media are out of order");
      }
      last = extents_[e].end;
    }
    if (root) continue;
    // Entries and what is derived from them.
    for (std::int32_t g = 0; g < num_groups_; ++g) {
      const RunGroup& rg = slots(r, g);
      const std::int32_t size = block_size(g);
      if (rg.first != at.start / size || rg.count != (at.end() - 1) / size - rg.first + 1) {
        return broken(r, concat("group ", g, " has slots ", rg.first, " + ", rg.count));
      }
      RunGroup seen{};
      seen.last_live = seen.last_idle = kNone;
      for (std::int32_t i = 0; i < rg.count; ++i) {
        const std::int32_t block = entries(r, g)[i];
        if (block == kNone) continue;
        const Where& where = group(g).where[block];
        const auto end = static_cast<std::int32_t>(where.end);
        if (where.run != r + 1 || (end - 1) / size != rg.first + i || end <= at.start ||
            end > at.end()) {
          return broken(r, concat("group ", g, " block ", block, " thinks it ends at ", end,
                                  " in run ", where.run - 1));
        }
        ++hung[static_cast<std::size_t>(g)];
        ++seen.num_live;
        seen.num_partial += partial(g, end) ? 1 : 0;
        seen.last_live = i;
        if (where.idle != 0) {
          ++seen.num_idle;
          seen.last_idle = i;
        }
        const std::int32_t begin = (rg.first + i) * size;
        if (group(g).full() && begin > 0 && whole_block_at(r, g, begin) == kNone) {
          return broken(r, concat("group ", g, " block ", block, " hangs behind a gap"));
        }
      }
      for (std::int32_t c = at.children == kNone ? kNone : leftmost(at.children); c != kNone;
           c = treap_next(c)) {
        seen.live_kids += has_live(c, g) ? 1 : 0;
        seen.idle_kids += has_idle(c, g) ? 1 : 0;
      }
      num_idle[static_cast<std::size_t>(g)] += seen.num_idle;
      const bool same = seen.num_live == rg.num_live && seen.num_partial == rg.num_partial &&
                        seen.num_idle == rg.num_idle && seen.last_live == rg.last_live &&
                        seen.last_idle == rg.last_idle && seen.live_kids == rg.live_kids &&
                        seen.idle_kids == rg.idle_kids;
      if (!same) {
        return broken(
            r, concat("group ", g, " kept live ", rg.num_live, "/", rg.last_live, " idle ",
                      rg.num_idle, "/", rg.last_idle, " kids ", rg.live_kids, "/", rg.idle_kids,
                      "; counted ", seen.num_live, "/", seen.last_live, " idle ", seen.num_idle,
                      "/", seen.last_idle, " kids ", seen.live_kids, "/", seen.idle_kids));
      }
    }
  }
  if (alive != num_runs_ || tokens != num_tokens_) {
    return broken(kNone, concat("counted ", alive, " runs and ", tokens, " tokens, kept ",
                                num_runs_, " and ", num_tokens_));
  }
  for (std::int32_t g = 0; g < num_groups_; ++g) {
    std::int64_t findable = 0;
    const FixedArray<Where>& where = group(g).where;
    for (std::size_t b = 0; b < where.size(); ++b) findable += where[b].run != 0 ? 1 : 0;
    if (findable != hung[static_cast<std::size_t>(g)]) {
      return broken(kNone, concat("group ", g, ": ", findable, " findable blocks, ",
                                  hung[static_cast<std::size_t>(g)], " entries"));
    }
    if (num_idle[static_cast<std::size_t>(g)] != group(g).num_idle) {
      return broken(kNone, concat("group ", g, ": counted ", num_idle[static_cast<std::size_t>(g)],
                                  " idle, kept ", group(g).num_idle));
    }
  }
  return {};
}

}  // namespace kvfolio
