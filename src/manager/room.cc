// SPDX-License-Identifier: Apache-2.0
//
// All blocks of all groups, but for what is called for each block of a step (room.h).

#include "manager/room.h"

#include <utility>

#include "base/text.h"
#include "kvfolio/group_rule.h"

namespace kvfolio {

Status Room::allocate(std::span<const GroupSpec> groups, bool null_block) {
  std::vector<std::int32_t> num_blocks;
  num_blocks.reserve(groups.size());
  for (const GroupSpec& spec : groups) num_blocks.push_back(spec.num_blocks);
  // First, since it checks the numbers: before a pool of that size is written.
  Result<LruOrder> order = LruOrder::create(num_blocks);
  if (!order) return std::move(order).error();
  order_ = std::move(*order);
  groups_.reserve(groups.size());
  for (const GroupSpec& spec : groups) {
    Result<BlockPool> pool = BlockPool::create(spec.num_blocks);
    if (!pool) return std::move(pool).error();
    if (null_block) pool->keep_null_block();
    groups_.push_back({std::move(*pool), {}});
    const bool has_borders = !GroupRule(spec).keeps_all();
    if (has_borders && !groups_.back().borders.allocate_zeroed(spec.num_blocks)) {
      return {ErrorCode::kOutOfMemory,
              text::concat("no memory for the borders of ", spec.num_blocks, " blocks")};
    }
  }
  return {};
}

Shortage Room::shortage(std::int32_t g, std::int64_t needed) const noexcept {
  const BlockPool& of = pool(g);
  Shortage s;
  s.group = g;
  s.needed = static_cast<std::int32_t>(std::min<std::int64_t>(needed, INT32_MAX));
  s.free = of.num_free();
  s.evictable = of.num_cached();
  s.retiring = of.num_retiring();
  s.num_blocks = of.num_usable();
  s.pinned = of.num_usable() - s.free - s.evictable - s.retiring;
  return s;
}

std::uint64_t Room::num_held() const noexcept {
  std::uint64_t held = 0;
  for (const Group& group : groups_) held += static_cast<std::uint64_t>(group.pool.num_held());
  return held;
}

void Room::forget(std::int32_t g, BlockId block, BlockId successor) noexcept {
  Group& of = at(g);
  order_.forget(GroupId(g), block);
  if (successor.valid()) {
    if (of.pool.wanted(block)) of.pool.set_wanted(successor, true);
    if (!of.borders.empty()) of.borders[successor.value()] = of.borders[block.value()];
  }
  of.pool.set_wanted(block, false);
  if (!of.borders.empty()) of.borders[block.value()] = 0;
}

MemoryUse Room::memory() const noexcept {
  MemoryUse sum = order_.memory();
  for (const Group& group : groups_) {
    sum += group.pool.memory();
    sum += MemoryUse::whole(group.borders.bytes());
  }
  return sum;
}

// A member that is not named here does not compile.
void Room::copy_from(const Room& other) noexcept {
  const auto& [groups, order] = other;
  KVFOLIO_CHECK(groups_.size() == groups.size());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto& [pool, borders] = groups[g];
    groups_[g].pool.copy_from(pool);
    groups_[g].borders.copy_from(borders);
  }
  order_.copy_from(order);
}

Status Room::check() const {
  const auto broken = [](std::int32_t g, std::int32_t b, const char* what) {
    return Status(ErrorCode::kFailedPrecondition,
                  text::concat("room: group ", g, " block ", b, " ", std::string_view(what)));
  };
  KVFOLIO_RETURN_IF_ERROR(order_.check_invariants());
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    const BlockPool& of = pool(g);
    KVFOLIO_RETURN_IF_ERROR(of.check_invariants());
    for (std::int32_t b = 0; b < of.num_blocks(); ++b) {
      const BlockId block(b);
      const BlockState state = of.state(block);
      const bool is_candidate = order_.turn(GroupId(g), block) != EvictionTurn::kNever;
      if (is_candidate && state != BlockState::kCached) {
        return broken(g, b, "is a candidate and not cached");
      }
      if (state == BlockState::kFree && order_.has_rank(GroupId(g), block)) {
        return broken(g, b, "is free and has a rank");
      }
      if (state == BlockState::kCached && !order_.has_rank(GroupId(g), block)) {
        return broken(g, b, "is cached and has no rank");
      }
      if (!at(g).borders.empty() && at(g).borders[b] < 0) {
        return broken(g, b, "is the border of fewer than no sequences");
      }
    }
    // Each cached block can be evicted, if not now then when what lies below it has been.
    if (victim(g).valid() != (of.num_cached() > 0)) {
      return Status(ErrorCode::kFailedPrecondition,
                    text::concat("room: group ", g, ": ", of.num_cached(),
                                 " blocks are cached, the victim is ", victim(g).value()));
    }
  }
  return {};
}

}  // namespace kvfolio
