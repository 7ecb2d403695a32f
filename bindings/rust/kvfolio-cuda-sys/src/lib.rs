// SPDX-License-Identifier: Apache-2.0

//! Declarations of the C interface of libkvfolio_cuda: `include/kvfolio/kvfolio_cuda.h`, item by
//! item, under the same names. What it takes of `kvfolio.h` is in `kvfolio_sys`.
//!
//! `build.rs` looks for the library in `KVFOLIO_LIB_DIR`, else it asks pkg-config.

#![allow(non_camel_case_types)]

#[rustfmt::skip]
mod declarations;

pub use declarations::*;

/// What a word for the first wrong entry has before a call, and after one that saw none.
pub const KVFOLIO_CUDA_NO_ENTRY: u64 = u64::MAX;
