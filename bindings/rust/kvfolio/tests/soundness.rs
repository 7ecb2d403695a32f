// SPDX-License-Identifier: Apache-2.0
//
// What safe programs do that nobody would write: nothing of it may reach memory that is gone. Run it
// under valgrind to see more than the asserts do.

use kvfolio::*;
use std::alloc::{alloc_zeroed, dealloc, Layout};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::Arc;

fn group() -> GroupSpec {
    GroupSpec { head_dim_k: 4, head_dim_v: 4, num_blocks: 32, ..GroupSpec::default() }
}

fn cache() -> Cache {
    let options = Options { max_steps_in_flight: 3, ..Options::default() };
    Cache::with_storage(Storage::new(&[group()]).unwrap(), &options).unwrap()
}

/// Counts the bytes that are out.
struct Counting(Arc<AtomicI64>);
fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 64).unwrap()
}
unsafe impl MemoryResource for Counting {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Host
    }
    fn allocate(&self, bytes: usize) -> *mut u8 {
        self.0.fetch_add(bytes as i64, Ordering::Relaxed);
        unsafe { alloc_zeroed(layout(bytes)) }
    }
    unsafe fn deallocate(&self, memory: *mut u8, bytes: usize) {
        self.0.fetch_sub(bytes as i64, Ordering::Relaxed);
        dealloc(memory, layout(bytes));
    }
    unsafe fn copy(&self, dst: *mut u8, src: *const u8, bytes: usize) {
        std::ptr::copy_nonoverlapping(src, dst, bytes);
    }
}

#[test]
fn forgotten_step_stays_open_and_its_plan_is_found_until_it_is_dropped() -> Result<()> {
    let mut cache = cache();
    let a = cache.open(&[], &Default::default())?.sequence;
    let mut step = cache.begin_step()?;
    step.append(a, &[1, 2])?;
    step.plan(&Default::default())?;
    let ticket = step.ticket();
    std::mem::forget(step);
    assert_eq!(cache.plan_of(ticket).unwrap().num_tokens(), 2);
    assert!(matches!(cache.begin_step(), Err(Error::FailedPrecondition(_))));
    cache.drop_forgotten_step();
    assert!(cache.plan_of(ticket).is_none());
    assert_eq!(cache.info(a)?.length, 0);
    cache.drop_forgotten_step(); // nothing
    cache.begin_step()?.finish()?;
    cache.check_invariants()
}

#[test]
fn plans_of_steps_in_flight_end_with_their_steps() -> Result<()> {
    let mut cache = cache();
    let a = cache.open(&[], &Default::default())?.sequence;
    let mut tickets = Vec::new();
    for token in 0..3 {
        let mut step = cache.begin_step()?;
        step.append(a, &[token])?;
        step.plan(&Default::default())?;
        tickets.push(step.commit()?);
    }
    for (i, &ticket) in tickets.iter().enumerate() {
        assert_eq!(cache.plan_of(ticket).unwrap().group(0).slot_mapping(), [i as i32]);
    }
    cache.complete(tickets[1])?; // in order: the first one, too
    assert!(cache.plan_of(tickets[0]).is_none() && cache.plan_of(tickets[1]).is_none());
    assert_eq!(cache.plan_of(tickets[2]).unwrap().num_tokens(), 1);
    let mut step = cache.begin_step()?;
    step.append(a, &[3])?;
    step.plan(&Default::default())?;
    let open = step.ticket();
    step.append(a, &[4]).unwrap_err(); // may have changed it: plan it again
    assert!(step.plan_of(open).is_none());
    step.plan(&Default::default())?;
    assert_eq!(step.fail(tickets[2])?.len(), 1); // ends the open step under its feet
    assert!(step.plan_of(open).is_none() && step.plan_of(tickets[2]).is_none());
    assert!(matches!(step.commit(), Err(Error::FailedPrecondition(_))));
    cache.begin_step()?.finish()?;
    cache.check_invariants()
}

#[test]
fn exchanged_managers_give_errors() -> Result<()> {
    let (mut one, mut other) = (cache(), cache());
    let a = one.open(&[], &Default::default())?.sequence;
    let mut step = one.begin_step()?;
    step.append(a, &[1])?;
    std::mem::swap(&mut *step, &mut *other);
    assert!(step.append(a, &[2]).is_err() && step.plan(&Default::default()).is_err());
    assert!(step.commit().is_err());
    assert_eq!(other.num_sequences(), 1);
    assert!(other.view(0)?.k::<f32>(0, 31, 0, 15).is_some());
    other.drop_forgotten_step();
    drop(one);
    assert_eq!(other.info(a)?.length, 0);
    other.check_invariants()
}

#[test]
fn copy_onto_an_open_step_leaves_it_with_errors() -> Result<()> {
    let ids = || Cache::new(&[group()], &Options::default());
    let (mut from, mut to) = (ids()?, ids()?);
    let a = from.open(&[], &Default::default())?.sequence;
    let b = to.open(&[], &Default::default())?.sequence;
    let mut step = to.begin_step()?;
    step.append(b, &[1])?;
    step.plan(&Default::default())?;
    let ticket = step.ticket();
    from.copy_to(&mut step)?;
    assert!(step.plan_of(ticket).is_none());
    assert!(step.append(a, &[1]).is_err());
    assert!(step.finish().is_err());
    let mut step = from.begin_step()?;
    step.append(a, &[1])?;
    step.copy_to(&mut to)?; // with its open step
    drop(step);
    assert!(to.begin_step().is_err());
    to.drop_forgotten_step();
    to.check_invariants()
}

#[test]
fn resources_outlive_all_that_uses_them() -> Result<()> {
    let bytes = Arc::new(AtomicI64::new(0));
    let out = || bytes.load(Ordering::Relaxed);
    let resource = || Arc::new(Counting(bytes.clone()));
    let storage = Storage::with_resource(&[group()], resource())?;
    assert!(out() > 0);
    let bad = Options { max_sequences: -1, ..Options::default() };
    assert!(Cache::with_storage(storage, &bad).is_err());
    assert_eq!(out(), 0);
    let cache =
        Cache::with_storage(Storage::with_resource(&[group()], resource())?, &Default::default())?;
    assert!(out() > 0);
    drop(cache);
    assert_eq!(out(), 0);

    let options = TokenStoreOptions { head_dim_k: 4, max_tokens: 8, ..Default::default() };
    let mut store = TokenStore::with_resource(&options, resource())?;
    store.append(&[1f32; 8], &[])?;
    let copy = store.copy()?;
    let second = copy.copy()?;
    drop(store);
    drop(copy);
    assert_eq!(second.at::<f32>(1)?, [1.0; 4]);
    drop(second);
    assert_eq!(out(), 0);
    Ok(())
}

#[test]
fn rows_that_leave_their_slice_are_refused() -> Result<()> {
    let mut storage = Storage::new(&[group()])?;
    let mut views = storage.as_mut();
    let mut view = views.view(0)?;
    let data = [0f32; 8];
    let huge = usize::MAX / 2;
    let k = Rows::f32(&data, [2, 1, 4]);
    for rows in [
        Rows::f32(&data, [3, 1, 4]),
        Rows::f32(&data, [2, 1, 4]).strides(32, 16),
        Rows::f32(&data, [2, 1, 4]).strides(huge, huge),
        Rows::f32(&data, [huge, huge, huge]),
        Rows::f64(&[0.0; 8], [2, 1, 5]),
    ] {
        assert!(view.append_rows(0, rows, Some(k), &[0, 1]).is_err());
        assert!(view.append_rows(0, k, Some(rows), &[0, 1]).is_err());
    }
    for slots in [&[0][..], &[0, 1, 2], &[0, -2], &[0, 32 * 16], &[0, i32::MAX]] {
        assert!(view.append_rows(0, k, Some(k), slots).is_err(), "{slots:?}");
    }
    let mut out = [0f32; 4];
    let view = view.as_view();
    for (length, count, layers) in [(20, 2, 1), (1, 1, 2), (1, 1, i32::MAX), (-1, -1, -1)] {
        let options = GatherOptions {
            length,
            count,
            num_layers: layers,
            k_layer_stride: 16,
            ..Default::default()
        };
        let rows = RowsMut::f32(&mut out, [count.max(0) as usize, 1, 4]);
        assert!(view.gather(&[0, 1], &options, Some(rows), None).is_err(), "{options:?}");
    }
    for tables in [[0, 32], [-5, 0], [i32::MIN, i32::MAX]] {
        let options = GatherOptions { length: 20, first: 0, count: 20, ..Default::default() };
        let mut out = [0f32; 80];
        let rows = RowsMut::f32(&mut out, [20, 1, 4]);
        assert!(view.gather(&tables, &options, Some(rows), None).is_err());
    }
    Ok(())
}

#[test]
fn batches_of_wrong_sizes_are_refused() -> Result<()> {
    let storage = Storage::new(&[group()])?;
    let view = storage.view(0)?;
    let good = Batch {
        query_start: &[0, 1],
        kv_lens: &[1],
        block_table: &[0],
        block_table_stride: 1,
        ..Batch::default()
    };
    for batch in [
        Batch { query_start: &[0], ..good },
        Batch { query_start: &[], ..good },
        Batch { query_start: &[0, i32::MAX], ..good },
        Batch { kv_lens: &[1, 1], ..good },
        Batch { kv_lens: &[i32::MAX], ..good },
        Batch { block_table: &[], ..good },
        Batch { block_table: &[32], ..good },
        Batch { block_table_stride: -1, ..good },
        Batch { block_table_stride: i32::MAX, ..good },
        Batch { trim_sinks: &[0], ..good },
        Batch { trim_sinks: &[0, 0], trim_first_kept: &[0, 0], ..good },
    ] {
        let (mut out, mut workspace) = ([0f32; 4], vec![0; 1 << 16]);
        let answer = view.attend(Attention {
            batch,
            options: AttentionOptions::default(),
            q: Rows::f32(&[0.0; 4], [1, 1, 4]),
            out: RowsMut::f32(&mut out, [1, 1, 4]),
            lse: None,
            workspace: &mut workspace,
            executor: None,
        });
        assert!(answer.is_err(), "{batch:?}");
    }
    Ok(())
}

#[test]
fn threads_ask_and_attend_at_the_same_time() -> Result<()> {
    let mut cache = cache();
    let prompt: Vec<i32> = (0..100).collect();
    let a = cache.open(&prompt, &Default::default())?.sequence;
    let mut step = cache.begin_step()?;
    step.append(a, &prompt)?;
    let mut plan = step.plan(&Default::default())?;
    let arrays = plan.arrays();
    let data: Vec<f32> = (0..400).map(|i| i as f32 / 400.0).collect();
    let rows = Rows::f32(&data, [100, 1, 4]);
    plan.view_mut(0)?.append_rows(0, rows, Some(rows), arrays.group(0).slot_mapping())?;
    let view = plan.view(0)?;
    let pool = ThreadPool::new(2)?;
    let results: Vec<Vec<f32>> = std::thread::scope(|scope| {
        let attend = || {
            let bytes = view.attention_workspace_bytes(1, 100, Target::Auto, 2).unwrap();
            let mut out = vec![0f32; 400];
            let attention = Attention {
                batch: arrays.batch(0),
                options: AttentionOptions::default(),
                q: rows,
                out: RowsMut::f32(&mut out, [100, 1, 4]),
                lse: None,
                workspace: &mut vec![0; bytes as usize],
                executor: Some(&pool),
            };
            view.attend(attention).unwrap();
            out
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(attend)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(results.iter().all(|result| result == &results[0]));
    assert!(results[0].iter().any(|&x| x != 0.0));
    step.finish()?;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    assert_eq!(cache.probe(&prompt, &Default::default()).unwrap(), 96);
                    assert_eq!(cache.block_table(a, 0).unwrap().len(), 7);
                    assert_eq!(cache.info(a).unwrap().length, 100);
                }
            });
        }
    });
    Ok(())
}

#[test]
fn panic_in_a_callback_ends_the_program() {
    struct Panics;
    unsafe impl MemoryResource for Panics {
        fn kind(&self) -> MemoryKind {
            MemoryKind::Host
        }
        fn allocate(&self, _: usize) -> *mut u8 {
            panic!("no memory here")
        }
        unsafe fn deallocate(&self, _: *mut u8, _: usize) {}
        unsafe fn copy(&self, _: *mut u8, _: *const u8, _: usize) {}
    }
    if std::env::var("KVFOLIO_TEST_PANICS").is_ok() {
        let _ = Storage::with_resource(&[group()], Arc::new(Panics));
        std::process::exit(0); // it came back
    }
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["panic_in_a_callback_ends_the_program", "--exact", "--nocapture"])
        .env("KVFOLIO_TEST_PANICS", "1")
        .output()
        .unwrap();
    assert!(!output.status.success() && output.status.code().is_none(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("no memory here"));
}
