// SPDX-License-Identifier: Apache-2.0
//
// SAFETY of every call here: a handle lives as long as its value; addresses of the device are as each
// function requires.

use super::memory::to_i64;
use super::{sys, Device, RawStream};
use crate::error::call;
use crate::rows::as_pointer;
use crate::storage::check_pairs;
use crate::{sys as core, DType, GatherOptions, Result, View, ViewMut};
use std::os::raw::c_void;
use std::ptr::{null_mut, NonNull};

/// What the word for the first wrong entry has before a call, and after one that saw none.
pub const NO_ENTRY: u64 = sys::KVFOLIO_CUDA_NO_ENTRY;

/// Another number where a kernel may write other bits than before: part of the name of what is computed
/// with them.
pub fn kernel_revision() -> i32 {
    unsafe { sys::kvfolio_cuda_kernel_revision() }
}

/// Rows in the memory of a device: `[num_tokens, num_heads, head_dim]`.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRows {
    /// Their address.
    pub data: *mut u8,
    /// The type of their elements: f32, f16 or bf16.
    pub dtype: DType,
    /// `[num_tokens, num_heads, head_dim]`.
    pub shape: [i32; 3],
    /// In bytes, from token to token and from head to head; both 0: without gaps.
    pub strides: [i64; 2],
}

impl DeviceRows {
    /// Without gaps.
    pub fn new(data: *mut u8, dtype: DType, shape: [i32; 3]) -> DeviceRows {
        DeviceRows { data, dtype, shape, strides: [0, 0] }
    }

    pub(super) fn to_c(self) -> core::kvfolio_rows {
        core::kvfolio_rows {
            dtype: self.dtype as i32,
            num_tokens: self.shape[0],
            num_heads: self.shape[1],
            head_dim: self.shape[2],
            token_stride: self.strides[0],
            head_stride: self.strides[1],
            ..core::kvfolio_rows::new()
        }
    }
}

fn or_null(rows: Option<DeviceRows>) -> (*mut c_void, Option<core::kvfolio_rows>) {
    rows.map_or((null_mut(), None), |rows| (rows.data.cast(), Some(rows.to_c())))
}

/// The kernels of one device, loaded. Several threads may use them at once.
///
/// Its calls check arguments on the host, start kernels and return. What they write has the bits that
/// [`View`] and [`ViewMut`] write. Slots and entries of tables cannot be checked: a kernel leaves alone
/// what a wrong one names, and writes the first one to the word `fault`, [`NO_ENTRY`] before, whose
/// meaning [`Kernels::slot_fault`] and [`Kernels::table_fault`] say.
///
/// # Safety
///
/// What each call that is `unsafe` asks for, until the stream has passed it:
/// - the `Kernels`, and a [`DevicePlan`](super::DevicePlan) that the work reads, live: their end waits
///   for no kernel, and a graph that was captured of such work needs them at each launch;
/// - the memory of the views, rows, slots, tables and fault words is there, is that of this device where
///   it has to be, and is as large as is said;
/// - nothing else writes what it reads, or touches what it writes, but for what is on the same stream;
/// - the stream is one of this device that lives, or null, and no other thread uses it meanwhile.
///
/// With the check of pointers memory of the wrong side is an error by name, not more.
#[derive(Debug)]
pub struct Kernels {
    raw: NonNull<sys::kvfolio_cuda_kernels>,
}

// SAFETY: the header says that several threads may use kernels at once.
unsafe impl Send for Kernels {}
unsafe impl Sync for Kernels {}

impl Kernels {
    /// `check_pointers`: the driver is asked whose memory each pointer of a call is. `Unavailable`: the
    /// library was built without nvcc and has no kernels, or the driver refuses them.
    pub fn load(device: &Device, check_pointers: bool) -> Result<Kernels> {
        let options = sys::kvfolio_cuda_kernel_options {
            no_pointer_checks: (!check_pointers) as i32,
            ..sys::kvfolio_cuda_kernel_options::new()
        };
        let mut out = null_mut();
        call(|error| unsafe {
            sys::kvfolio_cuda_kernels_load(device.raw(), &options, &mut out, error)
        })?;
        Ok(Kernels { raw: NonNull::new(out).expect("C gave kernels") })
    }

    pub(super) fn raw(&self) -> *const sys::kvfolio_cuda_kernels {
        self.raw.as_ptr()
    }

    /// What the fault word of [`Kernels::append`] says, once it is on the host.
    pub fn slot_fault(cache: &View, fault: u64) -> Result<()> {
        call(|error| unsafe { sys::kvfolio_cuda_slot_fault(cache.raw(), fault, error) })
    }

    /// The same of [`Kernels::gather`].
    pub fn table_fault(cache: &View, fault: u64) -> Result<()> {
        call(|error| unsafe { sys::kvfolio_cuda_table_fault(cache.raw(), fault, error) })
    }

    /// [`ViewMut::append_rows`] on the device: `slots` is an address of the device with as many entries
    /// as `k` has tokens; `fault` one of a word, or null. Slots differ, but for -1.
    ///
    /// # Safety
    /// As [`Kernels`] says.
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn append(
        &self,
        cache: &mut ViewMut,
        layer: i32,
        k: DeviceRows,
        v: Option<DeviceRows>,
        slots: *const i32,
        stream: RawStream,
        fault: *mut u64,
    ) -> Result<()> {
        let (k_rows, n) = (k.to_c(), i64::from(k.shape[0]));
        let (v, v_rows) = or_null(v);
        call(|error| unsafe {
            let (view, k) = (cache.as_view().raw(), k.data.cast::<c_void>());
            let v_rows = as_pointer(&v_rows);
            sys::kvfolio_cuda_append(
                self.raw(),
                view,
                layer,
                k,
                &k_rows,
                v,
                v_rows,
                slots,
                n,
                stream,
                fault,
                error,
            )
        })
    }

    /// [`View::gather`] on the device: `block_table` is an address of the device with `num_entries`
    /// entries; `fault` one of a word, or null.
    ///
    /// # Safety
    /// As [`Kernels`] says.
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn gather(
        &self,
        cache: &View,
        block_table: *const i32,
        num_entries: usize,
        options: &GatherOptions,
        k: Option<DeviceRows>,
        v: Option<DeviceRows>,
        stream: RawStream,
        fault: *mut u64,
    ) -> Result<()> {
        let options = options.to_c();
        let (k, k_rows) = or_null(k);
        let (v, v_rows) = or_null(v);
        call(|error| unsafe {
            let (k_rows, v_rows) = (as_pointer(&k_rows), as_pointer(&v_rows));
            let (this, view, n) = (self.raw(), cache.raw(), to_i64(num_entries));
            sys::kvfolio_cuda_gather(
                this,
                view,
                block_table,
                n,
                &options,
                k,
                k_rows,
                v,
                v_rows,
                stream,
                fault,
                error,
            )
        })
    }

    /// [`ViewMut::copy_blocks`] on the device. The lists are of the host.
    ///
    /// # Safety
    /// As [`Kernels`] says.
    pub unsafe fn copy_blocks(
        &self,
        cache: &mut ViewMut,
        src: &[i32],
        dst: &[i32],
        stream: RawStream,
    ) -> Result<()> {
        check_pairs(src, dst)?;
        let (view, n) = (cache.as_view().raw(), to_i64(src.len()));
        call(|error| unsafe {
            let (src, dst) = (src.as_ptr(), dst.as_ptr());
            sys::kvfolio_cuda_copy_blocks(self.raw(), view, src, dst, n, stream, error)
        })
    }

    /// [`ViewMut::convert_blocks`] on the device. The lists are of the host.
    ///
    /// # Safety
    /// As [`Kernels`] says.
    pub unsafe fn convert_blocks(
        &self,
        from: &View,
        to: &mut ViewMut,
        src: &[i32],
        dst: &[i32],
        stream: RawStream,
    ) -> Result<()> {
        check_pairs(src, dst)?;
        let (from, to, n) = (from.raw(), to.as_view().raw(), to_i64(src.len()));
        call(|error| unsafe {
            let (src, dst) = (src.as_ptr(), dst.as_ptr());
            sys::kvfolio_cuda_convert_blocks(self.raw(), from, to, src, dst, n, stream, error)
        })
    }

    /// Sets every byte of every row and scale.
    ///
    /// # Safety
    /// As [`Kernels`] says.
    pub unsafe fn fill(&self, cache: &mut ViewMut, value: u8, stream: RawStream) -> Result<()> {
        call(|error| unsafe {
            sys::kvfolio_cuda_fill(self.raw(), cache.as_view().raw(), value, stream, error)
        })
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        unsafe { sys::kvfolio_cuda_kernels_destroy(self.raw.as_ptr()) }
    }
}
