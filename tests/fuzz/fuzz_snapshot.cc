// SPDX-License-Identifier: Apache-2.0
// A hostile snapshot. Input: a byte of options, then edits of three bytes (place, place, value) of
// a snapshot that save() writes here; bit 0 of the options cuts the file where the last edit
// stands, bit 1 makes the checksums of its sections and of their headers right again, so that what
// stands behind them is reached; bit 2 takes the input itself for the file. Whatever comes back has
// the bytes of its tokens.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kvfolio/checked_copy.h"
#include "kvfolio/snapshot.h"
#include "kvfolio/status.h"
#include "offload/snapshot_format.h"
#include "snapshot_seeds.h"

namespace {

using namespace kvfolio;  // NOLINT(google-build-using-namespace)
using fuzz::MemoryFile;
using snapshot::kHeaderBytes;

// As one who knows the format would: walks along the sections as far as there are any.
void make_checksums_right(std::vector<std::byte>& file) {
  for (std::size_t at = 0; at + kHeaderBytes <= file.size();) {
    const auto header = std::span(file).subspan(at).first<kHeaderBytes>();
    LittleEndianReader from(header.subspan(6));
    const auto type = static_cast<snapshot::Type>(from.get<std::uint16_t>());
    static_cast<void>(from.get<std::uint64_t>());
    const auto bytes = from.get<std::uint64_t>();
    if (bytes > file.size() - at - kHeaderBytes) return;
    const auto body = std::span(file).subspan(at + kHeaderBytes, static_cast<std::size_t>(bytes));
    if (type != snapshot::Type::kRecord) {
      LittleEndianWriter(header.subspan(24)).put(checksum(body, at));
    } else if (body.size() >= 192) {
      LittleEndianWriter(body.subspan(188)).put(crc32c(body.first(188)));
    }
    LittleEndianWriter(header.subspan(60)).put(crc32c(header.first<60>()));
    at += static_cast<std::size_t>(
        snapshot::aligned(static_cast<std::int64_t>(kHeaderBytes + body.size())));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::vector<std::byte> good = fuzz::snapshot_of(fuzz::Kind::kMixed);
  if (size == 0) return 0;
  MemoryFile file;
  file.bytes = good;
  std::size_t place = 0;
  if ((data[0] & 4) != 0) {
    const auto* const bytes = reinterpret_cast<const std::byte*>(data);
    file.bytes.assign(bytes + 1, bytes + size);
  } else {
    for (std::size_t i = 1; i + 2 < size; i += 3) {
      place = (data[i] * std::size_t{256} + data[i + 1]) % file.bytes.size();
      file.bytes[place] = static_cast<std::byte>(data[i + 2]);
    }
    if ((data[0] & 1) != 0) file.bytes.resize(place);
  }
  if ((data[0] & 2) != 0) make_checksums_right(file.bytes);
  fuzz::restore_and_check(file);
  return 0;
}
