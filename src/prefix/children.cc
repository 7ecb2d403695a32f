// SPDX-License-Identifier: Apache-2.0
//
// Comparing, the table and the treap: see children.h.

#include "prefix/children.h"

#include <algorithm>

#include "base/hash.h"
#include "base/mutants.h"
#include "base/text.h"

namespace kvfolio {

using text::concat;

namespace {

std::int32_t leftmost(const RunStore& runs, std::int32_t r) noexcept {
  while (runs.run(r).left != RunStore::kNone) r = runs.run(r).left;
  return r;
}

}  // namespace

bool Children::allocate(std::int32_t max_runs, std::int32_t unit, std::uint64_t seed) noexcept {
  unit_ = unit;
  seed_ = seed;
  return table_.allocate(max_runs);
}

// ---- comparing ----

std::int32_t Children::same_tokens(const std::int32_t* a, const std::int32_t* b,
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

std::int32_t Children::common_prefix(std::int32_t r, std::int32_t at,
                                     std::span<const std::int32_t> tokens,
                                     std::span<const MediaSpan> media) const noexcept {
  const Run& own = run(r);
  const std::int32_t n = std::min(own.end() - at, static_cast<std::int32_t>(tokens.size()));
  const std::int32_t same = same_tokens(runs_.tokens(r) + (at - own.start), tokens.data(), n);
  if (own.extents == kNone && media.empty()) return same;
  if (mutant(Mutant::kExtrasNotCompared)) return same;
  return media_.same(own.extents, at, at + same, media) - at;
}

Children::Compared Children::compare(std::int32_t r, std::span<const std::int32_t> tokens,
                                     std::span<const MediaSpan> media) const noexcept {
  const Run& own = run(r);
  const std::int32_t common = common_prefix(r, own.start, tokens, media);
  if (common == static_cast<std::int32_t>(tokens.size())) return {common, -1};
  if (common == own.length) return {common, 1};
  const std::int32_t ours = tokens[static_cast<std::size_t>(common)];
  const std::int32_t theirs = runs_.tokens(r)[common];
  if (ours != theirs) return {common, ours < theirs ? -1 : 1};
  // The same token, another medium.
  return {common, media_.order(own.extents, own.start + common, media)};
}

// ---- the hash table ----

std::uint64_t Children::seed_of(std::uint32_t chain) const noexcept {
  return seed_ + chain * std::uint64_t{0x9e3779b97f4a7c15};
}

std::uint32_t Children::next_hash(std::uint32_t chain, std::int32_t at, const std::int32_t* tokens,
                                  std::span<const MediaSpan> media) const noexcept {
  const std::uint64_t hash =
      hash_bytes(tokens, static_cast<std::size_t>(unit_) * 4, seed_of(chain));
  return static_cast<std::uint32_t>(MediaExtents::mix(hash, media, at, unit_));
}

std::uint32_t Children::next_hash(std::uint32_t chain, std::int32_t at, std::int32_t r,
                                  std::int32_t& extent) const noexcept {
  const Run& own = run(r);
  const std::uint64_t hash = hash_bytes(runs_.tokens(r) + (at - own.start),
                                        static_cast<std::size_t>(unit_) * 4, seed_of(chain));
  return static_cast<std::uint32_t>(media_.mix(hash, extent, at, unit_));
}

std::uint32_t Children::first_hash(std::int32_t r) const noexcept {
  std::int32_t extent = run(r).extents;
  return next_hash(run(run(r).parent).chain, run(r).start, r, extent);
}

std::uint32_t Children::chain_of(std::int32_t r) const noexcept {
  const Run& own = run(r);
  std::uint32_t chain = run(own.parent).chain;
  std::int32_t extent = own.extents;
  for (std::int32_t at = own.start; at + unit_ <= own.end(); at += unit_) {
    chain = next_hash(chain, at, r, extent);
  }
  return chain;
}

void Children::index(std::int32_t r) noexcept {
  table_.insert(r, run(r).hash);
  run(r).hashed = true;
}

void Children::unindex(std::int32_t r) noexcept {
  if (!run(r).hashed) return;
  run(r).hashed = false;
  table_.erase(r, run(r).hash);
}

std::int32_t Children::find(std::int32_t parent, std::span<const std::int32_t> tokens,
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
    runs_.prefetch(r);
    return run(r).parent == parent && common_prefix(r, above.end(), unit, media) == unit_;
  });
}

// ---- the treap ----

Children::Neighbours Children::nearest(std::int32_t parent, std::span<const std::int32_t> tokens,
                                       std::span<const MediaSpan> media) const noexcept {
  // In an ordered set the longest common prefix is with the predecessor or the successor, and both
  // lie on the way down.
  Neighbours found;
  for (std::int32_t r = run(parent).children; r != kNone;) {
    const Compared compared = compare(r, tokens, media);
    if (compared.common > found.common) found = {r, compared.common};
    r = compared.order < 0 ? run(r).left : run(r).right;
  }
  return found;
}

void Children::rotate_up(std::int32_t r) noexcept {
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

void Children::insert(std::int32_t parent, std::int32_t r, std::span<const std::int32_t> tokens,
                      std::span<const MediaSpan> media) noexcept {
  std::int32_t up = kNone;
  std::int32_t* link = &run(parent).children;
  while (*link != kNone) {
    up = *link;
    link = compare(up, tokens, media).order < 0 ? &run(up).left : &run(up).right;
  }
  *link = r;
  run(r).up = up;
  const std::uint64_t name = std::uint64_t{run(r).generation} << 32 | static_cast<std::uint32_t>(r);
  run(r).priority = static_cast<std::uint32_t>(mix_bits(seed_ ^ name));
  ++run(parent).num_children;
  while (run(r).up != kNone && run(r).priority < run(run(r).up).priority) rotate_up(r);
}

void Children::remove(std::int32_t r) noexcept {
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

void Children::replace(std::int32_t old_run, std::int32_t new_run) noexcept {
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

std::int32_t Children::first(std::int32_t parent) const noexcept {
  const std::int32_t top = run(parent).children;
  return top == kNone ? kNone : leftmost(runs_, top);
}

std::int32_t Children::before(std::int32_t r) const noexcept {
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

std::int32_t Children::next(std::int32_t r) const noexcept {
  if (run(r).right != kNone) return leftmost(runs_, run(r).right);
  std::int32_t up = run(r).up;
  while (up != kNone && run(up).right == r) {
    r = up;
    up = run(r).up;
  }
  return up;
}

// ---- copy and check ----

// A member that is not named here does not compile.
void Children::copy_from(const Children& other) noexcept {
  const auto& [runs, media, table, unit, seed] = other;
  KVFOLIO_CHECK(unit_ == unit && seed_ == seed);
  static_cast<void>(runs);  // each has its own
  static_cast<void>(media);
  table_.copy_from(table);
}

Status Children::check_run(std::int32_t r) const {
  const Run& at = run(r);
  const bool root = runs_.is_root(r);
  if (!root) {
    if (at.start % unit_ != 0)
      return RunStore::broken(r, concat("begins off the grid at ", at.start));
    if (at.hashed != (at.length >= unit_))
      return RunStore::broken(r, "hashed without a unit, or not");
    if (at.hashed && at.hash != first_hash(r)) return RunStore::broken(r, "its hash is stale");
    if (at.num_children > 0 && at.chain != chain_of(r)) {
      return RunStore::broken(r, "its chain is stale");
    }
  }
  if (at.num_children > 0 && at.end() % unit_ != 0) {
    return RunStore::broken(r, "children off the grid");
  }
  if (at.hashed || root) {
    const auto is_this = [r](std::int32_t other) { return other == r; };
    if (table_.find(at.hash, is_this) == kNone) {
      return RunStore::broken(r, "is not in the hash table");
    }
  }
  return check_order(r);
}

Status Children::check_order(std::int32_t parent) const {
  std::int32_t children = 0;
  std::int32_t last = kNone;
  for (std::int32_t c = first(parent); c != kNone; last = c, c = next(c), ++children) {
    const Run& at = run(c);
    if (!at.alive || at.parent != parent) {
      return RunStore::broken(parent, concat("a foreign child ", c));
    }
    if (last == kNone) continue;
    // Only tokens are compared here; equal tokens with other media are ordered by those.
    if (at.extents != kNone || run(last).extents != kNone) continue;
    const std::int32_t* a = runs_.tokens(last);
    const std::int32_t* b = runs_.tokens(c);
    const std::int32_t n = std::min(at.length, run(last).length);
    const std::int32_t same = same_tokens(a, b, n);
    if (same == n) {
      return RunStore::broken(parent, concat("child ", last, " is a prefix of ", c));
    }
    if (a[same] > b[same]) {
      return RunStore::broken(parent, concat("children ", last, " and ", c, " out of order"));
    }
  }
  const std::int32_t kept = run(parent).num_children;
  if (children == kept) return {};
  return RunStore::broken(parent, concat("has ", children, " children, kept ", kept));
}

}  // namespace kvfolio
