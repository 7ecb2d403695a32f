// SPDX-License-Identifier: Apache-2.0
#pragma once

// SlowTier: a tier in memory that takes a time for each record, one after another, in the time that
// poll() is given; or whose loads or stores hang. It keeps deadlines as a real one does: what it
// has not begun by then is kTimeout, what it has begun goes on. For tests. Thread safety: none.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <vector>

#include "kvfolio/tier.h"

namespace kvfolio::test {

class SlowTier final : public Tier {
 public:
  std::map<std::vector<std::byte>, std::vector<std::byte>> records;  // by the bytes of the key
  std::uint64_t record_us = 0;                                       // that each takes
  bool loads_hang = false, stores_hang = false;
  bool stores_are_busy = false;     // each is answered with kBusy
  bool questions_time_out = false;  // at their deadline
  std::uint64_t exists_asked = 0, loads_asked = 0, stores_asked = 0;
  std::uint64_t now_us = 0;  // of the last poll()

  [[nodiscard]] std::size_t in_flight() const { return queue_.size() + hung_.size(); }

  [[nodiscard]] std::string_view name() const noexcept override { return "slow"; }
  [[nodiscard]] TierLimits limits() const noexcept override { return {}; }
  std::size_t submit(TierOp op, std::span<const TierItem> items,
                     Deadline deadline) noexcept override {
    if (closed_) return 0;
    for (const TierItem& item : items) {
      exists_asked += op == TierOp::kExists ? 1 : 0;
      loads_asked += op == TierOp::kLoad ? 1 : 0;
      stores_asked += op == TierOp::kStore ? 1 : 0;
      queue_.push_back({op, item, deadline.at_us});
    }
    return items.size();
  }
  std::size_t poll(std::uint64_t at_us, std::span<TierDone> done) noexcept override {
    now_us = at_us;
    std::size_t n = 0;
    for (; closed_ && n < done.size() && !hung_.empty(); hung_.pop_front()) {
      done[n++] = {hung_.front().item.tag, TierResult::kClosed};
    }
    while (n < done.size() && !queue_.empty()) {
      const Waiting one = queue_.front();
      const bool has_data = one.op == TierOp::kLoad || one.op == TierOp::kStore;
      const bool hangs = one.op == TierOp::kLoad    ? loads_hang
                         : one.op == TierOp::kStore ? stores_hang
                                                    : false;
      if (hangs && !closed_) {
        hung_.push_back(one);
        queue_.pop_front();
        continue;
      }
      if (one.op == TierOp::kExists && questions_time_out && at_us < one.deadline_us) break;
      if (!closed_ && !one.begun && at_us >= one.deadline_us) {
        done[n++] = {one.item.tag, TierResult::kTimeout};
        queue_.pop_front();
        continue;
      }
      if (has_data && !closed_ && !stores_are_busy) {
        if (!one.begun) {
          queue_.front().begun = true;
          queue_.front().ready_us = std::max(free_us_, at_us) + record_us;
          free_us_ = queue_.front().ready_us;
        }
        if (at_us < queue_.front().ready_us) {
          expire(done, n);
          break;
        }
      }
      done[n++] = {one.item.tag, closed_ ? TierResult::kClosed : perform(one)};
      queue_.pop_front();
    }
    return n;
  }
  // All that hangs goes on.
  void wake() {
    loads_hang = stores_hang = false;
    queue_.insert(queue_.begin(), hung_.begin(), hung_.end());
    for (Waiting& one : queue_) one.begun = one.begun || one.deadline_us <= now_us;
    hung_.clear();
  }
  [[nodiscard]] int event_fd() const noexcept override { return -1; }
  [[nodiscard]] TierHealth health() const noexcept override { return {.usable = !closed_}; }
  Status close(Deadline /*deadline*/) noexcept override {
    closed_ = true;
    return {};
  }

 private:
  struct Waiting {
    TierOp op;
    TierItem item;
    std::uint64_t deadline_us;
    bool begun = false;
    std::uint64_t ready_us = 0;
  };
  // Behind the one that is being worked at.
  void expire(std::span<TierDone> done, std::size_t& n) {
    std::erase_if(queue_, [&](const Waiting& one) {
      if (one.begun || n == done.size() || now_us < one.deadline_us) return false;
      done[n++] = {one.item.tag, TierResult::kTimeout};
      return true;
    });
  }
  TierResult perform(const Waiting& one) {
    const std::vector<std::byte> key(one.item.key.bytes.begin(), one.item.key.bytes.end());
    const auto found = records.find(key);
    switch (one.op) {
      case TierOp::kStore:
        if (stores_are_busy) return TierResult::kBusy;
        records.try_emplace(key, one.item.data, one.item.data + one.item.bytes);
        return TierResult::kOk;
      case TierOp::kErase:
        records.erase(key);
        return TierResult::kOk;
      case TierOp::kExists:
      case TierOp::kLoad:
        break;
    }
    if (found == records.end()) return TierResult::kMiss;
    if (one.op == TierOp::kLoad) {
      std::memcpy(one.item.data, found->second.data(), found->second.size());
    }
    return TierResult::kOk;
  }

  std::deque<Waiting> queue_, hung_;
  std::uint64_t free_us_ = 0;
  bool closed_ = false;
};

}  // namespace kvfolio::test
