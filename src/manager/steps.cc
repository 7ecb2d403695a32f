// SPDX-License-Identifier: Apache-2.0
//
// Steps: transactions of an engine. Appending (append.cc) reserves; commit makes lengths advance;
// complete lets go of what the device may have touched; drop and undo put back what they can: what
// was evicted or unhung for an append stays so.

#include <algorithm>

#include "manager/impl.h"
#include "manager/op_writer.h"

namespace kvfolio {

using text::concat;

// ---- tickets ----

namespace {

// Blocks keep the low 32 bits of a ticket, which says before and after only within half of these.
constexpr std::uint64_t kMostTicketsApart = std::uint64_t{1} << 24;

// Up to where the sequence's tokens are there before the step is complete: those in front of the
// step's own, but none in a block that the step copies first.
std::int32_t settled_by(const Step& step, std::int32_t entry,
                        const std::vector<Group>& groups) noexcept {
  const StepEntry& e = step.entries[entry];
  std::int32_t settled = e.begin;
  for (std::int32_t g = 0; g < step.num_groups && step.num_displaced > 0; ++g) {
    if (step.change(entry, g).copy_to < 0) continue;
    settled = std::min(settled, groups[static_cast<std::size_t>(g)].size.begin_of(e.write_begin));
  }
  return settled;
}

}  // namespace

Result<Ticket> KVCacheManager::begin_step(const StepOptions& options) {
  KVFOLIO_RECORDED(kBeginStep, begin_step(options), options);
  Impl& m = *impl_;
  if (m.steps_.is_open()) {
    return Status(
        ErrorCode::kFailedPrecondition,
        concat("begin_step: step ", m.steps_.last_ticket(), " is open; commit or drop it first"));
  }
  if (m.steps_.num_in_flight() >= m.options_.max_steps_in_flight) {
    return Status(ErrorCode::kFailedPrecondition,
                  concat("begin_step: ", m.steps_.num_in_flight(),
                         " steps are in flight, the most allowed; complete step ",
                         m.steps_.oldest_incomplete(), " first"));
  }
  if (m.steps_.num_in_flight() > 0 &&
      m.steps_.last_ticket() + 1 - m.steps_.oldest_incomplete() >= kMostTicketsApart) {
    return Status(ErrorCode::kFailedPrecondition,
                  concat("begin_step: step ", m.steps_.oldest_incomplete(), " is in flight and ",
                         kMostTicketsApart - 1,
                         " steps were begun after it, the most allowed; "
                         "complete or fail it first"));
  }
  return Ticket(m.steps_.begin().ticket);
}

// ---- undo ----

void KVCacheManager::Impl::undo_entry(Step& step, std::int32_t entry) noexcept {
  const StepEntry& e = step.entries[entry];
  Sequence& s = rows_[e.row];
  table_blocks_.undo(step, entry);
  step.planned_changes = false;
  promises_.undo(e.row);
  victims_.undo_use(e.row, e.last_use_before);
  s.length = e.begin;
  s.used = e.used_before;
  s.replay = e.replay_before;
  s.step_entry = -1;
  if (s.has_unnamed) unnamed_.cut(e.row, e.begin);
  if (s.unnamed_from >= e.begin) s.unnamed_from = kNever;
  promises_.return_surplus(e.row);
}

Status KVCacheManager::undo(SequenceId id) {
  KVFOLIO_RECORDED(kUndo, undo(id), id);
  Impl& m = *impl_;
  std::int32_t row = 0;
  KVFOLIO_RETURN_IF_ERROR(m.find(id, row));
  const std::int32_t entry = m.rows_[row].step_entry;
  if (entry < 0) {
    return {ErrorCode::kFailedPrecondition,
            concat("undo: ", to_string(id), " is not in an open step")};
  }
  Step& step = m.steps_.open();
  m.undo_entry(step, entry);
  step.remove(entry, [&m](std::int32_t row, std::int32_t at) { m.rows_[row].step_entry = at; });
  return {};
}

Status KVCacheManager::drop(Ticket ticket) {
  KVFOLIO_RECORDED(kDrop, drop(ticket), ticket);
  Impl& m = *impl_;
  KVFOLIO_RETURN_IF_ERROR(m.steps_.check_open(ticket, "drop"));
  Step& step = m.steps_.open();
  while (step.num_entries > 0) {
    --step.num_entries;
    if (step.entries[step.num_entries].row >= 0) m.undo_entry(step, step.num_entries);
  }
  m.steps_.drop();
  return {};
}

// ---- commit ----

// The engine has done what the step needs, as far as the manager can know: the last plan has each
// sequence of the step and no other, and where the manager has storage, the copies of the step ran.
Status KVCacheManager::Impl::check_done(const Step& step) const {
  if (rules_of_ <= kOpLogFormatBare) return {};
  if (const std::int32_t missing = step.num_behind_plan(); missing > 0) {
    return {ErrorCode::kFailedPrecondition,
            concat("commit: ", missing, " of the ", step.num_entries, " sequences of step ",
                   step.ticket,
                   missing == 1 ? " was appended after its last plan(), which lacks it"
                                : " were appended after its last plan(), which lacks them",
                   "; plan() again before you compute")};
  }
  // A device that computes by that plan writes to blocks that are free, or another's by now.
  if (step.num_taken_out > 0 && rules_of_ >= kOpLogFormatDrafts) {
    return {ErrorCode::kFailedPrecondition,
            concat("commit: step ", step.ticket, " has a plan() with ", step.num_taken_out,
                   step.num_taken_out == 1 ? " sequence that was" : " sequences that were",
                   " taken out since (undo, preempt, cancel); plan() again before you compute, or "
                   "drop()")};
  }
  if (step.copies_ran || step.num_displaced == 0 || options_.copies_by_host) return {};
  if (!storage_ && !imagines_storage_) return {};
  std::int64_t copies = 0;
  for (std::int32_t g = 0; g < num_groups(); ++g) copies += step.num_copies(g);
  if (copies == 0) return {};
  return {
      ErrorCode::kFailedPrecondition,
      concat("commit: step ", step.ticket, " has ", copies,
             copies == 1 ? " copy that has" : " copies that have",
             " not run; run_copies() before you compute, or set copies_by_host if you run them")};
}

Status KVCacheManager::commit(Ticket ticket) {
  KVFOLIO_RECORDED(kCommit, commit(ticket), ticket);
  Impl& m = *impl_;
  KVFOLIO_RETURN_IF_ERROR(m.steps_.check_open(ticket, "commit"));
  Step& step = m.steps_.open();
  m.close_ranks(step);
  KVFOLIO_RETURN_IF_ERROR(m.check_done(step));
  if (mutant(Mutant::kCopyAfterWrite) && step.copies_ran) {
    KVFOLIO_RETURN_IF_ERROR(m.copy_tails(step));
  }
  m.steps_.commit();
  const std::int32_t unit = m.tree_->unit();
  std::int32_t* publishing = m.scratch_.data();  // rows
  std::int32_t num_publishing = 0;
  for (std::int32_t i = 0; i < step.num_entries; ++i) {
    const StepEntry& e = step.entries[i];
    Sequence& s = m.rows_[e.row];
    for (std::int32_t g = 0; g < m.num_groups(); ++g) {
      if (step.num_displaced == 0) break;
      const TailChange& tail = step.change(i, g);
      if (tail.copy_to >= 0) ++m.counters_.block_copies;
      // The right to write goes with the table entry.
      if (tail.source >= 0) m.blocks_.drop_writer(g, BlockId(tail.source), e.row);
    }
    for (std::int32_t g = 0; g < m.num_groups() && step.planned_changes; ++g) {
      m.tables_.unplanned_from(e.row, g) = m.table(e.row, g).size();
    }
    if (step.has_unnamed) step.entry_of[e.row] = i;
    if (m.options_.order == Order::kUnordered)
      m.details(e.row).settled = settled_by(step, i, m.groups_);
    // Behind drafts that are not decided it stands where the oldest of these begins.
    const bool behind_drafts = s.accepted < e.begin;
    if (e.draft > 0 || behind_drafts) m.drafts_.add(e.row, {e.begin, e.end, e.draft});
    if (!behind_drafts || mutant(Mutant::kAcceptedOverDrafts)) s.accepted = e.end - e.draft;
    s.last_ticket = step.ticket;
    s.has_planned = true;
    s.exact_until = std::min(s.exact_until, m.spans_.cut_span(s, e.end));
    if (s.announces && s.exact_until < m.announcements_.end(e.row)) m.end_announcement(e.row);
    KVFOLIO_DCHECK(e.end > e.write_begin || !s.has_written);
    s.has_written = e.end > e.write_begin;
    s.step_entry = -1;
    m.promises_.settle(step, i);
    m.counters_.tokens_committed += static_cast<std::uint64_t>(e.end - e.begin);
    if (s.publishes && m.publisher_.end_now(s) >= s.place.position + unit) {
      publishing[num_publishing++] = e.row;
      m.tree_->prefetch(s.place);
    }
  }
  for (std::int32_t i = 0; i < num_publishing; ++i) {
    if (i + 2 < num_publishing) m.publisher_.prefetch(publishing[i + 2]);
    m.publisher_.publish(publishing[i], false);
  }
  for (std::int32_t i = 0; i < step.num_entries && m.borders_.any(); ++i) {
    m.table_blocks_.move_windows(step.entries[i].row);
  }
  for (std::int32_t i = 0; i < step.num_entries && m.promises_.any(); ++i) {
    m.promises_.return_surplus(step.entries[i].row);
  }
  return {};
}

// ---- complete ----

// The device is done with a step, or the step failed: the sources of its copies are let go, and
// tokens without a name never get one, unless they may have late names.
void KVCacheManager::Impl::end_step(Step& step, bool failed) noexcept {
  // An engine that keeps tables on the device may never have got what this step's plan said of
  // them.
  const bool says_again = failed && step.planned_changes;
  if (step.num_displaced == 0 && !step.has_unnamed && !says_again) return;
  for (std::int32_t i = 0; i < step.num_entries; ++i) {
    const StepEntry& e = step.entries[i];
    for (std::int32_t g = 0; g < num_groups(); ++g) {
      const std::int32_t source = step.change(i, g).source;
      if (source >= 0) blocks_.let_go_of_source(g, BlockId(source));
    }
    Sequence& s = rows_[e.row];
    if (s.life == Life::kUnused || s.birth != e.birth) continue;
    for (std::int32_t g = 0; g < num_groups() && says_again; ++g)
      tables_.unplanned_from(e.row, g) = 0;
    if ((s.late_names && !failed) || !unnamed_.end(e, failed)) continue;
    // A fork that holds nothing of a failed step outlives it.
    const std::int32_t lost = failed ? std::max(s.unnamed_from, e.begin) : s.unnamed_from;
    s.exact_until = std::min(s.exact_until, lost);
    s.unnamed_from = unnamed_.first(e.row);
  }
}

// Sequences that waited for these steps end, and rows that rested for them are free.
void KVCacheManager::Impl::end_waiting() noexcept {
  rows_.end_closing([&](std::int32_t row) {
    if (!steps_.is_complete(rows_[row].last_ticket)) return false;
    publisher_.publish(row, true);
    borders_.note_last(row);
    forget_sequence(row, false);
    return true;
  });
  rows_.free_rested([&](std::int32_t row) { return row_is_used(row); });
}

Status KVCacheManager::complete(Ticket ticket) {
  KVFOLIO_RECORDED(kComplete, complete(ticket), ticket);
  Impl& m = *impl_;
  const std::int32_t at = m.steps_.find(ticket.value());
  if (at < 0) {
    const bool is_open = m.steps_.is_open() && m.steps_.open().ticket == ticket.value();
    return {ErrorCode::kFailedPrecondition,
            concat("complete: ticket ", ticket.value(),
                   is_open ? " is open; commit it first"
                   : ticket.value() > m.steps_.last_ticket() || ticket.value() == 0
                       ? " was never given out"
                       : " is complete, dropped or failed already")};
  }
  m.steps_.end(m.options_.order == Order::kInOrder ? 0 : at, at + 1);
  for (std::int32_t i = 0; i < m.steps_.num_ended(); ++i) m.end_step(m.steps_.ended(i), false);
  if (m.options_.order == Order::kUnordered) {
    const Step& step = m.steps_.ended(0);
    for (std::int32_t i = 0; i < step.num_entries; ++i) {
      const StepEntry& e = step.entries[i];
      const Sequence& s = m.rows_[e.row];
      if (s.life != Impl::Life::kOpen || s.birth != e.birth) continue;
      m.publisher_.publish(e.row, false);
      m.table_blocks_.move_windows(e.row);
    }
    // Forks of these, made in flight, waited for the same step.
    for (const std::int32_t row : m.rows_.open()) {
      const Sequence& s = m.rows_[row];
      if (s.last_ticket != step.ticket || s.row_ticket() == step.ticket) continue;
      m.publisher_.publish(row, false);
      m.table_blocks_.move_windows(row);
    }
    m.end_waiting();
  }
  m.blocks_.drain_retiring();
  return {};
}

// ---- fail ----

// Closes every sequence, and lets go of every pin, that holds a block which one of these steps, in
// ticket order, wrote; or, since a block keeps 32 bits of a ticket, a step 2^32 before.
void KVCacheManager::Impl::abort_writers() noexcept {
  const auto low = [this](std::int32_t i) {
    return static_cast<std::uint32_t>(steps_.ended(i).ticket);
  };
  const std::uint32_t first = low(0);
  const std::uint32_t last = low(steps_.num_ended() - 1);
  const auto is_failed = [&](std::uint32_t ticket) {
    if (ticket - first > last - first) return false;
    std::int32_t i = 0;
    while (i < steps_.num_ended() && low(i) != ticket) ++i;
    return i < steps_.num_ended();
  };
  const auto written = [&](std::int32_t g, std::int32_t block) {
    return block >= 0 && is_failed(blocks_.pool(g).written_in(BlockId(block)));
  };
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    const BlockPool& pool = blocks_.pool(g);
    for (std::int32_t block = 0; block < pool.num_blocks(); ++block) {
      if (pool.state(BlockId(block)) == BlockState::kFree || !written(g, block)) continue;
      blocks_.drop_entry(g, BlockId(block));
    }
  }
  const auto holds = [&](const BlockTable& blocks, std::int32_t g) {
    const auto ids = blocks.blocks(arena());
    return std::any_of(ids.begin(), ids.end(), [&](std::int32_t b) { return written(g, b); });
  };
  for (std::int32_t row = 0; row < rows_.size(); ++row) {
    Sequence& s = rows_[row];
    if (s.life == Life::kUnused) continue;
    bool hit = s.wrote_last() >= steps_.ended(0).ticket &&
               is_failed(static_cast<std::uint32_t>(s.wrote_last()));
    for (std::int32_t g = 0; g < num_groups() && !hit; ++g) hit = holds(table(row, g), g);
    if (!hit) continue;
    if (s.publishes) publisher_.stop(row);
    const bool was_open = s.life == Life::kOpen;  // else its owner has closed it
    if (was_open) {
      note_ended(row);
      rows_.leave_open(row);
      forget_caller_id(row);
      ++counters_.sequences_aborted;
      promises_.end(row);
      leave_load(row);
      table_blocks_.let_go(row);
    } else {
      rows_.leave_closing(row);
    }
    forget_sequence(row, was_open);
  }
  // A load goes on. Nothing of it stands behind what it had found of them.
  transfers_.for_each_load([&](std::int32_t number) {
    for (std::int32_t g = 0; g < num_groups(); ++g) {
      const auto ids = std::as_const(transfers_).table(number, g).blocks(arena());
      const auto lost =
          std::find_if(ids.begin(), ids.end(), [&](std::int32_t b) { return written(g, b); });
      if (lost == ids.end()) continue;
      Transfers::Load& load = transfers_.load(number);
      const auto at = block_of(g, load.begin) + static_cast<std::int32_t>(lost - ids.begin());
      load.sound_end = std::clamp(at * block_size(g), load.begin, load.sound_end);
    }
  });
  pins_.for_each_open([&](std::int32_t pin) {
    bool hit = false;
    for (std::int32_t g = 0; g < num_groups() && !hit; ++g) hit = holds(pins_.table(pin, g), g);
    if (hit) release_pin(pin);
  });
}

Result<std::span<const EndedSequence>> KVCacheManager::fail(Ticket ticket) {
  KVFOLIO_RECORDED(kFail, fail(ticket), ticket);
  Impl& m = *impl_;
  const std::int32_t at = m.steps_.find(ticket.value());
  if (at < 0) {
    return Status(ErrorCode::kFailedPrecondition,
                  concat("fail: ticket ", ticket.value(), " is not in flight"));
  }
  if (m.steps_.is_open()) KVFOLIO_RETURN_IF_ERROR(drop(Ticket(m.steps_.open().ticket)));
  m.steps_.end(at, m.steps_.num_in_flight());
  m.ended_.clear();
  m.abort_writers();
  for (std::int32_t i = 0; i < m.steps_.num_ended(); ++i) m.end_step(m.steps_.ended(i), true);
  m.end_waiting();
  m.blocks_.drain_retiring();
  return m.ended_.list();
}

// ---- names and drafts ----

Status KVCacheManager::set_tokens(SequenceId id, std::span<const std::int32_t> tokens) {
  KVFOLIO_RECORDED(kSetTokens, set_tokens(id, tokens), id, tokens);
  Impl& m = *impl_;
  std::int32_t row = 0;
  KVFOLIO_RETURN_IF_ERROR(m.find(id, row));
  KVFOLIO_RETURN_IF_ERROR(check_tokens("set_tokens", tokens, m.arena(), id));
  Sequence& s = m.rows_[row];
  const std::int32_t waiting = m.unnamed_.num_waiting(row);
  if (tokens.size() > static_cast<std::size_t>(waiting)) {
    return {
        ErrorCode::kInvalidArgument,
        concat("set_tokens names ", tokens.size(), " tokens, ", waiting, " are unnamed",
               s.late_names
                   ? ""
                   : " in steps that are not complete; late_names of open() gives them longer")};
  }
  const std::int32_t* name = tokens.data();
  const auto keep = [&](std::int32_t begin, std::int32_t count) {
    // Tokens beyond exact_until are not kept; their names are of no use.
    const std::int32_t kept = std::min(count, s.pending_end() - begin);
    if (s.publishes && kept > 0) {
      std::copy_n(name, kept, m.arena().at(s.pending) + (begin - s.place.position));
    }
    name += count;
  };
  m.unnamed_.name(row, static_cast<std::int32_t>(tokens.size()), keep);
  s.unnamed_from = m.unnamed_.first(row);
  if (!s.publishes || tokens.empty()) return {};
  m.publisher_.publish(row, false);
  m.borders_.move(row);
  return {};
}

Status KVCacheManager::accept(SequenceId id, std::int32_t num_accepted) {
  KVFOLIO_RECORDED(kAccept, accept(id, num_accepted), id, num_accepted);
  Impl& m = *impl_;
  std::int32_t row = 0;
  KVFOLIO_RETURN_IF_ERROR(m.find_resting(id, "accept", row));
  Sequence& s = m.rows_[row];
  const std::int32_t draft = m.drafts_.next(row);
  if (num_accepted < 0 || num_accepted > draft) {
    return {ErrorCode::kInvalidArgument,
            concat("accept of ", num_accepted, " draft tokens, allowed: 0 to ", draft)};
  }
  if (num_accepted < draft) {
    // What was appended behind assumed that all of these stand.
    const std::int32_t length = s.accepted + num_accepted;
    if (mutant(Mutant::kVoidRowPublished)) {
      s.accepted = s.length;
      m.publisher_.publish(row, false);
    }
    const std::int32_t rewinds = m.details(row).rewinds;
    m.promises_.cut(row, length, !mutant(Mutant::kRejectedStaySpent));
    m.truncate_to(row, length);
    if (mutant(Mutant::kVoidRowsNotCounted)) m.details(row).rewinds = rewinds;
    m.drafts_.clear(row);
    s.accepted = length;
  } else if (draft > 0) {
    s.accepted = m.drafts_.accept(row);
  }
  m.publisher_.publish(row, false);
  m.table_blocks_.move_windows(row);
  m.promises_.return_surplus(row);
  return {};
}

Status KVCacheManager::finish(Ticket ticket) {
  KVFOLIO_RECORDED(kFinish, finish(ticket), ticket);
  KVFOLIO_RETURN_IF_ERROR(commit(ticket));
  return complete(ticket);
}

}  // namespace kvfolio
