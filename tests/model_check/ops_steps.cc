// SPDX-License-Identifier: Apache-2.0
// Steps: begin, append, names, undo, plan, commit, complete, finish, drop, fail.

#include <algorithm>

#include "model_check/ops.h"

namespace kvfolio::model_check {

void Harness::begin(Rng& rng) {
  note("begin_step");
  Codes errors;
  if (open_step_) errors.insert(kMoment);
  if (isize(flight_) >= config_.options.max_steps_in_flight) errors.insert(kMoment);
  Result<Ticket> ticket = manager_->begin_step({.now_us = rng.next()});
  if (!expect(status_of(ticket), errors)) return;
  KVFOLIO_REQUIRE(ticket->value() == last_ticket_ + 1, "tickets count up by one");
  note(" t" + std::to_string(ticket->value()));
  changed_ = true;
  last_ticket_ = ticket->value();
  open_step_.emplace();
  open_step_->ticket = last_ticket_;
  members_.clear();
  capture({});
  ++coverage_.steps;
}

void Harness::append(Rng& rng, bool named) {
  SeqPtr seq = any_seq(rng);
  for (int i = 0; seq && i < 5 && (seq->in_step || seq->draft() > 0); ++i) seq = any_seq(rng);
  if (!seq) return;
  const int rest = isize(seq->prompt.tokens) - seq->length();
  int count = rest > 0 && rng.chance(60) ? rest : rng.between(1, rng.chance(20) ? 9 : 3);
  count = std::min(count, config_.max_length + 4 - seq->length());
  if (count <= 0) return;
  const int draft = config_.drafts && rng.chance(15) ? rng.between(1, count) : 0;
  append_to(seq, count, draft, named, rng);
}

bool Harness::waits_for_last_token(const Seq& seq) {
  return seq.fresh && seq.cached + 1 == isize(seq.prompt.tokens);
}

// The step whose end the sequence has to wait for before it enters another one, or 0.
std::uint64_t Harness::waits_for(const Seq& seq) const {
  for (const std::uint64_t ticket : seq.tickets) {
    if (incomplete(ticket)) return ticket;
  }
  return 0;
}

void Harness::append_to(const SeqPtr& seq, int count, int draft, bool named, Rng& rng) {
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < count; ++i) {
    const int p = seq->length() + i;
    tokens.push_back(p < isize(seq->prompt.tokens) && !rng.chance(3)
                         ? seq->prompt.tokens[static_cast<std::size_t>(p)]
                         : rng.below(config_.alphabet));
  }
  note((named ? "append " : "append_unnamed ") + name_of(*seq) + " " + text_of(tokens) +
       (draft > 0 ? " draft " + std::to_string(draft) : ""));

  Codes errors;
  Codes tolerated;
  if (!open_step_ || seq->in_step || seq->draft() > 0) errors.insert(kMoment);
  if (!in_order() && waits_for(*seq) != 0) errors.insert(kMoment);
  if (config_.tight_tables) tolerated.insert(kExhausted);
  if (!in_order() && errors.empty()) {
    // It was cut back to before that step: waiting is allowed.
    if (incomplete(seq->last_step)) tolerated.insert(kMoment);
    // Its blocks are being written though all of its own tokens are there: waiting is allowed.
    for (const StepWork& step : flight_) {
      for (int g = 0; g < num_groups(); ++g) {
        const StepWork::Group& work = step.groups[static_cast<std::size_t>(g)];
        for (const std::int32_t b : seq->tables[static_cast<std::size_t>(g)]) {
          if (b < 0) continue;
          for (const std::int32_t slot : work.slots) {
            if (slot / group(g).block_size == b && slot >= 0) tolerated.insert(kMoment);
          }
          for (const std::int32_t dst : work.copy_dst) {
            if (dst == b) tolerated.insert(kMoment);
          }
        }
      }
    }
  }
  // After a full hit admit() expects the prompt's last token, which needs no room.
  const bool as_prompted =
      !waits_for_last_token(*seq) || (named && tokens.front() == seq->prompt.tokens.back());
  std::optional<Status> predicted;
  if (errors.empty() && !skip_questions_ && as_prompted)
    predicted = manager_->admit(seq->id, count);
  if (errors.empty()) tolerated.insert(kNoBlocks);

  const Tables tables_before = seq->tables;
  const Status status = named ? manager_->append(seq->id, tokens, {.draft = draft})
                              : manager_->append_unnamed(seq->id, count, {.draft = draft});
  const bool ok = expect(status, errors, tolerated);
  if (predicted && !tolerated.contains(kMoment)) {
    KVFOLIO_REQUIRE(predicted->code() == status.code(), "admit() predicts append(): it said " +
                                                            predicted->message() + ", append " +
                                                            status.message());
    if (status.shortage() != nullptr) {
      KVFOLIO_REQUIRE(*predicted->shortage() == *status.shortage(),
                      "admit() and append() count alike");
    }
  }
  if (const Shortage* shortage = status.shortage(); shortage != nullptr) {
    ++coverage_.shortages;
    KVFOLIO_REQUIRE(shortage->group >= 0 && shortage->group < num_groups(),
                    "the shortage names a group");
    const GroupUsage& usage = before_.groups[static_cast<std::size_t>(shortage->group)].usage;
    const int size = group(shortage->group).block_size;
    const int fresh = (seq->length() + count + size - 1) / size -
                      isize(seq->tables[static_cast<std::size_t>(shortage->group)]);
    KVFOLIO_REQUIRE(shortage->needed > shortage->free + shortage->evictable,
                    "needed > free + evictable");
    KVFOLIO_REQUIRE(shortage->needed == fresh || shortage->needed == fresh + 1,
                    "needed is the new blocks and at most one copy, " + std::to_string(fresh));
    KVFOLIO_REQUIRE(shortage->free == usage.free, "the shortage's free is usage()'s");
    KVFOLIO_REQUIRE(shortage->evictable == usage.evictable,
                    "the shortage's evictable is usage()'s");
    KVFOLIO_REQUIRE(shortage->retiring == usage.retiring, "the shortage's retiring is usage()'s");
    KVFOLIO_REQUIRE(shortage->pinned == usage.held + usage.cached - usage.evictable,
                    "pinned = held + cached above held");
    KVFOLIO_REQUIRE(shortage->sequences == isize(seqs_),
                    "the shortage's sequences are the open ones");
  }
  if (!ok) return;

  changed_ = allocates_ = true;
  const auto saved = std::find_if(before_.seqs.begin(), before_.seqs.end(),
                                  [&](const auto& entry) { return entry.first == seq; });
  KVFOLIO_REQUIRE(saved != before_.seqs.end(), "harness: the sequence was known");
  members_.push_back({seq, *seq, saved->second,
                      std::vector<std::int32_t>(static_cast<std::size_t>(num_groups()), -1)});
  for (const std::int32_t token : tokens) seq->say(trie_, token, named, last_ticket_);
  seq->open_draft = draft;
  seq->in_step = true;
  const SeqState now = state_of(*seq);
  for (int g = 0; g < num_groups(); ++g) {
    const auto& old_table = tables_before[static_cast<std::size_t>(g)];
    const auto& new_table = now.tables[static_cast<std::size_t>(g)];
    const std::vector<std::int32_t>& refs = before_.groups[static_cast<std::size_t>(g)].refs;
    const int size = group(g).block_size;
    for (int j = 0; j < isize(new_table); ++j) {
      const std::int32_t b = new_table[static_cast<std::size_t>(j)];
      if (j < isize(old_table) && old_table[static_cast<std::size_t>(j)] == b) continue;
      KVFOLIO_REQUIRE(b >= 0 && b < group(g).num_blocks, "a fresh table entry is a block");
      KVFOLIO_REQUIRE(refs[static_cast<std::size_t>(b)] == 0, "a fresh block had no references");
      if (j < isize(old_table)) {
        const std::int32_t old = old_table[static_cast<std::size_t>(j)];
        KVFOLIO_REQUIRE(j == seq->committed / size, "only the block of the next token is replaced");
        if (seq->committed % size == 0) {
          // Nothing to copy: the block was held for the last token of a full hit only.
          members_.back().displaced[static_cast<std::size_t>(g)] = old;
          continue;
        }
        KVFOLIO_REQUIRE(old >= 0 && (refs[static_cast<std::size_t>(old)] > 1 ||
                                     before_.groups[static_cast<std::size_t>(g)]
                                             .findable[static_cast<std::size_t>(old)] != 0 ||
                                     (!in_order() && !flight_.empty())),
                        "only a shared or findable block is copied");
      }
    }
  }
  capture({});
}

void Harness::set_tokens(Rng& rng) {
  // Mostly somebody who waits for names.
  SeqPtr seq = any_seq(rng);
  for (int i = 0; seq && i < 6 && seq->unnamed() == 0; ++i) seq = any_seq(rng);
  if (!seq) return;
  const int waiting = seq->unnamed();
  const int count = rng.chance(10) ? waiting + 1 : rng.between(0, waiting);
  std::vector<std::int32_t> tokens;
  const int first = seq->first_unnamed();
  int p = first;
  while (isize(tokens) < count) {
    while (p < seq->length() && seq->named[static_cast<std::size_t>(p)] != 0) ++p;
    tokens.push_back(p < seq->length() ? seq->tokens[static_cast<std::size_t>(p)] : 0);
    ++p;
  }
  note("set_tokens " + name_of(*seq) + " " + text_of(tokens));
  Codes errors;
  Codes tolerated;
  if (count > waiting) errors = {kInvalid, kMoment};
  if (count == 0) tolerated = {kInvalid, kMoment};
  const Status status = manager_->set_tokens(seq->id, tokens);
  if (!expect(status, errors, tolerated)) return;
  changed_ = true;
  p = first;
  for (int i = 0; i < count; ++i) {
    while (seq->named[static_cast<std::size_t>(p)] != 0) ++p;
    seq->named[static_cast<std::size_t>(p)] = 1;
  }
  if (in_order() && !seq->in_step) publish(*seq, seq->tables, false);
  if (in_order() && seq->in_step) {
    for (const Member& member : members_) {
      if (member.seq == seq) publish(*seq, member.state_before.tables, false);
    }
  }
}

void Harness::undo(Rng& rng) {
  SeqPtr seq = any_seq(rng);
  if (!members_.empty() && rng.chance(85)) seq = rng.pick(members_).seq;
  if (!seq) return;
  note("undo " + name_of(*seq));
  const Codes errors = seq->in_step ? Codes{} : Codes{kMoment, kNotFound};
  if (!expect(manager_->undo(seq->id), errors)) return;
  changed_ = true;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (members_[i].seq == seq) {
      forget_member(i, true);
      break;
    }
  }
  capture({});
}

void Harness::plan(Rng& rng) {
  read_only_ = true;
  PlanOptions options;
  options.pad = rng.chance(50) ? 0 : -1;
  options.block_tables = rng.chance(80);
  options.flashinfer = rng.chance(60);
  options.shared_prefixes = rng.chance(60);
  note("plan");
  if (open_step_) {
    capture(options);
  } else {
    expect(status_of(manager_->plan(options)), {kMoment});
  }
}

void Harness::commit(Rng& rng) {
  note("commit t" + std::to_string(last_ticket_));
  if (!open_step_) {
    expect(manager_->commit(Ticket(last_ticket_)), {kMoment, kNotFound, kInvalid});
    return;
  }
  launch(rng);
  // Kernels that were launched may run before the engine says so.
  if (device_rng_.chance(25)) let_device_run();
  if (!expect(manager_->commit(Ticket(last_ticket_)), {})) return;
  changed_ = true;
  apply_commit();
}

void Harness::complete(Rng& rng) {
  if (flight_.empty()) {
    note("complete t" + std::to_string(last_ticket_));
    expect(manager_->complete(Ticket(last_ticket_)), {kMoment, kNotFound, kInvalid});
    return;
  }
  const std::uint64_t ticket = flight_[rng.next() % flight_.size()].ticket;
  note("complete t" + std::to_string(ticket));
  finish_on_device(ticket);  // the device has finished, then the host says so
  if (device_rng_.chance(30)) let_device_run();
  if (!expect(manager_->complete(Ticket(ticket)), {})) return;
  changed_ = true;
  apply_complete(ticket);
}

void Harness::finish(Rng& rng) {
  note("finish t" + std::to_string(last_ticket_));
  if (!open_step_) {
    // Finishing twice is an error; finish of a committed step says complete() or an error.
    const bool was_committed = incomplete(last_ticket_);
    if (was_committed) return;
    expect(manager_->finish(Ticket(last_ticket_)), {kMoment, kNotFound, kInvalid});
    return;
  }
  // An engine that computes in the call: all is done before it says so.
  launch(rng);
  if (config_.host_copies) run_copies_on_host();
  finish_on_device(last_ticket_);
  if (!expect(manager_->finish(Ticket(last_ticket_)), {})) return;
  changed_ = true;
  apply_commit();
  apply_complete(last_ticket_);
}

void Harness::drop(Rng&) {
  note("drop t" + std::to_string(last_ticket_));
  if (!open_step_) {
    expect(manager_->drop(Ticket(last_ticket_)), {kMoment, kNotFound, kInvalid});
    return;
  }
  if (!expect(manager_->drop(Ticket(last_ticket_)), {})) return;
  changed_ = true;
  apply_drop();
}

void Harness::fail(Rng& rng) {
  if (!config_.fails || flight_.empty()) return;
  const std::uint64_t ticket = flight_[rng.next() % flight_.size()].ticket;
  note("fail t" + std::to_string(ticket));
  // What ran before has run: the caller states that the device is idle.
  for (const StepWork& step : flight_) {
    if (step.ticket < ticket) finish_on_device(step.ticket);
  }
  // Whose tokens are lost, and who may be closed for holding a block that the failed steps wrote.
  std::vector<StepWork> failed;
  for (const StepWork& step : flight_) {
    if (step.ticket >= ticket) failed.push_back(step);
  }
  if (open_step_) failed.push_back(*open_step_);
  std::vector<StepWork> ended = failed;
  for (const StepWork& step : overtakers_) {
    if (step.ticket > ticket) ended.push_back(step);
  }
  const auto wrote = [&](int g, std::int32_t b) {
    for (const StepWork& step : ended) {
      if (step.groups[static_cast<std::size_t>(g)].touched[static_cast<std::size_t>(b)] == 2) {
        return true;
      }
    }
    return false;
  };
  std::vector<std::pair<SeqPtr, std::pair<bool, bool>>> fate;  // must, may be aborted
  for (const SeqPtr& seq : seqs_) {
    bool must = false;
    bool may = seq->in_step;
    for (int g = 0; g < num_groups(); ++g) {
      for (int j = 0; j < isize(seq->tables[static_cast<std::size_t>(g)]); ++j) {
        const std::int32_t b =
            seq->tables[static_cast<std::size_t>(g)][static_cast<std::size_t>(j)];
        if (b < 0) continue;
        if (wrote(g, b)) may = true;
        for (int off = 0; off < group(g).block_size; ++off) {
          const int p = j * group(g).block_size + off;
          const Cell& held = cell(logical_, g, b * group(g).block_size + off);
          if (p < seq->committed && !seq->in_step && held.ticket >= ticket &&
              incomplete(held.ticket)) {
            must = true;
          }
        }
      }
    }
    for (const StepWork& step : ended) {
      for (const StepWork::Row& row : step.rows) {
        if (row.seq == seq) may = true;
      }
    }
    fate.push_back({seq, {must, may || must}});
  }
  if (!expect(manager_->fail(Ticket(ticket)), {})) return;
  changed_ = true;
  failed_once_ = true;
  if (open_step_) {
    while (!members_.empty()) forget_member(members_.size() - 1, true);
    open_step_.reset();
  }
  // The others stopped anywhere: their plans end here.
  for (const StepWork& step : flight_) {
    if (step.ticket >= ticket) device_->forget(Ticket(step.ticket));
  }
  std::erase_if(flight_, [&](const StepWork& step) { return step.ticket >= ticket; });
  for (int g = 0; g < num_groups(); ++g) {
    const int size = group(g).block_size;
    for (int slot = 0; slot < group(g).num_blocks * size; ++slot) {
      Cell& lost = cell(logical_, g, slot);
      for (const StepWork& step : failed) {
        if (lost.node == kPoison || lost.ticket != step.ticket) continue;
        lost = Cell{};
        device_->poison_slot(g, slot);
        std::vector<int>& published = block(g, slot / size).published;
        if (isize(published) > slot % size) published.resize(static_cast<std::size_t>(slot % size));
      }
    }
  }
  for (const auto& [seq, verdict] : fate) {
    const Result<SequenceInfo> info = manager_->info(seq->id);
    if (info.has_value()) {
      KVFOLIO_REQUIRE(!verdict.first, "fail() aborts " + name_of(*seq) + ", whose tokens are lost");
      continue;
    }
    KVFOLIO_REQUIRE(info.error().code() == kAborted, "an aborted sequence answers kAborted");
    KVFOLIO_REQUIRE(verdict.second, "fail() leaves " + name_of(*seq) + " alone");
    aborted_.push_back(seq->id);
    std::erase(seqs_, seq);
    ++expected_.sequences_aborted;
    note(" aborts " + name_of(*seq));
  }
  std::erase_if(waiting_, [&](const SeqPtr& seq) { return waits_for(*seq) == 0; });
  for (const StepWork& step : failed) {
    for (const SeqPtr& seq : seqs_) seq->lose_names(step.ticket);
  }
  // Pins of what was lost are let go.
  for (const Pin& pin : pins_) {
    const ErrorCode code = manager_->unpin(pin.id).code();
    KVFOLIO_REQUIRE(code == ErrorCode::kOk || code == kNotFound, "unpin after fail()");
    stale_pins_.push_back(pin.id);
  }
  pins_.clear();
}

}  // namespace kvfolio::model_check
