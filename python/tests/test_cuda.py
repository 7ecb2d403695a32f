# SPDX-License-Identifier: Apache-2.0
"""kvfolio.cuda over a driver that is none (tests/python_cuda): what it writes has the bytes of the CPU's functions, and
what it refuses is named and changes nothing. Not on a device."""

import gc
import os
import pathlib
import subprocess
import sys
import threading

import numpy as np
import pytest

import kvfolio as kv
from cuda_twin import PACKAGES, TWIN, cuda, fresh, twin  # noqa: F401
from fake_dlpack import BFLOAT, COPIED, CPU, E4M3FN, READ_ONLY, Fake, bits, consume

DTYPES = ["f32", "f16", "bf16", "int8", "e4m3"]


def spec(dtype="f32", fmt="hnd", **fields):
    return kv.GroupSpec(**{"num_layers": 2, "num_kv_heads": 2, "head_dim": 16, "head_dim_v": 8, "num_blocks": 6,
                           "block_size": 4, "dtype": dtype, "format": fmt, **fields})


def rows(rng, count, dim, dtype):
    """Rows for the CPU, and the same as a tensor of the device."""
    numbers = (rng.standard_normal((count, 2, dim)) * 3).astype(np.float32)
    array = {"f32": lambda: numbers, "f16": lambda: numbers.astype(np.float16),
             "bf16": lambda: (numbers.view(np.uint32) >> 16).astype(np.uint16)}[dtype]()
    return array, Fake(twin, array.copy(), code=BFLOAT if dtype == "bf16" else None)


def ints(*numbers):
    return Fake(twin, np.array(numbers, np.int32))


def pair(group):
    """A storage of the CPU and one of the device, of the same bytes."""
    host, device = kv.Storage([group]), cuda.Storage([group])
    host.fill(0x3c)
    cuda.fill(device.view(), 0x3c)
    twin.finish()
    return host, device


def check_same(host, device):
    twin.finish()
    for name in ("k", "v", "k_scale", "v_scale"):
        mine, others = getattr(device, name), getattr(host, name)
        assert (mine is None) == (others is None), name
        if mine is not None:
            assert np.array_equal(bits(mine), np.asarray(others).view(f"u{others.dtype.itemsize}")), name


@pytest.mark.parametrize("fmt", ["hnd", "nhd"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("of_rows", ["f32", "f16", "bf16"])
def test_append_gather_and_copies_have_the_bytes_of_the_cpu(dtype, fmt, of_rows):
    rng = np.random.default_rng(5)
    host, device = pair(spec(dtype, fmt))
    slots = [-1, *rng.permutation(24)[:12].tolist()]
    (k, k_device), (v, v_device) = rows(rng, 13, 16, of_rows), rows(rng, 13, 8, of_rows)
    kv.append(host.view(), k, v, slots, layer=1)
    cuda.append(device.view(), k_device, v_device, ints(*slots), layer=1, stream=twin.stream(0))
    check_same(host.view(), device.view())
    kv.copy_blocks(host.view(), [0, 1, 2], [3, 2, 5])
    cuda.copy_blocks(device.view(), [0, 1, 2], np.array([3, 2, 5], np.int32))
    check_same(host.view(), device.view())

    table = [5, 0, 3]
    item = "f4" if of_rows == "f32" else "u2"
    out = [np.full((2, 7, 2, dim), 9, item) for dim in (16, 8)]
    if of_rows == "f16":
        out = [each.view(np.float16) for each in out]
    device_out = [Fake(twin, each.copy(), code=BFLOAT if of_rows == "bf16" else None) for each in out]
    where = dict(first=2, count=7, num_layers=2)
    kv.gather(host.view(), table, 11, k=out[0], v=out[1], **where)
    cuda.gather(device.view(), ints(*table), 11, k=device_out[0], v=device_out[1], **where)
    twin.finish()
    for mine, others in zip(device_out, out):
        assert mine.array.tobytes() == others.tobytes()
    device.check()


def test_conversions_have_the_bytes_of_the_cpu():
    rng = np.random.default_rng(6)
    host, device = pair(spec("f32", "nhd"))
    other_host, other = pair(spec("int8"))
    (k, k_device), (v, v_device) = rows(rng, 24, 16, "f32"), rows(rng, 24, 8, "f32")
    kv.append(host.view(), k, v, range(24))
    cuda.append(device.view(), k_device, v_device, ints(*range(24)))
    kv.convert_blocks(host.view(), other_host.view(), [0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0])
    cuda.convert_blocks(device.view(), other.view(), [0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0])
    check_same(other_host.view(0, 0), other.view(0, 0))


@pytest.mark.parametrize("fmt", ["hnd", "nhd"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_storage_lies_in_a_tensor_for_each_layer(dtype, fmt):
    rng = np.random.default_rng(7)
    group = spec(dtype, fmt, head_dim_v=16)
    host = kv.Storage([group])
    host.fill(0x11)
    item = {"f32": "f4", "f16": "f2", "bf16": "u2", "int8": "i1", "e4m3": "u1"}[dtype]
    code = {"bf16": BFLOAT, "e4m3": E4M3FN}.get(dtype)
    layers, lent = [], []
    for _ in range(2):
        shape = (6, 2, 4, 16) if fmt == "hnd" else (6, 4, 2, 16)
        arrays = [np.full(shape, 0, item) for _ in range(2)]
        if dtype in ("int8", "e4m3"):
            arrays += [np.full(shape[:3], 0, "f4") for _ in range(2)]
        for array in arrays:
            array.view(np.uint8)[...] = 0x11
        seen = [each if fmt == "hnd" else each.swapaxes(1, 2) for each in arrays]
        lent.append(tuple(Fake(twin, each, code=code if axes == 4 else None)
                          for each, axes in zip(seen, [each.ndim for each in seen])))
        layers.append(seen)
    storage = cuda.Storage.borrow([group], [lent], stream=2)
    assert {each.streams[0] for layer in lent for each in layer} == {2} and not storage.owns_memory
    with pytest.raises(kv.Unsupported, match="lent"):
        storage.view()
    (k, k_device), (v, v_device) = rows(rng, 9, 16, "f32"), rows(rng, 9, 16, "f32")
    kv.append(host.view(), k, v, range(9), layer=1)
    cuda.append(storage.view(0, layer=1), k_device, v_device, ints(*range(9)))
    for layer in range(2):
        check_same(host.view(0, layer), storage.view(0, layer))
        exported = consume(storage.view(0, layer).k, stream=-1)
        assert exported.data == layers[layer][0].ctypes.data, "a view, not a copy"
        assert exported.strides[1:] == tuple(each // layers[layer][0].itemsize for each in layers[layer][0].strides)
        exported.release()
    del storage
    gc.collect()
    assert all(each.handed == each.deleted == 1 for layer in lent for each in layer)


def test_layers_of_other_shapes_or_strides_are_refused_and_given_back():
    group = spec(head_dim_v=16)
    good = lambda: Fake(twin, np.zeros((6, 2, 4, 16), np.float32))  # noqa: E731
    cases = [
        (Fake(twin, np.zeros((6, 2, 4, 8), np.float32)), kv.InvalidArgument, r"k: float32 .* wanted: shape \(6, 2, 4, 16\)"),
        (Fake(twin, np.zeros((6, 4, 2, 16), np.float32).swapaxes(1, 2)), kv.InvalidArgument, "layer 1 has other strides"),
        (Fake(twin, np.zeros((6, 2, 4, 16), np.float16)), TypeError, "k: float16 .* wanted: elements of f32"),
        (Fake(twin, np.zeros((6, 2, 4, 32), np.float32)[..., ::2]), kv.InvalidArgument, "lie 2 apart"),
        (Fake(twin, np.zeros((6, 2, 4, 16), np.float32)[::-1]), kv.InvalidArgument, "axis 0 has stride -"),
        (Fake(twin, np.zeros((6, 2, 4, 16), np.float32), flags=READ_ONLY), TypeError, "k: the tensor is read-only"),
        (Fake(twin, np.zeros((6, 2, 4, 16), np.float32), device=1), kv.InvalidArgument, "k is memory of device 1, needed: "
         r"memory of device 0 \(Fake 0\)"),
    ]
    for bad, kind, text in cases:
        all_good = [good(), good(), good()]
        with pytest.raises(kind, match=text):
            cuda.Storage.borrow([group], [[(all_good[0], all_good[1]), (bad, all_good[2])]])
        gc.collect()
        assert [each.handed - each.deleted for each in (*all_good, bad)] == [0] * 4, text
    with pytest.raises(kv.InvalidArgument, match="1 layers are lent, the spec has 2"):
        cuda.Storage.borrow([group], [[(good(), good())]])
    whole = Fake(twin, np.zeros((2, 6, 2, 4, 16), np.float32))
    with pytest.raises(kv.InvalidArgument, match="overlap"):
        cuda.Storage.borrow([group], [(whole, whole)])
    assert whole.handed == whole.deleted == 2


def test_formats_and_elements_of_the_cpu_are_refused_by_name():
    with pytest.raises(kv.Unsupported, match=r"groups\[1\].format is granule, allowed on a device: hnd, nhd"):
        cuda.Storage([spec(), spec("bf16", "granule", block_size=16)])
    with pytest.raises(kv.Unsupported, match=r"groups\[0\].dtype is f64, allowed on a device: f32, f16, bf16, int8, e4m3"):
        cuda.Storage([spec("f64")])


# ---- tensors that come ----

@pytest.mark.parametrize(("given", "passed"), [(None, 1), (0, 1), (1, 1), (2, 2)])
def test_a_producer_is_told_the_stream_of_the_call(given, passed):
    storage = cuda.Storage([spec()])
    rng = np.random.default_rng(1)
    for old in (False, True):
        k, v, slots = rows(rng, 1, 16, "f32")[1], rows(rng, 1, 8, "f32")[1], ints(3)
        for each in (k, v, slots):
            each.old = old
        twin.take_log()
        cuda.append(storage.view(), k, v, slots, stream=given)
        assert k.streams == v.streams == slots.streams == [passed]
        assert k.versions == ([] if old else [(1, 1)])
        assert [each for each in twin.take_log() if each[0] != "wait"] == [("launch", passed), ("record", passed)]


def test_a_stream_is_a_handle_or_an_object_that_has_one():
    storage = cuda.Storage([spec()])
    handle = twin.stream(0)

    class OfTorch:
        cuda_stream = handle

    class OfProtocol:
        def __cuda_stream__(self):
            return 0, handle

    for stream in (handle, OfTorch(), OfProtocol()):
        slots = ints(0)
        cuda.gather(storage.view(), slots, 1, k=Fake(twin, np.zeros((1, 2, 16), np.float32)), stream=stream)
        assert slots.streams == [handle]
    for wrong in ("1", 1.5, True, object()):
        with pytest.raises(TypeError, match="stream: .* wanted: None, the handle of a stream"):
            cuda.fill(storage.view(), 0, stream=wrong)
    with pytest.raises(kv.InvalidArgument, match="stream is -1"):
        cuda.fill(storage.view(), 0, stream=-1)
    with pytest.raises(kv.InvalidArgument, match=r"the stream is of another device, needed: one of device 0 \(Fake 0\)"):
        cuda.fill(storage.view(), 0, stream=twin.stream(1))


def wrong_tensors():
    """(argument, tensor, exception, text) of an append() or a gather() that is refused."""
    f32 = np.float32
    return [
        ("k", np.zeros((2, 2, 16), f32), kv.InvalidArgument, r"k is memory of the host, needed: memory of device 0 \(Fake 0\)"),
        ("k", Fake(twin, np.zeros((2, 2, 16), f32), device=1), kv.InvalidArgument, "k is memory of device 1"),
        ("k", Fake(twin, np.zeros((2, 2, 16), f32), place=(10, 0)), kv.InvalidArgument, "k is on device type 10"),
        ("k", [[1.0]], TypeError, "k: list object, wanted: a tensor of device 0"),
        ("k", Fake(twin, np.zeros((2, 2, 16), np.int64)), TypeError, "k: int64 tensor of shape .*, wanted: float32, float16"),
        ("k", Fake(twin, np.zeros((2, 2, 16), np.float64)), kv.Unsupported, "k is f64|k.* f64"),
        ("k", Fake(twin, np.zeros((2, 2, 8), f32)), kv.InvalidArgument, "k"),
        ("k", Fake(twin, np.zeros((2, 3, 16), f32)), kv.InvalidArgument, "k"),
        ("k", Fake(twin, np.zeros((3, 2, 16), f32)), kv.InvalidArgument, "slots|k"),
        ("k", Fake(twin, np.zeros((2, 16), f32)), kv.InvalidArgument, r"k: float32 .*\(2, 16\), wanted: \[tokens, heads"),
        ("k", Fake(twin, np.zeros((2, 2, 32), f32)[..., ::2]), kv.InvalidArgument, "k: elements of a row lie 2 apart"),
        ("k", Fake(twin, np.zeros((2, 2, 16), f32), version=(2, 0)), kv.InvalidArgument, "k: a capsule of DLPack 2.0"),
        ("slots", np.zeros(2, np.int32), kv.InvalidArgument, "slots is memory of the host, needed: memory of device 0"),
        ("slots", [0, 1], TypeError, "slots: list object, wanted: a tensor of device 0"),
        ("slots", Fake(twin, np.zeros(2, np.int64)), TypeError, "slots: int64 .*, wanted: a 1-D int32 tensor"),
        ("slots", Fake(twin, np.zeros((2, 1), np.int32)), kv.InvalidArgument, "slots: int32 .*, wanted: a 1-D int32"),
        ("slots", Fake(twin, np.zeros(4, np.int32)[::2]), kv.InvalidArgument, "slots: a tensor with stride 2"),
        ("slots", Fake(twin, np.zeros(3, np.int32)), kv.InvalidArgument, "slots|k"),
    ]


@pytest.mark.parametrize("number", range(len(wrong_tensors())))
def test_a_wrong_tensor_is_refused_by_name_and_changes_nothing(number):
    name, bad, kind, text = wrong_tensors()[number]
    _, storage = pair(spec())
    before = bits(storage.view().k)
    arguments = {"k": Fake(twin, np.ones((2, 2, 16), np.float32)), "v": Fake(twin, np.ones((2, 2, 8), np.float32)),
                 "slots": ints(4, 5), name: bad}
    device = cuda.Device(0)
    device.synchronize()
    with pytest.raises(kind, match=text):
        cuda.append(storage.view(), **arguments)
    twin.finish()
    assert np.array_equal(bits(storage.view().k), before) and device.num_kept == 0
    for each in arguments.values():
        if isinstance(each, Fake):
            assert each.handed == each.deleted, "its deleter runs once"


def test_what_a_gather_writes_must_be_writable_and_no_copy():
    storage = cuda.Storage([spec()])
    for flags, text in ((READ_ONLY, "k: the tensor is read-only, and it is written"), (COPIED, "k: __dlpack__.. gives a copy")):
        out = Fake(twin, np.zeros((2, 2, 16), np.float32), flags=flags)
        with pytest.raises(TypeError, match=text):
            cuda.gather(storage.view(), ints(0), 2, k=out)
        assert out.deleted == 1
        cuda.append(storage.view(), out, Fake(twin, np.zeros((2, 2, 8), np.float32)), ints(0, 1))  # it is read
    with pytest.raises(kv.InvalidArgument, match=r"rows of 2 layers need four axes"):
        cuda.gather(storage.view(), ints(0), 2, num_layers=2, k=Fake(twin, np.zeros((2, 2, 16), np.float32)))


def test_lists_of_blocks_are_of_the_host():
    _, storage = pair(spec())
    with pytest.raises(kv.InvalidArgument, match="src is memory of device 0, needed: memory of the host"):
        cuda.copy_blocks(storage.view(), ints(0), [1])
    with pytest.raises(kv.InvalidArgument, match="dst is memory of device 0, needed: memory of the host"):
        cuda.convert_blocks(storage.view(), storage.view(), [1], ints(0))
    with pytest.raises(kv.InvalidArgument, match="6"):
        cuda.copy_blocks(storage.view(), [0], [6])


def test_a_capsule_of_another_device_than_was_said_is_refused():
    storage = cuda.Storage([spec()])

    class Liar(Fake):
        def __dlpack_device__(self):
            return 2, 0

    for place in ((CPU, 0), (2, 1)):
        table = Liar(twin, np.zeros(1, np.int32), place=place, device=place[1])
        with pytest.raises(kv.InvalidArgument, match="block_table is memory of .*, needed: memory of device 0"):
            cuda.gather(storage.view(), table, 1, k=Fake(twin, np.zeros((1, 2, 16), np.float32)))
        assert table.handed == table.deleted == 1


def test_a_capsule_is_taken_once():
    storage = cuda.Storage([spec()])

    class Same(Fake):
        def __dlpack__(self, **options):
            if not hasattr(self, "one"):
                self.one = super().__dlpack__(**options)
            return self.one

    again = Same(twin, np.zeros(1, np.int32))
    out = lambda: Fake(twin, np.zeros((1, 2, 16), np.float32))  # noqa: E731
    cuda.gather(storage.view(), again, 1, k=out())
    with pytest.raises(TypeError, match="block_table: its __dlpack__.. gives no capsule of a tensor, or one that was taken"):
        cuda.gather(storage.view(), again, 1, k=out())
    cuda.Device(0).synchronize()
    assert again.deleted == 1


def test_an_error_of_a_producer_comes_through():
    storage = cuda.Storage([spec()])

    class Bad(Fake):
        def __dlpack__(self, **options):
            raise BufferError("it needs gradients")

    with pytest.raises(BufferError, match="it needs gradients"):
        cuda.gather(storage.view(), Bad(twin, np.zeros(1, np.int32)), 1)


def test_empty_tensors_do_nothing():
    host, storage = pair(spec())
    none = lambda dim: Fake(twin, np.zeros((0, 2, dim), np.float32))  # noqa: E731
    cuda.append(storage.view(), none(16), none(8), Fake(twin, np.zeros(0, np.int32)))
    cuda.gather(storage.view(), Fake(twin, np.zeros(0, np.int32)), 0, k=none(16), v=none(8))
    cuda.copy_blocks(storage.view(), [], [])
    check_same(host.view(), storage.view())


# ---- what stays alive ----

def test_tensors_stay_until_the_stream_has_passed():
    storage = cuda.Storage([spec()])
    device = cuda.Device(0)
    device.synchronize()
    k, v, slots = Fake(twin, np.ones((1, 2, 16), np.float32)), Fake(twin, np.ones((1, 2, 8), np.float32)), ints(3)
    twin.hold(True)
    cuda.append(storage.view(), k, v, slots)
    cuda.fill(storage.view(), 1)
    assert [each.deleted for each in (k, v, slots)] == [0, 0, 0] and device.num_kept == 2
    twin.hold(False)
    twin.finish()
    cuda.fill(storage.view(), 1)
    assert [each.deleted for each in (k, v, slots)] == [1, 1, 1]
    device.synchronize()
    assert device.num_kept == 0


def test_without_keep_the_caller_keeps_them():
    storage = cuda.Storage([spec()])
    slots = ints(0)
    twin.hold(True)
    twin.take_log()
    cuda.gather(storage.view(), slots, 1, k=Fake(twin, np.zeros((1, 2, 16), np.float32)), keep=False)
    assert slots.deleted == 1 and [each for each, _ in twin.take_log()] == ["launch"], "no event: graphs are captured so"


def test_without_keep_a_capture_is_not_spoiled_by_what_earlier_calls_keep():
    storage, stream = cuda.Storage([spec()]), twin.stream(0)
    k, slots = Fake(twin, np.zeros((1, 2, 16), np.float32)), ints(0)
    cuda.gather(storage.view(), slots, 1, k=k, stream=stream)
    assert cuda.Device(0).num_kept > 0
    twin.capture(stream)
    try:
        cuda.gather(storage.view(), slots, 1, k=k, stream=stream, keep=False)
    finally:
        captured = twin.end_capture(stream)
    assert captured


def test_a_device_has_no_staging_for_copies_that_python_cannot_submit():
    twin.take_log()
    gc.collect()
    before = twin.device_bytes()
    storage = cuda.Storage([spec()], device=1)
    assert storage.memory_bytes < 1 << 20
    assert 16 << 20 <= twin.device_bytes() - before < 17 << 20


def test_a_view_and_what_was_exported_keep_the_storage():
    gc.collect()
    cuda.Storage([spec()])  # the device has its own memory now, and keeps it for as long as `device`
    device = cuda.Device(0)
    cuda.Storage([spec()])
    gc.collect()
    before = twin.device_bytes()
    exported = consume(cuda.Storage([spec(num_blocks=64)]).view(0, 1).v, max_version=(1, 0), stream=-1)
    gc.collect()
    held = twin.device_bytes()
    assert held > before and exported.name == "dltensor_versioned" and exported.device == (2, 0)
    exported.array()[...] = 5
    capsule = cuda.Storage([spec()]).view().k.__dlpack__()
    assert twin.device_bytes() > held
    del capsule  # it was not taken
    gc.collect()
    assert twin.device_bytes() == held
    thread = threading.Thread(target=exported.release)  # a consumer lets go of it on any thread
    thread.start()
    thread.join()
    assert twin.device_bytes() == before
    del device


def test_a_storage_waits_for_its_streams_before_it_ends():
    group = spec(head_dim_v=0)
    lent = Fake(twin, np.zeros((2, 6, 2, 4, 16), np.float32))
    storage = cuda.Storage.borrow([group], [(lent,)])
    for value in range(20):
        cuda.fill(storage.view(), value, stream=twin.stream(0))
    twin.take_log()
    del storage
    gc.collect()
    assert lent.deleted == 1
    assert [call for call, _ in twin.take_log()].count("synchronize event") == 20, "once for each stream"


def on_a_thread(call):
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_the_stream_of_a_thread_is_not_that_of_another():
    lent = Fake(twin, np.zeros((2, 6, 2, 4, 16), np.float32))
    storage = cuda.Storage.borrow([spec(head_dim_v=0)], [(lent,)])
    views = storage.view(0, 0), storage.view(0, 1)
    on_a_thread(lambda: cuda.fill(views[0], 1, stream=2))
    twin.take_log()
    consume(views[0].k, stream=2).release()
    assert twin.take_log() == [("wait", 2)], "for the stream of the other thread"
    cuda.fill(views[1], 2, stream=2)
    assert twin.take_log() == [("launch", 2), ("wait", 2), ("record", 2)], "no event goes before it is waited for"
    del storage, views
    gc.collect()
    assert lent.deleted == 1
    assert [set(layer.view(np.uint8).flat) for layer in lent.array] == [{1}, {2}], "both had ended"


def test_a_stream_with_the_handle_of_one_before_it_comes_behind_that_one():
    view, stream = cuda.Storage([spec()]).view(), twin.stream(0)
    cuda.fill(view, 1, stream=stream)
    twin.take_log()
    consume(view.k, stream=stream).release()  # for all that is known, destroyed and made anew
    assert twin.take_log() == [("wait", stream)]


# ---- tensors that go ----

def test_an_exported_tensor_waits_for_what_was_enqueued():
    storage = cuda.Storage([spec()])
    view, mine, other = storage.view(), twin.stream(0), twin.stream(0)
    assert view.k.__dlpack_device__() == (2, 0)
    cuda.fill(view, 9, stream=mine)
    twin.take_log()
    for options, waits in (({"stream": other}, [("wait", other)]), ({"stream": mine}, [("wait", mine)]), ({"stream": -1}, []),
                           ({"stream": None}, [("wait", 1)]), ({}, [("wait", 1)]), ({"stream": 1}, [("wait", 1)]),
                           ({"stream": 2}, [("wait", 2)])):
        held = consume(view.k, **options)
        assert twin.take_log() == waits, options
        held.release()
    cuda.fill(view, 10, stream=other)
    twin.take_log()
    consume(view.v, stream=1).release()
    assert sorted(twin.take_log()) == [("wait", 1), ("wait", 1)], "for both streams"
    for bad, kind, text in ((0, kv.InvalidArgument, "stream is 0, allowed by DLPack for CUDA: 1"),
                            (-2, kv.InvalidArgument, "stream is -2"), ("1", TypeError, "stream: str")):
        with pytest.raises(kind, match=text):
            view.k.__dlpack__(stream=bad)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_exported_tensor_says_its_type_shape_and_place(dtype):
    storage = cuda.Storage([spec(dtype, "nhd")], device=1)
    view = storage.view(0, layer=1)
    types = {"f32": (2, 32, 1), "f16": (2, 16, 1), "bf16": (4, 16, 1), "int8": (0, 8, 1), "e4m3": (1, 8, 1)}
    for max_version, name in ((None, "dltensor"), ((0, 8), "dltensor"), ((1, 0), "dltensor_versioned"),
                              ((2, 3), "dltensor_versioned")):
        held = consume(view.v, max_version=max_version, stream=-1)
        assert (held.name, held.device, held.dtype, held.shape) == (name, (2, 1), types[dtype], (1, 6, 2, 4, 8))
        assert held.strides == view.v.strides and held.data == view.v.data_ptr
        if name == "dltensor_versioned":
            assert (held.managed.major, held.managed.minor, held.managed.flags) == (1, 1, 0)
        held.release()
    scale = view.k_scale
    assert (scale is not None) == (dtype in ("int8", "e4m3"))
    if scale is not None:
        held = consume(scale, stream=-1)
        assert held.dtype == (2, 32, 1) and held.shape == (1, 6, 2, 4)
        held.release()


def test_only_a_view_where_it_lies_is_exported():
    tensor = cuda.Storage([spec()]).view().k
    consume(tensor, dl_device=(2, 0), copy=False).release()
    consume(tensor, copy=None, dl_device=None).release()
    with pytest.raises(kv.Unsupported, match="copy=True"):
        tensor.__dlpack__(copy=True)
    for place in ((CPU, 0), (2, 1)):
        with pytest.raises(kv.Unsupported, match="dl_device is another one"):
            tensor.__dlpack__(dl_device=place)
    with pytest.raises(TypeError, match="max_version: int"):
        tensor.__dlpack__(max_version=1)


def test_a_tensor_of_one_storage_is_rows_of_another():
    host, storage = pair(spec("f32", num_kv_heads=2, block_size=4))
    other = cuda.Storage([spec("f32")])
    whole = consume(storage.view(0, 0).k, stream=-1)

    class Block:  # [tokens, heads, dim] of block 2
        def __init__(self):
            self.fake = Fake(twin, whole.array().view(np.float32)[0, 2].swapaxes(0, 1))
            self.__class__.__dlpack__ = lambda _, **options: self.fake.__dlpack__(**options)

        def __dlpack_device__(self):
            return 2, 0

    cuda.append(other.view(), Block(), Fake(twin, np.zeros((4, 2, 8), np.float32)), ints(0, 1, 2, 3))
    twin.finish()
    assert np.array_equal(bits(other.view().k)[0, 0], bits(storage.view().k)[0, 2])
    whole.release()


# ---- faults, failures, threads ----

def test_check_names_the_first_slot_and_entry_out_of_range_once():
    host, storage = pair(spec())
    one = Fake(twin, np.ones((2, 2, 16), np.float32)), Fake(twin, np.ones((2, 2, 8), np.float32))
    cuda.append(storage.view(), *one, ints(24, -2))
    check_same(host.view(), storage.view())
    with pytest.raises(kv.InvalidArgument) as cpu:
        kv.append(host.view(), one[0].array, one[1].array, [24, -2])
    with pytest.raises(kv.InvalidArgument) as found:
        storage.check()
    assert str(found.value) == str(cpu.value)
    storage.check()
    out = np.zeros((5, 2, 16), np.float32)
    with pytest.raises(kv.InvalidArgument) as cpu:
        kv.gather(host.view(), [0, 6], 5, k=out)
    cuda.gather(storage.view(0, 1), ints(0, 6), 5, k=Fake(twin, out))
    with pytest.raises(kv.InvalidArgument) as found:
        storage.check()
    assert str(found.value) == str(cpu.value)
    storage.check()


def test_each_call_of_the_driver_may_fail():
    _, storage = pair(spec())
    cuda.Device(0).synchronize()
    failures = late = 0
    for number in range(1, 100):
        twin.take_log()
        tensors = Fake(twin, np.ones((1, 2, 16), np.float32)), Fake(twin, np.ones((1, 2, 8), np.float32)), ints(3)
        twin.fail_at(number, 999)
        try:
            cuda.append(storage.view(), *tensors)
            break
        except kv.Unavailable:
            failures += 1
            log = [call for call, _ in twin.take_log()]
            if "launch" in log and "record" not in log[log.index("launch"):-1] and not cuda.Device(0).num_kept:
                late += 1  # no event says when the kernel has read them: it is waited for
                assert log[-1] == "synchronize", log
        finally:
            twin.fail_at(0, 2)
        cuda.Device(0).synchronize()
        assert [each.deleted for each in tensors] == [1, 1, 1], number
    assert failures > 8 and late > 0
    storage.check()


def test_no_memory_for_a_storage_is_said_and_given_back():
    _, _ = pair(spec())
    device = cuda.Device(0)
    keep = cuda.Storage([spec()])
    gc.collect()
    before = twin.device_bytes()
    for number in range(1, 100):
        twin.fail_at(number, 2)
        try:
            cuda.Storage([spec()])
            break
        except kv.Error as error:
            assert "OUT_OF_MEMORY" in str(error)
        finally:
            twin.fail_at(0, 2)
        gc.collect()
        assert twin.device_bytes() == before, number
    assert number > 4
    del keep, device


def test_threads_append_on_streams_of_their_own():
    rng = np.random.default_rng(3)
    host, storage = pair(spec(num_blocks=64))
    numbers = rng.standard_normal((256, 2, 16)).astype(np.float32), rng.standard_normal((256, 2, 8)).astype(np.float32)
    errors, start = [], threading.Barrier(4)

    def work(part):
        try:
            stream = twin.stream(0)
            start.wait()
            for first in range(part * 64, part * 64 + 64, 4):
                cut = [Fake(twin, each[first:first + 4].copy()) for each in numbers]
                cuda.append(storage.view(), *cut, ints(*range(first, first + 4)), stream=stream)
                consume(storage.view().k, stream=1).release()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    kv.append(host.view(), *numbers, range(256))
    check_same(host.view(), storage.view())
    storage.check()


# ---- devices, and the package ----

def test_a_device_says_what_computes():
    device = cuda.Device(1)
    assert (device.ordinal, device.name, device.target, device.capability) == (1, "Fake 1", "cuda-sm90", (9, 0))
    assert device.engine == f"cuda-sm90-r{cuda.kernel_revision()}" and device.num_multiprocessors == 132
    assert repr(device) == "Device(1: Fake 1, cuda-sm90)"
    assert cuda.available() and cuda.why_not() is None and cuda.num_devices() == 2 and cuda.has_kernels()
    assert cuda.Storage([spec()], device=device).ordinal == 1
    with pytest.raises(kv.InvalidArgument, match="2"):
        cuda.Device(2)
    with pytest.raises(TypeError, match="device: str object, wanted: a Device or an int"):
        cuda.Storage([spec()], device="cuda")


def test_without_a_driver_it_says_so():
    twin.absent(True)
    assert not cuda.available() and cuda.why_not() == "there is no driver in this test"
    with pytest.raises(kv.Unavailable, match="there is no driver in this test"):
        cuda.num_devices()


def run(code, *folders):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment)


def test_without_the_package_kvfolio_cuda_says_what_to_install():
    ran = run("import sys; sys.modules['kvfolio_cuda'] = None\nimport kvfolio\nimport kvfolio.cuda", PACKAGES)
    assert ran.returncode == 1
    assert f"pip install kvfolio-cuda=={kv.__version__}" in ran.stderr.splitlines()[-1]


@pytest.mark.parametrize("folders", [(PACKAGES,), (TWIN, PACKAGES)])
def test_a_base_of_another_build_is_refused_with_both_versions(folders):
    ran = run("import kvfolio; kvfolio._core._interface_id = lambda: 'ffff-abi1'\nimport kvfolio.cuda", *folders)
    assert ran.returncode == 1
    last = ran.stderr.splitlines()[-1]
    assert last.startswith("ImportError") and "ffff-abi1" in last and kv._core._interface_id() in last
    assert "kvfolio_cuda is for" in last


def test_the_package_of_this_build_says_what_is_missing():
    if not (PACKAGES / "kvfolio_cuda" / "_cuda.abi3.so").exists():
        pytest.skip("kvfolio_cuda itself is not built")
    ran = run("import kvfolio.cuda as cuda\n"
              "print(cuda.why_not() if not cuda.available() else 'ok')\n"
              "print(cuda.has_kernels())", PACKAGES)
    assert ran.returncode == 0, ran.stderr
    said, kernels = ran.stdout.splitlines()
    if kernels.startswith("False"):
        assert said == "libkvfolio_cuda was built without nvcc and has no kernels"
        assert "RuntimeWarning: kvfolio_cuda was built without nvcc and has no kernels" in ran.stderr
    else:
        assert said == "ok" or "driver" in said or "device" in said


def test_the_wheel_of_cuda_is_for_the_version_of_the_base():
    text = (pathlib.Path(__file__).parents[1] / "cuda" / "pyproject.toml").read_text()
    assert f'"kvfolio=={kv.__version__}"' in text and cuda.__all__ == sorted(cuda.__all__)
