// SPDX-License-Identifier: Apache-2.0
#pragma once

// TreeLog keeps the changes of a tree, in order, until the user takes them. It knows groups, blocks
// and kinds of changes; it knows neither runs nor tokens.
//
// Its bound: one entry for each block and kind. During one call of the tree a block is hung at most
// once, is unhung at most once and keeps its entry at most once, since a call offers each block at
// one place only. A later kCandidate of a block replaces the one that waits: only the last one
// counts. The user takes all entries before the next call. So no entry is ever dropped, and an
// array of that size never overflows; append() checks it.
//
// Entries that are appended while the user takes others stand behind these.
// Thread safety: none. Nothing allocates after allocate().

#include <array>
#include <cstdint>
#include <span>

#include "base/text.h"
#include "kvfolio/fixed_array.h"
#include "kvfolio/prefix_tree.h"
#include "kvfolio/spec.h"

namespace kvfolio {

class TreeLog {
 public:
  static constexpr std::int64_t kKinds = 4;

  // False: no memory. Requires: at most kMaxGroups groups.
  [[nodiscard]] bool allocate(std::span<const TreeGroup> groups) noexcept {
    KVFOLIO_CHECK(groups.size() <= first_.size());
    std::int64_t num_blocks = 0;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      first_[g] = num_blocks;
      num_blocks += groups[g].num_blocks;
    }
    return changes_.allocate_zeroed(kKinds * num_blocks) && candidate_.allocate_zeroed(num_blocks);
  }

  void hung(std::int32_t g, std::int32_t block) noexcept {
    append({.kind = TreeChange::Kind::kHung, .group = GroupId(g), .block = BlockId(block)});
  }
  void unhung(std::int32_t g, std::int32_t block, std::int32_t successor) noexcept {
    append({.kind = TreeChange::Kind::kUnhung,
            .group = GroupId(g),
            .block = BlockId(block),
            .successor = BlockId(successor)});
  }
  void kept(std::int32_t g, std::int32_t block, std::int32_t offered) noexcept {
    append({.kind = TreeChange::Kind::kKept,
            .group = GroupId(g),
            .block = BlockId(block),
            .successor = BlockId(offered)});
  }
  void candidate(std::int32_t g, std::int32_t block, Candidate candidate) noexcept {
    std::int64_t& at = candidate_[first_[static_cast<std::size_t>(g)] + block];
    const TreeChange change{.kind = TreeChange::Kind::kCandidate,
                            .candidate = candidate,
                            .group = GroupId(g),
                            .block = BlockId(block)};
    if (at >= begin_ && at < end_ && is_candidate(changes_[at], g, block)) {
      changes_[at] = change;
      return;
    }
    at = end_;
    append(change);
  }

  // Asks for what candidate() reads first.
  void prefetch(std::int32_t g, std::int32_t block) const noexcept {
    __builtin_prefetch(&candidate_[first_[static_cast<std::size_t>(g)] + block], 1);
  }

  [[nodiscard]] bool empty() const noexcept { return begin_ == end_; }
  // The oldest entry, which leaves the log. Requires: not empty.
  [[nodiscard]] TreeChange take() noexcept {
    KVFOLIO_CHECK(!empty());
    const TreeChange change = changes_[begin_++];
    if (empty()) clear();  // the next ones are written where memory is warm
    return change;
  }
  void clear() noexcept { begin_ = end_ = 0; }

  // ok, or which rule is broken: no two entries are of the same block and kind. O(entries squared).
  [[nodiscard]] Status check() const {
    const auto broken = [](std::int64_t i) {
      return Status(ErrorCode::kFailedPrecondition,
                    text::concat("prefix tree, log: entry ", i, " is of a block and kind twice"));
    };
    if (begin_ < 0 || begin_ > end_ || end_ > static_cast<std::int64_t>(changes_.size())) {
      return {ErrorCode::kFailedPrecondition,
              text::concat("prefix tree, log: holds ", begin_, " to ", end_)};
    }
    for (std::int64_t i = begin_; i < end_; ++i) {
      for (std::int64_t j = begin_; j < i; ++j) {
        const TreeChange& a = changes_[i];
        const TreeChange& b = changes_[j];
        if (a.kind == b.kind && a.group == b.group && a.block == b.block) return broken(i);
      }
    }
    return {};
  }

 private:
  static bool is_candidate(const TreeChange& change, std::int32_t g, std::int32_t block) noexcept {
    return change.kind == TreeChange::Kind::kCandidate && change.group.value() == g &&
           change.block.value() == block;
  }
  void append(const TreeChange& change) noexcept {
    KVFOLIO_CHECK(end_ < static_cast<std::int64_t>(changes_.size()));
    changes_[end_++] = change;
  }

  FixedArray<TreeChange> changes_;      // entries [begin_, end_) wait
  FixedArray<std::int64_t> candidate_;  // by block of all groups: where its last kCandidate stood
  std::array<std::int64_t, kMaxGroups> first_{};  // by group: its first block in candidate_
  std::int64_t begin_ = 0;
  std::int64_t end_ = 0;
};

}  // namespace kvfolio
