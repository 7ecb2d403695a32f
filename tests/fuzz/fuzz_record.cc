// SPDX-License-Identifier: Apache-2.0
// A record out of a hostile tier. Input: a byte of options, then edits of three bytes (place,
// place, value) of a good record; bit 0 of the options cuts the record where the last edit stands,
// bit 1 makes the checksum of the header right again, so that what stands behind it is reached; bit
// 2 takes the input itself for the record; bit 3 seals and verifies with a key. A record that
// verifies has the payload of the good one, and with a key every byte of it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kvfolio/checked_copy.h"
#include "kvfolio/record.h"
#include "kvfolio/status.h"

namespace {

using namespace kvfolio;  // NOLINT(google-build-using-namespace)

constexpr std::int64_t kPayload = 300;

const RecordKeys& test_keys() {
  constexpr std::array<std::byte, kRecordKeyBytes> kKey{std::byte{1}};
  static const RecordKeys keys = *RecordKeys::create({.key = kKey});
  return keys;
}

RecordInfo expected() {
  RecordInfo info{.payload_bytes = kPayload, .begin = 16, .end = 32, .epoch = 3};
  info.key.bytes[9] = std::byte{9};
  info.layout[4] = std::byte{4};
  return info;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const RecordInfo info = expected();
  std::vector<std::byte> good(static_cast<std::size_t>(kRecordHeaderBytes + kPayload));
  for (std::size_t i = 0; i < good.size(); ++i) good[i] = static_cast<std::byte>(i * 7);
  const RecordKeys keys = (data[0] & 8) != 0 ? test_keys() : RecordKeys();
  KVFOLIO_CHECK(seal_record(info, good, keys));
  std::vector<std::byte> record = good;
  std::size_t place = 0;
  for (std::size_t i = 1; i + 2 < size; i += 3) {
    place = (data[i] * std::size_t{256} + data[i + 1]) % record.size();
    record[place] = static_cast<std::byte>(data[i + 2]);
  }
  if ((data[0] & 4) != 0) {
    const auto* bytes = reinterpret_cast<const std::byte*>(data);
    record.assign(bytes + 1, bytes + size);
  }
  if ((data[0] & 1) != 0 && place < record.size()) record.resize(place);
  if ((data[0] & 2) != 0 && record.size() >= static_cast<std::size_t>(kRecordHeaderBytes)) {
    const std::uint32_t crc = crc32c(std::span(record).first(188));
    for (std::size_t i = 0; i < 4; ++i) record[188 + i] = static_cast<std::byte>(crc >> (8 * i));
  }
  RecordInfo seen;
  static_cast<void>(read_record_header(record, seen));
  if (check_record(record, info, keys) == RecordFault::kNone) {
    KVFOLIO_CHECK(!keys.has_key() || record == good);
    KVFOLIO_CHECK(record.size() == good.size());
    KVFOLIO_CHECK(std::memcmp(record.data() + kRecordHeaderBytes, good.data() + kRecordHeaderBytes,
                              static_cast<std::size_t>(kPayload)) == 0);
  }
  return 0;
}
