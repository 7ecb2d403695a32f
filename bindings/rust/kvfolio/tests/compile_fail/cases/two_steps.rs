// SPDX-License-Identifier: Apache-2.0
//
// Two steps at once: rustc refuses with E0499.

use kvfolio::*;

fn main() -> Result<()> {
    let group = GroupSpec { head_dim_k: 4, num_blocks: 8, ..GroupSpec::default() };
    let storage = Storage::new(&[group])?;
    let mut cache = Cache::with_storage(storage, &Options::default())?;
    let a = cache.open(&[], &Default::default())?.sequence;
    let mut first = cache.begin_step()?;
    #[cfg(wrong)]
    let second = cache.begin_step()?;
    first.append(a, &[1])?;
    Ok(())
}
