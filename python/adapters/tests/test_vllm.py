# SPDX-License-Identifier: Apache-2.0
"""kvfolio_vllm as vLLM's tiering manager drives it: the cases of vLLM's tests of its own file tier, and the faults
that that one does not see."""

import contextlib
import hashlib
import json
import mmap
import pathlib
import signal
import subprocess
import sys
import time
import types

import numpy as np
import pytest
from kvfolio_vllm import KvfolioTier
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingKVEventsConfig,
    ReqContext,
    ScheduleEndContext,
)
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.tiering.base import JobResult, TransferJob

import hosts
import media

HIT, MISS, RETRY = LookupResult.HIT, LookupResult.MISS, LookupResult.RETRY
IDENTITY = {"weights": "sha256:0f3a", "model_dtype": "bfloat16", "hash": "sha256"}
ROW = 16 * mmap.PAGESIZE


def spec(*, model="m", dtype="float16", layout="NHD", events=False, groups=1, **ranks):
    """What vLLM says of itself."""
    parallel = {"rank": 0, "world_size": 1, "tp_size": 1, "pp_size": 1, "pcp_size": 1, "dcp_size": 1,
                "data_parallel_index": 0, "data_parallel_size": 1, "data_parallel_rank_local": None,
                "is_parallelism_agnostic": False, **ranks}
    config = OffloadingConfig(
        groups=tuple(OffloadingGroupConfig(tokens_per_block=16, layer_names=(f"layers.{i}",), group_id=i)
                     for i in range(groups)),
        worker_kv_bytes_per_block=ROW, enable_kv_cache_events=events, extra_config={}, engine_id="e",
        model=OffloadingModelConfig(name=model, dtype=dtype),
        cache=OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=1),
        parallel=OffloadingParallelConfig(**parallel), kv_cache_layout=layout)
    return types.SimpleNamespace(config=config, kv_events_config=OffloadingKVEventsConfig(
        enable_kv_cache_events=events, self_describing_kv_events=False))


def rows(count, row=ROW):
    """Page aligned, as vLLM's in /dev/shm."""
    return np.frombuffer(mmap.mmap(-1, count * row), np.int8).reshape(count, row)


def fill(primary, seed):
    primary[:] = np.random.default_rng(seed).integers(-128, 128, primary.shape, np.int8)
    return primary.copy()


def key(number, group=0):
    return hashlib.sha256(b"block %d" % number).digest() + group.to_bytes(4, "big")


class Engine:
    """A tier over rows, and the calls of vLLM's steps."""

    def __init__(self, options, count=8, said=None, **more):
        self.rows = rows(count)
        self.tier = KvfolioTier(offloading_spec=said or spec(), primary_kv_view=memoryview(self.rows),
                                tier_type="KvfolioTier", **{**IDENTITY, **options, **more})
        self.jobs = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.tier.shutdown()

    def submit(self, op, keys, chunks=None, request="r"):
        self.jobs += 1
        job = TransferJob(job_id=self.jobs, keys=keys, is_promotion=op == "load", req_context=ReqContext(request),
                          chunk_ids=np.array(range(len(keys)) if chunks is None else chunks, np.int32))
        getattr(self.tier, f"submit_{op}")(job)
        return job

    def drained(self):
        self.tier.drain_jobs()
        return list(self.tier.get_finished_jobs())

    def store(self, keys, chunks=None):
        self.submit("store", keys, chunks)
        (result,) = self.drained()
        return result

    def load(self, keys, chunks=None, request="r"):
        self.submit("load", keys, chunks, request)
        (result,) = self.drained()
        return result

    def step(self):
        self.tier.on_schedule_end(ScheduleEndContext(new_req_ids=[], preempted_req_ids=()))

    def lookup(self, keys, request="r", steps=500):
        """Steps until no key is to be asked for again."""
        for _ in range(steps):
            answers = [self.tier.lookup(each, ReqContext(request)) for each in keys]
            if RETRY not in answers:
                return answers
            self.step()
            time.sleep(0.01)
        raise AssertionError(f"vLLM would ask for ever: {answers}")

    def finish(self, request="r"):
        self.tier.on_request_finished(ReqContext(request))


# ---- the cases of vLLM's own file tier ----


def test_an_empty_tier_misses(medium):
    with Engine(medium.options) as engine:
        assert engine.lookup([key(1), key(2)]) == [MISS, MISS]


@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_what_was_stored_is_hit_and_loads_into_other_chunks(medium, count):
    with Engine(medium.options) as engine:
        wanted = fill(engine.rows, 1)
        keys = [key(i) for i in range(count)]
        stored = engine.store(keys)
        assert stored.success and stored.transfer_bytes == count * ROW
        assert engine.lookup(keys) == [HIT] * count
        engine.rows[:] = 0
        loaded = engine.load(keys, range(8 - count, 8))
        assert loaded == JobResult(job_id=2, success=True, successful_keys=None, transfer_time=loaded.transfer_time,
                                   transfer_bytes=count * ROW)
        assert (engine.rows[8 - count:] == wanted[:count]).all() and not engine.rows[:8 - count].any()
        assert engine.lookup(keys) == [HIT] * count


def test_each_job_is_answered_once_and_alone(medium):
    with Engine(medium.options) as engine:
        for number in range(20):
            engine.submit("store", [key(2 * number), key(2 * number + 1)], [0, 1])
        results = engine.drained()
        assert sorted(result.job_id for result in results) == list(range(1, 21))
        assert all(result.success for result in results) and not engine.drained()


def test_a_load_of_what_is_not_there_fails(medium):
    with Engine(medium.options) as engine:
        result = engine.load([key(99)])
        assert not result.success and result.successful_keys is None


def test_a_load_that_fails_in_part_keeps_what_came(medium):
    with Engine(medium.options) as engine:
        wanted = fill(engine.rows, 2)
        assert engine.store([key(1), key(2)]).success
        result = engine.load([key(1), key(99), key(2)], [4, 5, 6])
        assert not result.success and set(result.successful_keys) == {key(1), key(2)}
        assert (engine.rows[[4, 6]] == wanted[:2]).all()


def test_the_place_and_the_medium_are_vllms_words(disk):
    with Engine(disk.options, locality="LOCAL") as engine:
        assert engine.tier.locality is Locality.LOCAL and engine.tier.medium is Medium.STORAGE
    with pytest.raises(ValueError, match="local"):
        Engine(disk.options, locality="local")


def test_a_directory_that_cannot_be_is_refused_at_start(disk):
    with pytest.raises(OSError):
        Engine({**disk.options, "directory": "/dev/null/invalid"})


def test_events_name_what_was_stored_and_only_if_both_sides_want_them(disk):
    with Engine(disk.options, said=spec(events=True), enable_kv_events=True, locality="LOCAL") as engine:
        engine.store([key(1), key(2)])
        (event,) = engine.tier.take_events()
        assert (event.keys, event.medium, event.removed, event.locality) == (
            [key(1), key(2)], Medium.STORAGE, False, Locality.LOCAL)
        assert not list(engine.tier.take_events())
    with Engine(disk.options, enable_kv_events=True) as engine:
        engine.store([key(3)])
        assert not list(engine.tier.take_events())


def test_shutdown_ends_every_job_and_is_taken_twice(disk):
    engine = Engine(disk.options)
    for number in range(50):
        engine.submit("store", [key(number)], [number % 8])
    engine.tier.shutdown()
    assert len(list(engine.tier.get_finished_jobs())) == 50
    engine.tier.shutdown()
    assert not engine.load([key(1)]).success
    assert engine.lookup([key(1000)]) == [MISS]


def test_a_tier_that_was_shut_down_keeps_no_memory_of_vllms_mapped(disk):
    """vLLM unmaps its rows then; one view of them would keep all of it."""
    memory = mmap.mmap(-1, 4 * ROW)
    view = memoryview(np.frombuffer(memory, np.int8).reshape(4, ROW))
    tier = KvfolioTier(spec(), view, "KvfolioTier", **IDENTITY, **disk.options)
    for op in ("store", "load"):
        getattr(tier, f"submit_{op}")(TransferJob(job_id=op, keys=[key(1), key(2)], is_promotion=op == "load",
                                                  req_context=ReqContext("r"), chunk_ids=np.array([0, 1], np.int32)))
    with pytest.raises(BufferError):
        memory.close()
    tier.shutdown()
    view.release()
    memory.close()
    assert len(list(tier.get_finished_jobs())) == 2


def test_answers_are_forgotten_with_the_last_request_that_asked(disk):
    with Engine(disk.options) as engine:
        assert engine.lookup([key(1)], "a") == engine.lookup([key(1)], "b") == [MISS]
        engine.finish("a")
        assert engine.tier._verdicts == {key(1): False}
        engine.finish("b")
        assert not engine.tier._verdicts and not engine.tier._askers and not engine.tier._asked_by
        # A request that ends before its answer.
        engine.tier.lookup(key(2), ReqContext("c"))
        engine.step()
        engine.finish("c")
        engine.tier.drain_jobs()
        assert engine.lookup([key(3)], "d") == [MISS]
        engine.finish("d")
        assert not engine.tier._verdicts and not engine.tier._asked_by


# ---- faults ----

CHILD = """
import json, os, signal, sys
sys.path.insert(0, sys.argv[1])
import conftest
from test_vllm import *
engine = Engine(json.loads(sys.argv[2]))
fill(engine.rows, 7)
assert engine.store([key(i) for i in range(8)]).success
print("stored", flush=True)
signal.pause()
"""


def test_what_a_killed_process_had_stored_is_hit_by_the_next(medium):
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(pathlib.Path(__file__).parent), json.dumps(medium.options)],
                             stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "stored\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    with Engine(medium.options) as engine:
        wanted = fill(engine.rows, 7)
        engine.rows[:] = 0
        keys = [key(i) for i in range(8)]
        assert engine.lookup(keys) == [HIT] * 8
        assert engine.load(keys).success and (engine.rows == wanted).all()


def test_of_32_records_with_a_flipped_byte_none_is_handed_over_or_asked_for_again(medium):
    keys = [key(i) for i in range(32)]
    with Engine(medium.options, 32) as engine:
        wanted = fill(engine.rows, 3)
        assert engine.store(keys).success
    assert medium.flip_all([row.tobytes() for row in wanted]) == 32
    with Engine(medium.options, 32) as engine:
        assert engine.lookup(keys, "a") == [HIT] * 32
        result = engine.load(keys, request="a")
        assert not result.success and result.successful_keys is None
        assert engine.lookup(keys, "a") == [MISS] * 32
        engine.finish("a")
        # The next request: what did not verify is gone, and can be stored again.
        assert engine.lookup(keys, "b") == [MISS] * 32
        engine.rows[:] = wanted
        assert engine.store(keys).success
        engine.rows[:] = 0
        assert engine.lookup(keys, "b") == [HIT] * 32
        assert engine.load(keys, request="b").success and (engine.rows == wanted).all()


def test_a_load_that_fails_is_a_miss_for_its_request_even_if_the_tier_still_has_it(disk):
    with Engine(disk.options, load_timeout=0) as engine:
        assert engine.store([key(1)]).success
        assert engine.lookup([key(1)]) == [HIT]
        assert not engine.load([key(1)]).success  # too late
        assert engine.lookup([key(1)]) == [MISS]
        assert engine.store([key(1)]).success
        assert engine.lookup([key(1)]) == [HIT]


OTHERS = {
    "model": {"said": spec(model="other")}, "kv dtype": {"said": spec(dtype="fp8_e4m3")},
    "layout": {"said": spec(layout="HND")}, "tensor ranks": {"said": spec(tp_size=2, world_size=2)},
    "rank": {"said": spec(rank=1)}, "pipeline": {"said": spec(pp_size=2)}, "context": {"said": spec(dcp_size=2)},
    "groups": {"said": spec(groups=2)}, "weights": {"weights": "sha256:ffff"}, "dtype": {"model_dtype": "float16"},
    "hash": {"hash": "sha256_cbor"}, "salt": {"salt": "tenant 2"},
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_model_dtype_rank_or_salt_finds_nothing(disk, other):
    keys = [key(i) for i in range(8)]
    with Engine(disk.options) as engine:
        assert engine.store(keys).success
    with Engine(disk.options, **OTHERS[other]) as engine:
        assert engine.lookup(keys) == [MISS] * 8
        assert not engine.load(keys).success
    with Engine(disk.options) as engine:
        assert engine.lookup(keys) == [HIT] * 8


def test_another_hash_seed_finds_nothing(disk, monkeypatch):
    with Engine(disk.options) as engine:
        assert engine.store([key(1)]).success
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    with Engine(disk.options) as engine:
        assert engine.lookup([key(1)]) == [MISS]


def test_the_groups_of_one_model_do_not_meet(disk):
    with Engine(disk.options, said=spec(groups=2)) as engine:
        assert engine.store([key(1, group=0)]).success
        assert engine.lookup([key(1, group=0), key(1, group=1)]) == [HIT, MISS]


def test_engines_of_a_data_parallel_group_share_a_disk_in_folders_of_their_own(disk):
    with Engine(disk.options, said=spec(data_parallel_size=2)), \
            Engine(disk.options, said=spec(data_parallel_size=2, data_parallel_index=1)) as second:
        assert second.store([key(1)]).success


def test_two_salts_by_vllms_own_hash_find_nothing_of_each_other(disk):
    if not hosts.released("vllm"):
        pytest.skip("needs the released vllm: scripts/adapters")
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core import kv_cache_utils

    function = get_hash_fn_by_name("sha256")
    kv_cache_utils.init_none_hash(function)
    first, second = (bytes(kv_cache_utils.hash_block_tokens(function, None, range(16), (salt,))) + bytes(4)
                     for salt in ("a", "b"))
    assert kv_cache_utils.get_none_hash_seed() == "vllm-none-hash"
    with Engine(disk.options) as engine:
        assert engine.store([first]).success
        assert engine.lookup([first, second]) == [HIT, MISS]


def test_a_full_disk_drops_stores_counts_them_and_goes_on(tmp_path):
    """Here a limit on the size of files: no file system of our own may be mounted everywhere."""
    child = """
import resource, signal, sys
sys.path.insert(0, sys.argv[1])
import conftest
from test_vllm import *
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with Engine({"directory": sys.argv[2], "bytes": 64 << 20, "segment_bytes": 8 << 20}) as engine:
    assert engine.store([key(1)]).success
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, resource.RLIM_INFINITY))
    results = [engine.store([key(100 + 8 * i + j) for j in range(8)]) for i in range(40)]
    assert not all(result.success for result in results)
    dropped = sum(count for name, count in engine.tier.counters.items()
                  if name.startswith("store ") and name != "store ok")
    assert dropped > 0
    assert engine.lookup([key(5000)]) == [MISS]
print("went on", flush=True)
"""
    ran = subprocess.run([sys.executable, "-c", child, str(pathlib.Path(__file__).parent), str(tmp_path / "t")],
                         capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout) == (0, "went on\n"), ran.stdout + ran.stderr


def test_a_full_disk_takes_stores_again_when_it_has_room(tmp_path):
    @contextlib.contextmanager
    def opened(options):
        with Engine(options) as engine:
            yield engine, engine.tier._owner

    def exists(engine, i):
        found = engine.lookup([key(i)], f"asks {i}") == [HIT]
        engine.finish(f"asks {i}")
        return found

    media.check_full_disk(tmp_path, opened, lambda engine, i: engine.store([key(i)]).success, exists)


def test_a_dead_redis_drops_stores_counts_them_and_goes_on(tmp_path):
    redis = media.Redis(tmp_path)
    with Engine(redis.options, store_timeout=1, load_timeout=1) as engine:
        assert engine.store([key(1)]).success
        redis.stop()
        begin = time.monotonic()
        assert not engine.store([key(2), key(3)]).success
        assert not engine.load([key(1)]).success
        assert engine.lookup([key(1), key(4)]) == [MISS, MISS]
        assert time.monotonic() - begin < 60
        assert sum(count for name, count in engine.tier.counters.items()
                   if name.startswith("store ") and name != "store ok") == 2


def test_more_than_a_tier_takes_at_once_is_stored_all_the_same(disk):
    with Engine({**disk.options, "bytes": 1 << 30}, 1024) as engine:
        fill(engine.rows[:64], 5)
        keys = [key(i) for i in range(6000)]
        engine.submit("store", keys, [i % 1024 for i in range(6000)])
        assert engine.drained()[0].success
        assert engine.lookup(keys[::100]) == [HIT] * 60


# ---- what is refused ----


@pytest.mark.parametrize("field", ["weights", "model_dtype", "hash", "directory", "bytes"])
def test_a_configuration_that_leaves_something_out_is_refused_by_its_name(disk, field):
    options = {**IDENTITY, **disk.options}
    del options[field]
    with pytest.raises(ValueError, match=f"kvfolio_vllm: the option '{field}' is missing"):
        KvfolioTier(spec(), memoryview(rows(2)), "KvfolioTier", **options)
    if field in IDENTITY:
        with pytest.raises(ValueError, match=field):
            KvfolioTier(spec(), memoryview(rows(2)), "KvfolioTier", **{**options, field: "  "})


def test_a_layout_that_vllm_does_not_know_has_to_be_named(disk):
    with pytest.raises(ValueError, match="'layout' is missing"):
        Engine(disk.options, said=spec(layout=None))
    with Engine(disk.options, said=spec(layout=None), layout="flash attention, NHD") as engine:
        assert engine.store([key(1)]).success


@pytest.mark.parametrize("field,value,text", [
    ("weight", "x", "'weight' is not known here"), ("hash", "xxhash", "wanted: sha256"),
    ("bytes", -1, "wanted: a number"), ("load_timeout", "1", "wanted: a number"), ("salt", 7, "wanted: a text")])
def test_an_option_that_is_none_is_refused(disk, field, value, text):
    with pytest.raises(ValueError, match=text):
        Engine(disk.options, **{field: value})


def test_memory_that_cannot_be_written_is_refused(disk):
    with pytest.raises(ValueError, match="wanted: rows"):
        KvfolioTier(spec(), memoryview(np.zeros((2, 8), np.int8)).toreadonly(), "KvfolioTier",
                    **IDENTITY, **disk.options)


@pytest.mark.parametrize("name", [b"short", bytes(20), key(1) + b"x", key(1, group=1)])
def test_a_key_of_another_length_or_group_fails_its_job_and_no_other(disk, name):
    with Engine(disk.options) as engine:
        assert not engine.store([name]).success
        assert engine.lookup([name]) == [MISS]
        assert not engine.load([name]).success
        assert engine.tier.counters["store refused"] == 1
        assert engine.store([key(1)]).success


def test_chunks_that_are_not_there_and_lists_of_two_lengths_fail_the_job(disk):
    with Engine(disk.options) as engine:
        assert not engine.store([key(1)], [8]).success
        assert not engine.store([key(1)], [-1]).success
        assert not engine.store([key(1), key(2)], [0]).success
        assert engine.lookup([key(1), key(2)]) == [MISS, MISS]


def test_another_vllm_is_refused_with_both_versions():
    code = ("import sys; sys.path.insert(0, sys.argv[1])\nimport hosts, conftest\n"
            "hosts.provide('vllm', '0.34.1')\nimport kvfolio_vllm")
    ran = subprocess.run([sys.executable, "-c", code, str(pathlib.Path(__file__).parent)], capture_output=True,
                         text=True, timeout=120)
    last = ran.stderr.splitlines()[-1]
    assert ran.returncode == 1 and last.startswith("ImportError") and "0.33" in last and "0.34.1" in last


def test_a_file_system_without_room_gives_up_the_oldest_and_goes_on(tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("nothing may be mounted here")
    try:
        with Engine({"directory": str(tmp_path / "t"), "bytes": 64 << 20, "segment_bytes": 4 << 20}) as engine:
            wanted = fill(engine.rows, 9)
            results = [engine.store([key(number + i) for i in range(8)]) for number in range(0, 2000, 8)]
            assert len(results) == 250 and sum(engine.tier.counters.values()) == 2000
            engine.tier._stored.clear()  # as in the next process
            answers = engine.lookup([key(number) for number in range(2000)])
            assert 0 < answers.count(HIT) < 12 * 16
            last = max(number for number in range(2000) if answers[number] is HIT)
            assert last > 1900 and engine.load([key(last)], [3]).success
            assert (engine.rows[3] == wanted[last % 8]).all()
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


# ---- under the released manager ----


@pytest.fixture
def manager(disk):
    """Makes vLLM's own TieringOffloadingManager over shared memory, with the tier by its line of configuration."""
    if not hosts.released("vllm"):
        pytest.skip("needs the released vllm: scripts/adapters")
    import os

    from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
    from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
    from vllm.v1.kv_offload.tiering.manager import CPUPrimaryTierOffloadingManager, TieringOffloadingManager

    made = []

    def make(count=8):
        region = SharedOffloadRegion(f"kvfolio-{os.getpid()}-{len(made)}", count, None, ROW, ROW)
        primary = CPUPrimaryTierOffloadingManager(num_chunks=count, mmap_region=region)
        tier = SecondaryTierFactory.create_secondary_tier(
            {"type": "KvfolioTier", "module_path": "kvfolio_vllm", **IDENTITY, **disk.options},
            primary.get_kv_memoryview(), spec())
        made.append(TieringOffloadingManager(primary_tier=primary, secondary_tiers=[tier]))
        return made[-1], tier, np.asarray(primary.get_kv_memoryview())

    yield make
    for each in made:
        each.shutdown()


class Steps:
    """What vLLM's scheduler does with a manager."""

    def __init__(self, made):
        self.manager, self.tier, self.rows = made

    def step(self):
        with self.manager.lock:
            self.manager.on_schedule_end(ScheduleEndContext(new_req_ids=[], preempted_req_ids=()))

    def store(self, keys, seed):
        context = ReqContext("store")
        with self.manager.lock:
            self.manager.on_new_request(context)
            output = self.manager.prepare_store(keys, context)
            chunks = list(output.store_spec.chunk_ids)
            self.rows[chunks] = np.random.default_rng(seed).integers(-128, 128, (len(keys), ROW), np.int8)
            self.manager.complete_store(keys, context)
            self.manager.on_request_finished(context)
        self.settle()

    def settle(self):
        for _ in range(1000):
            self.step()
            if not self.manager.has_pending_work():
                return
            time.sleep(0.005)
        raise AssertionError("a job of the tier never ends")

    def look_up(self, keys, request):
        """What each key comes to, after how many steps."""
        context = ReqContext(request)
        with self.manager.lock:
            self.manager.on_new_request(context)
        for steps in range(500):
            with self.manager.lock:
                answers = [self.manager.lookup(each, context) for each in keys]
            if not {RETRY, LookupResult.HIT_PENDING} & set(answers):
                return answers, steps
            self.step()
            time.sleep(0.005)
        raise AssertionError(f"vLLM asks for ever: {answers}")

    def chunk(self, name, request):
        with self.manager.lock:
            found = self.manager.prepare_load([name], ReqContext(request))
            self.manager.complete_load([name], ReqContext(request))
        return self.rows[int(found.chunk_ids[0])]


def test_vllms_manager_gets_back_what_an_earlier_one_stored(manager):
    keys = [key(i) for i in range(8)]
    first = Steps(manager())
    first.store(keys, 11)
    first.manager.shutdown()
    second = Steps(manager())
    assert not second.rows.any()
    answers, _ = second.look_up(keys, "r")
    assert answers == [HIT] * 8
    wanted = np.random.default_rng(11).integers(-128, 128, (8, ROW), np.int8)
    for row, name in zip(wanted, keys):
        assert (second.chunk(name, "r") == row).all()


def test_vllms_manager_computes_again_what_does_not_verify(manager, disk):
    keys = [key(i) for i in range(8)]
    first = Steps(manager())
    first.store(keys, 12)
    first.manager.shutdown()
    wanted = np.random.default_rng(12).integers(-128, 128, (8, ROW), np.int8)
    assert disk.flip_all([row.tobytes() for row in wanted[:4]]) == 4
    second = Steps(manager())
    answers, steps = second.look_up(keys, "r")
    assert answers == [MISS] * 4 + [HIT] * 4 and steps < 100
    second.store(keys[:4], 13)
    assert second.look_up(keys, "s")[0] == [HIT] * 8


def test_vllms_manager_resets_while_transfers_run(manager):
    one = Steps(manager())
    one.store([key(i) for i in range(8)], 14)
    with one.manager.lock:
        one.manager.reset_cache()
        one.manager.on_reset_flushed()
    one.settle()
    assert one.look_up([key(0), key(99)], "r")[0] == [HIT, MISS]
