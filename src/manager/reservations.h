// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reservations keeps what reserve() promised to sequences: how many tokens are left of the promise,
// the blocks that lie ready for them, and which blocks of a sequence's tables it has for itself. It
// knows rows, groups and block ids; PromiseNeeds says how many blocks a promise needs.
//
// A block that lies ready has one reference, no writer and no place in any table. The blocks of a
// row and group form a list, linked through an array of all blocks, so that nothing is allocated
// and a block is in one list at most.
//
// A block is a row's *own* if the row has a promise and only this row's table holds the block. An
// own block comes back when the window passes it; when another comes to hold it too it is own no
// more, and the promise needs another block in its place. Where it stands in the table is kept with
// it: indices of a table never shift, and who asks for one block need not look at the others.
//
// Thread safety: none; const calls write nothing. Nothing allocates after allocate() but the text
// of an error.

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kvfolio/fixed_array.h"
#include "kvfolio/ids.h"
#include "kvfolio/spec.h"
#include "kvfolio/status.h"

namespace kvfolio {

class StateWriter;

class Reservations {
 public:
  static constexpr std::int32_t kNobody = -1;

  // False: no memory.
  [[nodiscard]] bool allocate(std::int64_t rows, std::span<const GroupSpec> groups);

  // ---- promises ----

  [[nodiscard]] std::int32_t num_rows() const noexcept { return num_rows_; }  // with a promise
  // Tokens that are still promised, and at most in a step.
  [[nodiscard]] std::int64_t tokens(std::int32_t row) const noexcept { return rows_[row].tokens; }
  [[nodiscard]] std::int64_t most_per_step(std::int32_t row) const noexcept {
    return rows_[row].most_per_step;
  }
  // Tokens of the promise that the open step has spent.
  [[nodiscard]] std::int64_t spent(std::int32_t row) const noexcept { return rows_[row].spent; }
  // A new promise, or a new total of one, for what is appended from position `begin` on. Requires:
  // num_tokens >= 1.
  void promise(std::int32_t row, std::int32_t begin, std::int64_t num_tokens,
               std::int64_t most_per_step) noexcept;
  // More was needed than there is, by what the promise does not cover: nothing is checked of it.
  void note_lack(std::int32_t row) noexcept { rows_[row].lacks = true; }
  [[nodiscard]] bool lacks(std::int32_t row) const noexcept { return rows_[row].lacks; }
  // Requires: the row has a promise; no block lies ready for it and none is its own.
  void end(std::int32_t row) noexcept;

  // An append in the open step, at position `begin`, used tokens of the promise; undo() takes that
  // back, and settle() says that the step was committed. `beyond`: tokens behind what is accepted
  // then, of which the promise covers most_per_step.
  void spend(std::int32_t row, std::int32_t begin, std::int64_t num_tokens,
             std::int64_t beyond) noexcept;
  void undo(std::int32_t row) noexcept;
  // From now on nothing is known of what promises were spent on. Requires: num_rows() == 0.
  void forget_spent() noexcept { keeps_spent_ = false; }
  void settle(std::int32_t row) noexcept;
  // The row ends at `length`. `again`: what was spent on the tokens behind is promised again.
  void cut(std::int32_t row, std::int32_t length, bool again) noexcept;
  // Tokens that cut() to this length would promise again.
  [[nodiscard]] std::int64_t spent_behind(std::int32_t row, std::int32_t length) const noexcept {
    return std::max(0, rows_[row].spent_end - std::max(rows_[row].spent_begin, length));
  }
  // The committed tokens for which the promise was spent, counted from `position` on: where in
  // front of it that began decides nothing for a sequence that is accepted up to there.
  struct Spent {
    std::int32_t begin;
    std::int32_t end;
  };
  [[nodiscard]] Spent spent_from(std::int32_t row, std::int32_t position) const noexcept {
    const Row& of = rows_[row];
    const std::int32_t end = of.spent_end - static_cast<std::int32_t>(of.spent);
    return {std::max(0, of.spent_begin - position), std::max(0, end - position)};
  }

  // ---- blocks that lie ready ----

  [[nodiscard]] std::int32_t num_ready(std::int32_t row, std::int32_t g) const noexcept {
    return at(row, g).ready;
  }
  [[nodiscard]] std::int32_t total_ready(std::int32_t g) const noexcept {
    return groups_[static_cast<std::size_t>(g)].ready;
  }
  void put(std::int32_t row, std::int32_t g, BlockId block) noexcept;
  // The one that was put last. Requires: num_ready() > 0.
  [[nodiscard]] BlockId take(std::int32_t row, std::int32_t g) noexcept;
  // The same for an append: untake() gives back that many.
  [[nodiscard]] BlockId take_for_step(std::int32_t row, std::int32_t g) noexcept {
    ++at(row, g).taken;
    return take(row, g);
  }
  [[nodiscard]] std::int32_t num_taken(std::int32_t row, std::int32_t g) const noexcept {
    return at(row, g).taken;
  }
  // Requires: num_taken() > 0.
  void untake(std::int32_t row, std::int32_t g, BlockId block) noexcept {
    --at(row, g).taken;
    put(row, g, block);
  }
  template <typename Visit>
  void for_each_ready(std::int32_t row, std::int32_t g, const Visit& visit) const {
    const Group& of = groups_[static_cast<std::size_t>(g)];
    for (std::int32_t b = at(row, g).first; b >= 0; b = of.next[b]) visit(BlockId(b));
  }

  // ---- own blocks ----

  [[nodiscard]] std::int32_t owner(std::int32_t g, BlockId block) const noexcept {
    return groups_[static_cast<std::size_t>(g)].owner[block.value()] - 1;
  }
  [[nodiscard]] std::int32_t num_own(std::int32_t row, std::int32_t g) const noexcept {
    return at(row, g).own;
  }
  // The logical block that it is of its owner. Requires: it has one.
  [[nodiscard]] std::int32_t logical(std::int32_t g, BlockId block) const noexcept {
    return groups_[static_cast<std::size_t>(g)].logical[block.value()];
  }
  // Requires: the block has no owner.
  void own(std::int32_t row, std::int32_t g, BlockId block, std::int32_t logical) noexcept;
  // It has no owner any more. Harmless if it had none.
  void disown(std::int32_t g, BlockId block) noexcept;

  [[nodiscard]] MemoryUse memory() const noexcept;
  // Becomes an equal of `other`. Requires: allocated alike.
  void copy_from(const Reservations& other) noexcept;
  // ok, or which rule is broken. O(rows and blocks).
  [[nodiscard]] Status check() const;
  // The promise of a row that is accepted up to `accepted`. Which of its blocks is taken first is a
  // matter of names.
  void put_state(StateWriter& out, std::int32_t row, std::int32_t accepted) const;

 private:
  struct Row {
    std::int64_t tokens;
    std::int64_t most_per_step;
    std::int64_t spent;  // in the open step
    // The tokens of the sequence for which the promise was spent, [spent_begin, spent_end): from
    // the promise on, as long as there was something left of it.
    std::int32_t spent_begin;
    std::int32_t spent_end;
    bool lacks;
  };
  struct List {
    std::int32_t first;  // kNobody: none
    std::int32_t ready;
    std::int32_t taken;  // by the open step
    std::int32_t own;
  };
  struct Group {
    FixedArray<std::int32_t> next;     // by block
    FixedArray<std::int32_t> owner;    // row + 1, by block
    FixedArray<std::int32_t> logical;  // by block, if it has an owner
    std::int32_t ready = 0;
  };
  [[nodiscard]] List& at(std::int32_t row, std::int32_t g) noexcept {
    return lists_[std::int64_t{row} * num_groups() + g];
  }
  [[nodiscard]] const List& at(std::int32_t row, std::int32_t g) const noexcept {
    return lists_[std::int64_t{row} * num_groups() + g];
  }
  [[nodiscard]] std::int32_t num_groups() const noexcept {
    return static_cast<std::int32_t>(groups_.size());
  }

  FixedArray<Row> rows_;
  FixedArray<List> lists_;  // [row][group]
  std::vector<Group> groups_;
  std::int32_t num_rows_ = 0;
  bool keeps_spent_ = true;  // of a manager, not of its state: copies leave it as it is
};

}  // namespace kvfolio
