// SPDX-License-Identifier: Apache-2.0
#pragma once

// Drafts knows which committed tokens of a sequence accept() has yet to decide on: stretches, one
// for each append, the oldest first. It knows rows and positions; it knows no steps, since accept()
// comes before or after complete(), which ends what a step log knows.
//
// An append whose last tokens are guesses is undecided, and so is each append behind it, guesses or
// not: it assumes that all before stand. The oldest stretch is decided first. Where all of its
// guesses stand, the sequence is accepted up to the next guess; where one does not, nothing behind
// it stands.
//
// Invariants, see check(): stretches are not empty and follow each other without gaps to the
// sequence's length; the oldest has guesses, and the sequence is accepted up to the first of them.
//
// Thread safety: none; const calls write nothing. Nothing allocates after allocate() but the text
// of an error.

#include <cstddef>
#include <cstdint>
#include <span>

#include "kvfolio/fixed_array.h"
#include "kvfolio/status.h"

namespace kvfolio {

class Drafts {
 public:
  // The tokens [begin, end) of an append, the last `draft` of them guesses.
  struct Stretch {
    std::int32_t begin;
    std::int32_t end;
    std::int32_t draft;
  };

  // `most`: stretches of a row. False: no memory.
  [[nodiscard]] bool allocate(std::int64_t rows, std::int32_t most) noexcept {
    most_ = most;
    return counts_.allocate_zeroed(rows) && stretches_.allocate_zeroed(rows * most);
  }

  // Nothing of the row is undecided, of whatever sequence.
  void clear(std::int32_t row) noexcept { counts_[row] = 0; }

  [[nodiscard]] std::int32_t num(std::int32_t row) const noexcept { return counts_[row]; }
  [[nodiscard]] bool has_room(std::int32_t row) const noexcept { return counts_[row] < most_; }
  // Those of the row, the oldest first.
  [[nodiscard]] std::span<const Stretch> stretches(std::int32_t row) const noexcept {
    return {of(row), static_cast<std::size_t>(counts_[row])};
  }
  // Guesses that accept() decides on next.
  [[nodiscard]] std::int32_t next(std::int32_t row) const noexcept {
    return counts_[row] > 0 ? of(row)[0].draft : 0;
  }

  // An append was committed. Requires: has_room(); it has guesses, or something is undecided.
  void add(std::int32_t row, const Stretch& stretch) noexcept;
  // All guesses of the oldest stretch stand. Returns up to where the sequence is accepted now.
  // Requires: num() > 0.
  [[nodiscard]] std::int32_t accept(std::int32_t row) noexcept;
  // The sequence ends at `length`, which is not below what is accepted. What loses all its guesses
  // is decided, unless it stands behind others.
  void cut(std::int32_t row, std::int32_t length) noexcept;

  // Becomes an equal of `other`. Requires: allocated alike.
  void copy_from(const Drafts& other) noexcept;
  [[nodiscard]] MemoryUse memory() const noexcept {
    return MemoryUse::whole(counts_.bytes() + stretches_.bytes());
  }
  // ok, or which rule is broken, for a sequence of `length` committed tokens.
  [[nodiscard]] Status check(std::int32_t row, std::int32_t accepted, std::int32_t length) const;

 private:
  [[nodiscard]] Stretch* of(std::int32_t row) noexcept {
    return &stretches_[std::int64_t{row} * most_];
  }
  [[nodiscard]] const Stretch* of(std::int32_t row) const noexcept {
    return &stretches_[std::int64_t{row} * most_];
  }

  std::int32_t most_ = 0;
  FixedArray<std::int32_t> counts_;  // by row
  FixedArray<Stretch> stretches_;    // [row][most_]
};

}  // namespace kvfolio
