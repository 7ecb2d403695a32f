# SPDX-License-Identifier: Apache-2.0
"""Many rounds: what two threads leave behind, what Ctrl-C leaves behind in the middle of them, and a loop of asyncio that
only a descriptor wakes."""

import asyncio
import faulthandler
import gc
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
import weakref

import numpy as np
import pytest

import kvfolio as kv
from kvfolio import tiers
from tier_cache import MODEL, Server, check_rows, compute, new_cache, prompt, redis_program, serve

ROUNDS = 200
ARENA = 1 << 20


def key(number):
    return number.to_bytes(8, "big") * 9


class Buffer(np.ndarray):
    """Counts those that live."""

    alive = 0

    @classmethod
    def of(cls, size, value):
        made = np.full(size, value, np.uint8).view(cls)
        cls.alive += 1
        weakref.finalize(made, cls._gone)
        return made

    @classmethod
    def _gone(cls):
        cls.alive -= 1


def resident():
    """Bytes of the process that are in memory."""
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def open_files():
    return len(os.listdir("/proc/self/fd"))


def in_two_threads(body, seconds=500):
    """body(thread, round) in 200 rounds of each of two threads. A deadlock of the GIL ends the program with a trace."""
    failures, interval = [], sys.getswitchinterval()

    def rounds(thread):
        try:
            for round_ in range(ROUNDS):
                body(thread, round_)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    sys.setswitchinterval(1e-5)
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        threads = [threading.Thread(target=rounds, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        faulthandler.cancel_dump_traceback_later()
        sys.setswitchinterval(interval)
    assert not failures, failures


def measured(rounds):
    """What the second of two runs has left behind: bytes of Python, bytes of the process, descriptors."""
    rounds()  # what is made once
    gc.collect()
    before, files = resident(), open_files()
    tracemalloc.start()
    try:
        begin = tracemalloc.get_traced_memory()[0]
        rounds()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - begin, resident() - before, open_files() - files
    finally:
        tracemalloc.stop()


@pytest.fixture(params=["disk", "redis"])
def tier(request, tmp_path):
    if request.param == "disk":
        with tiers.DiskTier(tmp_path / "disk", bytes=64 << 20, segment_bytes=8 << 20) as made:
            yield made
        return
    if redis_program() is None:
        pytest.skip("no redis-server here: scripts/redis-here brings one")
    server = Server(tmp_path)
    with tiers.RedisTier(server.address) as made:
        made.wait_until_ready(5)
        yield made
    server.stop()


def test_two_threads_leave_no_buffer_of_a_tier_behind(tier):
    """However a ticket ends, and where nothing was begun: each round holds half a megabyte."""
    size = 1 << 17
    name, shared, both = key(0), Buffer.of(size, 9), threading.Lock()
    begun, ended = set(), {}

    def until(tickets):
        while True:
            for done in tier.wait(0.01):
                with both:
                    ended[done.ticket] = done.result
            with both:
                if all(ticket in ended for ticket in tickets):
                    return [ended.pop(ticket) for ticket in tickets]

    def body(thread, round_):
        mine = key(1 + thread)
        tickets = tier.submit("store", [mine, name], [Buffer.of(size, round_ % 256), shared], timeout=30)
        begun.update(tickets)
        until(tickets)
        tickets = tier.submit("load", [mine, key(9)], [Buffer.of(size, 0), Buffer.of(size, 0)], timeout=30)
        assert until(tickets)[1:] in ([], ["miss"])
        until(tier.submit("load", [name], [Buffer.of(size, 0)], timeout=0))  # too late at once
        until(tier.submit("erase", [mine], timeout=30))
        with pytest.raises(kv.InvalidArgument):
            tier.submit("store", [mine, b"short"], [Buffer.of(size, 1)] * 2)
        with pytest.raises(TypeError):
            tier.submit("load", [mine, mine], [Buffer.of(size, 1), b"read-only"])

    before = sys.getrefcount(name), sys.getrefcount(shared)
    python, process, files = measured(lambda: in_two_threads(body))
    assert tier.wait(5, all=True) == []
    begun.clear()
    gc.collect()
    assert Buffer.alive == 1 and (sys.getrefcount(name), sys.getrefcount(shared)) == before
    # 400 rounds had 200 MB.
    assert python < 1 << 20 and process < 32 << 20 and files <= 0, (python, process, files)


def test_two_threads_leave_nothing_of_managers_and_offloads_behind(tmp_path):
    """Each round has a manager, a disk and an Offload of its own, which it lets go of in another order, some with work."""
    kept = [key(1), np.zeros(5000, np.uint8)]
    before, loaded = [sys.getrefcount(each) for each in kept], []

    def body(thread, round_):
        folder = tmp_path / f"disk{thread}"
        manager = new_cache()
        disk = tiers.DiskTier(folder, bytes=8 << 20, segment_bytes=1 << 20)
        disk.submit("store", kept[:1], kept[1:], timeout=5)
        disk.wait(5, all=True)
        cache = tiers.Offload(manager, MODEL, arena_bytes=ARENA, tiers=[disk], timeout=5.0)
        found, _ = serve(cache, manager, prompt(round_ % 5))
        loaded.append(found)  # serve() has compared the bytes
        if round_ % 3 == 0:
            cache.open(prompt(round_ % 5 + 10))
        ends = [lambda: cache.close(5), disk.close, lambda: None]
        for end in ends[round_ % 3:]:
            end()
        del ends
        if round_ % 2:
            del manager
            del cache
        else:
            del cache
            del manager

    def rounds():
        # The records of the run before would be found.
        for thread in range(2):
            for path in (tmp_path / f"disk{thread}").glob("*"):
                path.unlink()
        in_two_threads(body)

    python, process, files = measured(rounds)
    gc.collect()
    assert [sys.getrefcount(each) for each in kept] == before and loaded.count(20) > len(loaded) / 4
    assert python < 1 << 20 and process < 32 << 20 and files <= 0, (python, process, files)


INTERRUPTED = """
import signal, sys, threading
sys.path.insert(0, sys.argv[1])
from test_rounds import *

signal.signal(signal.SIGINT, signal.SIG_IGN)
manager, stop, failures = new_cache(), threading.Event(), []
prompts = [prompt(seed) for seed in range(9)]  # now: the import of numpy.random takes a Ctrl-C for itself
disk = tiers.DiskTier(sys.argv[2] + "/disk", bytes=8 << 20, segment_bytes=1 << 20)
other = tiers.DiskTier(sys.argv[2] + "/other", bytes=8 << 20, segment_bytes=1 << 20)
cache = tiers.Offload(manager, MODEL, arena_bytes=1 << 17, tiers=[disk], timeout=5.0)

def beside():
    number = 0
    while not stop.is_set():
        number += 1
        data, back = bytes([number % 256]) * 5000, bytearray(5000)
        try:
            other.submit("store", [key(number)], [data], timeout=5)
            other.wait(5, all=True)
            other.submit("load", [key(number)], [back], timeout=5)
            assert [done.result for done in other.wait(5, all=True)] == ["ok"] and back == data
            cache.counters()
        except BaseException as error:
            failures.append(error)
            return

faulthandler.dump_traceback_later(100, exit=True)
thread = threading.Thread(target=beside, daemon=True)  # a failure of this one ends the program
thread.start()
interrupts = rounds = 0
while interrupts < int(sys.argv[3]):
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print("at work", flush=True)
        for rounds in range(rounds, rounds + 10**6):
            tokens = prompts[rounds % 9]
            opened = cache.open(tokens)
            found = opened.cached_tokens
            if opened.pending:
                for ready in cache.wait(5):
                    found = ready.cached_tokens
            check_rows(manager, opened.sequence, tokens, found)
            compute(manager, opened.sequence, tokens, found)
            check_rows(manager, opened.sequence, tokens, len(tokens))
            manager.close(opened.sequence)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        interrupts += 1
        for sequence in manager.sequences():  # whatever it was in the middle of
            manager.close(sequence)
        cache.wait(0)
        cache.check_invariants()
        manager.check_invariants()
        assert not failures, failures
stop.set()
thread.join(30)
assert not thread.is_alive() and not failures, failures
assert manager.counters.sequences_opened > interrupts and not manager.num_sequences
left = cache.close(5)
disk.close()
other.close()
print("closed", left, flush=True)
"""


def test_ctrl_c_in_the_middle_of_rounds_leaves_all_of_it_usable(tmp_path):
    """Signals of another process, at any moment: in open, wait, a step, a kernel, a close; beside a thread at work."""
    count = 30
    child = subprocess.Popen([sys.executable, "-c", INTERRUPTED, str(pathlib.Path(__file__).parent), str(tmp_path),
                              str(count)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        rng = np.random.default_rng(3)
        for number in range(count):
            assert child.stdout.readline() == "at work\n", (number, child.stderr.read())
            time.sleep(float(rng.uniform(0.001, 0.05)))
            child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 0 and out.startswith("closed "), out + err


def test_a_loop_of_asyncio_is_woken_by_the_descriptor(tmp_path):
    """A decode loop in which nothing polls for a prompt until the tier has woken it; then, while it pends, a timer."""
    manager = new_cache()
    with tiers.DiskTier(tmp_path / "disk", bytes=8 << 20, segment_bytes=1 << 20) as disk, \
            tiers.Offload(manager, MODEL, arena_bytes=ARENA, tiers=[disk]) as cache:
        for seed in range(0, 6, 2):
            serve(cache, manager, prompt(seed))
    manager = new_cache(num_blocks=64)
    woken = []

    async def main(cache):
        loop, waiting = asyncio.get_running_loop(), {}

        def on_ready():
            woken.append(1)
            for ready in cache.poll():
                waiting.pop(ready.sequence).set_result(ready)
            if waiting:  # what lies in host memory does not wake it
                loop.call_later(0.005, on_ready)

        async def request(seed):
            tokens = prompt(seed)
            opened = cache.open(tokens)
            found = opened.cached_tokens
            if opened.pending:
                waiting[opened.sequence] = loop.create_future()
                assert cache.poll() == []  # asks the disk
                found = (await asyncio.wait_for(waiting[opened.sequence], 20)).cached_tokens
            check_rows(manager, opened.sequence, tokens, found)
            compute(manager, opened.sequence, tokens, found)  # all of it on a miss
            for token in range(4):
                tokens = np.append(tokens, np.int32(token))
                compute(manager, opened.sequence, tokens, len(tokens) - 1)
                await asyncio.sleep(0)
            check_rows(manager, opened.sequence, tokens, len(tokens))
            manager.close(opened.sequence)
            return found

        loop.add_reader(cache.event_fd(), on_ready)
        try:
            return [await request(seed) for seed in range(6)]
        finally:
            loop.remove_reader(cache.event_fd())

    with tiers.DiskTier(tmp_path / "disk", bytes=8 << 20, segment_bytes=1 << 20) as disk, \
            tiers.Offload(manager, MODEL, arena_bytes=ARENA, tiers=[disk], timeout=30.0) as cache:
        assert asyncio.run(main(cache)) == [20, 0] * 3 and len(woken) >= 6
