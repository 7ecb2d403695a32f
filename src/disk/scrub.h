// SPDX-License-Identifier: Apache-2.0
#pragma once

// Scrub chooses the records that are read though no user asks for them, so that damage is found
// while another tier may still have the record. It goes through the sealed segments, the oldest
// first, and begins anew behind the last. How fast is a matter of credit: so many bytes a second,
// saved for a second or a segment at most; a record is read as soon as there is any, and its bytes
// may leave a debt.
//
// It knows where it stands by the id of a segment, which may be gone when it looks again, and by a
// record of it, which stays as long as the segment is sealed. Invariant: the credit is within what
// may be saved, the rest below a byte. Thread safety: none.

#include <algorithm>
#include <cstdint>

#include "disk/index.h"
#include "disk/segments.h"

namespace kvfolio::disk {

class Scrub {
 public:
  // `bytes_per_s` 0: nothing is read.
  Scrub(std::int64_t bytes_per_s, std::int64_t segment_bytes) noexcept
      : bytes_per_s_(bytes_per_s), most_(std::max(bytes_per_s, segment_bytes)) {}

  // So much time has passed; of a long pause a second counts.
  void earn(std::uint64_t passed_us) noexcept {
    if (bytes_per_s_ == 0) return;
    const auto counted = static_cast<std::int64_t>(std::min(passed_us, kMostUs));
    const std::int64_t gained = rest_ + counted * bytes_per_s_;
    credit_ = std::min(credit_ + gained / kMillion, most_);
    rest_ = gained % kMillion;
  }
  void spend(std::int64_t bytes) noexcept {
    KVFOLIO_DCHECK(may_read() && bytes > 0);
    credit_ -= bytes;
  }
  [[nodiscard]] bool may_read() const noexcept { return credit_ > 0; }

  // The record to read, if it is live; kNone: there is none here, and the next call looks at
  // another place. It looks at one record.
  [[nodiscard]] std::uint32_t next(Segments& segments, const RecordIndex& index) noexcept {
    const Segment* segment = segments.next_sealed(segment_);
    if (segment == nullptr) {  // from the beginning, the next time
      segment_ = {};
      is_inside_ = false;
      return RecordIndex::kNone;
    }
    if (segment->id != segment_ || !is_inside_) {
      segment_ = segment->id;
      record_ = segment->first;
      is_inside_ = true;
    }
    if (record_ == RecordIndex::kNone) {
      ++segment_.name;  // the first id behind it
      is_inside_ = false;
      return RecordIndex::kNone;
    }
    const std::uint32_t id = record_;
    KVFOLIO_DCHECK(index[id].segment == segment->slot);
    record_ = index[id].next;
    return index[id].live ? id : RecordIndex::kNone;
  }

  [[nodiscard]] bool check() const noexcept {
    return credit_ <= most_ && rest_ >= 0 && rest_ < kMillion && (bytes_per_s_ > 0 || credit_ == 0);
  }

 private:
  static constexpr std::int64_t kMillion = 1'000'000;
  static constexpr std::uint64_t kMostUs = 1'000'000;

  std::int64_t bytes_per_s_;
  std::int64_t most_;        // that may be saved
  std::int64_t credit_ = 0;  // bytes; below 0: a debt
  std::int64_t rest_ = 0;    // millionths of a byte: polls may be close together
  SegmentId segment_{};
  std::uint32_t record_ = RecordIndex::kNone;  // the next
  bool is_inside_ = false;                     // record_ is of segment_
};

}  // namespace kvfolio::disk
