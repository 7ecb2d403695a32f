// SPDX-License-Identifier: Apache-2.0
//
// A view whose cache is gone: rustc refuses with E0505.

use kvfolio::*;

fn main() -> Result<()> {
    let group = GroupSpec { head_dim_k: 4, num_blocks: 8, ..GroupSpec::default() };
    let storage = Storage::new(&[group])?;
    let cache = Cache::with_storage(storage, &Options::default())?;
    let view = cache.view(0)?;
    assert!(!view.k_pointer(0, 0, 0, 0).is_null());
    drop(cache);
    #[cfg(wrong)]
    assert!(!view.k_pointer(0, 0, 0, 0).is_null());
    Ok(())
}
