// SPDX-License-Identifier: Apache-2.0
#pragma once

// The insides of PrefixTree. One class, seven files:
//   tree.cc      creation, roots, places, and the shape of runs (split, cut, remove)
//   children.cc  finding a child: hash table and treap
//   match.cc     the longest prefix that every group can serve
//   publish.cc   extending a path and hanging blocks
//   entries.cc   entries, idle and busy, candidates, eviction
//   copy.cc      copy_from
//   check.cc     check_invariants

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/block_size.h"
#include "kvfolio/fixed_array.h"
#include "kvfolio/prefix_tree.h"
#include "kvfolio/span_arena.h"
#include "prefix/run_table.h"
#include "prefix/tree_log.h"

namespace kvfolio {

class PrefixTree::Impl {
 public:
  static constexpr std::int32_t kNone = -1;
  static constexpr std::size_t kMaxKeyBytes = 65536;

  // A stretch of media along a run, at absolute positions.
  struct Extent {
    std::int32_t begin;
    std::int32_t end;
    std::int32_t offset;       // of `begin` within its span
    std::int32_t span_length;  // of the whole span
    std::int32_t next;         // in the run, ascending; or on the free list
    bool attends_to_itself;
    std::array<std::byte, 32> content_id;
  };

  // A line of the cache. A path is hashed unit by unit, each hash made of the one before and of
  // the unit's tokens and media: so where a prompt may lead follows from the prompt alone.
  struct Run {
    static constexpr int kGenerationBits = 30;
    std::int32_t parent;    // kNone: a root
    std::int32_t start;     // position of its first token
    std::int32_t length;    // tokens
    ArenaSpan tokens;       // a root keeps its key here, as bytes
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
    std::int32_t extents;  // its media, ascending

    [[nodiscard]] std::int32_t end() const noexcept { return start + length; }
  };
  static_assert(sizeof(Run) == 64);

  // The entries of one group along one run: logical blocks first .. first + count - 1. A block that
  // straddles the start has its slot here when it ends here, and may have one in the parent too,
  // for a partial block that ends there.
  struct RunGroup {
    ArenaSpan entries;
    std::int32_t first;
    std::int32_t count;
    std::int32_t num_live;     // entries that are not -1
    std::int32_t num_partial;  // of these, those that end inside their block
    std::int32_t num_idle;     // likewise, those that nobody uses
    std::int32_t last_live;    // index from `first`, or kNone
    std::int32_t last_idle;    // likewise
    std::int32_t live_kids;    // children with an entry in their subtree
    std::int32_t idle_kids;    // children with an idle entry in their subtree

    // Every block of the run is there, up to its end.
    [[nodiscard]] bool whole() const noexcept { return num_live == count && num_partial == 0; }
  };

  struct Where {
    std::int32_t run;        // + 1; 0: not findable
    std::uint32_t end : 31;  // position
    std::uint32_t idle : 1;
  };

  struct Group {
    TreeGroup spec;
    BlockSize size;
    FixedArray<Where> where;    // by block
    std::int32_t num_idle = 0;  // entries

    [[nodiscard]] bool full() const noexcept { return spec.kind == AttentionKind::kFull; }
  };

  static Result<std::unique_ptr<Impl>> create(const PrefixTreeOptions& options);

  // tree.cc
  std::int32_t find_root(const RootKey& key) const noexcept;
  std::int32_t make_root(const RootKey& key) noexcept;
  Place enter(std::int32_t run, std::int32_t position) noexcept;
  void leave(Place& place) noexcept;
  void settle(Place& place) noexcept;
  void climb(Place& place, std::int32_t position) noexcept;
  void prefetch(std::int32_t r) const noexcept;
  void prefetch_ends(std::int32_t r) const noexcept;
  void prefetch_eviction(std::int32_t g, std::int32_t block, int step) const noexcept;
  void copy_tokens(const Place& place, std::int32_t begin,
                   std::span<std::int32_t> out) const noexcept;
  // match.cc
  PrefixMatch match(std::int32_t root, std::span<const std::int32_t> tokens,
                    std::span<const MediaSpan> media, std::int32_t max_tokens,
                    bool allow_whole) const noexcept;
  void fill_table(const PrefixMatch& match, GroupId group, std::span<std::int32_t> out,
                  bool one_more) const noexcept;
  // publish.cc
  bool extend(Place& place, std::span<const std::int32_t> tokens, std::span<const MediaSpan> media,
              const PublishOffer& offer, Published& published) noexcept;
  std::int32_t entry_at(const Place& place, std::int32_t g, std::int32_t logical) const noexcept;
  void replace(std::int32_t g, std::int32_t block, std::int32_t by) noexcept;
  // entries.cc
  // set_idle(), and set_busy() where not `idle`.
  void mark(std::int32_t g, std::span<const std::int32_t> blocks, bool idle) noexcept;
  void unhang(std::int32_t g, std::int32_t block) noexcept;
  // copy.cc
  void copy_from(const Impl& other) noexcept;
  // check.cc
  Status check_invariants() const;

  [[nodiscard]] const Where& where(GroupId group, BlockId block) const noexcept {
    return groups_[static_cast<std::size_t>(group.value())].where[block.value()];
  }

  TreeLog log_;
  std::vector<Group> groups_;
  std::int32_t unit_ = 1;  // the smallest block size
  BlockSize units_;        // the same, to divide by
  std::int32_t num_runs_ = 0;
  std::int64_t num_tokens_ = 0;

 private:
  friend struct StateReader;
  struct Compared {
    std::int32_t common;  // positions on which both agree
    std::int32_t order;   // < 0: the query comes first
  };
  struct Neighbours {
    std::int32_t best = kNone;  // the child that shares most
    std::int32_t common = 0;
  };

  Impl() = default;

  Run& run(std::int32_t r) noexcept { return runs_[r]; }
  const Run& run(std::int32_t r) const noexcept { return runs_[r]; }
  RunGroup& slots(std::int32_t r, std::int32_t g) noexcept {
    return run_groups_[std::int64_t{r} * num_groups_ + g];
  }
  const RunGroup& slots(std::int32_t r, std::int32_t g) const noexcept {
    return run_groups_[std::int64_t{r} * num_groups_ + g];
  }
  [[nodiscard]] std::int32_t* entries(std::int32_t r, std::int32_t g) noexcept {
    return entries_->at(slots(r, g).entries);
  }
  [[nodiscard]] const std::int32_t* entries(std::int32_t r, std::int32_t g) const noexcept {
    return entries_->at(slots(r, g).entries);
  }
  Group& group(std::int32_t g) noexcept { return groups_[static_cast<std::size_t>(g)]; }
  const Group& group(std::int32_t g) const noexcept { return groups_[static_cast<std::size_t>(g)]; }
  [[nodiscard]] std::int32_t block_size(std::int32_t g) const noexcept {
    return group(g).spec.block_size;
  }
  // The index, in the run's entries, of the block that ends at or behind `end`.
  [[nodiscard]] std::int32_t index_of(std::int32_t r, std::int32_t g,
                                      std::int32_t end) const noexcept {
    return group(g).size.block_of(end - 1) - slots(r, g).first;
  }
  [[nodiscard]] const std::int32_t* tokens_of(std::int32_t r) const noexcept {
    return tokens_->at(run(r).tokens);
  }
  [[nodiscard]] bool is_root(std::int32_t r) const noexcept { return run(r).parent == kNone; }

  // tree.cc
  [[nodiscard]] bool fits(const RootKey& key) const noexcept;
  [[nodiscard]] std::uint32_t hash_of(const RootKey& key) const noexcept;
  [[nodiscard]] std::int32_t lookup_root(const RootKey& key, std::uint32_t hash) const noexcept;
  [[nodiscard]] std::int32_t new_run() noexcept;
  void free_run(std::int32_t r) noexcept;
  // Room for the tokens and entries of a run of this length; grows only. False: no room.
  [[nodiscard]] bool reserve_room(std::int32_t r, std::int32_t length) noexcept;
  // Gives a longer run its empty slots.
  void add_slots(std::int32_t r) noexcept;
  [[nodiscard]] bool add_extents(std::int32_t r, std::span<const MediaSpan> media,
                                 std::int32_t from, std::int32_t to) noexcept;
  [[nodiscard]] std::int32_t new_extent() noexcept;
  void drop_extents(std::int32_t r, std::int32_t from) noexcept;
  // Appends tokens (with media) at the end of a run without children; hashes it when it has a unit.
  [[nodiscard]] bool grow(std::int32_t r, std::span<const std::int32_t> tokens,
                          std::span<const MediaSpan> media) noexcept;
  // A new child of `parent` with these tokens; kNone: no room.
  [[nodiscard]] std::int32_t add_child(std::int32_t parent, std::span<const std::int32_t> tokens,
                                       std::span<const MediaSpan> media) noexcept;
  // Splits at a position inside the run; returns the new upper run, or kNone: no room.
  [[nodiscard]] std::int32_t split(std::int32_t r, std::int32_t cut) noexcept;
  // Cuts a run behind what is needed of it; true when it was removed.
  bool cut_one(std::int32_t r) noexcept;
  // Likewise, and then its parent, as long as runs vanish.
  void cut(std::int32_t r) noexcept;

  // children.cc
  [[nodiscard]] static std::int32_t same_tokens(const std::int32_t* a, const std::int32_t* b,
                                                std::int32_t n) noexcept;
  // First position of [from, to) at which the run's media and the query's differ, or `to`.
  [[nodiscard]] std::int32_t same_media(std::int32_t r, std::int32_t from, std::int32_t to,
                                        std::span<const MediaSpan> media) const noexcept;
  // Tokens of the run from position `at` on that equal the query's.
  [[nodiscard]] std::int32_t common_prefix(std::int32_t r, std::int32_t at,
                                           std::span<const std::int32_t> tokens,
                                           std::span<const MediaSpan> media) const noexcept;
  [[nodiscard]] Compared compare(std::int32_t r, std::span<const std::int32_t> tokens,
                                 std::span<const MediaSpan> media) const noexcept;
  // The hash of a path one unit on, from its hash up to position `at`: of a query's tokens, and of
  // those of a run.
  [[nodiscard]] std::uint32_t next_hash(std::uint32_t chain, std::int32_t at,
                                        const std::int32_t* tokens,
                                        std::span<const MediaSpan> media) const noexcept;
  // `extent`: the run's first that ends behind `at`, which moves on with it.
  [[nodiscard]] std::uint32_t next_hash(std::uint32_t chain, std::int32_t at, std::int32_t r,
                                        std::int32_t& extent) const noexcept;
  // Of the path up to the end of a run's first unit, and of its last whole one.
  [[nodiscard]] std::uint32_t first_hash(std::int32_t r) const noexcept;
  [[nodiscard]] std::uint32_t chain_of(std::int32_t r) const noexcept;
  [[nodiscard]] std::uint64_t seed_of(std::uint32_t chain) const noexcept;
  void table_insert(std::int32_t r) noexcept;
  void table_erase(std::int32_t r) noexcept;
  // `hash`: next_hash() of the query at the parent's end, where that is known.
  [[nodiscard]] std::int32_t find_child(std::int32_t parent, std::span<const std::int32_t> tokens,
                                        std::span<const MediaSpan> media,
                                        const std::uint32_t* hash = nullptr) const noexcept;
  [[nodiscard]] Neighbours find_nearest(std::int32_t parent, std::span<const std::int32_t> tokens,
                                        std::span<const MediaSpan> media) const noexcept;
  void treap_insert(std::int32_t parent, std::int32_t r, std::span<const std::int32_t> tokens,
                    std::span<const MediaSpan> media) noexcept;
  void treap_remove(std::int32_t r) noexcept;
  void treap_replace(std::int32_t old_run, std::int32_t new_run) noexcept;
  void rotate_up(std::int32_t r) noexcept;
  [[nodiscard]] std::int32_t treap_next(std::int32_t r) const noexcept;
  [[nodiscard]] std::int32_t treap_before(std::int32_t r) const noexcept;
  [[nodiscard]] std::int32_t leftmost(std::int32_t r) const noexcept;

  // match.cc

  class Lookup;
  // A path of the tree that a query shares tokens with: from the root to this run, which may be the
  // root itself and no path.
  struct Path {
    std::int32_t last = kNone;
    std::int32_t matched = 0;  // tokens that they share
  };
  // The hashes of a query's next units, and how many of these runs seem to begin with.
  struct Ahead {
    static constexpr std::int32_t kMost = 16;
    std::int32_t from = 0;  // position
    std::int32_t num_hashes = 0;
    std::int32_t num_runs = 0;
    std::array<std::uint32_t, kMost> hashes;
  };
  // Asks for the memory of the runs that the query seems to go on with behind `parent`.
  void look_ahead(std::int32_t parent, std::span<const std::int32_t> tokens,
                  std::span<const MediaSpan> media, Ahead& ahead) const noexcept;
  // How far an entry covers logical block `logical` along the path and below, and which it is.
  struct Cover {
    std::int32_t end = 0;  // a position; the block's start where there is none
    std::int32_t block = kNone;
  };
  // Requires: `from` is a run of the path; those below it begin at or behind the block's end.
  [[nodiscard]] Cover cover(const Path& path, std::int32_t g, std::int32_t logical,
                            std::int32_t& from) const noexcept;
  void fill_full(const Path& path, std::int32_t g, std::int32_t held,
                 std::span<std::int32_t> out) const noexcept;

  // publish.cc
  // False: a busy block with equal tokens keeps the entry, which the log says.
  bool hang_at(std::int32_t r, std::int32_t g, std::int32_t block, std::int32_t logical,
               std::int32_t end, Published& published) noexcept;
  // The entries that stand in its way go.
  void hang_over(std::int32_t r, std::int32_t g, std::int32_t block, std::int32_t logical,
                 std::int32_t end) noexcept;
  [[nodiscard]] bool covered_below(std::int32_t r, std::int32_t g,
                                   std::int32_t logical) const noexcept;
  // The run on the way up from r in which position end - 1 lies.
  [[nodiscard]] std::int32_t run_of(std::int32_t r, std::int32_t end) const noexcept {
    while (end <= run(r).start) r = run(r).parent;
    return r;
  }
  // The block that ends at `end`, the border of a logical block, on the way up from r; or kNone.
  [[nodiscard]] std::int32_t whole_block_at(std::int32_t r, std::int32_t g,
                                            std::int32_t end) const noexcept;
  [[nodiscard]] std::int32_t first_gap(std::int32_t r, std::int32_t g,
                                       std::span<const std::int32_t> table, std::int32_t first,
                                       std::int32_t covered) const noexcept;
  void hang_range(std::int32_t r, std::int32_t g, std::int32_t at,
                  std::span<const std::int32_t> table, std::int32_t first, std::int32_t last,
                  Published& published) noexcept;
  // `here`: where the path ended before; `at`: where it ends now.
  void hang_offered(std::int32_t r, std::int32_t at, std::int32_t here, const PublishOffer& offer,
                    Published& published) noexcept;

  // entries.cc
  // The entry of a run that leaves next, if eviction may take one.
  struct NextOut {
    std::int32_t block = kNone;
    Candidate candidate = Candidate::kNone;
  };
  // What a run was like before some of its entries of a group changed.
  struct Change {
    std::int32_t run;
    std::int32_t group;
    bool live;
    bool idle;
    NextOut next_out;
  };
  [[nodiscard]] NextOut next_out(std::int32_t r, std::int32_t g) const noexcept;
  [[nodiscard]] Change begin_change(std::int32_t r, std::int32_t g) const noexcept;
  void end_change(Change change) noexcept;
  [[nodiscard]] std::int32_t last_idle_at(std::int32_t r, std::int32_t g,
                                          std::int32_t index) const noexcept;
  void recount(std::int32_t r, std::int32_t g) noexcept;
  void put_entry(std::int32_t r, std::int32_t g, std::int32_t index, std::int32_t block,
                 std::int32_t end) noexcept;
  void take_entry(std::int32_t g, std::int32_t block) noexcept;
  void unhang_entry(std::int32_t g, std::int32_t block) noexcept;
  void unhang_from(std::int32_t r, std::int32_t begin, std::int32_t g, std::int32_t but) noexcept;
  [[nodiscard]] bool has_live(std::int32_t r, std::int32_t g) const noexcept {
    return slots(r, g).last_live >= 0 || slots(r, g).live_kids > 0;
  }
  [[nodiscard]] bool has_idle(std::int32_t r, std::int32_t g) const noexcept {
    return slots(r, g).last_idle >= 0 || slots(r, g).idle_kids > 0;
  }
  [[nodiscard]] bool partial(std::int32_t g, std::int32_t end) const noexcept {
    return group(g).size.offset_of(end) != 0;
  }

  std::int32_t num_groups_ = 0;
  std::int32_t max_runs_ = 0;
  std::int32_t max_root_keys_ = 0;
  std::int64_t max_root_key_bytes_ = 0;
  std::int32_t num_roots_ = 0;
  std::int64_t root_key_bytes_ = 0;
  std::uint64_t hash_seed_ = 0;

  FixedArray<Run> runs_;
  FixedArray<RunGroup> run_groups_;
  std::int32_t runs_touched_ = 0;   // runs beyond were never used
  std::int32_t free_runs_ = kNone;  // linked through parent
  std::unique_ptr<SpanArena> tokens_;
  std::unique_ptr<SpanArena> entries_;
  std::unique_ptr<SpanArena> keys_;
  FixedArray<Extent> extents_;
  std::int32_t extents_touched_ = 0;
  std::int32_t free_extents_ = kNone;

  RunTable table_;
};

}  // namespace kvfolio
