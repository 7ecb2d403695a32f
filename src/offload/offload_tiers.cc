// SPDX-License-Identifier: Apache-2.0
//
// What tiers are asked, and what becomes of their answers. An answer counts once, for the tag that
// it names; whatever else a tier says is counted and ignored.

#include <algorithm>
#include <array>
#include <cstring>

#include "offload/offload_impl.h"

namespace kvfolio {

namespace {
constexpr std::uint64_t kStoreTimeoutUs = 5'000'000;
}  // namespace

void Offload::Impl::collect() {
  std::array<TierDone, 64> done;
  for (std::size_t t = 0; t < tiers_.size(); ++t) {
    // A tier that says more than was asked does not keep us here.
    for (std::size_t rounds = ops_.size() / done.size() + 2; rounds > 0; --rounds) {
      const std::size_t n = tiers_[t].options.tier->poll(now_us_, done);
      for (std::size_t i = 0; i < std::min(n, done.size()); ++i) {
        on_done(static_cast<std::int32_t>(t), done[i]);
      }
      if (n < done.size()) break;
    }
  }
}

bool Offload::Impl::submit(Op op, std::byte* data, std::uint64_t deadline_us) {
  TierState& tier = tiers_[static_cast<std::size_t>(op.tier)];
  const TierItem item{.key = op.key, .data = data, .bytes = op.bytes, .tag = ++last_tag_};
  const TierOp kind = op.kind;
  const auto place = ops_.emplace(item.tag, std::move(op)).first;
  if (tier.options.tier->submit(kind, std::span(&item, 1), {deadline_us}) == 1) return true;
  ops_.erase(place);
  return false;
}

void Offload::Impl::on_done(std::int32_t tier_index, const TierDone& done) {
  const auto found = ops_.find(done.tag);
  // Of another tier's work only that tier speaks: its memory may still be in use.
  if (found == ops_.end() || found->second.tier != tier_index) {
    ++counters_.unknown_completions;
    return;
  }
  Op op = std::move(found->second);
  ops_.erase(found);
  TierState& tier = tiers_[static_cast<std::size_t>(op.tier)];
  switch (op.kind) {
    case TierOp::kExists:
      on_exists(op, done.result);
      break;
    case TierOp::kLoad:
      tier.load_bytes -= op.bytes;
      on_loaded(op, done.result);
      break;
    case TierOp::kStore:
      tier.store_bytes -= op.bytes;
      ++(done.result == TierResult::kOk ? counters_.tier_stores : counters_.tier_stores_dropped);
      break;
    case TierOp::kErase:
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
  const auto [verdict, is_new] = request.where.try_emplace(op.key, op.tier);
  if (!is_new) verdict->second = std::min(verdict->second, op.tier);  // the cheapest
}

// ---- loads ----

// True: the request waits for the record now, which may have been on its way already.
bool Offload::Impl::start_load(std::uint64_t request, const Piece& piece, std::int32_t tier) {
  const auto there = arriving_.find(piece.key);
  if (there != arriving_.end()) {
    if (there->second.abandoned) return false;
    there->second.waiters.push_back(request);
    return true;
  }
  TierState& state = tiers_[static_cast<std::size_t>(tier)];
  const std::int64_t bytes = record_bytes(piece.group);
  if (state.load_bytes + bytes > state.options.load_bytes_max) return false;
  const auto slot = arena_->reserve(piece.key, bytes);
  if (!slot) return false;
  const std::span<std::byte> memory = arena_->fill(*slot);
  // What lay here before cannot pose as what the tier did not bring.
  std::memset(memory.data(), 0, static_cast<std::size_t>(kRecordHeaderBytes));
  RecordInfo expected =
      record_of(piece.group, (piece.logical + 1) * block_size(piece.group), piece.key);
  expected.owner = root_owner(requests_.at(request).root);
  const bool accepted =
      submit({.kind = TierOp::kLoad, .tier = tier, .key = piece.key, .bytes = bytes}, memory.data(),
             requests_.at(request).deadline_us);
  if (!accepted) {
    arena_->abandon(*slot);
    return false;
  }
  state.load_bytes += bytes;
  arriving_.emplace(
      piece.key, Arriving{.slot = *slot, .expected = expected, .tier = tier, .waiters = {request}});
  return true;
}

// The request does not wait for it any more. Without others the slot is given up; it is used again
// when the tier has said that it does not touch it.
void Offload::Impl::give_up(Arriving& arriving, std::uint64_t request) {
  const auto place = std::find(arriving.waiters.begin(), arriving.waiters.end(), request);
  if (place == arriving.waiters.end()) return;
  arriving.waiters.erase(place);
  if (!arriving.waiters.empty() || arriving.abandoned) return;
  arriving.abandoned = true;
  arena_->quarantine(arriving.slot);
}

void Offload::Impl::on_loaded(const Op& op, TierResult result) {
  const auto found = arriving_.find(op.key);
  KVFOLIO_CHECK(found != arriving_.end());
  const Arriving arriving = std::move(found->second);
  arriving_.erase(found);
  if (arriving.abandoned) {
    arena_->quiesced(arriving.slot);
    return;
  }
  bool right = false;
  if (result == TierResult::kOk) {
    const auto record = arena_->filling(arriving.slot);
    right = check_record(record, arriving.expected) == RecordFault::kNone;
    if (!right) ++counters_.tier_corrupt;
  } else {
    ++counters_.tier_misses[static_cast<std::size_t>(result) % kNumTierResults];
  }
  if (right) {
    ++counters_.tier_loads;
    arena_->seal(arriving.slot);
    arena_->publish(arriving.slot);
  } else {
    arena_->abandon(arriving.slot);
    if (result == TierResult::kOk || result == TierResult::kCorrupt) {
      submit({.kind = TierOp::kErase, .tier = op.tier, .key = op.key}, nullptr,
             now_us_ + kStoreTimeoutUs);
    }
  }
  for (const std::uint64_t id : arriving.waiters) {
    const auto request = requests_.find(id);
    if (request == requests_.end()) continue;
    --request->second.waiting;
    request->second.failed |= !right;
  }
}

// ---- stores ----

void Offload::Impl::store_to_tiers(const TierKey& key, bool second_use) {
  for (std::size_t t = 0; t < tiers_.size(); ++t) {
    TierState& tier = tiers_[t];
    const WritePolicy wanted = second_use ? WritePolicy::kSecondUse : WritePolicy::kWriteThrough;
    if (tier.options.policy != wanted) continue;
    ArenaPin pin = arena_->hold(key);
    if (!pin) return;
    const std::span<const std::byte> record = pin.record();
    const auto bytes = static_cast<std::int64_t>(record.size());
    if (tier.store_bytes + bytes > tier.options.store_bytes_max) {
      ++counters_.tier_stores_dropped;
      continue;
    }
    // A tier reads what it stores; one type of item serves both ways.
    auto* data = const_cast<std::byte*>(record.data());
    const bool accepted = submit({.kind = TierOp::kStore,
                                  .tier = static_cast<std::int32_t>(t),
                                  .key = key,
                                  .pin = std::move(pin),
                                  .bytes = bytes},
                                 data, now_us_ + kStoreTimeoutUs);
    if (accepted) {
      tier.store_bytes += bytes;
    } else {
      ++counters_.tier_stores_dropped;
    }
  }
}

}  // namespace kvfolio
