// SPDX-License-Identifier: Apache-2.0
//
// A slice of an item's memory, after it is done: rustc refuses with E0505.

use kvfolio::tiers::*;

fn run(mut item: Item, done: &mut Completions) {
    #[allow(unused_variables)]
    let buffer = item.buffer();
    done.finish(item, TierResult::Ok);
    #[cfg(wrong)]
    buffer.fill(1);
}

fn main() {
    let _ = run;
}
