// SPDX-License-Identifier: Apache-2.0
//
// The module `cuda` over libkvfolio_cuda as it is on this machine, which may have no driver; and, with
// KVFOLIO_FAKE_CUDA, over the one whose driver is none and runs kernels on the CPU (tests/fake_cuda),
// for one thread: `check` runs these tests twice.

use kvfolio::cuda::*;
use kvfolio::{
    Attention, Bases, Batch, Borrowed, BorrowedGroup, Cache, DType, Error, Format, GatherOptions,
    GroupSpec, Options, PlanOptions, Rows, RowsMut, Storage, Strides, View,
};
use std::sync::Arc;

fn is_fake() -> bool {
    std::env::var_os("KVFOLIO_FAKE_CUDA").is_some()
}

const TOKENS: usize = 10;
const TABLE: [i32; 3] = [4, 1, 2];

fn group() -> GroupSpec {
    GroupSpec {
        num_kv_heads: 2,
        head_dim_k: 16,
        head_dim_v: 16,
        block_size: 4,
        num_blocks: 6,
        ..GroupSpec::default()
    }
}

fn slots() -> Vec<i32> {
    (0..TOKENS).map(|i| TABLE[i / 4] * 4 + (i % 4) as i32).collect()
}

fn rows(divisor: usize) -> Vec<f32> {
    (0..TOKENS * 32).map(|i| (i % divisor) as f32 / 8.0 - 1.0).collect()
}

struct Machine {
    device: Device,
    kernels: Kernels,
    memory: Arc<DeviceMemory>,
    stream: Stream,
}

fn machine() -> Machine {
    let device = Device::open(0).unwrap();
    let kernels = Kernels::load(&device, true).unwrap();
    let options = MemoryOptions { staging_bytes: 4096, ..MemoryOptions::default() };
    let memory = DeviceMemory::new(&device, Some(&kernels), &options).unwrap();
    let stream = Stream::new(&device).unwrap();
    Machine { device, kernels, memory, stream }
}

fn zeroed(mut storage: Storage) -> Storage {
    let bytes = storage.block_image_bytes(0).unwrap() * 6;
    storage.as_mut().write_blocks(0, &[0, 1, 2, 3, 4, 5], &vec![0; bytes]).unwrap();
    storage
}

fn images(storage: &Storage) -> Vec<u8> {
    let mut out = vec![0; storage.block_image_bytes(0).unwrap() * 6];
    storage.read_blocks(0, &[0, 1, 2, 3, 4, 5], &mut out).unwrap();
    out
}

#[test]
fn a_machine_without_a_driver_says_what_is_missing() {
    if is_fake() || available().is_ok() {
        return;
    }
    let error = Device::open(0).unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    assert!(error.message().len() > 20, "{error}");
    assert_eq!(available().unwrap_err().message(), error.message());
    assert_eq!(num_devices().unwrap_err().message(), error.message());
    assert!(kernel_revision() >= 1);
}

#[test]
fn a_device_says_what_it_is() {
    if !is_fake() {
        return;
    }
    available().unwrap();
    assert_eq!(num_devices().unwrap(), 2);
    let device = Device::open(1).unwrap();
    assert_eq!((device.name(), device.target(), device.ordinal()), ("Fake 1", "cuda-sm90", 1));
    assert_eq!((device.capability(), device.num_multiprocessors()), ((9, 0), 132));
    device.status().unwrap();
    device.synchronize().unwrap();
    assert!(matches!(Device::open(2), Err(Error::InvalidArgument(_))));
}

#[test]
fn moves_write_the_bytes_of_the_cpu() {
    if !is_fake() {
        return;
    }
    let mut m = machine();
    let mut on_device = zeroed(Storage::with_resource(&[group()], m.memory.clone()).unwrap());
    let mut on_host = zeroed(Storage::new(&[group()]).unwrap());
    let (k, v) = (rows(23), rows(19));
    let shape = [TOKENS, 2, 16];
    let mut views = on_host.as_mut();
    let mut host = views.view(0).unwrap();
    let v_rows = Some(Rows::f32(&v, shape));
    host.append_rows(0, Rows::f32(&k, shape), v_rows, &slots()).unwrap();
    host.copy_blocks(&[4, 1], &[0, 3]).unwrap();

    let on = |data: &DeviceBuffer| DeviceRows::new(data.as_ptr(), DType::F32, [10, 2, 16]);
    let (k_there, v_there) = (m.memory.upload(&k).unwrap(), m.memory.upload(&v).unwrap());
    let places = m.memory.upload(&slots()).unwrap();
    let fault = m.memory.upload(&[NO_ENTRY]).unwrap();
    let (stream, word) = (m.stream.handle(), fault.as_ptr().cast());
    let mut views = on_device.as_mut();
    let mut device = views.view(0).unwrap();
    // SAFETY: all of it lives until synchronize(), and the stream is the only user.
    unsafe {
        let (k, v, slots) = (on(&k_there), Some(on(&v_there)), places.as_ptr().cast());
        m.kernels.append(&mut device, 0, k, v, slots, stream, word).unwrap();
        m.kernels.copy_blocks(&mut device, &[4], &[0], stream).unwrap();
    }
    m.stream.synchronize().unwrap();
    assert_eq!(fault.download::<u64>().unwrap(), [NO_ENTRY]);
    Kernels::slot_fault(&device.as_view(), NO_ENTRY).unwrap();
    // From another storage of the same memory, and back to a buffer.
    let mut other = zeroed(Storage::with_resource(&[group()], m.memory.clone()).unwrap());
    let back = m.memory.buffer(k.len() * 4).unwrap();
    let table = m.memory.upload(&TABLE).unwrap();
    let all = GatherOptions { length: 10, count: 10, ..GatherOptions::default() };
    let mut others = other.as_mut();
    let mut to = others.view(0).unwrap();
    // SAFETY: as above.
    unsafe {
        let from = device.as_view();
        m.kernels.fill(&mut to, 0, stream).unwrap();
        m.kernels.convert_blocks(&from, &mut to, &[1], &[3], stream).unwrap();
        let table = table.as_ptr().cast();
        let k = Some(on(&back));
        m.kernels.gather(&from, table, 3, &all, k, None, stream, word).unwrap();
        m.kernels.copy_blocks(&mut device, &[1], &[3], stream).unwrap();
    }
    m.stream.synchronize().unwrap();
    assert_eq!(back.download::<f32>().unwrap(), k);
    assert_eq!(images(&on_device), images(&on_host));
    let (all, bytes) = (images(&on_device), on_device.block_image_bytes(0).unwrap());
    assert_eq!(images(&other)[3 * bytes..4 * bytes], all[3 * bytes..4 * bytes]);
    m.memory.take_error().unwrap();
}

#[test]
fn a_wrong_slot_is_named_by_its_word() {
    if !is_fake() {
        return;
    }
    let mut m = machine();
    let mut storage = Storage::with_resource(&[group()], m.memory.clone()).unwrap();
    let row = m.memory.upload(&[0.5f32; 32]).unwrap();
    let slot = m.memory.upload(&[24]).unwrap();
    let fault = m.memory.upload(&[NO_ENTRY]).unwrap();
    let mut views = storage.as_mut();
    let mut view = views.view(0).unwrap();
    let rows = DeviceRows::new(row.as_ptr(), DType::F32, [1, 2, 16]);
    let (places, word) = (slot.as_ptr().cast(), fault.as_ptr().cast());
    let stream = m.stream.handle();
    // SAFETY: all of it lives until synchronize().
    unsafe { m.kernels.append(&mut view, 0, rows, Some(rows), places, stream, word).unwrap() };
    m.stream.synchronize().unwrap();
    let word = fault.download::<u64>().unwrap()[0];
    let error = Kernels::slot_fault(&view.as_view(), word).unwrap_err();
    assert!(error.message().contains("slots[0] is 24"), "{error}");
    assert!(Kernels::table_fault(&view.as_view(), word).is_err());
    // With the check of pointers a slice of the host is an error by name.
    let mut there = [0f32; 32];
    let on_host = DeviceRows::new(there.as_mut_ptr().cast(), DType::F32, [1, 2, 16]);
    // SAFETY: it is refused.
    let error = unsafe {
        let places = slot.as_ptr().cast();
        m.kernels.append(&mut view, 0, on_host, Some(rows), places, stream, std::ptr::null_mut())
    };
    assert!(error.unwrap_err().message().starts_with("k is memory of the host"));
}

#[test]
fn attention_is_near_that_of_the_cpu() {
    if !is_fake() {
        return;
    }
    let mut m = machine();
    let mut on_host = zeroed(Storage::new(&[group()]).unwrap());
    let (k, v) = (rows(23), rows(19));
    let shape = [TOKENS, 2, 16];
    let v_rows = Some(Rows::f32(&v, shape));
    let mut views = on_host.as_mut();
    let mut host = views.view(0).unwrap();
    host.append_rows(0, Rows::f32(&k, shape), v_rows, &slots()).unwrap();
    let mut on_device = Storage::with_resource(&[group()], m.memory.clone()).unwrap();
    on_device.as_mut().write_blocks(0, &[0, 1, 2, 3, 4, 5], &images(&on_host)).unwrap();

    let q: Vec<f32> = (0..2 * 4 * 16).map(|i| (i % 7) as f32 / 4.0 - 0.5).collect();
    let mut want = vec![0f32; q.len()];
    let view = on_host.view(0).unwrap();
    let bytes = view.attention_workspace_bytes(4, 10, Default::default(), 1).unwrap();
    view.attend(Attention {
        batch: Batch {
            query_start: &[0, 2],
            kv_lens: &[10],
            block_table: &TABLE,
            block_table_stride: 3,
            ..Batch::default()
        },
        options: Default::default(),
        q: Rows::f32(&q, [2, 4, 16]),
        out: RowsMut::f32(&mut want, [2, 4, 16]),
        lse: None,
        workspace: &mut vec![0; bytes],
        executor: None,
    })
    .unwrap();

    let on = |data: &DeviceBuffer| DeviceRows::new(data.as_ptr(), DType::F32, [2, 4, 16]);
    let (q_there, mut out) = (m.memory.upload(&q).unwrap(), m.memory.buffer(q.len() * 4).unwrap());
    let (starts, lens) = (m.memory.upload(&[0, 2]).unwrap(), m.memory.upload(&[10]).unwrap());
    let table = m.memory.upload(&TABLE).unwrap();
    let lengths: [*const i32; 2] = [starts.as_ptr().cast(), lens.as_ptr().cast()];
    let (q_rows, out_rows) = (on(&q_there), on(&out));
    let table = table.as_ptr().cast();
    let args = DeviceAttention::new(&[0, 2], &[10], lengths, table, 3, q_rows, out_rows);
    let view = on_device.view(0).unwrap();
    let plan = m.kernels.plan_attend(&view, &args).unwrap();
    assert_eq!(plan.target(), "cuda-sm90-general");
    assert!(plan.zeroed_bytes() <= plan.workspace_bytes());
    let mut pinned = PinnedBuffer::new(&m.device, plan.image().len()).unwrap();
    let mut image = m.memory.buffer(plan.image().len()).unwrap();
    let mut workspace = m.memory.buffer(plan.workspace_bytes().max(1)).unwrap();
    let stream = m.stream.handle();
    // SAFETY: all of it lives until synchronize().
    unsafe {
        m.kernels.upload(&plan, &mut pinned, &mut image, &mut workspace, stream).unwrap();
        m.kernels.attend(&view, &args, &plan, &image, &mut workspace, stream).unwrap();
    }
    m.stream.synchronize().unwrap();
    let got = out.download::<f32>().unwrap();
    assert!(got.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-5), "{got:?}\n{want:?}");
    assert!(got[0] != 0.0);
    let mut paged = BatchCase {
        cache: &view,
        host: on_host.view(0).unwrap(),
        q: q_rows,
        out: out_rows,
        buffer: &mut out,
        want: &got,
    };
    batch_attention(&mut m, &mut paged, plan.shape());
    let wrong = DeviceAttention { kv_lens: &[], ..args };
    assert!(m.kernels.plan_attend(&view, &wrong).unwrap_err().message().contains("query_start"));
    let mut small = m.memory.buffer(1).unwrap();
    // SAFETY: it is refused.
    let error = unsafe { m.kernels.upload(&plan, &mut pinned, &mut small, &mut workspace, stream) };
    assert!(error.unwrap_err().message().starts_with("image has 1 bytes"));
}

struct BatchCase<'a> {
    cache: &'a View<'a>,
    host: View<'a>,
    q: DeviceRows,
    out: DeviceRows,
    buffer: &'a mut DeviceBuffer,
    want: &'a [f32],
}

// What is there once the stream has passed; zeros from then on.
fn got(m: &mut Machine, buffer: &mut DeviceBuffer) -> Vec<f32> {
    m.stream.synchronize().unwrap();
    let got = buffer.download::<f32>().unwrap();
    buffer.write(0, &vec![0; got.len() * 4]).unwrap();
    got
}

// What the call gave that has the arrays one by one, from FlashInfer's; in a graph, too.
fn batch_attention(m: &mut Machine, case: &mut BatchCase, wanted: AttendShape) {
    let options = BatchAttentionOptions {
        max_sequences: 2,
        max_pages_of_sequence: 3,
        workspace_bytes: 1 << 16,
        ..BatchAttentionOptions::default()
    };
    let mut batch = BatchAttention::new(&m.kernels, &options).unwrap();
    assert!(batch.device_bytes() > 1 << 16 && batch.pinned_bytes() > 0);
    assert_eq!((batch.target(), batch.shape()), ("", AttendShape::default()));
    // An engine's own tensors, with the rows of the cache.
    let rows = |row: &dyn Fn(i32, i32, i32) -> *const u8| {
        let rows = (0..6 * 2 * 4).map(|i| row(i / 8, i / 4 % 2, i % 4).cast::<f32>());
        // SAFETY: rows of 16 floats, of a storage that lives.
        rows.flat_map(|row| unsafe { std::slice::from_raw_parts(row, 16) }.to_vec())
            .collect::<Vec<f32>>()
    };
    let k = m.memory.upload(&rows(&|b, h, t| case.host.k_pointer(0, b, h, t))).unwrap();
    let v = m.memory.upload(&rows(&|b, h, t| case.host.v_pointer(0, b, h, t))).unwrap();
    let tensors = PagedKv {
        k: k.as_ptr(),
        v: v.as_ptr(),
        layout: Format::Hnd,
        num_pages: 6,
        page_size: 4,
        num_kv_heads: 2,
        head_dim: 16,
        dtype: DType::F32,
    };
    // SAFETY: the storage of the case outlives it.
    let pages = unsafe { PagedView::new(&tensors).unwrap() };
    let step = BatchAttentionPlan {
        qo_indptr: Some(&[0, 2]),
        kv_indptr: &[0, 3],
        kv_indices: &TABLE,
        kv_last_page_len: &[2],
        num_qo_heads: 4,
        causal: true,
        q_data_type: DType::F32,
        o_data_type: DType::F32,
        ..BatchAttentionPlan::default()
    };
    let stream = m.stream.handle();
    let null = std::ptr::null_mut();
    got(m, case.buffer);
    // SAFETY: all of it lives until synchronize(), and the stream is the only user.
    unsafe {
        let none = batch.run(case.q, case.cache, 0, case.out, null, stream);
        assert!(matches!(none, Err(Error::FailedPrecondition(_))), "{none:?}");
        batch.plan(&step, case.cache, stream).unwrap();
        assert_eq!((batch.target(), batch.shape()), ("cuda-sm90-general", wanted));
        assert_eq!((wanted.num_sequences(), wanted.num_rows()), (1, 2));
        batch.run(case.q, case.cache, 0, case.out, null, stream).unwrap();
        assert_eq!(got(m, case.buffer), case.want);
        let view = pages.view();
        batch.plan(&step, &view, stream).unwrap();
        let mut graph = Graph::capture(&m.device, stream, || {
            batch.run(case.q, &view, 0, case.out, null, stream)
        })
        .unwrap();
        assert!(
            got(m, case.buffer)[0] == 0.0 && !graph.handle().is_null(),
            "a capture runs nothing"
        );
        for _ in 0..2 {
            graph.launch(stream).unwrap();
            assert_eq!(got(m, case.buffer), case.want);
        }
        // What cannot be captured, and what the function says, is the answer; the stream goes on.
        let plan = Graph::capture(&m.device, stream, || batch.plan(&step, &view, stream));
        assert!(matches!(plan, Err(Error::FailedPrecondition(_))), "{plan:?}");
        let waits = Graph::capture(&m.device, stream, || m.stream.synchronize());
        assert!(matches!(waits, Err(Error::Unavailable(_))), "{waits:?}");
        let legacy = Graph::capture(&m.device, null.cast(), || Ok(()));
        assert!(matches!(legacy, Err(Error::InvalidArgument(_))), "{legacy:?}");
        let (device, catch) = (&m.device, std::panic::AssertUnwindSafe);
        let panicked = std::panic::catch_unwind(catch(|| {
            Graph::capture(device, stream, || panic!("of the function")).is_ok()
        }));
        assert!(panicked.is_err());
        m.stream.synchronize().unwrap();
        for (wrong, why) in [
            (
                BatchAttentionPlan { kv_indices: &[4, 6, 2], ..step },
                "kv_indices[1] is 6, allowed: 0 to 5",
            ),
            (BatchAttentionPlan { kv_indptr: &[], ..step }, "kv_indptr has 0 entries, allowed: 2"),
            (
                BatchAttentionPlan { qo_indptr: Some(&[]), ..step },
                "qo_indptr has 0 entries, allowed: 2",
            ),
            (BatchAttentionPlan { window_left: -2, ..step }, "window_left is -2, allowed: -1"),
        ] {
            let error = batch.plan(&wrong, &view, stream).unwrap_err();
            assert!(error.message().contains(why), "{error}");
        }
    }
    // SAFETY: it is refused.
    let none = unsafe { PagedView::new(&PagedKv { k: null.cast(), ..tensors }) };
    assert!(matches!(none, Err(Error::InvalidArgument(_))), "{none:?}");
    let none = BatchAttentionOptions { max_sequences: 0, ..options };
    assert!(matches!(BatchAttention::new(&m.kernels, &none), Err(Error::InvalidArgument(_))));
}

// Two sequences at most, of three blocks and two queries; numbers lie on the device, too.
struct PaddedBatch {
    query_start: Vec<i32>,
    kv_lens: Vec<i32>,
}

impl PaddedBatch {
    fn new(query_start: &[i32], kv_lens: &[i32]) -> PaddedBatch {
        PaddedBatch { query_start: query_start.to_vec(), kv_lens: kv_lens.to_vec() }
    }
    fn rows(&self, at: &DeviceBuffer) -> DeviceRows {
        DeviceRows::new(at.as_ptr(), DType::F32, [*self.query_start.last().unwrap(), 4, 16])
    }
}

fn bytes_of<T: Copy>(values: &[T]) -> &[u8] {
    // SAFETY: numbers without padding.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), std::mem::size_of_val(values)) }
}

// A graph that plans on the device has, for each batch within the capacity, the bits of a plan of its own
// and the image of the host's padded plan; a larger batch is refused by number on the host, and reported
// by the word of the device.
#[test]
fn one_graph_serves_every_batch_within_its_capacity() {
    if !is_fake() {
        return;
    }
    let mut m = machine();
    let mut on_device = Storage::with_resource(&[group()], m.memory.clone()).unwrap();
    let size = on_device.block_image_bytes(0).unwrap() * 6;
    let cached: Vec<f32> = (0..size / 4).map(|i| (i % 23) as f32 / 8.0 - 1.0).collect();
    on_device.as_mut().write_blocks(0, &[0, 1, 2, 3, 4, 5], bytes_of(&cached)).unwrap();
    let view = on_device.view(0).unwrap();
    let q: Vec<f32> = (0..4 * 4 * 16).map(|i| (i % 11) as f32 / 4.0 - 1.0).collect();
    let (q_there, mut out) = (m.memory.upload(&q).unwrap(), m.memory.buffer(q.len() * 4).unwrap());
    let table = m.memory.upload(&[4, 1, 2, 0, 3, 5]).unwrap();
    let mut starts = m.memory.upload(&[0, 0, 0]).unwrap();
    let mut lens = m.memory.upload(&[0, 0]).unwrap();
    let mut counts = m.memory.upload(&[0]).unwrap();
    let mut word = m.memory.buffer(8).unwrap();
    word.write(0, bytes_of(&[NO_ENTRY])).unwrap();
    let lengths: [*const i32; 2] = [starts.as_ptr().cast(), lens.as_ptr().cast()];
    let on_it = (counts.as_ptr().cast::<i32>(), word.as_ptr().cast::<u64>());
    let (q_at, out_at) = (q_there.as_ptr(), out.as_ptr());
    let args_of = |batch: &'static PaddedBatch| {
        let rows = |at| DeviceRows { data: at, ..batch.rows(&q_there) };
        let (starts, lens) = (&batch.query_start, &batch.kv_lens);
        let table = table.as_ptr().cast();
        DeviceAttention::new(starts, lens, lengths, table, 3, rows(q_at), rows(out_at))
    };
    let mut tell = |m: &mut Machine, batch: &PaddedBatch| {
        m.stream.synchronize().unwrap();
        starts.write(0, bytes_of(&batch.query_start)).unwrap();
        if !batch.kv_lens.is_empty() {
            lens.write(0, bytes_of(&batch.kv_lens)).unwrap();
        } else {
            starts.write(0, bytes_of(&[0, 0])).unwrap();
        }
        counts.write(0, bytes_of(&[batch.kv_lens.len() as i32])).unwrap();
    };
    let capacity = AttendCapacity {
        max_sequences: 2,
        max_sequence_tokens: 12,
        max_queries: 2,
        ..AttendCapacity::default()
    };
    let batches: &'static [PaddedBatch] = Box::leak(Box::new([
        PaddedBatch::new(&[0, 2], &[10]),
        PaddedBatch::new(&[0, 1, 3], &[3, 12]),
        PaddedBatch::new(&[0], &[]),
        PaddedBatch::new(&[0, 0, 1], &[7, 9]),
        PaddedBatch::new(&[0, 1, 2], &[3, 13]), // larger
    ]));
    let stream = m.stream.handle();
    let plan = m.kernels.plan_attend_padded(&view, &args_of(&batches[0]), &capacity).unwrap();
    assert_eq!(plan.capacity(), AttendCapacity { max_tokens: 24, ..capacity });
    assert!(plan.explain().starts_with("cuda-sm90-general: cuda-"), "{}", plan.explain());
    let mut pinned = PinnedBuffer::new(&m.device, plan.image().len()).unwrap();
    let mut image = m.memory.buffer(plan.image().len()).unwrap();
    let mut workspace = m.memory.buffer(plan.workspace_bytes().max(1)).unwrap();
    // SAFETY: all of it lives until synchronize(), and the stream is the only user.
    unsafe {
        let args = args_of(&batches[0]);
        let mut graph = Graph::capture(&m.device, stream, || {
            let (image, workspace) = (&mut image, &mut workspace);
            m.kernels
                .plan_on_device(&view, &args, &plan, image, workspace, stream, on_it.0, on_it.1)?;
            m.kernels.attend(&view, &args, &plan, image, workspace, stream)
        })
        .unwrap();
        for batch in &batches[..4] {
            let args = args_of(batch);
            let own = m.kernels.plan_attend(&view, &args).unwrap();
            let mut own_image = m.memory.buffer(own.image().len().max(1)).unwrap();
            let mut own_space = m.memory.buffer(own.workspace_bytes().max(1)).unwrap();
            tell(&mut m, batch);
            got(&mut m, &mut out);
            if *batch.query_start.last().unwrap() > 0 {
                m.kernels
                    .upload(&own, &mut pinned, &mut own_image, &mut own_space, stream)
                    .unwrap();
                m.kernels.attend(&view, &args, &own, &own_image, &mut own_space, stream).unwrap();
            }
            let want = got(&mut m, &mut out);
            assert_eq!(want[0] != 0.0, !batch.kv_lens.is_empty());
            let host = m.kernels.plan_attend_padded(&view, &args, &capacity).unwrap();
            assert_eq!(host.shape(), plan.shape());
            plan.check(&args).unwrap();
            graph.launch(stream).unwrap();
            assert_eq!(got(&mut m, &mut out), want);
            assert_eq!(image.download::<u8>().unwrap(), host.image());
            let fault = word.download::<u64>().unwrap()[0];
            Kernels::plan_fault(&plan, fault).unwrap();
            assert_eq!(own.capacity(), AttendCapacity { max_queries: 1, ..Default::default() });
            let error = own.check(&args).unwrap_err();
            assert!(matches!(error, Error::FailedPrecondition(_)), "{error}");
        }
        let larger = args_of(&batches[4]);
        let error = plan.check(&larger).unwrap_err();
        assert!(error.message().contains("kv_lens[1] is 13"), "{error}");
        let error = m.kernels.plan_attend_padded(&view, &larger, &capacity).unwrap_err();
        assert!(error.message().contains("kv_lens[1] is 13"), "{error}");
        tell(&mut m, &batches[4]);
        graph.launch(stream).unwrap();
        assert!(got(&mut m, &mut out).iter().all(|x| *x == 0.0), "an empty plan writes no row");
        let fault = word.download::<u64>().unwrap()[0];
        let error = Kernels::plan_fault(&plan, fault).unwrap_err();
        assert!(error.message().contains("sequence 1 of the batch on the device"), "{error}");
        let mut small = m.memory.buffer(1).unwrap();
        let null = std::ptr::null();
        let none = std::ptr::null_mut();
        let args = args_of(&batches[0]);
        let (kernels, space) = (&m.kernels, &mut workspace);
        let error =
            kernels.plan_on_device(&view, &args, &plan, &mut small, space, stream, null, none);
        assert!(error.unwrap_err().message().starts_with("image has 1 bytes"));
    }
    let none = AttendCapacity { max_sequences: 0, ..capacity };
    let error = m.kernels.plan_attend_padded(&view, &args_of(&batches[0]), &none).unwrap_err();
    assert!(error.message().contains("capacity.max_sequences is 0, allowed: 1"), "{error}");
}

#[test]
fn a_padded_batch_attention_has_one_shape_and_refuses_what_its_graph_cannot_serve() {
    if !is_fake() {
        return;
    }
    let mut m = machine();
    let mut on_device = Storage::with_resource(&[group()], m.memory.clone()).unwrap();
    let size = on_device.block_image_bytes(0).unwrap() * 6;
    let cached: Vec<f32> = (0..size / 4).map(|i| (i % 23) as f32 / 8.0 - 1.0).collect();
    on_device.as_mut().write_blocks(0, &[0, 1, 2, 3, 4, 5], bytes_of(&cached)).unwrap();
    let view = on_device.view(0).unwrap();
    let q: Vec<f32> = (0..2 * 4 * 16).map(|i| (i % 11) as f32 / 4.0 - 1.0).collect();
    let (q_there, mut out) = (m.memory.upload(&q).unwrap(), m.memory.buffer(q.len() * 4).unwrap());
    let options = BatchAttentionOptions {
        max_sequences: 2,
        max_pages_of_sequence: 3,
        workspace_bytes: 1 << 16,
        padded: true,
        max_tokens: 20,
        ..BatchAttentionOptions::default()
    };
    let plain = BatchAttentionOptions { padded: false, max_tokens: 0, ..options };
    let mut batch = BatchAttention::new(&m.kernels, &options).unwrap();
    let mut own = BatchAttention::new(&m.kernels, &plain).unwrap();
    let step = BatchAttentionPlan {
        kv_indptr: &[0, 3, 4],
        kv_indices: &[4, 1, 2, 0],
        kv_last_page_len: &[2, 3],
        num_qo_heads: 4,
        q_data_type: DType::F32,
        o_data_type: DType::F32,
        ..BatchAttentionPlan::default()
    };
    let shorter = BatchAttentionPlan { kv_indptr: &[0, 2], kv_last_page_len: &[4], ..step };
    let stream = m.stream.handle();
    let null = std::ptr::null_mut();
    let rows = |at: *mut u8, n| DeviceRows::new(at, DType::F32, [n, 4, 16]);
    let (q_at, out_at) = (q_there.as_ptr(), out.as_ptr());
    got(&mut m, &mut out);
    // SAFETY: all of it lives until synchronize(), and the stream is the only user.
    unsafe {
        batch.plan(&step, &view, stream).unwrap();
        let shape = batch.shape();
        assert_eq!((shape.num_sequences(), shape.num_rows()), (2, 2));
        let mut graph = Graph::capture(&m.device, stream, || {
            batch.run(rows(q_at, 2), &view, 0, rows(out_at, 2), null, stream)
        })
        .unwrap();
        for (each, n) in [(&step, 2), (&shorter, 1)] {
            own.plan(each, &view, stream).unwrap();
            own.run(rows(q_at, n), &view, 0, rows(out_at, n), null, stream).unwrap();
            let want = got(&mut m, &mut out);
            assert!(want[0] != 0.0);
            batch.plan(each, &view, stream).unwrap();
            assert_eq!(batch.shape(), shape);
            graph.launch(stream).unwrap();
            assert_eq!(got(&mut m, &mut out), want);
        }
        for (wrong, why) in [
            (
                BatchAttentionPlan { kv_indptr: &[0, 3, 6], kv_indices: &[0; 6], ..step },
                "the batch has 21 tokens of K and V, the capacity is 20: max_tokens",
            ),
            (
                BatchAttentionPlan { sm_scale: 0.5, ..step },
                "sm_scale is 0.5, that of the first padded plan is 0.25",
            ),
            (
                BatchAttentionPlan { qo_indptr: Some(&[0, 2, 3]), ..step },
                "sequence 0 has 2 queries, the capacity is 1: max_queries",
            ),
        ] {
            let error = batch.plan(&wrong, &view, stream).unwrap_err();
            assert!(error.message().contains(why), "{error}");
        }
    }
    let none = BatchAttentionOptions { max_queries: -1, ..options };
    let error = BatchAttention::new(&m.kernels, &none).unwrap_err();
    assert!(error.message().contains("max_queries is -1, allowed: 1 to 65536"), "{error}");
}

#[test]
fn events_order_streams() {
    if !is_fake() {
        return;
    }
    let mut m = machine();
    let mut storage = Storage::with_resource(&[group()], m.memory.clone()).unwrap();
    let mut other = Stream::new(&m.device).unwrap();
    let mut event = Event::new(&m.device).unwrap();
    assert!(event.has_passed().unwrap() && !event.handle().is_null());
    let mut views = storage.as_mut();
    let mut view = views.view(0).unwrap();
    // SAFETY: the storage lives until synchronize(), and an event orders the streams.
    unsafe {
        m.kernels.fill(&mut view, 1, other.handle()).unwrap();
        event.record(&mut other).unwrap();
        event.hold_back(&mut m.stream).unwrap();
        m.kernels.fill(&mut view, 2, m.stream.handle()).unwrap();
    }
    m.stream.synchronize().unwrap();
    event.synchronize().unwrap();
    assert!(event.has_passed().unwrap() && other.is_done().unwrap());
    assert!(images(&storage).iter().all(|&byte| byte == 2));
}

// Steps whose tables go up entry by entry, then whole, and are there.
#[test]
fn plans_on_a_device_are_those_of_the_manager() {
    if !is_fake() {
        return;
    }
    let m = machine();
    let spec = group();
    let mut cache =
        Cache::new(&[spec], &Options { max_sequences: 4, ..Options::default() }).unwrap();
    let sizes = DevicePlanOptions {
        max_sequences: 4,
        max_tokens: 16,
        num_rows: cache.num_rows(),
        groups: vec![(spec.block_size, 8)],
        ..DevicePlanOptions::default()
    };
    let mut plan = DevicePlan::new(&m.kernels, &sizes).unwrap();
    assert!(plan.device_bytes() > 0 && plan.pinned_bytes() > 0);
    let (a, stream) = (cache.open(&[], &Default::default()).unwrap().sequence, m.stream.handle());
    let options = PlanOptions { changed_entries: true, ..PlanOptions::default() };
    for i in 0..6 {
        let mut step = cache.begin_step().unwrap();
        step.append(a, &[i]).unwrap();
        let arrays = step.plan(&options).unwrap();
        assert!(!plan.needs_block_tables(&arrays).unwrap());
        // SAFETY: one stream of this device, which lives.
        unsafe {
            if i % 2 == 0 {
                plan.upload(&arrays, stream).unwrap();
            } else {
                plan.send(&arrays, stream).unwrap();
                let again = plan.send(&arrays, stream).unwrap_err();
                assert!(again.message().contains("was sent and not applied"), "{again}");
                if i == 5 {
                    let mut graph =
                        Graph::capture(&m.device, stream, || plan.apply(stream)).unwrap();
                    graph.launch(stream).unwrap();
                    plan.applied();
                    plan.verify(&arrays, stream).unwrap(); // before the graph ends
                } else {
                    plan.apply(stream).unwrap();
                }
            }
            plan.verify(&arrays, stream).unwrap();
        }
        assert_eq!(plan.last_upload().whole_rows, (i == 4) as i64);
        plan.wait().unwrap();
        step.finish().unwrap();
        if i == 3 {
            plan.resend();
        }
    }
    let arrays = plan.arrays();
    assert!(!arrays.kv_lens.is_null() && arrays.positions.is_null() && arrays.num_groups == 1);
    assert_eq!(plan.group(0).unwrap().table_stride, 8);
    assert!(matches!(plan.group(1), Err(Error::InvalidArgument(_))));
    assert!(plan.last_upload().bytes > 0);
    // A step that it was never told of.
    let no_tables = PlanOptions { no_block_tables: true, ..options };
    let mut step = cache.begin_step().unwrap();
    step.append(a, &[7]).unwrap();
    step.plan(&no_tables).unwrap();
    step.finish().unwrap();
    let mut step = cache.begin_step().unwrap();
    step.append(a, &[8]).unwrap();
    let arrays = step.plan(&no_tables).unwrap();
    assert!(plan.needs_block_tables(&arrays).unwrap());
    // SAFETY: as above.
    let error = unsafe { plan.upload(&arrays, stream) };
    assert!(matches!(error, Err(Error::FailedPrecondition(_))), "{error:?}");
    let none = DevicePlanOptions { max_sequences: 0, ..sizes };
    assert!(matches!(DevicePlan::new(&m.kernels, &none), Err(Error::InvalidArgument(_))));
}

// Whatever goes first, what is left has all that it needs.
#[test]
fn values_end_in_any_order() {
    if !is_fake() {
        return;
    }
    let m = machine();
    let mut pinned = PinnedBuffer::new(&m.device, 64).unwrap();
    let buffer = m.memory.upload(&[1u8, 2, 3]).unwrap();
    let storage = zeroed(Storage::with_resource(&[group()], m.memory.clone()).unwrap());
    let options = BatchAttentionOptions {
        max_sequences: 1,
        max_pages_of_sequence: 1,
        max_image_bytes: 16,
        workspace_bytes: 16,
        ..BatchAttentionOptions::default()
    };
    let batch = BatchAttention::new(&m.kernels, &options).unwrap();
    // SAFETY: it records nothing.
    let mut graph = unsafe { Graph::capture(&m.device, m.stream.handle(), || Ok(())).unwrap() };
    let Machine { device, kernels, memory, stream } = m;
    drop(device);
    drop(kernels);
    drop(memory);
    drop(stream);
    // SAFETY: the legacy default stream; there is nothing in it.
    unsafe { graph.launch(std::ptr::null_mut()).unwrap() };
    drop(batch);
    drop(graph);
    assert_eq!(buffer.download::<u8>().unwrap(), [1, 2, 3]);
    assert_eq!(images(&storage).iter().max(), Some(&0));
    pinned[63] = 7;
    assert_eq!((pinned.len(), pinned[0], pinned[63]), (64, 0, 7));
}

#[test]
fn buffers_are_not_left() {
    if !is_fake() {
        return;
    }
    let m = machine();
    let mut buffer = m.memory.buffer(8).unwrap();
    buffer.write(4, &[1, 2, 3, 4]).unwrap();
    let mut back = [0; 4];
    buffer.read(4, &mut back).unwrap();
    assert_eq!(back, [1, 2, 3, 4]);
    for at in [5, 9, usize::MAX] {
        assert!(matches!(buffer.read(at, &mut back), Err(Error::InvalidArgument(_))));
        assert!(matches!(buffer.write(at, &back), Err(Error::InvalidArgument(_))));
    }
    assert!(matches!(m.memory.buffer(0), Err(Error::InvalidArgument(_))));
    assert!(matches!(PinnedBuffer::new(&m.device, 0), Err(Error::InvalidArgument(_))));
    // A piece that is lent: cut from its beginning.
    // SAFETY: the piece outlives the memory that is cut from it.
    let cut = unsafe { DeviceMemory::lent(&m.device, None, 0, buffer.as_ptr(), 8).unwrap() };
    let piece = cut.buffer(8).unwrap();
    assert_eq!(piece.as_ptr(), buffer.as_ptr());
    assert!(matches!(cut.buffer(1), Err(Error::OutOfMemory(_))));
    // A storage over lent memory of the device.
    let there = m.memory.buffer(6 * 4 * 2 * 16 * 4).unwrap();
    let spec = GroupSpec { head_dim_v: 0, ..group() };
    let lent = BorrowedGroup {
        bases: vec![Bases { k: there.as_ptr(), ..Bases::default() }],
        k: Borrowed {
            bytes: 6 * 4 * 2 * 16 * 4,
            strides: Strides { layer: 0, block: 512, head: 256, token: 64 },
        },
        ..BorrowedGroup::default()
    };
    // SAFETY: the buffer outlives the storage.
    let storage =
        unsafe { Storage::borrow_with_resource(&[spec], &[lent], m.memory.clone()).unwrap() };
    let storage = zeroed(storage);
    assert_eq!(images(&storage).len(), 6 * 512);
    assert_eq!(there.download::<f32>().unwrap()[0], 0.0);
}
