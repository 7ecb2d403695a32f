// SPDX-License-Identifier: Apache-2.0
//
// The cache and the life of its sequences. SAFETY of every call here and in steps.rs, room.rs and
// questions.rs: the handle lives as long as self; slices are passed with their lengths; const calls
// of C take &self, all others &mut self.

use crate::error::{call, invalid};
use crate::ids::Sequence;
use crate::plan::PlanSlots;
use crate::prompt::CPrompt;
use crate::spec::{count, groups_to_c};
use crate::storage::StorageMut;
use crate::{
    sys, Error, GroupSpec, OpLog, OpenOptions, Options, Order, Result, Soon, Step, Storage, View,
};
use std::mem::size_of;
use std::ops::{Deref, DerefMut};
use std::ptr::{null_mut, NonNull};

/// What [`Manager::open`] gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The new sequence.
    pub sequence: Sequence,
    /// Append the tokens from here on.
    pub cached_tokens: i32,
    /// What the prompt would find once another sequence has published it: [`Manager::soon`].
    pub soon: Option<Soon>,
}

/// Options of the child; `ForkOptions` in `manager_types.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForkOptions {
    /// A name for [`Manager::find`].
    pub caller_id: Option<u64>,
    /// For [`Policy::LowestPriority`](crate::Policy).
    pub priority: i32,
}

/// The blocks of many sequences: it decides which block holds which tokens, finds prompts that it
/// has seen, and gives the arrays of each step.
///
/// It dereferences to [`Manager`], which has all calls but the beginning of a step. Calls that take
/// `&self` are the const calls of C++: several threads may make them at the same time.
///
/// ```
/// use kvfolio::{Cache, GroupSpec, Options};
///
/// let layers = GroupSpec { num_layers: 32, num_kv_heads: 8, head_dim_k: 128, head_dim_v: 128,
///                          num_blocks: 1024, ..GroupSpec::default() };
/// let mut cache = Cache::new(&[layers], &Options::default())?; // ids; bytes: a Storage
/// let prompt: Vec<i32> = (0..500).collect();
/// for found in [0, 499] {
///     let opened = cache.open(&prompt, &Default::default())?; // finds and holds, in one call
///     assert_eq!(opened.cached_tokens, found);
///     let mut step = cache.begin_step()?;
///     step.append(opened.sequence, &prompt[found as usize..])?; // or NoBlocks: nothing changed
///     let plan = step.plan(&Default::default())?; // int32 arrays for your kernels
///     assert_eq!(plan.group(0).slot_mapping().len(), 500 - found as usize);
///     // Yours: run the copies, write K and V to the slots, attend over the block table.
///     step.finish()?;
///     cache.close(opened.sequence)?;
/// }
/// std::thread::scope(|scope| {
///     for _ in 0..2 {
///         scope.spawn(|| assert_eq!(cache.usage(0).unwrap().cached, 32));
///     }
/// });
/// # Ok::<(), kvfolio::Error>(())
/// ```
pub struct Cache {
    manager: Manager,
}

/// All calls of a cache that may also be made while a step is open. [`Cache`] and [`Step`] both
/// dereference to it.
///
/// `manager.h` says what each call does in full. A call that fails changes nothing.
pub struct Manager {
    pub(crate) raw: NonNull<sys::kvfolio_manager>,
    pub(crate) num_groups: i32,
    pub(crate) plans: PlanSlots,
    // Views and the resource, which outlive what drop() destroys. The memory is the manager's.
    storage: Option<Storage>,
    // Goes after drop() as well: until then C writes to it.
    pub(crate) log: Option<OpLog>,
}

// SAFETY: a handle may move between threads; const calls, which take &self, may run at the same
// time. The plans point to memory of the handle.
unsafe impl Send for Manager {}
unsafe impl Sync for Manager {}

impl Cache {
    /// Ids only: the engine has the bytes and runs the copies of each plan.
    pub fn new(groups: &[GroupSpec], options: &Options) -> Result<Cache> {
        check_abi()?;
        let (specs, options) = (groups_to_c(groups), options.to_c());
        let mut out = null_mut();
        call(|error| unsafe {
            let n = count(specs.len());
            sys::kvfolio_manager_create(specs.as_ptr(), n, &options, &mut out, error)
        })?;
        Cache::from_raw(out, None)
    }

    /// Takes the storage over, which is dropped if this fails.
    pub fn with_storage(mut storage: Storage, options: &Options) -> Result<Cache> {
        check_abi()?;
        let (mut handle, options) = (storage.handle(), options.to_c());
        let mut out = null_mut();
        call(|error| unsafe {
            sys::kvfolio_manager_create_with_storage(&mut handle, &options, &mut out, error)
        })?;
        storage.give_away();
        Cache::from_raw(out, Some(storage))
    }

    fn from_raw(raw: *mut sys::kvfolio_manager, mut storage: Option<Storage>) -> Result<Cache> {
        let raw = NonNull::new(raw).expect("C gave a manager");
        let num_groups = unsafe { sys::kvfolio_num_groups(raw.as_ptr()) };
        if let Some(storage) = &mut storage {
            let handle = unsafe { sys::kvfolio_manager_storage(raw.as_ptr()) };
            storage.belongs_to(NonNull::new(handle).expect("it was given one"));
        }
        let mut manager = Manager { raw, num_groups, plans: PlanSlots::none(), storage, log: None };
        let options = manager.options();
        let in_order = options.order == Order::InOrder;
        manager.plans = PlanSlots::new(options.max_steps_in_flight, num_groups, in_order);
        Ok(Cache { manager })
    }

    /// Opens a step, which borrows the cache until it is committed, finished or dropped.
    ///
    /// `FailedPrecondition`: `max_steps_in_flight` steps are in flight, or the last step was
    /// forgotten (`std::mem::forget`): [`Cache::drop_forgotten_step`] ends it.
    pub fn begin_step(&mut self) -> Result<Step<'_>> {
        self.begin_step_at(0)
    }

    /// The same with the time: the manager's only clock, which nothing reads yet.
    pub fn begin_step_at(&mut self, now_us: u64) -> Result<Step<'_>> {
        let mut ticket = 0;
        call(|error| unsafe {
            sys::kvfolio_begin_step(self.manager.raw.as_ptr(), now_us, &mut ticket, error)
        })?;
        Ok(Step::new(&mut self.manager, ticket))
    }

    /// Rolls a step back that was begun and then forgotten. Without one it does nothing.
    ///
    /// ```
    /// use kvfolio::{Cache, GroupSpec, Options};
    ///
    /// let groups = [GroupSpec { head_dim_k: 8, num_blocks: 64, ..GroupSpec::default() }];
    /// let mut cache = Cache::new(&groups, &Options::default())?;
    /// std::mem::forget(cache.begin_step_at(1_000)?);
    /// assert!(cache.begin_step().is_err()); // a step is open
    /// cache.drop_forgotten_step();
    /// assert!(cache.begin_step().is_ok());
    /// # Ok::<(), kvfolio::Error>(())
    /// ```
    pub fn drop_forgotten_step(&mut self) {
        if let Some(ticket) = self.manager.plans.open() {
            self.manager.roll_back(ticket);
        }
    }
}

impl Deref for Cache {
    type Target = Manager;
    fn deref(&self) -> &Manager {
        &self.manager
    }
}

impl DerefMut for Cache {
    fn deref_mut(&mut self) -> &mut Manager {
        &mut self.manager
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        // SAFETY: it was created here and goes once. Steps in flight end with it.
        unsafe { sys::kvfolio_manager_destroy(self.raw.as_ptr()) }
    }
}

impl std::fmt::Debug for Manager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.describe())
    }
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.manager.fmt(f)
    }
}

fn check_abi() -> Result<()> {
    let library = crate::abi_version();
    if library != sys::KVFOLIO_ABI_VERSION {
        return Err(Error::Unsupported(format!(
            "the library has ABI version {library}, this crate was written for {}",
            sys::KVFOLIO_ABI_VERSION
        )));
    }
    Ok(())
}

/// # Life of sequences
///
/// ```
/// use kvfolio::{Cache, ForkOptions, GroupSpec, OpenOptions, Options};
///
/// let groups = [GroupSpec { head_dim_k: 8, num_blocks: 64, ..GroupSpec::default() }];
/// let mut cache = Cache::new(&groups, &Options::default())?;
/// let named = OpenOptions { caller_id: Some(7), max_tokens: 100, ..OpenOptions::default() };
/// let a = cache.open(&[], &named)?.sequence;
/// let mut step = cache.begin_step()?;
/// step.append(a, &[5; 40])?;
/// step.finish()?;
///
/// let b = cache.fork(a, &ForkOptions { caller_id: Some(8), priority: 1 })?; // shares every block
/// cache.set_priority(b, -1)?;
/// cache.touch(b)?; // a use, for the policies by use
/// cache.truncate(b, 20)?; // forgets the tokens from 20 on
/// assert_eq!(cache.trim(a, 16, 16)?, 8); // sinks and a window: 8 of 40 went, positions stay
/// cache.clear(b)?; // the same id, no tokens
/// let table = cache.block_table(a, 0)?[..1].to_vec();
/// cache.adopt(b, &[&table], 16)?; // blocks of `a`, by table
/// cache.close(b)?; // what it published stays findable
/// let c = cache.open(&[1], &OpenOptions::default())?.sequence;
/// cache.cancel(c)?; // its request was given up: out of the step, too
/// cache.preempt(a)?; // a close() that makes room
/// assert_eq!(cache.num_sequences(), 0);
/// assert!(cache.storage().is_none() && cache.storage_mut().is_none()); // ids only
/// # Ok::<(), kvfolio::Error>(())
/// ```
impl Manager {
    /// Opens a sequence and holds what the cache has of the prompt. Append the tokens from
    /// `cached_tokens` on. A sequence that was preempted comes back the same way: open its prompt and
    /// what it generated, and append the rest. Allowed while a step is open.
    pub fn open(&mut self, tokens: &[i32], options: &OpenOptions) -> Result<Opened> {
        let p = CPrompt::new(tokens, options);
        let (mut sequence, mut found) = (0, sys::kvfolio_found::new());
        call(|error| unsafe {
            sys::kvfolio_open(
                self.raw.as_ptr(),
                p.root,
                p.tokens,
                p.num_tokens,
                p.media,
                p.num_media,
                &p.options,
                &mut sequence,
                &mut found,
                error,
            )
        })?;
        let soon = Soon::of(found.soon_tokens, found.soon_by);
        Ok(Opened { sequence: Sequence(sequence), cached_tokens: found.cached_tokens, soon })
    }

    /// Opens a sequence that has the same tokens and shares every block: after the prompt's step is
    /// finished, say, so that both sample from the same logits. `FailedPrecondition`: the parent is
    /// in the open step. Without stream order the child takes no append before the step of the
    /// parent's last one is complete.
    pub fn fork(&mut self, parent: Sequence, options: &ForkOptions) -> Result<Sequence> {
        let options = sys::kvfolio_fork_options {
            struct_size: size_of::<sys::kvfolio_fork_options>() as u32,
            has_caller_id: options.caller_id.is_some() as i32,
            caller_id: options.caller_id.unwrap_or(0),
            priority: options.priority,
            reserved: 0,
        };
        let mut out = 0;
        call(|error| unsafe {
            sys::kvfolio_fork(self.raw.as_ptr(), parent.0, &options, &mut out, error)
        })?;
        Ok(Sequence(out))
    }

    /// Gives an empty sequence blocks that are held already, by one table for each group.
    pub fn adopt(&mut self, sequence: Sequence, tables: &[&[i32]], num_tokens: i32) -> Result<()> {
        let all = tables.concat();
        let sizes: Vec<i64> = tables.iter().map(|table| table.len() as i64).collect();
        call(|error| unsafe {
            sys::kvfolio_adopt(
                self.raw.as_ptr(),
                sequence.0,
                all.as_ptr(),
                sizes.as_ptr(),
                count(sizes.len()),
                num_tokens,
                error,
            )
        })
    }

    /// Forgets the tokens from position `num_tokens` on, drafts too; those in front of it stay
    /// undecided. Never refused from `rewind_from` of the sequence's `info()` on, unless the sequence
    /// is in the open step or `num_tokens` is beyond its length. Below, what is read there may not be
    /// there any more (close it, and open the first `num_tokens` tokens again), or to take it back is
    /// a shortage.
    pub fn truncate(&mut self, sequence: Sequence, num_tokens: i32) -> Result<()> {
        call(|error| unsafe {
            sys::kvfolio_truncate(self.raw.as_ptr(), sequence.0, num_tokens, error)
        })
    }

    /// Forgets all tokens; the sequence stays open.
    pub fn clear(&mut self, sequence: Sequence) -> Result<()> {
        call(|error| unsafe { sys::kvfolio_clear(self.raw.as_ptr(), sequence.0, error) })
    }

    /// Keeps the first `num_sinks` and the last `window` tokens; returns how many went.
    pub fn trim(&mut self, sequence: Sequence, num_sinks: i64, window: i64) -> Result<i32> {
        let mut dropped = 0;
        call(|error| unsafe {
            let this = self.raw.as_ptr();
            sys::kvfolio_trim(this, sequence.0, num_sinks, window, &mut dropped, error)
        })?;
        Ok(dropped)
    }

    /// Ends a sequence.
    pub fn close(&mut self, sequence: Sequence) -> Result<()> {
        call(|error| unsafe { sys::kvfolio_close(self.raw.as_ptr(), sequence.0, error) })
    }

    /// Ends a sequence whose request was given up: takes it out of the open step, if it is in it, and
    /// closes it.
    pub fn cancel(&mut self, sequence: Sequence) -> Result<()> {
        self.plans.changed();
        call(|error| unsafe { sys::kvfolio_cancel(self.raw.as_ptr(), sequence.0, error) })
    }

    /// Ends a sequence that must make room; takes it out of the open step first. So an append that is
    /// short may end any other one, or its own, and be called again.
    pub fn preempt(&mut self, sequence: Sequence) -> Result<()> {
        self.plans.changed();
        call(|error| unsafe { sys::kvfolio_preempt(self.raw.as_ptr(), sequence.0, error) })
    }

    /// For [`Policy::LowestPriority`](crate::Policy).
    pub fn set_priority(&mut self, sequence: Sequence, priority: i32) -> Result<()> {
        call(|error| unsafe {
            sys::kvfolio_set_priority(self.raw.as_ptr(), sequence.0, priority, error)
        })
    }

    /// Counts as a use though nothing is appended, for [`Policy::Lru`](crate::Policy) and
    /// [`Policy::Lfu`](crate::Policy).
    pub fn touch(&mut self, sequence: Sequence) -> Result<()> {
        call(|error| unsafe { sys::kvfolio_touch(self.raw.as_ptr(), sequence.0, error) })
    }

    /// Makes `target` a deep equal of this: the same sequences under the same ids. All that it held
    /// is gone, an open step and its plan too.
    ///
    /// ```
    /// use kvfolio::{Cache, GroupSpec, Options};
    ///
    /// let groups = [GroupSpec { head_dim_k: 8, num_blocks: 64, ..GroupSpec::default() }];
    /// let mut cache = Cache::new(&groups, &Options::default())?;
    /// let sequence = cache.open(&[1, 2, 3], &Default::default())?.sequence;
    /// let mut copy = Cache::new(&groups, &Options::default())?;
    /// cache.copy_to(&mut copy)?;
    /// assert_eq!(cache.info(sequence)?, copy.info(sequence)?);
    /// # Ok::<(), kvfolio::Error>(())
    /// ```
    pub fn copy_to(&self, target: &mut Manager) -> Result<()> {
        call(|error| unsafe {
            sys::kvfolio_copy_to(self.raw.as_ptr(), target.raw.as_ptr(), error)
        })?;
        target.plans.copied_from(&self.plans);
        Ok(())
    }

    /// K and V, if the cache has them.
    pub fn storage(&self) -> Option<&Storage> {
        self.storage.as_ref()
    }

    /// K and V to write to. During a step take [`Plan::view_mut`](crate::Plan::view_mut).
    pub fn storage_mut(&mut self) -> Option<StorageMut<'_>> {
        self.storage.as_mut().map(StorageMut::of)
    }

    pub(crate) fn needs_storage(&self) -> Result<&Storage> {
        self.storage.as_ref().ok_or_else(no_storage)
    }

    /// All layers of a group, to read. Many threads may attend at the same time.
    pub fn view(&self, group: i32) -> Result<View<'_>> {
        self.needs_storage()?.view(group)
    }

    /// All layers of a group, to write.
    pub fn view_mut(&mut self, group: i32) -> Result<crate::ViewMut<'_>> {
        self.storage_mut().ok_or_else(no_storage)?.into_view(group)
    }

    pub(crate) fn roll_back(&mut self, ticket: u64) {
        self.plans.ended(ticket);
        // It fails if fail() has ended the step already: there is nothing to do then.
        let _ = call(|error| unsafe { sys::kvfolio_drop(self.raw.as_ptr(), ticket, error) });
    }
}

fn no_storage() -> Error {
    Error::Unsupported("the cache has ids only: it was made without a Storage".into())
}

pub(crate) fn check_pair(what: &str, n: usize, sequences: usize) -> Result<()> {
    if n != sequences {
        return invalid(format!("{n} {what} for {sequences} sequences"));
    }
    Ok(())
}
