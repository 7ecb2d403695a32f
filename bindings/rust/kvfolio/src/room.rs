// SPDX-License-Identifier: Apache-2.0
//
// Room for tokens. For SAFETY see manager.rs.

use crate::error::call;
use crate::ids::{Pin, Sequence};
use crate::manager::check_pair;
use crate::prompt::{CPrompt, Root};
use crate::steps::ended;
use crate::{sys, Ended, Manager, OpenOptions, Policy, Result, Soon};

/// What [`Manager::admit_prompt`] says that a prompt would get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Tokens that the open would find.
    pub cached_tokens: i32,
    /// What it would find once another sequence has published it: [`Manager::soon`].
    pub soon: Option<Soon>,
    blocks: [i32; 16],
    num_groups: usize,
}

impl Admission {
    /// Blocks that the append would take, of each group.
    pub fn blocks(&self) -> &[i32] {
        &self.blocks[..self.num_groups]
    }
}

/// What became unfindable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forgotten {
    /// Blocks that are not findable any more.
    pub blocks: i64,
    /// Pins that ended.
    pub pins: i32,
}

/// What [`Manager::pin`] gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pinned {
    /// For [`Manager::unpin`].
    pub pin: Pin,
    /// Tokens that it holds.
    pub pinned_tokens: i32,
}

fn policy_of(policy: Option<Policy>) -> i32 {
    policy.map_or(sys::KVFOLIO_POLICY_OF_OPTIONS, |policy| policy as i32)
}

/// # Room
///
/// A scheduler asks before it opens a request, and preempts when blocks are short:
///
/// ```
/// use kvfolio::{Cache, Error, GroupSpec, OpenOptions, Options, Policy};
///
/// let groups = [GroupSpec { head_dim_k: 8, num_blocks: 8, ..GroupSpec::default() }];
/// let mut cache = Cache::new(&groups, &Options::default())?;
/// let named = OpenOptions { caller_id: Some(7), ..OpenOptions::default() };
/// let a = cache.open(&[1; 100], &named)?.sequence;
/// cache.admit(&[a], &[100])?; // would fit; it decides as append() does
/// cache.reserve(a, 128, 100)?; // all 8 blocks are kept for its 128 tokens
/// let mut step = cache.begin_step()?;
/// step.append(a, &[1; 100])?;
/// step.finish()?;
///
/// let prompt = [2; 40];
/// assert!(matches!(cache.admit_prompt(&prompt, &Default::default(), 1), Err(Error::NoBlocks { .. })));
/// assert!(cache.needs_eviction() && cache.utilization() == 1.0);
/// assert_eq!(cache.select_victim(Some(Policy::Lru)), Some(a));
/// let gone = cache.preempt_to(0.5, None)?;
/// assert_eq!((gone[0].sequence(), gone[0].caller_id()), (a, Some(7)));
/// let admission = cache.admit_prompt(&prompt, &Default::default(), 1)?;
/// assert_eq!((admission.cached_tokens, admission.blocks()), (0, &[3][..]));
/// # Ok::<(), kvfolio::Error>(())
/// ```
///
/// What is cached can be held, evicted and forgotten:
///
/// ```
/// use kvfolio::{Cache, GroupSpec, Options, Root, RootKey};
///
/// let groups = [GroupSpec { head_dim_k: 8, num_blocks: 64, ..GroupSpec::default() }];
/// let mut cache = Cache::new(&groups, &Options::default())?;
/// let prompt = [1; 48];
/// let a = cache.open(&prompt, &Default::default())?.sequence;
/// let mut step = cache.begin_step()?;
/// step.append(a, &prompt)?;
/// step.finish()?;
/// cache.close(a)?;
///
/// let pinned = cache.pin(&prompt[..32], &Default::default())?; // a system prompt
/// assert_eq!(pinned.pinned_tokens, 32);
/// let mut evicted = [0; 8];
/// assert_eq!(cache.evict(0, 8, &mut evicted)?, 1); // the block that the pin does not hold
/// cache.unpin(pinned.pin)?;
/// assert_eq!(cache.forget(&prompt[..16], &Default::default())?.blocks, 2); // all that begins so
/// assert_eq!(cache.forget_root(Some(&Root::new(&RootKey::default())?))?.blocks, 0);
/// assert_eq!(cache.reset()?.blocks, 0); // everything: after new weights, say
/// # Ok::<(), kvfolio::Error>(())
/// ```
impl Manager {
    /// Would `num_tokens[i]` tokens fit `sequences[i]`, all in one step? `NoBlocks`: no.
    pub fn admit(&mut self, sequences: &[Sequence], num_tokens: &[i64]) -> Result<()> {
        check_pair("token counts", num_tokens.len(), sequences.len())?;
        let (ids, n) = (sequences.as_ptr().cast(), sequences.len() as i64);
        call(|error| unsafe {
            sys::kvfolio_admit(self.raw.as_ptr(), ids, num_tokens.as_ptr(), n, error)
        })
    }

    /// Would the prompt, and `num_more` tokens behind it, fit in one step? Changes nothing.
    pub fn admit_prompt(
        &self,
        tokens: &[i32],
        options: &OpenOptions,
        num_more: i64,
    ) -> Result<Admission> {
        self.admit_prompt_in_chunks(tokens, options, num_more, 0)
    }

    /// Would they fit in steps of at most `most_per_step` tokens? Says in numbers what
    /// [`open`](Manager::open) and then [`reserve`](Manager::reserve) would do: a window group needs
    /// far fewer blocks for a long prompt in chunks. 0: all in one step.
    ///
    /// ```
    /// use kvfolio::{Cache, Error, GroupSpec, Kind, Options};
    ///
    /// let full = GroupSpec { head_dim_k: 8, num_blocks: 80, ..GroupSpec::default() };
    /// let kind = Kind::SlidingWindow { window: 32, num_sinks: 0 };
    /// let groups = [full, GroupSpec { kind, num_blocks: 12, ..full }];
    /// let mut cache = Cache::new(&groups, &Options::default())?;
    /// let prompt = [1; 1000];
    /// assert!(cache.admit_prompt(&prompt, &Default::default(), 0).is_err()); // 63 blocks of 12
    /// let chunks = cache.admit_prompt_in_chunks(&prompt, &Default::default(), 0, 64)?;
    /// assert_eq!(chunks.blocks(), [63, 7]);
    /// let a = cache.open(&prompt, &Default::default())?.sequence;
    /// cache.reserve(a, 1000, 64)?;
    /// let mut step = cache.begin_step()?;
    /// assert_eq!(step.append_prompt(a, &prompt, 64)?, 64);
    /// step.finish()?;
    /// assert_eq!(cache.admit_in_chunks(a, 936, 64)?.blocks()[1], 5);
    /// # Ok::<(), kvfolio::Error>(())
    /// ```
    pub fn admit_prompt_in_chunks(
        &self,
        tokens: &[i32],
        options: &OpenOptions,
        num_more: i64,
        most_per_step: i64,
    ) -> Result<Admission> {
        let p = CPrompt::new(tokens, options);
        let num_groups = self.num_groups as usize;
        let mut out = Admission { cached_tokens: 0, soon: None, blocks: [0; 16], num_groups };
        let mut found = sys::kvfolio_found::new();
        call(|error| unsafe {
            sys::kvfolio_admit_prompt(
                self.raw.as_ptr(),
                p.root,
                p.tokens,
                p.num_tokens,
                p.media,
                p.num_media,
                &p.options,
                num_more,
                most_per_step,
                &mut found,
                out.blocks[..num_groups].as_mut_ptr(),
                self.num_groups,
                error,
            )
        })?;
        out.cached_tokens = found.cached_tokens;
        out.soon = Soon::of(found.soon_tokens, found.soon_by);
        Ok(out)
    }

    /// The same for a sequence that is open. Keeps no table entries.
    pub fn admit_in_chunks(
        &self,
        sequence: Sequence,
        num_tokens: i64,
        most_per_step: i64,
    ) -> Result<Admission> {
        let num_groups = self.num_groups as usize;
        let mut out = Admission { cached_tokens: 0, soon: None, blocks: [0; 16], num_groups };
        let this = self.raw.as_ptr();
        call(|error| unsafe {
            let blocks = out.blocks[..num_groups].as_mut_ptr();
            let n = self.num_groups;
            sys::kvfolio_admit_sequence(
                this,
                sequence.0,
                num_tokens,
                most_per_step,
                blocks,
                n,
                error,
            )
        })?;
        Ok(out)
    }

    /// Keeps blocks for `num_tokens` more tokens, at most `most_per_step` in a step; 0: all in one.
    pub fn reserve(
        &mut self,
        sequence: Sequence,
        num_tokens: i64,
        most_per_step: i64,
    ) -> Result<()> {
        let this = self.raw.as_ptr();
        call(|error| unsafe {
            sys::kvfolio_reserve(this, sequence.0, num_tokens, most_per_step, error)
        })
    }

    /// Evicts up to `num_blocks` cached blocks of a group and returns how many. `evicted` gets as
    /// many of their ids as fit.
    pub fn evict(&mut self, group: i32, num_blocks: i32, evicted: &mut [i32]) -> Result<i32> {
        let (this, capacity) = (self.raw.as_ptr(), evicted.len() as i64);
        let mut n = 0;
        call(|error| unsafe {
            let ids = evicted.as_mut_ptr();
            sys::kvfolio_evict(this, group, num_blocks, ids, capacity, &mut n, error)
        })?;
        Ok(n)
    }

    /// Makes everything unfindable.
    pub fn reset(&mut self) -> Result<Forgotten> {
        let mut out = Forgotten::default();
        call(|error| unsafe {
            sys::kvfolio_reset(self.raw.as_ptr(), &mut out.blocks, &mut out.pins, error)
        })?;
        Ok(out)
    }

    /// Makes all of a root key unfindable. None: the key without any bytes.
    pub fn forget_root(&mut self, root: Option<&Root>) -> Result<Forgotten> {
        let (this, root) = (self.raw.as_ptr(), Root::raw_or_null(root));
        let mut out = Forgotten::default();
        call(|error| unsafe {
            sys::kvfolio_forget_root(this, root, &mut out.blocks, &mut out.pins, error)
        })?;
        Ok(out)
    }

    /// Makes all unfindable that begins with these tokens. Only the options `root` and `media`
    /// count.
    pub fn forget(&mut self, tokens: &[i32], options: &OpenOptions) -> Result<Forgotten> {
        let p = CPrompt::new(tokens, options);
        let mut out = Forgotten::default();
        call(|error| unsafe {
            sys::kvfolio_forget(
                self.raw.as_ptr(),
                p.root,
                p.tokens,
                p.num_tokens,
                p.media,
                p.num_media,
                &mut out.blocks,
                &mut out.pins,
                error,
            )
        })?;
        Ok(out)
    }

    /// Holds whole blocks of what is found of these tokens, and keeps them findable, until
    /// [`Manager::unpin`]. `pinned_tokens` says how many tokens that are.
    pub fn pin(&mut self, tokens: &[i32], options: &OpenOptions) -> Result<Pinned> {
        let p = CPrompt::new(tokens, options);
        let (mut pin, mut pinned_tokens) = (0, 0);
        call(|error| unsafe {
            sys::kvfolio_pin(
                self.raw.as_ptr(),
                p.root,
                p.tokens,
                p.num_tokens,
                p.media,
                p.num_media,
                &p.options,
                &mut pin,
                &mut pinned_tokens,
                error,
            )
        })?;
        Ok(Pinned { pin: Pin(pin), pinned_tokens })
    }

    /// Ends a pin.
    pub fn unpin(&mut self, pin: Pin) -> Result<()> {
        call(|error| unsafe { sys::kvfolio_unpin(self.raw.as_ptr(), pin.0, error) })
    }

    /// Held blocks divided by all blocks, in the fullest group.
    pub fn utilization(&self) -> f64 {
        unsafe { sys::kvfolio_utilization(self.raw.as_ptr()) }
    }

    /// `utilization()` has reached the high watermark: it is time for [`Manager::preempt_to`].
    pub fn needs_eviction(&self) -> bool {
        unsafe { sys::kvfolio_needs_eviction(self.raw.as_ptr()) != 0 }
    }

    /// The sequence that the policy would preempt now; `policy` None is that of the options. Returns
    /// None if no sequence qualifies: those in the open step do not, nor those whose end would free
    /// no block, as forks that share all of theirs. Then preempt by your own choice, the youngest
    /// first, until the append succeeds, since the end of one sequence may free nothing; or unpin.
    pub fn select_victim(&mut self, policy: Option<Policy>) -> Option<Sequence> {
        let id = unsafe { sys::kvfolio_select_victim(self.raw.as_ptr(), policy_of(policy)) };
        Some(Sequence(id)).filter(|_| id != 0)
    }

    /// Preempts victims while `utilization() > target`, and returns them in order.
    pub fn preempt_to(&mut self, target: f64, policy: Option<Policy>) -> Result<&[Ended]> {
        self.plans.changed();
        let (this, policy) = (self.raw.as_ptr(), policy_of(policy));
        ended(|list, n, error| unsafe {
            sys::kvfolio_preempt_to(this, target, policy, list, n, error)
        })
    }
}
