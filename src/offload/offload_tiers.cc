// SPDX-License-Identifier: Apache-2.0
//
// What tiers are asked, and what becomes of their answers. An answer counts once, for the tag that
// it names; whatever else a tier says is counted and ignored.

#include <algorithm>
#include <array>
#include <cstring>

#include "base/mutants.h"
#include "offload/offload_impl.h"

namespace kvfolio {

namespace {
constexpr std::uint64_t kStoreTimeoutUs = 5'000'000;  // a store is not waited for

// `right`: the record verified, if it came in time.
void count_load(OffloadTierCounters& counters, TierResult result, bool right, std::int64_t bytes,
                std::uint64_t us) {
  count_latency(counters.load_latency, us);
  counters.load_us += us;
  if (result != TierResult::kOk) {
    ++counters.loads_failed[static_cast<std::size_t>(result) % kNumTierResults];
    return;
  }
  ++(right ? counters.loads : counters.loads_corrupt);
  if (right) counters.bytes_loaded += static_cast<std::uint64_t>(bytes);
}

}  // namespace

std::uint64_t Offload::Impl::store_deadline() const noexcept {
  return later(now_us_, kStoreTimeoutUs);
}

// Once for each poll. Another tier is first each time, so that none waits behind the others' bytes.
void Offload::Impl::look_at_tiers() {
  if (!process_.is_this() && !(ports_.empty() || ports_[0].has_left())) leave_to_parent();
  for (TierPort& port : ports_) port.look();
  if (!ports_.empty()) first_tier_ = (first_tier_ + 1) % ports_.size();
}

// In a child of fork(). What is in flight is the parent's: here no thread, ring or socket touches
// our memory, so that is free. Requests go on with what host memory has.
void Offload::Impl::leave_to_parent() {
  give_up_all();
  ops_.for_each([this](std::uint64_t, const Op& op) {
    if (op.kind == TierOp::kLoad) arena_->quiesced(op.slot);
  });
  ops_.clear();
  for (TierPort& port : ports_) port.leave();
  requests_.leave_tiers();
}

// Records that arrive are read once to check them, which counts: at most half of a poll's bytes. A
// tier that says more than it was asked does not keep us here.
void Offload::Impl::collect() {
  const std::int64_t kept = budget_ / 2;
  std::array<TierDone, 64> done;
  for (std::size_t i = 0; i < ports_.size(); ++i) {
    const std::size_t t = (first_tier_ + i) % ports_.size();
    if (ports_[t].has_left()) continue;
    const std::int64_t most_answers = std::min(ops_.size() + 64, kAnswersPerPoll);
    for (std::int64_t answers = most_answers; answers > 0 && budget_ > kept;) {
      std::size_t most = done.size();
      if (ports_[t].load_bytes() > 0) {
        const std::int64_t fit = (budget_ - kept) / largest_record_;
        most = static_cast<std::size_t>(std::clamp<std::int64_t>(fit, 2, 64));
      }
      const std::size_t said = ports_[t].tier().poll(now_us_, std::span(done).first(most));
      const std::size_t n = std::min(said, most);
      for (std::size_t k = 0; k < n; ++k) on_done(static_cast<std::int32_t>(t), done[k]);
      answers -= static_cast<std::int64_t>(n);
      steps_.took(static_cast<std::int64_t>(n));
      if (n < most) break;
    }
  }
}

// ---- asking ----

void Offload::Impl::add_item(Op op, std::byte* data) {
  const bool has_memory = op.kind == TierOp::kLoad || op.kind == TierOp::kStore;
  KVFOLIO_CHECK(has_memory == (data != nullptr) && has_memory == (op.bytes > 0));
  op.since_us = now_us_;
  TierItem item{.key = op.key, .data = data, .bytes = op.bytes};
  item.tag = ops_.add(std::move(op));
  items_.push_back(item);
}

// Hands items_ over. Returns how many were accepted: the first ones. The others are forgotten.
std::size_t Offload::Impl::submit(std::int32_t index, TierOp kind, std::uint64_t deadline_us) {
  TierPort& asked = port(index);
  KVFOLIO_DCHECK(!items_.empty() && !asked.has_left());
  const std::size_t accepted =
      std::min(asked.tier().submit(kind, items_, {deadline_us}), items_.size());
  for (std::size_t i = accepted; i < items_.size(); ++i) ops_.drop(items_[i].tag);
  for (const TierItem& item : std::span(items_).first(accepted)) {
    KVFOLIO_DCHECK(ops_.at(item.tag).kind == kind && ops_.at(item.tag).tier == index);
    ops_.began(item.tag, deadline_us);
    asked.began(kind, item.bytes);
  }
  items_.clear();
  return accepted;
}

void Offload::Impl::on_done(std::int32_t tier_index, const TierDone& done) {
  std::optional<Op> taken = ops_.take(done.tag, tier_index);
  if (!taken) {
    ++counters_.unknown_completions;
    return;
  }
  Op& op = *taken;
  TierPort& from = port(op.tier);
  from.ended(op.kind, op.bytes, op.given_up || op.overdue);
  if (op.is_probe && op.kind != TierOp::kStore) return on_probed(done.tag, op, done.result);
  switch (op.kind) {
    case TierOp::kExists:
      on_exists(op, done.result);
      break;
    case TierOp::kLoad: {
      const std::uint64_t right_before = counters_.tier_loads;
      on_loaded(done.tag, op, done.result);
      const bool late = op.given_up && done.result == TierResult::kOk;
      count_load(from.counters(), late ? TierResult::kTimeout : done.result,
                 counters_.tier_loads > right_before, op.bytes, now_us_ - op.since_us);
      if (done.result == TierResult::kTimeout && !op.given_up) {
        from.was_late(op.kind, op.key, op.bytes, op.since_us, now_us_);
      } else if (done.result != TierResult::kTimeout && now_us_ < op.deadline_us) {
        from.answered(op.kind);
      }
      break;
    }
    case TierOp::kStore:
      on_stored(done.tag, std::move(op), done.result);
      break;
    case TierOp::kErase:
      break;
  }
}

void Offload::Impl::on_exists(const Op& op, TierResult result) {
  if (result == TierResult::kTimeout) {
    port(op.tier).was_late(op.kind, op.key, op.bytes, op.since_us, now_us_);
  } else if (now_us_ < op.deadline_us) {
    port(op.tier).answered(op.kind);  // also if its request has gone on without it
  }
  Request* const request = requests_.find(op.request);
  if (request == nullptr) return;
  // It came too late for its request.
  if (request->state != Request::State::kAsking || request->part_begin != op.part_begin) return;
  request->was_answered(op.tier);
  if (result == TierResult::kTimeout) return;
  port(op.tier).answered(op.kind);
  if (result != TierResult::kOk) return;
  request->promised.add(op.tier);
  requests_.verdict(*request, op.piece).has.add(op.tier);
}

// ---- tiers that are passed over ----

// Each pause ends with one question or load that no user waits for. A load that hangs, too, keeps
// its memory, within the tier's share.
void Offload::Impl::probe_tiers() {
  for (std::size_t t = 0; t < ports_.size(); ++t) {
    for (const TierOp kind : {TierOp::kExists, TierOp::kLoad}) {
      TierPort::Side& side = ports_[t].side(kind);
      if (side.probe_tag == 0) {
        if (ports_[t].is_usable() && side.pauses.may_try(now_us_)) {
          probe(static_cast<std::int32_t>(t), kind);
        }
        continue;
      }
      const Op& op = ops_.at(side.probe_tag);
      if (now_us_ < op.deadline_us) continue;
      side.probe_tag = 0;
      ports_[t].was_late(kind, op.key, op.bytes, op.since_us, now_us_);
    }
  }
}

void Offload::Impl::probe(std::int32_t index, TierOp kind) {
  TierPort& asked = port(index);
  const TierPort::Side& side = asked.side(kind);
  KVFOLIO_CHECK(side.probe_tag == 0 && side.pauses.passed_over());
  Op op{.kind = kind, .tier = index, .key = side.probe_key, .bytes = side.probe_bytes};
  op.is_probe = true;
  std::span<std::byte> memory;
  if (kind == TierOp::kLoad) {
    if (asked.room_for_load(op.bytes) != TierPort::Room::kYes) return;
    const auto slot = arena_->reserve(op.key, op.bytes);
    if (!slot) return;
    op.slot = *slot;
    op.given_up = true;
    memory = arena_->fill(*slot);
  }
  const ArenaSlot slot = op.slot;
  const std::int64_t bytes = op.bytes;
  add_item(std::move(op), memory.data());
  const std::uint64_t tag = ops_.last_tag();
  const bool accepted = submit(index, kind, later(now_us_, options_.timeout_us)) == 1;
  if (accepted && kind == TierOp::kLoad) {
    asked.became_overdue(kind, bytes);
    arena_->quarantine(slot);
  } else if (kind == TierOp::kLoad) {
    arena_->abandon(slot);
  }
  if (accepted) {
    asked.side(kind).probe_tag = tag;
  } else {
    asked.was_late(kind, side.probe_key, bytes, now_us_, now_us_);  // it does not take it either
  }
}

void Offload::Impl::on_probed(std::uint64_t tag, const Op& op, TierResult result) {
  if (op.given_up) arena_->quiesced(op.slot);
  TierPort& from = port(op.tier);
  TierPort::Side& side = from.side(op.kind);
  if (side.probe_tag != tag) return;  // too late
  side.probe_tag = 0;
  if (result == TierResult::kTimeout || now_us_ >= op.deadline_us) {
    from.was_late(op.kind, op.key, op.bytes, op.since_us, now_us_);
  } else {
    from.answered(op.kind);
  }
}

// ---- loads ----

// kYes: the request waits for the record now, which may have been on its way already.
Offload::Impl::Begun Offload::Impl::start_load(Request& request, const Piece& piece,
                                               std::int32_t index) {
  const Arriving* const there = requests_.arriving(piece.key);
  if (there != nullptr && !has_failed(request, *there)) {
    requests_.wait_for(request, piece.key);
    return Begun::kYes;
  }
  KVFOLIO_DCHECK(request.state == Request::State::kLoading && !arena_->contains(piece.key));
  TierPort& asked = port(index);
  const std::int64_t bytes = record_bytes(piece.group);
  if (!asked.takes(bytes) || !asked.is_read()) return Begun::kNo;
  const TierPort::Room room = asked.room_for_load(bytes);
  if (room != TierPort::Room::kYes) {
    return room == TierPort::Room::kLater ? Begun::kLater : Begun::kNo;
  }
  if (requests_.is_behind()) return Begun::kLater;  // older requests first
  auto slot = arena_->reserve(piece.key, bytes);
  while (!slot && take_from_younger(request)) slot = arena_->reserve(piece.key, bytes);
  if (!slot) {
    const bool may_free = requests_.others_hold(request) || ops_.touch_memory();
    if (!may_free) return Begun::kNo;
    requests_.ran_short(request);
    return Begun::kLater;
  }
  const std::span<std::byte> memory = arena_->fill(*slot);
  // What lay here before cannot pose as what the tier did not bring.
  std::memset(memory.data(), 0, static_cast<std::size_t>(kRecordHeaderBytes));
  Arriving arriving{
      .piece = piece,
      .expected = record_of(piece.group, (piece.logical + 1) * block_size(piece.group), piece.key)};
  arriving.expected.owner = root_owner(request.root);
  const bool works = asked.works();
  add_item({.kind = TierOp::kLoad, .tier = index, .key = piece.key, .bytes = bytes, .slot = *slot},
           memory.data());
  arriving.tag = ops_.last_tag();
  if (submit(index, TierOp::kLoad, later(request.deadline_us, request.owed_us)) != 1) {
    arena_->abandon(*slot);
    return works ? Begun::kLater : Begun::kNo;
  }
  arriving.waiters = take_waiters(piece);
  requests_.begin_arriving(request, std::move(arriving));
  return Begun::kYes;
}

// The request does not wait any more for the tier that the record is to come from.
bool Offload::Impl::has_failed(Request& request, const Arriving& arriving) const {
  return requests_.verdict(request, arriving.piece).failed.has(ops_.at(arriving.tag).tier);
}

// Another tier brings the record now: also for those that wait for the one that is late with it.
std::vector<Requests::Id> Offload::Impl::take_waiters(const Piece& piece) {
  if (requests_.arriving(piece.key) == nullptr) return {};
  Arriving late = requests_.take_late(piece.key);
  const std::int32_t tier = ops_.at(late.tag).tier;
  steps_.took(std::ssize(late.waiters));
  for (const Requests::Id id : late.waiters) {
    requests_.verdict(*requests_.find(id), piece).failed.add(tier);
  }
  give_up(late, true);
  return std::move(late.waiters);
}

// The request does not wait for it any more.
void Offload::Impl::give_up(Request& request, const TierKey& key, bool is_late) {
  if (requests_.stop_waiting(request, key)) give_up(requests_.take_arrived(key), is_late);
}

// The slot is used again when the tier has said that it does not touch it. Another load of the same
// record may begin before.
void Offload::Impl::give_up(const Arriving& gone, bool is_late) {
  Op& op = ops_.at(gone.tag);
  KVFOLIO_CHECK(op.kind == TierOp::kLoad && !op.given_up);
  op.given_up = true;
  arena_->quarantine(op.slot);
  port(op.tier).became_overdue(op.kind, op.bytes);
  if (is_late) port(op.tier).was_late(op.kind, op.key, op.bytes, op.since_us, now_us_);
}

void Offload::Impl::give_up_all() {
  while (!requests_.arrivals().empty()) {
    give_up(requests_.take_arrived(requests_.arrivals().begin()->first), false);
  }
}

void Offload::Impl::on_loaded(std::uint64_t tag, const Op& op, TierResult result) {
  if (op.given_up) return arena_->quiesced(op.slot);
  const Arriving arriving = requests_.take_arrived(op.key);
  KVFOLIO_CHECK(arriving.tag == tag);
  bool right = false;
  if (result == TierResult::kOk) {
    budget_ -= op.bytes;
    // The payload is verified by the tier, or here, and again on its way to the cache.
    const std::span<const std::byte> record = arena_->filling(op.slot);
    right =
        (port(op.tier).verifies() ? check_record_header(record, arriving.expected)
                                  : check_record(record, arriving.expected)) == RecordFault::kNone;
  } else {
    ++counters_.tier_misses[static_cast<std::size_t>(result) % kNumTierResults];
  }
  if (right) {
    ++counters_.tier_loads;
    arena_->seal(op.slot);
    arena_->publish(op.slot);
  } else {
    arena_->abandon(op.slot);
    // Not what another key sealed, which is a miss: it is right for others.
    const bool damaged = result == TierResult::kOk || result == TierResult::kCorrupt;
    counters_.tier_corrupt += damaged ? 1 : 0;
    if (damaged && port(op.tier).policy() != WritePolicy::kOff) {
      add_item({.kind = TierOp::kErase, .tier = op.tier, .key = op.key}, nullptr);
      submit(op.tier, TierOp::kErase, store_deadline());
    }
  }
  deliver(arriving, result, right, op.tier);
}

// To the requests that waited for it.
void Offload::Impl::deliver(const Arriving& arriving, TierResult result, bool right,
                            std::int32_t tier) {
  for (const Requests::Id id : arriving.waiters) {
    Request& request = *requests_.find(id);
    if (right) {
      earn_time(request, record_bytes(arriving.piece.group));
      requests_.hold(request, arriving.expected.end, arena_->hold(arriving.piece.key));
      continue;
    }
    Verdict& said = requests_.verdict(request, arriving.piece);
    if (mutant(Mutant::kVerdictKept)) result = TierResult::kBusy;
    // A busy tier may bring it the next time.
    if (result != TierResult::kBusy) said.failed.add(tier);
    request.failed = true;
    request.retry |= !said.good().empty();
  }
}

}  // namespace kvfolio
