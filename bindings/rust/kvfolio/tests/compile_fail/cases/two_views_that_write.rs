// SPDX-License-Identifier: Apache-2.0
//
// Two views of one storage that write: rustc refuses with E0499.

use kvfolio::*;

fn main() -> Result<()> {
    let group = GroupSpec { head_dim_k: 4, num_blocks: 8, ..GroupSpec::default() };
    let storage = Storage::new(&[group])?;
    let mut cache = Cache::with_storage(storage, &Options::default())?;
    let a = cache.open(&[], &Default::default())?.sequence;
    let mut storage = cache.storage_mut().unwrap();
    let mut first = storage.view(0)?;
    #[cfg(wrong)]
    let second = storage.view(0)?;
    first.copy_blocks(&[0], &[1])?;
    Ok(())
}
