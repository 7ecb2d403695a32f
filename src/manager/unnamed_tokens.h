// SPDX-License-Identifier: Apache-2.0
#pragma once

// UnnamedTokens counts the tokens that were appended by count, so that the host has yet to say
// which they are (set_tokens). It knows rows, steps and numbers of tokens; it knows no ids of
// tokens.
//
// The unnamed tokens of a sequence are numbered from 0 on in the order of their appends, and they
// get their names in that order. Those below `named` have one, or have lost their chance: their
// step ended first. The entry of each append says which numbers it has: [unnamed_begin,
// unnamed_begin + unnamed). So what waits for names are the numbers [named, appended). Invariant,
// see check(): all of these belong to entries of steps that have not ended.
//
// A fork's copies of unnamed tokens are named apart from its parent's: share() gives the child
// entries of its own in the steps in flight.
//
// Thread safety: none; const calls write nothing. Nothing allocates after allocate() but the text
// of an error.

#include <cstdint>

#include "kvfolio/fixed_array.h"
#include "kvfolio/status.h"
#include "manager/step_log.h"

namespace kvfolio {

class UnnamedTokens {
 public:
  // A sequence: its row, and the birth that tells it from earlier ones of that row.
  struct Owner {
    std::int32_t row;
    std::uint64_t birth;
  };

  // False: no memory.
  [[nodiscard]] bool allocate(std::int64_t rows) noexcept { return counts_.allocate_zeroed(rows); }

  // The sequence of the row is a new one, or a copy of another one with the same tokens.
  void begin(std::int32_t row) noexcept { counts_[row] = {}; }
  void become(std::int32_t row, std::int32_t other) noexcept { counts_[row] = counts_[other]; }

  [[nodiscard]] std::uint64_t num_appended(std::int32_t row) const noexcept {
    return counts_[row].appended;
  }
  [[nodiscard]] std::uint64_t num_waiting(std::int32_t row) const noexcept {
    return counts_[row].appended - counts_[row].named;
  }

  void append(std::int32_t row, std::int32_t num_tokens) noexcept {
    counts_[row].appended += static_cast<std::uint64_t>(num_tokens);
  }
  // The oldest that wait have names now. Requires: so many wait.
  void name(std::int32_t row, std::uint64_t num_tokens) noexcept {
    KVFOLIO_DCHECK(num_tokens <= num_waiting(row));
    counts_[row].named += num_tokens;
  }
  // The append of an entry is taken back.
  void undo(const StepEntry& entry) noexcept { forget_from(entry.row, entry.unnamed_begin); }
  // The step of an entry ended. Returns true if tokens of it lost their chance of a name.
  [[nodiscard]] bool end(const StepEntry& entry, bool failed) noexcept;
  // The tokens at `length` and behind are gone: those of steps in flight want no names any more,
  // and their entries must not count what comes in their place.
  void truncate(StepLog& steps, Owner owner, std::int32_t length) noexcept;
  // Gives a fork entries of its own in the parent's steps in flight. Requires: become().
  void share(StepLog& steps, Owner parent, Owner child) const noexcept;

  [[nodiscard]] MemoryUse memory() const noexcept { return MemoryUse::whole(counts_.bytes()); }
  // Becomes an equal of `other`. Requires: allocated alike.
  void copy_from(const UnnamedTokens& other) noexcept { counts_.copy_from(other.counts_); }
  // ok, or which rule is broken. `in_open_step`: unnamed tokens of its entry in the open step.
  [[nodiscard]] Status check(const StepLog& steps, Owner owner, std::int32_t in_open_step) const;

 private:
  struct Count {
    std::uint64_t appended;
    std::uint64_t named;
  };
  // The owner's entry in a committed step that has unnamed tokens, or -1.
  [[nodiscard]] static std::int32_t entry_in(const Step& step, Owner owner) noexcept {
    const std::int32_t at = step.latest_entry(owner.row);
    return at >= 0 && step.entries[at].birth == owner.birth ? at : -1;
  }
  void forget_from(std::int32_t row, std::uint64_t number) noexcept;

  FixedArray<Count> counts_;  // by row
};

}  // namespace kvfolio
