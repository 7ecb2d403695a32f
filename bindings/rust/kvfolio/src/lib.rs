// SPDX-License-Identifier: Apache-2.0

//! A paged KV cache for people who write inference engines. A cache hit never changes a bit.
//!
//! Start at [`Cache`]. A step is begun on it, takes tokens, is planned, computed and finished:
//!
//! ```
//! use kvfolio::{Cache, GroupSpec, Options, Rows, Storage};
//!
//! let group = GroupSpec { head_dim_k: 4, head_dim_v: 4, num_blocks: 64, ..GroupSpec::default() };
//! let mut cache = Cache::with_storage(Storage::new(&[group])?, &Options::default())?;
//! let prompt = [1, 2, 3];
//! let opened = cache.open(&prompt, &Default::default())?; // finds and holds
//! let rest = &prompt[opened.cached_tokens as usize..];
//! let mut step = cache.begin_step()?; // borrows the cache; dropped, it rolls back
//! step.append(opened.sequence, rest)?;
//! let mut plan = step.plan(&Default::default())?; // borrows the step
//! plan.run_copies()?;
//! let k = vec![0.5f32; rest.len() * 4]; // what your model computes
//! let rows = Rows::f32(&k, [rest.len(), 1, 4]);
//! let slots = plan.group(0).slot_mapping();
//! plan.view_mut(0)?.append_rows(0, rows, Some(rows), slots)?; // then View::attend()
//! step.finish()?;
//! # Ok::<(), kvfolio::Error>(())
//! ```
//!
//! # Who borrows what
//!
//! - Calls on a [`Cache`] take `&self` if they are const calls of C++, `&mut self` if not. So several
//!   threads may ask, and one changes.
//! - A [`Step`] borrows the cache mutably: there is one open step. Dropped, it rolls back.
//! - A [`Plan`] borrows its step: it is gone before the step changes or ends. `commit()` gives a
//!   [`Ticket`], a number, so steps in flight borrow nothing; [`Manager::plan_of`] gives the arrays of
//!   a step in flight as a borrow of the cache, until the step is complete. A device that reads them
//!   without a borrow may: they stay where they are until then.
//! - A [`View`] reads K and V, a [`ViewMut`] writes them, under the rules of `&` and `&mut`.
//! - Memory that is lent ([`Storage::borrow`]), or comes from elsewhere ([`MemoryResource`]), and
//!   threads that are lent ([`Executor`]) are `unsafe` to give: C relies on what they promise.
//! - An [`OpLog`] belongs to the cache that records to it, until [`Manager::record`] gives it back.
//! - Host memory and other tiers below the cache, save and restore are the module `tiers`, behind the
//!   feature of that name, which links a second library. Memory and kernels of NVIDIA cards are the
//!   module `cuda`, in the same way.
//!
//! - Ids ([`Sequence`], [`Pin`], [`Load`], [`Hold`], [`Ticket`]) borrow nothing. Each call checks them.
//!
//! # While a step is open
//!
//! [`Step`] dereferences to [`Manager`], so these calls are there. What they allow:
//!
//! - Every question, and everything about sequences that are not in the step: open, fork, truncate,
//!   trim, close, pin, evict, forget, reserve, begin or finish a load, hold blocks, and so on.
//! - About a sequence that is in the step: [`Step::undo`], [`Manager::preempt`] (which takes it out of
//!   the step first), [`Manager::set_priority`] and questions. Other calls that change it are
//!   [`Error::FailedPrecondition`] until the step has ended. It is in the step once; append all of
//!   its tokens in one call.
//! - About earlier steps: [`Manager::complete`], [`Manager::fail`] and [`Manager::set_tokens`].
//! - [`Manager::admit`] and [`Manager::admit_prompt`] answer for the open step: they count with what
//!   its appends have taken.
//! - No second step: [`Cache::begin_step`] is not a method of [`Manager`].
//! - After [`Step::run_copies`] the step takes no more appends.
//!
//! # Numbers
//!
//! Tokens, positions, blocks, groups and counts of the cache are `i32`, as in `kvfolio.h`: the arrays
//! of a plan hold them. Sizes of Rust memory are `usize`: bytes of a buffer, shapes of [`Rows`],
//! threads, tokens of a [`TokenStore`]. The C++ header `manager.h` is the reference of every call.

#![deny(missing_docs, missing_debug_implementations, unsafe_op_in_unsafe_fn)]

#[macro_use]
mod mirror;

mod block_store;
#[cfg(feature = "cuda")]
pub mod cuda;
mod error;
mod ids;
mod kernels;
mod manager;
mod memory;
mod op_log;
mod options;
mod plan;
mod prompt;
mod questions;
mod room;
mod rows;
mod spec;
mod steps;
mod storage;
mod threads;
// Its fields are those of the C header, which says them; what C calls is unsafe as a whole.
#[cfg(feature = "tiers")]
#[allow(missing_docs, missing_debug_implementations, unsafe_op_in_unsafe_fn)]
pub mod tiers;
mod token_store;
mod transfers;
mod view;

pub use block_store::BlockStore;
pub use error::{Error, Result, Shortage, Stopped};
pub use ids::{Hold, Load, Pin, Sequence, Ticket};
pub use kernels::{
    convert, merge_states, Attention, AttentionOptions, Batch, GatherOptions, State, Target,
};
pub use kvfolio_sys as sys;
pub use manager::{Cache, ForkOptions, Manager, Opened};
pub use memory::{CopyRun, MemoryKind, MemoryResource};
pub use op_log::OpLog;
pub use options::{Options, Order, Policy};
pub use plan::{GroupPlan, PlanArrays, SharedPrefix};
pub use prompt::{MediaSpan, OpenOptions, Publish, Root, RootKey};
pub use questions::{BlockState, Counters, GroupUsage, MemoryUse, SequenceInfo, Soon};
pub use room::{Admission, Forgotten, Pinned};
pub use rows::{Element, Rows, RowsMut};
pub use spec::{fit, plan_layouts, DType, Format, GroupLayout, GroupSpec, Kind};
pub use steps::{Ended, Plan, PlanOptions, Step};
pub use storage::{Bases, Borrowed, BorrowedGroup, Storage, StorageMut, Strides};
pub use threads::{Executor, ThreadPool};
pub use token_store::{TokenStore, TokenStoreOptions};
pub use transfers::{Begun, Findable, LoadBlocks, Loadable, Prefix};
pub use view::{View, ViewMut};

/// The version of the library, such as "0.1.0".
///
/// ```
/// assert_eq!(kvfolio::version(), env!("CARGO_PKG_VERSION"));
/// assert_eq!(kvfolio::abi_version(), kvfolio::sys::KVFOLIO_ABI_VERSION);
/// ```
pub fn version() -> &'static str {
    // SAFETY: a constant.
    unsafe { error::constant(sys::kvfolio_version()) }
}

/// As long as this number stays, functions and fields of the C interface are only added.
pub fn abi_version() -> u32 {
    // SAFETY: takes nothing.
    unsafe { sys::kvfolio_abi_version() }
}
