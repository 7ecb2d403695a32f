// SPDX-License-Identifier: Apache-2.0
//
// Arrays of a step in flight that are read after it completed: rustc refuses with E0502.

use kvfolio::*;

fn main() -> Result<()> {
    let group = GroupSpec { head_dim_k: 4, num_blocks: 8, ..GroupSpec::default() };
    let storage = Storage::new(&[group])?;
    let mut cache = Cache::with_storage(storage, &Options::default())?;
    let a = cache.open(&[], &Default::default())?.sequence;
    let mut step = cache.begin_step()?;
    step.append(a, &[1])?;
    step.plan(&Default::default())?;
    let ticket = step.commit()?;
    let arrays = cache.plan_of(ticket).unwrap();
    assert_eq!(arrays.num_tokens(), 1);
    cache.complete(ticket)?;
    #[cfg(wrong)]
    assert_eq!(arrays.num_tokens(), 1);
    Ok(())
}
