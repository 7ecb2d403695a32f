// SPDX-License-Identifier: Apache-2.0
#pragma once

// What KVCacheManager takes and answers: options, and records of numbers. manager.h has the calls.
// Units: tokens, blocks and positions are counts; names of byte counts say bytes. Thread safety:
// values.

#include <array>
#include <concepts>
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>

#include "kvfolio/export.h"
#include "kvfolio/ids.h"
#include "kvfolio/root_key.h"
#include "kvfolio/spec.h"

namespace kvfolio {

enum class Order : std::int32_t {
  kInOrder = 0,  // one stream: complete(t) completes all earlier steps
  // Steps may complete in any order. A sequence takes no append before the step of its last one is
  // complete, nor does a child that was forked from it meanwhile.
  kUnordered = 1,
};

// Which sequence to preempt first. Ties go to the lower caller_id; sequences without one come
// later, by SequenceId.
enum class VictimPolicy : std::int32_t {
  kLru = 0,             // the oldest last use
  kLfu = 1,             // the fewest uses
  kLongest = 2,         // the most tokens
  kLowestPriority = 3,  // the smallest priority
};
[[nodiscard]] KVFOLIO_API const char* to_string(VictimPolicy policy) noexcept;

struct ManagerOptions {
  std::int32_t max_sequences = 1024;     // open at once, 1 .. 2^23
  std::int32_t max_pins = 256;           // 0 .. 2^24
  std::int32_t max_transfers = 256;      // loads and holds that are open at once: 0 .. 2^24 of each
  std::int32_t max_steps_in_flight = 2;  // 1 .. 64
  Order order = Order::kInOrder;
  bool prefix_cache = true;  // false: nothing is ever findable
  // The expected length of a sequence; not a limit. The default of max_table_entries depends on it
  // and, if every group has a window, that of max_index_tokens too. 0: the tokens of the largest
  // full group, or 32,768 if there is none.
  std::int32_t max_sequence_tokens = 0;  // 0 .. 2^30
  // Capacity of the prefix tree. 0: tokens and runs are derived, enough to make every block of the
  // pool findable. When the tree is full, the next victims are evicted; if that is not enough,
  // nothing is published (counted). Nothing is evicted for a root key: while there are too many, a
  // sequence of a new key neither finds nor publishes.
  std::int64_t max_index_tokens = 0;  // up to 2^32
  std::int32_t max_runs = 0;          // 0, or 2 to 2^29
  std::int32_t max_root_keys = 1024;  // in use at once, from 1; lowered to max_runs - 1
  // Bytes of all keys in use, with up to 29 bytes of framing for each: 0 .. 2^34.
  std::int64_t max_root_key_bytes = std::int64_t{1} << 20;
  // Pieces of media spans in all runs together: 0 .. 2^28.
  std::int32_t max_media_extents = 4096;
  // int32 words for the block tables, unpublished tokens and media of all open sequences, and for
  // pins. Up to 2^33; words cost memory once they are used. 0: derived, enough for the tokens and
  // tables of a full pool, and for max_sequences tables of max_sequence_tokens each (all may share
  // one prompt), of which at most 2^26 words count.
  std::int64_t max_table_entries = 0;
  // Mixed into every hash of the prefix tree. A hash never makes unequal tokens equal. Among
  // neighbours that share equally much of a prompt, the seed may decide which one serves a hit
  // inside a block and, if blocks were evicted, how far the hit reaches. So managers that must give
  // the same answers need the same seed. Prompts that are crafted to collide cost time; a server
  // that fears them sets a random seed.
  std::uint64_t hash_seed = 0;
  // needs_eviction() returns true from this utilization on: 0 to 1.
  double high_watermark = 0.90;
  // Whom select_victim() and preempt_to() choose if the call does not say.
  VictimPolicy victim_policy = VictimPolicy::kLru;
  // Keep a list of the blocks that become findable, for take_findable(). Costs 16 bytes for each
  // block, and nothing if false.
  bool list_findable = false;
  // Written into every id. If the managers of one process have distinct tags, each recognises the
  // ids of the others as foreign. copy_to() needs two managers with the same tag, since the copies
  // have the same ids.
  std::uint16_t id_tag = 0;
  // With storage: the host runs the copies of each plan itself, in the order of its stream, as it
  // must with several steps in flight: cuda::copy_blocks(..., stream) for a device. With memory of
  // the CPU, where the thread that computes also copies, copy_blocks() of kernels.h or
  // KVStorage::copy_blocks() serve, which wait for nothing and know no stream.
  // false: commit() refuses a step while run_copies() has not run what it has to copy. Without
  // storage the copies are the host's in any case.
  bool copies_by_host = false;
  // Tokens of all announcements together that are not published yet (OpenOptions::announce): 0 to
  // 2^30; memory is used once they are. 0: the tokens of the largest group.
  std::int64_t max_announced_tokens = 0;
  // Block 0 of each group is held for ever and never given out, and plans are padded with 0: so an
  // entry of a table that stands for no block names one without tokens. A kernel of fixed shape may
  // read there; with storage that the CPU writes it begins as zeros. Needs two blocks in each
  // group. It is not counted: GroupUsage, Shortage and bytes_total() know the others.
  bool null_block = false;
};

// What other sequences may find of a sequence. A fork publishes as its parent does.
enum class Publish : std::int32_t {
  kAll = 0,         // full blocks when their step allows, the partial tail when it closes
  kFullBlocks = 1,  // no partial tail, also not at preempt()
  kNothing = 2,     // it keeps no tokens of its own and needs no table entries for them
};

struct OpenOptions {
  RootKey root{};
  // Ascending and disjoint; copied. Spans may lie beyond the tokens of the call, for tokens that
  // are appended later.
  std::span<const MediaSpan> media{};
  // false: the sequence neither looks for a prefix nor publishes one, and the next two options do
  // not count.
  bool prefix_cache = true;
  bool look_up = true;  // false: it finds nothing and computes everything, but still publishes
  Publish publish = Publish::kAll;
  // The caller's own name for the sequence, any 64 bits: find() returns its SequenceId. Two open
  // sequences never have the same one.
  std::optional<std::uint64_t> caller_id{};
  // Appends beyond it are refused: "full: 4 of 4 tokens". 0: no limit of its own.
  std::int32_t max_tokens = 0;
  std::int32_t priority = 0;  // kLowestPriority preempts the smallest first
  // true: set_tokens() may name a token as long as the sequence is open, also after the step of the
  // token is complete. Not needed if you name the tokens of a step before you complete it.
  bool late_names = false;
  // true: says that the sequence is going to append the tokens of this open(). soon() tells others
  // until they are published, or the sequence ends, is cut back, or goes another way. Needs a
  // sequence that publishes; without room the announcement is left out (announcements_skipped).
  bool announce = false;
};

struct ForkOptions {
  std::optional<std::uint64_t> caller_id{};  // of the child
  std::int32_t priority = 0;                 // of the child; the parent's is not inherited
};

// How far a hit of a prompt will reach when `by`, a sequence that announces the same tokens, has
// appended them and they are published. An upper bound: what is evicted or forgotten by then is not
// found.
struct Soon {
  std::int32_t tokens = 0;  // from the begin of the prompt, at most all but the last; 0: nothing
  SequenceId by{};          // not valid() if tokens is 0

  friend bool operator==(const Soon&, const Soon&) = default;
};

struct Opened {
  SequenceId sequence{};
  // Tokens of the prompt that need not be computed: at most all but the last one, 0 if the prompt
  // is empty. Append the others and only these: append_prompt() knows where they begin. append()
  // refuses the whole prompt, but it cannot know of a few tokens that they are a repeat.
  std::int32_t cached_tokens = 0;
  Soon soon{};  // of other sequences, see soon()
};

struct Pinned {
  PinId pin{};
  std::int32_t pinned_tokens = 0;  // tokens of the prefix that are held
};

// What begin_load() began. Blocks of positions [begin, end) are to be written.
struct Load {
  LoadId id{};             // not valid(): the cache has it all by now; there is nothing to finish
  std::int32_t begin = 0;  // the length of the sequence
  std::int32_t end = 0;
};

// A block that a load waits for: all of its tokens up to the end of the load, also those in front
// of Load::begin.
struct LoadBlock {
  std::int32_t logical = 0;
  BlockId block{};
};

// How far a sequence would come with blocks that a tier has, see loadable().
struct Loadable {
  std::int32_t begin = 0;   // tokens that are there without the tier
  std::int32_t end = 0;     // tokens that are there with it; begin: loading gains nothing
  std::int64_t blocks = 0;  // that begin_load(.., end) would wait for, of all groups
};

// A block that became findable.
struct FindableBlock {
  GroupId group{};
  BlockId block{};
  std::int32_t end = 0;      // one past the last position whose token can be found in it
  std::uint64_t serial = 0;  // entry_serial() now
};

// What stands before the end of a findable block.
struct BlockPrefix {
  std::int32_t num_tokens = 0;  // from the root to findable_end() of the block
  std::int32_t num_media = 0;   // spans that begin in front of that
  // Its strings lie in the manager, and are valid until the next call that is not const.
  RootKey root{};
};

struct StepOptions {
  std::uint64_t now_us = 0;  // the only clock of the manager; not read yet
};

struct AppendOptions {
  // The last `draft` of the appended tokens are guesses, of which accept() decides, before or after
  // their step is complete. Until then nothing behind the first of them is findable, no window
  // moves past it, and the sequence takes no fork, trim or load. An append behind them assumes that
  // all stand, and is undecided as long as they are: at most max_steps_in_flight appends of a
  // sequence are, and under kUnordered one. Where accept() cuts, the rows of later appends are
  // void: their blocks retire until their steps are complete, and a step behind those may write the
  // slots of the tail block again at once.
  std::int32_t draft = 0;
};

struct AppendDemand {
  SequenceId sequence{};
  std::int64_t num_tokens = 0;
};

// What a prompt, or a sequence, would get, see admit().
struct Admission {
  std::int32_t cached_tokens = 0;  // as Opened::cached_tokens; 0 for a sequence that is open
  // By group: blocks that the append would take, or reserve() would keep ready. Those of cached
  // tokens are not among them.
  std::array<std::int32_t, kMaxGroups> blocks{};
  Soon soon{};  // see soon()
};

struct ReserveOptions {
  // Tokens that a step appends at most, those before that accept() has not decided on included. 0,
  // or more than there are: all of them may come in one step.
  std::int64_t most_per_step = 0;
};

// What reset() and forget() took away.
struct Forgotten {
  std::int64_t blocks = 0;  // that are not findable any more
  std::int32_t pins = 0;    // that ended
};

// A sequence that a call of the manager ended, and the name that its caller gave it.
struct EndedSequence {
  SequenceId sequence{};
  std::optional<std::uint64_t> caller_id{};

  friend bool operator==(const EndedSequence&, const EndedSequence&) = default;
};

struct TrimOptions {
  std::int64_t num_sinks = 0;  // tokens kept at the front
  std::int64_t window = 0;     // tokens kept at the end
};

struct SequenceInfo {
  std::int32_t length = 0;            // tokens, those of the open step included
  std::int32_t accepted_length = 0;   // without drafts that are not decided, and what is behind
  std::int32_t published_length = 0;  // tokens of its path on the prefix tree; 0 if it has none
  // Positions [trim_sinks, trim_first_kept) were dropped by trims; 0 and 0: none.
  std::int32_t trim_sinks = 0;
  std::int32_t trim_first_kept = 0;
  bool in_open_step = false;
  std::int32_t num_unnamed = 0;      // tokens that set_tokens() may name now
  std::int64_t reserved_tokens = 0;  // tokens that reserve() still promises
  std::optional<std::uint64_t> caller_id{};
  std::int32_t max_tokens = 0;  // 0: no limit of its own
  std::int32_t priority = 0;
  // A use is an open, an append of at least one token, or the fork that made the sequence. Each use
  // takes the next tick of a counter of the manager. Probes, plans and reads are not uses.
  std::uint64_t last_use = 0;
  std::uint64_t use_count = 0;
  LoadId load{};  // that is open for it; not valid(): none
  // How often tokens of committed steps were cut: by truncate(), by accept() below the draft. A row
  // of an earlier plan is void if its sequence is gone or StepPlan::rewinds says another number:
  // what its step computed behind the cut is not of this sequence any more.
  std::int32_t rewinds = 0;
  // truncate() to this length or more is refused only while the sequence is in the open step; 0 if
  // every group is a full one. Below, a window group has let go of what is read there, unless the
  // cache has it still. It is the accepted length less the smallest GroupSpec::rewind, but never
  // below what open(), adopt() or a load gave, nor inside what a trim dropped: a request that was
  // opened again, with a hit of its text, may have to be closed and opened once more to go back
  // further.
  std::int32_t rewind_from = 0;
};

// Blocks of one group by state; free + held + cached + retiring = num_blocks. Used blocks or bytes
// always means the held ones (utilization, bytes_used, describe, blocks_used_peak). The null block
// is not among them.
struct GroupUsage {
  std::int32_t num_blocks = 0;
  std::int32_t free = 0;
  std::int32_t held = 0;    // referenced by sequences, pins, loads or holds
  std::int32_t cached = 0;  // findable, without references
  // Without references, or referenced only by steps. They become free or cached when the steps are
  // complete.
  std::int32_t retiring = 0;
  std::int32_t evictable = 0;  // equals cached: every cached block can be evicted
  // Those of the held ones that reserve() keeps for sequences, and that no table has yet.
  std::int32_t reserved = 0;
  std::int32_t loading = 0;  // of the held ones: blocks that open loads wait for
  // References of open holds; a block in two holds counts twice.
  std::int32_t on_hold = 0;
  std::int64_t budget_bytes = 0;  // not used yet: of a budget that groups share
};

// Counts since creation. Each name says what is counted.
struct Counters {
  std::uint64_t blocks_allocated = 0;
  std::uint64_t blocks_freed = 0;    // became free; allocated - freed blocks are not free now
  std::uint64_t blocks_evicted = 0;  // cached blocks that were given up to make room
  // Held blocks that stopped being findable to make room: a cached block before them was evicted,
  // or their only holder overwrote what it had found. A block that becomes findable again counts in
  // blocks_published again.
  std::uint64_t blocks_unhung = 0;
  std::uint64_t block_copies = 0;         // copy-on-write, planned and committed
  std::uint64_t sequences_opened = 0;     // forks not included
  std::uint64_t sequences_closed = 0;     // by close()
  std::uint64_t sequences_preempted = 0;  // by preempt() and preempt_to()
  std::uint64_t sequences_aborted = 0;    // by fail()
  std::uint64_t forks = 0;
  std::uint64_t tokens_loaded = 0;     // that stood when their load was finished
  std::uint64_t tokens_looked_up = 0;  // of all open() calls, those that look nothing up included
  std::uint64_t tokens_reused = 0;     // cached_tokens of all open() calls
  std::uint64_t tokens_committed = 0;  // appended, by all commits
  std::uint64_t blocks_published = 0;  // became findable, or findable with more tokens
  // Sequences that publish nothing more, since there was no room for their root key, for their path
  // in the tree, or for the tokens that they keep to publish. Also publications that left out
  // blocks of a full group, since the block before them is not findable; the next publication
  // offers these blocks again. Not counted: a sequence that is closed while as many as
  // max_sequences wait for their steps (close()).
  std::uint64_t publications_skipped = 0;
  std::uint64_t blocks_used_peak = 0;  // held at once, all groups together
  // open() calls that were to announce tokens and did not, for want of max_announced_tokens.
  std::uint64_t announcements_skipped = 0;
};

// For logs and failed tests: each field by its name, "length 12, accepted_length 12, ...". Spans
// and keys are counted, not printed: they are a user's.
[[nodiscard]] KVFOLIO_API std::string to_string(const ManagerOptions& options);
[[nodiscard]] KVFOLIO_API std::string to_string(const OpenOptions& options);
[[nodiscard]] KVFOLIO_API std::string to_string(const Opened& opened);
[[nodiscard]] KVFOLIO_API std::string to_string(const Admission& admission);
[[nodiscard]] KVFOLIO_API std::string to_string(const SequenceInfo& info);
[[nodiscard]] KVFOLIO_API std::string to_string(const GroupUsage& usage);
[[nodiscard]] KVFOLIO_API std::string to_string(const Counters& counters);

// What to_string() gives. A template, so that <iosfwd> is enough here; its caller includes
// <ostream>.
template <typename Traits, typename T>
requires std::same_as<T, ManagerOptions> || std::same_as<T, OpenOptions> ||
    std::same_as<T, Opened> || std::same_as<T, Admission> || std::same_as<T, SequenceInfo> ||
    std::same_as<T, GroupUsage> || std::same_as<T, Counters>
        std::basic_ostream<char, Traits>
&operator<<(std::basic_ostream<char, Traits>& out, const T& record) {
  return out << to_string(record);
}

}  // namespace kvfolio
