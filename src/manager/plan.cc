// SPDX-License-Identifier: Apache-2.0
//
// The arrays of a step. Counted first, then written one behind the other into the step's own
// buffer, which grows only when a plan is larger than any before.

#include <algorithm>
#include <limits>
#include <numeric>

#include "manager/impl.h"
#include "manager/op_writer.h"

namespace kvfolio {

using text::concat;

std::int32_t KVCacheManager::Impl::num_copies(const Step& step, std::int32_t g) const noexcept {
  std::int32_t copies = 0;
  if (step.num_displaced == 0) return copies;
  for (std::int32_t i = 0; i < step.num_entries; ++i) {
    copies += step.change(i, g).copy_to >= 0 ? 1 : 0;
  }
  return copies;
}

TableSizes KVCacheManager::Impl::table_sizes(const Step& step, std::int32_t g) const noexcept {
  TableSizes sizes;
  for (std::int32_t i = 0; i < step.num_entries; ++i) {
    const std::int64_t blocks = table(step.entries[i].row, g).size();
    sizes.widest = std::max(sizes.widest, blocks);
    sizes.all += blocks;
  }
  return sizes;
}

// FlashInfer's arrays name whole blocks; they cannot say that half of one is dropped.
Status KVCacheManager::Impl::check_flashinfer(const Step& step) const {
  for (std::int32_t i = 0; i < step.num_entries; ++i) {
    const Sequence& s = rows_[step.entries[i].row];
    if (!s.has_trim) continue;
    const SequenceDetails& d = details(step.entries[i].row);
    for (std::int32_t g = 0; g < num_groups(); ++g) {
      if (d.trim_sinks % block_size(g) == 0 && d.trim_first_kept % block_size(g) == 0) continue;
      return {ErrorCode::kUnsupported,
              concat("FlashInfer arrays for ", to_string(id_of(s)), ": its trim dropped [",
                     d.trim_sinks, ", ", d.trim_first_kept, "), which cuts through a block of ",
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
    const std::int32_t row = step.entries[i].row;
    entries += table(row, g).size() - tables_.unplanned_from(row, g);
  }
  return entries;
}

std::int64_t KVCacheManager::Impl::plan_words(const Step& step,
                                              const PlanOptions& options) const noexcept {
  const std::int64_t n = step.num_entries;
  std::int64_t tokens = 0;
  for (std::int32_t i = 0; i < step.num_entries; ++i) {
    tokens += step.entries[i].end - step.entries[i].begin;
  }
  std::int64_t words = 5 * n + 1 + (options.positions ? tokens : 0);
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    words += tokens + 2 * num_copies(step, g);
    if (options.changed_entries) words += 3 * num_unplanned(step, g);
    if (!options.block_tables && !options.flashinfer) continue;
    const TableSizes sizes = table_sizes(step, g);
    if (options.block_tables) words += n * sizes.widest;
    if (options.flashinfer) words += 2 * n + 1 + sizes.all;
  }
  return words;
}

// Writers: each fills arrays from `at` on, and returns where they end. This one is of all groups,
// the next five of one.

std::int32_t* KVCacheManager::Impl::write_positions(Step& step, std::int32_t* at) const noexcept {
  std::int32_t* begin = at;
  for (std::int32_t i = 0; i < step.num_entries; ++i) {
    const StepEntry& e = step.entries[i];
    std::iota(at, at + (e.end - e.begin), e.begin);
    at += e.end - e.begin;
  }
  step.plan.positions = {begin, static_cast<std::size_t>(at - begin)};
  return at;
}

std::int32_t* KVCacheManager::Impl::write_slots(const Step& step, std::int32_t g,
                                                std::int32_t* at) const noexcept {
  const std::int32_t size = block_size(g);
  for (std::int32_t i = 0; i < step.num_entries; ++i) {
    const StepEntry& e = step.entries[i];
    if (e.write_begin > e.begin) *at++ = -1;
    if (e.end - e.write_begin == 1) {  // what steady decode is made of: no look at the table
      *at++ = step.change(i, g).slot;
      continue;
    }
    const auto blocks = table(e.row, g).blocks(arena());
    for (std::int32_t position = e.write_begin; position < e.end;) {
      const std::int32_t logical = block_of(g, position);
      const std::int32_t slot_of_0 = (blocks[static_cast<std::size_t>(logical)] - logical) * size;
      const std::int32_t stop = std::min(e.end, (logical + 1) * size);
      for (; position < stop; ++position) *at++ = slot_of_0 + position;
    }
  }
  return at;
}

// A window or a trim left holes in the table.
bool KVCacheManager::Impl::may_have_dropped(std::int32_t row, std::int32_t g) const noexcept {
  return windowed(g) || rows_[row].has_trim;
}

std::int32_t* KVCacheManager::Impl::write_tables(const Step& step, std::int32_t g, std::int32_t pad,
                                                 std::int64_t stride,
                                                 std::int32_t* at) const noexcept {
  for (std::int32_t i = 0; i < step.num_entries; ++i) {
    const std::int32_t row = step.entries[i].row;
    const auto blocks = table(row, g).blocks(arena());
    at = std::copy_n(blocks.data(), blocks.size(), at);
    if (pad != BlockTable::kDropped && may_have_dropped(row, g)) {
      std::replace(at - blocks.size(), at, BlockTable::kDropped, pad);
    }
    at = std::fill_n(at, stride - static_cast<std::int64_t>(blocks.size()), pad);
  }
  return at;
}

std::int32_t* KVCacheManager::Impl::write_changes(const Step& step, std::int32_t g, GroupPlan& plan,
                                                  std::int32_t* at) const noexcept {
  const std::int64_t most = num_unplanned(step, g);
  std::int32_t* rows = at;
  std::int32_t* columns = rows + most;
  std::int32_t* blocks = columns + most;
  std::size_t count = 0;
  for (std::int32_t i = 0; i < step.num_entries; ++i) {
    const std::int32_t row = step.entries[i].row;
    const auto entries = table(row, g).blocks(arena());
    for (std::int32_t logical = tables_.unplanned_from(row, g); logical < table(row, g).size();
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

std::int32_t* KVCacheManager::Impl::write_flashinfer(const Step& step, std::int32_t g,
                                                     GroupPlan& plan,
                                                     std::int32_t* at) const noexcept {
  const auto n = static_cast<std::size_t>(step.num_entries);
  std::int32_t* indptr = at;
  std::int32_t* last_page = indptr + n + 1;
  std::int32_t* indices = last_page + n;
  at = indices;
  indptr[0] = 0;
  for (std::int32_t i = 0; i < step.num_entries; ++i) {
    const StepEntry& e = step.entries[i];
    const auto blocks = table(e.row, g).blocks(arena());
    at = may_have_dropped(e.row, g)
             ? std::remove_copy(blocks.begin(), blocks.end(), at, BlockTable::kDropped)
             : std::copy_n(blocks.data(), blocks.size(), at);
    indptr[i + 1] = static_cast<std::int32_t>(at - indices);
    last_page[i] = group(g).size.offset_of(e.end - 1) + 1;
  }
  plan.kv_indptr = {indptr, n + 1};
  plan.kv_last_page_len = {last_page, n};
  plan.kv_indices = {indices, static_cast<std::size_t>(at - indices)};
  return at;
}

std::int32_t* KVCacheManager::Impl::write_copies(const Step& step, std::int32_t g, GroupPlan& plan,
                                                 std::int32_t* at) const noexcept {
  if (step.num_displaced == 0) return at;
  const auto count = static_cast<std::size_t>(num_copies(step, g));
  std::int32_t* sources = at;
  std::int32_t* targets = at + count;
  plan.copy_src = {sources, count};
  plan.copy_dst = {targets, count};
  for (std::int32_t i = 0; i < step.num_entries; ++i) {
    const TailChange& tail = step.change(i, g);
    if (tail.copy_to < 0) continue;
    *sources++ = tail.source;
    *targets++ = tail.copy_to;
  }
  return targets;
}

std::int32_t* KVCacheManager::Impl::write_group(Step& step, std::int32_t g,
                                                const PlanOptions& options,
                                                std::int32_t* at) const noexcept {
  GroupPlan& plan = step.group_plans[static_cast<std::size_t>(g)];
  plan = {};
  std::int32_t* begin = at;
  at = write_slots(step, g, at);
  plan.slot_mapping = {begin, static_cast<std::size_t>(at - begin)};
  if (options.block_tables) {
    const std::int64_t widest = table_sizes(step, g).widest;
    begin = at;
    at = write_tables(step, g, options.pad, widest, at);
    plan.block_table = {begin, static_cast<std::size_t>(at - begin)};
    plan.block_table_stride = static_cast<std::int32_t>(widest);
  }
  if (options.changed_entries) at = write_changes(step, g, plan, at);
  if (options.flashinfer) at = write_flashinfer(step, g, plan, at);
  return write_copies(step, g, plan, at);
}

// Runs of neighbours whose tables begin with the same full blocks, all of whose tokens each of them
// reads and behind which all that they compute lies: a token that replays a whole hit may lie in a
// shared block. Greedy, and no run of the weakest link: a stranger that shares a system prompt does
// not cost four samples their common history.
void KVCacheManager::Impl::find_shared_prefixes(Step& step, std::int32_t g) noexcept {
  const std::int32_t first_of_group = step.num_shared;
  const std::int32_t size = block_size(g);
  const auto shareable = [&](std::int32_t i) {
    const std::int32_t row = step.entries[i].row;
    const std::int32_t begin = step.entries[i].begin;
    return (rows_[row].has_trim ? std::min(details(row).trim_sinks, begin) : begin) / size;
  };
  const auto flush = [&](SharedPrefix& run) {
    if (run.num_sequences > 1) step.shared[step.num_shared++] = run;
    run = {};
  };
  SharedPrefix run;
  for (std::int32_t i = 1; i < step.num_entries; ++i) {
    const auto a = table(step.entries[i - 1].row, g).blocks(arena());
    const auto b = table(step.entries[i].row, g).blocks(arena());
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

// Makes the step's buffer large enough for its plan.
Status KVCacheManager::Impl::reserve_plan(Step& step, const PlanOptions& options) const {
  const std::int64_t words = plan_words(step, options);
  if (words <= static_cast<std::int64_t>(step.words.size())) return {};
  FixedArray<std::int32_t> larger;
  if (!larger.allocate_zeroed(words + words / 2)) {
    return {ErrorCode::kOutOfMemory, concat("plan: no memory for ", words, " int32 words")};
  }
  step.words = std::move(larger);
  return {};
}

// The arrays that all groups share.
std::int32_t* KVCacheManager::Impl::write_rows(Step& step, std::int32_t* at) const noexcept {
  const auto n = static_cast<std::size_t>(step.num_entries);
  std::int32_t* query_start = at;
  std::int32_t* rows = query_start + n + 1;
  std::int32_t* kv_lens = rows + n;
  std::int32_t* trim_sinks = kv_lens + n;
  std::int32_t* trim_first_kept = trim_sinks + n;
  query_start[0] = 0;
  for (std::int32_t i = 0; i < step.num_entries; ++i) {
    const StepEntry& e = step.entries[i];
    const Sequence& s = rows_[e.row];
    step.sequences[i] = id_of(s);
    query_start[i + 1] = query_start[i] + (e.end - e.begin);
    rows[i] = e.row;
    kv_lens[i] = e.end;
    trim_sinks[i] = s.has_trim ? details(e.row).trim_sinks : 0;
    trim_first_kept[i] = s.has_trim ? details(e.row).trim_first_kept : 0;
  }
  StepPlan& plan = step.plan;
  plan.ticket = Ticket(step.ticket);
  plan.num_tokens = query_start[n];
  plan.sequences = {step.sequences.data(), n};
  plan.rows = {rows, n};
  plan.query_start = {query_start, n + 1};
  plan.kv_lens = {kv_lens, n};
  plan.trim_sinks = {trim_sinks, n};
  plan.trim_first_kept = {trim_first_kept, n};
  plan.groups = step.group_plans;
  return trim_first_kept + n;
}

Result<const StepPlan*> KVCacheManager::plan(const PlanOptions& options) {
  KVFOLIO_RECORDED(kPlan, plan(options), options);
  Impl& m = *impl_;
  if (!m.steps_.is_open()) {
    return Status(ErrorCode::kFailedPrecondition, "plan: no step is open; begin_step() first");
  }
  if (options.pad != -1 && options.pad != 0) {
    return Status(ErrorCode::kInvalidArgument,
                  concat("plan: pad is ", options.pad, ", allowed: -1 and 0"));
  }
  Step& step = m.steps_.open();
  m.close_ranks(step);
  if (options.flashinfer) KVFOLIO_RETURN_IF_ERROR(m.check_flashinfer(step));
  KVFOLIO_RETURN_IF_ERROR(m.reserve_plan(step, options));
  std::int32_t* at = m.write_rows(step, step.words.data());
  step.plan.positions = {};
  if (options.positions) at = m.write_positions(step, at);
  step.num_shared = 0;
  for (std::int32_t g = 0; g < m.num_groups(); ++g) {
    at = m.write_group(step, g, options, at);
    if (options.shared_prefixes) m.find_shared_prefixes(step, g);
  }
  step.num_words = at - step.words.data();
  step.planned_changes = options.changed_entries;  // it takes the place of the plan before
  step.num_planned = step.num_entries;
  return &step.plan;
}

Status KVCacheManager::run_copies() {
  KVFOLIO_RECORDED(kRunCopies, run_copies());
  Impl& m = *impl_;
  if (!m.storage_ && !m.imagines_storage_) {
    return {ErrorCode::kUnsupported,
            "run_copies: the manager has no storage; run the plan's lists"};
  }
  if (!m.steps_.is_open()) return {ErrorCode::kFailedPrecondition, "run_copies: no step is open"};
  Step& step = m.steps_.open();
  m.close_ranks(step);
  if (step.copies_ran) {
    return {ErrorCode::kFailedPrecondition,
            concat("run_copies: those of step ", step.ticket, " have run already")};
  }
  // They run at once, and a step in flight may not have written yet what they read. Without order
  // nobody appends behind tokens of such a step.
  for (std::int32_t g = 0; g < m.num_groups() && m.options_.order == Order::kInOrder; ++g) {
    if (m.steps_.num_in_flight() == 0 || m.num_copies(step, g) == 0) continue;
    return {ErrorCode::kFailedPrecondition,
            concat("run_copies: step ", m.steps_.oldest_incomplete(),
                   " is in flight and may be writing what is copied; complete it first")};
  }
  // With the mutant, commit() runs them.
  if (!mutant(Mutant::kCopyAfterWrite)) KVFOLIO_RETURN_IF_ERROR(m.copy_tails(step));
  step.copies_ran = true;
  return {};
}

Status KVCacheManager::Impl::copy_tails(const Step& step) {
  if (!storage_) return {};
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    for (std::int32_t i = 0; i < step.num_entries; ++i) {
      const TailChange& tail = step.change(i, g);
      if (tail.copy_to < 0) continue;
      KVFOLIO_RETURN_IF_ERROR(
          storage_->copy_blocks(GroupId(g), {&tail.source, 1}, {&tail.copy_to, 1}));
    }
  }
  return {};
}

}  // namespace kvfolio
