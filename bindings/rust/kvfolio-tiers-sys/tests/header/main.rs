// SPDX-License-Identifier: Apache-2.0
//
// The declarations are those of kvfolio_tiers.h; kvfolio-sys/tests/header/check.rs says how far.

use kvfolio_tiers_sys::*;

const DECLARATIONS: &str = include_str!("../../src/declarations.rs");
const BELOW: &str = include_str!("../../../kvfolio-sys/src/declarations.rs");
const HEADER: &str = "kvfolio/kvfolio_tiers.h";
const OF_C: [&str; 1] = ["KVFOLIO_C_API"];

include!("../../../kvfolio-sys/tests/header/check.rs");
include!("layouts.rs");

#[test]
fn library_is_of_this_header() {
    // SAFETY: it takes nothing.
    assert_eq!(unsafe { kvfolio_tiers_abi_version() }, KVFOLIO_TIERS_ABI_VERSION);
}
