// SPDX-License-Identifier: Apache-2.0
//
// Ends: positions of paths where hits are likely to end. A window passes most blocks of a prompt,
// and a hit at an end reads only those within one window of it. So the blocks of window groups that
// some end reads are marked, and the user can let all others go first.
//
// The tree knows one kind of end by itself: where paths part, the next prompt parts as well. Such a
// place is noted whenever a publication comes by: when it is the one that makes the paths part, and
// when it hangs blocks in front of such a place again. The user notes the ends of prompts and of
// sequences. A mark stays as long as the entry, whatever becomes of the end: marks that are no
// longer of use grow cold with their blocks.

#include <algorithm>
#include <array>
#include <limits>

#include "prefix/tree.h"

namespace kvfolio {

namespace {

constexpr std::int32_t kNothing = std::numeric_limits<std::int32_t>::max();

}  // namespace

// Requires: of a window group.
void PrefixTree::Impl::note_block(std::int32_t g, std::int32_t block) noexcept {
  std::uint8_t& read = group(g).read[block];
  if (read != 0) return;
  read = 1;
  if (group(g).where[block].idle()) log_.candidate(g, block);
}

// Those of logical blocks [first, end) that the path to r has whole, the last one first.
void PrefixTree::Impl::note_blocks(std::int32_t r, std::int32_t g, std::int32_t first,
                                   std::int32_t end) noexcept {
  for (std::int32_t logical = end - 1; logical >= first; --logical) {
    const std::int32_t block_end = (logical + 1) * block_size(g);
    r = runs_.run_of(r, block_end);
    const std::int32_t block = blocks(r, g)[runs_.index_of(r, g, block_end)];
    const bool is_whole = block != kNone && group(g).where[block].end() == block_end;
    if (is_whole) note_block(g, block);
  }
}

// What a hit at `position` reads, as far as it ends by `limit`, a position of the path to r.
// Logical blocks from `done` on are noted already, and so are sinks, unless it is kNothing; it
// moves down.
void PrefixTree::Impl::note_position(std::int32_t r, std::int32_t g, std::int32_t position,
                                     std::int32_t limit, std::int32_t& done) noexcept {
  const GroupRule& rule = group(g).rule;
  const BlockSize size = group(g).size;
  const auto blocks_for = [&](std::int32_t n) { return size.block_of(n + block_size(g) - 1); };
  const std::int32_t first = size.block_of(rule.first_read(position));
  const std::int32_t end = std::min({blocks_for(position), size.block_of(limit), done});
  note_blocks(r, g, first, end);
  const std::int32_t sinks = blocks_for(std::min(rule.num_sinks(), position));
  if (done == kNothing) note_blocks(r, g, 0, std::min({sinks, first, end}));
  done = std::min(done, first);
}

void PrefixTree::Impl::note_end(const Place& place, std::int32_t position) noexcept {
  for (std::int32_t g = 0; g < num_groups_; ++g) {
    std::int32_t done = kNothing;
    if (!group(g).full()) note_position(place.run, g, position, place.position, done);
  }
}

// From the last one up, so that no block is noted twice however densely the paths part. What was
// published has no more runs than it needs by now.
void PrefixTree::Impl::note_branches(const Place& place, std::int32_t here) noexcept {
  std::array<std::int32_t, kMaxGroups> done;
  done.fill(kNothing);
  for (std::int32_t r = place.run; !runs_.is_root(r) && run(r).end() >= here; r = run(r).parent) {
    const std::int32_t end = run(r).end();
    if (run(r).num_children < 2 || end > place.position) continue;
    for (std::int32_t g = 0; g < num_groups_; ++g) {
      if (!group(g).full()) note_position(r, g, end, end, done[static_cast<std::size_t>(g)]);
    }
  }
}

void PrefixTree::Impl::note_read(std::int32_t g, std::span<const std::int32_t> blocks) noexcept {
  if (group(g).full()) return;
  for (const std::int32_t block : blocks) {
    if (block < 0) continue;
    const Where& where = group(g).where[block];
    if (where.run != 0 && !partial(g, where.end())) note_block(g, block);
  }
}

}  // namespace kvfolio
