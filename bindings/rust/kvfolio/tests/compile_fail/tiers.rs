// SPDX-License-Identifier: Apache-2.0
//
// The cases of the module `tiers`; harness.rs says how.

mod harness;

#[test]
fn programs_that_break_a_rule_do_not_compile() {
    harness::check(
        "cases_tiers",
        &[
            "buffer_outlives_item",
            "cache_in_two_hands",
            "item_after_finish",
            "poll_during_step",
            "ready_outlives_poll",
            "tier_with_a_borrow",
        ],
    );
}
