// SPDX-License-Identifier: Apache-2.0

use crate::error::{call, invalid};
use crate::memory::Resource;
use crate::spec::{count, groups_to_c};
use crate::view::{View, ViewHandle, ViewMut};
use crate::{sys, Error, GroupSpec, MemoryKind, MemoryResource, Result};
use std::mem::size_of;
use std::ptr::{null, null_mut, NonNull};
use std::sync::Arc;

/// Bytes between neighbours along each axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strides {
    /// From one layer to the next one.
    pub layer: i64,
    /// From one block to the next one.
    pub block: i64,
    /// From one head to the next one.
    pub head: i64,
    /// From one token to the next one.
    pub token: i64,
}

impl Strides {
    fn to_c(self) -> sys::kvfolio_strides {
        sys::kvfolio_strides {
            layer: self.layer,
            block: self.block,
            head: self.head,
            token: self.token,
        }
    }
}

/// One array of the caller: `bytes` may be touched from the base, or from each base, on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Borrowed {
    /// That may be touched.
    pub bytes: i64,
    /// How the axes lie.
    pub strides: Strides,
}

/// Where arrays begin; null if the group has no such array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bases {
    /// K.
    pub k: *mut u8,
    /// V.
    pub v: *mut u8,
    /// Scales of K.
    pub k_scale: *mut u8,
    /// Scales of V.
    pub v_scale: *mut u8,
}

impl Default for Bases {
    fn default() -> Bases {
        Bases { k: null_mut(), v: null_mut(), k_scale: null_mut(), v_scale: null_mut() }
    }
}

/// Memory of the caller for one group; `BorrowedGroup` in `storage.h` says shapes and limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BorrowedGroup {
    /// One base for all layers, or one for each layer.
    pub bases: Vec<Bases>,
    /// `[num_layers, num_blocks, num_kv_heads, block_size, head_dim_k]`, axes in any order.
    pub k: Borrowed,
    /// The same with `head_dim_v`.
    pub v: Borrowed,
    /// int8 and e4m3 only: f32 `[num_layers, num_blocks, num_kv_heads, block_size]`.
    pub k_scale: Borrowed,
    /// The same for V.
    pub v_scale: Borrowed,
}

struct GroupViews {
    spec: GroupSpec,
    all: Option<ViewHandle>, // none: the layers were lent apart
    layers: Vec<ViewHandle>,
}

/// K and V of all groups: memory of its own, or lent. A [`Cache`](crate::Cache) takes it over.
///
/// ```
/// use kvfolio::{GroupSpec, MemoryKind, Storage};
///
/// let group = GroupSpec { num_layers: 2, head_dim_k: 4, head_dim_v: 4, num_blocks: 8,
///                         ..GroupSpec::default() };
/// let mut storage = Storage::new(&[group])?;
/// let mut other = Storage::new(&[group])?;
/// assert_eq!(storage.memory_kind(), MemoryKind::Host);
/// assert!(storage.owns_memory() && storage.num_groups() == 1);
/// storage.as_mut().fill(0)?;
/// other.as_mut().fill(1)?;
/// storage.as_mut().copy_blocks_from(&other, 0, &[3])?; // block 3
/// storage.as_mut().copy_blocks(0, &[3], &[5])?; // to block 5, all layers
/// let layer = storage.layer_view(0, 1)?;
/// assert_eq!(layer.k::<f32>(0, 5, 0, 0), layer.k::<f32>(0, 3, 0, 0));
/// let mut views = storage.as_mut();
/// let all = views.view(0)?; // to write: only one at a time
/// assert!(!all.k_pointer(1, 5, 0, 0).is_null());
/// assert!(!views.layer_view(0, 1)?.k_pointer(0, 5, 0, 0).is_null());
/// # Ok::<(), kvfolio::Error>(())
/// ```
///
/// Lent memory is `unsafe`, since the borrow checker cannot see how long C uses it:
///
/// ```
/// use kvfolio::{Bases, Borrowed, BorrowedGroup, Cache, GroupSpec, Options, Storage, Strides};
///
/// let group = GroupSpec { num_layers: 2, head_dim_k: 4, num_blocks: 8, ..GroupSpec::default() };
/// let mut tensors = vec![vec![0f32; 8 * 16 * 4]; 2]; // one for each layer: [block, token, dim]
/// let bases = tensors.iter_mut().map(|t| Bases { k: t.as_mut_ptr().cast(), ..Bases::default() });
/// let strides = Strides { block: 16 * 4 * 4, head: 16 * 4 * 4, token: 4 * 4, layer: 0 };
/// let lent = BorrowedGroup { bases: bases.collect(), k: Borrowed { bytes: 8 * 16 * 4 * 4, strides },
///                            ..BorrowedGroup::default() };
/// // SAFETY: `tensors` outlives the cache and nothing else touches it.
/// let storage = unsafe { Storage::borrow(&[group], &[lent])? };
/// let cache = Cache::with_storage(storage, &Options::default())?;
/// drop(cache);
/// drop(tensors);
/// # Ok::<(), kvfolio::Error>(())
/// ```
pub struct Storage {
    raw: NonNull<sys::kvfolio_storage>,
    /// False: the manager destroys it.
    is_own: bool,
    views: Vec<GroupViews>,
    _resource: Option<Resource>, // after the storage: fields drop behind drop()
}

// SAFETY: a handle may move between threads; &self calls are const calls, which may run at the same
// time; a call that writes takes &mut self. Resources are Send and Sync.
unsafe impl Send for Storage {}
unsafe impl Sync for Storage {}

impl Storage {
    /// Memory of the process. A page costs nothing before it is first written.
    pub fn new(groups: &[GroupSpec]) -> Result<Storage> {
        Storage::create(groups, None)
    }

    /// Memory of a resource, which the storage keeps alive. [`MemoryResource`] shows it.
    pub fn with_resource(
        groups: &[GroupSpec],
        resource: Arc<dyn MemoryResource>,
    ) -> Result<Storage> {
        Storage::create(groups, Some(Resource::new(resource)))
    }

    fn create(groups: &[GroupSpec], resource: Option<Resource>) -> Result<Storage> {
        let specs = groups_to_c(groups);
        let table = resource.as_ref().map(Resource::to_c);
        let table = table.as_ref().map_or(null(), |table| table as *const _);
        let mut out = null_mut();
        // SAFETY: the arrays are as long as is said; `resource` outlives the storage.
        call(|error| unsafe {
            sys::kvfolio_storage_create(specs.as_ptr(), count(specs.len()), table, &mut out, error)
        })?;
        Storage::from_raw(out, groups, resource)
    }

    /// Memory of the caller.
    ///
    /// # Safety
    ///
    /// Until the storage, or the cache that takes it over, is dropped: the memory that each base and
    /// its byte count describe stays where it is, is initialised, and is touched by nothing else
    /// while a method of this crate runs or while a view or a slice of it lives. It is not lent twice.
    pub unsafe fn borrow(groups: &[GroupSpec], borrowed: &[BorrowedGroup]) -> Result<Storage> {
        // SAFETY: as required.
        unsafe { Storage::borrow_beside(groups, borrowed, None) }
    }

    /// The same with a resource, which says what kind of memory it is and copies blocks.
    ///
    /// # Safety
    ///
    /// As [`Storage::borrow`].
    pub unsafe fn borrow_with_resource(
        groups: &[GroupSpec],
        borrowed: &[BorrowedGroup],
        resource: Arc<dyn MemoryResource>,
    ) -> Result<Storage> {
        // SAFETY: as required.
        unsafe { Storage::borrow_beside(groups, borrowed, Some(Resource::new(resource))) }
    }

    unsafe fn borrow_beside(
        groups: &[GroupSpec],
        borrowed: &[BorrowedGroup],
        resource: Option<Resource>,
    ) -> Result<Storage> {
        if groups.len() != borrowed.len() {
            return invalid(format!("{} groups, but memory of {}", groups.len(), borrowed.len()));
        }
        let specs = groups_to_c(groups);
        let layers: Vec<Vec<sys::kvfolio_borrowed_layer>> =
            borrowed.iter().map(layers_to_c).collect();
        let mut lent = Vec::with_capacity(borrowed.len());
        for (group, layers) in borrowed.iter().zip(&layers) {
            lent.push(lent_to_c(group, layers)?);
        }
        let table = resource.as_ref().map(Resource::to_c);
        let table = table.as_ref().map_or(null(), |table| table as *const _);
        let mut out = null_mut();
        // SAFETY: the arrays are as long as is said; the memory is as required.
        call(|error| unsafe {
            sys::kvfolio_storage_borrow(
                specs.as_ptr(),
                count(specs.len()),
                lent.as_ptr(),
                table,
                &mut out,
                error,
            )
        })?;
        Storage::from_raw(out, groups, resource)
    }

    fn from_raw(
        raw: *mut sys::kvfolio_storage,
        groups: &[GroupSpec],
        resource: Option<Resource>,
    ) -> Result<Storage> {
        let raw = NonNull::new(raw).expect("C gave a storage");
        let mut storage = Storage { raw, is_own: true, views: Vec::new(), _resource: resource };
        for (number, spec) in (0..).zip(groups) {
            let handle = |layer| ViewHandle::of_storage(raw.as_ptr(), number, layer);
            storage.views.push(GroupViews {
                spec: *spec,
                all: match handle(-1) {
                    Ok(view) => Some(view),
                    Err(Error::Unsupported(_)) => None,
                    Err(error) => return Err(error),
                },
                layers: (0..spec.num_layers).map(handle).collect::<Result<_>>()?,
            });
        }
        Ok(storage)
    }

    pub(crate) fn handle(&self) -> *mut sys::kvfolio_storage {
        self.raw.as_ptr()
    }

    /// A manager has it now, and C has freed the handle: [`Storage::belongs_to`] comes next.
    pub(crate) fn give_away(&mut self) {
        self.is_own = false;
    }

    /// The handle that stands for it once a manager has it.
    pub(crate) fn belongs_to(&mut self, raw: NonNull<sys::kvfolio_storage>) {
        self.raw = raw;
    }

    /// How many groups there are.
    pub fn num_groups(&self) -> i32 {
        // SAFETY: the handle lives as long as self. So below.
        unsafe { sys::kvfolio_storage_num_groups(self.raw.as_ptr()) }
    }

    /// Which processor may touch the memory.
    pub fn memory_kind(&self) -> MemoryKind {
        match unsafe { sys::kvfolio_storage_memory_kind(self.raw.as_ptr()) } {
            sys::KVFOLIO_HOST => MemoryKind::Host,
            _ => MemoryKind::Device,
        }
    }

    /// Whether it took the memory itself.
    pub fn owns_memory(&self) -> bool {
        unsafe { sys::kvfolio_storage_owns_memory(self.raw.as_ptr()) != 0 }
    }

    /// Bytes taken from the resource; 0 if borrowed.
    pub fn memory_bytes(&self) -> i64 {
        unsafe { sys::kvfolio_storage_memory_bytes(self.raw.as_ptr()) }
    }

    fn views_of(&self, group: i32) -> Result<&GroupViews> {
        match usize::try_from(group).ok().and_then(|group| self.views.get(group)) {
            Some(views) => Ok(views),
            None => invalid(format!("there is no group {group} of {}", self.views.len())),
        }
    }

    /// All layers of a group, to read. `Unsupported` if they were lent apart.
    pub fn view(&self, group: i32) -> Result<View<'_>> {
        let views = self.views_of(group)?;
        match &views.all {
            Some(handle) => Ok(View::new(handle, &views.spec, self.memory_kind())),
            None => Err(Error::Unsupported(format!(
                "the layers of group {group} were lent apart: take a layer_view()"
            ))),
        }
    }

    /// One layer of a group, to read. It is layer 0 of its view.
    pub fn layer_view(&self, group: i32, layer: i32) -> Result<View<'_>> {
        let views = self.views_of(group)?;
        match usize::try_from(layer).ok().and_then(|layer| views.layers.get(layer)) {
            Some(handle) => Ok(View::new(handle, &views.spec, self.memory_kind())),
            None => invalid(format!(
                "there is no layer {layer} of {} in group {group}",
                views.layers.len()
            )),
        }
    }

    /// Bytes of the image of a block: all of its layers, K, V and scales in one piece, in an order
    /// that depends on the group alone, never on strides. `storage.h` says it.
    pub fn block_image_bytes(&self, group: i32) -> Result<usize> {
        self.views_of(group)?;
        let bytes = unsafe { sys::kvfolio_storage_block_image_bytes(self.raw.as_ptr(), group) };
        Ok(bytes as usize)
    }

    /// Copies blocks to images, one behind the other: `blocks.len() * block_image_bytes(group)` bytes.
    /// [`Manager`](crate::Manager) shows it.
    pub fn read_blocks(&self, group: i32, blocks: &[i32], images: &mut [u8]) -> Result<()> {
        let (this, n, bytes) = (self.raw.as_ptr(), blocks.len() as i64, images.len() as i64);
        // SAFETY: both slices are as long as is said; a const call.
        call(|error| unsafe {
            let images = images.as_mut_ptr().cast();
            sys::kvfolio_storage_read_blocks(this, group, blocks.as_ptr(), n, images, bytes, error)
        })
    }

    /// What may write.
    pub fn as_mut(&mut self) -> StorageMut<'_> {
        StorageMut { storage: self }
    }
}

impl std::fmt::Debug for Storage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Storage")
            .field("memory_kind", &self.memory_kind())
            .field("memory_bytes", &self.memory_bytes())
            .field("groups", &self.views.iter().map(|views| views.spec).collect::<Vec<_>>())
            .finish()
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        if self.is_own {
            // SAFETY: it was created here and goes once.
            unsafe { sys::kvfolio_storage_destroy(self.raw.as_ptr()) }
        }
    }
}

/// A storage to write to; it may be that of a cache. [`Storage`] shows it.
///
/// It is a type of its own because `&mut Storage` could be exchanged for another storage, which a
/// cache does not survive.
#[derive(Debug)]
pub struct StorageMut<'a> {
    storage: &'a mut Storage,
}

impl<'a> StorageMut<'a> {
    pub(crate) fn of(storage: &'a mut Storage) -> StorageMut<'a> {
        StorageMut { storage }
    }

    /// All layers of a group, to write.
    pub fn view(&mut self, group: i32) -> Result<ViewMut<'_>> {
        self.storage.view(group).map(ViewMut::of)
    }

    /// One layer of a group, to write. It is layer 0 of its view.
    pub fn layer_view(&mut self, group: i32, layer: i32) -> Result<ViewMut<'_>> {
        self.storage.layer_view(group, layer).map(ViewMut::of)
    }

    /// The same for a view that lives as long as the borrow.
    pub(crate) fn into_view(self, group: i32) -> Result<ViewMut<'a>> {
        let storage: &'a Storage = self.storage;
        storage.view(group).map(ViewMut::of)
    }

    /// Copies block `src[i]` to block `dst[i]`, in the order of i, all layers.
    pub fn copy_blocks(&mut self, group: i32, src: &[i32], dst: &[i32]) -> Result<()> {
        check_pairs(src, dst)?;
        let (storage, n) = (self.storage.raw.as_ptr(), src.len() as i64);
        // SAFETY: both slices have n entries; &mut self: nothing else uses the blocks.
        call(|error| unsafe {
            sys::kvfolio_storage_copy_blocks(storage, group, src.as_ptr(), dst.as_ptr(), n, error)
        })
    }

    /// Copies the blocks with the same ids of another storage of an equal spec.
    pub fn copy_blocks_from(&mut self, source: &Storage, group: i32, blocks: &[i32]) -> Result<()> {
        let (to, from) = (self.storage.raw.as_ptr(), source.raw.as_ptr());
        let n = blocks.len() as i64;
        // SAFETY: as copy_blocks(); `source` is another storage since self is borrowed mutably.
        call(|error| unsafe {
            sys::kvfolio_storage_copy_blocks_from(to, from, group, blocks.as_ptr(), n, error)
        })
    }

    /// Copies images, which [`Storage::read_blocks`] gave, to blocks; each block is named once.
    pub fn write_blocks(&mut self, group: i32, blocks: &[i32], images: &[u8]) -> Result<()> {
        let storage = self.storage.raw.as_ptr();
        let (n, bytes) = (blocks.len() as i64, images.len() as i64);
        // SAFETY: as copy_blocks(); `images` lies elsewhere, since self is borrowed mutably.
        call(|error| unsafe {
            let (blocks, images) = (blocks.as_ptr(), images.as_ptr().cast());
            sys::kvfolio_storage_write_blocks(storage, group, blocks, n, images, bytes, error)
        })
    }

    /// Sets every byte of every row and scale: 0xff poisons memory.
    pub fn fill(&mut self, value: u8) -> Result<()> {
        // SAFETY: as copy_blocks().
        call(|error| unsafe { sys::kvfolio_storage_fill(self.storage.raw.as_ptr(), value, error) })
    }
}

pub(crate) fn check_pairs(src: &[i32], dst: &[i32]) -> Result<()> {
    if src.len() != dst.len() {
        return invalid(format!("{} sources for {} destinations", src.len(), dst.len()));
    }
    Ok(())
}

fn layers_to_c(group: &BorrowedGroup) -> Vec<sys::kvfolio_borrowed_layer> {
    let layer = |bases: &Bases| sys::kvfolio_borrowed_layer {
        k: bases.k.cast(),
        v: bases.v.cast(),
        k_scale: bases.k_scale.cast(),
        v_scale: bases.v_scale.cast(),
    };
    if group.bases.len() < 2 {
        return Vec::new();
    }
    group.bases.iter().map(layer).collect()
}

fn lent_to_c(
    group: &BorrowedGroup,
    layers: &[sys::kvfolio_borrowed_layer],
) -> Result<sys::kvfolio_borrowed_group> {
    let first = match group.bases.as_slice() {
        [] => return invalid("borrowed memory without a base".into()),
        [one] => *one,
        _ => Bases::default(), // in `layers`
    };
    Ok(sys::kvfolio_borrowed_group {
        struct_size: size_of::<sys::kvfolio_borrowed_group>() as u32,
        num_layers: count(layers.len()),
        k: first.k.cast(),
        k_bytes: group.k.bytes,
        k_strides: group.k.strides.to_c(),
        v: first.v.cast(),
        v_bytes: group.v.bytes,
        v_strides: group.v.strides.to_c(),
        k_scale: first.k_scale.cast(),
        k_scale_bytes: group.k_scale.bytes,
        k_scale_strides: group.k_scale.strides.to_c(),
        v_scale: first.v_scale.cast(),
        v_scale_bytes: group.v_scale.bytes,
        v_scale_strides: group.v_scale.strides.to_c(),
        layers: if layers.is_empty() { null() } else { layers.as_ptr() },
    })
}
