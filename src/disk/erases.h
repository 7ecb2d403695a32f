// SPDX-License-Identifier: Apache-2.0
#pragma once

// Erases are the kErase that were accepted, each until all that it found is gone. One that is late
// is found without a look at the others. Thread safety: none.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "kvfolio/status.h"
#include "kvfolio/tier.h"

namespace kvfolio::disk {

class Erases {
 public:
  struct Erase {
    std::uint64_t tag = 0;
    Deadline deadline{};
    std::int64_t left = 0;  // targets
    TierResult result = TierResult::kOk;
  };

  // Its number, which no other gets. It waits for one target: end_target() ends that. Throws
  // std::bad_alloc, and nothing has changed.
  std::uint64_t add(std::uint64_t tag, Deadline deadline) {
    const std::uint64_t number = last_ + 1;
    const auto due = due_.emplace(deadline.at_us, number).first;
    try {
      by_number_.emplace(number, Erase{.tag = tag, .deadline = deadline, .left = 1});
    } catch (const std::bad_alloc&) {
      due_.erase(due);
      throw;
    }
    return last_ = number;
  }
  // Requires: it is there.
  void add_target(std::uint64_t number) { ++by_number_.at(number).left; }
  void failed(std::uint64_t number, TierResult result) {
    if (const auto at = by_number_.find(number); at != by_number_.end()) at->second.result = result;
  }
  // The erase, if that was the last target. Nothing for one that is gone.
  std::optional<Erase> end_target(std::uint64_t number) {
    const auto at = by_number_.find(number);
    if (at == by_number_.end()) return {};
    KVFOLIO_CHECK(at->second.left > 0);
    if (--at->second.left > 0) return {};
    return take(at);
  }
  std::optional<Erase> take_late(std::uint64_t now_us) {
    if (due_.empty() || due_.begin()->first >= now_us) return {};
    return take(by_number_.find(due_.begin()->second));
  }
  std::optional<Erase> take_any() {
    if (by_number_.empty()) return {};
    return take(by_number_.begin());
  }
  [[nodiscard]] std::size_t size() const noexcept { return by_number_.size(); }
  [[nodiscard]] bool check() const {
    if (due_.size() != by_number_.size()) return false;
    for (const auto& [number, erase] : by_number_) {
      if (erase.left <= 0 || due_.count({erase.deadline.at_us, number}) != 1) return false;
    }
    return true;
  }

 private:
  std::optional<Erase> take(std::map<std::uint64_t, Erase>::iterator at) {
    const Erase erase = at->second;
    const std::size_t gone = due_.erase({erase.deadline.at_us, at->first});
    KVFOLIO_CHECK(gone == 1);
    by_number_.erase(at);
    return erase;
  }

  std::map<std::uint64_t, Erase> by_number_;
  std::set<std::pair<std::uint64_t, std::uint64_t>> due_;  // deadline, number
  std::uint64_t last_ = 0;
};

}  // namespace kvfolio::disk
