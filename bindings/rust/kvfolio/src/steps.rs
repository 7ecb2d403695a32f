// SPDX-License-Identifier: Apache-2.0
//
// Steps. For SAFETY see manager.rs.

use crate::error::call;
use crate::ids::{Sequence, Ticket};
use crate::manager::check_pair;
use crate::plan::PlanArrays;
use crate::prompt::CPrompt;
use crate::{sys, Manager, OpenOptions, Result, Stopped, View, ViewMut};
use std::ops::{Deref, DerefMut};

/// The open step. It borrows the cache, so there is one at a time; dropped, it rolls back: all its
/// appends are undone.
///
/// It dereferences to [`Manager`]: what may be called while a step is open may be called on it.
///
/// ```
/// use kvfolio::{Cache, GroupSpec, Options};
///
/// let groups = [GroupSpec { head_dim_k: 8, num_blocks: 64, ..GroupSpec::default() }];
/// let mut cache = Cache::new(&groups, &Options::default())?;
/// let a = cache.open(&[], &Default::default())?.sequence;
/// let b = cache.open(&[], &Default::default())?.sequence;
///
/// let mut step = cache.begin_step()?;
/// step.append(a, &[1, 2, 3])?;
/// step.append_each(&[b], &[4])?; // a decode step in one call
/// step.undo(b)?;
/// assert!(step.info(a)?.in_open_step && !step.info(b)?.in_open_step);
/// drop(step); // or step.roll_back()
/// assert_eq!(cache.info(a)?.length, 0);
///
/// let mut step = cache.begin_step()?;
/// step.append_draft(a, &[1, 2, 3], 2)?; // the last two are guesses
/// let ticket = step.ticket();
/// assert_eq!(step.finish()?, ticket);
/// assert_eq!(kvfolio::Ticket::from_raw(ticket.get()), ticket); // a number, for a log
/// cache.accept(a, 1)?; // one of them was right
/// assert_eq!(cache.info(a)?.length, 2);
/// cache.begin_step()?.roll_back();
/// # Ok::<(), kvfolio::Error>(())
/// ```
///
/// Tokens that the host does not know yet get their names later:
///
/// ```
/// use kvfolio::{Cache, GroupSpec, OpenOptions, Options};
///
/// let groups = [GroupSpec { head_dim_k: 8, num_blocks: 64, ..GroupSpec::default() }];
/// let mut cache = Cache::new(&groups, &Options::default())?;
/// let mut step = cache.begin_step()?;
/// let late = OpenOptions { late_names: true, ..OpenOptions::default() };
/// let a = step.open_unnamed(40, &late)?; // open() and append_unnamed() in one call
/// let b = step.open(&[], &late)?.sequence;
/// let c = step.open(&[], &late)?.sequence;
/// step.append_unnamed(b, 2)?;
/// step.append_unnamed_each(&[c])?;
/// step.finish()?;
/// cache.set_tokens(a, &[1; 40])?;
/// cache.set_tokens_each(&[b, c], &[8, 9])?;
/// assert_eq!((cache.info(b)?.num_unnamed, cache.info(c)?.num_unnamed), (1, 0));
/// let mut step = cache.begin_step()?;
/// step.append_unnamed_draft(a, 3, 3)?;
/// # Ok::<(), kvfolio::Error>(())
/// ```
///
/// An append that is short of blocks preempts another sequence, inside the step, and is made again.
/// Then new requests join the step as long as they fit into what it leaves:
///
/// ```
/// use kvfolio::{Cache, Error, GroupSpec, Options};
///
/// let group = GroupSpec { head_dim_k: 8, block_size: 4, num_blocks: 6, ..GroupSpec::default() };
/// let mut cache = Cache::new(&[group], &Options::default())?;
/// let idle = cache.open(&[1; 12], &Default::default())?.sequence;
/// let mut step = cache.begin_step()?;
/// step.append(idle, &[1; 12])?;
/// step.finish()?; // 3 of 6 blocks
///
/// let long = cache.open(&[2; 17], &Default::default())?.sequence;
/// let mut step = cache.begin_step()?;
/// let mut preempted = Vec::new();
/// loop {
///     match step.append(long, &[2; 17]) {
///         Err(Error::NoBlocks { .. }) => match step.select_victim(None) {
///             Some(victim) => {
///                 step.preempt(victim)?; // its blocks are free now, or cached
///                 preempted.push(victim); // resume it later: open what it had, append the rest
///             }
///             None => break, // no other sequence can make room: this one waits for a later step
///         },
///         answer => break answer?,
///     }
/// }
/// assert_eq!(preempted, [idle]);
///
/// // One block is left. admit_prompt() counts with what the open step has taken already.
/// let new = [3; 4];
/// assert!(matches!(step.admit_prompt(&new, &Default::default(), 1), Err(Error::NoBlocks { .. })));
/// let admission = step.admit_prompt(&new, &Default::default(), 0)?; // without room to generate
/// assert_eq!(admission.blocks(), [1]);
/// let opened = step.open(&new, &Default::default())?; // holds what it finds
/// step.append(opened.sequence, &new[opened.cached_tokens as usize..])?; // as was said
/// step.finish()?;
/// # Ok::<(), kvfolio::Error>(())
/// ```
#[must_use = "a step that is dropped rolls back"]
pub struct Step<'c> {
    manager: &'c mut Manager,
    ticket: u64,
}

impl<'c> Step<'c> {
    pub(crate) fn new(manager: &'c mut Manager, ticket: u64) -> Step<'c> {
        manager.plans.begun(ticket);
        Step { manager, ticket }
    }

    /// The handle for a call that changes the step.
    fn change(&mut self) -> *mut sys::kvfolio_manager {
        self.manager.plans.changed();
        self.manager.raw.as_ptr()
    }

    /// The number of the step.
    pub fn ticket(&self) -> Ticket {
        Ticket(self.ticket)
    }

    /// Reserves slots for tokens whose K and V this step writes: the model's inputs. The whole
    /// prompt behind what [`Manager::open`] found of it is refused: append the tokens from
    /// `cached_tokens` on.
    pub fn append(&mut self, sequence: Sequence, tokens: &[i32]) -> Result<()> {
        self.append_draft(sequence, tokens, 0)
    }

    /// The same; the last `draft` tokens are guesses: [`Manager::accept`] decides. Behind undecided
    /// drafts an append assumes that all of them stand.
    pub fn append_draft(&mut self, sequence: Sequence, tokens: &[i32], draft: i32) -> Result<()> {
        let (this, n) = (self.change(), tokens.len() as i64);
        call(|error| unsafe {
            sys::kvfolio_append(this, sequence.0, tokens.as_ptr(), n, draft, error)
        })
    }

    /// Appends the next tokens of the prompt that the sequence lacks, at most `at_most`. Returns how
    /// many; 0: it has them all. A prompt that differs from what the sequence has said is refused.
    pub fn append_prompt(
        &mut self,
        sequence: Sequence,
        prompt: &[i32],
        at_most: i64,
    ) -> Result<i32> {
        let (this, n) = (self.change(), prompt.len() as i64);
        let mut count = 0;
        call(|error| unsafe {
            let tokens = prompt.as_ptr();
            sys::kvfolio_append_prompt(this, sequence.0, tokens, n, at_most, &mut count, error)
        })?;
        Ok(count)
    }

    /// Appends tokens whose ids the host does not know yet: [`Manager::set_tokens`] names them.
    pub fn append_unnamed(&mut self, sequence: Sequence, num_tokens: i64) -> Result<()> {
        self.append_unnamed_draft(sequence, num_tokens, 0)
    }

    /// The same; the last `draft` tokens are guesses.
    pub fn append_unnamed_draft(
        &mut self,
        sequence: Sequence,
        num_tokens: i64,
        draft: i32,
    ) -> Result<()> {
        let this = self.change();
        call(|error| unsafe {
            sys::kvfolio_append_unnamed(this, sequence.0, num_tokens, draft, error)
        })
    }

    /// Appends `tokens[i]` to `sequences[i]`: a decode step in one call. Ends at the first that
    /// fails; those before it are in the step then.
    pub fn append_each(
        &mut self,
        sequences: &[Sequence],
        tokens: &[i32],
    ) -> std::result::Result<(), Stopped> {
        each(check_pair("tokens", tokens.len(), sequences.len()), |done, error| unsafe {
            let (ids, n) = (sequences.as_ptr().cast(), sequences.len() as i64);
            sys::kvfolio_append_each(self.change(), ids, tokens.as_ptr(), n, done, error)
        })
    }

    /// One unnamed token to each sequence, as [`Step::append_each`].
    pub fn append_unnamed_each(
        &mut self,
        sequences: &[Sequence],
    ) -> std::result::Result<(), Stopped> {
        each(Ok(()), |done, error| unsafe {
            let (ids, n) = (sequences.as_ptr().cast(), sequences.len() as i64);
            sys::kvfolio_append_unnamed_each(self.change(), ids, n, done, error)
        })
    }

    /// [`Manager::open`] and [`Step::append_unnamed`] in one call, both or neither.
    pub fn open_unnamed(&mut self, num_tokens: i64, options: &OpenOptions) -> Result<Sequence> {
        let p = CPrompt::new(&[], options);
        let mut out = 0;
        let this = self.change();
        call(|error| unsafe {
            sys::kvfolio_open_unnamed(
                this,
                p.root,
                num_tokens,
                p.media,
                p.num_media,
                &p.options,
                &mut out,
                error,
            )
        })?;
        Ok(Sequence(out))
    }

    /// Takes a sequence out of the step.
    pub fn undo(&mut self, sequence: Sequence) -> Result<()> {
        let this = self.change();
        call(|error| unsafe { sys::kvfolio_undo(this, sequence.0, error) })
    }

    /// The arrays of the step. The plan borrows the step: what changes the step comes after it.
    pub fn plan(&mut self, options: &PlanOptions) -> Result<Plan<'_>> {
        self.plan_with(options.to_c())
    }

    /// The same, with the arrays of numbers in memory of the caller, pinned, say. It begins at a
    /// multiple of 8; [`Manager::plan_bytes`] says how much of it there must be. Each array begins a
    /// multiple of 16 bytes behind the begin of the memory, and with equal options that fix all
    /// shapes at the same place.
    ///
    /// # Safety
    ///
    /// `memory` is `bytes` bytes that may be written, and that nothing else writes to, until the step
    /// has ended or was planned again, and as long as what this returns is used.
    pub unsafe fn plan_in(
        &mut self,
        options: &PlanOptions,
        memory: *mut u8,
        bytes: usize,
    ) -> Result<Plan<'_>> {
        let mut options = options.to_c();
        options.memory = memory.cast();
        options.memory_bytes = bytes as i64;
        self.plan_with(options)
    }

    fn plan_with(&mut self, options: sys::kvfolio_plan_options) -> Result<Plan<'_>> {
        let this = self.manager.raw.as_ptr();
        let slot = self.manager.plans.slot();
        call(|error| unsafe {
            let n = slot.groups.len() as i32;
            sys::kvfolio_plan(this, &options, &mut slot.step, slot.groups.as_mut_ptr(), n, error)
        })?;
        // C planned the step that is open: not this one, if the managers of two steps were exchanged.
        slot.is_planned();
        // They live until the step ends or is planned again. Both need `self`, which is borrowed.
        let arrays = slot.arrays();
        Ok(Plan { arrays, manager: self.manager })
    }

    /// Runs the copies of the step on the cache's own storage, once per step. The step then takes
    /// no more appends. [`Plan::run_copies`] is the same.
    pub fn run_copies(&mut self) -> Result<()> {
        run_copies(self.manager)
    }

    /// The work is enqueued: lengths advance, the next step may begin. The plan cannot be read any
    /// more through the step; [`Manager::plan_of`] gives it until the step is complete.
    ///
    /// Refused, and rolled back as a whole, is a step whose sequences are not those of its last plan:
    /// one was appended since, or taken out ([`Step::undo`], [`Manager::preempt`],
    /// [`Manager::cancel`]), so plan again before. So is, on storage, a step whose copies have not run
    /// (see [`Options::copies_by_host`](crate::Options::copies_by_host)).
    pub fn commit(self) -> Result<Ticket> {
        call(|error| unsafe {
            sys::kvfolio_commit(self.manager.raw.as_ptr(), self.ticket, error)
        })?;
        self.manager.plans.committed();
        Ok(self.ended())
    }

    /// `commit()` and `complete()`, for engines that have computed already. Refused as `commit()` is.
    pub fn finish(self) -> Result<Ticket> {
        call(|error| unsafe {
            sys::kvfolio_finish(self.manager.raw.as_ptr(), self.ticket, error)
        })?;
        self.manager.plans.ended(self.ticket);
        self.manager.plans.completed(self.ticket);
        Ok(self.ended())
    }

    /// Undoes all appends. Sequences that were opened during the step stay open.
    pub fn roll_back(self) {}

    fn ended(self) -> Ticket {
        let ticket = self.ticket();
        std::mem::forget(self); // it holds nothing but the borrow
        ticket
    }
}

impl std::fmt::Debug for Step<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Step({})", self.ticket)
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        self.manager.roll_back(self.ticket);
    }
}

impl Deref for Step<'_> {
    type Target = Manager;
    fn deref(&self) -> &Manager {
        self.manager
    }
}

impl DerefMut for Step<'_> {
    fn deref_mut(&mut self) -> &mut Manager {
        self.manager
    }
}

/// Calls what ends at the first sequence that fails.
fn each(
    checked: Result<()>,
    f: impl FnOnce(*mut i64, *mut sys::kvfolio_error) -> i32,
) -> std::result::Result<(), Stopped> {
    let mut done = 0;
    checked
        .and_then(|()| call(|error| f(&mut done, error)))
        .map_err(|error| Stopped { done: done as usize, error })
}

fn run_copies(manager: &mut Manager) -> Result<()> {
    call(|error| unsafe { sys::kvfolio_run_copies(manager.raw.as_ptr(), error) })
}

/// Which arrays a plan has, and with which shapes. A graph that was captured once wants the same
/// shapes for every step:
///
/// ```
/// use kvfolio::{Cache, GroupSpec, Options, PlanOptions};
///
/// let groups = [GroupSpec { head_dim_k: 8, num_blocks: 64, ..GroupSpec::default() }];
/// let options = Options { null_block: true, ..Options::default() };
/// let mut cache = Cache::new(&groups, &options)?;
/// let sequence = cache.open(&[], &Default::default())?.sequence;
/// let shapes = PlanOptions { table_stride: &[4], padded_sequences: 2, padded_tokens: 3,
///                            int64_slots: true, ..PlanOptions::default() };
/// let mut memory = vec![0u64; cache.plan_bytes(&shapes)? as usize / 8];
/// let begin = memory.as_ptr() as usize;
/// let mut step = cache.begin_step()?;
/// step.append(sequence, &[7, 8])?;
/// // SAFETY: `memory` stays until the step is finished, and nothing else writes there.
/// let plan = unsafe { step.plan_in(&shapes, memory.as_mut_ptr().cast(), memory.len() * 8) }?;
/// assert_eq!((plan.num_tokens(), plan.query_start()), (2, &[0, 2, 2][..]));
/// assert_eq!((plan.kv_lens(), plan.rows()), (&[2, 0][..], &[0, -1][..]));
/// assert_eq!(plan.group(0).slot_mapping_64(), [16, 17, -1]); // behind block 0
/// assert_eq!(plan.group(0).block_table(), [1, 0, 0, 0, 0, 0, 0, 0]);
/// assert_eq!(plan.query_start().as_ptr() as usize, begin);
/// step.finish()?;
/// # Ok::<(), kvfolio::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanOptions<'a> {
    /// False: block tables are padded with -1.
    pub pad_with_zero: bool,
    /// For engines that keep block tables of their own.
    pub no_block_tables: bool,
    /// The entries of block tables that changed since the last plan that had them.
    pub changed_entries: bool,
    /// `kv_indptr`, `kv_indices` and `kv_last_page_len`.
    pub flashinfer: bool,
    /// Runs of sequences with the same leading blocks.
    pub shared_prefixes: bool,
    /// The position of each token.
    pub positions: bool,
    /// The callers' own names of the sequences.
    pub caller_ids: bool,
    /// By group, or empty: entries of a row of `block_table`. 0: as many as the longest table has. A
    /// step with a longer one is refused, and a stride beyond what a table of the group can ever have:
    /// the blocks of 2^30 tokens, or `max_table_entries`; `widest` is allowed always. Without memory of
    /// the caller a step keeps a buffer up to one and a half times as large as its largest plan.
    pub table_stride: &'a [i32],
    /// Rows of the plan; those behind the step's sequences have no tokens. 0: those of the step.
    pub padded_sequences: i32,
    /// Slots and positions; those behind the step's tokens are -1 and 0. 0: those of the step.
    pub padded_tokens: i32,
    /// [`slot_mapping_64`](crate::GroupPlan::slot_mapping_64) in place of `slot_mapping`.
    pub int64_slots: bool,
}

impl PlanOptions<'_> {
    pub(crate) fn to_c(self) -> sys::kvfolio_plan_options {
        sys::kvfolio_plan_options {
            pad_with_zero: self.pad_with_zero as i32,
            no_block_tables: self.no_block_tables as i32,
            changed_entries: self.changed_entries as i32,
            flashinfer: self.flashinfer as i32,
            shared_prefixes: self.shared_prefixes as i32,
            positions: self.positions as i32,
            caller_ids: self.caller_ids as i32,
            table_stride: sys::kvfolio_i32s {
                data: self.table_stride.as_ptr(),
                size: self.table_stride.len() as i64,
            },
            padded_sequences: self.padded_sequences,
            padded_tokens: self.padded_tokens,
            int64_slots: self.int64_slots as i32,
            ..sys::kvfolio_plan_options::new()
        }
    }
}

/// The arrays of the open step, and the way to the memory that they speak of. It borrows the step,
/// and dereferences to [`PlanArrays`].
///
/// ```
/// use kvfolio::{Cache, GroupSpec, Options, PlanOptions, Rows, Storage};
///
/// let group = GroupSpec { head_dim_k: 2, head_dim_v: 2, num_blocks: 8, ..GroupSpec::default() };
/// let mut cache = Cache::with_storage(Storage::new(&[group])?, &Options::default())?;
/// let sequence = cache.open(&[], &Default::default())?.sequence;
/// let mut step = cache.begin_step()?;
/// step.append(sequence, &[7, 8])?;
///
/// let mut plan = step.plan(&PlanOptions::default())?;
/// plan.run_copies()?; // copy-on-write, if another sequence shares a block (or step.run_copies())
/// let slots = plan.group(0).slot_mapping();
/// let rows = |data| Rows::f32(data, [2, 1, 2]);
/// let (k, v) = ([1.0, 2.0, 3.0, 4.0], [5.0; 4]);
/// plan.view_mut(0)?.append_rows(0, rows(&k), Some(rows(&v)), slots)?;
/// assert_eq!(plan.view(0)?.k::<f32>(0, 0, 0, 1), Some(&[3.0, 4.0][..]));
/// step.finish()?;
/// # Ok::<(), kvfolio::Error>(())
/// ```
pub struct Plan<'s> {
    arrays: PlanArrays<'s>,
    manager: &'s mut Manager,
}

impl<'s> Plan<'s> {
    /// The arrays as a value that lives beside views to write.
    pub fn arrays(&self) -> PlanArrays<'s> {
        self.arrays
    }

    /// Runs the copies of the step on the cache's own storage, once per step. The step then takes
    /// no more appends.
    pub fn run_copies(&mut self) -> Result<()> {
        run_copies(self.manager)
    }

    /// All layers of a group, to read.
    pub fn view(&self, group: i32) -> Result<View<'_>> {
        self.manager.view(group)
    }

    /// All layers of a group, to write.
    pub fn view_mut(&mut self, group: i32) -> Result<ViewMut<'_>> {
        self.manager.view_mut(group)
    }

    /// K and V to write to: for layers that were lent apart, and for copies.
    pub fn storage_mut(&mut self) -> Option<crate::StorageMut<'_>> {
        self.manager.storage_mut()
    }
}

impl std::fmt::Debug for Plan<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.arrays.fmt(f)
    }
}

impl<'s> Deref for Plan<'s> {
    type Target = PlanArrays<'s>;
    fn deref(&self) -> &PlanArrays<'s> {
        &self.arrays
    }
}

/// A sequence that a call ended.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Ended(sys::kvfolio_ended);

impl Ended {
    /// Its id, which is gone.
    pub fn sequence(&self) -> Sequence {
        Sequence(self.0.sequence)
    }
    /// The name that its caller gave it.
    pub fn caller_id(&self) -> Option<u64> {
        Some(self.0.caller_id).filter(|_| self.0.has_caller_id != 0)
    }
}

impl std::fmt::Debug for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ended({}, caller {:?})", self.0.sequence, self.caller_id())
    }
}

/// Calls what gives a list of ended sequences.
pub(crate) fn ended<'a>(
    f: impl FnOnce(*mut *const sys::kvfolio_ended, *mut i64, *mut sys::kvfolio_error) -> i32,
) -> Result<&'a [Ended]> {
    let (mut list, mut n) = (std::ptr::null(), 0);
    call(|error| f(&mut list, &mut n, error))?;
    if n == 0 {
        return Ok(&[]);
    }
    // SAFETY: C gives an array of the manager, which callers borrow for 'a.
    Ok(unsafe { std::slice::from_raw_parts(list.cast(), n as usize) })
}

/// # Steps in flight
///
/// A committed step is a [`Ticket`]: a number that C checks, so steps may be kept in any container
/// and completed in any order that [`Order`](crate::Order) allows.
///
/// ```
/// use kvfolio::{Cache, GroupSpec, OpenOptions, Options};
///
/// let groups = [GroupSpec { head_dim_k: 8, num_blocks: 64, ..GroupSpec::default() }];
/// let mut cache = Cache::new(&groups, &Options::default())?; // two steps in flight
/// let named = OpenOptions { caller_id: Some(7), ..OpenOptions::default() };
/// let a = cache.open(&[], &named)?.sequence;
/// let mut tickets = Vec::new();
/// for token in [1, 2] {
///     let mut step = cache.begin_step()?;
///     step.append(a, &[token])?;
///     step.plan(&Default::default())?; // upload the arrays, enqueue the work
///     tickets.push(step.commit()?);
/// }
/// assert!(cache.begin_step().is_err()); // both are in flight
/// let first = cache.plan_of(tickets[0]).unwrap(); // there until complete
/// assert_eq!(first.group(0).slot_mapping(), [0]);
/// cache.complete(tickets[0])?;
/// assert!(cache.plan_of(tickets[0]).is_none());
/// let ended = cache.fail(tickets[1])?; // the device failed: each sequence of that step is closed
/// assert_eq!((ended.len(), ended[0].sequence(), ended[0].caller_id()), (1, a, Some(7)));
/// # Ok::<(), kvfolio::Error>(())
/// ```
impl Manager {
    /// The plan of a step that is committed and not complete, or of the open one if it is current.
    /// `None` if the step was not planned since it last changed.
    pub fn plan_of(&self, ticket: Ticket) -> Option<PlanArrays<'_>> {
        self.plans.find(ticket)
    }

    /// The device has finished the step, and in order all earlier ones.
    pub fn complete(&mut self, ticket: Ticket) -> Result<()> {
        call(|error| unsafe { sys::kvfolio_complete(self.raw.as_ptr(), ticket.0, error) })?;
        self.plans.completed(ticket.0);
        Ok(())
    }

    /// The device has failed and is idle. Ends every step from `ticket` on and closes each sequence
    /// that they wrote to, or that holds a block of theirs. One that found its whole prompt and
    /// appended only its last token wrote nothing: it stays open, with its length and rewinds, and
    /// what it sampled is lost. Close it too, and open its text again.
    pub fn fail(&mut self, ticket: Ticket) -> Result<&[Ended]> {
        let this = self.raw.as_ptr();
        let list =
            ended(|list, n, error| unsafe { sys::kvfolio_fail(this, ticket.0, list, n, error) })?;
        self.plans.failed(ticket.0);
        Ok(list)
    }

    /// Decides on the drafts of the oldest append that has some: the first `num_accepted` of them
    /// stand. If that is fewer than all, what was appended behind them is cut as well, and
    /// `rewinds` of the sequence's info counts it: its rows in steps in flight are void then. Due
    /// once for each append with drafts; for one without, such as a chunk of a prompt, it would
    /// decide on those of a later one.
    pub fn accept(&mut self, sequence: Sequence, num_accepted: i32) -> Result<()> {
        call(|error| unsafe {
            sys::kvfolio_accept(self.raw.as_ptr(), sequence.0, num_accepted, error)
        })
    }

    /// Names the oldest unnamed tokens of a sequence, in order. What a step samples is the input of
    /// the next one.
    pub fn set_tokens(&mut self, sequence: Sequence, tokens: &[i32]) -> Result<()> {
        let (this, n) = (self.raw.as_ptr(), tokens.len() as i64);
        call(|error| unsafe {
            sys::kvfolio_set_tokens(this, sequence.0, tokens.as_ptr(), n, error)
        })
    }

    /// Names one token of each sequence. Ends at the first that fails; those before it have their
    /// names then.
    pub fn set_tokens_each(
        &mut self,
        sequences: &[Sequence],
        tokens: &[i32],
    ) -> std::result::Result<(), Stopped> {
        each(check_pair("tokens", tokens.len(), sequences.len()), |done, error| unsafe {
            let (ids, n) = (sequences.as_ptr().cast(), sequences.len() as i64);
            sys::kvfolio_set_tokens_each(self.raw.as_ptr(), ids, tokens.as_ptr(), n, done, error)
        })
    }
}
