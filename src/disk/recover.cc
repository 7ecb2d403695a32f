// SPDX-License-Identifier: Apache-2.0
#include "disk/recover.h"

#include <fcntl.h>

#include <cerrno>

#include "base/text.h"
#include "disk/jobs.h"

namespace kvfolio::disk {
namespace {

class Reader {
 public:
  explicit Reader(DiskCalls& calls) : calls_(calls), piece_(kPiece) {}

  // Empty: it cannot be read, or there is no memory.
  std::span<const std::byte> piece(const FoundSegment& segment, std::int64_t offset) {
    return read(segment, offset, piece_, kPiece);
  }
  std::span<const std::byte> read(const FoundSegment& segment, std::int64_t offset,
                                  const AlignedBuffer& into, std::int64_t bytes) {
    if (into.data() == nullptr) return {};
    TransferJob job(IoStep::Kind::kRead, {.file = segment.file, .offset = offset}, into.data(),
                    bytes);
    run_job(job, calls_);
    if (job.result < 0) return {};
    return {into.data(), static_cast<std::size_t>(bytes)};
  }

 private:
  DiskCalls& calls_;
  AlignedBuffer piece_;
};

bool read_footer(Reader& reader, FoundSegment& segment) {
  if (segment.bytes < 2 * kPiece || segment.bytes % kPiece != 0) return false;
  Trailer trailer;
  if (decode(reader.piece(segment, segment.bytes - kPiece), trailer) != FormatFault::kNone ||
      trailer.epoch != segment.epoch) {
    return false;
  }
  const std::int64_t footer_at = segment.bytes - footer_bytes(trailer.num_records);
  if (footer_at < kPiece) return false;
  const std::int64_t bytes = segment.bytes - kPiece - footer_at;
  std::span<const std::byte> entries;
  const AlignedBuffer buffer = bytes > 0 ? AlignedBuffer(bytes) : AlignedBuffer();
  if (bytes > 0) entries = reader.read(segment, footer_at, buffer, bytes);
  if (decode_entries(trailer, entries, footer_at, segment.entries) != FormatFault::kNone) {
    segment.entries.clear();
    return false;
  }
  segment.used = footer_at;
  return true;
}

void read_headers(Reader& reader, FoundSegment& segment) {
  segment.used = kPiece;
  while (segment.used + kPiece <= segment.bytes) {
    RecordHeader header;
    if (decode(reader.piece(segment, segment.used), header) != FormatFault::kNone) return;
    const std::int64_t size = record_bytes(header.data_bytes);
    const bool is_next =
        header.epoch == segment.epoch &&
        (segment.entries.empty() || header.sequence == segment.entries.back().sequence + 1) &&
        size <= segment.bytes - segment.used;
    if (!is_next) return;
    segment.entries.push_back({.key = header.key,
                               .sequence = header.sequence,
                               .offset = segment.used,
                               .data_bytes = header.data_bytes});
    segment.used += size;
  }
}

int open_segment(DiskCalls& calls, const std::string& path, bool& direct) {
  const int file = calls.open(path, O_RDWR | (direct ? O_DIRECT : 0));
  if (file != -EINVAL || !direct) return file;
  direct = false;
  return calls.open(path, O_RDWR);
}

void close_all(DiskCalls& calls, const std::vector<FoundSegment>& segments) {
  for (const FoundSegment& segment : segments) calls.close(segment.file);
}

}  // namespace

Result<std::vector<FoundSegment>> find_segments(DiskCalls& calls, const Directory& directory,
                                                bool direct, bool remove_empty) {
  const Result<std::vector<std::uint64_t>> numbers = directory.segments();
  if (!numbers) return numbers.error();
  Reader reader(calls);
  std::vector<FoundSegment> found;
  for (const std::uint64_t number : *numbers) {
    const std::string path = directory.path_of(segment_name(number));
    FoundSegment segment{.number = number, .direct = direct};
    segment.file = open_segment(calls, path, segment.direct);
    if (segment.file < 0) {
      close_all(calls, found);
      return Status(ErrorCode::kUnavailable,
                    text::concat("disk tier: cannot open ", path, ": ", error_text(segment.file)));
    }
    segment.bytes = std::min(calls.size(segment.file), kSegmentBytesMax);
    SegmentHeader header;
    const FormatFault fault = decode(reader.piece(segment, 0), header);
    if (fault == FormatFault::kVersion) {
      calls.close(segment.file);
      close_all(calls, found);
      return Status(ErrorCode::kFailedPrecondition,
                    text::concat("disk tier: ", path, " is of a newer version than ",
                                 std::uint32_t{kFormatVersion},
                                 "; use a newer program or another directory"));
    }
    if (fault != FormatFault::kNone || header.number != number) {
      calls.close(segment.file);
      if (remove_empty) calls.unlink(path);
      continue;
    }
    segment.epoch = header.epoch;
    segment.sealed = read_footer(reader, segment);
    if (!segment.sealed) read_headers(reader, segment);
    found.push_back(std::move(segment));
  }
  return found;
}

}  // namespace kvfolio::disk
