// SPDX-License-Identifier: Apache-2.0
//
// A stream that two threads may use at once: rustc refuses with E0277.

use kvfolio::cuda::*;

fn moves<T: Send>() {}
#[cfg(wrong)]
fn is_shared<T: Sync>() {}

fn main() {
    moves::<Stream>();
    #[cfg(wrong)]
    is_shared::<Stream>();
}
