// SPDX-License-Identifier: Apache-2.0
//
// The declarations are those of kvfolio_cuda.h; kvfolio-sys/tests/header/check.rs says how far.

use kvfolio_cuda_sys::*;

const DECLARATIONS: &str = include_str!("../../src/declarations.rs");
const BELOW: &str = include_str!("../../../kvfolio-sys/src/declarations.rs");
const HEADER: &str = "kvfolio/kvfolio_cuda.h";
const OF_C: [&str; 2] = ["KVFOLIO_C_API", "KVFOLIO_CUDA_NO_ENTRY"]; // lib.rs has the second

include!("../../../kvfolio-sys/tests/header/check.rs");
include!("layouts.rs");

#[test]
fn library_is_of_this_header() {
    // SAFETY: it takes nothing.
    assert_eq!(unsafe { kvfolio_cuda_abi_version() }, KVFOLIO_CUDA_ABI_VERSION);
}
