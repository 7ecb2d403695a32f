// SPDX-License-Identifier: Apache-2.0
//
// The declarations are those of kvfolio.h; check.rs says how far.

use kvfolio_sys::*;

const DECLARATIONS: &str = include_str!("../../src/declarations.rs");
const BELOW: &str = "";
const HEADER: &str = "kvfolio/kvfolio.h";
const OF_C: [&str; 2] = ["KVFOLIO_C_API", "KVFOLIO_ERROR_INIT"];

include!("check.rs");
include!("layouts.rs");

#[test]
fn c_compiler_finds_a_wrong_declaration() {
    for (line, from, to) in [
        ("int32_t kvfolio_trim(", "int64_t", "int32_t"),
        ("_Static_assert(offsetof(kvfolio_shortage, pins)", "== 32", "== 36"),
        ("_Static_assert(KVFOLIO_PUBLISH_NOTHING", "== 2", "== 1"),
    ] {
        let right = program();
        let line = right.lines().find(|l| l.starts_with(line)).unwrap_or_else(|| panic!("{line}"));
        assert!(line.contains(from), "{line}");
        let wrong = right.replace(line, &line.replace(from, to));
        let error = compiles(&wrong, "wrong.c").expect_err(line);
        assert!(error.contains("conflicting types") || error.contains("assertion"), "{error}");
    }
}

#[test]
fn library_is_of_this_header() {
    // SAFETY: these take nothing, and return a number and a constant.
    unsafe {
        assert_eq!(kvfolio_abi_version(), KVFOLIO_ABI_VERSION);
        assert_eq!(
            std::ffi::CStr::from_ptr(kvfolio_version()).to_str(),
            Ok(env!("CARGO_PKG_VERSION"))
        );
    }
}
