// SPDX-License-Identifier: Apache-2.0
#include "manager/sequence_spans.h"

#include <array>
#include <cstring>
#include <utility>

#include "base/text.h"
#include "kvfolio/spec.h"

namespace kvfolio {

using text::concat;

// ---- how many words ----

std::int64_t SequenceSpans::table_words(std::int32_t end) const noexcept {
  std::int64_t words = 0;
  for (const Group& group : groups_) words += group.blocks_for(end);
  return words;
}

Status SequenceSpans::full(std::string_view what, std::int64_t wanted) const {
  const SpanArena& arena = std::as_const(tables_).arena();
  return {ErrorCode::kResourceExhausted,
          concat(what, ": no room for ", wanted, " table entries and unpublished tokens: ",
                 arena.free_words(), " of ", arena.num_words(),
                 " words are free, given out in powers of two; raise max_table_entries")};
}

// ---- words come ----

// New spans come first: when one of them is not to be had, nothing has moved.
bool SequenceSpans::grow(std::int32_t row, std::int32_t end, bool with_pending) noexcept {
  Sequence& s = rows_[row];
  const std::int64_t pending_needs = with_pending && end > s.length ? pending_words(s, end) : 0;
  bool room = pending_needs <= SpanArena::capacity(s.pending);
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    room = room && blocks_for(g, end) <= tables_.of(row, g).capacity();
  }
  if (room) return true;

  room = true;
  std::array<BlockTable, kMaxGroups> larger;
  for (std::int32_t g = 0; g < num_groups() && room; ++g) {
    const std::int32_t blocks = blocks_for(g, end);
    if (blocks <= tables_.of(row, g).capacity()) continue;
    room = larger[static_cast<std::size_t>(g)].reserve(arena(), blocks);
  }
  ArenaSpan pending;
  if (room && pending_needs > SpanArena::capacity(s.pending)) {
    room = arena().reserve(pending, pending_needs, 0);
  }
  if (!room) {
    for (BlockTable& blocks : larger) blocks.release(arena());
    return false;
  }
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    BlockTable& blocks = larger[static_cast<std::size_t>(g)];
    if (blocks.capacity() == 0) continue;
    BlockTable& now = tables_.of(row, g);
    blocks.assign(arena(), now.blocks(arena()));
    now.release(arena());
    now = blocks;
  }
  if (SpanArena::capacity(pending) > 0) {
    std::copy_n(arena().at(s.pending), pending_words(s, s.length), arena().at(pending));
    arena().release(s.pending);
    s.pending = pending;
  }
  return true;
}

bool SequenceSpans::grow_for_hit(std::int32_t row, const PrefixMatch& match) noexcept {
  Sequence& s = rows_[row];
  // Off the root there is room for a unit, which truncate() may bring back.
  const std::int64_t own = kept_tokens(match) > 0 ? tree_->unit() : match.tokens;
  bool room = !s.publishes || arena().reserve(s.pending, own, 0);
  for (std::int32_t g = 0; g < num_groups() && room; ++g) {
    room = tables_.of(row, g).reserve(arena(), blocks_for(g, match.held_tokens()));
  }
  if (room) return true;
  arena().release(s.pending);
  tables_.release(row);
  return false;
}

bool SequenceSpans::grow_for_fork(std::int32_t parent, std::int32_t child,
                                  bool& publishes) noexcept {
  const Sequence& from = rows_[parent];
  Sequence& to = rows_[child];
  const std::int64_t unit = from.publishes && from.place.position > 0 ? tree_->unit() : 0;
  const auto reserve_tables = [&] {
    bool room = true;
    for (std::int32_t g = 0; g < num_groups() && room; ++g) {
      room = tables_.of(child, g).reserve(arena(), tables_.of(parent, g).size());
    }
    return room;
  };
  publishes = from.publishes;
  if (!keep_media(to, media_of(from))) return false;
  const std::int64_t pending = std::max(pending_words(from, from.length), unit);
  if (arena().reserve(to.pending, pending, 0) && reserve_tables()) return true;
  // Tokens are kept for the cache alone: without room for them the child does not publish.
  arena().release(to.pending);
  publishes = false;
  return from.publishes && reserve_tables();
}

bool SequenceSpans::keep_media(Sequence& s, std::span<const MediaSpan> media) noexcept {
  static_assert(alignof(MediaSpan) == alignof(std::int32_t) && sizeof(MediaSpan) % 4 == 0);
  if (media.empty()) return true;
  SequenceDetails& d = rows_.details(rows_.row_of(s));
  if (!arena().reserve(d.media, static_cast<std::int64_t>(media.size_bytes() / 4), 0)) return false;
  std::memcpy(arena().at(d.media), media.data(), media.size_bytes());
  d.num_media = static_cast<std::int32_t>(media.size());
  s.has_media = true;
  return true;
}

std::span<const MediaSpan> SequenceSpans::media_of(const Sequence& s) const noexcept {
  if (!s.has_media) return {};
  const SequenceDetails& d = std::as_const(rows_).details(rows_.row_of(s));
  return {reinterpret_cast<const MediaSpan*>(std::as_const(tables_).arena().at(d.media)),
          static_cast<std::size_t>(d.num_media)};
}

std::int32_t SequenceSpans::cut_span(std::span<const MediaSpan> media, std::int32_t p) noexcept {
  const auto span =
      std::partition_point(media.begin(), media.end(), [&](const auto& m) { return m.end <= p; });
  if (span == media.end() || !span->attends_to_itself || span->begin >= p) return Sequence::kNever;
  return span->begin;
}

// ---- words go ----

void SequenceSpans::shrink_to_need(std::int32_t row) noexcept {
  Sequence& s = rows_[row];
  const std::int32_t admitted = rows_.details(row).admitted;
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    BlockTable& blocks = tables_.of(row, g);
    blocks.shrink(arena(), std::max(blocks.size(), blocks_for(g, admitted)));
  }
  if (!s.publishes) return;
  arena().shrink(s.pending, std::max({pending_words(s, s.length), pending_words(s, admitted),
                                      s.place.position > 0 ? tree_->unit() : std::int64_t{0}}));
}

// A long prompt needed room for all of it. A unit, which truncate() may bring back, stays, and so
// does what admit() promised.
void SequenceSpans::shrink_pending(std::int32_t row, std::int32_t rest) noexcept {
  Sequence& s = rows_[row];
  const std::int64_t needed = std::max({std::int64_t{rest}, std::int64_t{2} * tree_->unit(),
                                        pending_words(s, rows_.details(row).admitted)});
  if (SpanArena::capacity(s.pending) > 8 * (needed + SpanArena::kGranule)) {
    arena().shrink(s.pending, needed);
  }
}

void SequenceSpans::release(std::int32_t row) noexcept {
  arena().release(rows_[row].pending);
  arena().release(rows_.details(row).media);
  tables_.release(row);
}

}  // namespace kvfolio
