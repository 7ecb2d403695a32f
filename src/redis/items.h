// SPDX-License-Identifier: Apache-2.0
#pragma once

// Items are what a RedisTier has accepted and not handed over: those that wait in a queue or are in
// flight, by id and by deadline, and those that are done. An item that ends leaves the queue where
// it waits, wherever it stands there, so no queue holds what has ended. Thread safety: none.

#include <cstdint>
#include <deque>
#include <list>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>

#include "kvfolio/status.h"
#include "kvfolio/tier.h"

namespace kvfolio::redis {

struct Lane;
struct Node;

class Items {
 public:
  using Id = std::uint64_t;
  using Queue = std::list<Id>;

  struct Item {
    TierOp op = TierOp::kExists;
    TierItem item{};
    int slot = 0;
    std::uint64_t deadline_us = 0;
    int sends = 0;
    Node* ask = nullptr;   // the next time it goes there, with ASKING
    Lane* lane = nullptr;  // in flight, as this question
    std::uint64_t question = 0;
    Queue* waits_in = nullptr;  // at `place`; only Items sets these
    Queue::iterator place{};
  };

  Id add(const Item& item);
  [[nodiscard]] bool contains(Id id) const { return items_.contains(id); }
  [[nodiscard]] Item& at(Id id) { return items_.at(id); }
  // What was accepted and is not handed over; what of that is not done.
  [[nodiscard]] std::size_t num_accepted() const noexcept { return items_.size() + done_.size(); }
  [[nodiscard]] bool empty() const noexcept { return items_.empty(); }
  [[nodiscard]] Id any() const { return items_.begin()->first; }
  [[nodiscard]] const std::unordered_map<Id, Item>& all() const noexcept { return items_; }

  // Requires: it waits in no queue. `queue` outlives that.
  void enqueue(Queue& queue, Id id);
  void leave_queue(Item& item) noexcept;

  // The item whose time is over first, if any's is.
  [[nodiscard]] std::optional<Id> overdue(std::uint64_t now_us) const;
  void finish(Id id, TierResult result);

  [[nodiscard]] bool has_done() const noexcept { return !done_.empty(); }
  std::size_t hand_over(std::span<TierDone> done);

  // `queues`: all in which items may wait. Returns ok, or says which rule is broken.
  [[nodiscard]] Status check(std::span<const Queue* const> queues) const;

 private:
  std::unordered_map<Id, Item> items_;
  std::set<std::pair<std::uint64_t, Id>> deadlines_;
  std::deque<TierDone> done_;
  Id last_id_ = 0;
};

}  // namespace kvfolio::redis
