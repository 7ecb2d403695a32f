// SPDX-License-Identifier: Apache-2.0
//
// Finding the child of a run. Two structures hold the same children:
//   - one hash table for the whole tree, keyed by the path up to the end of a run's first unit, for
//     an exact next unit (run_table.h). Such a key needs the query alone, so those of several units
//     can be looked for at once (look_ahead()), and no split changes it.
//   - a treap per run, ordered position by position by (token, medium), for the neighbour that
//     shares most with a query inside the unit. Priorities are hashes of the run's name, so the
//     shape does not depend on the order of insertion and nobody can steer it with prompts.
// No sibling is a prefix of another, so any two differ inside their first unit and comparing never
// goes deeper than that.

#include <algorithm>
#include <cstring>

#include "base/hash.h"
#include "base/mutants.h"
#include "prefix/tree.h"

namespace kvfolio {

// ---- comparing ----

std::int32_t PrefixTree::Impl::same_tokens(const std::int32_t* a, const std::int32_t* b,
                                           std::int32_t n) noexcept {
  // Sixteen at a time without a branch inside: compilers turn this into vector compares.
  std::int32_t i = 0;
  for (; i + 16 <= n; i += 16) {
    std::int32_t differ = 0;
    for (std::int32_t j = 0; j < 16; ++j) differ |= a[i + j] ^ b[i + j];
    if (differ != 0) break;
  }
  while (i < n && a[i] == b[i]) ++i;
  return i;
}

std::int32_t PrefixTree::Impl::same_media(std::int32_t r, std::int32_t from, std::int32_t to,
                                          std::span<const MediaSpan> media) const noexcept {
  std::int32_t e = run(r).extents;
  while (e != kNone && extents_[e].end <= from) e = extents_[e].next;
  std::size_t m = 0;
  while (m < media.size() && media[m].end <= from) ++m;
  for (std::int32_t at = from; at < to;) {
    const Extent* own = e != kNone ? &extents_[e] : nullptr;
    const MediaSpan* asked = m < media.size() ? &media[m] : nullptr;
    const bool in_own = own != nullptr && own->begin <= at;
    const bool in_asked = asked != nullptr && asked->begin <= at;
    if (in_own != in_asked) return at;
    if (in_own && (own->offset + (at - own->begin) != at - asked->begin ||
                   own->span_length != asked->end - asked->begin ||
                   own->attends_to_itself != asked->attends_to_itself ||
                   own->content_id != asked->content_id)) {
      return at;
    }
    std::int32_t next = to;
    if (own != nullptr) next = std::min(next, in_own ? own->end : own->begin);
    if (asked != nullptr) next = std::min(next, in_asked ? asked->end : asked->begin);
    at = next;
    if (own != nullptr && own->end <= at) e = own->next;
    if (asked != nullptr && asked->end <= at) ++m;
  }
  return to;
}

std::int32_t PrefixTree::Impl::common_prefix(std::int32_t r, std::int32_t at,
                                             std::span<const std::int32_t> tokens,
                                             std::span<const MediaSpan> media) const noexcept {
  const Run& own = run(r);
  const std::int32_t n = std::min(own.end() - at, static_cast<std::int32_t>(tokens.size()));
  const std::int32_t same = same_tokens(tokens_of(r) + (at - own.start), tokens.data(), n);
  if (own.extents == kNone && media.empty()) return same;
  if (mutant(Mutant::kExtrasNotCompared)) return same;
  return same_media(r, at, at + same, media) - at;
}

PrefixTree::Impl::Compared PrefixTree::Impl::compare(
    std::int32_t r, std::span<const std::int32_t> tokens,
    std::span<const MediaSpan> media) const noexcept {
  const Run& own = run(r);
  const std::int32_t common = common_prefix(r, own.start, tokens, media);
  if (common == static_cast<std::int32_t>(tokens.size())) return {common, -1};
  if (common == own.length) return {common, 1};
  const std::int32_t ours = tokens[static_cast<std::size_t>(common)];
  const std::int32_t theirs = tokens_of(r)[common];
  if (ours != theirs) return {common, ours < theirs ? -1 : 1};
  // Same token, other medium: none before some, then by content, place and length.
  const std::int32_t at = own.start + common;
  std::int32_t e = own.extents;
  while (e != kNone && extents_[e].end <= at) e = extents_[e].next;
  std::size_t m = 0;
  while (m < media.size() && media[m].end <= at) ++m;
  const bool in_own = e != kNone && extents_[e].begin <= at;
  const bool in_asked = m < media.size() && media[m].begin <= at;
  if (!in_asked) return {common, -1};
  if (!in_own) return {common, 1};
  const Extent& own_extent = extents_[e];
  const MediaSpan& asked = media[m];
  int order =
      std::memcmp(asked.content_id.data(), own_extent.content_id.data(), asked.content_id.size());
  if (order == 0) order = (at - asked.begin) - (own_extent.offset + (at - own_extent.begin));
  if (order == 0) order = (asked.end - asked.begin) - own_extent.span_length;
  if (order == 0) order = int{asked.attends_to_itself} - int{own_extent.attends_to_itself};
  KVFOLIO_CHECK(order != 0);
  return {common, order < 0 ? -1 : 1};
}

// ---- the hash table ----

namespace {

std::uint64_t mix_medium(std::uint64_t hash, const std::array<std::byte, 32>& content_id,
                         std::int32_t from, std::int32_t to, std::int32_t offset,
                         std::int32_t span_length, bool attends_to_itself) noexcept {
  const std::int32_t where[] = {from, to, offset, span_length, int{attends_to_itself}};
  hash = hash_bytes(where, sizeof where, hash);
  return hash_bytes(content_id.data(), content_id.size(), hash);
}

}  // namespace

std::uint64_t PrefixTree::Impl::seed_of(std::uint32_t chain) const noexcept {
  return hash_seed_ + chain * std::uint64_t{0x9e3779b97f4a7c15};
}

std::uint32_t PrefixTree::Impl::next_hash(std::uint32_t chain, std::int32_t at,
                                          const std::int32_t* tokens,
                                          std::span<const MediaSpan> media) const noexcept {
  std::uint64_t hash = hash_bytes(tokens, static_cast<std::size_t>(unit_) * 4, seed_of(chain));
  auto span = std::partition_point(media.begin(), media.end(),
                                   [at](const MediaSpan& before) { return before.end <= at; });
  for (; span != media.end() && span->begin < at + unit_; ++span) {
    const std::int32_t from = std::max(span->begin, at);
    const std::int32_t to = std::min(span->end, at + unit_);
    hash = mix_medium(hash, span->content_id, from - at, to - at, from - span->begin,
                      span->end - span->begin, span->attends_to_itself);
  }
  return static_cast<std::uint32_t>(hash);
}

std::uint32_t PrefixTree::Impl::next_hash(std::uint32_t chain, std::int32_t at, std::int32_t r,
                                          std::int32_t& extent) const noexcept {
  const Run& own = run(r);
  std::uint64_t hash = hash_bytes(tokens_of(r) + (at - own.start),
                                  static_cast<std::size_t>(unit_) * 4, seed_of(chain));
  for (; extent != kNone && extents_[extent].begin < at + unit_; extent = extents_[extent].next) {
    const Extent& part = extents_[extent];
    const std::int32_t from = std::max(part.begin, at);
    const std::int32_t to = std::min(part.end, at + unit_);
    hash = mix_medium(hash, part.content_id, from - at, to - at, part.offset + (from - part.begin),
                      part.span_length, part.attends_to_itself);
    if (part.end > at + unit_) break;
  }
  return static_cast<std::uint32_t>(hash);
}

std::uint32_t PrefixTree::Impl::first_hash(std::int32_t r) const noexcept {
  std::int32_t extent = run(r).extents;
  return next_hash(run(run(r).parent).chain, run(r).start, r, extent);
}

std::uint32_t PrefixTree::Impl::chain_of(std::int32_t r) const noexcept {
  const Run& own = run(r);
  std::uint32_t chain = run(own.parent).chain;
  std::int32_t extent = own.extents;
  for (std::int32_t at = own.start; at + unit_ <= own.end(); at += unit_) {
    chain = next_hash(chain, at, r, extent);
  }
  return chain;
}

void PrefixTree::Impl::table_insert(std::int32_t r) noexcept {
  table_.insert(r, run(r).hash);
  run(r).hashed = true;
}

void PrefixTree::Impl::table_erase(std::int32_t r) noexcept {
  if (!run(r).hashed) return;
  run(r).hashed = false;
  table_.erase(r, run(r).hash);
}

// The child whose first unit is the query's, or kNone. The query has a unit of tokens at least.
std::int32_t PrefixTree::Impl::find_child(std::int32_t parent, std::span<const std::int32_t> tokens,
                                          std::span<const MediaSpan> media,
                                          const std::uint32_t* hash) const noexcept {
  const Run& above = run(parent);
  if (above.num_children == 0) return kNone;
  const auto unit = tokens.first(static_cast<std::size_t>(unit_));
  if (above.num_children == 1) {
    const std::int32_t r = above.children;
    return common_prefix(r, above.end(), unit, media) == unit_ ? r : kNone;
  }
  const std::uint32_t wanted =
      hash != nullptr ? *hash : next_hash(above.chain, above.end(), unit.data(), media);
  return table_.find(wanted, [&](std::int32_t r) {
    prefetch(r);
    return run(r).parent == parent && common_prefix(r, above.end(), unit, media) == unit_;
  });
}

// ---- the treap ----

PrefixTree::Impl::Neighbours PrefixTree::Impl::find_nearest(
    std::int32_t parent, std::span<const std::int32_t> tokens,
    std::span<const MediaSpan> media) const noexcept {
  // In an ordered set the longest common prefix is with the predecessor or the successor, and both
  // lie on the way down.
  Neighbours nearest;
  for (std::int32_t r = run(parent).children; r != kNone;) {
    const Compared compared = compare(r, tokens, media);
    if (compared.common > nearest.common) nearest = {r, compared.common};
    r = compared.order < 0 ? run(r).left : run(r).right;
  }
  return nearest;
}

void PrefixTree::Impl::rotate_up(std::int32_t r) noexcept {
  const std::int32_t p = run(r).up;
  const std::int32_t g = run(p).up;
  if (run(p).left == r) {
    run(p).left = run(r).right;
    if (run(r).right != kNone) run(run(r).right).up = p;
    run(r).right = p;
  } else {
    run(p).right = run(r).left;
    if (run(r).left != kNone) run(run(r).left).up = p;
    run(r).left = p;
  }
  run(p).up = r;
  run(r).up = g;
  if (g == kNone) {
    run(run(r).parent).children = r;
  } else {
    (run(g).left == p ? run(g).left : run(g).right) = r;
  }
}

void PrefixTree::Impl::treap_insert(std::int32_t parent, std::int32_t r,
                                    std::span<const std::int32_t> tokens,
                                    std::span<const MediaSpan> media) noexcept {
  std::int32_t up = kNone;
  std::int32_t* link = &run(parent).children;
  while (*link != kNone) {
    up = *link;
    link = compare(up, tokens, media).order < 0 ? &run(up).left : &run(up).right;
  }
  *link = r;
  run(r).up = up;
  ++run(parent).num_children;
  while (run(r).up != kNone && run(r).priority < run(run(r).up).priority) rotate_up(r);
}

void PrefixTree::Impl::treap_remove(std::int32_t r) noexcept {
  while (run(r).left != kNone && run(r).right != kNone) {
    const std::int32_t left = run(r).left;
    const std::int32_t right = run(r).right;
    rotate_up(run(left).priority < run(right).priority ? left : right);
  }
  const std::int32_t kid = run(r).left != kNone ? run(r).left : run(r).right;
  const std::int32_t up = run(r).up;
  if (kid != kNone) run(kid).up = up;
  if (up == kNone) {
    run(run(r).parent).children = kid;
  } else {
    (run(up).left == r ? run(up).left : run(up).right) = kid;
  }
  --run(run(r).parent).num_children;
  run(r).up = run(r).left = run(r).right = kNone;
}

void PrefixTree::Impl::treap_replace(std::int32_t old_run, std::int32_t new_run) noexcept {
  Run& old = run(old_run);
  Run& fresh = run(new_run);
  fresh.up = old.up;
  fresh.left = old.left;
  fresh.right = old.right;
  fresh.priority = old.priority;
  if (old.left != kNone) run(old.left).up = new_run;
  if (old.right != kNone) run(old.right).up = new_run;
  if (old.up == kNone) {
    run(old.parent).children = new_run;
  } else {
    (run(old.up).left == old_run ? run(old.up).left : run(old.up).right) = new_run;
  }
}

std::int32_t PrefixTree::Impl::leftmost(std::int32_t r) const noexcept {
  while (run(r).left != kNone) r = run(r).left;
  return r;
}

std::int32_t PrefixTree::Impl::treap_before(std::int32_t r) const noexcept {
  if (run(r).left != kNone) {
    r = run(r).left;
    while (run(r).right != kNone) r = run(r).right;
    return r;
  }
  std::int32_t up = run(r).up;
  while (up != kNone && run(up).left == r) {
    r = up;
    up = run(r).up;
  }
  return up;
}

std::int32_t PrefixTree::Impl::treap_next(std::int32_t r) const noexcept {
  if (run(r).right != kNone) return leftmost(run(r).right);
  std::int32_t up = run(r).up;
  while (up != kNone && run(up).right == r) {
    r = up;
    up = run(r).up;
  }
  return up;
}

}  // namespace kvfolio
