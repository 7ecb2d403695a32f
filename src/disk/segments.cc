// SPDX-License-Identifier: Apache-2.0
#include "disk/segments.h"

#include <algorithm>
#include <utility>

#include "kvfolio/status.h"

namespace kvfolio::disk {
namespace {

// The life of a segment, at the head of store.h; and back from eviction and from a removal that
// failed, and to the end without what would have been in between.
bool may_become(Segment::State from, Segment::State to) noexcept {
  using State = Segment::State;
  switch (from) {
    case State::kCreating:
      return to == State::kReady;
    case State::kContinuing:
      return to == State::kReady || to == State::kFull || to == State::kSealed;
    case State::kReady:
      return to == State::kActive || to == State::kFull;
    case State::kActive:
      return to == State::kFull;
    case State::kFull:
      return to == State::kSealing || to == State::kDraining;
    case State::kSealing:
      return to == State::kSealed;
    case State::kSealed:
      return to == State::kContinuing || to == State::kEvicting || to == State::kDraining;
    case State::kEvicting:
      return to == State::kDraining || to == State::kSealed;
    case State::kDraining:
      return to == State::kRemoving;
    case State::kRemoving:
      return to == State::kForgetting || to == State::kDraining;
    case State::kForgetting:
      return false;
  }
  return false;
}

}  // namespace

Segment& Segments::add(SegmentId id, State state, std::int64_t bytes) {
  auto segment = std::make_unique<Segment>();
  segment->id = id;
  std::set<SegmentId> one{id};
  segment->sealed_ = one.extract(id);
  if (free_slots_.empty()) {
    slots_.reserve(slots_.size() + 1);
    free_slots_.reserve(slots_.size() + 1);  // so that remove() takes no memory
  }
  Segment& added = *segment;
  const bool is_new = by_id_.emplace(id, std::move(segment)).second;
  KVFOLIO_CHECK(is_new);
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<std::uint32_t>(slots_.size()));
    slots_.push_back(nullptr);
  }
  added.slot = free_slots_.back();
  free_slots_.pop_back();
  slots_[added.slot] = &added;
  put_state(added, state);
  set_bytes(added, bytes);
  return added;
}

void Segments::remove(Segment& segment) noexcept {
  KVFOLIO_CHECK(segment.first == RecordIndex::kNone && !segment.is_open_);
  KVFOLIO_CHECK(segment.reads == 0 && segment.writes == 0 && segment.to_erase.empty());
  // Nothing works at it: it was never made, it was found and is beyond the budget, or it is gone.
  KVFOLIO_CHECK(segment.state == State::kCreating || segment.state == State::kSealed ||
                segment.state == State::kDraining || segment.state == State::kForgetting);
  KVFOLIO_CHECK(slots_[segment.slot] == &segment && !segment.erasing && !segment.opening);
  set_bytes(segment, 0);
  put_state(segment, State::kForgetting);
  if (segment.in_line_) {
    line_.remove(segment);
    later_.remove(segment);
  }
  slots_[segment.slot] = nullptr;
  free_slots_.push_back(segment.slot);
  by_id_.erase(SegmentId(segment.id));
}

void Segments::set_state(Segment& segment, State state) noexcept {
  KVFOLIO_CHECK(may_become(segment.state, state));
  put_state(segment, state);
}

void Segments::put_state(Segment& segment, State state) noexcept {
  if (state == State::kSealed && segment.sealed_) {
    sealed_.insert(std::move(segment.sealed_));
  } else if (state != State::kSealed && !segment.sealed_) {
    segment.sealed_ = sealed_.extract(segment.id);
  }
  segment.state = state;
}

void Segments::set_bytes(Segment& segment, std::int64_t bytes) noexcept {
  KVFOLIO_CHECK(bytes >= 0);
  bytes_ += bytes - std::exchange(segment.bytes_, bytes);
  KVFOLIO_DCHECK(bytes_ >= bytes);
}

Segment* Segments::oldest() noexcept {
  return by_id_.empty() ? nullptr : by_id_.begin()->second.get();
}

Segment* Segments::oldest_sealed() noexcept { return next_sealed({}); }

Segment* Segments::next_sealed(SegmentId id) noexcept {
  const auto at = sealed_.lower_bound(id);
  return at == sealed_.end() ? nullptr : by_id_.at(*at).get();
}

void Segments::Line::push(Segment& segment) noexcept {
  if (std::exchange(segment.in_line_, true)) return;
  segment.behind_ = nullptr;
  (last == nullptr ? first : last->behind_) = &segment;
  last = &segment;
  ++size;
}

Segment* Segments::Line::pop() noexcept {
  Segment* segment = first;
  if (segment == nullptr) return nullptr;
  KVFOLIO_DCHECK(segment->in_line_ && size > 0);
  first = segment->behind_;
  if (first == nullptr) last = nullptr;
  segment->in_line_ = false;
  --size;
  return segment;
}

void Segments::Line::remove(Segment& segment) noexcept {
  Segment* before = nullptr;
  for (Segment* at = first; at != nullptr; before = at, at = at->behind_) {
    if (at != &segment) continue;
    (before == nullptr ? first : before->behind_) = at->behind_;
    if (last == at) last = before;
    segment.in_line_ = false;
    --size;
    return;
  }
}

bool Segments::check() const noexcept {
  std::int64_t bytes = 0;
  std::size_t sealed = 0, in_line = 0;
  for (const auto& [id, segment] : by_id_) {
    if (segment->id != id || slots_[segment->slot] != segment.get()) return false;
    bytes += segment->bytes_;
    sealed += segment->state == State::kSealed ? 1 : 0;
    if ((segment->state == State::kSealed) != (sealed_.count(id) == 1)) return false;
    in_line += segment->in_line_ ? 1 : 0;
  }
  return bytes == bytes_ && sealed == sealed_.size() && in_line == line_.size + later_.size;
}

// ---- open files ----

void OpenFiles::unlink(Segment& segment) noexcept {
  (segment.newer_ == nullptr ? newest_ : segment.newer_->older_) = segment.older_;
  (segment.older_ == nullptr ? oldest_ : segment.older_->newer_) = segment.newer_;
  segment.newer_ = segment.older_ = nullptr;
}

void OpenFiles::opened(Segment& segment) noexcept {
  KVFOLIO_CHECK(segment.file >= 0);
  KVFOLIO_CHECK(!std::exchange(segment.is_open_, true));
  ++size_;
  segment.older_ = newest_;
  (newest_ == nullptr ? oldest_ : newest_->newer_) = &segment;
  newest_ = &segment;
}

void OpenFiles::closed(Segment& segment) noexcept {
  if (!std::exchange(segment.is_open_, false)) return;
  --size_;
  KVFOLIO_DCHECK(size_ >= 0);
  unlink(segment);
}

void OpenFiles::used(Segment& segment) noexcept {
  if (!segment.is_open_ || newest_ == &segment) return;
  closed(segment);
  opened(segment);
}

void OpenFiles::shrink() noexcept { most_ = std::max(1, std::min(most_, size_)); }

// Those that are passed over have work under way, of which there is a bounded number.
Segment* OpenFiles::least_used() const noexcept {
  for (Segment* at = oldest_; at != nullptr; at = at->newer_) {
    const bool is_still = at->reads == 0 && at->writes == 0 && !at->stays_open;
    if (is_still && at->state == Segment::State::kSealed) return at;
  }
  return nullptr;
}

bool OpenFiles::check(const Segments& segments) const noexcept {
  int open = 0;
  for (const auto& [id, segment] : segments.all()) {
    if (segment->is_open_ != (segment->file >= 0)) return false;
    open += segment->is_open_ ? 1 : 0;
  }
  int linked = 0;
  for (const Segment* at = newest_; at != nullptr; at = at->older_) {
    if (!at->is_open_ || ++linked > size_) return false;
  }
  return open == size_ && linked == size_;
}

}  // namespace kvfolio::disk
