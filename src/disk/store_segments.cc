// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>

#include "base/text.h"
#include "disk/store.h"

namespace kvfolio::disk {
namespace {

constexpr std::uint64_t kRetryUs = 1'000'000;  // to make or to remove a file
constexpr std::int64_t kMovesMax = 4;          // at the same time: each takes memory for a record

}  // namespace

// ---- what the directory has ----

Result<std::unique_ptr<SegmentStore>> SegmentStore::open(DiskCalls& calls,
                                                         const StoreOptions& options,
                                                         Directory directory,
                                                         std::unique_ptr<IoEngine> engine,
                                                         int event_fd) {
  std::unique_ptr<SegmentStore> store(
      new SegmentStore(calls, options, std::move(directory), std::move(engine), event_fd));
  store->directory_.remove_temporaries();
  const Result<std::vector<FoundSegment>> found =
      find_segments(calls, store->directory_, {.direct = options.direct, .remove_empty = true});
  if (!found) return found.error();
  // Also those that are left alone: a name is not used twice.
  const Result<std::vector<std::uint64_t>> numbers = store->directory_.segments();
  if (numbers && !numbers->empty()) store->last_number_ = numbers->back();
  KVFOLIO_RETURN_IF_ERROR(store->adopt(*found));
  return store;
}

Status SegmentStore::adopt(const std::vector<FoundSegment>& found) {
  for (const FoundSegment& one : found) {
    Segment& segment = adopt_segment(one);
    const std::size_t num_found = entries_of(segment).size();
    stats_.recovered += num_found;
    stats_.io_errors += one.read_error < 0 ? 1 : 0;
    if (one.sealed) {
      stats_.recovered_by_footer += num_found;
    } else if (one.read_error == 0) {  // else a footer would lie over records that are not known
      KVFOLIO_RETURN_IF_ERROR(seal_found(segment));
    }
  }
  // An earlier run may have had a larger budget.
  while (!segments_.empty() && bytes_used() > options_.bytes) {
    Segment& oldest = segments_.begin()->second;
    const std::size_t num_removed = entries_of(oldest).size();
    stats_.evicted += num_removed;
    removed_by_open_ += num_removed;
    for (const std::uint32_t id : oldest.records) index_.erase(id);
    RemoveJob job;
    job.directory = directory_.file();
    job.name = segment_name(oldest.number);
    job.file = oldest.file;
    run_job(job, calls_);
    if (job.result < 0) {
      oldest.file = -1;
      return Status(ErrorCode::kUnavailable,
                    text::concat("disk tier: cannot remove ", directory_.path_of(job.name), ": ",
                                 error_text(job.result)));
    }
    forget_segment(oldest);
  }
  return {};
}

Segment& SegmentStore::adopt_segment(const FoundSegment& found) {
  Segment& segment = segments_[found.number];
  segment.state = State::kSealed;
  segment.number = found.number;
  segment.epoch = found.epoch;
  segment.file = found.file;
  segment.direct = found.direct;
  segment.bytes = found.bytes;
  segment.used = found.used;
  if (found.sealed) segment.in_footer = static_cast<std::int64_t>(found.entries.size());
  last_number_ = std::max(last_number_, found.number);
  for (const FooterEntry& entry : found.entries) {
    last_sequence_ = std::max(last_sequence_, entry.sequence);
    // Of two records with one key the younger one counts: it was written again.
    const std::uint32_t other = index_.find(entry.key);
    const std::uint32_t id = index_.add({.key = entry.key,
                                         .sequence = entry.sequence,
                                         .segment = &segment,
                                         .offset = entry.offset,
                                         .data_bytes = static_cast<std::uint32_t>(entry.data_bytes),
                                         .visible = true});
    segment.records.push_back(id);
    if (other != RecordIndex::kNone && index_[other].sequence >= entry.sequence) {
      index_.erase(id);
      add_stale(id);
      continue;
    }
    index_.publish(id);
    if (other != RecordIndex::kNone) add_stale(other);
  }
  return segment;
}

// A segment of a writer that was killed is closed for good: nobody writes behind records that may
// not be whole.
Status SegmentStore::seal_found(Segment& segment) {
  std::vector<FooterEntry> entries = entries_of(segment);
  if (entries.empty()) {
    RemoveJob job;
    job.directory = directory_.file();
    job.name = segment_name(segment.number);
    job.file = segment.file;
    run_job(job, calls_);
    segment.file = -1;
    job.result < 0 ? keep_for_later(segment) : forget_segment(segment);
    return {};
  }
  SealJob job;
  job.place = {segment.file, segment.used, segment.direct};
  job.directory = directory_.file();
  job.epoch = segment.epoch;
  job.entries = std::move(entries);
  run_job(job, calls_);
  take_footer(segment, job);
  return {};  // without a footer it is as good, and slower to open
}

std::vector<FooterEntry> SegmentStore::entries_of(const Segment& segment) const {
  std::vector<FooterEntry> entries;
  for (const std::uint32_t id : segment.records) {
    const Record& record = index_[id];
    if (record.erased || !record.visible) continue;
    entries.push_back({.key = record.key,
                       .sequence = record.sequence,
                       .offset = record.offset,
                       .data_bytes = record.data_bytes});
  }
  return entries;
}

std::int64_t SegmentStore::bytes_used() const noexcept {
  std::int64_t bytes = kOtherBytes;
  for (const auto& [number, segment] : segments_) bytes += segment.bytes;
  return bytes;
}

// ---- places for records ----

bool SegmentStore::fits(const Segment& segment, std::int64_t data_bytes) const noexcept {
  const auto records = static_cast<std::int64_t>(segment.records.size());
  return segment.used + record_bytes(data_bytes) + footer_bytes(records + 1) <= segment.bytes;
}

std::uint32_t SegmentStore::place(const TierKey& key, std::int64_t data_bytes) {
  if (active_ != nullptr && !fits(*active_, data_bytes)) stop_writing(*active_);
  choose_active();
  if (active_ == nullptr) {
    prepare_next();
    return RecordIndex::kNone;
  }
  const std::uint32_t id = index_.add({.key = key,
                                       .sequence = ++last_sequence_,
                                       .segment = active_,
                                       .offset = active_->used,
                                       .data_bytes = static_cast<std::uint32_t>(data_bytes)});
  active_->records.push_back(id);
  active_->used += record_bytes(data_bytes);
  return id;
}

void SegmentStore::choose_active() {
  if (active_ != nullptr || next_ == nullptr || next_->state != State::kReady) return;
  active_ = next_;
  next_ = nullptr;
  active_->state = State::kActive;
}

void SegmentStore::stop_writing(Segment& segment) {
  if (segment.state != State::kActive) return;
  segment.state = State::kFull;
  active_ = nullptr;
}

// ---- segments come and go ----

void SegmentStore::keep_going() {
  if (evicting_ != nullptr && evicting_->state == State::kEvicting) go_on_evicting(*evicting_);
  for (auto& [number, segment] : segments_) {
    // What is erased first need not be taken out of a footer.
    const bool is_still = segment.writes == 0 && segment.to_erase.empty();
    if (segment.state == State::kFull && is_still) begin_seal(segment);
    if (can_be_removed(segment)) begin_remove(segment);
  }
  choose_active();
  // The next one is ready before this one is full, so that stores do not wait for files.
  const bool soon = active_ != nullptr ? active_->used >= active_->bytes / 2 : !stores_.empty();
  if (soon) prepare_next();
}

void SegmentStore::prepare_next() {
  if (next_ != nullptr || evicting_ != nullptr || closing_ || off_ || now_us_ < retry_create_us_) {
    return;
  }
  if (bytes_used() + options_.segment_bytes > options_.bytes) {
    Segment* oldest = oldest_sealed();
    if (oldest != nullptr) begin_evict(*oldest);
    return;
  }
  Segment& segment = segments_[++last_number_];
  next_ = &segment;
  segment.number = last_number_;
  segment.epoch = random_number(last_number_);
  segment.bytes = options_.segment_bytes;
  segment.used = kPiece;
  auto job = std::make_unique<CreateJob>();
  job->directory = directory_.file();
  job->name = segment_name(segment.number);
  job->header = {.number = segment.number, .epoch = segment.epoch};
  job->bytes = segment.bytes;
  job->direct = options_.direct;
  start({.job = std::move(job), .segment = &segment});
}

Segment* SegmentStore::oldest_sealed() noexcept {
  for (auto& [number, segment] : segments_) {
    if (segment.state == State::kSealed) return &segment;
  }
  return nullptr;
}

void SegmentStore::begin_seal(Segment& segment) {
  std::vector<FooterEntry> entries = entries_of(segment);
  if (entries.empty()) return drain(segment);  // its writes failed, or its records were erased
  segment.state = State::kSealing;
  auto job = std::make_unique<SealJob>();
  job->place = {segment.file, segment.used, segment.direct};
  job->directory = directory_.file();
  job->epoch = segment.epoch;
  job->entries = std::move(entries);
  start({.job = std::move(job), .segment = &segment});
}

void SegmentStore::on_file_done(Op& op) {
  Segment& segment = *op.segment;
  if (segment.state == State::kCreating) {
    on_created(segment, static_cast<const CreateJob&>(*op.job));
  } else if (segment.state == State::kSealing) {
    const auto& job = static_cast<const SealJob&>(*op.job);
    segment.state = State::kSealed;
    take_footer(segment, job);
    if (job.result < 0) on_error(segment, Task::kWrite);
  } else {
    KVFOLIO_CHECK(segment.state == State::kRemoving);
    on_removed(segment, static_cast<const RemoveJob&>(*op.job));
  }
}

// Also one of which it is not known whether it is on the medium: the next open() may find it, if
// the file ends behind it.
void SegmentStore::take_footer(Segment& segment, const SealJob& job) {
  if (!job.truncated && (!job.footer_begun || job.end() != segment.bytes)) return;
  segment.bytes = job.end();
  segment.in_footer = static_cast<std::int64_t>(job.entries.size());
}

bool SegmentStore::can_be_removed(const Segment& segment) const noexcept {
  return segment.state == State::kDraining && segment.reads == 0 && segment.writes == 0 &&
         segment.retry_us <= now_us_;
}

void SegmentStore::on_removed(Segment& segment, const RemoveJob& job) {
  const bool evicted = evicting_ == &segment;
  const bool stores_wait = evicted || (active_ == nullptr && !stores_.empty());
  if (evicted) evicting_ = nullptr;
  if (job.result == 0) return forget_segment(segment);
  keep_for_later(segment);
  if (!stores_wait) return;
  // Not the next segment at once: it might end likewise, and its records would be gone.
  retry_create_us_ = segment.retry_us;
  if (active_ == nullptr) refuse_all(stores_, TierOp::kStore, TierResult::kIoError);
  count_error(Task::kWrite);
}

// Its file could not be removed, so it takes its part of the budget.
void SegmentStore::keep_for_later(Segment& segment) {
  segment.state = State::kDraining;
  segment.retry_us = now_us_ + kRetryUs;
  // Its file is closed, and what it has may come back.
  end_waiting_targets(segment, TierResult::kIoError);
}

void SegmentStore::on_created(Segment& segment, const CreateJob& job) {
  if (job.result < 0) {
    next_ = nullptr;
    forget_segment(segment);
    on_no_segment(job.result);
    return;
  }
  segment.file = job.file;
  segment.direct = options_.direct && !job.fell_back;
  segment.state = State::kReady;
}

// No room: the oldest segment makes some. If there is none, or it is something else, the stores
// that wait are dropped: a cache does not wait for an administrator.
void SegmentStore::on_no_segment(std::int64_t error) {
  if (error == -ENOSPC || error == -EDQUOT) {
    ++stats_.no_space;
    if (make_room()) return;
    refuse_all(stores_, TierOp::kStore, TierResult::kBusy);
  } else {
    refuse_all(stores_, TierOp::kStore, TierResult::kIoError);
    count_error(Task::kWrite);
  }
  retry_create_us_ = now_us_ + kRetryUs;
}

// True: a segment goes.
bool SegmentStore::make_room() {
  if (closing_) return false;
  if (evicting_ != nullptr) return true;
  Segment* oldest = oldest_sealed();
  if (oldest != nullptr) begin_evict(*oldest);
  return oldest != nullptr;
}

void SegmentStore::forget_segment(Segment& segment) {
  end_waiting_targets(segment, TierResult::kOk);
  for (const std::uint32_t id : segment.records) {
    remove_stale(id);
    index_.release(id);
  }
  segments_.erase(segment.number);
}

// ---- eviction ----

// What was used is written again, up to half of a segment, so that eviction always frees something.
void SegmentStore::begin_evict(Segment& segment) {
  segment.state = State::kEvicting;
  evicting_ = &segment;
  to_move_.clear();
  std::int64_t moved = 0;
  for (const std::uint32_t id : segment.records) {
    const Record& record = index_[id];
    if (record.erased || !record.used) continue;
    moved += record_bytes(record.data_bytes);
    if (moved > options_.segment_bytes / 2) break;
    to_move_.push_back(id);
  }
  std::reverse(to_move_.begin(), to_move_.end());
  go_on_evicting(segment);
}

void SegmentStore::go_on_evicting(Segment& segment) {
  while (!to_move_.empty() && moves_ < kMovesMax) {
    if (!move_one(segment, to_move_.back())) to_move_.clear();
    if (!to_move_.empty()) to_move_.pop_back();
  }
  if (to_move_.empty() && moves_ == 0) drain(segment);
}

// The end comes first: nothing needs the room any more, so what was not moved stays where it is.
void SegmentStore::stop_evicting() {
  to_move_.clear();
  if (evicting_ == nullptr || evicting_->state != State::kEvicting) return;
  evicting_->state = State::kSealed;
  evicting_ = nullptr;
}

// False: there is no room to move anything to.
bool SegmentStore::move_one(Segment& segment, std::uint32_t id) {
  const Record& record = index_[id];
  if (closing_ || off_ || active_ == nullptr || !fits(*active_, record.data_bytes)) return false;
  if (record.erased) return true;
  KVFOLIO_CHECK(record.segment == &segment);
  Op op{.kind = Op::Kind::kMoveRead,
        .record = id,
        .memory = AlignedBuffer(record_bytes(record.data_bytes))};
  if (op.memory.data() == nullptr) return false;
  ++moves_;
  std::byte* data = op.memory.data();
  submit_load(std::move(op), data);
  return true;
}

void SegmentStore::on_moved_read(Op& op) {
  const bool right = on_read(op) == TierResult::kOk;
  const Record old = index_[op.record];
  std::uint32_t id = RecordIndex::kNone;
  if (right && !old.erased && !closing_ && !off_ && active_ != nullptr &&
      fits(*active_, old.data_bytes)) {
    id = place(old.key, old.data_bytes);
  }
  if (id == RecordIndex::kNone) {
    --moves_;
    return;
  }
  add_stale(id);  // until it is written
  std::byte* data = op.memory.data();
  submit_store({.kind = Op::Kind::kMoveWrite,
                .record = id,
                .memory = std::move(op.memory),
                .replaces = op.record},
               data);
}

void SegmentStore::on_moved(Op& op) {
  --moves_;
  if (on_written(op) != TierResult::kOk) return;
  if (index_[op.replaces].erased) {  // while it was on its way
    index_.erase(op.record);
    return;
  }
  ++stats_.reinserted;
  remove_stale(op.record);
  index_.publish(op.record);
  add_stale(op.replaces);
}

void SegmentStore::drain(Segment& segment) {
  segment.state = State::kDraining;
  for (const std::uint32_t id : segment.records) {
    if (index_[id].erased) continue;
    ++stats_.evicted;
    index_.erase(id);
  }
}

void SegmentStore::begin_remove(Segment& segment) {
  segment.state = State::kRemoving;
  auto job = std::make_unique<RemoveJob>();
  job->directory = directory_.file();
  job->name = segment_name(segment.number);
  job->file = segment.file;
  segment.file = -1;
  start({.job = std::move(job), .segment = &segment});
}

// ---- check ----

Status SegmentStore::check_invariants() const {
  const auto broken = [](const char* rule) { return Status(ErrorCode::kCorrupt, rule); };
  if (!index_.check()) return broken("the index finds what it has");
  if (bytes_used() > std::max(options_.bytes, kOtherBytes)) return broken("the budget");
  std::int64_t found = 0, to_erase = 0;
  std::size_t stale = 0;
  for (const auto& [number, segment] : segments_) {
    to_erase += static_cast<std::int64_t>(segment.to_erase.size());
    const bool can_be_found =
        segment.state != State::kDraining && segment.state != State::kRemoving;
    std::int64_t least = kPiece;
    for (const std::uint32_t id : segment.records) {
      const Record& record = index_[id];
      if (record.segment != &segment) return broken("a record is in one segment");
      if (record.offset < least) return broken("records lie behind each other");
      least = record.offset + record_bytes(record.data_bytes);
      stale += record.stale ? 1 : 0;
      if (index_.find(record.key) != id) continue;
      ++found;
      if (record.stale || record.gone) return broken("what is found is not stale");
      if (!can_be_found) return broken("a segment that goes has no record that is found");
    }
    if (least > segment.used || segment.used > segment.bytes) return broken("the end of a segment");
  }
  if (stale != stale_.size()) return broken("a stale record is known by its key");
  if (to_erase != to_erase_) return broken("what is to be erased is counted");
  return found == index_.size() ? Status() : broken("a record that is found is in a segment");
}

}  // namespace kvfolio::disk
