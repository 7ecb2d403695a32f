// SPDX-License-Identifier: Apache-2.0
//
// The jobs of whole segments, and those that find out what a directory can do; those of one record
// are in record_jobs.cc.

#include "disk/jobs.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/mutants.h"
#include "disk/job_steps.h"

namespace kvfolio::disk {
namespace {

using Kind = IoStep::Kind;

}  // namespace

// ---- segments ----

IoStep CreateJob::next(std::int64_t last) noexcept {
  switch (step_++) {
    case 0:
      return name_step(Kind::kOpen, directory, name,
                       O_RDWR | O_CREAT | O_EXCL | (direct ? O_DIRECT : 0));
    case 1:
      if (last < 0) {
        result = last;
        return {};
      }
      file = static_cast<int>(last);
      KVFOLIO_DCHECK(bytes > kPiece && bytes % kPiece == 0);
      return file_step(Kind::kAllocate, file, bytes);
    case 2: {
      // Some file systems cannot take room ahead of time. Then ENOSPC may come with a record.
      const bool cannot = last == -EOPNOTSUPP || last == -ENOSYS;
      if (last < 0 && !cannot) return give_up(last);
      return file_step(Kind::kTruncate, file, bytes);
    }
    case 3: {
      if (last < 0) return give_up(last);
      piece_ = AlignedBuffer(kPiece);
      if (piece_.data() == nullptr) return give_up(-ENOMEM);
      encode(header, std::span<std::byte, kPiece>(piece_.data(), kPiece));
      IoStep step = transfer_step(Kind::kWrite, {.file = file, .offset = 0});
      step.add_part(piece_.data(), kPiece);
      return step;
    }
    case 4:
      return last < 0 ? give_up(last) : IoStep{};
    case 5:  // from give_up()
      file = -1;
      return name_step(Kind::kUnlink, directory, name);
    default:
      return {};
  }
}

IoStep CreateJob::give_up(std::int64_t error) noexcept {
  result = error;
  step_ = 5;
  return file_step(Kind::kClose, file);
}

IoStep SealJob::next(std::int64_t last) noexcept {
  // What the page cache keeps is no matter of durability.
  if (last < 0 && step_ < 6) result = last;
  if (result < 0) return {};
  switch (step_++) {
    case 0:
      KVFOLIO_CHECK(place.file >= 0 && is_behind_header(place));
      return file_step(Kind::kSync, place.file);
    case 1: {
      const std::int64_t bytes = footer_bytes(static_cast<std::int64_t>(entries.size()));
      footer_ = AlignedBuffer(bytes);
      if (footer_.data() == nullptr) {
        result = -ENOMEM;
        return {};
      }
      encode_footer(epoch, entries, {footer_.data(), static_cast<std::size_t>(bytes)});
      footer_begun = true;
      IoStep step = transfer_step(Kind::kWrite, place);
      step.add_part(footer_.data(), bytes);
      return step;
    }
    case 2:
      return file_step(Kind::kTruncate, place.file, end());
    case 3:
      truncated = true;
      return file_step(Kind::kSync, place.file);
    case 4:
      return file_step(Kind::kSyncDirectory, directory);
    case 5:
      if (place.direct) return {};
      return file_step(Kind::kDropCached, place.file, end());
    default:
      return {};
  }
}

IoStep EraseJob::next(std::int64_t last) noexcept {
  // Behind the tombstones nothing has to succeed: the long footer says the same, and a hole is made
  // where the file system knows how.
  if (last < 0 && phase_ < Phase::kShorterFooter) return give_up(last);
  switch (phase_) {
    case Phase::kFooter:
      phase_ = has_footer ? Phase::kFooterSync : Phase::kTombstones;
      if (has_footer) return write_footer();
      break;
    case Phase::kFooterSync:
      phase_ = Phase::kTombstones;
      return file_step(Kind::kSync, place.file);
    case Phase::kTombstones:
      break;
    case Phase::kSync:
      phase_ = has_footer ? Phase::kShorterFooter : Phase::kHoles;
      at_ = 0;
      if (has_footer) {
        leave_out_tombstones();
        return write_footer();
      }
      break;
    case Phase::kShorterFooter:
      footer_written = last >= 0;
      phase_ = Phase::kHoles;
      break;
    case Phase::kHoles:
      break;
    case Phase::kDone:
      return {};
  }
  if (phase_ == Phase::kTombstones) {
    if (at_ < tombstones.size() && !mutant(Mutant::kErasedWithoutTombstone)) {
      return write_tombstone(tombstones[at_++]);
    }
    phase_ = Phase::kSync;
    return file_step(Kind::kSync, place.file);
  }
  while (at_ < tombstones.size()) {
    const FooterEntry& record = tombstones[at_++];
    if (body_bytes(record.data_bytes) == 0) continue;
    IoStep step = file_step(Kind::kPunchHole, place.file, body_bytes(record.data_bytes));
    step.offset = record.offset + kPiece;
    return step;
  }
  phase_ = Phase::kDone;
  return {};
}

void EraseJob::leave_out_tombstones() noexcept {
  const auto by_offset = [](const FooterEntry& a, const FooterEntry& b) {
    return a.offset < b.offset;
  };
  std::sort(tombstones.begin(), tombstones.end(), by_offset);
  std::erase_if(entries, [&](const FooterEntry& entry) {
    return std::binary_search(tombstones.begin(), tombstones.end(), entry, by_offset);
  });
}

// A footer of no entry is one, too: the headers are tombstones.
IoStep EraseJob::write_footer() noexcept {
  const std::int64_t bytes = footer_bytes(static_cast<std::int64_t>(entries.size()));
  memory_ = AlignedBuffer(bytes);
  if (memory_.data() == nullptr) {
    if (phase_ < Phase::kShorterFooter) return give_up(-ENOMEM);
    phase_ = Phase::kHoles;
    return next(0);
  }
  encode_footer(epoch, entries, {memory_.data(), static_cast<std::size_t>(bytes)});
  const Extent at{.file = place.file, .offset = place.offset - bytes, .direct = place.direct};
  KVFOLIO_CHECK(is_behind_header(at));
  IoStep step = transfer_step(Kind::kWrite, at);
  step.add_part(memory_.data(), bytes);
  return step;
}

IoStep EraseJob::write_tombstone(const FooterEntry& record) noexcept {
  memory_ = AlignedBuffer(kPiece);
  if (memory_.data() == nullptr) return give_up(-ENOMEM);
  const RecordHeader header{
      .epoch = epoch, .sequence = record.sequence, .data_bytes = record.data_bytes, .erased = true};
  encode_tombstone(header, std::span<std::byte, kPiece>(memory_.data(), kPiece));
  const Extent at{.file = place.file, .offset = record.offset};
  KVFOLIO_CHECK(is_behind_header(at));
  IoStep step = transfer_step(Kind::kWrite, at);
  step.add_part(memory_.data(), kPiece);
  return step;
}

IoStep EraseJob::give_up(std::int64_t error) noexcept {
  result = error;
  phase_ = Phase::kDone;
  return {};
}

void EraseJob::use_file(int file, bool direct) noexcept {
  place.file = file;
  place.direct = direct;
}

// ---- segments that are opened again ----

IoStep OpenJob::open_it() const noexcept {
  return name_step(Kind::kOpen, directory, name, O_RDWR | O_NOFOLLOW | (direct ? O_DIRECT : 0));
}

bool OpenJob::is_the_same() const noexcept {
  SegmentHeader header;
  const std::span<const std::byte> piece(piece_.data(), kPiece);
  return decode(piece, header) == FormatFault::kNone && header.epoch == epoch;
}

IoStep OpenJob::next(std::int64_t last) noexcept {
  switch (step_++) {
    case 0:
      piece_ = AlignedBuffer(kPiece);
      if (piece_.data() == nullptr) {
        result = -ENOMEM;
        return {};
      }
      return open_it();
    case 1: {
      if (last == -EINVAL && direct) {
        direct = false;
        step_ = 1;
        return open_it();
      }
      if (last < 0) {
        result = last;
        return {};
      }
      file = static_cast<int>(last);
      IoStep step = transfer_step(Kind::kRead, {.file = file, .offset = 0});
      step.add_part(piece_.data(), kPiece);
      return step;
    }
    case 2:
      direct = direct && !fell_back;
      // A file that cannot be read is opened all the same: each record says so for itself.
      if (last < 0 || is_the_same()) return {};
      result = -ENOENT;
      return file_step(Kind::kClose, std::exchange(file, -1));
    default:
      return {};
  }
}

IoStep CloseJob::next(std::int64_t /*last*/) noexcept {
  return std::exchange(done_, true) ? IoStep{} : file_step(Kind::kClose, file);
}

// Small records have many headers to a window; large ones have a window each.
constexpr std::int64_t kWindowBytes = 16 * kPiece;

void ContinueJob::use_file(int file, bool direct) noexcept {
  place.file = file;
  place.direct = direct;
}

IoStep ContinueJob::give_up(std::int64_t error) noexcept {
  result = error;
  phase_ = Phase::kDone;
  return {};
}

IoStep ContinueJob::read_window() noexcept {
  window_at_ = used;
  window_bytes_ = std::min(kWindowBytes, old_bytes - kPiece - used);
  KVFOLIO_CHECK(window_bytes_ > 0);
  IoStep step = transfer_step(Kind::kRead, {.file = place.file, .offset = window_at_});
  step.add_part(window_.data(), window_bytes_);
  return step;
}

// True: it is the next header of the segment.
bool ContinueJob::take_header(std::span<const std::byte> piece) noexcept {
  RecordHeader header;
  if (decode(piece, header) != FormatFault::kNone || header.epoch != epoch) return false;
  const bool is_first = used == kPiece;
  const std::int64_t size = record_bytes(header.data_bytes);
  if ((!is_first && header.sequence != last_sequence + 1) || size > old_bytes - kPiece - used) {
    return false;
  }
  const bool is_met = met_ < entries.size() && entries[met_].offset == used;
  if (is_met) {
    const FooterEntry& entry = entries[met_++];
    const bool is_it = entry.sequence == header.sequence && entry.data_bytes == header.data_bytes &&
                       (header.erased || entry.key == header.key);
    if (!is_it) result = -ESTALE;
  } else if (!header.erased) {
    result = -ESTALE;  // one that no footer named: it would come back
  }
  last_sequence = header.sequence;
  used += size;
  return result == 0;
}

bool ContinueJob::walk() noexcept {
  for (;;) {
    const std::int64_t at = used - window_at_;
    if (at + kPiece > window_bytes_) return old_bytes - kPiece - used >= kPiece;
    if (!take_header({window_.data() + at, static_cast<std::size_t>(kPiece)})) return false;
  }
}

IoStep ContinueJob::next(std::int64_t last) noexcept {
  if (last < 0 && phase_ != Phase::kTruncate) return give_up(last);
  switch (phase_) {
    case Phase::kHeaders:
      if (!begun_) {
        begun_ = true;
        used = kPiece;
        window_ = AlignedBuffer(kWindowBytes);
        if (window_.data() == nullptr) return give_up(-ENOMEM);
        return read_window();
      }
      if (walk()) return read_window();
      if (result != 0 || met_ != entries.size()) return give_up(-ESTALE);
      [[fallthrough]];
    case Phase::kFooter: {
      phase_ = Phase::kFooterSync;
      KVFOLIO_CHECK(used <= old_bytes - kPiece && old_bytes <= bytes);  // no record is written over
      footer_gone = true;
      std::memset(window_.data(), 0, kPiece);
      IoStep step = transfer_step(Kind::kWrite, {.file = place.file, .offset = old_bytes - kPiece});
      step.add_part(window_.data(), kPiece);
      return step;
    }
    case Phase::kFooterSync:
      phase_ = Phase::kAllocate;
      return file_step(Kind::kSync, place.file);
    case Phase::kAllocate:
      phase_ = Phase::kTruncate;
      return file_step(Kind::kAllocate, place.file, bytes);
    case Phase::kTruncate:
      // Some file systems cannot take room ahead of time. Then ENOSPC may come with a record.
      if (last < 0 && last != -EOPNOTSUPP && last != -ENOSYS) return give_up(last);
      phase_ = Phase::kSync;
      return file_step(Kind::kTruncate, place.file, bytes);
    case Phase::kSync:
      phase_ = Phase::kDone;
      return file_step(Kind::kSync, place.file);
    case Phase::kDone:
      return {};
  }
  return {};
}

// One that says so. Ours may have been damaged since, so what says nothing is taken for ours.
bool RemoveJob::is_another() const noexcept {
  SegmentHeader header;
  const std::span<const std::byte> piece(piece_.data(), kPiece);
  return decode(piece, header) == FormatFault::kNone && header.epoch != *epoch;
}

IoStep RemoveJob::next(std::int64_t last) noexcept {
  switch (phase_) {
    case Phase::kLook:
      phase_ = Phase::kRead;
      piece_ = epoch ? AlignedBuffer(kPiece) : AlignedBuffer();
      if (piece_.data() == nullptr) break;
      return name_step(Kind::kOpen, directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    case Phase::kRead: {
      if (last < 0) break;  // it cannot be looked at, as where no descriptor is left
      seen_ = static_cast<int>(last);
      phase_ = Phase::kCompare;
      IoStep step = transfer_step(Kind::kRead, {.file = seen_, .offset = 0});
      step.add_part(piece_.data(), kPiece);
      return step;
    }
    case Phase::kCompare:
      phase_ = last >= 0 && is_another() ? Phase::kClose : Phase::kUnlink;
      return file_step(Kind::kClose, seen_);
    case Phase::kUnlink:
      break;
    case Phase::kUnlinked:
      result = last == -ENOENT ? 0 : last;
      [[fallthrough]];
    case Phase::kClose:
      phase_ = Phase::kDone;
      return file < 0 ? IoStep{} : file_step(Kind::kClose, file);
    case Phase::kDone:
      return {};
  }
  phase_ = Phase::kUnlinked;
  return name_step(Kind::kUnlink, directory, name);
}

// ---- others ----

TransferJob::TransferJob(IoStep::Kind kind, const Extent& place, std::byte* memory,
                         std::int64_t bytes) noexcept
    : step_(transfer_step(kind, place)) {
  KVFOLIO_CHECK(place.offset % kPiece == 0 && bytes % kPiece == 0 && is_aligned(memory));
  step_.add_part(memory, bytes);
}

IoStep TransferJob::next(std::int64_t last) noexcept {
  result = std::min<std::int64_t>(last, 0);
  const IoStep step = step_;
  step_ = {};
  return step;
}

IoStep ProbeJob::make_file() const noexcept {
  return name_step(Kind::kOpen, directory, name,
                   O_RDWR | O_CREAT | O_EXCL | (direct ? O_DIRECT : 0));
}

IoStep ProbeJob::next(std::int64_t last) noexcept {
  if (last < 0 && result == 0) result = last;
  switch (step_++) {
    case 0:
      pieces_ = AlignedBuffer(2 * kPiece);
      if (pieces_.data() == nullptr) {
        result = -ENOMEM;
        return {};
      }
      std::memset(pieces_.data(), 0x5a, kPiece);
      std::memset(pieces_.data() + kPiece, 0, kPiece);
      return make_file();
    case 1:
      if (last == -EINVAL && direct) {
        direct = false;
        step_ = 6;  // the file may have been made all the same
      } else if (last < 0) {
        return {};
      } else {
        file_ = static_cast<int>(last);
      }
      return name_step(Kind::kUnlink, directory, name);
    case 2: {
      IoStep step = transfer_step(Kind::kWrite, {.file = file_});
      step.add_part(pieces_.data(), kPiece);
      return step;
    }
    case 3: {
      IoStep step = transfer_step(Kind::kRead, {.file = file_});
      step.add_part(pieces_.data() + kPiece, kPiece);
      return step;
    }
    case 4:
      if (result == 0 && std::memcmp(pieces_.data(), pieces_.data() + kPiece, kPiece) != 0) {
        result = -EILSEQ;
      }
      direct = direct && !fell_back;
      return file_step(Kind::kClose, file_);
    case 6:
      result = 0;
      step_ = 1;
      return make_file();
    default:
      return {};
  }
}

}  // namespace kvfolio::disk
