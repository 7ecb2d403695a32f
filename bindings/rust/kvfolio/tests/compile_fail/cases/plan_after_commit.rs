// SPDX-License-Identifier: Apache-2.0
//
// A plan that is read after its step was committed: rustc refuses with E0505.

use kvfolio::*;

fn main() -> Result<()> {
    let group = GroupSpec { head_dim_k: 4, num_blocks: 8, ..GroupSpec::default() };
    let storage = Storage::new(&[group])?;
    let mut cache = Cache::with_storage(storage, &Options::default())?;
    let a = cache.open(&[], &Default::default())?.sequence;
    let mut step = cache.begin_step()?;
    step.append(a, &[1])?;
    let plan = step.plan(&Default::default())?;
    let slots = plan.group(0).slot_mapping();
    assert_eq!(slots.len(), 1);
    step.commit()?;
    #[cfg(wrong)]
    assert_eq!(slots.len(), 1);
    Ok(())
}
