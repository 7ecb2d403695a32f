// SPDX-License-Identifier: Apache-2.0
//
// An append while a plan of the step lives: rustc refuses with E0499.

use kvfolio::*;

fn main() -> Result<()> {
    let group = GroupSpec { head_dim_k: 4, num_blocks: 8, ..GroupSpec::default() };
    let storage = Storage::new(&[group])?;
    let mut cache = Cache::with_storage(storage, &Options::default())?;
    let a = cache.open(&[], &Default::default())?.sequence;
    let mut step = cache.begin_step()?;
    step.append(a, &[1])?;
    let plan = step.plan(&Default::default())?;
    #[cfg(wrong)]
    step.undo(a)?;
    assert_eq!(plan.num_tokens(), 1);
    Ok(())
}
