// SPDX-License-Identifier: Apache-2.0
//
// Adoption: an empty sequence takes blocks that are held already.

#include <algorithm>
#include <array>

#include "manager/impl.h"
#include "manager/op_writer.h"

namespace kvfolio {

using text::concat;

Status KVCacheManager::adopt(SequenceId id, std::span<const std::span<const std::int32_t>> tables,
                             std::int32_t num_tokens) {
  KVFOLIO_RECORDED(kAdopt, adopt(id, tables, num_tokens), id, tables, num_tokens);
  Impl& m = *impl_;
  std::int32_t row = 0;
  KVFOLIO_RETURN_IF_ERROR(m.find_resting(id, "adopt", row));
  KVFOLIO_RETURN_IF_ERROR(m.check_no_load(row, "adopt"));
  Sequence& s = m.rows_[row];
  SequenceDetails& d = m.details(row);
  if (m.steps_.is_open()) {
    return {ErrorCode::kFailedPrecondition,
            concat("adopt: step ", m.steps_.last_ticket(), " is open; commit or drop it first")};
  }
  if (s.length > 0) {
    return {ErrorCode::kFailedPrecondition,
            concat("adopt: ", to_string(id), " has ", s.length, " tokens; clear() it first")};
  }
  KVFOLIO_RETURN_IF_ERROR(m.check_no_promise(row, "adopt"));
  KVFOLIO_RETURN_IF_ERROR(m.check_growth(s, "adopt", num_tokens));
  if (tables.size() != m.groups_.size()) {
    return {ErrorCode::kInvalidArgument,
            concat("adopt: ", tables.size(), " tables for ", m.num_groups(), " groups")};
  }
  // Where the entries go: into the table, or into a new one if it is too small or still counts.
  std::array<BlockTable, kMaxGroups> fresh;
  const auto target = [&](std::int32_t g) -> BlockTable& {
    const bool fits = m.blocks_for(g, num_tokens) <= m.table(row, g).capacity();
    return fits && !s.replay ? m.table(row, g) : fresh[static_cast<std::size_t>(g)];
  };
  Status status;
  for (std::int32_t g = 0; g < m.num_groups() && status.ok(); ++g) {
    if (!target(g).reserve(m.arena(), m.blocks_for(g, std::max(num_tokens, d.admitted)))) {
      status = m.spans_.full("adopt", m.spans_.words_for(s, num_tokens));
    }
  }
  for (std::int32_t g = 0; g < m.num_groups() && status.ok(); ++g) {
    // The caller may give what block_table() showed. Then nothing is written where something else
    // will be read.
    const std::span<const std::int32_t> blocks = tables[static_cast<std::size_t>(g)];
    for (std::int32_t other = 0; other < m.num_groups() && m.arena().overlaps(blocks); ++other) {
      if (other == g || !target(other).overlaps(m.arena(), blocks)) continue;
      status = {ErrorCode::kInvalidArgument,
                concat("adopt: the table for group ", g, " lies where that of group ", other,
                       " is written; copy it")};
    }
    if (status.ok()) status = m.check_adopted(g, blocks, num_tokens);
  }
  if (status.ok()) status = m.check_sharing(tables);
  // No tokens: what follows may be findable as ever.
  if (!status.ok() || num_tokens == 0) {
    for (BlockTable& blocks : fresh) blocks.release(m.arena());
    return status;
  }
  for (std::int32_t g = 0; g < m.num_groups(); ++g) {
    target(g).assign(m.arena(), tables[static_cast<std::size_t>(g)]);
  }
  // Held first: the only reference to one of them may be this sequence's own, to the block beyond
  // its length that its prompt was found in.
  m.promises_.share([&](const auto& visit) {
    for (std::int32_t g = 0; g < m.num_groups(); ++g) visit(g, target(g).blocks(m.arena()));
  });
  m.end_announcement(row);
  if (s.replay) m.truncate_to(row, 0);
  for (std::int32_t g = 0; g < m.num_groups(); ++g) {
    if (fresh[static_cast<std::size_t>(g)].capacity() == 0) continue;
    m.table(row, g).release(m.arena());
    m.table(row, g) = fresh[static_cast<std::size_t>(g)];
  }
  s.length = s.accepted = d.settled = d.rewind_base = num_tokens;
  s.exact_until = 0;  // it is not known which tokens these are
  s.used = true;
  m.victims_.note_change(row);
  return {};
}

Status KVCacheManager::Impl::check_adopted(std::int32_t g, std::span<const std::int32_t> blocks,
                                           std::int32_t num_tokens) {
  const std::int32_t size = block_size(g);
  const BlockPool& pool = blocks_.pool(g);
  if (blocks.size() != static_cast<std::size_t>(blocks_for(g, num_tokens))) {
    return {ErrorCode::kInvalidArgument,
            concat("adopt: group ", g, " gets ", blocks.size(), " blocks of ", size, " tokens for ",
                   num_tokens, " tokens, needed: ", blocks_for(g, num_tokens))};
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const auto begin = static_cast<std::int32_t>(i) * size;
    const std::int32_t wanted = std::min(size, num_tokens - begin);
    const BlockId block(blocks[i]);
    if (blocks[i] == BlockTable::kDropped) {
      if (!group(g).rule.reads(num_tokens, begin, begin + size)) continue;
      return {ErrorCode::kInvalidArgument, concat("adopt: group ", g, ", logical block ", i,
                                                  ": -1, but position ", num_tokens, " reads it")};
    }
    KVFOLIO_RETURN_IF_ERROR(check_block("adopt", GroupId(g), block));
    if (pool.refs(block) == 0) {
      return {ErrorCode::kInvalidArgument,
              concat("adopt: block ", block.value(), " of group ", g, " is held by nobody")};
    }
    if (pool.valid(block) < wanted) {
      return {ErrorCode::kInvalidArgument,
              concat("adopt: block ", block.value(), " of group ", g, " holds ", pool.valid(block),
                     " tokens, wanted: ", wanted)};
    }
    if (options_.order == Order::kInOrder) continue;  // a reader comes later in the stream
    for (std::int32_t i = 0; i < steps_.num_in_flight(); ++i) {
      const std::uint64_t ticket = steps_.in_flight(i).ticket;
      if (pool.written_in(block) != static_cast<std::uint32_t>(ticket)) continue;
      return {ErrorCode::kFailedPrecondition,
              concat("adopt: block ", block.value(), " of group ", g, " is written by step ",
                     ticket, ", which is not complete")};
    }
  }
  if (blocks_.are_distinct(g, blocks)) return {};
  return {ErrorCode::kInvalidArgument,
          concat("adopt: group ", g, ": a block stands twice in the table of ", blocks.size())};
}

}  // namespace kvfolio
