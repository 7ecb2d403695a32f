// SPDX-License-Identifier: Apache-2.0
#pragma once

// PromiseNeeds says how many blocks have to lie ready for what reserve() promised to a sequence,
// and how many more when one of its own blocks gets another holder. It reads sequences, their
// tables, the open step and Reservations, and changes nothing. It has no state of its own.
//
// Blocks that an append takes do not come back before the sequence lets go of them. So a promise of
// n tokens needs the blocks that n more tokens fill. A window group needs less: once the window and
// one step lie in own blocks, each block that it passes is used again, without leaving the
// sequence. Under kUnordered a step in flight may still read such a block, so there is no second
// bound. The tail may have to be copied, once, if others hold it: that counts among the blocks to
// fill, and the copy is one of the window's.

#include <cstdint>
#include <vector>

#include "kvfolio/ids.h"
#include "kvfolio/manager_types.h"
#include "manager/group.h"
#include "manager/reservations.h"
#include "manager/rows.h"
#include "manager/step_log.h"
#include "manager/tables.h"

namespace kvfolio {

// What decides how many blocks a promise needs: the tokens that are promised, in all and at most in
// a step; the length, how many blocks are the sequence's own, and whether the tail is one of them.
struct PromiseState {
  std::int64_t tokens;
  std::int64_t most_per_step;
  std::int32_t length;
  std::int32_t own;
  bool owns_tail;
};

class PromiseNeeds {
 public:
  // Requires: all five outlive this. They may be empty still.
  PromiseNeeds(const Rows& rows, const Tables& tables, const std::vector<Group>& groups,
               const StepLog& steps, const Reservations& reservations, Order order) noexcept
      : rows_(rows),
        tables_(tables),
        groups_(groups),
        steps_(steps),
        reservations_(reservations),
        order_(order) {}

  // No block has to be copied before the row appends at `length`.
  [[nodiscard]] bool owns_tail(std::int32_t row, std::int32_t g,
                               std::int32_t length) const noexcept;
  // The state of a row with a promise, if it were `length` tokens long.
  [[nodiscard]] PromiseState state(std::int32_t row, std::int32_t g,
                                   std::int32_t length) const noexcept;
  // Blocks that have to lie ready for the tokens that are promised.
  [[nodiscard]] std::int32_t ready_for(std::int32_t g, const PromiseState& at) const noexcept;
  // The same of a row with a promise, as it is.
  [[nodiscard]] std::int32_t ready_for(std::int32_t row, std::int32_t g) const noexcept {
    return ready_for(g, state(row, g, rows_[row].length));
  }
  // Blocks that must come to lie ready for the owner if this one gets another holder: one, in place
  // of an own block that its window would bring back, or for a copy of its tail. 0 if the block has
  // no owner, or is no block.
  [[nodiscard]] std::int32_t cost_of_sharing(std::int32_t g, BlockId block) const noexcept {
    if (!block.valid()) return 0;
    const std::int32_t owner = reservations_.owner(g, block);
    return owner >= 0 && needs_another(owner, g, block) ? 1 : 0;
  }

 private:
  [[nodiscard]] const Group& group(std::int32_t g) const noexcept {
    return groups_[static_cast<std::size_t>(g)];
  }
  [[nodiscard]] BlockId block_at(std::int32_t row, std::int32_t g,
                                 std::int32_t position) const noexcept {
    return tables_.of(row, g).at(tables_.arena(), group(g).block_of(position));
  }
  // Blocks that the window passes are used again.
  [[nodiscard]] bool come_back(std::int32_t g) const noexcept {
    return group(g).windowed() && order_ == Order::kInOrder;
  }
  // The owner of the block, once another holds it too. O(1).
  [[nodiscard]] bool needs_another(std::int32_t owner, std::int32_t g,
                                   BlockId block) const noexcept;
  [[nodiscard]] bool is_tail_of(std::int32_t row, std::int32_t g, BlockId block) const noexcept;

  const Rows& rows_;
  const Tables& tables_;
  const std::vector<Group>& groups_;
  const StepLog& steps_;
  const Reservations& reservations_;
  const Order order_;
};

}  // namespace kvfolio
