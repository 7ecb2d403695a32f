// SPDX-License-Identifier: Apache-2.0
//
// Loads, holds, and what became findable. For SAFETY see manager.rs. A load and a hold are numbers,
// as a ticket is: C checks them. Nothing here gives out memory: blocks are written through views and
// images, under the rules of `&` and `&mut`.

use crate::error::{call, invalid};
use crate::ids::{Hold, Load, Sequence};
use crate::prompt::{MediaSpan, Root};
use crate::spec::count;
use crate::{sys, Manager, Result};
use std::ptr::{null_mut, NonNull};

/// What [`Manager::begin_load`] gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Begun {
    /// None: the cache has all of it by now, and there is nothing to write or to finish.
    pub load: Option<Load>,
    /// The length of the sequence: the load is for tokens `[begin, end)`.
    pub begin: i32,
    /// The length that the sequence can have when the load is finished.
    pub end: i32,
}

/// The blocks of a group that a load waits for: logical block `logical[i]` of the prompt goes to
/// block `blocks[i]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadBlocks {
    /// Ascending.
    pub logical: Vec<i32>,
    /// As long as `logical`: what [`StorageMut::write_blocks`](crate::StorageMut) takes.
    pub blocks: Vec<i32>,
}

/// What [`Manager::loadable`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loadable {
    /// Tokens that are there without the tier.
    pub begin: i32,
    /// Tokens that are there with it; `begin`: a load gains nothing.
    pub end: i32,
    /// Blocks that a load to `end` would wait for, of all groups.
    pub blocks: i64,
}

/// A block that became findable.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Findable {
    /// Its group.
    pub group: i32,
    /// Its number.
    pub block: i32,
    /// One past the last position whose token can be found in it.
    pub end: i32,
    /// [`Manager::entry_serial`] now.
    pub serial: u64,
}

impl std::fmt::Debug for Findable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Findable { group, block, end, serial } = self;
        write!(f, "Findable(group {group}, block {block}, end {end}, serial {serial})")
    }
}

/// What stands in front of a findable block, as [`Manager::prefix_of`] gives it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Prefix {
    /// Tokens from the root to the end of the block.
    pub num_tokens: i32,
    /// The media spans that begin in front of that.
    pub media: Vec<MediaSpan>,
    /// The key that the block is found under.
    pub root: Root,
}

/// # Transfers
///
/// A load is an append whose bytes come from elsewhere: from host memory, a file, another machine.
/// Begin it when the bytes are there and verified; write the blocks; finish it. Until then other
/// calls go on, steps too; nothing in the blocks is findable, and none is given away, whatever
/// becomes of the sequence. A hold keeps blocks as they are while something copies from them.
///
/// ```
/// use kvfolio::{Cache, GroupSpec, Options, Storage};
///
/// let group = GroupSpec { head_dim_k: 8, num_blocks: 8, ..GroupSpec::default() };
/// let options = Options { list_findable: true, max_transfers: 4, ..Options::default() };
/// let make = |id_tag| { // so that neither takes an id of the other for its own
///     Cache::with_storage(Storage::new(&[group])?, &Options { id_tag, ..options.clone() })
/// };
/// let (mut warm, mut cold) = (make(1)?, make(2)?);
/// let prompt = [7; 40];
/// let a = warm.open(&prompt, &Default::default())?.sequence;
/// let mut step = warm.begin_step()?;
/// step.append(a, &prompt)?; // and write K and V
/// step.finish()?;
///
/// // Out: what became findable may be read. The hold keeps it while the bytes are copied.
/// let mut found = warm.take_findable(100);
/// found.sort_by_key(|f| f.end);
/// assert_eq!((found.len(), found[0].end, found[0].group), (2, 16, 0)); // the whole blocks of 40 tokens
/// let blocks: Vec<i32> = found.iter().map(|f| f.block).collect();
/// let hold = warm.hold_blocks(0, &blocks)?;
/// let storage = warm.storage().unwrap();
/// let mut images = vec![0; blocks.len() * storage.block_image_bytes(0)?];
/// storage.read_blocks(0, &blocks, &mut images)?;
/// warm.release_hold(hold)?;
///
/// // Under which key and tokens they are kept:
/// let mut tokens = [0; 32];
/// let prefix = warm.prefix_of(0, found[1].block, 0, &mut tokens)?;
/// assert_eq!((prefix.num_tokens, tokens, prefix.media.len()), (32, [7; 32], 0));
/// assert_eq!(warm.block_at(0, found[1].block, 0, 16)?, Some(found[0].block)); // the one before it
/// assert_eq!(warm.entry_serial(0, found[1].block)?, Some(found[1].serial)); // the entry is the same
///
/// // In: how far would a load reach with these two blocks? Then load that far.
/// let b = cold.open(&prompt, &Default::default())?.sequence;
/// let mut has = [true, true, false];
/// let loadable = cold.loadable(b, &prompt, 40, &mut [&mut has])?;
/// assert_eq!((loadable.begin, loadable.end, loadable.blocks), (0, 32, 2));
/// let begun = cold.begin_load(b, &prompt, loadable.end)?;
/// let load = begun.load.unwrap();
/// let to = cold.blocks_to_load(load, 0)?;
/// assert_eq!(to.logical, [0, 1]);
/// cold.storage_mut().unwrap().write_blocks(0, &to.blocks, &images)?;
/// assert_eq!(cold.finish_load(load, begun.end - begun.begin)?, 32);
/// let mut step = cold.begin_step()?;
/// step.append(b, &prompt[32..])?; // only the rest is computed
/// # Ok::<(), kvfolio::Error>(())
/// ```
impl Manager {
    /// Lets a sequence grow to `end` tokens of the prompt without computing them. First it gets what
    /// the cache has by now, as in an open. The caller writes the blocks of
    /// [`blocks_to_load`](Self::blocks_to_load) and calls [`finish_load`](Self::finish_load).
    /// Meanwhile no call may append to the sequence, trim it, reserve for it or begin another load.
    ///
    /// `NoBlocks`: nothing changed. `FailedPrecondition`: the sequence is in the open step, has a
    /// load, a draft, unnamed tokens or a reservation, or has tokens that can never be findable.
    pub fn begin_load(&mut self, sequence: Sequence, prompt: &[i32], end: i32) -> Result<Begun> {
        let (this, n) = (self.raw.as_ptr(), prompt.len() as i64);
        let mut c = sys::kvfolio_load::new();
        call(|error| unsafe {
            sys::kvfolio_begin_load(this, sequence.0, prompt.as_ptr(), n, end, &mut c, error)
        })?;
        let load = Some(Load(c.id)).filter(|_| c.id != 0);
        Ok(Begun { load, begin: c.begin, end: c.end })
    }

    /// The blocks of a group that a load waits for. All tokens of a block are to be written, also
    /// those in front of [`Begun::begin`]. They stay the same until the load is finished.
    pub fn blocks_to_load(&self, load: Load, group: i32) -> Result<LoadBlocks> {
        let this = self.raw.as_ptr();
        let mut out = LoadBlocks::default();
        let mut n = 0;
        call(|error| unsafe {
            let none = null_mut();
            sys::kvfolio_blocks_to_load(this, load.0, group, none, none, 0, &mut n, error)
        })?;
        out.logical.resize(n as usize, 0);
        out.blocks.resize(n as usize, 0);
        call(|error| unsafe {
            let (logical, blocks) = (out.logical.as_mut_ptr(), out.blocks.as_mut_ptr());
            let capacity = i64::from(n);
            sys::kvfolio_blocks_to_load(
                this, load.0, group, logical, blocks, capacity, &mut n, error,
            )
        })?;
        Ok(out)
    }

    /// Ends a load. Call it when nothing writes to its blocks any more, also if the transfer failed:
    /// the first `num_tokens` tokens from [`Begun::begin`] on are good. Returns how many of them the
    /// sequence has now: fewer if it was closed or shortened meanwhile, for example.
    ///
    /// `begin + num_tokens` is `end` or a multiple of the smallest block size.
    pub fn finish_load(&mut self, load: Load, num_tokens: i32) -> Result<i32> {
        let mut stand = 0;
        call(|error| unsafe {
            sys::kvfolio_finish_load(self.raw.as_ptr(), load.0, num_tokens, &mut stand, error)
        })?;
        Ok(stand)
    }

    /// How far a load could reach with blocks that a tier has: `has[g][i]` says that it has logical
    /// block i of the prompt in group g. What the sequence and the cache have counts too. Afterwards
    /// the blocks that a load to [`Loadable::end`] would wait for are true, all others false.
    /// `limit`: the largest end to look at; `has[g]` has an entry for each block of so many tokens.
    pub fn loadable(
        &self,
        sequence: Sequence,
        prompt: &[i32],
        limit: i32,
        has: &mut [&mut [bool]],
    ) -> Result<Loadable> {
        let mut bytes: Vec<u8> =
            has.iter().flat_map(|group| group.iter().map(|&b| b as u8)).collect();
        let sizes: Vec<i64> = has.iter().map(|group| group.len() as i64).collect();
        let mut out = Loadable { begin: 0, end: 0, blocks: 0 };
        call(|error| unsafe {
            sys::kvfolio_loadable(
                self.raw.as_ptr(),
                sequence.0,
                prompt.as_ptr(),
                prompt.len() as i64,
                limit,
                bytes.as_mut_ptr(),
                sizes.as_ptr(),
                count(sizes.len()),
                &mut out.begin,
                &mut out.end,
                &mut out.blocks,
                error,
            )
        })?;
        let all = has.iter_mut().flat_map(|group| group.iter_mut());
        all.zip(bytes).for_each(|(has, byte)| *has = byte != 0);
        Ok(out)
    }

    /// Keeps blocks as they are until [`release_hold`](Self::release_hold). Read them when the step
    /// that wrote them is complete. `InvalidArgument`: a block that is free or has no token yet.
    /// `FailedPrecondition`: the open step writes to a block.
    pub fn hold_blocks(&mut self, group: i32, blocks: &[i32]) -> Result<Hold> {
        let (this, n) = (self.raw.as_ptr(), blocks.len() as i64);
        let mut out = 0;
        call(|error| unsafe {
            sys::kvfolio_hold_blocks(this, group, blocks.as_ptr(), n, &mut out, error)
        })?;
        Ok(Hold(out))
    }

    /// Ends a hold: nothing reads the blocks any more.
    pub fn release_hold(&mut self, hold: Hold) -> Result<()> {
        call(|error| unsafe { sys::kvfolio_release_hold(self.raw.as_ptr(), hold.0, error) })
    }

    /// Takes up to `at_most` blocks that became findable, those that waited longest first. A block is
    /// handed out once each time that it becomes findable, or findable with more tokens, and not
    /// before its step is complete. Empty without [`Options::list_findable`](crate::Options).
    pub fn take_findable(&mut self, at_most: usize) -> Vec<Findable> {
        let mut piece = [sys::kvfolio_findable_block::new(); 64];
        let mut out = Vec::new();
        while out.len() < at_most {
            let room = piece.len().min(at_most - out.len());
            let n = unsafe {
                sys::kvfolio_take_findable(self.raw.as_ptr(), piece.as_mut_ptr(), room as i64)
            };
            let taken = &piece[..n as usize];
            out.extend(taken.iter().map(|c| Findable {
                group: c.group,
                block: c.block,
                end: c.end,
                serial: c.serial,
            }));
            if taken.len() < room {
                break;
            }
        }
        out
    }

    /// A number that stays as long as the block is found by the same tokens. None: the block is not
    /// findable, or there is no [`Options::list_findable`](crate::Options).
    pub fn entry_serial(&self, group: i32, block: i32) -> Result<Option<u64>> {
        let mut out = 0;
        call(|error| unsafe {
            sys::kvfolio_entry_serial(self.raw.as_ptr(), group, block, &mut out, error)
        })?;
        Ok(Some(out).filter(|&serial| serial != 0))
    }

    /// The path that a findable block ends; fills `tokens` with those from position `begin` on.
    /// `NotFound`: the block is not findable.
    pub fn prefix_of(
        &self,
        group: i32,
        block: i32,
        begin: i32,
        tokens: &mut [i32],
    ) -> Result<Prefix> {
        let (this, none) = (self.raw.as_ptr(), null_mut());
        let (mut num_tokens, mut num_media) = (0, 0);
        call(|error| unsafe {
            let (no_tokens, no_media, no_root) = (null_mut(), null_mut(), null_mut());
            sys::kvfolio_prefix_of(
                this,
                group,
                block,
                0,
                no_tokens,
                0,
                no_media,
                0,
                none,
                &mut num_media,
                no_root,
                error,
            )
        })?;
        let mut media = vec![MediaSpan::new(0, 0, [0; 32]); num_media as usize];
        let mut root = null_mut();
        call(|error| unsafe {
            sys::kvfolio_prefix_of(
                this,
                group,
                block,
                begin,
                tokens.as_mut_ptr(),
                tokens.len() as i64,
                media.as_mut_ptr().cast(), // repr(transparent)
                media.len() as i64,
                &mut num_tokens,
                &mut num_media,
                &mut root,
                error,
            )
        })?;
        match NonNull::new(root) {
            Some(root) => Ok(Prefix { num_tokens, media, root: Root::from_raw(root) }),
            None => invalid("C gave no root".into()),
        }
    }

    /// The full block of group `of` that ends at position `end` on the path of a findable block. None: the cache keeps none.
    pub fn block_at(&self, group: i32, block: i32, of: i32, end: i32) -> Result<Option<i32>> {
        let mut out = 0;
        call(|error| unsafe {
            sys::kvfolio_block_at(self.raw.as_ptr(), group, block, of, end, &mut out, error)
        })?;
        Ok(Some(out).filter(|&block| block >= 0))
    }
}
