// SPDX-License-Identifier: Apache-2.0
//
// The operation log: what it writes, and that an error of it changes nothing else.

use kvfolio::*;
use std::io::{self, BufWriter, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Bytes that outlive the writer, and how often it was flushed.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>, Arc<AtomicUsize>);

impl Shared {
    fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }
}

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        self.1.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Takes some calls of write(), then fails or panics at each, and counts those.
struct Failing {
    takes: usize,
    how: fn() -> io::Result<usize>,
    failures: Arc<AtomicUsize>,
}

impl Write for Failing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.takes > 0 {
            self.takes -= 1;
            return Ok(bytes.len());
        }
        self.failures.fetch_add(1, Ordering::Relaxed);
        (self.how)()
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn cache() -> Cache {
    let group = GroupSpec { head_dim_k: 4, block_size: 4, num_blocks: 32, ..GroupSpec::default() };
    Cache::new(&[group], &Options::default()).unwrap()
}

/// Calls of several kinds, two that fail among them, and all their answers as text. There are
/// `rounds` times 8 calls that change the cache.
fn run(cache: &mut Cache, rounds: i32) -> String {
    let mut said = String::new();
    for round in 0..rounds {
        let prompt: Vec<i32> = (0..20 + round % 7).collect();
        let opened = cache.open(&prompt, &Default::default()).unwrap();
        let mut step = cache.begin_step().unwrap();
        let rest = &prompt[opened.cached_tokens as usize..];
        let answers = (step.append(opened.sequence, rest), step.append(opened.sequence, &[-1]));
        said += &format!("{opened:?} {answers:?} ");
        said += &format!("{:?}", step.plan(&Default::default()).unwrap().group(0).slot_mapping());
        said += &format!("{:?}", step.finish());
        let closed = (cache.close(opened.sequence), cache.close(opened.sequence));
        said += &format!("{closed:?} {:?}\n", cache.usage(0));
    }
    said += &format!("{:?}", cache.state_hash());
    said
}

/// The size of a log's header: magic, format, size, that many bytes, and a hash.
fn header_bytes(log: &[u8]) -> usize {
    20 + u32::from_le_bytes(log[12..16].try_into().unwrap()) as usize
}

#[test]
fn a_file_to_which_a_log_is_being_written_is_refused_and_keeps_what_it_has() -> Result<()> {
    let path = std::env::temp_dir().join(format!("kvfolio-oplog-locked-{}", std::process::id()));
    let mut cache = cache();
    cache.record(Some(OpLog::create(&path, true)?))?;
    run(&mut cache, 3);
    match OpLog::create(&path, false) {
        Err(Error::Unavailable(why)) => {
            assert!(why.contains(path.to_str().unwrap()), "{why}");
            assert!(why.contains("another log is being written to it"), "{why}");
        }
        other => panic!("{other:?}"),
    }
    run(&mut cache, 3);
    let log = cache.record(None)?.unwrap();
    log.status()?;
    assert_eq!(log.num_calls(), 6 * 8);
    assert!(std::fs::read(&path).unwrap().len() > 100);
    drop(log);
    OpLog::create(&path, false)?; // it is given back
    assert!(std::fs::read(&path).unwrap().is_empty());
    std::fs::remove_file(&path).unwrap();
    Ok(())
}

#[test]
fn equal_runs_write_equal_bytes_to_a_writer_and_to_a_file() -> Result<()> {
    let path = std::env::temp_dir().join(format!("kvfolio-oplog-{}", std::process::id()));
    let (one, two, again) = (Shared::default(), Shared::default(), Shared::default());
    let logs = [
        OpLog::to_writer(one.clone(), false)?,
        OpLog::to_writer(two.clone(), true)?,
        OpLog::to_writer(again.clone(), true)?,
        OpLog::create(&path, false)?,
    ];
    let expected = run(&mut cache(), 300);
    for log in logs {
        let mut cache = cache();
        assert!(cache.record(Some(log))?.is_none());
        assert_eq!(run(&mut cache, 300), expected);
        let log = cache.record(None)?.unwrap();
        log.status()?;
        assert_eq!(log.num_calls(), 300 * 8);
        assert!(cache.op_log().is_none());
    }
    let file = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(file.len() > 16384, "{} bytes fill no buffer", file.len());
    assert_eq!(one.bytes(), file);
    // What each call flushes is a piece of its own, with a checksum.
    assert!(two.bytes() == again.bytes() && two.bytes().len() > file.len());
    assert_eq!(one.1.load(Ordering::Relaxed), 0);
    assert!(two.1.load(Ordering::Relaxed) >= 300 * 8, "the writer is flushed before each call");
    Ok(())
}

#[test]
fn other_tokens_write_other_bytes() -> Result<()> {
    let mut logs = Vec::new();
    for token in [5, 6] {
        let bytes = Shared::default();
        let mut cache = cache();
        cache.record(Some(OpLog::to_writer(bytes.clone(), false)?))?;
        cache.open(&[token; 9], &Default::default())?;
        cache.record(None)?;
        logs.push(bytes.bytes());
    }
    assert_ne!(logs[0], logs[1]);
    Ok(())
}

#[test]
fn writer_that_fails_ends_the_log_and_changes_no_answer() -> Result<()> {
    let expected = run(&mut cache(), 300);
    let kinds: [(fn() -> io::Result<usize>, &str); 4] = [
        (|| Err(io::Error::new(io::ErrorKind::Other, "the disk is full")), "the disk is full"),
        (|| Ok(0), "failed to write whole buffer"),
        (|| panic!("no writer"), "the writer panicked: no writer"),
        (|| std::panic::panic_any(7), "the writer panicked"),
    ];
    for (how, why) in kinds {
        for takes in [0, 1, 100] {
            let failures = Arc::new(AtomicUsize::new(0));
            let writer = Failing { takes, how, failures: failures.clone() };
            let mut cache = cache();
            cache.record(Some(OpLog::to_writer(writer, true)?))?;
            assert_eq!(run(&mut cache, 300), expected);
            let said = cache.op_log().unwrap().status();
            assert_eq!(said, Err(Error::Unavailable(why.into())));
            assert_eq!(cache.flush_op_log(), said);
            let mut log = cache.record(None)?.unwrap();
            assert_eq!((log.status(), log.flush()), (said.clone(), said));
            assert_eq!(log.num_calls(), 300 * 8);
            drop(log);
            assert_eq!(failures.load(Ordering::Relaxed), 1, "it is not called again");
        }
    }
    Ok(())
}

#[test]
fn writer_that_cannot_be_flushed_ends_the_log() -> Result<()> {
    let failing = |failures: &Arc<AtomicUsize>| {
        let how = || Err(io::Error::new(io::ErrorKind::Other, "gone"));
        BufWriter::new(Failing { takes: 0, how, failures: failures.clone() })
    };
    let failures = Arc::new(AtomicUsize::new(0));
    let mut cache = cache();
    cache.record(Some(OpLog::to_writer(failing(&failures), false)?))?;
    cache.open(&[1], &Default::default())?;
    cache.op_log().unwrap().status()?; // the writer was not asked yet
    let gone = Err(Error::Unavailable("gone".into()));
    assert_eq!(cache.flush_op_log(), gone);
    assert_eq!(cache.op_log().unwrap().status(), gone);
    Ok(())
}

#[test]
fn log_that_is_dropped_first_is_written_whole_and_the_cache_goes_on() -> Result<()> {
    let bytes = Shared::default();
    let mut cache = cache();
    cache.record(Some(OpLog::to_writer(bytes.clone(), false)?))?;
    run(&mut cache, 3);
    let header = bytes.bytes();
    assert_eq!(header.len(), header_bytes(&header), "the buffer has the calls");
    drop(cache.record(None)?);
    let whole = bytes.bytes();
    assert!(whole.len() > header.len());
    run(&mut cache, 3);
    assert_eq!(bytes.bytes(), whole);
    assert_eq!(Arc::strong_count(&bytes.0), 1, "the writer went with the log");
    cache.flush_op_log()?; // there is none
    cache.check_invariants()
}

#[test]
fn cache_that_is_dropped_while_it_records_leaves_all_calls_without_an_end() -> Result<()> {
    let (whole, cut) = (Shared::default(), Shared::default());
    for (bytes, ends) in [(&whole, true), (&cut, false)] {
        let mut cache = cache();
        cache.record(Some(OpLog::to_writer(BufWriter::new(bytes.clone()), false)?))?;
        run(&mut cache, 3);
        if ends {
            cache.record(None)?;
        }
    }
    assert_eq!(Arc::strong_count(&cut.0), 1, "the writer went with the cache");
    let (whole, cut) = (whole.bytes(), cut.bytes());
    assert!(cut.len() > 100 && cut.len() < whole.len());
    // One piece of calls each, whose header says how long it is.
    let calls = header_bytes(&whole) + 12;
    assert_eq!(cut[..calls - 12], whole[..calls - 12]);
    assert_eq!(cut[calls..], whole[calls..cut.len()]);
    Ok(())
}

#[test]
fn next_log_ends_the_one_before_and_begins_only_with_a_new_cache() -> Result<()> {
    let (one, two) = (Shared::default(), Shared::default());
    let mut cache = cache();
    cache.record(Some(OpLog::to_writer(one, false)?))?;
    run(&mut cache, 1);
    let first = cache.record(Some(OpLog::to_writer(two.clone(), false)?))?.unwrap();
    first.status()?;
    let calls = first.num_calls();
    run(&mut cache, 1);
    assert_eq!(first.num_calls(), calls);
    let late = cache.op_log().unwrap();
    assert!(matches!(late.status(), Err(Error::FailedPrecondition(_))), "{late:?}");
    assert_eq!((late.num_calls(), two.bytes().len()), (0, 0));

    // A log with calls of one recording takes none of another.
    let mut other = self::cache();
    other.record(Some(first))?;
    other.open(&[1], &Default::default())?;
    let first = other.record(None)?.unwrap();
    assert!(matches!(first.status(), Err(Error::FailedPrecondition(_))), "{first:?}");
    assert_eq!(first.num_calls(), calls);
    Ok(())
}

#[test]
fn copy_ends_the_log_of_its_target() -> Result<()> {
    let (from, mut to) = (cache(), cache());
    to.record(Some(OpLog::to_writer(io::sink(), false)?))?;
    from.copy_to(&mut to)?;
    to.open(&[1], &Default::default())?;
    let log = to.op_log().unwrap();
    assert!(matches!(log.status(), Err(Error::FailedPrecondition(_))), "{log:?}");
    Ok(())
}

#[test]
fn log_moves_with_its_cache_and_threads_ask_it() -> Result<()> {
    fn is_send_and_sync<T: Send + Sync>(_: &T) {}
    let bytes = Shared::default();
    let mut cache = cache();
    cache.record(Some(OpLog::to_writer(bytes.clone(), false)?))?;
    is_send_and_sync(cache.op_log().unwrap());
    let mut cache = std::thread::spawn(move || {
        run(&mut cache, 2);
        cache
    })
    .join()
    .unwrap();
    let calls = cache.op_log().unwrap().num_calls();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| assert_eq!(cache.op_log().unwrap().num_calls(), calls));
        }
    });
    let log = cache.record(None)?.unwrap();
    std::thread::spawn(move || drop(log)).join().unwrap();
    assert!(bytes.bytes().len() > 100);
    Ok(())
}

#[test]
fn path_that_cannot_be_is_refused_with_its_name() {
    let error = OpLog::create("/nowhere/calls.oplog", false).unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)));
    assert!(error.message().contains("/nowhere/calls.oplog"), "{error}");
    assert!(matches!(OpLog::create("a\0b", false), Err(Error::InvalidArgument(_))));
}
