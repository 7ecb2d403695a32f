// SPDX-License-Identifier: Apache-2.0
//
// The longest prefix that every group can serve.
//
// A Lookup follows the query token by token to the last run that shares tokens with it. That one
// may be matched in part, or be the neighbour that shares most inside a unit. The path to it is
// known by its last run: the runs before it are its parents. What is asked from the front of the
// path is counted on the way down; all else is asked from its end upwards. Then each group says how
// far it can serve:
//   full    up to its first missing block; inside a block, as far as some block that begins with
//           the same tokens goes (the hit is a shared tail, copied at the first append)
//   window  a position p whose last window-1 tokens and sinks are all there, and where p lies
//           inside a block the token before it in any case, since a sequence goes on in that block;
//           found from the right, each missing block pushes p down to where it begins. All tokens
//           below p of a block with sinks count: a sequence may be cut back into it, and offers
//           it again when it closes
// and the answer is the largest position on which all agree. Where that lies below what the path
// shares with the query, a path beside it may serve more (served_nearby()).
//
// Nothing here writes to the tree, takes heap memory or needs much of the stack.

#include <algorithm>
#include <limits>

#include "base/joint_hit.h"
#include "base/mutants.h"
#include "kvfolio/prefetch.h"
#include "prefix/tree.h"

namespace kvfolio {

// Where prompts branch after every unit, each run costs several misses of memory, one after the
// other. So this goes ahead by hashes alone, as if every run were a unit long: first all cells of
// the table are under way together, then all runs, then what these point at. A wrong guess costs
// time and nothing else.
void PrefixTree::Impl::look_ahead(std::int32_t parent, std::span<const std::int32_t> tokens,
                                  std::span<const MediaSpan> media, Ahead& ahead) const noexcept {
  const std::int32_t from = run(parent).end();
  // What is known already stays: runs of several units end the search below, not the hashes.
  const std::int32_t passed = std::min((from - ahead.from) / unit_, ahead.num_hashes);
  const std::int32_t known = ahead.num_hashes - passed;
  std::copy_n(ahead.hashes.begin() + passed, known, ahead.hashes.begin());
  ahead.from = from;
  ahead.num_hashes = static_cast<std::int32_t>(std::min(
      static_cast<std::size_t>(Ahead::kMost), tokens.size() / static_cast<std::size_t>(unit_)));
  const auto hashes = std::span(ahead.hashes).first(static_cast<std::size_t>(ahead.num_hashes));
  std::uint32_t chain = known > 0 ? hashes[static_cast<std::size_t>(known) - 1] : run(parent).chain;
  for (std::int32_t i = known; i < ahead.num_hashes; ++i) {
    chain = children_.next_hash(chain, from + i * unit_, tokens.data() + std::int64_t{i} * unit_,
                                media);
    hashes[static_cast<std::size_t>(i)] = chain;
  }
  for (const std::uint32_t hash : hashes) children_.prefetch(hash);
  std::array<std::int32_t, Ahead::kMost> names;
  ahead.num_runs = 0;
  for (const std::uint32_t hash : hashes) {
    const std::int32_t r = children_.find_by_hash(hash, [](std::int32_t) { return true; });
    if (r == kNone) break;
    runs_.prefetch(r);
    names[static_cast<std::size_t>(ahead.num_runs++)] = r;
  }
  const auto runs = std::span(names).first(static_cast<std::size_t>(ahead.num_runs));
  for (const std::int32_t r : runs) {
    if (runs_.is_root(r)) continue;  // of an equal hash; its tokens are a key, which lies elsewhere
    prefetch_to_read(runs_.tokens(r));
    for (std::int32_t g = 0; g < num_groups_; ++g) prefetch_to_read(blocks(r, g));
  }
  for (const std::int32_t r : runs) {
    for (std::int32_t g = 0; g < num_groups_; ++g) {
      const RunEntries& of = entries(r, g);
      if (of.whole()) continue;
      const std::int32_t block = blocks(r, g)[0];
      if (block != kNone) prefetch_to_read(&group(g).where[block]);
    }
  }
}

// One query, and how far it is known.
class PrefixTree::Impl::Lookup {
 public:
  struct Hit {
    std::int32_t tokens = 0;
    Path path;
  };

  Lookup(const Impl& tree, std::int32_t root, std::span<const std::int32_t> tokens,
         std::span<const MediaSpan> media) noexcept
      : tree_(tree), tokens_(tokens), media_(media), path_{root, 0} {
    walk();
  }

  [[nodiscard]] const Path& path() const noexcept { return path_; }
  // The tokens that every group serves, at most `limit`, and the path that they are on: the
  // query's, or where that lacks a block, the one of a sibling at one of its branches that shares
  // as much of the query or less and serves more. It goes over to one of them for at least
  // `at_least`. Each try costs what the windows reach over, and no more for a longer path.
  [[nodiscard]] Hit served_nearby(std::int32_t limit, std::int32_t at_least,
                                  std::int32_t extra_window) const noexcept;

 private:
  static constexpr int kMostTriesOnASide = 8;  // a branch may have thousands of children
  static constexpr int kMostTries = 32;        // and a path thousands of branches

  // The blocks of a full group from the front of a path on.
  struct Front {
    std::int32_t num_whole = 0;  // full blocks that are there, one behind the other
    bool has_gap = false;        // the next one is nowhere below
  };

  void walk() noexcept;
  // The path goes on with this run.
  void pass(std::int32_t r) noexcept;
  void add_to_front(std::int32_t g, std::int32_t r, Front& front) const noexcept;
  // Where the last block with sinks of the group ends.
  [[nodiscard]] std::int32_t sinks_end(std::int32_t g) const noexcept {
    const Group& group = tree_.group(g);
    constexpr std::int32_t kFarthest = std::numeric_limits<std::int32_t>::max() - kMaxBlockSize;
    const std::int32_t sinks = std::min(group.rule.num_sinks(), kFarthest);
    return group.size.begin_of(sinks + group.spec.block_size - 1);
  }
  [[nodiscard]] std::int32_t served_full(const Path& path, std::int32_t g, const Front& front,
                                         std::int32_t limit) const noexcept;
  // `floor`, here and below: of positions up to it any will do as the answer. `from`: a run of the
  // path; those below it begin behind `limit` and the block there. Climbs with the limit.
  [[nodiscard]] std::int32_t served_window(const Path& path, std::int32_t g, std::int32_t limit,
                                           std::int32_t extra_window, std::int32_t floor,
                                           std::int32_t& from) const noexcept;
  // What media and all window groups leave of position `at`.
  [[nodiscard]] std::int32_t served_by_windows(const Path& path, std::int32_t at,
                                               std::int32_t extra_window,
                                               std::int32_t floor) const noexcept;
  // On the query's path.
  [[nodiscard]] std::int32_t served(std::int32_t limit, std::int32_t extra_window) const noexcept;
  // On the path that goes on with a child of its last run.
  [[nodiscard]] std::int32_t served_below(std::int32_t child, std::int32_t limit,
                                          std::int32_t extra_window) const noexcept;
  // On the path of a sibling at a branch, which begins at `start` and shares `common` tokens.
  [[nodiscard]] std::int32_t served_beside(const Path& path, std::int32_t limit,
                                           std::int32_t extra_window,
                                           std::int32_t floor) const noexcept;
  // Behind this position some full group lacks a block, whatever the path does there.
  [[nodiscard]] std::int32_t end_of_fronts() const noexcept;

  const Impl& tree_;
  std::span<const std::int32_t> tokens_;
  std::span<const MediaSpan> media_;
  Path path_;                               // the query's
  std::array<Front, kMaxGroups> fronts_{};  // by full group
  // By window group: the last run of the path that begins before the end of the group's sinks.
  std::array<std::int32_t, kMaxGroups> sinks_run_{};
};

void PrefixTree::Impl::Lookup::pass(std::int32_t r) noexcept {
  path_.last = r;
  for (std::int32_t g = 0; g < tree_.num_groups_; ++g) {
    const auto at = static_cast<std::size_t>(g);
    if (tree_.group(g).full()) {
      add_to_front(g, r, fronts_[at]);
    } else if (tree_.run(r).start < sinks_end(g)) {
      sinks_run_[at] = r;
    }
  }
}

void PrefixTree::Impl::Lookup::walk() noexcept {
  const std::int32_t root = path_.last;
  std::int32_t r = root;
  std::size_t at = 0;
  Ahead ahead;
  while (at < tokens_.size()) {
    const auto rest = tokens_.subspan(at);
    // All that is on the path equals the query, so its hashes are good however long the runs are.
    std::int32_t unit = (static_cast<std::int32_t>(at) - ahead.from) / tree_.unit_;
    if (unit >= ahead.num_runs && r != root && tree_.run(r).length == tree_.unit_ &&
        tree_.run(r).num_children > 1) {
      tree_.look_ahead(r, rest, media_, ahead);
      unit = 0;
    }
    std::int32_t child = kNone;
    if (rest.size() >= static_cast<std::size_t>(tree_.unit_)) {
      const bool known = unit < ahead.num_hashes;
      child = tree_.children_.find(r, rest, media_,
                                   known ? &ahead.hashes[static_cast<std::size_t>(unit)] : nullptr);
    }
    if (child == kNone) {
      const Children::Neighbours nearest = tree_.children_.nearest(r, rest, media_);
      if (nearest.best == kNone) break;
      pass(nearest.best);
      at += static_cast<std::size_t>(nearest.common);
      break;
    }
    pass(child);
    std::int32_t common =
        tree_.children_.common_prefix(child, tree_.run(child).start, rest, media_);
    if (mutant(Mutant::kChildComparedByFirstUnitOnly)) {
      common = std::min(tree_.run(child).length, static_cast<std::int32_t>(rest.size()));
    }
    at += static_cast<std::size_t>(common);
    if (static_cast<std::int32_t>(at) < tree_.run(child).end()) break;
    r = child;
  }
  path_.matched = static_cast<std::int32_t>(at);
}

// How far an entry covers logical block `logical` along the path and below. The blocks of a path
// are asked about from its end upwards, and `from` climbs with them.
PrefixTree::Impl::Cover PrefixTree::Impl::cover(const Path& path, std::int32_t g,
                                                std::int32_t logical,
                                                std::int32_t& from) const noexcept {
  const std::int32_t begin = logical * block_size(g);
  const std::int32_t end = begin + block_size(g);
  Cover best{begin, kNone};
  const auto consider = [&](std::int32_t r) {
    const RunEntries& of = entries(r, g);
    const std::int32_t index = logical - of.first;
    if (index < 0 || index >= of.count) return;
    const std::int32_t block = blocks(r, g)[index];
    if (block == kNone) return;
    const std::int32_t reach = std::min(group(g).where[block].end(), path.matched);
    if (reach > best.end) best = {reach, block};
  };
  while (run(from).start >= end) from = run(from).parent;
  // A root ends where it begins.
  for (std::int32_t r = from; run(r).end() > begin; r = run(r).parent) consider(r);
  if (best.end >= std::min(end, path.matched) || runs_.is_root(path.last)) return best;
  // The block may end below: any descendant of the last run begins with the same tokens.
  std::int32_t r = path.last;
  while (run(r).end() < end && run(r).num_children > 0) {
    r = run(r).children;
    consider(r);
  }
  return best;
}

void PrefixTree::Impl::Lookup::add_to_front(std::int32_t g, std::int32_t r,
                                            Front& front) const noexcept {
  if (front.has_gap) return;
  const std::int32_t size = tree_.block_size(g);
  const RunEntries& of = tree_.entries(r, g);
  if (of.whole()) {
    front.num_whole = of.first + of.count;
    return;
  }
  const std::int32_t* entry = tree_.blocks(r, g);
  for (; front.num_whole - of.first < of.count; ++front.num_whole) {
    const std::int32_t block = entry[front.num_whole - of.first];
    if (block == kNone || tree_.partial(g, tree_.group(g).where[block].end())) {
      // A block that ends beyond this run may be kept further down.
      front.has_gap = (front.num_whole + 1) * size <= tree_.run(r).end();
      return;
    }
  }
}

std::int32_t PrefixTree::Impl::Lookup::served_full(const Path& path, std::int32_t g,
                                                   const Front& front,
                                                   std::int32_t limit) const noexcept {
  std::int32_t served = front.num_whole * tree_.block_size(g);
  std::int32_t from = path.last;
  if (served < limit) served = std::max(served, tree_.cover(path, g, front.num_whole, from).end);
  return std::min({served, limit, path.matched});
}

std::int32_t PrefixTree::Impl::Lookup::served_window(const Path& path, std::int32_t g,
                                                     std::int32_t limit, std::int32_t extra_window,
                                                     std::int32_t floor,
                                                     std::int32_t& from) const noexcept {
  const bool short_path = tree_.run(path.last).start < sinks_end(g);
  std::int32_t at_sinks = short_path ? path.last : sinks_run_[static_cast<std::size_t>(g)];
  const auto sinks = [&](std::int32_t logical) {
    return tree_.cover(path, g, logical, at_sinks).end;
  };
  // The first block that is asked about is where the next search may begin.
  std::int32_t cursor = kNone;
  const auto reach = [&](std::int32_t logical) {
    if (cursor != kNone) return tree_.cover(path, g, logical, cursor).end;
    const std::int32_t end = tree_.cover(path, g, logical, from).end;
    cursor = from;
    return end;
  };
  return served_by_window(tree_.group(g).rule, tree_.block_size(g), std::min(limit, path.matched),
                          extra_window, floor, sinks, reach);
}

std::int32_t PrefixTree::Impl::Lookup::served_by_windows(const Path& path, std::int32_t at,
                                                         std::int32_t extra_window,
                                                         std::int32_t floor) const noexcept {
  std::array<std::int32_t, kMaxGroups> from;
  from.fill(path.last);
  return agreed(at, floor, media_, tree_.num_groups_, [&](std::int32_t g, std::int32_t p) {
    if (tree_.group(g).full()) return p;
    return served_window(path, g, p, extra_window, floor, from[static_cast<std::size_t>(g)]);
  });
}

std::int32_t PrefixTree::Impl::Lookup::served(std::int32_t limit,
                                              std::int32_t extra_window) const noexcept {
  std::int32_t at = std::min(limit, path_.matched);
  for (std::int32_t g = 0; g < tree_.num_groups_; ++g) {
    if (!tree_.group(g).full()) continue;
    at = served_full(path_, g, fronts_[static_cast<std::size_t>(g)], at);
  }
  return served_by_windows(path_, at, extra_window, 0);
}

std::int32_t PrefixTree::Impl::Lookup::served_below(std::int32_t child, std::int32_t limit,
                                                    std::int32_t extra_window) const noexcept {
  const Path path{child, path_.matched};
  std::int32_t at = std::min(limit, path.matched);
  for (std::int32_t g = 0; g < tree_.num_groups_; ++g) {
    if (!tree_.group(g).full()) continue;
    Front front = fronts_[static_cast<std::size_t>(g)];
    add_to_front(g, child, front);
    at = served_full(path, g, front, at);
  }
  return served_by_windows(path, at, extra_window, 0);
}

std::int32_t PrefixTree::Impl::Lookup::served_beside(const Path& path, std::int32_t limit,
                                                     std::int32_t extra_window,
                                                     std::int32_t floor) const noexcept {
  const std::int32_t start = tree_.run(path.last).start;
  std::int32_t at = std::min(limit, path.matched);
  for (std::int32_t g = 0; g < tree_.num_groups_; ++g) {
    if (!tree_.group(g).full()) continue;
    std::int32_t from = path.last;
    at = std::min(at, tree_.cover(path, g, tree_.group(g).size.block_of(start), from).end);
  }
  return served_by_windows(path, at, extra_window, floor);
}

std::int32_t PrefixTree::Impl::Lookup::end_of_fronts() const noexcept {
  std::int32_t end = path_.matched + 1;
  for (std::int32_t g = 0; g < tree_.num_groups_; ++g) {
    if (!tree_.group(g).full()) continue;
    const Front& front = fronts_[static_cast<std::size_t>(g)];
    end = std::min(end, (front.num_whole + 1) * tree_.block_size(g));
  }
  return end;
}

// The path may lack a block that one beside it has, which begins with as many of the query's tokens
// or with few less. So each branch of the path is asked, from the deepest up, as long as a sibling
// of the path's run there can share more than what is found; its neighbours in order come first,
// since they share most. What lies in front of a branch is the same for all: there it is known that
// no position up to `floor` serves more, and that full groups have every block.
PrefixTree::Impl::Lookup::Hit PrefixTree::Impl::Lookup::served_nearby(
    std::int32_t limit, std::int32_t at_least, std::int32_t extra_window) const noexcept {
  Hit best{served(limit, extra_window), path_};
  if (best.tokens >= std::min(limit, path_.matched) || tree_.runs_.is_root(path_.last)) return best;
  int tries = kMostTries;
  const auto take = [&](std::int32_t more, const Path& path) {
    if (more > best.tokens && more >= at_least) best = {more, path};
  };
  // Where the query ends with the path's last run, a block that it ends inside may end in any run
  // below.
  const Run& last = tree_.run(path_.last);
  if (path_.matched == last.end() && last.num_children > 1) {
    std::int32_t r = tree_.children_.first(path_.last);
    for (int asked = 0; asked < kMostTriesOnASide && r != kNone; ++asked, --tries) {
      take(served_below(r, limit, extra_window), {r, path_.matched});
      r = tree_.children_.next(r);
    }
  }
  const std::int32_t end = end_of_fronts();  // a sibling that begins at or behind it serves no more
  for (std::int32_t walked = path_.last; !tree_.runs_.is_root(walked) && tries > 0;
       walked = tree_.run(walked).parent) {
    const std::int32_t start = tree_.run(walked).start;
    const std::int32_t shared = std::min(start + tree_.unit_ - 1, limit);  // by a sibling, at most
    if (shared <= best.tokens || shared < at_least) break;
    if (start >= end) continue;
    std::int32_t floor = start;
    for (const Group& each : tree_.groups_) floor = std::min(floor, each.size.begin_of(start));
    const auto rest = tokens_.subspan(static_cast<std::size_t>(start));
    for (const bool forward : {false, true}) {
      std::int32_t r = walked;
      for (int asked = 0; asked < kMostTriesOnASide && tries > 0; ++asked) {
        r = forward ? tree_.children_.next(r) : tree_.children_.before(r);
        if (r == kNone) break;
        const Path path{r, start + tree_.children_.common_prefix(r, start, rest, media_)};
        const std::int32_t known = std::max(best.tokens, floor);
        if (path.matched <= known) break;  // further out they share less still
        --tries;
        const std::int32_t more = served_beside(path, limit, extra_window, known);
        if (more > floor) take(more, path);
      }
    }
  }
  return best;
}

PrefixMatch PrefixTree::Impl::match(std::int32_t root, std::span<const std::int32_t> tokens,
                                    std::span<const MediaSpan> media, std::int32_t max_tokens,
                                    bool allow_whole) const noexcept {
  KVFOLIO_DCHECK(runs_.is_root(root) && run(root).alive && MediaExtents::in_order(media));
  const Lookup lookup(*this, root, tokens, media);
  const auto size = static_cast<std::int32_t>(tokens.size());
  // Neither does the hit end inside such a span, nor are its tokens taken for those of a prompt
  // that ends inside: they have read more of it.
  const bool splits_media = std::any_of(media.begin(), media.end(), [&](const MediaSpan& span) {
    return cuts(span, size - 1) || cuts(span, size);
  });
  PrefixMatch found;
  Lookup::Hit hit;
  if (allow_whole && !splits_media && size > 0 && lookup.path().matched == size) {
    hit = lookup.served_nearby(size, size, 1);
    found.whole = hit.tokens == size;
  }
  if (!found.whole) hit = lookup.served_nearby(std::max(max_tokens, 0), 0, 0);
  found.tokens = found.whole ? size - 1 : hit.tokens;
  found.last_run = hit.path.last;
  found.matched = hit.path.matched;
  found.run = found.last_run;
  const std::int32_t position = found.held_tokens() / unit_ * unit_;
  while (!runs_.is_root(found.run) && run(found.run).start >= position)
    found.run = run(found.run).parent;
  return found;
}

// Runs further down come first: where a block straddles the border of two, theirs is longer.
void PrefixTree::Impl::fill_full(const Path& path, std::int32_t g, std::int32_t held,
                                 std::int32_t first, std::span<std::int32_t> out) const noexcept {
  const std::int32_t end = first + static_cast<std::int32_t>(out.size());
  std::int32_t filled_from = end;
  for (std::int32_t r = path.last; !runs_.is_root(r); r = run(r).parent) {
    const RunEntries& of = entries(r, g);
    const std::int32_t begin = std::max(of.first, first);
    const std::int32_t stop = std::min(of.first + of.count, end);
    if (begin >= stop) continue;
    const std::int32_t* entry = blocks(r, g) + (begin - of.first);
    const std::int32_t n = stop - begin;
    const std::int32_t fresh = std::clamp(filled_from - begin, 0, n);
    std::int32_t* to = out.data() + (begin - first);
    std::copy_n(entry, fresh, to);
    for (std::int32_t i = fresh; i < n; ++i) {
      if (to[i] == kNone) to[i] = entry[i];
    }
    filled_from = std::min(filled_from, begin);
  }
  if (end * block_size(g) < held) return;
  std::int32_t& last = out.back();
  if (last == kNone || group(g).where[last].end() < held) {
    std::int32_t from = path.last;
    last = cover(path, g, end - 1, from).block;
  }
}

void PrefixTree::Impl::whole_blocks(std::int32_t root, std::span<const std::int32_t> tokens,
                                    std::span<const MediaSpan> media, std::int32_t g,
                                    std::int32_t first,
                                    std::span<std::int32_t> out) const noexcept {
  KVFOLIO_DCHECK(runs_.is_root(root) && run(root).alive && MediaExtents::in_order(media));
  const Path path = Lookup(*this, root, tokens, media).path();
  const std::int32_t size = block_size(g);
  std::fill(out.begin(), out.end(), kNone);
  std::int32_t from = path.last;
  for (auto i = static_cast<std::int32_t>(out.size()) - 1; i >= 0; --i) {
    const std::int32_t end = (first + i + 1) * size;
    if (end > path.matched) continue;
    const Cover found = cover(path, g, first + i, from);
    if (found.end == end) out[static_cast<std::size_t>(i)] = found.block;
  }
}

void PrefixTree::Impl::fill_table(const PrefixMatch& match, GroupId group_id,
                                  std::span<std::int32_t> out, bool one_more,
                                  std::int32_t begin) const noexcept {
  const std::int32_t g = group_id.value();
  const std::int32_t size = block_size(g);
  const std::int32_t held = match.held_tokens();
  const std::int32_t end_block = begin + static_cast<std::int32_t>(out.size());
  KVFOLIO_DCHECK(begin >= 0 && end_block <= (held + size - 1) / size);
  std::fill(out.begin(), out.end(), kNone);
  if (out.empty()) return;
  const Path path{match.last_run, match.matched};
  if (group(g).full()) {
    fill_full(path, g, held, begin, out);
    return;
  }
  const GroupRule& rule = group(g).rule;
  const std::int32_t end = held - (match.whole || one_more ? 1 : 0);
  const std::int32_t first = group(g).size.block_of(rule.first_read(end));
  std::int32_t from = path.last;
  const auto take = [&](std::int32_t logical) {
    const Cover found = cover(path, g, logical, from);
    if (found.end < std::min((logical + 1) * size, held)) return;
    out[static_cast<std::size_t>(logical - begin)] = found.block;
  };
  for (std::int32_t logical = end_block - 1; logical >= std::max(first, begin); --logical) {
    take(logical);
  }
  const std::int32_t num_with_sinks = (std::min(rule.num_sinks(), held) + size - 1) / size;
  for (std::int32_t logical = std::min({num_with_sinks, first, end_block}) - 1; logical >= begin;
       --logical) {
    take(logical);
  }
}

}  // namespace kvfolio
