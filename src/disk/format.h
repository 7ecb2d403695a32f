// SPDX-License-Identifier: Apache-2.0
#pragma once

// How records lie in a segment, a file of the disk tier. All of it is pieces of 4 KiB, so that it
// can be read and written with O_DIRECT. All numbers are little-endian.
//
//   segment = segment header (4 KiB), records back to back, footer (sealed segments only)
//   record  = record header (4 KiB: that of record.h, and behind it a tail) and body (a multiple of
//             4 KiB)
//   footer  = one entry of 96 bytes for each record, padded to 4 KiB, and a trailer of 4 KiB, which
//             ends the file
//
// What a record keeps is `data`: any bytes. The part of data behind its last whole 4 KiB, its tail,
// lies in the record header if it fits there. So a record of 192 bytes and an image of 256 KiB
// takes 260 KiB, and its body is written from where the caller has it.
//
// The header of a record is sealed (record.h). As its epoch it has that of the segment, a random
// number of the file, and as its writer the number of the record in the order of the directory. So
// bytes of an earlier file, of another place or of another record do not pass for this one. Numbers
// within a segment follow each other without a gap. The footer is a copy of what the headers say:
// it saves reading them, and no more.
//
// A record that was erased has a tombstone for a header. It says how large the record was, so that
// the next one is found, and nothing of what it was: no key, no data.
//
// Segments of version 1 are read, and not written to any more: their records have a header of their
// own (KVFD), with a checksum of data that no key can make.
//
// Every decode function takes any bytes. Thread safety: free functions.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvfolio/record.h"
#include "kvfolio/tier.h"

namespace kvfolio::disk {

inline constexpr std::int64_t kPiece = 4096;
inline constexpr std::uint16_t kFormatVersion = 2;
// The tail of data follows them.
inline constexpr std::int64_t kRecordFieldsBytes = kRecordHeaderBytes;
inline constexpr std::int64_t kTailBytesMax = kPiece - kRecordFieldsBytes;
inline constexpr std::int64_t kFooterEntryBytes = 96;
// So that sizes and places fit their fields with room to spare.
inline constexpr std::int64_t kDataBytesMax = std::int64_t{1} << 31;
inline constexpr std::int64_t kSegmentBytesMax = std::int64_t{1} << 36;

[[nodiscard]] constexpr std::int64_t round_up_to_piece(std::int64_t bytes) noexcept {
  return (bytes + kPiece - 1) / kPiece * kPiece;
}
// Bytes of data that lie in the record header.
[[nodiscard]] constexpr std::int64_t tail_bytes(std::int64_t data_bytes) noexcept {
  const std::int64_t tail = data_bytes % kPiece;
  return tail <= kTailBytesMax ? tail : 0;
}
[[nodiscard]] constexpr std::int64_t body_bytes(std::int64_t data_bytes) noexcept {
  return round_up_to_piece(data_bytes - tail_bytes(data_bytes));
}
[[nodiscard]] constexpr std::int64_t record_bytes(std::int64_t data_bytes) noexcept {
  return kPiece + body_bytes(data_bytes);
}
[[nodiscard]] constexpr std::int64_t footer_bytes(std::int64_t num_records) noexcept {
  return round_up_to_piece(num_records * kFooterEntryBytes) + kPiece;
}

static_assert(record_bytes(192 + (256 << 10)) == 260 << 10 && record_bytes(0) == kPiece);
static_assert(footer_bytes(0) == kPiece && footer_bytes(43) == 3 * kPiece);

enum class FormatFault : std::int32_t {
  kNone = 0,
  kMagic = 1,     // something else, or nothing
  kVersion = 2,   // of a newer version
  kChecksum = 3,  // damaged
  kFields = 4,    // numbers that no writer writes
};

struct SegmentHeader {
  std::uint64_t number = 0;  // of the file, ascending
  std::uint64_t epoch = 0;   // random
  std::uint16_t version = kFormatVersion;
};

// What a record's header says beside its seal.
struct RecordHeader {
  std::uint64_t epoch = 0;  // of the segment
  std::uint64_t sequence = 0;
  TierKey key{};
  std::int64_t data_bytes = 0;
  bool erased = false;  // a tombstone: its key is zero

  friend bool operator==(const RecordHeader&, const RecordHeader&) = default;
};

struct FooterEntry {
  TierKey key{};
  std::uint64_t sequence = 0;
  std::int64_t offset = 0;  // of the record in the file
  std::int64_t data_bytes = 0;
  // It is being erased: its header may be whole yet, so who opens the segment has to know of it. In
  // the file this is the lowest bit of the offset.
  bool erased = false;
};

struct Trailer {
  std::uint64_t epoch = 0;
  std::int64_t num_records = 0;
  std::uint64_t checksum = 0;  // of the entries
};

// Each fills all of its piece.
void encode(const SegmentHeader& header, std::span<std::byte, kPiece> out) noexcept;
// A tombstone for the record.
void encode_tombstone(const RecordHeader& header, std::span<std::byte, kPiece> out) noexcept;
// The header of a record with its seal, and the tail of data. False: no memory, only with a key.
[[nodiscard]] bool seal(const RecordHeader& header, std::span<const std::byte> data,
                        const RecordKeys& keys, std::span<std::byte, kPiece> out) noexcept;
// What is wrong with the seal of the record whose header this piece has, and whose bytes are
// `data`. kSealer: another key sealed it, or none where there is one. Requires: decode() gave
// `header` of the piece, which is no tombstone, and data.size() is header.data_bytes.
[[nodiscard]] RecordFault fault_of(std::span<const std::byte, kPiece> piece,
                                   const RecordHeader& header, std::span<const std::byte> data,
                                   const RecordKeys& keys) noexcept;
// The whole footer: footer_bytes(entries.size()) bytes.
void encode_footer(std::uint64_t epoch, std::span<const FooterEntry> entries,
                   std::span<std::byte> out) noexcept;

[[nodiscard]] FormatFault decode(std::span<const std::byte> piece, SegmentHeader& out) noexcept;
[[nodiscard]] FormatFault decode(std::span<const std::byte> piece, RecordHeader& out) noexcept;
[[nodiscard]] FormatFault decode(std::span<const std::byte> piece, Trailer& out) noexcept;
// Begins as one of the headers does, whatever follows.
[[nodiscard]] bool has_magic(std::span<const std::byte> piece) noexcept;
// `footer_at` is where the entries begin in the file: every record lies before it.
[[nodiscard]] FormatFault decode_entries(const Trailer& trailer, std::span<const std::byte> entries,
                                         std::int64_t footer_at, std::vector<FooterEntry>& out);

}  // namespace kvfolio::disk
