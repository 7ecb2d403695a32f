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
//    necessary is left out if it would leave a group short of blocks. So an append that has room
//    after a miss also has room after a hit.
//  - Every call either does all it says, or returns an error and changes nothing. One exception: a
//    sequence that is short of table entries stops publishing, even if the call is then refused.
//  - The same calls give the same ids and the same plans on every machine.
//
// A step: begin_step -> append* -> plan -> commit (work is enqueued) -> complete (device is done).
// One step is open at a time. Steps that are committed but not complete are in flight.
//
// It does not know what a token means, what a model computes, who asks, or the time. It never reads
// K or V, and writes them only when it copies whole blocks (run_copies, copy_to).
//
// Errors. Every call that takes an id returns kNotFound if the id is closed, was never given out or
// belongs to another manager. The last one needs distinct ManagerOptions::id_tag: with equal tags,
// the default, ids of two managers can be equal. It returns kAborted if fail() closed the sequence
// (each row remembers only the last one). kInvalidArgument names the argument, the value and what
// is allowed. The calls below do not repeat these errors. Units: tokens, blocks and positions are
// counts; names of byte counts say bytes.
//
// Thread safety: several threads may run const calls at the same time while no other call runs; the
// owner serialises all other calls. A const call writes nothing, takes no heap memory and needs at
// most 8 KiB of the stack. Two things take heap memory: the string that describe() returns, which
// is the caller's, and the text of an error. copy_to() is a const call of its source only; it
// changes its target.
//
// No heap allocation after create() except for error texts, describe() and growing plan buffers; no
// threads, no clock, no globals. Spans and pointers that calls return belong to the manager. Copy
// their contents before you pass them to a call that changes the manager, which refuses tokens that
// lie in its own tables. Only adopt() takes tables as block_table() returns them. A moved-from
// manager may only be assigned to or destroyed.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "kvfolio/export.h"
#include "kvfolio/fixed_array.h"
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
  // Of all keys in use, with up to 29 bytes of framing for each: 0 .. 2^34.
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
  // Written into every id. If the managers of one process have distinct tags, each recognises the
  // ids of the others as foreign. copy_to() needs two managers with the same tag, since the copies
  // have the same ids.
  std::uint16_t id_tag = 0;
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
  // true: set_tokens() may name a token as long as the sequence and its forks are open, also after
  // the step of the token is complete.
  bool late_names = false;
};

struct ForkOptions {
  std::optional<std::uint64_t> caller_id{};  // of the child
  std::int32_t priority = 0;                 // of the child; the parent's is not inherited
};

// Which sequence to preempt first. Ties go to the lower caller_id; sequences without one come
// later, by SequenceId.
enum class VictimPolicy : std::int32_t {
  kLru = 0,             // the oldest last use
  kLfu = 1,             // the fewest uses
  kLongest = 2,         // the most tokens
  kLowestPriority = 3,  // the smallest priority
};

struct Opened {
  SequenceId sequence{};
  // Tokens of the prompt that need not be computed: at most all but the last one, 0 if the prompt
  // is empty. Append the others and only these: append() cannot know that a token is a repeat.
  std::int32_t cached_tokens = 0;
};

struct Pinned {
  PinId pin{};
  std::int32_t pinned_tokens = 0;  // tokens of the prefix that are held
};

struct StepOptions {
  std::uint64_t now_us = 0;  // the only clock of the manager; not read yet
};

struct AppendOptions {
  // The last `draft` of the appended tokens are guesses: accept() decides.
  std::int32_t draft = 0;
};

struct AppendDemand {
  SequenceId sequence{};
  std::int64_t num_tokens = 0;
};

struct TrimOptions {
  std::int64_t num_sinks = 0;  // tokens kept at the front
  std::int64_t window = 0;     // tokens kept at the end
};

struct SequenceInfo {
  std::int32_t length = 0;            // tokens, those of the open step included
  std::int32_t accepted_length = 0;   // without draft tokens
  std::int32_t published_length = 0;  // tokens of its path on the prefix tree; 0 if it has none
  // Positions [trim_sinks, trim_first_kept) were dropped by trims; 0 and 0: none.
  std::int32_t trim_sinks = 0;
  std::int32_t trim_first_kept = 0;
  bool in_open_step = false;
  std::int32_t num_unnamed = 0;  // tokens that set_tokens() may name now
  std::optional<std::uint64_t> caller_id{};
  std::int32_t max_tokens = 0;  // 0: no limit of its own
  std::int32_t priority = 0;
  // A use is an open, an append of at least one token, or the fork that made the sequence. Each use
  // takes the next tick of a counter of the manager. Probes, plans and reads are not uses.
  std::uint64_t last_use = 0;
  std::uint64_t use_count = 0;
};

// Blocks of one group by state; free + held + cached + retiring = num_blocks. Used blocks or bytes
// always means the held ones (utilization, bytes_used, describe, blocks_used_peak).
struct GroupUsage {
  std::int32_t num_blocks = 0;
  std::int32_t free = 0;
  std::int32_t held = 0;    // referenced by sequences or pins
  std::int32_t cached = 0;  // findable, without references
  // Without references, or referenced only by steps. They become free or cached when the steps are
  // complete.
  std::int32_t retiring = 0;
  std::int32_t evictable = 0;  // equals cached: every cached block can be evicted
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
};

class KVFOLIO_API KVCacheManager {
 public:
  // Ids only: the engine owns the bytes and runs the copies of each plan. Errors of both:
  // kInvalidArgument: the spec or an option is out of range, or all groups together have more than
  // 2^29 blocks; kOutOfMemory: the tables.
  static Result<KVCacheManager> create(const CacheSpec& spec, const ManagerOptions& options = {});
  // With storage, whose memory may be borrowed; the manager takes its spec(). If this fails, the
  // storage is destroyed.
  static Result<KVCacheManager> create(KVStorage storage, const ManagerOptions& options = {});

  KVCacheManager(KVCacheManager&&) noexcept;
  KVCacheManager& operator=(KVCacheManager&&) noexcept;
  ~KVCacheManager();

  // ---- sequences ----

  // Opens a sequence and, in the same call, holds what the cache has of `tokens`, so nothing that
  // was found can be evicted before it is used. Its length is then Opened::cached_tokens. A hit
  // becomes a miss if it lacks table entries. Another sequence's full blocks are found once their
  // step is committed (kUnordered: complete), its last, partial block once it is closed.
  // kInvalidArgument: token < 0, malformed media, a root key over 64 KiB, more tokens than
  // max_tokens, an unknown Publish, a caller_id that is open; kResourceExhausted: sequences, table
  // entries, rows (kUnordered: the row of a closed sequence is not free before its steps are
  // complete).
  Result<Opened> open(std::span<const std::int32_t> tokens, const OpenOptions& options = {});
  // The number of tokens that open() would find. Only the options root, media, prefix_cache,
  // look_up and max_tokens count. Changes nothing, not even the order of eviction.
  [[nodiscard]] Result<std::int32_t> probe(std::span<const std::int32_t> tokens,
                                           const OpenOptions& options = {}) const;
  // Opens a sequence that has the same tokens and shares every block. The parent keeps the right to
  // write the last block; the child copies that block at its first append. When the parent has
  // closed, one of the sequences that share the block may write it.
  // kFailedPrecondition: the parent is in the open step or has draft tokens. kInvalidArgument: a
  // caller_id that is open. kResourceExhausted: sequences, rows (as open), table entries.
  Result<SequenceId> fork(SequenceId parent, const ForkOptions& options = {});
  // Gives an empty sequence blocks that are held already, by one table for each group in the order
  // of groups. Its length is then num_tokens. A table has as many entries as num_tokens needs, such
  // as the first ones that block_table() returns. In a window group an entry may be -1 if position
  // num_tokens reads nothing of that block. No token is appended. Neither these tokens nor later
  // ones are ever findable (unless num_tokens is 0).
  // kInvalidArgument: num_tokens is not within 0 .. kMaxSequenceTokens; a table has another size,
  // names a block twice, or lies where this call writes the table of another group; a block has no
  // reference or fewer tokens than needed. kFailedPrecondition: the sequence has tokens, a step is
  // open, or (kUnordered) a step that wrote a block is not complete. kResourceExhausted:
  // max_tokens, table entries.
  Status adopt(SequenceId sequence, std::span<const std::span<const std::int32_t>> tables,
               std::int32_t num_tokens);
  // Forgets the tokens from position n on. Also forgets that a prompt was found whole: the block
  // that is held for its last token is let go if it lies beyond the length, even if n is the
  // length. Always possible down to the accepted length. Below that, every group must still hold
  // what position n reads.
  // kFailedPrecondition: a group does not (the error names it), or the sequence is in the open
  // step. kInvalidArgument: n is not in 0 .. length.
  Status truncate(SequenceId sequence, std::int32_t n);
  // truncate() to 0. The sequence stays open with the same id, and its trim is forgotten.
  Status clear(SequenceId sequence);
  // The trim of StreamingLLM: keeps [0, num_sinks) and [length - window, length), and returns how
  // many tokens this call dropped. Positions never change. Tokens that an earlier trim dropped stay
  // dropped, so the sinks cannot grow again. A sequence has only one gap: if the window reaches
  // tokens in front of the gap, nothing is dropped. Tokens appended after a trim that dropped
  // something are never findable; a truncate() to the sinks or less ends the trim.
  // kFailedPrecondition: the sequence is in the open step or has draft tokens. kInvalidArgument:
  // negative.
  Result<std::int32_t> trim(SequenceId sequence, const TrimOptions& options);
  // Ends a sequence; OpenOptions::publish says what stays findable. kUnordered: tokens of a step
  // become findable once the step is complete. At most max_sequences closed sequences wait for
  // that; a sequence that is closed while as many wait publishes nothing more. The row of a closed
  // sequence in the plans goes to no other sequence before that step is complete. A second close is
  // kNotFound. kFailedPrecondition: the sequence is in the open step.
  Status close(SequenceId sequence);
  // close() for a sequence that must make room. Takes it out of the open step first.
  Status preempt(SequenceId sequence);
  Status set_priority(SequenceId sequence, std::int32_t priority);

  // ---- steps ----

  // kFailedPrecondition: a step is open, max_steps_in_flight steps are in flight, or 2^24 steps
  // were begun (dropped ones count) since the oldest step in flight.
  Result<Ticket> begin_step(const StepOptions& options = {});
  // Reserves slots for tokens whose K and V this step writes: the model's inputs. A sequence
  // appends once per step. An append that fails changes nothing, and the step goes on without it.
  // An append of no tokens does nothing. Shortage: not enough blocks, decided before the first
  // eviction.
  // If the sequence may not write to its last block, its tokens go to a copy. If that copy would
  // leave the group short of blocks and nothing else holds the block, the tokens overwrite what was
  // found there. What was there is then no longer findable; undo() and drop() do not bring it back.
  // A sequence that is short of table entries for the tokens that it keeps to publish stops
  // publishing (publications_skipped), even if the call is then refused.
  // kFailedPrecondition: no step is open, the sequence is in it already or has draft tokens,
  // run_copies() has run, or (kUnordered) the sequence's last step is not complete.
  // kInvalidArgument: token < 0, a draft that is not within 0 .. tokens.size(), over
  // kMaxSequenceTokens. kResourceExhausted: max_tokens, table entries.
  Status append(SequenceId sequence, std::span<const std::int32_t> tokens,
                const AppendOptions& options = {});
  // The same for tokens whose ids the host does not know yet: set_tokens() names them before
  // complete(), or with OpenOptions::late_names also later. Blocks that a window let go at commit
  // are not findable, since their tokens had no names then. Nothing behind an unnamed token is
  // findable. kResourceExhausted: with late names, if the unnamed tokens lie in more than
  // max(8, max_steps_in_flight / 2 + 1) stretches with other tokens between them.
  Status append_unnamed(SequenceId sequence, std::int64_t num_tokens,
                        const AppendOptions& options = {});
  // A decode step in one call: appends tokens[i] to sequences[i], in order, as append() does, or
  // one unnamed token to each. Ends at the first that fails and returns its error: the first
  // *num_appended sequences are in the step then; that one and those behind it are not. So a
  // scheduler that meets a Shortage can preempt a sequence and go on from there. A sequence that is
  // named twice fails at the second place; the error gives both. `num_appended` may be null.
  // kInvalidArgument: more or fewer tokens than sequences; then none is in the step.
  Status append_each(std::span<const SequenceId> sequences, std::span<const std::int32_t> tokens,
                     std::int32_t* num_appended);
  Status append_unnamed_each(std::span<const SequenceId> sequences, std::int32_t* num_appended);
  // open() and append_unnamed() in one call: a sequence with num_tokens reserved slots. Does both
  // or neither, and returns the errors of both.
  Result<SequenceId> open_unnamed(std::int64_t num_tokens, const OpenOptions& options = {});
  // Names the oldest unnamed tokens of a sequence, in order. Tokens that have no name when their
  // step is completed never get one, unless the sequence has late names. A fork has unnamed tokens
  // of its own: name them for parent and child. fail() forgets those of the steps that it ends.
  // kInvalidArgument: token < 0, more tokens than SequenceInfo::num_unnamed.
  Status set_tokens(SequenceId sequence, std::span<const std::int32_t> tokens);
  // Names one token of each sequence, as set_tokens() does. Ends at the first that fails: the first
  // *num_named have their names. A sequence may be named again: its next token gets that name.
  Status set_tokens_each(std::span<const SequenceId> sequences,
                         std::span<const std::int32_t> tokens, std::int32_t* num_named);
  // Takes a sequence out of the open step, as if it had not been appended to, with two exceptions.
  // Blocks evicted for it stay evicted. If it was to overwrite what was found, the engine may have
  // done so already: that block stays unfindable and is valid up to the sequence's length only (it
  // is let go if it lies beyond). If the prompt's last token had been found there, it no longer
  // counts as found: its next append gets a slot. kFailedPrecondition: the sequence is not in an
  // open step.
  Status undo(SequenceId sequence);
  // The arrays of the open step. They are stale once the step changes. Another plan() of the step
  // overwrites them. kFailedPrecondition: no step is open. kInvalidArgument: a pad that is neither
  // -1 nor 0. kUnsupported: FlashInfer arrays, if a sequence's trim cuts through a block or an
  // int32 cannot count the table entries. kOutOfMemory.
  Result<const StepPlan*> plan(const PlanOptions& options = {});
  // Runs the copies of the open step on the manager's own storage, once per step. The step then
  // takes no more appends. Engines that run the copies themselves never call this. kUnsupported: no
  // storage. kFailedPrecondition: no step is open, the copies have run, or (kInOrder) there are
  // copies and an earlier step is in flight, which may still write what they read.
  Status run_copies();
  // Call this when the work is enqueued: lengths advance, windows move, the next step may begin.
  // kFailedPrecondition (commit and drop): `ticket` is not the open step.
  Status commit(Ticket ticket);
  // Call this when the device has finished step `ticket` (and under kInOrder all earlier ones).
  // kFailedPrecondition (complete and fail): the step is not in flight.
  Status complete(Ticket ticket);
  // commit() and complete(), for engines that have computed already.
  Status finish(Ticket ticket);
  // Ends the open step and undoes all of its appends, as undo() does. Sequences that were opened
  // during the step stay open.
  Status drop(Ticket ticket);
  // Call this when the device has failed and is idle. Ends every step from `ticket` on, the open
  // one too, and forgets all that they wrote. Closes with kAborted each sequence that wrote in them
  // or holds a block that they wrote, and ends the pins that hold such a block.
  Status fail(Ticket ticket);
  // Ends a draft: keeps the first `num_accepted` draft tokens and truncates the others.
  // kFailedPrecondition: the sequence is in the open step. kInvalidArgument: more than it has.
  Status accept(SequenceId sequence, std::int32_t num_accepted);

  // ---- room ----

  // Would these appends succeed together in the open step, or in one that began now? Returns ok, or
  // the error of append(), or the Shortage of the first short group. append() decides with the same
  // function, and every cached block counts as room, so the answer is exact. After a prompt that
  // was found whole, admit() takes the next token to be the prompt's last one. If the demands do
  // not fit with all copies, some are planned in place (append() says how), the last demand first.
  // Each sequence does as planned when it appends in that step; the order of the appends does not
  // matter.
  // Otherwise only table entries change: an admitted sequence keeps its entries until it is closed,
  // whether it appends or not, in one step or in several. Only the entries of its tables are
  // promised: a sequence that is short of entries for the tokens that it keeps to publish stops
  // publishing (publications_skipped), even if the call is then refused.
  Status admit(std::span<const AppendDemand> demands);
  Status admit(SequenceId sequence, std::int64_t num_tokens);
  // Evicts up to `num_blocks` cached blocks of a group and returns how many: all of them if that
  // many are cached. Partial tails in which no prompt was found go first. Two kinds go last: blocks
  // before a held one, which is then no longer findable, and blocks that a hit at the last full
  // block of an open sequence reads. Otherwise the coldest goes first. When a block of a full group
  // goes, cached blocks of other groups at and below it become free; the number does not include
  // them.
  Result<std::int32_t> evict(GroupId group, std::int32_t num_blocks);
  // Holds what a hit of `tokens` needs until unpin(); pinned_tokens may be less than asked. Whole
  // blocks of the prefix stay findable as long as the pin lasts. A rest inside a block is kept too,
  // but a neighbour that shares as much may serve a prompt instead. fail() ends the pins on what it
  // forgets. The options of probe() count; the errors are those of open(). kResourceExhausted:
  // pins, table entries.
  Result<Pinned> pin(std::span<const std::int32_t> tokens, const OpenOptions& options = {});
  Status unpin(PinId pin);
  // Held blocks divided by all blocks, in the fullest group. Cached and retiring blocks do not
  // count, since they make room without a preemption.
  [[nodiscard]] double utilization() const noexcept;
  // utilization() >= ManagerOptions::high_watermark: it is time for preempt_to(), which ends
  // sequences. Cached blocks need no such call, since append() evicts them.
  [[nodiscard]] bool needs_eviction() const noexcept;
  // The sequence that the policy would preempt now; nullopt when there is none. Sequences in the
  // open step, and those whose preemption would free no block, are passed over. Changes nothing
  // that another call can see. The same policy as last time costs O(log n) for each sequence used
  // since, or O(n) if more than an eighth of all were used; another policy costs O(n). Each
  // sequence that is passed over also costs a look at its tables.
  [[nodiscard]] std::optional<SequenceId> select_victim(VictimPolicy policy);
  // Preempts victims while utilization() > `target`, and stops when there is no victim left.
  // Returns their ids in order, valid until the next call. kInvalidArgument: target is not within 0
  // to 1, or the policy is unknown (select_victim() then returns nullopt).
  Result<std::span<const SequenceId>> preempt_to(double target,
                                                 VictimPolicy policy = VictimPolicy::kLru);

  // ---- questions ----

  [[nodiscard]] Result<SequenceInfo> info(SequenceId sequence) const;
  // Physical block of each logical block, -1 if it was dropped. After a prompt was found whole, the
  // block of its last token is here even before that token is appended. So there may be one entry
  // more than the length needs. Valid until the sequence changes or is admitted.
  [[nodiscard]] Result<std::span<const std::int32_t>> block_table(SequenceId sequence,
                                                                  GroupId group) const;
  // Writes the slots of positions [begin, begin + out.size()), -1 if the block was dropped.
  // Positions that a trim dropped inside a border block still have a slot. kInvalidArgument: the
  // positions are not within the sequence; names position, count and length.
  Status slot_mapping(SequenceId sequence, GroupId group, std::int32_t begin,
                      std::span<std::int32_t> out) const;
  // The open sequence with this caller_id; kNotFound when there is none.
  [[nodiscard]] Result<SequenceId> find(std::uint64_t caller_id) const;
  [[nodiscard]] std::int32_t num_sequences() const noexcept;
  // Fills `out` with the ids of open sequences, in no promised order, until it is full; returns how
  // many.
  std::int32_t sequences(std::span<SequenceId> out) const noexcept;
  [[nodiscard]] Result<GroupUsage> usage(GroupId group) const;
  // References to a block: table entries, pins, and steps (open or in flight) that copy from it or
  // put another block in its place. A block that only steps refer to counts as retiring in usage().
  [[nodiscard]] Result<std::int32_t> ref_count(GroupId group, BlockId block) const;
  // The prefix tree has an entry for the block.
  [[nodiscard]] Result<bool> is_findable(GroupId group, BlockId block) const;
  // Bytes of all blocks, and of the held ones, as plan_layouts() counts them: padding included.
  [[nodiscard]] std::int64_t bytes_total() const noexcept;
  [[nodiscard]] std::int64_t bytes_used() const noexcept;
  // Memory that the manager keeps beside the blocks: what it reserved at creation, and what of it
  // is in use. Arrays with a place for each block or sequence count as a whole; the stores and
  // queues of the prefix tree, block tables and the arrays of plans count by what is in them. Pages
  // that were never touched cost nothing yet.
  [[nodiscard]] MemoryUse metadata() const noexcept;
  // Every row in StepPlan::rows is below this number, so a block table on the device needs that
  // many rows. It is max_sequences, or under kUnordered twice that, since the rows of closed
  // sequences may wait for steps.
  [[nodiscard]] std::int32_t num_rows() const noexcept;
  // Text for people: policy, block size, blocks, bytes, sequences and counters, one fact per line.
  // The string is the caller's, on the heap.
  [[nodiscard]] std::string describe() const;
  [[nodiscard]] const Counters& counters() const noexcept;
  [[nodiscard]] const CacheSpec& spec() const noexcept;
  // The options as given, but with derived values in place of 0 and with max_root_keys as lowered.
  // Without prefix_cache: one root key and no media.
  [[nodiscard]] const ManagerOptions& options() const noexcept;
  // Null without storage.
  [[nodiscard]] KVStorage* storage() noexcept;

  // ---- copies ----

  // Makes `target` a deep and independent equal of this manager: the same sequences under the same
  // ids, tables, prefix tree, eviction order, steps, tickets and counters. All that `target` held
  // is gone, its plans too; plan an open step again. The cost grows with what is in use, plus some
  // words for each block, run, sequence and pin that the options allow. Of storage, only blocks
  // that are not free are copied. No heap. Several threads may copy from one manager at the same
  // time, each to a target of its own, while no other call runs that changes it.
  // After an error nothing has changed. kInvalidArgument: spec or options differ, id_tag included
  // (names the first difference and both values), or only one has storage. With storage also
  // kFailedPrecondition: a step of either is not complete; kUnsupported: the CPU may not touch the
  // memory.
  Status copy_to(KVCacheManager& target) const;

  // Recounts everything, in O(state). Returns ok, or says which rule is broken and where. To find a
  // block whose references are wrong costs O(blocks * references).
  Status check_invariants() const;

 private:
  friend struct StateReader;  // tests compare and hash states with it
  class Impl;
  explicit KVCacheManager(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvfolio
