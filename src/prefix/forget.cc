// SPDX-License-Identifier: Apache-2.0
//
// Forgetting: all entries of a part of the tree go at once, busy or idle. The part is what begins
// with a string of tokens: the end of the run that the string ends in, and all runs below. The
// places of open sequences keep runs without entries alive.

#include "prefix/tree.h"

namespace kvfolio {

// The blocks of all runs below r that begin at `begin` or behind it lose their entries, but for one
// of group g; then the runs that nothing needs go. Children before parents. Requires: r has a
// place.
void PrefixTree::Impl::forget_below(std::int32_t r, std::int32_t begin, std::int32_t g,
                                    std::int32_t but) noexcept {
  const auto deepest = [this](std::int32_t at) {
    while (run(at).num_children > 0) at = children_.first(at);
    return at;
  };
  for (std::int32_t at = deepest(r); at != r;) {
    unhang_from(at, begin, g, but);
    const std::int32_t sibling = children_.next(at);
    const std::int32_t next = sibling != kNone ? deepest(sibling) : run(at).parent;
    cut_one(at);
    at = next;
  }
}

// The same, and the entries of r itself that end at `end` or behind it.
void PrefixTree::Impl::forget_run(std::int32_t r, std::int32_t end) noexcept {
  ++run(r).places;  // stays while we are below it
  forget_below(r, 0, kNone, kNone);
  for (std::int32_t g = 0; g < num_groups_ && !runs_.is_root(r); ++g) {
    for (std::int32_t i = entries(r, g).last_live; i >= 0; --i) {
      const std::int32_t block = blocks(r, g)[i];
      if (block == kNone) continue;
      if (group(g).where[block].end() < end) break;
      unhang_entry(g, block);
    }
  }
  --run(r).places;
  cut(r);
}

void PrefixTree::Impl::forget(std::int32_t root, std::span<const std::int32_t> tokens,
                              std::span<const MediaSpan> media) noexcept {
  const auto size = static_cast<std::int32_t>(tokens.size());
  const auto shared = [&](std::int32_t r) {  // with the string, from the start of a run on
    const auto rest = tokens.subspan(static_cast<std::size_t>(run(r).start));
    return children_.common_prefix(r, run(r).start, rest, media);
  };
  std::int32_t r = root;
  while (run(r).end() < size) {
    const auto rest = tokens.subspan(static_cast<std::size_t>(run(r).end()));
    if (rest.size() < static_cast<std::size_t>(unit_)) {
      // The string ends inside the first unit of any number of children.
      for (std::int32_t child = children_.first(r); child != kNone;) {
        const std::int32_t next = children_.next(child);
        if (shared(child) == static_cast<std::int32_t>(rest.size())) forget_run(child, size);
        child = next;
      }
      return;
    }
    const std::int32_t child = children_.find(r, rest, media);
    if (child == kNone) return;
    if (shared(child) < std::min(run(child).length, static_cast<std::int32_t>(rest.size()))) return;
    r = child;
  }
  forget_run(r, size);
}

bool PrefixTree::Impl::begins_with(std::int32_t r, std::int32_t root,
                                   std::span<const std::int32_t> tokens,
                                   std::span<const MediaSpan> media) const noexcept {
  const auto size = static_cast<std::int32_t>(tokens.size());
  KVFOLIO_DCHECK(size <= run(r).end());
  for (; !runs_.is_root(r); r = run(r).parent) {
    const Run& at = run(r);
    if (at.start >= size) continue;
    const auto piece =
        tokens.subspan(static_cast<std::size_t>(at.start),
                       static_cast<std::size_t>(std::min(at.end(), size) - at.start));
    const std::int32_t same = children_.common_prefix(r, at.start, piece, media);
    if (same < static_cast<std::int32_t>(piece.size())) return false;
  }
  return r == root;
}

std::int32_t PrefixTree::Impl::next_root(std::int32_t after) const noexcept {
  for (std::int32_t r = after + 1; r < runs_.num_touched(); ++r) {
    if (run(r).alive && runs_.is_root(r)) return r;
  }
  return kNone;
}

}  // namespace kvfolio
