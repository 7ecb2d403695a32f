// SPDX-License-Identifier: Apache-2.0
//
// Blocks: what the changes of the tree do to them, where a block goes when the last holder lets go,
// and eviction.

#include <algorithm>

#include "manager/impl.h"
#include "manager/op_writer.h"

namespace kvfolio {

using text::concat;

// ---- states of a block ----

// What a change leads to may change the tree again (on_kept): its entries follow. No block is let
// go meanwhile.
std::int64_t KVCacheManager::Impl::follow_tree(Published* published) noexcept {
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

void KVCacheManager::Impl::on_unhung(GroupId group_id, BlockId block, BlockId successor) noexcept {
  const std::int32_t g = group_id.value();
  ++entry_changes_;
  room_.forget(g, block, successor);
  const bool is_cached = pool(g).state(block) == BlockState::kCached;
  if (!is_cached && !successor.valid()) {
    ++losses_;  // a closed sequence that waits for its step may still offer a retiring one
    if (evicting_ && is_held(group_id, block)) ++counters_.blocks_unhung;
  }
  if (!is_cached) return;  // its holders, or the step, free it
  room_.make_free(g, block);
  ++counters_.blocks_freed;
  if (evicting_) ++counters_.blocks_evicted;
}

// If two blocks hold equal tokens, a held one has the entry. A block that only steps use gives way.
void KVCacheManager::Impl::on_kept(const TreeChange& change, Published& published) noexcept {
  if (!is_held(change.group, change.block)) {
    tree_->replace(change.group, change.block, change.successor);
    ++published.num_hung;
    return;
  }
  const std::int32_t end = tree_->findable_end(change.group, change.block);
  const std::int32_t begin = group(change.group.value()).size.begin_of(end - 1);
  published.missed_from = std::min(published.missed_from, begin);
  published.missed_to = std::max(published.missed_to, end);
}

void KVCacheManager::Impl::on_candidate(GroupId group_id, BlockId block,
                                        Candidate candidate) noexcept {
  const std::int32_t g = group_id.value();
  room_.set_turn(g, block, turn_of(g, block, candidate));
}

bool KVCacheManager::Impl::is_held(GroupId group_id, BlockId block) const noexcept {
  const BlockPool& of = pool(group_id.value());
  return of.state(block) == BlockState::kHeld && !of.held_by_steps(block);
}

// A partial tail in which no prompt was found goes before all else: a stream of short requests must
// not flush prefixes that others share. A block of a window group that no end reads goes first as
// well: the window has passed it, and hits do not need it (border.cc). Last goes a block whose loss
// would make held blocks of its group lose their entries, and the border of a sequence.
EvictionTurn KVCacheManager::Impl::turn_of(std::int32_t g, BlockId block,
                                           Candidate candidate) const noexcept {
  if (candidate == Candidate::kNone) return EvictionTurn::kNever;
  if (candidate == Candidate::kHead || room_.is_border(g, block)) return EvictionTurn::kLast;
  const bool is_partial = group(g).size.offset_of(tree_->findable_end(GroupId(g), block)) != 0;
  if (mutant(Mutant::kTailsLikeFullBlocks)) return EvictionTurn::kNormal;
  if (is_partial) return pool(g).wanted(block) ? EvictionTurn::kNormal : EvictionTurn::kFirst;
  const bool passed = windowed(g) && !tree_->is_read(GroupId(g), block);
  return passed && !mutant(Mutant::kPassedLikeOthers) ? EvictionTurn::kFirst
                                                      : EvictionTurn::kNormal;
}

BlockId KVCacheManager::Impl::acquire(std::int32_t g) noexcept {
  ++counters_.blocks_allocated;
  return room_.acquire(g);
}

void KVCacheManager::Impl::prefetch(std::int32_t g,
                                    std::span<const std::int32_t> blocks) const noexcept {
  const BlockPool& of = pool(g);
  for (const std::int32_t block : blocks) {
    if (block >= 0) of.prefetch(BlockId(block));
  }
  tree_->prefetch(GroupId(g), blocks);
}

void KVCacheManager::Impl::prefetch_release(std::int32_t g,
                                            std::span<const std::int32_t> blocks) const noexcept {
  for (const std::int32_t block : blocks) {
    if (block >= 0) room_.prefetch(g, BlockId(block));
  }
  tree_->prefetch(GroupId(g), blocks);
}

void KVCacheManager::Impl::hold_table(std::int32_t g,
                                      std::span<const std::int32_t> blocks) noexcept {
  BlockPool& pool = room_.pool(g);
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
    drain_tree();
  }
}

bool KVCacheManager::Impl::release(std::int32_t g, BlockId block, bool touched,
                                   std::int32_t holder) noexcept {
  BlockPool& pool = room_.pool(g);
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

void KVCacheManager::Impl::let_go(std::int32_t g, BlockId block, bool touched) noexcept {
  if (!release(g, block, touched, BlockPool::kNobody)) return;
  const std::int32_t alone[] = {block.value()};
  park(g, alone);
}

void KVCacheManager::Impl::let_go_of_source(std::int32_t g, BlockId block) noexcept {
  pool(g).take_from_step(block);
  let_go(g, block, true);
}

// Requires: the blocks have no references, and no step can touch them.
void KVCacheManager::Impl::park(std::int32_t g, std::span<const std::int32_t> blocks) noexcept {
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
  drain_tree();
}

// What was let go after an earlier commit is the colder one, of whatever group.
void KVCacheManager::Impl::drain_retiring() noexcept {
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

void KVCacheManager::Impl::release_entries(std::int32_t row, std::int32_t g, std::int32_t first,
                                           std::int32_t end, std::int32_t length) noexcept {
  const Sequence& s = rows_[row];
  if (s.has_promise) {
    set_entries_aside(row, g, first, end, length);
    return;
  }
  if (mutant(Mutant::kHitReferencedLate) && !s.used) return;
  const auto blocks = std::as_const(*this).table(row, g).blocks(std::as_const(*this).arena());
  const auto some = [&](std::int32_t last) {  // that stand before it
    const std::int32_t begin = std::max(first, last - kBlocksAtOnce);
    return blocks.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(last - begin));
  };
  BlockBatch idle;
  prefetch_release(g, some(end));
  while (end > first) {
    const auto now = some(end);
    const std::int32_t begin = end - static_cast<std::int32_t>(now.size());
    prefetch_release(g, some(begin));
    for (std::size_t i = now.size(); i-- > 0; --end) {
      const BlockId block(now[i]);
      if (!block.valid()) continue;
      if (release(g, block, s.used, row)) idle.add(block.value());
    }
    park(g, idle.take());
  }
}

void KVCacheManager::Impl::note_peak() noexcept {
  counters_.blocks_used_peak = std::max(counters_.blocks_used_peak, room_.num_held());
}

// ---- eviction ----

Shortage KVCacheManager::Impl::shortage(const Room::Plan& plan) const noexcept {
  const std::int32_t g = plan.short_of;
  Shortage s = room_.shortage(g, plan.needs.blocks[static_cast<std::size_t>(g)]);
  s.sequences = static_cast<std::int32_t>(rows_.open().size());
  s.pins = pins_.num_open();
  s.loads = transfers_.num_loads();
  s.holds = transfers_.num_holds();
  s.reserved = reservations_.total_ready(g);
  return s;
}

void KVCacheManager::Impl::evict_one(std::int32_t g) noexcept {
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
  unhang(g, victim);
}

// The block loses its entry to make room.
void KVCacheManager::Impl::unhang(std::int32_t g, BlockId block) noexcept {
  evicting_ = true;
  tree_->unhang(GroupId(g), block);
  drain_tree();
  evicting_ = false;
}

// Without a block of a full group what lies below it is in the tree no more. A block of a window
// group leaves the tree as long as it was while others of its run stay: such blocks go last.
bool KVCacheManager::Impl::evict_to_shorten_tree() noexcept {
  std::uint32_t full = 0;
  for (std::int32_t g = 0; g < num_groups(); ++g) full |= windowed(g) ? 0u : 1u << g;
  LruOrder::Member victim = room_.coldest(full);
  if (!victim.valid()) victim = room_.coldest(~full);
  if (victim.valid()) unhang(victim.group.value(), victim.block);
  return victim.valid();
}

Result<std::int32_t> KVCacheManager::evict(GroupId group_id, std::int32_t num_blocks,
                                           std::span<std::int32_t> evicted) {
  KVFOLIO_RECORDED(kEvict, evict(group_id, num_blocks, evicted), group_id, num_blocks,
                   OutBlocks{evicted});
  Impl& m = *impl_;
  KVFOLIO_RETURN_IF_ERROR(m.check_group("evict", group_id));
  if (num_blocks < 0) {
    return Status(ErrorCode::kInvalidArgument,
                  concat("evict of ", num_blocks, " blocks, allowed: 0 and above"));
  }
  std::int32_t done = 0;
  for (; done < num_blocks; ++done) {
    const BlockId victim = m.room_.victim(group_id.value());
    if (!victim.valid()) break;
    if (static_cast<std::size_t>(done) < evicted.size()) {
      evicted[static_cast<std::size_t>(done)] = victim.value();
    }
    m.evict_one(group_id.value());
  }
  return done;
}

// ---- questions ----

Status KVCacheManager::Impl::check_group(std::string_view what, GroupId group_id) const {
  if (group_id.value() >= 0 && group_id.value() < num_groups()) return {};
  return {ErrorCode::kInvalidArgument,
          concat(what, ": group ", group_id.value(), ", allowed: 0 to ", num_groups() - 1)};
}

Status KVCacheManager::Impl::check_block(std::string_view what, GroupId group_id,
                                         BlockId block) const {
  KVFOLIO_RETURN_IF_ERROR(check_group(what, group_id));
  const BlockPool& pool = room_.pool(group_id.value());
  if (pool.contains(block)) return {};
  return {ErrorCode::kInvalidArgument,
          concat(what, ": block ", block.value(), " of group ", group_id.value(),
                 ", allowed: 0 to ", pool.num_blocks() - 1)};
}

Result<GroupUsage> KVCacheManager::usage(GroupId group_id) const {
  KVFOLIO_RETURN_IF_MOVED("usage");
  const Impl& m = *impl_;
  KVFOLIO_RETURN_IF_ERROR(m.check_group("usage", group_id));
  const BlockPool& pool = m.pool(group_id.value());
  return GroupUsage{.num_blocks = pool.num_blocks(),
                    .free = pool.num_free(),
                    .held = pool.num_held(),
                    .cached = pool.num_cached(),
                    .retiring = pool.num_retiring(),
                    .evictable = pool.num_cached(),
                    .reserved = m.reservations_.total_ready(group_id.value()),
                    .loading = m.transfers_.num_waiting(group_id.value()),
                    .on_hold = m.transfers_.num_held(group_id.value())};
}

double KVCacheManager::utilization() const noexcept {
  KVFOLIO_STOP_IF_MOVED("utilization");
  return impl_->utilization();
}

bool KVCacheManager::needs_eviction() const noexcept {
  KVFOLIO_STOP_IF_MOVED("needs_eviction");
  return impl_->utilization() >= impl_->options_.high_watermark;
}

}  // namespace kvfolio
