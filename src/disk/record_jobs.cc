// SPDX-License-Identifier: Apache-2.0
//
// The jobs of one record: its memory, and how it is written and read.

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "disk/job_steps.h"

namespace kvfolio::disk {

// ---- memory ----

bool RecordMemory::prepare(std::byte* data, std::int64_t bytes) noexcept {
  data_ = data;
  bytes_ = bytes;
  const std::int64_t body = body_bytes(bytes);
  in_place_ = is_aligned(data) ? std::min(body, bytes / kPiece * kPiece) : 0;
  KVFOLIO_CHECK(bytes >= 0 && bytes <= kDataBytesMax && in_place_ <= bytes);
  edge_ = AlignedBuffer(2 * kPiece);
  if (edge_.data() == nullptr) return false;
  if (body - in_place_ <= kPiece) return true;
  bounce_ = AlignedBuffer(body);
  return bounce_.data() != nullptr;
}

void RecordMemory::add_parts(IoStep& step) noexcept {
  const std::int64_t body = body_bytes(bytes_);
  step.add_part(edge_.data(), kPiece);
  step.add_part(data_, in_place_);
  step.add_part(bounce_.data() != nullptr ? bounce_.data() : edge_.data() + kPiece,
                body - in_place_);
}

void RecordMemory::fill_own() noexcept {
  const std::int64_t body = body_bytes(bytes_);
  if (body == in_place_) return;
  std::byte* own = bounce_.data() != nullptr ? bounce_.data() : edge_.data() + kPiece;
  const auto copied = static_cast<std::size_t>(std::min(body, bytes_) - in_place_);
  KVFOLIO_DCHECK(static_cast<std::int64_t>(copied) <= body - in_place_);
  std::memcpy(own, data_ + in_place_, copied);
  // Memory of other things must not reach the disk.
  std::memset(own + copied, 0, static_cast<std::size_t>(body - in_place_) - copied);
}

void RecordMemory::take_own() noexcept {
  const std::int64_t body = body_bytes(bytes_);
  const std::byte* own = bounce_.data() != nullptr ? bounce_.data() : edge_.data() + kPiece;
  if (body > in_place_) {
    std::memcpy(data_ + in_place_, own,
                static_cast<std::size_t>(std::min(body, bytes_) - in_place_));
  }
  KVFOLIO_DCHECK(kRecordFieldsBytes + std::ssize(tail()) <= kPiece);
  if (!tail().empty()) {
    std::memcpy(tail().data(), edge_.data() + kRecordFieldsBytes, tail().size());
  }
}

// ---- records ----

IoStep StoreJob::next(std::int64_t last) noexcept {
  if (step_++ > 0) {
    result = std::min<std::int64_t>(last, 0);
    return {};
  }
  KVFOLIO_CHECK(place.file >= 0 && is_behind_header(place));
  if (!memory_.prepare(data, header.data_bytes)) {
    result = -ENOMEM;
    return {};
  }
  if (!seal(header, memory_.data(), keys, memory_.header())) {
    result = -ENOMEM;
    return {};
  }
  memory_.fill_own();
  IoStep step = transfer_step(IoStep::Kind::kWrite, place);
  memory_.add_parts(step);
  return step;
}

IoStep LoadJob::next(std::int64_t last) noexcept {
  switch (step_++) {
    case 0: {
      KVFOLIO_CHECK(place.file >= 0 && is_behind_header(place));
      if (!memory_.prepare(data, expected.data_bytes)) {
        result = TierResult::kBusy;
        return {};
      }
      IoStep step = transfer_step(IoStep::Kind::kRead, place);
      memory_.add_parts(step);
      return step;
    }
    case 1: {
      if (last < 0) {
        result = TierResult::kIoError;
        error = last;
      } else {
        memory_.take_own();
        result = compare();
      }
      if (!drop_cached) return {};
      IoStep step =
          file_step(IoStep::Kind::kDropCached, place.file, record_bytes(expected.data_bytes));
      step.offset = place.offset;
      return step;
    }
    default:
      return {};
  }
}

void LoadJob::use_file(int file, bool direct) noexcept {
  place.file = file;
  place.direct = direct;
  drop_cached = !direct;
}

// A file that is gone has no record; where the process has no descriptor for it, it may have one
// later.
void LoadJob::fail(std::int64_t why) noexcept {
  error = why;
  result = why == -ENOENT                     ? TierResult::kMiss
           : why == -EMFILE || why == -ENFILE ? TierResult::kBusy
                                              : TierResult::kIoError;
}

TierResult LoadJob::compare() noexcept {
  RecordHeader seen;
  if (decode(memory_.header(), seen) != FormatFault::kNone) return TierResult::kCorrupt;
  if (seen.erased && seen.epoch == expected.epoch && seen.sequence == expected.sequence) {
    return TierResult::kMiss;
  }
  if (seen != expected) return TierResult::kCorrupt;
  const RecordFault fault = fault_of(memory_.header(), seen, memory_.data(), keys);
  // What this rests on, the number of the key, is not authenticated. Who writes another one there
  // gets a miss instead of kCorrupt, and no byte believed.
  is_of_another_key = fault == RecordFault::kSealer;
  if (is_of_another_key) return TierResult::kMiss;
  return fault == RecordFault::kNone ? TierResult::kOk : TierResult::kCorrupt;
}

}  // namespace kvfolio::disk
