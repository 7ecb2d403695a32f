// SPDX-License-Identifier: Apache-2.0
//
// What becomes findable, and when: tokens that are accepted, exact, named and whose step is far
// enough. kInOrder: committed, since whoever reads them comes later in the stream. kUnordered:
// complete.

#include <algorithm>
#include <cstring>

#include "manager/impl.h"

namespace kvfolio {

// Full blocks, and with `tail` the partial ones at the end.
void KVCacheManager::Impl::publish(std::int32_t slot, bool tail) noexcept {
  Sequence& s = sequences_[slot];
  if (!s.publishes) return;
  const std::int32_t unit = tree_->unit();
  const std::int32_t limit = publishable(s);
  const std::int32_t from = s.place.position;  // a multiple of the unit
  if (limit < (tail ? from : from + unit)) return;
  if (limit == from) {
    bool inside_a_block = false;  // of a group whose blocks are longer than a unit
    for (std::int32_t g = 0; g < num_groups(); ++g)
      inside_a_block |= group(g).size.offset_of(from) != 0;
    if (!inside_a_block) return;
  }
  const std::int32_t target = tail ? limit : limit / unit * unit;
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    offers_[static_cast<std::size_t>(g)].table = table(slot, g).blocks(arena());
  }
  std::int32_t* kept = arena().at(s.tail);
  const std::span<const std::int32_t> tokens(kept, static_cast<std::size_t>(target - from));
  // The tree is full: the coldest go, but not all of them for the sake of one.
  constexpr int kMostEvictions = 64;
  const std::span<const MediaSpan> media = media_of(s);
  for (int evictions = 0;
       !tree_->extend(s.place, tokens, media, offers_, tail, &counters_.blocks_published);
       ++evictions) {
    const bool can_ever_fit = media.size() <= static_cast<std::size_t>(options_.max_media_extents);
    if (!can_ever_fit || evictions == kMostEvictions || !evict_coldest()) {
      ++counters_.publications_skipped;
      stop_publishing(s);
      return;
    }
  }
  // The tree keeps the tokens up to the new place.
  const std::int32_t moved = s.place.position - from;
  const std::int32_t rest = s.tail_end() - s.place.position;
  if (moved > 0 && rest > 0) {
    std::memmove(kept, kept + moved, static_cast<std::size_t>(rest) * 4);
  }
  // A long prompt needed room for all of it. A unit, which truncate() may bring back, stays, and
  // so does what admit() promised.
  const std::int64_t needed =
      std::max({std::int64_t{rest}, std::int64_t{2} * unit, tail_cells(s, s.admitted)});
  if (SpanArena::capacity(s.tail) > 8 * (needed + SpanArena::kGranule)) {
    arena().shrink(s.tail, needed);
  }
}

void KVCacheManager::Impl::stop_publishing(Sequence& s) noexcept {
  s.publishes = false;
  tree_->leave(s.place);
  arena().release(s.tail);
}

}  // namespace kvfolio
