// SPDX-License-Identifier: Apache-2.0
#pragma once

// The border of a sequence: the blocks that its windows have passed, but that a hit at its last
// full-block border (of the largest block size) reads. They are let go like all that windows pass;
// yet while the sequence is open and publishes they leave after all other cached blocks of their
// group, so that a lost tail costs less than a block of work. When it closes they enter the order
// of eviction with its other blocks.
//
// A border is a range of logical blocks for each window group. It names entries of the sequence's
// path, so several sequences may count the same block into theirs. A block that comes to stand
// there later, since the one before was evicted, is not counted and leaves like others; when the
// border moves on, it may so take another sequence's count of that block along.
//
// Ends (prefix_tree.h) are where the next turn of a chat, or the same prompt again, goes on. Blocks
// of window groups that no end reads leave first. In a long prompt these are all but one window,
// and they must not flush what a hit needs. Borders notes these ends:
//   - position n - 1 of each prompt of n tokens that was given to open(), which is as far as a
//     prompt finds itself. Blocks that open() found are noted then, the others when they are
//     published;
//   - the last full-block border of a sequence, when it closes;
//   - where a pinned prefix ends, when it is pinned.
// The tree notes where paths part. A sequence that was cut back before position n - 1 has no such
// end any more.
//
// The ranges lie in Tables, the counts of blocks in Room; Borders moves both.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvfolio/ids.h"
#include "kvfolio/prefix_tree.h"
#include "manager/blocks.h"
#include "manager/group.h"
#include "manager/rows.h"
#include "manager/sequence.h"
#include "manager/tables.h"

namespace kvfolio {

class Borders {
 public:
  // Requires: all of these outlive this. They may be empty still.
  Borders(Rows& rows, Tables& tables, const std::vector<Group>& groups,
          std::optional<PrefixTree>& tree, Blocks& blocks) noexcept
      : rows_(rows), tables_(tables), groups_(groups), tree_(tree), blocks_(blocks) {}

  // Some group is a window group; without one the calls below do nothing.
  [[nodiscard]] bool any() const noexcept { return any_; }
  // The groups are all there.
  void begin() noexcept;

  // The windows or the place have moved.
  void move(std::int32_t row) noexcept {
    if (any_) move_to_place(row);
  }
  // Before the sequence leaves its place, or climbs.
  void drop(std::int32_t row) noexcept;
  // The sequence holds its border again: what closes it lets go of all of its blocks, tails first.
  void take_back(std::int32_t row) noexcept;

  // ---- ends ----

  // The prompt has `size` tokens; what was found of it is in the sequence's tables.
  void note_prompt(std::int32_t row, std::int32_t size) noexcept;
  // The sequence's place was at `published_before` and has moved.
  void note_prompt_on_path(std::int32_t row, std::int32_t published_before) noexcept;
  // The sequence closes.
  void note_last(std::int32_t row) noexcept;
  // A pinned prefix has these blocks.
  void note_pinned(std::int32_t g, std::span<const std::int32_t> blocks) noexcept;

 private:
  [[nodiscard]] const Group& group(std::int32_t g) const noexcept {
    return groups_[static_cast<std::size_t>(g)];
  }
  [[nodiscard]] std::int32_t num_groups() const noexcept {
    return static_cast<std::int32_t>(groups_.size());
  }
  void count(std::int32_t row, std::int32_t g, std::int32_t logical, int by) noexcept;
  void set(std::int32_t row, std::int32_t g, Border wanted) noexcept;
  void move_to_place(std::int32_t row) noexcept;
  [[nodiscard]] std::int32_t last_full_border(const Sequence& s) const noexcept;

  Rows& rows_;
  Tables& tables_;
  const std::vector<Group>& groups_;
  std::optional<PrefixTree>& tree_;
  Blocks& blocks_;
  bool any_ = false;
};

}  // namespace kvfolio
