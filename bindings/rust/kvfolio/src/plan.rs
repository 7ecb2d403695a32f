// SPDX-License-Identifier: Apache-2.0
//
// Where the plans of steps are, until their steps have ended.

use crate::ids::{Sequence, Ticket};
use crate::{sys, Batch};
use std::marker::PhantomData;

pub(crate) struct Slot {
    ticket: u64, // 0: no plan
    pub step: sys::kvfolio_step_plan,
    pub groups: Vec<sys::kvfolio_group_plan>,
}

/// A plan for the open step and for each step in flight. What is here is valid: whatever ends a
/// step, or makes C write its arrays anew, takes its plan away first.
pub(crate) struct PlanSlots {
    slots: Vec<Slot>,
    is_in_order: bool,
    open: u64, // the open step, 0: none
}

impl PlanSlots {
    pub(crate) fn none() -> PlanSlots {
        PlanSlots { slots: Vec::new(), is_in_order: true, open: 0 }
    }

    pub(crate) fn new(max_steps_in_flight: i32, num_groups: i32, is_in_order: bool) -> PlanSlots {
        let slot = |_| Slot {
            ticket: 0,
            step: sys::kvfolio_step_plan::new(),
            groups: vec![sys::kvfolio_group_plan::new(); num_groups as usize],
        };
        PlanSlots { slots: (0..=max_steps_in_flight).map(slot).collect(), is_in_order, open: 0 }
    }

    pub(crate) fn begun(&mut self, ticket: u64) {
        self.open = ticket;
    }

    pub(crate) fn open(&self) -> Option<u64> {
        Some(self.open).filter(|&ticket| ticket != 0)
    }

    pub(crate) fn committed(&mut self) {
        self.open = 0;
    }

    /// The open step has changed: its plan is stale.
    pub(crate) fn changed(&mut self) {
        if self.open != 0 {
            let open = self.open;
            self.forget(|ticket| ticket == open);
        }
    }

    /// A place for the plan of the open step. It counts once [`Slot::is_planned`] was called.
    pub(crate) fn slot(&mut self) -> &mut Slot {
        self.changed();
        let free = self.slots.iter().position(|slot| slot.ticket == 0);
        let at = free.unwrap_or_else(|| {
            let groups = self.slots[0].groups.clone();
            self.slots.push(Slot { ticket: 0, step: sys::kvfolio_step_plan::new(), groups });
            self.slots.len() - 1
        });
        &mut self.slots[at]
    }

    fn forget(&mut self, is_gone: impl Fn(u64) -> bool) {
        for slot in self.slots.iter_mut().filter(|slot| is_gone(slot.ticket)) {
            slot.ticket = 0;
        }
    }

    /// The open step was dropped or finished.
    pub(crate) fn ended(&mut self, ticket: u64) {
        if self.open == ticket {
            self.open = 0;
        }
        self.forget(|t| t == ticket);
    }

    pub(crate) fn completed(&mut self, ticket: u64) {
        let is_in_order = self.is_in_order;
        self.forget(|t| t == ticket || (is_in_order && t < ticket));
    }

    pub(crate) fn failed(&mut self, ticket: u64) {
        if self.open >= ticket {
            self.open = 0;
        }
        self.forget(|t| t >= ticket);
    }

    /// The manager became a copy of another one.
    pub(crate) fn copied_from(&mut self, other: &PlanSlots) {
        self.forget(|_| true);
        self.open = other.open;
    }

    pub(crate) fn find(&self, ticket: Ticket) -> Option<PlanArrays<'_>> {
        let slot = self.slots.iter().find(|slot| slot.ticket == ticket.0 && ticket.0 != 0)?;
        Some(slot.arrays())
    }
}

impl Slot {
    /// C has written a plan, which says whose it is.
    pub(crate) fn is_planned(&mut self) {
        self.ticket = self.step.ticket;
    }

    /// Requires: the arrays live for 'a.
    pub(crate) fn arrays<'a>(&self) -> PlanArrays<'a> {
        PlanArrays {
            step: &self.step,
            groups: self.groups.as_ptr(),
            n: self.groups.len(),
            life: PhantomData,
        }
    }
}

/// The arrays of a step, `StepPlan` in `step_plan.h`. What was not asked for is empty. With
/// [`PlanOptions::padded_sequences`](crate::PlanOptions) `[sequences]` is that many, but of
/// `sequences()` and `caller_ids()`.
///
/// ```
/// use kvfolio::{Cache, GroupSpec, Options, PlanOptions};
///
/// let groups = [GroupSpec { head_dim_k: 8, num_blocks: 64, ..GroupSpec::default() }];
/// let mut cache = Cache::new(&groups, &Options::default())?;
/// let a = cache.open(&[], &Default::default())?.sequence;
/// let b = cache.open(&[], &Default::default())?.sequence;
/// let mut step = cache.begin_step()?;
/// step.append(a, &[1, 2, 3])?;
/// step.append(b, &[4; 17])?;
/// let options = PlanOptions { flashinfer: true, positions: true, changed_entries: true,
///                             shared_prefixes: true, ..PlanOptions::default() };
/// let plan = step.plan(&options)?;
/// assert_eq!((plan.num_tokens(), plan.sequences()), (20, &[a, b][..]));
/// assert_eq!((plan.query_start(), plan.kv_lens()), (&[0, 3, 20][..], &[3, 17][..]));
/// assert_eq!((&plan.positions()[..5], plan.rows()), (&[0, 1, 2, 0, 1][..], &[0, 1][..]));
/// assert_eq!((plan.trim_sinks(), plan.trim_first_kept()), (&[0, 0][..], &[0, 0][..]));
/// assert_eq!(plan.groups().len(), 1);
///
/// let group = plan.group(0);
/// assert_eq!((group.slot_mapping()[3], group.block_table_stride()), (16, 2));
/// assert_eq!(group.block_table(), [0, -1, 1, 2]); // [sequences, stride]
/// assert_eq!((group.kv_indptr(), group.kv_indices()), (&[0, 1, 3][..], &[0, 1, 2][..]));
/// assert_eq!((group.kv_last_page_len(), group.kv_first_live()), (&[3, 1][..], &[0, 0][..]));
/// assert_eq!((plan.table_of(0, 1), plan.rewinds()), (&[1, 2][..], &[0, 0][..]));
/// assert!(plan.caller_ids().is_empty());
/// assert_eq!((plan.number(), plan.follows()), (1, Some(0)));
/// assert!(group.copy_src().is_empty() && group.copy_dst().is_empty());
/// assert_eq!((group.changed_rows(), group.changed_columns()), (&[0, 1, 1][..], &[0, 0, 1][..]));
/// assert_eq!(group.changed_blocks(), [0, 1, 2]);
/// assert!(group.shared_prefixes().is_empty());
/// # Ok::<(), kvfolio::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct PlanArrays<'a> {
    step: *const sys::kvfolio_step_plan,
    groups: *const sys::kvfolio_group_plan,
    n: usize,
    life: PhantomData<&'a [i32]>,
}

// SAFETY: arrays that nothing writes as long as this lives.
unsafe impl Send for PlanArrays<'_> {}
unsafe impl Sync for PlanArrays<'_> {}

/// Requires: C has set `array`, which lives for 'a.
fn slice<'a>(array: sys::kvfolio_i32s) -> &'a [i32] {
    if array.size == 0 {
        return &[];
    }
    // SAFETY: as required.
    unsafe { std::slice::from_raw_parts(array.data, array.size as usize) }
}

impl std::fmt::Debug for PlanArrays<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlanArrays")
            .field("ticket", &self.ticket())
            .field("sequences", &self.sequences())
            .field("query_start", &self.query_start())
            .field("kv_lens", &self.kv_lens())
            .field("groups", &self.groups())
            .finish_non_exhaustive()
    }
}

impl<'a> PlanArrays<'a> {
    fn step(&self) -> &'a sys::kvfolio_step_plan {
        // SAFETY: the slot lives as long as the manager, which is borrowed for 'a.
        unsafe { &*self.step }
    }

    /// As C wrote it; valid as long as the borrow.
    #[cfg(feature = "cuda")]
    pub(crate) fn step_to_c(&self) -> *const sys::kvfolio_step_plan {
        self.step
    }
    /// The groups, and how many they are.
    #[cfg(feature = "cuda")]
    pub(crate) fn groups_to_c(&self) -> (*const sys::kvfolio_group_plan, usize) {
        (self.groups, self.n)
    }

    /// The number of the step.
    pub fn ticket(&self) -> Ticket {
        Ticket(self.step().ticket)
    }
    /// Counts the plans of the cache from 1 on, this one included.
    pub fn number(&self) -> u64 {
        self.step().number
    }
    /// The number of the plan that the lists of changed entries come after; 0: they name every entry.
    /// None without these lists.
    pub fn follows(&self) -> Option<u64> {
        Some(self.step().follows).filter(|&number| number != u64::MAX)
    }
    /// Tokens of all sequences.
    pub fn num_tokens(&self) -> usize {
        self.step().num_tokens as usize
    }
    /// In append order.
    pub fn sequences(&self) -> &'a [Sequence] {
        let step = self.step();
        if step.num_sequences == 0 {
            return &[];
        }
        // SAFETY: as slice(); a Sequence is its number.
        unsafe { std::slice::from_raw_parts(step.sequences.cast(), step.num_sequences as usize) }
    }
    /// `[sequences]`: a number below [`num_rows`](crate::Manager::num_rows) that a sequence keeps.
    pub fn rows(&self) -> &'a [i32] {
        slice(self.step().rows)
    }
    /// `[sequences + 1]`: tokens before each sequence.
    pub fn query_start(&self) -> &'a [i32] {
        slice(self.step().query_start)
    }
    /// `[sequences]`: length with the tokens of this step.
    pub fn kv_lens(&self) -> &'a [i32] {
        slice(self.step().kv_lens)
    }
    /// `[sequences]`: position p is visible iff `p < trim_sinks[i] || p >= trim_first_kept[i]`.
    pub fn trim_sinks(&self) -> &'a [i32] {
        slice(self.step().trim_sinks)
    }
    /// `[sequences]`; see `trim_sinks`.
    pub fn trim_first_kept(&self) -> &'a [i32] {
        slice(self.step().trim_first_kept)
    }
    /// `[sequences]`: the `rewinds` of each sequence ([`SequenceInfo`](crate::SequenceInfo)).
    pub fn rewinds(&self) -> &'a [i32] {
        slice(self.step().rewinds)
    }
    /// `[sequences]` if asked for: the callers' own names; 0 for a sequence without one.
    pub fn caller_ids(&self) -> &'a [u64] {
        let step = self.step();
        if step.caller_ids.is_null() || step.num_sequences == 0 {
            return &[];
        }
        // SAFETY: as slice().
        unsafe { std::slice::from_raw_parts(step.caller_ids, step.num_sequences as usize) }
    }
    /// The block table of the i-th sequence in a group.
    ///
    /// # Panics
    ///
    /// If there is no such group or sequence, or the plan has no block tables.
    pub fn table_of(&self, group: usize, i: usize) -> &'a [i32] {
        let of = &self.groups()[group];
        let stride = of.block_table_stride() as usize;
        &of.block_table()[i * stride..(i + 1) * stride]
    }
    /// `[tokens]`.
    pub fn positions(&self) -> &'a [i32] {
        slice(self.step().positions)
    }
    /// The arrays of each group.
    pub fn groups(&self) -> &'a [GroupPlan] {
        // SAFETY: as step(); GroupPlan is repr(transparent).
        unsafe { std::slice::from_raw_parts(self.groups.cast(), self.n) }
    }
    /// The arrays of one group.
    ///
    /// # Panics
    ///
    /// If there is no such group.
    pub fn group(&self, group: i32) -> &'a GroupPlan {
        usize::try_from(group)
            .ok()
            .and_then(|at| self.groups().get(at))
            .unwrap_or_else(|| panic!("there is no group {group} of {}", self.n))
    }
    /// What [`attend`](crate::View::attend) takes.
    ///
    /// # Panics
    ///
    /// If there is no such group.
    pub fn batch(&self, group: i32) -> Batch<'a> {
        Batch {
            query_start: self.query_start(),
            kv_lens: self.kv_lens(),
            block_table: self.group(group).block_table(),
            block_table_stride: self.group(group).block_table_stride(),
            trim_sinks: self.trim_sinks(),
            trim_first_kept: self.trim_first_kept(),
        }
    }
}

/// Sequences `[first_sequence, first_sequence + num_sequences)` of a plan begin with the same
/// `num_blocks` blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct SharedPrefix {
    /// Its place in the plan.
    pub first_sequence: i32,
    /// Two or more.
    pub num_sequences: i32,
    /// That they share.
    pub num_blocks: i32,
}

/// The arrays of one group, `GroupPlan` in `step_plan.h`. [`PlanArrays`] shows them.
#[repr(transparent)]
pub struct GroupPlan(sys::kvfolio_group_plan);

// SAFETY: as PlanArrays.
unsafe impl Send for GroupPlan {}
unsafe impl Sync for GroupPlan {}

impl std::fmt::Debug for GroupPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupPlan")
            .field("slot_mapping", &self.slot_mapping())
            .field("block_table", &self.block_table())
            .field("block_table_stride", &self.block_table_stride())
            .finish_non_exhaustive()
    }
}

impl GroupPlan {
    /// `[tokens]`: where K and V of each token go; -1: they are there already.
    pub fn slot_mapping(&self) -> &[i32] {
        slice(self.0.slot_mapping)
    }
    /// The same with [`PlanOptions::int64_slots`](crate::PlanOptions), else empty.
    pub fn slot_mapping_64(&self) -> &[i64] {
        let slots = self.0.slot_mapping_64;
        if slots.size == 0 {
            return &[];
        }
        // SAFETY: as slice().
        unsafe { std::slice::from_raw_parts(slots.data, slots.size as usize) }
    }
    /// `[sequences, block_table_stride]`.
    pub fn block_table(&self) -> &[i32] {
        slice(self.0.block_table)
    }
    /// Entries of the table of each sequence.
    pub fn block_table_stride(&self) -> i32 {
        self.0.block_table_stride
    }
    /// FlashInfer: entries of `kv_indices()` before each sequence.
    pub fn kv_indptr(&self) -> &[i32] {
        slice(self.0.kv_indptr)
    }
    /// FlashInfer: the blocks of all sequences, one behind the other.
    pub fn kv_indices(&self) -> &[i32] {
        slice(self.0.kv_indices)
    }
    /// FlashInfer: tokens in the last block of each sequence.
    pub fn kv_last_page_len(&self) -> &[i32] {
        slice(self.0.kv_last_page_len)
    }
    /// FlashInfer: the first position behind the gap in the list of pages; 0 without a gap.
    pub fn kv_first_live(&self) -> &[i32] {
        slice(self.0.kv_first_live)
    }
    /// Whole blocks to copy before the step writes, in this order.
    pub fn copy_src(&self) -> &[i32] {
        slice(self.0.copy_src)
    }
    /// Where block `copy_src()[i]` is copied to.
    pub fn copy_dst(&self) -> &[i32] {
        slice(self.0.copy_dst)
    }
    /// Entries of a block table on the device to change: the row.
    pub fn changed_rows(&self) -> &[i32] {
        slice(self.0.changed_rows)
    }
    /// See `changed_rows()`: the logical block.
    pub fn changed_columns(&self) -> &[i32] {
        slice(self.0.changed_columns)
    }
    /// See `changed_rows()`: the physical block.
    pub fn changed_blocks(&self) -> &[i32] {
        slice(self.0.changed_blocks)
    }
    /// Runs of sequences with the same leading blocks.
    pub fn shared_prefixes(&self) -> &[SharedPrefix] {
        if self.0.num_shared_prefixes == 0 {
            return &[];
        }
        // SAFETY: as slice(); SharedPrefix is three i32.
        unsafe {
            let n = self.0.num_shared_prefixes as usize;
            std::slice::from_raw_parts(self.0.shared_prefixes.cast(), n)
        }
    }
}
