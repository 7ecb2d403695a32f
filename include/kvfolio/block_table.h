// SPDX-License-Identifier: Apache-2.0
#pragma once

// BlockTable maps the logical blocks of one sequence in one group (tokens [i*b, (i+1)*b)) to
// physical blocks. An entry is -1 if a window or a trim dropped the block, so indices never shift.
// It knows only ids. The entries live in a SpanArena that its owner passes to every call and shares
// between many tables; a table is a small value and must be released to the same arena. It counts
// no references: the code that writes an entry holds the block.
// Thread safety: none; const calls write nothing.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>

#include "kvfolio/ids.h"
#include "kvfolio/span_arena.h"

namespace kvfolio {

class BlockTable {
 public:
  static constexpr std::int32_t kDropped = -1;

  [[nodiscard]] std::int32_t size() const noexcept { return size_; }
  // The words of the arena that this table holds.
  [[nodiscard]] std::int64_t capacity() const noexcept { return SpanArena::capacity(span_); }

  // Valid until reserve(), grow() or release() of this table.
  [[nodiscard]] std::span<std::int32_t> blocks(SpanArena& arena) noexcept {
    return {arena.at(span_), static_cast<std::size_t>(size_)};
  }
  [[nodiscard]] std::span<const std::int32_t> blocks(const SpanArena& arena) const noexcept {
    return {arena.at(span_), static_cast<std::size_t>(size_)};
  }
  // Prefetches the first entries, and what release() reads.
  void prefetch(const SpanArena& arena) const noexcept { arena.prefetch(span_); }
  // Returns true if any of these words belongs to this table's span: to its entries or to its room
  // for more.
  [[nodiscard]] bool overlaps(const SpanArena& arena,
                              std::span<const std::int32_t> words) const noexcept {
    return arena.overlaps(span_, words);
  }
  // Not valid() if the block was dropped. Requires (set() too): 0 <= logical < size().
  [[nodiscard]] BlockId at(const SpanArena& arena, std::int32_t logical) const noexcept {
    KVFOLIO_DCHECK(0 <= logical && logical < size_);
    return BlockId(arena.at(span_)[logical]);
  }
  void set(SpanArena& arena, std::int32_t logical, BlockId block) noexcept {
    KVFOLIO_DCHECK(0 <= logical && logical < size_);
    arena.at(span_)[logical] = block.value();
  }

  [[nodiscard]] bool contains(const SpanArena& arena, BlockId block) const noexcept {
    const auto all = blocks(arena);
    return block.valid() && std::find(all.begin(), all.end(), block.value()) != all.end();
  }

  // Makes room for `size` entries, so that growing to it cannot fail. Returns false, and changes
  // nothing, if the arena is full.
  [[nodiscard]] bool reserve(SpanArena& arena, std::int32_t size) noexcept {
    return arena.reserve(span_, size, size_);
  }
  // New entries are kDropped. Requires: reserve(size) succeeded.
  void grow(SpanArena& arena, std::int32_t size) noexcept {
    KVFOLIO_CHECK(size <= SpanArena::capacity(span_));
    for (; size_ < size; ++size_) arena.at(span_)[size_] = kDropped;
  }
  // Replaces all entries by these, which may be its own. Requires: reserve(blocks.size())
  // succeeded.
  void assign(SpanArena& arena, std::span<const std::int32_t> blocks) noexcept {
    KVFOLIO_CHECK(static_cast<std::int64_t>(blocks.size()) <= SpanArena::capacity(span_));
    if (!blocks.empty()) std::memmove(arena.at(span_), blocks.data(), blocks.size_bytes());
    size_ = static_cast<std::int32_t>(blocks.size());
  }
  // Gives back the room beyond `size` entries. Requires: size >= size().
  void shrink(SpanArena& arena, std::int32_t size) noexcept {
    KVFOLIO_DCHECK(size >= size_);
    arena.shrink(span_, size);
  }
  // Forgets the entries from `size` on; memory stays for the next growth.
  void truncate(std::int32_t size) noexcept { size_ = size < size_ ? size : size_; }
  void release(SpanArena& arena) noexcept {
    arena.release(span_);
    size_ = 0;
  }

 private:
  ArenaSpan span_;
  std::int32_t size_ = 0;
};

}  // namespace kvfolio
