// SPDX-License-Identifier: Apache-2.0
#pragma once

// A record is what tiers keep: a header of 192 bytes and the image of a block (KVStorage). The
// header repeats all that decides whether the bytes are the right ones, so no index, file name or
// server has to be believed. All numbers are little-endian:
//
//     0  magic "KVFR" (4), version (2), bytes of the header (2)
//     8  the key (72)
//    80  the namespace of the layout (32)
//   112  bytes of the payload (8)
//   120  position of the first token of the block (4), one past its last (4)
//   128  epoch (8)
//   136  who wrote it (8)
//   144  compression, 0: none (4); zero (4)
//   152  checksum of the payload: XXH3-64, whose seed is the XXH3-64 of the key (8)
//   160  whose it is: the first 8 bytes of the hash of the root (8)
//   168  zero (20)
//   188  CRC-32C of the 188 bytes before (4)
//
// Whatever does not verify is a miss. The checksum shows damage and mix-ups; it is no signature.
// Thread safety: values and free functions.

#include <cstddef>
#include <cstdint>
#include <span>

#include "kvfolio/export.h"
#include "kvfolio/identity.h"
#include "kvfolio/tier.h"

namespace kvfolio {

inline constexpr std::int64_t kRecordHeaderBytes = 192;

struct RecordInfo {
  TierKey key{};
  Digest layout{};
  std::int64_t payload_bytes = 0;
  std::int32_t begin = 0;  // of the block's tokens
  std::int32_t end = 0;
  std::uint64_t epoch = 0;
  std::uint64_t writer = 0;
  std::uint64_t checksum = 0;  // of the payload
  std::uint64_t owner = 0;     // root_owner() of the root; 0: not said

  friend bool operator==(const RecordInfo&, const RecordInfo&) = default;
};

// What is wrong with a record: the first thing that is.
enum class RecordFault : std::int32_t {
  kNone = 0,
  kSize = 1,     // cut off, or longer than its header says
  kMagic = 2,    // not a record
  kVersion = 3,  // of another version
  kHeader = 4,   // the checksum of the header
  kKey = 5,      // a record of another block
  kLayout = 6,   // of another layout
  kTokens = 7,   // of other positions
  kEpoch = 8,    // of before something was forgotten
  kPayload = 9,  // the checksum of the payload
};
inline constexpr int kNumRecordFaults = 10;
[[nodiscard]] KVFOLIO_API const char* to_string(RecordFault fault) noexcept;

// What a record says of its root: enough to find the records of a tenant, not to name them.
[[nodiscard]] KVFOLIO_API std::uint64_t root_owner(const Digest& root) noexcept;
// The seed of the checksum of a payload.
[[nodiscard]] KVFOLIO_API std::uint64_t payload_seed(const TierKey& key) noexcept;
// Writes the header; info.checksum is taken as it is.
KVFOLIO_API void write_record_header(const RecordInfo& info,
                                     std::span<std::byte, kRecordHeaderBytes> out) noexcept;
// Computes the checksum of the payload behind the header's place and writes the header. Requires:
// record.size() is kRecordHeaderBytes + info.payload_bytes.
KVFOLIO_API void seal_record(const RecordInfo& info, std::span<std::byte> record) noexcept;
// Reads a header, of which nothing is expected. kNone, or kSize, kMagic, kVersion, kHeader.
[[nodiscard]] KVFOLIO_API RecordFault read_record_header(std::span<const std::byte> record,
                                                         RecordInfo& out) noexcept;
// Everything but the payload's checksum: the record is what `expected` says, whose checksum, writer
// and owner are not looked at.
[[nodiscard]] KVFOLIO_API RecordFault check_record_header(std::span<const std::byte> record,
                                                          const RecordInfo& expected) noexcept;
// Everything.
[[nodiscard]] KVFOLIO_API RecordFault check_record(std::span<const std::byte> record,
                                                   const RecordInfo& expected) noexcept;

}  // namespace kvfolio
