// SPDX-License-Identifier: Apache-2.0
#include "redis/items.h"

#include <algorithm>

#include "base/text.h"

namespace kvfolio::redis {

Items::Id Items::add(const Item& item) {
  KVFOLIO_DCHECK(item.waits_in == nullptr && item.lane == nullptr);
  const Id id = ++last_id_;
  deadlines_.emplace(item.deadline_us, id);
  items_.emplace(id, item);
  return id;
}

void Items::enqueue(Queue& queue, Id id) {
  Item& item = items_.at(id);
  KVFOLIO_CHECK(item.waits_in == nullptr && item.lane == nullptr);
  item.place = queue.insert(queue.end(), id);
  item.waits_in = &queue;
}

void Items::leave_queue(Item& item) noexcept {
  if (item.waits_in != nullptr) item.waits_in->erase(item.place);
  item.waits_in = nullptr;
}

std::optional<Items::Id> Items::overdue(std::uint64_t now_us) const {
  if (deadlines_.empty() || deadlines_.begin()->first > now_us) return std::nullopt;
  return deadlines_.begin()->second;
}

void Items::finish(Id id, TierResult result) {
  const auto found = items_.find(id);
  KVFOLIO_CHECK(found != items_.end());
  Item& item = found->second;
  leave_queue(item);
  done_.push_back({item.item.tag, result});
  const std::size_t left = deadlines_.erase({item.deadline_us, id});
  KVFOLIO_CHECK(left == 1);  // else it would be overdue for ever
  items_.erase(found);
}

std::size_t Items::hand_over(std::span<TierDone> done) {
  const std::size_t n = std::min(done.size(), done_.size());
  std::copy_n(done_.begin(), n, done.begin());
  done_.erase(done_.begin(), done_.begin() + static_cast<std::ptrdiff_t>(n));
  return n;
}

Status Items::check(std::span<const Queue* const> queues) const {
  const auto broken = [](const char* rule) {
    return Status(ErrorCode::kAborted, text::concat("redis tier: ", rule));
  };
  std::size_t waiting = 0;
  for (const Queue* queue : queues) {
    for (const Id id : *queue) {
      const auto found = items_.find(id);
      if (found == items_.end()) return broken("an item that has ended waits");
      const Item& item = found->second;
      if (item.waits_in != queue || *item.place != id) return broken("an item waits elsewhere");
      if (item.lane != nullptr) return broken("an item waits and is in flight");
      ++waiting;
    }
  }
  for (const auto& [id, item] : items_) {
    waiting -= item.waits_in != nullptr ? 1 : 0;
    if (!deadlines_.contains({item.deadline_us, id})) return broken("an item has no deadline");
    if (id > last_id_) return broken("an id is from the future");
  }
  if (waiting != 0) return broken("an item waits in a queue that is gone");
  if (deadlines_.size() != items_.size()) return broken("a deadline has no item");
  return {};
}

}  // namespace kvfolio::redis
