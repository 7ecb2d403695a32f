// SPDX-License-Identifier: Apache-2.0

#include "offload/tier_port.h"

#include <algorithm>

#include "base/text.h"

namespace kvfolio {

TierPort::TierPort(const OffloadTier& options, std::int64_t share, std::int64_t largest_record,
                   std::int64_t alignment)
    : options_(options),
      record_bytes_max_(options.tier->limits().record_bytes_max),
      verifies_(options.tier->limits().verifies),
      alignment_(alignment) {
  largest_slot_ = slot(largest_record);
  share_ = std::max(share, 2 * largest_slot_);
  KVFOLIO_CHECK(largest_slot_ > 0 && largest_slot_ % alignment_ == 0);
}

bool TierPort::is_stuck() const noexcept {
  return bytes_that_stay() + largest_slot_ > share_ ||
         in_flight_.overdue_store_bytes + largest_slot_ > share_ / 2;
}

void TierPort::count() noexcept {
  counters_.bytes_held = held_bytes();
  counters_.passed_over = usable_ && (!is_read() || !is_written() || is_stuck());
}

// ---- whether it is asked ----

void TierPort::leave() noexcept {
  left_ = true;
  usable_ = false;
  KVFOLIO_DCHECK(in_flight_.num >= in_flight_.num_overdue);
  in_flight_ = {};
  for (Side* side : {&questions_, &loads_, &stores_}) side->probe_tag = 0;
  drop_all();
}

void TierPort::was_late(TierOp kind, const TierKey& key, std::int64_t bytes, std::uint64_t since_us,
                        std::uint64_t now_us) noexcept {
  Side& late = side(kind);
  late.probe_key = key;
  late.probe_bytes = bytes;
  if (late.pauses.timed_out(since_us, now_us)) ++counters_.pauses;
}

// ---- what it works at ----

void TierPort::InFlight::add(TierOp kind, std::int64_t bytes, bool is_overdue,
                             std::int64_t sign) noexcept {
  num += sign;
  if (kind == TierOp::kLoad) {
    load_bytes += sign * bytes;
  } else if (kind == TierOp::kStore) {
    store_bytes += sign * bytes;
  } else {
    num_questions += sign;
  }
  if (is_overdue) add_overdue(kind, bytes, sign);
  KVFOLIO_CHECK(num >= 0 && load_bytes >= 0 && store_bytes >= 0 && num_questions >= 0);
}

void TierPort::InFlight::add_overdue(TierOp kind, std::int64_t bytes, std::int64_t sign) noexcept {
  num_overdue += sign;
  if (kind == TierOp::kLoad) overdue_load_bytes += sign * bytes;
  if (kind == TierOp::kStore) overdue_store_bytes += sign * bytes;
  KVFOLIO_CHECK(num_overdue >= 0 && overdue_load_bytes >= 0 && overdue_store_bytes >= 0);
}

// ---- loads ----

TierPort::Room TierPort::room_for_load(std::int64_t bytes) noexcept {
  if (bytes > options_.load_bytes_max) return Room::kNever;
  const std::int64_t loads_max = std::max(options_.load_bytes_max, slot(bytes));
  // They give way only to a load that fits then.
  const bool fits_alone = in_flight_.load_bytes + slot(bytes) <= loads_max &&
                          held_bytes() - pinned_bytes_ + slot(bytes) <= share_;
  while (fits_alone && held_bytes() + slot(bytes) > share_ && num_pinned_ > 0) {
    ArenaPin& last = first_[--num_pinned_].pin;
    pinned_bytes_ -= slot(last);
    KVFOLIO_DCHECK(pinned_bytes_ >= 0);
    last.release();
  }
  const auto fits = [&](std::int64_t held, std::int64_t loads) {
    return held + slot(bytes) <= share_ && loads + slot(bytes) <= loads_max;
  };
  if (fits(held_bytes(), in_flight_.load_bytes)) return Room::kYes;
  return fits(bytes_that_stay(), in_flight_.overdue_load_bytes) ? Room::kLater : Room::kNever;
}

// ---- stores ----

TierPort::Room TierPort::room_for_store(const Waiting& one, std::int64_t bytes,
                                        std::uint64_t now_us) const noexcept {
  if (bytes > options_.store_bytes_max) return Room::kNever;
  if (now_us < refused_until_us_) return Room::kLater;
  const Pauses& pauses = stores_.pauses;
  if (pauses.passed_over() && (!pauses.may_try(now_us) || stores_.probe_tag != 0)) {
    return Room::kLater;
  }
  const std::int64_t more = slot(bytes);
  const bool fits =
      in_flight_.store_bytes + bytes <= std::max(options_.store_bytes_max, more) &&
      in_flight_.store_bytes + again_bytes_ + (one.is_again ? 0 : more) <= share_ / 2 &&
      held_bytes() + (one.pin ? 0 : more) <= share_;
  return fits ? Room::kYes : Room::kLater;
}

bool TierPort::refused(std::uint64_t now_us) noexcept {
  if (refusals_ >= kRefusalsMax) return false;
  refused_until_us_ = now_us + std::min(kAgainUs << refusals_, ~now_us);
  ++refusals_;
  return true;
}

// False: there is no room for it. One that is gone has room until its turn.
bool TierPort::pin(Waiting& one, HostArena& arena) {
  KVFOLIO_DCHECK(!one.pin && !one.is_again);
  one.pin = arena.hold(one.key);
  one.is_gone = !one.pin;
  if (held_bytes() + slot(one.pin) > share_) {
    one.pin.release();
    return false;
  }
  pinned_bytes_ += slot(one.pin);
  ++num_pinned_;
  return true;
}

bool TierPort::wait(const TierKey& key, HostArena& arena) {
  if (first_.size() >= kWaitingMax) return false;
  first_.push_back({.key = key});
  if (num_pinned_ + 1 == first_.size()) pin(first_.back(), arena);
  return true;
}

bool TierPort::wait_again(Waiting one, std::uint64_t now_us) {
  if (one.tries > kTriesMax || again_.size() >= kWaitingMax) return false;
  KVFOLIO_CHECK(one.pin);
  one.is_again = true;
  again_bytes_ += slot(one.pin);
  const std::uint64_t pause_us = kAgainUs << one.tries;
  again_.emplace(now_us + std::min(pause_us, ~now_us), std::move(one));
  ++counters_.stores_again;
  return true;
}

const TierPort::Waiting* TierPort::next(std::uint64_t now_us) const noexcept {
  if (again_is_due(now_us)) return &again_.begin()->second;
  return first_.empty() ? nullptr : &first_.front();
}

void TierPort::pop(std::uint64_t now_us) noexcept {
  KVFOLIO_CHECK(next(now_us) != nullptr);
  if (again_is_due(now_us)) {
    again_bytes_ -= slot(again_.begin()->second.pin);
    again_.erase(again_.begin());
    return;
  }
  pinned_bytes_ -= slot(first_.front().pin);
  KVFOLIO_DCHECK(pinned_bytes_ >= 0);
  num_pinned_ -= num_pinned_ > 0 ? 1 : 0;
  first_.pop_front();
}

void TierPort::pin_waiting(HostArena& arena, int most) {
  while (most-- > 0 && num_pinned_ < first_.size() && pin(first_[num_pinned_], arena)) {
  }
}

void TierPort::drop_all() noexcept {
  first_.clear();
  again_.clear();
  num_pinned_ = 0;
  pinned_bytes_ = again_bytes_ = 0;
}

Status TierPort::check(const InFlight& seen) const {
  const auto broken = [this](const char* rule) {
    return Status(ErrorCode::kAborted,
                  text::concat("offload: tier ", options_.tier->name(), ": ", rule));
  };
  std::int64_t pinned = 0, again = 0;
  for (std::size_t i = 0; i < first_.size(); ++i) {
    if (i >= num_pinned_ && first_[i].pin) return broken("a pin behind the pinned ones");
    pinned += slot(first_[i].pin);
  }
  for (const auto& [due_us, one] : again_) {
    if (!one.pin || !one.is_again) return broken("a second try without its record");
    again += slot(one.pin);
  }
  if (num_pinned_ > first_.size()) return broken("more pins than stores that wait");
  if (pinned != pinned_bytes_ || again != again_bytes_)
    return broken("waiting bytes are miscounted");
  if (held_bytes() > share_) return broken("it holds more than its share of the arena");
  if (!(seen == in_flight_)) return broken("what is in flight is miscounted");
  for (const Side* side : {&questions_, &loads_, &stores_}) {
    if (Status status = side->pauses.check(); !status.ok()) return status;
  }
  return {};
}

}  // namespace kvfolio
