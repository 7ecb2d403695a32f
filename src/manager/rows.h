// SPDX-License-Identifier: Apache-2.0
#pragma once

// Rows keeps the sequences of a manager. A sequence has one row for its whole life; engines index
// device arrays with it, and its id is made of it (packed_id.h).
//
// A row goes through these states:
//   free      the next sequence may get it
//   open      in the list of the open ones, from take() until leave_open()
//   closing   kUnordered: closed, and waits for its last step; in the list of the closing ones
//   resting   kUnordered: without a sequence, but a step that is not complete reads its tables
// Between leave_open() or the list of the closing ones and end(), the verbs take apart what the
// sequence holds. Rows knows nothing of that, nor of steps.
//
// Invariants, see check(): each row is in exactly one of the four lists, and an id that was given
// out names nothing else later, until the generations of its row have gone round.
//
// Thread safety: none; const calls write nothing. Nothing allocates after allocate().

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/packed_id.h"
#include "kvfolio/fixed_array.h"
#include "kvfolio/ids.h"
#include "kvfolio/prefetch.h"
#include "kvfolio/status.h"
#include "manager/sequence.h"

namespace kvfolio {

class Rows {
 public:
  static constexpr std::int32_t kNone = -1;

  // At most `max_open` of these rows are open at a time; ids get this tag. False: no memory.
  [[nodiscard]] bool allocate(std::int32_t num_rows, std::int32_t max_open,
                              std::uint16_t tag) noexcept;

  [[nodiscard]] std::int32_t size() const noexcept {
    return static_cast<std::int32_t>(rows_.size());
  }
  Sequence& operator[](std::int32_t row) noexcept { return rows_[row]; }
  const Sequence& operator[](std::int32_t row) const noexcept { return rows_[row]; }
  SequenceDetails& details(std::int32_t row) noexcept { return details_[row]; }
  const SequenceDetails& details(std::int32_t row) const noexcept { return details_[row]; }
  // Asks for all of a sequence ahead of time.
  void prefetch(std::int32_t row) const noexcept {
    prefetch_to_write(&rows_[row]);
    const auto* line = reinterpret_cast<const char*>(&details_[row]);
    for (std::size_t i = 0; i < sizeof(SequenceDetails); i += 64) prefetch_to_write(line + i);
  }
  [[nodiscard]] std::int32_t row_of(const Sequence& s) const noexcept {
    return static_cast<std::int32_t>(&s - rows_.data());
  }

  // ---- ids ----

  [[nodiscard]] SequenceId id_of(const Sequence& s) const noexcept {
    return SequenceId(PackedId{tag_, s.generation, row_of(s)}.bits());
  }
  // The row of the open sequence that the id names, or kNone.
  [[nodiscard]] std::int32_t find(SequenceId id) const noexcept {
    const std::int32_t row = PackedId::row_of(id.value());
    if (row >= size()) return kNone;
    const Sequence& s = rows_[row];
    return s.life == Sequence::Life::kOpen && id_of(s) == id ? row : kNone;
  }
  // fail() closed the sequence of this id, and no later one of its row.
  [[nodiscard]] bool was_aborted(SequenceId id) const noexcept;

  // ---- the life of a row ----

  // take() finds a row.
  [[nodiscard]] bool has_room() const noexcept {
    return num_open_ < max_open_ && first_free_ != kNone;
  }
  // Opens a sequence, with a birth that no other one of this manager has. kNone: `max_open` are
  // open, or no row is free.
  [[nodiscard]] std::int32_t take() noexcept;
  // The sequence becomes like another one, but keeps its id, its birth and its place in lists.
  void copy_sequence(std::int32_t from, std::int32_t to) noexcept;
  // Requires: the row is open. Then end() or close_later().
  void leave_open(std::int32_t row) noexcept;
  void close_later(std::int32_t row) noexcept;
  // Requires: the row is closing. Then end().
  void leave_closing(std::int32_t row) noexcept;
  // The sequence is no more: its id names nothing from here on. Then free() or rest().
  void end(std::int32_t row, bool aborted) noexcept;
  void free(std::int32_t row) noexcept;
  void rest(std::int32_t row) noexcept { resting_[num_resting_++] = row; }
  // The next sequence of the row gets the id of the one that ended last: it was never returned.
  // Requires: the row is free.
  void give_id_again(std::int32_t row) noexcept;

  // take() was never called.
  [[nodiscard]] bool is_new() const noexcept { return num_births_ == 0; }

  // ---- lists ----

  // In no order that means anything.
  [[nodiscard]] std::span<const std::int32_t> open() const noexcept {
    return {open_.data(), static_cast<std::size_t>(num_open_)};
  }
  // In the order in which they were closed.
  [[nodiscard]] std::span<const std::int32_t> closing() const noexcept {
    return {closing_.data(), static_cast<std::size_t>(num_closing_)};
  }
  [[nodiscard]] std::span<const std::int32_t> resting() const noexcept {
    return {resting_.data(), static_cast<std::size_t>(num_resting_)};
  }
  // Calls end_it(row) for each closing row in order. Where it returns true, it has ended the
  // sequence. The list changes when all were asked.
  template <typename EndIt>
  void end_closing(const EndIt& end_it) noexcept {
    std::int32_t kept = 0;
    for (std::int32_t i = 0; i < num_closing_; ++i) {
      const std::int32_t row = closing_[i];
      if (!end_it(row)) closing_[kept++] = row;
    }
    num_closing_ = kept;
  }
  // The resting rows for which is_used(row) is false become free, in order.
  template <typename IsUsed>
  void free_rested(const IsUsed& is_used) noexcept {
    std::int32_t kept = 0;
    for (std::int32_t i = 0; i < num_resting_; ++i) {
      const std::int32_t row = resting_[i];
      if (is_used(row)) {
        resting_[kept++] = row;
      } else {
        free(row);
      }
    }
    num_resting_ = kept;
  }

  // Becomes an equal of `other`. Requires: allocated with the same arguments.
  void copy_from(const Rows& other) noexcept;
  [[nodiscard]] MemoryUse memory() const noexcept {
    return MemoryUse::whole(rows_.bytes() + details_.bytes() + open_.bytes() + closing_.bytes() +
                            resting_.bytes());
  }
  [[nodiscard]] Status check() const;

 private:
  // Calls visit(row) for each row of each list.
  template <typename Visit>
  void for_each_listed(const Visit& visit) const;

  FixedArray<Sequence> rows_;
  FixedArray<SequenceDetails> details_;
  FixedArray<std::int32_t> open_;     // [num_open_]
  FixedArray<std::int32_t> closing_;  // [num_closing_]
  FixedArray<std::int32_t> resting_;  // [num_resting_]
  std::int32_t first_free_ = kNone;
  std::int32_t num_open_ = 0;
  std::int32_t num_closing_ = 0;
  std::int32_t num_resting_ = 0;
  std::int32_t max_open_ = 0;
  std::uint16_t tag_ = 0;
  std::uint64_t num_births_ = 0;
};

}  // namespace kvfolio
