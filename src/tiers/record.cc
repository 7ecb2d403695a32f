// SPDX-License-Identifier: Apache-2.0

#include "kvfolio/record.h"

#include <algorithm>
#include <cstring>

#include "base/little_endian.h"
#include "base/mutants.h"
#include "kvfolio/checked_copy.h"

namespace kvfolio {
namespace {

constexpr std::uint32_t kRecordMagic = 0x5246564b;  // "KVFR"
constexpr std::uint16_t kRecordVersion = 2;
constexpr std::size_t kRecordCrcAt = kRecordHeaderBytes - 4;
constexpr std::size_t kChecksumBytes = 8;  // of the seal, where no key made it

using Bytes = std::span<const std::byte>;

bool mac_of(const RecordKeys& keys, std::uint32_t key_id, const RecordInfo& info, Bytes payload,
            Digest& out) noexcept {
  RecordMac mac;
  if (!mac.begin(keys, key_id, info)) return false;
  mac.add(payload);
  return mac.end(out);
}

// The seal alone. Requires: `seen` is what the header says.
RecordFault check_seal(const RecordInfo& seen, Bytes payload, const RecordKeys& keys) noexcept {
  if (mutant(Mutant::kChecksumUnread)) return RecordFault::kNone;
  if (!keys.has_key()) {
    if (seen.key_id != 0) return RecordFault::kSealer;
    return checksum(payload, payload_seed(seen.key)) == seen.checksum ? RecordFault::kNone
                                                                      : RecordFault::kPayload;
  }
  Digest mac{};
  if (seen.key_id == 0 || !mac_of(keys, seen.key_id, seen, payload, mac)) {
    return RecordFault::kSealer;
  }
  return same_mac(mac, seen.mac) ? RecordFault::kNone : RecordFault::kPayload;
}

}  // namespace

const char* to_string(RecordFault fault) noexcept {
  constexpr const char* kNames[kNumRecordFaults] = {"none",   "size",    "magic",  "version",
                                                    "header", "key",     "layout", "tokens",
                                                    "epoch",  "payload", "sealer"};
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
  to.put(kRecordMagic);
  to.put(kRecordVersion);
  to.put(static_cast<std::uint16_t>(kRecordHeaderBytes));
  to.put(std::span<const std::byte>(info.key.bytes));
  to.put(std::span<const std::byte>(info.layout));
  to.put(static_cast<std::uint64_t>(info.payload_bytes));
  to.put(static_cast<std::uint32_t>(info.begin));
  to.put(static_cast<std::uint32_t>(info.end));
  to.put(info.epoch);
  to.put(info.writer);
  to.put(info.key_id);
  Digest seal = info.mac;
  if (info.key_id == 0) {
    seal = {};
    LittleEndianWriter(seal).put(info.checksum);
  }
  to.put(std::span<const std::byte>(seal));
  to.put(info.owner);
  LittleEndianWriter(out.subspan(kRecordCrcAt)).put(crc32c(out.first(kRecordCrcAt)));
}

bool seal_record(const RecordInfo& info, Bytes payload, const RecordKeys& keys,
                 std::span<std::byte, kRecordHeaderBytes> out) noexcept {
  KVFOLIO_CHECK(payload.size() == static_cast<std::size_t>(info.payload_bytes));
  RecordInfo sealed = info;
  sealed.key_id = keys.id();
  sealed.checksum = 0;
  sealed.mac = {};
  if (keys.has_key()) {
    if (!mac_of(keys, sealed.key_id, sealed, payload, sealed.mac)) return false;
  } else {
    sealed.checksum = checksum(payload, payload_seed(info.key));
  }
  write_record_header(sealed, out);
  return true;
}

bool seal_record(const RecordInfo& info, std::span<std::byte> record,
                 const RecordKeys& keys) noexcept {
  KVFOLIO_CHECK(record.size() == kRecordHeaderBytes + static_cast<std::size_t>(info.payload_bytes));
  return seal_record(info, record.subspan(kRecordHeaderBytes), keys,
                     record.first<kRecordHeaderBytes>());
}

RecordFault read_record_header(std::span<const std::byte> record, RecordInfo& out) noexcept {
  if (record.size() < kRecordHeaderBytes) return RecordFault::kSize;
  LittleEndianReader from(record.first(kRecordHeaderBytes));
  if (from.get<std::uint32_t>() != kRecordMagic) return RecordFault::kMagic;
  if (from.get<std::uint16_t>() != kRecordVersion) return RecordFault::kVersion;
  LittleEndianReader crc(record.subspan(kRecordCrcAt, 4));
  if (crc.get<std::uint32_t>() != crc32c(record.first(kRecordCrcAt))) return RecordFault::kHeader;
  if (from.get<std::uint16_t>() != kRecordHeaderBytes) return RecordFault::kHeader;
  from.get(std::span(out.key.bytes));
  from.get(std::span(out.layout));
  const auto payload_bytes = from.get<std::uint64_t>();
  out.begin = static_cast<std::int32_t>(from.get<std::uint32_t>());
  out.end = static_cast<std::int32_t>(from.get<std::uint32_t>());
  out.epoch = from.get<std::uint64_t>();
  out.writer = from.get<std::uint64_t>();
  out.key_id = from.get<std::uint32_t>();
  from.get(std::span(out.mac));
  out.owner = from.get<std::uint64_t>();
  out.checksum = 0;
  if (out.key_id == 0) {
    out.checksum = LittleEndianReader(out.mac).get<std::uint64_t>();
    const auto rest = std::span(out.mac).subspan(kChecksumBytes);
    if (std::any_of(rest.begin(), rest.end(), [](std::byte b) { return b != std::byte{0}; })) {
      return RecordFault::kHeader;
    }
    out.mac = {};
  }
  if (payload_bytes > std::uint64_t{1} << 40) return RecordFault::kHeader;
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
      (record.size() == kRecordHeaderBytes ||
       record.size() == kRecordHeaderBytes + static_cast<std::size_t>(seen.payload_bytes));
  return whole ? RecordFault::kNone : RecordFault::kSize;
}

RecordFault check_record(std::span<const std::byte> record, const RecordInfo& expected,
                         const RecordKeys& keys) noexcept {
  if (const RecordFault fault = check_record_header(record, expected);
      fault != RecordFault::kNone) {
    return fault;
  }
  const std::span<const std::byte> payload = record.subspan(kRecordHeaderBytes);
  if (payload.size() != static_cast<std::size_t>(expected.payload_bytes)) return RecordFault::kSize;
  return check_record(record.first<kRecordHeaderBytes>(), payload, expected, keys);
}

RecordFault check_record(std::span<const std::byte, kRecordHeaderBytes> header,
                         std::span<const std::byte> payload, const RecordInfo& expected,
                         const RecordKeys& keys) noexcept {
  KVFOLIO_CHECK(payload.size() == static_cast<std::size_t>(expected.payload_bytes));
  if (const RecordFault fault = check_record_header(header, expected);
      fault != RecordFault::kNone) {
    return fault;
  }
  RecordInfo seen;
  static_cast<void>(read_record_header(header, seen));
  return check_seal(seen, payload, keys);
}

}  // namespace kvfolio
