// SPDX-License-Identifier: Apache-2.0
//
// Functions over views. SAFETY of every call here: a view is as good as its lifetime; rows lie
// within their slices, as their check() says; arrays are passed with their lengths. A call that
// writes takes a `&mut` slice or a ViewMut, so nothing else touches that memory.

use crate::error::{call, constant, invalid};
use crate::rows::{as_pointer, or_null, or_null_mut, Rows, RowsMut};
use crate::spec::count;
use crate::storage::check_pairs;
use crate::threads::{self, Executor};
use crate::view::{View, ViewMut};
use crate::{sys, DType, Error, GroupSpec, Manager, Result, Sequence};
use std::ffi::CString;
use std::mem::size_of;
use std::os::raw::c_void;
use std::ptr::null;

fn check(rows: Option<&Rows>, name: &str) -> Result<()> {
    rows.map_or(Ok(()), |rows| rows.check(name))
}
fn check_mut(rows: Option<&RowsMut>, name: &str) -> Result<()> {
    rows.map_or(Ok(()), |rows| rows.check(name))
}

/// Which positions [`View::gather`] copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GatherOptions {
    /// Tokens of the sequence.
    pub length: i32,
    /// Positions `[first, first + count)`.
    pub first: i32,
    /// See `first`.
    pub count: i32,
    /// Layers `[first_layer, first_layer + num_layers)`.
    pub first_layer: i32,
    /// 0: 1.
    pub num_layers: i32,
    /// The heads of the rows are those from here on.
    pub first_head: i32,
    /// Bytes from the rows of one layer to those of the next one.
    pub k_layer_stride: usize,
    /// As `k_layer_stride`.
    pub v_layer_stride: usize,
}

impl GatherOptions {
    pub(crate) fn to_c(self) -> sys::kvfolio_gather_options {
        let stride = |n: usize| i64::try_from(n).unwrap_or(-1);
        sys::kvfolio_gather_options {
            struct_size: size_of::<sys::kvfolio_gather_options>() as u32,
            length: self.length,
            first: self.first,
            count: self.count,
            first_layer: self.first_layer,
            num_layers: self.num_layers,
            first_head: self.first_head,
            reserved: 0,
            k_layer_stride: stride(self.k_layer_stride),
            v_layer_stride: stride(self.v_layer_stride),
        }
    }
}

/// A ragged batch of n sequences. [`PlanArrays::batch`](crate::PlanArrays::batch) gives that of a
/// plan.
#[derive(Clone, Copy, Debug, Default)]
pub struct Batch<'a> {
    /// `[n + 1]`.
    pub query_start: &'a [i32],
    /// `[n]`.
    pub kv_lens: &'a [i32],
    /// `[n, block_table_stride]`.
    pub block_table: &'a [i32],
    /// Entries of the table of each sequence.
    pub block_table_stride: i32,
    /// `[n]`, or both empty.
    pub trim_sinks: &'a [i32],
    /// See `trim_sinks`.
    pub trim_first_kept: &'a [i32],
}

impl Batch<'_> {
    fn check(&self) -> Result<()> {
        let n = self.kv_lens.len();
        if self.query_start.len() != n + 1 {
            let have = self.query_start.len();
            return invalid(format!("query_start has {have} entries, allowed: {}", n + 1));
        }
        let stride = usize::try_from(self.block_table_stride).ok();
        let need = stride.and_then(|stride| n.checked_mul(stride));
        if need.map_or(true, |need| need > self.block_table.len()) {
            return invalid(format!(
                "block_table has {} entries for {n} sequences of stride {}",
                self.block_table.len(),
                self.block_table_stride
            ));
        }
        let trims = [self.trim_sinks.len(), self.trim_first_kept.len()];
        if trims != [n, n] && trims != [0, 0] {
            return invalid(format!("trims have {trims:?} entries, allowed: {n} or 0 in both"));
        }
        Ok(())
    }
}

/// Which implementation computes.
#[derive(Default, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(i32)]
pub enum Target {
    /// The one that `KVFOLIO_KERNEL` names, else the fastest.
    #[default]
    Auto = sys::KVFOLIO_TARGET_AUTO,
    /// Plain loops: what the others are compared with.
    Reference = sys::KVFOLIO_TARGET_REFERENCE,
    /// For any CPU.
    Portable = sys::KVFOLIO_TARGET_PORTABLE,
    /// x86-64 with AVX2 and FMA.
    Avx2 = sys::KVFOLIO_TARGET_AVX2,
    /// x86-64 with AVX-512.
    Avx512 = sys::KVFOLIO_TARGET_AVX512,
    /// x86-64 with AVX-512 and its instructions for bf16.
    Avx512Bf16 = sys::KVFOLIO_TARGET_AVX512_BF16,
    /// AArch64.
    Neon = sys::KVFOLIO_TARGET_NEON,
}

impl Target {
    fn from_c(number: i32) -> Option<Target> {
        Some(match number {
            sys::KVFOLIO_TARGET_AUTO => Target::Auto,
            sys::KVFOLIO_TARGET_REFERENCE => Target::Reference,
            sys::KVFOLIO_TARGET_PORTABLE => Target::Portable,
            sys::KVFOLIO_TARGET_AVX2 => Target::Avx2,
            sys::KVFOLIO_TARGET_AVX512 => Target::Avx512,
            sys::KVFOLIO_TARGET_AVX512_BF16 => Target::Avx512Bf16,
            sys::KVFOLIO_TARGET_NEON => Target::Neon,
            _ => return None,
        })
    }

    fn known(number: i32) -> Result<Target> {
        let unknown = || Error::Unsupported(format!("target {number} is newer than this crate"));
        Target::from_c(number).ok_or_else(unknown)
    }

    /// Those that this CPU runs and this crate knows, slowest first.
    ///
    /// ```
    /// use kvfolio::Target;
    ///
    /// assert_eq!(Target::all()[0], Target::Reference);
    /// assert_eq!("reference".parse::<Target>()?, Target::Reference);
    /// assert_eq!(Target::Avx512Bf16.to_string(), "avx512-bf16");
    /// # Ok::<(), kvfolio::Error>(())
    /// ```
    pub fn all() -> Vec<Target> {
        let mut out = [0; 64];
        let n = unsafe { sys::kvfolio_targets(out.as_mut_ptr(), count(out.len())) };
        out.iter().take(n as usize).filter_map(|&number| Target::from_c(number)).collect()
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(unsafe { constant(sys::kvfolio_target_name(*self as i32)) })
    }
}

impl std::str::FromStr for Target {
    type Err = Error;
    fn from_str(name: &str) -> Result<Target> {
        let name = match CString::new(name) {
            Ok(name) => name,
            Err(_) => return invalid("a target's name has no byte 0".into()),
        };
        let mut out = 0;
        call(|error| unsafe { sys::kvfolio_parse_target(name.as_ptr(), &mut out, error) })?;
        Target::known(out)
    }
}

/// Options of [`View::attend`]: `AttentionParams` and `AttentionSlice` in `kernels.h`. All but the
/// window and sinks of a group may stay 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AttentionOptions<'a> {
    /// A layer of the view.
    pub layer: i32,
    /// 0: `1 / sqrt(head_dim_k)`.
    pub scale: f64,
    /// Each query also reads the tokens behind it.
    pub not_causal: bool,
    /// Tokens that a query reads, itself included; 0: no window.
    pub window: i32,
    /// With a window or chunks: the first tokens of the sequence, which stay visible.
    pub num_sinks: i32,
    /// Tokens of a chunk: a query reads its own chunk; 0: no chunks. Not with a window.
    pub chunk: i32,
    /// Scores become `soft_cap * tanh(score / soft_cap)`; 0: none.
    pub soft_cap: f64,
    /// ALiBi: a slope for each query head, times the key's position less that of the query. Empty:
    /// none.
    pub alibi_slopes: &'a [f32],
    /// Learned sinks: a logit for each query head, a score without a value. Empty: none.
    pub sink_logits: &'a [f32],
    /// Which implementation computes.
    pub target: Target,
    /// Only `num_rows` rows from `first_row` on and `num_kv_heads` heads from `first_kv_head` on; a
    /// share without rows or heads writes nothing. False: all, and the four are 0.
    pub slice: bool,
    /// See `slice`.
    pub first_row: i32,
    /// See `slice`.
    pub num_rows: i32,
    /// See `slice`.
    pub first_kv_head: i32,
    /// See `slice`.
    pub num_kv_heads: i32,
}

impl AttentionOptions<'_> {
    /// The options of a causal group: its window and sinks, and defaults.
    pub fn of(group: &GroupSpec) -> Result<AttentionOptions<'static>> {
        let mut c = AttentionOptions::default().to_c();
        let group = group.to_c();
        call(|error| unsafe { sys::kvfolio_attention_options_of(&group, &mut c, error) })?;
        let (window, num_sinks) = (c.window, c.num_sinks);
        Ok(AttentionOptions { window, num_sinks, ..AttentionOptions::default() })
    }

    pub(crate) fn to_c(self) -> sys::kvfolio_attention_options {
        sys::kvfolio_attention_options {
            struct_size: size_of::<sys::kvfolio_attention_options>() as u32,
            layer: self.layer,
            scale: self.scale,
            not_causal: self.not_causal as i32,
            window: self.window,
            num_sinks: self.num_sinks,
            target: self.target as i32,
            slice: self.slice as i32,
            first_row: self.first_row,
            num_rows: self.num_rows,
            first_kv_head: self.first_kv_head,
            num_kv_heads: self.num_kv_heads,
            chunk: self.chunk,
            soft_cap: self.soft_cap,
            alibi_slopes: self.alibi_slopes.as_ptr(),
            sink_logits: self.sink_logits.as_ptr(),
            num_alibi_slopes: count(self.alibi_slopes.len()),
            num_sink_logits: count(self.sink_logits.len()),
        }
    }
}

/// The arguments of [`View::attend`].
pub struct Attention<'a> {
    /// The sequences and their blocks.
    pub batch: Batch<'a>,
    /// Layer, scale, window and so on.
    pub options: AttentionOptions<'a>,
    /// `[query_start[n], q heads, head_dim_k]`.
    pub q: Rows<'a>,
    /// `[query_start[n], q heads, head_dim_v]`.
    pub out: RowsMut<'a>,
    /// `[query_start[n], q heads, 1]` of f32 or f64.
    pub lse: Option<RowsMut<'a>>,
    /// At least [`View::attention_workspace_bytes`], any content.
    pub workspace: &'a mut [u8],
    /// None: the calling thread works alone.
    pub executor: Option<&'a dyn Executor>,
}

impl std::fmt::Debug for Attention<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attention")
            .field("batch", &self.batch)
            .field("options", &self.options)
            .field("q", &self.q)
            .field("out", &self.out)
            .field("lse", &self.lse)
            .field("workspace", &self.workspace.len())
            .field("num_threads", &self.executor.map_or(1, |executor| executor.num_threads()))
            .finish()
    }
}

/// # Kernels that read
///
/// ```
/// use kvfolio::{merge_states, Attention, AttentionOptions, Batch, GatherOptions, GroupSpec, Rows,
///               RowsMut, State, Storage, Target, ThreadPool};
///
/// // Two tokens of one sequence in block 3: one head, two elements.
/// let group = GroupSpec { head_dim_k: 2, head_dim_v: 2, num_blocks: 4, ..GroupSpec::default() };
/// let mut storage = Storage::new(&[group])?;
/// let rows = |data| Rows::f32(data, [2, 1, 2]);
/// let (k, v) = ([1.0, 0.0, 0.0, 1.0], [1.0, 2.0, 3.0, 4.0]);
/// storage.as_mut().view(0)?.append_rows(0, rows(&k), Some(rows(&v)), &[48, 49])?;
///
/// let view = storage.view(0)?;
/// let mut v_back = [0.0f32; 4];
/// let both = GatherOptions { length: 2, count: 2, ..GatherOptions::default() };
/// view.gather(&[3], &both, None, Some(RowsMut::f32(&mut v_back, [2, 1, 2])))?;
/// assert_eq!(v_back, v);
///
/// let pool = ThreadPool::new(2)?;
/// let target = view.choose_target(Target::Reference)?;
/// let bytes = view.attention_workspace_bytes(1, 2, target, 2)?;
/// let (mut workspace, mut out, mut lse) = (vec![0; bytes], [0.0f32; 2], [0.0f32; 1]);
/// view.attend(Attention {
///     batch: Batch { query_start: &[0, 1], kv_lens: &[2], block_table: &[3],
///                    block_table_stride: 1, ..Batch::default() },
///     options: AttentionOptions { target, ..AttentionOptions::of(&group)? },
///     q: Rows::f32(&[0.0, 0.0], [1, 1, 2]),
///     out: RowsMut::f32(&mut out, [1, 1, 2]),
///     lse: Some(RowsMut::f32(&mut lse, [1, 1, 1])),
///     workspace: &mut workspace,
///     executor: Some(&pool),
/// })?;
/// assert_eq!(out, [2.0, 3.0]); // the mean, since both scores are 0
///
/// // A chunk of one token; a learned sink with the same score takes half of the weight.
/// let alone = AttentionOptions { chunk: 1, soft_cap: 30.0, alibi_slopes: &[0.5],
///                                sink_logits: &[0.0], target, ..AttentionOptions::default() };
/// assert_eq!(view.choose_attention_target(&alone)?, Target::Reference);
/// let mut half = [0.0f32; 2];
/// view.attend(Attention {
///     batch: Batch { query_start: &[0, 1], kv_lens: &[2], block_table: &[3],
///                    block_table_stride: 1, ..Batch::default() },
///     options: alone,
///     q: Rows::f32(&[0.0, 0.0], [1, 1, 2]),
///     out: RowsMut::f32(&mut half, [1, 1, 2]),
///     lse: None,
///     workspace: &mut workspace,
///     executor: None,
/// })?;
/// assert_eq!(half, [1.5, 2.0]);
///
/// // Merged with what another call found in other tokens: here the same again.
/// let state = |out, lse| State { out: Rows::f32(out, [1, 1, 2]), lse: Rows::f32(lse, [1, 1, 1]) };
/// let mut merged = [0.0f32; 2];
/// let to = RowsMut::f32(&mut merged, [1, 1, 2]);
/// merge_states(state(&out, &lse), state(&out, &lse), to, None)?;
/// assert_eq!(merged, out);
/// # Ok::<(), kvfolio::Error>(())
/// ```
impl View<'_> {
    /// Copies positions of one sequence to rows.
    pub fn gather(
        &self,
        block_table: &[i32],
        options: &GatherOptions,
        k: Option<RowsMut>,
        v: Option<RowsMut>,
    ) -> Result<()> {
        let layers = usize::try_from(options.num_layers.max(1)).unwrap_or(1);
        for (rows, name, stride) in
            [(&k, "k", options.k_layer_stride), (&v, "v", options.v_layer_stride)]
        {
            if let Some(rows) = rows {
                rows.check_layers(name, layers, stride)?;
            }
        }
        let c = options.to_c();
        let (k, k_rows) = or_null_mut(k.as_ref());
        let (v, v_rows) = or_null_mut(v.as_ref());
        call(|error| unsafe {
            let (table, n) = (block_table.as_ptr(), block_table.len() as i64);
            let (k_rows, v_rows) = (as_pointer(&k_rows), as_pointer(&v_rows));
            sys::kvfolio_gather(self.raw(), table, n, &c, k, k_rows, v, v_rows, error)
        })
    }

    /// Reads one token, head and layer to rows of one token and one head.
    pub fn read_token(
        &self,
        layer: i32,
        head: i32,
        slot: i32,
        k: Option<RowsMut>,
        v: Option<RowsMut>,
    ) -> Result<()> {
        check_mut(k.as_ref(), "k")?;
        check_mut(v.as_ref(), "v")?;
        let shapes = [
            k.as_ref().map(|k| (k.shape(), k.dtype())),
            v.as_ref().map(|v| (v.shape(), v.dtype())),
        ];
        let dtype = check_token(self.spec, shapes)?;
        let (k, v) = (or_null_mut(k.as_ref()).0, or_null_mut(v.as_ref()).0);
        call(|error| unsafe {
            sys::kvfolio_read_token(self.raw(), layer, head, slot, dtype, k, v, error)
        })
    }

    /// The target that computes on this cache if a call asks for `wanted`.
    pub fn choose_target(&self, wanted: Target) -> Result<Target> {
        let mut out = 0;
        call(|error| unsafe {
            sys::kvfolio_choose_target(self.raw(), wanted as i32, &mut out, error)
        })?;
        Target::known(out)
    }

    /// The target that computes a call with these options; `options.target` is the one wanted.
    pub fn choose_attention_target(&self, options: &AttentionOptions) -> Result<Target> {
        let (c, mut out) = (options.to_c(), 0);
        call(|error| unsafe {
            sys::kvfolio_choose_attention_target(self.raw(), &c, &mut out, error)
        })?;
        Target::known(out)
    }

    /// Bytes of workspace for sequences of up to `max_kv_len` tokens on `num_threads` threads.
    pub fn attention_workspace_bytes(
        &self,
        num_q_heads: i32,
        max_kv_len: i32,
        target: Target,
        num_threads: usize,
    ) -> Result<usize> {
        let (this, target) = (self.raw(), target as i32);
        let mut out = 0;
        call(|error| unsafe {
            sys::kvfolio_attention_workspace_bytes(
                this,
                num_q_heads,
                max_kv_len,
                target,
                count(num_threads),
                &mut out,
                error,
            )
        })?;
        Ok(out as usize)
    }

    /// `softmax(scale * q k^T + mask) v` over a ragged batch.
    pub fn attend(&self, args: Attention) -> Result<()> {
        args.batch.check()?;
        args.q.check("q")?;
        args.out.check("out")?;
        check_mut(args.lse.as_ref(), "lse")?;
        let (batch, options) = (&args.batch, args.options.to_c());
        let trim = |array: &[i32]| if array.is_empty() { null() } else { array.as_ptr() };
        let (q_rows, out_rows) = (args.q.as_c(), args.out.as_c());
        let (lse, lse_rows) = or_null_mut(args.lse.as_ref());
        let executor = args.executor.as_ref().map(threads::to_c);
        call(|error| unsafe {
            sys::kvfolio_attend(
                self.raw(),
                &options,
                count(batch.kv_lens.len()),
                batch.query_start.as_ptr(),
                batch.kv_lens.as_ptr(),
                batch.block_table.as_ptr(),
                batch.block_table_stride,
                trim(batch.trim_sinks),
                trim(batch.trim_first_kept),
                args.q.pointer(),
                &q_rows,
                args.out.pointer(),
                &out_rows,
                lse,
                as_pointer(&lse_rows),
                args.workspace.as_mut_ptr().cast::<c_void>(),
                args.workspace.len() as i64,
                as_pointer(&executor),
                error,
            )
        })
    }
}

/// # Kernels that write
///
/// ```
/// use kvfolio::{DType, Format, GroupSpec, Rows, Storage};
///
/// let rows = GroupSpec { head_dim_k: 16, num_blocks: 4, ..GroupSpec::default() };
/// let tiles = GroupSpec { format: Format::Granule, dtype: DType::Bf16, ..rows };
/// let mut from = Storage::new(&[rows])?;
/// let mut to = Storage::new(&[tiles])?;
/// from.as_mut().fill(0)?;
/// let mut storage = from.as_mut();
/// let mut view = storage.view(0)?;
/// view.append_rows(0, Rows::f32(&[0.5; 32], [2, 1, 16]), None, &[0, 1])?; // tokens to slots
/// view.write_token(0, 0, 2, Some(Rows::f32(&[0.25; 16], [1, 1, 16])), None)?;
/// view.copy_blocks(&[0], &[3])?;
/// assert_eq!(view.as_view().k::<f32>(0, 3, 0, 2).unwrap()[0], 0.25);
/// to.as_mut().view(0)?.convert_blocks(from.view(0)?, &[3], &[1])?; // rows to tiles of bf16
/// # Ok::<(), kvfolio::Error>(())
/// ```
impl ViewMut<'_> {
    /// Writes token t of `k` and `v` to `slots[t]` of a layer; -1: it is skipped. `v` is None if
    /// the cache has no V of its own.
    pub fn append_rows(
        &mut self,
        layer: i32,
        k: Rows,
        v: Option<Rows>,
        slots: &[i32],
    ) -> Result<()> {
        k.check("k")?;
        check(v.as_ref(), "v")?;
        let k_rows = k.as_c();
        let (v, v_rows) = or_null(v.as_ref());
        call(|error| unsafe {
            let (view, n) = (self.as_view().raw(), slots.len() as i64);
            let (k, v_rows) = (k.pointer(), as_pointer(&v_rows));
            sys::kvfolio_append_rows(view, layer, k, &k_rows, v, v_rows, slots.as_ptr(), n, error)
        })
    }

    /// Writes one token, head and layer from rows of one token and one head.
    pub fn write_token(
        &mut self,
        layer: i32,
        head: i32,
        slot: i32,
        k: Option<Rows>,
        v: Option<Rows>,
    ) -> Result<()> {
        check(k.as_ref(), "k")?;
        check(v.as_ref(), "v")?;
        let view = self.as_view();
        let shape = |rows: &Option<Rows>| rows.as_ref().map(|rows| (rows.shape(), rows.dtype()));
        let dtype = check_token(view.spec, [shape(&k), shape(&v)])?;
        let (k, v) = (or_null(k.as_ref()).0, or_null(v.as_ref()).0);
        call(|error| unsafe {
            sys::kvfolio_write_token(view.raw(), layer, head, slot, dtype, k, v, error)
        })
    }

    /// Copies block `src[i]` to block `dst[i]`, all layers of the view, in the order of i.
    pub fn copy_blocks(&mut self, src: &[i32], dst: &[i32]) -> Result<()> {
        check_pairs(src, dst)?;
        let (view, n) = (self.as_view().raw(), src.len() as i64);
        call(|error| unsafe {
            sys::kvfolio_copy_blocks(view, src.as_ptr(), dst.as_ptr(), n, error)
        })
    }

    /// Copies block `src[i]` of another storage to block `dst[i]` of this, in the format and element
    /// type of this.
    pub fn convert_blocks(&mut self, from: View, src: &[i32], dst: &[i32]) -> Result<()> {
        check_pairs(src, dst)?;
        let (to, n) = (self.as_view().raw(), src.len() as i64);
        call(|error| unsafe {
            sys::kvfolio_convert_blocks(from.raw(), to, src.as_ptr(), dst.as_ptr(), n, error)
        })
    }
}

/// C takes k and v of one token as pointers, and their type once.
fn check_token(spec: &GroupSpec, shapes: [Option<([usize; 3], DType)>; 2]) -> Result<i32> {
    let mut dtype = None;
    for (shape, (name, head_dim)) in
        shapes.iter().zip([("k", spec.head_dim_k), ("v", spec.head_dim_v)])
    {
        let (shape, kind) = match shape {
            Some(shape) => shape,
            None => continue,
        };
        if *shape != [1, 1, head_dim as usize] {
            return invalid(format!("{name} is {shape:?}, allowed: [1, 1, {head_dim}]"));
        }
        if dtype.replace(*kind).map_or(false, |other| other != *kind) {
            return invalid("k and v have different element types".into());
        }
    }
    Ok(dtype.unwrap_or(DType::F32) as i32)
}

/// `dst = src`, element by element; equal shapes, any element types. [`Rows`] shows it.
pub fn convert(src: Rows, dst: RowsMut) -> Result<()> {
    src.check("src")?;
    dst.check("dst")?;
    let (from, to) = (src.as_c(), dst.as_c());
    call(|error| unsafe { sys::kvfolio_convert(src.pointer(), &from, dst.pointer(), &to, error) })
}

/// What [`View::attend`] wrote when it read a part of the tokens.
#[derive(Clone, Copy, Debug)]
pub struct State<'a> {
    /// As [`Attention::out`].
    pub out: Rows<'a>,
    /// As [`Attention::lse`].
    pub lse: Rows<'a>,
}

/// Merges what [`View::attend`] wrote over two disjoint sets of tokens.
pub fn merge_states(a: State, b: State, out: RowsMut, lse: Option<RowsMut>) -> Result<()> {
    let named = [(&a.out, "a.out"), (&a.lse, "a.lse"), (&b.out, "b.out"), (&b.lse, "b.lse")];
    for (rows, name) in named {
        rows.check(name)?;
    }
    out.check("out")?;
    check_mut(lse.as_ref(), "lse")?;
    let (a_rows, a_lse, b_rows, b_lse) = (a.out.as_c(), a.lse.as_c(), b.out.as_c(), b.lse.as_c());
    let out_rows = out.as_c();
    let (lse, lse_rows) = or_null_mut(lse.as_ref());
    call(|error| unsafe {
        sys::kvfolio_merge_states(
            a.out.pointer(),
            &a_rows,
            a.lse.pointer(),
            &a_lse,
            b.out.pointer(),
            &b_rows,
            b.lse.pointer(),
            &b_lse,
            out.pointer(),
            &out_rows,
            lse,
            as_pointer(&lse_rows),
            error,
        )
    })
}

/// # K and V of a sequence
impl Manager {
    /// Copies positions `first, first + 1, ...` of a sequence to as many rows as `k` and `v` have,
    /// from one layer, out of the storage of the cache. `None` is not written. What the open step
    /// appends counts, once its K and V are written. `Unsupported`: ids only.
    ///
    /// ```
    /// use kvfolio::{Cache, GroupSpec, Options, Rows, RowsMut, Storage};
    ///
    /// let group = GroupSpec { head_dim_k: 2, head_dim_v: 2, num_blocks: 4, ..GroupSpec::default() };
    /// let mut cache = Cache::with_storage(Storage::new(&[group])?, &Options::default())?;
    /// let a = cache.open(&[], &Default::default())?.sequence;
    /// let mut step = cache.begin_step()?;
    /// step.append(a, &[7, 8])?;
    /// let mut plan = step.plan(&Default::default())?;
    /// let rows = Rows::f32(&[1.0, 2.0, 3.0, 4.0], [2, 1, 2]);
    /// let slots = plan.group(0).slot_mapping();
    /// plan.view_mut(0)?.append_rows(0, rows, Some(rows), slots)?;
    /// step.finish()?;
    /// let (mut k, mut v) = ([0.0f32; 4], [0.0f32; 2]);
    /// cache.gather(a, 0, 0, 0, Some(RowsMut::f32(&mut k, [2, 1, 2])), None)?;
    /// cache.gather(a, 0, 0, 1, None, Some(RowsMut::f32(&mut v, [1, 1, 2])))?;
    /// assert_eq!((k, v), ([1.0, 2.0, 3.0, 4.0], [3.0, 4.0]));
    /// let none = RowsMut::f32(&mut [], [0, 1, 2]);
    /// let error = cache.gather(a, 0, 0, 0, Some(none), Some(RowsMut::f32(&mut v, [1, 1, 2])));
    /// assert_eq!(error.unwrap_err().message(), "gather: 1 rows of v for 0 of k");
    /// # Ok::<(), kvfolio::Error>(())
    /// ```
    pub fn gather(
        &self,
        sequence: Sequence,
        group: i32,
        layer: i32,
        first: i32,
        k: Option<RowsMut>,
        v: Option<RowsMut>,
    ) -> Result<()> {
        for (rows, name) in [(&k, "k"), (&v, "v")] {
            if let Some(rows) = rows {
                rows.check(name)?;
            }
        }
        let this = self.raw.as_ptr();
        let (k, k_rows) = or_null_mut(k.as_ref());
        let (v, v_rows) = or_null_mut(v.as_ref());
        let (k_rows, v_rows) = (as_pointer(&k_rows), as_pointer(&v_rows));
        // SAFETY: the rows lie within their slices, as was checked; a const call.
        call(|error| unsafe {
            let id = sequence.0;
            sys::kvfolio_gather_sequence(this, id, group, layer, first, k, k_rows, v, v_rows, error)
        })
    }
}
