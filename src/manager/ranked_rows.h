// SPDX-License-Identifier: Apache-2.0
#pragma once

// RankedRows are the sequences as Victims sees them, ranked by one policy: which may go, in which
// order, and whose end would free a block. It reads, and is made for one search.

#include <cstdint>
#include <limits>
#include <span>

#include "kvfolio/ids.h"
#include "kvfolio/manager_types.h"
#include "manager/blocks.h"
#include "manager/promises.h"
#include "manager/rows.h"
#include "manager/sequence.h"
#include "manager/tables.h"
#include "manager/victims.h"

namespace kvfolio {

struct RankedRows {
  const Rows& rows;
  const Tables& tables;
  const Blocks& blocks;
  const Promises& promises;
  const Victims& victims;
  std::int32_t num_groups;
  VictimPolicy policy;

  [[nodiscard]] std::span<const std::int32_t> open() const noexcept { return rows.open(); }
  // The smallest goes first.
  [[nodiscard]] std::uint64_t rank(std::int32_t row) const noexcept {
    switch (policy) {
      case VictimPolicy::kLru:
        return victims.last_use(row);
      case VictimPolicy::kLfu:
        return victims.use_count(row);
      case VictimPolicy::kLongest:
        return ~static_cast<std::uint64_t>(rows[row].length);
      case VictimPolicy::kLowestPriority:
        return static_cast<std::uint64_t>(std::int64_t{rows.details(row).priority} -
                                          std::numeric_limits<std::int32_t>::min());
    }
    return 0;
  }
  [[nodiscard]] VictimName name(std::int32_t row) const noexcept {
    const Sequence& s = rows[row];
    if (s.has_caller_id) return {false, rows.details(row).caller_id};
    return {true, rows.id_of(s).value()};
  }
  [[nodiscard]] bool may_go(std::int32_t row) const noexcept { return rows[row].step_entry < 0; }
  [[nodiscard]] bool frees_a_block(std::int32_t row) const noexcept {
    for (std::int32_t g = 0; g < num_groups; ++g) {
      if (promises.num_ready(row, g) > 0) return true;
      const auto held = tables.of(row, g).blocks(tables.arena());
      // From the end: what a sequence has alone is its newest.
      for (std::size_t i = held.size(); i-- > 0;) {
        if (held[i] >= 0 && blocks.pool(g).refs(BlockId(held[i])) == 1) return true;
      }
    }
    return false;
  }
  [[nodiscard]] bool shares_a_block(std::int32_t row) const noexcept {
    for (std::int32_t g = 0; g < num_groups; ++g) {
      for (const std::int32_t block : tables.of(row, g).blocks(tables.arena())) {
        if (block >= 0 && blocks.pool(g).refs(BlockId(block)) > 1) return true;
      }
    }
    return false;
  }
};

}  // namespace kvfolio
