// SPDX-License-Identifier: Apache-2.0
//
// Holds: references to blocks from which a host copies (transfers.h).

#include "manager/impl.h"
#include "manager/op_writer.h"

namespace kvfolio {

using text::concat;

Status KVCacheManager::Impl::check_hold(GroupId group, std::span<const std::int32_t> blocks) const {
  KVFOLIO_RETURN_IF_ERROR(check_group("hold_blocks", group));
  if (arena().overlaps(blocks)) {
    return {ErrorCode::kInvalidArgument,
            "hold_blocks: the ids lie in memory of the manager; copy them"};
  }
  for (const std::int32_t block : blocks) {
    KVFOLIO_RETURN_IF_ERROR(check_block("hold_blocks", group, BlockId(block)));
    const BlockPool& of = blocks_.pool(group.value());
    const bool is_free = of.state(BlockId(block)) == BlockState::kFree;
    if (is_free || of.valid(BlockId(block)) == 0) {
      return {ErrorCode::kInvalidArgument,
              concat("hold_blocks: block ", block, " of group ", group.value(),
                     is_free ? " is free" : " has no token yet")};
    }
    // undo() would take the block away, or what is valid in it.
    if (!steps_.is_open() ||
        of.written_in(BlockId(block)) != static_cast<std::uint32_t>(steps_.open().ticket)) {
      continue;
    }
    return {ErrorCode::kFailedPrecondition,
            concat("hold_blocks: block ", block, " of group ", group.value(),
                   " is written by step ", steps_.last_ticket(), ", which is open")};
  }
  return {};
}

Result<HoldId> KVCacheManager::hold_blocks(GroupId group, std::span<const std::int32_t> blocks) {
  KVFOLIO_RECORDED(kHoldBlocks, hold_blocks(group, blocks), group, blocks);
  Impl& m = *impl_;
  KVFOLIO_RETURN_IF_ERROR(m.check_hold(group, blocks));
  const std::int32_t hold = m.transfers_.next_hold();
  if (hold == Transfers::kNone) {
    return Status(ErrorCode::kResourceExhausted,
                  concat("hold_blocks: all ", m.options_.max_transfers,
                         " holds are open; release one or raise max_transfers"));
  }
  std::array<std::span<const std::int32_t>, kMaxGroups> tables{};
  const std::int32_t g = group.value();
  tables[static_cast<std::size_t>(g)] = blocks;
  KVFOLIO_RETURN_IF_ERROR(m.check_sharing(tables));
  BlockTable& held = m.transfers_.held(hold);
  if (!held.reserve(m.arena(), static_cast<std::int32_t>(blocks.size()))) {
    return m.spans_.full("hold_blocks", static_cast<std::int64_t>(blocks.size()));
  }
  held.assign(m.arena(), blocks);
  if (!mutant(Mutant::kHoldDoesNotKeep)) {
    m.promises_.share([&](const auto& visit) { visit(g, blocks); });
  }
  const HoldId id = m.transfers_.take_hold(g);
  m.blocks_.note_peak();
  return id;
}

// The last block first, as tables let go: where blocks follow each other on a path, tails leave
// before their heads. A copy is no use of a block: each keeps its rank.
Status KVCacheManager::release_hold(HoldId id) {
  KVFOLIO_RECORDED(kReleaseHold, release_hold(id), id);
  Impl& m = *impl_;
  const std::int32_t hold = m.transfers_.find(id);
  if (hold == Transfers::kNone) {
    if (!id.valid()) return {ErrorCode::kNotFound, "the id names no hold"};
    return {ErrorCode::kNotFound,
            concat(to_string(id), " is released, of another manager, or was never given out")};
  }
  const std::int32_t g = m.transfers_.group_of(hold);
  const BlockTable& held = m.transfers_.held(hold);
  for (std::int32_t i = held.size() - 1; i >= 0 && !mutant(Mutant::kHoldDoesNotKeep); --i) {
    m.blocks_.let_go(g, held.at(m.arena(), i), false);
  }
  m.transfers_.give_back_hold(hold, m.arena());
  return {};
}

}  // namespace kvfolio
