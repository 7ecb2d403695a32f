// SPDX-License-Identifier: Apache-2.0
// Steps: begin, undo, plan, commit, complete, finish, drop, fail.

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
  options.changed_entries = rng.chance(40);
  options.flashinfer = rng.chance(60);
  options.shared_prefixes = rng.chance(60);
  note("plan");
  if (open_step_) {
    capture(options);
  } else {
    expect(status_of(manager_->plan(options)), {kMoment});
  }
}

std::size_t Harness::copies_to_run() const {
  std::size_t copies = 0;
  if (!config_.host_copies || config_.options.copies_by_host) return copies;
  for (const StepWork::Group& work : open_step_->groups) copies += work.copy_src.size();
  return copies;
}

// A manager with storage wants them to have run, if there are any. Mostly they have.
void Harness::run_copies_first(Rng& rng, bool finishes) {
  if (!config_.host_copies || config_.options.copies_by_host) return;
  const std::size_t copies = copies_to_run();
  if (copies == 0 && (!flight_.empty() || rng.chance(50))) return;
  if (copies > 0 && rng.chance(30)) {
    const Ticket ticket(last_ticket_);
    note(" without copies");
    const Status status = finishes ? manager_->finish(ticket) : manager_->commit(ticket);
    expect(status, {kMoment});
    KVFOLIO_REQUIRE(
        status.message().find(" has " + std::to_string(copies) + " cop") != std::string::npos,
        "the error says how many copies have not run");
    ++coverage_.without_copies;
  }
  run_copies_on_host();
}

void Harness::commit(Rng& rng) {
  note("commit t" + std::to_string(last_ticket_));
  if (!open_step_) {
    expect(manager_->commit(Ticket(last_ticket_)), {kMoment, kNotFound, kInvalid});
    return;
  }
  // They run at once, so what is in flight has to be complete.
  while (in_order() && copies_to_run() > 0 && !flight_.empty()) {
    complete(rng);
    verify();
    begin_operation();
    note("; commit t" + std::to_string(last_ticket_));
  }
  launch(rng);
  run_copies_first(rng, false);
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
  changed_ = finishes_ = true;
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
  if (config_.host_copies && config_.options.copies_by_host) run_copies_on_host();
  run_copies_first(rng, true);
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

// fail() ends the pins on what it forgets, and no others. Which ones live on, a copy tells; a
// manager with storage has none while steps are in flight, and lets go of all.
void Harness::settle_pins(bool may_end, Rng& rng) {
  if (pins_.empty()) return;
  std::optional<Aside> copy;
  if (!config_.host_copies && rng.chance(80)) {
    copy.emplace(make_target());
    KVFOLIO_REQUIRE(manager_->copy_to(copy->manager).ok(), "copy_to after fail()");
  }
  std::vector<Pin> kept;
  for (Pin& pin : pins_) {
    const Status gone = (copy ? copy->manager : *manager_).unpin(pin.id);
    KVFOLIO_REQUIRE(gone.ok() || (may_end && gone.code() == kNotFound),
                    "fail() ends no pin on blocks that live on");
    if (copy && gone.ok()) {
      kept.push_back(std::move(pin));
      ++coverage_.pins_outlive_fail;
    } else {
      stale_pins_.push_back(pin.id);
    }
  }
  pins_ = std::move(kept);
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
  bool pins_hold_lost = false;
  for (const Pin& pin : pins_) {
    for (int g = 0; g < num_groups(); ++g) {
      for (const std::int32_t b : pin.blocks[static_cast<std::size_t>(g)]) {
        pins_hold_lost |= wrote(g, b);
      }
    }
  }
  const auto closed = manager_->fail(Ticket(ticket));
  if (!expect(status_of(closed), {})) return;
  std::size_t num_listed = 0;
  changed_ = finishes_ = true;
  failed_once_ = true;
  for (OpenLoad& load : loads_) load.failed = true;
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
    KVFOLIO_REQUIRE(std::find(closed->begin(), closed->end(),
                              EndedSequence{seq->id, seq->caller_id}) != closed->end(),
                    "fail() names " + name_of(*seq) + " with its caller's id");
    ++num_listed;
    leave_load(*seq);
    aborted_.push_back(seq->id);
    gone_.push_back(seq);
    std::erase(seqs_, seq);
    ++expected_.sequences_aborted;
    note(" aborts " + name_of(*seq));
  }
  std::erase_if(waiting_, [&](const SeqPtr& seq) { return !settles_later(*seq); });
  KVFOLIO_REQUIRE(num_listed == closed->size(), "fail() names those that it closed");
  for (const StepWork& step : failed) {
    for (const SeqPtr& seq : seqs_) seq->lose_names(step.ticket, true);
  }
  settle_pins(pins_hold_lost, rng);
}

}  // namespace kvfolio::model_check
