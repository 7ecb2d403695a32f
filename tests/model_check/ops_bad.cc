// SPDX-License-Identifier: Apache-2.0
// Calls that must be refused and change nothing: wrong ids, tickets, moments and arguments.

#include <algorithm>
#include <limits>

#include "model_check/ops.h"

namespace kvfolio::model_check {

void Harness::bad_sequence_id(Rng& rng) {
  read_only_ = true;
  SequenceId id;
  Codes errors = {kNotFound};
  switch (rng.below(6)) {
    case 0:
      break;
    case 1:
      id = SequenceId(rng.next());
      break;
    case 2:
      id = SequenceId(~std::uint64_t{0});
      break;
    case 3:
      id = foreign_sequence_;
      break;
    case 4:
      if (aborted_.empty()) return;
      id = rng.pick(aborted_);
      errors.insert(kAborted);
      break;
    default:
      if (stale_.empty()) return;
      id = rng.pick(stale_);
      break;
  }
  for (const SeqPtr& seq : seqs_) {
    if (seq->id == id) return;  // a lucky draw
  }
  const std::vector<std::int32_t> tokens = {0};
  const int call = rng.below(18);
  note("bad id " + std::to_string(id.value()) + " call " + std::to_string(call));
  if (!open_step_) {
    // The moment is wrong too.
    if (call == 5 || call == 6 || call == 8) errors.insert(kMoment);
  }
  std::vector<std::int32_t> out(1);
  switch (call) {
    case 0:
      expect(manager_->close(id), errors);
      break;
    case 1:
      expect(manager_->preempt(id), errors);
      break;
    case 2:
      expect(status_of(manager_->fork(id)), errors);
      break;
    case 3:
      expect(manager_->truncate(id, 0), errors);
      break;
    case 4:
      expect(status_of(manager_->trim(id, {})), errors);
      break;
    case 5:
      expect(manager_->append(id, tokens), errors);
      break;
    case 6:
      expect(manager_->append_unnamed(id, 1), errors);
      break;
    case 7:
      expect(manager_->set_tokens(id, tokens), errors);
      break;
    case 8:
      expect(manager_->undo(id), errors);
      break;
    case 9:
      expect(manager_->accept(id, 0), errors);
      break;
    case 10:
      expect(manager_->admit(id, 1), errors);
      break;
    case 11:
      expect(status_of(manager_->info(id)), errors);
      break;
    case 12:
      expect(status_of(manager_->block_table(id, GroupId(0))), errors);
      break;
    case 13:
      expect(manager_->slot_mapping(id, GroupId(0), 0, out), errors);
      break;
    case 14:
      expect(manager_->clear(id), errors);
      break;
    case 15:
      expect(manager_->set_priority(id, 1), errors);
      break;
    case 16: {
      Tables tables(static_cast<std::size_t>(num_groups()));
      const std::vector<std::span<const std::int32_t>> spans(tables.begin(), tables.end());
      expect(manager_->adopt(id, spans, 0), errors);
      break;
    }
    default: {
      PinId pin;
      if (rng.chance(30)) pin = foreign_pin_;
      if (!stale_pins_.empty() && rng.chance(50)) pin = rng.pick(stale_pins_);
      expect(manager_->unpin(pin), {kNotFound});
    }
  }
}

void Harness::bad_ticket(Rng& rng) {
  read_only_ = true;
  // One that is neither open nor in flight.
  std::uint64_t ticket = 0;
  switch (rng.below(4)) {
    case 0:
      break;
    case 1:
      ticket = last_ticket_ + 1;
      break;
    case 2:
      ticket = ~std::uint64_t{0};
      break;
    default:
      ticket = last_ticket_ == 0 ? 0 : 1 + rng.next() % last_ticket_;
      break;
  }
  const bool is_open = open_step_ && open_step_->ticket == ticket;
  const int call = rng.below(5);
  note("bad ticket " + std::to_string(ticket) + " call " + std::to_string(call));
  const Codes errors = {kInvalid, kNotFound, kMoment};
  switch (call) {
    case 0:
      if (!is_open) expect(manager_->commit(Ticket(ticket)), errors);
      break;
    case 1:
      if (!incomplete(ticket)) expect(manager_->complete(Ticket(ticket)), errors);
      break;
    case 2:
      if (!is_open) expect(manager_->drop(Ticket(ticket)), errors);
      break;
    case 3:
      if (!is_open && !incomplete(ticket))
        expect(status_of(manager_->fail(Ticket(ticket))), errors);
      break;
    default:
      if (!is_open && !incomplete(ticket)) expect(manager_->finish(Ticket(ticket)), errors);
      break;
  }
}

void Harness::bad_argument(Rng& rng) {
  read_only_ = true;
  const SeqPtr seq = any_seq(rng);
  const int call = rng.below(34);
  if (!seq && call < 14) return;
  note("bad argument call " + std::to_string(call));
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  constexpr std::int32_t kHuge32 = std::numeric_limits<std::int32_t>::max();
  const std::vector<std::int32_t> good = {0, 1};
  const std::vector<std::int32_t> negative = {0, -1};
  const SequenceId id = seq ? seq->id : SequenceId();
  if (seq && call <= 6 && is_held_back(*seq)) {
    expect(Status(kMoment, "accept() comes first"), {kMoment});
    return;
  }
  // Calls whose moment may be wrong as well.
  Codes errors = {kInvalid};
  if (!open_step_ || (seq && (seq->in_step || seq->undecided() > 0 || waits_for(*seq) != 0 ||
                              waits_for_load(*seq)))) {
    errors.insert(kMoment);
  }
  if (!in_order()) errors.insert(kMoment);
  if (seq && seq->is_full_for(isize(good))) errors.insert(kExhausted);
  const std::int32_t bad_group = rng.chance(50) ? -1 : (rng.chance(50) ? num_groups() : kHuge32);
  const Codes range = {kInvalid, kNotFound};
  MediaSpan span;
  std::vector<MediaSpan> media;
  OpenOptions options;
  std::vector<std::int32_t> out(2);
  switch (call) {
    case 0:
      expect(manager_->append(id, negative), errors);
      break;
    case 1:
      expect(manager_->append(id, good, {.draft = 3}), errors);
      break;
    case 2:
      expect(manager_->append(id, good, {.draft = -1}), errors);
      break;
    case 3:
      expect(manager_->append_unnamed(id, -1), errors);
      break;
    case 4: {
      Codes too_many = errors;
      too_many.insert({kNoBlocks, kExhausted});
      expect(manager_->append_unnamed(id, rng.chance(50) ? kHuge : std::int64_t{1} << 30),
             too_many);
      break;
    }
    case 5: {
      Codes too_many = errors;
      too_many.insert({kNoBlocks, kExhausted});
      expect(manager_->admit(id, rng.chance(50) ? kHuge : std::int64_t{1} << 31), too_many);
      break;
    }
    case 6:
      expect(manager_->admit(id, -1), errors);
      break;
    case 7:
      expect(manager_->truncate(id, -1), {kInvalid, kMoment});
      break;
    case 8:
      expect(manager_->truncate(id, seq->length() + 1), {kInvalid, kMoment});
      break;
    case 9:
      expect(status_of(manager_->trim(id, {.num_sinks = -1})), {kInvalid, kMoment});
      break;
    case 10: {
      const auto least = std::numeric_limits<std::int64_t>::min();
      expect(status_of(manager_->trim(id, {.window = least})), {kInvalid, kMoment});
      break;
    }
    case 11:
      expect(manager_->accept(id, -1), {kInvalid, kMoment});
      break;
    case 12:
      expect(status_of(manager_->block_table(id, GroupId(bad_group))), range);
      break;
    case 13: {
      const int first = rng.chance(50) ? seq->length() - 1 : (rng.chance(50) ? -1 : kHuge32);
      expect(manager_->slot_mapping(id, GroupId(0), first, out), range);
      break;
    }
    case 14:
      expect(status_of(manager_->open(negative)), {kInvalid});
      break;
    case 15:
      expect(status_of(manager_->probe(negative)), {kInvalid});
      break;
    case 16:
      expect(status_of(manager_->pin(negative)), {kInvalid, kExhausted});
      break;
    case 17:  // empty, reversed, negative, overlapping, out of order
    case 18: {
      const int kind = rng.below(5);
      span.content_id[0] = std::byte{1};
      span.begin = kind == 2 ? -1 : 4;
      span.end = kind == 0 ? 4 : (kind == 1 ? 2 : 6);
      media.push_back(span);
      if (kind >= 3) {
        span.begin = kind == 3 ? 5 : 0;
        span.end = kind == 3 ? 8 : 2;
        media.push_back(span);
      }
      options.media = media;
      expect(call == 17 ? status_of(manager_->open(good, options))
                        : status_of(manager_->probe(good, options)),
             {kInvalid});
      break;
    }
    case 19: {
      const std::string long_name(65537, 'a');
      options.root.tenant_salt = long_name;
      expect(status_of(manager_->open(good, options)), {kInvalid});
      break;
    }
    case 20:
      expect(status_of(manager_->evict(GroupId(bad_group), 1)), range);
      break;
    case 21:
      expect(status_of(manager_->evict(GroupId(0), -1)), {kInvalid});
      break;
    case 22:
      expect(status_of(manager_->usage(GroupId(bad_group))), range);
      break;
    case 23:
      expect(status_of(manager_->ref_count(GroupId(bad_group), BlockId(0))), range);
      break;
    case 24:
      expect(status_of(manager_->ref_count(GroupId(0),
                                           BlockId(rng.chance(50) ? -1 : group(0).num_blocks))),
             range);
      break;
    case 25:
      expect(status_of(manager_->is_findable(
                 GroupId(0), BlockId(rng.chance(50) ? kHuge32 : group(0).num_blocks))),
             range);
      break;
    case 26: {
      const Codes pad = open_step_ ? Codes{kInvalid} : Codes{kInvalid, kMoment};
      expect(status_of(manager_->plan({.pad = 5})), pad);
      break;
    }
    case 27: {
      constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
      const double target = rng.pick(std::vector<double>{kNan, -0.01, 1.01});
      expect(status_of(manager_->preempt_to(target)), {kInvalid});
      break;
    }
    case 28:
      options.max_tokens = rng.chance(50) ? -1 : std::numeric_limits<std::int32_t>::min();
      expect(status_of(manager_->open(good, options)), {kInvalid});
      break;
    case 32:
      options.publish = static_cast<Publish>(rng.chance(50) ? 3 : -1);
      expect(status_of(manager_->open(good, options)), {kInvalid});
      break;
    case 29: {
      Codes too_many = {kInvalid, kNoBlocks, kExhausted};
      if (!open_step_) too_many.insert(kMoment);
      expect(status_of(manager_->open_unnamed(
                 rng.pick(std::vector<std::int64_t>{-1, kHuge, std::int64_t{1} << 30}))),
             too_many);
      break;
    }
    case 30:
      expect(manager_->copy_to(*foreign_), {kInvalid});
      break;
    case 31:
      expect(manager_->copy_to(*manager_), {});
      break;
    default:
      if (config_.host_copies && open_step_) break;  // it would run them
      expect(manager_->run_copies(),
             open_step_ ? Codes{kUnsupported} : Codes{kUnsupported, kMoment});
      break;
  }
}

}  // namespace kvfolio::model_check
