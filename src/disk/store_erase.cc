// SPDX-License-Identifier: Apache-2.0
//
// How a record goes for good. kErase takes it out of the index at once, and is answered when
// nothing in a file can bring it back: a tombstone lies over each copy, or the file is gone. There
// may be several copies: the one that is found, those that were replaced, damaged or are being
// moved, and those in segments that are about to go. A segment works at one EraseJob at a time, for
// all that has come together by then; before a segment is full, while it is being sealed and while
// its file is removed, its targets wait.

#include <algorithm>
#include <cerrno>
#include <new>

#include "disk/store.h"

namespace kvfolio::disk {
namespace {

constexpr std::size_t kTargetsOfJobMax = 1024;  // each is a write of a piece

}  // namespace

// ---- from the owner ----

bool SegmentStore::take_erase(const TierItem& item, Deadline deadline) {
  bool found = false;
  index_.for_each(item.key, [&](std::uint32_t id) {
    found = found || segment_of(id).state != State::kForgetting;
  });
  if (!found) {
    drop_waiting_stores(item.key);
    answer(item.tag, TierOp::kErase, TierResult::kOk);
    return true;
  }
  const std::uint64_t number = erases_.add(item.tag, deadline);
  drop_waiting_stores(item.key);
  // One that is being written is not found afterwards either.
  if (const std::uint32_t id = index_.find(item.key); id != RecordIndex::kNone) index_.retire(id);
  find_targets(item.key, number);
  end_target({RecordIndex::kNone, number}, TierResult::kOk);
  return true;
}

// They came before, and would be there afterwards.
void SegmentStore::drop_waiting_stores(const TierKey& key) noexcept {
  while (const std::optional<Waiting> waiting = stores_.take(key)) {
    ++stats_.dropped;
    answer_unbegun(*waiting, TierOp::kStore, TierResult::kBusy);
  }
}

// Each copy is put down where it lies.
void SegmentStore::find_targets(const TierKey& key, std::uint64_t erase) noexcept {
  index_.for_each(key, [&](std::uint32_t id) {
    Segment& segment = segment_of(id);
    if (segment.state == State::kForgetting) return;
    index_[id].erased = true;
    if (!keep_target(segment, {id, erase})) return erases_.failed(erase, TierResult::kBusy);
    ++to_erase_;
    erases_.add_target(erase);
    segments_.touch(segment);
  });
}

// ---- jobs ----

// Requires: there is something to erase, and neither a job nor a walk is under way for that.
void SegmentStore::go_on_erasing(Segment& segment) {
  KVFOLIO_DCHECK(!segment.erasing && segment.walk == Segment::Walk::kNone);
  switch (segment.state) {
    case State::kActive:
    case State::kFull:
    case State::kSealed:
    case State::kEvicting:
      break;
    case State::kDraining:
      if (segment.retry_us > now_us_) end_waiting_targets(segment, TierResult::kIoError);
      return;
    default:  // the job that is under way ends first
      return;
  }
  if (!has_room_for_job()) return segments_.touch_later(segment);
  segment.num_erasing = std::min(segment.to_erase.size(), kTargetsOfJobMax);
  if (segment.in_footer < 0) return begin_erase(segment);
  begin_walk(segment, Segment::Walk::kEraseEntries);
}

// False: no memory.
bool SegmentStore::keep_target(Segment& segment, const EraseTarget& target) noexcept {
  try {
    segment.to_erase.push_back(target);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

// The walk has collected what the footer names. What goes was marked before it began.
void SegmentStore::begin_erase(Segment& segment) {
  const bool has_footer = segment.in_footer >= 0;
  std::vector<FooterEntry> entries = std::exchange(segment.entries, {});
  // Without a record left the file itself goes.
  if (has_footer && !has_record(entries) && segment.state == State::kSealed) return drain(segment);
  KVFOLIO_CHECK(!segment.erasing && segment.num_erasing <= segment.to_erase.size());
  prepare_file(segment);
  auto job = std::make_unique<EraseJob>();
  job->tombstones.reserve(segment.num_erasing);
  std::vector<EraseTarget> targets;
  targets.reserve(segment.num_erasing);
  EraseJob& erase = *job;
  Op& op = add_op(Op::Kind::kErase, std::move(job));
  spend_at_least(static_cast<std::int64_t>(segment.num_erasing));
  std::size_t writing = 0;
  for (; segment.num_erasing > 0; --segment.num_erasing) {
    const EraseTarget target = segment.to_erase.front();
    segment.to_erase.pop_front();
    const Record& record = index_[target.record];
    if (record.writing && keep_target(segment, target)) {
      ++writing;
      continue;
    }
    --to_erase_;
    if (record.writing) {
      end_target(target, TierResult::kBusy);
      continue;
    }
    if (record.gone) {
      end_target(target, TierResult::kOk);
      continue;
    }
    KVFOLIO_CHECK(record.erased && !record.live && record.offset() < segment.used);
    targets.push_back(target);
    erase.tombstones.push_back(
        {{}, sequence_of(target.record), record.offset(), std::int64_t{record.data_bytes}});
  }
  if (targets.empty()) {
    ops_.erase(&erase);
    // The end of a write takes another look.
    if (writing == 0 && !segment.to_erase.empty()) segments_.touch(segment);
    return;
  }
  KVFOLIO_CHECK(std::ssize(entries) <= std::max<std::int64_t>(segment.in_footer, 0));
  erase.place.offset = segment.bytes();
  erase.has_footer = has_footer;
  erase.epoch = segment.epoch;
  erase.entries = std::move(entries);
  op.targets = std::move(targets);
  segment.erasing = true;
  ++segment.writes;
  start_in(segment, op);
}

void SegmentStore::on_erased(Op& op) {
  Segment& segment = *op.segment;
  const auto& job = static_cast<const EraseJob&>(*op.job);
  KVFOLIO_CHECK(segment.erasing && segment.writes > 0);
  segment.erasing = false;
  --segment.writes;
  if (job.footer_written) segment.in_footer = static_cast<std::int64_t>(job.entries.size());
  TierResult result = TierResult::kOk;
  switch (-job.result) {
    case 0:
      budget_.went_well(Task::kRead);
      break;
    case ENOSPC:
    case EDQUOT:
      ++stats_.no_space;
      [[fallthrough]];
    case ENOMEM:
    case EMFILE:
    case ENFILE:
      result = TierResult::kBusy;
      break;
    default:
      on_error(segment, Task::kWrite, job.result);
      result = TierResult::kIoError;
  }
  for (const EraseTarget& target : op.targets) {
    if (job.result == 0) index_.drop(target.record);
    end_target(target, result);
  }
}

void SegmentStore::end_target(const EraseTarget& target, TierResult result) noexcept {
  if (result != TierResult::kOk) erases_.failed(target.erase, result);
  const std::optional<Erases::Erase> erase = erases_.end_target(target.erase);
  if (!erase) return;  // others are left, or it was late
  answer(erase->tag, TierOp::kErase, in_time(erase->deadline, erase->result));
}

bool SegmentStore::end_waiting_targets(Segment& segment, TierResult result) noexcept {
  while (!segment.to_erase.empty() && spend()) {
    KVFOLIO_DCHECK(to_erase_ > 0);
    --to_erase_;
    end_target(segment.to_erase.front(), result);
    segment.to_erase.pop_front();
  }
  return segment.to_erase.empty();
}

}  // namespace kvfolio::disk
