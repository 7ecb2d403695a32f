// SPDX-License-Identifier: Apache-2.0

use crate::sys;
use std::os::raw::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

/// Who may touch memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum MemoryKind {
    Host = sys::KVFOLIO_HOST,
    Device = sys::KVFOLIO_DEVICE,
}

/// Memory of the caller's own making for K and V: an arena, pinned pages, a device.
///
/// Storages call it from the thread that uses them. `copy` may run in several threads at the same
/// time. A panic in a method ends the program.
///
/// # Safety
///
/// `allocate` returns null if there is none, else `bytes` bytes, aligned to 64 or more, that nothing
/// else uses until `deallocate`. Those of [`MemoryKind::Host`] are readable, writable and
/// initialised, with any content. `kind` is always the same. No method calls this crate.
///
/// ```
/// use kvfolio::{Bases, Borrowed, BorrowedGroup, GroupSpec, MemoryKind, MemoryResource, Storage,
///               Strides};
/// use std::alloc::{alloc_zeroed, dealloc, Layout};
///
/// struct Heap;
/// fn layout(bytes: usize) -> Layout { Layout::from_size_align(bytes, 64).unwrap() }
/// unsafe impl MemoryResource for Heap {
///     fn kind(&self) -> MemoryKind { MemoryKind::Host }
///     fn allocate(&self, bytes: usize) -> *mut u8 { unsafe { alloc_zeroed(layout(bytes)) } }
///     unsafe fn deallocate(&self, memory: *mut u8, bytes: usize) { dealloc(memory, layout(bytes)) }
///     unsafe fn copy(&self, dst: *mut u8, src: *const u8, bytes: usize) {
///         std::ptr::copy_nonoverlapping(src, dst, bytes)
///     }
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
    /// Who may touch the memory.
    fn kind(&self) -> MemoryKind;
    /// `bytes` (1 or more) bytes, or null.
    fn allocate(&self, bytes: usize) -> *mut u8;
    /// Takes back what `allocate(bytes)` gave.
    ///
    /// # Safety
    /// `allocate(bytes)` of this resource gave `memory`, once.
    unsafe fn deallocate(&self, memory: *mut u8, bytes: usize);
    /// Copies within memory of this resource, between ranges that do not overlap. Returns when the
    /// copy is done, or when the resource's own stream orders every later use behind it.
    ///
    /// # Safety
    /// Both ranges lie in memory that `allocate` gave or that was lent beside this resource.
    unsafe fn copy(&self, dst: *mut u8, src: *const u8, bytes: usize);
}

/// Keeps a resource where C finds it.
pub(crate) struct Resource(Box<Arc<dyn MemoryResource>>);

impl Resource {
    pub(crate) fn new(resource: Arc<dyn MemoryResource>) -> Resource {
        Resource(Box::new(resource))
    }

    /// The table of functions; valid as long as `self`, wherever it moves.
    pub(crate) fn to_c(&self) -> sys::kvfolio_memory_resource {
        let at: *const Arc<dyn MemoryResource> = &*self.0;
        sys::kvfolio_memory_resource {
            struct_size: std::mem::size_of::<sys::kvfolio_memory_resource>() as u32,
            kind: self.0.kind() as i32,
            context: at as *mut c_void,
            allocate: Some(allocate),
            deallocate: Some(deallocate),
            copy: Some(copy),
            // Null: one copy() after the other.
            copy_batch: None,
            copy_in: None,
            copy_out: None,
        }
    }
}

/// Runs a callback. Unwinding through C is undefined, so a panic ends the program here; the hook of
/// the panic has printed it.
pub(crate) fn no_unwind<T>(f: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|_| std::process::abort())
}

// SAFETY of the three: the context is that of Resource::to_c(), which outlives the storage.
unsafe fn resource<'a>(context: *mut c_void) -> &'a dyn MemoryResource {
    &**(context as *const Arc<dyn MemoryResource>)
}
unsafe extern "C" fn allocate(context: *mut c_void, bytes: i64) -> *mut c_void {
    no_unwind(|| resource(context).allocate(bytes as usize)).cast()
}
unsafe extern "C" fn deallocate(context: *mut c_void, memory: *mut c_void, bytes: i64) {
    no_unwind(|| resource(context).deallocate(memory.cast(), bytes as usize));
}
unsafe extern "C" fn copy(context: *mut c_void, dst: *mut c_void, src: *const c_void, bytes: i64) {
    no_unwind(|| resource(context).copy(dst.cast(), src.cast(), bytes as usize));
}
