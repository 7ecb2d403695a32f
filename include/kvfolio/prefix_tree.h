// SPDX-License-Identifier: Apache-2.0
#pragma once

// PrefixTree maps token strings to the blocks that hold their keys and values: exactly, by
// comparing tokens with tokens. It knows tokens, media and block ids; it knows no bytes, no
// reference counts and no order of eviction.
//
// The tree is path-compressed. An edge is a *run*: tokens back to back and, per group, an entry for
// each block that ends along it (-1 where none is kept). Runs begin and split at multiples of the
// `unit`, the smallest block size; one may end off that grid, with the partial tail of a sequence,
// and has no children then. Where a run has several children, a hash of the path up to the end of
// their first unit says which to look at, and tokens and media are compared; they are kept in order
// too, so that the longest common prefix inside a unit costs O(log children).
//
// An entry is *busy* (somebody uses the block) or *idle*. In a full group only an idle entry with
// no entry of its group below may be evicted: a *candidate*; the observer hears of each change.
// In a window group every idle entry is a candidate.
//
// Invariants: a block has at most one entry; equal strings have at most one; along a path no
// findable string of a group is a proper prefix of another inside one block (a tail that hangs in a
// gap of one path may be, of a block on a path beside it); no sibling's tokens are a prefix of
// another's; see check_invariants().
// Ids of groups, blocks and runs out of range are not looked for; who has ids from outside checks
// them.
// Thread safety: none, const calls included (they share scratch). Nothing allocates after create().
// A tree that was moved from is only assigned to or destroyed.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvfolio/export.h"
#include "kvfolio/ids.h"
#include "kvfolio/root_key.h"
#include "kvfolio/spec.h"
#include "kvfolio/status.h"

namespace kvfolio {

// What the tree has to know of a group; the fields are those of GroupSpec.
struct TreeGroup {
  std::int32_t block_size = 16;
  AttentionKind kind = AttentionKind::kFull;
  std::int32_t window = 0;
  std::int32_t num_sinks = 0;
  std::int32_t num_blocks = 0;
};

struct PrefixTreeOptions {
  std::vector<TreeGroup> groups;      // 1 .. kMaxGroups, by GroupId
  std::int64_t max_index_tokens = 0;  // 1 .. 2^32, along all runs, rounded up to powers of two
  std::int32_t max_runs = 0;          // 2 .. 2^29, roots included
  std::int32_t max_root_keys = 1024;  // 1 .. max_runs - 1
  // Of all keys in use, up to 29 bytes of framing for each included: 0 .. 2^34.
  std::int64_t max_root_key_bytes = std::int64_t{1} << 20;
  std::int32_t max_media_extents = 4096;  // pieces of media spans along all runs: 0 .. 2^28
  // Mixed into every hash: a server that fears crafted prompts sets it at random, since who knows
  // it can write prompts that all share their hashes, and lookups among them go one by one. Which
  // of several children that share as much of a unit is tried first depends on it; where those keep
  // no block, so does how far the hit reaches.
  std::uint64_t hash_seed = 0;
};

// Hears what the tree does to blocks, while it does it. May ask about blocks; must not
// change the tree.
class TreeObserver {
 public:
  // The block lost its entry: nobody can find it any more. `successor`, where it is valid, took
  // its place: a busy block that holds the same tokens and more.
  virtual void on_unhung(GroupId group, BlockId block, BlockId successor) = 0;
  // The idle block may (not) be evicted now.
  virtual void on_candidate(GroupId group, BlockId block, bool candidate) = 0;

 protected:
  ~TreeObserver() = default;
};

// What a lookup found. Valid until the next call on the tree.
struct PrefixMatch {
  // Tokens whose keys and values every group can serve.
  std::int32_t tokens = 0;
  // The whole prompt was found: the blocks of `held_tokens` = tokens + 1 are there, and only the
  // logits of the last token are missing.
  bool whole = false;
  // The run that holds position floor(held tokens / unit) * unit, for enter().
  std::int32_t run = -1;

  [[nodiscard]] std::int32_t held_tokens() const noexcept { return tokens + (whole ? 1 : 0); }
};

// What a sequence offers for one group when it publishes.
struct BlockOffer {
  std::span<const std::int32_t> table;  // its block table; -1 entries are skipped
};

class KVFOLIO_API PrefixTree {
 public:
  // kInvalidArgument: the field, its value and what is allowed; kOutOfMemory. The observer outlives
  // the tree and is not owned; null: nobody listens.
  static Result<PrefixTree> create(const PrefixTreeOptions& options, TreeObserver* observer);

  PrefixTree(PrefixTree&&) noexcept;
  PrefixTree& operator=(PrefixTree&&) noexcept;
  ~PrefixTree();
  void set_observer(TreeObserver* observer) noexcept;

  // ---- looking up ----

  // The root of a key, or -1. Keys over 64 KiB are no error here: they have no root.
  [[nodiscard]] std::int32_t find_root(const RootKey& key) const noexcept;
  // Likewise, made when missing; -1 when the tree has no room for it. It stays while somebody has
  // a place at it or something hangs below.
  [[nodiscard]] std::int32_t make_root(const RootKey& key) noexcept;

  // The longest prefix of `tokens` that every group can serve, at most max_tokens; nothing where
  // find_root() gave -1. Inside a unit at most eight neighbours on each side of the nearest are
  // asked, so a hit there may be shorter than some other neighbour would allow. With `allow_whole`,
  // a prompt whose every token is there gives whole and tokens = size - 1. Media, here and below:
  // ascending, disjoint, none empty.
  [[nodiscard]] PrefixMatch match(std::int32_t root, std::span<const std::int32_t> tokens,
                                  std::span<const MediaSpan> media, std::int32_t max_tokens,
                                  bool allow_whole) const noexcept;
  // The blocks that serve `match`: out[i] is logical block i, -1 where the group's window needs
  // none. out.size() = ceil(held_tokens / block_size). With one_more, windows reach one token
  // further back where that is there (what a longer or equal prompt would need).
  void fill_table(const PrefixMatch& match, GroupId group, std::span<std::int32_t> out,
                  bool one_more = false) const noexcept;

  // ---- places: a run that somebody stands on keeps its tokens ----

  // Requires: position lies on or above the run's end, on the path. Goes back through leave().
  [[nodiscard]] Place enter(std::int32_t run, std::int32_t position) noexcept;
  [[nodiscard]] Place copy(const Place& place) noexcept { return enter(place.run, place.position); }
  void leave(Place& place) noexcept;
  // Moves a place up to `position` <= place.position.
  void climb(Place& place, std::int32_t position) noexcept;
  // Copies tokens [begin, begin + out.size()) of the path that ends at or after them.
  void copy_tokens(const Place& place, std::int32_t begin,
                   std::span<std::int32_t> out) const noexcept;

  // ---- memory, ahead of time: these change nothing ----

  // What extend() at this place reads first, and, once that is near, the ends that it writes to.
  void prefetch(const Place& place) const noexcept;
  void prefetch_ends(const Place& place) const noexcept;
  // What set_busy() and set_idle() of these blocks read; negative ones are passed over.
  void prefetch(GroupId group, std::span<const std::int32_t> blocks) const noexcept;
  // What evict() of this block reads, in kEvictionSteps steps, each of which wants the memory that
  // the one before asked for.
  static constexpr int kEvictionSteps = 3;
  void prefetch_eviction(GroupId group, BlockId block, int step) const noexcept;

  // ---- publishing ----

  // Extends the path at `place` by `tokens` (its media at absolute positions) and hangs the offered
  // blocks that end on the new part; `tail`: the last, partial blocks too. One offer for each
  // group, by GroupId; their blocks are busy. *num_hung, where not null, grows by what was hung.
  // False: no room, nothing was hung and the place stands.
  [[nodiscard]] bool extend(Place& place, std::span<const std::int32_t> tokens,
                            std::span<const MediaSpan> media, std::span<const BlockOffer> offers,
                            bool tail, std::uint64_t* num_hung) noexcept;
  // Hangs one busy block, holding positions up to `end` of the path, where the tree has none or a
  // shorter one. False: it has one. Requires: end <= place.position.
  bool offer(const Place& place, GroupId group, BlockId block, std::int32_t logical,
             std::int32_t end) noexcept;

  // ---- blocks ----

  // One past the last position whose token the block's entry covers; 0: not findable.
  [[nodiscard]] std::int32_t findable_end(GroupId group, BlockId block) const noexcept;
  [[nodiscard]] bool is_findable(GroupId group, BlockId block) const noexcept {
    return findable_end(group, block) != 0;
  }
  // The same of many; 0 where a block is negative. ends.size() = blocks.size().
  void findable_ends(GroupId group, std::span<const std::int32_t> blocks,
                     std::span<std::int32_t> ends) const noexcept;
  // Nobody uses these blocks any more / somebody does again; none is negative. What lies behind
  // each other on a path costs least. Requires: findable.
  void set_idle(GroupId group, std::span<const std::int32_t> blocks) noexcept;
  void set_busy(GroupId group, std::span<const std::int32_t> blocks) noexcept;
  // Takes the entry away, idle or busy. Requires (evict too): findable.
  void unhang(GroupId group, BlockId block) noexcept;
  // Takes an idle entry away and with it, from a full group, the idle entries of other groups at
  // and below it, which no prompt can reach any more.
  void evict(GroupId group, BlockId block) noexcept;
  // Idle entries that eviction can reach by evicting idle entries only.
  [[nodiscard]] std::int32_t num_evictable(GroupId group) const noexcept;

  // Becomes an equal of `other`, observer apart: places and runs of that one are good here too.
  // Costs what is in use, and a few words for each run and block of the options. Requires: created
  // with equal options.
  void copy_from(const PrefixTree& other) noexcept;

  [[nodiscard]] std::int32_t unit() const noexcept;
  [[nodiscard]] std::int32_t num_runs() const noexcept;
  [[nodiscard]] std::int64_t num_tokens() const noexcept;

  // ok, or which rule is broken where. O(size of the tree).
  Status check_invariants() const;

 private:
  friend struct StateReader;
  class Impl;
  explicit PrefixTree(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvfolio
