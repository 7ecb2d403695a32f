// SPDX-License-Identifier: Apache-2.0
#pragma once

// Room: all blocks of all groups. It knows which blocks are free and who uses the others
// (BlockPool), in which order the cached ones leave (LruOrder), and which of these belong to the
// border of an open sequence (borders.h). It knows ids; it knows neither tokens nor sequences.
//
// Blocks are planned first and then taken: plan() says whether each group can have what a call
// needs, and changes nothing; take() makes that many blocks free. admit() plans and forgets,
// append() plans and takes: what was predicted is what is taken. Caching never takes room: every
// cached block can be evicted, so it counts like a free one.
//
// Thread safety: none; const calls write nothing. Nothing allocates after allocate() but the text
// of an error.

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kvfolio/block_pool.h"
#include "kvfolio/fixed_array.h"
#include "kvfolio/ids.h"
#include "kvfolio/lru_order.h"
#include "kvfolio/spec.h"
#include "kvfolio/status.h"

namespace kvfolio {

class Room {
 public:
  // Blocks that a call needs, by group; and the first group that cannot have them, or -1.
  struct Needs {
    std::array<std::int64_t, kMaxGroups> blocks{};
  };
  struct Plan {
    Needs needs;
    std::int32_t short_of = -1;

    [[nodiscard]] bool fits() const noexcept { return short_of < 0; }
  };

  // null_block: block 0 of each group is never given out. kInvalidArgument: more blocks than an
  // LruOrder ranks; kOutOfMemory. Requires: with null_block each group has two blocks or more.
  [[nodiscard]] Status allocate(std::span<const GroupSpec> groups, bool null_block = false);

  [[nodiscard]] BlockPool& pool(std::int32_t g) noexcept { return at(g).pool; }
  [[nodiscard]] const BlockPool& pool(std::int32_t g) const noexcept { return at(g).pool; }

  // ---- planning ----

  // Blocks that the group can have: free ones and cached ones.
  [[nodiscard]] std::int64_t available(std::int32_t g) const noexcept {
    return std::int64_t{pool(g).num_free()} + pool(g).num_cached();
  }
  [[nodiscard]] Plan plan(const Needs& needs) const noexcept {
    Plan plan{needs};
    for (std::int32_t g = 0; g < num_groups() && plan.fits(); ++g) {
      if (needs.blocks[index(g)] > available(g)) plan.short_of = g;
    }
    return plan;
  }
  // Makes the planned blocks free; evict(g) evicts victim(g). Requires: plan.fits(), and nothing
  // has changed since but by what freed more blocks.
  template <typename Evict>
  void take(const Plan& plan, const Evict& evict) noexcept {
    KVFOLIO_DCHECK(plan.fits());
    for (std::int32_t g = 0; g < num_groups(); ++g) {
      while (pool(g).num_free() < plan.needs.blocks[index(g)]) evict(g);
    }
  }
  // Why the group does not have `needed` blocks. What it does not know stays 0: sequences, pins,
  // loads, holds and reserved blocks.
  [[nodiscard]] Shortage shortage(std::int32_t g, std::int64_t needed) const noexcept;
  [[nodiscard]] std::uint64_t num_held() const noexcept;  // blocks of all groups

  // ---- where a block goes ----

  // Requires: the group has a free block.
  [[nodiscard]] BlockId acquire(std::int32_t g) noexcept {
    const BlockId block = pool(g).acquire();
    KVFOLIO_CHECK(block.valid());  // the plan counted
    return block;
  }
  void make_free(std::int32_t g, BlockId block) noexcept {
    order_.forget(GroupId(g), block);
    pool(g).make_free(block);
  }
  // It becomes the warmest block, unless it was held and not used: then it stands where it stood.
  void make_cached(std::int32_t g, BlockId block) noexcept {
    BlockPool& of = pool(g);
    if (of.touched(block) || !order_.has_rank(GroupId(g), block)) order_.touch(GroupId(g), block);
    of.set_touched(block, false);
    of.make_cached(block);
  }
  // The block is not findable any more: it loses its rank. `successor`, if valid, holds the same
  // tokens: if a prompt, a pin or a border wanted the block, it wants that one now.
  void forget(std::int32_t g, BlockId block, BlockId successor) noexcept;

  // ---- eviction ----

  [[nodiscard]] const LruOrder& order() const noexcept { return order_; }
  // Requires: the block has a rank.
  void set_turn(std::int32_t g, BlockId block, EvictionTurn turn) noexcept {
    order_.set_turn(GroupId(g), block, turn);
  }
  [[nodiscard]] BlockId victim(std::int32_t g) const noexcept { return order_.victim(GroupId(g)); }
  // The coldest of all groups whose bit is set.
  [[nodiscard]] LruOrder::Member coldest(std::uint32_t groups = ~0u) const noexcept {
    return order_.victim(groups);
  }
  [[nodiscard]] BlockId victim_after(std::int32_t g, BlockId block) const noexcept {
    return order_.victim_after(GroupId(g), block);
  }
  // kNever if it is no candidate.
  [[nodiscard]] EvictionTurn turn(std::int32_t g, BlockId block) const noexcept {
    return order_.turn(GroupId(g), block);
  }
  // Sequences that count the block of a window group into their border; 0 of another group.
  [[nodiscard]] std::int32_t num_borders(std::int32_t g, BlockId block) const noexcept {
    return at(g).borders.empty() ? 0 : at(g).borders[block.value()];
  }
  [[nodiscard]] bool is_border(std::int32_t g, BlockId block) const noexcept {
    return num_borders(g, block) > 0;
  }
  // Requires: a window group.
  void count_border(std::int32_t g, BlockId block, int by) noexcept {
    KVFOLIO_DCHECK(!at(g).borders.empty());
    std::int32_t& count = at(g).borders[block.value()];
    count = std::max(0, count + by);  // an entry that is new counts from 0 on
  }

  // Prefetches what the calls above read and write of a block.
  void prefetch(std::int32_t g, BlockId block) const noexcept {
    pool(g).prefetch(block);
    order_.prefetch(GroupId(g), block);
  }

  // Becomes an equal of `other`. Requires: allocated alike.
  void copy_from(const Room& other) noexcept;
  [[nodiscard]] MemoryUse memory() const noexcept;
  // ok, or which rule is broken. O(blocks).
  [[nodiscard]] Status check() const;

 private:
  struct Group {
    BlockPool pool;
    FixedArray<std::int32_t> borders;  // by block, of a window group
  };
  [[nodiscard]] static std::size_t index(std::int32_t g) noexcept {
    return static_cast<std::size_t>(g);
  }
  [[nodiscard]] std::int32_t num_groups() const noexcept {
    return static_cast<std::int32_t>(groups_.size());
  }
  [[nodiscard]] Group& at(std::int32_t g) noexcept { return groups_[index(g)]; }
  [[nodiscard]] const Group& at(std::int32_t g) const noexcept { return groups_[index(g)]; }

  std::vector<Group> groups_;
  LruOrder order_;
};

}  // namespace kvfolio
