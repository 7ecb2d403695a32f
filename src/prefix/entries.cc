// SPDX-License-Identifier: Apache-2.0
//
// Entries: which block a run keeps for a logical block of a group, whether somebody uses it, and
// which idle ones eviction may take.
//
// For a full group each run knows its last live and its last busy entry and how many children have
// live or busy entries below. From these follow, in O(1),
//   candidate:  idle, the last live entry of its run, nothing live below;
//   evictable:  idle, behind the last busy entry of its run, nothing busy below (`cold` counts
//   them).
// A sequence holds and releases its blocks from head to tail and from tail to head, so a scan for
// the next last entry passes those that change and no others; flips climb towards the root only
// when a run gains its first or loses its last live (busy) entry.

#include <algorithm>

#include "prefix/tree.h"

namespace kvfolio {

void PrefixTree::Impl::tell_candidate(std::int32_t g, std::int32_t block,
                                      bool candidate) const noexcept {
  if (observer_ != nullptr) observer_->on_candidate(GroupId(g), BlockId(block), candidate);
}

bool PrefixTree::Impl::is_candidate(std::int32_t r, std::int32_t g,
                                    std::int32_t index) const noexcept {
  const RunGroup& rg = slots(r, g);
  if (index == kNone) return false;
  const std::int32_t block = entries(r, g)[index];
  if (block == kNone || group(g).where[block].idle == 0) return false;
  return !group(g).full() || (index == rg.last_live && rg.live_kids == 0);
}

// The subtree of r gained its first live entry or lost its last.
void PrefixTree::Impl::live_changed(std::int32_t r, std::int32_t g, bool was_live) noexcept {
  while (has_live(r, g) != was_live) {
    const std::int32_t parent = run(r).parent;
    if (parent == kNone) return;
    const bool parent_was_live = has_live(parent, g);
    RunGroup& rg = slots(parent, g);
    rg.live_kids += was_live ? -1 : 1;
    // The parent's last entry is a candidate while nothing lives below.
    if (rg.live_kids == (was_live ? 0 : 1) && rg.last_live != kNone) {
      const std::int32_t block = entries(parent, g)[rg.last_live];
      if (group(g).where[block].idle != 0) tell_candidate(g, block, was_live);
    }
    r = parent;
    was_live = parent_was_live;
  }
}

void PrefixTree::Impl::busy_changed(std::int32_t r, std::int32_t g, bool was_busy) noexcept {
  while (has_busy(r, g) != was_busy) {
    const std::int32_t parent = run(r).parent;
    if (parent == kNone) return;
    const bool parent_was_busy = has_busy(parent, g);
    RunGroup& rg = slots(parent, g);
    rg.busy_kids += was_busy ? -1 : 1;
    if (was_busy && rg.busy_kids == 0) group(g).evictable += rg.cold;
    if (!was_busy && rg.busy_kids == 1) group(g).evictable -= rg.cold;
    r = parent;
    was_busy = parent_was_busy;
  }
}

void PrefixTree::Impl::recount(std::int32_t r, std::int32_t g) noexcept {
  RunGroup& rg = slots(r, g);
  const std::int32_t* entry = entries(r, g);
  rg.num_live = rg.num_partial = rg.cold = 0;
  rg.last_live = rg.last_busy = kNone;
  for (std::int32_t i = 0; i < rg.count; ++i) {
    if (entry[i] == kNone) continue;
    const Where& where = group(g).where[entry[i]];
    ++rg.num_live;
    rg.num_partial += partial(g, static_cast<std::int32_t>(where.end)) ? 1 : 0;
    rg.last_live = i;
    if (!group(g).full()) continue;
    if (where.idle != 0) {
      ++rg.cold;
    } else {
      rg.cold = 0;
      rg.last_busy = i;
    }
  }
}

// Hangs a busy block in an empty slot.
void PrefixTree::Impl::put_entry(std::int32_t r, std::int32_t g, std::int32_t index,
                                 std::int32_t block, std::int32_t end) noexcept {
  RunGroup& rg = slots(r, g);
  std::int32_t* entry = entries(r, g);
  KVFOLIO_CHECK(entry[index] == kNone && group(g).where[block].run == 0);
  entry[index] = block;
  Where& where = group(g).where[block];
  where.run = r + 1;
  where.end = static_cast<std::uint32_t>(end) & 0x7fffffffu;
  where.idle = 0;
  ++rg.num_live;
  rg.num_partial += partial(g, end) ? 1 : 0;
  if (!group(g).full()) {
    rg.last_live = std::max(rg.last_live, index);
    return;
  }
  if (index > rg.last_live) {
    const bool was_live = has_live(r, g);
    if (is_candidate(r, g, rg.last_live)) tell_candidate(g, entry[rg.last_live], false);
    rg.last_live = index;
    live_changed(r, g, was_live);
  }
  if (index <= rg.last_busy) return;
  // The new entry does not count among the cold ones yet.
  ++rg.cold;
  if (rg.busy_kids == 0) ++group(g).evictable;
  busy_up_to(r, g, index);
}

// Empties a slot, whoever is in it. Tells nobody that the block is unhung.
void PrefixTree::Impl::take_entry(std::int32_t g, std::int32_t block) noexcept {
  Where& where = group(g).where[block];
  const std::int32_t r = where.run - 1;
  const auto end = static_cast<std::int32_t>(where.end);
  RunGroup& rg = slots(r, g);
  std::int32_t* entry = entries(r, g);
  const std::int32_t index = index_of(r, g, end);
  KVFOLIO_CHECK(entry[index] == block);
  if (where.idle != 0) {
    if (is_candidate(r, g, index)) tell_candidate(g, block, false);
  } else {
    where.idle = 1;
    if (group(g).full()) {
      no_longer_busy(r, g);
    } else {
      ++group(g).evictable;
    }
  }
  const bool was_live = has_live(r, g);
  if (group(g).full()) {
    if (index > rg.last_busy) {
      --rg.cold;
      if (rg.busy_kids == 0) --group(g).evictable;
    }
  } else {
    --group(g).evictable;
  }
  entry[index] = kNone;
  where = {};
  --rg.num_live;
  rg.num_partial -= partial(g, end) ? 1 : 0;
  if (index != rg.last_live) return;
  do {
    --rg.last_live;
  } while (rg.last_live >= 0 && entry[rg.last_live] == kNone);
  if (!group(g).full()) return;
  if (is_candidate(r, g, rg.last_live)) tell_candidate(g, entry[rg.last_live], true);
  live_changed(r, g, was_live);
}

// The entry at `index`, behind the last busy one, is busy: those up to it are cold no more.
void PrefixTree::Impl::busy_up_to(std::int32_t r, std::int32_t g, std::int32_t index) noexcept {
  RunGroup& rg = slots(r, g);
  const bool was_busy = has_busy(r, g);
  std::int32_t covered = index - rg.last_busy;
  if (rg.num_live < rg.count) {
    const std::int32_t* entry = entries(r, g);
    covered = 0;
    for (std::int32_t i = rg.last_busy + 1; i <= index; ++i) covered += entry[i] != kNone ? 1 : 0;
  }
  rg.cold -= covered;
  if (rg.busy_kids == 0) group(g).evictable -= covered;
  rg.last_busy = index;
  busy_changed(r, g, was_busy);
}

// Entries of the run became idle, the last busy one perhaps among them.
void PrefixTree::Impl::no_longer_busy(std::int32_t r, std::int32_t g) noexcept {
  RunGroup& rg = slots(r, g);
  const std::int32_t* entry = entries(r, g);
  const FixedArray<Where>& where = group(g).where;
  std::int32_t freed = 0;
  std::int32_t i = rg.last_busy;
  for (; i >= 0; --i) {
    if (entry[i] == kNone) continue;
    if (where[entry[i]].idle == 0) break;
    ++freed;
  }
  if (freed == 0) return;
  rg.last_busy = i;
  rg.cold += freed;
  if (rg.busy_kids == 0) group(g).evictable += freed;
  busy_changed(r, g, true);
}

// A run at a time: its counts change once for all of its blocks.
void PrefixTree::Impl::mark(std::int32_t g, std::span<const std::int32_t> blocks,
                            bool idle) noexcept {
  FixedArray<Where>& where = group(g).where;
  for (std::size_t i = 0; i < blocks.size();) {
    const std::int32_t r = where[blocks[i]].run - 1;
    KVFOLIO_CHECK(r >= 0);
    const bool full = group(g).full();
    const RunGroup& rg = slots(r, g);
    const std::int32_t last = full && rg.live_kids == 0 ? entries(r, g)[rg.last_live] : kNone;
    std::uint32_t end = 0;  // of those that change
    for (; i < blocks.size() && where[blocks[i]].run == r + 1; ++i) {
      Where& at = where[blocks[i]];
      if ((at.idle != 0) == idle) continue;
      at.idle = idle ? 1 : 0;
      end = std::max<std::uint32_t>(end, at.end);
      if (!full) group(g).evictable += idle ? 1 : -1;
      if (!full || blocks[i] == last) tell_candidate(g, blocks[i], idle);
    }
    if (!full || end == 0) continue;
    const std::int32_t index = index_of(r, g, static_cast<std::int32_t>(end));
    if (idle) {
      no_longer_busy(r, g);
    } else if (index > rg.last_busy) {
      busy_up_to(r, g, index);
    }
  }
}

void PrefixTree::Impl::unhang(std::int32_t g, std::int32_t block) noexcept {
  const std::int32_t r = group(g).where[block].run - 1;
  KVFOLIO_CHECK(r >= 0);
  take_entry(g, block);
  if (observer_ != nullptr) observer_->on_unhung(GroupId(g), BlockId(block), BlockId());
  cut(r);
}

void PrefixTree::Impl::evict(std::int32_t g, std::int32_t block) noexcept {
  const Where where = group(g).where[block];
  KVFOLIO_CHECK(where.run != 0 && where.idle != 0);
  const std::int32_t r = where.run - 1;
  const std::int32_t begin = group(g).size.begin_of(static_cast<std::int32_t>(where.end) - 1);
  ++run(r).places;  // stays while we are below it
  take_entry(g, block);
  if (observer_ != nullptr) observer_->on_unhung(GroupId(g), BlockId(block), BlockId());

  if (group(g).full() && num_groups_ > 1) {
    // Children before parents, so that a run may vanish behind us.
    const auto deepest = [this](std::int32_t at) {
      while (run(at).num_children > 0) at = leftmost(run(at).children);
      return at;
    };
    for (std::int32_t at = deepest(r);;) {
      for (std::int32_t h = 0; h < num_groups_; ++h) {
        const RunGroup& rg = slots(at, h);
        for (std::int32_t i = h == g ? kNone : rg.last_live; i >= 0; --i) {
          if ((rg.first + i) * block_size(h) < begin) break;
          const std::int32_t other = entries(at, h)[i];
          if (other == kNone || group(h).where[other].idle == 0) continue;
          take_entry(h, other);
          if (observer_ != nullptr) observer_->on_unhung(GroupId(h), BlockId(other), BlockId());
        }
      }
      if (at == r) break;
      const std::int32_t sibling = treap_next(at);
      const std::int32_t next = sibling != kNone ? deepest(sibling) : run(at).parent;
      cut_one(at);
      at = next;
    }
  }

  --run(r).places;
  cut(r);
}

}  // namespace kvfolio
