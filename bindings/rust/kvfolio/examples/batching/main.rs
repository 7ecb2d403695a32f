// SPDX-License-Identifier: Apache-2.0
//
// Continuous batching over a pool that is too small for its load: prompts that begin alike are
// computed once, the second sample of a prompt is a fork, K and V are int8 (or f32), and sequences
// are preempted and resumed. Afterwards each sample is computed again, alone, in one piece, on one
// thread and without a prefix cache: tokens and logits are equal bit for bit. The logits are also
// near to those of a computation without kvfolio.
//
// model.rs is the model, engine.rs the loop.

mod engine;
mod model;

use engine::{Engine, Job};
use kvfolio::{DType, Format, Options, Result};
use model::{mix, Model, VOCABULARY};

const REQUESTS: u64 = 5;

/// A system prompt that all share, and a question.
fn job(request: u64) -> Job {
    let token = |seed: u64| (mix(seed) % VOCABULARY as u64) as i32;
    let question = (0..7 + 5 * request).map(|i| token(1000 * (request + 1) + i));
    let tokens: Vec<i32> = (0..43).map(token).chain(question).collect();
    let prompt = tokens.len();
    let (id, twin) = (2 * request, Some(2 * request + 1));
    Job { id, tokens, prompt, goal: prompt + 16, twin, bits: Vec::new() }
}

/// How far the logits of a sample are from those of the plain computation.
fn distance(model: &Model, job: &Job) -> f32 {
    let plain = model.plain(&job.tokens);
    let rows = job.bits.chunks(VOCABULARY).zip(&plain[job.prompt - 1..]);
    let gap = |(bits, row): (&[u32], &Vec<f32>)| {
        let each = bits.iter().zip(row).map(|(&bits, x)| (f32::from_bits(bits) - x).abs());
        each.fold(0f32, f32::max)
    };
    rows.map(gap).fold(0f32, f32::max)
}

fn compare(model: &Model, kind: (DType, Format), bound: f32) -> Result<()> {
    let mut busy = Engine::new(model, kind, 12, &Options::default(), (2, 16))?;
    busy.requests.waiting.extend((0..REQUESTS).map(job));
    busy.run()?;
    let (counters, done) = (busy.cache.counters(), &busy.requests.done);
    println!(
        "{kind:?}: {} samples, {} of {} tokens found, {} forks, {} blocks copied, {} preempted",
        done.len(),
        counters.tokens_reused,
        counters.tokens_looked_up,
        counters.forks,
        counters.block_copies,
        busy.requests.preempted
    );
    assert_eq!(done.len() as u64, 2 * REQUESTS);
    assert!(counters.tokens_reused > 0 && counters.block_copies > 0 && busy.requests.preempted > 0);

    let mut worst = 0f32;
    for (&id, sample) in done {
        let options = Options { no_prefix_cache: true, ..Options::default() };
        let mut alone = Engine::new(model, kind, 64, &options, (1, 1000))?;
        alone.requests.waiting.push_back(Job { id, twin: None, ..job(id / 2) });
        alone.run()?;
        let again = &alone.requests.done[&id];
        assert_eq!(again.tokens, sample.tokens, "sample {id}");
        assert!(again.bits == sample.bits, "the logits of sample {id} differ");
        worst = worst.max(distance(model, sample));
    }
    assert!(done[&0].tokens != done[&1].tokens, "two samples of a prompt are equal");
    println!("  equal to each sample alone, bit for bit; at most {worst} from plain f32");
    assert!(worst < bound, "{worst}");
    Ok(())
}

fn main() -> Result<()> {
    let model = Model::new();
    compare(&model, (DType::Int8, Format::Hnd), 0.5)?;
    compare(&model, (DType::Int8, Format::Granule), 0.5)?;
    compare(&model, (DType::F32, Format::Hnd), 1e-3)
}
