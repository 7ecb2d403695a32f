// SPDX-License-Identifier: Apache-2.0
//
// The longest prefix that every group can serve.
//
// walk() follows the query token by token and leaves the runs it passed in path_; the last may be
// matched in part, or be the neighbour that shares most inside a unit. Then each group says how far
// it can serve:
//   full    up to its first missing block; inside a block, as far as some block that begins with
//           the same tokens goes (the hit is a shared tail, copied at the first append)
//   window  a position p whose last window-1 tokens and sinks are all there, and where p lies
//           inside a block the token before it in any case, since a sequence goes on in that block;
//           found from the right, each missing block pushes p down to where it begins. Of a block
//           with sinks all tokens below p count: a sequence may be cut back into it, and offers it
//           again when it closes
// and the answer is the largest position on which all agree. Where that lies below what the path
// shares with the query, a path beside it may serve more (served_nearby()).

#include <algorithm>
#include <cstring>

#include "base/mutants.h"
#include "prefix/tree.h"

namespace kvfolio {
namespace {

// Tokens of a window group that a hit needs, the next one included.
std::int32_t reach_of(const TreeGroup& spec, std::int32_t length) noexcept {
  return std::min(spec.window, length + 1);
}

// Position p lies inside a span that attends to itself, with tokens of it on both sides.
bool cuts(const MediaSpan& span, std::int32_t p) noexcept {
  return span.attends_to_itself && span.begin < p && p < span.end;
}

}  // namespace

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
    chain = next_hash(chain, from + i * unit_, tokens.data() + std::int64_t{i} * unit_, media);
    hashes[static_cast<std::size_t>(i)] = chain;
  }
  for (const std::uint32_t hash : hashes) table_.prefetch(hash);
  std::array<std::int32_t, Ahead::kMost> names;
  ahead.num_runs = 0;
  for (const std::uint32_t hash : hashes) {
    const std::int32_t r = table_.find(hash, [](std::int32_t) { return true; });
    if (r == kNone) break;
    prefetch(r);
    names[static_cast<std::size_t>(ahead.num_runs++)] = r;
  }
  const auto runs = std::span(names).first(static_cast<std::size_t>(ahead.num_runs));
  for (const std::int32_t r : runs) {
    if (is_root(r)) continue;  // of an equal hash; its tokens are a key, which lies elsewhere
    __builtin_prefetch(tokens_of(r));
    for (std::int32_t g = 0; g < num_groups_; ++g) __builtin_prefetch(entries(r, g));
  }
  for (const std::int32_t r : runs) {
    for (std::int32_t g = 0; g < num_groups_; ++g) {
      const RunGroup& rg = slots(r, g);
      if (rg.whole()) continue;
      const std::int32_t block = entries(r, g)[0];
      if (block != kNone) __builtin_prefetch(&group(g).where[block]);
    }
  }
}

std::int32_t PrefixTree::Impl::walk(std::int32_t root, std::span<const std::int32_t> tokens,
                                    std::span<const MediaSpan> media) const noexcept {
  path_length_ = 0;
  std::int32_t r = root;
  std::size_t at = 0;
  Ahead ahead;
  while (at < tokens.size()) {
    const auto rest = tokens.subspan(at);
    // All that is on the path equals the query, so its hashes are good however long the runs are.
    std::int32_t unit = (static_cast<std::int32_t>(at) - ahead.from) / unit_;
    if (unit >= ahead.num_runs && path_length_ > 0 && run(r).length == unit_ &&
        run(r).num_children > 1) {
      look_ahead(r, rest, media, ahead);
      unit = 0;
    }
    std::int32_t child = kNone;
    if (rest.size() >= static_cast<std::size_t>(unit_)) {
      const bool known = unit < ahead.num_hashes;
      child = find_child(r, rest, media,
                         known ? &ahead.hashes[static_cast<std::size_t>(unit)] : nullptr);
    }
    if (child == kNone) {
      const Neighbours nearest = find_nearest(r, rest, media);
      if (nearest.best == kNone) break;
      path_[path_length_++] = nearest.best;
      at += static_cast<std::size_t>(nearest.common);
      break;
    }
    path_[path_length_++] = child;
    std::int32_t common = common_prefix(child, run(child).start, rest, media);
    if (mutant(Mutant::kChildComparedByFirstUnitOnly)) {
      common = std::min(run(child).length, static_cast<std::int32_t>(rest.size()));
    }
    at += static_cast<std::size_t>(common);
    if (static_cast<std::int32_t>(at) < run(child).end()) break;
    r = child;
  }
  return static_cast<std::int32_t>(at);
}

PrefixTree::Impl::Cover PrefixTree::Impl::cover(std::int32_t g,
                                                std::int32_t logical) const noexcept {
  const std::int32_t begin = logical * block_size(g);
  const std::int32_t end = begin + block_size(g);
  Cover best{begin, kNone};
  const auto consider = [&](std::int32_t r) {
    const RunGroup& rg = slots(r, g);
    const std::int32_t index = logical - rg.first;
    if (index < 0 || index >= rg.count) return;
    const std::int32_t block = entries(r, g)[index];
    if (block == kNone) return;
    const std::int32_t reach =
        std::min(static_cast<std::int32_t>(group(g).where[block].end), matched_);
    if (reach > best.end) best = {reach, block};
  };
  const std::int32_t* first = path_.data();
  const std::int32_t* last = std::partition_point(
      first, first + path_length_, [&](std::int32_t r) { return run(r).start < end; });
  for (const std::int32_t* at = last; at != first && run(at[-1]).end() > begin; --at) {
    consider(at[-1]);
  }
  if (best.end >= std::min(end, matched_) || path_length_ == 0) return best;
  // The block may end below: any descendant of the last run begins with the same tokens.
  std::int32_t r = path_[path_length_ - 1];
  while (run(r).end() < end && run(r).num_children > 0) {
    r = run(r).children;
    consider(r);
  }
  return best;
}

std::int32_t PrefixTree::Impl::whole_blocks(std::int32_t g, std::int32_t limit) const noexcept {
  const std::int32_t size = block_size(g);
  std::int32_t next = 0;  // first logical block not found yet
  bool missing = false;
  for (std::int32_t j = 0; j < path_length_ && !missing && next * size < limit; ++j) {
    const std::int32_t r = path_[j];
    const RunGroup& rg = slots(r, g);
    if (rg.whole()) {
      next = rg.first + rg.count;
      continue;
    }
    const std::int32_t* entry = entries(r, g);
    while (next - rg.first < rg.count) {
      const std::int32_t block = entry[next - rg.first];
      if (block == kNone || static_cast<std::int32_t>(group(g).where[block].end) % size != 0) {
        // A block that ends beyond this run may be kept further down.
        missing = (next + 1) * size <= run(r).end();
        break;
      }
      ++next;
    }
  }
  return next;
}

std::int32_t PrefixTree::Impl::served_full(std::int32_t g, std::int32_t limit) const noexcept {
  const std::int32_t next = whole_blocks(g, limit);
  std::int32_t served = next * block_size(g);
  if (served < limit) served = std::max(served, cover(g, next).end);
  return std::min({served, limit, matched_});
}

std::int32_t PrefixTree::Impl::served_window(std::int32_t g, std::int32_t limit,
                                             std::int32_t window,
                                             std::int32_t floor) const noexcept {
  const std::int32_t size = block_size(g);
  std::int32_t at = std::min(limit, matched_);
  const auto need = [&](std::int32_t logical) {
    const std::int32_t reach = cover(g, logical).end;
    if (reach < std::min((logical + 1) * size, at)) at = reach;
  };
  for (std::int32_t logical = 0; logical * size < std::min(group(g).spec.num_sinks, at);
       ++logical) {
    need(logical);
  }
  for (std::int32_t logical = (at - 1) / size; at > floor && logical >= 0; --logical) {
    if ((logical + 1) * size <= at - window + 1) break;
    need(logical);
  }
  return at;
}

std::int32_t PrefixTree::Impl::served(std::int32_t limit, std::int32_t extra_window,
                                      std::span<const MediaSpan> media) const noexcept {
  std::int32_t at = std::min(limit, matched_);
  for (std::int32_t g = 0; g < num_groups_; ++g) {
    if (group(g).full()) at = served_full(g, at);
  }
  return served_by_windows(at, extra_window, media, 0);
}

std::int32_t PrefixTree::Impl::served_by_windows(std::int32_t at, std::int32_t extra_window,
                                                 std::span<const MediaSpan> media,
                                                 std::int32_t floor) const noexcept {
  for (std::int32_t before = -1; before != at && at > floor;) {
    before = at;
    for (const MediaSpan& span : media) {
      if (cuts(span, at)) at = span.begin;
    }
    for (std::int32_t g = 0; g < num_groups_; ++g) {
      if (group(g).full()) continue;
      const std::int32_t window = reach_of(group(g).spec, matched_) + extra_window;
      at = served_window(g, at, window, floor);
    }
  }
  return at;
}

// The path may lack a block that one beside it has, which begins with as many of the query's tokens
// or with few less. So each branch of the path is asked, from the deepest up, as long as a sibling
// of the path's run there can share more than what is found; its neighbours in order come first,
// since they share most. What lies in front of a branch is the same for all: there it is known that
// no position up to `floor` serves more, and that full groups have every block.
std::int32_t PrefixTree::Impl::served_nearby(std::int32_t limit, std::int32_t at_least,
                                             std::int32_t extra_window,
                                             std::span<const std::int32_t> tokens,
                                             std::span<const MediaSpan> media) const noexcept {
  std::int32_t found = served(limit, extra_window, media);
  if (found >= std::min(limit, matched_) || path_length_ == 0) return found;
  // Of a branch at or behind it, no sibling serves more: some full group lacks a block before it.
  std::int32_t end = matched_ + 1;
  for (std::int32_t g = 0; g < num_groups_; ++g) {
    if (!group(g).full()) continue;
    end = std::min(end, (whole_blocks(g, matched_) + 1) * block_size(g));
  }
  const std::int32_t walked_length = path_length_;
  const std::int32_t walked_matched = matched_;
  std::int32_t best = kNone;
  std::int32_t best_at = 0;  // in the path
  std::int32_t best_matched = 0;
  int tries = kMostTries;
  const auto take = [&](std::int32_t more, std::int32_t at, std::int32_t r) {
    if (more <= found || more < at_least) return;
    found = more;
    best = r;
    best_at = at;
    best_matched = matched_;
  };
  // Where the query ends with the path's last run, a block that it ends inside may end in any run
  // below.
  const std::int32_t last = path_[walked_length - 1];
  if (walked_matched == run(last).end() && run(last).num_children > 1) {
    path_length_ = walked_length + 1;
    std::int32_t r = leftmost(run(last).children);
    for (int asked = 0; asked < kMostTriesOnASide && r != kNone; ++asked, --tries) {
      path_[walked_length] = r;
      take(served(limit, extra_window, media), walked_length, r);
      r = treap_next(r);
    }
  }
  for (std::int32_t j = walked_length - 1; j >= 0 && tries > 0; --j) {
    const std::int32_t walked = path_[j];
    const std::int32_t start = run(walked).start;
    const std::int32_t shared = std::min(start + unit_ - 1, limit);  // by a sibling, at most
    if (shared <= found || shared < at_least) break;
    if (start >= end) continue;
    std::int32_t floor = start;
    for (const Group& each : groups_) floor = std::min(floor, each.size.begin_of(start));
    path_length_ = j + 1;
    const auto rest = tokens.subspan(static_cast<std::size_t>(start));
    for (const bool forward : {false, true}) {
      std::int32_t r = walked;
      for (int asked = 0; asked < kMostTriesOnASide && tries > 0; ++asked) {
        r = forward ? treap_next(r) : treap_before(r);
        if (r == kNone) break;
        const std::int32_t common = start + common_prefix(r, start, rest, media);
        if (common <= std::max(found, floor)) break;  // further out they share less still
        --tries;
        path_[j] = r;
        matched_ = common;
        std::int32_t more = std::min(limit, common);
        for (std::int32_t g = 0; g < num_groups_; ++g) {
          if (group(g).full()) more = std::min(more, cover(g, group(g).size.block_of(start)).end);
        }
        more = served_by_windows(more, extra_window, media, std::max(found, floor));
        if (more > floor) take(more, j, r);
      }
    }
    path_[j] = walked;
  }
  if (best == kNone) {
    path_length_ = walked_length;
    matched_ = walked_matched;
  } else {
    path_[best_at] = best;
    path_length_ = best_at + 1;
    matched_ = best_matched;
  }
  return found;
}

PrefixMatch PrefixTree::Impl::match(std::int32_t root, std::span<const std::int32_t> tokens,
                                    std::span<const MediaSpan> media, std::int32_t max_tokens,
                                    bool allow_whole) const noexcept {
  PrefixMatch found;
  matched_ = walk(root, tokens, media);
  const auto size = static_cast<std::int32_t>(tokens.size());
  // Neither does the hit end inside such a span, nor are its tokens taken for those of a prompt
  // that ends inside: they have read more of it.
  const bool splits_media = std::any_of(media.begin(), media.end(), [&](const MediaSpan& span) {
    return cuts(span, size - 1) || cuts(span, size);
  });
  found.whole = allow_whole && !splits_media && size > 0 && matched_ == size &&
                served_nearby(size, size, 1, tokens, media) == size;
  found.tokens =
      found.whole ? size - 1 : served_nearby(std::max(max_tokens, 0), 0, 0, tokens, media);
  found.run = root;
  const std::int32_t position = found.held_tokens() / unit_ * unit_;
  for (std::int32_t j = path_length_ - 1; j >= 0 && found.run == root && position > 0; --j) {
    if (run(path_[j]).start < position) found.run = path_[j];
  }
  return found;
}

void PrefixTree::Impl::fill_table(const PrefixMatch& match, GroupId group_id,
                                  std::span<std::int32_t> out, bool one_more) const noexcept {
  const std::int32_t g = group_id.value();
  const std::int32_t size = block_size(g);
  const std::int32_t held = match.held_tokens();
  const auto count = static_cast<std::int32_t>(out.size());
  std::fill(out.begin(), out.end(), kNone);
  if (count == 0) return;
  if (group(g).full()) {
    for (std::int32_t j = 0; j < path_length_; ++j) {
      const RunGroup& rg = slots(path_[j], g);
      if (rg.first >= count) break;
      const std::int32_t* entry = entries(path_[j], g);
      const std::int32_t n = std::min(rg.count, count - rg.first);
      if (rg.num_live == rg.count) {
        std::memcpy(out.data() + rg.first, entry, static_cast<std::size_t>(n) * 4);
        continue;
      }
      std::int32_t* to = out.data() + rg.first;
      for (std::int32_t i = 0; i < n; ++i) {
        if (entry[i] != kNone) to[i] = entry[i];
      }
    }
    std::int32_t& last = out.back();
    if (last == kNone || static_cast<std::int32_t>(group(g).where[last].end) < held) {
      last = cover(g, count - 1).block;
    }
    return;
  }
  const TreeGroup& spec = group(g).spec;
  const std::int32_t back = reach_of(spec, held) - 1 + (match.whole || one_more ? 1 : 0);
  const std::int32_t first = std::max(0, held - back);
  const auto take = [&](std::int32_t logical) {
    const Cover found = cover(g, logical);
    if (found.end < std::min((logical + 1) * size, held)) return;
    out[static_cast<std::size_t>(logical)] = found.block;
  };
  for (std::int32_t logical = first / size; logical < count; ++logical) take(logical);
  const std::int32_t sinks = std::min(spec.num_sinks, held);
  for (std::int32_t logical = 0; logical * size < sinks; ++logical) {
    if (out[static_cast<std::size_t>(logical)] == kNone) take(logical);
  }
}

}  // namespace kvfolio
