// SPDX-License-Identifier: Apache-2.0
#pragma once

// KVCacheManager keeps the KV cache of many sequences: it decides which physical block holds which
// tokens, shares blocks between sequences, finds prompts it has seen, evicts, and hands an engine
// the arrays of each step. It is the only layer that sees both planes: ids (BlockPool, BlockTable,
// PrefixTree) and bytes (KVStorage).
//
//   KVCacheManager manager = *KVCacheManager::create(spec, {.max_sequences = 256});
//   const Opened opened = *manager.open(prompt);  // finds and holds in one call
//   const Ticket step = *manager.begin_step();
//   const auto rest = manager.append_prompt(opened.sequence, prompt, std::ssize(prompt));
//   if (!rest) return rest.error();  // a Shortage: close or preempt another one, append again
//   const StepPlan& plan = **manager.plan();  // slots, tables, copies
//   run_model(plan);              // yours: run the copies, write K and V to the slots, attend
//   return manager.finish(step);  // commit and complete; then another step, or close()
//
// Rules that hold at every moment:
//  - Bytes of valid tokens never change while another may read them. A write to a shared block goes
//    to a copy of it (copy-on-write); the writer of a block appends in place.
//  - Nothing is findable before its step is committed (kInOrder) or complete (kUnordered).
//  - No block is given to another sequence while a step that may touch it is not complete.
//  - Caching never takes room: every cached block can be evicted, and a copy that only a hit makes
//    necessary is left out if it would leave a group short of blocks. So an append that has room
//    after a miss also has room after a hit.
//  - Any call that lets go of blocks may evict cached ones to keep a promise of reserve().
//  - Every call either does all it says, or returns an error and changes nothing. Two exceptions: a
//    sequence short of table entries stops publishing though the call is refused; and copy_to().
//  - The same calls give the same ids and the same plans on every machine.
//
// A step: begin_step -> append* -> plan -> commit (work is enqueued) -> complete (device is done).
// One step is open at a time. Steps that are committed but not complete are in flight. While a step
// is open, all calls about earlier steps and about sequences that are not in it are allowed:
// complete, set_tokens, open, fork, close and preempt.
//
// It does not know what a token means, what a model computes, who asks, or the time. It never reads
// K or V, and writes them only when it copies whole blocks (run_copies, copy_to).
//
// Errors that are not repeated below. Every call that takes an id returns kNotFound if the id is
// closed, was never given out or belongs to another manager (create() on id_tag), and kAborted if
// fail() closed the sequence (each row remembers only the last one). kInvalidArgument names the
// argument, the value and what is allowed. Units: tokens, blocks; names of byte counts say bytes.
//
// Thread safety: several threads may run const calls at the same time while no other call runs; the
// owner serialises all other calls. A const call writes nothing and needs at most 8 KiB of the
// stack; heap memory take only the string of describe(), the text of an error, and state_hash()
// while it runs. copy_to() is a const call of its source only; it changes its target.
//
// No heap allocation after create() except for error texts, describe() and growing plan buffers; no
// threads, no clock, no globals. Spans and pointers that calls return belong to the manager. Copy
// their contents before you pass them to a call that changes the manager, which refuses tokens that
// lie in its own tables; only adopt() takes tables as block_table() returns them. After a manager
// was moved from, its calls that return a Status or a Result say kFailedPrecondition; the others
// stop the program with a check that names the call.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "kvfolio/block_state.h"
#include "kvfolio/export.h"
#include "kvfolio/fixed_array.h"
#include "kvfolio/ids.h"
#include "kvfolio/manager_types.h"
#include "kvfolio/root_key.h"
#include "kvfolio/spec.h"
#include "kvfolio/status.h"
#include "kvfolio/step_plan.h"

namespace kvfolio {

class KVStorage;  // storage.h
class OpLog;      // op_log.h
namespace detail {
class ManagerAlias;
}

class KVFOLIO_API KVCacheManager {
 public:
  // ---- start here: the 16 calls that an engine needs, in the order in which it uses them ----
  //
  //   create                                   once
  //   open, fork, admit                        a request comes: what is cached, is there room
  //   begin_step, append_prompt, append,       a step: which tokens, where their K and V go
  //     append_each, undo, plan, commit, complete, finish, drop
  //   preempt, close                           a sequence makes room, or has ended
  //
  // An engine that gave the manager a KVStorage also calls run_copies() between plan() and
  // commit(). The other sections have what not every engine needs.

  // Ids only: the engine owns the bytes and runs the copies of each plan. Errors of both overloads:
  // kInvalidArgument: the spec or an option is out of range, or all groups together have more than
  // 2^29 blocks; kOutOfMemory: the tables. Two managers in one process (a target and a draft
  // model): give each an id_tag of its own, or an id of one names a sequence of the other.
  static Result<KVCacheManager> create(const CacheSpec& spec, const ManagerOptions& options = {});
  // With storage (storage.h), whose memory may be borrowed; the manager takes its spec(). If this
  // fails, the storage stays as it was.
  static Result<KVCacheManager> create(KVStorage&& storage, const ManagerOptions& options = {});

  KVCacheManager(KVCacheManager&&) noexcept;
  KVCacheManager& operator=(KVCacheManager&&) noexcept;
  ~KVCacheManager();

  // Opens a sequence and, in the same call, holds what the cache has of `tokens`, so nothing that
  // was found can be evicted before it is used. Its length is then Opened::cached_tokens. A hit
  // becomes a miss if it lacks table entries, or room for what it costs a reserve(). Another
  // sequence's full blocks are found once their step is committed (kUnordered: complete), its last,
  // partial block once it is closed. kInvalidArgument: token < 0, malformed media, a root key over
  // 64 KiB, more tokens than max_tokens, an unknown Publish, a caller_id that is open;
  // kResourceExhausted: sequences, table entries, rows (kUnordered: the row of a closed sequence is
  // not free before its steps are complete).
  Result<Opened> open(std::span<const std::int32_t> tokens, const OpenOptions& options = {});
  // Opens a sequence that has the same tokens and shares every block. The parent keeps the right to
  // write the last block; the child copies that block at its first append. When the parent has
  // closed, one of the sequences that share the block may write it.
  // kFailedPrecondition: the parent is in the open step or has undecided drafts. kInvalidArgument:
  // a caller_id that is open. kResourceExhausted: sequences, rows (as open), table entries.
  // Shortage: the parent's reserve() needs blocks that the pool lacks.
  Result<SequenceId> fork(SequenceId parent, const ForkOptions& options = {});
  // Would these appends succeed together in the open step, or in one that began now? Returns ok, or
  // the error of append(), or the Shortage of the first short group. append() decides with the same
  // function, and every cached block counts as room, so the answer is exact. After a prompt that
  // was found whole, admit() takes the next token to be the prompt's last one. If the demands do
  // not fit with all copies, some are planned in place (append() says how), the last demand first.
  // Each sequence does as planned when it appends in that step, whatever the order of the appends.
  // Nothing changes but table entries, which an admitted sequence keeps until it is closed. Only
  // those of its tables are promised: a sequence that is short of entries for the tokens that it
  // keeps to publish stops publishing (publications_skipped), even if the call is then refused.
  Status admit(std::span<const AppendDemand> demands);
  Status admit(SequenceId sequence, std::int64_t num_tokens);
  // Would open(tokens, options) succeed now, and an append of the tokens that it does not find and
  // of `num_more` tokens behind them, all in the open step or in one that began now? Returns what
  // they would get, or the error of the first call that would fail. Nothing changes, is counted or
  // is kept: a scheduler may ask each round for each waiting request. A Shortage counts the blocks
  // that the prompt finds as pinned, and names only sequences that are open. kInvalidArgument: also
  // if num_more is negative.
  // With most_per_step the tokens may come in chunks: would open(tokens, options) succeed, and then
  // reserve() of the tokens that it does not find and of num_more, with the same most_per_step? The
  // answer counts the blocks that reserve() would keep: in a window group far fewer.
  [[nodiscard]] Result<Admission> admit(std::span<const std::int32_t> tokens,
                                        const OpenOptions& options, std::int64_t num_more,
                                        const ReserveOptions& chunks = {}) const;
  // The same for a sequence that is open: an append of num_tokens, or with most_per_step a
  // reserve(). Keeps no table entries.
  [[nodiscard]] Result<Admission> admit(SequenceId sequence, std::int64_t num_tokens,
                                        const ReserveOptions& chunks) const;

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
  // kFailedPrecondition: no step is open, the sequence is in it already or has too many undecided
  // drafts (AppendOptions), run_copies() has run, or (kUnordered) its last step is not complete.
  // kInvalidArgument: token < 0, a draft that is not within 0 .. tokens.size(), over
  // kMaxSequenceTokens; or, directly behind a hit of open() or a finished load, the whole prompt
  // again, or what open() had left of it before the load (64 bits of hash say so). Tokens that
  // begin with the rest of the prompt, and a single token, are never refused for this.
  // kResourceExhausted: max_tokens, table entries.
  Status append(SequenceId sequence, std::span<const std::int32_t> tokens,
                const AppendOptions& options = {});
  // Appends the next tokens of `prompt` that the sequence does not have: those from its length on,
  // at most at_most, as append() does. Returns how many; 0: it has them all. kInvalidArgument:
  // at_most is below 1, the prompt is shorter than the sequence, or it differs from what that has
  // said (tokens behind published_length are compared). Other errors as append().
  Result<std::int32_t> append_prompt(SequenceId sequence, std::span<const std::int32_t> prompt,
                                     std::int64_t at_most);
  // A decode step in one call: appends tokens[i] to sequences[i], in order, as append() does. Ends
  // at the first append that fails and returns its error: the first *num_appended sequences are in
  // the step then; that one and those behind it are not. So a scheduler that meets a Shortage can
  // preempt a sequence and go on from there. A sequence that is named twice fails at the second
  // place; the error gives both. `num_appended` may be null.
  // kInvalidArgument: more or fewer tokens than sequences; then none is in the step.
  Status append_each(std::span<const SequenceId> sequences, std::span<const std::int32_t> tokens,
                     std::int32_t* num_appended);
  // Takes a sequence out of the open step, as if it had not been appended to, with two exceptions.
  // Blocks evicted for it stay evicted. If it was to overwrite what was found, the engine may have
  // done so already: that block stays unfindable and is valid up to the sequence's length only (it
  // is let go if it lies beyond), and the prompt's last token, if it was found there, gets a slot
  // again. kFailedPrecondition: the sequence is not in an open step.
  Status undo(SequenceId sequence);
  // The arrays of the open step. They are stale once the step changes. Another plan() of the step
  // overwrites them. kFailedPrecondition: no step is open. kInvalidArgument: a pad that is neither
  // -1 nor 0, or fixed shapes that cannot be or that the step does not fit (both numbers); the plan
  // before stays. kUnsupported: FlashInfer arrays, if a sequence's trim cuts through a block or an
  // int32 cannot count the table entries. kOutOfMemory.
  Result<const StepPlan*> plan(const PlanOptions& options = {});
  // The size of PlanOptions::memory. kInvalidArgument: they leave a size open, or one cannot be.
  [[nodiscard]] Result<std::int64_t> plan_bytes(const PlanOptions& options) const;
  // Call this when the work is enqueued: lengths advance, windows move, the next step may begin.
  // kFailedPrecondition (commit and drop): `ticket` is not the open step. Only commit(): the step
  // had a plan(), and since the last one a sequence was appended, whose K and V were never written,
  // or taken out, whose slots may be another's by now (a step without any plan is the engine's own
  // affair); or, with storage and without copies_by_host, it has copies that run_copies() has not
  // run. The error says how many. The step stays open: plan() again, run the copies, or drop().
  Status commit(Ticket ticket);
  // Call this when the device has finished step `ticket` (and under kInOrder all earlier ones).
  // kFailedPrecondition (complete and fail): the step is not in flight.
  Status complete(Ticket ticket);
  // commit() and complete(), for engines that have computed already. Errors as commit().
  Status finish(Ticket ticket);
  // Ends the open step and undoes all of its appends, as undo() does. Sequences that were opened
  // during the step stay open.
  Status drop(Ticket ticket);

  // close() for a sequence that must make room, out of the open step first. To resume it, open()
  // its tokens again; a host that learns sampled ids late reads those of its steps before.
  Status preempt(SequenceId sequence);
  // Ends a sequence; OpenOptions::publish says what stays findable. kUnordered: tokens of a step
  // become findable once the step is complete. At most max_sequences closed sequences wait for
  // that; a sequence that is closed while as many wait publishes nothing more. The row of a closed
  // sequence in the plans goes to no other sequence before that step is complete. A second close is
  // kNotFound. kFailedPrecondition: the sequence is in the open step.
  Status close(SequenceId sequence);
  // Ends a sequence whose request was given up: undo() if it is in the open step, then close().
  Status cancel(SequenceId sequence);

  // ---- more of sequences ----

  // The number of tokens that open() would find, if it has the table entries. Options: root, media,
  // prefix_cache, look_up and max_tokens count. Changes nothing, not even the order of eviction.
  [[nodiscard]] Result<std::int32_t> probe(std::span<const std::int32_t> tokens,
                                           const OpenOptions& options = {}) const;
  // What a prompt will find soon: how many of its tokens an open sequence has announced
  // (OpenOptions::announce), compared token by token; 0 if no whole unit of them (the smallest
  // block size) is to come. `by` has the most whole units in common with the prompt, and among
  // equals was opened first. A request that shares much with one that is computed now waits and
  // asks again in each round, until soon() is less than a unit more than probe() or `by` has gone.
  // It waits only while it has no sequence itself, and for an older one that runs or loads: then no
  // two wait for each other. Options as probe(), but max_tokens. O(prompt). Errors: as probe().
  [[nodiscard]] Result<Soon> soon(std::span<const std::int32_t> tokens,
                                  const OpenOptions& options = {}) const;
  // Forgets the tokens from position n on, drafts too (those in front of n stay undecided), and
  // that a prompt was found whole: the block that is held for its last token goes if it lies beyond
  // the length. Possible down to SequenceInfo::rewind_from; below, what position n reads and
  // the windows have let go of is taken back from the cache. kFailedPrecondition: it is not there
  // (the error names group and block; close(), and open() the first n tokens again), a trim dropped
  // position n, or the sequence is in the open step. kInvalidArgument: n is not in 0 .. length.
  // Shortage: what is taken back costs another's reserve() blocks that are not there.
  Status truncate(SequenceId sequence, std::int32_t n);
  // truncate() to 0. The sequence stays open with the same id, and its trim is forgotten.
  Status clear(SequenceId sequence);
  // The trim of StreamingLLM: keeps [0, num_sinks) and [length - window, length), and returns how
  // many tokens this call dropped. Positions never change. Tokens that an earlier trim dropped stay
  // dropped, so the sinks cannot grow again. A sequence has only one gap: if the window reaches
  // tokens in front of the gap, nothing is dropped. Tokens appended after a trim that dropped
  // something are never findable; a truncate() to the sinks or less ends the trim. Negative:
  // kInvalidArgument. In the open step, or with undecided drafts: kFailedPrecondition.
  Result<std::int32_t> trim(SequenceId sequence, const TrimOptions& options);
  // Gives an empty sequence blocks that are held already, by one table for each group. Its length
  // is then num_tokens. A table has as many entries as that needs, such as the first ones of
  // block_table(). In a window group an entry may be -1 if position num_tokens reads nothing of
  // that block. Neither these tokens nor later ones are ever findable (unless num_tokens is 0).
  // kInvalidArgument: num_tokens is not within 0 .. kMaxSequenceTokens; a table has another size,
  // names a block twice, or lies where this call writes the table of another group; a block has no
  // reference or fewer tokens than needed. kFailedPrecondition: the sequence has tokens or a
  // reserve(), a step is open, or (kUnordered) a step that wrote a block is not complete.
  // kResourceExhausted: max_tokens, table entries. Shortage: as fork(), of the blocks' holders.
  Status adopt(SequenceId sequence, std::span<const std::span<const std::int32_t>> tables,
               std::int32_t num_tokens);
  Status set_priority(SequenceId sequence, std::int32_t priority);
  // Counts as a use (SequenceInfo::last_use) though nothing is appended: for the policies kLru and
  // kLfu. In the open step it has been used already, and nothing changes.
  Status touch(SequenceId sequence);

  // ---- more of steps: late names, drafts, copies, a device that failed ----

  // append() for tokens whose ids the host does not know yet: set_tokens() names them before
  // complete(), or with OpenOptions::late_names also later. A block that a window lets go at a
  // commit before its tokens have names does not become findable. Nothing behind an unnamed token
  // is findable. kResourceExhausted: with late names, if the unnamed tokens lie in more than max(8,
  // max_steps_in_flight / 2 + 1) stretches with other tokens between them.
  Status append_unnamed(SequenceId sequence, std::int64_t num_tokens,
                        const AppendOptions& options = {});
  Status append_unnamed_each(std::span<const SequenceId> sequences, std::int32_t* num_appended);
  // open() and append_unnamed() in one call, both or neither. Errors: as both.
  Result<SequenceId> open_unnamed(std::int64_t num_tokens, const OpenOptions& options = {});
  // Names the oldest unnamed tokens of a sequence, in order: what a step samples is the input of
  // the next one. Tokens without a name when their step is completed never get one, unless the
  // sequence has late names. A fork has unnamed tokens of its own: name them for parent and child
  // alike, since both share their blocks. fail() forgets those of the steps that it ends.
  // kInvalidArgument: token < 0, more than num_unnamed tokens.
  Status set_tokens(SequenceId sequence, std::span<const std::int32_t> tokens);
  // Names one token of each sequence; the first *num_named are named when one fails. A sequence may
  // be named again: its next token gets that name.
  Status set_tokens_each(std::span<const SequenceId> sequences,
                         std::span<const std::int32_t> tokens, std::int32_t* num_named);
  // Decides on the drafts of the oldest append that has some: the first `num_accepted` stand. If
  // all do, so does what was appended behind, up to the next draft; else all behind is cut, and the
  // rows of later appends are void (SequenceInfo::rewinds). Due once for each append with drafts;
  // for one without, such as a chunk of a prompt, it would decide on those of a later one.
  // kFailedPrecondition: it is in the open step. kInvalidArgument: more than that append's drafts.
  Status accept(SequenceId sequence, std::int32_t num_accepted);
  // Runs the copies of the open step on the manager's own storage, once per step, which then takes
  // no more appends. Engines that run them themselves, as with several steps in flight (in stream
  // order, cuda::copy_blocks(..., stream)), say so with ManagerOptions::copies_by_host.
  // kUnsupported: no storage. kFailedPrecondition: no step is open, the copies have run, or
  // (kInOrder) there are copies and an earlier step is in flight, which may still write what they
  // read. kUnavailable: the memory failed; they have not run. Run them again, or drop() the step.
  Status run_copies();
  // Call this when the device has failed and is idle. Ends every step from `ticket` on, the open
  // one too, and forgets all that they wrote. Closes with kAborted each sequence that wrote in them
  // or holds a block that they wrote, and ends the pins that hold such a block. A row that wrote
  // nothing, the last token of a prompt that was found whole, leaves its sequence open, with its
  // length and rewinds, and what it sampled is lost all the same: close() it too, and open() its
  // text again. Returns the closed sequences, by row; valid until the next fail() or preempt_to().
  Result<std::span<const EndedSequence>> fail(Ticket ticket);

  // ---- room: promises, pins, eviction, victims ----

  // Keeps blocks for the sequence, best between open() and its first append: for the tokens that
  // open() has not found and for those to come. From now on appends of num_tokens tokens in all, of
  // at most most_per_step in a step, are never short of blocks. In each group this takes what they
  // need at the worst moment, a copy of the tail included: in a window group under kInOrder the
  // window and one step, else blocks for all of the tokens. Evicts cached blocks if it must. These
  // blocks count as held. Appends use them first; undo() and drop() give back what they used.
  // Another call sets a new total. What accept() cuts off is promised again. trim() and truncate()
  // leave the promised tokens as they are; blocks that these do not need any more are given back
  // (kUnordered: if no step is in flight). close(), preempt(), fail(), num_tokens of 0 and the last
  // promised token, once it is decided, end the promise. A fork has none of its own; fork() fails
  // with a Shortage if the pool lacks the blocks that the parent then needs beside it. So do pin(),
  // adopt() and a hit of open() (a miss then). Not promised are table entries, and what a
  // truncate() into blocks that others hold makes necessary, at most two blocks in each group: call
  // reserve() again then. kFailedPrecondition: the sequence is in the open step. kInvalidArgument:
  // num_tokens or most_per_step is negative. kResourceExhausted: max_tokens. Shortage: nothing
  // changes, not even an earlier promise; its `needed` counts the blocks beside those kept already.
  Status reserve(SequenceId sequence, std::int64_t num_tokens, const ReserveOptions& options = {});
  // Holds the blocks that a hit of the first `pinned_tokens` tokens needs, and keeps these tokens
  // findable, until unpin(). They are the longest prefix of `tokens` that is found and ends where
  // blocks of all groups end; the tokens behind it stay cached like any others. fail() ends the
  // pins of blocks that it forgets. The options of probe() count; the errors are those of open().
  // kResourceExhausted: pins, table entries. Shortage: as fork(), of the blocks' holders.
  Result<Pinned> pin(std::span<const std::int32_t> tokens, const OpenOptions& options = {});
  Status unpin(PinId pin);
  // Evicts up to `num_blocks` cached blocks of a group and returns how many: fewer only if fewer
  // are cached. Partial tails in which no prompt was found go first, and in a window group full
  // blocks that no end reads. Ends are the last token of each prompt that was given to open(), the
  // last full block of each sequence that closed, what was pinned, and where prompts part. Blocks
  // before a held one, which is then no longer findable, and those that a hit at the last full
  // block of an open sequence reads, go last. Otherwise the coldest goes first. When a block of a
  // full group goes, cached blocks of other groups at and below it become free, which the number
  // does not include. `evicted`: gets the blocks as they went, as many as fit.
  Result<std::int32_t> evict(GroupId group, std::int32_t num_blocks,
                             std::span<std::int32_t> evicted = {});
  // Makes everything unfindable: after new weights, say. Open sequences go on, but nothing that
  // they and their forks hold or append becomes findable any more. All pins end.
  Forgotten reset();
  // reset() for one root key: for the blocks that sequences of this key wrote, and for their pins.
  Forgotten forget(const RootKey& root);
  // reset() for everything that begins with these tokens. Options as for probe(), of which only
  // root and media count. An open sequence is concerned if it has all of these tokens; unnamed ones
  // that may still get their names count as equal. A block in which the tokens end goes as a whole.
  // Without tokens this is forget(options.root). Errors: as open().
  Result<Forgotten> forget(std::span<const std::int32_t> tokens, const OpenOptions& options = {});
  // How often reset() and forget() were called, also in vain; a copy_to() counts in its target.
  // Callers that keep copies of blocks elsewhere must compare this number before they use a copy:
  // if it has changed, the copy may be of a block that was forgotten.
  [[nodiscard]] std::uint64_t forget_count() const noexcept;
  // Held blocks divided by all blocks, in the fullest group. Cached and retiring blocks do not
  // count, since they make room without a preemption.
  [[nodiscard]] double utilization() const noexcept;
  // utilization() >= ManagerOptions::high_watermark: it is time for preempt_to().
  [[nodiscard]] bool needs_eviction() const noexcept;
  // The sequence that the policy would preempt now. Sequences in the open step, and those whose
  // preemption would free no block, are passed over; a sequence that is short itself is not.
  // nullopt: there is none, also where sequences share all of their blocks, as forks do, or pins
  // and holds have them too. complete() a step, let a sequence of the open step wait (undo()),
  // unpin(), or preempt() by your own choice, the youngest first, until an append fits. Changes
  // nothing that another call can see. O(n) for n open sequences at most, and a look at the tables
  // of those that are passed over. Without a policy: ManagerOptions::victim_policy.
  [[nodiscard]] std::optional<SequenceId> select_victim(
      std::optional<VictimPolicy> policy = std::nullopt);
  // Preempts victims while utilization() > `target`, and stops where select_victim() has none.
  // Returns them in order, valid until the next preempt_to() or fail(). kInvalidArgument: target is
  // not within 0 to 1, or the policy is unknown (select_victim() then returns nullopt).
  Result<std::span<const EndedSequence>> preempt_to(
      double target, std::optional<VictimPolicy> policy = std::nullopt);

  // ---- transfers: blocks whose bytes others copy ----
  //
  // A load is an append whose bytes come from elsewhere: from host memory, a file, another machine.
  // Begin it when the bytes are at hand and verified, so that a slow medium never holds blocks;
  // write the blocks; finish it. Meanwhile it holds its blocks by itself. Nothing in them is
  // findable, and no other call gives one of them away, whatever becomes of the sequence:
  //
  //   Load load = *manager.begin_load(sequence, prompt, end);
  //   for each group: manager.blocks_to_load(load.id, group, blocks), and write these
  //   manager.finish_load(load.id, load.end - load.begin);
  //
  // A hold keeps blocks as they are while a host copies from them.

  // Lets the sequence grow to `end` tokens, the first ones of `prompt`, without computing them.
  // First the sequence gets what the cache has of them by now, as in open(); Load::begin is its
  // length then. For the rest the load takes blocks as an append does (it evicts if it must, and in
  // a window group takes only the blocks that position `end` reads). Blocks that the cache has are
  // held as they are. A block that Load::begin lies inside is taken anew and replaces the
  // sequence's at the end. Until finish_load() the sequence keeps its length. It takes no append,
  // trim, reserve or other load meanwhile: kFailedPrecondition, naming the load. It may be forked.
  // The load goes on without the sequence, and its tokens come to nothing, if that is closed,
  // preempted, aborted by fail() or truncated below Load::begin.
  // kFailedPrecondition: the sequence is in the open step, has undecided drafts, unnamed tokens,
  // tokens that can never be findable (after a trim, say) or a promise of reserve(); or
  // (kUnordered) its last step is not complete. kInvalidArgument: `end` is not within 0 ..
  // prompt.size() or lies inside a media span that attends to itself; the prompt differs from what
  // the sequence has, as far as that is known. kResourceExhausted: max_tokens, max_transfers, table
  // entries. Shortage: nothing changed, not even what the cache has by now was taken.
  Result<Load> begin_load(SequenceId sequence, std::span<const std::int32_t> prompt,
                          std::int32_t end);
  // Fills `out` with the blocks of a group that the load waits for, by logical block, from number
  // `first` of them on and as far as they fit; returns how many there are in all. All of them are
  // to be written. They stay the same until finish_load().
  [[nodiscard]] Result<std::int32_t> blocks_to_load(LoadId load, GroupId group,
                                                    std::span<LoadBlock> out,
                                                    std::int32_t first = 0) const;
  // Ends a load. Call this when nothing writes to its blocks any more, also if the load failed:
  // num_tokens says how many tokens are good, counted from Load::begin. These tokens stand: the
  // sequence has them now, and they become findable as if it had computed them. The other blocks
  // are free again. Returns how many tokens stand: num_tokens, or fewer if a window group lacks
  // what the position behind them reads, or if fail() lost what the cache had of them, or 0 if the
  // sequence is gone or shorter. What reset() or forget() concerned since begin_load() does not
  // become findable. kInvalidArgument: num_tokens is not within 0 .. end - begin; or begin +
  // num_tokens is neither `end` nor a multiple of the unit, the smallest block size.
  Result<std::int32_t> finish_load(LoadId load, std::int32_t num_tokens);
  // How far a load could reach, if a tier has the blocks with a nonzero byte in `has`: by group,
  // has[g][i] stands for logical block i of the prompt, and a span has an entry for each block of
  // the first `limit` tokens. The blocks of the sequence and those that the cache has count too,
  // and full and window groups have to agree, as in a hit. On return the bytes of the blocks that
  // begin_load(sequence, prompt, end) would wait for are 1, and all others 0. `limit`: the largest
  // end to look at; at most prompt.size(). Errors: those of begin_load() that say what is wrong
  // with the sequence, the prompt or `limit`, but not a promise of reserve(), which may end before
  // the load; and kInvalidArgument for another number of groups.
  [[nodiscard]] Result<Loadable> loadable(SequenceId sequence, std::span<const std::int32_t> prompt,
                                          std::int32_t limit,
                                          std::span<const std::span<std::uint8_t>> has) const;
  // Holds these blocks until release_hold(): none is given to another sequence, and a block that
  // loses its last other holder, or its place in the cache, stays as it is. Nothing changes in the
  // order of eviction. The bytes of a held block are there only once the step that wrote them is
  // complete. kInvalidArgument: a block out of range, free, or without a token (a load's, or one
  // that lies ready for an append). kFailedPrecondition: the open step writes a block.
  // kResourceExhausted: max_transfers, table entries. Shortage: as fork(), of the blocks' holders.
  Result<HoldId> hold_blocks(GroupId group, std::span<const std::int32_t> blocks);
  Status release_hold(HoldId hold);

  // ---- what became findable ----

  // Fills `out` with blocks that became findable, those that waited longest first, and takes them
  // off the list; returns how many. A block is handed out once each time that it becomes findable,
  // or findable with more tokens; not while a step that wrote it is not complete, and not when it
  // is no longer findable. So the bytes of every returned block may be read. Loaded blocks are
  // listed, too. Without ManagerOptions::list_findable the list is empty. It has a place for each
  // block and never drops one.
  std::int32_t take_findable(std::span<FindableBlock> out) noexcept;
  // A number that changes when the block gets another entry in the prefix tree: as long as the
  // number stays the same, the block is found by the same tokens. 0 without list_findable, and for
  // a block that is not findable.
  [[nodiscard]] Result<std::uint64_t> entry_serial(GroupId group, BlockId block) const;
  // The path that a findable block ends. Fills `tokens` with those at [begin, begin +
  // tokens.size()), and `media` with the path's first spans, as far as they fit.
  // kNotFound: the block is not findable. kInvalidArgument: the positions do not lie in the path.
  [[nodiscard]] Result<BlockPrefix> prefix_of(GroupId group, BlockId block, std::int32_t begin,
                                              std::span<std::int32_t> tokens,
                                              std::span<MediaSpan> media = {}) const;
  // The full block of group `of` that ends at position `end` on the path of a findable block; not
  // valid() if the cache keeps none. A caller that remembers a number for each block and its
  // entry_serial() finds with this the number that a new block goes on from. kNotFound as above.
  // kInvalidArgument: `end` is not a multiple of of's block size within 1 .. findable_end().
  [[nodiscard]] Result<BlockId> block_at(GroupId group, BlockId block, GroupId of,
                                         std::int32_t end) const;

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
  // Steps that are not complete: the open one, and those in flight.
  [[nodiscard]] std::int32_t num_steps() const noexcept;
  // Fills `out` with ids of open sequences, in no promised order, and returns how many.
  std::int32_t sequences(std::span<SequenceId> out) const noexcept;
  [[nodiscard]] Result<GroupUsage> usage(GroupId group) const;
  // References to a block: table entries, pins, loads, holds, and steps (open or in flight) that
  // copy from it or put another block in its place. A block that only steps refer to counts as
  // retiring in usage().
  [[nodiscard]] Result<std::int32_t> ref_count(GroupId group, BlockId block) const;
  // The prefix tree has an entry for the block.
  [[nodiscard]] Result<bool> is_findable(GroupId group, BlockId block) const;
  // One past the last position whose token can be found in the block; 0 if none can.
  [[nodiscard]] Result<std::int32_t> findable_end(GroupId group, BlockId block) const;
  // A block that only steps refer to is kRetiring here, as usage() counts it.
  [[nodiscard]] Result<BlockState> block_state(GroupId group, BlockId block) const;
  // Bytes of the blocks that usage() counts, and of the held ones, as plan_layouts() has them.
  [[nodiscard]] std::int64_t bytes_total() const noexcept;
  [[nodiscard]] std::int64_t bytes_used() const noexcept;
  // Memory that the manager keeps beside the blocks: what it reserved at creation, and what is in
  // use. Arrays with a place for each block or sequence count as a whole; the stores and queues of
  // the prefix tree, block tables and arrays of plans by what is in them. Untouched pages are free.
  [[nodiscard]] MemoryUse metadata() const noexcept;
  // Every row in StepPlan::rows is below it: rows of a block table on the device. max_sequences, or
  // under kUnordered twice that, since the rows of closed sequences may wait for steps.
  [[nodiscard]] std::int32_t num_rows() const noexcept;
  // Entries of a table of ManagerOptions::max_sequence_tokens tokens: with num_rows(), the size of
  // a block table that stays on the device. OpenOptions::max_tokens makes that option a limit.
  [[nodiscard]] Result<std::int32_t> widest(GroupId group) const;
  // A description for people to read: the victim policy, of each group its kind, block size and
  // blocks by state, bytes, sequences, hits, copies and other counters, one fact per line.
  [[nodiscard]] std::string describe() const;
  [[nodiscard]] const Counters& counters() const noexcept;
  [[nodiscard]] const CacheSpec& spec() const noexcept;
  // The options as given, but with derived values in place of 0 and with max_root_keys as lowered.
  // Without prefix_cache: one root key and no media.
  [[nodiscard]] const ManagerOptions& options() const noexcept;
  [[nodiscard]] KVStorage* storage() noexcept;  // null without storage
  [[nodiscard]] const KVStorage* storage() const noexcept;

  // ---- the operation log ----

  // From now on each call that is not const is written down in `log`, with its answer (op_log.h).
  // Null ends the recording: the log then notes the number of calls and state_hash(), unless a load
  // or a hold is open. Only a manager whose calls were all recorded can be replayed: one that had
  // been used before ends the log with an error, which OpLog::status() has. So does copy_to() into
  // this manager. Without a log this costs one branch a call.
  void record(OpLog* log) noexcept;

  // ---- copies ----

  // Makes `target` a deep and independent equal of this manager: the same sequences under the same
  // ids, tables, prefix tree, eviction order, steps, tickets and counters. All that `target` held
  // is gone, its plans too; plan an open step again. What commit() checks of a plan is copied: the
  // step has had one, or not. The cost grows with what is in use, plus some words for each block,
  // run, sequence and pin that the options allow. Only blocks of the storage that are not free are
  // copied. No heap. Several threads may copy from one manager at the same time, each to a target
  // of its own, while no other call runs that changes it. After an error nothing has changed.
  // kInvalidArgument: spec or options differ, id_tag included (names the first difference and both
  // values), or only one has storage. kFailedPrecondition: a load or a hold of either is open
  // (names how many); with storage also if a step of either is not complete. kUnsupported: the CPU
  // may not touch the memory. kUnavailable: it failed half-way, and `target` is left empty.
  Status copy_to(KVCacheManager& target) const;

  // A hash of all that later answers depend on: sequences, tables, the prefix tree, orders of use
  // and of eviction, pins, steps, spec and options; also how many of its sequences the plan of an
  // open step has, and the length and a hash of the prompt of each sequence that has not changed
  // since open(). Two managers with equal hashes answer the same calls alike, but for names:
  // numbers of blocks and rows, ids and tickets do not count. Neither does history: counters,
  // serials, the errors that ids of closed sequences give, and which table entries a plan has told
  // of. It does not read K or V. The number is of this version of the library. O(state), with heap
  // memory for some words for each block, run and sequence. kFailedPrecondition: a load or a hold
  // is open (says how many); kOutOfMemory.
  [[nodiscard]] Result<std::uint64_t> state_hash() const;
  // Recounts everything, in O(state). Returns ok, or says which rule is broken and where.
  Status check_invariants() const;

 private:
  friend struct ManagerInside;  // replay_log(), and tests
  friend class detail::ManagerAlias;
  class Impl;
  explicit KVCacheManager(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

namespace detail {

// For Offload, which stands in another library: the same manager, wherever its owner moves it.
// Does not keep the manager alive: it may end first.
class KVFOLIO_API ManagerAlias {
 public:
  // Requires: it was not moved from.
  explicit ManagerAlias(KVCacheManager& manager);
  ~ManagerAlias();
  ManagerAlias(const ManagerAlias&) = delete;
  ManagerAlias& operator=(const ManagerAlias&) = delete;
  [[nodiscard]] bool has_ended() const noexcept { return lifetime_.expired(); }
  // Requires: !has_ended().
  [[nodiscard]] KVCacheManager& manager() noexcept { return manager_; }

 private:
  std::weak_ptr<const void> lifetime_;
  KVCacheManager manager_;
};

}  // namespace detail
}  // namespace kvfolio
