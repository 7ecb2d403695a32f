// SPDX-License-Identifier: Apache-2.0
#include "offload/ops.h"

#include <algorithm>
#include <utility>

#include "base/text.h"

namespace kvfolio {

std::uint64_t Ops::add(TierAsked op) {
  ops_.emplace(++last_tag_, std::move(op));
  return last_tag_;
}

void Ops::began(std::uint64_t tag, std::uint64_t deadline_us) {
  TierAsked& op = ops_.at(tag);
  op.deadline_us = deadline_us;
  ++count_of(in_flight_, op.kind);
  if (op.kind == TierOp::kStore) watched_.push_back(tag);
}

std::optional<TierAsked> Ops::take(std::uint64_t tag, std::int32_t tier) {
  const auto found = ops_.find(tag);
  if (found == ops_.end() || found->second.tier != tier) return {};
  TierAsked op = std::move(found->second);
  ops_.erase(found);
  std::int64_t& count = count_of(in_flight_, op.kind);
  KVFOLIO_CHECK(count > 0);
  --count;
  return op;
}

void Ops::clear() noexcept {
  ops_.clear();
  watched_.clear();
  in_flight_ = {};
}

TierAsked* Ops::watched() noexcept {
  const auto found = ops_.find(watched_.front());
  return found == ops_.end() ? nullptr : &found->second;
}

Status Ops::check() const {
  const auto broken = [](const std::string& what) {
    return Status(ErrorCode::kAborted, "offload: " + what);
  };
  OffloadLeft seen;
  std::int64_t in_time = 0;
  for (const auto& [tag, op] : ops_) {
    ++count_of(seen, op.kind);
    if (tag == 0 || tag > last_tag_) return broken("a tag was never given out");
    if (op.kind == TierOp::kStore && !op.overdue) ++in_time;
  }
  if (seen.loads != in_flight_.loads || seen.stores != in_flight_.stores ||
      seen.questions != in_flight_.questions) {
    return broken(text::concat(seen.loads, " loads, ", seen.stores, " stores and ", seen.questions,
                               " questions, counted ", in_flight_.loads, ", ", in_flight_.stores,
                               " and ", in_flight_.questions));
  }
  if (!std::is_sorted(watched_.begin(), watched_.end())) {
    return broken("stores are watched out of order");
  }
  for (const std::uint64_t tag : watched_) {
    const auto op = ops_.find(tag);
    if (op == ops_.end()) continue;
    if (op->second.kind != TierOp::kStore || op->second.overdue) {
      return broken("what is watched is no store in time");
    }
    --in_time;
  }
  return in_time == 0 ? Status() : broken("a store is not watched");
}

}  // namespace kvfolio
