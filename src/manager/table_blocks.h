// SPDX-License-Identifier: Apache-2.0
#pragma once

// TableBlocks puts blocks into the tables of sequences and takes them out: each entry is a
// reference, and whatever changes an entry says here where its reference goes. An append of the
// open step writes down what it did to the last block (TailChange), so that undo() can put that
// back. It has no state of its own; entries lie in Tables, references in Blocks, and Promises says
// which of them lie ready.
//
// Which blocks an append takes AppendRules has said before, and there is room for them.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvfolio/manager_types.h"
#include "manager/append_rules.h"
#include "manager/blocks.h"
#include "manager/borders.h"
#include "manager/group.h"
#include "manager/promises.h"
#include "manager/rows.h"
#include "manager/step_log.h"
#include "manager/tables.h"

namespace kvfolio {

class TableBlocks {
 public:
  // Requires: all of these outlive this. They may be empty still.
  TableBlocks(const Rows& rows, Tables& tables, const std::vector<Group>& groups,
              const StepLog& steps, Blocks& blocks, Promises& promises, Borders& borders,
              Order order) noexcept
      : rows_(rows),
        tables_(tables),
        groups_(groups),
        steps_(steps),
        blocks_(blocks),
        promises_(promises),
        borders_(borders),
        order_(order) {}

  // ---- a step ----

  // Gives the row the blocks for positions [write_begin, end) of a group, as the step's next entry.
  // Requires: what append_rules.h says it needs is free or ready, and the tables have room.
  void append(Step& step, std::int32_t row, std::int32_t g, std::int32_t write_begin,
              std::int32_t end, const Demand& needs) noexcept;
  // Takes back what append() did for the entry, in all groups.
  void undo(Step& step, std::int32_t entry) noexcept;
  // Window groups let go of what no later query of the row reads, and its border moves.
  void move_windows(std::int32_t row) noexcept;

  // ---- without a step ----

  // The entries from logical block `first` on are these: their references are the table's now. What
  // stood there is let go.
  void replace(std::int32_t row, std::int32_t g, std::int32_t first,
               std::span<const std::int32_t> entries) noexcept;
  // A hit of `held` tokens stands in the row's tables. A sequence that revives a tail without a
  // holder becomes its writer.
  void note_hit(std::int32_t row, std::int32_t held) noexcept;
  // Lets go of the entries [first, end), the last one first, and leaves holes. `length`: of the
  // sequence without them.
  void drop(std::int32_t row, std::int32_t g, std::int32_t first, std::int32_t end,
            std::int32_t length) noexcept;
  // Lets go of the blocks beyond n tokens, tails first.
  void truncate(std::int32_t row, std::int32_t n) noexcept;
  // Lets go of all blocks; the tables stay as they are until they are released.
  void let_go(std::int32_t row) noexcept;

 private:
  [[nodiscard]] std::int32_t num_groups() const noexcept {
    return static_cast<std::int32_t>(groups_.size());
  }
  [[nodiscard]] const Group& group(std::int32_t g) const noexcept {
    return groups_[static_cast<std::size_t>(g)];
  }
  [[nodiscard]] BlockTable& table(std::int32_t row, std::int32_t g) noexcept {
    return tables_.of(row, g);
  }
  [[nodiscard]] SpanArena& arena() noexcept { return tables_.arena(); }
  void undo(Step& step, std::int32_t entry, std::int32_t g) noexcept;
  void undo_tail(const StepEntry& e, std::int32_t g, const TailChange& tail,
                 std::int32_t from_pool) noexcept;

  const Rows& rows_;
  Tables& tables_;
  const std::vector<Group>& groups_;
  const StepLog& steps_;
  Blocks& blocks_;
  Promises& promises_;
  Borders& borders_;
  const Order order_;
};

}  // namespace kvfolio
