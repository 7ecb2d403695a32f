// SPDX-License-Identifier: Apache-2.0
//
// A tier that may not go to another thread: rustc refuses with E0277.

use kvfolio::tiers::*;

struct Local(#[cfg(wrong)] std::rc::Rc<i32>);

impl Tier for Local {
    fn submit(&mut self, _: TierOp, _: &mut Items<'_>, _: u64) {}
    fn poll(&mut self, _: u64, _: &mut Completions<'_>) {}
}

fn main() {
    let _ = TierHandle::new::<Local>;
}
