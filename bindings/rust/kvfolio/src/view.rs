// SPDX-License-Identifier: Apache-2.0

use crate::error::call;
use crate::rows::Element;
use crate::{sys, Format, GroupSpec, MemoryKind, Result};
use std::marker::PhantomData;
use std::ptr::{null_mut, NonNull};

/// Owns a `kvfolio_view`, which is a value: it may be destroyed before or after its storage.
pub(crate) struct ViewHandle(NonNull<sys::kvfolio_view>);

impl ViewHandle {
    /// Takes over a handle that C gave.
    #[cfg(feature = "cuda")]
    pub(crate) fn of_handle(handle: NonNull<sys::kvfolio_view>) -> ViewHandle {
        ViewHandle(handle)
    }

    pub(crate) fn of_storage(
        storage: *const sys::kvfolio_storage,
        group: i32,
        layer: i32,
    ) -> Result<ViewHandle> {
        let mut out = null_mut();
        // SAFETY: the caller has the storage.
        call(|error| unsafe { sys::kvfolio_view_create(storage, group, layer, &mut out, error) })?;
        Ok(ViewHandle(NonNull::new(out).expect("C gave a view")))
    }

    pub(crate) fn of_block_store(store: *const sys::kvfolio_block_store) -> Result<ViewHandle> {
        let mut out = null_mut();
        // SAFETY: the caller has the store.
        call(|error| unsafe { sys::kvfolio_block_store_view(store, &mut out, error) })?;
        Ok(ViewHandle(NonNull::new(out).expect("C gave a view")))
    }

    pub(crate) fn of_token_store(store: *const sys::kvfolio_token_store) -> Result<ViewHandle> {
        let mut out = null_mut();
        // SAFETY: the caller has the store.
        call(|error| unsafe { sys::kvfolio_token_store_view(store, &mut out, error) })?;
        Ok(ViewHandle(NonNull::new(out).expect("C gave a view")))
    }
}

impl Drop for ViewHandle {
    fn drop(&mut self) {
        // SAFETY: it was created here and goes once.
        unsafe { sys::kvfolio_view_destroy(self.0.as_ptr()) }
    }
}

/// All layers of a group, or one, to read. What kernels take. Views of one storage may be read by
/// several threads.
///
/// ```
/// use kvfolio::{DType, GroupSpec, Rows, RowsMut, Storage};
///
/// let group = GroupSpec { num_kv_heads: 2, head_dim_k: 2, head_dim_v: 2, num_blocks: 4,
///                         dtype: DType::F64, ..GroupSpec::default() };
/// let mut storage = Storage::new(&[group])?;
/// let (layer, head, slot) = (0, 1, 2 * 16 + 5); // block 2, offset 5
/// let one = |data| Rows::f64(data, [1, 1, 2]);
/// storage.as_mut().view(0)?.write_token(layer, head, slot, Some(one(&[1.0, 2.0])), None)?;
///
/// let view = storage.view(0)?;
/// let row: &[f64] = view.k(layer, 2, head, 5).unwrap(); // where it lies
/// assert_eq!(row, [1.0, 2.0]);
/// assert!(view.k::<f32>(layer, 2, head, 5).is_none()); // it is f64
/// assert!(view.v::<f64>(layer, 4, head, 5).is_none()); // there are 4 blocks
/// assert!(view.v_pointer(layer, 4, head, 5).is_null());
/// let mut copy = [0.0f32; 2];
/// view.read_token(layer, head, slot, Some(RowsMut::f32(&mut copy, [1, 1, 2])), None)?;
/// assert_eq!(copy, [1.0, 2.0]);
/// # Ok::<(), kvfolio::Error>(())
/// ```
///
/// In a cache of int8 or e4m3 each row has a scale:
///
/// ```
/// use kvfolio::{DType, GroupSpec, Rows, Storage};
///
/// let group = GroupSpec { head_dim_k: 2, head_dim_v: 2, num_blocks: 4, dtype: DType::Int8,
///                         ..GroupSpec::default() };
/// let mut storage = Storage::new(&[group])?;
/// let row = |data| Some(Rows::f32(data, [1, 1, 2]));
/// storage.as_mut().view(0)?.write_token(0, 0, 5, row(&[127.0, -127.0]), row(&[0.0, 254.0]))?;
/// let view = storage.view(0)?;
/// assert_eq!(view.k::<i8>(0, 0, 0, 5), Some(&[127, -127][..]));
/// assert_eq!((view.k_scale(0, 0, 0, 5), view.v_scale(0, 0, 0, 5)), (Some(1.0), Some(2.0)));
/// assert!(view.k_scale(0, 4, 0, 5).is_none()); // there are 4 blocks
/// assert!(!view.k_scale_pointer(0, 0, 0, 5).is_null() && !view.v_scale_pointer(0, 0, 0, 5).is_null());
///
/// let mut storage = Storage::new(&[GroupSpec { dtype: DType::E4M3, ..group }])?;
/// storage.as_mut().view(0)?.write_token(0, 0, 5, row(&[448.0, -1.0]), row(&[0.0, 896.0]))?;
/// let view = storage.view(0)?;
/// assert_eq!(view.k::<u8>(0, 0, 0, 5), Some(&[0x7e, 0xb8][..]));
/// assert_eq!(view.v_scale(0, 0, 0, 5), Some(2.0));
/// assert!(DType::E4M3.has_scales() && !DType::F32.has_scales());
/// assert!(view.k::<i8>(0, 0, 0, 5).is_none());
///
/// // Bytes that only the engine knows are copied in and out.
/// let mut storage = Storage::new(&[GroupSpec { dtype: DType::Opaque, ..group }])?;
/// let bytes = |data| Some(Rows::bytes(data, [1, 1, 2]));
/// storage.as_mut().view(0)?.write_token(0, 0, 5, bytes(&[1, 255]), bytes(&[7, 128]))?;
/// assert_eq!(storage.view(0)?.k::<u8>(0, 0, 0, 5), Some(&[1, 255][..]));
/// # Ok::<(), kvfolio::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct View<'a> {
    raw: NonNull<sys::kvfolio_view>,
    pub(crate) spec: &'a GroupSpec,
    kind: MemoryKind,
    _memory: PhantomData<&'a [u8]>,
}

// SAFETY: a view is a pointer to memory that nothing writes as long as the view lives.
unsafe impl Send for View<'_> {}
unsafe impl Sync for View<'_> {}

impl std::fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "View({:?} memory of {:?})", self.kind, self.spec)
    }
}

impl<'a> View<'a> {
    pub(crate) fn new(handle: &'a ViewHandle, spec: &'a GroupSpec, kind: MemoryKind) -> View<'a> {
        View { raw: handle.0, spec, kind, _memory: PhantomData }
    }

    // Only ViewMut passes it to calls that write.
    pub(crate) fn raw(&self) -> *mut sys::kvfolio_view {
        self.raw.as_ptr()
    }

    /// The row of K of a token, in format granule the tile in which it lies; null if there is none.
    pub fn k_pointer(&self, layer: i32, block: i32, head: i32, offset: i32) -> *const u8 {
        // SAFETY: C checks the numbers. So below.
        unsafe { sys::kvfolio_view_k(self.raw(), layer, block, head, offset).cast() }
    }

    /// The row of V.
    pub fn v_pointer(&self, layer: i32, block: i32, head: i32, offset: i32) -> *const u8 {
        unsafe { sys::kvfolio_view_v(self.raw(), layer, block, head, offset).cast() }
    }

    /// The row of K of a token as it lies. `None` if there is no such row, if its elements are of
    /// another type, in format granule, and in memory of a device.
    pub fn k<T: Element>(&self, layer: i32, block: i32, head: i32, offset: i32) -> Option<&'a [T]> {
        self.row(self.k_pointer(layer, block, head, offset), self.spec.head_dim_k)
    }

    /// The row of V.
    pub fn v<T: Element>(&self, layer: i32, block: i32, head: i32, offset: i32) -> Option<&'a [T]> {
        self.row(self.v_pointer(layer, block, head, offset), self.spec.head_dim_v)
    }

    /// Where the f32 scale of a row of K lies; null if there is none: in caches
    /// of int8 and e4m3 only.
    pub fn k_scale_pointer(&self, layer: i32, block: i32, head: i32, offset: i32) -> *const u8 {
        // SAFETY: C checks the numbers. So below.
        unsafe { sys::kvfolio_view_k_scale(self.raw(), layer, block, head, offset).cast() }
    }

    /// Where the f32 scale of a row of V lies.
    pub fn v_scale_pointer(&self, layer: i32, block: i32, head: i32, offset: i32) -> *const u8 {
        unsafe { sys::kvfolio_view_v_scale(self.raw(), layer, block, head, offset).cast() }
    }

    /// The scale of a row of K: its elements are `int8 * scale`. `None` if the cache is not int8, if
    /// there is no such row, and in memory of a device.
    pub fn k_scale(&self, layer: i32, block: i32, head: i32, offset: i32) -> Option<f32> {
        self.scale(self.k_scale_pointer(layer, block, head, offset))
    }

    /// The scale of a row of V.
    pub fn v_scale(&self, layer: i32, block: i32, head: i32, offset: i32) -> Option<f32> {
        self.scale(self.v_scale_pointer(layer, block, head, offset))
    }

    fn scale(&self, at: *const u8) -> Option<f32> {
        if at.is_null() || self.kind != MemoryKind::Host {
            return None;
        }
        // SAFETY: C checked that it is there: an initialised f32, which nothing writes as long as
        // the view lives.
        Some(unsafe { at.cast::<f32>().read_unaligned() })
    }

    fn row<T: Element>(&self, at: *const u8, elements: i32) -> Option<&'a [T]> {
        let fits = T::keeps(self.spec.dtype)
            && self.spec.format != Format::Granule
            && self.kind == MemoryKind::Host
            && at as usize % std::mem::align_of::<T>() == 0;
        if at.is_null() || !fits {
            return None;
        }
        // SAFETY: C checked that the row is there; it is contiguous, initialised and of this type,
        // and nothing writes it as long as the view lives.
        Some(unsafe { std::slice::from_raw_parts(at.cast(), elements as usize) })
    }
}

/// A view to write: the only one of its storage as long as it lives. [`View`] shows it.
#[derive(Debug)]
pub struct ViewMut<'a>(View<'a>);

impl<'a> ViewMut<'a> {
    /// Requires: the storage of `view` is borrowed mutably for 'a.
    pub(crate) fn of(view: View<'a>) -> ViewMut<'a> {
        ViewMut(view)
    }

    /// The same to read. Not a `Deref`: a copy of the `View<'a>` would live beside this.
    pub fn as_view(&self) -> View<'_> {
        self.0
    }

    /// The row of K of a token, in format granule the tile in which it lies; null if there is none.
    pub fn k_pointer(&self, layer: i32, block: i32, head: i32, offset: i32) -> *mut u8 {
        self.0.k_pointer(layer, block, head, offset) as *mut u8
    }

    /// The row of V.
    pub fn v_pointer(&self, layer: i32, block: i32, head: i32, offset: i32) -> *mut u8 {
        self.0.v_pointer(layer, block, head, offset) as *mut u8
    }

    /// Where the f32 scale of a row of K lies; null if there is none.
    pub fn k_scale_pointer(&self, layer: i32, block: i32, head: i32, offset: i32) -> *mut u8 {
        self.0.k_scale_pointer(layer, block, head, offset) as *mut u8
    }

    /// Where the f32 scale of a row of V lies.
    pub fn v_scale_pointer(&self, layer: i32, block: i32, head: i32, offset: i32) -> *mut u8 {
        self.0.v_scale_pointer(layer, block, head, offset) as *mut u8
    }
}
