# SPDX-License-Identifier: Apache-2.0
"""kvfolio_sglang as SGLang's cache controller drives it, over a pool of arrays, and over its own where that is installed."""

import contextlib
import hashlib
import json
import pathlib
import signal
import subprocess
import sys
import threading
import time

import kvfolio_sglang
import numpy as np
import pytest
from kvfolio_adapters import Job
from kvfolio_sglang import KvfolioStorage
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, PoolHitPolicy, PoolName, PoolTransfer

import hosts
import media
from test_owner import handled

IDENTITY = {"weights": "sha256:0f3a", "model_dtype": "bfloat16", "kv_dtype": "bfloat16", "layout": "flashinfer, NHD"}
DYNAMIC = {"backend_name": "kvfolio", "module_path": "kvfolio_sglang", "class_name": "KvfolioStorage", "interface_v1": 1}
PAGE = 16


class Pool:
    """The calls of a host pool, with layers in front of tokens, so that a page lies in pieces."""

    layout, page_size, head_num, head_dim, layer_num, start_layer, end_layer = "layer_first", PAGE, 2, 64, 3, 0, 3

    def __init__(self, pages=40, dtype=np.float16, **said):
        self.dtype = np.dtype(dtype)
        self.buffer = np.zeros((2, self.layer_num, pages * PAGE, self.head_num, self.head_dim), self.dtype)
        vars(self).update(said)

    def get_data_page(self, index, flat=True):
        page = self.buffer[:, :, index:index + PAGE]
        return page.flatten() if flat else page

    def set_from_flat_data_page(self, index, data_page):
        self.buffer[:, :, index:index + PAGE] = data_page.reshape(2, self.layer_num, PAGE, self.head_num, self.head_dim)

    def fill(self, seed):
        self.buffer[:] = np.random.default_rng(seed).standard_normal(self.buffer.shape)
        return self.buffer.copy()


def config(extra, **said):
    return HiCacheStorageConfig(**{
        "tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "attn_cp_rank": 0, "attn_cp_size": 1,
        "is_mla_model": False, "enable_storage_metrics": False, "is_page_first_layout": False, "model_name": "m",
        "extra_config": {**DYNAMIC, **extra}, **said})


def key(number):
    return hashlib.sha256(b"page %d" % number).hexdigest()


def indices(*pages):
    """As the controller hands them over: each token's."""
    return np.concatenate([np.arange(page * PAGE, (page + 1) * PAGE) for page in pages] or [np.zeros(0, int)])


class Storage:
    def __init__(self, options, pool=None, said=None, **more):
        self.pool = pool or Pool()
        self.it = KvfolioStorage(config({**IDENTITY, **options, **more}, **(said or {})), {})
        self.it.register_mem_pool_host(self.pool)
        self.it.on_host_pools_registered()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.it.close()

    def set(self, keys, *pages):
        return self.it.batch_set_v1(keys, indices(*pages))

    def get(self, keys, *pages):
        return self.it.batch_get_v1(keys, indices(*pages))


def test_pages_come_back_into_other_places(medium):
    with Storage(medium.options) as storage:
        wanted = storage.pool.fill(1)
        keys = [key(i) for i in range(4)]
        assert storage.it.batch_exists(keys) == 0
        assert storage.set(keys, 0, 1, 2, 3) == [True] * 4
        assert storage.it.batch_exists([*keys, key(99)]) == 4 and storage.it.exists(keys[0])
        storage.pool.buffer[:] = 0
        assert storage.get(keys, 7, 6, 5, 4) == [True] * 4
        for i in range(4):
            assert (storage.pool.get_data_page((7 - i) * PAGE) == wanted[:, :, i * PAGE:(i + 1) * PAGE].flatten()).all()
        assert not storage.pool.buffer[:, :, :4 * PAGE].any()


def test_exists_counts_to_the_first_that_is_not_there(disk):
    with Storage(disk.options) as storage:
        storage.set([key(0), key(2)], 0, 1)
        assert storage.it.batch_exists([key(0), key(1), key(2)]) == 1
        assert storage.get([key(0), key(1), key(2)], 3, 4, 5) == [True, False, True]
        assert storage.it.batch_exists([]) == 0 and storage.get([]) == [] and storage.set([]) == []


def test_a_batch_of_128_pages_passes(disk):
    with Storage({**disk.options, "bytes": 256 << 20}, Pool(130)) as storage:
        keys = [key(i) for i in range(128)]
        wanted = storage.pool.fill(2)
        assert all(storage.set(keys, *range(128)))
        storage.pool.buffer[:] = 0
        assert all(storage.get(keys, *range(128))) and (storage.pool.buffer[:, :, :128 * PAGE]
                                                        == wanted[:, :, :128 * PAGE]).all()


@pytest.mark.parametrize("part_bytes", [4096, 64 << 10, 1 << 20])  # a page, two, and all of them go together
def test_a_batch_passes_through_memory_of_a_bounded_size(disk, monkeypatch, part_bytes):
    monkeypatch.setattr(kvfolio_sglang, "PART_BYTES", part_bytes)
    with Storage(disk.options) as storage:
        keys = [key(i) for i in range(40)]
        wanted = storage.pool.fill(7)
        assert storage.set([*keys[:39], "ab"], *range(40)) == [True] * 39 + [False]
        assert all(storage.set(keys, *range(40)))
        storage.pool.buffer[:] = 0
        assert all(storage.get(keys, *range(40))) and (storage.pool.buffer == wanted).all()
        page = storage.pool.get_data_page(0).nbytes
        assert storage.it._local.memory.size <= 8 * max(part_bytes, page)


def test_a_batch_of_many_parts_has_one_timeout(disk, monkeypatch):
    monkeypatch.setattr(kvfolio_sglang, "PART_BYTES", 1)
    with Storage(disk.options, load_timeout=0.3, store_timeout=0.3) as storage, monkeypatch.context() as patch:
        given = []

        def begin(op, keys, buffers, timeout, done):
            given.append(timeout)
            threading.Timer(timeout, done, [Job(op, keys, buffers, timeout, done)]).start()

        patch.setattr(storage.it._owner, "begin", begin)
        for call in (storage.get, storage.set):
            given.clear()
            assert call([key(i) for i in range(40)], *range(40)) == [False] * 40
            assert given[0] <= 0.3 and given[9:] == [0] * 31


class Holding:
    """Between a storage and its owner: of what begins, those with these numbers wait until the next ones begin."""

    def __init__(self, storage, monkeypatch, numbers):
        monkeypatch.setattr(kvfolio_sglang, "PART_BYTES", 1)  # each page is a part
        self.begin, self.numbers, self.count, self.held = storage.it._owner.begin, numbers, 0, []
        monkeypatch.setattr(storage.it._owner, "begin", self)

    def __call__(self, op, keys, buffers, timeout, done):
        self.count += 1
        if self.count in self.numbers:
            self.held.append((op, keys, buffers))
            return
        if self.count > max(self.numbers) + 1:
            while self.held:
                ended = threading.Event()
                self.begin(*self.held.pop(), 10, lambda job, ended=ended: ended.set())
                assert ended.wait(20)
        self.begin(op, keys, buffers, timeout, done)


def test_a_store_that_raises_leaves_what_it_had_begun_its_own_bytes(disk, monkeypatch):
    """Else the next batch would be sealed under its names."""
    with Storage(disk.options) as storage:
        wanted, show = storage.pool.fill(8), storage.pool.get_data_page

        def broken(index, flat=True):
            if index == PAGE:
                raise MemoryError
            return show(index, flat)

        Holding(storage, monkeypatch, {1})
        with monkeypatch.context() as patch:
            patch.setattr(storage.pool, "get_data_page", broken)
            with pytest.raises(MemoryError):
                storage.set([key(0), key(1)], 0, 1)
        assert storage.set([key(2), key(3)], 2, 3) == [True] * 2
        assert storage.get([key(0), key(2), key(3)], 10, 12, 13) == [True] * 3
        for place, page in ((10, 0), (12, 2), (13, 3)):
            assert (storage.pool.get_data_page(place * PAGE) == wanted[:, :, page * PAGE:(page + 1) * PAGE].flatten()).all()


def test_a_load_that_raises_does_not_write_into_the_next_batch(disk, monkeypatch):
    with Storage(disk.options) as storage:
        wanted = storage.pool.fill(9)
        assert all(storage.set([key(0), key(1)], 0, 1))

        def broken(*_):
            raise MemoryError

        Holding(storage, monkeypatch, {2})
        with monkeypatch.context() as patch:
            patch.setattr(storage.pool, "set_from_flat_data_page", broken)
            with pytest.raises(MemoryError):
                storage.get([key(0), key(1)], 20, 21)
        assert storage.set([key(2), key(3)], 2, 3) == [True] * 2  # the second has the load's memory, if there is one only
        assert storage.get([key(2), key(3)], 12, 13) == [True] * 2
        for place, page in ((12, 2), (13, 3)):
            assert (storage.pool.get_data_page(place * PAGE) == wanted[:, :, page * PAGE:(page + 1) * PAGE].flatten()).all()


def test_the_interface_before_v1_moves_the_same_pages(disk):
    with Storage(disk.options) as storage:
        storage.pool.fill(3)
        pages = [storage.pool.get_data_page(i * PAGE) for i in range(3)]
        keys = [key(i) for i in range(3)]
        assert storage.it.batch_set(keys, pages) and storage.it.set(key(3), pages[0])
        back = [np.zeros_like(page) for page in pages]
        got = storage.it.batch_get([*keys[:2], key(9)], back)
        assert got[2] is None and all((a == b).all() for a, b in zip(got[:2], pages))
        assert (storage.it.get(keys[2], back[2]) == pages[2]).all()
        assert storage.it.get(key(9), back[0]) is None and storage.it.get(keys[0]) is None
        assert storage.get(keys, 5, 6, 7) == [True] * 3 and (storage.pool.get_data_page(5 * PAGE) == pages[0]).all()


def test_prefetch_and_backup_run_at_the_same_time(medium):
    with Storage(medium.options) as storage:
        storage.pool.fill(4)
        assert all(storage.set([key(i) for i in range(8)], *range(8)))
        failures = []

        def body(call, names, places):
            try:
                for _ in range(30):
                    assert all(call(names, *places))
            except BaseException as error:  # noqa: BLE001
                failures.append(error)

        threads = [threading.Thread(target=body, args=(storage.get, [key(i) for i in range(8)], range(10, 18))),
                   threading.Thread(target=body, args=(storage.set, [key(i) for i in range(50, 58)], range(8)))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not failures and (storage.pool.get_data_page(10 * PAGE) == storage.pool.get_data_page(0)).all()


CHILD = """
import json, signal, sys
sys.path.insert(0, sys.argv[1])
import conftest
from test_sglang import *
storage = Storage(json.loads(sys.argv[2]))
storage.pool.fill(5)
assert all(storage.set([key(i) for i in range(8)], *range(8)))
print("stored", flush=True)
signal.pause()
"""


def test_what_a_killed_process_had_stored_is_hit_by_the_next(medium):
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(pathlib.Path(__file__).parent), json.dumps(medium.options)],
                             stdout=subprocess.PIPE, text=True)
    for line in child.stdout:
        if line == "stored\n":
            break
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    with Storage(medium.options) as storage:
        wanted = Pool().fill(5)
        keys = [key(i) for i in range(8)]
        assert storage.it.batch_exists(keys) == 8 and all(storage.get(keys, *range(8)))
        assert (storage.pool.buffer[:, :, :8 * PAGE] == wanted[:, :, :8 * PAGE]).all()


def test_of_32_pages_with_a_flipped_byte_none_reaches_the_pool(medium):
    keys = [key(i) for i in range(32)]
    with Storage(medium.options) as storage:
        storage.pool.fill(6)
        payloads = [storage.pool.get_data_page(i * PAGE).tobytes() for i in range(32)]
        assert all(storage.set(keys, *range(32)))
    assert medium.flip_all(payloads) == 32
    with Storage(medium.options) as storage:
        assert storage.it.batch_exists(keys) == 32
        assert storage.get(keys, *range(32)) == [False] * 32
        assert not storage.pool.buffer.any()
        assert storage.it.batch_exists(keys) == 0
        wanted = storage.pool.fill(6)
        assert all(storage.set(keys, *range(32)))
        storage.pool.buffer[:] = 0
        assert all(storage.get(keys, *range(32)))
        assert (storage.pool.buffer[:, :, :32 * PAGE] == wanted[:, :, :32 * PAGE]).all()


class OtherPool(Pool):
    pass


OTHERS = {
    "weights": {"weights": "sha256:ffff"}, "model dtype": {"model_dtype": "float16"}, "kv dtype": {"kv_dtype": "fp8"},
    "layout": {"layout": "fa3, HND"}, "salt": {"salt": "x"}, "model": {"said": {"model_name": "n"}},
    "tp size": {"said": {"tp_size": 2}}, "pp size": {"said": {"pp_size": 2}}, "cp": {"said": {"attn_cp_size": 2}},
    "type of the pool": {"pool": Pool(dtype=np.int16)}, "order of the pool": {"pool": Pool(layout="page_first")},
    "layers": {"pool": Pool(start_layer=3, end_layer=6)}, "class of the pool": {"pool": OtherPool()},
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_model_dtype_layout_or_salt_finds_nothing(disk, other):
    keys = [key(i) for i in range(4)]
    with Storage(disk.options) as storage:
        assert all(storage.set(keys, *range(4)))
    with Storage(disk.options, **OTHERS[other]) as storage:
        assert storage.it.batch_exists(keys) == 0 and storage.get(keys, *range(4)) == [False] * 4
    with Storage(disk.options) as storage:
        assert storage.it.batch_exists(keys) == 4


@pytest.mark.parametrize("field", ["tp_rank", "pp_rank", "attn_cp_rank", "dp_rank"])
def test_another_rank_finds_nothing(medium, field):
    """On a disk each has a folder; in Redis the names differ."""
    both = {"tp_size": 2, "pp_size": 2, "attn_cp_size": 2}
    with Storage(medium.options, said=both) as first, Storage(medium.options, said={**both, field: 1}) as second:
        assert all(first.set([key(1)], 0))
        assert second.it.batch_exists([key(1)]) == 0 and first.it.batch_exists([key(1)]) == 1


def test_ranks_of_an_mla_model_share_what_one_of_them_wrote(tmp_path):
    redis = media.Redis(tmp_path)
    said = {"is_mla_model": True, "tp_size": 2}
    with Storage(redis.options, said=said) as first, Storage(redis.options, said={**said, "tp_rank": 1}) as second:
        assert all(first.set([key(1)], 0)) and second.it.batch_exists([key(1)]) == 1
    redis.stop()
    with pytest.raises(ValueError, match="'servers' is missing: one rank"):
        Storage({"directory": str(tmp_path), "bytes": 1 << 20}, said=said)


def test_two_salts_by_sglangs_own_hash_find_nothing_of_each_other(disk):
    if not hosts.released("sglang"):
        pytest.skip("needs the released sglang: scripts/adapters")
    from sglang.srt.mem_cache.utils import get_hash_str, storage_namespace_seed

    first, second = (get_hash_str(list(range(32)), storage_namespace_seed(None, salt), page_size=16) for salt in "ab")
    with Storage(disk.options) as storage:
        assert all(storage.set(first, 0, 1))
        assert storage.it.batch_exists(first) == 2 and storage.it.batch_exists(second) == 0


def test_a_cleared_storage_is_empty_and_goes_on(medium):
    with Storage(medium.options) as storage:
        assert all(storage.set([key(i) for i in range(4)], *range(4)))
        storage.it.clear()
        assert storage.it.batch_exists([key(0)]) == 0
        assert all(storage.set([key(0)], 0)) and storage.it.batch_exists([key(0)]) == 1


def test_a_disk_with_errors_drops_stores_counts_them_and_goes_on(tmp_path):
    child = """
import resource, signal, sys
sys.path.insert(0, sys.argv[1])
import conftest
from test_sglang import *
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with Storage({"directory": sys.argv[2], "bytes": 64 << 20, "segment_bytes": 8 << 20}) as storage:
    assert all(storage.set([key(1)], 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, resource.RLIM_INFINITY))
    results = [storage.set([key(100 + i)], i % 40) for i in range(100)]
    assert [False] in results
    assert sum(n for name, n in storage.it.counters.items() if name[:6] == "store " and name != "store ok") > 0
    assert storage.it.batch_exists([key(5000)]) == 0
print("went on", flush=True)
"""
    ran = subprocess.run([sys.executable, "-c", child, str(pathlib.Path(__file__).parent), str(tmp_path / "t")],
                         capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout.splitlines()[-1:]) == (0, ["went on"]), ran.stdout + ran.stderr


def test_a_full_disk_drops_stores_counts_them_and_goes_on(tmp_path):
    @contextlib.contextmanager
    def opened(options):
        with Storage(options) as storage:
            yield storage, storage.it._owner

    media.check_full_disk(tmp_path, opened, lambda storage, i: storage.set([key(i)], i % 40) == [True],
                          lambda storage, i: storage.it.exists(key(i)))


def test_a_dead_redis_costs_misses_within_the_timeout(tmp_path):
    redis = media.Redis(tmp_path)
    with Storage(redis.options, store_timeout=1, load_timeout=1) as storage:
        assert all(storage.set([key(1)], 0))
        redis.stop()
        begin = time.monotonic()
        assert storage.set([key(2)], 0) == storage.get([key(1)], 0) == [False]
        assert storage.it.batch_exists([key(1)]) == 0 and time.monotonic() - begin < 60
        assert sum(n for name, n in storage.it.counters.items() if name[:6] == "store " and name != "store ok") == 1


# ---- what is refused ----


@pytest.mark.parametrize("field", [*IDENTITY, "directory", "bytes"])
def test_a_configuration_that_leaves_something_out_is_refused_by_its_name(disk, field):
    extra = {**IDENTITY, **disk.options}
    del extra[field]
    with pytest.raises(ValueError, match=f"kvfolio_sglang: the option '{field}' is missing"):
        KvfolioStorage(config(extra), {})


def test_a_model_without_a_name_and_an_option_that_is_none_are_refused(disk):
    with pytest.raises(ValueError, match="'model' is missing"):
        KvfolioStorage(config({**IDENTITY, **disk.options}, model_name=None), {})
    with pytest.raises(ValueError, match="'weight' is not known here"):
        KvfolioStorage(config({**IDENTITY, **disk.options, "weight": "x"}), {})


@pytest.mark.parametrize("name", ["", "ab", key(1)[:-1], key(1) + "00", key(1).upper(), key(1) + ".mamba", "x" * 64])
def test_a_key_of_another_length_fails_alone(disk, name):
    with Storage(disk.options) as storage:
        assert storage.set([name, key(1)], 0, 1) == [False, True]
        assert storage.it.batch_exists([name]) == 0 and storage.get([name, key(1)], 2, 3) == [False, True]


def test_wrong_sizes_and_a_closed_storage_are_no_hit(disk):
    storage = Storage(disk.options)
    assert all(storage.set([key(1)], 0))
    assert storage.it.batch_set_v1([key(1), key(2)], indices(0)) == [False, False]
    assert storage.it.batch_get_v1([key(1)], indices(0)[:-1]) == [False]
    assert storage.it.batch_get([key(1)], [np.zeros(5, np.float16)]) == [None]
    assert storage.it.batch_get([key(1)]) == [None] and not storage.it.batch_set([key(1)]) and not storage.it.set(key(1))
    storage.it.close()
    assert storage.set([key(3)], 0) == storage.get([key(1)], 0) == [False]
    storage.it.close()


@pytest.mark.parametrize("call", ["close", "clear"])
def test_a_signal_handler_closes_a_storage_that_its_thread_closes_or_clears(disk, monkeypatch, call):
    storage = Storage(disk.options)
    assert all(storage.set([key(1)], 0))
    signals, close = [lambda: signal.raise_signal(signal.SIGUSR1)], storage.it._owner.close
    monkeypatch.setattr(storage.it._owner, "close", lambda: (signals and signals.pop()(), close()))
    with handled(storage.it.close):
        getattr(storage.it, call)()
    assert not signals and storage.it._owner.tier.closed and storage.set([key(2)], 0) == [False]
    with Storage(disk.options) as after:  # the folder is free, and was not emptied behind the close
        assert after.it.batch_exists([key(1)]) == 1
        storage.it.clear()
        assert after.it.batch_exists([key(1)]) == 1 and after.get([key(1)], 1) == [True]


# ---- several pools ----


class States:
    """A pool whose page is one state, as Mamba's."""

    page_size = 1

    def __init__(self, count=40):
        self.buffer = np.zeros((count, 3000), np.uint8)

    def get_data_page(self, index, flat=True):
        return self.buffer[index]

    def set_from_flat_data_page(self, index, data_page):
        self.buffer[index] = data_page

    def fill(self, seed):
        self.buffer[:] = np.random.default_rng(seed).integers(0, 256, self.buffer.shape, np.uint8)
        return self.buffer.copy()


def hybrid(options, **said):
    """A storage with a pool of states beside kv."""
    storage = Storage(options, said=said)
    storage.states = States()
    storage.it.register_mem_host_pool_v2(storage.pool, PoolName.KV)
    storage.it.register_mem_host_pool_v2(storage.states, PoolName.MAMBA)
    return storage


def transfer(name, keys, places, policy=PoolHitPolicy.TRAILING_PAGES):
    return PoolTransfer(name=name, keys=keys, host_indices=np.array(places), hit_policy=policy)


def test_pages_of_further_pools_come_back_beside_those_of_kv(medium):
    with hybrid(medium.options) as storage:
        storage.pool.fill(1)
        wanted = storage.states.fill(2)
        keys = [key(i) for i in range(4)]
        assert all(storage.set(keys, *range(4)))
        assert storage.it.batch_set_v2([transfer(PoolName.MAMBA, keys[3:], [5])]) == {PoolName.MAMBA: [True]}
        storage.states.buffer[:] = 0
        found = storage.it.batch_exists_v2(keys, [transfer(PoolName.MAMBA, keys[3:], [0])])
        assert (found.kv_hit_pages, found.restorable_prefix_pages) == (4, [4])
        assert found.extra_pool_hit_pages == {"kv": 4, PoolName.MAMBA: 4}
        got = storage.it.batch_get_v2([transfer(PoolName.MAMBA, [*keys[3:], key(9)], [7, 8])])
        assert got == {PoolName.MAMBA: [True, False]}
        assert (storage.states.buffer[7] == wanted[5]).all() and not storage.states.buffer[8].any()
        assert storage.get(keys, 9, 8, 7, 6) == [True] * 4


class Logical:
    """A pool of keys, whose pages have no bytes, as DeepSeek V4's anchor."""

    page_size = PAGE

    def get_data_page(self, index, flat=True):
        return np.zeros(0, np.uint8)

    def set_from_flat_data_page(self, index, data_page):
        raise AssertionError("there is nothing to set")


def logical_pools():
    yield Logical()
    if hosts.released("sglang"):
        from sglang.srt.mem_cache.memory_pool_host import LogicalHostPool

        yield LogicalHostPool(40 * PAGE, PAGE)


def test_pages_without_bytes_are_found_beside_those_of_other_pools(medium):
    keys = [key(i) for i in range(4)]
    for at, pool in enumerate(logical_pools()):
        with Storage(medium.options, pool, salt=str(at)) as storage:
            states = States()
            storage.it.register_mem_host_pool_v2(pool, PoolName.KV)
            storage.it.register_mem_host_pool_v2(states, PoolName.DEEPSEEK_V4_C4)
            wanted = states.fill(4)
            assert storage.it.batch_exists(keys) == 0 and storage.get(keys, *range(4)) == [False] * 4
            assert storage.set(keys[:3], *range(3)) == [True] * 3 and storage.it.batch_exists(keys) == 3
            assert storage.get(keys, *range(4)) == [True] * 3 + [False]
            side = transfer(PoolName.DEEPSEEK_V4_C4, keys[:2], [0, 1], PoolHitPolicy.ALL_PAGES)
            assert storage.it.batch_set_v2([side]) == {side.name: [True] * 2}
            assert storage.it.batch_exists_v2(keys, [side]).kv_hit_pages == 2
            states.buffer[:] = 0
            assert storage.it.batch_get_v2([side]) == {side.name: [True] * 2} and (states.buffer[:2] == wanted[:2]).all()
            # The interface before v1.
            page = pool.get_data_page(0)
            assert storage.it.batch_set([key(8)], [page]) and storage.it.exists(key(8))
            assert storage.it.batch_get([key(8), key(9)], [page, page])[1] is None
            assert storage.it.get(key(8), page) is page and storage.it.get(keys[0], page) is page


POLICIES = [
    # pages of kv, of the other pool, its policy and window -> lengths that can be restored
    ([0, 1, 2, 3], [1, 3], "TRAILING_PAGES", 1, [2, 4]), ([0, 1, 2], [3], "TRAILING_PAGES", 1, []),
    ([0, 1, 2, 3], [1, 2], "TRAILING_PAGES", 2, [3]), ([0, 1, 2, 3], [0], "TRAILING_PAGES", 2, [1]),
    ([0, 1, 2, 3], [0, 1, 3], "ALL_PAGES", 1, [1, 2]), ([], [0], "ALL_PAGES", 1, []),
    ([0, 1], [0, 1], "BLOCK_GROUPS", 1, []),
]


@pytest.mark.parametrize("kv,others,policy,window,restorable", POLICIES)
def test_a_prefix_ends_where_each_pool_has_what_its_policy_asks(disk, kv, others, policy, window, restorable):
    with hybrid(disk.options) as storage:
        assert all(storage.set([key(i) for i in kv], *kv))
        assert all(storage.it.batch_set_v2([transfer(PoolName.MAMBA, [key(i) for i in others], others)])[PoolName.MAMBA])
        keys = [key(i) for i in range(5)]
        asked = transfer(PoolName.MAMBA, keys[-window:], [0] * window, PoolHitPolicy[policy])
        found = storage.it.batch_exists_v2(keys, [asked])
        assert found.restorable_prefix_pages == restorable
        assert found.kv_hit_pages == (restorable[-1] if restorable else 0)
        if hosts.released("sglang") and policy != "BLOCK_GROUPS":
            assert found == as_sglangs_files(disk.folder.parent, storage, kv, others, keys, asked)


def as_sglangs_files(folder, storage, kv, others, keys, asked):
    """What its own file storage answers."""
    import torch
    from sglang.srt.mem_cache.hicache_storage import HiCacheFile

    files = HiCacheFile(config({"file_storage_path": str(folder / "files")}))
    for i in kv:
        assert files.set(key(i), torch.zeros(8))
    for i in others:
        assert files.set(f"{key(i)}.mamba", torch.zeros(8))
    return files.batch_exists_v2(keys, [asked])


def test_pools_do_not_meet_and_a_flipped_state_does_not_reach_its_pool(disk):
    with hybrid(disk.options) as storage:
        storage.states.fill(3)
        keys = [key(i) for i in range(4)]
        assert storage.it.batch_set_v2([transfer(PoolName.MAMBA, keys, range(4))]) == {PoolName.MAMBA: [True] * 4}
        assert storage.it.batch_exists(keys) == 0
        payloads = [storage.states.buffer[i].tobytes() for i in range(4)]
    assert disk.flip_all(payloads) == 4
    with hybrid(disk.options) as storage:
        assert storage.it.batch_get_v2([transfer(PoolName.MAMBA, keys, range(4))]) == {PoolName.MAMBA: [False] * 4}
        assert not storage.states.buffer.any()


def test_ranks_of_an_mla_model_share_kv_and_have_states_of_their_own(tmp_path):
    redis = media.Redis(tmp_path)
    said = {"is_mla_model": True, "tp_size": 2}
    with hybrid(redis.options, **said) as first, hybrid(redis.options, **said, tp_rank=1) as second:
        assert all(first.set([key(1)], 0))
        assert first.it.batch_set_v2([transfer(PoolName.MAMBA, [key(1)], [0])]) == {PoolName.MAMBA: [True]}
        assert second.it.batch_exists([key(1)]) == 1
        assert second.it.batch_get_v2([transfer(PoolName.MAMBA, [key(1)], [0])]) == {PoolName.MAMBA: [False]}
    redis.stop()


STATE = {"temporal_dtype": np.dtype("float16"), "conv_dtype": np.dtype("float16"), "temporal_state_shape": (4, 8),
         "conv_state_shapes": [(3, 4)], "num_mamba_layers": 2, "slot_state_buffers": [np.zeros((40, 6), np.int32)],
         "indexer_dtype": np.dtype("uint8")}
OTHER_STATES = [("temporal_dtype", np.dtype("int16")), ("conv_dtype", np.dtype("int16")), ("temporal_state_shape", (8, 4)),
                ("conv_state_shapes", [(4, 3)]), ("conv_state_shapes", [(3, 4), (3, 4)]), ("num_mamba_layers", 4),
                ("slot_state_buffers", []), ("slot_state_buffers", [np.zeros((40, 6), np.float32)]),
                ("slot_state_buffers", [np.zeros((40, 3, 2), np.int32)]), ("indexer_dtype", np.dtype("int8"))]


@pytest.mark.parametrize("field,value", OTHER_STATES)
def test_states_of_another_dtype_or_shape_are_not_found(disk, field, value):
    """A page has as many bytes with either."""
    keys = [key(i) for i in range(4)]
    for pool, wanted in ((STATE, None), ({**STATE, field: value}, False), (STATE, True)):
        with Storage(disk.options) as storage:
            storage.states = States()
            vars(storage.states).update(pool)
            storage.it.register_mem_host_pool_v2(storage.states, PoolName.MAMBA)
            move = storage.it.batch_set_v2 if wanted is None else storage.it.batch_get_v2
            assert move([transfer(PoolName.MAMBA, keys, range(4))]) == {PoolName.MAMBA: [wanted is not False] * 4}


def test_sglangs_states_of_another_dtype_are_not_found(disk):
    if not hosts.released("sglang"):
        pytest.skip("needs the released sglang: scripts/adapters")
    import torch
    from sglang.srt.mem_cache.device_pool_info import MambaStateBufferInfo
    from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost

    def pool(temporal, conv, side):
        info = MambaStateBufferInfo(temporal=torch.zeros(2, 4, 3, 8, dtype=temporal),
                                    conv=(torch.zeros(2, 4, 5, dtype=conv),),
                                    extra_checkpoint_buffers=(torch.zeros(4, 7, dtype=side),))
        return MambaPoolHost(info, 2.0, 0, device_capacity=4, pin_memory=False, layout="page_first")

    moved = transfer(PoolName.MAMBA, [key(1)], [2])
    types = (torch.bfloat16, torch.bfloat16, torch.int32)
    with Storage(disk.options) as storage:
        first = pool(*types)
        first.temporal_buffer[2], first.conv_buffer[0][2], first.slot_state_buffers[0][2] = 1, 2, 3
        storage.it.register_mem_host_pool_v2(first, PoolName.MAMBA)
        assert storage.it.batch_set_v2([moved]) == {PoolName.MAMBA: [True]}
    for at, other in enumerate((torch.float16, torch.float16, torch.float32)):
        with Storage(disk.options) as storage:
            storage.it.register_mem_host_pool_v2(pool(*types[:at], other, *types[at + 1:]), PoolName.MAMBA)
            assert storage.it.batch_get_v2([moved]) == {PoolName.MAMBA: [False]}
    with Storage(disk.options) as storage:
        back = pool(*types)
        storage.it.register_mem_host_pool_v2(back, PoolName.MAMBA)
        assert storage.it.batch_get_v2([moved]) == {PoolName.MAMBA: [True]}
        assert torch.equal(back.get_data_page(2), first.get_data_page(2)) and back.slot_state_buffers[0][2].tolist() == [3] * 7


def of_class(name, base=Pool):
    return type(name, (base,), {})()


@pytest.mark.parametrize("name", [PoolName.DRAFT, PoolName.DRAFT_SWA])
def test_a_draft_without_mla_beside_an_mla_model_on_two_ranks_is_refused(medium, name):
    """SGLang has rank 0 write it for all, and each rank has other heads."""
    draft = of_class("MHATokenToKVPoolHost")
    ranks = 2 if "servers" in medium.options else 1  # on a disk more are refused before
    with Storage(medium.options, said={"is_mla_model": True, "tp_size": ranks}) as storage:
        if ranks == 2:
            with pytest.raises(ValueError, match=f"'{name.value}' is a MHATokenToKVPoolHost.* 2 tensor-.*--tp-size 1"):
                storage.it.register_mem_host_pool_v2(draft, name)
            assert storage.it.batch_set_v2([transfer(name, [key(1)], range(PAGE))]) == {name: [False]}
        for allowed in ("MLATokenToKVPoolHost", "DeepSeekV4PagedHostPool", *["MHATokenToKVPoolHost"] * (ranks == 1)):
            storage.it.register_mem_host_pool_v2(of_class("Further", type(of_class(allowed))), name)
            assert storage.it.batch_set_v2([transfer(name, [key(1)], range(PAGE))]) == {name: [True]}
    with Storage(medium.options, said={"tp_size": 2}) as storage:
        storage.it.register_mem_host_pool_v2(draft, name)


def test_the_pools_that_all_ranks_share_are_called_so_in_sglang():
    if not hosts.released("sglang"):
        pytest.skip("needs the released sglang: scripts/adapters")
    from sglang.srt.mem_cache.memory_pool_host import DeepSeekV4PagedHostPool
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost

    assert {each.__name__ for each in (MLATokenToKVPoolHost, DeepSeekV4PagedHostPool)} == set(kvfolio_sglang._OF_ALL_RANKS)


def test_a_pool_that_is_not_known_and_indices_of_another_count_are_no_hit(disk):
    with hybrid(disk.options) as storage:
        assert storage.it.batch_set_v2([transfer(PoolName.SWA, [key(1)], [0])]) == {PoolName.SWA: [False]}
        assert storage.it.batch_set_v2([transfer(PoolName.MAMBA, [key(1)], [0, 1])]) == {PoolName.MAMBA: [False]}
        none = PoolTransfer(name=PoolName.MAMBA, keys=[key(1)])
        assert storage.it.batch_get_v2([none]) == {PoolName.MAMBA: [False]}
        assert all(storage.set([key(1)], 0))
        assert storage.it.batch_exists_v2([key(1)], [transfer(PoolName.SWA, [key(1)], [0])]).kv_hit_pages == 0
        assert storage.it.batch_exists_v2([key(1), key(2)]).kv_hit_pages == 1


def test_another_sglang_is_refused_with_both_versions():
    code = ("import sys; sys.path.insert(0, sys.argv[1])\nimport hosts, conftest\n"
            "hosts.provide('sglang', '0.5.24')\nimport kvfolio_sglang")
    ran = subprocess.run([sys.executable, "-c", code, str(pathlib.Path(__file__).parent)], capture_output=True,
                         text=True, timeout=120)
    last = ran.stderr.splitlines()[-1]
    assert ran.returncode == 1 and last.startswith("ImportError") and "0.5.23" in last and "0.5.24" in last


# ---- with the released factory and pool ----


@pytest.mark.parametrize("layout", ["layer_first", "page_first", "page_first_direct"])
def test_sglangs_factory_and_host_pool_get_their_pages_back(disk, layout):
    if not hosts.released("sglang"):
        pytest.skip("needs the released sglang: scripts/adapters")
    import torch
    from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVBuffers, MHABufferInfo
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
    from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

    rows = tuple(torch.zeros(8 * PAGE, 2, 64, dtype=torch.bfloat16) for _ in range(3))
    pointers = torch.zeros(3, dtype=torch.uint64)
    info = MHABufferInfo(buffers=KVBuffers(k=rows, v=rows, k_data_ptrs=pointers, v_data_ptrs=pointers,
                                           layout=KVBufferLayout.NHD),
                         page_size=PAGE, head_num=2, head_dim=64, v_head_dim=64, dtype=torch.bfloat16,
                         device=torch.device("cpu"))
    pool = MHATokenToKVPoolHost(info, 2.0, 0, PAGE, layout, pin_memory=False, device_capacity_tokens=8 * PAGE,
                                start_layer=0, end_layer=3)
    storage = StorageBackendFactory.create_backend("dynamic", config({**IDENTITY, **disk.options}), pool)
    try:
        storage.register_mem_pool_host(pool)
        storage.register_mem_host_pool_v2(pool, "kv")
        storage.on_host_pools_registered()
        pool.kv_buffer.copy_(torch.randn(pool.kv_buffer.shape).to(torch.bfloat16))
        wanted = [pool.get_data_page(i * PAGE).clone() for i in range(4)]
        keys = [key(i) for i in range(4)]
        assert storage.batch_set_v1(keys, torch.arange(4 * PAGE)) == [True] * 4
        pool.kv_buffer.zero_()
        assert storage.batch_exists(keys) == 4
        assert storage.batch_get_v1(keys, torch.arange(8 * PAGE, 12 * PAGE)) == [True] * 4
        assert all(torch.equal(pool.get_data_page((8 + i) * PAGE), wanted[i]) for i in range(4))
        # As the controller's generic calls.
        page = storage.batch_get([keys[1]], [pool.get_dummy_flat_data_page()])[0]
        assert torch.equal(page, wanted[1]) and storage.batch_set([key(9)], [wanted[2]])
    finally:
        storage.close()
