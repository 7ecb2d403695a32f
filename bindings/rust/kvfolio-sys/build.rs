// SPDX-License-Identifier: Apache-2.0

use kvfolio_link::{link, Static};

fn main() {
    link("kvfolio", Static::Needs(&["stdc++"]));
}
