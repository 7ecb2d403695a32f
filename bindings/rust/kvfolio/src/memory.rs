// SPDX-License-Identifier: Apache-2.0

use crate::{sys, Error, Result};
use std::os::raw::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

/// Which processor may touch memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum MemoryKind {
    /// The CPU.
    Host = sys::KVFOLIO_HOST,
    /// A device, through its resource.
    Device = sys::KVFOLIO_DEVICE,
}

/// Memory of the caller's own making for K and V: an arena, pinned pages, a device.
///
/// Storages call it from the thread that uses them. `copy` may run in several threads at the same
/// time. A panic in a method ends the program.
///
/// Copies say whether the bytes arrived. After an error the destinations may have any bytes, and
/// nothing else was touched. Callers of a storage see [`Error::Unsupported`], after which nothing
/// was copied, and all else as [`Error::Unavailable`], whose sentence has the code of the error only.
///
/// # Safety
///
/// `allocate` returns null if there is none, else `bytes` bytes, aligned to 64 or more, that nothing
/// else uses until `deallocate`. Those of [`MemoryKind::Host`] are readable, writable and
/// initialised, with any content. `kind` is always the same. No method calls this crate.
///
/// ```
/// use kvfolio::{Bases, Borrowed, BorrowedGroup, CopyRun, GroupSpec, MemoryKind, MemoryResource,
///               Storage, Strides};
/// use std::alloc::{alloc_zeroed, dealloc, Layout};
///
/// struct Heap;
/// fn layout(bytes: usize) -> Layout { Layout::from_size_align(bytes, 64).unwrap() }
/// unsafe impl MemoryResource for Heap {
///     fn kind(&self) -> MemoryKind { MemoryKind::Host }
///     fn allocate(&self, bytes: usize) -> *mut u8 { unsafe { alloc_zeroed(layout(bytes)) } }
///     unsafe fn deallocate(&self, memory: *mut u8, bytes: usize) { dealloc(memory, layout(bytes)) }
///     unsafe fn copy(&self, dst: *mut u8, src: *const u8, bytes: usize) -> kvfolio::Result<()> {
///         std::ptr::copy_nonoverlapping(src, dst, bytes);
///         Ok(())
///     }
///     // copy_batch, copy_in and copy_out have defaults. A device has its own:
///     unsafe fn copy_in(&self, runs: &[CopyRun]) -> kvfolio::Result<()> {
///         for run in runs { std::ptr::copy_nonoverlapping(run.src(), run.dst(), run.bytes()) }
///         Ok(())
///     }
///     unsafe fn copy_out(&self, runs: &[CopyRun]) -> kvfolio::Result<()> { self.copy_batch(runs) }
/// }
/// let groups = [GroupSpec { head_dim_k: 8, num_blocks: 4, ..GroupSpec::default() }];
/// let storage = Storage::with_resource(&groups, std::sync::Arc::new(Heap))?;
/// assert_eq!(storage.memory_bytes(), 4 * 16 * 8 * 4);
///
/// // Memory that is lent, and a resource that copies within it.
/// let mut tensor = vec![0f32; 4 * 16 * 8];
/// let bases = vec![Bases { k: tensor.as_mut_ptr().cast(), ..Bases::default() }];
/// let strides = Strides { block: 16 * 32, head: 16 * 32, token: 32, layer: 0 };
/// let lent = BorrowedGroup { bases, k: Borrowed { bytes: 4 * 16 * 32, strides },
///                            ..BorrowedGroup::default() };
/// // SAFETY: `tensor` outlives the storage, and nothing else touches it.
/// let storage = unsafe { Storage::borrow_with_resource(&groups, &[lent], std::sync::Arc::new(Heap))? };
/// assert!(!storage.owns_memory());
/// drop(storage);
/// drop(tensor);
/// # Ok::<(), kvfolio::Error>(())
/// ```
pub unsafe trait MemoryResource: Send + Sync {
    /// Which processor may touch the memory.
    fn kind(&self) -> MemoryKind;
    /// `bytes` (1 or more) bytes, or null.
    fn allocate(&self, bytes: usize) -> *mut u8;
    /// Takes back what `allocate(bytes)` gave.
    ///
    /// # Safety
    /// `allocate(bytes)` of this resource gave `memory`, once.
    unsafe fn deallocate(&self, memory: *mut u8, bytes: usize);
    /// Copies within memory of this resource, between ranges that do not overlap. Returns when the
    /// copy is done, or when the resource's own stream orders every later use behind it. It waits
    /// for nothing that was enqueued on a stream before: that is the caller's affair.
    ///
    /// # Safety
    /// Both ranges lie in memory that `allocate` gave or that was lent beside this resource; for
    /// [`MemoryKind::Host`] one of them may be any memory of the CPU.
    unsafe fn copy(&self, dst: *mut u8, src: *const u8, bytes: usize) -> Result<()>;
    /// Many copies, as `copy`. By default one after the other.
    ///
    /// # Safety
    /// As `copy`, for each run.
    unsafe fn copy_batch(&self, runs: &[CopyRun]) -> Result<()> {
        // SAFETY: as required.
        runs.iter().try_for_each(|run| unsafe { self.copy(run.dst(), run.src(), run.bytes()) })
    }
    /// Copies from memory of the CPU to memory of this resource, for
    /// [`StorageMut::write_blocks`](crate::StorageMut::write_blocks). Returns when the bytes were
    /// read. By default memory of the CPU can, by `copy_batch`; all other is [`Error::Unsupported`].
    ///
    /// # Safety
    /// As `copy`, but that the sources lie in memory of the CPU.
    unsafe fn copy_in(&self, runs: &[CopyRun]) -> Result<()> {
        host_only(self.kind())?;
        // SAFETY: as required.
        unsafe { self.copy_batch(runs) }
    }
    /// Copies from memory of this resource to memory of the CPU, for
    /// [`Storage::read_blocks`](crate::Storage::read_blocks). Returns when the bytes are there.
    /// Otherwise as `copy_in`.
    ///
    /// # Safety
    /// As `copy`, but that the destinations lie in memory of the CPU.
    unsafe fn copy_out(&self, runs: &[CopyRun]) -> Result<()> {
        host_only(self.kind())?;
        // SAFETY: as required.
        unsafe { self.copy_batch(runs) }
    }
}

fn host_only(kind: MemoryKind) -> Result<()> {
    match kind {
        MemoryKind::Host => Ok(()),
        MemoryKind::Device => {
            Err(Error::Unsupported("no copies to and from memory of the CPU".into()))
        }
    }
}

/// One copy of a [`MemoryResource`]: `bytes()` bytes from `src()` to `dst()`.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct CopyRun(sys::kvfolio_copy_run);

impl CopyRun {
    /// Where the bytes go.
    pub fn dst(&self) -> *mut u8 {
        self.0.dst.cast()
    }
    /// Where they lie.
    pub fn src(&self) -> *const u8 {
        self.0.src.cast()
    }
    /// How many they are.
    pub fn bytes(&self) -> usize {
        self.0.bytes as usize
    }
}

/// Keeps a resource where C finds it. Not a Box: to move a Box says that nothing else points into
/// it, and C does.
pub(crate) struct Resource(Arc<Arc<dyn MemoryResource>>);

impl Resource {
    pub(crate) fn new(resource: Arc<dyn MemoryResource>) -> Resource {
        Resource(Arc::new(resource))
    }

    /// The table of functions; valid as long as `self`, wherever it moves.
    pub(crate) fn to_c(&self) -> sys::kvfolio_memory_resource {
        sys::kvfolio_memory_resource {
            kind: self.0.kind() as i32,
            context: Arc::as_ptr(&self.0) as *mut c_void,
            allocate: Some(allocate),
            deallocate: Some(deallocate),
            copy: Some(copy),
            copy_batch: Some(copy_batch),
            copy_in: Some(copy_in),
            copy_out: Some(copy_out),
            ..sys::kvfolio_memory_resource::new()
        }
    }
}

/// Runs a callback. Unwinding through C is undefined, so a panic ends the program here; the hook of
/// the panic has printed it.
pub(crate) fn no_unwind<T>(f: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|_| std::process::abort())
}

// SAFETY of these: the context is that of Resource::to_c(), which outlives the storage; C keeps what
// the trait promises of the arguments.
unsafe fn resource<'a>(context: *mut c_void) -> &'a dyn MemoryResource {
    unsafe { &**(context as *const Arc<dyn MemoryResource>) }
}
unsafe fn runs<'a>(runs: *const sys::kvfolio_copy_run, n: i64) -> &'a [CopyRun] {
    if n == 0 {
        return &[];
    }
    unsafe { std::slice::from_raw_parts(runs.cast(), n as usize) } // repr(transparent)
}
unsafe extern "C" fn allocate(context: *mut c_void, bytes: i64) -> *mut c_void {
    no_unwind(|| unsafe { resource(context) }.allocate(bytes as usize)).cast()
}
unsafe extern "C" fn deallocate(context: *mut c_void, memory: *mut c_void, bytes: i64) {
    no_unwind(|| unsafe { resource(context).deallocate(memory.cast(), bytes as usize) });
}
/// Never 0 for an error, whatever its code is.
fn code_of(copied: Result<()>) -> i32 {
    match copied {
        Ok(()) => sys::KVFOLIO_OK,
        Err(error) if error.code() == sys::KVFOLIO_OK => sys::KVFOLIO_ERR_UNAVAILABLE,
        Err(error) => error.code(),
    }
}
unsafe extern "C" fn copy(
    context: *mut c_void,
    dst: *mut c_void,
    src: *const c_void,
    bytes: i64,
) -> i32 {
    no_unwind(|| unsafe { code_of(resource(context).copy(dst.cast(), src.cast(), bytes as usize)) })
}
unsafe extern "C" fn copy_batch(
    context: *mut c_void,
    list: *const sys::kvfolio_copy_run,
    n: i64,
) -> i32 {
    no_unwind(|| unsafe { code_of(resource(context).copy_batch(runs(list, n))) })
}
unsafe extern "C" fn copy_in(
    context: *mut c_void,
    list: *const sys::kvfolio_copy_run,
    n: i64,
) -> i32 {
    no_unwind(|| unsafe { code_of(resource(context).copy_in(runs(list, n))) })
}
unsafe extern "C" fn copy_out(
    context: *mut c_void,
    list: *const sys::kvfolio_copy_run,
    n: i64,
) -> i32 {
    no_unwind(|| unsafe { code_of(resource(context).copy_out(runs(list, n))) })
}
