// SPDX-License-Identifier: Apache-2.0
//
// One script, told in C, Rust and Go with the same output: two prompts with a common prefix, a
// fork, a window group beside a full one, attention over memory of our own, a shortage and a
// preemption.

use kvfolio::{
    Attention, AttentionOptions, Bases, Borrowed, BorrowedGroup, Cache, Error, ForkOptions,
    GroupSpec, Kind, Manager, OpenOptions, Options, Policy, Result, Rows, RowsMut, Sequence, Step,
    Storage, Strides, Target,
};

const BLOCK_SIZE: usize = 4;
const HEADS: usize = 2;
const HEAD_DIM: usize = 4;
const MOST_TOKENS: i32 = 32;

/// Keys, values and queries that every language computes alike.
fn number(token: i32, head: usize, i: usize, what: i32) -> f32 {
    ((token * 7 + head as i32 * 3 + i as i32 * 5 + what * 11) % 13 - 6) as f32 / 8.0
}

fn fill(tokens: &[i32], what: i32) -> Vec<f32> {
    let mut rows = Vec::new();
    for &token in tokens {
        for h in 0..HEADS {
            rows.extend((0..HEAD_DIM).map(|i| number(token, h, i, what)));
        }
    }
    rows
}

fn print_array(name: &str, array: &[i32]) {
    let numbers: String = array.iter().map(|n| format!(" {n}")).collect();
    println!("    {name}{numbers}");
}

fn groups() -> [GroupSpec; 2] {
    let full = GroupSpec {
        num_kv_heads: HEADS as i32,
        head_dim_k: HEAD_DIM as i32,
        head_dim_v: HEAD_DIM as i32,
        block_size: BLOCK_SIZE as i32,
        num_blocks: 10,
        ..GroupSpec::default()
    };
    let kind = Kind::SlidingWindow { window: 6, num_sinks: 0 };
    [full, GroupSpec { kind, num_blocks: 8, ..full }]
}

/// Memory of K and V of a group: [num_blocks, heads, block_size, head_dim] of f32 each.
struct Memory {
    k: Vec<f32>,
    v: Vec<f32>,
}

fn lend(memory: &mut Memory) -> BorrowedGroup {
    let token = HEAD_DIM as i64 * 4;
    let head = BLOCK_SIZE as i64 * token;
    let strides = Strides { layer: 0, block: HEADS as i64 * head, head, token };
    let array = Borrowed { bytes: memory.k.len() as i64 * 4, strides };
    let k = memory.k.as_mut_ptr().cast();
    let v = memory.v.as_mut_ptr().cast();
    let bases = vec![Bases { k, v, ..Bases::default() }];
    BorrowedGroup { bases, k: array, v: array, ..BorrowedGroup::default() }
}

/// Runs a step: copies, K and V, attention. `tokens`: those of all sequences, in order.
fn run(mut step: Step, tokens: &[i32]) -> Result<()> {
    let mut plan = step.plan(&Default::default())?;
    plan.run_copies()?;
    let (k, v, q) = (fill(tokens, 0), fill(tokens, 1), fill(tokens, 2));
    let shape = [tokens.len(), HEADS, HEAD_DIM];
    for (number, spec) in (0..).zip(&groups()) {
        let group = plan.group(number);
        println!("  group {number}");
        print_array("slots", group.slot_mapping());
        print_array("table", group.block_table());
        if !group.copy_src().is_empty() {
            print_array("copy from", group.copy_src());
            print_array("copy to", group.copy_dst());
        }
        let (k, v) = (Rows::f32(&k, shape), Rows::f32(&v, shape));
        plan.view_mut(number)?.append_rows(0, k, Some(v), group.slot_mapping())?;

        let view = plan.view(number)?;
        let target = Target::Reference; // the same bits on every machine
        let bytes = view.attention_workspace_bytes(HEADS as i32, MOST_TOKENS, target, 1)?;
        let mut out = vec![0f32; q.len()];
        view.attend(Attention {
            batch: plan.batch(number),
            options: AttentionOptions { target, ..AttentionOptions::of(spec)? },
            q: Rows::f32(&q, shape),
            out: RowsMut::f32(&mut out, shape),
            lse: None,
            workspace: &mut vec![0; bytes],
            executor: None,
        })?;
        for &end in &plan.query_start()[1..] {
            let last = &out[(end as usize - 1) * HEADS * HEAD_DIM..];
            let [a, b, c, d] = [last[0], last[1], last[2], last[3]];
            println!("    out of its last token {a:.4} {b:.4} {c:.4} {d:.4}");
        }
    }
    step.finish()?;
    Ok(())
}

fn open_named(cache: &mut Cache, name: char, tokens: &[i32]) -> Result<Sequence> {
    let named = OpenOptions { caller_id: Some(name as u64), ..OpenOptions::default() };
    let opened = cache.open(tokens, &named)?;
    println!("open {name}: {} of {} tokens found", opened.cached_tokens, tokens.len());
    Ok(opened.sequence)
}

/// Opens a prompt and computes what was not found.
fn prefill(cache: &mut Cache, name: char, tokens: &[i32]) -> Result<Sequence> {
    let sequence = open_named(cache, name, tokens)?;
    let rest = &tokens[cache.info(sequence)?.length as usize..];
    let mut step = cache.begin_step()?;
    step.append(sequence, rest)?;
    run(step, rest)?;
    Ok(sequence)
}

fn print_usage(cache: &Manager) -> Result<()> {
    for group in 0..cache.num_groups() {
        let usage = cache.usage(group)?;
        let (held, cached, free) = (usage.held, usage.cached, usage.free);
        println!("  group {group}: {held} held, {cached} cached, {free} free");
    }
    Ok(())
}

fn tell(cache: &mut Cache) -> Result<()> {
    let first: Vec<i32> = (100..110).collect();
    let second: Vec<i32> = (0..13).map(|i| if i < 9 { 100 + i } else { 200 + i }).collect();
    let third: Vec<i32> = (300..320).collect();
    prefill(cache, 'a', &first)?;
    let b = prefill(cache, 'b', &second)?;

    let named = ForkOptions { caller_id: Some('c' as u64), ..ForkOptions::default() };
    let c = cache.fork(b, &named)?;
    println!("fork b: c");
    for round in 0..2 {
        let tokens = [400 + round, 500 + round];
        let mut step = cache.begin_step()?;
        step.append_each(&[b, c], &tokens)?;
        println!("append one token to each of 2");
        run(step, &tokens)?;
    }
    print_usage(cache)?;

    let d = open_named(cache, 'd', &third)?;
    let mut step = cache.begin_step()?;
    while let Err(error) = step.append(d, &third) {
        let shortage = match &error {
            Error::NoBlocks { shortage, message } => {
                println!("{message}");
                shortage
            }
            _ => return Err(error),
        };
        let (group, needed) = (shortage.group, shortage.needed);
        let (free, evictable) = (shortage.free, shortage.evictable);
        println!("  group {group} needs {needed}, has {free} free and {evictable} evictable");
        let victim = step.select_victim(Some(Policy::Lru)).expect("there is a victim");
        let name = step.info(victim)?.caller_id.unwrap_or(0) as u8 as char;
        step.preempt(victim)?;
        println!("preempt {name}");
    }
    run(step, &third)?;
    print_usage(cache)?;
    cache.check_invariants()?;

    let counters = cache.counters();
    println!(
        "{} tokens committed, {} reused, {} blocks copied, {} evicted",
        counters.tokens_committed,
        counters.tokens_reused,
        counters.block_copies,
        counters.blocks_evicted
    );
    Ok(())
}

fn main() -> Result<()> {
    let floats = |group: &GroupSpec| group.num_blocks as usize * HEADS * BLOCK_SIZE * HEAD_DIM;
    let memory_of = |group| Memory { k: vec![0.0; floats(group)], v: vec![0.0; floats(group)] };
    let mut memory: Vec<Memory> = groups().iter().map(memory_of).collect();
    let lent: Vec<BorrowedGroup> = memory.iter_mut().map(lend).collect();
    // SAFETY: `memory` outlives the cache, and nothing else touches it until then.
    let storage = unsafe { Storage::borrow(&groups(), &lent)? };
    let options = Options { max_sequences: 8, ..Options::default() };
    let mut cache = Cache::with_storage(storage, &options)?;
    tell(&mut cache)?;
    drop(cache);
    drop(memory);
    Ok(())
}
