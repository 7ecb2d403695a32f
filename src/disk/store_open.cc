// SPDX-License-Identifier: Apache-2.0
//
// What a directory has is taken when it is opened, one segment after the other. Nothing is written
// before all of them were read: one of a newer version leaves the directory as it was.

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <new>

#include "base/text.h"
#include "disk/store.h"

namespace kvfolio::disk {

Result<std::unique_ptr<SegmentStore>> SegmentStore::open(DiskCalls& calls,
                                                         const StoreOptions& options,
                                                         Directory directory,
                                                         std::unique_ptr<IoEngine> engine,
                                                         int event_fd) {
  std::unique_ptr<SegmentStore> store(
      new SegmentStore(calls, options, std::move(directory), std::move(engine), event_fd));
  try {
    KVFOLIO_RETURN_IF_ERROR(store->take_directory());
  } catch (const std::bad_alloc&) {
    return Status(ErrorCode::kResourceExhausted,
                  text::concat("disk tier: no memory for what ", options.path, " has"));
  }
  return store;
}

Status SegmentStore::take_directory() {
  directory_.remove_temporaries();
  std::vector<std::uint64_t> empty;
  std::vector<Segment*> unsealed;
  const FindOptions options{.direct = options_.direct, .make_room = [&] {
                              files_.shrink();
                              return close_one_now();
                            }};
  const auto take = [&](FoundSegment& found) -> Status {
    if (found.is_empty) {
      empty.push_back(found.name);
    } else {
      take_found(found, unsealed);
    }
    return {};
  };
  // Files of others count for nothing.
  KVFOLIO_RETURN_IF_ERROR(
      find_segments(calls_, directory_, options, take, [](std::string_view, std::string_view) {}));
  for (const std::uint64_t name : empty) {
    const int removed = calls_.unlink(directory_.file(), segment_name(name));
    if (removed >= 0 || removed == -ENOENT) continue;
    return Status(ErrorCode::kUnavailable,
                  text::concat("disk tier: cannot remove ", directory_.path_of(segment_name(name)),
                               ": ", error_text(removed)));
  }
  for (Segment* segment : unsealed) seal_found(*segment);
  KVFOLIO_RETURN_IF_ERROR(keep_budget());
  if (last_number_ == std::numeric_limits<std::uint64_t>::max()) {
    return Status(ErrorCode::kResourceExhausted,
                  text::concat("disk tier: ", directory_.path_of(segment_name(last_number_)),
                               " has the last number, and leaves none for another; remove it"));
  }
  choose_continued();
  return {};
}

void SegmentStore::take_found(FoundSegment& found, std::vector<Segment*>& unsealed) {
  // The number is that of its header. A copy of a file has the same, and another name.
  Segment& segment =
      segments_.add({.number = found.number, .name = found.name}, State::kSealed, found.bytes);
  segment.epoch = found.epoch;
  segment.direct = found.direct;
  segment.used = found.used;
  segment.stays_open = !found.has_header;
  segment.is_old = found.version < kFormatVersion;
  if (found.sealed) segment.in_footer = static_cast<std::int64_t>(found.entries.size());
  last_number_ = std::max(last_number_, found.number);
  for (const FooterEntry& entry : found.entries) add_found_record(segment, entry);
  stats_.io_errors += found.read_error < 0 ? 1 : 0;
  segment.errors = found.read_error < 0 ? 1 : 0;
  // Else a footer would lie over records that are not known.
  if (!found.sealed && found.read_error == 0) unsealed.push_back(&segment);
  // The last of many files stay open, and those that would not be known again.
  if (files_.is_full()) close_one_now();
  segment.file = std::exchange(found.file, -1);
  files_.opened(segment);
}

// False: there is none.
bool SegmentStore::close_one_now() {
  Segment* const closed = files_.least_used();
  if (closed == nullptr) return false;
  calls_.close(std::exchange(closed->file, -1));
  files_.closed(*closed);
  return true;
}

void SegmentStore::add_found_record(Segment& segment, const FooterEntry& entry) {
  last_sequence_ = std::max(last_sequence_, entry.sequence);
  const std::uint32_t other = index_.find(entry.key);
  const std::uint32_t id = add_record(segment, entry);
  if (id == RecordIndex::kNone) throw std::bad_alloc();
  index_[id].visible = true;
  if (entry.erased) {
    // What another run began: nothing leads to it, and a tombstone is written (again, perhaps).
    index_[id].erased = true;
    if (!keep_target(segment, {id, 0})) throw std::bad_alloc();
    ++to_erase_;
    return segments_.touch(segment);
  }
  // The younger one of two records with one key counts: it was written again.
  const bool is_younger = other == RecordIndex::kNone || sequence_of(other) < entry.sequence;
  if (!is_younger) return;
  index_.publish(id);
  ++stats_.recovered;
  stats_.recovered_by_footer += segment.in_footer >= 0 ? 1 : 0;
}

// Its file, opened for now if it is not open.
int SegmentStore::open_now(const Segment& segment) {
  if (segment.file >= 0) return segment.file;
  return calls_.open(directory_.file(), segment_name(segment.id.name),
                     O_RDWR | O_NOFOLLOW | (segment.direct ? O_DIRECT : 0));
}

// A segment of a writer that was killed gets its footer. If the next run goes on in it, what comes
// lies behind records that are whole or not, as their checksums say.
void SegmentStore::seal_found(Segment& segment) {
  SealJob job;
  for (std::uint32_t id = segment.first; id != RecordIndex::kNone; id = index_[id].next) {
    if (is_kept(id)) job.entries.push_back(entry_of(id));
  }
  if (job.entries.empty()) return drain(segment);
  const int file = open_now(segment);
  if (file < 0) return;
  job.place = {file, segment.used, segment.direct};
  job.directory = directory_.file();
  job.epoch = segment.epoch;
  run_job(job, calls_);
  if (file != segment.file) calls_.close(file);
  take_footer(segment, job);  // without a footer it is as good, and slower to open
}

// An earlier run may have had a larger budget.
Status SegmentStore::keep_budget() {
  while (bytes_used() > options_.bytes) {
    Segment* const oldest = segments_.oldest();
    if (oldest == nullptr) return {};
    RemoveJob job;
    job.directory = directory_.file();
    job.name = segment_name(oldest->id.name);
    job.file = std::exchange(oldest->file, -1);
    files_.closed(*oldest);
    run_job(job, calls_);
    if (job.result < 0) {
      return Status(ErrorCode::kUnavailable,
                    text::concat("disk tier: cannot remove ", directory_.path_of(job.name), ": ",
                                 error_text(job.result)));
    }
    while (oldest->first != RecordIndex::kNone) {
      const std::uint32_t id = oldest->first;
      oldest->first = index_[id].next;
      stats_.evicted += index_[id].live ? 1 : 0;
      removed_by_open_ += index_[id].live ? 1 : 0;
      index_.release(id);
    }
    segments_.remove(*oldest);
  }
  return {};
}

// The segment of the last record, if it has room and few enough records. Whether its headers lead
// to all of them is found out when the first store comes.
void SegmentStore::choose_continued() {
  for (const auto& [id, segment] : segments_.all()) {
    if (segment->last == RecordIndex::kNone || sequence_of(segment->last) != last_sequence_) {
      continue;
    }
    const bool can = segment->state == State::kSealed && segment->in_footer >= 0 &&
                     !segment->stays_open && !segment->is_old && segment->errors == 0 &&
                     segment->num_records < kContinuedRecordsMax &&
                     segment->bytes() < options_.segment_bytes;
    last_found_ = can ? segment.get() : nullptr;
  }
}

}  // namespace kvfolio::disk
