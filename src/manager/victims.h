// SPDX-License-Identifier: Apache-2.0
#pragma once

// Victims finds the sequence that is preempted next: the first one for a policy whose end frees a
// block. It keeps the uses of each row: the number of its last use, counted over all rows, and how
// often it was used.
//
// Steady decode must not pay for searches. A use writes its two numbers and the row into a short
// ring of changes. So a search after a step looks at every open row: for the least recently used
// that is a scan of one array. Where another search follows before much has changed, the first rows
// for the policy are kept in order, and the next ones look at these and at the rows of the ring.
// preempt_to(), which ends many, makes a heap of all rows once.
//
// Victims knows rows, and neither sequences nor blocks. What a search has to know of a sequence it
// asks an object with the functions of VictimRows.
//
// Invariants, see check(): exactly the open rows have a last use, which is no later than the number
// of uses; no two have the same, since each use has a number of its own. The rows that are kept are
// in order; a row that is not goes behind `bound_`, or is in the ring.
//
// Thread safety: none; const calls write nothing. Nothing allocates after allocate().

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "kvfolio/fixed_array.h"
#include "kvfolio/ids.h"
#include "kvfolio/manager_types.h"
#include "kvfolio/prefetch.h"
#include "kvfolio/status.h"

namespace kvfolio {

// Ties go to the caller's id, the smaller one first, and after these to the id of the sequence.
struct VictimName {
  bool anonymous;  // without a caller's id
  std::uint64_t id;
};

template <typename T>
concept VictimRows = requires(const T& rows, std::int32_t row) {
  { rows.open() } -> std::convertible_to<std::span<const std::int32_t>>;  // each open row, once
  { rows.rank(row) } -> std::same_as<std::uint64_t>;  // for the policy: the smallest goes first
  { rows.name(row) } -> std::same_as<VictimName>;
  { rows.may_go(row) } -> std::same_as<bool>;
  { rows.frees_a_block(row) } -> std::same_as<bool>;
};

class Victims {
 public:
  static constexpr std::int32_t kNoRow = -1;

  // False: no memory.
  [[nodiscard]] bool allocate(std::int64_t rows) noexcept;

  // ---- uses ----

  // A sequence begins in this row: it was not used yet. note_use() comes before the next search.
  void begin(std::int32_t row) noexcept {
    last_[row] = counts_[row] = 0;
    end_ = std::max(end_, row + 1);
  }
  // The row's rank may be another now, by something else than a use.
  void note_change(std::int32_t row) noexcept { changed_[num_changes_++ % kMostKept] = row; }
  void note_use(std::int32_t row) noexcept {
    last_[row] = ++num_uses_;
    ++counts_[row];
    note_change(row);
  }
  void prefetch(std::int32_t row) const noexcept {
    prefetch_to_write(&last_[row]);
    prefetch_to_write(&counts_[row]);
  }
  // The last use of the row is undone; before it, the last one was `last_use`.
  void undo_use(std::int32_t row, std::uint64_t last_use) noexcept {
    last_[row] = last_use;
    --counts_[row];
    note_change(row);
  }
  // The row is open no more.
  void forget(std::int32_t row) noexcept {
    last_[row] = counts_[row] = 0;
    note_change(row);
  }

  // The number of the row's last use, counted over all rows from 1 on, and 0 for a row that is not
  // open; and how often the row was used.
  [[nodiscard]] std::uint64_t last_use(std::int32_t row) const noexcept { return last_[row]; }
  [[nodiscard]] std::uint64_t use_count(std::int32_t row) const noexcept { return counts_[row]; }
  [[nodiscard]] std::uint64_t num_uses() const noexcept { return num_uses_; }
  // The uses since then belong to a call that failed: they do not count.
  void take_back_uses(std::uint64_t num_uses) noexcept { num_uses_ = num_uses; }

  // ---- one victim ----

  // The first row that may go and whose end frees a block, or kNoRow. Requires: rows.rank() is what
  // the policy says; for kLru, last_use().
  template <VictimRows Rows>
  [[nodiscard]] std::int32_t select(VictimPolicy policy, const Rows& rows) noexcept;

  // ---- several victims ----
  //
  // rank(), and then in a loop next() and the end of that sequence. What else changes the rank of a
  // row in between is not seen; select() may end the order.

  // Brings the rows that may go into an order.
  template <VictimRows Rows>
  void rank(const Rows& rows) noexcept;
  // The first row, which leaves the order, or kNoRow. Those before it, whose end frees nothing, are
  // passed over until restore_passed_over().
  template <VictimRows Rows>
  [[nodiscard]] std::int32_t next(const Rows& rows) noexcept;
  // The rows that were passed over may be chosen again.
  void restore_passed_over() noexcept;

  // Rows that probably go soon, for a look at their memory ahead of time: the next one, and two of
  // which one comes after it.
  struct Soon {
    std::int32_t next = kNoRow;
    std::array<std::int32_t, 2> then = {kNoRow, kNoRow};
  };
  [[nodiscard]] Soon soon() const noexcept;

  // Becomes an equal of `other`. Requires: allocated with as many rows.
  void copy_from(const Victims& other) noexcept;
  [[nodiscard]] MemoryUse memory() const noexcept {
    return MemoryUse::whole(order_.bytes() + last_.bytes() + counts_.bytes());
  }
  // ok, or which rule is broken. O(rows).
  [[nodiscard]] Status check(std::span<const std::int32_t> open_rows) const;

 private:
  static constexpr std::size_t kMostKept = 64;

  struct Ranked {
    std::uint64_t rank;
    VictimName name;
    std::int32_t row;
  };

  // For the heap of <algorithm>, whose top is the largest: the one that goes first is on top.
  static constexpr auto kLater = [](const Ranked& a, const Ranked& b) noexcept {
    if (a.rank != b.rank) return a.rank > b.rank;
    if (a.name.anonymous != b.name.anonymous) return a.name.anonymous;
    return a.name.id > b.name.id;
  };

  // The row that was used longest ago, whether it may go or not; kNoRow: none is open.
  [[nodiscard]] std::int32_t least_recent() const noexcept;
  template <VictimRows Rows>
  [[nodiscard]] static std::int32_t scan(const Rows& rows) noexcept;
  template <VictimRows Rows>
  [[nodiscard]] static Ranked ranked(std::int32_t row, const Rows& rows) noexcept {
    return {rows.rank(row), rows.name(row), row};
  }
  // Keeps the first rows; brings those that are kept up to date.
  template <VictimRows Rows>
  void keep(const Rows& rows) noexcept;
  template <VictimRows Rows>
  void update_kept(const Rows& rows) noexcept;
  void drop_kept(std::int32_t row) noexcept;
  void insert_kept(const Ranked& row) noexcept;
  // The row is not kept.
  void leave_out(const Ranked& row) noexcept {
    if (!bound_ || kLater(*bound_, row)) bound_ = row;
  }

  FixedArray<std::uint64_t> last_;    // [row]; 0: not open
  FixedArray<std::uint64_t> counts_;  // [row]
  std::uint64_t num_uses_ = 0;
  std::int32_t end_ = 0;  // of the rows that were ever open
  // The rows that changed last, a ring.
  std::array<std::int32_t, kMostKept> changed_{};
  std::uint64_t num_changes_ = 0;
  // The first rows for a policy, the one that goes first at the end, as of the change `kept_at_`.
  // No other row goes before `bound_`; without one, all are kept.
  std::array<Ranked, kMostKept> kept_{};
  std::size_t num_kept_ = 0;
  std::optional<Ranked> bound_;
  bool keeps_ = false;  // without it none of these counts
  std::optional<VictimPolicy> policy_;
  std::uint64_t kept_at_ = 0;
  std::uint64_t scanned_at_ = 0;  // the change at which all rows were looked at
  // A heap for several victims, and behind its end the rows that were passed over.
  FixedArray<Ranked> order_;
  std::int32_t size_ = 0;
  std::int32_t num_passed_over_ = 0;
};

template <VictimRows Rows>
void Victims::rank(const Rows& rows) noexcept {
  size_ = num_passed_over_ = 0;
  for (const std::int32_t row : rows.open()) {
    if (rows.may_go(row)) order_[size_++] = ranked(row, rows);
  }
  std::make_heap(order_.data(), order_.data() + size_, kLater);
}

template <VictimRows Rows>
std::int32_t Victims::next(const Rows& rows) noexcept {
  const auto end = static_cast<std::int32_t>(order_.size());
  while (size_ > 0) {
    std::pop_heap(order_.data(), order_.data() + size_, kLater);
    const Ranked top = order_[--size_];
    if (rows.frees_a_block(top.row)) return top.row;
    order_[end - ++num_passed_over_] = top;
  }
  return kNoRow;
}

// The row that is first among those that may go, whether its end frees a block or not.
template <VictimRows Rows>
std::int32_t Victims::scan(const Rows& rows) noexcept {
  Ranked first{0, {}, kNoRow};
  for (const std::int32_t row : rows.open()) {
    if (!rows.may_go(row)) continue;
    const std::uint64_t rank = rows.rank(row);
    if (first.row != kNoRow && rank > first.rank) continue;
    const Ranked now = ranked(row, rows);
    if (first.row == kNoRow || kLater(first, now)) first = now;
  }
  return first.row;
}

template <VictimRows Rows>
void Victims::keep(const Rows& rows) noexcept {
  const auto begin = kept_.begin();
  const auto earlier = [](const Ranked& a, const Ranked& b) noexcept { return kLater(b, a); };
  num_kept_ = 0;
  bound_.reset();
  for (const std::int32_t row : rows.open()) {
    if (num_kept_ < kMostKept) {  // a heap, whose top goes last of all that are in it
      kept_[num_kept_++] = ranked(row, rows);
      std::push_heap(begin, begin + static_cast<std::ptrdiff_t>(num_kept_), earlier);
      continue;
    }
    const std::uint64_t rank = rows.rank(row);
    if (rank > kept_[0].rank && bound_ && rank > bound_->rank) continue;
    Ranked now = ranked(row, rows);
    if (kLater(kept_[0], now)) {
      std::pop_heap(begin, kept_.end(), earlier);
      std::swap(now, kept_.back());
      std::push_heap(begin, kept_.end(), earlier);
    }
    leave_out(now);
  }
  std::sort(begin, begin + static_cast<std::ptrdiff_t>(num_kept_), kLater);
  kept_at_ = num_changes_;
}

template <VictimRows Rows>
void Victims::update_kept(const Rows& rows) noexcept {
  for (; kept_at_ < num_changes_; ++kept_at_) {
    const std::int32_t row = changed_[kept_at_ % kMostKept];
    drop_kept(row);
    if (last_[row] != 0) insert_kept(ranked(row, rows));
  }
}

template <VictimRows Rows>
std::int32_t Victims::select(VictimPolicy policy, const Rows& rows) noexcept {
  const auto is_good = [&](std::int32_t row) {
    return rows.may_go(row) && rows.frees_a_block(row);
  };
  const bool same = policy_ == policy;
  keeps_ = keeps_ && same && num_changes_ - kept_at_ <= kMostKept;
  if (keeps_) update_kept(rows);
  if (!keeps_ || num_kept_ == 0) {
    // After a step of every sequence, one look at each is all that pays. When another search comes
    // before much has changed, more are likely to follow: an engine makes room for a prompt.
    const bool again = same && num_changes_ - scanned_at_ <= rows.open().size() / 8;
    policy_ = policy;
    scanned_at_ = num_changes_;
    keeps_ = again;
    if (again) {
      keep(rows);
    } else {
      const std::int32_t first = policy == VictimPolicy::kLru ? least_recent() : scan(rows);
      if (first == kNoRow || is_good(first)) return first;
    }
  }
  for (std::size_t i = keeps_ ? num_kept_ : 0; i-- > 0;) {
    if (is_good(kept_[i].row)) return kept_[i].row;
  }
  if (keeps_ || policy == VictimPolicy::kLru) {
    // All of these may be in the open step. A look at each row is less than a heap of them.
    const std::int32_t first = scan(rows);
    if (first == kNoRow || rows.frees_a_block(first)) return first;
  }
  rank(rows);
  return next(rows);
}

}  // namespace kvfolio
