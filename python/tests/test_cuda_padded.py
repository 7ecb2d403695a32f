# SPDX-License-Identifier: Apache-2.0
"""Padded plans of kvfolio.cuda over a driver that is none (tests/python_cuda): one captured graph serves every batch
within a capacity, planned on the host in front of a replay or on the device in it. Not on a device."""

import ctypes
import gc

import numpy as np
import pytest

import kvfolio as kv
from cuda_twin import cuda, fresh, twin  # noqa: F401
from fake_dlpack import Fake

DIM, HEADS, KV_HEADS, BLOCK, BLOCKS = 24, 4, 2, 16, 80
MOST, LONGEST, QUERIES = 3, 400, 2
# (lengths of K and V, rows of q), all within the capacity.
BATCHES = [((300, 37), (1, 2)), ((5,), (2,)), ((), ()), ((400, 16, 1), (1, 0, 1)), ((64, 399, 128), (2, 2, 1))]


def device_memory(tensor):
    """What torch.from_dlpack() would give: the memory of the device that is none, not a copy."""
    size = int(np.prod(tensor.shape))
    at = ctypes.cast(tensor.data_ptr, ctypes.POINTER(ctypes.c_int32))
    return np.ctypeslib.as_array(at, (size,)).reshape(tensor.shape)


class Engine:
    """A cache of one layer, and arrays with room for the capacity at addresses that stay."""

    def __init__(self):
        rng = np.random.default_rng(11)
        group = kv.GroupSpec(num_layers=1, num_kv_heads=KV_HEADS, head_dim=DIM, block_size=BLOCK, num_blocks=BLOCKS)
        self.host, self.storage = kv.Storage([group]), cuda.Storage([group])
        count = BLOCKS * BLOCK
        k, v = (rng.standard_normal((count, KV_HEADS, DIM)).astype(np.float32) for _ in range(2))
        kv.append(self.host.view(), k, v, range(count))
        cuda.append(self.storage.view(), Fake(twin, k), Fake(twin, v), Fake(twin, np.arange(count, dtype=np.int32)))
        twin.finish()
        self.table = rng.permutation(BLOCKS)[: MOST * 25].reshape(MOST, 25).astype(np.int32)
        self.table_there = Fake(twin, self.table)
        self.q = rng.standard_normal((MOST * QUERIES, HEADS, DIM)).astype(np.float32)
        self.out = np.zeros_like(self.q)
        self.query_start, self.kv_lens = np.zeros(MOST + 1, np.int32), np.zeros(MOST, np.int32)
        self.trims, self.counts = np.zeros((2, MOST), np.int32), np.zeros(2, np.int32)
        self.capacity = cuda.AttendCapacity(max_sequences=MOST, max_sequence_tokens=LONGEST, max_queries=QUERIES)
        self.stream = twin.stream(0)
        self.of_batch({})

    def of_batch(self, trims, lens=(), new=()):
        """Of the host; the same numbers go to the arrays of the device."""
        start = np.cumsum([0, *new]).astype(np.int32)
        self.query_start[:], self.kv_lens[:], self.counts[0] = 0, 0, len(lens)
        self.query_start[: len(start)], self.kv_lens[: len(lens)] = start, lens
        for i, name in enumerate(trims):
            self.trims[i, : len(lens)] = trims[name][: len(lens)]
        self.lens, self.start = np.array(lens, np.int32), start
        self.own_trims = {name: np.array(each[: len(lens)], np.int32) for name, each in trims.items()}
        return cuda.Batch(start, self.lens, self.table_there, **self.own_trims)

    def rows(self):
        n = int(self.start[-1])
        return Fake(twin, self.q[:n]), Fake(twin, self.out[:n])

    def plan(self, batch, **options):
        q, out = self.rows()
        return cuda.plan_attend(q, self.storage.view(), batch, out=out, stream=self.stream, **options)

    def alone(self, batch):
        """Rows by a plan of their own, of the bits that a graph is to have."""
        n = int(self.start[-1])
        out = np.full((n, HEADS, DIM), 7, np.float32)
        if n:
            cuda.attend(Fake(twin, self.q[:n]), self.storage.view(), batch, out=Fake(twin, out), stream=self.stream)
            twin.finish()
            of_host = kv.Batch(self.start, self.lens, self.table[: len(self.lens)], **self.own_trims)
            wanted = kv.attend(self.q[:n], self.host.view(), of_host, target="reference")
            assert np.abs(out - wanted).max() < 1e-5
        return out

    def replay(self, graph):
        self.out[:] = 7
        twin.replay(graph, self.stream)
        twin.finish()
        n = int(self.start[-1])
        assert (self.out[n:] == 7).all()
        return self.out[:n]


TRIMS = {"trim_sinks": [16, 0, 0], "trim_first_kept": [32, 16, 0]}


@pytest.mark.parametrize("trims", [{}, TRIMS], ids=["whole", "trims"])
def test_one_graph_serves_every_batch_that_the_host_plans_at_the_same_place(trims):
    engine = Engine()
    lens = [(300, 37), (200, 30, 5), (), (64, 399, 128)] if trims else [lens for lens, _ in BATCHES]
    news = [(1, 2), (1, 1, 1), (), (2, 2, 1)] if trims else [new for _, new in BATCHES]
    plan = engine.plan(engine.of_batch(trims, lens[0], news[0]), capacity=engine.capacity)
    assert plan.capacity == engine.capacity and plan.capacity.max_tokens == MOST * LONGEST
    shape, bytes_there = plan.shape, twin.device_bytes()
    assert shape[:2] == (MOST, MOST * QUERIES)
    twin.capture(engine.stream)
    q, out = engine.rows()
    plan.attend(q, engine.storage.view(), out=out, stream=engine.stream, keep=False)
    graph = twin.end_graph(engine.stream)
    for each, new in zip(lens, news):
        batch = engine.of_batch(trims, each, new)
        wanted = engine.alone(batch)
        plan.check(batch)
        plan = engine.plan(batch, capacity=engine.capacity, reuse=plan)
        assert plan.shape == shape
        assert np.array_equal(engine.replay(graph), wanted)
    del batch, wanted
    gc.collect()
    assert twin.device_bytes() >= bytes_there


@pytest.mark.parametrize("trims", [{}, TRIMS], ids=["whole", "trims"])
def test_a_graph_that_plans_itself_serves_every_batch_within_its_capacity(trims):
    engine = Engine()
    lens = [(300, 37), (200, 30, 5), (), (64, 399, 128)] if trims else [lens for lens, _ in BATCHES]
    news = [(1, 2), (1, 1, 1), (), (2, 2, 1)] if trims else [new for _, new in BATCHES]
    plan = engine.plan(engine.of_batch(trims, lens[0], news[0]), capacity=engine.capacity)
    assert plan.explain().startswith("cuda-sm90-general: cuda-")
    there = {"counts": Fake(twin, engine.counts), "stream": engine.stream, "keep": False}
    for i, name in enumerate(trims):
        there[name] = Fake(twin, engine.trims[i])
    starts, of_kv = Fake(twin, engine.query_start), Fake(twin, engine.kv_lens)
    twin.finish()
    twin.take_log()
    twin.capture(engine.stream)
    plan.plan_on_device(starts, of_kv, **there)
    q, out = engine.rows()
    plan.attend(q, engine.storage.view(), out=out, stream=engine.stream, keep=False)
    assert {call for call, _ in twin.take_log()} == {"launch"}
    graph = twin.end_graph(engine.stream)
    for each, new in zip(lens, news):
        batch = engine.of_batch(trims, each, new)
        wanted = engine.alone(batch)
        plan.check(batch)
        assert np.array_equal(engine.replay(graph), wanted)
    plan.check_fault()


def test_a_batch_over_the_capacity_is_refused_by_the_host_and_reported_by_the_device():
    engine = Engine()
    plan = engine.plan(engine.of_batch({}, (300, 37), (1, 2)), capacity=engine.capacity)
    starts, of_kv, counts = (Fake(twin, each) for each in (engine.query_start, engine.kv_lens, engine.counts))
    twin.capture(engine.stream)
    plan.plan_on_device(starts, of_kv, counts=counts, stream=engine.stream, keep=False)
    q, out = engine.rows()
    plan.attend(q, engine.storage.view(), out=out, stream=engine.stream, keep=False)
    graph = twin.end_graph(engine.stream)
    larger = engine.of_batch({}, (37, 401), (1, 1))
    with pytest.raises(kv.InvalidArgument, match=r"kv_lens\[1\] is 401"):
        plan.check(larger)
    assert (engine.replay(graph) == 7).all()
    with pytest.raises(kv.InvalidArgument, match="sequence 1 of the batch on the device has more than 400 tokens"):
        plan.check_fault()
    plan.check_fault()  # it was said
    with pytest.raises(kv.InvalidArgument, match=r"kv_lens\[1\] is 401"):
        engine.plan(larger, capacity=engine.capacity, reuse=plan)
    batch = engine.of_batch({}, (64, 399, 128), (2, 2, 1))
    wanted = engine.alone(batch)
    assert np.array_equal(engine.replay(graph), wanted), "what was refused took nothing"
    with pytest.raises(kv.InvalidArgument, match="the batch has 4 sequences, the capacity is 3: max_sequences"):
        plan.check(cuda.Batch(range(5), [1] * 4, engine.table_there))


def test_a_plan_made_on_the_device_keeps_the_lengths_that_attend_reads():
    engine = Engine()
    batch = engine.of_batch({}, (300, 37), (1, 2))
    wanted = engine.alone(batch)
    plan = engine.plan(engine.of_batch({}, (9, 37), (1, 2)), capacity=engine.capacity)
    engine.of_batch({}, (300, 37), (1, 2))
    starts, of_kv, counts = (Fake(twin, each) for each in (engine.query_start, engine.kv_lens, engine.counts))
    plan.plan_on_device(starts, of_kv, counts=counts, stream=engine.stream)
    assert starts.streams[-1] == of_kv.streams[-1] == counts.streams[-1] == engine.stream
    assert starts.handed > starts.deleted, "until the stream has passed"
    q, out = engine.rows()
    other = twin.stream(0)
    plan.attend(q, engine.storage.view(), out=out, stream=other)  # behind the plan, on another stream
    twin.finish()
    assert np.array_equal(engine.out[:3], wanted)
    cuda.Device(0).synchronize()
    assert starts.handed == starts.deleted and counts.handed == counts.deleted
    # Without their number the last ones have no rows.
    batch = engine.of_batch({}, (64, 399, 128), (2, 2, 1))
    wanted = engine.alone(batch)
    plan = engine.plan(batch, capacity=engine.capacity, reuse=plan)
    plan.plan_on_device(starts, of_kv, stream=engine.stream)
    q, out = engine.rows()
    plan.attend(q, engine.storage.view(), out=out, stream=engine.stream)
    twin.finish()
    assert np.array_equal(engine.out[:5], wanted)


def test_a_graph_plans_itself_of_the_arrays_that_a_device_plan_sends():
    engine, stream = Engine(), twin.stream(0)
    manager = kv.Manager(engine.host.groups, max_sequences=MOST)
    there = cuda.DevicePlan(max_sequences=MOST, max_tokens=512, num_rows=manager.num_rows, groups=[(BLOCK, 25)])
    # Before the capture: an export waits for the uploads.
    starts, of_kv, counts, table = (
        Fake(twin, device_memory(each)) for each in (there.query_start, there.kv_lens, there.counts,
                                                     there.group().batch_table))
    sequences, graph = [manager.open([])[0] for _ in range(2)], None
    for tokens in ((300, 37), (1, 1), (2, 1), (1, 2)):
        with manager.step() as step:
            for sequence, count in zip(sequences, tokens):
                step.append(sequence, list(range(count)))
            plan = step.plan(changed_entries=True, table_stride=[25])
            there.upload(plan, stream=stream)
            engine.lens, engine.start = np.array(plan.kv_lens), np.array(plan.query_start)
            if tokens[0] > QUERIES:
                continue
            engine.own_trims, engine.table = {}, np.array(plan.groups[0].block_table)
            batch = cuda.Batch(engine.start, engine.lens, table)
            engine.stream = stream
            wanted = engine.alone(batch)
            if graph is None:
                padded = engine.plan(batch, capacity=engine.capacity)
                twin.finish()
                twin.capture(stream)
                padded.plan_on_device(starts, of_kv, counts=counts, stream=stream, keep=False)
                q, out = engine.rows()
                padded.attend(q, engine.storage.view(), out=out, stream=stream, keep=False)
                graph = twin.end_graph(stream)
            padded.check(batch)
            assert np.array_equal(engine.replay(graph), wanted)
    padded.check_fault()


def test_what_a_padded_plan_cannot_be_made_of_is_refused_by_name():
    engine = Engine()
    batch = engine.of_batch({}, (300, 37), (1, 2))
    plan, own = engine.plan(batch, capacity=engine.capacity), engine.plan(batch)
    assert own.capacity is None and own.shape[:2] == (2, 3)
    starts, of_kv = Fake(twin, engine.query_start), Fake(twin, engine.kv_lens)
    for call in (lambda: own.check(batch), lambda: own.plan_on_device(starts, of_kv), own.check_fault):
        with pytest.raises(kv.FailedPrecondition, match="the plan is not padded"):
            call()
    short, wide = Fake(twin, np.zeros(2, np.int32)), Fake(twin, np.zeros(8, np.int64))
    wrong = [
        (lambda: plan.plan_on_device(None, of_kv), TypeError, "query_start is None"),
        (lambda: plan.plan_on_device(starts, None), TypeError, "kv_lens is None"),
        (lambda: plan.plan_on_device(of_kv, of_kv), kv.InvalidArgument, "query_start: .*wanted: a contiguous one of 4"),
        (lambda: plan.plan_on_device(starts, short), kv.InvalidArgument, "kv_lens: .*wanted: a contiguous one of 3"),
        (lambda: plan.plan_on_device(starts, wide), TypeError, "kv_lens: int64 .*wanted: int32"),
        (lambda: plan.plan_on_device(starts, engine.kv_lens), kv.InvalidArgument, "kv_lens is memory of the host"),
        (lambda: plan.plan_on_device(starts, of_kv, counts=wide), TypeError, "counts: int64"),
        (lambda: plan.plan_on_device(starts, of_kv, trim_sinks=of_kv, trim_first_kept=of_kv), kv.InvalidArgument,
         "trim_sinks and trim_first_kept: given, but the plan was made without"),
        (lambda: plan.check(kv.Batch([0, 1], [1], engine.table)), TypeError, "batch: .*wanted: a kvfolio.cuda.Batch"),
        (lambda: engine.plan(batch, capacity=3), TypeError, "capacity: .*wanted: an AttendCapacity or None"),
        (lambda: cuda.AttendCapacity(max_sequences=0, max_sequence_tokens=1), kv.InvalidArgument, "max_sequences is 0"),
        (lambda: cuda.AttendCapacity(max_sequences=1, max_sequence_tokens=0), kv.InvalidArgument,
         "max_sequence_tokens is 0"),
        (lambda: cuda.AttendCapacity(max_sequences=1, max_sequence_tokens=5, max_tokens=6), kv.InvalidArgument,
         "max_tokens is 6, allowed: 0 to 5"),
        (lambda: cuda.AttendCapacity(max_sequences=1, max_sequence_tokens=5, max_queries=0), kv.InvalidArgument,
         "max_queries is 0"),
        (lambda: engine.plan(batch, capacity=cuda.AttendCapacity(max_sequences=1, max_sequence_tokens=400)),
         kv.InvalidArgument, "the batch has 2 sequences, the capacity is 1: max_sequences"),
        (lambda: engine.plan(batch, capacity=cuda.AttendCapacity(max_sequences=3, max_sequence_tokens=401)),
         kv.InvalidArgument, "401"),
    ]
    for call, kind, text in wrong:
        with pytest.raises(kind, match=text):
            call()
    newer = engine.plan(batch, capacity=engine.capacity, reuse=plan)
    for call in (lambda: plan.plan_on_device(starts, of_kv), plan.check_fault):
        with pytest.raises(kv.FailedPrecondition, match="another plan has the memory of this one"):
            call()
    newer.plan_on_device(starts, of_kv, counts=Fake(twin, engine.counts))
    twin.finish()
    newer.check_fault()


def test_each_call_of_the_driver_may_fail_while_a_plan_is_made_on_the_device():
    engine = Engine()
    batch = engine.of_batch({}, (300, 37), (1, 2))
    wanted = engine.alone(batch)
    starts, of_kv, counts = (Fake(twin, each) for each in (engine.query_start, engine.kv_lens, engine.counts))
    plan, failures = engine.plan(batch, capacity=engine.capacity), 0
    for number in range(1, 60):  # some are asked in vain: an event that an earlier call may have left
        twin.fail_at(number, 999)
        try:
            plan.plan_on_device(starts, of_kv, counts=counts, stream=engine.stream)
            plan.check_fault()
        except kv.Unavailable:
            failures += 1
        finally:
            twin.fail_at(0, 2)
        cuda.Device(0).synchronize()
        assert starts.handed == starts.deleted, number
    assert failures > 3
    q, out = engine.rows()
    plan.attend(q, engine.storage.view(), out=out, stream=engine.stream)
    twin.finish()
    assert np.array_equal(engine.out[:3], wanted)


def test_a_capacity_is_its_numbers():
    a = cuda.AttendCapacity(max_sequences=2, max_sequence_tokens=8)
    assert (a.max_sequences, a.max_sequence_tokens, a.max_tokens, a.max_queries) == (2, 8, 16, 1)
    assert a == cuda.AttendCapacity(max_sequences=2, max_sequence_tokens=8, max_tokens=16)
    assert a != cuda.AttendCapacity(max_sequences=2, max_sequence_tokens=8, max_tokens=15) and a != 3
    assert len({a, cuda.AttendCapacity(max_sequences=2, max_sequence_tokens=8)}) == 1
    assert repr(a) == "AttendCapacity(max_sequences=2, max_sequence_tokens=8, max_tokens=16, max_queries=1)"
