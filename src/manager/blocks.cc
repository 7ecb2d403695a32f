// SPDX-License-Identifier: Apache-2.0
#include "manager/blocks.h"

#include <algorithm>
#include <array>

#include "base/mutants.h"
#include "manager/block_batch.h"

namespace kvfolio {

// ---- the tree's log ----

// What a change leads to may change the tree again (on_kept): its entries follow. No block is let
// go meanwhile.
std::int64_t Blocks::follow_changes(Published* published) noexcept {
  std::int64_t num_unhung = 0;
  while (tree_->has_changes()) {
    const TreeChange change = tree_->take_change();
    switch (change.kind) {
      case TreeChange::Kind::kHung:
        if (findable_.is_on()) findable_.add(change.group.value(), change.block.value());
        break;
      case TreeChange::Kind::kUnhung:
        ++num_unhung;
        if (findable_.is_on()) findable_.drop(change.group.value(), change.block.value());
        on_unhung(change.group, change.block, change.successor);
        break;
      case TreeChange::Kind::kKept:
        KVFOLIO_CHECK(published != nullptr);  // only extend() leaves such entries
        on_kept(change, *published);
        break;
      case TreeChange::Kind::kCandidate:
        on_candidate(change.group, change.block, change.candidate);
        break;
    }
  }
  return num_unhung;
}

void Blocks::on_unhung(GroupId group_id, BlockId block, BlockId successor) noexcept {
  const std::int32_t g = group_id.value();
  ++entry_changes_;
  room_.forget(g, block, successor);
  const bool is_cached = pool(g).state(block) == BlockState::kCached;
  if (!is_cached && !successor.valid()) {
    ++losses_;  // a closed sequence that waits for its step may still offer a retiring one
    if (evicting_ && is_held(g, block)) ++counters_.blocks_unhung;
  }
  if (!is_cached) return;  // its holders, or the step, free it
  room_.make_free(g, block);
  ++counters_.blocks_freed;
  if (evicting_) ++counters_.blocks_evicted;
}

// If two blocks hold equal tokens, a held one has the entry. A block that only steps use gives way.
void Blocks::on_kept(const TreeChange& change, Published& published) noexcept {
  if (!is_held(change.group.value(), change.block)) {
    tree_->replace(change.group, change.block, change.successor);
    ++published.num_hung;
    return;
  }
  const std::int32_t end = tree_->findable_end(change.group, change.block);
  const std::int32_t begin = group(change.group.value()).size.begin_of(end - 1);
  published.missed_from = std::min(published.missed_from, begin);
  published.missed_to = std::max(published.missed_to, end);
}

void Blocks::on_candidate(GroupId group_id, BlockId block, Candidate candidate) noexcept {
  const std::int32_t g = group_id.value();
  room_.set_turn(g, block, turn_of(g, block, candidate));
}

// A partial tail in which no prompt was found goes before all else: a stream of short requests must
// not flush prefixes that others share. A block of a window group that no end reads goes first as
// well: the window has passed it, and hits do not need it (borders.h). Last goes a block whose loss
// would make held blocks of its group lose their entries, and the border of a sequence.
EvictionTurn Blocks::turn_of(std::int32_t g, BlockId block, Candidate candidate) const noexcept {
  if (candidate == Candidate::kNone) return EvictionTurn::kNever;
  if (candidate == Candidate::kHead || room_.is_border(g, block)) return EvictionTurn::kLast;
  const bool is_partial = group(g).size.offset_of(tree_->findable_end(GroupId(g), block)) != 0;
  if (mutant(Mutant::kTailsLikeFullBlocks)) return EvictionTurn::kNormal;
  if (is_partial) return pool(g).wanted(block) ? EvictionTurn::kNormal : EvictionTurn::kFirst;
  const bool passed = group(g).windowed() && !tree_->is_read(GroupId(g), block);
  return passed && !mutant(Mutant::kPassedLikeOthers) ? EvictionTurn::kFirst
                                                      : EvictionTurn::kNormal;
}

void Blocks::count_border(std::int32_t g, BlockId block, int by) noexcept {
  room_.count_border(g, block, by);
  if (pool(g).state(block) == BlockState::kCached) {
    on_candidate(GroupId(g), block, Candidate::kLeaf);
  }
}

void Blocks::drop_entry(std::int32_t g, BlockId block) noexcept {
  if (tree_->is_findable(GroupId(g), block)) tree_->unhang(GroupId(g), block);
  follow_tree();
}

void Blocks::evict_entry(std::int32_t g, BlockId block) noexcept {
  evicting_ = true;
  tree_->unhang(GroupId(g), block);
  follow_tree();
  evicting_ = false;
}

// ---- blocks come ----

void Blocks::prefetch(std::int32_t g, std::span<const std::int32_t> blocks) const noexcept {
  const BlockPool& of = pool(g);
  for (const std::int32_t block : blocks) {
    if (block >= 0) of.prefetch(BlockId(block));
  }
  tree_->prefetch(GroupId(g), blocks);
}

void Blocks::hold(std::int32_t g, std::span<const std::int32_t> blocks) noexcept {
  BlockPool& pool = at(g);
  BlockBatch revived;
  const auto first = [](std::span<const std::int32_t> all) {
    return all.first(std::min<std::size_t>(all.size(), kBlocksAtOnce));
  };
  prefetch(g, first(blocks));
  while (!blocks.empty()) {
    const auto now = first(blocks);
    blocks = blocks.subspan(now.size());
    prefetch(g, first(blocks));
    for (const std::int32_t block : now) {
      if (block < 0) continue;
      if (pool.state(BlockId(block)) == BlockState::kCached) revived.add(block);
      pool.hold(BlockId(block));
    }
    tree_->set_busy(GroupId(g), revived.take());
    follow_tree();
  }
}

void Blocks::renew(std::int32_t g, BlockId block) noexcept {
  if (tree_->is_findable(GroupId(g), block)) evict_entry(g, block);
  at(g).renew(block);
}

void Blocks::note_hit_inside(std::int32_t g, BlockId block, std::int32_t offset,
                             std::int32_t row) noexcept {
  BlockPool& pool = at(g);
  pool.set_wanted(block, true);
  if (pool.refs(block) == 1 && pool.writer(block) == BlockPool::kNobody &&
      pool.valid(block) == offset) {
    pool.set_writer(block, row);
  }
}

void Blocks::note_peak() noexcept {
  counters_.blocks_used_peak = std::max(counters_.blocks_used_peak, room_.num_held());
}

// ---- blocks go ----

bool Blocks::release(std::int32_t g, BlockId block, bool touched, std::int32_t holder) noexcept {
  BlockPool& pool = at(g);
  if (touched) pool.set_touched(block, true);
  if (mutant(Mutant::kReleaseTwice) && pool.refs(block) > 1) static_cast<void>(pool.release(block));
  const bool last = pool.release(block);
  pool.set_released_in(block, steps_.last_committed());
  entry_changes_ += last || pool.held_by_steps(block) ? 1 : 0;
  if (last || pool.writer(block) == holder) pool.set_writer(block, BlockPool::kNobody);
  if (!last) return false;
  // A sequence that closed and waits for a step may still publish it.
  const bool idle = steps_.num_in_flight() == 0 || mutant(Mutant::kReuseBeforeComplete);
  if (idle && rows_.closing().empty()) return true;
  pool.make_retiring(block, steps_.last_committed());
  return false;
}

void Blocks::let_go(std::int32_t g, BlockId block, bool touched, std::int32_t holder) noexcept {
  if (!release(g, block, touched, holder)) return;
  const std::int32_t alone[] = {block.value()};
  park(g, alone);
}

void Blocks::let_go_of_source(std::int32_t g, BlockId block) noexcept {
  at(g).take_from_step(block);
  let_go(g, block, true);
}

void Blocks::give_to_step(std::int32_t g, BlockId block) noexcept {
  at(g).give_to_step(block);
  ++entry_changes_;
}

void Blocks::free_unwritten(std::int32_t g, BlockId block) noexcept {
  const bool last = at(g).release(block);
  KVFOLIO_CHECK(last);
  at(g).make_free(block);
  ++counters_.blocks_freed;
}

void Blocks::prefetch_release(std::int32_t g, std::span<const std::int32_t> blocks) const noexcept {
  for (const std::int32_t block : blocks) {
    if (block >= 0) room_.prefetch(g, BlockId(block));
  }
  tree_->prefetch(GroupId(g), blocks);
}

void Blocks::let_go_each(std::int32_t g, std::span<const std::int32_t> blocks, bool touched,
                         std::int32_t holder) noexcept {
  const auto last_of = [](std::span<const std::int32_t> all) {
    return all.last(std::min<std::size_t>(all.size(), kBlocksAtOnce));
  };
  BlockBatch idle;
  prefetch_release(g, last_of(blocks));
  while (!blocks.empty()) {
    const auto now = last_of(blocks);
    blocks = blocks.first(blocks.size() - now.size());
    prefetch_release(g, last_of(blocks));
    for (std::size_t i = now.size(); i-- > 0;) {
      const BlockId block(now[i]);
      if (block.valid() && release(g, block, touched, holder)) idle.add(block.value());
    }
    park(g, idle.take());
  }
}

// Requires: the blocks have no references, and no step can touch them.
void Blocks::park(std::int32_t g, std::span<const std::int32_t> blocks) noexcept {
  std::array<std::int32_t, kBlocksAtOnce> ends;
  tree_->findable_ends(GroupId(g), blocks, std::span(ends).first(blocks.size()));
  BlockBatch cached;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const BlockId block(blocks[i]);
    if (ends[i] == 0) {
      room_.make_free(g, block);
      ++counters_.blocks_freed;
      continue;
    }
    room_.make_cached(g, block);
    cached.add(block.value());
  }
  const std::span<const std::int32_t> idle = cached.take();
  if (idle.empty()) return;
  tree_->set_idle(GroupId(g), idle);
  follow_tree();
}

// What was let go after an earlier commit is the colder one, of whatever group.
void Blocks::drain_retiring() noexcept {
  const std::uint64_t bound = steps_.oldest_incomplete();
  std::array<std::int32_t, kBlocksAtOnce> blocks;
  for (;;) {
    std::uint64_t oldest = bound;
    for (std::int32_t g = 0; g < num_groups(); ++g) {
      oldest = std::min(oldest, pool(g).oldest_stamp(bound));
    }
    if (oldest == bound) return;
    for (std::int32_t g = 0; g < num_groups(); ++g) {
      while (const std::size_t n = pool(g).oldest_retiring(oldest + 1, blocks)) {
        prefetch_release(g, std::span(blocks).first(n));
        park(g, std::span(blocks).first(n));
      }
    }
  }
}

// ---- what a block holds ----

// What others had of it they let go before the steps that are complete, or, in order, before what
// is appended now.
bool Blocks::has_rested(std::int32_t g, BlockId block) const noexcept {
  if (order_ == Order::kInOrder || steps_.num_in_flight() == 0) return true;
  // Both are 32 bits of tickets that lie near each other.
  const auto oldest = static_cast<std::uint32_t>(steps_.oldest_incomplete());
  return static_cast<std::int32_t>(oldest - pool(g).released_in(block)) > 0;
}

bool Blocks::is_being_written(std::int32_t g, BlockId block) const noexcept {
  const std::uint32_t written = pool(g).written_in(block);
  for (std::int32_t i = 0; i < steps_.num_in_flight(); ++i) {
    if (static_cast<std::uint32_t>(steps_.in_flight(i).ticket) == written) return true;
  }
  return steps_.is_open() && static_cast<std::uint32_t>(steps_.open().ticket) == written;
}

// Each is referenced once more for the moment: all of their references together grow by the number
// of entries iff no block comes twice.
bool Blocks::are_distinct(std::int32_t g, std::span<const std::int32_t> blocks) noexcept {
  BlockPool& pool = at(g);
  std::int64_t surplus = 0;
  const auto for_each = [&](const auto& visit) {
    for (const std::int32_t block : blocks) {
      if (block >= 0) visit(BlockId(block));
    }
  };
  for_each([&](BlockId block) { surplus -= pool.refs(block) + 1; });
  for_each([&](BlockId block) { pool.hold(block); });
  for_each([&](BlockId block) { surplus += pool.refs(block); });
  for_each([&](BlockId block) { static_cast<void>(pool.release(block)); });
  return surplus == 0;
}

// ---- eviction ----

void Blocks::evict(std::int32_t g) noexcept {
  const BlockId victim = room_.victim(g);
  KVFOLIO_CHECK(victim.valid());  // every cached block can be evicted
  // Blocks are evicted in the order of use, which has nothing to do with where they lie: what the
  // next ones need is asked for now.
  BlockId next = victim;
  for (int step = PrefixTree::kEvictionSteps - 1; step >= 0; --step) {
    next = room_.victim_after(g, next);
    if (!next.valid()) break;
    tree_->prefetch_eviction(GroupId(g), next, step);
    if (step == 0) room_.prefetch(g, next);
  }
  evict_entry(g, victim);
}

// Without a block of a full group what lies below it is in the tree no more. A block of a window
// group leaves the tree as long as it was while others of its run stay: such blocks go last.
bool Blocks::evict_to_shorten_tree() noexcept {
  std::uint32_t full = 0;
  for (std::int32_t g = 0; g < num_groups(); ++g) full |= group(g).windowed() ? 0u : 1u << g;
  LruOrder::Member victim = room_.coldest(full);
  if (!victim.valid()) victim = room_.coldest(~full);
  if (victim.valid()) evict_entry(victim.group.value(), victim.block);
  return victim.valid();
}

// ---- the whole ----

void Blocks::copy_from(const Blocks& other) noexcept {
  const auto& [tree, groups, steps, rows, counters, order, room, findable, evicting, entry_changes,
               losses] = other;
  KVFOLIO_DCHECK(!evicting_ && !evicting);
  room_.copy_from(room);
  findable_.copy_from(findable);
  entry_changes_ = entry_changes;
  losses_ = losses;
}

MemoryUse Blocks::memory() const noexcept {
  MemoryUse sum = room_.memory();
  sum += findable_.memory();
  return sum;
}

Status Blocks::check() const {
  KVFOLIO_RETURN_IF_ERROR(room_.check());
  return findable_.check();
}

}  // namespace kvfolio
