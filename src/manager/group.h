// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a manager knows of a group of layers, and the arithmetic of its blocks. A value.

#include <cstdint>

#include "base/block_size.h"
#include "kvfolio/group_rule.h"
#include "kvfolio/spec.h"

namespace kvfolio {

struct Group {
  GroupSpec spec;
  GroupRule rule;
  std::int64_t bytes_per_block;
  BlockSize size;

  // The group lets blocks go while their sequence runs.
  [[nodiscard]] bool windowed() const noexcept { return !rule.keeps_all(); }
  // A sequence of `accepted` tokens gives back what lies between the sinks and this position. Only
  // what it has computed itself is kept for truncate(): open() and loads bring no more than what
  // the next position reads.
  [[nodiscard]] std::int32_t keep_from(std::int32_t accepted) const noexcept {
    return rule.keep_from(accepted > spec.rewind ? accepted - spec.rewind : 0);
  }
  // The logical block of a position, and how many hold so many tokens.
  [[nodiscard]] std::int32_t block_of(std::int32_t position) const noexcept {
    return size.block_of(position);
  }
  [[nodiscard]] std::int32_t blocks_for(std::int32_t tokens) const noexcept {
    return block_of(tokens + spec.block_size - 1);
  }
};

}  // namespace kvfolio
