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

Status PlanWriter::reserve(const PlanOptions& options) { return reserve(words_for(options)); }

Status PlanWriter::reserve(std::int64_t words) {
  counted_ = words;
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
  std::int32_t* at = write_rows(step_.words.data(), step_.num_entries + 1, step_.num_entries);
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
  // Pages of dropped blocks are counted and not written, all else is both.
  KVFOLIO_CHECK(options.flashinfer ? step_.num_words <= counted_ : step_.num_words == counted_);
  note_written(options);
}

void PlanWriter::note_written(const PlanOptions& options) noexcept {
  step_.planned_changes = options.changed_entries;  // it takes the place of the plan before
  step_.num_planned = step_.num_entries;
  step_.num_taken_out = 0;
}

std::int32_t* PlanWriter::write_rows(std::int32_t* at, std::int64_t first,
                                     std::int64_t room) noexcept {
  const auto n = static_cast<std::size_t>(step_.num_entries);
  std::int32_t* query_start = at;
  std::int32_t* rows = query_start + first;
  std::int32_t* kv_lens = rows + room;
  std::int32_t* trim_sinks = kv_lens + room;
  std::int32_t* trim_first_kept = trim_sinks + room;
  std::int32_t* rewinds = trim_first_kept + room;
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
  return rewinds + room;
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
  if (options.changed_entries) at = write_changes(g, plan, at, num_unplanned(g));
  if (options.flashinfer) {
    const std::int64_t n = step_.num_entries;
    at = write_flashinfer(g, plan, at, n + 1, n, at + 3 * n + 1);
  }
  return step_.num_displaced == 0 ? at : write_copies(g, plan, at, step_.num_copies(g));
}

template <typename Slot>
Slot* PlanWriter::write_slots(std::int32_t g, Slot* at) const noexcept {
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

std::int32_t* PlanWriter::write_changes(std::int32_t g, GroupPlan& plan, std::int32_t* at,
                                        std::int64_t room) const noexcept {
  std::int32_t* rows = at;
  std::int32_t* columns = rows + room;
  std::int32_t* blocks = columns + room;
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
  return blocks + room;
}

std::int32_t* PlanWriter::write_flashinfer(std::int32_t g, GroupPlan& plan, std::int32_t* at,
                                           std::int64_t first, std::int64_t room,
                                           std::int32_t* indices) const noexcept {
  const auto n = static_cast<std::size_t>(step_.num_entries);
  std::int32_t* indptr = at;
  std::int32_t* last_page = indptr + first;
  std::int32_t* first_live = last_page + room;
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

std::int32_t* PlanWriter::write_copies(std::int32_t g, GroupPlan& plan, std::int32_t* at,
                                       std::int64_t room) const noexcept {
  std::int32_t* sources = at;
  std::int32_t* targets = at + room;
  for (std::int32_t i = 0; i < step_.num_entries; ++i) {
    const TailChange& tail = step_.change(i, g);
    if (tail.copy_to < 0) continue;
    *sources++ = tail.source;
    *targets++ = tail.copy_to;
  }
  plan.copy_src = {at, sources};
  plan.copy_dst = {at + room, targets};
  return targets;
}

// ---- fixed shapes ----

Result<PlanLayout> PlanWriter::layout(const PlanOptions& options) const {
  const auto too_small = [](std::string_view name, std::int64_t given, std::int64_t needed,
                            const std::string& what) {
    return Status(ErrorCode::kInvalidArgument,
                  concat("plan: ", name, " is ", given, ", the step has ", needed, " ", what));
  };
  std::int64_t tokens = 0;
  for (std::int32_t i = 0; i < step_.num_entries; ++i) {
    tokens += step_.entries[i].end - step_.entries[i].begin;
  }
  PlanSizes sizes;
  const bool pads = options.padded_sequences > 0;
  sizes.sequences = pads ? options.padded_sequences : step_.num_entries;
  sizes.tokens = options.padded_tokens > 0 ? options.padded_tokens : tokens;
  if (step_.num_entries > sizes.sequences) {
    return too_small("padded_sequences", sizes.sequences, step_.num_entries, "sequences");
  }
  if (tokens > sizes.tokens) return too_small("padded_tokens", sizes.tokens, tokens, "tokens");
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    const TableSizes tables = table_sizes(g);
    PlanSizes::Group& size = sizes.groups[static_cast<std::size_t>(g)];
    const std::int64_t stride = fixed_stride(options, g);
    if (stride > 0 && tables.widest > stride) {
      return too_small(concat("table_stride[", g, "]"), stride, tables.widest, "blocks in a table");
    }
    size.is_fixed = pads && stride > 0;
    size.stride = stride > 0 ? stride : tables.widest;
    size.indices = size.is_fixed ? sizes.sequences * stride : tables.all;
    size.changed = size.is_fixed ? sizes.sequences * stride : num_unplanned(g);
    size.copies = pads ? sizes.sequences : step_.num_copies(g);
  }
  return PlanLayout::of(options, sizes, num_groups());
}

void PlanWriter::write(const PlanOptions& options, const PlanLayout& layout,
                       std::int32_t* memory) noexcept {
  std::int32_t* const words = memory != nullptr ? memory : step_.words.data();
  KVFOLIO_DCHECK(memory != nullptr ||
                 layout.words <= static_cast<std::int64_t>(step_.words.size()));
  write_rows(words + layout.rows, layout.row_words, layout.row_words);
  pad_rows(layout, words);
  step_.plan.positions = {};
  if (options.positions) {
    std::int32_t* const begin = words + layout.positions;
    std::fill(write_positions(begin), begin + layout.sizes.tokens, 0);
    step_.plan.positions = {begin, static_cast<std::size_t>(layout.sizes.tokens)};
  }
  step_.plan.caller_ids = {};
  if (options.caller_ids) write_caller_ids();
  step_.num_shared = 0;
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    write_group(g, options, layout, words);
    if (options.shared_prefixes) find_shared_prefixes(g);
  }
  check_written(layout);
  step_.num_words = memory != nullptr ? 0 : layout.words;
  note_written(options);
}

// No array has more than its place has room for.
void PlanWriter::check_written(const PlanLayout& layout) const noexcept {
  const auto fits = [](const auto& array, std::int64_t room) {
    return static_cast<std::int64_t>(array.size()) <= room;
  };
  KVFOLIO_CHECK(step_.num_entries <= layout.sizes.sequences &&
                step_.plan.num_tokens <= layout.sizes.tokens);
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    const GroupPlan& plan = step_.group_plans[static_cast<std::size_t>(g)];
    const PlanSizes::Group& size = layout.sizes.groups[static_cast<std::size_t>(g)];
    KVFOLIO_CHECK(fits(plan.kv_indices, size.indices) && fits(plan.changed_rows, size.changed) &&
                  fits(plan.copy_src, size.copies));
  }
}

void PlanWriter::pad_rows(const PlanLayout& layout, std::int32_t* words) noexcept {
  StepPlan& plan = step_.plan;
  std::int32_t* array = words + layout.rows;
  const auto pad = [&](std::span<const std::int32_t>& of, std::int32_t with) {
    const std::int64_t size = layout.sizes.sequences + (&of == &plan.query_start ? 1 : 0);
    std::fill(array + of.size(), array + size, with);
    of = {array, static_cast<std::size_t>(size)};
    array += layout.row_words;
  };
  pad(plan.query_start, plan.num_tokens);
  pad(plan.rows, -1);
  pad(plan.kv_lens, 0);
  pad(plan.trim_sinks, 0);
  pad(plan.trim_first_kept, 0);
  pad(plan.rewinds, 0);
}

void PlanWriter::pad_pages(GroupPlan& plan, const PlanLayout& layout,
                           std::int32_t* pages) const noexcept {
  std::int32_t* array = pages;
  const auto pad = [&](std::span<const std::int32_t>& of, std::int64_t size, std::int32_t with) {
    std::fill(array + of.size(), array + size, with);
    of = {array, static_cast<std::size_t>(size)};
    array += layout.row_words;
  };
  pad(plan.kv_indptr, layout.sizes.sequences + 1, plan.kv_indptr.back());
  pad(plan.kv_last_page_len, layout.sizes.sequences, 1);
  pad(plan.kv_first_live, layout.sizes.sequences, 0);
}

void PlanWriter::write_group(std::int32_t g, const PlanOptions& options, const PlanLayout& layout,
                             std::int32_t* words) noexcept {
  GroupPlan& plan = step_.group_plans[static_cast<std::size_t>(g)];
  plan = {};
  const PlanSizes::Group& size = layout.sizes.groups[static_cast<std::size_t>(g)];
  const PlanLayout::Group& at = layout.groups[static_cast<std::size_t>(g)];
  const auto write_padded_slots = [&]<typename Slot>(Slot* begin) {
    Slot* const end = begin + layout.sizes.tokens;
    Slot* const written = write_slots(g, begin);
    KVFOLIO_CHECK(written == begin + step_.plan.num_tokens);
    std::fill(written, end, Slot{-1});
    return std::span<const Slot>(begin, end);
  };
  if (options.int64_slots) {
    plan.slot_mapping_64 = write_padded_slots(reinterpret_cast<std::int64_t*>(words + at.slots));
  } else {
    plan.slot_mapping = write_padded_slots(words + at.slots);
  }
  if (options.block_tables) {
    std::int32_t* const begin = words + at.table;
    std::int32_t* const end = begin + layout.sizes.sequences * size.stride;
    std::int32_t* const written = write_tables(g, options.pad, size.stride, begin);
    KVFOLIO_CHECK(written == begin + step_.num_entries * size.stride);
    std::fill(written, end, options.pad);
    plan.block_table = {begin, end};
    plan.block_table_stride = static_cast<std::int32_t>(size.stride);
  }
  if (options.changed_entries) write_changes(g, plan, words + at.changed, at.changed_words);
  if (options.flashinfer) {
    std::int32_t* const pages = words + at.pages;
    write_flashinfer(g, plan, pages, layout.row_words, layout.row_words, words + at.indices);
    pad_pages(plan, layout, pages);
  }
  if (step_.num_displaced > 0) write_copies(g, plan, words + at.copies, at.copy_words);
}

// ---- shared prefixes ----

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
