// SPDX-License-Identifier: Apache-2.0
//
// The memory of an item that is done: rustc refuses with E0382.

use kvfolio::tiers::*;

fn run(mut item: Item, done: &mut Completions) {
    item.buffer().fill(0);
    done.finish(item, TierResult::Ok);
    #[cfg(wrong)]
    item.buffer().fill(1);
}

fn main() {
    let _ = run;
}
