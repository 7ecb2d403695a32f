// SPDX-License-Identifier: Apache-2.0
#pragma once

// LoadBlocks says which blocks a load needs and where they come from, and how far a load stands
// once bytes have arrived. It fills the tables of Transfers, which owns the loads; loads.cc has the
// calls.
//
// A load takes whole blocks. A block that the sequence's last token lies in is taken anew, since
// the owner of the load copies all of its tokens, and replaces the sequence's block at the end.
// What the cache has is held and not loaded: as much of it as all groups serve becomes the
// sequence's at once, like a hit; a block behind that joins the load's table. The blocks that the
// load waits for are those in its table without a valid token.

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvfolio/block_table.h"
#include "kvfolio/ids.h"
#include "kvfolio/prefix_tree.h"
#include "kvfolio/spec.h"
#include "manager/blocks.h"
#include "manager/group.h"
#include "manager/promises.h"
#include "manager/room.h"
#include "manager/rows.h"
#include "manager/tables.h"
#include "manager/transfers.h"

namespace kvfolio {

// What the cache has for a load, and the blocks that it adds to those of the sequence.
struct LoadPlan {
  std::int32_t load = Transfers::kNone;
  std::int32_t end = 0;
  PrefixMatch hit;                            // behind the sequence's length, or nothing
  std::int32_t begin = 0;                     // the sequence's length with it
  std::array<BlockTable, kMaxGroups> hits{};  // of the hit, from the block of the length on
  Room::Needs fresh;                          // blocks to write
  Transfers::Prompt prompt;
};

class LoadBlocks {
 public:
  // Bits in the bytes of loadable().
  static constexpr std::uint8_t kInTier = 1;
  static constexpr std::uint8_t kPresent = 2;

  // Requires: all of these outlive this. They may be empty still.
  LoadBlocks(const Rows& rows, Tables& tables, const std::vector<Group>& groups,
             const std::optional<PrefixTree>& tree, Transfers& transfers, Blocks& blocks,
             Promises& promises) noexcept
      : rows_(rows),
        tables_(tables),
        groups_(groups),
        tree_(tree),
        transfers_(transfers),
        blocks_(blocks),
        promises_(promises) {}

  // Position `end` reads something of this logical block.
  [[nodiscard]] bool is_read_at(std::int32_t end, std::int32_t g,
                                std::int32_t logical) const noexcept;

  // ---- planning ----

  // Makes the spans of a load and fills its table with the blocks that the cache has; counts the
  // others. The last block may reach behind the load's end, so the whole prompt is looked for.
  // False: no room for the spans, of which some may be there. Requires: load, end, hit and begin of
  // the plan.
  [[nodiscard]] bool lay_out(std::int32_t row, std::span<const std::int32_t> prompt,
                             std::span<const MediaSpan> media, LoadPlan& plan) noexcept;
  // The blocks of the cache that a load would hold, hits and others.
  [[nodiscard]] Revived revived_by(const LoadPlan& plan, std::int32_t g) const noexcept;
  // The plan's spans, and the load's, go back.
  void drop(LoadPlan& plan) noexcept;

  // ---- taking and giving back ----

  // Holds what the cache has, hits and others, of all groups. Requires: there is room for the plan.
  void hold(const LoadPlan& plan) noexcept;
  // Takes fresh blocks for the rest. Requires: hold() of the plan.
  void take(const LoadPlan& plan) noexcept;
  // What did not arrive is free; what the cache had goes back there.
  void let_go(std::int32_t load) noexcept;

  // ---- how far ----

  // Up to where all groups have what they need, if the load's tokens in front of `end` are good.
  [[nodiscard]] std::int32_t stands_to(std::int32_t load, std::int32_t end,
                                       std::span<const MediaSpan> media) const noexcept;
  // Marks in `has` what is there without a tier: of the sequence, of the hit that ends at `begin`,
  // and whole blocks of the cache.
  void mark_present(std::int32_t row, std::span<const std::int32_t> prompt,
                    std::span<const MediaSpan> media, std::int32_t begin, std::int32_t g,
                    std::span<std::uint8_t> has) const noexcept;

 private:
  [[nodiscard]] const Group& group(std::int32_t g) const noexcept {
    return groups_[static_cast<std::size_t>(g)];
  }
  [[nodiscard]] std::int32_t num_groups() const noexcept {
    return static_cast<std::int32_t>(groups_.size());
  }
  [[nodiscard]] SpanArena& arena() const noexcept { return tables_.arena(); }

  const Rows& rows_;
  Tables& tables_;
  const std::vector<Group>& groups_;
  const std::optional<PrefixTree>& tree_;
  Transfers& transfers_;
  Blocks& blocks_;
  Promises& promises_;
};

}  // namespace kvfolio
