// SPDX-License-Identifier: Apache-2.0
//
// How segments come and go. What one of them needs is done when it is looked at (look_at): it is
// put in line for that whenever something of it has changed.

#include <algorithm>
#include <cerrno>
#include <limits>
#include <new>

#include "base/text.h"
#include "disk/no_descriptor.h"
#include "disk/store.h"

namespace kvfolio::disk {
namespace {

constexpr std::uint64_t kRetryUs = 1'000'000;  // to make or to remove a file
constexpr std::size_t kLooksLater = 16;        // in a call, at segments that wait for time to pass
constexpr int kNamesTakenMax = 20;             // in a row; then it is an error

bool is_no_space(std::int64_t error) { return error == -ENOSPC || error == -EDQUOT; }

}  // namespace

// ---- places for records ----

bool SegmentStore::fits(std::int64_t used, std::int64_t records, std::int64_t data_bytes,
                        std::int64_t bytes) noexcept {
  return used + record_bytes(data_bytes) + footer_bytes(records + 1) <= bytes;
}

bool SegmentStore::fits(const Segment& segment, std::int64_t data_bytes) const noexcept {
  return fits(segment.used, segment.num_records, data_bytes, segment.bytes());
}

FooterEntry SegmentStore::entry_of(std::uint32_t id) const noexcept {
  const Record& record = index_[id];
  return {.key = record.key,
          .sequence = sequence_of(id),
          .offset = record.offset(),
          .data_bytes = record.data_bytes,
          .erased = record.erased != 0};
}

// The footer names it: its header is whole. Also what is not found any more, since it was written
// again, could not be read or is being erased: a later run has to know of it, to erase it.
bool SegmentStore::is_kept(std::uint32_t id) const noexcept {
  const Record& record = index_[id];
  return record.visible && !record.gone;
}

// The last of its segment. kNone: no memory.
std::uint32_t SegmentStore::add_record(Segment& segment, const FooterEntry& entry) noexcept {
  if (segment.num_records == 0) segment.first_sequence = entry.sequence;
  const std::uint32_t id = index_.add(
      {.key = entry.key,
       .data_bytes = static_cast<std::uint32_t>(entry.data_bytes),
       .segment = segment.slot,
       .sequence = static_cast<std::uint32_t>(entry.sequence - segment.first_sequence),
       .pieces = static_cast<std::uint32_t>(entry.offset / kPiece) & Record::kPiecesMax});
  if (id == RecordIndex::kNone) return id;
  (segment.last == RecordIndex::kNone ? segment.first : index_[segment.last].next) = id;
  segment.last = id;
  ++segment.num_records;
  return id;
}

std::uint32_t SegmentStore::place(const TierKey& key, std::int64_t data_bytes) {
  if (active_ != nullptr && !fits(*active_, data_bytes)) stop_writing(*active_);
  choose_active();
  // One that was made ahead of time, or goes on, may have no room for this one.
  if (active_ != nullptr && !fits(*active_, data_bytes)) stop_writing(*active_);
  if (active_ == nullptr) {
    prepare_next();
    return RecordIndex::kNone;
  }
  const std::uint32_t id = add_record(*active_, {.key = key,
                                                 .sequence = last_sequence_ + 1,
                                                 .offset = active_->used,
                                                 .data_bytes = data_bytes});
  if (id == RecordIndex::kNone) throw std::bad_alloc();
  ++last_sequence_;
  active_->used += record_bytes(data_bytes);
  KVFOLIO_CHECK(active_->used + footer_bytes(active_->num_records) <= active_->bytes());
  return id;
}

void SegmentStore::choose_active() noexcept {
  if (active_ != nullptr || next_ == nullptr || next_->state != State::kReady) return;
  active_ = std::exchange(next_, nullptr);
  KVFOLIO_CHECK(active_->file >= 0 && active_->writes == 0);
  segments_.set_state(*active_, State::kActive);
  segments_.touch(*active_);
}

void SegmentStore::stop_writing(Segment& segment) noexcept {
  if (segment.state != State::kActive) return;
  segments_.set_state(segment, State::kFull);
  segments_.touch(segment);
  active_ = nullptr;
}

// ---- what a segment needs ----

void SegmentStore::keep_going() {
  const auto look = [&](Segment& segment) {
    try {
      look_at(segment);
    } catch (const std::bad_alloc&) {
      segments_.touch(segment);  // what waits for it is answered
      throw;
    }
  };
  for (std::size_t n = std::min(segments_.num_later(), kLooksLater); n > 0; --n) {
    look(*segments_.take_later());
  }
  while (segments_.num_touched() > 0 && spend()) look(*segments_.take_touched());
  choose_active();
  // The next one is ready before this one is full, so that stores do not wait for files.
  const bool soon = active_ != nullptr ? active_->used >= active_->bytes() / 2 : !stores_.empty();
  if (soon) prepare_next();
}

// It may be gone afterwards.
void SegmentStore::look_at(Segment& segment) {
  if (budget_.is_off_for_good()) {
    if (!end_waiting_targets(segment, TierResult::kUnavailable)) segments_.touch(segment);
    return;
  }
  if (segment.walk != Segment::Walk::kNone) return walk_on(segment);
  if (!segment.to_erase.empty() && !segment.erasing) go_on_erasing(segment);
  if (segment.walk != Segment::Walk::kNone) return;
  switch (segment.state) {
    case State::kFull:
      // What is erased first need not be taken out of a footer.
      if (segment.writes > 0 || !segment.to_erase.empty()) return;
      return begin_walk(segment, Segment::Walk::kSealEntries);
    case State::kEvicting:
      return segment.chosen ? go_on_evicting(segment) : begin_walk(segment, Segment::Walk::kChoose);
    case State::kDraining:
      if (!segment.drained) return begin_walk(segment, Segment::Walk::kDrain);
      if (segment.reads > 0 || segment.writes > 0 || segment.opening) return;
      if (segment.retry_us > now_us_) return segments_.touch_later(segment);
      return begin_remove(segment);
    case State::kForgetting:
      if (!end_waiting_targets(segment, TierResult::kOk)) return segments_.touch(segment);
      return begin_walk(segment, Segment::Walk::kForget);
    default:
      return;
  }
}

// Throws std::bad_alloc, and nothing has changed.
void SegmentStore::begin_walk(Segment& segment, Segment::Walk walk) {
  if (walk == Segment::Walk::kSealEntries || walk == Segment::Walk::kEraseEntries) {
    segment.entries.reserve(static_cast<std::size_t>(segment.num_records));
  }
  KVFOLIO_CHECK(segment.walk == Segment::Walk::kNone && segment.entries.empty());
  segment.walk = walk;
  segment.walk_at = segment.first;
  segments_.touch(segment);
}

void SegmentStore::walk_on(Segment& segment) {
  while (segment.walk_at != RecordIndex::kNone) {
    if (!spend()) return segments_.touch(segment);
    const std::uint32_t id = segment.walk_at;
    segment.walk_at = index_[id].next;
    walk_record(segment, id);
  }
  end_walk(segment);
}

void SegmentStore::walk_record(Segment& segment, std::uint32_t id) {
  switch (segment.walk) {
    case Segment::Walk::kSealEntries:
    case Segment::Walk::kEraseEntries:
      if (is_kept(id)) segment.entries.push_back(entry_of(id));
      return;
    case Segment::Walk::kChoose: {
      const Record& record = index_[id];
      if (!record.live || !record.used) return;
      const bool fits = eviction_.choose(id, record_bytes(record.data_bytes));
      if (!fits) segment.walk_at = RecordIndex::kNone;
      return;
    }
    case Segment::Walk::kDrain:
      if (!index_[id].live) return;
      ++stats_.evicted;
      return index_.retire(id);
    case Segment::Walk::kForget:
      KVFOLIO_DCHECK(!index_[id].live && !index_[id].writing);
      segment.first = segment.walk_at;
      return index_.release(id);
    case Segment::Walk::kNone:
      return;
  }
}

void SegmentStore::end_walk(Segment& segment) {
  switch (std::exchange(segment.walk, Segment::Walk::kNone)) {
    case Segment::Walk::kSealEntries:
      return begin_seal(segment);
    case Segment::Walk::kEraseEntries:
      segments_.touch(segment);  // there may be more of them
      return begin_erase(segment);
    case Segment::Walk::kChoose:
      segment.chosen = true;
      return go_on_evicting(segment);
    case Segment::Walk::kDrain:
      segment.drained = true;
      return segments_.touch(segment);
    case Segment::Walk::kForget:
      return segments_.remove(segment);
    case Segment::Walk::kNone:
      return;
  }
}

// ---- the next one ----

void SegmentStore::prepare_next() {
  if (next_ != nullptr || eviction_.is_under_way() || closing_ || is_off() ||
      now_us_ < retry_create_us_) {
    return;
  }
  if (active_ == nullptr && continue_last()) return;
  if (bytes_used() + options_.segment_bytes <= options_.bytes) return create_next();
  if (Segment* oldest = segments_.oldest_sealed()) begin_evict(*oldest);
}

// A run goes on in the last segment of the one before, or each run would leave a small one. False:
// it does not.
bool SegmentStore::continue_last() {
  Segment* const segment = last_found_;
  if (segment == nullptr || stores_.empty()) return false;
  last_found_ = nullptr;
  if (segment->state != State::kSealed || segment->errors > 0 ||
      !fits(segment->used, segment->num_records, stores_.front().item.bytes,
            options_.segment_bytes)) {
    return false;
  }
  KVFOLIO_DCHECK(next_ == nullptr && active_ == nullptr);
  const bool is_still =
      segment->walk == Segment::Walk::kNone && segment->to_erase.empty() && !segment->erasing;
  const std::int64_t more = options_.segment_bytes - segment->bytes();
  const bool has_room = bytes_used() + more <= options_.bytes;
  Segment* const oldest = segments_.oldest_sealed();
  if (is_still && !has_room && oldest == segment) return false;
  if (!is_still || !has_room) {
    last_found_ = segment;  // as soon as there is
    if (is_still) begin_evict(*oldest);
    return true;
  }
  prepare_file(*segment);
  auto job = std::make_unique<ContinueJob>();
  job->entries.reserve(static_cast<std::size_t>(segment->num_records));
  for (std::uint32_t id = segment->first; id != RecordIndex::kNone; id = index_[id].next) {
    if (!index_[id].gone) job->entries.push_back(entry_of(id));
  }
  spend_at_least(segment->num_records);
  job->epoch = segment->epoch;
  job->old_bytes = segment->bytes();
  job->bytes = options_.segment_bytes;
  Op& op = add_op(Op::Kind::kFile, std::move(job));
  segments_.set_state(*segment, State::kContinuing);
  segments_.set_bytes(*segment, options_.segment_bytes);
  next_ = segment;
  start_in(*segment, op);
  return true;
}

void SegmentStore::on_continued(Segment& segment, const ContinueJob& job) {
  KVFOLIO_CHECK(next_ == &segment);
  next_ = nullptr;
  if (!job.footer_gone) {  // nothing has changed
    segments_.set_bytes(segment, job.old_bytes);
    segments_.set_state(segment, State::kSealed);
  } else {
    segment.in_footer = -1;
    segment.used = job.used;
    const bool goes_on = job.result == 0 && job.last_sequence >= last_sequence_ && !closing_;
    segments_.set_state(segment, goes_on ? State::kReady : State::kFull);
    if (goes_on) {
      next_ = &segment;
      last_sequence_ = job.last_sequence;
      segment.direct = segment.direct && !job.fell_back;
    }
  }
  // Headers that do not lead to all records: a new segment is begun.
  if (job.result < 0 && job.result != -ESTALE) on_no_segment(job.result);
}

void SegmentStore::create_next() {
  if (last_number_ == std::numeric_limits<std::uint64_t>::max()) return on_no_segment(-EOVERFLOW);
  if (files_.is_full()) close_least_used();
  auto job = std::make_unique<CreateJob>();
  const SegmentId id{last_number_ + 1, last_number_ + 1};
  job->name = segment_name(id.name);
  job->directory = directory_.file();
  job->bytes = options_.segment_bytes;
  job->direct = options_.direct;
  Segment& segment = segments_.add(id, State::kCreating, options_.segment_bytes);
  segment.epoch = random_number(id.number);
  segment.used = kPiece;
  job->header = {.number = id.number, .epoch = segment.epoch};
  try {
    Op& op = add_op(Op::Kind::kFile, std::move(job));
    op.segment = &segment;
    start(op);
  } catch (const std::bad_alloc&) {
    segments_.remove(segment);
    throw;
  }
  last_number_ = id.number;
  next_ = &segment;
}

void SegmentStore::on_created(Segment& segment, const CreateJob& job) {
  KVFOLIO_CHECK(next_ == &segment && segment.num_records == 0);
  if (job.result == 0) {
    segment.file = job.file;
    files_.opened(segment);
    segment.direct = options_.direct && !job.fell_back;
    names_taken_ = 0;
    return segments_.set_state(segment, State::kReady);
  }
  next_ = nullptr;
  segments_.remove(segment);
  if (job.result == -EEXIST && names_taken_ < kNamesTakenMax) {
    // A file of someone else has this name: another one, soon far away.
    const std::uint64_t more = (std::uint64_t{1} << names_taken_++) - 1;
    last_number_ += std::min(more, std::numeric_limits<std::uint64_t>::max() - last_number_);
    return;
  }
  if (is_no_descriptor(job.result)) {
    files_.shrink();
    if (close_least_used()) return;
  }
  on_no_segment(job.result);
}

// No room: the oldest segment makes some. If there is none, or it is something else, the stores
// that wait are dropped: a cache does not wait for an administrator.
void SegmentStore::on_no_segment(std::int64_t error) {
  if (is_no_space(error)) {
    ++stats_.no_space;
    if (make_room()) return;
    refuse_all(stores_, TierOp::kStore, TierResult::kBusy);
  } else if (is_no_descriptor(error) || error == -ENOMEM) {
    refuse_all(stores_, TierOp::kStore, TierResult::kBusy);
  } else {
    refuse_all(stores_, TierOp::kStore, TierResult::kIoError);
    count_error(Task::kWrite, error);
  }
  retry_create_us_ = now_us_ + kRetryUs;
}

// True: a segment goes.
bool SegmentStore::make_room() noexcept {
  if (closing_) return false;
  if (eviction_.is_under_way()) return true;
  Segment* oldest = segments_.oldest_sealed();
  if (oldest != nullptr) begin_evict(*oldest);
  return oldest != nullptr;
}

// ---- sealing ----

void SegmentStore::begin_seal(Segment& segment) {
  std::vector<FooterEntry> entries = std::exchange(segment.entries, {});
  if (!has_record(entries)) return drain(segment);  // its writes failed, or they were erased
  KVFOLIO_CHECK(segment.writes == 0 && segment.file >= 0);
  auto job = std::make_unique<SealJob>();
  job->place = {segment.file, segment.used, segment.direct};
  job->directory = directory_.file();
  job->epoch = segment.epoch;
  job->entries = std::move(entries);
  KVFOLIO_CHECK(job->end() <= segment.bytes());
  Op& op = add_op(Op::Kind::kFile, std::move(job));
  op.segment = &segment;
  segments_.set_state(segment, State::kSealing);
  start(op);
}

void SegmentStore::on_file_done(Op& op) {
  Segment& segment = *op.segment;
  if (segment.state == State::kCreating) {
    on_created(segment, static_cast<const CreateJob&>(*op.job));
  } else if (segment.state == State::kContinuing) {
    on_continued(segment, static_cast<const ContinueJob&>(*op.job));
  } else if (segment.state == State::kSealing) {
    const auto& job = static_cast<const SealJob&>(*op.job);
    segments_.set_state(segment, State::kSealed);
    take_footer(segment, job);
    if (job.result < 0) on_error(segment, Task::kWrite, job.result);
  } else {
    KVFOLIO_CHECK(segment.state == State::kRemoving);
    on_removed(segment, static_cast<const RemoveJob&>(*op.job));
  }
}

// Also one of which it is not known whether it is on the medium: the next open() may find it, if
// the file ends behind it.
void SegmentStore::take_footer(Segment& segment, const SealJob& job) noexcept {
  if (!job.truncated && (!job.footer_begun || job.end() != segment.bytes())) return;
  segments_.set_bytes(segment, job.end());
  segment.in_footer = static_cast<std::int64_t>(job.entries.size());
}

// ---- eviction ----

void SegmentStore::begin_evict(Segment& segment) noexcept {
  eviction_.begin(segment);
  segments_.set_state(segment, State::kEvicting);
  segments_.touch(segment);
  segment.chosen = false;
}

void SegmentStore::go_on_evicting(Segment& segment) {
  while (const auto id = eviction_.next()) {
    if (!move_one(*id)) eviction_.forget_rest();
  }
  if (eviction_.has_moved_all()) drain(segment);
}

// The end comes first: nothing needs the room any more, so what was not moved stays where it is.
void SegmentStore::stop_evicting() noexcept {
  eviction_.forget_rest();
  Segment* const segment = eviction_.segment();
  if (segment == nullptr || segment->state != State::kEvicting) return;
  segments_.set_state(*segment, State::kSealed);
  if (segment->walk == Segment::Walk::kChoose) segment->walk = Segment::Walk::kNone;
  eviction_.end();
}

// False: there is no room to move anything to.
bool SegmentStore::move_one(std::uint32_t id) {
  const Record& record = index_[id];
  if (closing_ || is_off() || active_ == nullptr || !fits(*active_, record.data_bytes)) {
    return false;
  }
  if (!record.live) return true;
  AlignedBuffer memory(record_bytes(record.data_bytes));
  if (memory.data() == nullptr) return false;
  std::byte* data = memory.data();
  start_load(Op::Kind::kMoveRead, id, data, nullptr, std::move(memory));
  eviction_.move_begun();
  return true;
}

void SegmentStore::on_moved_read(Op& op) {
  const bool right = on_read(op) == TierResult::kOk;
  const Record old = index_[op.record];
  Op* write = nullptr;
  if (right && old.live && !closing_ && !is_off() && active_ != nullptr &&
      fits(*active_, old.data_bytes)) {
    try {
      write = start_store(Op::Kind::kMoveWrite, old.key, old.data_bytes);
    } catch (const std::bad_alloc&) {  // then it is not moved
    }
  }
  if (write == nullptr) {
    eviction_.move_ended();
    return;
  }
  std::byte* data = op.memory.data();
  write->memory = std::move(op.memory);
  write->replaces = op.record;
  begin_write(*write, data);
}

void SegmentStore::on_moved(Op& op) {
  eviction_.move_ended();
  if (eviction_.is_under_way()) segments_.touch(*eviction_.segment());
  if (on_written(op) != TierResult::kOk) return;
  if (!index_[op.replaces].live) return;  // it was erased while it was on its way
  ++stats_.reinserted;
  index_.publish(op.record);
}

void SegmentStore::drain(Segment& segment) noexcept {
  segments_.set_state(segment, State::kDraining);
  segment.drained = false;
  segments_.touch(segment);
}

void SegmentStore::begin_remove(Segment& segment) {
  KVFOLIO_CHECK(segment.drained && segment.reads == 0 && segment.writes == 0);
  auto job = std::make_unique<RemoveJob>();
  job->directory = directory_.file();
  job->name = segment_name(segment.id.name);
  if (segment.file < 0) job->epoch = segment.epoch;
  job->file = segment.file;
  Op& op = add_op(Op::Kind::kFile, std::move(job));
  op.segment = &segment;
  segments_.set_state(segment, State::kRemoving);
  segment.file = -1;
  files_.closed(segment);
  start(op);
}

void SegmentStore::on_removed(Segment& segment, const RemoveJob& job) {
  const bool evicted = eviction_.is_of(segment);
  const bool stores_wait = evicted || (active_ == nullptr && !stores_.empty());
  if (evicted) eviction_.end();
  if (last_found_ == &segment) last_found_ = nullptr;
  if (job.result == 0) {
    segments_.set_bytes(segment, 0);
    segments_.set_state(segment, State::kForgetting);
    return;
  }
  keep_for_later(segment);
  if (!stores_wait) return;
  // Not the next segment at once: it might end so, too, and its records would be gone.
  retry_create_us_ = segment.retry_us;
  if (active_ == nullptr) refuse_all(stores_, TierOp::kStore, TierResult::kIoError);
  count_error(Task::kWrite, job.result);
}

// Its file could not be removed, so it takes its part of the budget. It is closed, and what it has
// may come back.
void SegmentStore::keep_for_later(Segment& segment) noexcept {
  segments_.set_state(segment, State::kDraining);
  segment.retry_us = now_us_ + kRetryUs;
}

// ---- check ----

Status SegmentStore::check_segment(const Segment& segment, std::int64_t& live) const {
  const auto broken = [](const char* rule) { return Status(ErrorCode::kCorrupt, rule); };
  const bool is_gone = segment.state == State::kForgetting;
  std::int64_t least = kPiece, records = 0;
  for (std::uint32_t id = segment.first; id != RecordIndex::kNone; id = index_[id].next) {
    const Record& record = index_[id];
    ++records;
    if (record.segment != segment.slot) return broken("a record is in one segment");
    if (record.offset() < least) return broken("records lie behind each other");
    least = record.offset() + record_bytes(record.data_bytes);
    if (!record.live) continue;
    ++live;
    if (record.gone || index_.find(record.key) != id) return broken("what is live is found");
    if (is_gone || segment.state == State::kRemoving || segment.drained) {
      return broken("a segment that goes has no record that is found");
    }
  }
  if (records != segment.num_records && !is_gone) return broken("the number of its records");
  if (!is_gone && (least > segment.used || segment.used > segment.bytes())) {
    return broken("the end of a segment");
  }
  return {};
}

Status SegmentStore::check_invariants() const {
  const auto broken = [](const char* rule) { return Status(ErrorCode::kCorrupt, rule); };
  if (!index_.check()) return broken("the index finds what it has");
  if (!segments_.check()) return broken("segments, their bytes and their line");
  if (!files_.check(segments_)) return broken("the open files");
  if (!loads_.check() || !stores_.check()) return broken("what waits");
  if (!erases_.check()) return broken("the erases");
  if (!eviction_.check()) return broken("the eviction and its segment");
  if (!budget_.check()) return broken("the errors");
  if (!scrub_.check()) return broken("the credit of the scrub");
  if (bytes_used() > std::max(options_.bytes, kOtherBytes)) return broken("the budget");
  std::int64_t live = 0, to_erase = 0;
  for (const auto& [id, segment] : segments_.all()) {
    to_erase += std::ssize(segment->to_erase);
    KVFOLIO_RETURN_IF_ERROR(check_segment(*segment, live));
  }
  if (to_erase != to_erase_) return broken("what is to be erased is counted");
  return live == index_.size() ? Status() : broken("a record that is found is in a segment");
}

}  // namespace kvfolio::disk
