// SPDX-License-Identifier: Apache-2.0
#include "disk/recover.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/text.h"
#include "disk/jobs.h"

namespace kvfolio::disk {
namespace {

// As many pieces are read at once where headers lie close together.
constexpr std::int64_t kWindowBytes = 16 * kPiece;

// Reads pieces of a segment. A piece that cannot be read is not a piece that is not ours: the
// segment keeps the error.
class Reader {
 public:
  explicit Reader(DiskCalls& calls) : calls_(calls), piece_(kPiece), window_(kWindowBytes) {}

  // Empty: the file ends before, or it cannot be read, see segment.read_error.
  std::span<const std::byte> piece(FoundSegment& segment, std::int64_t offset) {
    return read(segment, offset, piece_, kPiece);
  }
  // The same for pieces of one segment in ascending order, without a call for each where they lie
  // close together. What a window cannot read is read piece by piece.
  std::span<const std::byte> next_piece(FoundSegment& segment, std::int64_t offset) {
    if (window_bytes_ < kPiece || offset < window_at_ ||
        offset + kPiece > window_at_ + window_bytes_) {
      const bool is_near = offset < window_at_ + 2 * kWindowBytes;
      window_bytes_ = 0;
      window_at_ = offset;
      const std::int64_t bytes = std::min(kWindowBytes, (segment.bytes - offset) / kPiece * kPiece);
      if (!is_near || bytes <= kPiece) return piece(segment, offset);
      const std::int64_t before = std::exchange(segment.read_error, 0);
      const bool is_read = !read(segment, offset, window_, bytes).empty();
      segment.read_error = before;
      if (!is_read) return piece(segment, offset);
      window_bytes_ = bytes;
    }
    return {window_.data() + (offset - window_at_), static_cast<std::size_t>(kPiece)};
  }
  void begin_segment() noexcept { window_at_ = window_bytes_ = 0; }
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
  AlignedBuffer piece_, window_;
  std::int64_t window_at_ = 0, window_bytes_ = 0;
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
    if (decode(reader.next_piece(segment, segment.used), header) != FormatFault::kNone) return;
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
  segment.has_header = has_header;
  segment.epoch = header.epoch;
  segment.version = has_header ? header.version : 0;
  // Its name is no more than a name: someone may have changed it.
  if (has_header) segment.number = header.number;
  reader.begin_segment();
  segment.sealed = read_footer(reader, segment, has_header);
  if (!segment.sealed) read_headers(reader, segment, has_header);
  const bool has_records = segment.sealed || segment.used > kPiece;
  if (has_header && !has_records && segment.read_error == 0) return Verdict::kEmpty;
  const bool is_ours = has_header || has_records;
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

// What another program put there under a name of ours is not ours, whatever it is.
std::string_view what_is_foreign(std::int64_t result) {
  switch (-result) {
    case ELOOP:
      return "it is a symbolic link";
    case EISDIR:
    case ENXIO:
    case EINVAL:
      return "it is not a file";
    case EACCES:
    case EPERM:
      return "it may not be opened";
    default:
      return {};
  }
}

}  // namespace

Status find_segments(DiskCalls& calls, const Directory& directory, const FindOptions& options,
                     const TakeSegment& take, const TakeForeign& take_foreign) {
  const Result<std::vector<std::uint64_t>> numbers = directory.segments();
  if (!numbers) return numbers.error();
  Reader reader(calls);
  for (const std::uint64_t number : *numbers) {
    const std::string name = segment_name(number);
    const auto cannot = [&](const char* what, std::int64_t result) {
      return Status(ErrorCode::kUnavailable,
                    text::concat("disk tier: cannot ", what, " ", directory.path_of(name), ": ",
                                 error_text(result)));
    };
    FoundSegment segment{.name = number, .number = number, .direct = options.direct};
    // O_NONBLOCK: a pipe of this name would wait for its other end. Not with a ring, which means
    // something else by it.
    const auto open = [&] {
      segment.file = open_segment(calls, directory.file(), name,
                                  options.writes ? O_RDWR : O_RDONLY | O_NONBLOCK, segment.direct);
      return segment.file;
    };
    while (open() == -EMFILE || segment.file == -ENFILE) {
      if (!options.make_room || !options.make_room()) break;
    }
    if (segment.file < 0) {
      const std::string_view what = what_is_foreign(segment.file);
      if (what.empty()) return cannot("open", segment.file);
      take_foreign(name, what);
      continue;
    }
    const std::int64_t size = calls.size(segment.file);
    segment.bytes = std::clamp(size, std::int64_t{0}, kSegmentBytesMax);
    const Verdict verdict = size < 0 ? Verdict::kForeign : read_segment(reader, segment);
    segment.is_empty = verdict == Verdict::kEmpty;
    Status taken;
    if (verdict == Verdict::kOurs || verdict == Verdict::kEmpty) {
      taken = take(segment);
    } else if (verdict == Verdict::kForeign) {
      take_foreign(name, size < 0 ? "it is not a file" : "it has nothing of a segment");
    }
    if (segment.file >= 0) calls.close(segment.file);
    KVFOLIO_RETURN_IF_ERROR(std::move(taken));
    if (size < 0 && size != -EINVAL) return cannot("ask for the size of", size);
    if (verdict == Verdict::kNewer) {
      return Status(ErrorCode::kFailedPrecondition,
                    text::concat("disk tier: ", directory.path_of(name),
                                 " is of a newer version than ", std::uint32_t{kFormatVersion},
                                 "; use a newer program or another directory"));
    }
  }
  return {};
}

}  // namespace kvfolio::disk
