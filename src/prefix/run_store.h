// SPDX-License-Identifier: Apache-2.0
#pragma once

// RunStore keeps the runs of a tree: their records, their tokens and, for each group, the blocks of
// their entries. A run is named by an index, which stays when runs move apart (split_tokens()). The
// store keeps the shape of a run consistent: its length, its tokens and the number of its entries.
// It does not know which of its children a prompt follows, what an entry means, or what media are.
//
// Invariants, see check(): a run that is not a root begins where its parent ends and has a token;
// for each group it has an entry for each logical block that it touches; every run that was ever
// used is alive or on the free list.
// Thread safety: none; const calls write nothing. Nothing allocates after allocate().

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "base/block_size.h"
#include "kvfolio/fixed_array.h"
#include "kvfolio/prefix_tree.h"
#include "kvfolio/span_arena.h"
#include "kvfolio/spec.h"

namespace kvfolio {

// A line of the cache. A path is hashed unit by unit, each hash made of the one before and of the
// unit's tokens and media: so where a prompt may lead follows from the prompt alone.
struct Run {
  static constexpr int kGenerationBits = 30;
  std::int32_t parent;    // -1: a root
  std::int32_t start;     // position of its first token
  std::int32_t length;    // tokens
  ArenaSpan tokens;       // a root keeps its key here (RootKeys)
  std::int32_t children;  // root of the treap of its children
  std::int32_t num_children;
  union {
    std::int32_t up;         // with left and right: in the treap of its siblings
    std::int32_t key_bytes;  // roots, which are in none
  };
  std::int32_t left, right;
  std::uint32_t priority;
  std::uint32_t hash;   // of the path up to the end of its first unit; roots: of the key
  std::uint32_t chain;  // of the path up to its end; only where there are children, and roots
  std::uint32_t generation : kGenerationBits;
  std::uint32_t alive : 1;
  std::uint32_t hashed : 1;
  std::int32_t places;
  std::int32_t extents;  // its media (MediaExtents)

  [[nodiscard]] std::int32_t end() const noexcept { return start + length; }
};
static_assert(sizeof(Run) == 64);

// The entries of one group along one run: logical blocks first .. first + count - 1. A block that
// straddles the start has its entry here when it ends here, and may have one in the parent too, for
// a partial block that ends there.
struct RunEntries {
  ArenaSpan blocks;  // -1 where there is no entry
  std::int32_t first;
  std::int32_t count;
  std::int32_t num_live;     // entries that have a block
  std::int32_t num_partial;  // of these, those that end inside their block
  std::int32_t num_idle;     // of the live ones, those that are not in use
  std::int32_t last_live;    // index from `first`, or -1
  std::int32_t last_idle;    // the same
  std::int32_t live_kids;    // children with an entry in their subtree
  std::int32_t idle_kids;    // children with an idle entry in their subtree

  // Every block of the run is there, up to its end.
  [[nodiscard]] bool whole() const noexcept { return num_live == count && num_partial == 0; }
};

class RunStore {
 public:
  static constexpr std::int32_t kNone = -1;

  // kOutOfMemory. Requires: options that PrefixTree::create() takes.
  [[nodiscard]] Status allocate(const PrefixTreeOptions& options);

  [[nodiscard]] Run& run(std::int32_t r) noexcept { return runs_[r]; }
  [[nodiscard]] const Run& run(std::int32_t r) const noexcept { return runs_[r]; }
  [[nodiscard]] RunEntries& entries(std::int32_t r, std::int32_t g) noexcept {
    return entries_[std::int64_t{r} * num_groups_ + g];
  }
  [[nodiscard]] const RunEntries& entries(std::int32_t r, std::int32_t g) const noexcept {
    return entries_[std::int64_t{r} * num_groups_ + g];
  }
  // The blocks of these entries, by index from `first`.
  [[nodiscard]] std::int32_t* blocks(std::int32_t r, std::int32_t g) noexcept {
    return blocks_->at(entries(r, g).blocks);
  }
  [[nodiscard]] const std::int32_t* blocks(std::int32_t r, std::int32_t g) const noexcept {
    return blocks_->at(entries(r, g).blocks);
  }
  // Requires: no root.
  [[nodiscard]] const std::int32_t* tokens(std::int32_t r) const noexcept {
    return tokens_->at(run(r).tokens);
  }
  [[nodiscard]] bool is_root(std::int32_t r) const noexcept { return run(r).parent == kNone; }
  // The index, in the run's entries, of the block that ends at or behind `end`.
  [[nodiscard]] std::int32_t index_of(std::int32_t r, std::int32_t g,
                                      std::int32_t end) const noexcept {
    return sizes_[static_cast<std::size_t>(g)].block_of(end - 1) - entries(r, g).first;
  }
  // The run on the way up from r in which position end - 1 lies.
  [[nodiscard]] std::int32_t run_of(std::int32_t r, std::int32_t end) const noexcept {
    while (end <= run(r).start) r = run(r).parent;
    return r;
  }
  // Tokens [begin, begin + out.size()) of the path to r. Requires: it ends at or behind them.
  void copy_tokens(std::int32_t r, std::int32_t begin, std::span<std::int32_t> out) const noexcept;

  // add() finds a run.
  [[nodiscard]] bool has_room() const noexcept {
    return free_ != kNone || num_touched_ < max_runs_;
  }
  // A run without parent, tokens and entries; kNone: all are in use.
  [[nodiscard]] std::int32_t add() noexcept;
  // Requires: it has no children, its media are dropped, and so is the key of a root.
  void remove(std::int32_t r) noexcept;
  // Room for the tokens and entries of a run of this length; grows only. False: no room.
  [[nodiscard]] bool reserve(std::int32_t r, std::int32_t length) noexcept;
  // Appends tokens. Requires: reserve() said true for the length that the run has then.
  void append(std::int32_t r, std::span<const std::int32_t> tokens) noexcept;
  // Drops tokens and entries behind. Requires: 1 <= length <= the run's, no entry there is live.
  void shorten(std::int32_t r, std::int32_t length) noexcept;
  // The tokens of `lower` in front of `cut` go to the fresh run `upper`, which has its parent and
  // room for them. The entries stay: see drop_front(). Requires: the cut lies inside the run.
  void split_tokens(std::int32_t lower, std::int32_t upper, std::int32_t cut) noexcept;
  // The entries of logical blocks in front of the run's start go. Requires: none of them is live.
  void drop_front(std::int32_t r, std::int32_t g) noexcept;

  // Memory, ahead of time: the records of a run, where its tokens and entries end, and what
  // remove() reads.
  void prefetch(std::int32_t r) const noexcept;
  void prefetch_ends(std::int32_t r) const noexcept;
  void prefetch_spans(std::int32_t r, std::int32_t g) const noexcept;

  [[nodiscard]] std::int32_t num_runs() const noexcept { return num_runs_; }
  [[nodiscard]] std::int64_t num_tokens() const noexcept { return num_tokens_; }
  // Runs at or behind it were never used.
  [[nodiscard]] std::int32_t num_touched() const noexcept { return num_touched_; }

  [[nodiscard]] MemoryUse memory() const noexcept;
  // Becomes an equal of `other`. Requires: allocated with equal options.
  void copy_from(const RunStore& other) noexcept;
  // ok, or which rule is broken. O(runs).
  [[nodiscard]] Status check() const;
  [[nodiscard]] static Status broken(std::int32_t r, const std::string& what);

 private:
  // Gives a longer run its empty entries.
  void add_entries(std::int32_t r) noexcept;
  [[nodiscard]] Status check_run(std::int32_t r) const;

  FixedArray<Run> runs_;
  FixedArray<RunEntries> entries_;  // [run][group]
  std::unique_ptr<SpanArena> tokens_;
  std::unique_ptr<SpanArena> blocks_;
  std::array<BlockSize, kMaxGroups> sizes_;
  std::int32_t num_groups_ = 0;
  std::int32_t max_runs_ = 0;
  std::int32_t num_touched_ = 0;
  std::int32_t free_ = kNone;  // linked through parent
  std::int32_t num_runs_ = 0;
  std::int64_t num_tokens_ = 0;
};

}  // namespace kvfolio
