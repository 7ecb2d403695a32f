// SPDX-License-Identifier: Apache-2.0
#pragma once

// MemoryTier: a tier in memory whose faults are drawn from a seed. For tests: it may be late,
// answer out of order, bring half of a record, damage it, bring another one, say ok and bring
// nothing, miss, fail, say the same twice, or never answer. It reads and writes items as late as it
// can: just before it answers. So who uses the memory of an item too early is seen. Thread safety:
// none.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "kvfolio/tier.h"

namespace kvfolio::test {

// Chances of each fault, in a thousand.
struct MemoryTierFaults {
  unsigned late = 0;  // answers after 1 to 20 polls, so out of order too; else at the next poll
  unsigned partial = 0;
  unsigned corrupt = 0;
  unsigned other = 0;  // the bytes of another record
  unsigned lie = 0;    // ok for a record that is not there, or without a byte written
  unsigned miss = 0;   // of a record that is there
  unsigned io_error = 0;
  unsigned twice = 0;
  unsigned silent = 0;      // answers at close() only
  unsigned busy = 0;        // submit() accepts nothing
  unsigned busy_loads = 0;  // kBusy for a load
};

class MemoryTier final : public Tier {
 public:
  explicit MemoryTier(std::uint32_t seed = 1, const MemoryTierFaults& faults = {})
      : random_(seed), faults_(faults) {}

  using Records = std::map<std::vector<std::byte>, std::vector<std::byte>>;
  Records records;  // by the bytes of the key
  std::uint64_t exists_asked = 0, loads_asked = 0, stores_asked = 0;
  std::uint64_t polls = 0, submits = 0;
  // What the tier says of itself. What breaks its limits is counted, and so is what it is asked
  // while it is not usable.
  TierLimits says{1 << 30, 64};
  bool usable = true;
  std::uint64_t corrupt_unasked = 0;
  std::uint64_t of_another_key = 0;
  std::size_t queue_max = ~std::size_t{0};  // items that it has at once
  std::uint64_t broken_limits = 0;
  bool closed = false;

  void set_faults(const MemoryTierFaults& faults) { faults_ = faults; }
  [[nodiscard]] std::size_t in_flight() const { return waiting_.size(); }

  [[nodiscard]] std::string_view name() const noexcept override { return "memory"; }
  [[nodiscard]] TierLimits limits() const noexcept override { return says; }
  std::size_t submit(TierOp op, std::span<const TierItem> items,
                     Deadline deadline) noexcept override {
    ++submits;
    broken_limits += usable ? 0 : 1;
    if (closed || !usable || draws(faults_.busy)) return 0;
    items = items.first(std::min(items.size(), queue_max - std::min(queue_max, waiting_.size())));
    for (const TierItem& item : items) {
      exists_asked += op == TierOp::kExists ? 1 : 0;
      loads_asked += op == TierOp::kLoad ? 1 : 0;
      stores_asked += op == TierOp::kStore ? 1 : 0;
      broken_limits += breaks(item) ? 1 : 0;
      unsigned wait = draws(faults_.late) ? 1 + static_cast<unsigned>(random_() % 20) : 0;
      if (draws(faults_.silent)) wait = ~0u;
      waiting_.push_back({op, item, wait, deadline.at_us});
    }
    return items.size();
  }
  std::size_t poll(std::uint64_t /*now_us*/, std::span<TierDone> done) noexcept override {
    ++polls;
    std::size_t n = 0;
    for (std::size_t i = 0; i < waiting_.size() && n + 1 < done.size();) {
      if (waiting_[i].wait > 0 && !closed) {
        waiting_[i].wait -= waiting_[i].wait != ~0u ? 1 : 0;
        ++i;
        continue;
      }
      const Waiting one = waiting_[i];
      waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
      const TierResult result = closed ? TierResult::kClosed : perform(one);
      done[n++] = {one.item.tag, result};
      if (draws(faults_.twice)) done[n++] = {one.item.tag, result};
    }
    return n;
  }
  [[nodiscard]] int event_fd() const noexcept override { return -1; }
  [[nodiscard]] TierHealth health() const noexcept override {
    return {.usable = usable, .corrupt_unasked = corrupt_unasked, .of_another_key = of_another_key};
  }
  Status close(Deadline /*deadline*/) noexcept override {
    closed = true;
    return {};
  }

 private:
  struct Waiting {
    TierOp op;
    TierItem item;
    unsigned wait;
    std::uint64_t deadline_us;
  };
  [[nodiscard]] bool breaks(const TierItem& item) const {
    const auto at = reinterpret_cast<std::uintptr_t>(item.data);
    return (says.record_bytes_max > 0 && item.bytes > says.record_bytes_max) ||
           at % static_cast<std::uintptr_t>(says.data_alignment) != 0;
  }
  bool draws(unsigned chance) { return chance > 0 && random_() % 1000 < chance; }

  TierResult perform(const Waiting& one) {
    const std::vector<std::byte> key(one.item.key.bytes.begin(), one.item.key.bytes.end());
    const auto found = records.find(key);
    const auto bytes = static_cast<std::size_t>(one.item.bytes);
    switch (one.op) {
      case TierOp::kExists:
        if (draws(faults_.lie)) return TierResult::kOk;
        return found != records.end() && !draws(faults_.miss) ? TierResult::kOk : TierResult::kMiss;
      case TierOp::kErase:
        records.erase(key);
        return TierResult::kOk;
      case TierOp::kStore:
        if (draws(faults_.io_error)) return TierResult::kIoError;
        records.try_emplace(key, one.item.data, one.item.data + bytes);
        return TierResult::kOk;
      case TierOp::kLoad:
        break;
    }
    if (draws(faults_.busy_loads)) return TierResult::kBusy;
    if (draws(faults_.lie)) return TierResult::kOk;
    if (draws(faults_.io_error)) return TierResult::kIoError;
    if (found == records.end() || draws(faults_.miss)) return TierResult::kMiss;
    if (found->second.size() != bytes) return TierResult::kCorrupt;
    return bring(one, found->second);
  }
  TierResult bring(const Waiting& one, const std::vector<std::byte>& record) {
    std::size_t bytes = record.size();
    if (draws(faults_.partial)) bytes = random_() % bytes;
    std::copy_n(record.begin(), bytes, one.item.data);
    if (draws(faults_.corrupt)) one.item.data[random_() % record.size()] ^= std::byte{4};
    if (draws(faults_.other)) {
      auto any = records.begin();
      std::advance(any, static_cast<std::ptrdiff_t>(random_() % records.size()));
      std::memcpy(one.item.data, any->second.data(), std::min(any->second.size(), record.size()));
    }
    return TierResult::kOk;
  }

  std::mt19937 random_;
  MemoryTierFaults faults_;
  std::vector<Waiting> waiting_;
};

}  // namespace kvfolio::test
