// SPDX-License-Identifier: Apache-2.0
#pragma once

// Promises: appends that are never short of blocks. reserve() promises tokens to a sequence;
// PromiseNeeds says how many blocks have to lie ready for them, Reservations keeps these blocks,
// and Promises lets them come and go.
//
// Each append uses as many blocks as both bounds fall by; so what lies ready stays enough. When
// another sequence or a pin comes to hold an own block, that block will not come back: another one
// takes its place at once, or the call that shares it fails, or is a miss.
//
// Blocks that an append takes, an undo gives back, or a table lets go of pass through here, whether
// their sequence has a promise or not: what a promise keeps is given and taken here alone. What
// comes to hold blocks that exist (a hit, a fork, a pin, a load) shares them: share().
//
// Thread safety: none; const calls write nothing. Nothing allocates after allocate().

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kvfolio/ids.h"
#include "kvfolio/manager_types.h"
#include "kvfolio/spec.h"
#include "kvfolio/status.h"
#include "manager/blocks.h"
#include "manager/group.h"
#include "manager/promise_needs.h"
#include "manager/reservations.h"
#include "manager/room.h"
#include "manager/rows.h"
#include "manager/sequence.h"
#include "manager/step_log.h"
#include "manager/tables.h"

namespace kvfolio {

// What blocks of the cache are, before a call comes to hold them: how many, those that nothing else
// will hold then or that a step may read, those that count as room or as retiring now, what it
// costs their owners that they are shared, and the last one.
struct Revived {
  std::int32_t blocks = 0;
  std::int32_t alone = 0;
  std::int32_t cached = 0;
  std::int32_t retiring = 0;
  std::int32_t cost = 0;
  BlockId last{};
};

class Promises {
 public:
  // Requires: all of these outlive this. They may be empty still.
  Promises(Rows& rows, const Tables& tables, const std::vector<Group>& groups, const StepLog& steps,
           Blocks& blocks, Order order) noexcept
      : rows_(rows),
        tables_(tables),
        groups_(groups),
        steps_(steps),
        blocks_(blocks),
        order_(order),
        needs_(rows, tables, groups, steps, reservations_, order) {}
  Promises(const Promises&) = delete;
  Promises& operator=(const Promises&) = delete;

  // False: no memory.
  [[nodiscard]] bool allocate(std::int64_t rows, std::span<const GroupSpec> groups) {
    return reservations_.allocate(rows, groups);
  }

  [[nodiscard]] const Reservations& reservations() const noexcept { return reservations_; }
  [[nodiscard]] const PromiseNeeds& needs() const noexcept { return needs_; }
  [[nodiscard]] bool any() const noexcept { return reservations_.num_rows() > 0; }
  [[nodiscard]] bool has(std::int32_t row) const noexcept { return rows_[row].has_promise; }
  // Tokens that are promised still.
  [[nodiscard]] std::int64_t tokens(std::int32_t row) const noexcept {
    return has(row) ? reservations_.tokens(row) : 0;
  }
  // Blocks that lie ready for the row.
  [[nodiscard]] std::int32_t num_ready(std::int32_t row, std::int32_t g) const noexcept {
    return has(row) ? reservations_.num_ready(row, g) : 0;
  }

  // For replays: what a promise was spent on stays spent, whatever becomes of drafts. Requires:
  // there is no promise.
  void forget_spent() noexcept { reservations_.forget_spent(); }

  // ---- promising ----

  // What a promise would take. Nothing is changed.
  struct Offer {
    std::int64_t num_tokens;
    std::int64_t most_per_step;
    std::array<std::int32_t, kMaxGroups> ready;  // blocks that have to lie ready then
    // How many fewer they were if nothing else held what the row's table has.
    std::array<std::int32_t, kMaxGroups> spared;
    Room::Plan room;
  };
  // Requires: most_per_step is not 0 if there are tokens.
  [[nodiscard]] Offer offer(std::int32_t row, std::int64_t num_tokens,
                            std::int64_t most_per_step) const noexcept;
  // Requires: offer.room.fits(), and nothing has changed since.
  void promise(std::int32_t row, const Offer& offer) noexcept;
  // The row's promise ends; what lay ready is let go. Harmless if it has none.
  void end(std::int32_t row) noexcept;

  // ---- a step ----

  // An append in the open step, at position `begin`, used tokens of the promise.
  void spend(std::int32_t row, std::int32_t begin, std::int32_t num_tokens) noexcept {
    if (!has(row)) return;
    reservations_.spend(row, begin, num_tokens, begin + num_tokens - rows_[row].accepted);
  }
  // It was undone, and its blocks are back already.
  void undo(std::int32_t row) noexcept;
  // The step was committed.
  void settle(const Step& step, std::int32_t entry) noexcept {
    if (has(step.entries[entry].row)) settle_promise(step, entry);
  }
  // The row is about to be cut back to `length`. With `again`, since drafts were rejected, what was
  // spent on the tokens behind is promised again; else it stays spent.
  void cut(std::int32_t row, std::int32_t length, bool again) noexcept {
    if (has(row)) reservations_.cut(row, length, again);
  }
  // Gives back the blocks that lie ready and that the promise does not need any more. A promise
  // whose last token is spent ends once nothing of it can come back.
  void return_surplus(std::int32_t row) noexcept {
    if (has(row)) return_ready(row);
  }

  // ---- blocks of a table ----

  // A block for the row, which puts it in its table as number `logical`. `from_ready`: how many of
  // the next ones lie ready.
  [[nodiscard]] BlockId acquire(std::int32_t row, std::int32_t g, std::int32_t logical,
                                std::int32_t& from_ready) noexcept {
    return has(row) ? acquire_own(row, g, logical, from_ready) : blocks_.acquire(g);
  }
  // For undo(): a block that the open step took and wrote nothing to; those that it took last come
  // first. `from_pool`: how many of these did not lie ready, which num_from_pool() says when the
  // step took `num_taken`.
  [[nodiscard]] std::int32_t num_from_pool(std::int32_t row, std::int32_t g,
                                           std::int32_t num_taken) const noexcept {
    return has(row) ? num_taken - reservations_.num_taken(row, g) : 0;
  }
  void give_back(std::int32_t row, std::int32_t g, BlockId block, std::int32_t& from_pool) noexcept;
  // For undo(): a block of the row that the append reused lies ready: it was own, and the promise
  // counted on it. Requires: the row has a promise.
  void set_aside_reused(std::int32_t row, std::int32_t g, BlockId block) noexcept;
  // The block is no own one of this row any more.
  void disown(std::int32_t row, std::int32_t g, BlockId block) noexcept {
    if (has(row)) reservations_.disown(g, block);
  }
  // The references of table entries [first, end), the last one first; the table stays as it is.
  // `length`: of the sequence without them.
  void let_go(std::int32_t row, std::int32_t g, std::int32_t first, std::int32_t end,
              std::int32_t length) noexcept;

  // ---- sharing ----

  // Blocks that must come to lie ready for the owner if this one gets another holder.
  [[nodiscard]] std::int32_t cost_of_sharing(std::int32_t g, BlockId block) const noexcept {
    return needs_.cost_of_sharing(g, block);
  }
  void count_revived(std::int32_t g, BlockId block, Revived& revived) const noexcept;
  // Room for what it costs that the blocks of these tables, by group, get another holder.
  [[nodiscard]] Room::Plan plan_sharing(
      std::span<const std::span<const std::int32_t>> tables) const noexcept;
  // The same of the row's tables.
  [[nodiscard]] Room::Plan plan_sharing(std::int32_t row) const noexcept;
  // The blocks get one more holder. for_each_table(visit) calls visit(g, blocks) for each table of
  // the call. All of them are held before anything makes room for what that costs those who own
  // some: what is shared must not leave for that. Requires: there was room, which was counted
  // before the call, as admit() does: so all of it is taken.
  template <typename ForEachTable>
  void share(const ForEachTable& for_each_table) noexcept {
    for_each_table([this](std::int32_t g, std::span<const std::int32_t> b) { blocks_.hold(g, b); });
    if (!any()) return;
    for_each_table(
        [this](std::int32_t g, std::span<const std::int32_t> b) { pay_for_sharing(g, b); });
  }

  // For a mutant: takes what lies ready for others.
  void rob(const Room::Needs& needs) noexcept;

  // Becomes an equal of `other`. Requires: allocated alike.
  void copy_from(const Promises& other) noexcept { reservations_.copy_from(other.reservations_); }
  [[nodiscard]] MemoryUse memory() const noexcept { return reservations_.memory(); }
  // ok, or which rule is broken: each promise has what it needs, and owns what it says. O(rows and
  // blocks).
  [[nodiscard]] Status check() const;

 private:
  [[nodiscard]] std::int32_t num_groups() const noexcept {
    return static_cast<std::int32_t>(groups_.size());
  }
  [[nodiscard]] std::span<const std::int32_t> table(std::int32_t row,
                                                    std::int32_t g) const noexcept {
    return tables_.of(row, g).blocks(tables_.arena());
  }
  // Calls visit(block, logical) for the blocks that the sequence holds alone: its own from now on,
  // if it gets a promise.
  template <typename Visit>
  void for_each_to_own(std::int32_t row, std::int32_t g, const Visit& visit) const {
    std::int32_t logical = -1;
    for (const std::int32_t b : table(row, g)) {
      ++logical;
      const BlockId block(b);
      if (b < 0 || !blocks_.is_alone(g, block) || reservations_.owner(g, block) >= 0) continue;
      visit(block, logical);
    }
  }
  [[nodiscard]] BlockId acquire_own(std::int32_t row, std::int32_t g, std::int32_t logical,
                                    std::int32_t& from_ready) noexcept;
  void top_up(std::int32_t row, std::int32_t g, std::int32_t needed) noexcept;
  void let_ready_go(std::int32_t row, std::int32_t g, std::int32_t needed) noexcept;
  void set_aside(std::int32_t row, std::int32_t g, std::int32_t first, std::int32_t end,
                 std::int32_t length) noexcept;
  // Nothing is left of the promise, and no draft that is rejected brings something of it back.
  [[nodiscard]] bool is_spent(std::int32_t row) const noexcept {
    return reservations_.tokens(row) == 0 &&
           reservations_.spent_behind(row, rows_[row].accepted) == 0;
  }
  void settle_promise(const Step& step, std::int32_t entry) noexcept;
  void return_ready(std::int32_t row) noexcept;
  void pay_for_sharing(std::int32_t g, std::span<const std::int32_t> blocks) noexcept;
  [[nodiscard]] Status check_row(std::int32_t row, std::int32_t g) const;

  Rows& rows_;
  const Tables& tables_;
  const std::vector<Group>& groups_;
  const StepLog& steps_;
  Blocks& blocks_;
  const Order order_;

  Reservations reservations_;
  PromiseNeeds needs_;
};

}  // namespace kvfolio
