// SPDX-License-Identifier: Apache-2.0
//
// SAFETY of every call here: a handle lives as long as its value, C keeps the device that it was made
// with, and slices are passed with their lengths.

use super::{sys, Device, Kernels};
use crate::error::{call, invalid};
use crate::{sys as core, CopyRun, Error, MemoryKind, MemoryResource, Result};
use std::mem::size_of;
use std::os::raw::c_void;
use std::ptr::{null, null_mut, NonNull};
use std::sync::Arc;

/// Memory of the host that every device reads and writes while the host goes on. Zeroed.
pub struct PinnedBuffer {
    raw: NonNull<sys::kvfolio_cuda_pinned>,
}

// SAFETY: memory, whose owner may be any thread; what writes takes &mut self, or is unsafe.
unsafe impl Send for PinnedBuffer {}
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    /// `InvalidArgument`: no bytes. `OutOfMemory`, `Unavailable`.
    pub fn new(device: &Device, bytes: usize) -> Result<PinnedBuffer> {
        let mut out = null_mut();
        call(|error| unsafe {
            sys::kvfolio_cuda_pinned_allocate(device.raw(), to_i64(bytes), &mut out, error)
        })?;
        let pinned = PinnedBuffer { raw: NonNull::new(out).expect("C gave pinned memory") };
        // SAFETY: as many bytes are there.
        unsafe { std::ptr::write_bytes(pinned.as_ptr(), 0, bytes) };
        Ok(pinned)
    }

    /// Where the bytes lie, also for the device.
    pub fn as_ptr(&self) -> *mut u8 {
        unsafe { sys::kvfolio_cuda_pinned_data(self.raw.as_ptr()) }.cast()
    }

    fn bytes(&self) -> usize {
        unsafe { sys::kvfolio_cuda_pinned_bytes(self.raw.as_ptr()) as usize }
    }
}

impl std::ops::Deref for PinnedBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.bytes()) }
    }
}

impl std::ops::DerefMut for PinnedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.bytes()) }
    }
}

impl std::fmt::Debug for PinnedBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PinnedBuffer").field("bytes", &self.bytes()).finish()
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        unsafe { sys::kvfolio_cuda_pinned_destroy(self.raw.as_ptr()) }
    }
}

/// Where the memory of a [`DeviceMemory`] comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(i32)]
pub enum DeviceSource {
    /// `cuMemAlloc`: freeing it waits for the device.
    #[default]
    Plain = sys::KVFOLIO_CUDA_PLAIN,
    /// The device's pool: neither call waits for other streams. What uses the memory has ended before
    /// it is given back.
    Pool = sys::KVFOLIO_CUDA_POOL,
}

/// Options of [`DeviceMemory::new`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryOptions {
    /// Pinned, of both pieces together; 0: 16 MiB.
    pub staging_bytes: usize,
    /// Where the memory comes from.
    pub source: DeviceSource,
}

/// Memory of a device: give a clone to [`Storage::with_resource`](crate::Storage::with_resource), which
/// keeps it. Copies from and to the host have arrived when a call returns. Several threads may use it;
/// their calls wait for each other.
pub struct DeviceMemory {
    raw: NonNull<sys::kvfolio_cuda_memory>,
    table: core::kvfolio_memory_resource,
}

// SAFETY: the header says that several threads may use a memory at once.
unsafe impl Send for DeviceMemory {}
unsafe impl Sync for DeviceMemory {}

impl DeviceMemory {
    /// With kernels, of the same `device`, many runs are one copy and one kernel. `OutOfMemory`,
    /// `Unavailable`; `InvalidArgument`: the options, kernels of another device.
    pub fn new(
        device: &Device,
        kernels: Option<&Kernels>,
        options: &MemoryOptions,
    ) -> Result<Arc<DeviceMemory>> {
        let c = sys::kvfolio_cuda_memory_options {
            source: options.source as i32,
            staging_bytes: to_i64(options.staging_bytes),
            ..sys::kvfolio_cuda_memory_options::new()
        };
        // SAFETY: nothing is lent.
        unsafe { DeviceMemory::create(device, kernels, &c) }
    }

    /// Memory that is cut from a piece of the caller's, an engine's tensor.
    ///
    /// # Safety
    /// `lent` is `bytes` bytes of memory of the device, which stay and which nothing else uses until
    /// this and all that was made with it are gone.
    pub unsafe fn lent(
        device: &Device,
        kernels: Option<&Kernels>,
        staging_bytes: usize,
        lent: *mut u8,
        bytes: usize,
    ) -> Result<Arc<DeviceMemory>> {
        let c = sys::kvfolio_cuda_memory_options {
            source: sys::KVFOLIO_CUDA_LENT,
            staging_bytes: to_i64(staging_bytes),
            lent: lent.cast(),
            lent_bytes: to_i64(bytes),
            ..sys::kvfolio_cuda_memory_options::new()
        };
        // SAFETY: as required.
        unsafe { DeviceMemory::create(device, kernels, &c) }
    }

    unsafe fn create(
        device: &Device,
        kernels: Option<&Kernels>,
        options: &sys::kvfolio_cuda_memory_options,
    ) -> Result<Arc<DeviceMemory>> {
        let mut out = null_mut();
        let kernels = kernels.map_or(null(), Kernels::raw);
        call(|error| unsafe {
            sys::kvfolio_cuda_memory_create(device.raw(), kernels, options, &mut out, error)
        })?;
        let mut memory = DeviceMemory {
            raw: NonNull::new(out).expect("C gave a memory"),
            table: core::kvfolio_memory_resource::new(),
        };
        call(|error| unsafe { sys::kvfolio_cuda_memory_resource(out, &mut memory.table, error) })?;
        Ok(Arc::new(memory))
    }

    /// The first failure since the last call, or ok: also of freeing, which says nothing itself, and
    /// of a copy of a storage, which says a code.
    pub fn take_error(&self) -> Result<()> {
        call(|error| unsafe { sys::kvfolio_cuda_memory_take_error(self.raw.as_ptr(), error) })
    }

    /// A piece of `bytes` (1 or more) bytes, of any content, which keeps this memory.
    pub fn buffer(self: &Arc<Self>, bytes: usize) -> Result<DeviceBuffer> {
        let mut out = null_mut();
        call(|error| unsafe {
            let this = self.raw.as_ptr();
            sys::kvfolio_cuda_memory_allocate(this, to_i64(bytes), &mut out, error)
        })?;
        let data = NonNull::new(out.cast()).expect("C gave a piece");
        Ok(DeviceBuffer { memory: self.clone(), data, bytes })
    }

    /// A piece with these values: numbers of an element type of rows, slots or a table.
    pub fn upload<T: DeviceElement>(self: &Arc<Self>, values: &[T]) -> Result<DeviceBuffer> {
        let bytes = values.len() * size_of::<T>();
        let mut buffer = self.buffer(bytes.max(1))?;
        // SAFETY: numbers, which have no padding.
        let values = unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), bytes) };
        buffer.write(0, values)?;
        Ok(buffer)
    }
}

/// Numbers that a device knows.
pub trait DeviceElement: Copy + private::Sealed {}
mod private {
    pub trait Sealed {}
}
macro_rules! elements {
    ($($name:ident)*) => { $(impl private::Sealed for $name {} impl DeviceElement for $name {})* };
}
elements!(u8 i8 u16 i32 u64 f32);

impl std::fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceMemory").finish_non_exhaustive()
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        unsafe { sys::kvfolio_cuda_memory_destroy(self.raw.as_ptr()) }
    }
}

// SAFETY: the functions of the table are those of libkvfolio_cuda, which keep what the trait asks for.
// They call no storage.
unsafe impl MemoryResource for DeviceMemory {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Device
    }
    fn allocate(&self, bytes: usize) -> *mut u8 {
        let allocate = self.table.allocate.expect("the library has it");
        unsafe { allocate(self.table.context, to_i64(bytes)) }.cast()
    }
    unsafe fn deallocate(&self, memory: *mut u8, bytes: usize) {
        let deallocate = self.table.deallocate.expect("the library has it");
        unsafe { deallocate(self.table.context, memory.cast(), to_i64(bytes)) }
    }
    unsafe fn copy(&self, dst: *mut u8, src: *const u8, bytes: usize) -> Result<()> {
        let copy = self.table.copy.expect("the library has it");
        said(unsafe { copy(self.table.context, dst.cast(), src.cast(), to_i64(bytes)) })
    }
    unsafe fn copy_batch(&self, runs: &[CopyRun]) -> Result<()> {
        unsafe { self.run(self.table.copy_batch, runs) }
    }
    unsafe fn copy_in(&self, runs: &[CopyRun]) -> Result<()> {
        unsafe { self.run(self.table.copy_in, runs) }
    }
    unsafe fn copy_out(&self, runs: &[CopyRun]) -> Result<()> {
        unsafe { self.run(self.table.copy_out, runs) }
    }
}

type CopyRuns = unsafe extern "C" fn(*mut c_void, *const core::kvfolio_copy_run, i64) -> i32;

impl DeviceMemory {
    unsafe fn run(&self, copy: Option<CopyRuns>, runs: &[CopyRun]) -> Result<()> {
        let copy = copy.expect("the library has it");
        said(unsafe { copy(self.table.context, runs.as_ptr().cast(), to_i64(runs.len())) })
    }
}

/// The storage passes the code on; [`DeviceMemory::take_error`] has the sentence.
fn said(code: i32) -> Result<()> {
    match code {
        core::KVFOLIO_OK => Ok(()),
        core::KVFOLIO_ERR_UNSUPPORTED => Err(Error::Unsupported("copies of a device".into())),
        _ => Err(Error::Unavailable("copies of a device".into())),
    }
}

/// A number that C refuses, rather than another one.
pub(super) fn to_i64(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// A piece of the memory of a device.
///
/// Dropped, it is given back: work that uses it has passed then, which the `unsafe` calls ask for.
pub struct DeviceBuffer {
    memory: Arc<DeviceMemory>,
    data: NonNull<u8>,
    bytes: usize,
}

// SAFETY: memory, whose owner may be any thread; what writes takes &mut self, or is unsafe.
unsafe impl Send for DeviceBuffer {}
unsafe impl Sync for DeviceBuffer {}

impl DeviceBuffer {
    /// Its address, which only the device may follow.
    pub fn as_ptr(&self) -> *mut u8 {
        self.data.as_ptr()
    }

    /// How many bytes it has.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn check(&self, at: usize, bytes: usize) -> Result<()> {
        match at.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => invalid(format!("{bytes} bytes from {at} on, of a buffer of {}", self.bytes)),
        }
    }

    /// Copies from the host. Waits for nothing on other streams.
    pub fn write(&mut self, at: usize, from: &[u8]) -> Result<()> {
        self.check(at, from.len())?;
        let to = unsafe { self.data.as_ptr().add(at) }.cast();
        call(|error| unsafe {
            let (memory, bytes) = (self.memory.raw.as_ptr(), to_i64(from.len()));
            sys::kvfolio_cuda_memory_copy_in(memory, to, from.as_ptr().cast(), bytes, error)
        })
    }

    /// Copies to the host. Waits for nothing on other streams.
    pub fn read(&self, at: usize, to: &mut [u8]) -> Result<()> {
        self.check(at, to.len())?;
        let from = unsafe { self.data.as_ptr().add(at) }.cast();
        call(|error| unsafe {
            let (memory, bytes) = (self.memory.raw.as_ptr(), to_i64(to.len()));
            sys::kvfolio_cuda_memory_copy_out(memory, to.as_mut_ptr().cast(), from, bytes, error)
        })
    }

    /// All of it, as numbers. `InvalidArgument`: it is no multiple of their size.
    pub fn download<T: DeviceElement + Default>(&self) -> Result<Vec<T>> {
        if self.bytes % size_of::<T>() != 0 {
            return invalid(format!("{} bytes of {} each", self.bytes, size_of::<T>()));
        }
        let mut out = vec![T::default(); self.bytes / size_of::<T>()];
        // SAFETY: numbers, which may have any bits.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(out.as_mut_ptr().cast::<u8>(), self.bytes) };
        self.read(0, bytes)?;
        Ok(out)
    }
}

impl std::fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceBuffer")
            .field("data", &self.data)
            .field("bytes", &self.bytes)
            .finish()
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        let memory = self.memory.raw.as_ptr();
        unsafe {
            let data = self.data.as_ptr().cast();
            sys::kvfolio_cuda_memory_deallocate(memory, data, to_i64(self.bytes))
        }
    }
}
