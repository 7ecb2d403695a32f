// SPDX-License-Identifier: Apache-2.0
//
// A cache that an Offload owns: rustc refuses with E0382.

use kvfolio::tiers::*;
use kvfolio::*;

fn run(cache: Cache, model: &ModelIdentity) -> Result<i32> {
    let offload = Offload::new(cache, model, &OffloadOptions::default(), Vec::new())?;
    #[cfg(wrong)]
    cache.num_sequences();
    Ok(offload.num_sequences())
}

fn main() {
    let _ = run;
}
