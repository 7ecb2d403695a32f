// SPDX-License-Identifier: Apache-2.0

//! Declarations of the C interface of kvfolio: `include/kvfolio/kvfolio.h`, item by item, under the
//! same names. That header says what each of them does; the crate `kvfolio` is the safe interface.
//!
//! `build.rs` looks for the library in `KVFOLIO_LIB_DIR`, else it asks pkg-config.

#![allow(non_camel_case_types)]

#[rustfmt::skip]
mod declarations;

pub use declarations::*;
