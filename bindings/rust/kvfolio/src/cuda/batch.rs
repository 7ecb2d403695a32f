// SPDX-License-Identifier: Apache-2.0
//
// SAFETY of every call here: a handle lives as long as its value, and C keeps its kernels; slices are
// passed with their lengths, and read during the call.

use super::memory::to_i64;
use super::{sys, AttendShape, DeviceRows, Kernels, RawStream};
use crate::error::{call, constant, invalid};
use crate::spec::count;
use crate::view::ViewHandle;
use crate::{DType, Format, GroupSpec, MemoryKind, Result, View};
use std::ptr::{null, null_mut, NonNull};

/// An engine's tensors of one layer, without gaps, in the memory of a device.
#[derive(Clone, Copy, Debug)]
pub struct PagedKv {
    /// `[num_pages, page_size, num_kv_heads, head_dim]` with `Format::Nhd`, `[num_pages, num_kv_heads,
    /// page_size, head_dim]` with `Format::Hnd`.
    pub k: *mut u8,
    /// The same; null: one tensor `[num_pages, 2, ...]` at `k`, of which index 0 is K and 1 is V.
    pub v: *mut u8,
    /// See `k`.
    pub layout: Format,
    /// See `k`.
    pub num_pages: i32,
    /// See `k`.
    pub page_size: i32,
    /// See `k`.
    pub num_kv_heads: i32,
    /// See `k`.
    pub head_dim: i32,
    /// f32, f16 or bf16.
    pub dtype: DType,
}

/// The view of a [`PagedKv`].
pub struct PagedView {
    handle: ViewHandle,
    spec: GroupSpec,
}

impl std::fmt::Debug for PagedView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PagedView").field("spec", &self.spec).finish()
    }
}

impl PagedView {
    /// `InvalidArgument`: a null `k`, a count below 1, another layout. `Unsupported`: another element
    /// type. Other strides, and scales: [`Storage::borrow_with_resource`](crate::Storage).
    ///
    /// # Safety
    /// The tensors are memory of a device that stays as long as this.
    pub unsafe fn new(tensors: &PagedKv) -> Result<PagedView> {
        let c = sys::kvfolio_cuda_paged_kv {
            layout: tensors.layout as i32,
            k: tensors.k.cast(),
            v: tensors.v.cast(),
            num_pages: tensors.num_pages,
            page_size: tensors.page_size,
            num_kv_heads: tensors.num_kv_heads,
            head_dim: tensors.head_dim,
            dtype: tensors.dtype as i32,
            ..sys::kvfolio_cuda_paged_kv::new()
        };
        let mut out = null_mut();
        call(|error| unsafe { sys::kvfolio_cuda_paged_kv_view(&c, &mut out, error) })?;
        let spec = GroupSpec {
            num_kv_heads: tensors.num_kv_heads,
            head_dim_k: tensors.head_dim,
            head_dim_v: tensors.head_dim,
            block_size: tensors.page_size,
            num_blocks: tensors.num_pages,
            dtype: tensors.dtype,
            format: tensors.layout,
            ..GroupSpec::default()
        };
        Ok(PagedView {
            handle: ViewHandle::of_handle(NonNull::new(out).expect("C gave a view")),
            spec,
        })
    }

    /// What [`BatchAttention`] and [`Kernels`] take.
    pub fn view(&self) -> View<'_> {
        View::new(&self.handle, &self.spec, MemoryKind::Device)
    }
}

/// Options of [`BatchAttention::new`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchAttentionOptions {
    /// Sequences of a step: 1 to 2^20.
    pub max_sequences: i32,
    /// 1 to 2^24.
    pub max_pages_of_sequence: i32,
    /// For how a step's work is cut; 0: 4 MiB.
    pub max_image_bytes: i64,
    /// For parts of rows that are merged; 0: 128 MiB.
    pub workspace_bytes: i64,
    /// Plans are padded to these sequences and pages, so that [`BatchAttention::shape`] is one for all
    /// steps of the same `paged_kv` and heads, and one captured run serves them. A step that is larger is
    /// refused with the numbers, and so is one of another `causal` (where `max_queries` is above 1),
    /// `sm_scale`, `window_left` or `logits_soft_cap` than the first one.
    pub padded: bool,
    /// Tokens of K and V of a padded step; 0: what all pages have room for.
    pub max_tokens: i64,
    /// Rows of one sequence of a padded step, to 2^16; 0: 1, a decode. Above 1 each step has a
    /// `qo_indptr`.
    pub max_queries: i32,
}

/// What [`BatchAttention::plan`] is told, by FlashInfer's names and with its defaults.
#[derive(Clone, Copy, Debug)]
pub struct BatchAttentionPlan<'a> {
    /// `[n + 1]`: rows of q of each sequence, its last tokens. `None`: a decode, one row for each.
    pub qo_indptr: Option<&'a [i32]>,
    /// `[n + 1]`.
    pub kv_indptr: &'a [i32],
    /// `[kv_indptr[n]]`: pages.
    pub kv_indices: &'a [i32],
    /// `[n]`.
    pub kv_last_page_len: &'a [i32],
    /// Heads of q.
    pub num_qo_heads: i32,
    /// A decode has no other way.
    pub causal: bool,
    /// 0: `1 / sqrt(head_dim)`.
    pub sm_scale: f64,
    /// A row sees this many tokens before its own, and its own; -1: all.
    pub window_left: i32,
    /// 0: none.
    pub logits_soft_cap: f64,
    /// The type of q.
    pub q_data_type: DType,
    /// That of the result.
    pub o_data_type: DType,
}

impl Default for BatchAttentionPlan<'_> {
    fn default() -> Self {
        BatchAttentionPlan {
            qo_indptr: None,
            kv_indptr: &[],
            kv_indices: &[],
            kv_last_page_len: &[],
            num_qo_heads: 0,
            causal: false,
            sm_scale: 0.0,
            window_left: -1,
            logits_soft_cap: 0.0,
            q_data_type: DType::Bf16,
            o_data_type: DType::Bf16,
        }
    }
}

/// Attention in the call shape of FlashInfer's paged wrappers: planned once for a step, run for each
/// layer. `cuda_wrapper.h` says the rules. `lse` has natural logarithms, where FlashInfer's are base 2.
#[derive(Debug)]
pub struct BatchAttention {
    raw: NonNull<sys::kvfolio_cuda_batch_attention>,
}

// SAFETY: a handle may move between threads.
unsafe impl Send for BatchAttention {}

impl BatchAttention {
    /// Takes all its memory. `InvalidArgument`: the options. `OutOfMemory`, `Unavailable`.
    pub fn new(kernels: &Kernels, options: &BatchAttentionOptions) -> Result<BatchAttention> {
        let c = sys::kvfolio_cuda_batch_attention_options {
            max_sequences: options.max_sequences,
            max_pages_of_sequence: options.max_pages_of_sequence,
            max_image_bytes: options.max_image_bytes,
            workspace_bytes: options.workspace_bytes,
            padded: options.padded as i32,
            max_queries: options.max_queries,
            max_tokens: options.max_tokens,
            ..sys::kvfolio_cuda_batch_attention_options::new()
        };
        let mut out = null_mut();
        call(|error| unsafe {
            sys::kvfolio_cuda_batch_attention_create(kernels.raw(), &c, &mut out, error)
        })?;
        Ok(BatchAttention { raw: NonNull::new(out).expect("C gave a batch attention") })
    }

    /// Cuts the work of a step and sends it; `paged_kv` is a view of any layer. `InvalidArgument`,
    /// `Unsupported`, `FailedPrecondition` (the stream is being captured): the plan before stays.
    /// `Unavailable`: the driver's; then there is none.
    ///
    /// # Safety
    /// The stream is one of this device that lives, or null, no other thread uses it meanwhile, and the
    /// runs of the plan before are on it, too, or have ended. The view's memory is there.
    pub unsafe fn plan(
        &mut self,
        step: &BatchAttentionPlan,
        paged_kv: &View,
        stream: RawStream,
    ) -> Result<()> {
        let n = step.kv_last_page_len.len();
        let rows = step.qo_indptr.map_or(n + 1, <[i32]>::len);
        for (name, have) in [("kv_indptr", step.kv_indptr.len()), ("qo_indptr", rows)] {
            if have != n + 1 {
                return invalid(format!("{name} has {have} entries, allowed: {}", n + 1));
            }
        }
        if step.window_left < -1 {
            return invalid(format!("window_left is {}, allowed: -1 and above", step.window_left));
        }
        let c = sys::kvfolio_cuda_batch_attention_params {
            num_qo_heads: step.num_qo_heads,
            causal: step.causal as i32,
            window: step.window_left.saturating_add(1),
            sm_scale: step.sm_scale,
            logits_soft_cap: step.logits_soft_cap,
            q_data_type: step.q_data_type as i32,
            o_data_type: step.o_data_type as i32,
            ..sys::kvfolio_cuda_batch_attention_params::new()
        };
        call(|error| unsafe {
            sys::kvfolio_cuda_batch_attention_plan(
                self.raw.as_ptr(),
                &c,
                count(n),
                step.qo_indptr.map_or(null(), <[i32]>::as_ptr),
                step.kv_indptr.as_ptr(),
                step.kv_indices.as_ptr(),
                to_i64(step.kv_indices.len()),
                step.kv_last_page_len.as_ptr(),
                paged_kv.raw(),
                stream,
                error,
            )
        })
    }

    /// One layer of what was planned, which a graph may have in it. `lse`: f32
    /// `[rows, num_qo_heads]`, or null. `FailedPrecondition`: there is no plan. `InvalidArgument`:
    /// another shape, stride or element type than the plan's.
    ///
    /// # Safety
    /// As [`Kernels`] says; behind the plan in its stream, or ordered by the caller.
    pub unsafe fn run(
        &mut self,
        q: DeviceRows,
        paged_kv: &View,
        layer: i32,
        out: DeviceRows,
        lse: *mut f32,
        stream: RawStream,
    ) -> Result<()> {
        let (q_rows, out_rows) = (q.to_c(), out.to_c());
        call(|error| unsafe {
            sys::kvfolio_cuda_batch_attention_run(
                self.raw.as_ptr(),
                q.data.cast(),
                &q_rows,
                paged_kv.raw(),
                layer,
                out.data.cast(),
                &out_rows,
                lse,
                stream,
                error,
            )
        })
    }

    /// That of the last plan, by which a captured run is known.
    pub fn shape(&self) -> AttendShape {
        AttendShape::ask(|out, error| unsafe {
            sys::kvfolio_cuda_batch_attention_get_shape(self.raw.as_ptr(), out, error)
        })
    }

    /// [`AttendPlan::target`](super::AttendPlan::target) of the last plan; empty without one.
    pub fn target(&self) -> &str {
        unsafe { constant(sys::kvfolio_cuda_batch_attention_target(self.raw.as_ptr())) }
    }

    /// Bytes that it has on the device.
    pub fn device_bytes(&self) -> i64 {
        unsafe { sys::kvfolio_cuda_batch_attention_device_bytes(self.raw.as_ptr()) }
    }

    /// Bytes of pinned memory that it has.
    pub fn pinned_bytes(&self) -> i64 {
        unsafe { sys::kvfolio_cuda_batch_attention_pinned_bytes(self.raw.as_ptr()) }
    }
}

impl Drop for BatchAttention {
    fn drop(&mut self) {
        unsafe { sys::kvfolio_cuda_batch_attention_destroy(self.raw.as_ptr()) }
    }
}
