// SPDX-License-Identifier: Apache-2.0

//! Declarations of the C interface of libkvfolio_tiers: `include/kvfolio/kvfolio_tiers.h`, item by
//! item, under the same names. What it takes of `kvfolio.h` is in `kvfolio_sys`.
//!
//! `build.rs` looks for the library in `KVFOLIO_LIB_DIR`, else it asks pkg-config.

#![allow(non_camel_case_types)]

#[rustfmt::skip]
mod declarations;

pub use declarations::*;
