// SPDX-License-Identifier: Apache-2.0
#pragma once

// RecordIndex finds records by key. A record has a number, its id, as long as its segment lives;
// erase() takes it out of the table and keeps its id, since a read of it may be under way, and
// release() gives the id back. A record takes 112 to 144 bytes of memory.
//
// Invariant: every id in the table is of a record whose key hashes to a place from which the id is
// reached without passing an empty place. Thread safety: none.

#include <cstdint>
#include <vector>

#include "kvfolio/tier.h"

namespace kvfolio::disk {

struct Segment;

struct Record {
  TierKey key{};
  std::uint64_t sequence = 0;
  Segment* segment = nullptr;
  std::int64_t offset = 0;  // in the file
  std::uint32_t data_bytes = 0;
  bool visible : 1 = false;  // written: found by loads
  bool erased : 1 = false;   // not in the table any more
  bool used : 1 = false;     // loaded since it was written
  bool writing : 1 = false;  // a write of it is under way
  bool stale : 1 = false;    // the store's: its key does not lead to it, and it is in the file
  bool gone : 1 = false;     // a tombstone is in its place
};

class RecordIndex {
 public:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  // A new record that no key leads to yet.
  std::uint32_t add(const Record& record);
  [[nodiscard]] std::uint32_t find(const TierKey& key) const noexcept;
  // Its key leads to this record now, and no longer to another, which is erased.
  void publish(std::uint32_t id);
  void erase(std::uint32_t id) noexcept;
  // Requires: erased, or never published.
  void release(std::uint32_t id);

  [[nodiscard]] Record& operator[](std::uint32_t id) noexcept { return records_[id]; }
  [[nodiscard]] const Record& operator[](std::uint32_t id) const noexcept { return records_[id]; }
  [[nodiscard]] std::int64_t size() const noexcept { return size_; }  // in the table
  [[nodiscard]] bool check() const noexcept;

 private:
  [[nodiscard]] std::size_t home(const TierKey& key) const noexcept;
  // Where the key is, or the empty place where it would be.
  [[nodiscard]] std::size_t place_of(const TierKey& key) const noexcept;
  void grow();

  std::vector<Record> records_;
  std::vector<std::uint32_t> free_;
  std::vector<std::uint32_t> table_;  // ids or kNone; a power of two, at most two thirds full
  std::int64_t size_ = 0;
};

}  // namespace kvfolio::disk
