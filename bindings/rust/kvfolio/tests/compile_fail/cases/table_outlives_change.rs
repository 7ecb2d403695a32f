// SPDX-License-Identifier: Apache-2.0
//
// A block table that is read after its sequence changed: rustc refuses with E0502.

use kvfolio::*;

fn main() -> Result<()> {
    let group = GroupSpec { head_dim_k: 4, num_blocks: 8, ..GroupSpec::default() };
    let storage = Storage::new(&[group])?;
    let mut cache = Cache::with_storage(storage, &Options::default())?;
    let a = cache.open(&[], &Default::default())?.sequence;
    let table = cache.block_table(a, 0)?;
    assert!(table.is_empty());
    cache.truncate(a, 0)?;
    #[cfg(wrong)]
    assert!(table.is_empty());
    Ok(())
}
