// SPDX-License-Identifier: Apache-2.0
//
// The cases of the crate without its features; harness.rs says how.

mod harness;

#[test]
fn programs_that_break_a_rule_do_not_compile() {
    harness::check(
        "cases",
        &[
            "append_through_shared_cache",
            "block_row_outlives_write",
            "change_while_plan_lives",
            "ended_step_is_used",
            "log_while_cache_changes",
            "plan_after_commit",
            "plan_of_after_complete",
            "row_outlives_write",
            "table_outlives_change",
            "token_outlives_append",
            "two_steps",
            "two_views_that_write",
            "view_outlives_cache",
        ],
    );
}
