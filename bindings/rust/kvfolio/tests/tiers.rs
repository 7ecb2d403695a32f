// SPDX-License-Identifier: Apache-2.0
//
// What a safe program may do with tiers: end things in any order, exchange caches, keep items for
// ever, work in several threads.

use kvfolio::tiers::*;
use kvfolio::*;
use std::collections::HashMap;
use std::io::Cursor;
use std::mem::{forget, swap};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex};

const MODEL: ModelIdentity = ModelIdentity {
    model: "toy",
    weights: "1",
    tokenizer: "ids",
    model_dtype: "f32",
    positions: "none",
    engine: "test",
    layers: "",
    scales: "",
    shard: 0,
    num_shards: 0,
    pipeline_rank: 0,
    num_pipeline_ranks: 0,
    context_rank: 0,
    num_context_ranks: 0,
};
const GROUP: GroupSpec = GroupSpec {
    rewind: 0,
    num_layers: 1,
    num_kv_heads: 1,
    head_dim_k: 8,
    head_dim_v: 8,
    v_is_prefix_of_k: false,
    block_size: 4,
    dtype: DType::F32,
    format: Format::Hnd,
    kind: Kind::Full,
    num_blocks: 16,
};

fn cache() -> Cache {
    let options = Options { list_findable: true, ..Options::default() };
    Cache::with_storage(Storage::new(&[GROUP]).unwrap(), &options).unwrap()
}

fn offload(tiers: Vec<OffloadTier>) -> Offload {
    let options = OffloadOptions { arena_bytes: 1 << 16, ..OffloadOptions::default() };
    Offload::new(cache(), &MODEL, &options, tiers).unwrap()
}

fn prompt(number: i32) -> Vec<i32> {
    (0..9).map(|i| number * 100 + i).collect()
}

/// Computes what is missing: every row of a token has the token's number.
fn compute(cache: &mut Cache, sequence: Sequence, tokens: &[i32], from: i32) {
    let rest = &tokens[from as usize..];
    let mut step = cache.begin_step().unwrap();
    step.append(sequence, rest).unwrap();
    let mut plan = step.plan(&Default::default()).unwrap();
    plan.run_copies().unwrap();
    let rows: Vec<f32> = rest.iter().flat_map(|token| [*token as f32; 8]).collect();
    let rows = Rows::f32(&rows, [rest.len(), 1, 8]);
    let slots = plan.group(0).slot_mapping();
    plan.view_mut(0).unwrap().append_rows(0, rows, Some(rows), slots).unwrap();
    step.finish().unwrap();
}

fn check_rows(cache: &Cache, sequence: Sequence, tokens: &[i32]) {
    let table = cache.block_table(sequence, 0).unwrap();
    let view = cache.storage().unwrap().view(0).unwrap();
    for (p, token) in tokens.iter().enumerate() {
        let row = view.k::<f32>(0, table[p / 4], 0, (p % 4) as i32).unwrap();
        assert_eq!(row, [*token as f32; 8], "token {p}");
    }
}

/// Opens, polls until it is ready, checks what came, computes the rest. Returns what was found.
fn serve(offload: &mut Offload, tokens: &[i32], now_us: &mut u64) -> (i32, Option<LoadEnd>) {
    let opened = offload.open(tokens, &Default::default()).unwrap();
    let mut found = opened.cached_tokens;
    let mut why = None;
    while opened.pending && why.is_none() {
        *now_us += 1000;
        for ready in offload.poll(*now_us) {
            assert_eq!(ready.sequence, opened.sequence);
            found = ready.cached_tokens;
            why = Some(ready.why);
        }
    }
    check_rows(offload, opened.sequence, &tokens[..found as usize]);
    compute(offload, opened.sequence, tokens, found);
    offload.close(opened.sequence).unwrap();
    offload.check_invariants().unwrap();
    (found, why)
}

fn drain(offload: &mut Offload, now_us: &mut u64) {
    for _ in 0..10_000 {
        *now_us += 10;
        if !offload.drain(*now_us).unwrap().any() {
            return;
        }
        std::thread::yield_now();
    }
    panic!("never drained: {offload:?}");
}

type Records = Arc<Mutex<HashMap<Key, Vec<u8>>>>;

fn perform(records: &Records, item: &mut Item) -> TierResult {
    let mut records = records.lock().unwrap();
    match item.op() {
        TierOp::Exists if records.contains_key(item.key()) => TierResult::Ok,
        TierOp::Exists => TierResult::Miss,
        TierOp::Erase => {
            records.remove(item.key());
            TierResult::Ok
        }
        TierOp::Store => {
            let record = item.record().to_vec();
            records.entry(*item.key()).or_insert(record);
            TierResult::Ok
        }
        TierOp::Load => match records.get(item.key()) {
            Some(record) if record.len() == item.bytes() => {
                item.buffer().copy_from_slice(record);
                TierResult::Ok
            }
            Some(_) => TierResult::Corrupt,
            None => TierResult::Miss,
        },
    }
}

/// A tier whose work is done by a thread of its own.
struct Threaded {
    work: Option<Sender<Item>>,
    done: Receiver<(Item, TierResult)>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Threaded {
    fn new(records: Records) -> Threaded {
        let (work, to_do) = channel::<Item>();
        let (say, done) = channel();
        let thread = std::thread::spawn(move || {
            for mut item in to_do {
                let result = perform(&records, &mut item);
                let _ = say.send((item, result));
            }
        });
        Threaded { work: Some(work), done, thread: Some(thread) }
    }
}

impl Tier for Threaded {
    fn name(&self) -> String {
        "threaded".into()
    }
    fn submit(&mut self, _op: TierOp, items: &mut Items<'_>, _deadline_us: u64) {
        let work = self.work.as_ref().unwrap();
        items.for_each(|item| work.send(item).unwrap());
    }
    fn poll(&mut self, _now_us: u64, done: &mut Completions<'_>) {
        self.done.try_iter().for_each(|(item, result)| done.finish(item, result));
    }
    fn health(&self) -> TierHealth {
        TierHealth { loads_ok: 3, ..TierHealth::default() }
    }
}

impl Drop for Threaded {
    fn drop(&mut self) {
        self.work = None;
        self.thread.take().unwrap().join().unwrap();
    }
}

/// A request that comes while a step is open is not for the cache alone.
#[test]
fn open_inside_a_step_asks_host_memory_and_tiers() {
    let mut now_us = 0;
    let mut warm = offload(Vec::new());
    assert_eq!(serve(&mut warm, &prompt(1), &mut now_us).0, 0);
    drain(&mut warm, &mut now_us);
    warm.evict(0, 16, &mut []).unwrap();
    let running = warm.open(&[5], &Default::default()).unwrap().sequence;
    let mut step = warm.begin_step().unwrap();
    step.append(running, &[5]).unwrap();
    let opened = step.open(&prompt(1), &Default::default()).unwrap();
    assert!(opened.pending && opened.cached_tokens == 0, "{opened:?}");
    let other = step.open(&prompt(1), &Default::default()).unwrap();
    assert_eq!(step.cancel(other.sequence).unwrap(), 0); // it does not wait
    step.finish().unwrap();
    let ready = loop {
        now_us += 1000;
        if let Some(ready) = warm.poll(now_us).first() {
            break *ready;
        }
    };
    assert_eq!((ready.sequence, ready.cached_tokens), (opened.sequence, 8));
    check_rows(&warm, opened.sequence, &prompt(1)[..8]);

    // What is forgotten in a step is forgotten below, too.
    warm.close(opened.sequence).unwrap();
    warm.close(other.sequence).unwrap();
    let mut step = warm.begin_step().unwrap();
    step.reset().unwrap();
    step.roll_back();
    assert_eq!(serve(&mut warm, &prompt(1), &mut now_us).0, 0);
}

#[test]
fn a_tier_may_work_in_a_thread_of_its_own() {
    let records = Records::default();
    let mut now_us = 0;
    let tier = TierHandle::new(Threaded::new(records.clone())).unwrap();
    assert_eq!((tier.name(), tier.event_fd()), ("threaded", None));
    let mut first = offload(vec![tier.into()]);
    assert_eq!(serve(&mut first, &prompt(1), &mut now_us).0, 0);
    drain(&mut first, &mut now_us);
    assert_eq!(records.lock().unwrap().len(), 2);
    drop(first);

    let tier = TierHandle::new(Threaded::new(records)).unwrap();
    let options = OffloadOptions {
        arena_bytes: 1 << 16,
        timeout_us: u64::MAX / 4, // the test's clock runs faster than the thread
        ..OffloadOptions::default()
    };
    let mut second = Offload::new(cache(), &MODEL, &options, vec![tier.into()]).unwrap();
    assert_eq!(serve(&mut second, &prompt(1), &mut now_us), (8, Some(LoadEnd::Loaded)));
    assert_eq!(second.offload_counters().tier_loads, 2);
}

#[test]
fn what_host_memory_has_comes_back() {
    let mut now_us = 0;
    let mut offload = offload(Vec::new());
    for number in 1..4 {
        assert_eq!(serve(&mut offload, &prompt(number), &mut now_us).0, 0);
        drain(&mut offload, &mut now_us);
    }
    assert!(offload.idle());
    assert_eq!(offload.arena().records, 6);
    offload.evict(0, 16, &mut []).unwrap();
    for number in [3, 1, 2] {
        assert_eq!(serve(&mut offload, &prompt(number), &mut now_us).0, 8);
    }
}

/// Keeps every item, and finishes none.
#[derive(Default)]
struct Hoarder(Arc<Mutex<Vec<Item>>>);

impl Tier for Hoarder {
    fn submit(&mut self, _op: TierOp, items: &mut Items<'_>, _deadline_us: u64) {
        self.0.lock().unwrap().extend(items);
    }
    fn poll(&mut self, _now_us: u64, _done: &mut Completions<'_>) {}
}

#[test]
fn memory_of_an_item_outlives_everything() {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let mut now_us = 0;
    let mut offload = offload(vec![TierHandle::new(Hoarder(kept.clone())).unwrap().into()]);
    let (found, why) = serve(&mut offload, &prompt(1), &mut now_us);
    assert_eq!((found, why), (0, Some(LoadEnd::Timeout)));
    for _ in 0..10 {
        now_us += 10;
        offload.poll(now_us);
    }
    drop(offload);
    let items = std::mem::take(&mut *kept.lock().unwrap());
    let stores: Vec<&Item> = items.iter().filter(|item| item.op() == TierOp::Store).collect();
    assert_eq!(stores.len(), 2);
    for item in stores {
        assert_eq!(&item.record()[..4], b"KVFR"); // it is there still
    }
}

/// Gives its items to another tier, which finishes them.
struct Thief {
    items: Arc<Mutex<Vec<Item>>>,
    gives: bool,
}

impl Tier for Thief {
    fn submit(&mut self, _op: TierOp, items: &mut Items<'_>, _deadline_us: u64) {
        self.items.lock().unwrap().extend(items);
    }
    fn poll(&mut self, _now_us: u64, done: &mut Completions<'_>) {
        if !self.gives {
            self.items.lock().unwrap().drain(..).for_each(|one| done.finish(one, TierResult::Ok));
        }
    }
}

#[test]
fn an_item_is_finished_by_its_own_tier_only() {
    // In a process of its own: a panic in a tier ends it.
    if std::env::var_os("KVFOLIO_TEST_THIEF").is_some() {
        let items = Arc::new(Mutex::new(Vec::new()));
        let tiers = [true, false]
            .map(|gives| TierHandle::new(Thief { items: items.clone(), gives }).unwrap().into());
        let mut now_us = 0;
        serve(&mut offload(tiers.into()), &prompt(1), &mut now_us);
        return;
    }
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["an_item_is_finished_by_its_own_tier_only", "--exact", "--nocapture"])
        .env("KVFOLIO_TEST_THIEF", "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("by the tier that accepted it"), "{text}");
}

#[test]
fn a_cache_that_was_exchanged_is_not_touched() {
    let mut now_us = 0;
    let mut one = offload(Vec::new());
    serve(&mut one, &prompt(1), &mut now_us);
    let mut other = cache();
    swap(&mut *one, &mut other);
    let error = one.open(&prompt(2), &Default::default()).unwrap_err();
    assert!(matches!(error, Error::FailedPrecondition(_)), "{error}");
    assert!(one.poll(1).is_empty() && !one.idle());
    assert!(one.reset().is_err() && one.check_invariants().is_err());
    assert!(one.cancel(Sequence::from_raw(1)).is_err() && one.drain(1).is_err());
    assert!(one.epoch().is_err() && one.epochs().is_err());
    swap(&mut *one, &mut other);
    one.check_invariants().unwrap();
    assert_eq!(serve(&mut one, &prompt(1), &mut now_us).0, 8);

    // Its own cache ends first, and another one may get its address.
    drop(std::mem::replace(&mut *one, cache()));
    assert!(one.open(&prompt(1), &Default::default()).is_err());
    for _ in 0..8 {
        drop(std::mem::replace(&mut *one, cache()));
        assert!(one.check_invariants().is_err());
        assert!(one.epoch().is_err() && one.epochs().is_err());
    }
    assert!(!one.idle());
    drop(one);

    // Two that exchange their caches.
    let (mut a, mut b) = (offload(Vec::new()), offload(Vec::new()));
    swap(&mut *a, &mut *b);
    drop(a);
    assert!(b.check_invariants().is_err());
    drop(b);

    // Two that are exchanged themselves are whole.
    let (mut a, mut b) = (offload(Vec::new()), offload(Vec::new()));
    serve(&mut a, &prompt(1), &mut now_us);
    swap(&mut a, &mut b);
    a.check_invariants().unwrap();
    assert_eq!(serve(&mut b, &prompt(1), &mut now_us).0, 8);
}

#[test]
fn a_step_that_was_forgotten_is_an_error() {
    let mut one = offload(Vec::new());
    let opened = one.open(&[], &Default::default()).unwrap();
    let mut step = one.begin_step().unwrap();
    step.append(opened.sequence, &[1]).unwrap();
    forget(step);
    one.poll(1);
    assert!(one.save(&mut Vec::new(), &Default::default()).is_err());
    one.drop_forgotten_step();
    one.save(&mut Vec::new(), &Default::default()).unwrap();
}

#[test]
fn a_refused_cache_comes_back() {
    let mut cache = cache();
    let sequence = cache.open(&[], &Default::default()).unwrap().sequence;
    let poor = ModelIdentity { tokenizer: "", ..MODEL };
    let options = OffloadOptions { arena_bytes: 1 << 16, ..OffloadOptions::default() };
    let refused = Offload::new(cache, &poor, &options, Vec::new()).unwrap_err();
    assert!(refused.error.message().contains("tokenizer"), "{refused}");
    assert!(std::error::Error::source(&refused).is_some());
    let cache = *refused.cache;
    assert_eq!(cache.info(sequence).unwrap().length, 0);
    let offload = Offload::new(cache, &MODEL, &options, Vec::new()).unwrap();
    assert_eq!(offload.into_cache().num_sequences(), 1);
}

#[test]
fn caches_in_threads_share_a_tier_in_memory() {
    let mut first = cache();
    let tier = TierHandle::memory(&mut first, 1 << 18).unwrap();
    let tiers: Vec<_> = (0..4).map(|_| tier.share().unwrap()).collect();
    std::thread::scope(|scope| {
        for (t, tier) in tiers.into_iter().enumerate() {
            scope.spawn(move || {
                let mut now_us = 0;
                let mut offload = offload(vec![tier.into()]);
                for i in 0..40 {
                    serve(&mut offload, &prompt((i * (t as i32 + 1)) % 10), &mut now_us);
                    offload.poll(now_us);
                    offload.evict(0, 16, &mut []).unwrap();
                }
                drain(&mut offload, &mut now_us);
            });
        }
    });
    let mut last = offload(vec![tier.into()]);
    assert_eq!(serve(&mut last, &prompt(0), &mut 0), (8, Some(LoadEnd::Loaded)));
}

#[test]
fn records_on_a_disk_outlive_their_tier() {
    let directory = std::env::temp_dir().join(format!("kvfolio-test-disk-{}", std::process::id()));
    let options = DiskOptions { bytes: 1 << 20, ..DiskOptions::default() };
    let mut now_us = 0;
    for run in 0..2 {
        let tier = TierHandle::disk(&directory, &options).unwrap();
        assert_eq!(tier.disk_stats().unwrap().recovered, 2 * run);
        let options = OffloadOptions {
            arena_bytes: 1 << 16,
            timeout_us: u64::MAX / 4, // the test's clock runs faster than a disk
            ..OffloadOptions::default()
        };
        let mut one = Offload::new(cache(), &MODEL, &options, vec![tier.into()]).unwrap();
        assert_eq!(serve(&mut one, &prompt(1), &mut now_us).0, 8 * run as i32);
        while one.drain(now_us).unwrap().any() {
            std::thread::yield_now();
        }
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

struct Full;
impl std::io::Write for Full {
    fn write(&mut self, _bytes: &[u8]) -> std::io::Result<usize> {
        Err(std::io::Error::new(std::io::ErrorKind::Other, "the disk is full"))
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn save_and_restore_say_what_is_wrong() {
    let mut now_us = 0;
    let mut one = offload(Vec::new());
    serve(&mut one, &prompt(1), &mut now_us);
    let error = one.save(&mut Full, &Default::default()).unwrap_err();
    assert_eq!(error, Error::Unavailable("the disk is full".into()));
    let mut file = Cursor::new(Vec::new());
    let stats = one.save(&mut file, &Default::default()).unwrap();
    assert_eq!((stats.records, stats.bytes), (3, file.get_ref().len() as i64));

    let mut names = Identity::new(&ModelIdentity { weights: "2", ..MODEL }, &[GROUP]).unwrap();
    let error = restore(&mut cache(), &mut names, &mut file).unwrap_err();
    assert!(error.message().contains("weights"), "{error}");
    let error = restore(&mut cache(), &mut names, &mut Cursor::new([7u8; 500])).unwrap_err();
    assert!(matches!(error, Error::Corrupt(_)), "{error}");
    assert!(matches!(one.save_file("a\0b", &Default::default()), Err(Error::InvalidArgument(_))));
    assert!(matches!(one.restore_file("/no/such/file"), Err(Error::Unavailable(_))));

    let mut two = offload(Vec::new());
    let restored = two.restore(&mut file).unwrap();
    assert_eq!((restored.stats.records_loaded, restored.sequences.len()), (3, 0));
    assert_eq!(serve(&mut two, &prompt(1), &mut now_us).0, 8);
}
