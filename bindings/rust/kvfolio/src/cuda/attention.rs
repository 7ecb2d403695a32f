// SPDX-License-Identifier: Apache-2.0
//
// SAFETY of every call here: a handle lives as long as its value; addresses of the device are as each
// function requires; slices are passed with their lengths.

use super::memory::to_i64;
use super::{sys, DeviceBuffer, DeviceRows, Kernels, PinnedBuffer, RawStream};
use crate::error::{call, constant, invalid};
use crate::spec::count;
use crate::{sys as core, AttentionOptions, Result, View};
use std::ptr::{null, null_mut, NonNull};

/// One layer of a batch of n sequences. Lengths are told twice: on the host, where the work is cut, and
/// the same numbers in the memory of the device, for the kernels.
#[derive(Clone, Copy, Debug)]
pub struct DeviceAttention<'a> {
    /// Layer, scale, window and so on. Not of a device: a target, a slice, slices of slopes and logits.
    pub options: AttentionOptions<'a>,
    /// `[n + 1]`.
    pub query_start: &'a [i32],
    /// `[n]`.
    pub kv_lens: &'a [i32],
    /// `[n]`, or both empty.
    pub trim_sinks: &'a [i32],
    /// See `trim_sinks`.
    pub trim_first_kept: &'a [i32],
    /// On the device: `[n, block_table_stride]`. Trusted: entries that rows see are blocks.
    pub block_table: *const i32,
    /// Entries of the table of each sequence.
    pub block_table_stride: i32,
    /// On the device: `query_start`, `kv_lens`, `trim_sinks` and `trim_first_kept`; the last two are null
    /// without trims.
    pub lengths: [*const i32; 4],
    /// On the device: a slope for each query head; null: none.
    pub alibi_slopes: *const f32,
    /// On the device: a logit for each query head; null: none.
    pub sink_logits: *const f32,
    /// `[query_start[n], q heads, head_dim_k]`, aligned to 16 bytes.
    pub q: DeviceRows,
    /// `[query_start[n], q heads, head_dim_v]`, aligned to 16 bytes.
    pub out: DeviceRows,
    /// On the device: `[query_start[n], q heads]`; null: not wanted.
    pub lse: *mut f32,
}

impl<'a> DeviceAttention<'a> {
    /// Without trims, slopes, logits and lse; `lengths` are `query_start` and `kv_lens` on the device.
    pub fn new(
        query_start: &'a [i32],
        kv_lens: &'a [i32],
        lengths: [*const i32; 2],
        block_table: *const i32,
        block_table_stride: i32,
        q: DeviceRows,
        out: DeviceRows,
    ) -> DeviceAttention<'a> {
        DeviceAttention {
            options: AttentionOptions::default(),
            query_start,
            kv_lens,
            trim_sinks: &[],
            trim_first_kept: &[],
            block_table,
            block_table_stride,
            lengths: [lengths[0], lengths[1], null(), null()],
            alibi_slopes: null(),
            sink_logits: null(),
            q,
            out,
            lse: null_mut(),
        }
    }

    fn check(&self) -> Result<()> {
        let n = self.kv_lens.len();
        if self.query_start.len() != n + 1 {
            let have = self.query_start.len();
            return invalid(format!("query_start has {have} entries, allowed: {}", n + 1));
        }
        let trims = [self.trim_sinks.len(), self.trim_first_kept.len()];
        if trims != [n, n] && trims != [0, 0] {
            return invalid(format!("trims have {trims:?} entries, allowed: {n} or 0 in both"));
        }
        if !self.options.alibi_slopes.is_empty() || !self.options.sink_logits.is_empty() {
            return invalid("slopes and logits of the options are memory of the host".into());
        }
        Ok(())
    }

    fn options_to_c(&self) -> core::kvfolio_attention_options {
        let heads = |data: *const f32| if data.is_null() { 0 } else { self.q.shape[1] };
        core::kvfolio_attention_options {
            alibi_slopes: self.alibi_slopes,
            num_alibi_slopes: heads(self.alibi_slopes),
            sink_logits: self.sink_logits,
            num_sink_logits: heads(self.sink_logits),
            ..self.options.to_c()
        }
    }

    fn memory_to_c(&self) -> sys::kvfolio_cuda_attention {
        sys::kvfolio_cuda_attention {
            block_table_stride: self.block_table_stride,
            block_table: self.block_table,
            query_start: self.lengths[0],
            kv_lens: self.lengths[1],
            trim_sinks: self.lengths[2],
            trim_first_kept: self.lengths[3],
            q: self.q.data.cast(),
            out: self.out.data.cast(),
            lse: self.lse,
            ..sys::kvfolio_cuda_attention::new()
        }
    }
}

fn or_null(array: &[i32]) -> *const i32 {
    if array.is_empty() {
        null()
    } else {
        array.as_ptr()
    }
}

/// What the launches of a plan depend on beside the call: a graph that captured [`Kernels::attend`] or
/// [`BatchAttention::run`](super::BatchAttention::run) serves each plan of an equal shape. That of a
/// padded plan ([`AttendCapacity`]) is one for all batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttendShape([i32; 10]);

impl AttendShape {
    pub(super) fn ask(
        ask: impl FnOnce(*mut sys::kvfolio_cuda_attend_shape, *mut core::kvfolio_error) -> i32,
    ) -> AttendShape {
        let mut out = sys::kvfolio_cuda_attend_shape::new();
        call(|error| ask(&mut out, error)).expect("a plan has its shape");
        AttendShape([
            out.num_sequences,
            out.num_rows,
            out.items,
            out.groups,
            out.prefill_items,
            out.segments,
            out.segments_per_block,
            out.states,
            out.many_nodes,
            out.merges,
        ])
    }

    /// Sequences of the plan.
    pub fn num_sequences(&self) -> i32 {
        self.0[0]
    }

    /// Rows of q.
    pub fn num_rows(&self) -> i32 {
        self.0[1]
    }
}

/// The largest batch that a captured graph is to serve. A plan that is padded to it
/// ([`Kernels::plan_attend_padded`]) has a shape, an image and a workspace of one size, whatever the
/// lengths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AttendCapacity {
    /// 1 to 2^20.
    pub max_sequences: i32,
    /// K and V of one sequence: 1 to 2^30.
    pub max_sequence_tokens: i32,
    /// Those of all together; 0: `max_sequences` x `max_sequence_tokens`.
    pub max_tokens: i64,
    /// Rows of q of one sequence, to 2^16; 0: 1, a decode.
    pub max_queries: i32,
}

/// How the work of a batch is cut: good for every layer of the same shapes and strides.
#[derive(Debug)]
pub struct AttendPlan {
    raw: NonNull<sys::kvfolio_cuda_attend_plan>,
}

// SAFETY: a handle may move between threads, and is only read.
unsafe impl Send for AttendPlan {}
unsafe impl Sync for AttendPlan {}

impl AttendPlan {
    /// What the kernels read of it, to be brought to the device: [`Kernels::upload`] does that.
    pub fn image(&self) -> &[u8] {
        let mut bytes = 0;
        let data = unsafe { sys::kvfolio_cuda_attend_plan_image(self.raw.as_ptr(), &mut bytes) };
        match bytes {
            0 => &[],
            _ => unsafe { std::slice::from_raw_parts(data.cast(), bytes as usize) },
        }
    }

    /// Bytes of the device that [`Kernels::attend`] writes, aligned to 16.
    pub fn workspace_bytes(&self) -> usize {
        unsafe { sys::kvfolio_cuda_attend_plan_workspace_bytes(self.raw.as_ptr()) as usize }
    }

    /// The first of them, which are zero before the first call; each call leaves them so.
    pub fn zeroed_bytes(&self) -> usize {
        unsafe { sys::kvfolio_cuda_attend_plan_zeroed_bytes(self.raw.as_ptr()) as usize }
    }

    /// "cuda-sm90-general" or "cuda-sm90-tiles": rows of one name have one set of bits.
    pub fn target(&self) -> &str {
        unsafe { constant(sys::kvfolio_cuda_attend_plan_target(self.raw.as_ptr())) }
    }

    /// "cuda-sm86-tiles: cuda-narrow, cuda-node; left out: cuda-prefill of bf16 ...": the target, the
    /// kernels that [`Kernels::attend`] starts, and those that the card has no room for.
    pub fn explain(&self) -> &str {
        unsafe { constant(sys::kvfolio_cuda_attend_plan_explain(self.raw.as_ptr())) }
    }

    /// All 0, but for `max_queries`, where the plan is not padded.
    pub fn capacity(&self) -> AttendCapacity {
        let mut out = sys::kvfolio_cuda_attend_capacity::new();
        call(|error| unsafe {
            sys::kvfolio_cuda_attend_plan_get_capacity(self.raw.as_ptr(), &mut out, error)
        })
        .expect("a plan has its capacity");
        AttendCapacity {
            max_sequences: out.max_sequences,
            max_sequence_tokens: out.max_sequence_tokens,
            max_tokens: out.max_tokens,
            max_queries: out.max_queries,
        }
    }

    /// Whether a graph that captured [`Kernels::attend`] with this padded plan serves the batch, for a
    /// replay whose plan is made on the device: only lengths of the host are looked at.
    /// `InvalidArgument`: more than the capacity, with both numbers. `FailedPrecondition`: the plan is
    /// not padded.
    pub fn check(&self, args: &DeviceAttention) -> Result<()> {
        args.check()?;
        call(|error| unsafe {
            sys::kvfolio_cuda_attend_plan_check(
                self.raw.as_ptr(),
                count(args.kv_lens.len()),
                args.query_start.as_ptr(),
                args.kv_lens.as_ptr(),
                or_null(args.trim_sinks),
                or_null(args.trim_first_kept),
                error,
            )
        })
    }

    /// Changes with the lengths of a batch, where more or less work is started for them; that of a
    /// padded plan follows from the capacity.
    pub fn shape(&self) -> AttendShape {
        AttendShape::ask(|out, error| unsafe {
            sys::kvfolio_cuda_attend_plan_get_shape(self.raw.as_ptr(), out, error)
        })
    }
}

impl Drop for AttendPlan {
    fn drop(&mut self) {
        unsafe { sys::kvfolio_cuda_attend_plan_destroy(self.raw.as_ptr()) }
    }
}

impl Kernels {
    /// Checks a call and cuts its work; nothing on the device, and no address of it is followed. The
    /// first plan of an element type and head dim loads its kernels.
    pub fn plan_attend(&self, cache: &View, args: &DeviceAttention) -> Result<AttendPlan> {
        args.check()?;
        let (options, memory) = (args.options_to_c(), args.memory_to_c());
        let (q_rows, out_rows) = (args.q.to_c(), args.out.to_c());
        let mut out = null_mut();
        call(|error| unsafe {
            sys::kvfolio_cuda_plan_attend(
                self.raw(),
                cache.raw(),
                &options,
                &memory,
                count(args.kv_lens.len()),
                args.query_start.as_ptr(),
                args.kv_lens.as_ptr(),
                or_null(args.trim_sinks),
                or_null(args.trim_first_kept),
                &q_rows,
                &out_rows,
                &mut out,
                error,
            )
        })?;
        Ok(AttendPlan { raw: NonNull::new(out).expect("C gave a plan") })
    }

    /// The same, padded: one captured [`Kernels::attend`] serves every batch within the capacity whose
    /// plan was brought to the same place, or made there. Arrays of lengths on the device, the block
    /// table, q and out have room for the capacity; where the batch has no rows, the first two entries
    /// of `query_start` there are 0. `InvalidArgument`, with both numbers: the capacity; a batch that is
    /// larger; a row of the block table that holds less than `max_sequence_tokens`; an image above 4 GiB.
    pub fn plan_attend_padded(
        &self,
        cache: &View,
        args: &DeviceAttention,
        capacity: &AttendCapacity,
    ) -> Result<AttendPlan> {
        args.check()?;
        let (options, memory) = (args.options_to_c(), args.memory_to_c());
        let (q_rows, out_rows) = (args.q.to_c(), args.out.to_c());
        let capacity = sys::kvfolio_cuda_attend_capacity {
            max_sequences: capacity.max_sequences,
            max_sequence_tokens: capacity.max_sequence_tokens,
            max_queries: capacity.max_queries,
            max_tokens: capacity.max_tokens,
            ..sys::kvfolio_cuda_attend_capacity::new()
        };
        let mut out = null_mut();
        call(|error| unsafe {
            sys::kvfolio_cuda_plan_attend_padded(
                self.raw(),
                cache.raw(),
                &options,
                &memory,
                count(args.kv_lens.len()),
                args.query_start.as_ptr(),
                args.kv_lens.as_ptr(),
                or_null(args.trim_sinks),
                or_null(args.trim_first_kept),
                &q_rows,
                &out_rows,
                &capacity,
                &mut out,
                error,
            )
        })?;
        Ok(AttendPlan { raw: NonNull::new(out).expect("C gave a plan") })
    }

    /// Makes the image of a padded plan on the device by one kernel, from the lengths that lie there,
    /// and zeroes what has to be zero of the workspace: a graph that has it in front of
    /// [`Kernels::attend`] needs no plan of the host. `cuda_kernels.h` says the rules. `counts`: an
    /// address of the device, of how many sequences there are (the plan's arrays have it, see
    /// [`DevicePlan::arrays`](super::DevicePlan::arrays)); null: as many as the capacity has, the last
    /// ones without rows. A batch over the capacity, which only the device sees, makes an empty plan and
    /// is reported to the word `fault`, [`NO_ENTRY`](super::NO_ENTRY) before, whose meaning
    /// [`Kernels::plan_fault`] says; null: it is not. `FailedPrecondition`: the plan is not padded.
    ///
    /// # Safety
    /// As [`Kernels`] says; arrays of the device have room for the capacity. Where no sequence that lies
    /// there is within it, the word is read before [`Kernels::attend`] is started.
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn plan_on_device(
        &self,
        cache: &View,
        args: &DeviceAttention,
        plan: &AttendPlan,
        image: &mut DeviceBuffer,
        workspace: &mut DeviceBuffer,
        stream: RawStream,
        counts: *const i32,
        fault: *mut u64,
    ) -> Result<()> {
        args.check()?;
        check_room(plan, image, workspace)?;
        let (options, memory) = (args.options_to_c(), args.memory_to_c());
        let (q_rows, out_rows) = (args.q.to_c(), args.out.to_c());
        call(|error| unsafe {
            sys::kvfolio_cuda_plan_on_device(
                self.raw(),
                cache.raw(),
                &options,
                &memory,
                count(args.kv_lens.len()),
                args.query_start.as_ptr(),
                args.kv_lens.as_ptr(),
                or_null(args.trim_sinks),
                or_null(args.trim_first_kept),
                &q_rows,
                &out_rows,
                plan.raw.as_ptr(),
                image.as_ptr().cast(),
                workspace.as_ptr().cast(),
                stream,
                counts,
                fault,
                error,
            )
        })
    }

    /// What the fault word of [`Kernels::plan_on_device`] says, once it is on the host.
    pub fn plan_fault(plan: &AttendPlan, fault: u64) -> Result<()> {
        call(|error| unsafe { sys::kvfolio_cuda_plan_fault(plan.raw.as_ptr(), fault, error) })
    }

    /// Brings the image of a plan to the device, through `pinned`, and zeroes what has to be zero of the
    /// workspace. `InvalidArgument`: one of the three is too small.
    ///
    /// # Safety
    /// As [`Kernels`] says; `pinned` is not written again before the stream has passed.
    pub unsafe fn upload(
        &self,
        plan: &AttendPlan,
        pinned: &mut PinnedBuffer,
        image: &mut DeviceBuffer,
        workspace: &mut DeviceBuffer,
        stream: RawStream,
    ) -> Result<()> {
        check_room(plan, image, workspace)?;
        call(|error| unsafe {
            let (this, plan) = (self.raw(), plan.raw.as_ptr());
            let (from, bytes) = (pinned.as_ptr().cast(), to_i64(pinned.len()));
            let (image, workspace) = (image.as_ptr().cast(), workspace.as_ptr().cast());
            sys::kvfolio_cuda_upload(this, plan, from, bytes, image, workspace, stream, error)
        })
    }

    /// `softmax(scale * q k^T + mask) v` of every row. The arguments are those of the plan's call, of
    /// another layer perhaps.
    ///
    /// # Safety
    /// As [`Kernels`] says; [`Kernels::upload`] or [`Kernels::plan_on_device`] has filled `image` and
    /// `workspace`; entries of the block table that rows see are blocks, and the lengths on the device
    /// are those that the image was made of.
    pub unsafe fn attend(
        &self,
        cache: &View,
        args: &DeviceAttention,
        plan: &AttendPlan,
        image: &DeviceBuffer,
        workspace: &mut DeviceBuffer,
        stream: RawStream,
    ) -> Result<()> {
        args.check()?;
        check_room(plan, image, workspace)?;
        let (options, memory) = (args.options_to_c(), args.memory_to_c());
        let (q_rows, out_rows) = (args.q.to_c(), args.out.to_c());
        call(|error| unsafe {
            sys::kvfolio_cuda_attend(
                self.raw(),
                cache.raw(),
                &options,
                &memory,
                count(args.kv_lens.len()),
                args.query_start.as_ptr(),
                args.kv_lens.as_ptr(),
                or_null(args.trim_sinks),
                or_null(args.trim_first_kept),
                &q_rows,
                &out_rows,
                plan.raw.as_ptr(),
                image.as_ptr().cast(),
                workspace.as_ptr().cast(),
                stream,
                error,
            )
        })
    }
}

fn check_room(plan: &AttendPlan, image: &DeviceBuffer, workspace: &DeviceBuffer) -> Result<()> {
    for (name, have, need) in [
        ("image", image.bytes(), plan.image().len()),
        ("workspace", workspace.bytes(), plan.workspace_bytes()),
    ] {
        if have < need {
            return invalid(format!("{name} has {have} bytes, needed: {need}"));
        }
    }
    Ok(())
}
