// SPDX-License-Identifier: Apache-2.0
//
// check_invariants: references counted again from every table, pin and step; states held against
// the tree and the order of eviction.

#include <algorithm>

#include "manager/impl.h"

namespace kvfolio {

Status KVCacheManager::Impl::check_invariants() const {
  using text::concat;
  const auto broken = [](const std::string& what) {
    return Status(ErrorCode::kFailedPrecondition, "manager: " + what);
  };
  KVFOLIO_RETURN_IF_ERROR(tree_->check_invariants());

  std::int32_t open = 0;
  for (std::size_t slot = 0; slot < sequences_.size(); ++slot) {
    const Sequence& s = sequences_[slot];
    if (s.life == Life::kUnused) continue;
    open += s.life == Life::kOpen ? 1 : 0;
    if (s.accepted + s.draft > s.length || (s.publishes && s.place.position > s.accepted)) {
      return broken(concat("sequence ", slot, ": length ", s.length, ", accepted ", s.accepted,
                           ", draft ", s.draft, ", published ", s.place.position));
    }
    for (std::int32_t g = 0; g < num_groups(); ++g) {
      const std::int32_t blocks = table(static_cast<std::int32_t>(slot), g).size();
      const std::int32_t needed = blocks_for(g, s.length + (s.replay ? 1 : 0));
      if (blocks != needed) {
        return broken(concat("sequence ", slot, " of ", s.length, " tokens has ", blocks,
                             " blocks in group ", g));
      }
    }
  }
  if (open != num_sequences_) {
    return broken(concat(open, " sequences are open, kept ", num_sequences_));
  }

  for (std::int32_t g = 0; g < num_groups(); ++g) {
    const Group& at = group(g);
    KVFOLIO_RETURN_IF_ERROR(at.pool.check_invariants());
    KVFOLIO_RETURN_IF_ERROR(at.order.check_invariants());
    std::vector<std::int32_t> refs(static_cast<std::size_t>(at.pool.num_blocks()));
    const auto count = [&](std::span<const std::int32_t> blocks) {
      for (const std::int32_t block : blocks) {
        if (block >= 0) ++refs[static_cast<std::size_t>(block)];
      }
    };
    for (std::size_t slot = 0; slot < sequences_.size(); ++slot) {
      if (sequences_[slot].life != Life::kOpen) continue;
      count(table(static_cast<std::int32_t>(slot), g).blocks(arena()));
    }
    for (std::size_t slot = 0; slot < pins_.size(); ++slot) {
      if (pins_[slot].open) count(pin_table(static_cast<std::int32_t>(slot), g).blocks(arena()));
    }
    const auto count_sources = [&](const Step& step) {
      for (std::int32_t i = 0; i < step.num_entries; ++i) count({&change(step, i, g).source, 1});
    };
    for (const std::int32_t index : in_flight_) count_sources(step_at(index));
    if (open_step_ >= 0) count_sources(step_at(open_step_));

    std::int32_t candidates = 0;
    for (std::int32_t b = 0; b < at.pool.num_blocks(); ++b) {
      const BlockId block(b);
      if (at.pool.refs(block) != refs[static_cast<std::size_t>(b)]) {
        return broken(concat("group ", g, " block ", b, " has ", at.pool.refs(block),
                             " references, counted ", refs[static_cast<std::size_t>(b)]));
      }
      const bool findable = tree_->is_findable(GroupId(g), block);
      const BlockState state = at.pool.state(block);
      if (state == BlockState::kCached && !findable) {
        return broken(concat("group ", g, " block ", b, " is cached and not findable"));
      }
      if (state == BlockState::kFree && findable) {
        return broken(concat("group ", g, " block ", b, " is free and findable"));
      }
      const std::int32_t first_position_behind =
          tree_->findable_end(GroupId(g), block) % at.spec.block_size;
      if (findable && at.pool.valid(block) < first_position_behind) {
        return broken(concat("group ", g, " block ", b, " is findable beyond its valid tokens"));
      }
      const std::int32_t writer = at.pool.writer(block);
      if (writer >= 0 && (state != BlockState::kHeld || sequences_[writer].life == Life::kUnused)) {
        return broken(concat("group ", g, " block ", b, " has the writer ", writer,
                             ", which does not hold it"));
      }
      if (at.order.is_candidate(block)) {
        ++candidates;
        if (state != BlockState::kCached) {
          return broken(concat("group ", g, " block ", b, " is a candidate and not cached"));
        }
      }
    }
    if ((candidates > 0) != (evictable(g) > 0) || candidates > evictable(g)) {
      return broken(
          concat("group ", g, ": ", candidates, " candidates, ", evictable(g), " evictable"));
    }
    if (evictable(g) > at.pool.num_cached()) {
      return broken(concat("group ", g, ": ", evictable(g), " evictable of ", at.pool.num_cached(),
                           " cached"));
    }
  }
  return {};
}

}  // namespace kvfolio
