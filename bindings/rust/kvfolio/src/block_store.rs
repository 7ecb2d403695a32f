// SPDX-License-Identifier: Apache-2.0

use crate::error::{call, text_of};
use crate::memory::Resource;
use crate::view::{View, ViewHandle, ViewMut};
use crate::{sys, GroupSpec, MemoryKind, MemoryResource, Result};
use std::ptr::{null, null_mut, NonNull};
use std::sync::Arc;

/// Blocks of one group and their bytes, for programs that keep block tables of their own and want
/// neither sequences nor prefixes. `block_store.h` says what each call does in full.
///
/// ```
/// use kvfolio::{BlockStore, Error, GroupSpec, Rows};
///
/// let group = GroupSpec { head_dim_k: 2, head_dim_v: 2, num_blocks: 4, ..GroupSpec::default() };
/// let mut store = BlockStore::new(&group)?;
/// let mut table = [0; 2];
/// store.allocate(&mut table)?; // each has one reference
/// let slot = table[1] * 16 + 3;
/// let row = Rows::f32(&[1.0, 2.0], [1, 1, 2]);
/// store.view_mut().append_rows(0, row, Some(row), &[slot])?;
///
/// store.hold(&table)?; // a second table has the same blocks
/// let own = store.make_writable(table[1])?; // a copy: others read the first one
/// assert_ne!(own, table[1]);
/// assert_eq!(store.view().k::<f32>(0, own, 0, 3), Some(&[1.0, 2.0][..]));
/// assert_eq!((store.ref_count(table[0])?, store.ref_count(own)?), (2, 1));
/// assert_eq!(store.make_writable(own)?, own);
///
/// let mut image = vec![0; store.block_image_bytes()];
/// store.read(&[own], &mut image)?;
/// let shared = store.write(&table[..1], &image).unwrap_err();
/// assert!(matches!(shared, Error::FailedPrecondition(_)), "{shared}");
/// store.write(&[own], &image)?;
/// let full = store.allocate(&mut [0; 2]).unwrap_err();
/// assert_eq!(full.message(), "allocate of 2 blocks: 1 of 4 are free");
/// store.release(&[table[0], table[1], table[0], own])?;
/// assert_eq!((store.num_free(), store.num_blocks()), (4, 4));
/// assert!(store.memory_bytes() >= 4 * image.len() as i64);
/// assert!(store.to_string().starts_with("block store: 0 of 4 blocks of 16 tokens in use, f32"));
/// # Ok::<(), Error>(())
/// ```
pub struct BlockStore {
    raw: NonNull<sys::kvfolio_block_store>,
    view: ViewHandle,
    spec: GroupSpec,
    memory_kind: MemoryKind,
    _resource: Option<Resource>, // after the store: fields drop behind drop()
}

// SAFETY: a handle may move between threads; &self calls are const calls, which may run at the same
// time; a call that writes takes &mut self. Resources are Send and Sync.
unsafe impl Send for BlockStore {}
unsafe impl Sync for BlockStore {}

impl std::fmt::Display for BlockStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // SAFETY: a const call.
        f.write_str(&text_of(|out, n| unsafe {
            sys::kvfolio_block_store_describe(self.raw.as_ptr(), out, n)
        }))
    }
}

impl std::fmt::Debug for BlockStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl Drop for BlockStore {
    fn drop(&mut self) {
        // SAFETY: it was created here and goes once, before the resource.
        unsafe { sys::kvfolio_block_store_destroy(self.raw.as_ptr()) }
    }
}

impl BlockStore {
    /// Memory of the process; a page costs nothing before it is first written.
    pub fn new(group: &GroupSpec) -> Result<BlockStore> {
        BlockStore::create(group, None)
    }

    /// Memory of a resource, which the store keeps alive.
    pub fn with_resource(
        group: &GroupSpec,
        resource: Arc<dyn MemoryResource>,
    ) -> Result<BlockStore> {
        BlockStore::create(group, Some(Resource::new(resource)))
    }

    fn create(group: &GroupSpec, resource: Option<Resource>) -> Result<BlockStore> {
        let spec = group.to_c();
        let table = resource.as_ref().map(Resource::to_c);
        let memory_kind = match &table {
            Some(table) if table.kind != sys::KVFOLIO_HOST => MemoryKind::Device,
            _ => MemoryKind::Host,
        };
        let table = table.as_ref().map_or(null(), |table| table as *const _);
        let mut out = null_mut();
        // SAFETY: `resource` outlives the store.
        call(|error| unsafe { sys::kvfolio_block_store_create(&spec, table, &mut out, error) })?;
        let raw = NonNull::new(out).expect("C gave a store");
        match ViewHandle::of_block_store(raw.as_ptr()) {
            Ok(view) => {
                Ok(BlockStore { raw, view, spec: *group, memory_kind, _resource: resource })
            }
            Err(error) => {
                // SAFETY: nothing else has it.
                unsafe { sys::kvfolio_block_store_destroy(raw.as_ptr()) };
                Err(error)
            }
        }
    }

    /// Takes a free block for each entry of `blocks`, all or none; each has one reference then.
    /// `ResourceExhausted`: fewer are free.
    pub fn allocate(&mut self, blocks: &mut [i32]) -> Result<()> {
        let (this, n) = (self.raw.as_ptr(), blocks.len() as i64);
        // SAFETY: the slice is as long as is said. So below.
        call(|error| unsafe {
            sys::kvfolio_block_store_allocate(this, blocks.as_mut_ptr(), n, error)
        })
    }

    /// Adds a reference to each block, all or none. `FailedPrecondition`: a block is free.
    pub fn hold(&mut self, blocks: &[i32]) -> Result<()> {
        let (this, n) = (self.raw.as_ptr(), blocks.len() as i64);
        call(|error| unsafe { sys::kvfolio_block_store_hold(this, blocks.as_ptr(), n, error) })
    }

    /// Takes a reference from each, all or none. A block without any is free.
    pub fn release(&mut self, blocks: &[i32]) -> Result<()> {
        let (this, n) = (self.raw.as_ptr(), blocks.len() as i64);
        call(|error| unsafe { sys::kvfolio_block_store_release(this, blocks.as_ptr(), n, error) })
    }

    /// The block to write in place of this one: itself, or if others hold it too a copy, to which
    /// the caller's reference moves. [`Error::Unavailable`](crate::Error::Unavailable): the memory
    /// failed; the block is as it was, and the call may be made again.
    pub fn make_writable(&mut self, block: i32) -> Result<i32> {
        let mut out = 0;
        call(|error| unsafe {
            sys::kvfolio_block_store_make_writable(self.raw.as_ptr(), block, &mut out, error)
        })?;
        Ok(out)
    }

    /// Copies images of blocks, one behind the other: `blocks.len() * block_image_bytes()` bytes.
    /// [`Storage::read_blocks`](crate::Storage::read_blocks) says what an image is.
    pub fn read(&self, blocks: &[i32], images: &mut [u8]) -> Result<()> {
        let (this, n, bytes) = (self.raw.as_ptr(), blocks.len() as i64, images.len() as i64);
        call(|error| unsafe {
            let images = images.as_mut_ptr().cast();
            sys::kvfolio_block_store_read(this, blocks.as_ptr(), n, images, bytes, error)
        })
    }

    /// Copies images to blocks. `FailedPrecondition`: a block has several references.
    pub fn write(&mut self, blocks: &[i32], images: &[u8]) -> Result<()> {
        let (this, n, bytes) = (self.raw.as_ptr(), blocks.len() as i64, images.len() as i64);
        call(|error| unsafe {
            let images = images.as_ptr().cast();
            sys::kvfolio_block_store_write(this, blocks.as_ptr(), n, images, bytes, error)
        })
    }

    /// References to a block; 0: it is free.
    pub fn ref_count(&self, block: i32) -> Result<i32> {
        let mut out = 0;
        call(|error| unsafe {
            sys::kvfolio_block_store_ref_count(self.raw.as_ptr(), block, &mut out, error)
        })?;
        Ok(out)
    }

    /// How many blocks there are.
    pub fn num_blocks(&self) -> i32 {
        // SAFETY: the handle lives as long as self. So below.
        unsafe { sys::kvfolio_block_store_num_blocks(self.raw.as_ptr()) }
    }

    /// How many of them are free.
    pub fn num_free(&self) -> i32 {
        unsafe { sys::kvfolio_block_store_num_free(self.raw.as_ptr()) }
    }

    /// Bytes of the image of a block.
    pub fn block_image_bytes(&self) -> usize {
        unsafe { sys::kvfolio_block_store_block_image_bytes(self.raw.as_ptr()) as usize }
    }

    /// What was taken from the resource.
    pub fn memory_bytes(&self) -> i64 {
        unsafe { sys::kvfolio_block_store_memory_bytes(self.raw.as_ptr()) }
    }

    /// For the kernels, all layers, to read.
    pub fn view(&self) -> View<'_> {
        View::new(&self.view, &self.spec, self.memory_kind)
    }

    /// The same to write. Nothing keeps a kernel from writing to a block that several tables have:
    /// [`BlockStore::make_writable`] comes before.
    pub fn view_mut(&mut self) -> ViewMut<'_> {
        ViewMut::of(View::new(&self.view, &self.spec, self.memory_kind))
    }
}
