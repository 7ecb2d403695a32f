// SPDX-License-Identifier: Apache-2.0
//
// Lists of media extents, and what is asked about them: see media_extents.h.

#include "prefix/media_extents.h"

#include <algorithm>
#include <cstring>

#include "base/hash.h"
#include "base/text.h"

namespace kvfolio {
namespace {

std::uint64_t mix_medium(std::uint64_t hash, const std::array<std::byte, 32>& content_id,
                         std::int32_t from, std::int32_t to, std::int32_t offset,
                         std::int32_t span_length, bool attends_to_itself) noexcept {
  const std::int32_t where[] = {from, to, offset, span_length, int{attends_to_itself}};
  hash = hash_bytes(where, sizeof where, hash);
  return hash_bytes(content_id.data(), content_id.size(), hash);
}

}  // namespace

std::int32_t MediaExtents::take() noexcept {
  if (free_ != kNone) {
    const std::int32_t extent = free_;
    free_ = extents_[extent].next;
    return extent;
  }
  if (static_cast<std::size_t>(num_touched_) == extents_.size()) return kNone;
  return num_touched_++;
}

void MediaExtents::give(std::int32_t extent) noexcept {
  extents_[extent].next = free_;
  free_ = extent;
}

std::int32_t MediaExtents::behind(std::int32_t head, std::int32_t at) const noexcept {
  while (head != kNone && extents_[head].end <= at) head = extents_[head].next;
  return head;
}

// ---- lists ----

bool MediaExtents::append(std::int32_t& head, std::span<const MediaSpan> media, std::int32_t from,
                          std::int32_t to) noexcept {
  std::int32_t last = kNone;
  for (std::int32_t e = head; e != kNone; e = extents_[e].next) last = e;
  KVFOLIO_DCHECK(last == kNone || extents_[last].end <= from);
  for (const MediaSpan& span : media) {
    const std::int32_t begin = std::max(span.begin, from);
    const std::int32_t end = std::min(span.end, to);
    if (begin >= end) continue;
    if (last != kNone && extents_[last].end == begin && span.begin < begin) {
      extents_[last].end = end;  // the run grows inside the span
      continue;
    }
    const std::int32_t e = take();
    if (e == kNone) {
      cut(head, from);
      return false;
    }
    extents_[e] = {begin,
                   end,
                   begin - span.begin,
                   span.end - span.begin,
                   kNone,
                   span.attends_to_itself,
                   span.content_id};
    (last == kNone ? head : extents_[last].next) = e;
    last = e;
  }
  return true;
}

void MediaExtents::cut(std::int32_t& head, std::int32_t from) noexcept {
  std::int32_t* link = &head;
  while (*link != kNone) {
    Extent& extent = extents_[*link];
    if (extent.begin >= from) {
      const std::int32_t dropped = *link;
      *link = extent.next;
      give(dropped);
      continue;
    }
    extent.end = std::min(extent.end, from);
    link = &extent.next;
  }
}

bool MediaExtents::can_split(std::int32_t head, std::int32_t cut) const noexcept {
  const std::int32_t at = behind(head, cut);
  const bool straddles = at != kNone && extents_[at].begin < cut;
  return !straddles || free_ != kNone || static_cast<std::size_t>(num_touched_) < extents_.size();
}

std::int32_t MediaExtents::split(std::int32_t& head, std::int32_t cut) noexcept {
  std::int32_t upper = head;
  std::int32_t* link = &upper;
  while (*link != kNone && extents_[*link].end <= cut) link = &extents_[*link].next;
  const std::int32_t lower = *link;
  *link = kNone;
  if (lower != kNone && extents_[lower].begin < cut) {
    const std::int32_t doubled = take();
    KVFOLIO_CHECK(doubled != kNone);
    Extent& rest = extents_[lower];
    Extent& front = extents_[doubled];
    front = rest;
    front.end = cut;
    front.next = kNone;
    rest.offset += cut - rest.begin;
    rest.begin = cut;
    *link = doubled;
  }
  head = lower;
  return upper;
}

// ---- questions ----

std::int32_t MediaExtents::same(std::int32_t head, std::int32_t from, std::int32_t to,
                                std::span<const MediaSpan> media) const noexcept {
  std::int32_t e = behind(head, from);
  std::size_t m = 0;
  while (m < media.size() && media[m].end <= from) ++m;
  for (std::int32_t at = from; at < to;) {
    const Extent* own = e != kNone ? &extents_[e] : nullptr;
    const MediaSpan* asked = m < media.size() ? &media[m] : nullptr;
    const bool in_own = own != nullptr && own->begin <= at;
    const bool in_asked = asked != nullptr && asked->begin <= at;
    if (in_own != in_asked) return at;
    if (in_own && (own->offset + (at - own->begin) != at - asked->begin ||
                   own->span_length != asked->end - asked->begin ||
                   own->attends_to_itself != asked->attends_to_itself ||
                   own->content_id != asked->content_id)) {
      return at;
    }
    std::int32_t next = to;
    if (own != nullptr) next = std::min(next, in_own ? own->end : own->begin);
    if (asked != nullptr) next = std::min(next, in_asked ? asked->end : asked->begin);
    at = next;
    if (own != nullptr && own->end <= at) e = own->next;
    if (asked != nullptr && asked->end <= at) ++m;
  }
  return to;
}

int MediaExtents::order(std::int32_t head, std::int32_t at,
                        std::span<const MediaSpan> media) const noexcept {
  const std::int32_t e = behind(head, at);
  std::size_t m = 0;
  while (m < media.size() && media[m].end <= at) ++m;
  const bool in_own = e != kNone && extents_[e].begin <= at;
  const bool in_asked = m < media.size() && media[m].begin <= at;
  if (!in_asked) return -1;
  if (!in_own) return 1;
  const Extent& own = extents_[e];
  const MediaSpan& asked = media[m];
  int order = std::memcmp(asked.content_id.data(), own.content_id.data(), asked.content_id.size());
  if (order == 0) order = (at - asked.begin) - (own.offset + (at - own.begin));
  if (order == 0) order = (asked.end - asked.begin) - own.span_length;
  if (order == 0) order = int{asked.attends_to_itself} - int{own.attends_to_itself};
  KVFOLIO_CHECK(order != 0);
  return order;
}

std::uint64_t MediaExtents::mix(std::uint64_t hash, std::int32_t& extent, std::int32_t at,
                                std::int32_t n) const noexcept {
  for (; extent != kNone && extents_[extent].begin < at + n; extent = extents_[extent].next) {
    const Extent& part = extents_[extent];
    const std::int32_t from = std::max(part.begin, at);
    const std::int32_t to = std::min(part.end, at + n);
    hash = mix_medium(hash, part.content_id, from - at, to - at, part.offset + (from - part.begin),
                      part.span_length, part.attends_to_itself);
    if (part.end > at + n) break;
  }
  return hash;
}

std::uint64_t MediaExtents::mix(std::uint64_t hash, std::span<const MediaSpan> media,
                                std::int32_t at, std::int32_t n) noexcept {
  auto span = std::partition_point(media.begin(), media.end(),
                                   [at](const MediaSpan& before) { return before.end <= at; });
  for (; span != media.end() && span->begin < at + n; ++span) {
    const std::int32_t from = std::max(span->begin, at);
    const std::int32_t to = std::min(span->end, at + n);
    hash = mix_medium(hash, span->content_id, from - at, to - at, from - span->begin,
                      span->end - span->begin, span->attends_to_itself);
  }
  return hash;
}

// ---- copy and check ----

std::int32_t MediaExtents::copy_begins(std::int32_t head, std::int32_t end,
                                       std::span<MediaSpan> out) const noexcept {
  std::int32_t count = 0;
  for (std::int32_t e = head; e != kNone && extents_[e].begin < end; e = extents_[e].next) {
    const Extent& at = extents_[e];
    if (at.offset != 0) continue;  // the rest of a span that begins in another list
    if (static_cast<std::size_t>(count) < out.size()) {
      out[static_cast<std::size_t>(count)] = {at.begin, at.begin + at.span_length, at.content_id,
                                              at.attends_to_itself};
    }
    ++count;
  }
  return count;
}

// A member that is not named here does not compile.
void MediaExtents::copy_from(const MediaExtents& other) noexcept {
  const auto& [extents, num_touched, free] = other;
  KVFOLIO_CHECK(extents_.size() == extents.size());
  extents_.copy_from(extents, num_touched);
  num_touched_ = num_touched;
  free_ = free;
}

std::int32_t MediaExtents::check_list(std::int32_t head, std::int32_t begin,
                                      std::int32_t end) const noexcept {
  std::int32_t count = 0;
  for (std::int32_t e = head; e != kNone; e = extents_[e].next, ++count) {
    const Extent& extent = extents_[e];
    if (extent.begin < begin || extent.end <= extent.begin || extent.end > end) return -1;
    if (extent.offset < 0 || extent.offset + (extent.end - extent.begin) > extent.span_length) {
      return -1;
    }
    begin = extent.end;
  }
  return count;
}

Status MediaExtents::check(std::int64_t used) const {
  std::int64_t free = 0;
  for (std::int32_t e = free_; e != kNone && free <= num_touched_; e = extents_[e].next) ++free;
  if (used + free == num_touched_) return {};
  return {ErrorCode::kFailedPrecondition,
          text::concat("prefix tree, media: ", used, " extents are in use and ", free, " free, of ",
                       num_touched_)};
}

}  // namespace kvfolio
