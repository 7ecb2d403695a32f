// SPDX-License-Identifier: Apache-2.0

use crate::error::{call, invalid};
use crate::memory::Resource;
use crate::rows::Element;
use crate::view::{View, ViewHandle};
use crate::{sys, DType, Format, GroupSpec, MemoryKind, MemoryResource, Result};
use std::mem::size_of;
use std::ptr::{null, null_mut, NonNull};
use std::sync::Arc;

/// Options of a [`TokenStore`]; `token_store.h` says the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenStoreOptions {
    /// Elements of a row of K.
    pub head_dim_k: i32,
    /// 0: there is no V.
    pub head_dim_v: i32,
    /// Rows of each token.
    pub num_kv_heads: i32,
    /// Element type of the rows.
    pub dtype: DType,
    /// Tokens of a block.
    pub block_size: i32,
    /// The exact cap.
    pub max_tokens: i32,
}

impl Default for TokenStoreOptions {
    /// One head of f32 in blocks of 16 tokens; no dims and no tokens yet.
    fn default() -> TokenStoreOptions {
        TokenStoreOptions {
            head_dim_k: 0,
            head_dim_v: 0,
            num_kv_heads: 1,
            dtype: DType::F32,
            block_size: 16,
            max_tokens: 0,
        }
    }
}

/// One sequence without a cache: a row of K, and of V if it has V, for each token.
///
/// ```
/// use kvfolio::{DType, Error, TokenStore, TokenStoreOptions};
///
/// let options = TokenStoreOptions { head_dim_k: 3, dtype: DType::F64, max_tokens: 4,
///                                   ..TokenStoreOptions::default() };
/// let mut store = TokenStore::new(&options)?;
/// store.append(&[0.0, 0.0, 0.0, 1.0, 2.0, 3.0], &[])?; // two tokens
/// store.append(&[2.0f32, 4.0, 6.0], &[])?; // converted
/// assert_eq!(store.at::<f64>(1)?, [1.0, 2.0, 3.0]); // where it lies: nothing is copied
/// let mut tail = [0.0f32; 6];
/// store.gather(1, &mut tail, &mut [])?; // tokens 1 and 2
/// assert_eq!(tail, [1.0, 2.0, 3.0, 2.0, 4.0, 6.0]);
/// assert!(store.v_at::<f64>(1).is_err()); // no V
/// let full = store.append(&[0.0; 6], &[]).unwrap_err();
/// assert_eq!(full.message(), "append of 2 tokens: full: 3 of 4 tokens");
///
/// let copy = store.copy()?; // a deep one, of the blocks in use
/// store.clear(); // keeps the memory
/// assert!(store.is_empty() && copy.len() == 3 && copy.max_tokens() == 4);
/// assert_eq!((store.bytes_used(), copy.bytes_used(), copy.memory_bytes()), (0, 384, 384));
/// assert_eq!(copy.view().k::<f64>(0, 0, 0, 2), Some(&[2.0, 4.0, 6.0][..])); // for the kernels
/// # Ok::<(), Error>(())
/// ```
pub struct TokenStore {
    view: ViewHandle,
    spec: GroupSpec,
    memory_kind: MemoryKind,
    handle: Arc<Handle>,
}

/// What C has. A copy uses the resource of the first store through the first store's handle, so it
/// keeps that alive.
struct Handle {
    raw: NonNull<sys::kvfolio_token_store>,
    origin: Option<Arc<Handle>>,
    resource: Option<Resource>,
}

// SAFETY: a handle may move between threads; &self calls are const calls, which may run at the same
// time; a call that writes has the only &mut TokenStore. Through the Arc only `drop` is called.
unsafe impl Send for Handle {}
unsafe impl Sync for Handle {}
unsafe impl Send for TokenStore {}
unsafe impl Sync for TokenStore {}

impl std::fmt::Debug for TokenStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TokenStore({} of {} tokens)", self.len(), self.max_tokens())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: it was created here and goes once, before the origin and the resource.
        unsafe { sys::kvfolio_token_store_destroy(self.raw.as_ptr()) }
    }
}

/// A position as C counts; one that does not fit is refused there.
fn position(i: usize) -> i64 {
    i64::try_from(i).unwrap_or(i64::MAX)
}

impl TokenStore {
    /// Memory of the process; a page costs nothing before it is first written.
    pub fn new(options: &TokenStoreOptions) -> Result<TokenStore> {
        TokenStore::create(options, None)
    }

    /// Memory of a resource. Its copies use it too: the memory of this store is freed when they are
    /// dropped, too.
    ///
    /// ```
    /// use kvfolio::{MemoryKind, MemoryResource, TokenStore, TokenStoreOptions};
    ///
    /// struct Empty; // has no memory to give
    /// unsafe impl MemoryResource for Empty {
    ///     fn kind(&self) -> MemoryKind { MemoryKind::Host }
    ///     fn allocate(&self, _: usize) -> *mut u8 { std::ptr::null_mut() }
    ///     unsafe fn deallocate(&self, _: *mut u8, _: usize) {}
    ///     unsafe fn copy(&self, _: *mut u8, _: *const u8, _: usize) {}
    /// }
    /// let options = TokenStoreOptions { head_dim_k: 8, max_tokens: 64, ..Default::default() };
    /// let error = TokenStore::with_resource(&options, std::sync::Arc::new(Empty)).err().unwrap();
    /// assert!(matches!(error, kvfolio::Error::OutOfMemory(_)), "{error}");
    /// ```
    pub fn with_resource(
        options: &TokenStoreOptions,
        resource: Arc<dyn MemoryResource>,
    ) -> Result<TokenStore> {
        TokenStore::create(options, Some(Resource::new(resource)))
    }

    fn create(options: &TokenStoreOptions, resource: Option<Resource>) -> Result<TokenStore> {
        let not_default = |n: i32| if n == 0 { -1 } else { n };
        let c = sys::kvfolio_token_store_options {
            struct_size: size_of::<sys::kvfolio_token_store_options>() as u32,
            head_dim_k: options.head_dim_k,
            head_dim_v: options.head_dim_v,
            num_kv_heads: not_default(options.num_kv_heads),
            dtype: options.dtype as i32,
            block_size: not_default(options.block_size),
            max_tokens: options.max_tokens,
        };
        let table = resource.as_ref().map(Resource::to_c);
        let memory_kind = match &table {
            Some(table) if table.kind != sys::KVFOLIO_HOST => MemoryKind::Device,
            _ => MemoryKind::Host,
        };
        let table = table.as_ref().map_or(null(), |table| table as *const _);
        let mut out = null_mut();
        // SAFETY: the resource outlives the store.
        call(|error| unsafe { sys::kvfolio_token_store_create(&c, table, &mut out, error) })?;
        let spec = GroupSpec {
            num_kv_heads: options.num_kv_heads,
            head_dim_k: options.head_dim_k,
            head_dim_v: options.head_dim_v,
            block_size: options.block_size,
            dtype: options.dtype,
            format: Format::Nhd,
            ..GroupSpec::default()
        };
        TokenStore::from_raw(out, spec, memory_kind, None, resource)
    }

    fn from_raw(
        raw: *mut sys::kvfolio_token_store,
        spec: GroupSpec,
        memory_kind: MemoryKind,
        origin: Option<Arc<Handle>>,
        resource: Option<Resource>,
    ) -> Result<TokenStore> {
        let raw = NonNull::new(raw).expect("C gave a store");
        let handle = Arc::new(Handle { raw, origin, resource });
        let view = ViewHandle::of_token_store(raw.as_ptr())?;
        Ok(TokenStore { view, spec, memory_kind, handle })
    }

    fn raw(&self) -> *mut sys::kvfolio_token_store {
        self.handle.raw.as_ptr()
    }

    /// A store of its own with the same tokens.
    pub fn copy(&self) -> Result<TokenStore> {
        let mut out = null_mut();
        // SAFETY: a const call; the origin lives as long as the copy.
        call(|error| unsafe { sys::kvfolio_token_store_copy(self.raw(), &mut out, error) })?;
        let origin = match (&self.handle.origin, &self.handle.resource) {
            (Some(origin), _) => Some(origin.clone()),
            (None, Some(_)) => Some(self.handle.clone()),
            (None, None) => None,
        };
        TokenStore::from_raw(out, self.spec, self.memory_kind, origin, None)
    }

    /// The number for the element type of a caller's rows.
    fn dtype_of<T: Element>(&self) -> Result<i32> {
        let kinds = [DType::F64, DType::F32, self.spec.dtype];
        match kinds.into_iter().find(|&kind| !kind.has_scales() && T::keeps(kind)) {
            Some(dtype) => Ok(dtype as i32),
            None => invalid(format!(
                "rows of this type for a store of {:?}; u16 are the bits of f16 and bf16",
                self.spec.dtype
            )),
        }
    }

    /// How many rows these elements are.
    fn count_rows(&self, name: &str, elements: usize, head_dim: i32) -> Result<i64> {
        let row = self.spec.num_kv_heads as usize * head_dim as usize;
        if elements == 0 {
            return Ok(0);
        }
        if row == 0 || elements % row != 0 {
            return invalid(format!("{name} has {elements} elements, a row has {row}"));
        }
        Ok((elements / row) as i64)
    }

    /// Appends a whole number of rows, all or none. `v` is empty if the store has no V.
    pub fn append<T: Element>(&mut self, k: &[T], v: &[T]) -> Result<()> {
        let dtype = self.dtype_of::<T>()?;
        let n = self.count_rows("k", k.len(), self.spec.head_dim_k)?;
        let n_v = self.count_rows("v", v.len(), self.spec.head_dim_v)?;
        if n_v != if self.spec.head_dim_v == 0 { 0 } else { n } {
            return invalid(format!("{n} rows of k, {n_v} of v"));
        }
        let v = if v.is_empty() { null() } else { v.as_ptr() };
        // SAFETY: k and v have n rows, as was checked.
        call(|error| unsafe {
            sys::kvfolio_token_store_append(
                self.raw(),
                k.as_ptr().cast(),
                v.cast(),
                n,
                dtype,
                error,
            )
        })
    }

    /// Copies tokens `begin, begin + 1, ...` to as many rows as the slices hold. An empty one is not
    /// written; otherwise both hold equally many rows.
    pub fn gather<T: Element>(&self, begin: usize, k: &mut [T], v: &mut [T]) -> Result<()> {
        let dtype = self.dtype_of::<T>()?;
        let n_k = self.count_rows("k", k.len(), self.spec.head_dim_k)?;
        let n_v = self.count_rows("v", v.len(), self.spec.head_dim_v)?;
        if !k.is_empty() && !v.is_empty() && n_k != n_v {
            return invalid(format!("{n_k} rows of k, {n_v} of v"));
        }
        let pointer = |rows: &mut [T]| {
            if rows.is_empty() {
                null_mut()
            } else {
                rows.as_mut_ptr()
            }
        };
        let (k, v, n) = (pointer(k), pointer(v), n_k.max(n_v));
        let begin = position(begin);
        // SAFETY: each is null or has n rows, as was checked.
        call(|error| unsafe {
            sys::kvfolio_token_store_gather(self.raw(), begin, n, dtype, k.cast(), v.cast(), error)
        })
    }

    /// The row of K of token i where it lies; `T` is the store's type. `Unsupported` for int8.
    pub fn at<T: Element>(&self, i: usize) -> Result<&[T]> {
        self.row(i, self.spec.head_dim_k, sys::kvfolio_token_store_at)
    }

    /// The row of V.
    pub fn v_at<T: Element>(&self, i: usize) -> Result<&[T]> {
        self.row(i, self.spec.head_dim_v, sys::kvfolio_token_store_v_at)
    }

    fn row<T: Element>(
        &self,
        i: usize,
        head_dim: i32,
        f: unsafe extern "C" fn(
            *const sys::kvfolio_token_store,
            i64,
            *mut *const std::os::raw::c_void,
            *mut sys::kvfolio_error,
        ) -> i32,
    ) -> Result<&[T]> {
        if !T::keeps(self.spec.dtype) {
            return invalid(format!("the store is of {:?}", self.spec.dtype));
        }
        let mut out = null();
        // SAFETY: a const call.
        call(|error| unsafe { f(self.raw(), position(i), &mut out, error) })?;
        let elements = self.spec.num_kv_heads as usize * head_dim as usize;
        // SAFETY: a row of this type, which does not move and changes only under &mut self.
        Ok(unsafe { std::slice::from_raw_parts(out.cast(), elements) })
    }

    /// Forgets every token and keeps the memory.
    pub fn clear(&mut self) {
        // SAFETY: the handle lives as long as self. So below.
        unsafe { sys::kvfolio_token_store_clear(self.raw()) }
    }

    /// Tokens in the store.
    pub fn len(&self) -> usize {
        unsafe { sys::kvfolio_token_store_size(self.raw()) as usize }
    }

    /// Whether it has no token.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The exact cap.
    pub fn max_tokens(&self) -> usize {
        unsafe { sys::kvfolio_token_store_max_tokens(self.raw()) as usize }
    }

    /// What was taken from the resource.
    pub fn memory_bytes(&self) -> i64 {
        unsafe { sys::kvfolio_token_store_memory_bytes(self.raw()) }
    }

    /// Bytes of the blocks that hold tokens.
    pub fn bytes_used(&self) -> i64 {
        unsafe { sys::kvfolio_token_store_bytes_used(self.raw()) }
    }

    /// For the kernels. The block table of the sequence is 0, 1, 2, ...
    pub fn view(&self) -> View<'_> {
        View::new(&self.view, &self.spec, self.memory_kind)
    }
}
