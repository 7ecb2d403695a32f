# SPDX-License-Identifier: Apache-2.0
"""kvfolio.cuda.BatchAttention over a driver that is none (tests/python_cuda): from FlashInfer's arrays it has the bits
of kvfolio.cuda.attend() and is near kvfolio.attend(), over tensors and over views; what is refused is named. Not on a
device."""

import threading

import numpy as np
import pytest

import kvfolio as kv
from cuda_twin import cuda, fresh, twin  # noqa: F401
from fake_dlpack import BFLOAT, READ_ONLY, Fake

DIM, HEADS, KV_HEADS, PAGE, PAGES = 24, 4, 2, 16, 40


def floats(array):
    return (array.astype(np.uint32) << 16).view(np.float32) if array.dtype == np.uint16 else array.astype(np.float32)


class Case:
    """A batch in FlashInfer's form, over tensors of an engine and over storages with the same rows."""

    def __init__(self, lens=(300, 37, 5), new=(1, 6, 5), dtype="f32", seed=5):
        rng = np.random.default_rng(seed)
        self.dtype, self.lens, self.new = dtype, lens, new
        # Numbers that bf16 has.
        k, v = ((rng.standard_normal((PAGES, PAGE, KV_HEADS, DIM)).astype(np.float32).view(np.uint32)
                 & 0xffff0000).view(np.float32) for _ in range(2))
        group = kv.GroupSpec(num_layers=1, num_kv_heads=KV_HEADS, head_dim=DIM, block_size=PAGE, dtype=dtype,
                             num_blocks=PAGES)
        self.host, self.storage = kv.Storage([group]), cuda.Storage([group])
        flat = [each.reshape(-1, KV_HEADS, DIM) for each in (k, v)]
        kv.append(self.host.view(), *flat, range(PAGES * PAGE))
        slots = np.arange(PAGES * PAGE, dtype=np.int32)
        cuda.append(self.storage.view(), *(Fake(twin, each) for each in flat), Fake(twin, slots))
        twin.finish()
        self.k, self.v = self.bits(k), self.bits(v)
        pages = [-(-each // PAGE) for each in lens]
        self.indptr = np.cumsum([0, *pages]).astype(np.int32)
        self.indices = rng.permutation(PAGES)[: self.indptr[-1]].astype(np.int32)
        self.last = np.array([(each - 1) % PAGE + 1 for each in lens], np.int32)
        self.qo_indptr = np.cumsum([0, *new]).astype(np.int32)
        self.numbers = rng.standard_normal((sum(new), HEADS, DIM)).astype(np.float32)
        self.q = self.tensor(self.bits(self.numbers))

    def bits(self, numbers):
        return numbers if self.dtype == "f32" else (numbers.view(np.uint32) >> 16).astype(np.uint16)

    def tensor(self, array, **options):
        return Fake(twin, array, code=BFLOAT if self.dtype == "bf16" else None, **options)

    def caches(self):
        """(kv_layout, paged_kv_cache): what a cache may be given as."""
        both = np.stack([self.k, self.v], axis=1)
        heads = [np.ascontiguousarray(each.swapaxes(1, 2)) for each in (self.k, self.v)]
        wide = np.zeros((PAGES, PAGE, KV_HEADS, 2 * DIM), self.k.dtype)
        wide[..., :DIM] = self.k
        return {"pair": ("NHD", (self.tensor(self.k), self.tensor(self.v))),
                "one": ("NHD", self.tensor(both)),
                "heads": ("HND", tuple(self.tensor(each) for each in heads)),
                "one of heads": ("HND", self.tensor(np.stack(heads, axis=1))),
                "strides": ("NHD", (self.tensor(wide[..., :DIM]), self.tensor(self.v))),
                "view": ("NHD", self.storage.view())}

    def out(self):
        return self.tensor(self.bits(np.full((sum(self.new), HEADS, DIM), 7, np.float32)))

    def lse(self):
        return Fake(twin, np.full((sum(self.new), HEADS), 7, np.float32))

    def plan(self, attention, cache, **options):
        options = {"qo_indptr": self.qo_indptr, "causal": True, **options}
        attention.plan(cache, self.indptr, self.indices, self.last, HEADS, **options)

    def table(self):
        table = np.full((len(self.lens), 20), -1, np.int32)
        for row, (begin, end) in enumerate(zip(self.indptr, self.indptr[1:])):
            table[row, : end - begin] = self.indices[begin:end]
        return table

    def wanted(self, **mask):
        lse = np.zeros((sum(self.new), HEADS), np.float32)
        batch = kv.Batch(self.qo_indptr, np.array(self.lens, np.int32), self.table())
        q = self.bits(self.numbers)
        return kv.attend(q, self.host.view(), batch, lse=lse, target="reference", **mask), lse


def attention_of(layout="NHD", **options):
    return cuda.BatchAttention(**{"max_sequences": 8, "max_pages_of_sequence": 24, "kv_layout": layout,
                                  "max_image_bytes": 1 << 16, "workspace_bytes": 1 << 20, **options})


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("kind", ["pair", "one", "heads", "one of heads", "strides", "view"])
def test_rows_have_the_bits_of_attend_whatever_the_cache_is_given_as(kind, dtype):
    case = Case(dtype=dtype)
    layout, cache = case.caches()[kind]
    attention = attention_of(layout)
    assert attention.target == "" and attention.device_bytes > 1 << 20 and attention.pinned_bytes > 0
    stream = twin.stream(0)
    case.plan(attention, cache, stream=stream)
    assert attention.target == "cuda-sm90-general" and attention.shape[:2] == (3, 12)
    out, lse = case.out(), case.lse()
    assert attention.run(case.q, cache, out=out, lse=lse, stream=stream) is out
    twin.finish()
    batch = cuda.Batch(case.qo_indptr, np.array(case.lens, np.int32), Fake(twin, case.table()))
    other, other_lse = case.out(), case.lse()
    cuda.attend(case.q, case.storage.view(), batch, out=other, lse=other_lse, stream=stream)
    twin.finish()
    assert np.array_equal(out.array, other.array) and np.array_equal(lse.array, other_lse.array)
    wanted, wanted_lse = case.wanted()
    assert np.abs(floats(out.array) - floats(wanted)).max() < (1e-5 if dtype == "f32" else 2e-2)
    assert np.abs(lse.array - wanted_lse).max() < 1e-5
    assert case.q.streams[-1] == out.streams[-1] == lse.streams[-1] == stream
    if kind == "pair":
        assert cache[0].streams[-1] == cache[1].streams[-1] == stream


@pytest.mark.parametrize("flashinfer, ours", [
    ({"causal": False}, {"causal": False}), ({"sm_scale": 0.5}, {"scale": 0.5}), ({"window_left": 39}, {"window": 40}),
    ({"logits_soft_cap": 5.0}, {"soft_cap": 5.0}), ({"window_left": -1, "logits_soft_cap": 0.0}, {}),
])
def test_arguments_of_flashinfer_are_those_of_attend(flashinfer, ours):
    case = Case()
    attention, cache = attention_of(), case.caches()["pair"][1]
    case.plan(attention, cache, **flashinfer)
    out = case.out()
    attention.run(case.q, cache, out=out)
    twin.finish()
    assert np.abs(out.array - case.wanted(**ours)[0]).max() < 1e-5


def test_a_decode_has_one_row_for_each_sequence():
    case = Case(lens=(300, 37, 5, 16), new=(1, 1, 1, 1))
    attention, cache = attention_of(), case.caches()["one"][1]
    for _ in range(4):  # two pieces of pinned memory, in turn
        case.plan(attention, cache, qo_indptr=None, causal=False, q_data_type="float32", o_data_type="bf16")
        out = Fake(twin, np.zeros((4, HEADS, DIM), np.uint16), code=BFLOAT)
        attention.run(case.q, cache, out=out)
        twin.finish()
        assert np.abs(floats(out.array) - case.wanted()[0]).max() < 2e-2


def test_types_are_named_or_torchs():
    class Torch:
        def __str__(self):
            return "torch.float16"

    case = Case()
    attention, cache = attention_of(), case.caches()["one"][1]
    case.plan(attention, cache, q_data_type=Torch(), o_data_type="f32")
    with pytest.raises(kv.InvalidArgument, match="q"):
        attention.run(case.q, cache, out=case.out())  # f32
    attention.run(Fake(twin, case.numbers.astype(np.float16)), cache, out=case.out())
    twin.finish()
    with pytest.raises(ValueError, match="float8"):
        case.plan(attention, cache, q_data_type="float8")


def test_tensors_are_kept_until_the_stream_has_passed_and_not_without_keep():
    case = Case()
    attention, cache = attention_of(), case.caches()["pair"][1]
    stream = twin.stream(0)
    case.plan(attention, cache, stream=stream)
    twin.finish()
    device = cuda.Device(0)
    device.synchronize()
    out = case.out()
    handed, deleted = cache[0].handed, cache[0].deleted
    attention.run(case.q, cache, out=out, stream=stream)
    assert cache[0].handed == handed + 1 and cache[0].deleted == deleted
    twin.finish()
    device.synchronize()
    assert cache[0].deleted == handed + 1 and out.deleted == out.handed
    twin.take_log()
    attention.run(case.q, cache, out=out, stream=stream, keep=False)
    assert out.deleted == out.handed
    assert not [entry for entry in twin.take_log() if "event" in entry[0]], "a graph may have it"
    twin.finish()
    assert np.abs(out.array - case.wanted()[0]).max() < 1e-5


def test_a_plan_on_another_stream_comes_behind_the_runs_before_it():
    case = Case()
    attention, cache = attention_of(), case.caches()["pair"][1]
    case.plan(attention, cache, stream=twin.stream(0))
    attention.run(case.q, cache, out=case.out(), stream=twin.stream(0))
    twin.take_log()
    case.plan(attention, cache)  # on the legacy default stream
    assert "wait" in [entry[0] for entry in twin.take_log()]
    twin.finish()


@pytest.mark.parametrize("planned", [True, False])
def test_a_plan_on_a_captured_stream_is_refused_and_spoils_nothing(planned):
    case = Case()
    attention, cache = attention_of(), case.caches()["pair"][1]
    device, stream = cuda.Device(0), twin.stream(0)
    if planned:
        case.plan(attention, cache, stream=twin.stream(0))
        twin.finish()
    device.synchronize()
    twin.take_log()
    twin.capture(stream)
    try:
        with pytest.raises(kv.FailedPrecondition, match="being captured: a plan is made in front of a graph"):
            case.plan(attention, cache, stream=stream)
        if planned:
            attention.run(case.q, cache, out=case.out(), stream=stream, keep=False)
        else:
            with pytest.raises(kv.FailedPrecondition, match="there is no plan"):
                attention.run(case.q, cache, out=case.out(), stream=stream)
        assert not {"wait", "record", "copy", "synchronize"} & {entry[0] for entry in twin.take_log()}
    finally:
        captured = twin.end_capture(stream)
    assert captured and device.num_kept == 0
    case.plan(attention, cache, stream=stream)
    out, lent = case.out(), cache[0].handed
    attention.run(case.q, cache, out=out, stream=stream)
    twin.finish()
    assert np.abs(out.array - case.wanted()[0]).max() < 1e-5
    case.plan(attention, cache, stream=stream)  # lets go of what has passed
    assert cache[0].handed == cache[0].deleted > lent and out.handed == out.deleted
    twin.finish()


def test_a_thread_that_asks_for_the_shape_is_told_that_of_a_whole_plan():
    case = Case()
    attention, cache = attention_of(), case.caches()["pair"][1]
    case.plan(attention, cache)
    twin.finish()
    told = []
    twin.pause_copies(True)
    try:
        plans = threading.Thread(target=lambda: case.plan(attention, cache))
        plans.start()
        twin.wait_for_pause()  # the plan before is gone, and the next one is not there
        asks = threading.Thread(target=lambda: told.extend([attention.shape[:2], attention.target]))
        asks.start()
        asks.join(0.2)
    finally:
        twin.pause_copies(False)
    plans.join()
    asks.join()
    twin.finish()
    assert told == [(3, 12), "cuda-sm90-general"]


def test_bad_input_is_refused_with_its_numbers_and_the_plan_before_stays():
    case = Case()
    attention, cache = attention_of(), case.caches()["pair"][1]
    with pytest.raises(kv.FailedPrecondition, match="there is no plan"):
        attention.run(case.q, cache, out=case.out())
    case.plan(attention, cache)
    wrong = {
        r"kv_indptr\[1\] is 3, below kv_indptr\[0\]|kv_indptr\[0\] is 5, allowed: 0":
            lambda: attention.plan(cache, [5, 3], [1], [1], HEADS),
        "kv_indices has 1 entries, kv_indptr ends at 2": lambda: attention.plan(cache, [0, 2], [1], [1], HEADS),
        r"kv_indices\[0\] is 40, allowed: 0 to 39": lambda: attention.plan(cache, [0, 1], [40], [1], HEADS),
        r"kv_last_page_len\[0\] is 17, allowed: 1 to 16": lambda: attention.plan(cache, [0, 1], [1], [17], HEADS),
        "the plan has 9 sequences, there is room for 8":
            lambda: attention.plan(cache, range(10), range(9), [1] * 9, HEADS),
        "sequence 0 has 25 pages, there is room for 24": lambda: attention.plan(cache, [0, 25], range(25), [1], HEADS),
        "num_qo_heads is 0": lambda: attention.plan(cache, [0, 1], [1], [1], 0),
        "window_left is -2": lambda: case.plan(attention, cache, window_left=-2),
        "pair": lambda: case.plan(attention, (cache[0],)),
        r"paged_kv_cache: float32 tensor of shape \(40, 16, 2, 24\), wanted: \[num_pages, 2, page_size":
            lambda: case.plan(attention, cache[0]),
        "two of one shape": lambda: case.plan(attention, (cache[0], case.tensor(case.v[:3]))),
        "24 apart, wanted: 1|elements of a row": lambda: case.plan(attention, (case.tensor(case.k.swapaxes(2, 3)),) * 2),
        r"lse: float32 tensor of shape \(2, 4\), wanted":
            lambda: attention.run(case.q, cache, out=case.out(), lse=Fake(twin, np.zeros((2, HEADS), np.float32))),
        "out": lambda: attention.run(case.q, cache, out=case.tensor(np.zeros((3, HEADS, DIM), np.float32))),
        "is on the host|memory of the host|device": lambda: attention.run(case.numbers, cache, out=case.out()),
        "kv_layout is": lambda: attention_of("NDH"),
        "max_sequences is 0, allowed: 1 to": lambda: attention_of(max_sequences=0),
        "workspace_bytes is 3, allowed: 16 to": lambda: attention_of(workspace_bytes=3),
        "qo_indptr has 2 entries, needed: 4": lambda: case.plan(attention, cache, qo_indptr=[0, 1]),
        "indptr.*device|on the host": lambda: attention.plan(cache, Fake(twin, case.indptr), [1], [1], HEADS),
    }
    for sentence, call in wrong.items():
        with pytest.raises((kv.InvalidArgument, TypeError), match=sentence):
            call()
    with pytest.raises(kv.Unsupported, match="pos_encoding_mode is ALIBI"):
        case.plan(attention, cache, pos_encoding_mode="ALIBI")
    with pytest.raises(kv.Unsupported, match="custom_mask is given"):
        case.plan(attention, cache, custom_mask=np.ones(3, bool))
    scaled = (Fake(twin, np.zeros((PAGES, PAGE, KV_HEADS, DIM), np.int8)),) * 2
    with pytest.raises(kv.Unsupported, match="no scales"):
        case.plan(attention, scaled)
    with pytest.raises(TypeError, match="out is None"):
        attention.run(case.q, cache, out=None)
    with pytest.raises(TypeError, match="read-only"):
        attention.run(case.q, cache, out=case.tensor(case.k[:3, :4, :, :], flags=READ_ONLY))
    out = case.out()
    attention.run(case.q, cache, out=out)
    twin.finish()
    assert np.abs(out.array - case.wanted()[0]).max() < 1e-5
    case.q.array[:] = 0  # it is used till here


def test_one_graph_computes_every_step_within_a_padded_plans_capacity():
    steps = [((300, 37, 5), (1, 1, 1)), ((17,), (1,)), ((), ()), ((1, 250, 16, 64), (1, 1, 1, 1))]
    case = Case(*steps[0])
    attention, stream = attention_of(padded=True, max_sequences=4, max_tokens=400), twin.stream(0)
    cache = case.caches()["pair"][1]
    q, out = np.zeros((4, HEADS, DIM), np.float32), np.zeros((4, HEADS, DIM), np.float32)
    q_there, out_there = Fake(twin, q), Fake(twin, out)
    case.plan(attention, cache, qo_indptr=None, causal=False, stream=stream)
    shape = attention.shape
    assert shape[:2] == (4, 4)
    twin.capture(stream)
    first = [Fake(twin, each[:3]) for each in (q, out)]
    attention.run(first[0], cache, out=first[1], stream=stream, keep=False)
    graph = twin.end_graph(stream)
    for lens, new in steps:
        case = Case(lens, new)
        n = len(lens)
        case.plan(attention, cache, qo_indptr=None, causal=False, stream=stream)
        assert attention.shape == shape
        q[:n], out[:] = case.numbers, 7
        twin.replay(graph, stream)
        twin.finish()
        if n:
            own = attention_of()
            case.plan(own, case.caches()["pair"][1], qo_indptr=None, causal=False, stream=stream)
            alone = case.out()
            own.run(case.q, case.caches()["pair"][1], out=alone, stream=stream)
            twin.finish()
            assert np.array_equal(out[:n], alone.array)
            assert np.abs(out[:n] - case.wanted()[0]).max() < 1e-5
        assert (out[n:] == 7).all()
    del q_there, out_there


def test_what_a_padded_graph_cannot_serve_is_refused_with_its_numbers():
    case = Case((300, 37, 5), (1, 2, 1))
    attention = attention_of(padded=True, max_sequences=4, max_tokens=400, max_queries=2)
    cache = case.caches()["pair"][1]
    case.plan(attention, cache)
    shape = attention.shape
    assert shape[:2] == (4, 8)
    longer, more = Case((300, 90, 20), (1, 1, 1)), Case((300, 37, 5), (1, 3, 1))
    wrong = {
        "the batch has 410 tokens of K and V, the capacity is 400: max_tokens": lambda: longer.plan(attention, cache),
        "sequence 1 has 3 queries, the capacity is 2: max_queries": lambda: more.plan(attention, cache),
        "qo_indptr is empty, needed: 4 entries": lambda: case.plan(attention, cache, qo_indptr=None),
        "causal is false, that of the first padded plan is true": lambda: case.plan(attention, cache, causal=False),
        "sm_scale is 0.5, that of the first padded plan is": lambda: case.plan(attention, cache, sm_scale=0.5),
        "window_left is 9, that of the first padded plan is -1": lambda: case.plan(attention, cache, window_left=9),
        "max_queries is 0, allowed: 1 to 65536": lambda: attention_of(padded=True, max_queries=0),
        "max_tokens is -1, allowed: 0 to": lambda: attention_of(padded=True, max_tokens=-1),
    }
    for sentence, call in wrong.items():
        with pytest.raises(kv.InvalidArgument, match=sentence):
            call()
    assert attention.shape == shape


def test_it_and_the_storage_end_in_any_order():
    for first in ("attention", "storage"):
        case = Case()
        attention, out = attention_of(), case.out()
        view = case.storage.view()
        case.plan(attention, view)
        attention.run(case.q, view, out=out)
        if first == "attention":
            del attention
        else:
            case.storage = view = None
            del attention
        twin.finish()
        assert np.abs(out.array - case.wanted()[0]).max() < 1e-5
