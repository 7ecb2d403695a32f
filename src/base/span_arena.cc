// SPDX-License-Identifier: Apache-2.0

// A buddy allocator over one array. A piece of order o has 2^o granules and begins at a multiple of
// its size, so it and its buddy, the piece that it may merge with, differ in one bit of the offset.
// Free pieces of one order form a doubly linked list, whose links lie in the free memory itself.
// Behind num_cut_ nothing is in use and nothing is listed: take() first looks at the lists, then
// cuts there, and give() moves num_cut_ back where the last piece comes free.
//
// Read take(), cut() and give() in this order. block_table.h is the simplest user.

#include "kvfolio/span_arena.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/text.h"

namespace kvfolio {

Result<SpanArena> SpanArena::create(std::int64_t num_words) {
  if (num_words < 0 || num_words > kMaxWords) {
    return Status(ErrorCode::kInvalidArgument,
                  text::concat("an arena of ", num_words, " words, allowed: 0 to ", kMaxWords));
  }
  SpanArena arena;
  arena.num_granules_ = static_cast<std::int32_t>((num_words + kGranule - 1) / kGranule);
  if (!arena.words_.allocate_zeroed(arena.num_words()) ||
      !arena.free_order_.allocate_zeroed(arena.num_granules_)) {
    return Status(ErrorCode::kOutOfMemory,
                  text::concat("no memory for an arena of ", num_words, " int32 words"));
  }
  arena.heads_.fill(kEnd);
  arena.free_granules_ = arena.num_granules_;
  return arena;
}

int SpanArena::order_for(std::int64_t words) noexcept {
  // More words than any arena has, and no sum that overflows.
  const std::int64_t bounded = std::min(words, std::int64_t{1} << 40);
  const auto granules = static_cast<std::uint64_t>((bounded + kGranule - 1) / kGranule);
  return granules <= 1 ? 0 : static_cast<int>(std::bit_width(granules - 1));
}

bool SpanArena::move_to_larger(ArenaSpan& span, std::int64_t words, std::int64_t used) noexcept {
  const int order = order_for(words);
  if (order > kMaxOrder) return false;
  const std::int32_t granule = take(order);
  if (granule == kEnd) return false;
  const ArenaSpan grown{granule, order};
  if (used > 0) std::memcpy(at(grown), at(span), static_cast<std::size_t>(used) * 4);
  release(span);
  span = grown;
  return true;
}

void SpanArena::shrink(ArenaSpan& span, std::int64_t words) noexcept {
  if (span.order < 0) return;
  if (words <= 0) {
    give(span.offset, span.order);
    span = {};
    return;
  }
  const int order = order_for(words);
  while (span.order > order) {
    --span.order;
    give(span.offset + (std::int32_t{1} << span.order), span.order);
  }
}

void SpanArena::copy_from(const SpanArena& other) noexcept {
  const auto& [words, free_order, heads, num_free, nonempty, num_granules, num_cut, free_granules] =
      other;
  KVFOLIO_CHECK(num_granules_ == num_granules);
  // Behind what was cut both are zero, or have been.
  std::memset(free_order_.data(), 0, static_cast<std::size_t>(num_cut_));
  free_order_.copy_from(free_order, num_cut);
  num_cut_ = num_cut;
  heads_ = heads;
  num_free_ = num_free;
  nonempty_ = nonempty;
  free_granules_ = free_granules;
  // Only the two links of a free piece count, and every word of a used one.
  for (std::int32_t at = 0; at < num_cut;) {
    const std::int64_t word = std::int64_t{at} * kGranule;
    if (free_order[at] != 0) {
      std::memcpy(&words_[word], &words[word], 2 * sizeof(std::int32_t));
      at += std::int32_t{1} << (free_order[at] - 1);
      continue;
    }
    const std::int32_t from = at;
    while (at < num_cut && free_order[at] == 0) ++at;
    std::memcpy(&words_[word], &words[word],
                static_cast<std::size_t>(at - from) * kGranule * sizeof(std::int32_t));
  }
}

std::int32_t SpanArena::take(int order) noexcept {
  const std::uint32_t usable = nonempty_ >> order << order;
  if (usable == 0) return cut(order);
  int have = std::countr_zero(usable);
  const std::int32_t granule = heads_[static_cast<std::size_t>(have)];
  KVFOLIO_DCHECK(granule != kEnd && free_order_[granule] == have + 1);
  unlink(granule, have);
  while (have > order) {
    --have;
    link(granule + (std::int32_t{1} << have), have);
  }
  free_granules_ -= std::int64_t{1} << order;
  return granule;
}

// Nothing that was cut fits: one more piece, and the pieces before it that its alignment leaves.
std::int32_t SpanArena::cut(int order) noexcept {
  const std::int64_t size = std::int64_t{1} << order;
  const std::int64_t granule = (num_cut_ + size - 1) / size * size;
  if (granule + size > num_granules_) return kEnd;
  while (num_cut_ < granule) {
    const int fits = std::countr_zero(static_cast<std::uint32_t>(num_cut_));
    link(num_cut_, fits);
    num_cut_ += std::int32_t{1} << fits;
  }
  num_cut_ = static_cast<std::int32_t>(granule + size);
  free_granules_ -= size;
  return static_cast<std::int32_t>(granule);
}

void SpanArena::give(std::int32_t granule, int order) noexcept {
  KVFOLIO_DCHECK(free_order_[granule] == 0 && granule % (std::int32_t{1} << order) == 0);
  free_granules_ += std::int64_t{1} << order;
  KVFOLIO_DCHECK(free_granules_ <= num_granules_);
  while (order < kMaxOrder) {
    const std::int32_t buddy = granule ^ (std::int32_t{1} << order);
    if (buddy >= num_cut_ || free_order_[buddy] != order + 1) break;
    unlink(buddy, order);
    granule = std::min(granule, buddy);
    ++order;
  }
  if (granule + (std::int64_t{1} << order) < num_cut_) {
    link(granule, order);
    return;
  }
  // The last piece is put back, with the free ones that end where it begins: a piece larger than
  // all of them may fit here then.
  num_cut_ = granule;
  for (int below = 0; below < kMaxOrder && num_cut_ > 0;) {
    const std::int32_t size = std::int32_t{1} << below;
    if (num_cut_ >= size && num_cut_ % size == 0 && free_order_[num_cut_ - size] == below + 1) {
      unlink(num_cut_ - size, below);
      num_cut_ -= size;
      below = 0;
    } else {
      ++below;
    }
  }
}

void SpanArena::link(std::int32_t granule, int order) noexcept {
  std::int32_t& head = heads_[static_cast<std::size_t>(order)];
  next(granule) = head;
  prev(granule) = kEnd;
  if (head != kEnd) prev(head) = granule;
  head = granule;
  free_order_[granule] = static_cast<std::int8_t>(order + 1);
  ++num_free_[static_cast<std::size_t>(order)];
  nonempty_ |= std::uint32_t{1} << order;
}

void SpanArena::unlink(std::int32_t granule, int order) noexcept {
  const std::int32_t after = next(granule);
  const std::int32_t before = prev(granule);
  if (after != kEnd) prev(after) = before;
  if (before != kEnd) {
    next(before) = after;
  } else {
    heads_[static_cast<std::size_t>(order)] = after;
    if (after == kEnd) nonempty_ &= ~(std::uint32_t{1} << order);
  }
  free_order_[granule] = 0;
  --num_free_[static_cast<std::size_t>(order)];
}

// take() and cut() in numbers of pieces.
bool SpanTrial::reserve(std::int64_t& capacity, std::int64_t words) noexcept {
  if (words <= capacity) return true;
  const int order = SpanArena::order_for(words);
  if (order > SpanArena::kMaxOrder) return false;
  const auto at = [this](int o) -> std::int32_t& { return num_free_[static_cast<std::size_t>(o)]; };
  int have = order;
  while (have <= SpanArena::kMaxOrder && at(have) == 0) ++have;
  if (have <= SpanArena::kMaxOrder) {
    --at(have);
    while (have > order) ++at(--have);
  } else {
    const std::int64_t size = std::int64_t{1} << order;
    const std::int64_t granule = (num_cut_ + size - 1) / size * size;
    if (granule + size > num_granules_) return false;
    while (num_cut_ < granule) {
      const int fits = std::countr_zero(static_cast<std::uint32_t>(num_cut_));
      ++at(fits);
      num_cut_ += std::int32_t{1} << fits;
    }
    num_cut_ = static_cast<std::int32_t>(granule + size);
  }
  capacity = std::int64_t{SpanArena::kGranule} << order;
  return true;
}

}  // namespace kvfolio
