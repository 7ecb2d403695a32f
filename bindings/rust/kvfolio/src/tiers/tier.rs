// SPDX-License-Identifier: Apache-2.0
//
// Tiers in Rust. An Item is the right to touch its memory: it is given to a tier by submit(), and
// the tier gives it back by finish(), after which nothing of Rust can reach the memory any more. So
// a tier needs no unsafe code.

use super::sys;
use crate::error::{call, constant};
use crate::memory::no_unwind;
use crate::{Manager, Result};
use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::os::raw::c_void;
use std::ptr::{null, null_mut, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

/// The name of a record: a digest, so it holds no text of a user. `tier.h` says its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub [u8; 72]);

/// What a tier is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum TierOp {
    /// `Ok` or `Miss`; the item has no memory.
    Exists = sys::KVFOLIO_TIER_EXISTS,
    /// Fill [`Item::buffer`]; a record of another size is `Corrupt`.
    Load = sys::KVFOLIO_TIER_LOAD,
    /// Keep [`Item::record`]; a key that is there already is `Ok` and keeps its bytes.
    Store = sys::KVFOLIO_TIER_STORE,
    /// `Ok` also if there was nothing; the item has no memory.
    Erase = sys::KVFOLIO_TIER_ERASE,
}

/// How an item ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum TierResult {
    /// As asked.
    Ok = sys::KVFOLIO_TIER_OK,
    /// There is no such record.
    Miss = sys::KVFOLIO_TIER_MISS,
    /// There is one, and it is not what was stored.
    Corrupt = sys::KVFOLIO_TIER_CORRUPT,
    /// Try again later.
    Busy = sys::KVFOLIO_TIER_BUSY,
    /// The deadline passed first.
    Timeout = sys::KVFOLIO_TIER_TIMEOUT,
    /// The medium failed.
    IoError = sys::KVFOLIO_TIER_IO_ERROR,
    /// The medium cannot be reached now.
    Unavailable = sys::KVFOLIO_TIER_UNAVAILABLE,
    /// The tier was closed first.
    Closed = sys::KVFOLIO_TIER_CLOSED,
}

impl std::fmt::Display for TierResult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // SAFETY: takes any number and returns a constant.
        f.write_str(unsafe { constant(sys::kvfolio_tier_result_name(*self as i32)) })
    }
}

/// One thing to do, and the memory for it, which is the tier's until [`Completions::finish`]. An item
/// may go to another thread and come back. One that is dropped is never done: the Offload waits
/// until its deadline, and its memory is not used again.
#[derive(Debug)]
pub struct Item {
    key: Key,
    op: TierOp,
    data: *mut u8,
    bytes: usize,
    tag: u64,
    tier: u64,
}

// SAFETY: the memory is the item's alone: nothing else touches that of a load, and that of a store is only read.
unsafe impl Send for Item {}
unsafe impl Sync for Item {}

impl Item {
    /// The name of its record.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// What is asked.
    pub fn op(&self) -> TierOp {
        self.op
    }

    /// The bytes of the record; 0 without memory.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The record to store; empty for other operations.
    pub fn record(&self) -> &[u8] {
        match self.op {
            // SAFETY: the memory is initialised, and unchanged until the item is done.
            TierOp::Store if self.bytes > 0 => unsafe {
                std::slice::from_raw_parts(self.data, self.bytes)
            },
            _ => &[],
        }
    }

    /// Where the record is to be loaded; empty for other operations.
    pub fn buffer(&mut self) -> &mut [u8] {
        match self.op {
            // SAFETY: the memory is initialised, and this item's alone until it is done.
            TierOp::Load if self.bytes > 0 => unsafe {
                std::slice::from_raw_parts_mut(self.data, self.bytes)
            },
            _ => &mut [],
        }
    }
}

/// The items of one [`Tier::submit`]. Each `next()` accepts one; those that are left are not accepted.
#[derive(Debug)]
pub struct Items<'a> {
    left: &'a [sys::kvfolio_tier_item],
    op: TierOp,
    tier: u64,
}

impl Iterator for Items<'_> {
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        let (first, left) = self.left.split_first()?;
        self.left = left;
        let has_memory = matches!(self.op, TierOp::Load | TierOp::Store) && !first.data.is_null();
        Some(Item {
            key: Key(first.key.bytes),
            op: self.op,
            data: first.data.cast(),
            bytes: if has_memory { first.bytes as usize } else { 0 },
            tag: first.tag,
            tier: self.tier,
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left.len(), Some(self.left.len()))
    }
}

impl ExactSizeIterator for Items<'_> {}

/// Takes the items that are done, in [`Tier::poll`].
#[derive(Debug)]
pub struct Completions<'a> {
    done: &'a mut VecDeque<sys::kvfolio_tier_done>,
    tier: u64,
}

impl Completions<'_> {
    /// The item is done. `Ok` for a load means that its buffer was filled; the Offload checks with
    /// which bytes.
    ///
    /// # Panics
    /// If the item was given to another tier.
    pub fn finish(&mut self, item: Item, result: TierResult) {
        assert_eq!(item.tier, self.tier, "an item is finished by the tier that accepted it");
        let result = result as i32;
        self.done.push_back(sys::kvfolio_tier_done { tag: item.tag, result, reserved: 0 });
    }
}

/// What a tier asks of items. It does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierLimits {
    /// Larger records are not offered; 0: no limit.
    pub record_bytes_max: i64,
    /// Alignment of the items' memory: a power of two up to 4096.
    pub data_alignment: i32,
}

impl Default for TierLimits {
    fn default() -> TierLimits {
        TierLimits { record_bytes_max: 0, data_alignment: 64 }
    }
}

/// What a tier says of its own state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierHealth {
    /// False: it accepts nothing now.
    pub usable: bool,
    /// Stores that ended well.
    pub stores_ok: u64,
    /// Loads that ended well.
    pub loads_ok: u64,
    /// Results other than `Ok` and `Miss`.
    pub failures: u64,
    /// Damaged records that the tier found by itself: no load was answered `Corrupt` for them.
    pub corrupt_unasked: u64,
    /// Loads that met a record which another key sealed, or none, and were answered `Miss`.
    pub of_another_key: u64,
}

impl Default for TierHealth {
    fn default() -> TierHealth {
        TierHealth {
            usable: true,
            stores_ok: 0,
            loads_ok: 0,
            failures: 0,
            corrupt_unasked: 0,
            of_another_key: 0,
        }
    }
}

/// A medium below the cache that keeps records under keys: a disk, a server, memory. It knows keys and
/// bytes only. What it loses, mixes up or damages is a miss; what it forges is not.
///
/// Rules that every tier keeps: no method blocks; each item that was accepted is finished once, also
/// after its deadline and after `close`. A panic in a method ends the program.
///
/// ```
/// use kvfolio::tiers::{Completions, Item, Items, Key, Tier, TierHandle, TierHealth, TierLimits, TierOp,
///                      TierResult};
/// use std::collections::HashMap;
///
/// #[derive(Default)]
/// struct Map { records: HashMap<Key, Vec<u8>>, waiting: Vec<Item> }
///
/// impl Tier for Map {
///     fn limits(&self) -> TierLimits { // larger records are not offered
///         TierLimits { record_bytes_max: 1 << 20, ..TierLimits::default() }
///     }
///     fn health(&self) -> TierHealth {
///         TierHealth { usable: self.waiting.len() < 1000, ..TierHealth::default() }
///     }
///     fn submit(&mut self, _op: TierOp, items: &mut Items, _deadline_us: u64) {
///         self.waiting.extend(items); // a full queue would take fewer
///     }
///     fn poll(&mut self, _now_us: u64, done: &mut Completions) {
///         for mut item in self.waiting.drain(..) {
///             let result = match (item.op(), self.records.get(item.key())) {
///                 (TierOp::Load, Some(record)) if record.len() == item.bytes() => {
///                     item.buffer().copy_from_slice(record);
///                     TierResult::Ok
///                 }
///                 (TierOp::Load, Some(_)) => TierResult::Corrupt,
///                 (TierOp::Exists, Some(_)) => TierResult::Ok,
///                 (TierOp::Load | TierOp::Exists, None) => TierResult::Miss,
///                 (TierOp::Store, Some(_)) => TierResult::Ok,
///                 (TierOp::Store, None) => {
///                     self.records.insert(*item.key(), item.record().to_vec());
///                     TierResult::Ok
///                 }
///                 (TierOp::Erase, _) => {
///                     self.records.remove(item.key());
///                     TierResult::Ok
///                 }
///             };
///             done.finish(item, result); // its memory is out of reach from here on
///         }
///     }
/// }
/// let tier = TierHandle::new(Map::default())?; // for Offload::new()
/// assert_eq!((tier.name(), tier.event_fd()), ("rust", None));
/// # Ok::<(), kvfolio::Error>(())
/// ```
pub trait Tier: Send {
    /// For people; asked once.
    fn name(&self) -> String {
        "rust".into()
    }

    /// Asked once.
    fn limits(&self) -> TierLimits {
        TierLimits::default()
    }

    /// Takes what it accepts out of `items`, from the first on. What is not finished when the clock of
    /// `poll` has passed `deadline_us` is [`TierResult::Timeout`].
    fn submit(&mut self, op: TierOp, items: &mut Items<'_>, deadline_us: u64);

    /// Finishes what is done. Time never goes back.
    fn poll(&mut self, now_us: u64, done: &mut Completions<'_>);

    /// A descriptor that is readable when `poll` has something to say.
    fn event_fd(&self) -> Option<i32> {
        None
    }

    /// What the tier says of its own state.
    fn health(&self) -> TierHealth {
        TierHealth::default()
    }

    /// From now on `submit` accepts nothing; what is not done by the deadline is
    /// [`TierResult::Closed`].
    fn close(&mut self, deadline_us: u64) {
        let _ = deadline_us;
    }
}

struct Adapter {
    tier: Box<dyn Tier>,
    id: u64, // of its items
    done: VecDeque<sys::kvfolio_tier_done>,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// A tier that an [`Offload`](super::Offload) may use: one in Rust, or one of the library.
pub struct TierHandle(NonNull<sys::kvfolio_tier>);

// SAFETY: a handle may move between threads; tiers in Rust are Send, and those over the same memory
// lock it. It is not Sync, and no call of it is either.
unsafe impl Send for TierHandle {}

impl TierHandle {
    /// A tier in Rust.
    pub fn new<T: Tier + 'static>(tier: T) -> Result<TierHandle> {
        let limits = tier.limits();
        let name = CString::new(tier.name().replace('\0', " ")).expect("it has no 0");
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let adapter = Box::new(Adapter { tier: Box::new(tier), id, done: VecDeque::new() });
        let context = Box::into_raw(adapter);
        let functions = sys::kvfolio_tier_functions {
            data_alignment: limits.data_alignment,
            record_bytes_max: limits.record_bytes_max,
            name: name.as_ptr(),
            context: context.cast(),
            submit: Some(submit),
            poll: Some(poll),
            event_fd: Some(event_fd),
            health: Some(health),
            close: Some(close),
            destroy: Some(destroy),
            ..sys::kvfolio_tier_functions::new()
        };
        let mut out = null_mut();
        // SAFETY: the functions are of this context, which destroy() frees; if there is no tier, we do.
        let made = call(|error| unsafe { sys::kvfolio_tier_create(&functions, &mut out, error) });
        if let Err(error) = made {
            drop(unsafe { Box::from_raw(context) });
            return Err(error);
        }
        Ok(TierHandle::from_raw(out))
    }

    /// A tier in host memory of at most `bytes`, for records of this cache, which has storage. What is
    /// not used for longest goes first. [`TierHandle::share`] gives other caches what it has.
    pub fn memory(cache: &mut Manager, bytes: i64) -> Result<TierHandle> {
        let mut out = null_mut();
        // SAFETY: the manager lives as long as the call, and it is ours.
        call(|error| unsafe {
            let manager = cache.raw.as_ptr();
            sys::kvfolio_tier_create_memory(manager, bytes, null(), &mut out, error)
        })?;
        Ok(TierHandle::from_raw(out))
    }

    /// Another tier over the records of one in memory, for another cache, also in another thread: each
    /// finds what the others computed. `Unsupported`: a tier of another kind.
    pub fn share(&self) -> Result<TierHandle> {
        let mut out = null_mut();
        // SAFETY: the handle lives as long as self.
        call(|error| unsafe { sys::kvfolio_tier_share(self.0.as_ptr(), &mut out, error) })?;
        Ok(TierHandle::from_raw(out))
    }

    /// For people.
    pub fn name(&self) -> &str {
        // SAFETY: the text is valid as long as the tier.
        unsafe { CStr::from_ptr(sys::kvfolio_tier_name(self.0.as_ptr())) }.to_str().unwrap_or("?")
    }

    /// A descriptor that is readable when [`Offload::poll`](super::Offload::poll) has something to do.
    pub fn event_fd(&self) -> Option<i32> {
        // SAFETY: the handle lives as long as self.
        Some(unsafe { sys::kvfolio_tier_event_fd(self.0.as_ptr()) }).filter(|fd| *fd >= 0)
    }

    pub(super) fn from_raw(raw: *mut sys::kvfolio_tier) -> TierHandle {
        TierHandle(NonNull::new(raw).expect("C gave a tier"))
    }

    pub(super) fn raw(&self) -> *mut sys::kvfolio_tier {
        self.0.as_ptr()
    }
}

impl Drop for TierHandle {
    fn drop(&mut self) {
        // SAFETY: it was created here and goes once, after the Offload that used it.
        unsafe { sys::kvfolio_tier_destroy(self.0.as_ptr()) }
    }
}

impl std::fmt::Debug for TierHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TierHandle({})", self.name())
    }
}

// ---- what C calls. SAFETY: the context is that of TierHandle::new(), and one call runs at a time ----

unsafe fn adapter<'a>(context: *mut c_void) -> &'a mut Adapter {
    unsafe { &mut *(context as *mut Adapter) }
}

unsafe extern "C" fn submit(
    context: *mut c_void,
    op: i32,
    items: *const sys::kvfolio_tier_item,
    num_items: i64,
    deadline_us: u64,
) -> i64 {
    if num_items <= 0 {
        return 0;
    }
    no_unwind(|| {
        let op = match op {
            sys::KVFOLIO_TIER_EXISTS => TierOp::Exists,
            sys::KVFOLIO_TIER_LOAD => TierOp::Load,
            sys::KVFOLIO_TIER_STORE => TierOp::Store,
            _ => TierOp::Erase,
        };
        let adapter = unsafe { adapter(context) };
        let all = unsafe { std::slice::from_raw_parts(items, num_items as usize) };
        let mut items = Items { left: all, op, tier: adapter.id };
        adapter.tier.submit(op, &mut items, deadline_us);
        (all.len() - items.left.len()) as i64
    })
}

unsafe extern "C" fn poll(
    context: *mut c_void,
    now_us: u64,
    done: *mut sys::kvfolio_tier_done,
    capacity: i64,
) -> i64 {
    no_unwind(|| {
        let adapter = unsafe { adapter(context) };
        let mut completions = Completions { done: &mut adapter.done, tier: adapter.id };
        adapter.tier.poll(now_us, &mut completions);
        let n = adapter.done.len().min(capacity.max(0) as usize);
        for (i, one) in adapter.done.drain(..n).enumerate() {
            unsafe { done.add(i).write(one) };
        }
        n as i64
    })
}

unsafe extern "C" fn event_fd(context: *mut c_void) -> i32 {
    no_unwind(|| unsafe { adapter(context) }.tier.event_fd().unwrap_or(-1))
}

unsafe extern "C" fn health(context: *mut c_void, out: *mut sys::kvfolio_tier_health) {
    let health = no_unwind(|| unsafe { adapter(context) }.tier.health());
    let out = unsafe { &mut *out };
    out.unusable = !health.usable as i32;
    out.stores_ok = health.stores_ok;
    out.loads_ok = health.loads_ok;
    out.failures = health.failures;
    out.corrupt_unasked = health.corrupt_unasked;
    out.of_another_key = health.of_another_key;
}

unsafe extern "C" fn close(context: *mut c_void, deadline_us: u64) -> i32 {
    no_unwind(|| unsafe { adapter(context) }.tier.close(deadline_us));
    0
}

unsafe extern "C" fn destroy(context: *mut c_void) {
    no_unwind(|| drop(unsafe { Box::from_raw(context as *mut Adapter) }));
}
