// SPDX-License-Identifier: Apache-2.0
#pragma once

// WaitingItems are loads or stores that were accepted and have not begun: first come, first served.
// Those whose deadline has passed, and those of one key, are found without a look at the others. A
// refusal of all that wait is remembered and carried out some at a time.
//
// Invariants: an item is in the line, in the heap of deadlines and in the chain of its key, or in
// none of them. Thread safety: none.

#include <cstdint>
#include <optional>
#include <vector>

#include "disk/chunked.h"
#include "kvfolio/tier.h"

namespace kvfolio::disk {

class WaitingItems {
 public:
  struct Waiting {
    TierItem item{};
    Deadline deadline{};
  };

  // `most`: items that may wait.
  explicit WaitingItems(std::size_t most);
  // False: no memory.
  [[nodiscard]] bool push(const TierItem& item, Deadline deadline) noexcept;
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  // Requires: not empty.
  [[nodiscard]] const Waiting& front() const noexcept { return slots_[first_].waiting; }
  Waiting take_front() noexcept { return take(first_); }
  // One whose deadline is before now.
  std::optional<Waiting> take_late(std::uint64_t now_us) noexcept;
  std::optional<Waiting> take(const TierKey& key) noexcept;
  // What waits now gets this answer.
  void refuse_all(TierResult result) noexcept;
  // One that is to be refused, until there is none.
  std::optional<Waiting> take_refused() noexcept;
  [[nodiscard]] TierResult refusal() const noexcept { return refusal_; }
  [[nodiscard]] bool refuses() const noexcept {
    return size_ > 0 && slots_[first_].number <= refused_;
  }
  // O(items).
  [[nodiscard]] bool check() const noexcept;

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  struct Slot {
    Waiting waiting{};
    std::uint64_t number = 0;  // in the order in which they came
    std::uint32_t before = kNone, after = kNone;
    std::uint32_t in_chain = kNone;  // the next of its chain
    std::uint32_t in_heap = 0;       // its place there
  };
  [[nodiscard]] std::uint32_t& chain_of(const TierKey& key) noexcept;
  Waiting take(std::uint32_t at) noexcept;
  [[nodiscard]] std::uint64_t due(std::size_t place) const noexcept {
    return slots_[heap_[place]].waiting.deadline.at_us;
  }
  void put(std::size_t place, std::uint32_t slot) noexcept;
  void move_up(std::size_t place) noexcept;
  void move_down(std::size_t place) noexcept;

  Chunked<Slot, 256> slots_;
  Chunked<std::uint32_t, 1024> heap_;  // of slots; the first size_ places
  std::vector<std::uint32_t> chains_;  // the first slot of each
  std::uint32_t first_ = kNone, last_ = kNone;
  std::uint32_t free_ = kNone;  // a list by Slot::after
  std::size_t size_ = 0;
  std::uint64_t last_number_ = 0, refused_ = 0;
  TierResult refusal_ = TierResult::kBusy;
};

}  // namespace kvfolio::disk
