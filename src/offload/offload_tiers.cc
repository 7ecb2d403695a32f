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
constexpr std::uint64_t kStoreTimeoutUs = 5'000'000;

void count_latency(OffloadTierCounters::Latencies& counts, std::uint64_t us) {
  const auto& ends = OffloadTierCounters::kLatencyUs;
  ++counts[static_cast<std::size_t>(std::lower_bound(ends.begin(), ends.end(), us) - ends.begin())];
}

void count_store(OffloadTierCounters& counters, TierResult result, std::int64_t bytes,
                 std::uint64_t us) {
  count_latency(counters.store_latency, us);
  counters.store_us += us;
  if (result != TierResult::kOk) {
    ++counters.stores_failed;
    ++counters.stores_failed_in_a_row;
    return;
  }
  ++counters.stores;
  counters.stores_failed_in_a_row = 0;
  counters.bytes_stored += static_cast<std::uint64_t>(bytes);
}

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
  for (TierState& tier : tiers_) tier.usable = tier.options.tier->health().usable;
  if (!tiers_.empty()) first_tier_ = (first_tier_ + 1) % tiers_.size();
}

// Records that arrive are read once to check them, which counts: at most half of a poll's bytes. A
// tier that says more than it was asked does not keep us here.
void Offload::Impl::collect() {
  const std::int64_t kept = budget_ / 2;
  std::array<TierDone, 64> done;
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    const std::size_t t = (first_tier_ + i) % tiers_.size();
    for (std::int64_t answers = std::ssize(ops_) + 64; answers > 0 && budget_ > kept;) {
      std::size_t most = done.size();
      if (tiers_[t].load_bytes > 0) {
        const std::int64_t fit = (budget_ - kept) / largest_record_;
        most = static_cast<std::size_t>(std::clamp<std::int64_t>(fit, 2, 64));
      }
      const std::size_t said = tiers_[t].options.tier->poll(now_us_, std::span(done).first(most));
      const std::size_t n = std::min(said, most);
      for (std::size_t k = 0; k < n; ++k) on_done(static_cast<std::int32_t>(t), done[k]);
      answers -= static_cast<std::int64_t>(n);
      if (n < most) break;
    }
  }
}

// ---- asking ----

void Offload::Impl::add_item(Op op, std::byte* data) {
  op.since_us = now_us_;
  items_.push_back({.key = op.key, .data = data, .bytes = op.bytes, .tag = ++last_tag_});
  ops_.emplace(last_tag_, std::move(op));
}

// Hands items_ over. Returns how many were accepted: the first ones. The others are forgotten.
std::size_t Offload::Impl::submit(std::int32_t index, TierOp kind, std::uint64_t deadline_us) {
  TierState& tier = tier_at(index);
  const std::size_t accepted =
      std::min(tier.options.tier->submit(kind, items_, {deadline_us}), items_.size());
  for (std::size_t i = accepted; i < items_.size(); ++i) ops_.erase(items_[i].tag);
  for (const TierItem& item : std::span(items_).first(accepted)) {
    ++tier.num_in_flight;
    if (kind == TierOp::kLoad) {
      ++in_flight_.loads;
      tier.load_bytes += item.bytes;
    } else if (kind == TierOp::kStore) {
      ++in_flight_.stores;
      tier.store_bytes += item.bytes;
    } else {
      ++in_flight_.questions;
    }
  }
  items_.clear();
  return accepted;
}

void Offload::Impl::on_done(std::int32_t tier_index, const TierDone& done) {
  const auto found = ops_.find(done.tag);
  // Of another tier's work only that tier speaks: its memory may still be in use.
  if (found == ops_.end() || found->second.tier != tier_index) {
    ++counters_.unknown_completions;
    return;
  }
  const Op op = std::move(found->second);
  ops_.erase(found);
  TierState& tier = tier_at(op.tier);
  --tier.num_in_flight;
  const std::uint64_t us = now_us_ - op.since_us;
  switch (op.kind) {
    case TierOp::kExists:
      --in_flight_.questions;
      on_exists(op, done.result);
      break;
    case TierOp::kLoad:
      --in_flight_.loads;
      tier.load_bytes -= op.bytes;
      {
        const std::uint64_t right_before = counters_.tier_loads;
        on_loaded(done.tag, op, done.result);
        const bool late = op.given_up && done.result == TierResult::kOk;
        count_load(tier.counters, late ? TierResult::kTimeout : done.result,
                   counters_.tier_loads > right_before, op.bytes, us);
      }
      break;
    case TierOp::kStore:
      --in_flight_.stores;
      tier.store_bytes -= op.bytes;
      ++(done.result == TierResult::kOk ? counters_.tier_stores : counters_.tier_stores_dropped);
      count_store(tier.counters, done.result, op.bytes, us);
      break;
    case TierOp::kErase:
      --in_flight_.questions;
      break;
  }
}

void Offload::Impl::on_exists(const Op& op, TierResult result) {
  const auto found = requests_.find(op.request);
  if (found == requests_.end()) return;
  Request& request = found->second;
  if (request.state != Request::State::kAsking) return;  // an answer behind its deadline
  --request.waiting;
  if (result != TierResult::kOk) return;
  request.where[op.key].has |= static_cast<std::uint8_t>(1u << op.tier);
}

// ---- loads ----

// kYes: the request waits for the record now, which may have been on its way already.
Offload::Impl::Begun Offload::Impl::start_load(std::uint64_t id, Request& request,
                                               const Piece& piece, std::int32_t index) {
  const auto there = arriving_.find(piece.key);
  if (there != arriving_.end()) {
    there->second.waiters.push_back(id);
    ++request.waiting;
    return Begun::kYes;
  }
  TierState& tier = tier_at(index);
  const std::int64_t bytes = record_bytes(piece.group);
  if (!takes(tier, bytes)) return Begun::kNo;
  if (tier.load_bytes + bytes > tier.options.load_bytes_max) {
    return tier.load_bytes > 0 ? Begun::kLater : Begun::kNo;
  }
  const auto slot = arena_->reserve(piece.key, bytes);
  if (!slot) return in_flight_.loads + in_flight_.stores > 0 ? Begun::kLater : Begun::kNo;
  const std::span<std::byte> memory = arena_->fill(*slot);
  // What lay here before cannot pose as what the tier did not bring.
  std::memset(memory.data(), 0, static_cast<std::size_t>(kRecordHeaderBytes));
  Arriving arriving{
      .expected = record_of(piece.group, (piece.logical + 1) * block_size(piece.group), piece.key)};
  arriving.expected.owner = root_owner(request.root);
  const bool works = tier.num_in_flight > 0;
  add_item({.kind = TierOp::kLoad, .tier = index, .key = piece.key, .bytes = bytes, .slot = *slot},
           memory.data());
  arriving.tag = last_tag_;
  if (submit(index, TierOp::kLoad, request.deadline_us) != 1) {
    arena_->abandon(*slot);
    return works ? Begun::kLater : Begun::kNo;
  }
  arriving.waiters.push_back(id);
  ++request.waiting;
  arriving_.emplace(piece.key, std::move(arriving));
  return Begun::kYes;
}

// The request does not wait for it any more.
void Offload::Impl::give_up(const TierKey& key, std::uint64_t request) {
  const auto place = arriving_.find(key);
  if (place == arriving_.end()) return;
  std::erase(place->second.waiters, request);
  if (place->second.waiters.empty()) give_up(place);
}

// The slot is used again when the tier has said that it does not touch it. Another load of the same
// record may begin before.
void Offload::Impl::give_up(std::unordered_map<TierKey, Arriving, TierKeyHash>::iterator place) {
  Op& op = ops_.at(place->second.tag);
  op.given_up = true;
  arena_->quarantine(op.slot);
  arriving_.erase(place);
}

void Offload::Impl::on_loaded(std::uint64_t tag, const Op& op, TierResult result) {
  if (op.given_up) return arena_->quiesced(op.slot);
  const auto found = arriving_.find(op.key);
  KVFOLIO_CHECK(found != arriving_.end() && found->second.tag == tag);
  const Arriving arriving = std::move(found->second);
  arriving_.erase(found);
  bool right = false;
  if (result == TierResult::kOk) {
    budget_ -= op.bytes;
    right = check_record(arena_->filling(op.slot), arriving.expected) == RecordFault::kNone;
    if (!right) ++counters_.tier_corrupt;
  } else {
    ++counters_.tier_misses[static_cast<std::size_t>(result) % kNumTierResults];
  }
  if (right) {
    ++counters_.tier_loads;
    arena_->seal(op.slot);
    arena_->publish(op.slot);
  } else {
    arena_->abandon(op.slot);
    const bool damaged = result == TierResult::kOk || result == TierResult::kCorrupt;
    if (damaged && tier_at(op.tier).options.policy != WritePolicy::kOff) {
      add_item({.kind = TierOp::kErase, .tier = op.tier, .key = op.key}, nullptr);
      submit(op.tier, TierOp::kErase, store_deadline());
    }
  }
  for (const std::uint64_t id : arriving.waiters) {
    const auto place = requests_.find(id);
    if (place == requests_.end()) continue;
    Request& request = place->second;
    --request.waiting;
    if (right) continue;
    Verdict& verdict = request.where[op.key];
    if (mutant(Mutant::kVerdictKept)) result = TierResult::kBusy;
    // A busy tier may bring it the next time.
    if (result != TierResult::kBusy) verdict.failed |= static_cast<std::uint8_t>(1u << op.tier);
    request.failed = true;
    request.retry |= verdict.good() != 0;
  }
}

}  // namespace kvfolio
