// SPDX-License-Identifier: Apache-2.0

//! What leaves the cache comes back: host memory and other tiers below it, save and restore. The
//! feature `tiers` has it, and links libkvfolio_tiers.
//!
//! Start at [`Offload`]. It owns its cache and dereferences to it, so all goes on as before; only
//! [`Offload::open`] (and [`OffloadStep::open`]) also asks host memory and the tiers for what the
//! cache does not have. A request that is `pending` is ready once, found or not:
//!
//! ```
//! use kvfolio::tiers::{ModelIdentity, Offload, OffloadOptions};
//! use kvfolio::{Cache, GroupSpec, Options, Storage};
//!
//! # use kvfolio::tiers::{Completions, Items, OffloadTier, Tier, TierHandle, TierHealth};
//! # use kvfolio::tiers::{TierLimits, TierOp};
//! # struct Dead; // takes all, and never answers
//! # impl Tier for Dead {
//! #     fn limits(&self) -> TierLimits { TierLimits::default() }
//! #     fn health(&self) -> TierHealth { TierHealth::default() }
//! #     fn submit(&mut self, _: TierOp, items: &mut Items, _: u64) { items.for_each(drop) }
//! #     fn poll(&mut self, _: u64, _: &mut Completions) {}
//! # }
//! # // Without a tier, with an empty one, with one that has no room, and with a dead one.
//! # for kind in ["none", "empty", "full", "dead"] {
//! let group = GroupSpec { head_dim_k: 4, head_dim_v: 4, num_blocks: 64, ..GroupSpec::default() };
//! let options = Options { list_findable: true, ..Options::default() };
//! let cache = Cache::with_storage(Storage::new(&[group])?, &options)?;
//! let model = ModelIdentity { model: "llama-3-8b", weights: "rev 7", tokenizer: "rev 1",
//!                             model_dtype: "bf16", positions: "rope 500000",
//!                             engine: "mine 1.0", ..ModelIdentity::default() };
//! let options = OffloadOptions { arena_bytes: 1 << 20, ..OffloadOptions::default() };
//! let tiers = Vec::new(); // or TierHandle::disk(...), ...
//! # let mut cache = cache;
//! # let tiers: Vec<OffloadTier> = match kind {
//! #     "empty" => vec![TierHandle::memory(&mut cache, 1 << 20)?.into()],
//! #     "full" => vec![TierHandle::memory(&mut cache, 1 << 10)?.into()],
//! #     "dead" => vec![TierHandle::new(Dead)?.into()],
//! #     _ => tiers,
//! # };
//! let mut cache = Offload::new(cache, &model, &options, tiers)?;
//!
//! let prompt: Vec<i32> = (0..40).collect();
//! let mut now_us = 0; // of your clock
//! for found in [0, 32] {
//!     let opened = cache.open(&prompt, &Default::default())?;
//!     let mut cached_tokens = opened.cached_tokens;
//!     let mut is_pending = opened.pending;
//!     while is_pending {
//!         now_us += 100; // or do something else meanwhile
//!         for ready in cache.poll(now_us) {
//!             // Also if nothing was found, or the tiers did not answer in time.
//!             if ready.sequence == opened.sequence {
//!                 cached_tokens = ready.cached_tokens;
//!                 is_pending = false;
//!             }
//!         }
//!     }
//!     assert_eq!(cached_tokens, found);
//!     let mut step = cache.begin_step()?;
//!     step.append(opened.sequence, &prompt[cached_tokens as usize..])?;
//!     step.run_copies()?;
//!     step.finish()?; // and what you compute
//!     cache.close(opened.sequence)?;
//!     for _ in 0..100 {
//!         now_us += 100; // until idle(), which it never is over a tier that does not answer
//!         cache.poll(now_us); // stores what became findable
//!     }
//!     cache.evict(0, 64, &mut [])?; // the cache has lost it; host memory has it
//! }
//! # }
//! # Ok::<(), kvfolio::Error>(())
//! ```
//!
//! - [`Tier`] is a medium of your own, in safe Rust; [`TierHandle::memory`],
//!   [`TierHandle::disk`] and [`TierHandle::redis`] are there.
//! - [`save`] and [`restore`] write a cache to a file, and read it into a cache of any size.
//! - [`Identity`] makes the names of blocks, for those who keep records by themselves.

/// A struct of fields that the C struct has too, under the same names and of the same types.
macro_rules! of_c {
    ($(#[$meta:meta])* pub struct $name:ident = $c:ident {
        $($(#[$doc:meta])* pub $field:ident: $kind:ty,)*
    }) => {
        $(#[$meta])*
        #[non_exhaustive]
        pub struct $name {
            $($(#[$doc])* pub $field: $kind,)*
        }

        impl $name {
            pub(super) fn from_c(c: &crate::tiers::sys::$c) -> $name {
                $name { $($field: c.$field,)* }
            }
        }
    };
}

mod disk;
mod identity;
mod offload;
mod record;
mod redis;
mod snapshot;
mod tier;

pub use disk::{DiskEngine, DiskOptions, DiskStats};
pub use identity::{Digest, Identity, ModelIdentity};
pub use kvfolio_tiers_sys as sys;
pub use offload::{
    ArenaStats, Left, LoadEnd, NameEpochs, Offload, OffloadCounters, OffloadOpened, OffloadOptions,
    OffloadStep, OffloadTier, OffloadTierCounters, Ready, Refused, RootEpoch, WritePolicy,
};
pub use record::{
    ForeignIdentity, ForeignModel, RecordHeader, RecordInfo, RecordKeys, RecordSealer,
};
pub use redis::{RedisCounters, RedisOptions, RedisTls};
pub use snapshot::{
    restore, restore_file, restore_file_with, restore_with, save, save_file, RestoreStats,
    Restored, RestoredSequence, SaveOptions, SaveSequence, SaveStats,
};
pub use tier::{
    Completions, Item, Items, Key, Tier, TierHandle, TierHealth, TierLimits, TierOp, TierResult,
};
