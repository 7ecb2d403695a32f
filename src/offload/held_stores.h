// SPDX-License-Identifier: Apache-2.0
#pragma once

// HeldStores are the blocks that Offload took from the manager's list of what became findable, and
// may not store before release() (OffloadOptions::hold_stores). Each waits at its own place, so
// none keeps a block that may be stored waiting, and there are never more than the cache has
// blocks: a block that became findable anew takes the place of its earlier entry. Thread safety:
// none.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kvfolio/manager_types.h"
#include "kvfolio/spec.h"
#include "kvfolio/status.h"

namespace kvfolio {

class HeldStores {
 public:
  // Off: nothing is held.
  HeldStores() = default;
  explicit HeldStores(const std::vector<GroupSpec>& groups) {
    for (const GroupSpec& group : groups) {
      places_.emplace_back(static_cast<std::size_t>(group.num_blocks));
    }
  }
  [[nodiscard]] bool is_on() const noexcept { return !places_.empty(); }

  // Requires: is_on().
  void hold(const FindableBlock& block) noexcept {
    place(block.group.value(), block.block.value()) = block;
  }
  [[nodiscard]] bool holds(const FindableBlock& block) const noexcept {
    return is_on() && places_[static_cast<std::size_t>(block.group.value())]
                             [static_cast<std::size_t>(block.block.value())]
                                 .serial == block.serial;
  }

  // Lets go of all. Calls take(blocks) with those whose entry has its serial still,
  // `serial_of(group, block)`, or 0, in the order of their serials. Looks at each block. Requires:
  // is_on().
  template <typename SerialOf, typename Take>
  void release(const SerialOf& serial_of, const Take& take) {
    std::vector<FindableBlock> let_go;
    for (std::size_t g = 0; g < places_.size(); ++g) {
      for (std::size_t b = 0; b < places_[g].size(); ++b) {
        const std::uint64_t serial =
            serial_of(GroupId(static_cast<std::int32_t>(g)), BlockId(static_cast<std::int32_t>(b)));
        if (serial != 0 && places_[g][b].serial == serial) let_go.push_back(places_[g][b]);
      }
    }
    std::sort(let_go.begin(), let_go.end(),
              [](const auto& one, const auto& other) { return one.serial < other.serial; });
    take(let_go);
    for (std::vector<FindableBlock>& of : places_) std::fill(of.begin(), of.end(), FindableBlock{});
  }

  // ok, or which rule is broken. O(blocks).
  [[nodiscard]] Status check() const {
    for (std::size_t g = 0; g < places_.size(); ++g) {
      for (std::size_t b = 0; b < places_[g].size(); ++b) {
        const FindableBlock& block = places_[g][b];
        if (block.serial == 0) continue;
        if (static_cast<std::size_t>(block.group.value()) != g ||
            static_cast<std::size_t>(block.block.value()) != b) {
          return {ErrorCode::kAborted, "offload: a block is held at the place of another one"};
        }
      }
    }
    return {};
  }

 private:
  FindableBlock& place(std::int32_t group, std::int32_t block) noexcept {
    return places_[static_cast<std::size_t>(group)][static_cast<std::size_t>(block)];
  }

  std::vector<std::vector<FindableBlock>> places_;  // by group and block; serial 0: nothing
};

}  // namespace kvfolio
