// SPDX-License-Identifier: Apache-2.0
#include "disk/format.h"

#include <algorithm>
#include <limits>

#include "base/little_endian.h"
#include "kvfolio/checked_copy.h"

namespace kvfolio::disk {
namespace {

constexpr std::uint64_t kErasedBit = 1;  // of an offset, which is a multiple of kPiece

constexpr std::uint32_t kSegmentMagic = 0x5346564b;    // "KVFS"
constexpr std::uint32_t kOldRecordMagic = 0x4446564b;  // "KVFD", of version 1
constexpr std::uint32_t kSealedMagic = 0x5246564b;     // "KVFR": of record.h
constexpr std::uint32_t kTombstoneMagic = 0x4546564b;  // "KVFE"
constexpr std::uint32_t kTrailerMagic = 0x4646564b;    // "KVFF"
// A segment holds fewer: a record takes a piece at least.
constexpr std::uint64_t kRecordsMax = kSegmentBytesMax / kPiece;

// In each of the three headers: magic, version and size before the fields, a checksum behind them.
constexpr std::size_t kFields = kRecordFieldsBytes;
constexpr std::size_t kCrcAt = kFields - 4;

LittleEndianWriter begin(std::span<std::byte, kPiece> out, std::uint32_t magic,
                         std::uint16_t version = kFormatVersion) noexcept {
  std::fill(out.begin(), out.end(), std::byte{0});
  LittleEndianWriter to(out);
  to.put(magic);
  to.put(version);
  to.put(static_cast<std::uint16_t>(kFields));
  return to;
}

RecordInfo info_of(const RecordHeader& header) noexcept {
  return {.key = header.key,
          .payload_bytes = header.data_bytes,
          .epoch = header.epoch,
          .writer = header.sequence};
}

void end(std::span<std::byte, kPiece> out) noexcept {
  LittleEndianWriter(out.subspan(kCrcAt)).put(crc32c(out.first(kCrcAt)));
}

// The checksum comes first: a damaged version is damage, not another version. But the place of the
// checksum is only known for versions that have it there, so newer versions keep it there.
FormatFault check(std::span<const std::byte> piece, std::uint32_t magic) noexcept {
  if (piece.size() < kFields) return FormatFault::kMagic;
  LittleEndianReader from(piece);
  if (from.get<std::uint32_t>() != magic) return FormatFault::kMagic;
  LittleEndianReader crc(piece.subspan(kCrcAt));
  if (crc.get<std::uint32_t>() != crc32c(piece.first(kCrcAt))) return FormatFault::kChecksum;
  if (from.get<std::uint16_t>() > kFormatVersion) return FormatFault::kVersion;
  return from.get<std::uint16_t>() == kFields ? FormatFault::kNone : FormatFault::kFields;
}

LittleEndianReader fields(std::span<const std::byte> piece) noexcept {
  return LittleEndianReader(piece.subspan(8, kCrcAt - 8));
}

// Requires: what check() has seen. False for a number that no writer writes.
bool get_data_bytes(LittleEndianReader& from, std::int64_t& out) noexcept {
  const auto bytes = from.get<std::uint64_t>();
  out = static_cast<std::int64_t>(std::min<std::uint64_t>(bytes, kDataBytesMax));
  return bytes <= static_cast<std::uint64_t>(kDataBytesMax);
}

// What no disk tier writes: a record of another medium, or too long.
FormatFault take_fields(const RecordInfo& info, RecordHeader& out) noexcept {
  out = {.epoch = info.epoch,
         .sequence = info.writer,
         .key = info.key,
         .data_bytes = std::min(info.payload_bytes, kDataBytesMax)};
  const bool is_ours = info.layout == Digest{} && info.begin == 0 && info.end == 0 &&
                       info.owner == 0 && info.payload_bytes <= kDataBytesMax;
  return is_ours ? FormatFault::kNone : FormatFault::kFields;
}

}  // namespace

void encode(const SegmentHeader& header, std::span<std::byte, kPiece> out) noexcept {
  LittleEndianWriter to = begin(out, kSegmentMagic, header.version);
  to.put(header.number);
  to.put(header.epoch);
  end(out);
}

void encode_tombstone(const RecordHeader& header, std::span<std::byte, kPiece> out) noexcept {
  KVFOLIO_CHECK(header.erased && header.data_bytes >= 0 && header.data_bytes <= kDataBytesMax);
  LittleEndianWriter to = begin(out, kTombstoneMagic);
  to.put(header.epoch);
  to.put(header.sequence);
  to.put(std::span<const std::byte>(TierKey().bytes));
  to.put(static_cast<std::uint64_t>(header.data_bytes));
  end(out);
}

bool seal(const RecordHeader& header, std::span<const std::byte> data, const RecordKeys& keys,
          std::span<std::byte, kPiece> out) noexcept {
  std::fill(out.begin(), out.end(), std::byte{0});
  KVFOLIO_CHECK(!header.erased && std::ssize(data) == header.data_bytes);
  const auto tail = data.last(static_cast<std::size_t>(tail_bytes(header.data_bytes)));
  LittleEndianWriter(out.subspan(kFields)).put(tail);
  return seal_record(info_of(header), data, keys, out.first<kRecordHeaderBytes>());
}

RecordFault fault_of(std::span<const std::byte, kPiece> piece, const RecordHeader& header,
                     std::span<const std::byte> data, const RecordKeys& keys) noexcept {
  LittleEndianReader from(piece);
  if (from.get<std::uint32_t>() == kSealedMagic) {
    return check_record(piece.first<kRecordHeaderBytes>(), data, info_of(header), keys);
  }
  if (keys.has_key()) return RecordFault::kSealer;  // there was no key in that version
  constexpr std::size_t kChecksumAt = 8 + 8 + 8 + TierKey::kBytes + 8;
  LittleEndianReader sum(piece.subspan(kChecksumAt, 8));
  const bool right = checksum(data, payload_seed(header.key)) == sum.get<std::uint64_t>();
  return right ? RecordFault::kNone : RecordFault::kPayload;
}

void encode_footer(std::uint64_t epoch, std::span<const FooterEntry> entries,
                   std::span<std::byte> out) noexcept {
  KVFOLIO_CHECK(out.size() ==
                static_cast<std::size_t>(footer_bytes(static_cast<std::int64_t>(entries.size()))));
  const std::span<std::byte> body = out.first(out.size() - kPiece);
  std::fill(body.begin(), body.end(), std::byte{0});
  LittleEndianWriter to(body);
  for (const FooterEntry& entry : entries) {
    KVFOLIO_DCHECK(entry.offset >= kPiece && entry.offset % kPiece == 0);
    to.put(std::span<const std::byte>(entry.key.bytes));
    to.put(entry.sequence);
    to.put(static_cast<std::uint64_t>(entry.offset) | (entry.erased ? kErasedBit : 0));
    to.put(static_cast<std::uint64_t>(entry.data_bytes));
  }
  const auto piece = out.last<kPiece>();
  LittleEndianWriter trailer = begin(piece, kTrailerMagic);
  trailer.put(epoch);
  trailer.put(static_cast<std::uint64_t>(entries.size()));
  trailer.put(checksum(body, epoch));
  end(piece);
}

FormatFault decode(std::span<const std::byte> piece, SegmentHeader& out) noexcept {
  const FormatFault fault = check(piece, kSegmentMagic);
  if (fault != FormatFault::kNone) return fault;
  LittleEndianReader from = fields(piece);
  out.number = from.get<std::uint64_t>();
  out.epoch = from.get<std::uint64_t>();
  out.version = LittleEndianReader(piece.subspan(4, 2)).get<std::uint16_t>();
  return FormatFault::kNone;
}

FormatFault decode(std::span<const std::byte> piece, RecordHeader& out) noexcept {
  RecordInfo info;
  const RecordFault sealed = read_record_header(piece, info);
  if (sealed == RecordFault::kNone) return take_fields(info, out);
  if (sealed == RecordFault::kVersion) return FormatFault::kVersion;
  if (sealed == RecordFault::kHeader) return FormatFault::kChecksum;
  FormatFault fault = check(piece, kOldRecordMagic);
  out.erased = fault == FormatFault::kMagic;
  if (out.erased) fault = check(piece, kTombstoneMagic);
  if (fault != FormatFault::kNone) return fault;
  LittleEndianReader from = fields(piece);
  out.epoch = from.get<std::uint64_t>();
  out.sequence = from.get<std::uint64_t>();
  from.get(std::span(out.key.bytes));
  const bool sane = get_data_bytes(from, out.data_bytes);
  return sane ? FormatFault::kNone : FormatFault::kFields;
}

FormatFault decode(std::span<const std::byte> piece, Trailer& out) noexcept {
  const FormatFault fault = check(piece, kTrailerMagic);
  if (fault != FormatFault::kNone) return fault;
  LittleEndianReader from = fields(piece);
  out.epoch = from.get<std::uint64_t>();
  const auto num_records = from.get<std::uint64_t>();
  out.checksum = from.get<std::uint64_t>();
  if (num_records > kRecordsMax) return FormatFault::kFields;
  out.num_records = static_cast<std::int64_t>(num_records);
  return FormatFault::kNone;
}

bool has_magic(std::span<const std::byte> piece) noexcept {
  if (piece.size() < sizeof kSegmentMagic) return false;
  const auto magic = LittleEndianReader(piece).get<std::uint32_t>();
  return magic == kSegmentMagic || magic == kSealedMagic || magic == kOldRecordMagic ||
         magic == kTombstoneMagic || magic == kTrailerMagic;
}

FormatFault decode_entries(const Trailer& trailer, std::span<const std::byte> entries,
                           std::int64_t footer_at, std::vector<FooterEntry>& out) {
  const auto expected = static_cast<std::size_t>(footer_bytes(trailer.num_records) - kPiece);
  if (entries.size() != expected) return FormatFault::kFields;
  if (checksum(entries, trailer.epoch) != trailer.checksum) return FormatFault::kChecksum;
  LittleEndianReader from(entries);
  std::int64_t least = kPiece;  // records lie behind each other
  std::uint64_t next = 0;       // and so do their numbers, which erased ones have, too
  for (std::int64_t i = 0; i < trailer.num_records; ++i) {
    FooterEntry entry;
    from.get(std::span(entry.key.bytes));
    entry.sequence = from.get<std::uint64_t>();
    const auto place = from.get<std::uint64_t>();
    entry.erased = (place & kErasedBit) != 0;
    const std::uint64_t offset = place & ~kErasedBit;
    if (!get_data_bytes(from, entry.data_bytes)) return FormatFault::kFields;
    const std::int64_t size = record_bytes(entry.data_bytes);
    if (offset % kPiece != 0 || offset < static_cast<std::uint64_t>(least) ||
        offset > static_cast<std::uint64_t>(footer_at) ||
        size > footer_at - static_cast<std::int64_t>(offset)) {
      return FormatFault::kFields;
    }
    entry.offset = static_cast<std::int64_t>(offset);
    const auto between = static_cast<std::uint64_t>((entry.offset - least) / kPiece);
    if (i > 0 && (entry.sequence < next || entry.sequence - next > between)) {
      return FormatFault::kFields;
    }
    next = entry.sequence + 1;
    least = entry.offset + size;
    out.push_back(entry);
  }
  return FormatFault::kNone;
}

}  // namespace kvfolio::disk
