// SPDX-License-Identifier: Apache-2.0

use crate::error::call;
use crate::{sys, Result};
use std::mem::size_of;

/// An element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum DType {
    /// 64 bits.
    F64 = sys::KVFOLIO_F64,
    /// 32 bits.
    F32 = sys::KVFOLIO_F32,
    /// In Rust the bits, in a `u16`.
    F16 = sys::KVFOLIO_F16,
    /// In Rust the bits, in a `u16`.
    Bf16 = sys::KVFOLIO_BF16,
    /// For caches only, with an f32 scale for each token and head.
    Int8 = sys::KVFOLIO_INT8,
    /// So too: e4m3fn of FP8; not in format granule. In Rust the bits, in a `u8`.
    E4M3 = sys::KVFOLIO_E4M3,
    /// A byte that only the engine knows: `head_dim_k` of them for each token and head. They are
    /// copied in and out as [`Rows::bytes`](crate::Rows::bytes); attention and conversion refuse
    /// them. Not in format granule.
    Opaque = sys::KVFOLIO_OPAQUE,
}

impl DType {
    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            DType::F64 => 8,
            DType::F32 => 4,
            DType::F16 | DType::Bf16 => 2,
            DType::Int8 | DType::E4M3 | DType::Opaque => 1,
        }
    }

    /// Whether each token and head has an f32 scale. Rows outside of caches are of no such type.
    pub fn has_scales(self) -> bool {
        matches!(self, DType::Int8 | DType::E4M3)
    }
}

/// How the tokens of a block lie in memory; `spec.h` draws them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Format {
    /// Head by head, and within a head token by token.
    Hnd = sys::KVFOLIO_HND,
    /// Token by token, and within a token head by head.
    Nhd = sys::KVFOLIO_NHD,
    /// Tiles of 16 tokens for instructions that compute dot products.
    Granule = sys::KVFOLIO_GRANULE,
}

/// What a query reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Every earlier token.
    Full,
    /// Itself, the `window - 1` tokens before it, and the first `num_sinks` tokens.
    SlidingWindow {
        /// Tokens that a query reads, itself included.
        window: i32,
        /// The first tokens, which every query reads.
        num_sinks: i32,
    },
}

/// A group of layers with the same shape. `spec.h` says the limits.
///
/// ```
/// use kvfolio::{fit, plan_layouts, DType, GroupSpec, Kind};
///
/// let full = GroupSpec { num_layers: 8, num_kv_heads: 4, head_dim_k: 64, head_dim_v: 64,
///                        dtype: DType::Bf16, ..GroupSpec::default() };
/// let window = GroupSpec { kind: Kind::SlidingWindow { window: 512, num_sinks: 4 }, ..full };
/// let mut groups = [full, window];
/// fit(&mut groups, 64 << 20)?; // 64 MiB, room for equally many tokens in both
/// let layouts = plan_layouts(&groups)?;
/// assert_eq!(layouts[0].payload_bytes_per_token, 8 * 4 * (64 + 64) * DType::Bf16.bytes() as i64);
/// assert!(layouts.iter().map(|layout| layout.total_bytes).sum::<i64>() <= 64 << 20);
/// # Ok::<(), kvfolio::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSpec {
    /// Layers that share the blocks of the group.
    pub num_layers: i32,
    /// Heads of K and V.
    pub num_kv_heads: i32,
    /// Elements of a row of K.
    pub head_dim_k: i32,
    /// 0: there is no V.
    pub head_dim_v: i32,
    /// V is the first `head_dim_v` elements of K, and takes no memory (MLA).
    pub v_is_prefix_of_k: bool,
    /// Tokens.
    pub block_size: i32,
    /// Element type of K and V.
    pub dtype: DType,
    /// How the tokens of a block lie.
    pub format: Format,
    /// What a query reads.
    pub kind: Kind,
    /// Blocks of the pool; [`fit`] fills it in.
    pub num_blocks: i32,
    /// Tokens that a running sequence of a window group keeps behind its window, so that
    /// [`truncate`](crate::Manager::truncate) can take back as many. A stop string of n tokens takes
    /// n - 1, one more for each step that may be in flight behind it, and the accepted tokens behind it.
    pub rewind: i32,
}

impl Default for GroupSpec {
    /// One layer, one head, blocks of 16 tokens of f32; no dims and no blocks yet.
    fn default() -> GroupSpec {
        GroupSpec {
            num_layers: 1,
            num_kv_heads: 1,
            head_dim_k: 0,
            head_dim_v: 0,
            v_is_prefix_of_k: false,
            block_size: 16,
            dtype: DType::F32,
            format: Format::Hnd,
            kind: Kind::Full,
            num_blocks: 0,
            rewind: 0,
        }
    }
}

impl GroupSpec {
    pub(crate) fn to_c(self) -> sys::kvfolio_group_spec {
        let (kind, window, num_sinks) = match self.kind {
            Kind::Full => (sys::KVFOLIO_FULL, 0, 0),
            Kind::SlidingWindow { window, num_sinks } => {
                (sys::KVFOLIO_SLIDING_WINDOW, window, num_sinks)
            }
        };
        // In C 0 is the default. Here it is a mistake, which -1 is in C.
        let not_default = |n: i32| if n == 0 { -1 } else { n };
        sys::kvfolio_group_spec {
            struct_size: size_of::<sys::kvfolio_group_spec>() as u32,
            num_layers: not_default(self.num_layers),
            num_kv_heads: not_default(self.num_kv_heads),
            head_dim_k: self.head_dim_k,
            head_dim_v: self.head_dim_v,
            v_is_prefix_of_k: self.v_is_prefix_of_k as i32,
            block_size: not_default(self.block_size),
            dtype: self.dtype as i32,
            format: self.format as i32,
            kind,
            window,
            num_sinks,
            num_blocks: self.num_blocks,
            rewind: self.rewind,
        }
    }

    pub(crate) fn from_c(c: &sys::kvfolio_group_spec) -> GroupSpec {
        let kind = if c.kind == sys::KVFOLIO_SLIDING_WINDOW {
            Kind::SlidingWindow { window: c.window, num_sinks: c.num_sinks }
        } else {
            Kind::Full
        };
        GroupSpec {
            num_layers: c.num_layers,
            num_kv_heads: c.num_kv_heads,
            head_dim_k: c.head_dim_k,
            head_dim_v: c.head_dim_v,
            v_is_prefix_of_k: c.v_is_prefix_of_k != 0,
            block_size: c.block_size,
            dtype: match c.dtype {
                sys::KVFOLIO_F64 => DType::F64,
                sys::KVFOLIO_F16 => DType::F16,
                sys::KVFOLIO_BF16 => DType::Bf16,
                sys::KVFOLIO_INT8 => DType::Int8,
                sys::KVFOLIO_E4M3 => DType::E4M3,
                sys::KVFOLIO_OPAQUE => DType::Opaque,
                _ => DType::F32,
            },
            format: match c.format {
                sys::KVFOLIO_NHD => Format::Nhd,
                sys::KVFOLIO_GRANULE => Format::Granule,
                _ => Format::Hnd,
            },
            kind,
            num_blocks: c.num_blocks,
            rewind: c.rewind,
        }
    }
}

pub(crate) fn groups_to_c(groups: &[GroupSpec]) -> Vec<sys::kvfolio_group_spec> {
    groups.iter().map(|group| group.to_c()).collect()
}

mirror! {
    /// Where the bytes of a group lie, in bytes from its base.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct GroupLayout = kvfolio_group_layout {
        /// From one block to the next one.
        pub block_stride: i64,
        /// From one layer of a block to the next one.
        pub layer_stride: i64,
        /// From K of one head to K of the next one.
        pub k_head_stride: i64,
        /// From K of one token to K of the next one.
        pub k_token_stride: i64,
        /// From K to V of a block and layer.
        pub v_offset: i64,
        /// As `k_head_stride`.
        pub v_head_stride: i64,
        /// As `k_token_stride`.
        pub v_token_stride: i64,
        /// From K to its scales.
        pub k_scale_offset: i64,
        /// From K to the scales of V.
        pub v_scale_offset: i64,
        /// From the scales of one head to those of the next one.
        pub scale_head_stride: i64,
        /// From one scale to that of the next token.
        pub scale_token_stride: i64,
        /// K, V and scales of a token, all layers, without padding.
        pub payload_bytes_per_token: i64,
        /// Bytes of a block, all layers.
        pub bytes_per_block: i64,
        /// Bytes of the group.
        pub total_bytes: i64,
    }
}

/// Checks the groups and says where the bytes of each will lie. [`GroupSpec`] shows it.
pub fn plan_layouts(groups: &[GroupSpec]) -> Result<Vec<GroupLayout>> {
    let specs = groups_to_c(groups);
    let mut out = vec![sys::kvfolio_group_layout::new(); groups.len()];
    // SAFETY: both arrays have as many structs as is said.
    call(|error| unsafe {
        sys::kvfolio_plan_layouts(specs.as_ptr(), count(specs.len()), out.as_mut_ptr(), error)
    })?;
    Ok(out.iter().map(GroupLayout::from_c).collect())
}

/// Fills in `num_blocks` of each group so that all take at most `bytes`. What is there before are
/// weights; 0 in all groups: room for equally many tokens. [`GroupSpec`] shows it.
pub fn fit(groups: &mut [GroupSpec], bytes: i64) -> Result<()> {
    let mut specs = groups_to_c(groups);
    // SAFETY: the array has as many structs as is said.
    call(|error| unsafe {
        sys::kvfolio_fit(specs.as_mut_ptr(), count(specs.len()), bytes, error)
    })?;
    for (group, spec) in groups.iter_mut().zip(&specs) {
        group.num_blocks = spec.num_blocks;
    }
    Ok(())
}

/// A length as C counts; one that does not fit is refused there.
pub(crate) fn count(length: usize) -> i32 {
    i32::try_from(length).unwrap_or(-1)
}
