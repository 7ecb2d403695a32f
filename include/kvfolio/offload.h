// SPDX-License-Identifier: Apache-2.0
#pragma once

// Offload keeps blocks that became findable in host memory and, below that, in tiers; and brings
// them back when a prompt asks for them. It stands above a manager and uses its public calls; it
// has no threads: everything moves in poll().
//
//   const OffloadOptions options{.model = model, .arena_bytes = 1 << 30};
//   const std::unique_ptr<Offload> offload = *Offload::create(manager, options);
//   OffloadOpened opened = *offload->open(prompt);  // what the cache has, at once
//   while (opened.pending) {                        // or serve others, and poll in each step
//     for (const SequenceReady& ready : offload->poll(now_us())) {
//       if (ready.sequence == opened.sequence) opened.pending = false;
//     }
//   }
//   const Ticket step = *manager.begin_step();  // go on as ever, behind what came back
//   const auto rest = manager.append_prompt(opened.sequence, prompt, std::ssize(prompt));
//   if (!rest) return rest.error();
//
//  - Stores. A whole block that became findable is copied to the arena when its step is complete,
//    and goes on to the tiers as their policies say. A store that finds no room in the arena is
//    dropped and counted; it never delays a step and never takes a block. If a tier has no room for
//    a store now, ends it too late or is too busy, the store waits in the arena and is tried again,
//    unless its name was erased or forgotten. Waiting stores are kept within the tier's share of
//    the arena; beyond it they wait only as long as the arena has them, then they are dropped and
//    counted. A store is given up after seven tries if the tier took no other store in that time
//    either.
//  - Loads. open() holds what the cache has; poll() looks for the rest in the arena, asks the tiers
//    for what that lacks, and loads as much of the prompt as can be had in one piece. It ends with
//    one SequenceReady. Requests that miss the same record wait for one load of it. One load at a
//    time writes to the cache and holds blocks there; the others wait their turn.
//  - Trust. What comes back is checked against its key, namespace and checksum before or while it
//    is copied, and nothing is findable before. A record that fails a check is a miss; a damaged
//    one is erased where it lay. A request asks each tier once what it has. If a tier fails to
//    bring a record, the request does not ask it for that one again, but the next tier that has it.
//  - Memory that fails. A block that the cache's memory fails to give is not stored. If it fails to
//    take one block of a load, the load ends with nothing (LoadEnd::kPart): none of it is findable,
//    and the records stay where they are. Both are counted (OffloadCounters::copies_failed).
//  - Memory that copies later (MemoryResource::copies_later()). poll() begins copies, and never
//    waits for one. A block on its way to the arena is held, and its record is sealed, from the
//    bytes that arrived, when they have. A load stays open, with its records, until all of its
//    copies have ended, also if it is late, forgotten or canceled meanwhile. So a request whose
//    copies do not end does not end either. At most ManagerOptions::max_transfers blocks are on
//    their way to the arena at a time. While the engine's stream is being captured no copy begins
//    (kFailedPrecondition of MemoryResource::submit()): stores and loads stay where they are until
//    a later poll(), a load no longer than its deadline, and nothing of that counts as failed.
//    Records are verified where they lie in the arena, once their copies have ended. A damaged one
//    is counted once (OffloadCounters::arena_corrupt) and erased there; blocks of the load that
//    were right count as `loads`, also those behind it. The sequence sees the tokens in front of
//    the first damaged block, in whole units (LoadEnd::kPart), and no block from there on is
//    findable. What a copy alone damages, between a right record and the block or between the block
//    and a record that is sealed from what arrived, no checksum sees: the resource has to say that
//    such bytes did not arrive.
//  - Time. Tiers have timeout_us to say what they have and to bring it, and beside that the time
//    that the bytes to bring take at half of load_bytes_per_s, or at 500 MB/s if that is 0. Up to
//    2 s of that are given at once, the rest as bytes come: a tier that stops is waited for no
//    longer than timeout_us and 2 s, and one that trickles little longer than that. A request that
//    waits longer than this deadline is ready with what there is. Memory that a tier may still
//    touch is not used again before the tier says so. Records that a tier has not brought by half
//    of that time are asked of the next tier that has them, for all requests that wait for them. A
//    tier that has not said by half of timeout_us what it has is waited for only if no other tier
//    has anything. A poll() is bounded in bytes and in looks at blocks: a prompt of more than
//    4,096 blocks is brought in parts of as many, each with a deadline of its own, if no group
//    drops blocks.
//  - Room. However much a tier leaves unanswered, it holds no more than 1 / (tiers + 1) of the
//    arena, or two records. Records that came for a request stay until its turn or its deadline,
//    the end of the prefix first to go; requests have room in the order of open().
//  - Tiers. A tier is not offered a record that is larger than its limit, and is passed over as
//    long as it is not usable, or its answers only time out: after three in a row for half a
//    second, and then for twice as long each time, up to 30 s, until one record that no request
//    waits for comes in time (OffloadTierCounters::passed_over). What a lower tier brings is kept
//    in the arena and not stored in the tiers above it. The Offload closes no tier: its owner does.
//  - In a child of fork() it speaks to no tier: they are the parent's. What the cache and the arena
//    have is there, and destroying it frees memory and waits for nothing.
//  - A caller that does not want to wait calls cancel(), closes the sequence, or, as long as its
//    load has not begun to write, just appends.
//  - Forgetting. forget() and reset() also change the names of what is forgotten, so that no tier
//    answers with it, and erase it in the arena: a root's records in the polls that follow, so
//    that no call looks at all of a large arena (idle() is false until then). forget() of a prefix
//    renames what begins with its whole units (the smallest block size); other prefixes of the root
//    key that share the last whole unit become misses, too, and a prefix shorter than a unit
//    forgets its root key. What lies behind the prefix stays in the arena until it is evicted,
//    under names that nothing asks for. If the manager itself is told to forget, the next call here
//    sees that it was, but not what: below the cache everything goes. Tiers that outlive the
//    process keep the bytes under names that nothing asks for. A host that uses such tiers keeps
//    epochs() after each forgetting and gives it to the next create(); if it does not, the next
//    process finds again what this one forgot. Other processes that share a tier learn nothing of
//    it: what a fleet has to forget gets another RootKey, such as a salt with a generation.
//
// Needs ManagerOptions::list_findable and max_transfers >= 1, and storage. Thread safety: as the
// manager.

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvfolio/export.h"
#include "kvfolio/host_arena.h"
#include "kvfolio/identity.h"
#include "kvfolio/ids.h"
#include "kvfolio/manager_types.h"
#include "kvfolio/memory.h"
#include "kvfolio/root_key.h"
#include "kvfolio/status.h"
#include "kvfolio/tier.h"

namespace kvfolio {

class KVCacheManager;  // manager.h

enum class WritePolicy : std::int32_t {
  kOff = 0,           // the tier is read only: nothing is erased there either
  kWriteThrough = 1,  // every record that enters the arena by a store
  kSecondUse = 2,     // a record when it is used for the second time
};

struct OffloadTier {
  Tier* tier = nullptr;  // outlives the Offload
  WritePolicy policy = WritePolicy::kWriteThrough;
  std::int64_t store_bytes_max = std::int64_t{64} << 20;  // in flight; more waits its turn
  std::int64_t load_bytes_max = std::int64_t{256} << 20;  // the same
};

// The epoch in the names under a root key that was forgotten, or under a prefix that was. Digests
// of root keys and of prefixes are made differently, so they never meet.
struct RootEpoch {
  Digest root{};  // of the root key under epoch 0, or of the prefix; holds no text
  std::uint64_t epoch = 0;

  friend bool operator==(const RootEpoch&, const RootEpoch&) = default;
};

// What was forgotten, as epochs in the names of blocks: for OffloadOptions of the next process.
struct NameEpochs {
  std::uint64_t epoch = 0;         // of every root key that is not among `roots`
  std::vector<RootEpoch> roots{};  // roots and prefixes, by `root`; each above `epoch`
};

struct OffloadOptions {
  ModelIdentity model{};
  // Records of a prompt lie here on their way back, so a load larger than this ends early: at least
  // the longest prompt's, times the prompts that are to be loaded at a time.
  std::int64_t arena_bytes = 0;
  std::span<const OffloadTier> tiers{};                  // cheapest first, at most 8
  std::int64_t bytes_per_poll = std::int64_t{16} << 20;  // stores: half of it
  std::uint64_t timeout_us = 50'000;  // of the tiers, beside the time that bytes take (Time)
  // How long the copy to the cache may take once all records are at hand, its wait for its turn
  // included. Blocks that were copied by then stay.
  std::uint64_t copy_timeout_us = 2'000'000;
  // Load or compute again: a prompt is loaded from tiers only if bytes / load_bytes_per_s is less
  // than tokens / prefill_tokens_per_s. What the arena has is always loaded. 0: always load. The
  // first also says how long bytes may take (Time).
  double load_bytes_per_s = 0.0;
  double prefill_tokens_per_s = 0.0;
  std::uint64_t epoch = 0;                   // NameEpochs::epoch; at most 2^63
  std::span<const RootEpoch> root_epochs{};  // NameEpochs::roots
  MemoryResource* resource = nullptr;        // of the arena; null: HostMemory
  // A block that becomes findable waits in the cache until release_stores(), for a host that has
  // yet to find out whether its bytes are what its name says. A block that is evicted before is not
  // stored.
  bool hold_stores = false;
  // Where the engine enqueues its steps, for a cache in memory that copies later: copies come
  // behind what is enqueued there (MemoryResource::submit()).
  void* stream = nullptr;
};

struct OffloadOpened {
  SequenceId sequence{};
  std::int32_t cached_tokens = 0;  // as Opened
  bool pending = false;            // poll() will say how it ends
};

enum class LoadEnd : std::int32_t {
  kLoaded = 0,     // all that the tiers said they have
  kPart = 1,       // less: records were gone, damaged, without room, or memory failed
  kNothing = 2,    // no tier has more
  kRecompute = 3,  // computing is faster
  kTimeout = 4,    // cached_tokens may be more than at open() still
  kNoBlocks = 5,   // the pool has no room for it
  kForgotten = 6,  // forget() or reset()
};
[[nodiscard]] KVFOLIO_API const char* to_string(LoadEnd end) noexcept;

struct SequenceReady {
  SequenceId sequence{};
  std::int32_t cached_tokens = 0;  // the sequence's length: append the tokens behind it
  LoadEnd why = LoadEnd::kNothing;
};

struct OffloadCounters {
  std::uint64_t stores = 0;          // records that entered the arena from the cache
  std::uint64_t stores_dropped = 0;  // no room in the arena, or the block could not be read
  std::uint64_t loads = 0;           // blocks that were written to the cache
  std::uint64_t tokens_loaded = 0;
  std::uint64_t arena_corrupt = 0;        // records of the arena that did not verify
  std::uint64_t tier_stores = 0;          // that tiers reported as done
  std::uint64_t tier_stores_dropped = 0;  // all stores_failed and stores_dropped of the tiers
  std::uint64_t tier_loads = 0;           // records that came from tiers and verified
  std::array<std::uint64_t, kNumTierResults> tier_misses{};  // loads that failed, by TierResult
  // Loads that met damage: those that came and did not verify, and tier_misses[kCorrupt].
  std::uint64_t tier_corrupt = 0;
  std::uint64_t requests = 0;  // that were pending
  std::uint64_t requests_canceled = 0;
  std::uint64_t requests_timed_out = 0;
  std::uint64_t unknown_completions = 0;  // TierDone of nothing that is in flight: a faulty tier
  std::uint64_t manager_forgets = 0;  // the manager was told to forget, and everything went here
  // The most looks at a block, a question, an answer or 32 spans of media that one poll() took.
  std::uint64_t steps_max = 0;
  std::uint64_t copies_failed = 0;  // blocks that the cache's memory failed to give or to take
};

// What one tier did, since create().
struct OffloadTierCounters {
  // Upper ends of the intervals that latencies are counted in, in microseconds; the last interval
  // has none. From submit() to the poll() that said how it ended.
  static constexpr std::array<std::uint64_t, 9> kLatencyUs = {
      100, 300, 1'000, 3'000, 10'000, 30'000, 100'000, 300'000, 1'000'000};
  using Latencies = std::array<std::uint64_t, kLatencyUs.size() + 1>;

  std::uint64_t stores = 0;                                   // that the tier reported as done
  std::uint64_t stores_failed = 0;                            // that it did not keep; given up
  std::uint64_t loads = 0;                                    // that came and verified
  std::uint64_t loads_corrupt = 0;                            // that came and did not
  std::array<std::uint64_t, kNumTierResults> loads_failed{};  // that did not come, by TierResult
  std::uint64_t bytes_stored = 0;
  std::uint64_t bytes_loaded = 0;  // of loads
  Latencies store_latency{}, load_latency{};
  std::uint64_t store_us = 0, load_us = 0;  // of all together
  // Tries without a success between them. A tier may hide its trouble: watch this number.
  std::uint64_t stores_failed_in_a_row = 0;
  // Stores that it was never given: it was not usable, or the arena evicted them before it had
  // room.
  std::uint64_t stores_dropped = 0;
  std::uint64_t stores_again = 0;  // tries of stores that ended late or busy, and were made again
  std::uint64_t pauses = 0;        // that began, since its answers only timed out
  // At the end of the last poll(): how much of the arena it holds, and whether it is passed over,
  // because of a pause or because unanswered items fill its share.
  std::int64_t bytes_held = 0;
  bool passed_over = false;
};

// What drain() still waits for.
struct OffloadLeft {
  // Blocks that became findable are not in the arena yet, on their way there included, or a step
  // that may write such blocks is not complete.
  bool blocks = false;
  std::int64_t stores = 0;     // that tiers have not ended, or wait to be given
  std::int64_t loads = 0;      // that tiers have not ended, and blocks on their way to the cache
  std::int64_t questions = 0;  // the same: exists and erase
  [[nodiscard]] bool any() const noexcept { return blocks || stores + loads + questions > 0; }
};

class Offload {
 public:
  // Root keys and prefixes with an epoch of their own. With one more, all names change.
  static constexpr std::size_t kRootEpochsMax = std::size_t{1} << 16;

  // kInvalidArgument: a budget that does not hold a record of each group; a field of the identity
  // (by name); a null tier, one given twice, or more than 8; a tier that takes the records of no
  // group, or a group whose records no tier takes; a tier's alignment; numbers out of range.
  // Records lie in the arena as the most demanding tier asks for. kFailedPrecondition: the manager
  // has no storage, does not list what becomes findable, or allows no transfers. kOutOfMemory.
  // `manager` may be moved: the Offload goes on with it where it lies then. It may also end first
  // (another one is assigned to it, say). From then on calls that return a Status or a Result say
  // kFailedPrecondition; those that return a member of the Offload (counters(), num_tiers(),
  // num_pending(), tier_counters(), tier(), arena(), identity()) answer as before, and it may be
  // destroyed; the others stop the program with a check that names the call.
  KVFOLIO_API static Result<std::unique_ptr<Offload>> create(KVCacheManager& manager,
                                                             const OffloadOptions& options);
  // Closes no sequence and no tier. If a tier has not ended a load or a store by now and does not
  // in a few polls, the arena is never given back: so drain() first, or close the tiers. A tier
  // that still owes answers is not given to another Offload. If copies of the cache's memory have
  // not ended by then, their blocks are not given back: the load or hold stays open, and the arena
  // keeps its memory for ever. So it is after a manager that ended first with copies on their way,
  // though these have ended with its storage (MemoryResource::deallocate()), where that allocated
  // the memory. Nothing waits for copies of borrowed memory: that is for its lender to do.
  KVFOLIO_API ~Offload();
  Offload(const Offload&) = delete;
  Offload& operator=(const Offload&) = delete;

  // KVCacheManager::open(), its errors, and a request for what it did not find.
  KVFOLIO_API Result<OffloadOpened> open(std::span<const std::int32_t> tokens,
                                         const OpenOptions& options = {});
  // Moves what is to be moved: loads first, then stores, at most bytes_per_poll, but one block at
  // least. Stores, which no sequence waits for, take at most half of it. Returns the pending
  // sequences that are ready, each once; valid until the next call.
  KVFOLIO_API std::span<const SequenceReady> poll(std::uint64_t now_us);
  // The sequence goes on now: ends its request. Returns its length, which may have grown.
  // kNotFound: as the manager's calls. kFailedPrecondition: copies to its blocks are on their way
  // (memory that copies later). It is ready as soon as these have ended; poll() says so, with
  // LoadEnd::kPart if there was more to load.
  KVFOLIO_API Result<std::int32_t> cancel(SequenceId sequence);
  // Nothing is pending, nothing waits to be stored, no step that may bring something is in flight,
  // no tier works for us, and what was forgotten has left the arena.
  [[nodiscard]] KVFOLIO_API bool idle() const noexcept;
  // Sequences that poll() is still to say are ready. One that was closed or has gone on, which
  // poll() never names, counts until the poll() that notices. Once the manager has ended: as it was
  // then.
  [[nodiscard]] KVFOLIO_API std::size_t num_pending() const noexcept;
  // Before shutdown: a poll() that cancels every request, offers each block to the tiers that want
  // it, and drops none because a tier is behind; a tier that does not answer keeps none from the
  // others. Says what is left, also what a tier that hangs may still read. It does not wait, since
  // it has no clock: the host completes its steps, decides how long, and sleeps in between.
  //
  //   while (offload->drain(now_us()).any() && now_us() < deadline_us) sleep_for(1ms);
  KVFOLIO_API OffloadLeft drain(std::uint64_t now_us);

  // With OffloadOptions::hold_stores: what is findable now may be stored; what becomes findable
  // from here on waits for the next call, as does what a step writes that is not complete; it keeps
  // nothing else waiting. Looks at each block of the cache. left(), drain() and idle() do not count
  // what waits for it. Nothing without that option.
  KVFOLIO_API void release_stores();

  // As the manager's, and see above: `blocks` are those of the cache. Requests that are concerned
  // are ready at the next poll().
  KVFOLIO_API Forgotten forget(const RootKey& root);
  KVFOLIO_API Result<Forgotten> forget(std::span<const std::int32_t> tokens,
                                       const OpenOptions& options = {});
  KVFOLIO_API Forgotten reset();
  // The newest epoch. A later Offload with OffloadOptions::epoch of this number finds nothing that
  // was ever stored under another; with epochs() it misses only what was forgotten.
  [[nodiscard]] KVFOLIO_API std::uint64_t epoch() const noexcept;
  [[nodiscard]] KVFOLIO_API NameEpochs epochs() const;

  [[nodiscard]] KVFOLIO_API const OffloadCounters& counters() const noexcept;
  [[nodiscard]] KVFOLIO_API std::size_t num_tiers() const noexcept;
  // Requires: tier < num_tiers(); the order is that of OffloadOptions::tiers.
  [[nodiscard]] KVFOLIO_API const OffloadTierCounters& tier_counters(
      std::size_t tier) const noexcept;
  [[nodiscard]] KVFOLIO_API const Tier& tier(std::size_t tier) const noexcept;
  [[nodiscard]] KVFOLIO_API ArenaStats arena() const noexcept;
  [[nodiscard]] KVFOLIO_API const Identity& identity() const noexcept;
  KVFOLIO_API Status check_invariants() const;

 private:
  class Impl;
  [[nodiscard]] Impl& asked(const char* call) const noexcept;
  explicit Offload(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvfolio
