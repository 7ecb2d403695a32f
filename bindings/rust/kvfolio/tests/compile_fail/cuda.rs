// SPDX-License-Identifier: Apache-2.0
//
// The cases of the module `cuda`; harness.rs says how.

mod harness;

#[test]
fn programs_that_break_a_rule_do_not_compile() {
    harness::check("cases_cuda", &["fill_without_unsafe", "stream_in_two_hands"]);
}
