// SPDX-License-Identifier: Apache-2.0
// The engine's side of the fake device: when a plan is handed over, when the device goes on, what
// it is told of free blocks, and what the host sees of its memory.

#include <algorithm>

#include "model_check/ops.h"

namespace kvfolio::model_check {

using fake_device::Phase;
using fake_device::Upload;

// Hands the open step over. The engine asks for its arrays last thing, in the form that it takes.
void Harness::launch(Rng& rng) {
  const bool changes = rng.chance(60);
  const StepPlan* plan = capture({.pad = rng.chance(50) ? 0 : -1,
                                  .block_tables = true,
                                  .changed_entries = changes,
                                  .flashinfer = rng.chance(40),
                                  .shared_prefixes = rng.chance(40)});
  if (changes) keep_tables(*plan);
  std::vector<fake_device::Row> rows;
  for (const StepWork::Row& row : open_step_->rows) {
    fake_device::Row text{row.seq->number, {}};
    for (const int node : row.nodes) text.digests.push_back(trie_.digest_of(node));
    rows.push_back(std::move(text));
  }
  device_->submit(*plan, std::move(rows), static_cast<Upload>(device_rng_.below(3)));
}

void Harness::move_device(Ticket ticket, Phase phase, bool early) {
  const auto before = static_cast<std::int32_t>(device_->phase(ticket));
  const std::int32_t after = std::max(before, static_cast<std::int32_t>(phase));
  (early ? coverage_.phases_early : coverage_.phases_late) +=
      static_cast<std::uint64_t>(after - before);
  device_->advance(ticket, phase);
}

// One stream: everything before the step is done.
bool Harness::stream_reaches(std::uint64_t ticket) const {
  return !in_order() || std::all_of(flight_.begin(), flight_.end(), [&](const StepWork& step) {
    return step.ticket >= ticket || device_->phase(Ticket(step.ticket)) == Phase::kDone;
  });
}

// Some steps go on by some phases, while the caller does what comes next.
void Harness::let_device_run() {
  std::vector<std::uint64_t> tickets;
  for (const StepWork& step : flight_) tickets.push_back(step.ticket);
  if (open_step_ && device_->has(Ticket(last_ticket_))) tickets.push_back(last_ticket_);
  if (tickets.empty()) return;
  for (int i = device_rng_.between(1, 3); i > 0; --i) {
    const std::uint64_t ticket = device_rng_.pick(tickets);
    const auto now = static_cast<std::int32_t>(device_->phase(Ticket(ticket)));
    std::int32_t next = std::min(now + device_rng_.between(1, fake_device::kNumPhases),
                                 static_cast<std::int32_t>(Phase::kDone));
    if (!stream_reaches(ticket)) next = static_cast<std::int32_t>(Phase::kUploaded);
    if (next <= now) continue;
    note("[t" + std::to_string(ticket) + " runs to phase " + std::to_string(next) + "] ");
    move_device(Ticket(ticket), static_cast<Phase>(next), true);
  }
  device_->start();
}

void Harness::finish_on_device(std::uint64_t ticket) {
  for (const StepWork& step : flight_) {
    if (step.ticket == ticket || (in_order() && step.ticket < ticket)) {
      move_device(Ticket(step.ticket), Phase::kDone, false);
    }
  }
  if (open_step_ && ticket == open_step_->ticket) move_device(Ticket(ticket), Phase::kDone, false);
  meet_device();
}

// The manager's own copies stand for the device's, where the step is the next in the stream.
void Harness::run_copies_on_host() {
  const Ticket ticket(last_ticket_);
  if (in_order() && !flight_.empty()) {
    const std::uint64_t before = flight_.back().ticket;
    finish_on_device(before);
    note(" complete t" + std::to_string(before));
    expect(manager_->complete(Ticket(before)), {});
    apply_complete(before);
  }
  move_device(ticket, Phase::kUploaded, false);
  meet_device();
  note(" run_copies");
  expect(manager_->run_copies(), {});
  expect(manager_->run_copies(), {kMoment});
  device_->skip_copies(ticket);
}

// The sequence point: what the device was told to do is done.
void Harness::meet_device() {
  device_->wait();
  coverage_.reads_checked = reads_elsewhere_ + device_->num_reads();
  KVFOLIO_REQUIRE(device_->violation().empty(), "device: " + device_->violation());
}

// The block became free with this call.
void Harness::poison(int g, int b) {
  BlockModel& model = block(g, b);
  if (model.poisoned) return;
  model.poisoned = true;
  model.published.clear();
  model.valid = 0;
  const int size = group(g).block_size;
  for (int slot = b * size; slot < (b + 1) * size; ++slot) cell(logical_, g, slot) = Cell{};
  device_->poison(g, b);
  ++coverage_.blocks_poisoned;
}

// The memory holds what the model says, once the step that wrote it has.
bool Harness::device_agrees(int g, int slot) const {
  const Cell& want = cell(logical_, g, slot);
  if (want.node == kPoison) return true;
  if (incomplete(want.ticket) && device_->phase(Ticket(want.ticket)) < Phase::kWritten) return true;
  return device_->at(g, slot) == trie_.digest_of(want.node);
}

}  // namespace kvfolio::model_check
