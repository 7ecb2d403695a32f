// SPDX-License-Identifier: Apache-2.0
#include "manager/table_blocks.h"

#include <algorithm>

#include "base/mutants.h"

namespace kvfolio {

// ---- a step ----

void TableBlocks::append(Step& step, std::int32_t row, std::int32_t g, std::int32_t write_begin,
                         std::int32_t end, const Demand& needs) noexcept {
  BlockTable& blocks = table(row, g);
  const std::int32_t size = group(g).spec.block_size;
  TailChange& tail = step.change(step.num_entries, g);
  tail = TailChange::none();

  std::int32_t ready = needs.ready;
  const auto displace = [&](BlockId block) {  // the reference moves from the table to the step
    tail.source = block.value();
    blocks_.give_to_step(g, block);
    ++step.num_displaced;
  };
  std::int32_t have = group(g).blocks_for(write_begin);
  if (blocks.size() > have && !needs.reuse) {
    // The prompt was found whole, but another token comes: its last block is not ours to keep.
    displace(blocks.at(arena(), have));
    blocks.truncate(have);
  }
  tables_.note_entries(row, g, have);
  if (end == write_begin) return;
  if (write_begin != have * size) {
    const std::int32_t logical = have - 1;
    BlockId block = blocks.at(arena(), logical);
    if (!needs.new_tail) {
      // What lies behind is overwritten: undo() does not make it valid again.
      tail.valid_before = group(g).size.offset_of(write_begin);
      tail.writer_before = blocks_.pool(g).writer(block);
      tail.written_before = blocks_.pool(g).written_in(block);
    } else {
      displace(block);
      block = promises_.acquire(row, g, logical, ready);
      tail.copy_to = block.value();
      blocks.set(arena(), logical, block);
      tables_.note_entries(row, g, logical);
    }
    blocks_.set_written(g, block, {std::min(size, end - logical * size), row, step.ticket});
  }
  const std::int32_t first_new = blocks.size();  // behind `have` where a block is reused
  if (first_new > have) tail.valid_before = TailChange::kReused;
  blocks.grow(arena(), group(g).blocks_for(end));
  for (; have < blocks.size(); ++have) {
    const BlockId block =
        have < first_new ? blocks.at(arena(), have) : promises_.acquire(row, g, have, ready);
    blocks.set(arena(), have, block);
    blocks_.set_written(g, block, {std::min(size, end - have * size), row, step.ticket});
  }
  const BlockId first = blocks.at(arena(), group(g).block_of(write_begin));
  tail.slot = first.value() * size + group(g).size.offset_of(write_begin);
}

void TableBlocks::undo(Step& step, std::int32_t entry) noexcept {
  for (std::int32_t g = 0; g < num_groups(); ++g) undo(step, entry, g);
}

void TableBlocks::undo(Step& step, std::int32_t entry, std::int32_t g) noexcept {
  const StepEntry& e = step.entries[entry];
  const TailChange& tail = step.change(entry, g);
  BlockTable& blocks = table(e.row, g);
  const std::int32_t have = group(g).blocks_for(e.write_begin);
  // Blocks that the append took, and of these the ones that did not lie ready.
  const std::int32_t num_taken = blocks.size() - have + (tail.copy_to >= 0 ? 1 : 0) -
                                 (tail.valid_before == TailChange::kReused ? 1 : 0);
  std::int32_t from_pool = promises_.num_from_pool(e.row, g, num_taken);
  for (std::int32_t logical = blocks.size() - 1; logical >= have; --logical) {
    const BlockId block = blocks.at(arena(), logical);
    const bool reused = logical == have && tail.valid_before == TailChange::kReused;
    if (reused && promises_.has(e.row)) {
      promises_.set_aside_reused(e.row, g, block);
    } else if (reused && order_ == Order::kInOrder) {
      blocks_.let_go(g, block, true);  // steps in flight may read what it held
    } else if (reused) {
      blocks_.free_unwritten(g, block);
    } else {
      promises_.give_back(e.row, g, block, from_pool);
    }
  }
  blocks.truncate(have);
  step.num_displaced -= tail.source >= 0 ? 1 : 0;
  undo_tail(e, g, tail, from_pool);
}

void TableBlocks::undo_tail(const StepEntry& e, std::int32_t g, const TailChange& tail,
                            std::int32_t from_pool) noexcept {
  BlockTable& blocks = table(e.row, g);
  const std::int32_t have = group(g).blocks_for(e.write_begin);
  const BlockId source(tail.source);
  if (tail.copy_to >= 0) {
    promises_.give_back(e.row, g, BlockId(tail.copy_to), from_pool);
    blocks_.take_from_step(g, source);
    blocks.set(arena(), have - 1, source);
    tables_.note_entries(e.row, g, have - 1);
  } else if (source.valid() && e.replay_before) {
    blocks_.take_from_step(g, source);
    blocks.grow(arena(), have + 1);
    blocks.set(arena(), have, source);
  } else if (source.valid()) {
    promises_.disown(e.row, g, source);
    blocks_.let_go_of_source(g, source);
  } else if (tail.valid_before >= 0) {
    const BlockId block = blocks.at(arena(), have - 1);
    blocks_.set_written(g, block, {tail.valid_before, tail.writer_before, tail.written_before});
  }
}

void TableBlocks::move_windows(std::int32_t row) noexcept {
  const Sequence& s = rows_[row];
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    if (!group(g).windowed()) continue;
    const GroupRule& rule = group(g).rule;
    std::int32_t keep_from = group(g).keep_from(s.accepted);
    if (group(g).spec.rewind > 0) {
      // What lies before is not kept to go back to: open(), or a load, did not bring it.
      keep_from = std::max(keep_from, rule.first_read(rows_.details(row).rewind_base));
    }
    if (mutant(Mutant::kWindowReleasedBeforeCommit) && s.step_entry >= 0) {
      keep_from = std::min(rule.keep_from(s.length), group(g).size.begin_of(s.accepted));
    }
    // Without order the newest blocks are published at complete(): until then they stay, or no
    // prompt longer than the window would ever be found.
    if (order_ == Order::kUnordered && s.publishes && !steps_.is_complete(s.last_ticket)) {
      keep_from = std::min(keep_from, s.place.position);
    }
    std::int32_t& begin = tables_.window_begin(row, g);
    begin = std::max(begin, group(g).blocks_for(rule.num_sinks()));
    const std::int32_t first = begin;
    begin = std::max(begin, group(g).block_of(keep_from));
    if (first == begin) continue;  // sinks may reach beyond the table
    // Tails first, as everywhere: the head is what others share.
    for (std::int32_t head = first; mutant(Mutant::kHeadsBeforeTails) && head < begin; ++head) {
      drop(row, g, head, head + 1, s.length);
    }
    drop(row, g, first, begin, s.length);
  }
  borders_.move(row);
}

// ---- without a step ----

void TableBlocks::replace(std::int32_t row, std::int32_t g, std::int32_t first,
                          std::span<const std::int32_t> entries) noexcept {
  BlockTable& blocks = table(row, g);
  promises_.let_go(row, g, first, blocks.size(), rows_[row].length);
  blocks.truncate(first);
  blocks.grow(arena(), first + static_cast<std::int32_t>(entries.size()));
  for (std::size_t i = 0; i < entries.size(); ++i) {
    blocks.set(arena(), first + static_cast<std::int32_t>(i), BlockId(entries[i]));
  }
  tables_.note_entries(row, g, first);
}

void TableBlocks::note_hit(std::int32_t row, std::int32_t held) noexcept {
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    if (mutant(Mutant::kHitReferencedLate)) break;
    const std::int32_t offset = group(g).size.offset_of(held);
    if (offset == 0) continue;
    const BlockId tail = table(row, g).at(arena(), group(g).block_of(held));
    blocks_.note_hit_inside(g, tail, offset, row);
  }
}

void TableBlocks::drop(std::int32_t row, std::int32_t g, std::int32_t first, std::int32_t end,
                       std::int32_t length) noexcept {
  promises_.let_go(row, g, first, end, length);
  for (std::int32_t logical = first; logical < end; ++logical) {
    table(row, g).set(arena(), logical, BlockId());
  }
}

void TableBlocks::truncate(std::int32_t row, std::int32_t n) noexcept {
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    const std::int32_t keep = group(g).blocks_for(n);
    promises_.let_go(row, g, keep, table(row, g).size(), n);
    table(row, g).truncate(keep);
    tables_.window_begin(row, g) = std::min(tables_.window_begin(row, g), keep);
    tables_.note_entries(row, g, keep);
  }
}

void TableBlocks::let_go(std::int32_t row) noexcept {
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    promises_.let_go(row, g, 0, table(row, g).size(), 0);
  }
}

}  // namespace kvfolio
