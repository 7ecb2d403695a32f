// SPDX-License-Identifier: Apache-2.0
#pragma once

// LoadedKeys remembers which blocks were loaded until the manager lists them as findable: tiers
// have their records. Some blocks never become findable, so at most so many are remembered, and the
// oldest is the first to go. Keys of what was forgotten go in the same way: no block gets them
// again. Thread safety: none.

#include <cstddef>
#include <list>
#include <unordered_map>

#include "kvfolio/tier.h"
#include "tiers/key_spread.h"

namespace kvfolio {

class LoadedKeys {
 public:
  static constexpr std::size_t kMost = std::size_t{1} << 16;

  LoadedKeys() = default;
  LoadedKeys(const LoadedKeys&) = delete;
  LoadedKeys& operator=(const LoadedKeys&) = delete;

  // It is the newest now.
  void add(const TierKey& key) {
    const auto [place, is_new] = places_.try_emplace(key);
    if (!is_new) order_.erase(place->second);
    place->second = order_.insert(order_.end(), &place->first);
    if (order_.size() > kMost) take(*order_.front());
  }
  // True: it was there.
  bool take(const TierKey& key) {
    const auto place = places_.find(key);
    if (place == places_.end()) return false;
    order_.erase(place->second);
    places_.erase(place);
    return true;
  }
  void clear() noexcept {
    order_.clear();
    places_.clear();
  }

 private:
  using Order = std::list<const TierKey*>;  // the oldest first
  Order order_;
  std::unordered_map<TierKey, Order::iterator, TierKeyHash> places_;
};

}  // namespace kvfolio
