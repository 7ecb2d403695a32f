// SPDX-License-Identifier: Apache-2.0
#pragma once

// The insides of PrefixTree. It is made of nouns, each with its own header, invariants, check() and
// test:
//   TreeLog       what changed, for the user            tree_log.h
//   RootKeys      the keys of the roots                 root_keys.h
//   MediaExtents  media along runs                      media_extents.h
//   RunStore      runs: records, tokens, blocks         run_store.h
//   RunTable      runs by hash                          run_table.h
//   Children      the child that a query goes on with   children.h
// Children includes RunTable, RunStore and MediaExtents; no other noun includes another. The verbs
// stand over them, in Impl, and no noun includes this header:
//   tree.cc      creation, roots, places
//   shape.cc     the shape of runs: grow, split, cut
//   match.cc     the longest prefix that every group can serve
//   publish.cc   extending a path and hanging blocks
//   entries.cc   entries, idle and busy, candidates, eviction
//   ends.cc      ends: what hits there read of window groups
//   forget.cc    all entries of a part of the tree go
//   paths.cc     the tokens, media and key in front of a block
//   copy.cc      copy_from
//   check.cc     check_invariants
//   state.cc     put_state

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/block_size.h"
#include "kvfolio/fixed_array.h"
#include "kvfolio/group_rule.h"
#include "kvfolio/prefix_tree.h"
#include "prefix/children.h"
#include "prefix/media_extents.h"
#include "prefix/root_keys.h"
#include "prefix/run_store.h"
#include "prefix/tree_log.h"

namespace kvfolio {

class PrefixTree::Impl {
 public:
  static constexpr std::int32_t kNone = -1;

  // Where the entry of a block is. Two members share a word that is read and written whole: a bit
  // field is written as a byte, and a load of the word soon after waits until that store and all
  // before it are in the cache.
  class Where {
   public:
    std::int32_t run = 0;  // + 1; 0: not findable

    [[nodiscard]] std::int32_t end() const noexcept {  // a position
      return static_cast<std::int32_t>(word_ & kEnd);
    }
    [[nodiscard]] bool idle() const noexcept { return (word_ & kIdle) != 0; }
    void set(std::int32_t end, bool idle) noexcept {
      word_ = static_cast<std::uint32_t>(end) | (idle ? kIdle : 0u);
    }

   private:
    static constexpr std::uint32_t kEnd = 0x7fffffffu;
    static constexpr std::uint32_t kIdle = ~kEnd;

    std::uint32_t word_ = 0;
  };

  struct Group {
    TreeGroup spec;
    GroupRule rule;
    BlockSize size;
    FixedArray<Where> where;        // by block
    FixedArray<std::uint8_t> read;  // by block, of a window group: 1 if it is read by an end
    std::int32_t num_idle = 0;      // entries

    [[nodiscard]] bool full() const noexcept { return rule.only_leaves_evictable(); }
    [[nodiscard]] bool is_read(std::int32_t block) const noexcept {
      return !read.empty() && read[block] != 0;
    }
  };

  static Result<std::unique_ptr<Impl>> create(const PrefixTreeOptions& options);

  // tree.cc
  std::int32_t find_root(const RootKey& key) const noexcept;
  std::int32_t make_root(const RootKey& key) noexcept;
  [[nodiscard]] bool has_room_for_root(const RootKey& key) const noexcept;
  Place enter(std::int32_t run, std::int32_t position) noexcept;
  void leave(Place& place) noexcept;
  void settle(Place& place) noexcept;
  void climb(Place& place, std::int32_t position) noexcept;
  void prefetch_eviction(std::int32_t g, std::int32_t block, int step) const noexcept;
  // match.cc
  PrefixMatch match(std::int32_t root, std::span<const std::int32_t> tokens,
                    std::span<const MediaSpan> media, std::int32_t max_tokens,
                    bool allow_whole) const noexcept;
  void fill_table(const PrefixMatch& match, GroupId group, std::span<std::int32_t> out,
                  bool one_more, std::int32_t first) const noexcept;
  void whole_blocks(std::int32_t root, std::span<const std::int32_t> tokens,
                    std::span<const MediaSpan> media, std::int32_t g, std::int32_t first,
                    std::span<std::int32_t> out) const noexcept;
  // paths.cc
  [[nodiscard]] std::int32_t root_of(std::int32_t r) const noexcept;
  [[nodiscard]] std::int32_t block_at(const Where& where, std::int32_t of,
                                      std::int32_t end) const noexcept;
  std::int32_t copy_media(const Where& where, std::span<MediaSpan> out) const noexcept;
  [[nodiscard]] RootKey key_of(const Where& where) const noexcept;
  // publish.cc
  bool extend(Place& place, std::span<const std::int32_t> tokens, std::span<const MediaSpan> media,
              const PublishOffer& offer, Published& published) noexcept;
  std::int32_t entry_at(const Place& place, std::int32_t g, std::int32_t logical) const noexcept;
  void replace(std::int32_t g, std::int32_t block, std::int32_t by) noexcept;
  // entries.cc
  // set_idle(), and set_busy() where not `idle`.
  void mark(std::int32_t g, std::span<const std::int32_t> blocks, bool idle) noexcept;
  void unhang(std::int32_t g, std::int32_t block) noexcept;
  [[nodiscard]] TreeChange take_change() noexcept;
  // ends.cc
  void note_end(const Place& place, std::int32_t position) noexcept;
  void note_read(std::int32_t g, std::span<const std::int32_t> blocks) noexcept;
  // forget.cc
  void forget(std::int32_t root, std::span<const std::int32_t> tokens,
              std::span<const MediaSpan> media) noexcept;
  [[nodiscard]] bool begins_with(std::int32_t r, std::int32_t root,
                                 std::span<const std::int32_t> tokens,
                                 std::span<const MediaSpan> media) const noexcept;
  [[nodiscard]] std::int32_t next_root(std::int32_t after) const noexcept;
  // copy.cc
  void copy_from(const Impl& other) noexcept;
  // check.cc
  Status check_invariants() const;
  // state.cc
  [[nodiscard]] bool put_state(StateWriter& out) const;

  [[nodiscard]] const Where& where(GroupId group, BlockId block) const noexcept {
    return groups_[static_cast<std::size_t>(group.value())].where[block.value()];
  }

  // By GroupId. Its blocks: [block] where the entry is.
  std::vector<Group> groups_;
  std::int32_t num_groups_ = 0;
  bool has_windows_ = false;  // some group is a window group
  std::int32_t unit_ = 1;     // the smallest block size
  BlockSize units_;           // the same, to divide by
  std::uint64_t hash_seed_ = 0;
  TreeLog log_;
  RootKeys keys_;
  MediaExtents media_;
  RunStore runs_;
  Children children_{runs_, media_};

 private:
  Impl() = default;

  Run& run(std::int32_t r) noexcept { return runs_.run(r); }
  const Run& run(std::int32_t r) const noexcept { return runs_.run(r); }
  RunEntries& entries(std::int32_t r, std::int32_t g) noexcept { return runs_.entries(r, g); }
  const RunEntries& entries(std::int32_t r, std::int32_t g) const noexcept {
    return runs_.entries(r, g);
  }
  [[nodiscard]] std::int32_t* blocks(std::int32_t r, std::int32_t g) noexcept {
    return runs_.blocks(r, g);
  }
  [[nodiscard]] const std::int32_t* blocks(std::int32_t r, std::int32_t g) const noexcept {
    return runs_.blocks(r, g);
  }
  Group& group(std::int32_t g) noexcept { return groups_[static_cast<std::size_t>(g)]; }
  const Group& group(std::int32_t g) const noexcept { return groups_[static_cast<std::size_t>(g)]; }
  [[nodiscard]] std::int32_t block_size(std::int32_t g) const noexcept {
    return group(g).spec.block_size;
  }

  // state.cc
  void put_run(StateWriter& out, std::int32_t r) const;
  void put_media(StateWriter& out, const Run& run) const;
  // tree.cc
  [[nodiscard]] Status allocate(const PrefixTreeOptions& options);
  [[nodiscard]] std::int32_t lookup_root(const RootKey& key, std::int64_t bytes,
                                         std::uint32_t hash) const noexcept;

  // shape.cc
  // Appends tokens (with media) at the end of a run without children; hashes it when it has a unit.
  [[nodiscard]] bool grow(std::int32_t r, std::span<const std::int32_t> tokens,
                          std::span<const MediaSpan> media) noexcept;
  // A new child of `parent` with these tokens; kNone: no room.
  [[nodiscard]] std::int32_t add_child(std::int32_t parent, std::span<const std::int32_t> tokens,
                                       std::span<const MediaSpan> media) noexcept;
  // Splits at a position inside the run; returns the new upper run, or kNone: no room.
  [[nodiscard]] std::int32_t split(std::int32_t r, std::int32_t cut) noexcept;
  void split_entries(std::int32_t lower, std::int32_t upper, std::int32_t g) noexcept;
  void free_run(std::int32_t r) noexcept;
  // Where the last live entry of a run ends, of any group; its start where there is none.
  [[nodiscard]] std::int32_t end_of_entries(std::int32_t r) const noexcept;
  // Cuts a run behind what is needed of it; true when it was removed.
  bool cut_one(std::int32_t r) noexcept;
  // The same, and then for its parent, as long as runs vanish.
  void cut(std::int32_t r) noexcept;

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
  void fill_full(const Path& path, std::int32_t g, std::int32_t held, std::int32_t first,
                 std::span<std::int32_t> out) const noexcept;

  // publish.cc
  [[nodiscard]] bool extend_by_unit(Place& place, std::span<const std::int32_t> tokens,
                                    std::span<const MediaSpan> media, const PublishOffer& offer,
                                    Published& published) noexcept;
  // False: a busy block with equal tokens keeps the entry, which the log says.
  bool hang_at(std::int32_t r, std::int32_t g, std::int32_t block, std::int32_t logical,
               std::int32_t end, Published& published) noexcept;
  // The entries that stand in its way go.
  void hang_over(std::int32_t r, std::int32_t g, std::int32_t block, std::int32_t logical,
                 std::int32_t end) noexcept;
  [[nodiscard]] bool covered_below(std::int32_t r, std::int32_t g,
                                   std::int32_t logical) const noexcept;
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
  [[nodiscard]] Candidate candidate_of(std::int32_t g, std::int32_t block) const noexcept;
  [[nodiscard]] Change begin_change(std::int32_t r, std::int32_t g) const noexcept;
  // Takes a reference: a copy of what was just written is read in wider pieces than it was written
  // in, so it waits until all stores before it are in the cache.
  void end_change(const Change& changed) noexcept;
  [[nodiscard]] std::int32_t last_idle_at(std::int32_t r, std::int32_t g,
                                          std::int32_t index) const noexcept;
  void recount(std::int32_t r, std::int32_t g) noexcept;
  void put_entry(std::int32_t r, std::int32_t g, std::int32_t index, std::int32_t block,
                 std::int32_t end) noexcept;
  void take_entry(std::int32_t g, std::int32_t block) noexcept;
  void unhang_entry(std::int32_t g, std::int32_t block) noexcept;
  void unhang_from(std::int32_t r, std::int32_t begin, std::int32_t g, std::int32_t but) noexcept;
  [[nodiscard]] bool has_live(std::int32_t r, std::int32_t g) const noexcept {
    return entries(r, g).last_live >= 0 || entries(r, g).live_kids > 0;
  }
  [[nodiscard]] bool has_idle(std::int32_t r, std::int32_t g) const noexcept {
    return entries(r, g).last_idle >= 0 || entries(r, g).idle_kids > 0;
  }
  [[nodiscard]] bool partial(std::int32_t g, std::int32_t end) const noexcept {
    return group(g).size.offset_of(end) != 0;
  }

  // ends.cc
  void note_block(std::int32_t g, std::int32_t block) noexcept;
  void note_blocks(std::int32_t r, std::int32_t g, std::int32_t first, std::int32_t end) noexcept;
  void note_position(std::int32_t r, std::int32_t g, std::int32_t position, std::int32_t limit,
                     std::int32_t& done) noexcept;
  // `here`: where the place was before.
  void note_branches(const Place& place, std::int32_t here) noexcept;

  // forget.cc
  void forget_below(std::int32_t r, std::int32_t begin, std::int32_t g, std::int32_t but) noexcept;
  void forget_run(std::int32_t r, std::int32_t end) noexcept;

  // check.cc
  struct Counts {
    std::array<std::int64_t, kMaxGroups> live{};
    std::array<std::int32_t, kMaxGroups> idle{};
  };
  [[nodiscard]] Status check_nouns() const;
  [[nodiscard]] Status check_run(std::int32_t r, Counts& counts) const;
  [[nodiscard]] Status check_entry(std::int32_t r, std::int32_t g, std::int32_t index) const;
  [[nodiscard]] Status check_entries(std::int32_t r, std::int32_t g, Counts& counts) const;
  [[nodiscard]] Status check_blocks(std::int32_t g, const Counts& counts) const;
};

}  // namespace kvfolio
