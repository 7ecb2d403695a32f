// SPDX-License-Identifier: Apache-2.0
//
// Safe programs that no engine would write: none of them may reach memory that is gone. Run them
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
    unsafe fn copy(&self, dst: *mut u8, src: *const u8, bytes: usize) -> Result<()> {
        std::ptr::copy_nonoverlapping(src, dst, bytes);
        Ok(())
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

    let mut blocks = BlockStore::with_resource(&group(), resource())?;
    assert!(out() > 0);
    let mut block = [0];
    blocks.allocate(&mut block)?;
    blocks.hold(&block)?;
    blocks.make_writable(block[0])?; // the resource copies
    drop(blocks);
    assert_eq!(out(), 0);
    let none = GroupSpec { num_blocks: 0, ..group() };
    assert!(BlockStore::with_resource(&none, resource()).is_err());
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
    for options in [
        AttentionOptions { alibi_slopes: &[0.5, 0.25], ..AttentionOptions::default() },
        AttentionOptions { sink_logits: &[f32::NAN], ..AttentionOptions::default() },
        AttentionOptions { window: 1, chunk: 1, ..AttentionOptions::default() },
    ] {
        let (mut out, mut workspace) = ([0f32; 4], vec![0; 1 << 16]);
        let answer = view.attend(Attention {
            batch: good,
            options,
            q: Rows::f32(&[0.0; 4], [1, 1, 4]),
            out: RowsMut::f32(&mut out, [1, 1, 4]),
            lse: None,
            workspace: &mut workspace,
            executor: None,
        });
        assert!(answer.is_err(), "{options:?}");
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
                workspace: &mut vec![0; bytes],
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
        unsafe fn copy(&self, _: *mut u8, _: *const u8, _: usize) -> Result<()> {
            Ok(())
        }
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

fn with_images() -> Cache {
    let options = Options { list_findable: true, max_transfers: 2, ..Options::default() };
    Cache::with_storage(Storage::new(&[group()]).unwrap(), &options).unwrap()
}

/// A cache that holds this prompt, and its sequence.
fn prefilled(prompt: &[i32]) -> Result<(Cache, Sequence)> {
    let mut cache = with_images();
    let sequence = cache.open(prompt, &Default::default())?.sequence;
    let mut step = cache.begin_step()?;
    step.append(sequence, prompt)?;
    let slots = step.plan(&Default::default())?.group(0).slot_mapping().to_vec();
    step.finish()?;
    let data: Vec<f32> = prompt.iter().flat_map(|&token| [token as f32; 4]).collect();
    let rows = Rows::f32(&data, [prompt.len(), 1, 4]);
    cache.view_mut(0)?.append_rows(0, rows, Some(rows), &slots)?;
    Ok((cache, sequence))
}

#[test]
fn loaded_blocks_have_the_bytes_of_their_images() -> Result<()> {
    let prompt: Vec<i32> = (0..48).collect();
    let (warm, a) = prefilled(&prompt)?;
    let storage = warm.storage().unwrap();
    let mut images = vec![0; 3 * storage.block_image_bytes(0)?];
    storage.read_blocks(0, warm.block_table(a, 0)?, &mut images)?;

    let mut cold = with_images();
    let b = cold.open(&prompt, &Default::default())?.sequence;
    let begun = cold.begin_load(b, &prompt, 48)?;
    let load = begun.load.unwrap();
    assert_eq!((begun.begin, begun.end, cold.info(b)?.load), (0, 48, Some(load)));
    assert_eq!((cold.usage(0)?.loading, cold.usage(0)?.held), (3, 3));
    let to = cold.blocks_to_load(load, 0)?.blocks;
    cold.storage_mut().unwrap().write_blocks(0, &to, &images)?;
    assert_eq!(cold.probe(&prompt, &Default::default())?, 0); // not findable before it is finished
    assert_eq!(cold.finish_load(load, 48)?, 48);
    assert_eq!((cold.info(b)?.length, cold.info(b)?.load), (48, None));
    assert_eq!(
        (cold.counters().tokens_loaded, cold.probe(&prompt, &Default::default())?),
        (48, 47)
    );
    let (from, view) = (warm.view(0)?, cold.view(0)?);
    for (i, (&there, &here)) in warm.block_table(a, 0)?.iter().zip(&to).enumerate() {
        for offset in 0..16 {
            let row = view.k::<f32>(0, here, 0, offset);
            assert_eq!(row, Some(&[(16 * i as i32 + offset) as f32; 4][..]));
            assert_eq!(row, from.k::<f32>(0, there, 0, offset));
        }
    }
    assert!(cold.begin_load(b, &prompt, 48)?.load.is_none()); // the cache has it all
    cold.check_invariants()
}

#[test]
fn forgotten_load_outlives_its_sequence_and_can_be_finished() -> Result<()> {
    let prompt: Vec<i32> = (0..32).collect();
    let mut cache = with_images();
    let a = cache.open(&prompt, &Default::default())?.sequence;
    cache.begin_load(a, &prompt, 32)?; // its answer is thrown away
    let mut step = cache.begin_step()?;
    assert!(matches!(step.append(a, &[1]), Err(Error::FailedPrecondition(_))));
    step.roll_back();
    let load = cache.info(a)?.load.expect("it is open");
    cache.close(a)?;
    assert_eq!(cache.usage(0)?.loading, 2); // something may still write them
    assert_eq!(cache.finish_load(load, 32)?, 0); // the sequence is gone
    assert_eq!(cache.usage(0)?.free, 32);
    assert!(matches!(cache.finish_load(load, 0), Err(Error::NotFound(_))));
    cache.check_invariants()
}

#[test]
fn held_blocks_keep_their_bytes_until_the_hold_ends() -> Result<()> {
    let prompt: Vec<i32> = (0..32).collect();
    let (mut cache, a) = prefilled(&prompt)?;
    let blocks = cache.block_table(a, 0)?.to_vec();
    let hold = cache.hold_blocks(0, &blocks)?;
    cache.close(a)?;
    cache.reset()?;
    assert_eq!((cache.usage(0)?.on_hold, cache.usage(0)?.held), (2, 2));
    let others = cache.open(&[], &Default::default())?.sequence;
    let mut step = cache.begin_step()?;
    let short = step.append(others, &[9; 31 * 16]).unwrap_err();
    assert!(matches!(short, Error::NoBlocks { shortage, .. } if shortage.holds == 1));
    step.append(others, &[9; 30 * 16])?;
    step.finish()?;
    assert_eq!(cache.view(0)?.k::<f32>(0, blocks[1], 0, 15), Some(&[31.0; 4][..]));
    let mut copy = with_images();
    assert!(matches!(cache.copy_to(&mut copy), Err(Error::FailedPrecondition(_))));
    cache.release_hold(hold)?;
    assert!(matches!(cache.release_hold(hold), Err(Error::NotFound(_))));
    cache.check_invariants()
}

#[test]
fn transfers_of_bad_input_are_refused_and_change_nothing() -> Result<()> {
    let prompt: Vec<i32> = (0..32).collect();
    let (mut cache, a) = prefilled(&prompt)?;
    let before = cache.describe();
    for end in [-1, 33, i32::MAX] {
        assert!(cache.begin_load(a, &prompt, end).is_err());
        assert!(cache.loadable(a, &prompt, end, &mut [&mut [true]]).is_err());
    }
    assert!(cache.begin_load(a, &[99; 40], 40).is_err()); // not its tokens
    assert!(cache.begin_load(Sequence::from_raw(77), &prompt, 32).is_err());
    assert!(cache.loadable(a, &prompt, 32, &mut []).is_err()); // there is one group
    assert!(cache.loadable(a, &prompt, 32, &mut [&mut [], &mut []]).is_err());
    assert!(cache.loadable(a, &prompt, 32, &mut [&mut [true]]).is_err()); // 32 tokens are two blocks
    assert_eq!(cache.loadable(a, &prompt, 32, &mut [&mut [false; 2]])?.end, 32);
    for load in [0, 1, u64::MAX].map(Load::from_raw) {
        assert!(cache.blocks_to_load(load, 0).is_err());
        assert!(cache.finish_load(load, 0).is_err());
    }
    for (group, blocks) in
        [(1, vec![0]), (-1, vec![0]), (0, vec![31]), (0, vec![32]), (0, vec![-1])]
    {
        assert!(cache.hold_blocks(group, &blocks).is_err(), "{group} {blocks:?}");
    }
    assert!(cache.release_hold(Hold::from_raw(u64::MAX)).is_err());
    let found = cache.take_findable(usize::MAX);
    assert_eq!((found.len(), cache.take_findable(usize::MAX).len()), (2, 0));
    assert!(cache.take_findable(0).is_empty());
    let block = found[0].block;
    for (group, block) in [(1, block), (-1, block), (0, 32), (0, -1), (0, 31)] {
        assert!(cache.prefix_of(group, block, 0, &mut []).is_err());
        assert!(cache.block_at(group, block, 0, 16).is_err());
    }
    for (begin, n) in [(-1, 1), (0, found[0].end as usize + 1), (i32::MAX, 1), (33, 0)] {
        assert!(cache.prefix_of(0, block, begin, &mut vec![0; n]).is_err(), "{begin} {n}");
    }
    for (of, end) in [(1, 16), (-1, 16), (0, 0), (0, 15), (0, -16), (0, 48)] {
        assert!(cache.block_at(0, block, of, end).is_err(), "{of} {end}");
    }
    assert!(cache.entry_serial(0, 32).is_err() && cache.entry_serial(1, 0).is_err());
    assert_eq!(cache.entry_serial(0, 31)?, None);

    let bytes = cache.storage().unwrap().block_image_bytes(0)?;
    assert_eq!(bytes, 2 * 16 * 4 * 4);
    assert!(cache.storage().unwrap().block_image_bytes(1).is_err());
    let wrong: [(&[i32], usize); 5] =
        [(&[0], bytes - 1), (&[0], 0), (&[32], bytes), (&[-1], bytes), (&[], 1)];
    for (blocks, n) in wrong {
        let read = cache.storage().unwrap().read_blocks(0, blocks, &mut vec![0; n]);
        assert!(read.is_err(), "{blocks:?} {n}");
        let written = cache.storage_mut().unwrap().write_blocks(0, blocks, &vec![0; n]);
        assert!(written.is_err(), "{blocks:?} {n}");
    }
    cache.storage_mut().unwrap().write_blocks(0, &[], &[])?;
    assert_eq!(cache.describe(), before);
    cache.check_invariants()
}

#[test]
fn plans_of_exchanged_steps_end_with_the_step_that_was_planned() -> Result<()> {
    let (mut one, mut other) = (cache(), cache());
    other.begin_step()?.finish()?; // so that the tickets of the two open steps differ
    let a = one.open(&[], &Default::default())?.sequence;
    let b = other.open(&[], &Default::default())?.sequence;
    let (mut first, mut second) = (one.begin_step()?, other.begin_step()?);
    let (of_one, of_other) = (first.ticket(), second.ticket());
    assert_ne!(of_one, of_other);
    first.append(a, &[1])?;
    second.append(b, &[2, 3])?;
    std::mem::swap(&mut *first, &mut *second);
    let plan = first.plan(&Default::default())?; // of the step that the manager has open
    assert_eq!((plan.ticket(), plan.num_tokens()), (of_other, 2));
    assert!(first.plan_of(of_one).is_none() && first.plan_of(of_other).is_some());
    first.undo(b)?; // changes it: neither number names arrays that C writes again
    assert!(first.plan_of(of_one).is_none() && first.plan_of(of_other).is_none());
    assert!(first.commit().is_err());
    assert!(second.commit().is_err());
    one.drop_forgotten_step();
    other.drop_forgotten_step();
    one.check_invariants()?;
    other.check_invariants()
}

#[test]
fn memory_that_is_not_aligned_is_refused_or_taken_as_it_is() -> Result<()> {
    let mut storage = Storage::new(&[group()])?;
    let data = [1f32; 16];
    let rows = |token, head| Rows::f32(&data, [2, 1, 4]).strides(token, head);
    let mut views = storage.as_mut();
    let mut view = views.view(0)?;
    for (token, head) in [(18, 16), (17, 17), (1, 1)] {
        let odd = rows(token, head);
        assert!(view.append_rows(0, odd, Some(odd), &[0, 1]).is_err(), "{token} {head}");
    }
    view.append_rows(0, rows(32, 16), Some(rows(32, 16)), &[0, 1])?;
    let view = storage.view(0)?;
    let bytes = view.attention_workspace_bytes(1, 2, Target::Auto, 1)?;
    let mut memory = vec![0u8; bytes + 64];
    for at in [0, 1, 3, 8, 63] {
        let mut out = [0f32; 4];
        let answer = view.attend(Attention {
            batch: Batch {
                query_start: &[0, 1],
                kv_lens: &[2],
                block_table: &[0],
                block_table_stride: 1,
                ..Batch::default()
            },
            options: AttentionOptions::default(),
            q: Rows::f32(&[0.0; 4], [1, 1, 4]),
            out: RowsMut::f32(&mut out, [1, 1, 4]),
            lse: None,
            workspace: &mut memory[at..at + bytes],
            executor: None,
        });
        assert!(answer.is_ok() == (out == [1.0; 4]), "{at}: {answer:?} {out:?}");
    }
    Ok(())
}

/// Memory of a device, as far as C can tell, with its own copies.
struct FakeDevice(Counting, Arc<AtomicI64>);
unsafe impl MemoryResource for FakeDevice {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Device
    }
    fn allocate(&self, bytes: usize) -> *mut u8 {
        self.0.allocate(bytes)
    }
    unsafe fn deallocate(&self, memory: *mut u8, bytes: usize) {
        self.0.deallocate(memory, bytes)
    }
    unsafe fn copy(&self, dst: *mut u8, src: *const u8, bytes: usize) -> Result<()> {
        self.0.copy(dst, src, bytes)
    }
    unsafe fn copy_in(&self, runs: &[CopyRun]) -> Result<()> {
        self.1.fetch_add(runs.len() as i64, Ordering::Relaxed);
        self.copy_batch(runs)
    }
    unsafe fn copy_out(&self, runs: &[CopyRun]) -> Result<()> {
        match self.1.load(Ordering::Relaxed) {
            0 => Err(Error::Unsupported("not yet".into())),
            i64::MIN..=-1 => Err(Error::TimedOut("the device is gone".into())),
            _ => self.copy_batch(runs),
        }
    }
}

#[test]
fn images_of_a_device_go_through_its_resource() -> Result<()> {
    let (bytes, runs) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
    let device = Arc::new(FakeDevice(Counting(bytes.clone()), runs.clone()));
    let mut storage = Storage::with_resource(&[group()], device)?;
    assert_eq!(storage.memory_kind(), MemoryKind::Device);
    let size = storage.block_image_bytes(0)?;
    let mut image = vec![0u8; size];
    let refused = storage.read_blocks(0, &[3], &mut image); // copy_out() cannot
    assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
    let written: Vec<u8> = (0..size).map(|i| i as u8).collect();
    storage.as_mut().write_blocks(0, &[3], &written)?;
    assert!(runs.load(Ordering::Relaxed) > 0);
    storage.read_blocks(0, &[3], &mut image)?;
    assert_eq!(image, written);
    let copied = runs.swap(-1, Ordering::Relaxed);
    let failed = storage.read_blocks(0, &[3], &mut image);
    assert!(
        matches!(&failed, Err(Error::Unavailable(text)) if text.contains("timed out")),
        "{failed:?}"
    );
    runs.store(copied, Ordering::Relaxed);
    assert!(storage.view(0)?.k::<f32>(0, 3, 0, 0).is_none()); // not a slice of the CPU
    assert!(storage.view(0)?.k_scale(0, 3, 0, 0).is_none());
    drop(storage);
    assert_eq!(bytes.load(Ordering::Relaxed), 0);
    Ok(())
}

#[test]
fn every_value_can_be_shown_and_errors_say_themselves_once() -> Result<()> {
    let mut cache = cache();
    let a = cache.open(&[1, 2], &Default::default())?.sequence;
    let shown = [
        format!("{:?}", cache.storage().unwrap()),
        format!("{:?}", cache.view(0)?),
        format!("{:?}", cache.view_mut(0)?),
        format!("{:?}", Rows::f32(&[0.0; 4], [1, 1, 4])),
        format!("{:?}", ThreadPool::new(1)?),
        format!("{:?}", Root::new(&RootKey::default())?),
    ];
    assert!(shown.iter().all(|text| !text.is_empty()), "{shown:?}");
    let mut step = cache.begin_step()?;
    step.append(a, &[1, 2])?;
    assert_eq!(format!("{step:?}"), format!("Step({})", step.ticket()));
    let stopped = step.append_each(&[Sequence::from_raw(5)], &[1]).unwrap_err();
    let source = std::error::Error::source(&stopped);
    assert!(source.is_none() && stopped.to_string().contains("append_each: at 0: "), "{stopped}");
    let plan = step.plan(&Default::default())?;
    assert!(format!("{plan:?}").contains("kv_lens: [2]"), "{plan:?}");
    for group in [1, -1] {
        let asked = std::panic::AssertUnwindSafe(|| plan.group(group).block_table_stride());
        assert!(std::panic::catch_unwind(asked).is_err());
    }
    Ok(())
}

#[test]
fn open_step_allows_what_the_documentation_says() -> Result<()> {
    let mut cache = cache();
    let a = cache.open(&[1, 2, 3, 4], &Default::default())?.sequence;
    let b = cache.open(&[5, 6], &Default::default())?.sequence;
    let mut step = cache.begin_step()?;
    step.append(a, &[1, 2, 3, 4])?;
    step.append(b, &[5, 6])?;
    step.finish()?;
    let mut step = cache.begin_step()?;
    step.append(a, &[7])?;
    let refused = [
        step.append(a, &[8]),
        step.truncate(a, 2),
        step.clear(a),
        step.trim(a, 1, 1).map(drop),
        step.close(a),
        step.accept(a, 0),
        step.reserve(a, 8, 1),
        step.fork(a, &Default::default()).map(drop),
        step.begin_load(a, &[1, 2, 3, 4, 7, 8], 6).map(drop),
    ];
    for answer in refused {
        assert!(matches!(answer, Err(Error::FailedPrecondition(_))), "{answer:?}");
    }
    let blocks = step.block_table(a, 0)?.to_vec();
    assert!(step.hold_blocks(0, &blocks).is_err()); // the step writes to it
    step.set_priority(a, 3)?;
    step.undo(a)?;
    step.append(a, &[8])?;
    // Those that are not in the step: everything.
    let c = step.fork(b, &Default::default())?;
    step.truncate(c, 1)?;
    step.close(c)?;
    let pin = step.pin(&[5, 6], &Default::default())?.pin;
    step.unpin(pin)?;
    step.reserve(b, 8, 1)?;
    let d = step.open(&[9; 32], &Default::default())?.sequence;
    let load = step.begin_load(d, &[9; 32], 32)?.load.unwrap();
    assert_eq!(step.finish_load(load, 32)?, 32);
    step.reset()?;
    step.preempt(a)?; // out of the step first
    assert!(step.plan(&Default::default())?.sequences().is_empty());
    step.finish()?;
    cache.check_invariants()
}
