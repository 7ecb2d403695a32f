// SPDX-License-Identifier: Apache-2.0

#include "kvfolio/record.h"

#include <algorithm>
#include <cstring>

#include "base/little_endian.h"
#include "base/mutants.h"
#include "kvfolio/checked_copy.h"

namespace kvfolio {
namespace {

constexpr std::uint32_t kMagic = 0x5246564b;  // "KVFR"
constexpr std::uint16_t kVersion = 1;
constexpr std::size_t kCrcAt = kRecordHeaderBytes - 4;

}  // namespace

const char* to_string(RecordFault fault) noexcept {
  constexpr const char* kNames[kNumRecordFaults] = {
      "none", "size", "magic", "version", "header", "key", "layout", "tokens", "epoch", "payload"};
  const auto index = static_cast<std::size_t>(fault);
  return index < std::size(kNames) ? kNames[index] : "invalid";
}

std::uint64_t root_owner(const Digest& root) noexcept {
  return LittleEndianReader(root).get<std::uint64_t>();
}

std::uint64_t payload_seed(const TierKey& key) noexcept { return checksum(key.bytes, 0); }

void write_record_header(const RecordInfo& info,
                         std::span<std::byte, kRecordHeaderBytes> out) noexcept {
  std::fill(out.begin(), out.end(), std::byte{0});
  LittleEndianWriter to(out);
  to.put(kMagic);
  to.put(kVersion);
  to.put(static_cast<std::uint16_t>(kRecordHeaderBytes));
  to.put(std::span<const std::byte>(info.key.bytes));
  to.put(std::span<const std::byte>(info.layout));
  to.put(static_cast<std::uint64_t>(info.payload_bytes));
  to.put(static_cast<std::uint32_t>(info.begin));
  to.put(static_cast<std::uint32_t>(info.end));
  to.put(info.epoch);
  to.put(info.writer);
  to.put(std::uint64_t{0});
  to.put(info.checksum);
  to.put(info.owner);
  LittleEndianWriter(out.subspan(kCrcAt)).put(crc32c(out.first(kCrcAt)));
}

void seal_record(const RecordInfo& info, std::span<std::byte> record) noexcept {
  KVFOLIO_CHECK(record.size() == kRecordHeaderBytes + static_cast<std::size_t>(info.payload_bytes));
  RecordInfo sealed = info;
  sealed.checksum = checksum(record.subspan(kRecordHeaderBytes), payload_seed(info.key));
  write_record_header(sealed, record.first<kRecordHeaderBytes>());
}

RecordFault read_record_header(std::span<const std::byte> record, RecordInfo& out) noexcept {
  if (record.size() < kRecordHeaderBytes) return RecordFault::kSize;
  LittleEndianReader from(record.first(kRecordHeaderBytes));
  if (from.get<std::uint32_t>() != kMagic) return RecordFault::kMagic;
  if (from.get<std::uint16_t>() != kVersion) return RecordFault::kVersion;
  LittleEndianReader crc(record.subspan(kCrcAt, 4));
  if (crc.get<std::uint32_t>() != crc32c(record.first(kCrcAt))) return RecordFault::kHeader;
  if (from.get<std::uint16_t>() != kRecordHeaderBytes) return RecordFault::kHeader;
  from.get(std::span(out.key.bytes));
  from.get(std::span(out.layout));
  const auto payload_bytes = from.get<std::uint64_t>();
  out.begin = static_cast<std::int32_t>(from.get<std::uint32_t>());
  out.end = static_cast<std::int32_t>(from.get<std::uint32_t>());
  out.epoch = from.get<std::uint64_t>();
  out.writer = from.get<std::uint64_t>();
  const auto compression = from.get<std::uint64_t>();
  out.checksum = from.get<std::uint64_t>();
  out.owner = from.get<std::uint64_t>();
  if (compression != 0 || payload_bytes > std::uint64_t{1} << 40) return RecordFault::kHeader;
  out.payload_bytes = static_cast<std::int64_t>(payload_bytes);
  return RecordFault::kNone;
}

RecordFault check_record_header(std::span<const std::byte> record,
                                const RecordInfo& expected) noexcept {
  RecordInfo seen;
  if (const RecordFault fault = read_record_header(record, seen); fault != RecordFault::kNone) {
    return fault;
  }
  if (seen.key != expected.key) return RecordFault::kKey;
  if (seen.layout != expected.layout) return RecordFault::kLayout;
  if (seen.begin != expected.begin || seen.end != expected.end) return RecordFault::kTokens;
  if (seen.epoch != expected.epoch) return RecordFault::kEpoch;
  const bool whole =
      seen.payload_bytes == expected.payload_bytes &&
      record.size() == kRecordHeaderBytes + static_cast<std::size_t>(seen.payload_bytes);
  return whole ? RecordFault::kNone : RecordFault::kSize;
}

RecordFault check_record(std::span<const std::byte> record, const RecordInfo& expected) noexcept {
  if (const RecordFault fault = check_record_header(record, expected);
      fault != RecordFault::kNone) {
    return fault;
  }
  RecordInfo seen;
  static_cast<void>(read_record_header(record, seen));
  const bool right =
      mutant(Mutant::kChecksumUnread) ||
      checksum(record.subspan(kRecordHeaderBytes), payload_seed(seen.key)) == seen.checksum;
  return right ? RecordFault::kNone : RecordFault::kPayload;
}

}  // namespace kvfolio
