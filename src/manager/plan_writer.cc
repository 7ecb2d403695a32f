// SPDX-License-Identifier: Apache-2.0

#include "manager/plan_writer.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "base/text.h"

namespace kvfolio {

using text::concat;

// FlashInfer's arrays name whole blocks; they cannot say that half of one is dropped.
Status PlanWriter::check_flashinfer() const {
  for (std::int32_t i = 0; i < step_.num_entries; ++i) {
    const Sequence& s = rows_[step_.entries[i].row];
    if (!s.has_trim) continue;
    const SequenceDetails& d = rows_.details(step_.entries[i].row);
    for (std::int32_t g = 0; g < num_groups(); ++g) {
      if (d.trim_sinks % group(g).spec.block_size == 0 &&
          d.trim_first_kept % group(g).spec.block_size == 0)
        continue;
      return {ErrorCode::kUnsupported,
              concat("FlashInfer arrays for ", to_string(rows_.id_of(s)), ": its trim dropped [",
                     d.trim_sinks, ", ", d.trim_first_kept, "), which cuts through a block of ",
                     group(g).spec.block_size, " tokens in group ", g)};
    }
  }
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    const std::int64_t entries = table_sizes(g).all;
    if (entries <= std::numeric_limits<std::int32_t>::max()) continue;
    return {ErrorCode::kUnsupported,
            concat("FlashInfer arrays of ", entries, " table entries in group ", g,
                   ", which kv_indptr cannot count; allowed: 2147483647 in a step")};
  }
  return {};
}

// ---- counting ----

PlanWriter::TableSizes PlanWriter::table_sizes(std::int32_t g) const noexcept {
  TableSizes sizes;
  for (std::int32_t i = 0; i < step_.num_entries; ++i) {
    const std::int64_t blocks = tables_.of(step_.entries[i].row, g).size();
    sizes.widest = std::max(sizes.widest, blocks);
    sizes.all += blocks;
  }
  return sizes;
}

std::int64_t PlanWriter::num_unplanned(std::int32_t g) const noexcept {
  std::int64_t entries = 0;
  for (std::int32_t i = 0; i < step_.num_entries; ++i) {
    const std::int32_t row = step_.entries[i].row;
    entries += tables_.of(row, g).size() - tables_.unplanned_from(row, g);
  }
  return entries;
}

std::int64_t PlanWriter::words_for(const PlanOptions& options) const noexcept {
  const std::int64_t n = step_.num_entries;
  std::int64_t tokens = 0;
  for (std::int32_t i = 0; i < step_.num_entries; ++i) {
    tokens += step_.entries[i].end - step_.entries[i].begin;
  }
  std::int64_t words = 6 * n + 1 + (options.positions ? tokens : 0);
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    words += tokens + 2 * step_.num_copies(g);
    if (options.changed_entries) words += 3 * num_unplanned(g);
    if (!options.block_tables && !options.flashinfer) continue;
    const TableSizes sizes = table_sizes(g);
    if (options.block_tables) words += n * sizes.widest;
    if (options.flashinfer) words += 3 * n + 1 + sizes.all;
  }
  return words;
}

Status PlanWriter::reserve(const PlanOptions& options) {
  const std::int64_t words = words_for(options);
  if (words <= static_cast<std::int64_t>(step_.words.size())) return {};
  FixedArray<std::int32_t> larger;
  if (!larger.allocate_zeroed(words + words / 2)) {
    return {ErrorCode::kOutOfMemory, concat("plan: no memory for ", words, " int32 words")};
  }
  step_.words = std::move(larger);
  return {};
}

// ---- writing ----

void PlanWriter::write(const PlanOptions& options) noexcept {
  std::int32_t* at = write_rows(step_.words.data());
  step_.plan.positions = {};
  if (options.positions) at = write_positions(at);
  step_.plan.caller_ids = {};
  if (options.caller_ids) write_caller_ids();
  step_.num_shared = 0;
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    at = write_group(g, options, at);
    if (options.shared_prefixes) find_shared_prefixes(g);
  }
  step_.num_words = at - step_.words.data();
  KVFOLIO_DCHECK(step_.num_words <= static_cast<std::int64_t>(step_.words.size()));
  step_.planned_changes = options.changed_entries;  // it takes the place of the plan before
  step_.num_planned = step_.num_entries;
  step_.num_taken_out = 0;
}

std::int32_t* PlanWriter::write_rows(std::int32_t* at) noexcept {
  const auto n = static_cast<std::size_t>(step_.num_entries);
  std::int32_t* query_start = at;
  std::int32_t* rows = query_start + n + 1;
  std::int32_t* kv_lens = rows + n;
  std::int32_t* trim_sinks = kv_lens + n;
  std::int32_t* trim_first_kept = trim_sinks + n;
  std::int32_t* rewinds = trim_first_kept + n;
  query_start[0] = 0;
  for (std::int32_t i = 0; i < step_.num_entries; ++i) {
    const StepEntry& e = step_.entries[i];
    const Sequence& s = rows_[e.row];
    step_.sequences[i] = rows_.id_of(s);
    query_start[i + 1] = query_start[i] + (e.end - e.begin);
    rows[i] = e.row;
    kv_lens[i] = e.end;
    trim_sinks[i] = s.has_trim ? rows_.details(e.row).trim_sinks : 0;
    trim_first_kept[i] = s.has_trim ? rows_.details(e.row).trim_first_kept : 0;
    rewinds[i] = s.has_rewinds ? rows_.details(e.row).rewinds : 0;
  }
  StepPlan& plan = step_.plan;
  plan.ticket = Ticket(step_.ticket);
  plan.num_tokens = query_start[n];
  plan.sequences = {step_.sequences.data(), n};
  plan.rows = {rows, n};
  plan.query_start = {query_start, n + 1};
  plan.kv_lens = {kv_lens, n};
  plan.trim_sinks = {trim_sinks, n};
  plan.trim_first_kept = {trim_first_kept, n};
  plan.groups = step_.group_plans;
  plan.rewinds = {rewinds, n};
  return rewinds + n;
}

std::int32_t* PlanWriter::write_positions(std::int32_t* at) noexcept {
  std::int32_t* begin = at;
  for (std::int32_t i = 0; i < step_.num_entries; ++i) {
    const StepEntry& e = step_.entries[i];
    std::iota(at, at + (e.end - e.begin), e.begin);
    at += e.end - e.begin;
  }
  step_.plan.positions = {begin, static_cast<std::size_t>(at - begin)};
  return at;
}

void PlanWriter::write_caller_ids() noexcept {
  for (std::int32_t i = 0; i < step_.num_entries; ++i) {
    const std::int32_t row = step_.entries[i].row;
    step_.caller_ids[i] = rows_[row].has_caller_id ? rows_.details(row).caller_id : 0;
  }
  step_.plan.caller_ids = {std::as_const(step_).caller_ids.data(),
                           static_cast<std::size_t>(step_.num_entries)};
}

std::int32_t* PlanWriter::write_group(std::int32_t g, const PlanOptions& options,
                                      std::int32_t* at) noexcept {
  GroupPlan& plan = step_.group_plans[static_cast<std::size_t>(g)];
  plan = {};
  std::int32_t* begin = at;
  at = write_slots(g, at);
  plan.slot_mapping = {begin, static_cast<std::size_t>(at - begin)};
  if (options.block_tables) {
    const std::int64_t widest = table_sizes(g).widest;
    begin = at;
    at = write_tables(g, options.pad, widest, at);
    plan.block_table = {begin, static_cast<std::size_t>(at - begin)};
    plan.block_table_stride = static_cast<std::int32_t>(widest);
  }
  if (options.changed_entries) at = write_changes(g, plan, at);
  if (options.flashinfer) at = write_flashinfer(g, plan, at);
  return write_copies(g, plan, at);
}

std::int32_t* PlanWriter::write_slots(std::int32_t g, std::int32_t* at) const noexcept {
  const std::int32_t size = group(g).spec.block_size;
  for (std::int32_t i = 0; i < step_.num_entries; ++i) {
    const StepEntry& e = step_.entries[i];
    if (e.write_begin > e.begin) *at++ = -1;
    if (e.end - e.write_begin == 1) {  // what steady decode is made of: no look at the table
      *at++ = step_.change(i, g).slot;
      continue;
    }
    const auto blocks = blocks_of(e.row, g);
    for (std::int32_t position = e.write_begin; position < e.end;) {
      const std::int32_t logical = group(g).block_of(position);
      const std::int32_t slot_of_0 = (blocks[static_cast<std::size_t>(logical)] - logical) * size;
      const std::int32_t stop = std::min(e.end, (logical + 1) * size);
      for (; position < stop; ++position) *at++ = slot_of_0 + position;
    }
  }
  return at;
}

std::int32_t* PlanWriter::write_tables(std::int32_t g, std::int32_t pad, std::int64_t stride,
                                       std::int32_t* at) const noexcept {
  for (std::int32_t i = 0; i < step_.num_entries; ++i) {
    const std::int32_t row = step_.entries[i].row;
    const auto blocks = blocks_of(row, g);
    at = std::copy_n(blocks.data(), blocks.size(), at);
    if (pad != BlockTable::kDropped && may_have_dropped(row, g)) {
      std::replace(at - blocks.size(), at, BlockTable::kDropped, pad);
    }
    at = std::fill_n(at, stride - static_cast<std::int64_t>(blocks.size()), pad);
  }
  return at;
}

std::int32_t* PlanWriter::write_changes(std::int32_t g, GroupPlan& plan,
                                        std::int32_t* at) const noexcept {
  const std::int64_t most = num_unplanned(g);
  std::int32_t* rows = at;
  std::int32_t* columns = rows + most;
  std::int32_t* blocks = columns + most;
  std::size_t count = 0;
  for (std::int32_t i = 0; i < step_.num_entries; ++i) {
    const std::int32_t row = step_.entries[i].row;
    const auto entries = blocks_of(row, g);
    for (std::int32_t logical = tables_.unplanned_from(row, g); logical < tables_.of(row, g).size();
         ++logical) {
      const std::int32_t block = entries[static_cast<std::size_t>(logical)];
      if (block < 0) continue;
      rows[count] = row;
      columns[count] = logical;
      blocks[count++] = block;
    }
  }
  plan.changed_rows = {rows, count};
  plan.changed_columns = {columns, count};
  plan.changed_blocks = {blocks, count};
  return blocks + most;
}

std::int32_t* PlanWriter::write_flashinfer(std::int32_t g, GroupPlan& plan,
                                           std::int32_t* at) const noexcept {
  const auto n = static_cast<std::size_t>(step_.num_entries);
  std::int32_t* indptr = at;
  std::int32_t* last_page = indptr + n + 1;
  std::int32_t* first_live = last_page + n;
  std::int32_t* indices = first_live + n;
  at = indices;
  indptr[0] = 0;
  for (std::int32_t i = 0; i < step_.num_entries; ++i) {
    const StepEntry& e = step_.entries[i];
    const auto blocks = blocks_of(e.row, g);
    at = may_have_dropped(e.row, g)
             ? std::remove_copy(blocks.begin(), blocks.end(), at, BlockTable::kDropped)
             : std::copy_n(blocks.data(), blocks.size(), at);
    indptr[i + 1] = static_cast<std::int32_t>(at - indices);
    last_page[i] = group(g).size.offset_of(e.end - 1) + 1;
    const auto gap = may_have_dropped(e.row, g)
                         ? std::find(blocks.rbegin(), blocks.rend(), BlockTable::kDropped)
                         : blocks.rend();
    first_live[i] = static_cast<std::int32_t>(blocks.rend() - gap) * group(g).spec.block_size;
  }
  plan.kv_indptr = {indptr, n + 1};
  plan.kv_last_page_len = {last_page, n};
  plan.kv_first_live = {first_live, n};
  plan.kv_indices = {indices, static_cast<std::size_t>(at - indices)};
  return at;
}

std::int32_t* PlanWriter::write_copies(std::int32_t g, GroupPlan& plan,
                                       std::int32_t* at) const noexcept {
  if (step_.num_displaced == 0) return at;
  const auto count = static_cast<std::size_t>(step_.num_copies(g));
  std::int32_t* sources = at;
  std::int32_t* targets = at + count;
  plan.copy_src = {sources, count};
  plan.copy_dst = {targets, count};
  for (std::int32_t i = 0; i < step_.num_entries; ++i) {
    const TailChange& tail = step_.change(i, g);
    if (tail.copy_to < 0) continue;
    *sources++ = tail.source;
    *targets++ = tail.copy_to;
  }
  return targets;
}

// Runs of neighbours whose tables begin with the same full blocks, all of whose tokens each of them
// reads and behind which all that they compute lies: a token that replays a whole hit may lie in a
// shared block. Greedy, and no run of the weakest link: a stranger that shares a system prompt does
// not cost four samples their common history.
void PlanWriter::find_shared_prefixes(std::int32_t g) noexcept {
  const std::int32_t first_of_group = step_.num_shared;
  const std::int32_t size = group(g).spec.block_size;
  const auto shareable = [&](std::int32_t i) {
    const std::int32_t row = step_.entries[i].row;
    const std::int32_t begin = step_.entries[i].begin;
    return (rows_[row].has_trim ? std::min(rows_.details(row).trim_sinks, begin) : begin) / size;
  };
  const auto flush = [&](SharedPrefix& run) {
    if (run.num_sequences > 1) step_.shared[step_.num_shared++] = run;
    run = {};
  };
  SharedPrefix run;
  for (std::int32_t i = 1; i < step_.num_entries; ++i) {
    const auto a = blocks_of(step_.entries[i - 1].row, g);
    const auto b = blocks_of(step_.entries[i].row, g);
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
  step_.group_plans[static_cast<std::size_t>(g)].shared_prefixes = {
      step_.shared.data() + first_of_group,
      static_cast<std::size_t>(step_.num_shared - first_of_group)};
}

}  // namespace kvfolio
