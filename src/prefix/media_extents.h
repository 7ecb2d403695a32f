// SPDX-License-Identifier: Apache-2.0
#pragma once

// MediaExtents keeps stretches of media for the runs of a tree: lists in the order of positions. A
// run has the head of its list. It knows positions and media; it knows neither runs nor tokens.
//
// Invariants: the extents of a list are ascending, disjoint and not empty, and each lies inside its
// span. Each extent is in one list, or on the free list, or was never used.
// Thread safety: none; const calls write nothing. Nothing allocates after allocate().

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kvfolio/fixed_array.h"
#include "kvfolio/root_key.h"
#include "kvfolio/status.h"

namespace kvfolio {

class MediaExtents {
 public:
  static constexpr std::int32_t kNone = -1;

  // False: no memory. Requires: max_extents >= 0.
  [[nodiscard]] bool allocate(std::int32_t max_extents) noexcept {
    return extents_.allocate_zeroed(max_extents);
  }

  // What all calls require of a query's media: ascending, disjoint, none empty.
  [[nodiscard]] static bool in_order(std::span<const MediaSpan> media) noexcept {
    std::int32_t end = 0;
    for (const MediaSpan& span : media) {
      if (span.begin < end || span.end <= span.begin) return false;
      end = span.end;
    }
    return true;
  }

  // Appends what `media` has in [from, to) to a list that ends at `from` or before it. False: there
  // is no room, and the list ends at `from` still.
  [[nodiscard]] bool append(std::int32_t& head, std::span<const MediaSpan> media, std::int32_t from,
                            std::int32_t to) noexcept;
  // The list ends at `from`: what lies behind is dropped or cut.
  void cut(std::int32_t& head, std::int32_t from) noexcept;
  // An extent that lies on both sides of a cut is doubled: true if there is room for that.
  [[nodiscard]] bool can_split(std::int32_t head, std::int32_t cut) const noexcept;
  // What lies in front of `cut` leaves for a list of its own, whose head is returned.
  // Requires: can_split().
  [[nodiscard]] std::int32_t split(std::int32_t& head, std::int32_t cut) noexcept;

  // First position of [from, to) at which list and query differ, or `to`.
  [[nodiscard]] std::int32_t same(std::int32_t head, std::int32_t from, std::int32_t to,
                                  std::span<const MediaSpan> media) const noexcept;
  // < 0 where the query comes before the list at position `at`, > 0 where it comes behind: no
  // medium comes first, then by content, place and length. Requires: they differ there.
  [[nodiscard]] int order(std::int32_t head, std::int32_t at,
                          std::span<const MediaSpan> media) const noexcept;
  // A hash that goes on with what lies in [at, at + n): of a list from `extent` on, its first that
  // ends behind `at`, which moves on with it; and of a query. Equal media give equal hashes.
  [[nodiscard]] std::uint64_t mix(std::uint64_t hash, std::int32_t& extent, std::int32_t at,
                                  std::int32_t n) const noexcept;
  [[nodiscard]] static std::uint64_t mix(std::uint64_t hash, std::span<const MediaSpan> media,
                                         std::int32_t at, std::int32_t n) noexcept;

  // A part of a span.
  struct Part {
    std::int32_t begin;   // position
    std::int32_t end;     // one past its last
    std::int32_t offset;  // of `begin` within the span
    std::int32_t span_length;
    bool attends_to_itself;
    const std::array<std::byte, 32>& content_id;
  };
  // visit(part) for what a list has in [at, at + n), in order.
  template <typename Visit>
  void visit(std::int32_t head, std::int32_t at, std::int32_t n, Visit&& visit) const {
    for (std::int32_t e = behind(head, at); e != kNone && extents_[e].begin < at + n;
         e = extents_[e].next) {
      const Extent& part = extents_[e];
      const std::int32_t from = std::max(part.begin, at);
      visit(Part{from, std::min(part.end, at + n), part.offset + (from - part.begin),
                 part.span_length, part.attends_to_itself, part.content_id});
    }
  }

  // The spans that begin in this list, in front of `end`: fills `out` as far as they fit, and
  // returns how many there are.
  std::int32_t copy_begins(std::int32_t head, std::int32_t end,
                           std::span<MediaSpan> out) const noexcept;

  // Becomes an equal of `other`. Requires: allocated for as many.
  void copy_from(const MediaExtents& other) noexcept;
  // How many extents a list has, or -1 where it breaks a rule or leaves [begin, end).
  [[nodiscard]] std::int32_t check_list(std::int32_t head, std::int32_t begin,
                                        std::int32_t end) const noexcept;
  // ok, or which rule is broken, when all lists have `used` extents together.
  [[nodiscard]] Status check(std::int64_t used) const;

  [[nodiscard]] MemoryUse memory() const noexcept {
    return {extents_.bytes(), std::int64_t{num_touched_} * std::int64_t{sizeof(Extent)}};
  }

 private:
  // A stretch at absolute positions.
  struct Extent {
    std::int32_t begin;
    std::int32_t end;
    std::int32_t offset;       // of `begin` within its span
    std::int32_t span_length;  // of the whole span
    std::int32_t next;         // in its list, or on the free list
    bool attends_to_itself;
    std::array<std::byte, 32> content_id;
  };

  [[nodiscard]] std::int32_t take() noexcept;
  void give(std::int32_t extent) noexcept;
  // The first extent of a list that ends behind `at`.
  [[nodiscard]] std::int32_t behind(std::int32_t head, std::int32_t at) const noexcept;

  FixedArray<Extent> extents_;
  std::int32_t num_touched_ = 0;  // those behind were never used
  std::int32_t free_ = kNone;
};

}  // namespace kvfolio
