// SPDX-License-Identifier: Apache-2.0
#pragma once

// BlockPool knows which blocks of one group are free and counts the users of the others. It knows
// ids, but no bytes, no tokens and no order of eviction.
//
// A block is in exactly one state:
//   free      on the free list
//   held      refs >= 1: table entries, pins, steps that copy from it
//   cached    refs == 0 and findable; no step in flight may touch it
//   retiring  refs == 0, a step in flight may still touch it; listed in release order
// and free + held + cached + retiring == num_usable. A block that only steps hold comes back when
// they are complete: num_retiring() counts it, and num_held() does not, though its state is held.
// The null block, if there is one, is held for ever and counts in num_blocks() alone.
//
// It also keeps, per block, what copy-on-write needs: how many of its tokens are valid and which
// sequence may append to it in place (at most one).
//
// Misuse (releasing a block without references) is a broken invariant and stops the program: the
// callers are our own managers, and a block with two owners serves one user's tokens to another.
// Ids are not checked for their range: check an id that comes from outside with contains(). Thread
// safety: several threads may run const calls at the same time while no other call runs. Nothing
// allocates after create() but the text of an error. A moved-from pool may only be assigned to or
// destroyed.

#include <cstddef>
#include <cstdint>
#include <span>

#include "kvfolio/block_state.h"
#include "kvfolio/export.h"
#include "kvfolio/fixed_array.h"
#include "kvfolio/ids.h"
#include "kvfolio/prefetch.h"
#include "kvfolio/status.h"

namespace kvfolio {

class StateWriter;

class KVFOLIO_API BlockPool {
 public:
  static constexpr std::int32_t kNobody = -1;

  // kInvalidArgument: num_blocks < 1; kOutOfMemory.
  static Result<BlockPool> create(std::int32_t num_blocks);

  // From now on block 0 is the null block: held with one reference that has no owner, so that
  // acquire() never gives it. Requires: no block was taken yet, and there is another one.
  void keep_null_block() noexcept;

  // Takes a free block; it has one reference, no valid tokens and no writer. Returns an id that is
  // not valid() if no block is free: a full pool is a normal answer.
  [[nodiscard]] BlockId acquire() noexcept;
  // Takes a block for each entry of `out`, the same ones in the same order as that many calls of
  // acquire(). All or nothing: returns false if fewer are free, and then changes neither the pool
  // nor `out`.
  [[nodiscard]] bool acquire(std::span<BlockId> out) noexcept;

  // A held block becomes as acquire() gives it. Requires: it has one reference, which is not a
  // step's.
  void renew(BlockId block) noexcept;

  // Adds a reference; a cached or retiring block becomes held again. Requires: not free.
  void hold(BlockId block) noexcept;
  // Removes a reference and returns true if it was the last one. The caller then makes one of the
  // three calls below; until then the block is held with refs 0. Requires: refs(block) >= 1.
  [[nodiscard]] bool release(BlockId block) noexcept;

  // Requires (all three): refs(block) == 0 and not free; make_retiring() also requires: just
  // released.
  void make_free(BlockId block) noexcept;
  void make_cached(BlockId block) noexcept;
  // Puts the block at the end of the retiring list; oldest_retiring() tells when its `stamp` is
  // reached. Stamps never decrease, and those on the list lie within 2^31 of each other. The block
  // has no writer from here on.
  void make_retiring(BlockId block, std::uint64_t stamp) noexcept;

  // The oldest retiring block, if its stamp is below `bound`. The caller makes it free or cached.
  [[nodiscard]] BlockId oldest_retiring(std::uint64_t bound) const noexcept;
  // Its stamp, or `bound`.
  [[nodiscard]] std::uint64_t oldest_stamp(std::uint64_t bound) const noexcept {
    if (retiring_head_ < 0) return bound;
    const std::uint32_t ahead = static_cast<std::uint32_t>(bound) - blocks_[retiring_head_].stamp;
    return static_cast<std::int32_t>(ahead) <= 0 ? bound : bound - ahead;
  }
  // The same for as many blocks as fit, the oldest first; returns how many.
  std::size_t oldest_retiring(std::uint64_t bound, std::span<std::int32_t> out) const noexcept;

  [[nodiscard]] std::int32_t num_blocks() const noexcept { return num_blocks_; }
  // All but the null block.
  [[nodiscard]] std::int32_t num_usable() const noexcept { return num_usable_; }
  [[nodiscard]] bool has_null_block() const noexcept { return num_usable_ < num_blocks_; }
  [[nodiscard]] std::int32_t num_free() const noexcept { return num_free_; }
  [[nodiscard]] std::int32_t num_held() const noexcept {
    return num_usable_ - num_free_ - num_cached_ - num_retiring();
  }
  [[nodiscard]] std::int32_t num_cached() const noexcept { return num_cached_; }
  [[nodiscard]] std::int32_t num_retiring() const noexcept {
    return num_retiring_ + num_held_by_steps_;
  }

  // Makes one of the block's references a step's. Requires: not all of them are. After 4,095
  // references to a block belonged to steps at the same time, the block counts as held until it is
  // free.
  void give_to_step(BlockId block) noexcept;
  // Makes one of the steps' references an ordinary one again. Requires: a step has one.
  void take_from_step(BlockId block) noexcept;
  // Returns true if all references to the block belong to steps.
  [[nodiscard]] bool held_by_steps(BlockId block) const noexcept {
    return at(block).state == BlockState::kHeld && only_steps(at(block));
  }

  [[nodiscard]] bool contains(BlockId block) const noexcept {
    return block.value() >= 0 && block.value() < num_blocks_;
  }
  // Requires (all below): contains(block).
  [[nodiscard]] BlockState state(BlockId block) const noexcept { return at(block).state; }
  [[nodiscard]] std::int32_t refs(BlockId block) const noexcept { return refs_of(at(block)); }

  // Tokens of the block that hold data, counted from its start. Requires: at most 65,535.
  [[nodiscard]] std::int32_t valid(BlockId block) const noexcept { return at(block).valid; }
  void set_valid(BlockId block, std::int32_t tokens) noexcept {
    KVFOLIO_DCHECK(0 <= tokens && tokens <= UINT16_MAX);
    at(block).valid = static_cast<std::uint16_t>(tokens);
  }
  // Adds one valid token, written in this step.
  void append_one(BlockId block, std::uint64_t ticket) noexcept {
    KVFOLIO_DCHECK(at(block).valid < UINT16_MAX);
    ++at(block).valid;
    set_written_in(block, ticket);
  }
  // The row of the sequence that may append in place, or kNobody. A retiring block has no writer.
  [[nodiscard]] std::int32_t writer(BlockId block) const noexcept { return writer_of(at(block)); }
  // Requires: not retiring.
  void set_writer(BlockId block, std::int32_t sequence) noexcept {
    KVFOLIO_DCHECK(state(block) != BlockState::kRetiring);
    at(block).writer = sequence;
  }

  // Low 32 bits of the last ticket that wrote here.
  [[nodiscard]] std::uint32_t written_in(BlockId block) const noexcept { return at(block).written; }
  void set_written_in(BlockId block, std::uint64_t ticket) noexcept {
    at(block).written = static_cast<std::uint32_t>(ticket);
  }
  // True if a holder used the block since it was last cached, so that its old rank no longer holds.
  [[nodiscard]] bool touched(BlockId block) const noexcept { return at(block).touched != 0; }
  void set_touched(BlockId block, bool touched) noexcept { at(block).touched = touched ? 1 : 0; }
  // True if the hit of a prompt, or a pin, ended inside the block.
  [[nodiscard]] bool wanted(BlockId block) const noexcept { return at(block).wanted != 0; }
  void set_wanted(BlockId block, bool wanted) noexcept { at(block).wanted = wanted ? 1 : 0; }

  // Low 32 bits of the newest ticket that was committed when a holder last let the block go.
  [[nodiscard]] std::uint32_t released_in(BlockId block) const noexcept { return at(block).stamp; }
  // Requires: not retiring.
  void set_released_in(BlockId block, std::uint64_t ticket) noexcept {
    KVFOLIO_DCHECK(state(block) != BlockState::kRetiring);
    at(block).stamp = static_cast<std::uint32_t>(ticket);
  }

  // Prefetches what the calls above read and write of a block. Changes nothing.
  void prefetch(BlockId block) const noexcept {
    const Block& of = at(block);  // may lie in two lines
    prefetch_to_write(&of);
    prefetch_to_write(reinterpret_cast<const std::byte*>(&of + 1) - 1);
  }

  // Becomes an equal of `other`. Requires: created with as many blocks.
  void copy_from(const BlockPool& other) noexcept;

  [[nodiscard]] MemoryUse memory() const noexcept {
    return MemoryUse::whole(blocks_.bytes() + free_.bytes());
  }
  // Returns ok, or says which rule is broken. A block that was released and sent nowhere breaks
  // one. O(num_blocks).
  Status check_invariants() const;
  // For KVCacheManager::state_hash(): the retiring blocks of the pool of group g, in their order;
  // and what there is of a block beside that. `stamps`: when it comes back counts.
  void put_retiring(StateWriter& out, std::int32_t g) const;
  void put_state(StateWriter& out, BlockId block, bool stamps) const;

 private:
  struct Block {
    std::int32_t refs;    // of a retiring block, which has none: the next on the list
    std::int32_t writer;  // of a retiring block, which has none: the one before it on the list
    std::uint32_t written;
    std::uint32_t stamp;  // low 32 bits; compared in a window of a few tickets
    std::uint16_t valid;
    BlockState state : 2;
    std::uint16_t touched : 1;
    std::uint16_t wanted : 1;
    std::uint16_t steps : 12;  // references that belong to steps; kManySteps: once that many did
  };
  static_assert(sizeof(Block) == 20);
  static constexpr std::uint16_t kManySteps = 4095;

  BlockPool() = default;
  Block& at(BlockId block) noexcept { return blocks_[block.value()]; }
  const Block& at(BlockId block) const noexcept { return blocks_[block.value()]; }
  static std::int32_t refs_of(const Block& b) noexcept {
    return b.state == BlockState::kRetiring ? 0 : b.refs;
  }
  static bool only_steps(const Block& b) noexcept {
    return b.steps != 0 && b.steps != kManySteps && b.refs == std::int32_t{b.steps};
  }
  static std::int32_t writer_of(const Block& b) noexcept {
    return b.state == BlockState::kRetiring ? kNobody : b.writer;
  }
  // The block behind a retiring one.
  std::int32_t& next_of(std::int32_t block) noexcept { return blocks_[block].refs; }
  [[nodiscard]] std::int32_t next_of(std::int32_t block) const noexcept {
    return blocks_[block].refs;
  }
  std::int32_t& previous_of(std::int32_t block) noexcept { return blocks_[block].writer; }
  [[nodiscard]] std::int32_t previous_of(std::int32_t block) const noexcept {
    return blocks_[block].writer;
  }
  // The block stops being cached or retiring.
  void leave_state(Block& b) noexcept {
    if (b.state == BlockState::kCached) {
      --num_cached_;
    } else if (b.state == BlockState::kRetiring) {
      --num_retiring_;
      const std::int32_t next = b.refs;
      const std::int32_t previous = b.writer;
      (previous >= 0 ? next_of(previous) : retiring_head_) = next;
      (next >= 0 ? previous_of(next) : retiring_tail_) = previous;
      b.refs = 0;
      b.writer = kNobody;
    }
    b.state = BlockState::kHeld;
  }

  FixedArray<Block> blocks_;
  FixedArray<std::int32_t> free_;  // a stack: the last freed is taken first, while it is warm
  std::int32_t num_blocks_ = 0;
  std::int32_t num_usable_ = 0;
  std::int32_t num_free_ = 0;
  std::int32_t num_cached_ = 0;
  std::int32_t num_retiring_ = 0;
  std::int32_t num_held_by_steps_ = 0;
  std::int32_t retiring_head_ = -1;
  std::int32_t retiring_tail_ = -1;
};

// Inline: these calls take a few nanoseconds each, and every step of an engine makes thousands.

inline BlockId BlockPool::acquire() noexcept {
  if (num_free_ == 0) return BlockId();
  const BlockId block(free_[--num_free_]);
  Block& b = at(block);
  b.refs = 1;
  b.state = BlockState::kHeld;
  b.valid = 0;
  b.writer = kNobody;
  b.touched = 0;
  b.wanted = 0;
  b.steps = 0;
  if (num_free_ > 0) prefetch(BlockId(free_[num_free_ - 1]));  // mostly taken soon
  return block;
}

inline bool BlockPool::acquire(std::span<BlockId> out) noexcept {
  if (out.size() > static_cast<std::size_t>(num_free_)) return false;
  for (BlockId& block : out) block = acquire();
  return true;
}

inline void BlockPool::renew(BlockId block) noexcept {
  Block& b = at(block);
  KVFOLIO_CHECK(b.state == BlockState::kHeld && b.refs == 1 && b.steps == 0);
  b.valid = 0;
  b.writer = kNobody;
  b.touched = 0;
  b.wanted = 0;
}

inline void BlockPool::hold(BlockId block) noexcept {
  Block& b = at(block);
  KVFOLIO_CHECK(b.state != BlockState::kFree && b.refs < INT32_MAX);
  if (b.state != BlockState::kHeld) leave_state(b);
  if (only_steps(b)) --num_held_by_steps_;
  ++b.refs;
}

inline bool BlockPool::release(BlockId block) noexcept {
  Block& b = at(block);
  KVFOLIO_CHECK(b.state == BlockState::kHeld && b.refs > 0);
  --b.refs;
  if (only_steps(b)) ++num_held_by_steps_;
  return b.refs == 0;
}

inline void BlockPool::give_to_step(BlockId block) noexcept {
  Block& b = at(block);
  KVFOLIO_CHECK(b.state == BlockState::kHeld && b.refs > std::int32_t{b.steps % kManySteps});
  if (b.steps == kManySteps) return;
  b.steps = static_cast<std::uint16_t>(b.steps + 1) & kManySteps;
  if (only_steps(b)) ++num_held_by_steps_;
}

inline void BlockPool::take_from_step(BlockId block) noexcept {
  Block& b = at(block);
  KVFOLIO_CHECK(b.state == BlockState::kHeld && b.steps > 0);
  if (b.steps == kManySteps) return;
  if (only_steps(b)) --num_held_by_steps_;
  b.steps = static_cast<std::uint16_t>(b.steps - 1) & kManySteps;
}

inline void BlockPool::make_free(BlockId block) noexcept {
  Block& b = at(block);
  KVFOLIO_CHECK(refs_of(b) == 0 && b.state != BlockState::kFree);
  leave_state(b);
  b.state = BlockState::kFree;
  b.writer = kNobody;
  free_[num_free_++] = block.value();
}

inline void BlockPool::make_cached(BlockId block) noexcept {
  Block& b = at(block);
  KVFOLIO_CHECK(refs_of(b) == 0 && b.state != BlockState::kFree);
  leave_state(b);
  b.state = BlockState::kCached;
  ++num_cached_;
}

inline void BlockPool::make_retiring(BlockId block, std::uint64_t stamp) noexcept {
  Block& b = at(block);
  KVFOLIO_CHECK(b.refs == 0 && b.state == BlockState::kHeld);
  b.state = BlockState::kRetiring;
  b.stamp = static_cast<std::uint32_t>(stamp);
  b.refs = -1;                // the next: none
  b.writer = retiring_tail_;  // the one before
  (retiring_tail_ >= 0 ? next_of(retiring_tail_) : retiring_head_) = block.value();
  retiring_tail_ = block.value();
  ++num_retiring_;
}

inline std::size_t BlockPool::oldest_retiring(std::uint64_t bound,
                                              std::span<std::int32_t> out) const noexcept {
  std::size_t n = 0;
  for (std::int32_t b = retiring_head_; b >= 0 && n < out.size(); b = next_of(b)) {
    const std::uint32_t ahead = static_cast<std::uint32_t>(bound) - blocks_[b].stamp;
    if (static_cast<std::int32_t>(ahead) <= 0) break;
    out[n++] = b;
  }
  return n;
}

inline BlockId BlockPool::oldest_retiring(std::uint64_t bound) const noexcept {
  std::int32_t block = -1;
  oldest_retiring(bound, {&block, 1});
  return BlockId(block);
}

}  // namespace kvfolio
