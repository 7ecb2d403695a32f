// SPDX-License-Identifier: Apache-2.0
//
// Engines on different machines share what they have computed. Run it twice: the first run computes
// a long prompt, whose blocks go to Redis; the second one finds them there.
//
//   cargo run --features tiers --example shared_prefix HOST:PORT[,HOST:PORT]

use kvfolio::tiers::{ModelIdentity, Offload, OffloadOptions, RedisOptions, TierHandle};
use kvfolio::{Cache, GroupSpec, Options, Result, Rows, Storage};
use std::time::{Duration, Instant};

const TOKENS: i32 = 1025;

fn cache() -> Result<Cache> {
    let layers =
        GroupSpec { head_dim_k: 8, head_dim_v: 8, num_blocks: 128, ..GroupSpec::default() };
    let options = Options { list_findable: true, ..Options::default() };
    Cache::with_storage(Storage::new(&[layers])?, &options)
}

fn rows_of(tokens: &[i32]) -> Vec<f32> {
    tokens.iter().flat_map(|token| [*token as f32; 8]).collect()
}

/// Writes K and V of the tokens that the cache does not have.
fn compute(cache: &mut Cache, sequence: kvfolio::Sequence, rest: &[i32]) -> Result<()> {
    let mut step = cache.begin_step()?;
    step.append(sequence, rest)?;
    let mut plan = step.plan(&Default::default())?;
    plan.run_copies()?;
    let rows = rows_of(rest);
    let rows = Rows::f32(&rows, [rest.len(), 1, 8]);
    let slots = plan.group(0).slot_mapping();
    plan.view_mut(0)?.append_rows(0, rows, Some(rows), slots)?;
    step.finish().map(|_| ())
}

/// Serves one prompt. Returns how many of its tokens came from Redis, and how many records went there.
pub fn serve(servers: &str, password: Option<&str>) -> Result<(i32, u64)> {
    let start = Instant::now();
    let now_us = || start.elapsed().as_micros() as u64;
    let cache = cache()?;
    // What decides the bytes: another model, weights or engine is another namespace.
    let model = ModelIdentity {
        model: "example",
        weights: "sha256 of them",
        tokenizer: "1",
        model_dtype: "f32",
        positions: "none",
        engine: "example",
        ..ModelIdentity::default()
    };
    let prompt: Vec<i32> = (0..TOKENS).map(|i| i % 97).collect();
    // shown: redis
    let options = RedisOptions { servers, password, ..RedisOptions::default() };
    let mut redis = TierHandle::redis(&options)?;
    redis.wait_until_ready(now_us(), 2_000_000)?; // at start only
    let options = OffloadOptions {
        arena_bytes: 64 << 20,
        timeout_us: 2_000_000,
        ..OffloadOptions::default()
    };
    let mut cache = Offload::new(cache, &model, &options, vec![redis.into()])?;
    let opened = cache.open(&prompt, &Default::default())?;
    let (mut found, mut pending) = (opened.cached_tokens, opened.pending);
    while pending {
        for ready in cache.poll(now_us()) {
            (found, pending) = (ready.cached_tokens, false); // another machine computed them
        }
    }
    // shown end
    compute(&mut cache, opened.sequence, &prompt[found as usize..])?;
    let table = cache.block_table(opened.sequence, 0)?;
    let view = cache.storage().expect("it was made with one").view(0)?;
    for (p, token) in prompt.iter().enumerate() {
        let row = view.k::<f32>(0, table[p / 16], 0, (p % 16) as i32).unwrap();
        assert_eq!(row, [*token as f32; 8], "token {p}");
    }
    let end_us = now_us() + 5_000_000;
    while cache.drain(now_us())?.any() && now_us() < end_us {
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok((found, cache.tier_counters(0)?.stores))
}

#[allow(dead_code)] // tests/redis.rs calls serve()
fn main() -> Result<()> {
    let servers = std::env::args().nth(1);
    let servers = servers.expect("usage: shared_prefix HOST:PORT[,HOST:PORT]");
    let password = std::env::var("KVFOLIO_REDIS_PASSWORD").ok();
    let (found, stored) = serve(&servers, password.as_deref())?;
    println!("{found} of {TOKENS} tokens came from Redis, {stored} records were stored");
    Ok(())
}
