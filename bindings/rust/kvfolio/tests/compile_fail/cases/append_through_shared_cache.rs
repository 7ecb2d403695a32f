// SPDX-License-Identifier: Apache-2.0
//
// An append through a shared cache: rustc refuses with E0596.

use kvfolio::*;

fn main() -> Result<()> {
    let group = GroupSpec { head_dim_k: 4, num_blocks: 8, ..GroupSpec::default() };
    let storage = Storage::new(&[group])?;
    let mut cache = Cache::with_storage(storage, &Options::default())?;
    let a = cache.open(&[], &Default::default())?.sequence;
    let shared = &cache;
    assert_eq!(shared.info(a)?.length, 0);
    #[cfg(wrong)]
    shared.begin_step()?.append(a, &[1])?;
    Ok(())
}
