// SPDX-License-Identifier: Apache-2.0
#pragma once

// Ops are what tiers were asked and have not answered yet, each by a tag that no other gets. One is
// added, then the tier takes it (began) or does not (drop); it stays until the tier that was asked
// says how it ended (take). Stores are watched too, in the order of their deadlines, which is that
// of their tags.
//
// Invariants, see check(): what is in flight is counted by kind; every store is watched until it is
// overdue. Thread safety: none.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>

#include "kvfolio/host_arena.h"
#include "kvfolio/offload.h"
#include "kvfolio/status.h"
#include "kvfolio/tier.h"
#include "offload/request.h"

namespace kvfolio {

// What a tier was asked to do. A load whose record does not arrive any more is given up: its slot
// is quarantined until the tier says that it does not touch it. A store that is overdue keeps its
// pin as long.
struct TierAsked {
  TierOp kind = TierOp::kExists;
  std::int32_t tier = 0;
  TierKey key{};
  std::uint64_t request = 0;    // kExists
  Request::Piece piece{};       // kExists
  std::int32_t part_begin = 0;  // kExists: of the request
  std::int64_t bytes = 0;       // kLoad, kStore
  ArenaSlot slot{};             // kLoad
  bool given_up = false;        // kLoad
  bool overdue = false;         // kStore
  bool is_probe = false;        // it is not waited for
  std::uint64_t since_us = 0;
  std::uint64_t deadline_us = 0;
  ArenaPin pin{};                   // kStore
  int tries = 0;                    // kStore, as TierPort::Waiting
  std::uint64_t stores_before = 0;  // kStore: that the tier had done when it began
};

class Ops {
 public:
  // Returns its tag. The tier has not taken it yet.
  std::uint64_t add(TierAsked op);
  // The tier took it.
  void began(std::uint64_t tag, std::uint64_t deadline_us);
  // The tier did not. Requires: not began().
  void drop(std::uint64_t tag) noexcept { ops_.erase(tag); }
  // The tier has ended it. Nothing if it was not asked that: another tier's work only that tier can
  // report, since its memory may still be in use.
  [[nodiscard]] std::optional<TierAsked> take(std::uint64_t tag, std::int32_t tier);
  // In a child of fork(), what is in flight is the parent's.
  void clear() noexcept;

  // Requires: it is there.
  [[nodiscard]] TierAsked& at(std::uint64_t tag) { return ops_.at(tag); }
  [[nodiscard]] const TierAsked& at(std::uint64_t tag) const { return ops_.at(tag); }
  // The tag that add() gave last.
  [[nodiscard]] std::uint64_t last_tag() const noexcept { return last_tag_; }
  [[nodiscard]] std::ptrdiff_t size() const noexcept { return std::ssize(ops_); }
  // By kind; `blocks` is not set.
  [[nodiscard]] const OffloadLeft& in_flight() const noexcept { return in_flight_; }
  // Tiers read or write memory of the arena.
  [[nodiscard]] bool touch_memory() const noexcept {
    return in_flight_.loads + in_flight_.stores > 0;
  }
  // Calls visit(tag, op) for each, in no order.
  template <typename Visit>
  void for_each(const Visit& visit) {
    for (auto& [tag, op] : ops_) visit(tag, op);
  }
  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (const auto& [tag, op] : ops_) visit(tag, op);
  }

  // ---- stores that are watched ----

  [[nodiscard]] bool has_watched() const noexcept { return !watched_.empty(); }
  // The one that is late first; it may have ended. Requires: has_watched().
  [[nodiscard]] std::uint64_t first_watched() const noexcept { return watched_.front(); }
  // nullptr: it has ended.
  [[nodiscard]] TierAsked* watched() noexcept;
  // It is watched no more: it has ended, or is overdue. Requires: has_watched().
  void unwatch() noexcept { watched_.pop_front(); }

  // O(ops). Requires: each was taken by its tier.
  [[nodiscard]] Status check() const;

 private:
  [[nodiscard]] static std::int64_t& count_of(OffloadLeft& in, TierOp kind) noexcept {
    return kind == TierOp::kLoad ? in.loads : kind == TierOp::kStore ? in.stores : in.questions;
  }

  std::unordered_map<std::uint64_t, TierAsked> ops_;  // by tag
  std::uint64_t last_tag_ = 0;
  std::deque<std::uint64_t> watched_;  // tags of stores; some have ended
  OffloadLeft in_flight_;
};

}  // namespace kvfolio
