// SPDX-License-Identifier: Apache-2.0
//
// A row of a block store that is read after a block was copied: rustc refuses with E0502.

use kvfolio::*;

fn main() -> Result<()> {
    let group = GroupSpec { head_dim_k: 1, num_blocks: 4, ..GroupSpec::default() };
    let mut store = BlockStore::new(&group)?;
    let mut block = [0];
    store.allocate(&mut block)?;
    let view = store.view();
    assert!(view.k::<f32>(0, block[0], 0, 0).is_some());
    store.make_writable(block[0])?;
    #[cfg(wrong)]
    assert!(view.k::<f32>(0, block[0], 0, 0).is_some());
    Ok(())
}
