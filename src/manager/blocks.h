// SPDX-License-Identifier: Apache-2.0
#pragma once

// Blocks: how a block comes to its holders and where it goes when the last one lets go. It owns all
// blocks of all groups (Room), the list of those that became findable (FindableList), and the
// consequences of the tree's changes: each call on the tree leaves a log of what it changed, and
// follow_tree() does to the blocks what that log says. No other part of the manager changes a
// block, or tells the tree that one is in use.
//
//   free --acquire--> held --let_go--> cached or free, or first retiring while a step may touch it
//                      ^                  |
//                      +------ hold ------+        evicted: cached --> free
//
// Blocks knows groups, block ids, the tree and which steps are complete. It knows neither block
// tables nor promises nor pins: those are lists of references, and their owners come here with
// them.
//
// evict() frees nothing itself: it takes the block's entry out of the tree, and what follow_tree()
// then finds in the log frees the block (on_unhung).
//
// While follow_tree() runs no block is let go, and nothing is evicted: so nothing comes back in.
//
// Thread safety: none; const calls write nothing. Nothing allocates after allocate().

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvfolio/block_pool.h"
#include "kvfolio/ids.h"
#include "kvfolio/lru_order.h"
#include "kvfolio/manager_types.h"
#include "kvfolio/prefix_tree.h"
#include "kvfolio/spec.h"
#include "kvfolio/status.h"
#include "manager/findable_list.h"
#include "manager/group.h"
#include "manager/room.h"
#include "manager/rows.h"
#include "manager/step_log.h"

namespace kvfolio {

class Blocks {
 public:
  // Requires: all of these outlive this. They may be empty still.
  Blocks(std::optional<PrefixTree>& tree, const std::vector<Group>& groups, const StepLog& steps,
         const Rows& rows, Counters& counters, Order order) noexcept
      : tree_(tree),
        groups_(groups),
        steps_(steps),
        rows_(rows),
        counters_(counters),
        order_(order) {}
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;

  // As Room::allocate().
  [[nodiscard]] Status allocate(std::span<const GroupSpec> groups, bool null_block = false) {
    return room_.allocate(groups, null_block);
  }

  [[nodiscard]] const Room& room() const noexcept { return room_; }
  [[nodiscard]] const BlockPool& pool(std::int32_t g) const noexcept { return room_.pool(g); }
  // Off until it is allocated.
  [[nodiscard]] FindableList& findable() noexcept { return findable_; }
  [[nodiscard]] const FindableList& findable() const noexcept { return findable_; }

  // ---- is there room ----

  // The group can have so many blocks: free ones and cached ones count.
  [[nodiscard]] bool has_room(std::int32_t g, std::int64_t num_blocks) const noexcept {
    return num_blocks <= room_.available(g);
  }
  [[nodiscard]] Room::Plan plan(const Room::Needs& needs) const noexcept {
    return room_.plan(needs);
  }
  // Makes the planned blocks free. Requires: plan.fits(), and nothing has changed since but by what
  // freed more blocks.
  void take(const Room::Plan& plan) noexcept {
    room_.take(plan, [this](std::int32_t g) { evict(g); });
  }

  // ---- blocks come ----

  // Requires: the group has a free block, as take() made it.
  [[nodiscard]] BlockId acquire(std::int32_t g) noexcept {
    ++counters_.blocks_allocated;
    return room_.acquire(g);
  }
  // The same, evicting one if none is free. Requires: has_room(g, 1).
  [[nodiscard]] BlockId acquire_or_evict(std::int32_t g) noexcept {
    if (pool(g).num_free() == 0) evict(g);
    return acquire(g);
  }
  // One more holder for each block of a table; entries without a block are passed over.
  void hold(std::int32_t g, std::span<const std::int32_t> blocks) noexcept;
  // A held block becomes as acquire() gives it, and is not findable. Requires: one reference.
  void renew(std::int32_t g, BlockId block) noexcept;
  void note_peak() noexcept;

  // ---- blocks go ----

  // One reference less; the last one sends the block to where it belongs. `touched`: the holder
  // used it. `holder`: its row, if it may be the block's writer.
  void let_go(std::int32_t g, BlockId block, bool touched,
              std::int32_t holder = BlockPool::kNobody) noexcept;
  // The same for each block of a part of a table, the last one first.
  void let_go_each(std::int32_t g, std::span<const std::int32_t> blocks, bool touched,
                   std::int32_t holder) noexcept;
  // What let_go() says of a holder, of one that does not hold the block now: `touched`, and that
  // `holder` does not write to it any more.
  void touch(std::int32_t g, BlockId block, bool touched, std::int32_t holder) noexcept {
    if (touched) at(g).set_touched(block, true);
    drop_writer(g, block, holder);
  }
  // The block goes back as if it had never been taken. Requires: one reference, which is not a
  // step's.
  void free_unwritten(std::int32_t g, BlockId block) noexcept;
  // The reference moves from a table to the open step.
  void give_to_step(std::int32_t g, BlockId block) noexcept;
  // It moves back to a table.
  void take_from_step(std::int32_t g, BlockId block) noexcept { at(g).take_from_step(block); }
  // The step's reference goes.
  void let_go_of_source(std::int32_t g, BlockId block) noexcept;
  // Blocks that waited for steps which are complete now are free, or cached.
  void drain_retiring() noexcept;

  // ---- what a block holds ----

  struct Written {
    std::int32_t valid;
    std::int32_t writer;
    std::uint64_t ticket;
  };
  // Adds one valid token, written in this step.
  void append_one(std::int32_t g, BlockId block, std::uint64_t ticket) noexcept {
    at(g).append_one(block, ticket);
  }
  void set_written(std::int32_t g, BlockId block, const Written& now) noexcept {
    at(g).set_valid(block, now.valid);
    at(g).set_writer(block, now.writer);
    at(g).set_written_in(block, now.ticket);
  }
  void set_writer(std::int32_t g, BlockId block, std::int32_t row) noexcept {
    at(g).set_writer(block, row);
  }
  // The right to write, if it is this row's, is the row's no more.
  void drop_writer(std::int32_t g, BlockId block, std::int32_t row) noexcept {
    if (pool(g).writer(block) == row) at(g).set_writer(block, BlockPool::kNobody);
  }
  // A hit of `row` ended inside the block, behind `offset` tokens: a row that revives a tail
  // without a holder becomes its writer.
  void note_hit_inside(std::int32_t g, BlockId block, std::int32_t offset,
                       std::int32_t row) noexcept;

  // To write the block now disturbs no step in flight: none reads it for a former holder, or, in
  // order, those that do read it before what is written now.
  [[nodiscard]] bool has_rested(std::int32_t g, BlockId block) const noexcept;
  // The block has one reference, a table's, and has rested.
  [[nodiscard]] bool is_alone(std::int32_t g, BlockId block) const noexcept {
    return pool(g).refs(block) == 1 && has_rested(g, block);
  }
  // The same of a block without references, once a call holds it.
  [[nodiscard]] bool would_be_alone(std::int32_t g, BlockId block) const noexcept {
    return pool(g).refs(block) == 0 && has_rested(g, block);
  }
  [[nodiscard]] bool is_findable(std::int32_t g, BlockId block) const noexcept {
    return tree_->is_findable(GroupId(g), block);
  }
  // Something else than steps holds it.
  [[nodiscard]] bool is_held(std::int32_t g, BlockId block) const noexcept {
    return pool(g).state(block) == BlockState::kHeld && !pool(g).held_by_steps(block);
  }
  // A step that is not complete wrote to the block; its newest tokens may not be there yet.
  [[nodiscard]] bool is_being_written(std::int32_t g, BlockId block) const noexcept;
  // No block comes twice. O(blocks), no memory. Requires: each of them is held.
  [[nodiscard]] bool are_distinct(std::int32_t g, std::span<const std::int32_t> blocks) noexcept;

  // ---- the tree's log ----

  // Follows what a call on the tree has changed. `published`: of the extend() that was before.
  // Returns how many blocks lost their entry.
  std::int64_t follow_tree(Published* published = nullptr) noexcept {
    return tree_->has_changes() ? follow_changes(published) : 0;
  }
  // The block is findable no more, to make room. Requires: it is findable.
  void evict_entry(std::int32_t g, BlockId block) noexcept;
  // The same, since what it holds is not to be found. Harmless if it is not findable.
  void drop_entry(std::int32_t g, BlockId block) noexcept;
  // `by` more sequences count the block into their border (borders.h). Requires: a window group.
  void count_border(std::int32_t g, BlockId block, int by) noexcept;

  // Changes when a block lost its entry or its last holder: an equal one that is held may be hung
  // now.
  [[nodiscard]] std::uint64_t entry_changes() const noexcept { return entry_changes_; }
  // Changes when a block lost its entry while it was not cached.
  [[nodiscard]] std::uint64_t losses() const noexcept { return losses_; }

  // ---- eviction ----

  // Where a cached block stands among those of its group.
  [[nodiscard]] EvictionTurn turn_of(std::int32_t g, BlockId block,
                                     Candidate candidate) const noexcept;
  // The block of the group that leaves next; not valid() if none is cached.
  [[nodiscard]] BlockId victim(std::int32_t g) const noexcept { return room_.victim(g); }
  // Evicts it. Requires: there is one.
  void evict(std::int32_t g) noexcept;
  // Evicts the coldest block whose eviction shortens the tree; where there is none, the coldest of
  // a window group, whose run is shorter once the others have left, too. False: nothing is cached.
  [[nodiscard]] bool evict_to_shorten_tree() noexcept;

  // Prefetches what hold(), or let_go(), reads and writes of these blocks: a pool exceeds the
  // caches.
  void prefetch(std::int32_t g, std::span<const std::int32_t> blocks) const noexcept;
  void prefetch_release(std::int32_t g, std::span<const std::int32_t> blocks) const noexcept;

  // Becomes an equal of `other`. Requires: allocated alike.
  void copy_from(const Blocks& other) noexcept;
  [[nodiscard]] MemoryUse memory() const noexcept;
  // ok, or which rule is broken. O(blocks).
  [[nodiscard]] Status check() const;

 private:
  [[nodiscard]] BlockPool& at(std::int32_t g) noexcept { return room_.pool(g); }
  [[nodiscard]] const Group& group(std::int32_t g) const noexcept {
    return groups_[static_cast<std::size_t>(g)];
  }
  [[nodiscard]] std::int32_t num_groups() const noexcept {
    return static_cast<std::int32_t>(groups_.size());
  }

  std::int64_t follow_changes(Published* published) noexcept;
  void on_unhung(GroupId group, BlockId block, BlockId successor) noexcept;
  void on_kept(const TreeChange& change, Published& published) noexcept;
  void on_candidate(GroupId group, BlockId block, Candidate candidate) noexcept;
  // Removes a reference. Returns true if the block has none left and no step can touch it; the
  // caller then parks it. A block without references that a step can touch retires.
  [[nodiscard]] bool release(std::int32_t g, BlockId block, bool touched,
                             std::int32_t holder) noexcept;
  // Blocks that release() gave up are free, or cached. Requires: at most kBlocksAtOnce.
  void park(std::int32_t g, std::span<const std::int32_t> blocks) noexcept;

  std::optional<PrefixTree>& tree_;
  const std::vector<Group>& groups_;
  const StepLog& steps_;
  const Rows& rows_;
  Counters& counters_;
  const Order order_;

  Room room_;
  FindableList findable_;
  bool evicting_ = false;  // what loses its entry does so to make room
  std::uint64_t entry_changes_ = 0;
  std::uint64_t losses_ = 0;
};

}  // namespace kvfolio
