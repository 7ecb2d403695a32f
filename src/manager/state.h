// SPDX-License-Identifier: Apache-2.0
#pragma once

// What of a manager decides its future, word by word, in a form that equal futures share: physical
// blocks, runs and rows are named by where they are met first, tickets by their order, and of ended
// steps nothing is said. Roots come in the order of their keys, children of a run in that of their
// tokens.
//
// Left out is what is a matter of names alone (numbers of blocks, rows and ids, generations, and
// which free one is taken next), and what is history: counters, serials, ticks of uses beyond their
// order, which table entries an engine was told of, and which words of arenas are free.

#include <cstdint>
#include <span>
#include <vector>

#include "base/hash.h"
#include "kvfolio/manager.h"

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

struct StateReader {
  // kWithoutUses: what only a victim policy asks for is left out, and what only names a sequence.
  enum class Extent : std::int8_t { kAll, kWithoutUses };

  // `open`: the rows of the open sequences, in the order in which they are named. Costs a walk over
  // everything. Requires: no load or hold is open. kOutOfMemory: the tables of names.
  static Status write(const KVCacheManager& manager, std::span<const std::int32_t> open,
                      Extent extent, StateWords& words);
  // By last use, the oldest first: an order that does not depend on names.
  static Result<std::uint64_t> hash(const KVCacheManager& manager);

 protected:
  class Writer;
  static const auto& impl(const KVCacheManager& manager) noexcept { return *manager.impl_; }
};

}  // namespace kvfolio
