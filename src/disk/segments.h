// SPDX-License-Identifier: Apache-2.0
#pragma once

// Segments are the files of the tier, in the order in which they were made. What there is to do for
// one of them is found without a look at the others: a segment that needs something is put in line
// (touch), and the store takes them from there. So is the oldest sealed one, and the sum of bytes.
//
// Only add() takes memory. Invariants: bytes() is the sum over all; a segment is in line once.
// Thread safety: none.

#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "disk/format.h"
#include "disk/index.h"

namespace kvfolio::disk {

// A record that is to go, and which kErase waits for that.
struct EraseTarget {
  std::uint32_t record = 0;
  std::uint64_t erase = 0;
};

// The number that its header has, and that of its file's name: the same, unless someone gave the
// file another name.
struct SegmentId {
  std::uint64_t number = 0;
  std::uint64_t name = 0;

  friend bool operator==(const SegmentId&, const SegmentId&) = default;
  friend bool operator<(const SegmentId& a, const SegmentId& b) noexcept {
    return a.number != b.number ? a.number < b.number : a.name < b.name;
  }
};

struct Segment {
  enum class State : std::uint8_t {
    kCreating,
    kContinuing,
    kReady,
    kActive,
    kFull,
    kSealing,
    kSealed,
    kEvicting,
    kDraining,
    kRemoving,
    kForgetting,
  };
  // A walk over its records, some at a time.
  enum class Walk : std::uint8_t { kNone, kSealEntries, kEraseEntries, kChoose, kDrain, kForget };

  SegmentId id{};
  std::uint32_t slot = 0;  // Record::segment
  State state = State::kCreating;
  std::uint64_t epoch = 0;
  std::uint64_t first_sequence = 0;  // of Record::sequence
  int file = -1;                     // -1: closed; jobs that need it wait for an OpenJob
  bool opening = false;
  bool stays_open = false;  // its header is damaged: it would not be known again
  bool direct = false;
  bool is_old = false;        // of an older version, or not known: nothing more is written to it
  std::int64_t used = 0;      // where the next record goes
  int reads = 0, writes = 0;  // under way
  int errors = 0;
  std::uint64_t retry_us = 0;  // of a file that could not be removed: not again before that
  std::uint32_t first = RecordIndex::kNone, last = RecordIndex::kNone;  // records, by Record::next
  std::int64_t num_records = 0;
  std::int64_t in_footer = -1;         // records that its footer names; -1: it has none
  std::deque<EraseTarget> to_erase{};  // not begun
  bool erasing = false;                // an EraseJob is under way
  std::size_t num_erasing = 0;         // of to_erase: for the next one
  bool drained = false;                // of kDraining: none of its records is live
  bool chosen = false;                 // of kEvicting: it is known what moves
  Walk walk = Walk::kNone;
  std::uint32_t walk_at = RecordIndex::kNone;
  std::vector<FooterEntry> entries{};  // that the walk has collected

  [[nodiscard]] std::int64_t bytes() const noexcept { return bytes_; }

 private:
  friend class Segments;
  friend class OpenFiles;
  std::int64_t bytes_ = 0;                   // of the file, in the budget
  std::set<SegmentId>::node_type sealed_{};  // while it is not among the sealed ones
  Segment* behind_ = nullptr;                // in line
  bool in_line_ = false;
  bool is_open_ = false;  // of OpenFiles, as what follows
  Segment *newer_ = nullptr, *older_ = nullptr;
};

class Segments {
 public:
  using State = Segment::State;

  // No other has this id. It is in `state` and takes `bytes`.
  Segment& add(SegmentId id, State state, std::int64_t bytes);
  // Requires: none of its records is in the index.
  void remove(Segment& segment) noexcept;
  // Requires: the state may follow, by the line at the head of store.h.
  void set_state(Segment& segment, State state) noexcept;
  void set_bytes(Segment& segment, std::int64_t bytes) noexcept;

  [[nodiscard]] Segment& operator[](std::uint32_t slot) noexcept {
    KVFOLIO_DCHECK(slot < slots_.size() && slots_[slot] != nullptr);
    return *slots_[slot];
  }
  [[nodiscard]] const Segment& operator[](std::uint32_t slot) const noexcept {
    KVFOLIO_DCHECK(slot < slots_.size() && slots_[slot] != nullptr);
    return *slots_[slot];
  }
  [[nodiscard]] std::int64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::int64_t size() const noexcept { return std::ssize(by_id_); }
  [[nodiscard]] const std::map<SegmentId, std::unique_ptr<Segment>>& all() const noexcept {
    return by_id_;
  }
  // nullptr: there is none.
  [[nodiscard]] Segment* oldest() noexcept;
  [[nodiscard]] Segment* oldest_sealed() noexcept;
  // The first sealed one at or behind `id`.
  [[nodiscard]] Segment* next_sealed(SegmentId id) noexcept;

  // It needs a look.
  void touch(Segment& segment) noexcept { line_.push(segment); }
  // It needs one later: when time has passed.
  void touch_later(Segment& segment) noexcept { later_.push(segment); }
  [[nodiscard]] std::size_t num_touched() const noexcept { return line_.size; }
  Segment* take_touched() noexcept { return line_.pop(); }
  // Those that wait for time to pass; their look is one of many.
  [[nodiscard]] std::size_t num_later() const noexcept { return later_.size; }
  Segment* take_later() noexcept { return later_.pop(); }

  // O(segments).
  [[nodiscard]] bool check() const noexcept;

 private:
  struct Line {
    Segment *first = nullptr, *last = nullptr;
    std::size_t size = 0;
    void push(Segment& segment) noexcept;
    Segment* pop() noexcept;
    void remove(Segment& segment) noexcept;
  };

  void put_state(Segment& segment, State state) noexcept;

  std::map<SegmentId, std::unique_ptr<Segment>> by_id_;
  std::vector<Segment*> slots_;
  std::vector<std::uint32_t> free_slots_;
  std::set<SegmentId> sealed_;
  Line line_, later_;
  std::int64_t bytes_ = 0;
};

// OpenFiles bounds how many segments have an open file: the one that was used least lately is
// closed for another. Invariant: it knows exactly the segments whose file is open.
class OpenFiles {
 public:
  explicit OpenFiles(int most) noexcept : most_(most) {}
  void opened(Segment& segment) noexcept;
  void closed(Segment& segment) noexcept;
  void used(Segment& segment) noexcept;
  // The system has no more of them: from now on it is these.
  void shrink() noexcept;
  [[nodiscard]] bool is_full() const noexcept { return size_ >= most_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] int most() const noexcept { return most_; }
  // The one to close: sealed, and nothing reads or writes it. nullptr: there is none.
  [[nodiscard]] Segment* least_used() const noexcept;
  [[nodiscard]] bool check(const Segments& segments) const noexcept;

 private:
  void unlink(Segment& segment) noexcept;
  int most_;
  int size_ = 0;
  Segment *newest_ = nullptr, *oldest_ = nullptr;
};

}  // namespace kvfolio::disk
