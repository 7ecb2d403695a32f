// SPDX-License-Identifier: Apache-2.0
//
// A row of a token store that is read after an append: rustc refuses with E0502.

use kvfolio::*;

fn main() -> Result<()> {
    let group = GroupSpec { head_dim_k: 4, num_blocks: 8, ..GroupSpec::default() };
    let storage = Storage::new(&[group])?;
    let mut cache = Cache::with_storage(storage, &Options::default())?;
    let a = cache.open(&[], &Default::default())?.sequence;
    drop((cache, a));
    let options = TokenStoreOptions { head_dim_k: 1, max_tokens: 2, ..Default::default() };
    let mut store = TokenStore::new(&options)?;
    store.append(&[1f32], &[])?;
    let row = store.at::<f32>(0)?;
    assert_eq!(row, [1.0]);
    store.append(&[2f32], &[])?;
    #[cfg(wrong)]
    assert_eq!(row, [1.0]);
    Ok(())
}
