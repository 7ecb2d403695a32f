// SPDX-License-Identifier: Apache-2.0
//
// The arrays of a step. Counted first, then written one behind the other into the step's own
// buffer, which grows only when a plan is larger than any before.

#include <algorithm>
#include <limits>

#include "manager/impl.h"

namespace kvfolio {

using text::concat;

std::int32_t KVCacheManager::Impl::num_copies(const Step& step, std::int32_t g) const noexcept {
  std::int32_t copies = 0;
  if (step.num_displaced == 0) return copies;
  for (std::int32_t i = 0; i < step.num_entries; ++i) {
    copies += change(step, i, g).copy_to >= 0 ? 1 : 0;
  }
  return copies;
}

KVCacheManager::Impl::TableSizes KVCacheManager::Impl::table_sizes(const Step& step,
                                                                   std::int32_t g) const noexcept {
  TableSizes sizes;
  for (std::int32_t i = 0; i < step.num_entries; ++i) {
    const std::int64_t blocks = table(step.entries[i].slot, g).size();
    sizes.widest = std::max(sizes.widest, blocks);
    sizes.all += blocks;
  }
  return sizes;
}

// FlashInfer's arrays name whole blocks; they cannot say that half of one is dropped.
Status KVCacheManager::Impl::check_flashinfer(const Step& step) const {
  for (std::int32_t i = 0; i < step.num_entries; ++i) {
    const Sequence& s = sequences_[step.entries[i].slot];
    if (s.trim_first_kept <= s.trim_sinks) continue;
    for (std::int32_t g = 0; g < num_groups(); ++g) {
      if (s.trim_sinks % block_size(g) == 0 && s.trim_first_kept % block_size(g) == 0) continue;
      return {ErrorCode::kUnsupported,
              concat("FlashInfer arrays for sequence ", id_of(s).value(), ": its trim dropped [",
                     s.trim_sinks, ", ", s.trim_first_kept, "), which cuts through a block of ",
                     block_size(g), " tokens in group ", g)};
    }
  }
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    const std::int64_t entries = table_sizes(step, g).all;
    if (entries <= std::numeric_limits<std::int32_t>::max()) continue;
    return {ErrorCode::kUnsupported,
            concat("FlashInfer arrays of ", entries, " table entries in group ", g,
                   ", which kv_indptr cannot count; allowed: 2147483647 in a step")};
  }
  return {};
}

std::int64_t KVCacheManager::Impl::num_unplanned(const Step& step, std::int32_t g) const noexcept {
  std::int64_t entries = 0;
  for (std::int32_t i = 0; i < step.num_entries; ++i) {
    const std::int32_t slot = step.entries[i].slot;
    entries += table(slot, g).size() - unplanned_from(slot, g);
  }
  return entries;
}

std::int64_t KVCacheManager::Impl::plan_cells(const Step& step,
                                              const PlanOptions& options) const noexcept {
  const std::int64_t n = step.num_entries;
  std::int64_t tokens = 0;
  for (std::int32_t i = 0; i < step.num_entries; ++i) {
    tokens += step.entries[i].end - step.entries[i].begin;
  }
  std::int64_t cells = 5 * n + 1;
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    cells += tokens + 2 * num_copies(step, g);
    if (options.changed_entries) cells += 3 * num_unplanned(step, g);
    if (!options.block_tables && !options.flashinfer) continue;
    const TableSizes sizes = table_sizes(step, g);
    if (options.block_tables) cells += n * sizes.widest;
    if (options.flashinfer) cells += 2 * n + 1 + sizes.all;
  }
  return cells;
}

std::int32_t* KVCacheManager::Impl::plan_group(Step& step, std::int32_t g,
                                               const PlanOptions& options,
                                               std::int32_t* cursor) noexcept {
  GroupPlan& plan = step.group_plans[static_cast<std::size_t>(g)];
  plan = {};
  const std::int32_t size = block_size(g);
  const auto n = static_cast<std::size_t>(step.num_entries);
  const auto blocks_of = [&](std::int32_t i) {
    return std::as_const(*this).table(step.entries[i].slot, g).blocks(std::as_const(*this).arena());
  };
  // A window or a trim left holes in the table.
  const auto may_have_dropped = [&](std::int32_t i) {
    const Sequence& s = sequences_[step.entries[i].slot];
    return windowed(g) || s.trim_first_kept > s.trim_sinks;
  };
  const auto close = [&](std::int32_t* begin) {
    return std::span<const std::int32_t>(begin, static_cast<std::size_t>(cursor - begin));
  };

  std::int32_t* begin = cursor;
  for (std::int32_t i = 0; i < step.num_entries; ++i) {
    const StepEntry& e = step.entries[i];
    const auto blocks = blocks_of(i);
    if (e.write_begin > e.begin) *cursor++ = -1;
    for (std::int32_t at = e.write_begin; at < e.end;) {
      const std::int32_t logical = block_of(g, at);
      const std::int32_t slot_of_0 = (blocks[static_cast<std::size_t>(logical)] - logical) * size;
      const std::int32_t stop = std::min(e.end, (logical + 1) * size);
      for (; at < stop; ++at) *cursor++ = slot_of_0 + at;
    }
  }
  plan.slot_mapping = close(begin);

  if (options.block_tables) {
    std::size_t widest = 0;
    for (std::int32_t i = 0; i < step.num_entries; ++i) {
      widest = std::max(widest, blocks_of(i).size());
    }
    begin = cursor;
    for (std::int32_t i = 0; i < step.num_entries; ++i) {
      const auto blocks = blocks_of(i);
      cursor = std::copy_n(blocks.data(), blocks.size(), cursor);
      if (options.pad != BlockTable::kDropped && may_have_dropped(i)) {
        std::replace(cursor - blocks.size(), cursor, BlockTable::kDropped, options.pad);
      }
      cursor = std::fill_n(cursor, widest - blocks.size(), options.pad);
    }
    plan.block_table = close(begin);
    plan.block_table_stride = static_cast<std::int32_t>(widest);
  }

  if (options.changed_entries) {
    const std::int64_t room = num_unplanned(step, g);
    std::int32_t* rows = cursor;
    std::int32_t* columns = rows + room;
    std::int32_t* entries = columns + room;
    for (std::int32_t i = 0; i < step.num_entries; ++i) {
      const auto blocks = blocks_of(i);
      const std::int32_t slot = step.entries[i].slot;
      for (auto at = static_cast<std::size_t>(unplanned_from(slot, g)); at < blocks.size(); ++at) {
        if (blocks[at] < 0) continue;
        *rows++ = slot;
        *columns++ = static_cast<std::int32_t>(at);
        *entries++ = blocks[at];
      }
    }
    const auto count = static_cast<std::size_t>(rows - cursor);
    plan.changed_rows = {cursor, count};
    plan.changed_columns = {cursor + room, count};
    plan.changed_blocks = {cursor + 2 * room, count};
    cursor += 3 * room;
  }

  if (options.flashinfer) {
    std::int32_t* indptr = cursor;
    std::int32_t* last = indptr + n + 1;
    std::int32_t* indices = last + n;
    begin = cursor = indices;
    indptr[0] = 0;
    for (std::int32_t i = 0; i < step.num_entries; ++i) {
      const auto blocks = blocks_of(i);
      if (may_have_dropped(i)) {
        cursor = std::remove_copy(blocks.begin(), blocks.end(), cursor, BlockTable::kDropped);
      } else {
        cursor = std::copy_n(blocks.data(), blocks.size(), cursor);
      }
      indptr[i + 1] = static_cast<std::int32_t>(cursor - begin);
      const std::int32_t end = step.entries[i].end;
      last[i] = end - block_of(g, end - 1) * size;
    }
    plan.kv_indptr = {indptr, n + 1};
    plan.kv_last_page_len = {last, n};
    plan.kv_indices = close(begin);
  }

  if (step.num_displaced == 0) return cursor;
  begin = cursor;
  for (std::int32_t i = 0; i < step.num_entries; ++i) {
    const TailChange& tail = change(step, i, g);
    if (tail.copy_to >= 0) *cursor++ = tail.source;
  }
  plan.copy_src = close(begin);
  begin = cursor;
  for (std::int32_t i = 0; i < step.num_entries; ++i) {
    const TailChange& tail = change(step, i, g);
    if (tail.copy_to >= 0) *cursor++ = tail.copy_to;
  }
  plan.copy_dst = close(begin);
  return cursor;
}

// Runs of neighbours whose tables begin with the same full blocks, all of whose tokens each of them
// reads and behind which all that they compute lies: a token that replays a whole hit may lie in a
// shared block. Greedy, and no run of the weakest link: a stranger that shares a system prompt does
// not cost four samples their common history.
void KVCacheManager::Impl::find_shared_prefixes(Step& step, std::int32_t g) noexcept {
  const std::int32_t first_of_group = step.num_shared;
  const std::int32_t size = block_size(g);
  const auto shareable = [&](std::int32_t i) {
    const Sequence& s = sequences_[step.entries[i].slot];
    const bool trimmed = s.trim_first_kept > s.trim_sinks;
    const std::int32_t begin = step.entries[i].begin;
    return (trimmed ? std::min(s.trim_sinks, begin) : begin) / size;
  };
  const auto flush = [&](SharedPrefix& run) {
    if (run.num_sequences > 1) step.shared[step.num_shared++] = run;
    run = {};
  };
  SharedPrefix run;
  for (std::int32_t i = 1; i < step.num_entries; ++i) {
    const auto a = table(step.entries[i - 1].slot, g).blocks(arena());
    const auto b = table(step.entries[i].slot, g).blocks(arena());
    const std::int32_t limit = std::min(shareable(i - 1), shareable(i));
    std::int32_t same = 0;
    while (same < limit && a[static_cast<std::size_t>(same)] >= 0 &&
           a[static_cast<std::size_t>(same)] == b[static_cast<std::size_t>(same)]) {
      ++same;
    }
    if (run.num_sequences == 0) {
      if (same > 0) run = {i - 1, 2, same};
      continue;
    }
    // Taken in, left out, or together with the last one in a run of their own: what saves most.
    const std::int64_t n = run.num_sequences;
    const std::int64_t blocks = run.num_blocks;
    const std::int64_t together = (n + 1) * std::min<std::int64_t>(blocks, same);
    const std::int64_t apart = n * blocks;
    const std::int64_t own_run = (n > 2 ? (n - 1) * blocks : 0) + 2 * std::int64_t{same};
    if (own_run > std::max(together, apart)) {
      --run.num_sequences;
      flush(run);
      run = {i - 1, 2, same};
    } else if (together >= apart) {
      ++run.num_sequences;
      run.num_blocks = std::min(run.num_blocks, same);
    } else {
      flush(run);
    }
  }
  flush(run);
  step.group_plans[static_cast<std::size_t>(g)].shared_prefixes = {
      step.shared.data() + first_of_group,
      static_cast<std::size_t>(step.num_shared - first_of_group)};
}

Result<const StepPlan*> KVCacheManager::Impl::plan(const PlanOptions& options) {
  if (open_step_ < 0) {
    return Status(ErrorCode::kFailedPrecondition, "plan: no step is open; begin_step() first");
  }
  if (options.pad != -1 && options.pad != 0) {
    return Status(ErrorCode::kInvalidArgument,
                  concat("plan: pad is ", options.pad, ", allowed: -1 and 0"));
  }
  Step& step = step_at(open_step_);
  close_ranks(step);
  if (options.flashinfer) KVFOLIO_RETURN_IF_ERROR(check_flashinfer(step));
  const std::int64_t cells = plan_cells(step, options);
  if (cells > static_cast<std::int64_t>(step.cells.size())) {
    FixedArray<std::int32_t> larger;
    if (!larger.allocate_zeroed(cells + cells / 2)) {
      return Status(ErrorCode::kOutOfMemory, concat("plan: no memory for ", cells, " int32 cells"));
    }
    step.cells = std::move(larger);
  }

  const auto n = static_cast<std::size_t>(step.num_entries);
  std::int32_t* query_start = step.cells.data();
  std::int32_t* rows = query_start + n + 1;
  std::int32_t* kv_lens = rows + n;
  std::int32_t* trim_sinks = kv_lens + n;
  std::int32_t* trim_first_kept = trim_sinks + n;
  std::int32_t* cursor = trim_first_kept + n;
  query_start[0] = 0;
  for (std::int32_t i = 0; i < step.num_entries; ++i) {
    const StepEntry& e = step.entries[i];
    const Sequence& s = sequences_[e.slot];
    step.sequences[i] = id_of(s);
    query_start[i + 1] = query_start[i] + (e.end - e.begin);
    rows[i] = e.slot;
    kv_lens[i] = e.end;
    trim_sinks[i] = s.trim_sinks;
    trim_first_kept[i] = s.trim_first_kept;
  }
  step.num_shared = 0;
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    cursor = plan_group(step, g, options, cursor);
    if (options.shared_prefixes) find_shared_prefixes(step, g);
  }

  step.plan.ticket = Ticket(step.ticket);
  step.plan.num_tokens = query_start[n];
  step.planned_changes = options.changed_entries;  // it takes the place of the plan before
  step.plan.sequences = {step.sequences.data(), n};
  step.plan.rows = {rows, n};
  step.plan.query_start = {query_start, n + 1};
  step.plan.kv_lens = {kv_lens, n};
  step.plan.trim_sinks = {trim_sinks, n};
  step.plan.trim_first_kept = {trim_first_kept, n};
  step.plan.groups = step.group_plans;
  return &step.plan;
}

Status KVCacheManager::Impl::run_copies() {
  if (!storage_) {
    return {ErrorCode::kUnsupported,
            "run_copies: the manager has no storage; run the plan's lists"};
  }
  if (open_step_ < 0) return {ErrorCode::kFailedPrecondition, "run_copies: no step is open"};
  Step& step = step_at(open_step_);
  close_ranks(step);
  if (step.copies_ran) {
    return {ErrorCode::kFailedPrecondition,
            concat("run_copies: those of step ", step.ticket, " have run already")};
  }
  // They run at once, and a step in flight may not have written yet what they read. Without order
  // nobody appends behind tokens of such a step.
  for (std::int32_t g = 0; g < num_groups() && options_.order == Order::kInOrder; ++g) {
    if (in_flight_.empty() || num_copies(step, g) == 0) continue;
    return {ErrorCode::kFailedPrecondition,
            concat("run_copies: step ", oldest_incomplete(),
                   " is in flight and may be writing what is copied; complete it first")};
  }
  // With the mutant, commit() runs them.
  if (!mutant(Mutant::kCopyAfterWrite)) KVFOLIO_RETURN_IF_ERROR(copy_tails(step));
  step.copies_ran = true;
  return {};
}

Status KVCacheManager::Impl::copy_tails(const Step& step) {
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    for (std::int32_t i = 0; i < step.num_entries; ++i) {
      const TailChange& tail = change(step, i, g);
      if (tail.copy_to < 0) continue;
      KVFOLIO_RETURN_IF_ERROR(
          storage_->copy_blocks(GroupId(g), {&tail.source, 1}, {&tail.copy_to, 1}));
    }
  }
  return {};
}

}  // namespace kvfolio
