// SPDX-License-Identifier: Apache-2.0
//
// Continuous batching over a pool that is too small for its load: prompts that begin alike are
// computed once, samples of a prompt are forks, K and V are int8, and a sequence that is in the way
// is preempted and resumed. The model is one layer of attention over made-up vectors, whose next
// token depends on every bit of its output. At the end each sample is computed again, alone and
// without a prefix cache: the tokens are equal.

use kvfolio::{
    Attention, AttentionOptions, Cache, DType, Error, ForkOptions, GroupSpec, Options, Result,
    Rows, RowsMut, Sequence, Storage, Target, ThreadPool,
};
use std::collections::{BTreeMap, VecDeque};

const Q_HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 16;
const NEW_TOKENS: usize = 24;
const MOST_RUNNING: usize = 12;

struct Sample {
    id: (usize, usize), // the request, and which of its samples
    tokens: Vec<i32>,
    prompt: usize,      // how many of them are the prompt's
    forks: usize,       // samples that wait for the prompt
    sequence: Sequence, // while it runs
}

struct Engine {
    cache: Cache,
    pool: ThreadPool,
    done: BTreeMap<(usize, usize), Vec<i32>>,
    preempted: usize,
}

/// Vectors of each token and position: what a model's projections would give.
fn project(tokens: &[i32], positions: &[i32], heads: usize, what: i32) -> Vec<f32> {
    let mut rows = Vec::with_capacity(tokens.len() * heads * HEAD_DIM);
    for (&token, &position) in tokens.iter().zip(positions) {
        for i in 0..(heads * HEAD_DIM) as i32 {
            rows.push(((token * 31 + position * 17 + i * 13 + what * 7) % 29 - 14) as f32 / 9.0);
        }
    }
    rows
}

/// The next token: a hash of every bit of an output row and of the sample.
fn pick(row: &[f32], sample: usize) -> i32 {
    let mix = |hash: u64, bits: u64| (hash ^ bits).wrapping_mul(0x100_0000_01b3);
    let start = mix(0xcbf2_9ce4_8422_2325, sample as u64);
    (row.iter().fold(start, |hash, x| mix(hash, u64::from(x.to_bits()))) % 997) as i32
}

impl Engine {
    fn new(num_blocks: i32, no_prefix_cache: bool) -> Result<Engine> {
        let group = GroupSpec {
            num_kv_heads: KV_HEADS as i32,
            head_dim_k: HEAD_DIM as i32,
            head_dim_v: HEAD_DIM as i32,
            dtype: DType::Int8,
            num_blocks,
            ..GroupSpec::default()
        };
        let options = Options { no_prefix_cache, ..Options::default() };
        Ok(Engine {
            cache: Cache::with_storage(Storage::new(&[group])?, &options)?,
            pool: ThreadPool::new(2)?,
            done: BTreeMap::new(),
            preempted: 0,
        })
    }

    /// Opens waiting samples as long as they fit.
    fn admit(&mut self, waiting: &mut VecDeque<Sample>, running: &mut Vec<Sample>) -> Result<()> {
        while running.len() < MOST_RUNNING {
            let mut sample = match waiting.pop_front() {
                Some(sample) => sample,
                None => break,
            };
            let fits = self.cache.admit_prompt(&sample.tokens, &Default::default(), 1);
            match fits {
                Ok(_) => {}
                Err(Error::NoBlocks { .. }) if !running.is_empty() => {
                    waiting.push_front(sample);
                    break;
                }
                Err(error) => return Err(error),
            }
            sample.sequence = self.cache.open(&sample.tokens, &Default::default())?.sequence;
            running.push(sample);
        }
        Ok(())
    }

    /// One step over all that runs. Afterwards every sample in it has one more token.
    fn step(&mut self, waiting: &mut VecDeque<Sample>, running: &mut Vec<Sample>) -> Result<()> {
        let mut step = self.cache.begin_step()?;
        let mut inputs = Vec::new();
        let mut i = 0;
        while i < running.len() {
            let sample = &running[i];
            let rest = &sample.tokens[step.info(sample.sequence)?.length as usize..];
            match step.append(sample.sequence, rest) {
                Ok(()) => {
                    inputs.extend_from_slice(rest);
                    i += 1;
                }
                // The sequence that was not used for longest makes room. A sequence of the step is never selected.
                Err(Error::NoBlocks { .. }) => match step.select_victim(None) {
                    Some(victim) => {
                        step.preempt(victim)?;
                        let at = running.iter().position(|s| s.sequence == victim);
                        waiting.push_front(running.remove(at.expect("it runs")));
                        self.preempted += 1;
                    }
                    None if i > 0 => break, // the others wait for the next step
                    None => panic!("one sample does not fit the pool"),
                },
                Err(error) => return Err(error),
            }
        }

        let mut plan =
            step.plan(&kvfolio::PlanOptions { positions: true, ..Default::default() })?;
        plan.run_copies()?;
        let n = inputs.len();
        let q = project(&inputs, plan.positions(), Q_HEADS, 0);
        let k = project(&inputs, plan.positions(), KV_HEADS, 1);
        let v = project(&inputs, plan.positions(), KV_HEADS, 2);
        let rows = |data| Rows::f32(data, [n, KV_HEADS, HEAD_DIM]);
        let slots = plan.group(0).slot_mapping();
        plan.view_mut(0)?.append_rows(0, rows(&k), Some(rows(&v)), slots)?;

        let view = plan.view(0)?;
        let longest = plan.kv_lens().iter().copied().max().unwrap_or(0);
        let bytes = view.attention_workspace_bytes(Q_HEADS as i32, longest, Target::Auto, 2)?;
        let mut out = vec![0f32; q.len()];
        view.attend(Attention {
            batch: plan.batch(0),
            options: AttentionOptions::default(),
            q: Rows::f32(&q, [n, Q_HEADS, HEAD_DIM]),
            out: RowsMut::f32(&mut out, [n, Q_HEADS, HEAD_DIM]),
            lse: None,
            workspace: &mut vec![0; bytes],
            executor: Some(&self.pool),
        })?;
        let ends: Vec<usize> = plan.query_start()[1..].iter().map(|&end| end as usize).collect();
        step.finish()?;

        for (at, end) in ends.into_iter().enumerate() {
            let row = &out[(end - 1) * Q_HEADS * HEAD_DIM..end * Q_HEADS * HEAD_DIM];
            for number in 1..=std::mem::take(&mut running[at].forks) {
                let parent = &running[at];
                let mut tokens = parent.tokens.clone();
                tokens.push(pick(row, number));
                let sequence = self.cache.fork(parent.sequence, &ForkOptions::default())?;
                let id = (parent.id.0, number);
                running.push(Sample { id, tokens, prompt: parent.prompt, forks: 0, sequence });
            }
            let number = running[at].id.1;
            running[at].tokens.push(pick(row, number));
        }
        Ok(())
    }

    fn run(&mut self, mut waiting: VecDeque<Sample>) -> Result<()> {
        let mut running = Vec::new();
        while !waiting.is_empty() || !running.is_empty() {
            self.admit(&mut waiting, &mut running)?;
            self.step(&mut waiting, &mut running)?;
            let is_done = |sample: &Sample| sample.tokens.len() >= sample.prompt + NEW_TOKENS;
            for sample in running.iter().filter(|sample| is_done(sample)) {
                self.cache.close(sample.sequence)?; // what it computed stays findable
                self.done.insert(sample.id, sample.tokens.clone());
            }
            running.retain(|sample| !is_done(sample));
        }
        self.cache.check_invariants()
    }
}

fn sample(id: (usize, usize), tokens: Vec<i32>, forks: usize) -> Sample {
    let (prompt, sequence) = (tokens.len(), Sequence::from_raw(0));
    Sample { id, tokens, prompt, forks, sequence }
}

/// A system prompt that all share, and a question.
fn prompt(request: usize) -> Vec<i32> {
    let question = (0..20 + 3 * request as i32).map(|i| 300 + i * (request as i32 + 1));
    (0..70).chain(question).collect()
}

fn main() -> Result<()> {
    let requests = 6;
    let mut engine = Engine::new(24, false)?;
    engine.run((0..requests).map(|r| sample((r, 0), prompt(r), r % 3)).collect())?;
    let counters = engine.cache.counters();
    println!(
        "{} samples, {} tokens reused, {} blocks copied, {} evicted, {} sequences preempted",
        engine.done.len(),
        counters.tokens_reused,
        counters.block_copies,
        counters.blocks_evicted,
        engine.preempted
    );
    assert!(counters.tokens_reused > 0 && counters.block_copies > 0 && engine.preempted > 0);

    for (id, tokens) in &engine.done {
        let mut alone = Engine::new(64, true)?;
        alone.run([sample(*id, prompt(id.0), 0)].into())?;
        assert_eq!(&alone.done[id], tokens, "sample {id:?}");
    }
    println!("all equal those that were computed alone, bit for bit");
    Ok(())
}
