// SPDX-License-Identifier: Apache-2.0
#pragma once

// KVCacheManager keeps the KV cache of many sequences: it decides which physical block holds which
// tokens, shares blocks between sequences, finds prompts it has seen, evicts, and hands an engine
// the arrays of each step. It is the only layer that sees both planes: ids (BlockPool, BlockTable,
// PrefixTree) and bytes (KVStorage).
//
//   auto manager = KVCacheManager::create(spec, {.max_sequences = 256});
//   auto opened  = manager->open(prompt);                       // finds and holds in one call
//   Ticket t     = *manager->begin_step();
//   manager->append(opened->sequence, rest_of(prompt, opened->cached_tokens));
//   const StepPlan& plan = **manager->plan();                   // slots, tables, copies
//   ... run the copies, write K and V to the slots, attend ...
//   manager->finish(t);                                         // commit and complete
//
// Rules that hold at every moment:
//  - Bytes of valid tokens never change while another may read them. A write to a shared block goes
//    to a copy of it (copy-on-write); the writer of a block appends in place.
//  - Nothing is findable before its step is committed (kInOrder) or complete (kUnordered).
//  - No block is given to another sequence while a step that may touch it is not complete.
//  - Caching never takes room: every cached block can be evicted, and a copy that only a hit makes
//    necessary is left out where it would leave a group short of blocks. So an append that has room
//    after a miss has room after a hit, too.
//  - Every call either does all it says or returns an error and changes nothing; but a sequence
//    that is short of table entries stops publishing before it is refused.
//  - The same calls give the same ids and the same plans on every machine.
//
// A step: begin_step -> append* -> plan -> commit (work is enqueued) -> complete (device is done).
// One step is open at a time; committed and not complete steps are in flight.
//
// It does not know what a token means, what a model computes, who asks, or the time; it never
// writes K or V but to copy whole blocks (run_copies, copy_to), and never reads them.
//
// Errors. Every call that takes an id answers kNotFound for one that is closed, of another manager
// or was never given out, and kAborted for a sequence that fail() closed (the last one in its slot
// that it closed); kInvalidArgument names the argument, the value and what is allowed. These are
// not said again below. Units: tokens, blocks and positions are counts; bytes say so in their name.
//
// Thread safety: none; the owner serialises all calls, probe() included. No heap allocation after
// create() except for error texts, describe(), check_invariants() and growing plan buffers; no
// threads, no clock, no globals. Spans and pointers that calls return belong to the manager. Copy
// what one shows before you give it to a call that changes the manager: tokens in its tables are
// refused. adopt() alone takes tables as block_table() shows them. A manager that was moved from is
// only assigned to or destroyed.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "kvfolio/export.h"
#include "kvfolio/ids.h"
#include "kvfolio/root_key.h"
#include "kvfolio/spec.h"
#include "kvfolio/status.h"
#include "kvfolio/step_plan.h"
#include "kvfolio/storage.h"

namespace kvfolio {

enum class Order : std::int32_t {
  kInOrder = 0,    // one stream: complete(t) completes all earlier steps
  kUnordered = 1,  // steps may complete in any order
};

struct ManagerOptions {
  std::int32_t max_sequences = 1024;     // open at once, 1 .. 2^23
  std::int32_t max_pins = 256;           // 0 .. 2^24
  std::int32_t max_steps_in_flight = 2;  // 1 .. 64
  Order order = Order::kInOrder;
  bool prefix_cache = true;  // false: nothing is ever findable
  // How long a sequence is expected to get: the capacities below are derived from it where only
  // windows bound the blocks of a sequence. Not a limit. 0: the tokens of the largest full group,
  // or 32,768 without one.
  std::int32_t max_sequence_tokens = 0;  // 0 .. 2^30
  // Capacity of the prefix tree. 0 derives tokens and runs from the spec: enough for a pool whose
  // every block is findable. When it is full the coldest blocks go first (not for a root key: a
  // sequence of a key too many neither finds nor publishes), else nothing is published (counted).
  std::int64_t max_index_tokens = 0;  // up to 2^32
  std::int32_t max_runs = 0;          // 0, or 2 to 2^29
  std::int32_t max_root_keys = 1024;  // in use at once, from 1; lowered to max_runs - 1
  // Of all keys in use, up to 29 bytes of framing for each included: 0 .. 2^34.
  std::int64_t max_root_key_bytes = std::int64_t{1} << 20;
  // Pieces of media spans along all runs together: 0 .. 2^28.
  std::int32_t max_media_extents = 4096;
  // int32 cells for the block tables, unpublished tokens and media of all open sequences, and for
  // pins. 0: derived: for tokens and tables of a full pool, and for max_sequences tables of
  // max_sequence_tokens each, as when all share one prompt; of these at most 2^26 cells. Up to
  // 2^33; cells cost memory once they are used.
  std::int64_t max_table_entries = 0;
  // Mixed into every hash of the prefix tree. A hash never makes unequal tokens equal. Among
  // neighbours that share as much of a prompt it may decide which one serves a hit inside a block
  // and, where blocks are gone, how far the hit reaches: managers that have to give the same
  // answers share the seed. A server that fears prompts crafted to collide, which would cost it
  // time, sets this at random.
  std::uint64_t hash_seed = 0;
  // needs_eviction() says yes from this utilization on: 0 to 1.
  double high_watermark = 0.90;
  // Written into every id. Give managers of one process distinct tags, and an id of one is
  // recognised as foreign by the others; but copy_to() is among managers with the same tag, since
  // the copies have the same ids.
  std::uint16_t id_tag = 0;
};

// What a sequence leaves behind for others to find. A fork does as its parent.
enum class Publish : std::int32_t {
  kAll = 0,         // full blocks when their step allows, the partial tail when it closes
  kFullBlocks = 1,  // no partial tail, also not at preempt()
  kNothing = 2,     // it keeps no tokens of its own and needs no table entries for them
};

struct OpenOptions {
  RootKey root{};
  // Ascending, disjoint. May lie beyond the tokens of the call: for tokens appended later. Copied.
  std::span<const MediaSpan> media{};
  // false: the sequence neither looks for a prefix nor publishes one, whatever the next two say.
  bool prefix_cache = true;
  bool look_up = true;  // false: it finds nothing and computes everything, but publishes as ever
  Publish publish = Publish::kAll;
  // The caller's own name for the sequence, any 64 bits: find() gives its SequenceId. Two open
  // sequences never have the same.
  std::optional<std::uint64_t> caller_id{};
  // Appends beyond it are refused: "full: 4 of 4 tokens". 0: no limit of its own.
  std::int32_t max_tokens = 0;
  std::int32_t priority = 0;  // kLowestPriority preempts the smallest first
};

struct ForkOptions {
  std::optional<std::uint64_t> caller_id{};  // of the child
  std::int32_t priority = 0;                 // of the child; the parent's is not inherited
};

// Which sequence to preempt first. Ties go to the lower id: by caller_id, and those without one
// come later, by SequenceId.
enum class VictimPolicy : std::int32_t {
  kLru = 0,             // the oldest last use
  kLfu = 1,             // the fewest uses
  kLongest = 2,         // the most tokens
  kLowestPriority = 3,  // the smallest priority
};

struct Opened {
  SequenceId sequence;
  // Tokens of the prompt that need not be computed, at most all but the last, 0 of none. Append the
  // others.
  std::int32_t cached_tokens = 0;
};

struct Pinned {
  PinId pin;
  std::int32_t pinned_tokens = 0;  // tokens of the prefix that are held
};

struct StepOptions {
  std::uint64_t now_us = 0;  // the only clock there will be; nothing reads it yet
};

struct AppendOptions {
  // The last `draft` of the appended tokens are guesses: accept() decides.
  std::int32_t draft = 0;
};

struct AppendDemand {
  SequenceId sequence;
  std::int64_t num_tokens = 0;
};

struct TrimOptions {
  std::int64_t num_sinks = 0;  // tokens kept at the front
  std::int64_t window = 0;     // tokens kept at the end
};

struct SequenceInfo {
  std::int32_t length = 0;            // tokens, those of the open step included
  std::int32_t accepted_length = 0;   // without draft tokens
  std::int32_t published_length = 0;  // tokens of its path on the prefix tree
  // Positions [trim_sinks, trim_first_kept) were dropped by trims; 0 and 0: none.
  std::int32_t trim_sinks = 0;
  std::int32_t trim_first_kept = 0;
  bool in_open_step = false;
  std::optional<std::uint64_t> caller_id{};
  std::int32_t max_tokens = 0;  // 0: no limit of its own
  std::int32_t priority = 0;
  // A use is an open, an append of at least one token, and being made by a fork. Each takes the
  // next tick of a counter of the manager; probes, plans and reads are no use.
  std::uint64_t last_use = 0;
  std::uint64_t use_count = 0;
};

// Blocks of one group by state; free + held + cached + retiring = num_blocks. Wherever blocks or
// bytes are said to be used (utilization, bytes_used, the printed form, blocks_used_peak), they are
// the held ones.
struct GroupUsage {
  std::int32_t num_blocks = 0;
  std::int32_t free = 0;
  std::int32_t held = 0;    // referenced by sequences or pins
  std::int32_t cached = 0;  // findable, without references
  // Without references, or referenced by steps alone: free or cached when these are complete.
  std::int32_t retiring = 0;
  std::int32_t evictable = 0;  // equals cached: every cached block can be evicted
};

// Since creation. The unit stands in the name.
struct Counters {
  std::uint64_t blocks_allocated = 0;
  std::uint64_t blocks_freed = 0;    // became free; allocated - freed blocks are not free now
  std::uint64_t blocks_evicted = 0;  // cached blocks that were given up to make room
  // Held blocks that stopped being findable to make room: a cached block before them was evicted,
  // or their only holder wrote in place of what it had found. A block that becomes findable again
  // counts in blocks_published again.
  std::uint64_t blocks_unhung = 0;
  std::uint64_t block_copies = 0;         // copy-on-write, planned and committed
  std::uint64_t sequences_opened = 0;     // forks not included
  std::uint64_t sequences_closed = 0;     // by close()
  std::uint64_t sequences_preempted = 0;  // by preempt() and preempt_to()
  std::uint64_t sequences_aborted = 0;    // by fail()
  std::uint64_t forks = 0;
  std::uint64_t tokens_looked_up = 0;  // of all open() calls
  std::uint64_t tokens_reused = 0;     // cached_tokens of all open() calls
  std::uint64_t tokens_committed = 0;  // appended, by all commits
  std::uint64_t blocks_published = 0;  // became findable, or findable with more tokens
  // Sequences that found no room for their root key, for their path in the tree, or for the tokens
  // that they keep to publish, and so publish nothing more. And publications that left blocks of a
  // full group out since the block before them is not findable; these go on at the next one.
  std::uint64_t publications_skipped = 0;
  std::uint64_t blocks_used_peak = 0;  // held at once, all groups together
};

class KVFOLIO_API KVCacheManager {
 public:
  // Ids only: the engine owns the bytes and runs the copies of each plan. (Both) kInvalidArgument:
  // the spec or an option out of range, a group of more than 2^29 blocks; kOutOfMemory: the tables.
  static Result<KVCacheManager> create(const CacheSpec& spec, const ManagerOptions& options = {});
  // With storage of its own or borrowed; its spec() is the manager's. The storage is gone where
  // this fails.
  static Result<KVCacheManager> create(KVStorage storage, const ManagerOptions& options = {});

  KVCacheManager(KVCacheManager&&) noexcept;
  KVCacheManager& operator=(KVCacheManager&&) noexcept;
  ~KVCacheManager();

  // ---- sequences ----

  // Opens a sequence and holds what the cache has of `tokens` in one call, so nothing found can
  // be evicted before it is used. Its length is Opened::cached_tokens then. A hit for which table
  // entries are short is a miss.
  // kInvalidArgument: token < 0, malformed media, a root key over 64 KiB, more tokens than
  // max_tokens, no such Publish, a caller_id that is open; kResourceExhausted: sequences, rows
  // (kUnordered: those of closed sequences are not free before their steps are complete), table
  // entries.
  Result<Opened> open(std::span<const std::int32_t> tokens, const OpenOptions& options = {});
  // What open() would find; of the options root, media, prefix_cache, look_up and max_tokens count.
  // Changes nothing, not even the order of eviction.
  [[nodiscard]] Result<std::int32_t> probe(std::span<const std::int32_t> tokens,
                                           const OpenOptions& options = {}) const;
  // A new sequence with the same tokens, sharing every block. The right to write the last block
  // stays with the parent; the child copies it at its first append. Of those that share it when the
  // parent has closed, one may write it.
  // kFailedPrecondition: in the open step, or draft tokens pending. kInvalidArgument: a caller_id
  // that is open. kResourceExhausted: sequences, rows (as open), table entries.
  Result<SequenceId> fork(SequenceId parent, const ForkOptions& options = {});
  // An empty sequence takes blocks that are held already, one table for each group in the
  // order of groups, and stands at num_tokens then. A table has as many entries as num_tokens
  // needs: of what block_table() shows, the first ones. A window group may have -1 where position
  // num_tokens reads nothing. No token is appended; what follows is never findable.
  // kInvalidArgument: num_tokens is not within 0 .. kMaxSequenceTokens; a table of another size,
  // with a block twice, or in cells of the manager that would move; a block that has no reference
  // or holds fewer tokens than wanted. kFailedPrecondition: the sequence has tokens, a step is
  // open, or a block's step is not complete and the order is kUnordered. kResourceExhausted:
  // max_tokens, table entries.
  Status adopt(SequenceId sequence, std::span<const std::span<const std::int32_t>> tables,
               std::int32_t num_tokens);
  // Forgets the tokens from position n on. Also forgets that a prompt was found whole: the block
  // beyond the length that is held for its last token is let go, even if n is the length. Always
  // possible down to the accepted length; below it wherever every group still holds what position n
  // reads, else the error names the group.
  // kFailedPrecondition: that, or in the open step. kInvalidArgument: n is not in 0 .. length.
  Status truncate(SequenceId sequence, std::int32_t n);
  // truncate to 0. The sequence stays open under its id, a trim is forgotten.
  Status clear(SequenceId sequence);
  // StreamingLLM: keeps [0, num_sinks) and [length - window, length); returns the tokens dropped
  // now. Positions never change. What an earlier trim dropped stays dropped: the sinks cannot grow
  // again. A sequence has one gap: where the window reaches tokens in front of it, nothing is
  // dropped. Tokens appended after a trim that dropped something are never findable; a truncate()
  // to the sinks or less ends it. kFailedPrecondition: in the open step, or draft tokens pending.
  // kInvalidArgument: negative.
  Result<std::int32_t> trim(SequenceId sequence, const TrimOptions& options);
  // Ends a sequence; what OpenOptions::publish says stays findable. kUnordered: tokens of a step
  // that is not complete become findable once it is. At most max_sequences closed sequences wait
  // for that; one that is closed while as many wait publishes nothing more. The row of a closed
  // sequence in the plans is not given to another one before that step is complete. A second close
  // is kNotFound. kFailedPrecondition: in the open step.
  Status close(SequenceId sequence);
  // close() for a sequence that has to make room: takes it out of the open step first.
  Status preempt(SequenceId sequence);
  Status set_priority(SequenceId sequence, std::int32_t priority);

  // ---- steps ----

  // kFailedPrecondition: a step is open, max_steps_in_flight are not complete, or 2^24 steps were
  // begun, dropped ones included, since the oldest of these.
  Result<Ticket> begin_step(const StepOptions& options = {});
  // Reserves slots for tokens whose K and V this step writes: the model's inputs. A failing append
  // changes nothing and the step goes on without it; a sequence appends once per step. No tokens:
  // nothing happens. Shortage: not enough blocks, decided before the first eviction.
  // Where the sequence may not write to its last block, its tokens go to a copy. If that copy would
  // leave the group short of blocks and nothing else holds the block, they are written in place of
  // what was found there, which then is not findable any more; undo() and drop() do not bring it
  // back.
  // A sequence that is short of table entries for the tokens that it keeps to publish stops
  // publishing (publications_skipped), also if the call is then refused.
  // kFailedPrecondition: no step is open, the sequence is in it, draft tokens pending, run_copies()
  // has run, or under kUnordered its last step is not complete. kInvalidArgument: token < 0, a
  // draft that is not within the tokens, over kMaxSequenceTokens. kResourceExhausted: max_tokens,
  // table entries.
  Status append(SequenceId sequence, std::span<const std::int32_t> tokens,
                const AppendOptions& options = {});
  // The same for ids that the host does not know yet: set_tokens names them before complete(). What
  // a window let go at commit is not findable, since it had no name then.
  Status append_unnamed(SequenceId sequence, std::int64_t num_tokens,
                        const AppendOptions& options = {});
  // open and append_unnamed in one: a sequence of num_tokens reserved slots. Both or neither; the
  // errors of both.
  Result<SequenceId> open_unnamed(std::int64_t num_tokens, const OpenOptions& options = {});
  // Names the oldest unnamed tokens of a sequence, in order. Those of a step that was completed
  // without names have none for ever. kInvalidArgument: token < 0, more than are unnamed in the
  // open step and those in flight.
  Status set_tokens(SequenceId sequence, std::span<const std::int32_t> tokens);
  // Takes a sequence out of the open step, as if it had not been appended to, with two exceptions.
  // Blocks evicted for it stay evicted. Where it was to write in place of what was found, that may
  // be overwritten already: the block stays unfindable and is valid up to the sequence's length (it
  // is let go if it lies beyond), and a last token that was found counts as not found: its next
  // append gets a slot. kFailedPrecondition: it is not in an open step.
  Status undo(SequenceId sequence);
  // The arrays of the open step. Stale once the step changes; overwritten by another plan() of it.
  // kFailedPrecondition: no step is open. kInvalidArgument: a pad that is neither -1 nor 0.
  // kUnsupported: FlashInfer arrays of a sequence whose trim cuts through a block, or of more table
  // entries than an int32 counts. kOutOfMemory.
  Result<const StepPlan*> plan(const PlanOptions& options = {});
  // Runs the copies of the open step on the manager's own storage, once per step; the step takes no
  // more appends then. kUnsupported without storage. kFailedPrecondition: no step is open, they
  // have run, or (kInOrder) there are some and an earlier step is in flight, which may be writing
  // what they read. Engines that run the lists themselves never call it.
  Status run_copies();
  // The work is enqueued: lengths advance, windows move, the next step may begin.
  // kFailedPrecondition (commit and drop): not the open step.
  Status commit(Ticket ticket);
  // The device has finished step `ticket` (and under kInOrder all earlier ones).
  // kFailedPrecondition (complete and fail): not in flight.
  Status complete(Ticket ticket);
  // commit and complete: for engines that compute in the call.
  Status finish(Ticket ticket);
  // Ends the open step and undoes all of its appends, as undo() does. Sequences that were opened
  // meanwhile stay open.
  Status drop(Ticket ticket);
  // The device failed and is idle: ends every step from `ticket` on, the open one too, forgets all
  // they wrote, and closes with kAborted each sequence that wrote in them or holds such a block;
  // pins on it go.
  Status fail(Ticket ticket);
  // Ends a draft: the first `num_accepted` draft tokens stay, the others are truncated.
  // kFailedPrecondition: in the open step. kInvalidArgument: more than are pending.
  Status accept(SequenceId sequence, std::int32_t num_accepted);

  // ---- room ----

  // Would these appends succeed together in the open step, or in one that began now? ok, or the
  // error of append(), or the Shortage of the first short group. The same function that append()
  // decides with; a token of a prompt that was found whole is taken to be the prompt's. Every
  // cached block counts as room, so the answer is exact. Where the demands do not fit with all
  // copies, some are planned in place (append() says how), the last demand first; each sequence
  // does as planned when it appends in that step, in whatever order the appends come.
  // Nothing else changes but table entries, which an admitted sequence keeps until it is closed,
  // whether it appends or not, in one step or in several. Only the entries of its tables are
  // promised: a sequence that is short of entries for the tokens that it keeps to publish stops
  // publishing (publications_skipped), also if the call is then refused.
  Status admit(std::span<const AppendDemand> demands);
  Status admit(SequenceId sequence, std::int64_t num_tokens);
  // Evicts up to `num_blocks` cached blocks of a group and returns how many: all, if there are
  // that many. First go partial tails in which no prompt was found; last go blocks before a held
  // one, which then is not findable any more, and what a hit at the last full block of an open
  // sequence reads. Otherwise the coldest goes first. With a block of a full group, cached blocks
  // of other groups at and below it become free; they are not in the number.
  Result<std::int32_t> evict(GroupId group, std::int32_t num_blocks);
  // Holds what a hit of `tokens` needs until unpin; pinned_tokens may be less than asked. Whole
  // blocks of the prefix are found as long as the pin lasts; a rest inside a block is kept too, but
  // a prompt may be served by a neighbour that shares as much. fail() ends the pins on what it
  // forgets. Options as of probe(), errors as of open; kResourceExhausted: pins, table entries.
  Result<Pinned> pin(std::span<const std::int32_t> tokens, const OpenOptions& options = {});
  Status unpin(PinId pin);
  // Held blocks over all blocks of the fullest group. Cached and retiring blocks do not count:
  // they make room without a preemption.
  [[nodiscard]] double utilization() const noexcept;
  // utilization() >= ManagerOptions::high_watermark: time for preempt_to(), which ends sequences.
  // Cached blocks need no such call: append() evicts them.
  [[nodiscard]] bool needs_eviction() const noexcept;
  // The sequence that the policy would preempt now; nullopt when there is none. Sequences in the
  // open step, and those whose preemption would free no block, are passed over. Changes nothing
  // that another call can see. Asked again with the same policy: O(log n) for each sequence used
  // since, O(n) when more than an eighth of all were; with another one: O(n); and a look at the
  // tables of those that are passed over.
  [[nodiscard]] std::optional<SequenceId> select_victim(VictimPolicy policy);
  // Preempts victims while utilization() > `target`, and stops when there is no victim left. Gives
  // their ids in order, valid until the next call. kInvalidArgument: target is not within 0 to 1,
  // or there is no such policy (select_victim() knows no victim then).
  Result<std::span<const SequenceId>> preempt_to(double target,
                                                 VictimPolicy policy = VictimPolicy::kLru);

  // ---- questions ----

  [[nodiscard]] Result<SequenceInfo> info(SequenceId sequence) const;
  // Physical block of each logical block, -1 where dropped. One more than the length needs where
  // the prompt was found whole and its last token, whose block is held already, is not appended
  // yet. Valid until the sequence changes or is admitted.
  [[nodiscard]] Result<std::span<const std::int32_t>> block_table(SequenceId sequence,
                                                                  GroupId group) const;
  // Slots of positions [begin, begin + out.size()), -1 where the block was dropped: positions that
  // a trim dropped inside a border block have theirs. kInvalidArgument: not within the sequence,
  // with position, count and length.
  Status slot_mapping(SequenceId sequence, GroupId group, std::int32_t begin,
                      std::span<std::int32_t> out) const;
  // The open sequence with this caller_id; kNotFound when there is none.
  [[nodiscard]] Result<SequenceId> find(std::uint64_t caller_id) const;
  [[nodiscard]] std::int32_t num_sequences() const noexcept;
  // Fills `out` with the ids of open sequences, in no promised order, until it is full; returns how
  // many.
  std::int32_t sequences(std::span<SequenceId> out) const noexcept;
  [[nodiscard]] Result<GroupUsage> usage(GroupId group) const;
  // References to a block: table entries, pins, and the steps, the open one and those in flight,
  // that copy from it or put another in its place. A block that only steps refer to counts as
  // retiring in usage().
  [[nodiscard]] Result<std::int32_t> ref_count(GroupId group, BlockId block) const;
  // The prefix tree has an entry for the block.
  [[nodiscard]] Result<bool> is_findable(GroupId group, BlockId block) const;
  // Bytes of all blocks, and of the held ones, as plan_layouts() counts them: padding included.
  [[nodiscard]] std::int64_t bytes_total() const noexcept;
  [[nodiscard]] std::int64_t bytes_used() const noexcept;
  // Rows of the plan's `rows`: a persistent block table has this many. max_sequences, under
  // kUnordered twice as many, since those of closed sequences may wait for steps.
  [[nodiscard]] std::int32_t num_rows() const noexcept;
  // For people: policy, block size, blocks, bytes, sequences and counters, a fact on each line.
  [[nodiscard]] std::string describe() const;
  [[nodiscard]] const Counters& counters() const noexcept;
  [[nodiscard]] const CacheSpec& spec() const noexcept;
  // As given, with what was derived in place of 0 and max_root_keys as lowered; without
  // prefix_cache one root key and no media.
  [[nodiscard]] const ManagerOptions& options() const noexcept;
  // Null without storage.
  [[nodiscard]] KVStorage* storage() noexcept;

  // ---- copies ----

  // Makes `target` a deep and independent equal of this manager: the same sequences under the same
  // ids, tables, prefix tree, eviction order, steps, tickets and counters. What it held is gone,
  // its plans too, and an open step is planned anew. Costs what is in use, and some words for each
  // block, run, sequence and pin that the options allow, used or not; of storage only blocks that
  // are not free are copied. No heap.
  // kInvalidArgument: spec or options differ, id_tag too (the first difference and both values), or
  // only one has storage. kFailedPrecondition: with storage, a step of either is not complete.
  // kUnsupported: with storage, memory that the CPU may not touch. Nothing changes then.
  Status copy_to(KVCacheManager& target) const;

  // Counts everything again, in O(state). ok, or which rule is broken where.
  Status check_invariants() const;

 private:
  friend struct StateReader;  // tests compare and hash states with it
  class Impl;
  explicit KVCacheManager(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvfolio
