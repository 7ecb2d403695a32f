// SPDX-License-Identifier: Apache-2.0
//
// Offload. SAFETY of every call here: the handle lives as long as self; its callers have
// asked check(), so the manager that C keeps a pointer to is that of self.cache, which we have.

use super::{
    snapshot, sys, Digest, ModelIdentity, RecordKeys, Restored, SaveOptions, SaveStats, TierHandle,
};
use crate::error::{call, constant};
use crate::memory::Resource;
use crate::prompt::{CPrompt, Root};
use crate::{
    Cache, Error, Forgotten, Manager, MemoryResource, OpenOptions, Result, Sequence, Ticket,
};
use std::io::{Read, Seek, Write};
use std::mem::{size_of, ManuallyDrop};
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::ptr::{null, null_mut, NonNull};
use std::sync::Arc;

/// Which records go to a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum WritePolicy {
    /// Every record that enters host memory by a store.
    Through = sys::KVFOLIO_WRITE_THROUGH,
    /// A record when it is used for the second time.
    SecondUse = sys::KVFOLIO_WRITE_SECOND_USE,
    /// None: the tier is read only.
    Off = sys::KVFOLIO_WRITE_OFF,
}

/// A tier and how it is used. `tier.into()` is one with the defaults.
#[derive(Debug)]
pub struct OffloadTier {
    /// The medium.
    pub tier: TierHandle,
    /// Which records go to it.
    pub policy: WritePolicy,
    /// Bytes of stores in flight; more waits its turn. 0: 64 MiB.
    pub store_bytes_max: i64,
    /// Bytes of loads in flight. 0: 256 MiB.
    pub load_bytes_max: i64,
}

impl From<TierHandle> for OffloadTier {
    fn from(tier: TierHandle) -> OffloadTier {
        OffloadTier { tier, policy: WritePolicy::Through, store_bytes_max: 0, load_bytes_max: 0 }
    }
}

/// The epoch in the names under a root, or under a prefix, that was forgotten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RootEpoch {
    /// The hash of the root under epoch 0, or of the prefix. It holds no text.
    pub root: Digest,
    /// The epoch that its names have now.
    pub epoch: u64,
}

/// What was forgotten, as epochs in the names of blocks: for [`OffloadOptions`] of the next process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameEpochs {
    /// The epoch of every root that is not among `roots`.
    pub epoch: u64,
    /// In the order of their `root`.
    pub roots: Vec<RootEpoch>,
}

/// `OffloadOptions` in `offload.h`. 0 is the default of all but `arena_bytes`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OffloadOptions<'a> {
    /// Bytes of host memory for records: at least those of the longest prompt, times the prompts that are to
    /// be loaded at a time.
    pub arena_bytes: i64,
    /// Bytes that one [`Offload::poll`] moves. 0: 16 MiB.
    pub bytes_per_poll: i64,
    /// How long the tiers' answers may take, beside the time that bytes take at half of `load_bytes_per_s`, or at
    /// 500 MB/s if that is 0. Up to 2 s of that are given at once, the rest as bytes come. 0: 50,000.
    pub timeout_us: u64,
    /// How long the copy to the cache may take once all records are at hand. 0: 2,000,000.
    pub copy_timeout_us: u64,
    /// With `prefill_tokens_per_s`: load from tiers only what is slower to compute. 0: always.
    pub load_bytes_per_s: f64,
    /// How fast a prompt is computed.
    pub prefill_tokens_per_s: f64,
    /// [`NameEpochs::epoch`] of a host with tiers that outlive it.
    pub epoch: u64,
    /// [`NameEpochs::roots`] of the same host.
    pub root_epochs: &'a [RootEpoch],
}

/// What [`Offload::open`] gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadOpened {
    /// It is open, whether its request is pending or not.
    pub sequence: Sequence,
    /// What the cache has, at once.
    pub cached_tokens: i32,
    /// [`Offload::poll`] will say how it ends.
    pub pending: bool,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LoadEnd {
    /// Everything that the tiers said they have was loaded.
    Loaded,
    /// Less: records were gone, damaged, or there was no room for them.
    Part,
    /// No tier has more.
    Nothing,
    /// Computing is faster.
    Recompute,
    /// `cached_tokens` may be more than at `open` still.
    Timeout,
    /// The pool has no room for it.
    NoBlocks,
    /// What it asked for was forgotten.
    Forgotten,
    /// A number that this version of the crate does not know.
    Other(i32),
}

impl LoadEnd {
    fn from_c(why: i32) -> LoadEnd {
        match why {
            sys::KVFOLIO_LOADED => LoadEnd::Loaded,
            sys::KVFOLIO_LOAD_PART => LoadEnd::Part,
            sys::KVFOLIO_LOAD_NOTHING => LoadEnd::Nothing,
            sys::KVFOLIO_LOAD_RECOMPUTE => LoadEnd::Recompute,
            sys::KVFOLIO_LOAD_TIMEOUT => LoadEnd::Timeout,
            sys::KVFOLIO_LOAD_NO_BLOCKS => LoadEnd::NoBlocks,
            sys::KVFOLIO_LOAD_FORGOTTEN => LoadEnd::Forgotten,
            other => LoadEnd::Other(other),
        }
    }

    fn number(self) -> i32 {
        match self {
            LoadEnd::Loaded => sys::KVFOLIO_LOADED,
            LoadEnd::Part => sys::KVFOLIO_LOAD_PART,
            LoadEnd::Nothing => sys::KVFOLIO_LOAD_NOTHING,
            LoadEnd::Recompute => sys::KVFOLIO_LOAD_RECOMPUTE,
            LoadEnd::Timeout => sys::KVFOLIO_LOAD_TIMEOUT,
            LoadEnd::NoBlocks => sys::KVFOLIO_LOAD_NO_BLOCKS,
            LoadEnd::Forgotten => sys::KVFOLIO_LOAD_FORGOTTEN,
            LoadEnd::Other(number) => number,
        }
    }
}

impl std::fmt::Display for LoadEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // SAFETY: takes any number and returns a constant.
        f.write_str(unsafe { constant(sys::kvfolio_load_end_name(self.number())) })
    }
}

/// A sequence whose request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// As [`OffloadOpened::sequence`] said.
    pub sequence: Sequence,
    /// The sequence's length: append the tokens behind it.
    pub cached_tokens: i32,
    /// How its request ended.
    pub why: LoadEnd,
}

/// What [`Offload::drain`] still waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Some blocks that became findable, or may become so, are not in host memory yet.
    pub blocks: bool,
    /// Stores that tiers have not ended, or that wait to be given to them.
    pub stores: i64,
    /// Loads that tiers have not ended.
    pub loads: i64,
    /// Questions that tiers have not answered.
    pub questions: i64,
}

impl Left {
    /// Something is left.
    pub fn any(&self) -> bool {
        *self != Left::default()
    }
}

of_c! {
    /// `OffloadCounters` in `offload.h`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct OffloadCounters = kvfolio_offload_counters {
        /// Records that entered host memory from the cache.
        pub stores: u64,
        /// Stores that found no room in host memory, or whose block could not be read.
        pub stores_dropped: u64,
        /// Blocks that were written to the cache.
        pub loads: u64,
        /// Tokens of these blocks.
        pub tokens_loaded: u64,
        /// Records of host memory that did not verify.
        pub arena_corrupt: u64,
        /// Stores that tiers reported as done.
        pub tier_stores: u64,
        /// All `stores_failed` and `stores_dropped` of the tiers.
        pub tier_stores_dropped: u64,
        /// Records that came from tiers and verified.
        pub tier_loads: u64,
        /// Loads that failed, by [`TierResult`](super::TierResult).
        pub tier_misses: [u64; 8],
        /// Loads that met damage: those that came and did not verify, and the misses that are
        /// `Corrupt`.
        pub tier_corrupt: u64,
        /// Requests that were pending.
        pub requests: u64,
        /// Those of them that were canceled.
        pub requests_canceled: u64,
        /// Those of them that ran out of time.
        pub requests_timed_out: u64,
        /// Answers to nothing that was asked: a tier is faulty.
        pub unknown_completions: u64,
        /// How often the cache itself was told to forget, so that everything below it went, too.
        pub manager_forgets: u64,
        /// The most looks at a block, a question or an answer that one poll took.
        pub steps_max: u64,
        /// Blocks that the cache's memory failed to give or to take.
        pub copies_failed: u64,
    }
}

of_c! {
    /// `OffloadTierCounters` in `offload.h`: of one tier, since the Offload was made.
    ///
    /// Latencies are counted in intervals whose upper ends are 100, 300, 1,000, 3,000, 10,000, 30,000,
    /// 100,000, 300,000 and 1,000,000 us; the last one has none. From submit to the poll that said how
    /// it ended.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct OffloadTierCounters = kvfolio_offload_tier_counters {
        /// Stores that the tier reported as done.
        pub stores: u64,
        /// Stores that it did not keep; given up.
        pub stores_failed: u64,
        /// Loads that came and verified.
        pub loads: u64,
        /// Loads that came and did not verify.
        pub loads_corrupt: u64,
        /// Loads that did not come, by [`TierResult`](super::TierResult).
        pub loads_failed: [u64; 8],
        /// Bytes of `stores`.
        pub bytes_stored: u64,
        /// Bytes of `loads`.
        pub bytes_loaded: u64,
        /// Stores by how long they took.
        pub store_latency: [u64; 10],
        /// Loads by how long they took.
        pub load_latency: [u64; 10],
        /// How long all stores took together.
        pub store_us: u64,
        /// How long all loads took together.
        pub load_us: u64,
        /// Tries without a success between them. A tier may hide its trouble: watch this number.
        pub stores_failed_in_a_row: u64,
        /// Stores that it was never given: it was not usable, or host memory evicted them before it had
        /// room.
        pub stores_dropped: u64,
        /// Tries of stores that ended late or busy, and were made again.
        pub stores_again: u64,
        /// Pauses that began, since the tier's answers only timed out.
        pub pauses: u64,
        /// Bytes of host memory that it held when the last poll ended.
        pub bytes_held: i64,
        /// 1: it is passed over now, because of a pause or because unanswered items fill its share.
        pub passed_over: u64,
    }
}

of_c! {
    /// `ArenaStats` in `host_arena.h`: the records in host memory.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ArenaStats = kvfolio_arena_stats {
        /// The budget.
        pub bytes: i64,
        /// Bytes of the records that are there.
        pub bytes_published: i64,
        /// Records that are there.
        pub records: i64,
        /// Records that are read now.
        pub pins: i64,
        /// Records that are written now.
        pub writing: i64,
        /// Records that a tier may still touch although their deadline has passed.
        pub quarantined: i64,
        /// Records that gave room to others.
        pub evictions: u64,
        /// Records that found no room, since all others are being read or written.
        pub refusals: u64,
    }
}

/// Why [`Offload::new`] made none, and the cache that it was given. It becomes its error with `?`.
#[derive(Debug)]
pub struct Refused {
    /// Why.
    pub error: Error,
    /// As it was.
    pub cache: Box<Cache>,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Refused {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Error {
        refused.error
    }
}

/// Keeps blocks that became findable in host memory and, below that, in tiers; and brings them back
/// when a prompt asks for them. It has no threads: everything moves in [`Offload::poll`].
/// [The module](super) shows it.
///
/// It owns its cache and dereferences to it. The calls that it has too (`open`, `forget`,
/// `forget_root`, `reset`, `check_invariants`) stand before those of the cache and do what these do.
/// While a step is open it is borrowed, so `poll` runs between steps.
///
/// A cache that is exchanged for another one (`std::mem::swap` with `&mut *offload`) is not its own:
/// calls of the Offload are `FailedPrecondition` until its own is back; if it ends before that, its
/// memory is never given back.
///
/// ```
/// # use kvfolio::tiers::{ModelIdentity, NameEpochs, Offload, OffloadOptions, OffloadTier, RootEpoch};
/// # use kvfolio::tiers::{TierHandle, WritePolicy};
/// # use kvfolio::{Cache, GroupSpec, Options, Storage};
/// # fn cache(id_tag: u16) -> Result<Cache, kvfolio::Error> {
/// #     let group = GroupSpec { head_dim_k: 4, num_blocks: 8, ..GroupSpec::default() };
/// #     let options = Options { list_findable: true, id_tag, ..Options::default() };
/// #     Cache::with_storage(Storage::new(&[group])?, &options)
/// # }
/// # let model = ModelIdentity { model: "m", weights: "w", tokenizer: "t", model_dtype: "d",
/// #                             positions: "p", engine: "e", ..ModelIdentity::default() };
/// # let options = OffloadOptions { arena_bytes: 1 << 20, ..OffloadOptions::default() };
/// // Two caches, such as two replicas, over one tier in memory: each finds what the other computed.
/// // Each has an Options::id_tag of its own: neither takes an id of the other for its own.
/// let (mut one, two) = (cache(1)?, cache(2)?);
/// let tier = TierHandle::memory(&mut one, 1 << 20)?;
/// let shared = tier.share()?;
/// let mut one = Offload::new(one, &model, &options, vec![tier.into()])?;
/// let of_two = OffloadTier { policy: WritePolicy::Off, ..shared.into() }; // it only reads
/// let mut two = Offload::new(two, &model, &options, vec![of_two])?;
///
/// let prompt = [7; 33];
/// let opened = one.open(&prompt, &Default::default())?;
/// let mut step = one.begin_step()?; // a call of the cache
/// step.append(opened.sequence, &prompt)?;
/// step.finish()?;
/// let mut now_us = 0;
/// while one.drain(now_us)?.any() {
///     now_us += 100; // before shutdown: until all is where it should be
/// }
/// assert_eq!(one.offload_counters().tier_stores, 2);
/// assert_eq!((one.num_tiers(), one.tier_counters(0)?.stores), (1, 2));
/// assert_eq!(one.tier(0).unwrap().describe(), "memory");
///
/// let opened = two.open(&prompt, &Default::default())?;
/// assert!(opened.pending && opened.cached_tokens == 0);
/// let ready = loop {
///     now_us += 100;
///     if let Some(ready) = two.poll(now_us).first() {
///         break *ready;
///     }
/// };
/// assert_eq!((ready.sequence, ready.cached_tokens), (opened.sequence, 32));
/// assert_eq!(ready.why.to_string(), "loaded");
/// assert_eq!(two.cancel(opened.sequence)?, 32); // there is nothing to cancel: its length
/// two.forget(&prompt[..16], &Default::default())?;
/// two.forget_root(None)?;
/// let NameEpochs { epoch, roots } = two.epochs()?; // for the next process
/// assert_eq!((epoch, roots.len()), (0, 2)); // of the prefix and of the root
/// let next = OffloadOptions { epoch, root_epochs: &roots, ..options };
/// # let sum: u64 = next.root_epochs.iter().map(|one: &RootEpoch| one.epoch).sum();
/// # assert_eq!(sum, 1 + 2);
/// two.reset()?;
/// assert_eq!((two.arena().records, two.epoch()?), (0, 3));
/// two.check_invariants()?;
/// let cache = two.into_cache(); // as it is
/// assert_eq!(cache.num_sequences(), 1);
/// # Ok::<(), kvfolio::Error>(())
/// ```
pub struct Offload {
    raw: NonNull<sys::kvfolio_offload>,
    ready: Vec<Ready>,
    // In the order of their ends, behind drop().
    cache: Cache,
    tiers: Vec<TierHandle>,
    resource: Option<Arc<dyn MemoryResource>>,
    table: Option<Resource>, // what C calls the resource by
}

// SAFETY: a handle may move between threads, as the cache and the tiers may. Calls that take &self are
// const calls of C, which touch no tier.
unsafe impl Send for Offload {}
unsafe impl Sync for Offload {}

impl Offload {
    /// The cache has storage, [`list_findable`](crate::Options::list_findable) and transfers. `tiers`:
    /// cheapest first, at most 8. `InvalidArgument` names a field of the model that says too little, or
    /// a budget that holds no record.
    pub fn new(
        cache: Cache,
        model: &ModelIdentity,
        options: &OffloadOptions,
        tiers: Vec<OffloadTier>,
    ) -> std::result::Result<Offload, Refused> {
        Offload::create(cache, model, options, tiers, None)
    }

    /// Host memory comes from a resource, such as pinned pages; of [`MemoryKind::Host`].
    ///
    /// [`MemoryKind::Host`]: crate::MemoryKind::Host
    pub fn with_resource(
        cache: Cache,
        model: &ModelIdentity,
        options: &OffloadOptions,
        tiers: Vec<OffloadTier>,
        resource: Arc<dyn MemoryResource>,
    ) -> std::result::Result<Offload, Refused> {
        Offload::create(cache, model, options, tiers, Some(resource))
    }

    fn create(
        cache: Cache,
        model: &ModelIdentity,
        options: &OffloadOptions,
        tiers: Vec<OffloadTier>,
        resource: Option<Arc<dyn MemoryResource>>,
    ) -> std::result::Result<Offload, Refused> {
        let table = resource.clone().map(Resource::new);
        let functions = table.as_ref().map(Resource::to_c);
        let functions = functions.as_ref().map_or(null(), |table| table as *const _);
        let model = model.to_c();
        let root_epochs: Vec<_> = options.root_epochs.iter().map(RootEpoch::to_c).collect();
        let options = options.to_c(&root_epochs);
        let list: Vec<_> = tiers.iter().map(OffloadTier::to_c).collect();
        let n = i32::try_from(list.len()).unwrap_or(-1);
        let mut out = null_mut();
        let made = call(|error| unsafe {
            let manager = cache.raw.as_ptr();
            let tiers = list.as_ptr();
            sys::kvfolio_offload_create(
                manager, &model, &options, tiers, n, functions, &mut out, error,
            )
        });
        if let Err(error) = made {
            return Err(Refused { error, cache: Box::new(cache) });
        }
        Ok(Offload {
            raw: NonNull::new(out).expect("C gave an Offload"),
            ready: Vec::new(),
            cache,
            tiers: tiers.into_iter().map(|tier| tier.tier).collect(),
            resource,
            table,
        })
    }

    fn is_whole(&self) -> bool {
        is_of(self.raw, &self.cache)
    }

    fn check(&self) -> Result<()> {
        check(self.raw, &self.cache)
    }

    /// As [`Cache::begin_step`]; [`OffloadStep::open`] also asks host memory and the tiers.
    pub fn begin_step(&mut self) -> Result<OffloadStep<'_>> {
        self.begin_step_at(0)
    }

    /// As [`Cache::begin_step_at`].
    pub fn begin_step_at(&mut self, now_us: u64) -> Result<OffloadStep<'_>> {
        let raw = self.raw;
        Ok(OffloadStep { raw, step: self.cache.begin_step_at(now_us)? })
    }

    /// Ends the Offload and gives its cache back, with all sequences that are open.
    pub fn into_cache(self) -> Cache {
        let mut this = ManuallyDrop::new(self);
        this.end();
        // SAFETY: `this` is not dropped: each field is dropped, or moved out, once.
        unsafe {
            let cache = std::ptr::read(&this.cache);
            std::ptr::drop_in_place(&mut this.ready);
            std::ptr::drop_in_place(&mut this.tiers);
            std::ptr::drop_in_place(&mut this.resource);
            std::ptr::drop_in_place(&mut this.table);
            cache
        }
    }

    fn end(&mut self) {
        let whole = self.is_whole();
        let arena = self.arena();
        // A tier may still have an item of it: then the memory stays, and so does its resource.
        if !whole || arena.pins + arena.writing + arena.quarantined > 0 {
            std::mem::forget(self.resource.clone());
            std::mem::forget(self.table.take());
        }
        // SAFETY: it goes once. C frees nothing of one whose manager is gone; if the manager lives
        // elsewhere, it must not be spoken to from here.
        if whole {
            unsafe { sys::kvfolio_offload_destroy(self.raw.as_ptr()) }
        }
    }

    /// Opens a sequence as [`Manager::open`](crate::Manager::open), and asks for what the cache does
    /// not have. A caller that does not want to wait calls [`cancel`](Offload::cancel), or closes the sequence.
    pub fn open(&mut self, tokens: &[i32], options: &OpenOptions) -> Result<OffloadOpened> {
        open(self.raw, &self.cache, tokens, options)
    }

    /// Moves what is to be moved, at most `bytes_per_poll`: loads first, then stores. Returns the
    /// sequences that are ready, each pending one once; none while the cache is exchanged.
    pub fn poll(&mut self, now_us: u64) -> &[Ready] {
        self.ready.clear();
        if !self.is_whole() {
            return &[];
        }
        let mut some = [sys::kvfolio_sequence_ready::new(); 64];
        loop {
            let n = unsafe {
                let capacity = some.len() as i64;
                sys::kvfolio_offload_poll(self.raw.as_ptr(), now_us, some.as_mut_ptr(), capacity)
            } as usize;
            self.ready.extend(some[..n].iter().map(|one| Ready {
                sequence: Sequence::from_raw(one.sequence),
                cached_tokens: one.cached_tokens,
                why: LoadEnd::from_c(one.why),
            }));
            if n < some.len() {
                return &self.ready;
            }
        }
    }

    /// The sequence goes on now: ends its request. Returns its length, which may have grown.
    pub fn cancel(&mut self, sequence: Sequence) -> Result<i32> {
        cancel(self.raw, &self.cache, sequence)
    }

    /// Nothing is pending or ready, nothing waits to be stored, no step that may bring something is in
    /// flight, and no tier works for it.
    pub fn idle(&self) -> bool {
        self.is_whole() && unsafe { sys::kvfolio_offload_idle(self.raw.as_ptr()) != 0 }
    }

    /// Before shutdown: a poll that cancels every request, offers each block to the tiers that want it,
    /// and drops none because a tier is behind. It does not wait: call it again while
    /// [`Left::any`], or for as long as you like.
    pub fn drain(&mut self, now_us: u64) -> Result<Left> {
        self.check()?;
        let mut left = sys::kvfolio_offload_left::new();
        call(|error| unsafe {
            sys::kvfolio_offload_drain(self.raw.as_ptr(), now_us, &mut left, error)
        })?;
        Ok(Left {
            blocks: left.blocks != 0,
            stores: left.stores,
            loads: left.loads,
            questions: left.questions,
        })
    }

    /// Makes all of a root key unfindable, here and below: no tier answers with it again.
    pub fn forget_root(&mut self, root: Option<&Root>) -> Result<Forgotten> {
        forget_root(self.raw, &self.cache, root)
    }

    /// Makes all unfindable that begins with these tokens; below the cache with their last whole
    /// block of the smallest size, or all of their root if there is none.
    pub fn forget(&mut self, tokens: &[i32], options: &OpenOptions) -> Result<Forgotten> {
        forget(self.raw, &self.cache, tokens, options)
    }

    /// Makes everything unfindable, here and below.
    pub fn reset(&mut self) -> Result<Forgotten> {
        reset(self.raw, &self.cache)
    }

    /// The newest epoch. [`OffloadOptions::epoch`] of this number forgets all that was ever stored under
    /// another; [`epochs`](Offload::epochs) forgets what was forgotten.
    pub fn epoch(&self) -> Result<u64> {
        self.check()?;
        Ok(unsafe { sys::kvfolio_offload_epoch(self.raw.as_ptr()) })
    }

    /// To be kept after each forgetting, and given to the next Offload over the same tiers. Without it
    /// the next process finds again what this one forgot.
    pub fn epochs(&self) -> Result<NameEpochs> {
        self.check()?;
        let this = self.raw.as_ptr();
        let mut epoch = 0;
        let num = unsafe { sys::kvfolio_offload_epochs(this, &mut epoch, null_mut(), 0) };
        let mut roots = vec![sys::kvfolio_root_epoch::new(); num as usize];
        unsafe { sys::kvfolio_offload_epochs(this, &mut epoch, roots.as_mut_ptr(), num) };
        let root_epoch =
            |one: &sys::kvfolio_root_epoch| RootEpoch { root: one.root.bytes, epoch: one.epoch };
        Ok(NameEpochs { epoch, roots: roots.iter().map(root_epoch).collect() })
    }

    /// The Offload's counters; [`Manager::counters`](crate::Manager::counters) has those of the cache.
    pub fn offload_counters(&self) -> OffloadCounters {
        let mut out = sys::kvfolio_offload_counters::new();
        call(|error| unsafe {
            sys::kvfolio_offload_get_counters(self.raw.as_ptr(), &mut out, error)
        })
        .expect("a struct of the right size");
        OffloadCounters::from_c(&out)
    }

    /// How many tiers it was made with.
    pub fn num_tiers(&self) -> usize {
        unsafe { sys::kvfolio_offload_num_tiers(self.raw.as_ptr()) as usize }
    }

    /// The counters of one tier, in the order in which they were given. `InvalidArgument`: there are fewer.
    pub fn tier_counters(&self, tier: usize) -> Result<OffloadTierCounters> {
        let tier = i32::try_from(tier).unwrap_or(i32::MAX);
        let mut out = sys::kvfolio_offload_tier_counters::new();
        call(|error| unsafe {
            sys::kvfolio_offload_get_tier_counters(self.raw.as_ptr(), tier, &mut out, error)
        })?;
        Ok(OffloadTierCounters::from_c(&out))
    }

    /// What a tier says of itself: [`describe`](TierHandle::describe), counters of its kind,
    /// [`event_fd`](TierHandle::event_fd). It takes `&mut self` because a tier is asked by one thread
    /// at a time.
    pub fn tier(&mut self, tier: usize) -> Option<&TierHandle> {
        self.tiers.get(tier)
    }

    /// The records in host memory.
    pub fn arena(&self) -> ArenaStats {
        let mut out = sys::kvfolio_arena_stats::new();
        call(|error| unsafe { sys::kvfolio_offload_arena(self.raw.as_ptr(), &mut out, error) })
            .expect("a struct of the right size");
        ArenaStats::from_c(&out)
    }

    /// Recounts everything, also of the cache.
    pub fn check_invariants(&self) -> Result<()> {
        self.check()?;
        call(|error| unsafe { sys::kvfolio_offload_check_invariants(self.raw.as_ptr(), error) })?;
        self.cache.check_invariants()
    }

    /// [`save`](super::save) under the names of this Offload.
    pub fn save<W: Write>(&mut self, to: &mut W, options: &SaveOptions) -> Result<SaveStats> {
        let names = self.names();
        snapshot::save_to(&mut self.cache, names, to, options)
    }

    /// [`save_file`](super::save_file) under the names of this Offload.
    pub fn save_file<P: AsRef<Path>>(
        &mut self,
        path: P,
        options: &SaveOptions,
    ) -> Result<SaveStats> {
        let names = self.names();
        snapshot::save_to_file(&mut self.cache, names, path.as_ref(), options)
    }

    /// [`restore`](super::restore) under the names of this Offload.
    pub fn restore<R: Read + Seek>(&mut self, from: &mut R) -> Result<Restored> {
        let names = self.names();
        snapshot::restore_from(&mut self.cache, names, from, &RecordKeys::default())
    }

    /// [`restore_with`](super::restore_with) under the names of this Offload.
    pub fn restore_with<R: Read + Seek>(
        &mut self,
        from: &mut R,
        keys: &RecordKeys,
    ) -> Result<Restored> {
        let names = self.names();
        snapshot::restore_from(&mut self.cache, names, from, keys)
    }

    /// [`restore_file`](super::restore_file) under the names of this Offload.
    pub fn restore_file<P: AsRef<Path>>(&mut self, path: P) -> Result<Restored> {
        let names = self.names();
        snapshot::restore_from_file(&mut self.cache, names, path.as_ref(), &RecordKeys::default())
    }

    /// [`restore_file_with`](super::restore_file_with) under the names of this Offload.
    pub fn restore_file_with<P: AsRef<Path>>(
        &mut self,
        path: P,
        keys: &RecordKeys,
    ) -> Result<Restored> {
        let names = self.names();
        snapshot::restore_from_file(&mut self.cache, names, path.as_ref(), keys)
    }

    /// Valid as long as self; not of the manager.
    fn names(&mut self) -> *mut sys::kvfolio_identity {
        unsafe { sys::kvfolio_offload_identity(self.raw.as_ptr()) }
    }
}

// What both an Offload and its open step do. C speaks to the manager that it knows: only if that is
// the one that we have, and there.

fn is_of(raw: NonNull<sys::kvfolio_offload>, manager: &Manager) -> bool {
    // SAFETY: compares what both handles have; neither is followed to the other.
    unsafe { sys::kvfolio_offload_is_of(raw.as_ptr(), manager.raw.as_ptr()) != 0 }
}

fn check(raw: NonNull<sys::kvfolio_offload>, manager: &Manager) -> Result<()> {
    if is_of(raw, manager) {
        return Ok(());
    }
    Err(Error::FailedPrecondition("the cache of this Offload was exchanged for another".into()))
}

fn open(
    raw: NonNull<sys::kvfolio_offload>,
    manager: &Manager,
    tokens: &[i32],
    options: &OpenOptions,
) -> Result<OffloadOpened> {
    check(raw, manager)?;
    let p = CPrompt::new(tokens, options);
    let (mut sequence, mut cached_tokens, mut pending) = (0, 0, 0);
    call(|error| unsafe {
        sys::kvfolio_offload_open(
            raw.as_ptr(),
            p.root,
            p.tokens,
            p.num_tokens,
            p.media,
            p.num_media,
            &p.options,
            &mut sequence,
            &mut cached_tokens,
            &mut pending,
            error,
        )
    })?;
    let sequence = Sequence::from_raw(sequence);
    Ok(OffloadOpened { sequence, cached_tokens, pending: pending != 0 })
}

fn cancel(
    raw: NonNull<sys::kvfolio_offload>,
    manager: &Manager,
    sequence: Sequence,
) -> Result<i32> {
    check(raw, manager)?;
    let mut length = 0;
    call(|error| unsafe {
        sys::kvfolio_offload_cancel(raw.as_ptr(), sequence.get(), &mut length, error)
    })?;
    Ok(length)
}

fn forgotten(
    raw: NonNull<sys::kvfolio_offload>,
    manager: &Manager,
    forget: impl FnOnce(
        *mut sys::kvfolio_offload,
        &mut Forgotten,
        *mut crate::sys::kvfolio_error,
    ) -> i32,
) -> Result<Forgotten> {
    check(raw, manager)?;
    let mut out = Forgotten::default();
    call(|error| forget(raw.as_ptr(), &mut out, error))?;
    Ok(out)
}

fn forget_root(
    raw: NonNull<sys::kvfolio_offload>,
    manager: &Manager,
    root: Option<&Root>,
) -> Result<Forgotten> {
    let root = Root::raw_or_null(root);
    forgotten(raw, manager, |this, out, error| unsafe {
        sys::kvfolio_offload_forget_root(this, root, &mut out.blocks, &mut out.pins, error)
    })
}

fn forget(
    raw: NonNull<sys::kvfolio_offload>,
    manager: &Manager,
    tokens: &[i32],
    options: &OpenOptions,
) -> Result<Forgotten> {
    let p = CPrompt::new(tokens, options);
    forgotten(raw, manager, |this, out, error| unsafe {
        sys::kvfolio_offload_forget(
            this,
            p.root,
            p.tokens,
            p.num_tokens,
            p.media,
            p.num_media,
            &mut out.blocks,
            &mut out.pins,
            error,
        )
    })
}

fn reset(raw: NonNull<sys::kvfolio_offload>, manager: &Manager) -> Result<Forgotten> {
    forgotten(raw, manager, |this, out, error| unsafe {
        sys::kvfolio_offload_reset(this, &mut out.blocks, &mut out.pins, error)
    })
}

/// The open step of an [`Offload`]. It dereferences to the [step of a cache](crate::Step), and so to
/// the [`Manager`]; the calls that the Offload has, too, stand before those and do what the Offload
/// does. So a sequence that is opened in the step asks host memory and the tiers. It may be appended
/// to in this step, which leaves what they have; or wait for [`Offload::poll`], behind the step.
///
/// ```
/// # use kvfolio::tiers::{ModelIdentity, Offload, OffloadOptions};
/// # use kvfolio::{Cache, GroupSpec, Options, Storage};
/// # let group = GroupSpec { head_dim_k: 4, num_blocks: 8, ..GroupSpec::default() };
/// # let options = Options { list_findable: true, ..Options::default() };
/// # let cache = Cache::with_storage(Storage::new(&[group])?, &options)?;
/// # let model = ModelIdentity { model: "m", weights: "w", tokenizer: "t", model_dtype: "d",
/// #                             positions: "p", engine: "e", ..ModelIdentity::default() };
/// # let options = OffloadOptions { arena_bytes: 1 << 20, ..OffloadOptions::default() };
/// # let mut offload = Offload::new(cache, &model, &options, Vec::new())?;
/// # let prompt = [7; 33];
/// # let opened = offload.open(&prompt, &Default::default())?;
/// # let mut step = offload.begin_step()?;
/// # step.append(opened.sequence, &prompt)?;
/// # step.finish()?;
/// # offload.close(opened.sequence)?;
/// # while !offload.idle() {
/// #     offload.poll(0);
/// # }
/// # offload.evict(0, 8, &mut [])?;
/// use kvfolio::tiers::OffloadStep;
///
/// let running = offload.open(&[1], &Default::default())?.sequence;
/// let mut step: OffloadStep<'_> = offload.begin_step()?;
/// step.append(running, &[1])?;
/// let new = step.open(&prompt, &Default::default())?; // a request that comes meanwhile
/// assert!(new.pending && new.cached_tokens == 0); // host memory has it
/// step.finish()?;
/// let ready = loop {
///     if let Some(ready) = offload.poll(1).first() {
///         break *ready;
///     }
/// };
/// assert_eq!((ready.sequence, ready.cached_tokens), (new.sequence, 32));
/// # Ok::<(), kvfolio::Error>(())
/// ```
#[must_use = "a step that is dropped rolls back"]
pub struct OffloadStep<'c> {
    // The handle of the Offload that is borrowed.
    raw: NonNull<sys::kvfolio_offload>,
    step: crate::Step<'c>,
}

// SAFETY: as Offload, which it borrows.
unsafe impl Send for OffloadStep<'_> {}
unsafe impl Sync for OffloadStep<'_> {}

impl OffloadStep<'_> {
    /// [`Offload::open`].
    pub fn open(&mut self, tokens: &[i32], options: &OpenOptions) -> Result<OffloadOpened> {
        open(self.raw, &self.step, tokens, options)
    }

    /// [`Offload::cancel`].
    pub fn cancel(&mut self, sequence: Sequence) -> Result<i32> {
        cancel(self.raw, &self.step, sequence)
    }

    /// [`Offload::forget_root`].
    pub fn forget_root(&mut self, root: Option<&Root>) -> Result<Forgotten> {
        forget_root(self.raw, &self.step, root)
    }

    /// [`Offload::forget`].
    pub fn forget(&mut self, tokens: &[i32], options: &OpenOptions) -> Result<Forgotten> {
        forget(self.raw, &self.step, tokens, options)
    }

    /// [`Offload::reset`].
    pub fn reset(&mut self) -> Result<Forgotten> {
        reset(self.raw, &self.step)
    }

    /// [`Step::commit`](crate::Step::commit) of the cache.
    pub fn commit(self) -> Result<Ticket> {
        self.step.commit()
    }

    /// [`Step::finish`](crate::Step::finish) of the cache.
    pub fn finish(self) -> Result<Ticket> {
        self.step.finish()
    }

    /// [`Step::roll_back`](crate::Step::roll_back) of the cache.
    pub fn roll_back(self) {
        self.step.roll_back();
    }
}

impl<'c> Deref for OffloadStep<'c> {
    type Target = crate::Step<'c>;
    fn deref(&self) -> &crate::Step<'c> {
        &self.step
    }
}

impl<'c> DerefMut for OffloadStep<'c> {
    fn deref_mut(&mut self) -> &mut crate::Step<'c> {
        &mut self.step
    }
}

impl std::fmt::Debug for OffloadStep<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.step.fmt(f)
    }
}

impl RootEpoch {
    fn to_c(&self) -> sys::kvfolio_root_epoch {
        let root = sys::kvfolio_digest { bytes: self.root };
        sys::kvfolio_root_epoch { root, epoch: self.epoch }
    }
}

impl OffloadTier {
    fn to_c(&self) -> sys::kvfolio_offload_tier {
        sys::kvfolio_offload_tier {
            struct_size: size_of::<sys::kvfolio_offload_tier>() as u32,
            policy: self.policy as i32,
            tier: self.tier.raw(),
            store_bytes_max: self.store_bytes_max,
            load_bytes_max: self.load_bytes_max,
        }
    }
}

impl OffloadOptions<'_> {
    // `root_epochs` is what C is lent: longer than the result.
    fn to_c(self, root_epochs: &[sys::kvfolio_root_epoch]) -> sys::kvfolio_offload_options {
        sys::kvfolio_offload_options {
            struct_size: size_of::<sys::kvfolio_offload_options>() as u32,
            reserved: 0,
            arena_bytes: self.arena_bytes,
            bytes_per_poll: self.bytes_per_poll,
            timeout_us: self.timeout_us,
            copy_timeout_us: self.copy_timeout_us,
            load_bytes_per_s: self.load_bytes_per_s,
            prefill_tokens_per_s: self.prefill_tokens_per_s,
            epoch: self.epoch,
            root_epochs: root_epochs.as_ptr(),
            num_root_epochs: root_epochs.len() as i64,
        }
    }
}

impl Deref for Offload {
    type Target = Cache;
    fn deref(&self) -> &Cache {
        &self.cache
    }
}

impl DerefMut for Offload {
    fn deref_mut(&mut self) -> &mut Cache {
        &mut self.cache
    }
}

impl Drop for Offload {
    fn drop(&mut self) {
        self.end();
    }
}

impl std::fmt::Debug for Offload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Offload")
            .field("arena", &self.arena())
            .field("counters", &self.offload_counters())
            .field("tiers", &self.tiers)
            .finish_non_exhaustive()
    }
}
