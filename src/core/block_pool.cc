// SPDX-License-Identifier: Apache-2.0

// What a pool does rarely: it is created, copied as a whole and checked. The calls that every step
// makes are inline in block_pool.h, which also says what the states of a block are;
// check_invariants() says it again, as code.

#include "kvfolio/block_pool.h"

#include "base/state_writer.h"
#include "base/text.h"

namespace kvfolio {

using text::concat;

Result<BlockPool> BlockPool::create(std::int32_t num_blocks) {
  if (num_blocks < 1) {
    return Status(ErrorCode::kInvalidArgument,
                  concat("num_blocks is ", num_blocks, ", allowed: at least 1"));
  }
  BlockPool pool;
  if (!pool.blocks_.allocate_zeroed(num_blocks) || !pool.free_.allocate_zeroed(num_blocks)) {
    return Status(ErrorCode::kOutOfMemory,
                  concat("no memory for the bookkeeping of ", num_blocks, " blocks"));
  }
  pool.num_blocks_ = num_blocks;
  pool.num_usable_ = num_blocks;
  pool.num_free_ = num_blocks;
  // Block 0 is taken first.
  for (std::int32_t i = 0; i < num_blocks; ++i) {
    pool.free_[i] = num_blocks - 1 - i;
    pool.blocks_[i].writer = kNobody;
  }
  return pool;
}

void BlockPool::keep_null_block() noexcept {
  KVFOLIO_CHECK(num_free_ == num_blocks_ && num_blocks_ > 1);
  KVFOLIO_CHECK(acquire() == BlockId(0));  // the top of the stack
  --num_usable_;
}

// A member that is not named here does not compile.
void BlockPool::copy_from(const BlockPool& other) noexcept {
  const auto& [blocks, free, num_blocks, num_usable, num_free, num_cached, num_retiring, by_steps,
               head, tail] = other;
  KVFOLIO_CHECK(num_blocks_ == num_blocks && num_usable_ == num_usable);
  blocks_.copy_from(blocks);
  free_.copy_from(free, num_free);
  num_free_ = num_free;
  num_cached_ = num_cached;
  num_retiring_ = num_retiring;
  num_held_by_steps_ = by_steps;
  retiring_head_ = head;
  retiring_tail_ = tail;
}

Status BlockPool::check_invariants() const {
  const auto broken = [](const std::string& what) {
    return Status(ErrorCode::kFailedPrecondition, "block pool: " + what);
  };
  std::int32_t free = 0;
  std::int32_t cached = 0;
  std::int32_t retiring = 0;
  std::int32_t by_steps = 0;
  for (std::int32_t i = 0; i < num_blocks_; ++i) {
    const Block& b = blocks_[i];
    if ((refs_of(b) > 0) != (b.state == BlockState::kHeld)) {
      return broken(concat("block ", i, " has ", refs_of(b), " references and state ",
                           static_cast<int>(b.state)));
    }
    free += b.state == BlockState::kFree ? 1 : 0;
    cached += b.state == BlockState::kCached ? 1 : 0;
    retiring += b.state == BlockState::kRetiring ? 1 : 0;
    by_steps += held_by_steps(BlockId(i)) ? 1 : 0;
    if (b.state == BlockState::kHeld && b.steps != kManySteps && std::int32_t{b.steps} > b.refs) {
      return broken(
          concat("block ", i, " has ", b.refs, " references, ", int{b.steps}, " of them steps'"));
    }
    if (b.state != BlockState::kHeld && b.steps != 0 && b.steps != kManySteps) {
      return broken(concat("block ", i, " is not held, but by steps"));
    }
  }
  if (has_null_block() && refs(BlockId(0)) != 1) {
    return broken(concat("the null block has ", refs(BlockId(0)), " references"));
  }
  if (by_steps != num_held_by_steps_) {
    return broken(concat("steps alone hold ", by_steps, " blocks, kept ", num_held_by_steps_));
  }
  if (free != num_free_ || cached != num_cached_ || retiring != num_retiring_) {
    return broken(concat("counted ", free, " free, ", cached, " cached, ", retiring,
                         " retiring; kept ", num_free_, ", ", num_cached_, ", ", num_retiring_));
  }
  for (std::int32_t i = 0; i < num_free_; ++i) {
    if (blocks_[free_[i]].state != BlockState::kFree) {
      return broken(concat("block ", free_[i], " is on the free list and not free"));
    }
  }
  std::int32_t listed = 0;
  for (std::int32_t i = retiring_head_, before = -1; i >= 0; before = i, i = next_of(i)) {
    if (blocks_[i].state != BlockState::kRetiring || previous_of(i) != before ||
        ++listed > retiring) {
      return broken(concat("the retiring list is torn at block ", i));
    }
  }
  return listed == retiring ? Status() : broken(concat(listed, " of ", retiring, " are listed"));
}

void BlockPool::put_retiring(StateWriter& out, std::int32_t g) const {
  for (std::int32_t b = retiring_head_; b >= 0; b = next_of(b)) {
    out.put(out.name_of(g, b));
    out.put(out.rank_of_low(blocks_[b].stamp));
  }
}

void BlockPool::put_state(StateWriter& out, BlockId id, bool stamps) const {
  const Block& block = at(id);
  out.put(refs_of(block));
  out.put(out.rows_.peek(writer_of(block)));
  out.put(out.rank_of_low(block.written));
  out.put(block.valid);
  out.put(block.touched);
  out.put(block.wanted);
  out.put(block.steps);
  out.put(stamps ? out.rank_of_low(block.stamp) : 0);
}

}  // namespace kvfolio
