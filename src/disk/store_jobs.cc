// SPDX-License-Identifier: Apache-2.0
//
// Jobs: how they start, in files that may be closed, and what their ends mean. See store.h.

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>

#include "base/mutants.h"
#include "disk/no_descriptor.h"
#include "disk/store.h"

namespace kvfolio::disk {
namespace {

constexpr int kErrorsOfSegmentMax = 3;  // then it goes

}  // namespace

// ---- starts ----

SegmentStore::Op& SegmentStore::add_op(Op::Kind kind, std::unique_ptr<IoJob> job) {
  if (ops_.empty()) under_way_since_us_ = now_us_;
  IoJob* const at = job.get();
  KVFOLIO_DCHECK(at != nullptr && !ops_.contains(at));
  Op& op = ops_[at];
  op.kind = kind;
  op.job = std::move(job);
  return op;
}

void SegmentStore::start(Op& op) noexcept { engine_->submit(op.job.get()); }

// Its file is open or about to be, and there is room to wait for that.
void SegmentStore::prepare_file(Segment& segment) {
  files_.used(segment);
  if (segment.file >= 0) return;
  std::vector<IoJob*>& held = held_[&segment];
  held.reserve(held.size() + 1);
  open_file(segment);
}

// Requires: prepare_file(), and nothing since.
void SegmentStore::start_in(Segment& segment, Op& op) noexcept {
  op.segment = &segment;
  if (segment.file < 0) {
    const auto held = held_.find(&segment);
    KVFOLIO_CHECK(held != held_.end() && segment.opening);  // else it would wait for ever
    return held->second.push_back(op.job.get());
  }
  op.job->use_file(segment.file, segment.direct);
  start(op);
}

void SegmentStore::start_load(Op::Kind kind, std::uint32_t record, std::byte* data,
                              const Waiting* waiting, AlignedBuffer memory) {
  Segment& segment = segment_of(record);
  KVFOLIO_CHECK(segment.state < State::kRemoving);
  KVFOLIO_CHECK(index_[record].visible && !index_[record].writing);
  prepare_file(segment);
  auto job = std::make_unique<LoadJob>();
  const Record& one = index_[record];
  job->place.offset = one.offset();
  job->expected = {.epoch = segment.epoch,
                   .sequence = sequence_of(record),
                   .key = one.key,
                   .data_bytes = one.data_bytes};
  job->data = data;
  job->keys = options_.keys;
  Op& op = add_op(kind, std::move(job));
  op.record = record;
  op.memory = std::move(memory);
  if (waiting != nullptr) {
    op.item = waiting->item;
    op.deadline = waiting->deadline;
  }
  ++segment.reads;
  start_in(segment, op);
}

// The op has its place, and is to be begun. nullptr: there is no place for it now.
SegmentStore::Op* SegmentStore::start_store(Op::Kind kind, const TierKey& key,
                                            std::int64_t data_bytes) {
  Op& op = add_op(kind, std::make_unique<StoreJob>());
  IoJob* const job = op.job.get();
  try {
    op.record = place(key, data_bytes);
  } catch (const std::bad_alloc&) {
    ops_.erase(job);
    throw;
  }
  if (op.record != RecordIndex::kNone) return &op;
  ops_.erase(job);
  return nullptr;
}

void SegmentStore::begin_write(Op& op, std::byte* data) noexcept {
  Record& record = index_[op.record];
  record.writing = true;
  op.segment = &segment_of(op.record);
  ++op.segment->writes;
  KVFOLIO_CHECK(op.segment->state == State::kActive && op.segment->file >= 0);
  KVFOLIO_CHECK(record.offset() + record_bytes(record.data_bytes) <= op.segment->bytes());
  auto& job = static_cast<StoreJob&>(*op.job);
  job.place = {op.segment->file, record.offset(), op.segment->direct};
  job.header = {.epoch = op.segment->epoch,
                .sequence = sequence_of(op.record),
                .key = record.key,
                .data_bytes = record.data_bytes};
  job.data = data;
  job.keys = options_.keys;
  start(op);
}

// ---- open files ----

void SegmentStore::open_file(Segment& segment) {
  if (segment.opening) return;
  if (files_.is_full()) close_least_used();
  auto job = std::make_unique<OpenJob>();
  job->directory = directory_.file();
  job->name = segment_name(segment.id.name);
  job->epoch = segment.epoch;
  job->direct = segment.direct;
  Op& op = add_op(Op::Kind::kOpen, std::move(job));
  op.segment = &segment;
  segment.opening = true;
  start(op);
}

// False: none can be closed.
bool SegmentStore::close_least_used() {
  Segment* segment = files_.least_used();
  if (segment == nullptr) return false;
  auto job = std::make_unique<CloseJob>();
  KVFOLIO_CHECK(segment->file >= 0 && segment->reads == 0 && segment->writes == 0);
  job->file = segment->file;
  Op& op = add_op(Op::Kind::kClose, std::move(job));
  segment->file = -1;
  files_.closed(*segment);
  start(op);
  return true;
}

void SegmentStore::on_opened(Op& op) {
  Segment& segment = *op.segment;
  const auto& job = static_cast<const OpenJob&>(*op.job);
  KVFOLIO_CHECK(segment.opening && segment.file < 0);
  segment.opening = false;
  if (job.result < 0) {
    // Those that are open make room, also from now on.
    if (is_no_descriptor(job.result)) {
      files_.shrink();
      try {
        if (close_least_used()) return open_file(segment);
      } catch (const std::bad_alloc&) {  // then it is not tried again
      }
    }
    return end_held(segment, job.result);
  }
  segment.file = job.file;
  segment.direct = job.direct;
  files_.opened(segment);
  const auto held = held_.extract(&segment);
  if (held.empty()) return;
  for (IoJob* one : held.mapped()) {
    one->use_file(segment.file, segment.direct);
    engine_->submit(one);
  }
}

void SegmentStore::end_held(Segment& segment, std::int64_t error) {
  const auto held = held_.extract(&segment);
  if (held.empty()) return;
  for (IoJob* one : held.mapped()) {
    one->fail(error);
    auto node = ops_.extract(one);
    on_done(node.mapped());
  }
}

// ---- ends ----

void SegmentStore::collect() {
  // Before the jobs are taken: one that ends behind this line makes it readable again. Also if
  // nothing is under way: a worker writes to it after its job may have been taken already.
  std::uint64_t count = 0;
  static_cast<void>(!::read(event_fd_, &count, sizeof count));
  notified_ = false;
  std::array<IoJob*, 64> done;
  for (std::size_t n = done.size(); n == done.size();) {
    n = engine_->reap(done);
    if (n > 0) budget_.ended(now_us_);
    for (std::size_t i = 0; i < n; ++i) {
      auto node = ops_.extract(done[i]);
      KVFOLIO_CHECK(!node.empty());
      try {
        on_done(node.mapped());
      } catch (const std::bad_alloc&) {
        end_for_good("no memory");
      }
    }
  }
}

void SegmentStore::on_done(Op& op) {
  if (op.job->fell_back) {
    went_buffered_ = true;
    if (op.segment != nullptr) op.segment->direct = false;
  }
  // Whatever it was, the segment may go on now.
  if (op.segment != nullptr) segments_.touch(*op.segment);
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
    case Op::Kind::kOpen:
      return on_opened(op);
    case Op::Kind::kClose:
      return;
  }
}

void SegmentStore::on_stored(Op& op) {
  drop_queued(op.item.bytes);
  const TierResult result = on_written(op);
  if (result == TierResult::kOk) {
    ++stats_.stored;
    stats_.stored_bytes += static_cast<std::uint64_t>(op.item.bytes);
  } else {
    ++stats_.dropped;
  }
  if (mutant(Mutant::kAcknowledgedBeforeWritten)) return;  // it was answered when it began
  answer(op.item.tag, TierOp::kStore, in_time(op.deadline, result));
}

TierResult SegmentStore::on_written(Op& op) {
  KVFOLIO_CHECK(op.segment->writes > 0 && index_[op.record].writing);
  --op.segment->writes;
  index_[op.record].writing = false;
  const std::int64_t error = static_cast<const StoreJob&>(*op.job).result;
  if (error == 0) {
    budget_.went_well(Task::kWrite);
    index_[op.record].visible = true;
    return TierResult::kOk;
  }
  // What lies at its place is unknown, and headers are read one behind the other: no record may
  // follow it.
  index_.retire(op.record);
  stop_writing(*op.segment);
  if (error == -ENOMEM) return TierResult::kBusy;
  if (error == -ENOSPC || error == -EDQUOT) {
    ++stats_.no_space;
    make_room();
    return TierResult::kBusy;
  }
  on_error(*op.segment, Task::kWrite, error);
  return TierResult::kIoError;
}

void SegmentStore::on_loaded(Op& op) {
  drop_queued(op.item.bytes);
  const TierResult result = on_read(op);
  if (static_cast<const LoadJob&>(*op.job).is_of_another_key) ++stats_.of_another_key;
  if (result == TierResult::kOk) {
    ++stats_.loaded;
    stats_.loaded_bytes += static_cast<std::uint64_t>(op.item.bytes);
  }
  answer(op.item.tag, TierOp::kLoad, in_time(op.deadline, result));
}

TierResult SegmentStore::on_read(Op& op) {
  KVFOLIO_CHECK(op.segment->reads > 0);
  --op.segment->reads;
  const auto& job = static_cast<const LoadJob&>(*op.job);
  if (job.is_of_another_key) {
    // It is found by who has its key, as long as its segment is there: here no one used it.
    index_[op.record].used = false;
    budget_.went_well(Task::kRead);
    return TierResult::kMiss;
  }
  const bool fails = job.result != TierResult::kOk && job.result != TierResult::kBusy;
  // Its place was written over meanwhile, in part or whole; or its segment goes.
  const bool was_erased = !index_[op.record].live;
  if (fails) index_.retire(op.record);
  if (job.result == TierResult::kOk) {
    budget_.went_well(Task::kRead);
  } else if (job.result == TierResult::kCorrupt) {
    if (was_erased) return TierResult::kMiss;
    ++stats_.corrupt;
  } else if (job.result == TierResult::kIoError) {
    on_error(*op.segment, Task::kRead, job.error);
  }
  return job.result;
}

void SegmentStore::on_error(Segment& segment, Task task, std::int64_t error) {
  stop_writing(segment);
  if (++segment.errors >= kErrorsOfSegmentMax && segment.state == State::kSealed) drain(segment);
  count_error(task, error);
}

// Loads go on over open files when the directory is gone or read-only: they say nothing of stores.
void SegmentStore::count_error(Task task, std::int64_t error) {
  ++stats_.io_errors;
  if (budget_.failed(task, error, now_us_)) turn_off(TierResult::kUnavailable);
}

}  // namespace kvfolio::disk
