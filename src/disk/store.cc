// SPDX-License-Identifier: Apache-2.0
#include "disk/store.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/text.h"

namespace kvfolio::disk {
namespace {

constexpr int kErrorsOfSegmentMax = 3;  // then it goes
constexpr int kErrorsInRowMax = 8;      // then the tier is not usable

// In the largest unit of which it is a whole number: rounded, eight segments of 8188 KiB would seem
// to leave a megabyte of each unused.
std::string in_whole_units(std::int64_t bytes) {
  int unit = 0;
  constexpr std::array kUnits = {" bytes", " KiB", " MiB", " GiB"};
  for (; unit + 1 < std::ssize(kUnits) && bytes % 1024 == 0; ++unit) bytes /= 1024;
  return text::concat(bytes, kUnits[static_cast<std::size_t>(unit)]);
}

}  // namespace

SegmentStore::SegmentStore(DiskCalls& calls, const StoreOptions& options, Directory directory,
                           std::unique_ptr<IoEngine> engine, int event_fd)
    : calls_(calls),
      options_(options),
      directory_(std::move(directory)),
      event_fd_(event_fd),
      engine_(std::move(engine)),
      process_(::getpid()) {}

SegmentStore::~SegmentStore() {
  // A child of fork() has none of the engine's threads, and nothing to finish: all of it is its
  // parent's. What a lock of the engine guards may be half written, so the engine is left alone.
  if (process_ != ::getpid()) {
    static_cast<void>(engine_.release());
    close_files();
    return;
  }
  close({now_us_});
  std::array<TierDone, 64> done;
  while (!idle()) {
    if (poll(now_us_, done) > 0 || idle()) continue;
    pollfd event{.fd = event_fd_, .events = POLLIN, .revents = 0};
    ::poll(&event, 1, 100);
  }
  engine_.reset();  // its threads write to event_fd_
  close_files();
}

void SegmentStore::close_files() {
  for (const auto& [number, segment] : segments_) {
    if (segment.file >= 0) calls_.close(segment.file);
  }
  ::close(event_fd_);
}

// ---- from the owner ----

std::size_t SegmentStore::submit(TierOp op, std::span<const TierItem> items, Deadline deadline) {
  if (closing_ || off_) return 0;
  std::size_t n = 0;
  while (n < items.size() && take(op, items[n], deadline)) ++n;
  // What can begin at once does, so that the disk works until the next poll.
  begin_waiting();
  notify();
  return n;
}

bool SegmentStore::take(TierOp op, const TierItem& item, Deadline deadline) {
  const std::uint32_t id = index_.find(item.key);
  const bool found = id != RecordIndex::kNone && index_[id].visible;
  switch (op) {
    case TierOp::kExists:
      answer(item.tag, op, found ? TierResult::kOk : TierResult::kMiss);
      return true;
    case TierOp::kErase:
      return take_erase(item, deadline);
    case TierOp::kLoad:
      if (found && item.bytes == std::int64_t{index_[id].data_bytes}) break;
      stats_.corrupt += found ? 1 : 0;
      answer(item.tag, op, found ? TierResult::kCorrupt : TierResult::kMiss);
      return true;
    case TierOp::kStore:
      if (id != RecordIndex::kNone || item.bytes < 0 || item.bytes > data_bytes_max()) {
        answer(item.tag, op,
               found                      ? TierResult::kOk
               : id != RecordIndex::kNone ? TierResult::kBusy  // it is being written now
                                          : TierResult::kUnavailable);
        return true;
      }
      break;
  }
  if (queued_bytes_ + item.bytes > options_.queued_bytes_max) return false;
  queued_bytes_ += item.bytes;
  (op == TierOp::kLoad ? loads_ : stores_).push_back({item, deadline});
  return true;
}

void SegmentStore::answer(std::uint64_t tag, TierOp op, TierResult result) {
  ready_.push_back({tag, result});
  if (result == TierResult::kOk) {
    health_.stores_ok += op == TierOp::kStore ? 1 : 0;
    health_.loads_ok += op == TierOp::kLoad ? 1 : 0;
  } else if (result != TierResult::kMiss) {
    ++health_.failures;
    corrupt_answers_ += op == TierOp::kLoad && result == TierResult::kCorrupt ? 1 : 0;
  }
}

std::size_t SegmentStore::poll(std::uint64_t now_us, std::span<TierDone> done) {
  if (now_us > now_us_ && options_.scrub_bytes_per_s > 0) {
    const auto passed = std::min<std::uint64_t>(now_us - now_us_, 1'000'000);
    const std::int64_t gained =
        scrub_rest_ + static_cast<std::int64_t>(passed) * options_.scrub_bytes_per_s;
    scrub_credit_ = std::min(scrub_credit_ + gained / 1'000'000,
                             std::max(options_.scrub_bytes_per_s, options_.segment_bytes));
    scrub_rest_ = gained % 1'000'000;
  }
  now_us_ = std::max(now_us, now_us_);
  collect();
  expire(loads_, TierOp::kLoad);
  expire(stores_, TierOp::kStore);
  expire_erases();
  keep_going();
  begin_waiting();
  const std::size_t n = std::min(done.size(), ready_.size());
  std::copy_n(ready_.begin(), n, done.begin());
  ready_.erase(ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(n));
  notify();
  return n;
}

void SegmentStore::close(Deadline deadline) {
  close_by_ = closing_ ? close_by_ : deadline;
  closing_ = true;
  refuse_all(loads_, TierOp::kLoad, TierResult::kClosed);
  refuse_all(stores_, TierOp::kStore, TierResult::kClosed);
  stop_evicting();
  if (active_ != nullptr) stop_writing(*active_);
  keep_going();
  notify();
}

bool SegmentStore::idle() const noexcept {
  return ops_.empty() && loads_.empty() && stores_.empty() && ready_.empty() && to_erase_ == 0;
}

TierHealth SegmentStore::health() const noexcept {
  TierHealth health = health_;
  health.usable = !closing_ && !off_;
  health.corrupt_unasked = stats_.corrupt - corrupt_answers_;
  return health;
}

DiskTierStats SegmentStore::stats() const noexcept {
  DiskTierStats stats = stats_;
  stats.bytes = bytes_used();
  stats.records = index_.size();
  stats.segments = static_cast<std::int64_t>(segments_.size());
  return stats;
}

std::int64_t SegmentStore::data_bytes_max() const noexcept {
  const std::int64_t room = options_.segment_bytes - kPiece - footer_bytes(1) - kPiece;
  return std::min(room, kDataBytesMax);
}

std::string SegmentStore::describe() const {
  std::string removed;
  if (removed_by_open_ > 0) {
    removed =
        text::concat(", the oldest ", removed_by_open_, " removed, which were beyond the budget");
  }
  return text::concat("disk ", options_.path, ": ", in_whole_units(options_.bytes),
                      " in segments of ", in_whole_units(options_.segment_bytes), ", ",
                      engine_->name(),
                      options_.direct && !went_buffered_ ? ", O_DIRECT, " : ", page cache, ",
                      index_.size(), " records", removed, off_ ? ", off after errors" : "");
}

// event_fd is readable exactly if ready_ has something, or a job may have ended.
void SegmentStore::notify() {
  if (ready_.empty() || notified_) return;
  const std::uint64_t one = 1;
  static_cast<void>(!::write(event_fd_, &one, sizeof one));
  notified_ = true;
}

// ---- waiting items ----

void SegmentStore::expire(std::deque<Waiting>& queue, TierOp op) {
  const auto late = [&](const Waiting& waiting) { return waiting.deadline.at_us < now_us_; };
  for (const Waiting& waiting : queue) {
    if (!late(waiting)) continue;
    queued_bytes_ -= waiting.item.bytes;
    answer(waiting.item.tag, op, TierResult::kTimeout);
  }
  queue.erase(std::remove_if(queue.begin(), queue.end(), late), queue.end());
}

void SegmentStore::refuse_all(std::deque<Waiting>& queue, TierOp op, TierResult result) {
  for (const Waiting& waiting : queue) {
    queued_bytes_ -= waiting.item.bytes;
    answer(waiting.item.tag, op, result);
    stats_.dropped += op == TierOp::kStore ? 1 : 0;
  }
  queue.clear();
}

// As many as keep the engine busy until the next poll: the others wait here, where loads pass
// stores.
bool SegmentStore::has_room_for_job() const noexcept {
  return ops_.size() < 2 * static_cast<std::size_t>(engine_->depth());
}

void SegmentStore::begin_waiting() {
  begin_erases();
  while (!loads_.empty() && has_room_for_job()) {
    const Waiting waiting = loads_.front();
    loads_.pop_front();
    if (!begin_load(waiting)) queued_bytes_ -= waiting.item.bytes;
  }
  while (!stores_.empty() && has_room_for_job()) {
    if (!begin_store(stores_.front())) break;
    stores_.pop_front();
  }
  // A medium that gave no room a moment ago is not waited for.
  if (active_ == nullptr && next_ == nullptr && evicting_ == nullptr &&
      now_us_ < retry_create_us_) {
    refuse_all(stores_, TierOp::kStore, TierResult::kBusy);
  }
  if (loads_.empty() && stores_.empty() && has_room_for_job()) begin_scrub();
}

// False: it was answered.
bool SegmentStore::begin_load(const Waiting& waiting) {
  const std::uint32_t id = index_.find(waiting.item.key);
  if (id == RecordIndex::kNone || !index_[id].visible) {
    answer(waiting.item.tag, TierOp::kLoad, TierResult::kMiss);
    return false;
  }
  Record& record = index_[id];
  if (waiting.item.bytes != std::int64_t{record.data_bytes}) {  // another one took its place
    answer(waiting.item.tag, TierOp::kLoad, TierResult::kMiss);
    return false;
  }
  record.used = true;
  submit_load(
      {.kind = Op::Kind::kLoad, .record = id, .item = waiting.item, .deadline = waiting.deadline},
      waiting.item.data);
  return true;
}

// False: there is no place for it now.
bool SegmentStore::begin_store(const Waiting& waiting) {
  const std::uint32_t known = index_.find(waiting.item.key);
  if (known != RecordIndex::kNone) {  // stored while this one waited
    queued_bytes_ -= waiting.item.bytes;
    answer(waiting.item.tag, TierOp::kStore,
           index_[known].visible ? TierResult::kOk : TierResult::kBusy);
    return true;
  }
  const std::uint32_t id = place(waiting.item.key, waiting.item.bytes);
  if (id == RecordIndex::kNone) return false;
  index_.publish(id);
  submit_store(
      {.kind = Op::Kind::kStore, .record = id, .item = waiting.item, .deadline = waiting.deadline},
      waiting.item.data);
  return true;
}

void SegmentStore::begin_scrub() {
  if (scrub_credit_ <= 0 || closing_ || off_) return;
  auto place = segments_.lower_bound(scrub_segment_);
  if (place != segments_.end() && place->first != scrub_segment_) scrub_record_ = 0;
  while (place != segments_.end() &&
         (place->second.state != State::kSealed || scrub_record_ >= place->second.records.size())) {
    ++place;
    scrub_record_ = 0;
  }
  if (place == segments_.end()) {  // from the beginning, at the next poll
    scrub_segment_ = 0;
    scrub_record_ = 0;
    return;
  }
  scrub_segment_ = place->first;
  const std::uint32_t id = place->second.records[scrub_record_++];
  if (index_[id].erased) return;
  const std::int64_t bytes = record_bytes(index_[id].data_bytes);
  Op op{.kind = Op::Kind::kScrub, .record = id, .memory = AlignedBuffer(bytes)};
  if (op.memory.data() == nullptr) return;
  scrub_credit_ -= bytes;
  std::byte* data = op.memory.data();
  submit_load(std::move(op), data);
}

// ---- jobs ----

void SegmentStore::submit_load(Op op, std::byte* data) {
  const Record& record = index_[op.record];
  op.segment = record.segment;
  ++op.segment->reads;
  auto job = std::make_unique<LoadJob>();
  job->place = {op.segment->file, record.offset, op.segment->direct};
  job->expected = {.epoch = op.segment->epoch,
                   .sequence = record.sequence,
                   .key = record.key,
                   .data_bytes = record.data_bytes};
  job->data = data;
  job->drop_cached = !op.segment->direct;
  op.job = std::move(job);
  start(std::move(op));
}

void SegmentStore::submit_store(Op op, std::byte* data) {
  Record& record = index_[op.record];
  record.writing = true;
  op.segment = record.segment;
  ++op.segment->writes;
  auto job = std::make_unique<StoreJob>();
  job->place = {op.segment->file, record.offset, op.segment->direct};
  job->header = {.epoch = op.segment->epoch,
                 .sequence = record.sequence,
                 .key = record.key,
                 .data_bytes = record.data_bytes};
  job->data = data;
  op.job = std::move(job);
  start(std::move(op));
}

void SegmentStore::start(Op op) {
  IoJob* job = op.job.get();
  ops_.emplace(job, std::move(op));
  engine_->submit(job);
}

void SegmentStore::collect() {
  // Before the jobs are taken: one that ends behind this line makes it readable again. Also if
  // nothing is under way: a worker writes to it after its job may have been taken already.
  std::uint64_t count = 0;
  static_cast<void>(!::read(event_fd_, &count, sizeof count));
  notified_ = false;
  std::array<IoJob*, 64> done;
  for (std::size_t n = done.size(); n == done.size();) {
    n = engine_->reap(done);
    for (std::size_t i = 0; i < n; ++i) {
      auto node = ops_.extract(done[i]);
      KVFOLIO_CHECK(!node.empty());
      on_done(node.mapped());
    }
  }
}

void SegmentStore::on_done(Op& op) {
  if (op.job->fell_back) {
    went_buffered_ = true;
    if (op.segment != nullptr) op.segment->direct = false;
  }
  switch (op.kind) {
    case Op::Kind::kStore:
      return on_stored(op);
    case Op::Kind::kLoad:
      return on_loaded(op);
    case Op::Kind::kMoveRead:
      return on_moved_read(op);
    case Op::Kind::kMoveWrite:
      return on_moved(op);
    case Op::Kind::kScrub:
      stats_.scrubbed_bytes +=
          static_cast<std::uint64_t>(record_bytes(index_[op.record].data_bytes));
      static_cast<void>(on_read(op));
      return;
    case Op::Kind::kErase:
      return on_erased(op);
    case Op::Kind::kFile:
      return on_file_done(op);
  }
}

TierResult SegmentStore::in_time(Deadline deadline, TierResult result) const noexcept {
  if (deadline.at_us < now_us_) return TierResult::kTimeout;
  return closing_ && close_by_.at_us < now_us_ ? TierResult::kClosed : result;
}

void SegmentStore::on_stored(Op& op) {
  queued_bytes_ -= op.item.bytes;
  const TierResult result = on_written(op);
  if (result == TierResult::kOk) {
    ++stats_.stored;
    stats_.stored_bytes += static_cast<std::uint64_t>(op.item.bytes);
  } else {
    ++stats_.dropped;
  }
  answer(op.item.tag, TierOp::kStore, in_time(op.deadline, result));
}

TierResult SegmentStore::on_written(Op& op) {
  --op.segment->writes;
  index_[op.record].writing = false;
  const std::int64_t error = static_cast<const StoreJob&>(*op.job).result;
  if (error == 0) {
    errors_in_row_ = 0;
    write_errors_in_row_ = 0;
    index_[op.record].visible = true;
    return TierResult::kOk;
  }
  // What lies at its place is unknown, and headers are read one behind the other: no record may
  // follow it.
  index_.erase(op.record);
  add_stale(op.record);
  stop_writing(*op.segment);
  if (error == -ENOMEM) return TierResult::kBusy;
  if (error == -ENOSPC || error == -EDQUOT) {
    ++stats_.no_space;
    make_room();
    return TierResult::kBusy;
  }
  on_error(*op.segment, Task::kWrite);
  return TierResult::kIoError;
}

void SegmentStore::on_loaded(Op& op) {
  queued_bytes_ -= op.item.bytes;
  const TierResult result = on_read(op);
  if (result == TierResult::kOk) {
    ++stats_.loaded;
    stats_.loaded_bytes += static_cast<std::uint64_t>(op.item.bytes);
  }
  answer(op.item.tag, TierOp::kLoad, in_time(op.deadline, result));
}

TierResult SegmentStore::on_read(Op& op) {
  --op.segment->reads;
  const auto& job = static_cast<const LoadJob&>(*op.job);
  const bool fails = job.result != TierResult::kOk && job.result != TierResult::kBusy;
  // Its place was written over meanwhile, in part or whole.
  const bool was_erased = index_[op.record].stale || index_[op.record].gone;
  if (fails) {
    index_.erase(op.record);
    add_stale(op.record);
  }
  if (job.result == TierResult::kOk) {
    errors_in_row_ = 0;
  } else if (job.result == TierResult::kCorrupt) {
    if (was_erased) return TierResult::kMiss;
    ++stats_.corrupt;
  } else if (job.result == TierResult::kIoError) {
    on_error(*op.segment, Task::kRead);
  }
  return job.result;
}

void SegmentStore::on_error(Segment& segment, Task task) {
  stop_writing(segment);
  if (++segment.errors >= kErrorsOfSegmentMax && segment.state == State::kSealed) drain(segment);
  count_error(task);
}

// Loads go on over open files when the directory is gone or read-only: they say nothing of stores.
void SegmentStore::count_error(Task task) {
  ++stats_.io_errors;
  ++errors_in_row_;
  write_errors_in_row_ += task == Task::kWrite ? 1 : 0;
  if (std::max(errors_in_row_, write_errors_in_row_) < kErrorsInRowMax || off_) return;
  off_ = true;
  refuse_all(loads_, TierOp::kLoad, TierResult::kUnavailable);
  refuse_all(stores_, TierOp::kStore, TierResult::kUnavailable);
}

}  // namespace kvfolio::disk
