# SPDX-License-Identifier: Apache-2.0
"""kvfolio_lmcache as LMCache's adapter for native clients drives it, and under that adapter where it is installed."""

import contextlib
import ctypes
import hashlib
import json
import pathlib
import select
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from kvfolio_lmcache import Client

import hosts
import media

IDENTITY = {"models": {"m/7b": "sha256:0f3a"}, "model_dtype": "bfloat16", "kv_dtype": "bfloat16", "hash": "blake3",
            "engine": "vllm 0.33.0, flash attention", "layout": "NHD"}
SIZE = 40000


def key(number, model="m/7b", rank=0x01000100, group=0, salt=""):
    """As LMCache writes it."""
    digest = hashlib.sha256(b"chunk %d" % number).hexdigest()
    return f"{model}@{rank:08x}@{group:x}@{digest}" + (f"@{salt}" if salt else "")


def chunks(count, seed=None, size=SIZE):
    """Views over memory of C, as LMCache's are, with random bytes if there is a seed."""
    views = [memoryview((ctypes.c_ubyte * size)()) for _ in range(count)]
    if seed is not None:
        for view, row in zip(views, np.random.default_rng(seed).integers(0, 256, (count, size), np.uint8)):
            view.cast("B")[:] = row.tobytes()
    return views


def same(views, others):
    return all(bytes(a) == bytes(b) for a, b in zip(views, others))


class Server:
    """A client, and LMCache's thread that waits for its descriptor."""

    def __init__(self, options, **more):
        self.client = Client(**{**IDENTITY, **options, **more})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.close()

    def wait(self, *numbers, timeout=30):
        ended = {}
        poller = select.poll()
        poller.register(self.client.event_fd(), select.POLLIN)
        until = time.monotonic() + timeout
        while len(ended) < len(numbers):
            assert time.monotonic() < until, f"{ended} of {numbers}"
            if poller.poll(500):
                for number, *rest in self.client.drain_completions():
                    assert number not in ended
                    ended[number] = tuple(rest)
        return [ended[number] for number in numbers]

    def set(self, keys, views):
        return self.wait(self.client.submit_batch_set(keys, views))[0]

    def get(self, keys, views):
        return self.wait(self.client.submit_batch_get(keys, views))[0]

    def exists(self, keys):
        ok, _, found = self.wait(self.client.submit_batch_exists(keys))[0]
        assert ok
        return found

    def delete(self, keys):
        return self.wait(self.client.submit_batch_delete(keys))[0]


def test_what_was_set_exists_and_comes_back(medium):
    with Server(medium.options) as server:
        keys, stored = [key(i) for i in range(6)], chunks(6, 1)
        assert server.exists(keys) == [False] * 6
        assert server.set(keys, stored) == (True, "", None)
        assert server.exists([*keys, key(99)]) == [True] * 6 + [False]
        back = chunks(6)
        assert server.get(keys, back) == (True, "", [True] * 6) and same(back, stored)


def test_a_get_is_answered_key_by_key(medium):
    with Server(medium.options) as server:
        assert server.set([key(1), key(2)], stored := chunks(2, 2))[0]
        back = chunks(3)
        assert server.get([key(1), key(99), key(2)], back) == (False, "1 of 3 miss", [True, False, True])
        assert same([back[0], back[2]], stored)


def test_batches_of_several_threads_end_once_each(medium):
    with Server(medium.options) as server:
        numbers, lock, failures = [], threading.Lock(), []

        def body(thread):
            try:
                for i in range(50):
                    number = server.client.submit_batch_set([key(100 * thread + i)], chunks(1, i))
                    with lock:
                        numbers.append(number)
            except BaseException as error:  # noqa: BLE001
                failures.append(error)

        threads = [threading.Thread(target=body, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures and len(set(numbers)) == 200
        assert all(ok for ok, _, _ in server.wait(*numbers))


def test_what_was_deleted_is_not_there(medium):
    with Server(medium.options) as server:
        assert server.set([key(1), key(2)], chunks(2, 3))[0]
        assert server.delete([key(1), key(99)])[0]
        assert server.exists([key(1), key(2)]) == [False, True]


def test_an_empty_batch_ends(medium):
    with Server(medium.options) as server:
        assert server.set([], []) == (True, "", None)
        assert server.get([], []) == (True, "", []) and server.exists([]) == []


CHILD = """
import json, signal, sys
sys.path.insert(0, sys.argv[1])
import conftest
from test_lmcache import *
server = Server(json.loads(sys.argv[2]))
assert server.set([key(i) for i in range(8)], chunks(8, 4))[0]
print("stored", flush=True)
signal.pause()
"""


def test_what_a_killed_process_had_set_is_there_for_the_next(medium):
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(pathlib.Path(__file__).parent), json.dumps(medium.options)],
                             stdout=subprocess.PIPE, text=True)
    for line in child.stdout:
        if line == "stored\n":
            break
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    with Server(medium.options) as server:
        keys, back = [key(i) for i in range(8)], chunks(8)
        assert server.exists(keys) == [True] * 8
        assert server.get(keys, back)[0] and same(back, chunks(8, 4))


def test_of_32_records_with_a_flipped_byte_none_is_handed_over(medium):
    keys, stored = [key(i) for i in range(32)], chunks(32, 5)
    with Server(medium.options) as server:
        assert server.set(keys, stored)[0]
    assert medium.flip_all([bytes(view) for view in stored]) == 32
    with Server(medium.options) as server:
        assert server.get(keys, chunks(32)) == (False, "32 of 32 corrupt", [False] * 32)
        assert server.exists(keys) == [False] * 32
        assert server.set(keys, stored)[0]
        back = chunks(32)
        assert server.get(keys, back)[0] and same(back, stored)


OTHERS = {
    "weights": ({"models": {"m/7b": "sha256:ffff"}}, {}), "model dtype": ({"model_dtype": "float16"}, {}),
    "kv dtype": ({"kv_dtype": "fp8_e4m3"}, {}), "layout": ({"layout": "HND"}, {}),
    "engine": ({"engine": "vllm 0.34.0, flash attention"}, {}), "hash": ({"hash": "sha256_cbor"}, {}),
    "salt of the server": ({"salt": "x"}, {}), "model": ({"models": {"n": "sha256:0f3a"}}, {"model": "n"}),
    "rank": ({}, {"rank": 0x02000100}), "group": ({}, {"group": 1}), "salt": ({}, {"salt": "tenant"}),
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_model_dtype_rank_or_salt_finds_nothing(disk, other):
    options, fields = OTHERS[other]
    with Server(disk.options) as server:
        assert server.set([key(i) for i in range(8)], chunks(8, 6))[0]
    with Server(disk.options, **options) as server:
        keys = [key(i, **fields) for i in range(8)]
        assert server.exists(keys) == [False] * 8
        assert server.get(keys, chunks(8))[2] == [False] * 8
    with Server(disk.options) as server:
        assert server.exists([key(i) for i in range(8)]) == [True] * 8


def test_a_disk_with_errors_drops_stores_counts_them_and_goes_on(tmp_path):
    child = """
import resource, signal, sys
sys.path.insert(0, sys.argv[1])
import conftest
from test_lmcache import *
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with Server({"directory": sys.argv[2], "bytes": 64 << 20, "segment_bytes": 8 << 20}) as server:
    assert server.set([key(1)], chunks(1, 1))[0]
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, resource.RLIM_INFINITY))
    results = [server.set([key(100 + i)], chunks(1, i)) for i in range(100)]
    assert not all(ok for ok, _, _ in results)
    assert sum(n for name, n in server.client.counters.items() if name[:6] == "store " and name != "store ok") > 0
    assert server.exists([key(5000)]) == [False]
print("went on", flush=True)
"""
    ran = subprocess.run([sys.executable, "-c", child, str(pathlib.Path(__file__).parent), str(tmp_path / "t")],
                         capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout.splitlines()[-1:]) == (0, ["went on"]), ran.stdout + ran.stderr


def test_a_full_disk_drops_stores_counts_them_and_goes_on(tmp_path):
    @contextlib.contextmanager
    def opened(options):
        with Server(options) as server:
            yield server, server.client._owner

    media.check_full_disk(tmp_path, opened, lambda server, i: server.set([key(i)], chunks(1, i))[0],
                          lambda server, i: server.exists([key(i)]) == [True])


def test_a_dead_redis_costs_misses_within_the_timeout(tmp_path):
    redis = media.Redis(tmp_path)
    with Server(redis.options, store_timeout=1, load_timeout=1) as server:
        assert server.set([key(1)], chunks(1, 1))[0]
        redis.stop()
        begin = time.monotonic()
        assert not server.set([key(2)], chunks(1, 2))[0]
        assert server.get([key(1)], chunks(1))[2] == [False]
        assert server.exists([key(1)]) == [False]
        assert time.monotonic() - begin < 60
        assert sum(n for name, n in server.client.counters.items() if name[:6] == "store " and name != "store ok") == 1


# ---- what is refused ----


@pytest.mark.parametrize("field", [*IDENTITY, "directory", "bytes"])
def test_a_configuration_that_leaves_something_out_is_refused_by_its_name(disk, field):
    options = {**IDENTITY, **disk.options}
    del options[field]
    with pytest.raises(ValueError, match=f"kvfolio_lmcache: the option '{field}' is missing"):
        Client(**options)


@pytest.mark.parametrize("field,value,text", [
    ("models", {"m": ""}, "has ''"), ("models", "m", "wanted"), ("hash", "builtin", "differs from process"),
    ("weights", "x", "not known"), ("password", "secret", "not known")])
def test_an_option_that_is_none_is_refused(disk, field, value, text):
    with pytest.raises(ValueError, match=text) as refusal:
        Client(**{**IDENTITY, **disk.options, field: value})
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize("name", ["", "m/7b", key(1) + "@a@b", key(1, model="other"), key(1).replace("@01", "@1"),
                                  "m/7b@01000100@0@abcd", "m/7b@01000100@0@" + "xy" * 32])
def test_a_key_of_another_shape_or_model_fails_alone(disk, name):
    with Server(disk.options) as server:
        ok, error, _ = server.set([name, key(7)], chunks(2, 7))
        assert not ok and error == "1 of 2 refused"
        assert server.exists([name, key(7)]) == [False, True]
        assert server.get([name, key(7)], chunks(2))[2] == [False, True]


def test_lists_of_two_lengths_and_buffers_of_another_size_are_no_hit(disk):
    with Server(disk.options) as server:
        assert not server.set([key(1), key(2)], chunks(1))[0]
        assert server.exists([key(1), key(2)]) == [False, False]
        assert server.set([key(1)], chunks(1, 1))[0]
        assert server.get([key(1)], chunks(1, size=SIZE - 1))[2] == [False]
        assert server.get([key(1)], chunks(1, size=SIZE + 1))[2] == [False]


def test_a_client_that_is_closed_answers_no_more_and_is_closed_twice(disk):
    server = Server(disk.options)
    for i in range(50):
        server.client.submit_batch_set([key(i)], chunks(1, i))
    server.client.close()
    assert len(server.client.drain_completions()) == 50
    server.client.submit_batch_get([key(1)], chunks(1))
    assert server.client.drain_completions()[0][1:] == (False, "1 of 1 closed", [False])
    server.client.close()


def test_another_lmcache_is_refused_with_both_versions():
    code = ("import sys; sys.path.insert(0, sys.argv[1])\nimport hosts, conftest\n"
            "hosts.provide('lmcache', '0.6.0')\nimport kvfolio_lmcache")
    ran = subprocess.run([sys.executable, "-c", code, str(pathlib.Path(__file__).parent)], capture_output=True,
                         text=True, timeout=120)
    last = ran.stderr.splitlines()[-1]
    assert ran.returncode == 1 and last.startswith("ImportError") and "0.5.6" in last and "0.6.0" in last


# ---- under the released adapter ----


@pytest.fixture
def adapter(disk):
    """LMCache's own L2 adapter, made of the line of configuration."""
    if not hosts.released("lmcache"):
        pytest.skip("needs the released lmcache: scripts/adapters")
    from lmcache.v1.distributed.l2_adapters import native_plugin_l2_adapter as plugin

    made = []

    def make(**more):
        config = plugin.NativePluginL2AdapterConfig.from_dict({
            "type": "native_plugin", "module_path": "kvfolio_lmcache", "class_name": "Client",
            "adapter_params": {**IDENTITY, **disk.options, **more}, "max_capacity_gb": 1})
        made.append(plugin._create_native_plugin_l2_adapter(config))
        return made[-1]

    yield make
    for each in made:
        each.close()


class Object:
    """What LMCache's adapter asks of a memory object."""

    def __init__(self, view):
        self.byte_array = view


def until(ask):
    for _ in range(2000):
        answer = ask()
        if answer:
            return answer
        time.sleep(0.005)
    raise AssertionError("no answer")


def test_lmcaches_adapter_stores_locks_loads_and_deletes(adapter):
    from lmcache.v1.distributed.api import ObjectKey

    one = adapter()
    keys = [ObjectKey(hashlib.sha256(bytes([i])).digest(), "m/7b", ObjectKey.ComputeKVRank(1, 0, 1, 0), 0, salt)
            for i, salt in enumerate(["", "", "tenant", "tenant"])]
    stored = chunks(4, 8)
    task = one.submit_store_task(keys, [Object(view) for view in stored])
    assert until(one.pop_completed_store_tasks)[task].is_successful()
    task = one.submit_lookup_and_lock_task(keys, {})
    found = until(lambda: one.query_lookup_and_lock_result(task))
    assert [found.test(i) for i in range(4)] == [True] * 4
    back = chunks(4)
    task = one.submit_load_task(keys, [Object(view) for view in back])
    loaded = until(lambda: one.query_load_result(task))
    assert [loaded.test(i) for i in range(4)] == [True] * 4 and same(back, stored)
    one.submit_unlock(keys)
    one.delete(keys[:1])
    task = one.submit_lookup_and_lock_task(keys, {})
    found = until(lambda: one.query_lookup_and_lock_result(task))
    assert [found.test(i) for i in range(4)] == [False, True, True, True]
    # The other tenant's name of the same chunk.
    other = ObjectKey(keys[1].chunk_hash, "m/7b", keys[1].kv_rank, 0, "tenant")
    task = one.submit_lookup_and_lock_task([other], {})
    assert not until(lambda: one.query_lookup_and_lock_result(task)).test(0)
