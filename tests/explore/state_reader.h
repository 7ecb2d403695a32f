// SPDX-License-Identifier: Apache-2.0
#pragma once

// What of a manager decides its future, in a form that equal futures share: physical blocks, runs
// and slots are named by where they are met first, tickets by their order, and of ended steps by
// nothing. Left out: generations, births, counters, ticks of uses (nothing here asks for a victim),
// which runs and arena words are free, and which table entries an engine was told of.
//
// For one full group and one root key.

#include <cstdint>
#include <vector>

#include "kvfolio/block_pool.h"
#include "kvfolio/manager.h"

namespace kvfolio {

// An entry of the prefix tree: the block holds the last tokens of a path.
struct FoundBlock {
  std::int32_t block;
  std::int32_t end;                  // tokens on the path
  std::vector<std::int32_t> tokens;  // of the path, `end` or more
};

struct StateReader {
  // Open sequences are named by slot, upwards or (swap) downwards: which it is makes no difference
  // to the future. `out` is cleared. Costs a walk over everything.
  static void write(const KVCacheManager& manager, bool swap, std::vector<std::int32_t>& out);
  // Open sequences in the order in which write() names them.
  static std::vector<SequenceId> open_order(const KVCacheManager& manager, bool swap);
  static std::vector<FoundBlock> findable(const KVCacheManager& manager);
  static BlockState block_state(const KVCacheManager& manager, BlockId block);
  // Its prompt was found whole, and its last token waits to be appended.
  static bool replays(const KVCacheManager& manager, SequenceId sequence);
  // It stands on the tree: there was always room for it.
  static bool publishes(const KVCacheManager& manager, SequenceId sequence);
  static bool has_pin(const KVCacheManager& manager);
  // Blocks that lie ready for the sequence's appends (reserve()).
  static std::vector<std::int32_t> ready(const KVCacheManager& manager, SequenceId sequence);
};

}  // namespace kvfolio
