// SPDX-License-Identifier: Apache-2.0
#pragma once

// UnnamedTokens knows where the tokens are that were appended by count and that the host has not
// named yet (set_tokens). It knows rows, steps and positions; it knows no ids of tokens.
//
// The tokens of a sequence that wait for names lie in stretches: ranges of positions, ascending,
// with other tokens between them. A decode loop has one stretch. Names go to the oldest ones, at
// the front. A token waits until it has a name, is truncated or undone, or loses its chance: with
// its step (end()), or not before the sequence closes if it has late names.
//
// The entry of an append says how many tokens it brought without names, from its begin on. A fork's
// copies of unnamed tokens are named apart from its parent's: share() gives the child entries of
// its own in the steps in flight.
//
// Invariants, see check(): stretches are not empty, ascending and not adjacent; without late names,
// each waiting token belongs to an entry of a step that has not ended.
//
// Thread safety: none; const calls write nothing. Nothing allocates after allocate() but the text
// of an error.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "kvfolio/fixed_array.h"
#include "kvfolio/status.h"
#include "manager/step_log.h"

namespace kvfolio {

class UnnamedTokens {
 public:
  // No position of any sequence.
  static constexpr std::int32_t kNone = std::numeric_limits<std::int32_t>::max();

  // A sequence: its row, and the birth that tells it from earlier ones of that row.
  struct Owner {
    std::int32_t row;
    std::uint64_t birth;
  };
  struct Stretch {
    std::int32_t begin;
    std::int32_t end;
  };

  // Without late names, tokens wait in the steps in flight and in the open one only, so that they
  // never have more than half as many stretches. False: no memory.
  [[nodiscard]] bool allocate(std::int64_t rows, std::int32_t most_in_flight) noexcept {
    most_stretches_ = std::max(8, (most_in_flight + 2) / 2);
    return counts_.allocate_zeroed(rows) && stretches_.allocate_zeroed(rows * most_stretches_);
  }
  [[nodiscard]] std::int32_t most_stretches() const noexcept { return most_stretches_; }

  // The sequence of the row is a new one, or a copy of another one with the same tokens.
  void begin(std::int32_t row) noexcept { counts_[row] = {}; }
  void become(std::int32_t row, std::int32_t other) noexcept;

  [[nodiscard]] std::int32_t num_waiting(std::int32_t row) const noexcept {
    return counts_[row].tokens;
  }
  // The position of the oldest one, or kNone.
  [[nodiscard]] std::int32_t first(std::int32_t row) const noexcept {
    return counts_[row].stretches > 0 ? of(row)[0].begin : kNone;
  }
  // There is room for tokens at `position`, behind all others.
  [[nodiscard]] bool has_room(std::int32_t row, std::int32_t position) const noexcept {
    const std::int32_t n = counts_[row].stretches;
    return n < most_stretches_ || of(row)[n - 1].end == position;
  }
  // Requires: has_room(row, begin).
  void append(std::int32_t row, std::int32_t begin, std::int32_t num_tokens) noexcept;
  // The oldest get names: calls visit(first position, how many) for each range of them, in order.
  // Requires: so many wait.
  template <typename Visit>
  void name(std::int32_t row, std::int32_t num_tokens, const Visit& visit) noexcept {
    KVFOLIO_DCHECK(num_tokens <= num_waiting(row));
    while (num_tokens > 0) {
      const Stretch front = of(row)[0];
      const std::int32_t count = std::min(num_tokens, front.end - front.begin);
      visit(front.begin, count);
      drop_below(row, front.begin + count);
      num_tokens -= count;
    }
  }
  // Those at `position` and behind it are gone.
  void cut(std::int32_t row, std::int32_t position) noexcept;
  // The step of an entry ended, and what waits of it has lost its chance. Returns true if that is
  // any token. After a failure, later tokens are gone too.
  [[nodiscard]] bool end(const StepEntry& entry, bool failed) noexcept;
  // cut(), also of the entries in flight, which must not count what comes in place of the tokens.
  void truncate(StepLog& steps, Owner owner, std::int32_t length) noexcept;
  // Gives a fork entries of its own in the parent's steps in flight. Requires: become().
  static void share(StepLog& steps, Owner parent, Owner child) noexcept;

  // Those of the row, in order.
  [[nodiscard]] std::span<const Stretch> stretches(std::int32_t row) const noexcept {
    return {of(row), static_cast<std::size_t>(counts_[row].stretches)};
  }
  [[nodiscard]] MemoryUse memory() const noexcept {
    return MemoryUse::whole(counts_.bytes() + stretches_.bytes());
  }
  // Becomes an equal of `other`. Requires: allocated alike.
  void copy_from(const UnnamedTokens& other) noexcept;
  // ok, or which rule is broken. `in_open_step`: unnamed tokens of its entry in the open step.
  [[nodiscard]] Status check(const StepLog& steps, Owner owner, bool has_late_names,
                             std::int32_t in_open_step) const;

 private:
  struct Count {
    std::int32_t tokens;
    std::int32_t stretches;
  };
  // The owner's entry in a committed step that has unnamed tokens, or -1.
  [[nodiscard]] static std::int32_t entry_in(const Step& step, Owner owner) noexcept {
    const std::int32_t at = step.latest_entry(owner.row);
    return at >= 0 && step.entries[at].birth == owner.birth ? at : -1;
  }
  [[nodiscard]] Stretch* of(std::int32_t row) noexcept {
    return &stretches_[std::int64_t{row} * most_stretches_];
  }
  [[nodiscard]] const Stretch* of(std::int32_t row) const noexcept {
    return &stretches_[std::int64_t{row} * most_stretches_];
  }
  void drop_below(std::int32_t row, std::int32_t position) noexcept;

  std::int32_t most_stretches_ = 0;
  FixedArray<Count> counts_;       // by row: how many wait, and in how many stretches
  FixedArray<Stretch> stretches_;  // [row][most_stretches_]
};

}  // namespace kvfolio
