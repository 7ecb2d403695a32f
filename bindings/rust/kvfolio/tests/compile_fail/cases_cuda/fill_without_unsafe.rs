// SPDX-License-Identifier: Apache-2.0
//
// A kernel that is started without a promise: rustc refuses with E0133.

use kvfolio::cuda::*;
use kvfolio::{Result, ViewMut};

fn run(kernels: &Kernels, view: &mut ViewMut, stream: &Stream) -> Result<()> {
    // SAFETY: none, it is never run.
    unsafe { kernels.fill(view, 0, stream.handle())? };
    #[cfg(wrong)]
    kernels.fill(view, 0, stream.handle())?;
    Ok(())
}

fn main() {
    let _ = run;
}
