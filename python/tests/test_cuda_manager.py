# SPDX-License-Identifier: Apache-2.0
"""A kvfolio.Manager over a kvfolio.cuda.Storage, over a driver that is none (tests/python_cuda): its copies have the
bytes of a manager over memory of the host, and either of the two may end first. Not on a device."""

import ctypes
import gc

import numpy as np
import pytest

import kvfolio as kv
from cuda_twin import cuda, fresh, twin  # noqa: F401
from fake_dlpack import Fake, bits
from kvfolio import tiers

LAYERS, HEADS, DIM, BLOCK, BLOCKS = 2, 2, 16, 4, 16


def spec(dtype="f32", **fields):
    return kv.GroupSpec(**{"num_layers": LAYERS, "num_kv_heads": HEADS, "head_dim": DIM, "block_size": BLOCK,
                           "num_blocks": BLOCKS, "dtype": dtype, **fields})


def ints(numbers):
    return Fake(twin, np.array(numbers, np.int32))


class Pair:
    """The same requests to a manager over the host and to one over a device."""

    def __init__(self, group, storage=None):
        self.storage = storage or cuda.Storage([group])
        self.host = kv.Manager(kv.Storage([group]))
        self.device = kv.Manager(self.storage)
        self.host.storage.fill(0x3c)
        for layer in range(LAYERS):
            cuda.fill(self.storage.view(0, layer), 0x3c)
        self.rng, self.stream = np.random.default_rng(4), twin.stream(0)

    def open(self, tokens):
        return [manager.open(tokens)[0] for manager in (self.host, self.device)]

    def fork(self, pair):
        return [manager.fork(one) for manager, one in zip((self.host, self.device), pair)]

    def step(self, *appends):
        """(sequences, tokens): the same rows go to both. Returns how many blocks were copied."""
        with self.host.step() as a, self.device.step() as b:
            for (one, other), tokens in appends:
                a.append(one, tokens)
                b.append(other, tokens)
            plan, other_plan = a.plan(), b.plan()
            slots, others = (np.array(each.groups[0].slot_mapping) for each in (plan, other_plan))
            assert slots.tolist() == others.tolist()
            copied = len(np.asarray(plan.groups[0].copy_src))
            a.run_copies()
            b.run_copies()
            for layer in range(LAYERS):
                k, v = (self.rng.standard_normal((len(slots), HEADS, DIM)).astype(np.float32) for _ in range(2))
                kv.append(self.host.storage.view(), k, v, slots, layer=layer)
                cuda.append(self.storage.view(0, layer), Fake(twin, k), Fake(twin, v), ints(slots), stream=self.stream)
        return copied

    def check(self):
        twin.finish()
        for layer in range(LAYERS):
            view, other = self.storage.view(0, layer), self.host.storage.view(0, layer)
            for name in ("k", "v", "k_scale", "v_scale"):
                mine, others = getattr(view, name), getattr(other, name)
                if others is not None:
                    assert np.array_equal(bits(mine), np.asarray(others).view(f"u{others.dtype.itemsize}")), name


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "int8", "e4m3"])
def test_copies_on_write_have_the_bytes_of_the_host(dtype):
    pair = Pair(spec(dtype))
    parent = pair.open(list(range(6)))
    pair.step((parent, list(range(6))))
    for token in range(6):  # the rows of the step before are late, and are copied all the same
        child = pair.fork(parent)
        assert pair.step((parent, [10 + token]), (child, [40 + token])) == (0 if (6 + token) % BLOCK == 0 else 1)
        for manager, one in zip((pair.host, pair.device), child):
            manager.close(one)
    pair.check()
    pair.device.check_invariants()


def test_layers_that_were_lent_apart_serve_a_manager():
    lent = [tuple(Fake(twin, np.zeros((BLOCKS, BLOCK, HEADS, DIM), np.float32).swapaxes(1, 2)) for _ in range(2))
            for _ in range(LAYERS)]
    group = spec(format="nhd")
    pair = Pair(group, cuda.Storage.borrow([group], [lent]))
    parent = pair.open(list(range(6)))
    pair.step((parent, list(range(6))))
    assert pair.step((parent, [7]), (pair.fork(parent), [8])) == 1
    pair.check()


def test_run_copies_waits_for_what_was_enqueued():
    storage = cuda.Storage([spec()])
    manager = kv.Manager(storage)
    a, _ = manager.open([1, 2])
    with manager.step() as step:
        step.append(a, [1, 2])
        step.plan()
        step.run_copies()
    b = manager.fork(a)
    cuda.fill(storage.view(), 1, stream=twin.stream(0))
    with manager.step() as step:
        step.append_each([a, b], [3, 4])
        step.plan()
        twin.take_log()
        step.run_copies()
        assert twin.take_log()[0][0] == "synchronize event"


MODEL = tiers.ModelIdentity(model="toy", weights="sha256:1", tokenizer="bytes", model_dtype="f32", positions="none",
                            engine="twin 1")


class OnDevice:
    """A manager over a device and an Offload that copies later; rows are a function of the prompt."""

    def __init__(self):
        self.storage, self.stream = cuda.Storage([spec()]), twin.stream(0)
        self.manager = kv.Manager(self.storage, list_findable=True)
        cuda.fill(self.storage.view(), 0xff)

    def offload(self, **options):
        return tiers.Offload(self.manager, MODEL, arena_bytes=1 << 20, **options)

    def rows(self, tokens, layer):
        path = np.cumsum(np.asarray(tokens, np.int64) * (layer + 3) + 1) % 65521
        k = (path[:, None, None] + np.arange(HEADS * DIM).reshape(1, HEADS, DIM) / 1024).astype(np.float32)
        return k, -k

    def compute(self, sequence, tokens, cached):
        with self.manager.step() as step:
            step.append(sequence, tokens[cached:])
            slots = np.array(step.plan().groups[0].slot_mapping)
            step.run_copies()
            for layer in range(LAYERS):
                k, v = (np.ascontiguousarray(each[cached:]) for each in self.rows(tokens, layer))
                cuda.append(self.storage.view(0, layer), Fake(twin, k), Fake(twin, v), ints(slots), stream=self.stream)
            twin.finish()  # a step has ended when it is completed

    def check(self, sequence, tokens, length):
        table = np.asarray(self.manager.block_table(sequence))
        for layer in range(LAYERS):
            for tensor, wanted in zip(("k", "v"), self.rows(tokens, layer)):
                there = bits(getattr(self.storage.view(0, layer), tensor))[0]  # [blocks, heads, tokens, dim]
                got = there[table].swapaxes(1, 2).reshape(-1, HEADS, DIM)[:length]
                assert np.array_equal(got, wanted[:length].view(np.uint32)), (layer, tensor)

    def serve(self, cache, tokens):
        """How many tokens came from the pool or the Offload, and why no more."""
        opened = cache.open(tokens)
        found, why = opened.cached_tokens, None
        if opened.pending:
            (ready,) = cache.wait(5.0)
            assert ready.sequence == opened.sequence
            found, why = ready.cached_tokens, ready.why
        self.check(opened.sequence, tokens, found)
        self.compute(opened.sequence, tokens, found)
        self.check(opened.sequence, tokens, len(tokens))
        self.manager.close(opened.sequence)
        return found, why


def prompts(count):
    return [np.random.default_rng(seed).integers(0, 1000, 14, np.int32) for seed in range(count)]


def test_an_offload_brings_back_what_was_evicted_on_a_device():
    here = OnDevice()
    with here.offload() as cache:
        for tokens in prompts(8):  # of three or four blocks each, in a pool of 16
            assert here.serve(cache, tokens) == (0, None)
            cache.drain(1)
        assert here.manager.open(prompts(1)[0]).cached_tokens == 0
        found, why = here.serve(cache, prompts(1)[0])
        assert (found, why) == (12, "loaded")
        counters = cache.counters()
        assert counters.loads == 3 and counters.copies_failed == 0 and counters.tokens_loaded == 12
        assert cache.arena().records == 8 * 3
        cache.check_invariants()
    here.manager.check_invariants()


def test_an_offload_on_a_device_says_a_copy_that_failed_and_the_tokens_are_computed_again():
    here = OnDevice()
    with here.offload() as cache:
        for tokens in prompts(8):
            here.serve(cache, tokens)
            cache.drain(1)
        for number in range(1, 40, 3):
            opened = cache.open(prompts(1)[0])
            twin.fail_at(number, 999)
            found = opened.cached_tokens
            if opened.pending:
                (ready,) = cache.wait(5.0)
                found = ready.cached_tokens
            twin.fail_at(0, 2)
            here.check(opened.sequence, prompts(1)[0], found)
            here.compute(opened.sequence, prompts(1)[0], found)
            here.check(opened.sequence, prompts(1)[0], 14)
            here.manager.close(opened.sequence)
            for tokens in prompts(8)[1:]:  # it is evicted again
                here.serve(cache, tokens)
                cache.drain(1)
        assert cache.counters().copies_failed > 0 and cache.counters().loads > 0
    here.manager.check_invariants()


@pytest.mark.parametrize("first", ["offload", "storage"])
def test_offload_manager_and_storage_of_a_device_end_in_any_order(first):
    here = OnDevice()
    cache = here.offload()
    here.serve(cache, prompts(1)[0])
    cache.poll()
    manager, storage = here.manager, here.storage
    del here
    if first == "offload":
        cache.close()
        del manager, storage
    else:
        del storage, manager
        gc.collect()
        cache.close()
    del cache
    gc.collect()
    twin.finish()
    cuda.Device(0).synchronize()


def test_a_manager_says_what_it_stands_over():
    storage = cuda.Storage([spec()])
    manager = kv.Manager(storage)
    assert manager.device_storage is storage and manager.storage is None
    assert kv.Manager([spec()]).device_storage is None and kv.Manager(kv.Storage([spec()])).device_storage is None
    a, _ = manager.open([1])
    with manager.step() as step:
        step.append(a, [1])
        step.plan()
        step.run_copies()
    with pytest.raises(kv.Unsupported, match="device"):
        manager.gather(a, k=np.zeros((1, HEADS, DIM), np.float32))


def test_a_storage_has_one_manager():
    storage = cuda.Storage([spec()])
    with pytest.raises(kv.InvalidArgument):
        kv.Manager(storage, max_sequences=0)
    first = kv.Manager(storage)  # one that could not be made took nothing
    with pytest.raises(kv.FailedPrecondition, match="another manager has taken this storage"):
        kv.Manager(storage)
    del first


def test_a_storage_of_another_build_is_refused_before_it_is_touched():
    class Bridge(ctypes.Structure):
        _fields_ = [("version", ctypes.c_char_p), ("interface_id", ctypes.c_char_p), ("other", ctypes.c_void_p)]

    bridge = Bridge(b"0.0.9", b"0123-abi9", None)
    name = ctypes.create_string_buffer(b"kvfolio.cuda.Storage")
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

    class Stranger:
        said = name

        def _storage_bridge(self):
            return make(ctypes.addressof(bridge), self.said, None)

    with pytest.raises(kv.FailedPrecondition) as refused:
        kv.Manager(Stranger())
    text = str(refused.value)
    assert "kvfolio_cuda is 0.0.9 (0123-abi9)" in text and kv.__version__ in text and kv._core._interface_id() in text
    other = ctypes.create_string_buffer(b"another")
    Stranger.said = other
    with pytest.raises(ValueError):
        kv.Manager(Stranger())


@pytest.mark.parametrize("first", ["manager", "storage"])
def test_either_may_end_first(first):
    group = spec()
    device = cuda.Device(0)
    keep = cuda.Storage([group])  # what the device has once
    gc.collect()
    device.synchronize()
    before = twin.device_bytes()
    pair = Pair(group)
    parent = pair.open(list(range(6)))
    pair.step((parent, list(range(6))))
    storage, manager, host = pair.storage, pair.device, pair.host
    if first == "manager":
        del manager
        pair.device = None
        gc.collect()
        pair.check()  # what it wrote is there
        cuda.fill(storage.view(), 5, stream=pair.stream)
        twin.finish()
        assert (bits(storage.view().k) == 0x05050505).all()
        del storage
    else:
        del storage
        pair.storage = None
        gc.collect()
        assert twin.device_bytes() > before
        pair.storage = manager.device_storage
        assert pair.step((parent, [7]), (pair.fork(parent), [8])) == 1
        pair.check()
        del manager
    del pair, host, parent
    gc.collect()
    device.synchronize()
    assert twin.device_bytes() == before
    del keep


def test_a_copy_that_fails_is_said_and_may_be_made_again():
    pair = Pair(spec())
    parent = pair.open(list(range(6)))
    pair.step((parent, list(range(6))))
    child = pair.device.fork(parent[1])
    cuda.Device(0).synchronize()
    with pair.device.step() as step:
        step.append_each([parent[1], child], [7, 8])
        step.plan()
        failures = 0
        for number in range(1, 100):
            twin.fail_at(number, 999)
            try:
                step.run_copies()
                break
            except kv.Unavailable:
                failures += 1
            finally:
                twin.fail_at(0, 2)
        assert failures > 3


def test_a_snapshot_goes_from_a_device_to_the_host_and_back(tmp_path):
    tiers = pytest.importorskip("kvfolio_tiers", exc_type=ImportError)
    model = tiers.ModelIdentity(model="toy", weights="1", tokenizer="t", model_dtype="f32", positions="none", engine="e")
    pair, prompt = Pair(spec()), list(range(100, 108))
    both = pair.open(prompt)
    pair.step((both, prompt))
    for manager, one in zip((pair.host, pair.device), both):
        manager.close(one)
    # The rows are still late: reading them comes behind.
    tiers.save(pair.device, tmp_path / "device", model)
    tiers.save(pair.host, tmp_path / "host", model)
    twin.finish()

    def first_rows(manager, table):
        out = [np.zeros((7, HEADS, DIM), np.float32) for _ in range(2)]
        if manager.storage is None:
            cuda.gather(manager.device_storage.view(), ints(table), 7, k=Fake(twin, out[0]), v=Fake(twin, out[1]), layer=1)
            twin.finish()
        else:
            kv.gather(manager.storage.view(), table, 7, k=out[0], v=out[1], layer=1)
        return out

    found = []
    for name in ("device", "host"):
        for storage in (cuda.Storage([spec()]), kv.Storage([spec()])):
            manager = kv.Manager(storage)
            tiers.restore(manager, tmp_path / name, model)
            one, cached = manager.open(prompt)
            assert cached == 7, (name, cached)
            found.append(first_rows(manager, manager.block_table(one)))
    for each in found[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(each, found[0]))
