// SPDX-License-Identifier: Apache-2.0
//
// The lines of "In Rust" of docs/languages.md, in a program that runs as a test.

use kvfolio::{Cache, GroupSpec, Options, Result};

fn prefill(cache: &mut Cache, prompt: &[i32]) -> Result<i32> {
    // shown: rust
    let opened = cache.open(prompt, &Default::default())?; // finds and holds
    let mut step = cache.begin_step()?; // borrows the cache; dropped, it rolls back
    step.append_prompt(opened.sequence, prompt, prompt.len() as i64)?; // or NoBlocks: close it
    let plan = step.plan(&Default::default())?; // borrows the step: gone when it ends
    let group = plan.group(0);
    println!("{} of {} tokens found", opened.cached_tokens, prompt.len());
    // Yours: copy group.copy_src() to group.copy_dst(), write K and V to group.slot_mapping(),
    // attend over group.block_table().
    assert_eq!(group.slot_mapping().len(), plan.num_tokens());
    step.finish()?;
    // Its blocks stay findable.
    cache.close(opened.sequence)?;
    // shown end
    Ok(opened.cached_tokens)
}

fn main() -> Result<()> {
    let layers = GroupSpec {
        num_layers: 32,
        num_kv_heads: 8,
        head_dim_k: 128,
        head_dim_v: 128,
        num_blocks: 1024,
        ..GroupSpec::default()
    };
    let mut cache = Cache::new(&[layers], &Options::default())?;
    let prompt = |rest: i32| (0..528).map(|i| if i < 500 { 7 } else { rest + i }).collect();
    let (alice, bob): (Vec<i32>, Vec<i32>) = (prompt(100), prompt(1100));
    assert_eq!(prefill(&mut cache, &alice)?, 0);
    assert_eq!(prefill(&mut cache, &bob)?, 500);
    Ok(())
}
