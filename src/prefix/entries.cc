// SPDX-License-Identifier: Apache-2.0
//
// Entries: which block a run keeps for a logical block of a group, whether it is in use, and
// which idle ones eviction may take.
//
// A full group has no gaps: a block has an entry only where the block before it has one. So nothing
// below an entry can be found without it, and what takes an entry away takes all below it too
// (unhang()). For each group a run knows its last live entry and its last idle one, and how many
// children have live or idle entries below. From these follow, in O(1), for a full group
//   leaf:  an idle entry with nothing live below, which leaves without taking another along;
//   head:  an idle entry with nothing idle below: busy blocks lose their entries when it leaves.
// Only the last idle entry of a run can be either, so a change of a run is found by comparing that
// one before and after (Change). In a window group every idle entry is a leaf.
//
// Changes climb towards the root only when a run gains its first or loses its last live (idle)
// entry.

#include <algorithm>

#include "prefix/tree.h"

namespace kvfolio {

// ---- candidates ----

// Inline, as begin_change(): each is called several times for each run that a call changes.
inline PrefixTree::Impl::NextOut PrefixTree::Impl::next_out(std::int32_t r,
                                                            std::int32_t g) const noexcept {
  const RunEntries& of = entries(r, g);
  if (!group(g).full() || of.last_idle == kNone || of.idle_kids > 0) return {};
  const bool is_leaf = of.last_idle == of.last_live && of.live_kids == 0;
  return {blocks(r, g)[of.last_idle], is_leaf ? Candidate::kLeaf : Candidate::kHead};
}

inline Candidate PrefixTree::Impl::candidate_of(std::int32_t g, std::int32_t block) const noexcept {
  const Where& where = group(g).where[block];
  if (where.run == 0 || !where.idle()) return Candidate::kNone;
  if (!group(g).full()) return Candidate::kLeaf;
  const NextOut next = next_out(where.run - 1, g);
  return next.block == block ? next.candidate : Candidate::kNone;
}

TreeChange PrefixTree::Impl::take_change() noexcept {
  TreeChange change = log_.take();
  if (change.kind == TreeChange::Kind::kCandidate) {
    change.candidate = candidate_of(change.group.value(), change.block.value());
  }
  return change;
}

inline PrefixTree::Impl::Change PrefixTree::Impl::begin_change(std::int32_t r,
                                                               std::int32_t g) const noexcept {
  return {r, g, has_live(r, g), has_idle(r, g), next_out(r, g)};
}

// Logs which entry of the run leaves next, if that is another one now, and lets its parents know.
void PrefixTree::Impl::end_change(const Change& changed) noexcept {
  Change change = changed;
  const std::int32_t g = change.group;
  for (;;) {
    const NextOut now = next_out(change.run, g);
    const NextOut& before = change.next_out;
    if (before.block != kNone && before.block != now.block) log_.candidate(g, before.block);
    if (now.block != kNone && (now.block != before.block || now.candidate != before.candidate)) {
      log_.candidate(g, now.block);
    }
    const int live = int{has_live(change.run, g)} - int{change.live};
    const int idle = int{has_idle(change.run, g)} - int{change.idle};
    const std::int32_t parent = run(change.run).parent;
    // A root has no entries, and nothing reads its counts.
    if ((live == 0 && idle == 0) || parent == kNone || runs_.is_root(parent)) return;
    change = begin_change(parent, g);
    entries(parent, g).live_kids += live;
    entries(parent, g).idle_kids += idle;
  }
}

// ---- counts of a run ----

// The last idle entry of the run at or before `index`, or kNone.
std::int32_t PrefixTree::Impl::last_idle_at(std::int32_t r, std::int32_t g,
                                            std::int32_t index) const noexcept {
  if (entries(r, g).num_idle == 0) return kNone;
  const std::int32_t* entry = blocks(r, g);
  while (index >= 0 && (entry[index] == kNone || !group(g).where[entry[index]].idle())) --index;
  return index;
}

void PrefixTree::Impl::recount(std::int32_t r, std::int32_t g) noexcept {
  RunEntries& of = entries(r, g);
  const std::int32_t* entry = blocks(r, g);
  of.num_live = of.num_partial = of.num_idle = 0;
  of.last_live = of.last_idle = kNone;
  for (std::int32_t i = 0; i < of.count; ++i) {
    if (entry[i] == kNone) continue;
    const Where& where = group(g).where[entry[i]];
    ++of.num_live;
    of.num_partial += partial(g, where.end()) ? 1 : 0;
    of.last_live = i;
    if (!where.idle()) continue;
    ++of.num_idle;
    of.last_idle = i;
  }
}

// ---- entries come and go ----

// Hangs a busy block where no entry is.
void PrefixTree::Impl::put_entry(std::int32_t r, std::int32_t g, std::int32_t index,
                                 std::int32_t block, std::int32_t end) noexcept {
  RunEntries& of = entries(r, g);
  std::int32_t* entry = blocks(r, g);
  KVFOLIO_CHECK(entry[index] == kNone && group(g).where[block].run == 0);
  Where& where = group(g).where[block];
  const auto put = [&] {
    entry[index] = block;
    where.run = r + 1;
    where.set(end, false);
    log_.hung(g, block);
    ++of.num_live;
    of.num_partial += partial(g, end) ? 1 : 0;
  };
  if (index < of.last_live) {  // in front of a live one: which leaves next stays so
    put();
    return;
  }
  const Change change = begin_change(r, g);
  put();
  of.last_live = index;
  end_change(change);
}

// Takes the entry of a block out of its run. The log does not hear that it is unhung.
void PrefixTree::Impl::take_entry(std::int32_t g, std::int32_t block) noexcept {
  Where& where = group(g).where[block];
  const std::int32_t r = where.run - 1;
  const std::int32_t end = where.end();
  RunEntries& of = entries(r, g);
  std::int32_t* entry = blocks(r, g);
  const std::int32_t index = runs_.index_of(r, g, end);
  KVFOLIO_CHECK(entry[index] == block);
  const bool idle = where.idle();
  if (!group(g).full()) {
    if (idle) log_.candidate(g, block);
    group(g).read[block] = 0;
  }
  const Change change = begin_change(r, g);
  entry[index] = kNone;
  where = {};
  --of.num_live;
  of.num_partial -= partial(g, end) ? 1 : 0;
  if (index == of.last_live) {
    while (of.last_live >= 0 && entry[of.last_live] == kNone) --of.last_live;
  }
  if (idle) {
    --of.num_idle;
    --group(g).num_idle;
    if (index == of.last_idle) of.last_idle = last_idle_at(r, g, index);
  }
  end_change(change);
}

// A run at a time: its counts change once for all of its blocks.
void PrefixTree::Impl::mark(std::int32_t g, std::span<const std::int32_t> blocks,
                            bool idle) noexcept {
  FixedArray<Where>& where = group(g).where;
  for (std::size_t i = 0; i < blocks.size();) {
    const std::int32_t r = where[blocks[i]].run - 1;
    KVFOLIO_CHECK(r >= 0);
    const Change change = begin_change(r, g);
    std::int32_t changed = 0;
    std::int32_t end = 0;  // of those that change
    for (; i < blocks.size() && where[blocks[i]].run == r + 1; ++i) {
      Where& at = where[blocks[i]];
      if (at.idle() == idle) continue;
      at.set(at.end(), idle);
      ++changed;
      end = std::max(end, at.end());
      if (!group(g).full()) log_.candidate(g, blocks[i]);
    }
    if (changed == 0) continue;
    RunEntries& of = entries(r, g);
    of.num_idle += idle ? changed : -changed;
    group(g).num_idle += idle ? changed : -changed;
    const std::int32_t index = runs_.index_of(r, g, end);
    if (idle) {
      of.last_idle = std::max(of.last_idle, index);
    } else if (index == of.last_idle) {
      of.last_idle = last_idle_at(r, g, index);
    }
    end_change(change);
  }
}

// ---- unhanging ----

void PrefixTree::Impl::unhang_entry(std::int32_t g, std::int32_t block) noexcept {
  take_entry(g, block);
  log_.unhung(g, block, block);
}

// Unhangs all blocks of a run that begin at `begin` or behind it, the last ones first, but for one
// block of group g.
void PrefixTree::Impl::unhang_from(std::int32_t r, std::int32_t begin, std::int32_t g,
                                   std::int32_t but) noexcept {
  for (std::int32_t h = 0; h < num_groups_; ++h) {
    const RunEntries& of = entries(r, h);
    for (std::int32_t i = of.last_live; i >= 0; --i) {
      if ((of.first + i) * block_size(h) < begin) break;
      const std::int32_t block = blocks(r, h)[i];
      if (block != kNone && (h != g || block != but)) unhang_entry(h, block);
    }
  }
}

// Without the entry of a full group no prompt reaches what lies below it, in any group: that goes
// first, children before parents.
void PrefixTree::Impl::unhang(std::int32_t g, std::int32_t block) noexcept {
  const Where where = group(g).where[block];
  KVFOLIO_CHECK(where.run != 0);
  const std::int32_t r = where.run - 1;
  ++run(r).places;  // stays while we are below it
  if (group(g).full()) {
    const std::int32_t begin = group(g).size.begin_of(where.end() - 1);
    bool live_below = false;
    for (std::int32_t h = 0; h < num_groups_; ++h) live_below |= entries(r, h).live_kids > 0;
    if (live_below) forget_below(r, begin, g, block);
    unhang_from(r, begin, g, block);
  }
  unhang_entry(g, block);
  --run(r).places;
  cut(r);
}

}  // namespace kvfolio
