# SPDX-License-Identifier: Apache-2.0
"""Offload: blocks that were evicted, or of another process, come back bit for bit or are computed again."""

import asyncio
import contextlib
import ctypes
import dataclasses
import gc
import itertools
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import kvfolio as kv
from kvfolio import tiers
from tier_cache import (BLOCK, MODEL, Server, check_rows, compute, groups, new_cache, prompt, redis_program,
                        serve)

ARENA = 1 << 20


def disk_tier(folder):
    return tiers.DiskTier(folder / "disk", bytes=8 << 20, segment_bytes=1 << 20)


def over(manager, disk):
    """An Offload that waits for a disk as long as a busy machine takes."""
    return tiers.Offload(manager, MODEL, arena_bytes=ARENA, tiers=[disk], timeout=5.0)


def test_what_was_evicted_comes_back_from_host_memory():
    """Nine prompts through a pool that holds five: the first is gone from it, and comes back whole."""
    manager = new_cache()
    with tiers.Offload(manager, MODEL, arena_bytes=ARENA) as cache:
        for seed in range(9):
            assert serve(cache, manager, prompt(seed)) == (0, None)  # host memory answers at once
            cache.drain(1)
        assert manager.counters.blocks_published > 32 and manager.open(prompt(0)).cached_tokens == 0
        assert serve(cache, manager, prompt(0)) == (20, "loaded")
        assert cache.counters().tokens_loaded == 20 and cache.counters().loads == 5
        assert cache.arena().records == 45
        cache.check_invariants()
        manager.check_invariants()


def test_a_run_that_ends_leaves_its_prompts_to_the_next_one(tmp_path):
    manager = new_cache()
    with disk_tier(tmp_path) as disk, over(manager, disk) as cache:
        for seed in range(9):
            serve(cache, manager, prompt(seed))
    assert cache.closed and disk.closed
    manager = new_cache(num_blocks=16)  # another pool
    with disk_tier(tmp_path) as disk, over(manager, disk) as cache:
        for seed in range(9):
            assert serve(cache, manager, prompt(seed)) == (20, "loaded")
        counters = cache.tier_counters(0)
        assert counters.loads == 45 and counters.loads_corrupt == 0 and sum(counters.load_latency) == 45
        assert "kvfolio_tier_up" in cache.metrics({"engine": "a"})


def test_the_keys_of_an_identity_are_those_an_offload_stores_under(tmp_path):
    manager = new_cache()
    with disk_tier(tmp_path) as disk, over(manager, disk) as cache:
        serve(cache, manager, prompt(1), root=kv.RootKey(tenant_salt=b"alice"))
    names = tiers.Identity(MODEL, groups())
    assert names.unit == BLOCK and ("weights", "sha256:1") in names.fields
    keys = names.keys(prompt(1), root=kv.RootKey(tenant_salt=b"alice"))
    assert len(keys) == 5 and keys[:3] == names.keys(prompt(1)[:14], root=kv.RootKey(tenant_salt=b"alice"))
    with disk_tier(tmp_path) as disk:
        disk.submit("exists", [*keys, *names.keys(prompt(1)), *names.keys(prompt(2))])
        ended = sorted(disk.wait(5, all=True))
        assert [done.result for done in ended] == ["ok"] * 5 + ["miss"] * 10
    names.check_spec(groups())
    with pytest.raises(kv.InvalidArgument, match="dtype"):
        names.check_spec(groups(dtype="f16"))


def test_another_model_layout_or_tenant_finds_nothing(tmp_path):
    manager = new_cache()
    with disk_tier(tmp_path) as disk, over(manager, disk) as cache:
        serve(cache, manager, prompt(1))
    for field in ("model", "weights", "tokenizer", "model_dtype", "positions", "engine"):
        other = dataclasses.replace(MODEL, **{field: "another"})
        manager = new_cache()
        with disk_tier(tmp_path) as disk, tiers.Offload(manager, other, arena_bytes=ARENA, tiers=[disk]) as cache:
            assert serve(cache, manager, prompt(1))[0] == 0, field
    manager = new_cache()
    with disk_tier(tmp_path) as disk, over(manager, disk) as cache:
        assert serve(cache, manager, prompt(1), root=kv.RootKey(tenant_salt=b"bob"))[0] == 0
        assert serve(cache, manager, prompt(1))[0] == 20
    for field in ("model", "weights", "tokenizer", "model_dtype", "positions", "engine"):
        with pytest.raises(kv.InvalidArgument, match=field):
            tiers.Offload(new_cache(), dataclasses.replace(MODEL, **{field: ""}), arena_bytes=ARENA)


def test_damaged_files_cost_their_tokens_and_never_bring_other_bytes(tmp_path):
    manager = new_cache()
    with disk_tier(tmp_path) as disk, over(manager, disk) as cache:
        for seed in range(9):
            serve(cache, manager, prompt(seed))
    rng = np.random.default_rng(4)
    for path in (tmp_path / "disk").glob("segment-*"):
        content = bytearray(path.read_bytes())
        for at in rng.integers(4096, 500000, 20):
            content[int(at)] ^= 1 << int(rng.integers(8))
        path.write_bytes(content)
    manager, found = new_cache(), 0
    with disk_tier(tmp_path) as disk, over(manager, disk) as cache:
        for seed in range(9):
            found += serve(cache, manager, prompt(seed))[0]  # checks every byte
        assert cache.counters().tier_corrupt + sum(
            cache.counters().tier_misses[why] for why in ("miss", "corrupt")) + disk.stats().corrupt > 0
    assert 0 < found < 180


def test_two_engines_share_prefixes_through_redis(tmp_path):
    if redis_program() is None:
        pytest.skip("no redis-server here: scripts/redis-here brings one")
    server = Server(tmp_path)
    for found in ((0, "nothing"), (20, "loaded")):
        manager = new_cache()
        with tiers.RedisTier(server.address) as redis:
            redis.wait_until_ready(5)
            with tiers.Offload(manager, MODEL, arena_bytes=ARENA, tiers=[redis], timeout=2.0) as cache:
                for seed in range(5):
                    assert serve(cache, manager, prompt(seed)) == found
    server.stop()
    manager = new_cache()
    with tiers.RedisTier(server.address) as redis:
        with tiers.Offload(manager, MODEL, arena_bytes=ARENA, tiers=[redis], timeout=0.1) as cache:
            for seed in range(5):
                assert serve(cache, manager, prompt(seed))[0] == 0  # a dead server: computed again


def test_asyncio_decodes_while_prompts_load(tmp_path):
    """Prompts arrive together; each goes on when its blocks are there, and all have the right bytes."""
    manager = new_cache(num_blocks=64)
    with disk_tier(tmp_path) as disk, over(manager, disk) as cache:
        for seed in range(0, 8, 2):  # half of them were seen
            serve(cache, manager, prompt(seed))
    manager = new_cache(num_blocks=64)

    async def engine(cache):
        loop, waiting = asyncio.get_running_loop(), {}

        def move():
            for ready in cache.poll():
                waiting.pop(ready.sequence).set_result(ready.cached_tokens)

        async def ticks():
            while True:
                move()
                await asyncio.sleep(0.002)

        async def request(seed):
            tokens = prompt(seed)
            opened = cache.open(tokens)
            found = opened.cached_tokens
            if opened.pending:
                waiting[opened.sequence] = loop.create_future()
                found = await asyncio.wait_for(waiting[opened.sequence], 10)
            compute(manager, opened.sequence, tokens, found)
            for token in range(3):  # decode
                tokens = np.append(tokens, np.int32(token))
                compute(manager, opened.sequence, tokens, len(tokens) - 1)
                await asyncio.sleep(0)
            check_rows(manager, opened.sequence, tokens, len(tokens))
            manager.close(opened.sequence)
            return found

        loop.add_reader(cache.event_fd(), move)
        beat = asyncio.create_task(ticks())
        try:
            return await asyncio.gather(*(request(seed) for seed in range(8)))
        finally:
            beat.cancel()
            loop.remove_reader(cache.event_fd())

    with disk_tier(tmp_path) as disk:
        with tiers.Offload(manager, MODEL, arena_bytes=ARENA, tiers=[disk], timeout=5.0) as cache:
            assert asyncio.run(engine(cache)) == [20, 0] * 4


def test_what_is_held_is_stored_once_it_is_released(tmp_path):
    manager = new_cache()
    with disk_tier(tmp_path) as disk, \
            tiers.Offload(manager, MODEL, arena_bytes=1 << 20, tiers=[disk], hold_stores=True) as cache:
        serve(cache, manager, prompt(1))
        assert not cache.drain(5) and disk.stats().stored == 0 and cache.idle
        cache.release_stores()
        serve(cache, manager, prompt(2))  # behind it
        assert not cache.drain(5) and disk.stats().stored == 5


def test_what_was_forgotten_stays_forgotten_in_the_next_process(tmp_path):
    alice, bob = kv.RootKey(tenant_salt=b"alice"), kv.RootKey(tenant_salt=b"bob")
    manager = new_cache()
    with disk_tier(tmp_path) as disk, over(manager, disk) as cache:
        serve(cache, manager, prompt(1), root=alice)
        serve(cache, manager, prompt(1), root=bob)
        cache.drain(1)
        assert cache.forget(root=alice).blocks == 6
        assert cache.forget(prompt(1), root=bob).blocks > 0  # the block that ends at token 20, and what is behind
        epochs = cache.epochs()
    assert len(epochs.roots) == 2 and epochs.epoch == 0
    for given, found, of_bob in ((epochs, 0, 16), (None, 20, 20)):
        manager = new_cache()
        with disk_tier(tmp_path) as disk:
            with tiers.Offload(manager, MODEL, arena_bytes=ARENA, tiers=[tiers.OffloadTier(disk, "off")],
                               timeout=5.0, epochs=given) as cache:
                assert serve(cache, manager, prompt(1), root=alice)[0] == found
                assert serve(cache, manager, prompt(1), root=bob)[0] == of_bob


def test_a_request_can_be_given_up(tmp_path):
    manager = new_cache()
    with disk_tier(tmp_path) as disk, over(manager, disk) as cache:
        opened = cache.open(prompt(1))
        assert opened.pending and not cache.idle
        assert cache.cancel(opened.sequence) == 0
        assert cache.wait(5) == []
        compute(manager, opened.sequence, prompt(1), 0)
        with pytest.raises(kv.NotFound):
            cache.cancel(12345)
        assert not cache.drain(5) and cache.idle


@pytest.fixture
def deaf():
    """A tier of Redis whose server takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield tiers.RedisTier(f"127.0.0.1:{server.getsockname()[1]}", connect_timeout=600, stall_timeout=600)


@pytest.mark.parametrize("goes_on", ["append", "close", "forget", "drain"])
def test_a_wait_ends_when_what_was_pending_has_gone_on(deaf, goes_on):
    """No poll says how such a load ended, and nothing else is pending."""
    manager = new_cache()
    cache = tiers.Offload(manager, MODEL, arena_bytes=ARENA, tiers=[deaf], timeout=600)
    opened = cache.open(prompt(1))
    assert opened.pending and cache.wait(0.01) == []
    if goes_on == "append":
        compute(manager, opened.sequence, prompt(1), 0)
    elif goes_on == "close":
        manager.close(opened.sequence)
    elif goes_on == "forget":
        cache.reset()
        compute(manager, opened.sequence, prompt(1), 0)
    else:
        cache.drain()
    begin = time.monotonic()
    assert cache.wait(300) == [] and time.monotonic() - begin < 60
    cache.close(0)
    deaf.close(0)


def test_two_threads_may_close_and_one_says_what_was_left(deaf):
    manager = new_cache()
    cache = tiers.Offload(manager, MODEL, arena_bytes=ARENA, tiers=[deaf], timeout=60)
    cache.open(prompt(1))
    cache.poll()
    left = []
    first = threading.Thread(target=lambda: left.append(cache.close(0.2)))
    first.start()
    assert cache.close(30) == (False, 0, 0, 0) and cache.closed
    first.join()
    assert left[0].questions > 0
    with pytest.raises(kv.FailedPrecondition, match="left it with work that is not answered"):
        tiers.Offload(manager, MODEL, arena_bytes=ARENA, tiers=[deaf])
    deaf.close(0)
    tiers.Offload(manager, MODEL, arena_bytes=ARENA).close()  # the manager is free


def test_whoever_closes_finds_manager_and_tiers_free(tmp_path):
    """Of the threads that close, the one that ended the Offload need not be the first to go on."""
    manager, disk, held = new_cache(), disk_tier(tmp_path), ctypes.PyDLL(None)
    for _ in range(30):
        cache = tiers.Offload(manager, MODEL, arena_bytes=ARENA, tiers=[disk])
        begin, seen = threading.Barrier(8), []

        def close():
            begin.wait()
            cache.close(0)
            seen.append((cache.closed, len(disk.submit("exists", [bytes(72)]))))

        threads = [threading.Thread(target=close) for _ in range(7)]
        for thread in threads:
            thread.start()
        begin.wait()
        held.usleep(12_000)  # with the GIL, for which all of them wait
        for thread in threads:
            thread.join()
        assert seen == [(True, 1)] * 7
        disk.wait(5, all=True)
        tiers.Offload(manager, MODEL, arena_bytes=ARENA).close()
    disk.close()


def interrupt_a_wait(cache, monkeypatch):
    """Ctrl-C may arrive while the records are made, which is code of Python."""
    made = []

    def interrupted(*fields):
        made.append(fields)
        if len(made) == 2:
            raise KeyboardInterrupt
        return fields

    with monkeypatch.context() as patch:
        patch.setattr("kvfolio_tiers._types.SequenceReady", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cache.wait(10)


def test_a_poll_that_is_interrupted_loses_no_ready_sequence(deaf, monkeypatch):
    cache = tiers.Offload(new_cache(), MODEL, arena_bytes=ARENA, tiers=[deaf], timeout=60)
    opened = [cache.open(prompt(seed)).sequence for seed in range(4)]
    cache.reset()  # ends all of them
    interrupt_a_wait(cache, monkeypatch)
    cache.cancel(opened[3])
    assert sorted(ready.sequence for ready in cache.wait(0)) == sorted(opened[:3]) and cache.poll() == []
    cache.close(0)
    deaf.close(0)


@pytest.mark.parametrize("goes_on", ["append", "step", "close", "drain"])
def test_a_poll_after_an_interrupted_one_names_no_sequence_that_has_gone_on(deaf, monkeypatch, goes_on):
    manager = new_cache()
    cache = tiers.Offload(manager, MODEL, arena_bytes=ARENA, tiers=[deaf], timeout=60)
    opened = [cache.open(prompt(seed)).sequence for seed in range(4)]
    cache.reset()
    interrupt_a_wait(cache, monkeypatch)
    with contextlib.ExitStack() as step:
        if goes_on == "append":
            compute(manager, opened[2], prompt(2), 0)
        elif goes_on == "step":
            step.enter_context(manager.step()).append(opened[2], prompt(2))
        elif goes_on == "close":
            manager.close(opened[2])
        else:
            cache.drain()
        left = [] if goes_on == "drain" else [opened[i] for i in (0, 1, 3)]
        assert sorted(ready.sequence for ready in cache.poll()) == left and cache.poll() == []
    cache.close(0)
    deaf.close(0)


def test_an_open_that_is_interrupted_leaves_no_sequence(deaf, monkeypatch):
    def interrupted(*fields):
        raise KeyboardInterrupt

    manager = new_cache()
    cache = tiers.Offload(manager, MODEL, arena_bytes=ARENA, tiers=[deaf], timeout=60)
    with monkeypatch.context() as patch:
        patch.setattr("kvfolio_tiers._types.OffloadOpened", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cache.open(prompt(1))
    assert len(manager.sequences()) == 0 and cache.wait(10) == []
    cache.check_invariants()
    cache.close(0)
    deaf.close(0)


def test_what_does_not_fit_together_is_refused(tmp_path):
    manager = new_cache()
    with disk_tier(tmp_path) as disk:
        with over(manager, disk) as cache:
            for error, text, call in [
                    (kv.FailedPrecondition, "another Offload stands over this manager",
                     lambda: tiers.Offload(manager, MODEL, arena_bytes=ARENA)),
                    (kv.FailedPrecondition, "an Offload uses it",
                     lambda: tiers.Offload(new_cache(), MODEL, arena_bytes=ARENA, tiers=[disk])),
                    (kv.FailedPrecondition, "an Offload uses it", lambda: disk.submit("exists", [bytes(72)])),
                    (kv.FailedPrecondition, "an Offload uses it", disk.poll),
                    (kv.InvalidArgument, "there is no tier 1", lambda: cache.tier_counters(1)),
                    (TypeError, "labels", lambda: cache.metrics({"a": 1})),
            ]:
                with pytest.raises(error, match=text):
                    call()
            assert disk.stats().records == 0 and disk.health().usable  # questions are free
        with pytest.raises(kv.FailedPrecondition, match="this Offload is closed"):
            cache.open(prompt(1))
        assert cache.close() == (False, 0, 0, 0)
        for error, text, call in [
                (kv.FailedPrecondition, "findable",
                 lambda: tiers.Offload(kv.Manager(kv.Storage(groups())), MODEL, arena_bytes=ARENA)),
                (kv.FailedPrecondition, "storage",
                 lambda: tiers.Offload(kv.Manager(groups(), list_findable=True), MODEL, arena_bytes=ARENA)),
                (kv.InvalidArgument, "arena|budget", lambda: tiers.Offload(manager, MODEL, arena_bytes=10)),
                (kv.FailedPrecondition, "an Offload uses it",
                 lambda: tiers.Offload(manager, MODEL, arena_bytes=ARENA, tiers=[disk, disk])),
                (TypeError, r"tiers\[0\]", lambda: tiers.Offload(manager, MODEL, arena_bytes=ARENA, tiers=[7])),
                (kv.InvalidArgument, "policy is 'often'",
                 lambda: tiers.Offload(manager, MODEL, arena_bytes=ARENA, tiers=[tiers.OffloadTier(disk, "often")])),
                (TypeError, "manager: .*wanted: a kvfolio.Manager",
                 lambda: tiers.Offload(7, MODEL, arena_bytes=ARENA)),
                (TypeError, "model: .*wanted: a ModelIdentity", lambda: tiers.Offload(manager, "m", arena_bytes=ARENA)),
                (kv.InvalidArgument, "timeout is -1",
                 lambda: tiers.Offload(manager, MODEL, arena_bytes=ARENA, timeout=-1)),
        ]:
            with pytest.raises(error, match=text):
                call()
        with over(manager, disk) as cache:  # all of them are free
            assert serve(cache, manager, prompt(1))[0] == 0
        disk.submit("store", [bytes(72)], [b"abc"])
        with pytest.raises(kv.FailedPrecondition, match="1 items in flight"):
            tiers.Offload(manager, MODEL, arena_bytes=ARENA, tiers=[disk])


def fields_of_c(struct):
    """The names of the numbers in a struct of C, as its header says them."""
    headers = pathlib.Path(__file__).parents[2] / "include/kvfolio"
    for name in ("kvfolio.h", "kvfolio_tiers.h"):
        text = re.sub(r"\w+ reserved; *// 0\n", "", (headers / name).read_text())
        text = re.sub(r"//.*", "", text)
        found = re.search(r"typedef struct %s \{(.*?)\}" % struct, text, re.DOTALL)
        if found:
            names = re.findall(r"(\w+)(?:\[\d+\])?;", found[1])
            return [name for name in names if name != "struct_size"]
    raise AssertionError(f"no header has {struct}")


@pytest.mark.parametrize(("struct", "names"), [
    ("kvfolio_offload_counters", tiers.OffloadCounters._fields),
    ("kvfolio_offload_tier_counters", tiers.OffloadTierCounters._fields),
    ("kvfolio_offload_left", tiers.OffloadLeft._fields),
    ("kvfolio_arena_stats", tiers.ArenaStats._fields),
    ("kvfolio_disk_stats", tiers.DiskStats._fields),
    ("kvfolio_redis_tier_counters", tiers.RedisCounters._fields),
    ("kvfolio_tier_health", ["unusable", *tiers.TierHealth._fields[1:]]),  # `usable` in Python
    ("kvfolio_counters", new_cache().counters.to_dict()),
    ("kvfolio_group_usage", new_cache().usage().to_dict()),
])
def test_python_has_the_numbers_of_c_under_the_same_names(struct, names):
    assert list(names) == fields_of_c(struct)


def test_a_manager_of_another_build_is_refused_before_it_is_touched():
    class Bridge(ctypes.Structure):
        _fields_ = [("version", ctypes.c_char_p), ("interface_id", ctypes.c_char_p), ("other", ctypes.c_void_p)]

    bridge = Bridge(b"0.0.9", b"0123-abi9", None)
    name = ctypes.create_string_buffer(b"kvfolio.Manager")
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

    class Stranger:
        def _bridge(self):
            return make(ctypes.addressof(bridge), ctypes.addressof(name) and name, None)

    with pytest.raises(kv.FailedPrecondition, match=f"0.0.9 .*0123-abi9.*{kv.__version__}"):
        tiers.Offload(Stranger(), MODEL, arena_bytes=ARENA)


def test_a_tier_that_is_closed_under_an_offload_costs_misses(tmp_path):
    manager = new_cache()
    disk = disk_tier(tmp_path)
    with over(manager, disk) as cache:
        serve(cache, manager, prompt(1))
        cache.drain(1)
        disk.close()
        assert disk.closed
        assert serve(cache, manager, prompt(2))[0] == 0
    with disk_tier(tmp_path) as disk:  # the Offload that ended has let go of the directory
        assert disk.stats().records == 5


@pytest.mark.parametrize("order", list(itertools.permutations("mdo")), ids="".join)
def test_manager_tier_and_offload_end_in_any_order(tmp_path, order):
    held = {"m": new_cache(), "d": disk_tier(tmp_path)}
    held["o"] = tiers.Offload(held["m"], MODEL, arena_bytes=ARENA, tiers=[held["d"]])
    serve(held["o"], held["m"], prompt(1))
    held["o"].open(prompt(2))
    for name in order:
        del held[name]
        gc.collect()
        if "o" in held:
            held["o"].poll()
    with disk_tier(tmp_path):  # its lock is free
        pass


def test_a_program_may_end_with_everything_open(tmp_path):
    code = ("import sys; sys.path.insert(0, sys.argv[2])\n"
            "from tier_cache import *\n"
            "m = new_cache(); d = tiers.DiskTier(sys.argv[1], bytes=8 << 20, segment_bytes=1 << 20)\n"
            "o = tiers.Offload(m, MODEL, arena_bytes=1 << 20, tiers=[d])\n"
            "serve(o, m, prompt(1)); o.open(prompt(2)); o.poll(); print('end')\n")
    folder = tmp_path / "disk"
    ran = subprocess.run([sys.executable, "-c", code, str(folder), str(__file__).rpartition("/")[0]],
                         capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0 and ran.stdout == "end\n", ran.stdout + ran.stderr


def test_polls_of_other_threads_take_no_answer_of_an_offload(tmp_path):
    """They ask for their turn before the Offload gets the tier, and have it later."""
    interval, stop = sys.getswitchinterval(), threading.Event()
    sys.setswitchinterval(1e-5)

    def body(disk):
        while not stop.is_set():
            with contextlib.suppress(kv.FailedPrecondition):
                assert disk.poll() == []

    with disk_tier(tmp_path) as disk:
        threads = [threading.Thread(target=body, args=(disk,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            for round_ in range(40):
                manager = new_cache()
                cache = tiers.Offload(manager, MODEL, arena_bytes=ARENA, tiers=[disk], timeout=5.0)
                opened = cache.open(prompt(round_))
                assert [each.why for each in cache.wait(10)] == ["nothing"]
                compute(manager, opened.sequence, prompt(round_), 0)
                assert not cache.close(5), round_
        finally:
            stop.set()
            sys.setswitchinterval(interval)
            for thread in threads:
                thread.join(60)


def test_threads_serve_poll_and_ask_in_200_rounds(tmp_path):
    manager = new_cache(num_blocks=128, order="unordered", max_steps_in_flight=8)
    turn, failures, stop = threading.Lock(), [], threading.Event()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    with disk_tier(tmp_path) as disk, over(manager, disk) as cache:
        ready, arrived = {}, threading.Condition()

        def guarded(body, *args):
            try:
                body(*args)
            except BaseException as error:  # noqa: BLE001
                failures.append(error)

        def move():
            while not stop.is_set():
                for each in cache.wait(0.001):
                    with arrived:
                        ready[each.sequence] = each.cached_tokens
                        arrived.notify_all()

        def work(thread):
            for round_ in range(200):
                tokens = prompt(round_ % 7, 14 + thread)
                opened = cache.open(tokens)
                found = opened.cached_tokens
                if opened.pending:
                    with arrived:
                        assert arrived.wait_for(lambda: opened.sequence in ready, 30)
                        found = ready.pop(opened.sequence)
                with turn:
                    check_rows(manager, opened.sequence, tokens, found)
                    compute(manager, opened.sequence, tokens, found)
                manager.close(opened.sequence)
                assert cache.counters().arena_corrupt == 0 and disk.health().usable

        mover = threading.Thread(target=guarded, args=(move,))
        workers = [threading.Thread(target=guarded, args=(work, i)) for i in range(2)]
        for thread in (mover, *workers):
            thread.start()
        for thread in workers:
            thread.join(120)
            assert not thread.is_alive()
        stop.set()
        mover.join(30)
        assert not mover.is_alive()
        cache.check_invariants()
    sys.setswitchinterval(interval)
    assert not failures, failures
    manager.check_invariants()


def test_a_manager_without_a_list_is_told_of_the_option():
    with pytest.raises(kv.FailedPrecondition, match="becomes findable; set its option list_findable"):
        tiers.Offload(kv.Manager(kv.Storage(groups())), MODEL, arena_bytes=ARENA)
