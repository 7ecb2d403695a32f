// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the nouns of a manager write their state to, word by word, in a form that equal futures
// share: physical blocks, runs and rows are named by where they are met first, tickets by their
// order. What counts and what does not is said in manager/state.cc.

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/hash.h"
#include "kvfolio/fixed_array.h"
#include "kvfolio/spec.h"

namespace kvfolio {

class StateWords {
 public:
  // `copy`, if not null, gets the low half of each word: tests compare and show them.
  explicit StateWords(std::vector<std::int32_t>* copy = nullptr) noexcept : copy_(copy) {}

  template <typename T>
  void put(T value) {
    const auto word = static_cast<std::uint64_t>(value);
    hash_ = spread_bits(hash_ ^ word);
    if (copy_ != nullptr) copy_->push_back(static_cast<std::int32_t>(word));
  }
  [[nodiscard]] std::uint64_t hash() const noexcept { return hash_; }

 private:
  std::vector<std::int32_t>* copy_;
  std::uint64_t hash_ = 0;
};

// Things get names 0, 1, 2, ... when they are met first.
class StateNames {
 public:
  [[nodiscard]] bool allocate(std::int64_t size) noexcept {
    return names_.allocate_zeroed(size) && met_.allocate_zeroed(size);
  }
  // The name of -1, which means that there is none, is -1.
  std::int32_t of(std::int64_t id) noexcept {
    if (id < 0) return -1;
    std::int32_t& name = names_[id];
    if (name == 0) {
      met_[size_] = static_cast<std::int32_t>(id);
      name = ++size_;
    }
    return name - 1;
  }
  // The same for what was met before; else -2.
  [[nodiscard]] std::int32_t peek(std::int64_t id) const noexcept {
    if (id < 0) return -1;
    return names_[id] == 0 ? -2 : names_[id] - 1;
  }
  [[nodiscard]] std::int32_t size() const noexcept { return size_; }
  // The id that has this name.
  [[nodiscard]] std::int32_t met(std::int32_t name) const noexcept { return met_[name]; }

 private:
  FixedArray<std::int32_t> names_;  // + 1
  FixedArray<std::int32_t> met_;
  std::int32_t size_ = 0;
};

class StateWriter {
 public:
  // kWithoutUses: what only a victim policy asks for is left out, and what only names a sequence.
  enum class Extent : std::int8_t { kAll, kWithoutUses };

  StateWriter(StateWords& words, Extent extent) noexcept
      : all_(extent == Extent::kAll), words_(words) {}

  template <typename T>
  void put(T value) {
    words_.put(static_cast<std::int64_t>(value));
  }

  template <typename Place>
  void put_place(const Place& place) {
    put(place.valid() ? runs_.of(place.run) : -1);
    put(place.position);
  }
  void put_table(std::int32_t g, std::span<const std::int32_t> table) {
    put(table.size());
    for (const std::int32_t block : table) put(name_of(g, block));
  }

  // ---- blocks, by number among those of all groups ----

  // In the order of the groups.
  void add_group(std::int32_t num_blocks) noexcept {
    first_[index(num_groups_ + 1)] = first_[index(num_groups_)] + num_blocks;
    ++num_groups_;
  }
  [[nodiscard]] std::int64_t num_blocks() const noexcept { return first_[index(num_groups_)]; }
  [[nodiscard]] std::int64_t number_of(std::int32_t g, std::int32_t block) const noexcept {
    return block < 0 ? -1 : first_[index(g)] + block;
  }
  std::int32_t name_of(std::int32_t g, std::int32_t block) noexcept {
    return blocks_.of(number_of(g, block));
  }
  [[nodiscard]] std::int32_t group_of(std::int32_t number) const noexcept {
    std::int32_t g = num_groups_ - 1;
    while (first_[index(g)] > number) --g;
    return g;
  }
  [[nodiscard]] std::int32_t block_of(std::int32_t number) const noexcept {
    return static_cast<std::int32_t>(number - first_[index(group_of(number))]);
  }

  // ---- tickets ----

  // In their order, the open one last; `last`: the newest that was ever given.
  void add_ticket(std::uint64_t ticket) noexcept { tickets_[index(num_tickets_++)] = ticket; }
  void set_last_ticket(std::uint64_t last) noexcept { last_ticket_ = last; }
  // Tickets decide by which steps in flight, and which open one, they name or come after.
  [[nodiscard]] std::int32_t rank(std::uint64_t ticket) const noexcept {
    std::int32_t rank = 1;
    for (std::int32_t i = 0; i < num_tickets_; ++i) {
      const std::uint64_t each = tickets_[index(i)];
      if (each <= ticket) rank += each == ticket ? 1 : 2;
    }
    return rank;
  }
  // The rank of the newest ticket with these low bits.
  [[nodiscard]] std::int32_t rank_of_low(std::uint32_t low) const noexcept {
    const std::uint64_t ticket = (last_ticket_ & ~std::uint64_t{0xffffffff}) | low;
    return rank(ticket > last_ticket_ ? 0 : ticket);
  }

  // Uses are told apart by their order.
  [[nodiscard]] std::int64_t rank_of_use(std::uint64_t tick) const noexcept {
    return std::lower_bound(uses_.data(), uses_.data() + num_uses_, tick) - uses_.data();
  }

  const bool all_;
  StateNames blocks_;
  StateNames runs_;
  StateNames rows_;
  FixedArray<std::uint64_t> uses_;  // sorted
  std::int64_t num_uses_ = 0;

 private:
  [[nodiscard]] static std::size_t index(std::int32_t i) noexcept {
    return static_cast<std::size_t>(i);
  }

  StateWords& words_;
  std::int32_t num_groups_ = 0;
  std::array<std::int64_t, kMaxGroups + 1> first_{};  // by group: the number of its first block
  std::array<std::uint64_t, 65> tickets_{};           // 64 in flight and the open one
  std::int32_t num_tickets_ = 0;
  std::uint64_t last_ticket_ = 0;
};

}  // namespace kvfolio
