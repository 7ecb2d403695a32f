// SPDX-License-Identifier: Apache-2.0
//
// Calls that change nothing. For SAFETY see manager.rs; structs to fill have their size.

use crate::error::{call, text_of};
use crate::ids::{Load, Sequence};
use crate::prompt::CPrompt;
use crate::{sys, GroupSpec, Manager, OpenOptions, Options, PlanOptions, Result};

/// What is known of a sequence; `SequenceInfo` in `manager_types.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SequenceInfo {
    /// Tokens, those of the open step included.
    pub length: i32,
    /// Without the tokens of a draft.
    pub accepted_length: i32,
    /// Tokens that others can find now; 0: none.
    pub published_length: i32,
    /// Positions `[trim_sinks, trim_first_kept)` were dropped by trims; 0 and 0: none.
    pub trim_sinks: i32,
    /// See `trim_sinks`.
    pub trim_first_kept: i32,
    /// Whether the open step appends to it.
    pub in_open_step: bool,
    /// Tokens that [`Manager::set_tokens`] may name now.
    pub num_unnamed: i32,
    /// Tokens that [`Manager::reserve`] still promises.
    pub reserved_tokens: i64,
    /// The name that its caller gave it.
    pub caller_id: Option<u64>,
    /// 0: no limit of its own.
    pub max_tokens: i32,
    /// When it was last used, in uses of all sequences. An open, an append and a fork are uses.
    pub last_use: u64,
    /// How often it was used.
    pub use_count: u64,
    /// For [`Policy::LowestPriority`](crate::Policy).
    pub priority: i32,
    /// The load that is open for it.
    pub load: Option<Load>,
    /// How often tokens of committed steps were cut. A row of an earlier plan is void if its sequence
    /// is gone or [`rewinds`](crate::PlanArrays::rewinds) says another number.
    pub rewinds: i32,
    /// [`Manager::truncate`] to this length or more is refused only while the sequence is in the open
    /// step.
    pub rewind_from: i32,
}

mirror! {
    /// Blocks of a group by state: `free + held + cached + retiring == num_blocks`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct GroupUsage = kvfolio_group_usage {
        /// All of them.
        pub num_blocks: i32,
        /// Without references, and nothing can be found in them.
        pub free: i32,
        /// Referenced by sequences, pins, loads or holds.
        pub held: i32,
        /// Findable, without references.
        pub cached: i32,
        /// Referenced only by steps: they become free or cached when these are complete.
        pub retiring: i32,
        /// Equals `cached`: every cached block can be evicted.
        pub evictable: i32,
        /// Held blocks that [`Manager::reserve`] keeps, in no table yet.
        pub reserved: i32,
        /// Held blocks that open loads wait for.
        pub loading: i32,
        /// References of open holds; a block in two holds counts twice.
        pub on_hold: i32,
    }
}

/// What a block is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockState {
    /// Without references, and nothing can be found in it.
    Free,
    /// Referenced by a sequence, a pin, a load or a hold.
    Held,
    /// Findable, without references.
    Cached,
    /// Referenced only by steps that are not complete.
    Retiring,
}

mirror! {
    /// Counts since creation; `Counters` in `manager_types.h`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Counters = kvfolio_counters {
        /// Blocks that were taken.
        pub blocks_allocated: u64,
        /// Blocks that became free.
        pub blocks_freed: u64,
        /// Cached blocks that were given up to make room.
        pub blocks_evicted: u64,
        /// Held blocks that stopped being findable to make room.
        pub blocks_unhung: u64,
        /// Blocks that copy-on-write copied, in committed steps.
        pub block_copies: u64,
        /// Sequences that were opened; forks do not count.
        pub sequences_opened: u64,
        /// Sequences that [`Manager::close`] ended.
        pub sequences_closed: u64,
        /// Sequences that [`Manager::preempt`] and [`Manager::preempt_to`] ended.
        pub sequences_preempted: u64,
        /// Sequences that [`Manager::fail`] ended.
        pub sequences_aborted: u64,
        /// Sequences that [`Manager::fork`] made.
        pub forks: u64,
        /// Prompt tokens of all opens.
        pub tokens_looked_up: u64,
        /// [`Opened::cached_tokens`](crate::Opened) of all opens.
        pub tokens_reused: u64,
        /// Tokens that were appended by all committed steps.
        pub tokens_committed: u64,
        /// Blocks that became findable, or findable with more tokens.
        pub blocks_published: u64,
        /// Publications that had no room.
        pub publications_skipped: u64,
        /// The most blocks that were held at once, all groups together.
        pub blocks_used_peak: u64,
        /// Tokens that stood when their load was finished.
        pub tokens_loaded: u64,
        /// Opens that were to announce their prompt and did not, for want of room.
        pub announcements_skipped: u64,
    }
}

/// What [`Manager::soon`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Soon {
    /// Tokens of the prompt that will be found.
    pub tokens: i32,
    /// The sequence that is going to append them.
    pub by: Sequence,
}

impl Soon {
    pub(crate) fn of(tokens: i32, by: sys::kvfolio_sequence) -> Option<Soon> {
        (tokens > 0).then_some(Soon { tokens, by: Sequence(by) })
    }
}

/// Bytes beside the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// Bytes that were reserved at creation.
    pub reserved: i64,
    /// Bytes of these in use.
    pub used: i64,
}

/// # Questions
///
/// Several threads may ask at the same time.
///
/// ```
/// use kvfolio::{BlockState, Cache, GroupSpec, OpenOptions, Options};
///
/// let groups = [GroupSpec { head_dim_k: 8, num_blocks: 64, ..GroupSpec::default() }];
/// let mut cache = Cache::new(&groups, &Options { max_sequences: 4, ..Options::default() })?;
/// let named = OpenOptions { caller_id: Some(7), ..OpenOptions::default() };
/// let a = cache.open(&[], &named)?.sequence;
/// let mut step = cache.begin_step()?;
/// step.append(a, &[1; 20])?;
/// step.finish()?;
///
/// let cache = &cache;
/// assert_eq!((cache.info(a)?.length, cache.find(7)?, cache.sequences()), (20, a, vec![a]));
/// let table: &[i32] = cache.block_table(a, 0)?;
/// let mut slots = [0; 3];
/// cache.slot_mapping(a, 0, 15, &mut slots)?;
/// assert_eq!(slots, [15, table[1] * 16, table[1] * 16 + 1]);
/// assert_eq!(cache.probe(&[1; 20], &OpenOptions::default())?, 16);
/// assert_eq!(cache.soon(&[1; 20], &OpenOptions::default())?, None); // nothing was announced
/// assert_eq!((cache.usage(0)?.held, cache.num_sequences()), (2, 1));
/// assert_eq!((cache.block_state(0, table[0])?, cache.ref_count(0, table[0])?), (BlockState::Held, 1));
/// assert!(cache.is_findable(0, table[0])? && cache.findable_end(0, table[0])? == 16);
/// assert_eq!((cache.bytes_used(), cache.bytes_total()), (2 * 16 * 8 * 4, 64 * 16 * 8 * 4));
/// assert_eq!((cache.num_rows(), cache.counters().tokens_committed), (4, 20));
/// assert!(cache.widest(0)? > 0 && cache.metadata().used <= cache.metadata().reserved);
/// assert_eq!((cache.num_groups(), cache.group(0)?.block_size), (1, 16));
/// assert_eq!(cache.options().max_sequences, 4); // with derived values in place of 0
/// assert!(cache.describe().contains("policy: lru"));
/// cache.check_invariants()?; // recounts everything
/// assert_eq!(cache.state_hash()?, cache.state_hash()?);
/// # Ok::<(), kvfolio::Error>(())
/// ```
impl Manager {
    /// The tokens that [`Manager::open`] would find.
    pub fn probe(&self, tokens: &[i32], options: &OpenOptions) -> Result<i32> {
        let p = CPrompt::new(tokens, options);
        let mut cached = 0;
        call(|error| unsafe {
            sys::kvfolio_probe(
                self.raw.as_ptr(),
                p.root,
                p.tokens,
                p.num_tokens,
                p.media,
                p.num_media,
                &p.options,
                &mut cached,
                error,
            )
        })?;
        Ok(cached)
    }

    /// How far a hit of the prompt will reach once a sequence that announces the same tokens
    /// ([`OpenOptions::announce`]) has appended and published them; `None`: nothing of it is to come.
    ///
    /// ```
    /// use kvfolio::{Cache, GroupSpec, OpenOptions, Options, Soon};
    ///
    /// let groups = [GroupSpec { head_dim_k: 8, num_blocks: 64, ..GroupSpec::default() }];
    /// let mut cache = Cache::new(&groups, &Options::default())?;
    /// let prompt = [7; 40];
    /// let announces = OpenOptions { announce: true, ..OpenOptions::default() };
    /// let first = cache.open(&prompt, &announces)?.sequence;
    /// let soon = cache.soon(&prompt, &OpenOptions::default())?;
    /// assert_eq!(soon, Some(Soon { tokens: 32, by: first })); // the full blocks
    /// let admission = cache.admit_prompt(&prompt, &OpenOptions::default(), 0)?;
    /// assert_eq!(admission.soon, soon); // said there too, and by open()
    /// let twin = cache.open(&prompt, &OpenOptions::default())?;
    /// assert_eq!((twin.cached_tokens, twin.soon), (0, soon));
    /// let mut step = cache.begin_step()?;
    /// step.append(first, &prompt)?;
    /// step.finish()?;
    /// assert_eq!(cache.soon(&prompt, &OpenOptions::default())?, None);
    /// assert_eq!(cache.open(&prompt, &announces)?.cached_tokens, 32);
    /// # Ok::<(), kvfolio::Error>(())
    /// ```
    pub fn soon(&self, tokens: &[i32], options: &OpenOptions) -> Result<Option<Soon>> {
        let p = CPrompt::new(tokens, options);
        let mut soon = 0;
        let mut by = 0;
        call(|error| unsafe {
            sys::kvfolio_soon(
                self.raw.as_ptr(),
                p.root,
                p.tokens,
                p.num_tokens,
                p.media,
                p.num_media,
                &p.options,
                &mut soon,
                &mut by,
                error,
            )
        })?;
        Ok(Soon::of(soon, by))
    }

    /// What is known of a sequence.
    pub fn info(&self, sequence: Sequence) -> Result<SequenceInfo> {
        let mut c = sys::kvfolio_sequence_info::new();
        call(|error| unsafe { sys::kvfolio_info(self.raw.as_ptr(), sequence.0, &mut c, error) })?;
        Ok(SequenceInfo {
            length: c.length,
            accepted_length: c.accepted_length,
            published_length: c.published_length,
            trim_sinks: c.trim_sinks,
            trim_first_kept: c.trim_first_kept,
            in_open_step: c.in_open_step != 0,
            num_unnamed: c.num_unnamed,
            reserved_tokens: c.reserved_tokens,
            caller_id: Some(c.caller_id).filter(|_| c.has_caller_id != 0),
            max_tokens: c.max_tokens,
            last_use: c.last_use,
            use_count: c.use_count,
            priority: c.priority,
            load: Some(Load(c.load)).filter(|_| c.load != 0),
            rewinds: c.rewinds,
            rewind_from: c.rewind_from,
        })
    }

    /// The physical block of each logical block, -1 if it was dropped.
    pub fn block_table(&self, sequence: Sequence, group: i32) -> Result<&[i32]> {
        let mut c = sys::kvfolio_i32s::new();
        call(|error| unsafe {
            sys::kvfolio_block_table(self.raw.as_ptr(), sequence.0, group, &mut c, error)
        })?;
        if c.size == 0 {
            return Ok(&[]);
        }
        // The table is valid until the sequence changes, which needs &mut self.
        Ok(unsafe { std::slice::from_raw_parts(c.data, c.size as usize) })
    }

    /// Writes the slots of positions `[begin, begin + out.len())`; -1: the block was dropped.
    pub fn slot_mapping(
        &self,
        sequence: Sequence,
        group: i32,
        begin: i32,
        out: &mut [i32],
    ) -> Result<()> {
        let (this, n) = (self.raw.as_ptr(), out.len() as i64);
        call(|error| unsafe {
            sys::kvfolio_slot_mapping(this, sequence.0, group, begin, out.as_mut_ptr(), n, error)
        })
    }

    /// The open sequence with this caller id.
    pub fn find(&self, caller_id: u64) -> Result<Sequence> {
        let mut out = 0;
        call(|error| unsafe { sys::kvfolio_find(self.raw.as_ptr(), caller_id, &mut out, error) })?;
        Ok(Sequence(out))
    }

    /// How many sequences are open.
    pub fn num_sequences(&self) -> i32 {
        unsafe { sys::kvfolio_num_sequences(self.raw.as_ptr()) }
    }

    /// The open sequences, in no promised order.
    pub fn sequences(&self) -> Vec<Sequence> {
        let mut out = vec![Sequence(0); self.num_sequences() as usize];
        let (ids, capacity) = (out.as_mut_ptr().cast(), out.len() as i64);
        let n = unsafe { sys::kvfolio_sequences(self.raw.as_ptr(), ids, capacity) };
        out.truncate(n as usize);
        out
    }

    /// The blocks of a group by state.
    pub fn usage(&self, group: i32) -> Result<GroupUsage> {
        let mut c = sys::kvfolio_group_usage::new();
        call(|error| unsafe { sys::kvfolio_usage(self.raw.as_ptr(), group, &mut c, error) })?;
        Ok(GroupUsage::from_c(&c))
    }

    /// What a block is at the moment.
    pub fn block_state(&self, group: i32, block: i32) -> Result<BlockState> {
        let mut out = 0;
        call(|error| unsafe {
            sys::kvfolio_block_state(self.raw.as_ptr(), group, block, &mut out, error)
        })?;
        Ok(match out {
            sys::KVFOLIO_BLOCK_FREE => BlockState::Free,
            sys::KVFOLIO_BLOCK_HELD => BlockState::Held,
            sys::KVFOLIO_BLOCK_CACHED => BlockState::Cached,
            _ => BlockState::Retiring,
        })
    }

    /// References to a block: table entries, pins, loads, holds and steps.
    pub fn ref_count(&self, group: i32, block: i32) -> Result<i32> {
        let mut out = 0;
        call(|error| unsafe {
            sys::kvfolio_ref_count(self.raw.as_ptr(), group, block, &mut out, error)
        })?;
        Ok(out)
    }

    /// Whether an open could find tokens in the block.
    pub fn is_findable(&self, group: i32, block: i32) -> Result<bool> {
        let mut out = 0;
        call(|error| unsafe {
            sys::kvfolio_is_findable(self.raw.as_ptr(), group, block, &mut out, error)
        })?;
        Ok(out != 0)
    }

    /// One past the last position whose token can be found in the block; 0: none.
    pub fn findable_end(&self, group: i32, block: i32) -> Result<i32> {
        let mut out = 0;
        call(|error| unsafe {
            sys::kvfolio_findable_end(self.raw.as_ptr(), group, block, &mut out, error)
        })?;
        Ok(out)
    }

    /// Bytes of all blocks.
    pub fn bytes_total(&self) -> i64 {
        unsafe { sys::kvfolio_bytes_total(self.raw.as_ptr()) }
    }

    /// Bytes of the held blocks.
    pub fn bytes_used(&self) -> i64 {
        unsafe { sys::kvfolio_bytes_used(self.raw.as_ptr()) }
    }

    /// Bytes beside the blocks.
    pub fn metadata(&self) -> MemoryUse {
        let mut out = MemoryUse { reserved: 0, used: 0 };
        unsafe { sys::kvfolio_metadata(self.raw.as_ptr(), &mut out.reserved, &mut out.used) };
        out
    }

    /// Every row of a plan is below this: a block table on the device needs that many rows.
    pub fn num_rows(&self) -> i32 {
        unsafe { sys::kvfolio_num_rows(self.raw.as_ptr()) }
    }

    /// Entries of the table of a sequence of `Options::max_sequence_tokens` tokens.
    pub fn widest(&self, group: i32) -> Result<i32> {
        let mut out = 0;
        call(|error| unsafe { sys::kvfolio_widest(self.raw.as_ptr(), group, &mut out, error) })?;
        Ok(out)
    }

    /// Bytes of memory for [`plan_in`](crate::Step::plan_in) that every plan with these options fits
    /// into. [`Error::InvalidArgument`](crate::Error::InvalidArgument): they leave a size open
    /// (`padded_sequences`, `padded_tokens`, a `table_stride`), or a size is out of range.
    pub fn plan_bytes(&self, options: &PlanOptions<'_>) -> Result<i64> {
        let (this, options, mut out) = (self.raw.as_ptr(), options.to_c(), 0);
        call(|error| unsafe { sys::kvfolio_plan_bytes(this, &options, &mut out, error) })?;
        Ok(out)
    }

    /// Text for people, a fact a line.
    pub fn describe(&self) -> String {
        let this = self.raw.as_ptr();
        text_of(|out, capacity| unsafe { sys::kvfolio_describe(this, out, capacity) })
    }

    /// Counts since creation.
    pub fn counters(&self) -> Counters {
        let mut c = sys::kvfolio_counters::new();
        let filled =
            call(|error| unsafe { sys::kvfolio_get_counters(self.raw.as_ptr(), &mut c, error) });
        filled.expect("a manager has counters");
        Counters::from_c(&c)
    }

    /// How many groups there are.
    pub fn num_groups(&self) -> i32 {
        self.num_groups
    }

    /// The group as it was given, with derived values in place of defaults.
    pub fn group(&self, group: i32) -> Result<GroupSpec> {
        let mut c = sys::kvfolio_group_spec::new();
        call(|error| unsafe { sys::kvfolio_get_group(self.raw.as_ptr(), group, &mut c, error) })?;
        Ok(GroupSpec::from_c(&c))
    }

    /// The options with derived values in place of 0.
    pub fn options(&self) -> Options {
        let mut c = sys::kvfolio_manager_options::new();
        let filled =
            call(|error| unsafe { sys::kvfolio_get_options(self.raw.as_ptr(), &mut c, error) });
        filled.expect("a manager has options");
        Options::from_c(&c)
    }

    /// A hash of all that later answers depend on, but for names: numbers of blocks and ids. An
    /// error while a load or a hold is open.
    pub fn state_hash(&self) -> Result<u64> {
        let mut hash = 0;
        call(|error| unsafe { sys::kvfolio_state_hash(self.raw.as_ptr(), &mut hash, error) })?;
        Ok(hash)
    }

    /// Recounts everything: says which rule is broken and where, if one is.
    pub fn check_invariants(&self) -> Result<()> {
        call(|error| unsafe { sys::kvfolio_check_invariants(self.raw.as_ptr(), error) })
    }
}
