// SPDX-License-Identifier: Apache-2.0
//
// decode SEQUENCES TOKENS STEPS: decode steps over many sequences, as bench/bindings/decode.c makes
// them in C. bench/bindings/run compares the two.

use kvfolio::{Cache, GroupSpec, Options, PlanOptions, Result, Sequence};

const BLOCK_SIZE: i32 = 16;

#[repr(C)]
struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}
extern "C" {
    fn clock_gettime(clock: i32, out: *mut Timespec) -> i32;
}

/// What all threads took. The standard library has no such clock.
fn processor_seconds() -> f64 {
    const CLOCK_PROCESS_CPUTIME_ID: i32 = 2; // Linux
    let mut now = Timespec { seconds: 0, nanoseconds: 0 };
    // SAFETY: a struct timespec of 64-bit Linux.
    assert_eq!(unsafe { clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &mut now) }, 0);
    now.seconds as f64 + 1e-9 * now.nanoseconds as f64
}

fn run_step(cache: &mut Cache, sequences: &[Sequence], tokens: &[i32]) -> Result<i64> {
    let mut step = cache.begin_step()?;
    step.append_each(sequences, tokens)?;
    let plan = step.plan(&PlanOptions {
        no_block_tables: true,
        changed_entries: true,
        ..PlanOptions::default()
    })?;
    let sum = plan.group(0).slot_mapping().iter().map(|&slot| i64::from(slot)).sum();
    step.finish()?;
    Ok(sum)
}

fn main() -> Result<()> {
    let arguments: Vec<i32> = std::env::args().skip(1).map(|n| n.parse().unwrap()).collect();
    let (n, length, steps) = match arguments[..] {
        [n, length, steps] => (n, length, steps),
        _ => (32, 64, 4), // as a test
    };
    let num_blocks = n * ((length + 2 * steps) / BLOCK_SIZE + 2);
    let group =
        GroupSpec { head_dim_k: 1, block_size: BLOCK_SIZE, num_blocks, ..GroupSpec::default() };
    let mut cache = Cache::new(&[group], &Options { max_sequences: n, ..Options::default() })?;
    let mut sequences = Vec::new();
    for i in 0..n {
        // Lengths differ so that a sixteenth of the sequences fills a block in each step.
        let own = length - i % BLOCK_SIZE;
        let prompt: Vec<i32> = (0..own).map(|at| (i * 31 + at) % 50000).collect();
        sequences.push(cache.open(&[], &Default::default())?.sequence);
        let mut step = cache.begin_step()?;
        step.append(sequences[i as usize], &prompt)?;
        step.finish()?;
    }
    let tokens = vec![7; n as usize];
    let mut sum = 0;
    for _ in 0..steps {
        sum += run_step(&mut cache, &sequences, &tokens)?; // warm
    }
    let begin = processor_seconds();
    for _ in 0..steps {
        sum += run_step(&mut cache, &sequences, &tokens)?;
    }
    let seconds = processor_seconds() - begin;
    let nanoseconds = 1e9 * seconds / (f64::from(n) * f64::from(steps));
    println!("{{\"nanoseconds\": {nanoseconds:.3}, \"sum\": {sum}}}");
    Ok(())
}
