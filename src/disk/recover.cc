// SPDX-License-Identifier: Apache-2.0
#include "disk/recover.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>

#include "base/text.h"
#include "disk/jobs.h"

namespace kvfolio::disk {
namespace {

// Reads pieces of a segment. A piece that cannot be read is not a piece that is not ours: the
// segment keeps the error.
class Reader {
 public:
  explicit Reader(DiskCalls& calls) : calls_(calls), piece_(kPiece) {}

  // Empty: the file ends before, or it cannot be read, see segment.read_error.
  std::span<const std::byte> piece(FoundSegment& segment, std::int64_t offset) {
    return read(segment, offset, piece_, kPiece);
  }
  std::span<const std::byte> read(FoundSegment& segment, std::int64_t offset,
                                  const AlignedBuffer& into, std::int64_t bytes) {
    if (bytes > segment.bytes - offset) return {};
    std::int64_t result = -ENOMEM;
    if (into.data() != nullptr) {
      TransferJob job(IoStep::Kind::kRead, {.file = segment.file, .offset = offset}, into.data(),
                      bytes);
      run_job(job, calls_);
      result = job.result;
    }
    if (result == 0) return {into.data(), static_cast<std::size_t>(bytes)};
    segment.read_error = result;
    return {};
  }

 private:
  DiskCalls& calls_;
  AlignedBuffer piece_;
};

// Without a header of the segment (`has_epoch` is false) the trailer says the epoch: it has a
// checksum of its own.
bool read_footer(Reader& reader, FoundSegment& segment, bool has_epoch) {
  if (segment.bytes < 2 * kPiece || segment.bytes % kPiece != 0) return false;
  Trailer trailer;
  if (decode(reader.piece(segment, segment.bytes - kPiece), trailer) != FormatFault::kNone ||
      (has_epoch && trailer.epoch != segment.epoch)) {
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
  segment.epoch = trailer.epoch;
  segment.used = footer_at;
  return true;
}

// Without a header of the segment the first record says the epoch.
void read_headers(Reader& reader, FoundSegment& segment, bool has_epoch) {
  segment.used = kPiece;
  std::uint64_t last = 0;
  while (segment.used + kPiece <= segment.bytes) {
    RecordHeader header;
    if (decode(reader.piece(segment, segment.used), header) != FormatFault::kNone) return;
    const std::int64_t size = record_bytes(header.data_bytes);
    const bool is_first = segment.used == kPiece;
    const bool is_next = ((is_first && !has_epoch) || header.epoch == segment.epoch) &&
                         (is_first || header.sequence == last + 1) &&
                         size <= segment.bytes - segment.used;
    if (!is_next) return;
    segment.epoch = header.epoch;
    last = header.sequence;
    if (header.erased) {
      ++segment.tombstones;
    } else {
      segment.entries.push_back({.key = header.key,
                                 .sequence = header.sequence,
                                 .offset = segment.used,
                                 .data_bytes = header.data_bytes});
    }
    segment.used += size;
  }
}

// kEmpty: made by us, and has no record. kForeign: something else under a name of ours.
enum class Verdict : std::uint8_t { kOurs, kEmpty, kForeign, kNewer };

// Begins with a magic of ours, or with nothing, as a file does whose header was never written.
bool begins_as_ours(std::span<const std::byte> piece) {
  return has_magic(piece) || std::all_of(piece.begin(), piece.end(),
                                         [](std::byte byte) { return byte == std::byte{}; });
}

Verdict read_segment(Reader& reader, FoundSegment& segment) {
  SegmentHeader header;
  const FormatFault fault = decode(reader.piece(segment, 0), header);
  if (fault == FormatFault::kVersion) return Verdict::kNewer;
  const bool has_header = fault == FormatFault::kNone;
  if (has_header && header.number != segment.number) return Verdict::kEmpty;
  segment.has_header = has_header;
  segment.epoch = header.epoch;
  segment.sealed = read_footer(reader, segment, has_header);
  if (!segment.sealed) read_headers(reader, segment, has_header);
  const bool is_ours = has_header || segment.sealed || segment.used > kPiece;
  // What cannot be read now may be ours.
  const bool may_be = segment.read_error < 0 && segment.bytes >= kPiece;
  if (is_ours || may_be) return Verdict::kOurs;
  if (segment.bytes < kPiece) return segment.bytes == 0 ? Verdict::kEmpty : Verdict::kForeign;
  return begins_as_ours(reader.piece(segment, 0)) ? Verdict::kEmpty : Verdict::kForeign;
}

int open_segment(DiskCalls& calls, int directory, const std::string& name, int flags,
                 bool& direct) {
  flags |= O_NOFOLLOW;
  const int file = calls.open(directory, name, flags | (direct ? O_DIRECT : 0));
  if (file != -EINVAL || !direct) return file;
  direct = false;
  return calls.open(directory, name, flags);
}

void close_all(DiskCalls& calls, const std::vector<FoundSegment>& segments) {
  for (const FoundSegment& segment : segments) calls.close(segment.file);
}

}  // namespace

Result<std::vector<FoundSegment>> find_segments(DiskCalls& calls, const Directory& directory,
                                                const FindOptions& options) {
  const Result<std::vector<std::uint64_t>> numbers = directory.segments();
  if (!numbers) return numbers.error();
  Reader reader(calls);
  std::vector<FoundSegment> found;
  for (const std::uint64_t number : *numbers) {
    const std::string name = segment_name(number);
    const std::string path = directory.path_of(name);
    const auto cannot = [&](const char* what, std::int64_t result) {
      close_all(calls, found);
      return Status(ErrorCode::kUnavailable,
                    text::concat("disk tier: cannot ", what, " ", path, ": ", error_text(result)));
    };
    FoundSegment segment{.number = number, .direct = options.direct};
    // O_NONBLOCK: a pipe of this name would wait for its other end. Not with a ring, which means
    // something else by it.
    segment.file = open_segment(calls, directory.file(), name,
                                options.writes ? O_RDWR : O_RDONLY | O_NONBLOCK, segment.direct);
    if (segment.file < 0) return cannot("open", segment.file);
    const std::int64_t size = calls.size(segment.file);
    segment.bytes = std::clamp(size, std::int64_t{0}, kSegmentBytesMax);
    const Verdict verdict = size < 0 ? Verdict::kForeign : read_segment(reader, segment);
    if (verdict == Verdict::kOurs) {
      found.push_back(std::move(segment));
      continue;
    }
    calls.close(segment.file);
    if (size < 0) return cannot("ask for the size of", size);
    if (verdict == Verdict::kNewer) {
      close_all(calls, found);
      return Status(ErrorCode::kFailedPrecondition,
                    text::concat("disk tier: ", path, " is of a newer version than ",
                                 std::uint32_t{kFormatVersion},
                                 "; use a newer program or another directory"));
    }
    const bool remove = options.remove_empty && verdict == Verdict::kEmpty;
    const int removed = remove ? calls.unlink(directory.file(), name) : 0;
    if (removed < 0 && removed != -ENOENT) return cannot("remove", removed);
  }
  return found;
}

}  // namespace kvfolio::disk
