// SPDX-License-Identifier: Apache-2.0
//
// The same as of kvfolio-tiers-sys, of this crate's build.rs.

include!("../../kvfolio-tiers-sys/tests/build_script.rs");
