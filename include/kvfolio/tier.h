// SPDX-License-Identifier: Apache-2.0
#pragma once

// Tier: a medium below the device blocks, such as a disk or a server, that keeps records under
// keys. A medium knows keys and bytes only: no token, no block, no sequence. TierLimits::verifies
// says how far its records may be trusted: a tier that verifies seals what it is given (record.h),
// and gives back the same bytes or a miss. Any other tier may lose, mix up or damage records, and
// its user must verify them.
//
//   tier->submit(TierOp::kLoad, items, {.at_us = now_us + 50'000});
//   ... later: n = tier->poll(now_us, done);   // one TierDone for each item that was accepted
//
// Rules that every tier keeps, and that tests of a tier check:
//  - No call blocks. A queue that is full accepts fewer items.
//  - Each accepted item gets exactly one TierDone, also after its deadline and at close().
//  - TierDone is more than an answer: nothing reads or writes the item's memory any more. So memory
//    of an item is not used for anything else before that, even if its deadline has passed.
//  - kOk for a load means that bytes were written. If the tier verifies, they are the bytes that
//    were stored under the key; otherwise they may be any bytes.
//  - No exception leaves a tier, and it calls nothing back.
//
// Thread safety: one owner, who serialises all calls. Time enters as now_us only.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kvfolio/export.h"
#include "kvfolio/status.h"

namespace kvfolio {

// The name of a record: a digest, so it holds no text of a user. Byte by byte, little-endian:
//   0  version (2)   2  group (2)   4  shard (2)   6  number of shards (2)
//   8  the first 16 bytes of the namespace of the layout
//  24  the hash of all tokens up to the end of the block (32)
//  56  zero (16)
// Identity (identity.h) makes keys. All 72 bytes are compared.
struct TierKey {
  static constexpr std::size_t kBytes = 72;
  std::array<std::byte, kBytes> bytes{};

  friend bool operator==(const TierKey&, const TierKey&) = default;
};

// A SHA-256: of a prefix, or a namespace.
using Digest = std::array<std::byte, 32>;

enum class TierOp : std::int32_t {
  kExists = 0,  // data is not used; kOk or kMiss
  kLoad = 1,    // fills data; a record of another size is kCorrupt
  kStore = 2,   // keeps data; a key that is there already is kOk and keeps its bytes
  kErase = 3,   // data is not used; kOk also if there was nothing
};

enum class TierResult : std::int32_t {
  kOk = 0,
  kMiss = 1,         // there is no such record, or another key sealed it
  kCorrupt = 2,      // there is one, and it is not what was stored
  kBusy = 3,         // try again later
  kTimeout = 4,      // the deadline passed first
  kIoError = 5,      // the medium failed
  kUnavailable = 6,  // the medium cannot be reached now
  kClosed = 7,       // the tier was closed first
};
inline constexpr int kNumTierResults = 8;
[[nodiscard]] KVFOLIO_API const char* to_string(TierResult result) noexcept;

struct TierItem {
  TierKey key{};
  std::byte* data = nullptr;  // any bytes; stays the tier's until TierDone
  std::int64_t bytes = 0;
  std::uint64_t tag = 0;  // the caller's own name for the item; TierDone repeats it
};

struct TierDone {
  std::uint64_t tag = 0;
  TierResult result = TierResult::kOk;
};

// A moment of the clock that poll() is given. Items that are not done by then are kTimeout.
struct Deadline {
  std::uint64_t at_us = 0;
};

struct TierHealth {
  bool usable = true;  // false: submit() accepts nothing now, so it should not be waited for
  std::uint64_t stores_ok = 0;
  std::uint64_t loads_ok = 0;
  std::uint64_t failures = 0;  // results other than kOk and kMiss
  // Damaged records that the tier found by itself, as a scrubber does: no load was answered with
  // kCorrupt for them. corrupt_records() in tier_metrics.h adds up both kinds.
  std::uint64_t corrupt_unasked = 0;
  // Loads that met a record which another key sealed, or none, and were answered with kMiss. The
  // record stays: it is right for who has its key.
  std::uint64_t of_another_key = 0;
};

// Limits do not change. The caller of submit() keeps to them: it stores and loads no larger record,
// and gives no memory that is aligned to less.
struct TierLimits {
  std::int64_t record_bytes_max = 0;  // of TierItem::bytes; 0: no limit of its own
  std::int64_t data_alignment = 64;   // of TierItem::data: a power of two up to 4096
  bool verifies = false;              // kOk for a load: the bytes are those that were stored
};

// Every member is pure except the destructor, which is inline. So a derived class can be compiled
// with or without RTTI.
class Tier {
 public:
  virtual ~Tier() = default;

  // For people and counters: "disk", "redis". Valid as long as the tier.
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  [[nodiscard]] virtual TierLimits limits() const noexcept = 0;
  // Returns how many of the items were accepted: the first ones. Those behind them are not touched.
  virtual std::size_t submit(TierOp op, std::span<const TierItem> items,
                             Deadline deadline) noexcept = 0;
  // Fills `done` as far as it fits, and returns how many. Time never goes back.
  virtual std::size_t poll(std::uint64_t now_us, std::span<TierDone> done) noexcept = 0;
  // Readable when poll() has something to return; -1 if there is no such descriptor.
  [[nodiscard]] virtual int event_fd() const noexcept = 0;
  [[nodiscard]] virtual TierHealth health() const noexcept = 0;
  // From now on submit() accepts nothing. Items that are not done by the deadline end with kClosed;
  // poll() still returns every accepted item.
  virtual Status close(Deadline deadline) noexcept = 0;
};

}  // namespace kvfolio
