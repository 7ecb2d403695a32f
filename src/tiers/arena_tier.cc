// SPDX-License-Identifier: Apache-2.0

#include "kvfolio/arena_tier.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

namespace kvfolio {

Result<ArenaTier> ArenaTier::create(const HostArenaOptions& options) {
  Result<HostArena> arena = HostArena::create(options);
  if (!arena) return std::move(arena).error();
  return ArenaTier(std::make_shared<Shared>(*std::move(arena), options.record_bytes));
}

ArenaTier::ArenaTier(std::shared_ptr<Shared> shared)
    : shared_(std::move(shared)), waiting_(kQueue) {}

ArenaTier ArenaTier::another() const { return ArenaTier(shared_); }

ArenaTier::ArenaTier(ArenaTier&&) noexcept = default;
ArenaTier::~ArenaTier() = default;

std::string_view ArenaTier::name() const noexcept { return "memory"; }

TierLimits ArenaTier::limits() const noexcept {
  return {.record_bytes_max = *std::max_element(shared_->sizes.begin(), shared_->sizes.end()),
          .data_alignment = 1};
}

std::size_t ArenaTier::submit(TierOp op, std::span<const TierItem> items,
                              Deadline deadline) noexcept {
  if (closed_) return 0;
  KVFOLIO_CHECK(count_ <= kQueue && first_ < kQueue);
  const std::size_t n = std::min(items.size(), kQueue - count_);
  for (std::size_t i = 0; i < n; ++i) {
    waiting_[(first_ + count_++) % kQueue] = {op, items[i], deadline.at_us};
  }
  return n;
}

std::size_t ArenaTier::poll(std::uint64_t now_us, std::span<TierDone> done) noexcept {
  std::size_t n = 0;
  for (; n < done.size() && count_ > 0; ++n) {
    const Waiting& one = waiting_[first_];
    TierResult result = TierResult::kClosed;
    if (!closed_) result = now_us > one.deadline_us ? TierResult::kTimeout : perform(one);
    count(one.op, result);
    done[n] = {.tag = one.item.tag, .result = result};
    first_ = (first_ + 1) % kQueue;
    --count_;
  }
  return n;
}

void ArenaTier::count(TierOp op, TierResult result) noexcept {
  if (result != TierResult::kOk) {
    health_.failures += result == TierResult::kMiss ? 0u : 1u;
  } else if (op == TierOp::kStore) {
    ++health_.stores_ok;
  } else if (op == TierOp::kLoad) {
    ++health_.loads_ok;
  }
}

TierResult ArenaTier::perform(const Waiting& one) noexcept {
  const std::lock_guard lock(shared_->mutex);
  switch (one.op) {
    case TierOp::kExists:
      return shared_->arena.contains(one.item.key) ? TierResult::kOk : TierResult::kMiss;
    case TierOp::kLoad:
      return load(one.item);
    case TierOp::kStore:
      return store(one.item);
    case TierOp::kErase:
      shared_->arena.erase(one.item.key);
      return TierResult::kOk;
  }
  return TierResult::kIoError;
}

TierResult ArenaTier::store(const TierItem& item) noexcept {
  HostArena& arena = shared_->arena;
  if (arena.touch(item.key)) return TierResult::kOk;
  const std::vector<std::int64_t>& sizes = shared_->sizes;
  if (std::find(sizes.begin(), sizes.end(), item.bytes) == sizes.end()) return TierResult::kIoError;
  const std::optional<ArenaSlot> slot = arena.reserve(item.key, item.bytes);
  if (!slot) return TierResult::kBusy;
  const std::span<std::byte> record = arena.fill(*slot);
  KVFOLIO_CHECK(std::ssize(record) == item.bytes);
  std::memcpy(record.data(), item.data, record.size());
  arena.seal(*slot);
  arena.publish(*slot);
  return TierResult::kOk;
}

TierResult ArenaTier::load(const TierItem& item) noexcept {
  const ArenaPin pin = shared_->arena.find(item.key);
  if (!pin) return TierResult::kMiss;
  const std::span<const std::byte> record = pin.record();
  if (record.size() != static_cast<std::size_t>(item.bytes)) return TierResult::kCorrupt;
  std::memcpy(item.data, record.data(), record.size());
  return TierResult::kOk;
}

int ArenaTier::event_fd() const noexcept { return -1; }
TierHealth ArenaTier::health() const noexcept { return health_; }

Status ArenaTier::close(Deadline /*deadline*/) noexcept {
  closed_ = true;
  return {};
}

ArenaStats ArenaTier::stats() const noexcept {
  const std::lock_guard lock(shared_->mutex);
  return shared_->arena.stats();
}

}  // namespace kvfolio
