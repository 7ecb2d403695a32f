// SPDX-License-Identifier: Apache-2.0
#pragma once

// RecordIndex knows every record that lies in a file or is on its way into one, by key. At
// most one of the records with one key is live: that is what a load gets. The others are copies
// that the next open() could find: erased, replaced, damaged, or not written yet. A kErase takes
// these, too, so they stay in the table until a tombstone lies over them (drop) or their file is
// gone (release). A record has a number, its id, from add() to release().
//
// No call looks at more than a few places, whatever the size: a table that is full gets a larger
// one beside it, and each add() moves some places over. A record takes 92 bytes, and 6 to 16 more
// in the tables.
//
// Invariant: a record in a table is reached from the home of its key without passing an empty
// place. Thread safety: none.

#include <cstdint>
#include <cstdlib>
#include <memory>

#include "disk/chunked.h"
#include "disk/format.h"
#include "kvfolio/tier.h"

namespace kvfolio::disk {

struct Record {
  static constexpr std::uint32_t kPiecesMax = (1u << 26) - 1;

  TierKey key{};
  std::uint32_t data_bytes = 0;
  std::uint32_t segment = 0;          // its slot in Segments
  std::uint32_t sequence = 0;         // less Segment::first_sequence
  std::uint32_t next = ~0u;           // of the segment, in the order of the file
  std::uint32_t pieces : 26 = 0;      // where it lies in the file
  std::uint32_t live : 1 = false;     // its key leads to it; the index's
  std::uint32_t visible : 1 = false;  // written: found by loads
  std::uint32_t used : 1 = false;     // loaded since it was written
  std::uint32_t writing : 1 = false;  // a write of it is under way
  std::uint32_t erased : 1 = false;   // a tombstone is to be in its place
  std::uint32_t gone : 1 = false;     // it is; the index's

  [[nodiscard]] std::int64_t offset() const noexcept { return std::int64_t{pieces} * kPiece; }
};
static_assert(sizeof(Record) == 92);
static_assert(kSegmentBytesMax / kPiece <= Record::kPiecesMax);
static_assert(kDataBytesMax <= ~std::uint32_t{0});

class RecordIndex {
 public:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  // A record that its key does not lead to. kNone: no memory.
  [[nodiscard]] std::uint32_t add(const Record& record) noexcept;
  // The live record of this key.
  [[nodiscard]] std::uint32_t find(const TierKey& key) const noexcept;
  // This record is live, and no other of its key. Requires: not dropped.
  void publish(std::uint32_t id) noexcept;
  void retire(std::uint32_t id) noexcept;
  // There is nothing of it in its file any more. Its id stays.
  void drop(std::uint32_t id) noexcept;
  void release(std::uint32_t id) noexcept;
  // Calls with the id of every record of this key, live or not.
  template <typename Call>
  void for_each(const TierKey& key, Call call) const {
    visit(key, [&](std::uint32_t id) {
      call(id);
      return false;
    });
  }

  [[nodiscard]] Record& operator[](std::uint32_t id) noexcept { return records_[id]; }
  [[nodiscard]] const Record& operator[](std::uint32_t id) const noexcept { return records_[id]; }
  [[nodiscard]] std::int64_t size() const noexcept { return live_; }
  // Places that were looked at since the beginning.
  [[nodiscard]] std::uint64_t steps() const noexcept { return steps_; }
  // O(records).
  [[nodiscard]] bool check() const noexcept;

 private:
  // It holds ids + 1; a power of two of places, all empty at first without a look at them.
  class Table {
   public:
    static constexpr std::uint32_t kEmpty = 0, kMoved = ~std::uint32_t{0};
    Table() noexcept = default;
    explicit Table(std::size_t size) noexcept
        : places_(static_cast<std::uint32_t*>(std::calloc(size, sizeof(std::uint32_t)))),
          size_(places_ == nullptr ? 0 : size) {}
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] std::uint32_t& operator[](std::size_t at) const noexcept {
      return places_.get()[at];
    }
    [[nodiscard]] std::size_t after(std::size_t at) const noexcept {
      return (at + 1) & (size_ - 1);
    }

   private:
    struct Free {
      void operator()(std::uint32_t* places) const noexcept { std::free(places); }
    };
    std::unique_ptr<std::uint32_t, Free> places_;
    std::size_t size_ = 0;
  };

  [[nodiscard]] std::size_t home(const Table& table, const TierKey& key) const noexcept;
  // Calls with each id of the key until it returns true.
  template <typename Call>
  bool visit(const TierKey& key, Call call) const {
    return visit(table_, key, call) || visit(old_, key, call);
  }
  template <typename Call>
  bool visit(const Table& table, const TierKey& key, Call call) const {
    if (table.size() == 0) return false;
    for (std::size_t at = home(table, key); table[at] != Table::kEmpty; at = table.after(at)) {
      ++steps_;
      if (table[at] == Table::kMoved || records_[table[at] - 1].key != key) continue;
      if (call(table[at] - 1)) return true;
    }
    return false;
  }
  [[nodiscard]] bool make_room() noexcept;
  void insert(std::uint32_t id) noexcept;
  void take_out(std::uint32_t id) noexcept;
  void move_some() noexcept;

  Chunked<Record, 4096> records_;
  std::uint32_t free_ = kNone;  // the first of a list by Record::next
  Table table_, old_;           // old_: places of it move to table_
  std::size_t moved_ = 0;       // places of old_
  std::size_t in_tables_ = 0;
  std::int64_t live_ = 0;
  mutable std::uint64_t steps_ = 0;
};

}  // namespace kvfolio::disk
