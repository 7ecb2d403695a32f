// SPDX-License-Identifier: Apache-2.0
//
// A segment of the disk tier that anybody may have written to. The input says how many records it
// has and what is written over which bytes; checksums are right again behind that if it says so, so
// that the fields behind them are reached. Whatever is found lies within the file, in order.

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "disk/recover.h"
#include "disk/sim_disk.h"
#include "kvfolio/checked_copy.h"

namespace {

using namespace kvfolio;        // NOLINT(google-build-using-namespace)
using namespace kvfolio::disk;  // NOLINT(google-build-using-namespace)

constexpr std::int64_t kData = 300;

std::vector<std::byte> segment_of(std::int64_t num_records, bool sealed) {
  std::vector<std::byte> file(static_cast<std::size_t>(kPiece + num_records * record_bytes(kData)));
  const auto piece = [&](std::int64_t at) {
    return std::span<std::byte, kPiece>(file.data() + at, kPiece);
  };
  encode(SegmentHeader{.number = 1, .epoch = 9}, piece(0));
  std::vector<FooterEntry> entries;
  for (std::int64_t i = 0; i < num_records; ++i) {
    RecordHeader header{.epoch = 9, .sequence = 5 + static_cast<std::uint64_t>(i)};
    header.key.bytes[0] = static_cast<std::byte>(i);
    header.data_bytes = kData;
    const std::array<std::byte, kData> data{};
    const std::int64_t at = kPiece + i * record_bytes(kData);
    if (!seal(header, data, {}, piece(at))) std::abort();
    entries.push_back({header.key, header.sequence, at, kData});
  }
  if (!sealed) return file;
  const std::size_t before = file.size();
  file.resize(before + static_cast<std::size_t>(footer_bytes(num_records)));
  encode_footer(9, entries, std::span(file).subspan(before));
  return file;
}

void mend_checksums(std::vector<std::byte>& file) {
  for (std::size_t at = 0; at + kPiece <= file.size(); at += kPiece) {
    const std::uint32_t crc = crc32c(std::span(file).subspan(at, kRecordFieldsBytes - 4));
    std::memcpy(file.data() + at + kRecordFieldsBytes - 4, &crc, sizeof crc);
  }
}

void check(bool right) {
  if (!right) std::abort();
}

void check_found(const FoundSegment& segment) {
  std::int64_t least = kPiece;
  check(segment.used <= segment.bytes);
  for (const FooterEntry& entry : segment.entries) {
    check(entry.offset % kPiece == 0 && entry.offset >= least && entry.data_bytes >= 0);
    least = entry.offset + record_bytes(entry.data_bytes);
    check(least <= segment.used);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  std::vector<std::byte> file = segment_of(data[0] % 60, (data[1] & 1) != 0);
  std::span<const std::uint8_t> rest(data + 2, size - 2);
  for (; rest.size() >= 4; rest = rest.subspan(4)) {
    const std::size_t at =
        kPiece * (rest[0] % (file.size() / kPiece)) + 16u * rest[1] + rest[2] % 16;
    file[at] = static_cast<std::byte>(rest[3]);
  }
  if ((data[1] & 2) != 0) mend_checksums(file);
  file.resize(file.size() - std::min(file.size(), std::size_t{rest.size()} * 1000));

  SimDisk disk;
  const Result<Directory> directory = Directory::open(disk, "/d", Directory::Use::kServe);
  check(directory.has_value());
  auto stored = std::make_shared<SimDisk::File>();
  stored->data = std::move(file);
  disk.files["/d/" + segment_name(1)] = std::move(stored);
  const auto take = [](FoundSegment& segment) {
    check_found(segment);
    return Status();
  };
  static_cast<void>(
      find_segments(disk, *directory, {}, take, [](std::string_view, std::string_view) {}));
  return 0;
}
