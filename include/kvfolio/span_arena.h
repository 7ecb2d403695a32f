// SPDX-License-Identifier: Apache-2.0
#pragma once

// SpanArena hands out spans of int32 words from one piece of memory of fixed size, for block
// tables, token runs and unpublished tokens. It is a buddy allocator: sizes are powers of two,
// growing doubles a span (so appending is O(1) amortised), shrinking is in place, freeing merges.
// No heap after create().
//
// Pieces are cut from the front, so memory behind the furthest span so far is never touched.
//
// A span is a value; its holder owns it and must give it back to the same arena. Spans never
// overlap; words of a new span hold anything. The arena knows neither owners nor contents. Thread
// safety: none; const calls write nothing. A moved-from arena may only be assigned to or destroyed.

#include <array>
#include <cstdint>
#include <functional>
#include <span>

#include "kvfolio/export.h"
#include "kvfolio/fixed_array.h"
#include "kvfolio/prefetch.h"
#include "kvfolio/status.h"

namespace kvfolio {

// Words [offset * kGranule, ...): 2^order granules. order < 0: no span, capacity 0.
struct ArenaSpan {
  std::int32_t offset = 0;
  std::int32_t order = -1;
};

class SpanTrial;

class KVFOLIO_API SpanArena {
 public:
  static constexpr std::int32_t kGranule = 8;  // words, 32 bytes
  static constexpr std::int64_t kMaxWords = std::int64_t{1} << 33;

  // At least `num_words` words. kInvalidArgument: negative or over kMaxWords; kOutOfMemory.
  static Result<SpanArena> create(std::int64_t num_words);

  [[nodiscard]] std::int32_t* at(ArenaSpan span) noexcept {
    return words_.data() + std::int64_t{span.offset} * kGranule;
  }
  [[nodiscard]] const std::int32_t* at(ArenaSpan span) const noexcept {
    return words_.data() + std::int64_t{span.offset} * kGranule;
  }
  [[nodiscard]] static std::int64_t capacity(ArenaSpan span) noexcept {
    return span.order < 0 ? 0 : std::int64_t{kGranule} << span.order;
  }

  // Makes room for `words` and keeps the first `used` words; may move the span. Returns false, and
  // changes nothing, if the arena has no such piece.
  [[nodiscard]] bool reserve(ArenaSpan& span, std::int64_t words, std::int64_t used) noexcept {
    return words <= capacity(span) || move_to_larger(span, words, used);
  }
  // Gives back the words beyond `words`; the span stays where it is. 0 gives back the whole span.
  void shrink(ArenaSpan& span, std::int64_t words) noexcept;
  void release(ArenaSpan& span) noexcept { shrink(span, 0); }

  // Prefetches what release() reads first. Harmless without a span.
  void prefetch(ArenaSpan span) const noexcept {
    prefetch_to_write(at(span));
    prefetch_to_write(&free_order_[span.offset]);
  }

  // Becomes an equal of `other`: a span of `other` names the same words here. Reads and writes what
  // is in use and a byte for each granule. Requires: created with as many words.
  void copy_from(const SpanArena& other) noexcept;

  // Returns true if any of these words belongs to the arena.
  [[nodiscard]] bool overlaps(std::span<const std::int32_t> words) const noexcept {
    return overlap({words_.data(), words_.size()}, words);
  }
  // Returns true if any of these words belongs to this span.
  [[nodiscard]] bool overlaps(ArenaSpan span, std::span<const std::int32_t> words) const noexcept {
    return overlap({at(span), static_cast<std::size_t>(capacity(span))}, words);
  }
  [[nodiscard]] std::int64_t num_words() const noexcept {
    return std::int64_t{num_granules_} * kGranule;
  }
  [[nodiscard]] std::int64_t free_words() const noexcept { return free_granules_ * kGranule; }
  [[nodiscard]] MemoryUse memory() const noexcept {
    constexpr std::int64_t kBytes = 4 * kGranule + 1;  // of a granule
    return {kBytes * num_granules_, kBytes * (num_granules_ - free_granules_)};
  }

 private:
  friend class SpanTrial;
  static constexpr int kMaxOrder = 30;
  static constexpr std::int32_t kEnd = -1;

  SpanArena() = default;
  [[nodiscard]] static bool overlap(std::span<const std::int32_t> a,
                                    std::span<const std::int32_t> b) noexcept {
    const std::less<> before;  // of pointers that may be into different arrays
    return !a.empty() && !b.empty() && before(a.data(), b.data() + b.size()) &&
           before(b.data(), a.data() + a.size());
  }
  [[nodiscard]] bool move_to_larger(ArenaSpan& span, std::int64_t words,
                                    std::int64_t used) noexcept;
  [[nodiscard]] static int order_for(std::int64_t words) noexcept;
  [[nodiscard]] std::int32_t take(int order) noexcept;  // granule index or kEnd
  void give(std::int32_t granule, int order) noexcept;
  void link(std::int32_t granule, int order) noexcept;
  void unlink(std::int32_t granule, int order) noexcept;
  [[nodiscard]] std::int32_t cut(int order) noexcept;  // granule index or kEnd

  // A free piece keeps its neighbours on the free list in its own first two words.
  [[nodiscard]] std::int32_t& next(std::int32_t granule) noexcept {
    return words_[std::int64_t{granule} * kGranule];
  }
  [[nodiscard]] std::int32_t& prev(std::int32_t granule) noexcept {
    return words_[std::int64_t{granule} * kGranule + 1];
  }

  FixedArray<std::int32_t> words_;
  FixedArray<std::int8_t> free_order_;  // order + 1 where a free piece begins, else 0
  std::array<std::int32_t, kMaxOrder + 1> heads_{};
  std::array<std::int32_t, kMaxOrder + 1> num_free_{};  // pieces on each list
  std::uint32_t nonempty_ = 0;                          // bit o: heads_[o] != kEnd
  std::int32_t num_granules_ = 0;
  std::int32_t num_cut_ = 0;  // granules from here on are free and on no list
  std::int64_t free_granules_ = 0;
};

// What an arena would answer to several reserve() one after the other, without taking anything.
// Knows how many pieces of each size are free, so a trial of a few spans costs some hundred
// nanoseconds. Valid until the arena changes. A value: copy it to try several ways.
class KVFOLIO_API SpanTrial {
 public:
  explicit SpanTrial(const SpanArena& arena) noexcept
      : num_free_(arena.num_free_), num_granules_(arena.num_granules_), num_cut_(arena.num_cut_) {}
  // As SpanArena::reserve() of a span of this capacity. The old span stays taken, as it does until
  // its words have moved.
  [[nodiscard]] bool reserve(std::int64_t& capacity, std::int64_t words) noexcept;

 private:
  std::array<std::int32_t, SpanArena::kMaxOrder + 1> num_free_;
  std::int32_t num_granules_;
  std::int32_t num_cut_;
};

}  // namespace kvfolio
