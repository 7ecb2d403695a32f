// SPDX-License-Identifier: Apache-2.0
//
// Poll while a step is open: rustc refuses with E0499.

use kvfolio::tiers::*;
use kvfolio::*;

fn run(offload: &mut Offload) -> Result<()> {
    let a = offload.open(&[], &Default::default())?.sequence;
    let mut step = offload.begin_step()?;
    #[cfg(wrong)]
    offload.poll(1);
    step.append(a, &[1])?;
    step.finish()?;
    Ok(())
}

fn main() {
    let _ = run;
}
