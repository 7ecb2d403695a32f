// SPDX-License-Identifier: Apache-2.0
#pragma once

// BlockMap is a picture of a pool as text, one character for each block: '.' free, '-' cached (no
// user, findable), a letter for the request that holds it alone, '#' for a block that several
// sequences hold. It remembers the moment of a run at which sharing saved the most blocks.
//
// Thread safety: none.

#include <cstdint>
#include <string>
#include <vector>

#include "kvfolio/ids.h"
#include "scheduler.h"

namespace kvfolio {
class KVCacheManager;
}

namespace kvfolio::llama {

class BlockMap {
 public:
  // Looks at the pools after a step and keeps the picture if it beats the one before.
  // O(blocks + entries of all tables).
  void look(const KVCacheManager& manager, const Scheduler& scheduler);

  // Rows of `columns` blocks and a legend; empty before the first look.
  [[nodiscard]] std::string text(std::int32_t columns = 72) const;

 private:
  struct Group {
    std::string cells;                 // by block
    std::int64_t entries = 0;          // of all tables
    std::int64_t blocks = 0;           // that those entries name
    std::int32_t most_references = 0;  // of one block
  };

  [[nodiscard]] Group draw(const KVCacheManager& manager, const Scheduler& scheduler,
                           GroupId group) const;

  std::vector<Group> groups_;
  std::int64_t saved_ = -1;  // blocks, in the picture
  std::int32_t sequences_ = 0;
};

}  // namespace kvfolio::llama
