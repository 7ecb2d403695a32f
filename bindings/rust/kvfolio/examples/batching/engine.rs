// SPDX-License-Identifier: Apache-2.0
//
// The loop. In each step running sequences come first, the oldest first, each with a chunk of the
// tokens that it has not computed; one that is short of blocks preempts the youngest. Then waiting
// requests join as long as they fit. After the step each sequence that has computed all of its
// tokens samples the next one; behind its prompt it is forked first.
//
// A step borrows the cache, so what the loop decides with lies beside it, in `Requests`.

use crate::model::{mix, unit, Model, HEAD_DIM, KV_HEADS, LAYERS, Q_HEADS, VOCABULARY};
use kvfolio::{
    Attention, AttentionOptions, Cache, DType, Error, ForkOptions, Format, GroupSpec, OpenOptions,
    Options, Plan, PlanOptions, Policy, Result, Rows, RowsMut, Sequence, Step, Storage, Target,
    ThreadPool,
};
use std::collections::{BTreeMap, VecDeque};

pub const MAX_TOKENS: i32 = 256;

/// One sample of a prompt.
#[derive(Clone)]
pub struct Job {
    pub id: u64,           // the smaller, the older
    pub tokens: Vec<i32>,  // the prompt, and what was sampled
    pub prompt: usize,     // tokens of the prompt
    pub goal: usize,       // tokens in the end
    pub twin: Option<u64>, // another sample that is forked behind the prompt
    pub bits: Vec<u32>,    // of all logits that were sampled from
}

impl Job {
    fn options(&self) -> OpenOptions<'static> {
        let priority = -(self.id as i32); // the youngest is preempted first
        let caller_id = Some(self.id);
        OpenOptions { caller_id, priority, max_tokens: MAX_TOKENS, ..OpenOptions::default() }
    }

    /// Samples with noise of its own (Gumbel's), so that two samples of a prompt differ.
    fn sample(&mut self, logits: &[f32]) {
        let seed = mix(self.id << 20 | self.tokens.len() as u64);
        let noisy = |i: usize| {
            let u = (unit(seed ^ i as u64) + 1.0001) / 2.001;
            logits[i] - (-u.ln()).ln() * 0.7
        };
        let best = (0..VOCABULARY).max_by(|&a, &b| noisy(a).total_cmp(&noisy(b)));
        self.tokens.push(best.expect("a vocabulary") as i32);
        self.bits.extend(logits.iter().map(|x| x.to_bits()));
    }
}

struct Running {
    job: Job,
    appended: usize, // tokens that the cache has
}

#[derive(Default)]
pub struct Requests {
    pub waiting: VecDeque<Job>,
    running: BTreeMap<Sequence, Running>,
    pub done: BTreeMap<u64, Job>,
    pub preempted: usize,
    chunk: usize, // tokens of a sequence in a step, at most
}

impl Requests {
    fn append_running(&mut self, step: &mut Step) -> Result<()> {
        let mut order: Vec<(u64, Sequence)> =
            self.running.iter().map(|(&sequence, run)| (run.job.id, sequence)).collect();
        order.sort();
        for (_, sequence) in order {
            // It is gone if an older one, or its own append, has preempted it.
            while let Some(run) = self.running.get(&sequence) {
                let end = run.job.tokens.len().min(run.appended + self.chunk);
                match step.append(sequence, &run.job.tokens[run.appended..end]) {
                    Ok(()) => break,
                    Err(Error::NoBlocks { .. }) => self.preempt_one(step)?,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Takes the blocks of the youngest sequence, which waits in front of all others then.
    fn preempt_one(&mut self, step: &mut Step) -> Result<()> {
        // None: each sequence is in the step, or would free no block by itself.
        let victim = step.select_victim(Some(Policy::LowestPriority)).unwrap_or_else(|| {
            let youngest = self.running.iter().max_by_key(|(_, run)| run.job.id);
            *youngest.expect("the sequence that is short").0
        });
        step.preempt(victim)?;
        let run = self.running.remove(&victim).expect("it runs");
        self.waiting.push_front(run.job);
        self.preempted += 1;
        Ok(())
    }

    /// New requests and resumed ones: of either the cache may have the beginning.
    fn append_waiting(&mut self, step: &mut Step) -> Result<()> {
        while let Some(job) = self.waiting.front() {
            // With room for the token behind it. It counts with what is in the step already.
            match step.admit_prompt(&job.tokens, &job.options(), 1) {
                Ok(_) => {}
                Err(Error::NoBlocks { .. }) => break,
                Err(error) => return Err(error),
            }
            let opened = step.open(&job.tokens, &job.options())?;
            let appended = opened.cached_tokens as usize;
            let end = job.tokens.len().min(appended + self.chunk);
            step.append(opened.sequence, &job.tokens[appended..end])?;
            let job = self.waiting.pop_front().expect("the front");
            self.running.insert(opened.sequence, Running { job, appended });
        }
        Ok(())
    }

    /// The inputs of the model, in the order of the plan.
    fn embed(&mut self, model: &Model, plan: &Plan) -> Vec<Vec<f32>> {
        let mut x = Vec::with_capacity(plan.num_tokens());
        for (sequence, ends) in plan.sequences().iter().zip(plan.query_start().windows(2)) {
            let run = self.running.get_mut(sequence).expect("it runs");
            for _ in ends[0]..ends[1] {
                let position = plan.positions()[x.len()];
                x.push(model.embed(run.job.tokens[run.appended], position));
                run.appended += 1;
            }
        }
        x
    }

    /// Samples from the last row of each sequence that has computed all of its tokens.
    fn sample(
        &mut self,
        cache: &mut Cache,
        model: &Model,
        rows: &[(Sequence, &[f32])],
    ) -> Result<()> {
        for &(sequence, x) in rows {
            let run = self.running.get_mut(&sequence).expect("it runs");
            if run.appended < run.job.tokens.len() {
                continue; // a chunk of a long prompt
            }
            let logits = model.logits(x);
            if let Some(id) = run.job.twin.take() {
                let mut job = Job { id, ..run.job.clone() };
                let of_twin = ForkOptions { caller_id: Some(id), priority: -(id as i32) };
                let child = cache.fork(sequence, &of_twin)?; // shares every block
                job.sample(&logits);
                let appended = run.appended;
                self.running.insert(child, Running { job, appended });
            }
            let run = self.running.get_mut(&sequence).expect("it runs");
            run.job.sample(&logits);
            if run.job.tokens.len() >= run.job.goal {
                cache.close(sequence)?; // what it computed stays findable
                let job = self.running.remove(&sequence).expect("it runs").job;
                self.done.insert(job.id, job);
            }
        }
        Ok(())
    }
}

pub struct Engine<'m> {
    pub cache: Cache,
    pub requests: Requests,
    model: &'m Model,
    group: GroupSpec,
    pool: ThreadPool,
    workspace: Vec<u8>,
}

impl<'m> Engine<'m> {
    pub fn new(
        model: &'m Model,
        (dtype, format): (DType, Format),
        num_blocks: i32,
        options: &Options,
        (num_threads, chunk): (usize, usize),
    ) -> Result<Engine<'m>> {
        let group = GroupSpec {
            num_layers: LAYERS as i32,
            num_kv_heads: KV_HEADS as i32,
            head_dim_k: HEAD_DIM as i32,
            head_dim_v: HEAD_DIM as i32,
            dtype,
            format,
            num_blocks,
            ..GroupSpec::default()
        };
        let cache = Cache::with_storage(Storage::new(&[group])?, options)?;
        let view = cache.view(0)?;
        let bytes =
            view.attention_workspace_bytes(Q_HEADS as i32, MAX_TOKENS, Target::Auto, num_threads)?;
        let requests = Requests { chunk, ..Requests::default() };
        let (pool, workspace) = (ThreadPool::new(num_threads)?, vec![0; bytes]);
        Ok(Engine { cache, requests, model, group, pool, workspace })
    }

    pub fn run(&mut self) -> Result<()> {
        while !self.requests.waiting.is_empty() || !self.requests.running.is_empty() {
            self.step()?;
        }
        self.cache.check_invariants()
    }

    fn step(&mut self) -> Result<()> {
        let mut step = self.cache.begin_step()?;
        self.requests.append_running(&mut step)?;
        self.requests.append_waiting(&mut step)?;
        let mut plan = step.plan(&PlanOptions { positions: true, ..PlanOptions::default() })?;
        let mut x = self.requests.embed(self.model, &plan);
        let attention = Layers { model: self.model, group: &self.group, pool: &self.pool };
        attention.run(&mut plan, &mut x, &mut self.workspace)?;
        let ends = plan.query_start()[1..].iter().map(|&end| x[end as usize - 1].as_slice());
        let last: Vec<(Sequence, &[f32])> = plan.sequences().iter().copied().zip(ends).collect();
        step.finish()?;
        self.requests.sample(&mut self.cache, self.model, &last)
    }
}

/// What a step computes with.
struct Layers<'a> {
    model: &'a Model,
    group: &'a GroupSpec,
    pool: &'a ThreadPool,
}

impl Layers<'_> {
    fn run(&self, plan: &mut Plan, x: &mut [Vec<f32>], workspace: &mut [u8]) -> Result<()> {
        plan.run_copies()?; // copy-on-write of forks
        let (n, arrays) = (x.len(), plan.arrays()); // lives beside the view that writes
        let mut out = vec![0f32; n * Q_HEADS * HEAD_DIM];
        for layer in 0..LAYERS {
            let rows = self.model.project(layer, x);
            let kv = |data| Rows::f32(data, [n, KV_HEADS, HEAD_DIM]);
            let slots = arrays.group(0).slot_mapping();
            let mut view = plan.view_mut(0)?;
            view.append_rows(layer as i32, kv(&rows.k), Some(kv(&rows.v)), slots)?; // quantizes
            plan.view(0)?.attend(Attention {
                batch: arrays.batch(0),
                options: AttentionOptions {
                    layer: layer as i32,
                    ..AttentionOptions::of(self.group)?
                },
                q: Rows::f32(&rows.q, [n, Q_HEADS, HEAD_DIM]),
                out: RowsMut::f32(&mut out, [n, Q_HEADS, HEAD_DIM]),
                lse: None,
                workspace,
                executor: Some(self.pool),
            })?;
            for (x, attended) in x.iter_mut().zip(out.chunks(Q_HEADS * HEAD_DIM)) {
                self.model.finish_layer(layer, x, attended);
            }
        }
        Ok(())
    }
}
