# SPDX-License-Identifier: Apache-2.0
"""kvfolio.cuda.attend over a driver that is none (tests/python_cuda): its rows are near those of kvfolio.attend, a
plan serves every layer, and what is refused is named. Not on a device."""

import gc
import threading

import numpy as np
import pytest

import kvfolio as kv
from cuda_twin import cuda, fresh, twin  # noqa: F401
from fake_dlpack import BFLOAT, READ_ONLY, Fake

DTYPES = ["f32", "f16", "bf16", "int8", "e4m3"]
DIM, HEADS, KV_HEADS, BLOCK = 24, 4, 2, 16
# As src/cuda/library/library_attend_test.cc: relative errors of all rows of a layer.
F32, HALF = 1e-5, 4e-3


def rows_of(numbers, dtype):
    """For the CPU, and as a tensor of the device."""
    array = {"f32": lambda: numbers, "f16": lambda: numbers.astype(np.float16),
             "bf16": lambda: (numbers.view(np.uint32) >> 16).astype(np.uint16)}[dtype]()
    return array, Fake(twin, array.copy(), code=BFLOAT if dtype == "bf16" else None)


def floats(array):
    return (array.astype(np.uint32) << 16).view(np.float32) if array.dtype == np.uint16 else array.astype(np.float32)


class Case:
    """The same cache and batch on the host and on the device: a long decode, a chunk of a prompt, a short one."""

    def __init__(self, dtype="f32", of_rows="f32", lens=(300, 37, 5), new=(1, 6, 5), seed=3, num_layers=2):
        rng = np.random.default_rng(seed)
        self.num_blocks = sum(-(-each // BLOCK) for each in lens) + 3
        group = kv.GroupSpec(num_layers=num_layers, num_kv_heads=KV_HEADS, head_dim=DIM, block_size=BLOCK, dtype=dtype,
                             num_blocks=self.num_blocks)
        self.host, self.device = kv.Storage([group]), cuda.Storage([group])
        cuda.fill(self.device.view(), 0)
        count = self.num_blocks * BLOCK
        slots = Fake(twin, np.arange(count, dtype=np.int32))
        for layer in range(num_layers):
            k, v = (rng.standard_normal((count, KV_HEADS, DIM)).astype(np.float32) for _ in range(2))
            kv.append(self.host.view(), k, v, range(count), layer=layer)
            cuda.append(self.device.view(), Fake(twin, k), Fake(twin, v), slots, layer=layer)
        ids, widest = rng.permutation(self.num_blocks).tolist(), -(-max(lens) // BLOCK) + 1
        table = np.full((len(lens), widest), -1, np.int32)
        for row, length in enumerate(lens):
            needed = -(-length // BLOCK)
            table[row, :needed], ids = ids[:needed], ids[needed:]
        self.of_rows, self.table = of_rows, table
        self.query_start = np.cumsum([0, *new]).astype(np.int32)
        self.kv_lens = np.array(lens, np.int32)
        self.q, self.q_device = rows_of(rng.standard_normal((sum(new), HEADS, DIM)).astype(np.float32), of_rows)
        self.trims = {}

    def batch(self, **others):
        lengths = {"query_start": self.query_start, "kv_lens": self.kv_lens, **self.trims}
        return cuda.Batch(**{**lengths, "block_table": Fake(twin, self.table.copy()), **others})

    def out(self, dtype="f32"):
        return rows_of(np.full((len(self.q), HEADS, DIM), 7, np.float32), dtype)[1]

    def lse(self):
        return Fake(twin, np.full((len(self.q), HEADS), 7, np.float32))

    def wanted(self, layer, **arguments):
        lse = np.zeros((len(self.q), HEADS), np.float32)
        batch = kv.Batch(self.query_start, self.kv_lens, self.table, **self.trims)
        return kv.attend(self.q, self.host.view(), batch, lse=lse, layer=layer, target="reference", **arguments), lse


def error(got, wanted):
    got, wanted = floats(got).astype(np.float64), wanted.astype(np.float64)
    return np.sqrt(((got - wanted) ** 2).sum() / max((wanted ** 2).sum(), 1e-30))


def finite(lse):
    assert not np.isnan(lse).any()
    return np.where(np.isinf(lse), -1e3, lse)


def on_device(arguments):
    return {name: Fake(twin, value) if isinstance(value, np.ndarray) else value for name, value in arguments.items()}


@pytest.mark.parametrize("of_rows", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_near_those_of_the_cpu_in_every_layer_of_a_plan(dtype, of_rows):
    case = Case(dtype, of_rows)
    stream = twin.stream(0)
    batch, out, lse = case.batch(), case.out(of_rows), case.lse()
    plan = cuda.plan_attend(case.q_device, case.device.view(), batch, out=out, stream=stream)
    assert plan.target == "cuda-sm90-general"
    for layer in range(2):
        wanted, wanted_lse = case.wanted(layer)
        assert plan.attend(case.q_device, case.device.view(), out=out, lse=lse, layer=layer, stream=stream) is out
        twin.finish()
        assert error(out.array, wanted) < (F32 if of_rows == "f32" else HALF)
        assert error(lse.array, wanted_lse) < F32
    assert case.q_device.streams[-1] == out.streams[-1] == batch_stream(batch) == stream


def batch_stream(batch):
    """Of the last time that the fake table of a batch was asked."""
    gc.collect()
    (table,) = [each for each in gc.get_objects() if isinstance(each, Fake) and each.array.ndim == 2
                and each.array.dtype == np.int32]
    return table.streams[-1]


SLOPES = np.array([0.5, 0.25, 0.125, 0.0625], np.float32)
LOGITS = np.array([0.3, -1.0, 2.0, 0.0], np.float32)


@pytest.mark.parametrize("arguments", [
    {"causal": False}, {"scale": 0.5}, {"window": 40}, {"window": 40, "num_sinks": 3}, {"chunk": 32},
    {"chunk": 32, "num_sinks": 2}, {"soft_cap": 5.0}, {"alibi_slopes": SLOPES}, {"sink_logits": LOGITS},
    {"soft_cap": 8.0, "alibi_slopes": SLOPES, "sink_logits": LOGITS, "window": 50, "scale": 0.2},
], ids=lambda arguments: "-".join(arguments))
def test_masks_caps_slopes_and_sinks_are_those_of_the_cpu(arguments):
    case = Case()
    out, lse = case.out(), case.lse()
    assert cuda.attend(case.q_device, case.device.view(), case.batch(), out=out, lse=lse, layer=1,
                       **on_device(arguments)) is out
    twin.finish()
    wanted, wanted_lse = case.wanted(1, **arguments)
    assert error(out.array, wanted) < F32 and error(finite(lse.array), finite(wanted_lse)) < F32
    if "scale" not in arguments:
        assert error(out.array, case.wanted(1)[0]) > 1e-3, "the argument bends it"


def test_trims_are_those_of_the_cpu():
    case = Case(lens=(300, 100, 5), new=(1, 6, 5))
    case.trims = {"trim_sinks": [16, 0, 0], "trim_first_kept": [208, 64, 0]}
    out, lse = case.out(), case.lse()
    cuda.attend(case.q_device, case.device.view(), case.batch(), out=out, lse=lse)
    twin.finish()
    wanted, wanted_lse = case.wanted(0)
    assert error(out.array, wanted) < F32 and error(lse.array, wanted_lse) < F32
    case.trims = {}
    assert error(out.array, case.wanted(0)[0]) > 1e-3


def test_layers_may_have_slopes_sinks_and_tables_of_their_own():
    case = Case()
    out = case.out()
    plan = cuda.plan_attend(case.q_device, case.device.view(), case.batch(), out=out, sink_logits=Fake(twin, LOGITS))
    table = np.where(case.table >= 0, (case.table + 1) % case.num_blocks, -1).astype(np.int32)
    for logits, its_table in ((None, None), (LOGITS[::-1].copy(), None), (None, table)):
        plan.attend(case.q_device, case.device.view(), out=out, sink_logits=logits if logits is None else Fake(twin, logits),
                    block_table=its_table if its_table is None else Fake(twin, its_table))
        twin.finish()
        kept, case.table = case.table, case.table if its_table is None else its_table
        assert error(out.array, case.wanted(0, sink_logits=LOGITS if logits is None else logits)[0]) < F32
        case.table = kept


def test_a_plan_takes_the_memory_of_an_older_one():
    case, stream, old = Case(), twin.stream(0), None
    out = case.out()
    for step in range(6):
        case.kv_lens[0] = 200 + step
        plan = cuda.plan_attend(case.q_device, case.device.view(), case.batch(), out=out, reuse=old, stream=stream)
        if step == 2:
            held = twin.device_bytes()
        plan.attend(case.q_device, case.device.view(), out=out, layer=1, stream=stream)
        if old is not None:
            with pytest.raises(kv.FailedPrecondition, match="another plan has the memory of this one"):
                old.attend(case.q_device, case.device.view(), out=out)
        old = plan
        if step % 2:
            twin.finish()
            assert error(out.array, case.wanted(1)[0]) < F32, step
    assert twin.device_bytes() == held
    with pytest.raises(kv.InvalidArgument):  # what is refused takes nothing
        cuda.plan_attend(case.q_device, case.device.view(), case.batch(), out=out, reuse=old, scale=0.0)
    old.attend(case.q_device, case.device.view(), out=out, layer=0, stream=stream)
    twin.finish()
    assert error(out.array, case.wanted(0)[0]) < F32


def test_a_plan_on_another_stream_comes_behind_its_upload():
    case = Case()
    out = case.out()
    first, second = twin.stream(0), twin.stream(0)
    for _ in range(5):
        plan = cuda.plan_attend(case.q_device, case.device.view(), case.batch(), out=out, stream=first)
        twin.take_log()
        plan.attend(case.q_device, case.device.view(), out=out, stream=second)
        assert ("wait", second) in twin.take_log()
        plan.attend(case.q_device, case.device.view(), out=out, stream=second, keep=False)
        assert {call for call, _ in twin.take_log()} == {"launch"}, "graphs are captured so"
        twin.finish()
        assert error(out.array, case.wanted(0)[0]) < F32


def test_a_batch_of_no_rows_does_nothing():
    case = Case()
    none = lambda: Fake(twin, np.zeros((0, HEADS, DIM), np.float32))  # noqa: E731
    cuda.attend(none(), case.device.view(), cuda.Batch([0], [], Fake(twin, np.zeros((0, 1), np.int32))), out=none())


def test_the_end_of_a_plan_waits_and_gives_its_memory_back():
    case = Case()
    out = case.out()
    case.device.check()
    gc.collect()
    before = twin.device_bytes()
    plan = cuda.plan_attend(case.q_device, case.device.view(), case.batch(), out=out)
    assert twin.device_bytes() > before
    plan.attend(case.q_device, case.device.view(), out=out)
    twin.take_log()
    del plan
    gc.collect()
    assert twin.device_bytes() == before and ("synchronize event", 0) in twin.take_log()
    assert error(out.array, case.wanted(0)[0]) < F32


def test_a_plan_may_outlive_its_storage():
    case = Case()
    out = case.out()
    device = cuda.Device(0)
    plan = cuda.plan_attend(case.q_device, case.device.view(), case.batch(), out=out)
    plan.attend(case.q_device, case.device.view(), out=out)
    case.device = None
    gc.collect()
    assert error(out.array, case.wanted(0)[0]) < F32
    del plan
    gc.collect()
    device.synchronize()
    assert device.num_kept == 0


def test_tensors_stay_until_the_stream_has_passed():
    case = Case()
    out, lse, batch = case.out(), case.lse(), case.batch()
    cuda.Device(0).synchronize()
    twin.hold(True)
    cuda.attend(case.q_device, case.device.view(), batch, out=out, lse=lse)
    assert [each.handed - each.deleted for each in (case.q_device, out, lse)] == [1, 1, 1]
    twin.hold(False)
    cuda.Device(0).synchronize()
    assert [each.handed - each.deleted for each in (case.q_device, out, lse)] == [0, 0, 0]


def wrong(case):
    """(argument, value, exception, text) of an attend() that is refused."""
    f32 = np.float32
    q = lambda *shape, dtype=f32, **others: Fake(twin, np.zeros(shape, dtype), **others)  # noqa: E731
    tokens = len(case.q)
    table = case.table
    return [
        ("q", np.zeros((tokens, HEADS, DIM), f32), kv.InvalidArgument, "q is memory of the host, needed: memory of device 0"),
        ("q", None, TypeError, "q is None"),
        ("q", q(tokens, HEADS, DIM, device=1), kv.InvalidArgument, "q is memory of device 1"),
        ("q", q(tokens, 3, DIM), kv.InvalidArgument, "q has 3 heads, allowed: multiples of the 2 KV heads"),
        ("q", q(tokens + 1, HEADS, DIM), kv.InvalidArgument, "q is "),
        ("q", q(tokens, HEADS, DIM, dtype=np.float64), kv.Unsupported, "f64 is not allowed on a device"),
        ("out", None, TypeError, "out is None"),
        ("out", np.zeros((tokens, HEADS, DIM), f32), kv.InvalidArgument, "out is memory of the host"),
        ("out", q(tokens, HEADS, DIM, flags=READ_ONLY), TypeError, "out: the tensor is read-only"),
        ("out", q(tokens, HEADS, 16), kv.InvalidArgument, "out is "),
        ("lse", np.zeros((tokens, HEADS), f32), kv.InvalidArgument, "lse is memory of the host"),
        ("lse", q(tokens, HEADS + 1), kv.InvalidArgument, r"lse: float32 .*wanted: a contiguous float32 tensor of shape \(12, 4\)"),
        ("lse", q(tokens, HEADS, dtype=np.float16), kv.InvalidArgument, "lse: float16"),
        ("lse", Fake(twin, np.zeros((tokens, 2 * HEADS), f32)[:, ::2]), kv.InvalidArgument, "lse: float32"),
        ("alibi_slopes", q(3), kv.InvalidArgument, "alibi_slopes or sink_logits has 3 entries, allowed: 4"),
        ("alibi_slopes", SLOPES, kv.InvalidArgument, "alibi_slopes is memory of the host"),
        ("sink_logits", q(4, dtype=np.float16), TypeError, "sink_logits: float16 .*wanted: a contiguous float32 tensor"),
        ("scale", 0.0, kv.InvalidArgument, "scale"),
        ("scale", "1", TypeError, "scale: str object, wanted: a float or None"),
        ("window", -1, kv.InvalidArgument, "window|rule"),
        ("layer", 2, kv.InvalidArgument, "layer is 2"),
        ("batch", kv.Batch([0, 1], [1], table[:1].copy()), TypeError, "batch: .*wanted: a kvfolio.cuda.Batch"),
        ("batch", case.batch(block_table=table), kv.InvalidArgument, "block_table is memory of the host"),
        ("batch", case.batch(block_table=Fake(twin, table.astype(np.int64))), TypeError, "block_table: int64"),
        ("batch", case.batch(block_table=Fake(twin, table[:, ::2])), kv.InvalidArgument, "block_table: a tensor with strides"),
        ("batch", case.batch(block_table=Fake(twin, table[0].copy())), kv.InvalidArgument, r"wanted: \[num_sequences"),
        ("batch", case.batch(block_table=Fake(twin, table[:2].copy())), kv.InvalidArgument, "block_table has "),
        ("batch", case.batch(kv_lens=[300, 37]), kv.InvalidArgument, "query_start|kv_lens"),
        ("batch", case.batch(kv_lens=[300, 3700, 5]), kv.InvalidArgument, "3700|block_table"),
        ("batch", case.batch(trim_sinks=[1, 0, 0]), kv.InvalidArgument, "trim"),
    ]


@pytest.mark.parametrize("number", range(len(wrong(Case()))))
def test_a_wrong_argument_is_refused_by_name_and_changes_nothing(number):
    case = Case()
    name, bad, kind, text = wrong(case)[number]
    good = {"q": case.q_device, "batch": case.batch(), "out": case.out(), "lse": case.lse(), name: bad}
    cuda.Device(0).synchronize()
    twin.finish()
    with pytest.raises(kind, match=text):
        cuda.attend(good.pop("q"), case.device.view(), good.pop("batch"), **good)
    twin.finish()
    assert cuda.Device(0).num_kept <= 1  # the upload of a plan, where only lse is wrong
    if isinstance(good.get("out"), Fake):
        assert (good["out"].array == 7).all() or name == "out"
    out = case.out()  # the next one is right
    cuda.attend(case.q_device, case.device.view(), case.batch(), out=out)
    twin.finish()
    assert error(out.array, case.wanted(0)[0]) < F32


def test_lengths_of_a_device_are_refused():
    with pytest.raises(kv.InvalidArgument, match="kv_lens is memory of device 0, needed: memory of the host"):
        cuda.Batch([0, 1], Fake(twin, np.ones(1, np.int32)), Fake(twin, np.zeros((1, 1), np.int32)))
    with pytest.raises(TypeError, match="block_table is None"):
        cuda.Batch([0, 1], [1], None)


def test_a_plan_is_for_calls_of_its_shapes_only():
    case, other = Case(), Case("f16")
    plan = cuda.plan_attend(case.q_device, case.device.view(), case.batch(), out=case.out())
    with pytest.raises(kv.InvalidArgument, match="another shape or element type"):
        plan.attend(case.q_device, other.device.view(), out=case.out())
    with pytest.raises(kv.InvalidArgument, match="sink_logits: given, but the plan was made without"):
        plan.attend(case.q_device, case.device.view(), out=case.out(), sink_logits=Fake(twin, LOGITS))
    with pytest.raises(kv.InvalidArgument, match="out has other heads or another element type"):
        plan.attend(case.q_device, case.device.view(), out=case.out("f16"))
    on_other = cuda.Storage(case.device.groups, device=1)
    with pytest.raises(kv.InvalidArgument, match="cache is on device 1, the plan on device 0"):
        plan.attend(case.q_device, on_other.view(), out=case.out())


def test_each_call_of_the_driver_may_fail():
    case = Case(lens=(30, 5), new=(1, 2), num_layers=1)
    failures = 0
    for number in range(1, 200):
        out = case.out()
        twin.fail_at(number, 999)
        try:
            cuda.attend(case.q_device, case.device.view(), case.batch(), out=out)
            break
        except kv.Unavailable:
            failures += 1
        finally:
            twin.fail_at(0, 2)
        cuda.Device(0).synchronize()
        assert out.handed == out.deleted, number
    assert failures > 15
    twin.finish()
    assert error(out.array, case.wanted(0)[0]) < F32


def test_threads_attend_on_streams_of_their_own():
    case = Case(lens=(60, 20), new=(1, 3))
    wanted, errors, start = case.wanted(0)[0], [], threading.Barrier(3)

    def work(own):
        try:
            stream, plan = twin.stream(0), None
            start.wait()
            for _ in range(8):
                out = case.out()
                if own:
                    plan = cuda.plan_attend(case.q_device, case.device.view(), case.batch(), out=out, reuse=plan, stream=stream)
                    plan.attend(case.q_device, case.device.view(), out=out, stream=stream)
                else:
                    cuda.attend(case.q_device, case.device.view(), case.batch(), out=out, stream=stream)
                cuda.Device(0).synchronize()
                assert error(out.array, wanted) < F32
        except Exception as raised:
            errors.append(raised)

    threads = [threading.Thread(target=work, args=(own,)) for own in (True, False, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
