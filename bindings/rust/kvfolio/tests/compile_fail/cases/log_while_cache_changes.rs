// SPDX-License-Identifier: Apache-2.0
//
// A log that is kept while its cache writes to it: rustc refuses with E0502.

use kvfolio::*;

fn main() -> Result<()> {
    let groups = [GroupSpec { head_dim_k: 4, num_blocks: 8, ..GroupSpec::default() }];
    let mut cache = Cache::new(&groups, &Options::default())?;
    cache.record(Some(OpLog::to_writer(std::io::sink(), false)?))?;
    let log = cache.op_log();
    assert_eq!(log.map(OpLog::num_calls), Some(0));
    #[cfg(wrong)]
    cache.open(&[], &Default::default())?;
    assert!(log.is_some());
    Ok(())
}
