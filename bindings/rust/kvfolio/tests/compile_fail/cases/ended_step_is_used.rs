// SPDX-License-Identifier: Apache-2.0
//
// A step that was finished: rustc refuses with E0382.

use kvfolio::*;

fn main() -> Result<()> {
    let group = GroupSpec { head_dim_k: 4, num_blocks: 8, ..GroupSpec::default() };
    let storage = Storage::new(&[group])?;
    let mut cache = Cache::with_storage(storage, &Options::default())?;
    let a = cache.open(&[], &Default::default())?.sequence;
    let mut step = cache.begin_step()?;
    step.append(a, &[1])?;
    step.finish()?;
    #[cfg(wrong)]
    step.append(a, &[2])?;
    Ok(())
}
