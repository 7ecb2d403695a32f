// SPDX-License-Identifier: Apache-2.0
#pragma once

// Eviction is the segment that makes room for the next one, and what of it is written again first:
// records that were used, up to a number of bytes, so that eviction always frees something. There
// is one at a time, until its file is gone. It knows records by number; the store moves them.
//
// Invariants, see check(): without a segment nothing is chosen; the segment is in one of the states
// from evicting to removing. A move outlives its eviction where that is stopped.
// Thread safety: none.

#include <cstdint>
#include <deque>
#include <optional>

#include "disk/segments.h"

namespace kvfolio::disk {

class Eviction {
 public:
  static constexpr std::int64_t kMovesMax = 4;  // at the same time: each takes memory for a record

  // bytes_max: of what is written again.
  explicit Eviction(std::int64_t bytes_max) noexcept : bytes_max_(bytes_max) {}

  [[nodiscard]] bool is_under_way() const noexcept { return segment_ != nullptr; }
  [[nodiscard]] bool is_of(const Segment& segment) const noexcept { return segment_ == &segment; }
  // nullptr: none is under way.
  [[nodiscard]] Segment* segment() const noexcept { return segment_; }

  // Requires: none is under way.
  void begin(Segment& segment) noexcept {
    KVFOLIO_CHECK(segment_ == nullptr);
    segment_ = &segment;
    forget_rest();
  }
  // Its file is gone, or is kept after all.
  void end() noexcept {
    segment_ = nullptr;
    forget_rest();
  }

  // ---- what is written again ----

  // The record is, behind those before. False: it would be too much, and no other is. May throw
  // std::bad_alloc.
  [[nodiscard]] bool choose(std::uint32_t record, std::int64_t bytes) {
    KVFOLIO_DCHECK(segment_ != nullptr && bytes > 0);
    bytes_ += bytes;
    if (bytes_ > bytes_max_) return false;
    chosen_.push_back(record);
    return true;
  }
  // The next one, which is not chosen any more; nothing while as many as may are under way.
  [[nodiscard]] std::optional<std::uint32_t> next() noexcept {
    if (chosen_.empty() || moves_ >= kMovesMax) return {};
    const std::uint32_t record = chosen_.front();
    chosen_.pop_front();
    return record;
  }
  void move_begun() noexcept { ++moves_; }
  void move_ended() noexcept {
    KVFOLIO_CHECK(moves_ > 0);
    --moves_;
  }
  // What was not begun stays where it is.
  void forget_rest() noexcept {
    chosen_.clear();
    bytes_ = 0;
  }
  [[nodiscard]] std::int64_t moves() const noexcept { return moves_; }
  // Nothing is chosen or under way.
  [[nodiscard]] bool has_moved_all() const noexcept { return chosen_.empty() && moves_ == 0; }

  [[nodiscard]] bool check() const noexcept {
    if (segment_ == nullptr && !chosen_.empty()) return false;
    if (moves_ < 0 || moves_ > kMovesMax) return false;
    return segment_ == nullptr || segment_->state == Segment::State::kEvicting ||
           segment_->state == Segment::State::kDraining ||
           segment_->state == Segment::State::kRemoving;
  }

 private:
  std::int64_t bytes_max_;
  Segment* segment_ = nullptr;
  std::deque<std::uint32_t> chosen_;
  std::int64_t bytes_ = 0;  // of what was chosen
  std::int64_t moves_ = 0;  // under way
};

}  // namespace kvfolio::disk
