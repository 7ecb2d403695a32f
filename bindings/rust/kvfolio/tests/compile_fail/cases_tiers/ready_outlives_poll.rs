// SPDX-License-Identifier: Apache-2.0
//
// Who was ready, after the next poll: rustc refuses with E0499.

use kvfolio::tiers::*;

fn run(offload: &mut Offload) {
    let ready = offload.poll(1);
    #[cfg(wrong)]
    offload.poll(2);
    assert!(ready.is_empty());
}

fn main() {
    let _ = run;
}
