// SPDX-License-Identifier: Apache-2.0
#pragma once

// PrefixTree maps token strings to the blocks that hold their keys and values: exactly, by
// comparing tokens with tokens. It knows tokens, media and block ids; it knows no bytes, no
// reference counts and no order of eviction.
//
// The tree is path-compressed. An edge is a *run*: tokens back to back and, per group, an entry for
// each block that ends along it (-1 where none is kept). Runs begin and split at multiples of the
// `unit`, the smallest block size. A run with the partial tail of a sequence may end off that grid;
// it has no children then. If a run has several children, a hash of the path up to the end of their
// first unit says which one to look at, and its tokens and media are compared. The children are
// also kept in order, so that the longest common prefix inside a unit costs O(log children).
//
// An entry is *busy* (its block is in use) or *idle*. In a window group every idle entry is a
// candidate for eviction. A full group has no gaps: a block hangs only behind the entry of the
// block before it. There an idle entry is a candidate if no idle entry of its group lies below it.
// It is a leaf if no entry of its group lies below it at all. Otherwise it is a head, and the busy
// entries below it are unhung with it. So every idle entry can be evicted.
//
// The tree never calls its user. It writes what changes into a log, and the user takes the entries
// one by one when the call is over. An entry may lead to another call, whose entries follow. The
// log has room for one entry for each block and kind; so it has to be empty before the next call
// that changes entries, or its entries are being taken. What the user does not want is cleared.
//
// An *end* is a position of a path where a hit is likely to end. What a hit there reads of a window
// group is *read by an end*; of the rest nothing is known but that windows have passed it. The tree
// itself notes the places where paths part, the user the others (note_end()). A mark is of a whole
// block. It goes with the entry to a block that takes its place, and ends with the entry.
//
// Invariants, see check_invariants():
//  - A block has at most one entry.
//  - Equal strings have at most one entry. Tails that end inside a unit are an exception: paths
//    side by side may begin alike, and each may have one.
//  - Along a path, no findable string of a group is a proper prefix of another inside one block. A
//    tail in a gap of a window group may be a prefix of a block on a path beside it.
//  - No sibling's tokens are a prefix of another's.
// Ids of groups, blocks and runs are not checked for their range: check ids that come from outside.
// Const calls write nothing, take no heap memory and at most 8 KiB of the stack.
// Thread safety: several threads may run const calls at the same time while no other call runs.
// Nothing allocates after create(). A moved-from tree may only be assigned to or destroyed.

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "kvfolio/export.h"
#include "kvfolio/fixed_array.h"
#include "kvfolio/ids.h"
#include "kvfolio/root_key.h"
#include "kvfolio/spec.h"
#include "kvfolio/status.h"

namespace kvfolio {

class StateWriter;

// What the tree must know about a group; the fields are those of GroupSpec.
struct TreeGroup {
  std::int32_t block_size = 16;
  AttentionKind kind = AttentionKind::kFull;
  std::int32_t window = 0;
  std::int32_t num_sinks = 0;
  std::int32_t num_blocks = 0;
};

struct PrefixTreeOptions {
  std::vector<TreeGroup> groups{};    // 1 .. kMaxGroups, by GroupId
  std::int64_t max_index_tokens = 0;  // 1 .. 2^32, in all runs, rounded up to powers of two
  std::int32_t max_runs = 0;          // 2 .. 2^29, roots included
  std::int32_t max_root_keys = 1024;  // 1 .. max_runs - 1
  // Bytes of all keys in use, with up to 29 bytes of framing for each: 0 .. 2^34.
  std::int64_t max_root_key_bytes = std::int64_t{1} << 20;
  std::int32_t max_media_extents = 4096;  // pieces of media spans in all runs: 0 .. 2^28
  // Mixed into every hash. A client that knows the seed can write prompts whose hashes are all
  // equal, and a lookup compares such prompts one by one; a server that fears this sets a random
  // seed. The seed also decides which of several children that share equally much of a unit is
  // tried first. So it decides how far a hit reaches if these keep no block.
  std::uint64_t hash_seed = 0;
};

// What eviction may do with an idle entry.
enum class Candidate : std::uint8_t {
  kNone = 0,  // it may not go now: it is in use, or an idle entry of its group lies below
  kLeaf = 1,  // it may go: no other entry of its group goes with it
  kHead = 2,  // it may go: busy entries of its group lie below and are unhung with it
};

// A change that the user of the tree follows. A call that changes the tree appends to a log of
// these; take_change() hands them out: those of entries in order, then each kCandidate.
struct TreeChange {
  enum class Kind : std::uint8_t {
    kHung,       // the block became findable, or findable with more tokens (findable_end())
    kUnhung,     // the block lost its entry: it is not findable and no candidate any more
    kKept,       // the busy block kept its entry although `successor` was offered for its place
    kCandidate,  // what eviction may do with the block now, or is_read(); maybe the same as before
  };
  Kind kind = Kind::kHung;
  Candidate candidate = Candidate::kNone;
  GroupId group{};
  BlockId block{};
  // kUnhung: if valid, it took the place; it is in use, and holds the same tokens and maybe more.
  // kKept: it holds the same tokens, and has no entry for them; see replace().
  BlockId successor{};
};
static_assert(sizeof(TreeChange) == 16);

// What a lookup found. Valid until the next call on the tree that is not const.
struct PrefixMatch {
  // Tokens whose keys and values every group can serve.
  std::int32_t tokens = 0;
  // The whole prompt was found: the blocks of `held_tokens` = tokens + 1 are there, and only the
  // logits of the last token are missing.
  bool whole = false;
  // The run that holds position floor(held tokens / unit) * unit, for enter().
  std::int32_t run = -1;
  // For fill_table(): the last run of the path that serves, and the tokens that path and prompt
  // share. There may be more of these than the groups serve.
  std::int32_t last_run = -1;
  std::int32_t matched = 0;

  [[nodiscard]] std::int32_t held_tokens() const noexcept { return tokens + (whole ? 1 : 0); }
};

// What a sequence offers when it publishes.
struct PublishOffer {
  // Its block tables, by GroupId; -1 entries are skipped. The blocks are busy. None is there twice.
  std::span<const std::span<const std::int32_t>> tables{};
  // Its blocks on the path so far that have positions in [from, to) are offered too. Such a block
  // is hung if the tree has no block in its place, or an idle one.
  std::int32_t from = std::numeric_limits<std::int32_t>::max();
  bool tail = false;  // the last, partial blocks too
  std::int32_t to = std::numeric_limits<std::int32_t>::max();
};

// What became of an offer.
struct Published {
  std::uint64_t num_hung = 0;  // blocks that became findable, or findable with more tokens
  // The begin of the first offered block that has no entry now, and the end of the last one. Blocks
  // for which the log has kKept are left out.
  std::int32_t missed_from = std::numeric_limits<std::int32_t>::max();
  std::int32_t missed_to = 0;
  // Some blocks of a full group were not hung, since a block before them has no entry.
  bool has_gap = false;
};

class KVFOLIO_API PrefixTree {
 public:
  // kInvalidArgument: the field, its value and what is allowed; kOutOfMemory.
  static Result<PrefixTree> create(const PrefixTreeOptions& options);

  PrefixTree(PrefixTree&&) noexcept;
  PrefixTree& operator=(PrefixTree&&) noexcept;
  ~PrefixTree();

  // ---- looking up ----

  // The root of a key, or -1. Keys over 64 KiB are no error here: they have no root.
  [[nodiscard]] std::int32_t find_root(const RootKey& key) const noexcept;
  // The same, but makes the root if it is missing; -1 if the tree has no room for it. A root stays
  // while a place is at it or something hangs below it.
  [[nodiscard]] std::int32_t make_root(const RootKey& key) noexcept;
  // There is room for another root with this key.
  [[nodiscard]] bool has_room_for_root(const RootKey& key) const noexcept;

  // The longest prefix of `tokens` that every group can serve, at most max_tokens; nothing if
  // `root` is -1. If the path of these tokens lacks a block, the neighbours at its branches are
  // tried, from the deepest branch up: at most eight on each side of a branch and 32 in all. So a
  // hit inside a unit may be shorter than some other neighbour would allow. With `allow_whole`, a
  // prompt that is found to its last token gives whole and tokens = size - 1. Media, here and
  // below, are ascending, disjoint and not empty.
  [[nodiscard]] PrefixMatch match(std::int32_t root, std::span<const std::int32_t> tokens,
                                  std::span<const MediaSpan> media, std::int32_t max_tokens,
                                  bool allow_whole) const noexcept;
  // The blocks that serve `match`: out[i] is logical block first + i, or -1 if the group's window
  // does not need it. Requires: first + out.size() <= ceil(held_tokens / block_size). With
  // one_more, windows reach one token further back if the tree has it, since a longer or equal
  // prompt would need it.
  void fill_table(const PrefixMatch& match, GroupId group, std::span<std::int32_t> out,
                  bool one_more = false, std::int32_t first = 0) const noexcept;

  // The blocks that the tree keeps whole on the path of these tokens: out[i] is logical block first
  // + i of the group, or -1. Unlike a match it asks nothing of other blocks or groups. Requires: a
  // root.
  void whole_blocks(std::int32_t root, std::span<const std::int32_t> tokens,
                    std::span<const MediaSpan> media, GroupId group, std::int32_t first,
                    std::span<std::int32_t> out) const noexcept;

  // ---- places: a run with a place keeps its tokens up to there ----

  // Requires: position lies on the run's path, at its end or before. Give the place back by
  // leave().
  [[nodiscard]] Place enter(std::int32_t run, std::int32_t position) noexcept;
  [[nodiscard]] Place copy(const Place& place) noexcept { return enter(place.run, place.position); }
  void leave(Place& place) noexcept;
  // Moves a place up to `position` <= place.position.
  void climb(Place& place, std::int32_t position) noexcept;
  // Copies tokens [begin, begin + out.size()) of the path that ends at or after them.
  void copy_tokens(const Place& place, std::int32_t begin,
                   std::span<std::int32_t> out) const noexcept;

  // The root that the path of a place begins at.
  [[nodiscard]] std::int32_t root_of(const Place& place) const noexcept;

  // ---- memory, ahead of time: these change nothing ----

  // Prefetch what extend() at this place reads first and, once the caches have that, the ends that
  // it writes to.
  void prefetch(const Place& place) const noexcept;
  void prefetch_ends(const Place& place) const noexcept;
  // Prefetches what set_busy() and set_idle() of these blocks read; skips negative ones.
  void prefetch(GroupId group, std::span<const std::int32_t> blocks) const noexcept;
  // Prefetches what unhang() of this block reads, in kEvictionSteps steps. Each step reads what the
  // one before it prefetched.
  static constexpr int kEvictionSteps = 3;
  void prefetch_eviction(GroupId group, BlockId block, int step) const noexcept;

  // ---- publishing ----

  // Extends the path at `place` by `tokens` (its media at absolute positions) and hangs the offered
  // blocks that end on the new part, and those that `offer.from` adds. Returns false if there is no
  // room; then nothing was hung and the place is where it was.
  [[nodiscard]] bool extend(Place& place, std::span<const std::int32_t> tokens,
                            std::span<const MediaSpan> media, const PublishOffer& offer,
                            Published& published) noexcept;
  // The full block that the path keeps for a logical block, or not valid(). Requires: the logical
  // block ends at place.position or before it.
  [[nodiscard]] BlockId entry_at(const Place& place, GroupId group,
                                 std::int32_t logical) const noexcept;

  // ---- blocks ----

  // One past the last position whose token the block's entry covers; 0: not findable.
  [[nodiscard]] std::int32_t findable_end(GroupId group, BlockId block) const noexcept;
  [[nodiscard]] bool is_findable(GroupId group, BlockId block) const noexcept {
    return findable_end(group, block) != 0;
  }
  // The same for many blocks; 0 for a negative one. ends.size() = blocks.size().
  void findable_ends(GroupId group, std::span<const std::int32_t> blocks,
                     std::span<std::int32_t> ends) const noexcept;
  // These blocks are no longer in use, or are in use again. Blocks that follow each other on a path
  // cost least. Requires: findable, none negative.
  void set_idle(GroupId group, std::span<const std::int32_t> blocks) noexcept;
  void set_busy(GroupId group, std::span<const std::int32_t> blocks) noexcept;
  // The entry of `block` goes to `by`, which was offered for its place (kKept): of two busy blocks
  // with equal tokens the user says which one has it. Requires: nothing has changed in between but
  // by other calls of replace().
  void replace(GroupId group, BlockId block, BlockId by) noexcept;
  // Takes the entry away, idle or busy. In a full group, all entries of all groups at and below the
  // block go with it, since no prompt could reach them any more. Requires: findable.
  void unhang(GroupId group, BlockId block) noexcept;
  // Takes away, idle or busy, every entry that ends at or behind tokens.size() on a path that
  // begins with `tokens`. The log tells which.
  void forget(std::int32_t root, std::span<const std::int32_t> tokens,
              std::span<const MediaSpan> media) noexcept;
  // The path of a place, or of a findable block up to its findable_end(), begins with `tokens`.
  // Requires of a place: tokens.size() <= place.position. False for a block that ends earlier.
  [[nodiscard]] bool begins_with(const Place& place, std::int32_t root,
                                 std::span<const std::int32_t> tokens,
                                 std::span<const MediaSpan> media) const noexcept;
  [[nodiscard]] bool begins_with(GroupId group, BlockId block, std::int32_t root,
                                 std::span<const std::int32_t> tokens,
                                 std::span<const MediaSpan> media) const noexcept;
  // The path of a findable block, which ends at findable_end(). Requires (all four): findable.
  // Copies tokens [begin, begin + out.size()). Requires: the path ends at or behind them.
  void copy_tokens(GroupId group, BlockId block, std::int32_t begin,
                   std::span<std::int32_t> out) const noexcept;
  // Fills `out` with the first media spans that begin on the path, as far as they fit; returns how
  // many there are.
  std::int32_t copy_media(GroupId group, BlockId block, std::span<MediaSpan> out) const noexcept;
  // The key of the path's root. Its strings are valid as long as the root.
  [[nodiscard]] RootKey key_of(GroupId group, BlockId block) const noexcept;
  // The block of group `of` that holds whole what ends at `end`, or not valid(). Requires: a
  // multiple of the block size of `of`, at least 1 and at most findable_end().
  [[nodiscard]] BlockId block_at(GroupId group, BlockId block, GroupId of,
                                 std::int32_t end) const noexcept;
  // The first root whose number is larger than `after`, or -1.
  [[nodiscard]] std::int32_t next_root(std::int32_t after) const noexcept;
  // Blocks of the group that are findable and idle.
  [[nodiscard]] std::int32_t num_idle(GroupId group) const noexcept;

  // ---- ends ----

  // What a hit at `position` reads of window groups is read by an end from now on: whole blocks, as
  // far as the path of the place has them. extend() notes every position that it comes by and where
  // the path goes on in several ways.
  void note_end(const Place& place, std::int32_t position) noexcept;
  // The same for these blocks of one group. Those that are not findable whole are left out.
  void note_read(GroupId group, std::span<const std::int32_t> blocks) noexcept;
  // False for every block of a full group.
  [[nodiscard]] bool is_read(GroupId group, BlockId block) const noexcept;

  // ---- what changed ----

  // extend(), set_idle(), set_busy(), replace(), unhang(), note_end() and note_read() leave entries
  // here.
  [[nodiscard]] bool has_changes() const noexcept;
  // The next entry, which leaves the log. Requires: has_changes().
  [[nodiscard]] TreeChange take_change() noexcept;
  void clear_changes() noexcept;

  // Becomes an equal of `other`: places and runs of `other` are valid here too. The cost grows with
  // what is in use, plus a few words for each run and block of the options. Requires: created with
  // equal options; the logs of both are empty.
  void copy_from(const PrefixTree& other) noexcept;

  [[nodiscard]] std::int32_t unit() const noexcept;
  [[nodiscard]] std::int32_t num_runs() const noexcept;
  [[nodiscard]] std::int64_t num_tokens() const noexcept;

  [[nodiscard]] MemoryUse memory() const noexcept;
  // Returns ok, or says which rule is broken and where. O(size of the tree).
  Status check_invariants() const;
  // For KVCacheManager::state_hash(). False: no memory for the names of runs.
  [[nodiscard]] bool put_state(StateWriter& out) const;

 private:
  class Impl;
  explicit PrefixTree(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvfolio
