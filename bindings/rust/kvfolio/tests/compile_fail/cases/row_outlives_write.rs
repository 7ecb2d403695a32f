// SPDX-License-Identifier: Apache-2.0
//
// A row that is read after something may have written it: rustc refuses with E0502.

use kvfolio::*;

fn main() -> Result<()> {
    let group = GroupSpec { head_dim_k: 4, num_blocks: 8, ..GroupSpec::default() };
    let storage = Storage::new(&[group])?;
    let mut cache = Cache::with_storage(storage, &Options::default())?;
    let a = cache.open(&[], &Default::default())?.sequence;
    let row = cache.view(0)?.k::<f32>(0, 0, 0, 0).unwrap();
    assert_eq!(row.len(), 4);
    cache.storage_mut().unwrap().fill(0)?;
    #[cfg(wrong)]
    assert_eq!(row.len(), 4);
    Ok(())
}
