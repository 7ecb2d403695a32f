// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the exploration reads of a manager beside its answers. What decides its future is the
// library's (manager/state.cc): here without the order of uses, since nothing here asks for a
// victim. For one full group and one root key.

#include <cstdint>
#include <vector>

#include "kvfolio/block_pool.h"
#include "kvfolio/manager.h"

namespace kvfolio::explore {

// An entry of the prefix tree: the block holds the last tokens of a path.
struct FoundBlock {
  std::int32_t block;
  std::int32_t end;                  // tokens on the path
  std::vector<std::int32_t> tokens;  // of the path, `end` of them
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

}  // namespace kvfolio::explore
