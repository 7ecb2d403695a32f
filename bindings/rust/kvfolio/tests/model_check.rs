// SPDX-License-Identifier: Apache-2.0
//
// The random model check through the crate: KVFOLIO_MODEL_CHECK_RECORD names a program that makes
// 10^4 operations, each checked against the naive model, then their calls through C, and prints each
// with its answer (tests/model_check/c_replay.h). They are repeated here, and every answer is the same. A step
// is a Step here, so what no Rust program can say (an append without a step, a commit of another
// ticket) is left out: C refused it.

use kvfolio::{
    BlockState, Cache, DType, Error, ForkOptions, Format, GroupSpec, Hold, Kind, Load, Manager,
    MediaSpan, OpenOptions, Options, Order, Pin, PlanArrays, PlanOptions, Policy, Publish, Result,
    Root, RootKey, Sequence, Step, Storage, Ticket,
};
use std::collections::BTreeMap;
use std::process::Command;

/// One line: a call, what it was given, and what it answered.
struct Call<'a> {
    number: usize,
    name: &'a str,
    arguments: Vec<i64>,
    code: i64,
    results: Vec<i64>,
    message: &'a str,
}

impl<'a> Call<'a> {
    fn new(number: usize, line: &'a str) -> Call<'a> {
        let (call, message) = line.split_once(" ; ").expect(line);
        let (name, answer) = call.split_once(" =").expect(line);
        let numbers = |text: &str| text.split_whitespace().map(|n| n.parse().unwrap()).collect();
        let (name, arguments) = name.split_once(' ').unwrap_or((name, ""));
        let answer: Vec<i64> = numbers(answer);
        let (code, results) = (answer[0], answer[1..].to_vec());
        Call { number, name, arguments: numbers(arguments), code, results, message }
    }

    fn given(&self) -> Numbers<'_> {
        Numbers(self.arguments.iter())
    }

    /// Requires of an answer that it is the recorded one.
    fn check(&self, answer: Result<Vec<i64>>) {
        let (code, results, message) = match answer {
            Ok(results) => (0, results, String::new()),
            Err(error) => (i64::from(error.code()), Vec::new(), error.message().to_string()),
        };
        let what = format!("line {}: {} {:?}", self.number, self.name, self.arguments);
        assert_eq!((code, message.as_str()), (self.code, self.message), "{what}");
        assert_eq!(results, self.results, "{what}");
    }
}

struct Numbers<'a>(std::slice::Iter<'a, i64>);

impl Numbers<'_> {
    fn i64(&mut self) -> i64 {
        *self.0.next().expect("an argument")
    }
    fn i32(&mut self) -> i32 {
        self.i64() as i32
    }
    fn u64(&mut self) -> u64 {
        self.i64() as u64
    }
    fn bool(&mut self) -> bool {
        self.i64() != 0
    }
    fn sequence(&mut self) -> Sequence {
        Sequence::from_raw(self.u64())
    }
    fn ticket(&mut self) -> Ticket {
        Ticket::from_raw(self.u64())
    }
    fn array<T>(&mut self, of: impl Fn(i64) -> T) -> Vec<T> {
        let n = self.i64();
        (0..n).map(|_| of(self.i64())).collect()
    }
    fn tokens(&mut self) -> Vec<i32> {
        self.array(|n| n as i32)
    }
    fn sequences(&mut self) -> Vec<Sequence> {
        self.array(|n| Sequence::from_raw(n as u64))
    }
    fn id(&mut self) -> Option<u64> {
        let (has, id) = (self.bool(), self.u64());
        Some(id).filter(|_| has)
    }
    fn root(&mut self) -> Root {
        let mut part = || self.array(|n| n as u8);
        let (model, adapter, version, salt) = (part(), part(), part(), part());
        Root::new(&RootKey {
            model: &model,
            adapter: &adapter,
            adapter_version: &version,
            tenant_salt: &salt,
            epoch: self.u64(),
        })
        .unwrap()
    }
    fn media(&mut self) -> Vec<MediaSpan> {
        let n = self.i64();
        let span = |_| {
            let (begin, end, to_itself) = (self.i32(), self.i32(), self.bool());
            let mut content = [0; 32];
            content.iter_mut().for_each(|byte| *byte = self.i64() as u8);
            MediaSpan::new(begin, end, content).attends_to_itself(to_itself)
        };
        (0..n).map(span).collect()
    }
    fn options<'b>(&mut self, root: &'b Root, media: &'b [MediaSpan]) -> OpenOptions<'b> {
        OpenOptions {
            root: Some(root),
            media,
            no_prefix_cache: self.bool(),
            no_look_up: self.bool(),
            publish: [Publish::All, Publish::FullBlocks, Publish::Nothing][self.i64() as usize],
            caller_id: self.id(),
            max_tokens: self.i32(),
            priority: self.i32(),
            late_names: self.bool(),
            announce: false,
        }
    }
    fn policy(&mut self) -> Option<Policy> {
        policy_of(self.i64())
    }
}

fn policy_of(number: i64) -> Option<Policy> {
    let all = [Policy::Lru, Policy::Lfu, Policy::Longest, Policy::LowestPriority];
    usize::try_from(number).ok().map(|number| all[number])
}

fn number(sequence: Sequence) -> i64 {
    sequence.get() as i64
}

fn create(call: &Call) -> Cache {
    let mut n = call.given();
    let group = |n: &mut Numbers| GroupSpec {
        rewind: 0,
        num_layers: n.i32(),
        num_kv_heads: n.i32(),
        head_dim_k: n.i32(),
        head_dim_v: n.i32(),
        v_is_prefix_of_k: n.bool(),
        block_size: n.i32(),
        dtype: [
            DType::F64,
            DType::F32,
            DType::F16,
            DType::Bf16,
            DType::Int8,
            DType::E4M3,
            DType::Opaque,
        ][n.i64() as usize - 1],
        format: [Format::Hnd, Format::Nhd, Format::Granule][n.i64() as usize],
        kind: match (n.i64(), n.i32(), n.i32()) {
            (0, _, _) => Kind::Full,
            (_, window, num_sinks) => Kind::SlidingWindow { window, num_sinks },
        },
        num_blocks: n.i32(),
    };
    let num_groups = n.i64();
    let groups: Vec<GroupSpec> = (0..num_groups).map(|_| group(&mut n)).collect();
    let options = Options {
        max_sequences: n.i32(),
        max_pins: n.i32(),
        max_steps_in_flight: n.i32(),
        order: [Order::InOrder, Order::Unordered][n.i64() as usize],
        no_prefix_cache: n.bool(),
        max_sequence_tokens: n.i32(),
        max_runs: n.i32(),
        max_index_tokens: n.i64(),
        max_root_key_bytes: n.i64(),
        max_table_entries: n.i64(),
        hash_seed: n.u64(),
        high_watermark: f64::from_bits(n.u64()),
        max_root_keys: n.i32(),
        max_media_extents: n.i32(),
        victim_policy: n.policy().unwrap(),
        id_tag: n.i64() as u16,
        max_transfers: n.i32(),
        copies_by_host: n.bool(),
        list_findable: false,
        null_block: false,
        max_announced_tokens: 0,
    };
    let cache = match call.name {
        "create" => Cache::new(&groups, &options).unwrap(),
        _ => Cache::with_storage(Storage::new(&groups).unwrap(), &options).unwrap(),
    };
    call.check(Ok(vec![]));
    cache
}

/// All arrays of a plan.
fn numbers_of(plan: &PlanArrays) -> Vec<i64> {
    fn array(out: &mut Vec<i64>, from: &[i32]) {
        out.push(from.len() as i64);
        out.extend(from.iter().map(|&n| i64::from(n)));
    }
    let mut out = vec![plan.ticket().get() as i64, plan.num_tokens() as i64];
    out.push(plan.sequences().len() as i64);
    out.extend(plan.sequences().iter().map(|&sequence| number(sequence)));
    array(&mut out, plan.rows());
    array(&mut out, plan.query_start());
    array(&mut out, plan.kv_lens());
    array(&mut out, plan.trim_sinks());
    array(&mut out, plan.trim_first_kept());
    array(&mut out, plan.positions());
    for group in plan.groups() {
        out.push(i64::from(group.block_table_stride()));
        array(&mut out, group.slot_mapping());
        array(&mut out, group.block_table());
        array(&mut out, group.kv_indptr());
        array(&mut out, group.kv_indices());
        array(&mut out, group.kv_last_page_len());
        array(&mut out, group.copy_src());
        array(&mut out, group.copy_dst());
        array(&mut out, group.changed_rows());
        array(&mut out, group.changed_columns());
        array(&mut out, group.changed_blocks());
        for prefix in group.shared_prefixes() {
            let part = [prefix.first_sequence, prefix.num_sequences, prefix.num_blocks];
            out.extend(part.map(i64::from));
        }
    }
    out
}

fn ended(list: &[kvfolio::Ended]) -> Vec<i64> {
    let mut out = vec![list.len() as i64];
    for ended in list {
        let id = ended.caller_id();
        out.extend([number(ended.sequence()), id.is_some() as i64, id.unwrap_or(0) as i64]);
    }
    out
}

fn none(answer: Result<()>) -> Result<Vec<i64>> {
    answer.map(|()| vec![])
}

fn forgotten(answer: Result<kvfolio::Forgotten>) -> Result<Vec<i64>> {
    answer.map(|forgotten| vec![forgotten.blocks, i64::from(forgotten.pins)])
}

/// Calls about prompts: tokens, options, and in one case a count.
fn call_about_prompt(cache: &mut Manager, call: &Call) -> Result<Vec<i64>> {
    let mut n = call.given();
    let tokens = n.tokens();
    let (root, media) = (n.root(), n.media());
    let options = n.options(&root, &media);
    match call.name {
        "open" => {
            let opened = cache.open(&tokens, &options)?;
            Ok(vec![number(opened.sequence), i64::from(opened.cached_tokens)])
        }
        "probe" => Ok(vec![i64::from(cache.probe(&tokens, &options)?)]),
        "admit_prompt" => {
            let admission = cache.admit_prompt(&tokens, &options, n.i64())?;
            let mut out = vec![i64::from(admission.cached_tokens), admission.blocks().len() as i64];
            out.extend(admission.blocks().iter().map(|&n| i64::from(n)));
            Ok(out)
        }
        "forget" => forgotten(cache.forget(&tokens, &options)),
        "pin" => {
            let pinned = cache.pin(&tokens, &options)?;
            Ok(vec![pinned.pin.get() as i64, i64::from(pinned.pinned_tokens)])
        }
        other => panic!("{other} is unknown"),
    }
}

/// Questions.
fn question(cache: &Manager, call: &Call) -> Option<Result<Vec<i64>>> {
    let mut n = call.given();
    Some(match call.name {
        "info" => cache.info(n.sequence()).map(|info| {
            let (has, id) = (info.caller_id.is_some(), info.caller_id.unwrap_or(0));
            let mut out = [info.length, info.accepted_length, info.published_length].to_vec();
            out.extend([info.trim_sinks, info.trim_first_kept, info.in_open_step as i32]);
            out.push(info.num_unnamed);
            let mut out: Vec<i64> = out.into_iter().map(i64::from).collect();
            out.extend([info.reserved_tokens, has as i64, id as i64, i64::from(info.max_tokens)]);
            out.extend([info.last_use as i64, info.use_count as i64, i64::from(info.priority)]);
            out
        }),
        "block_table" => cache.block_table(n.sequence(), n.i32()).map(|table| {
            let mut out = vec![table.len() as i64];
            out.extend(table.iter().map(|&block| i64::from(block)));
            out
        }),
        "usage" => cache.usage(n.i32()).map(|u| {
            let all = [u.num_blocks, u.free, u.held, u.cached, u.retiring, u.evictable, u.reserved];
            all.map(i64::from).to_vec()
        }),
        "ref_count" => cache.ref_count(n.i32(), n.i32()).map(|count| vec![i64::from(count)]),
        "is_findable" => cache.is_findable(n.i32(), n.i32()).map(|yes| vec![yes as i64]),
        "block_state" => cache.block_state(n.i32(), n.i32()).map(|state| {
            vec![match state {
                BlockState::Free => 0,
                BlockState::Held => 1,
                BlockState::Cached => 2,
                BlockState::Retiring => 3,
            }]
        }),
        "find" => cache.find(n.u64()).map(|sequence| vec![number(sequence)]),
        _ => return None,
    })
}

/// What may be called at any time.
fn call_manager(cache: &mut Manager, call: &Call) -> Result<Vec<i64>> {
    if let Some(answer) = question(cache, call) {
        return answer;
    }
    let mut n = call.given();
    match call.name {
        "open" | "probe" | "admit_prompt" | "forget" | "pin" => call_about_prompt(cache, call),
        "fork" => {
            let parent = n.sequence();
            let options = ForkOptions { caller_id: n.id(), priority: n.i32() };
            cache.fork(parent, &options).map(|child| vec![number(child)])
        }
        "adopt" => {
            let (sequence, all, sizes) = (n.sequence(), n.tokens(), n.array(|size| size as usize));
            let mut tables = Vec::new();
            let mut at = 0;
            for size in sizes {
                tables.push(&all[at..at + size]);
                at += size;
            }
            none(cache.adopt(sequence, &tables, n.i32()))
        }
        "truncate" => none(cache.truncate(n.sequence(), n.i32())),
        "clear" => none(cache.clear(n.sequence())),
        "trim" => cache.trim(n.sequence(), n.i64(), n.i64()).map(|count| vec![i64::from(count)]),
        "close" => none(cache.close(n.sequence())),
        "preempt" => none(cache.preempt(n.sequence())),
        "set_priority" => none(cache.set_priority(n.sequence(), n.i32())),
        "set_tokens" => none(cache.set_tokens(n.sequence(), &n.tokens())),
        "complete" => none(cache.complete(n.ticket())),
        "fail" => cache.fail(n.ticket()).map(ended),
        "accept" => none(cache.accept(n.sequence(), n.i32())),
        "admit" => none(cache.admit(&n.sequences(), &n.array(|count| count))),
        "reserve" => none(cache.reserve(n.sequence(), n.i64(), n.i64())),
        "evict" => {
            let (group, blocks) = (n.i32(), n.i32());
            let mut evicted = vec![0; n.i64() as usize];
            let count = cache.evict(group, blocks, &mut evicted)?;
            evicted.truncate(count as usize);
            let mut out = vec![i64::from(count), evicted.len() as i64];
            out.extend(evicted.into_iter().map(i64::from));
            Ok(out)
        }
        "reset" => forgotten(cache.reset()),
        "forget_root" => forgotten(cache.forget_root(Some(&n.root()))),
        "unpin" => none(cache.unpin(Pin::from_raw(n.u64()))),
        "begin_load" => {
            let (sequence, prompt) = (n.sequence(), n.tokens());
            cache.begin_load(sequence, &prompt, n.i32()).map(|begun| {
                let load = begun.load.map_or(0, |load| load.get() as i64);
                vec![load, i64::from(begun.begin), i64::from(begun.end)]
            })
        }
        "blocks_to_load" => {
            let to = cache.blocks_to_load(Load::from_raw(n.u64()), n.i32())?;
            assert_eq!(to.logical.len(), to.blocks.len());
            Ok(vec![to.blocks.len() as i64])
        }
        "finish_load" => {
            let load = Load::from_raw(n.u64());
            cache.finish_load(load, n.i32()).map(|stand| vec![i64::from(stand)])
        }
        "hold_blocks" => {
            let group = n.i32();
            cache.hold_blocks(group, &n.tokens()).map(|hold| vec![hold.get() as i64])
        }
        "release_hold" => none(cache.release_hold(Hold::from_raw(n.u64()))),
        "select_victim" => Ok(vec![cache.select_victim(n.policy()).map_or(0, number)]),
        "preempt_to" => cache.preempt_to(f64::from_bits(n.u64()), n.policy()).map(ended),
        other => panic!("{other} is unknown"),
    }
}

/// What only a step can do; None: it is nothing of a step.
fn call_step(step: &mut Step, call: &Call) -> Option<Result<Vec<i64>>> {
    let mut n = call.given();
    Some(match call.name {
        "append" => none(step.append_draft(n.sequence(), &n.tokens(), n.i32())),
        "append_unnamed" => none(step.append_unnamed_draft(n.sequence(), n.i64(), n.i32())),
        "append_each" => none(step.append_each(&n.sequences(), &n.tokens()).map_err(Error::from)),
        "append_unnamed_each" => {
            none(step.append_unnamed_each(&n.sequences()).map_err(Error::from))
        }
        "open_unnamed" => {
            let num_tokens = n.i64();
            let (root, media) = (n.root(), n.media());
            let options = n.options(&root, &media);
            step.open_unnamed(num_tokens, &options).map(|sequence| vec![number(sequence)])
        }
        "undo" => none(step.undo(n.sequence())),
        "run_copies" => none(step.run_copies()),
        "plan" => {
            let options = PlanOptions {
                caller_ids: false,
                pad_with_zero: n.bool(),
                no_block_tables: n.bool(),
                changed_entries: n.bool(),
                flashinfer: n.bool(),
                shared_prefixes: n.bool(),
                positions: n.bool(),
                ..PlanOptions::default()
            };
            let answer = step.plan(&options).map(|plan| numbers_of(&plan));
            if let Ok(numbers) = &answer {
                let again = step.plan_of(step.ticket()).expect("the plan is current");
                assert_eq!(&numbers_of(&again), numbers);
            }
            answer
        }
        _ => return None,
    })
}

const OF_A_STEP: [&str; 12] = [
    "append",
    "append_unnamed",
    "append_each",
    "append_unnamed_each",
    "open_unnamed",
    "undo",
    "run_copies",
    "plan",
    "commit",
    "finish",
    "drop",
    "begin_step",
];

/// Whether Rust has words for it: its enums have no other values than those of C.
fn can_be_said(call: &Call) -> bool {
    let mut n = call.given();
    let is_policy = |n: i64| (-1..4).contains(&n);
    match call.name {
        "select_victim" => is_policy(n.i64()),
        "preempt_to" => is_policy({
            n.i64();
            n.i64()
        }),
        "open" | "probe" | "admit_prompt" | "forget" | "pin" | "open_unnamed" => {
            if call.name == "open_unnamed" {
                n.i64();
            } else {
                n.tokens();
            }
            n.root();
            n.media();
            n.bool();
            n.bool();
            (0..3).contains(&n.i64())
        }
        _ => true,
    }
}

/// Repeats what was called until the step ended; returns how many calls that were.
fn repeat_step(mut step: Step, calls: &[Call], left_out: &mut usize) -> usize {
    for (at, call) in calls.iter().enumerate() {
        let ticket = || Ticket::from_raw(call.arguments[0] as u64);
        match call.name {
            "begin_step" => {
                assert_ne!(call.code, 0, "two steps at once");
                *left_out += 1;
            }
            "commit" | "finish" | "drop" if call.code != 0 => *left_out += 1,
            "commit" | "finish" | "drop" => {
                assert_eq!(step.ticket(), ticket());
                let ended = match call.name {
                    "commit" => step.commit().map(|_| vec![]),
                    "finish" => step.finish().map(|_| vec![]),
                    _ => {
                        step.roll_back();
                        Ok(vec![])
                    }
                };
                call.check(ended);
                return at + 1;
            }
            "fail" if call.code == 0 => {
                call.check(step.fail(ticket()).map(ended));
                return at + 1; // the step is over; what remains of it is dropped
            }
            _ => match call_step(&mut step, call) {
                Some(answer) => call.check(answer),
                None => call.check(call_manager(&mut step, call)),
            },
        }
    }
    calls.len()
}

fn repeat(calls: &[Call], left_out: &mut usize) {
    let mut cache = create(&calls[0]);
    let mut at = 1;
    while at < calls.len() {
        let call = &calls[at];
        at += 1;
        if call.name == "begin_step" {
            match cache.begin_step_at(call.arguments[0] as u64) {
                Ok(step) => {
                    call.check(Ok(vec![step.ticket().get() as i64]));
                    at += repeat_step(step, &calls[at..], left_out);
                }
                Err(error) => call.check(Err(error)),
            }
        } else if OF_A_STEP.contains(&call.name) {
            *left_out += 1; // without a step it did nothing
            assert!(call.code != 0 || call.results.is_empty(), "line {}", call.number);
        } else {
            call.check(call_manager(&mut cache, call));
        }
    }
    cache.check_invariants().unwrap();
}

#[test]
fn crate_answers_as_the_model_check_was_answered() {
    let program = match std::env::var("KVFOLIO_MODEL_CHECK_RECORD") {
        Ok(program) => program,
        Err(_) => {
            eprintln!("SKIPPED: KVFOLIO_MODEL_CHECK_RECORD names no program");
            return;
        }
    };
    let output = Command::new(program).arg("10000").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let mut calls: Vec<Call> =
        text.lines().enumerate().map(|(i, line)| Call::new(i + 1, line)).collect();
    let recorded = calls.len();
    calls.retain(can_be_said);
    let mut starts: Vec<usize> =
        (0..calls.len()).filter(|&at| calls[at].name.starts_with("create")).collect();
    assert_eq!(starts[0], 0);
    starts.push(calls.len());
    let mut left_out = recorded - calls.len();
    for run in starts.windows(2) {
        repeat(&calls[run[0]..run[1]], &mut left_out);
    }

    let mut names = BTreeMap::<&str, usize>::new();
    calls.iter().for_each(|call| *names.entry(call.name).or_default() += 1);
    println!("{} calls of {} runs, {left_out} left out: {names:?}", calls.len(), starts.len() - 1);
    let made = recorded - left_out;
    let errors = calls.iter().filter(|call| call.code != 0).count();
    assert!(made >= 10_000 && errors > 500 && errors < made / 2, "{made} calls, {errors} errors");
    assert!(names.len() >= 40, "some calls were never made: {names:?}");
}
