// SPDX-License-Identifier: Apache-2.0
//
// The lines of "In Rust" of docs/tiers.md, in a program that runs as a test.

use kvfolio::tiers::{ModelIdentity, Offload, OffloadOptions};
use kvfolio::{Cache, GroupSpec, Options, Result, Storage};

fn prefill(cache: &mut Offload, prompt: &[i32], now_us: &mut u64) -> Result<i32> {
    // shown: tiers
    let opened = cache.open(prompt, &Default::default())?; // what the cache has, at once
    let mut cached_tokens = opened.cached_tokens;
    let mut pending = opened.pending;
    while pending {
        *now_us += 100; // or serve others meanwhile
        for ready in cache.poll(*now_us) {
            (cached_tokens, pending) = (ready.cached_tokens, false); // came back, bit for bit
        }
    }
    let mut step = cache.begin_step()?; // an Offload is a Cache
    step.append_prompt(opened.sequence, prompt, prompt.len() as i64)?;
    step.run_copies()?;
    step.finish()?;
    // shown end
    cache.close(opened.sequence)?;
    Ok(cached_tokens)
}

fn main() -> Result<()> {
    let layers = GroupSpec { head_dim_k: 8, head_dim_v: 8, num_blocks: 64, ..GroupSpec::default() };
    let options = Options { list_findable: true, ..Options::default() };
    let cache = Cache::with_storage(Storage::new(&[layers])?, &options)?;
    let model = ModelIdentity {
        model: "toy",
        weights: "rev 1",
        tokenizer: "rev 1",
        model_dtype: "f32",
        positions: "none",
        engine: "readme 1",
        ..ModelIdentity::default()
    };
    let options = OffloadOptions { arena_bytes: 1 << 20, ..OffloadOptions::default() };
    let mut cache = Offload::new(cache, &model, &options, Vec::new())?;
    let prompt: Vec<i32> = (0..100).collect();
    let mut now_us = 0;
    assert_eq!(prefill(&mut cache, &prompt, &mut now_us)?, 0);
    while cache.drain(now_us)?.any() {
        now_us += 100;
    }
    assert!(cache.evict(0, 64, &mut [])? > 0);
    let back = prefill(&mut cache, &prompt, &mut now_us)?;
    println!("{back} of {} tokens came back from host memory", prompt.len());
    assert_eq!(back, 96);
    Ok(())
}
