// SPDX-License-Identifier: Apache-2.0
#pragma once

// Victims finds the sequence that is preempted next: the first one for a policy whose end frees a
// block. It keeps the uses of each row and a heap of snapshots for one policy at a time.
//
// Steady decode must not pay for the heap. So a use only puts the row on a list, once, and the next
// search brings the heap up to date. A snapshot counts while its version is the row's: a sequence
// that changed is pushed again, and its old snapshot is thrown away when it comes to the top. When
// much has changed, building the heap anew is cheaper.
//
// Victims knows rows and versions, and neither sequences nor blocks. What a search has to know of a
// sequence it asks an object with the functions of VictimRows.
//
// Invariants, see check(): the snapshots form a heap; the list has each changed row once; of the
// rows that are not on the list, each open one has one snapshot that counts and the others have
// none, unless no policy has a heap; between searches nothing is passed over.
//
// Thread safety: none; const calls write nothing. Nothing allocates after allocate().

#include <algorithm>
#include <array>
#include <concepts>
#include <cstdint>
#include <optional>
#include <span>

#include "kvfolio/fixed_array.h"
#include "kvfolio/ids.h"
#include "kvfolio/manager_types.h"
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
  { rows.is_open(row) } -> std::same_as<bool>;
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

  // ---- what changes ----

  // The row's rank may be another now, or the row was opened.
  void note_change(std::int32_t row) noexcept {
    if (is_changed_[row] != 0) return;
    is_changed_[row] = 1;
    changed_[num_changed_++] = row;
  }
  // A sequence begins in this row: it was not used yet.
  void begin(std::int32_t row) noexcept { uses_[row] = {}; }
  void note_use(std::int32_t row) noexcept {
    uses_[row] = {++num_uses_, uses_[row].count + 1};
    note_change(row);
  }
  void prefetch(std::int32_t row) const noexcept { __builtin_prefetch(&uses_[row], 1); }
  // The last use of the row is undone; before it, the last one was `last_use`.
  void undo_use(std::int32_t row, std::uint64_t last_use) noexcept {
    uses_[row] = {last_use, uses_[row].count - 1};
    note_change(row);
  }
  // The row is open no more.
  void forget(std::int32_t row) noexcept { ++versions_[row]; }

  // The number of the row's last use, counted over all rows; and how often the row was used.
  [[nodiscard]] std::uint64_t last_use(std::int32_t row) const noexcept { return uses_[row].last; }
  [[nodiscard]] std::uint64_t use_count(std::int32_t row) const noexcept {
    return uses_[row].count;
  }
  [[nodiscard]] std::uint64_t num_uses() const noexcept { return num_uses_; }
  // The uses since then belong to a call that failed: they do not count.
  void take_back_uses(std::uint64_t num_uses) noexcept { num_uses_ = num_uses; }

  // ---- one victim ----

  // The first row that may go and whose end frees a block, or kNoRow.
  template <VictimRows Rows>
  [[nodiscard]] std::int32_t select(VictimPolicy policy, const Rows& rows) noexcept;

  // ---- several victims ----
  //
  // In a loop: refresh(), next(), and the end of that sequence. Then restore_passed_over().

  // Brings the heap up to date.
  template <VictimRows Rows>
  void refresh(VictimPolicy policy, const Rows& rows) noexcept;
  // As select(). The row stays on top of the heap; those before it, whose end frees nothing, are
  // passed over. Requires: refresh() came last.
  template <VictimRows Rows>
  [[nodiscard]] std::int32_t next(const Rows& rows) noexcept;
  // The rows that were passed over may be chosen again.
  void restore_passed_over() noexcept;

  // Rows that probably go soon, for a look at their memory ahead of time. Requires: next() came
  // last and returned a row.
  struct Soon {
    std::int32_t next = kNoRow;                                   // the first one below the top
    std::array<std::int32_t, 3> then = {kNoRow, kNoRow, kNoRow};  // one of these comes after it
  };
  [[nodiscard]] Soon soon() const noexcept;

  // Becomes an equal of `other`, without a heap: that is made again in the next search. Requires:
  // allocated with as many rows.
  void copy_from(const Victims& other) noexcept;
  [[nodiscard]] MemoryUse memory() const noexcept {
    return MemoryUse::whole(heap_.bytes() + passed_over_.bytes() + changed_.bytes() +
                            is_changed_.bytes() + versions_.bytes() + uses_.bytes());
  }
  [[nodiscard]] Status check(std::span<const std::int32_t> open_rows) const;

 private:
  struct Use {
    std::uint64_t last;
    std::uint64_t count;
  };
  struct Snapshot {
    std::uint64_t rank;
    VictimName name;
    std::int32_t row;
    std::uint32_t version;
  };

  // For the heap of <algorithm>, whose top is the largest: the one that goes first is on top.
  static constexpr auto kLater = [](const Snapshot& a, const Snapshot& b) noexcept {
    if (a.rank != b.rank) return a.rank > b.rank;
    if (a.name.anonymous != b.name.anonymous) return a.name.anonymous;
    return a.name.id > b.name.id;
  };

  // So much has changed that the heap is of no use.
  [[nodiscard]] bool is_stale(VictimPolicy policy, std::size_t num_open) const noexcept {
    return policy_ != policy || num_changed_ > static_cast<std::int32_t>(num_open / 8) ||
           size_ + num_changed_ > static_cast<std::int32_t>(heap_.size());
  }
  // The last search for this policy looked at every row, and not much was used since.
  [[nodiscard]] bool scanned_lately(VictimPolicy policy, std::size_t num_open) const noexcept {
    return scanned_policy_ == policy && num_uses_ - scanned_at_ <= num_open / 8;
  }
  [[nodiscard]] bool counts(const Snapshot& snapshot) const noexcept {
    return snapshot.version == versions_[snapshot.row];
  }
  template <VictimRows Rows>
  [[nodiscard]] Snapshot snapshot(std::int32_t row, const Rows& rows) const noexcept {
    return {rows.rank(row), rows.name(row), row, versions_[row]};
  }
  template <VictimRows Rows>
  [[nodiscard]] std::int32_t scan(const Rows& rows) const noexcept;
  void push(const Snapshot& snapshot) noexcept;
  void pop() noexcept;
  void drop_heap() noexcept;

  FixedArray<Snapshot> heap_;            // [size_], room for two of each row
  FixedArray<Snapshot> passed_over_;     // [num_passed_over_]
  FixedArray<std::int32_t> changed_;     // [num_changed_] rows
  FixedArray<std::uint8_t> is_changed_;  // [row]
  FixedArray<std::uint32_t> versions_;   // [row]
  std::int32_t size_ = 0;
  std::int32_t num_passed_over_ = 0;
  std::int32_t num_changed_ = 0;
  std::optional<VictimPolicy> policy_;  // of the heap
  FixedArray<Use> uses_;                // [row]
  std::uint64_t num_uses_ = 0;
  std::optional<VictimPolicy> scanned_policy_;  // of the last scan(),
  std::uint64_t scanned_at_ = 0;                // and num_uses_ then
};

template <VictimRows Rows>
void Victims::refresh(VictimPolicy policy, const Rows& rows) noexcept {
  const std::span<const std::int32_t> open = rows.open();
  const bool anew = is_stale(policy, open.size());
  if (anew) size_ = 0;
  for (; num_changed_ > 0; --num_changed_) {
    const std::int32_t row = changed_[num_changed_ - 1];
    is_changed_[row] = 0;
    ++versions_[row];
    if (!anew && rows.is_open(row)) push(snapshot(row, rows));
  }
  if (!anew) return;
  for (const std::int32_t row : open) heap_[size_++] = snapshot(row, rows);
  std::make_heap(heap_.data(), heap_.data() + size_, kLater);
  policy_ = policy;
}

template <VictimRows Rows>
std::int32_t Victims::next(const Rows& rows) noexcept {
  while (size_ > 0) {
    const Snapshot top = heap_[0];
    const bool good = counts(top);
    if (good && rows.may_go(top.row) && rows.frees_a_block(top.row)) return top.row;
    pop();
    if (good) passed_over_[num_passed_over_++] = top;
  }
  return kNoRow;
}

// The row that is first for this policy, whether its end frees a block or not; kNoRow: none may go.
template <VictimRows Rows>
std::int32_t Victims::scan(const Rows& rows) const noexcept {
  Snapshot first{};
  first.row = kNoRow;
  for (const std::int32_t row : rows.open()) {
    if (!rows.may_go(row)) continue;
    if (first.row != kNoRow && rows.rank(row) > first.rank) continue;
    const Snapshot now = snapshot(row, rows);
    if (first.row == kNoRow || kLater(first, now)) first = now;
  }
  return first.row;
}

template <VictimRows Rows>
std::int32_t Victims::select(VictimPolicy policy, const Rows& rows) noexcept {
  const std::size_t num_open = rows.open().size();
  // After a step of every sequence, a look at each row costs a tenth of a new heap. If the next
  // search comes before as much has happened, the heap pays.
  if (is_stale(policy, num_open) && !scanned_lately(policy, num_open)) {
    scanned_policy_ = policy;
    scanned_at_ = num_uses_;
    const std::int32_t first = scan(rows);
    if (first == kNoRow || rows.frees_a_block(first)) return first;
  }
  refresh(policy, rows);
  const std::int32_t row = next(rows);
  restore_passed_over();
  return row;
}

}  // namespace kvfolio
