// SPDX-License-Identifier: Apache-2.0
//
// How a record goes for good. kErase takes it out of the index at once, and is answered when
// nothing in a file can bring it back: a tombstone lies over each copy, or the file is gone. There
// may be several copies: the one that is found, those that were replaced, damaged or are being
// moved (stale_), and those in segments that are about to go. A segment works at one EraseJob at a
// time, for all that has come together by then; before a segment is full, while it is being sealed
// and while its file is removed, its targets wait.

#include <algorithm>
#include <cerrno>

#include "disk/store.h"

namespace kvfolio::disk {
namespace {

constexpr std::size_t kErasesMax = 1 << 16;   // accepted and not answered
constexpr std::size_t kTargetsOfJobMax = 64;  // each is a write of a piece

}  // namespace

// ---- copies that no key leads to ----

void SegmentStore::add_stale(std::uint32_t id) {
  Record& record = index_[id];
  if (record.stale || record.gone) return;
  record.stale = true;
  stale_.emplace(record.key, id);
}

void SegmentStore::remove_stale(std::uint32_t id) {
  Record& record = index_[id];
  if (!record.stale) return;
  record.stale = false;
  const auto [begin, end] = stale_.equal_range(record.key);
  stale_.erase(std::find_if(begin, end, [id](const auto& one) { return one.second == id; }));
}

// ---- from the owner ----

// False: there are too many.
bool SegmentStore::take_erase(const TierItem& item, Deadline deadline) {
  if (erases_.size() >= kErasesMax) return false;
  drop_waiting_stores(item.key);
  // One that is being written is not found afterwards either.
  if (const std::uint32_t id = index_.find(item.key); id != RecordIndex::kNone) {
    index_.erase(id);
    add_stale(id);
  }
  const std::int64_t found = find_targets(item.key, last_erase_ + 1);
  if (found == 0) {
    answer(item.tag, TierOp::kErase, TierResult::kOk);
  } else {
    erases_.emplace(++last_erase_, Erase{.tag = item.tag, .deadline = deadline, .left = found});
  }
  return true;
}

// They came before, and would be there afterwards.
void SegmentStore::drop_waiting_stores(const TierKey& key) {
  for (auto at = stores_.begin(); at != stores_.end();) {
    if (at->item.key != key) {
      ++at;
      continue;
    }
    queued_bytes_ -= at->item.bytes;
    ++stats_.dropped;
    answer(at->item.tag, TierOp::kStore, TierResult::kBusy);
    at = stores_.erase(at);
  }
}

// How many copies there are. Each is put down where it lies.
std::int64_t SegmentStore::find_targets(const TierKey& key, std::uint64_t erase) {
  std::int64_t found = 0;
  const auto add = [&](std::uint32_t id) {
    index_[id].segment->to_erase.push_back({id, erase});
    ++found;
  };
  const auto [begin, end] = stale_.equal_range(key);
  for (auto at = begin; at != end; ++at) add(at->second);
  for (const auto& [number, segment] : segments_) {
    if (segment.state != State::kDraining && segment.state != State::kRemoving) continue;
    for (const std::uint32_t id : segment.records) {
      const Record& record = index_[id];
      if (record.key == key && !record.stale && !record.gone) add(id);
    }
  }
  to_erase_ += found;
  return found;
}

void SegmentStore::expire_erases() {
  for (auto at = erases_.begin(); at != erases_.end();) {
    if (at->second.deadline.at_us >= now_us_) {
      ++at;
      continue;
    }
    answer(at->second.tag, TierOp::kErase, TierResult::kTimeout);
    at = erases_.erase(at);  // its targets go all the same
  }
}

// ---- jobs ----

void SegmentStore::begin_erases() {
  if (to_erase_ == 0) return;
  for (auto& [number, segment] : segments_) {
    if (segment.to_erase.empty() || segment.erasing) continue;
    switch (segment.state) {
      case State::kActive:
      case State::kFull:
      case State::kSealed:
      case State::kEvicting:
        if (has_room_for_job()) begin_erase(segment);
        break;
      case State::kDraining:
        if (segment.retry_us > now_us_) end_waiting_targets(segment, TierResult::kIoError);
        break;
      default:  // the job that is under way ends first
        break;
    }
    if (can_be_removed(segment) && !segment.to_erase.empty()) begin_remove(segment);
  }
}

void SegmentStore::begin_erase(Segment& segment) {
  const bool has_footer = segment.in_footer >= 0;
  auto job = std::make_unique<EraseJob>();
  if (has_footer) job->entries = entries_of(segment);
  // Without a record left the file itself goes.
  if (has_footer && job->entries.empty() && segment.state == State::kSealed) return drain(segment);
  Op op{.kind = Op::Kind::kErase, .segment = &segment};
  std::vector<EraseTarget> later;
  for (const EraseTarget& target : segment.to_erase) {
    const Record& record = index_[target.record];
    if (record.gone) {
      end_target(target, TierResult::kOk);
    } else if (record.writing || job->tombstones.size() >= kTargetsOfJobMax) {
      later.push_back(target);
    } else {
      const auto is_it = [&](const FooterEntry& one) { return one.offset == record.offset; };
      op.targets.push_back(target);
      if (std::any_of(job->tombstones.begin(), job->tombstones.end(), is_it)) continue;
      job->tombstones.push_back(
          {{}, record.sequence, record.offset, std::int64_t{record.data_bytes}});
    }
  }
  to_erase_ -= static_cast<std::int64_t>(segment.to_erase.size() - later.size());
  segment.to_erase = std::move(later);
  if (op.targets.empty()) return;
  const auto num_left = static_cast<std::int64_t>(job->entries.size());
  KVFOLIO_CHECK(num_left <= std::max<std::int64_t>(segment.in_footer, 0));
  job->place = {segment.file, segment.bytes - footer_bytes(num_left), segment.direct};
  job->has_footer = has_footer && num_left < segment.in_footer;
  job->epoch = segment.epoch;
  segment.erasing = true;
  ++segment.writes;
  op.job = std::move(job);
  start(std::move(op));
}

void SegmentStore::on_erased(Op& op) {
  Segment& segment = *op.segment;
  const auto& job = static_cast<const EraseJob&>(*op.job);
  segment.erasing = false;
  --segment.writes;
  if (job.footer_written) segment.in_footer = static_cast<std::int64_t>(job.entries.size());
  TierResult result = TierResult::kOk;
  if (job.result == 0) {
    errors_in_row_ = 0;
  } else if (job.result == -ENOSPC || job.result == -EDQUOT || job.result == -ENOMEM) {
    stats_.no_space += job.result == -ENOMEM ? 0 : 1;
    result = TierResult::kBusy;
  } else {
    on_error(segment, Task::kWrite);
    result = TierResult::kIoError;
  }
  for (const EraseTarget& target : op.targets) {
    if (job.result == 0) {
      remove_stale(target.record);
      index_[target.record].gone = true;
    }
    end_target(target, result);
  }
}

void SegmentStore::end_target(const EraseTarget& target, TierResult result) {
  const auto found = erases_.find(target.erase);
  if (found == erases_.end()) return;  // it was late
  Erase& erase = found->second;
  if (result != TierResult::kOk) erase.result = result;
  if (--erase.left > 0) return;
  answer(erase.tag, TierOp::kErase, in_time(erase.deadline, erase.result));
  erases_.erase(found);
}

void SegmentStore::end_waiting_targets(Segment& segment, TierResult result) {
  to_erase_ -= static_cast<std::int64_t>(segment.to_erase.size());
  for (const EraseTarget& target : segment.to_erase) end_target(target, result);
  segment.to_erase.clear();
}

}  // namespace kvfolio::disk
