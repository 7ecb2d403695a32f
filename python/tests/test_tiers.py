# SPDX-License-Identifier: Apache-2.0
"""A tier alone: bytes under keys, on a disk and in Redis; what is refused; threads, signals, lifetimes."""

import array
import asyncio
import gc
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import kvfolio as kv
from kvfolio import tiers
from tier_cache import MODEL, Server, new_cache, redis_program

KEY = bytes(range(32))


def key(number):
    return number.to_bytes(8, "big") * 9


def disk_tier(folder, **options):
    return tiers.DiskTier(folder / "disk", **{"bytes": 8 << 20, "segment_bytes": 1 << 20, **options})


@pytest.fixture(params=["disk", "redis"])
def open_tier(request, tmp_path):
    """Opens a tier over one medium as often as it is called."""
    if request.param == "disk":
        yield lambda **options: disk_tier(tmp_path, **options)
        return
    if redis_program() is None:
        pytest.skip("no redis-server here: scripts/redis-here brings one")
    server = Server(tmp_path)

    def connect(**options):
        tier = tiers.RedisTier(server.address, **options)
        tier.wait_until_ready(5)
        return tier

    yield connect
    server.stop()


def results(tier, op, keys, buffers=None, timeout=10.0):
    """What each of these ends with, in order."""
    tickets = tier.submit(op, keys, buffers, timeout=timeout)
    assert len(tickets) == len(keys)
    ended = {done.ticket: done.result for done in tier.wait(timeout + 5, all=True)}
    return [ended[ticket] for ticket in tickets]


def test_what_was_stored_comes_back_or_is_a_miss(open_tier):
    data = [bytes([i]) * (100 + 4096 * i) for i in range(5)]
    keys = [key(i) for i in range(5)]
    with open_tier() as tier:
        assert results(tier, "exists", keys) == ["miss"] * 5
        assert results(tier, "store", keys, data) == ["ok"] * 5
        assert results(tier, "store", keys, [b"other"] * 5) == ["ok"] * 5  # the first bytes stay
        buffers = [bytearray(len(each)) for each in data]
        assert results(tier, "load", keys, buffers) == ["ok"] * 5
        assert [bytes(each) for each in buffers] == data
        assert results(tier, "load", [key(9)], [bytearray(4)]) == ["miss"]
        assert results(tier, "load", keys[:1], [bytearray(99)]) == ["corrupt"]  # of another size
        assert results(tier, "erase", keys[3:]) == ["ok"] * 2
        assert results(tier, "exists", keys[1:]) == ["ok", "ok", "miss", "miss"]
        assert tier.health().usable and tier.health().loads_ok == 5
        assert not tier.closed
    assert tier.closed


def test_every_kind_of_memory_is_taken_where_it_lies(open_tier):
    rows = np.arange(6 * 4096, dtype=np.uint8).reshape(6, 4096)
    floats = np.linspace(0, 1, 60, dtype=np.float32).reshape(3, 4, 5)
    given = [*rows, floats, array.array("i", range(9)), memoryview(bytes(70))[6:], bytearray(b"abc")]
    keys = [key(i) for i in range(len(given))]
    with open_tier() as tier:
        assert results(tier, "store", keys, given) == ["ok"] * len(given)
        back = np.zeros_like(rows)
        other = [np.zeros_like(floats), array.array("i", [0] * 9), memoryview(bytearray(64)), bytearray(3)]
        assert results(tier, "load", keys, [*back, *other]) == ["ok"] * len(given)
    assert (back == rows).all() and (other[0] == floats).all()
    assert [bytes(each) for each in other[1:]] == [bytes(each) for each in given[7:]]


@pytest.mark.parametrize(("error", "text", "call"), [
    (kv.InvalidArgument, "op is 'steal'", lambda t: t.submit("steal", [key(1)])),
    (kv.InvalidArgument, r"keys\[1\] has 32 bytes, wanted: 72", lambda t: t.submit("exists", [key(1), bytes(32)])),
    (TypeError, r"keys\[0\]", lambda t: t.submit("exists", ["k" * 72])),
    (TypeError, "keys: bytes", lambda t: t.submit("exists", key(1))),
    (TypeError, "buffers", lambda t: t.submit("load", [key(1)])),
    (kv.InvalidArgument, "2 buffers for 1 keys", lambda t: t.submit("store", [key(1)], [b"a", b"b"])),
    (kv.InvalidArgument, "buffers are for", lambda t: t.submit("erase", [key(1)], [b"a"])),
    (TypeError, r"buffers\[0\]: the array is read-only", lambda t: t.submit("load", [key(1)], [b"abc"])),
    (TypeError, r"buffers\[0\]", lambda t: t.submit("store", [key(1)], ["text"])),
    (kv.InvalidArgument, r"buffers\[0\].*with gaps",
     lambda t: t.submit("store", [key(1)], [np.zeros((4, 4))[:, :2]])),
    (kv.InvalidArgument, r"buffers\[0\].*with gaps", lambda t: t.submit("store", [key(1)], [np.zeros(8)[::-1]])),
    (kv.InvalidArgument, r"buffers\[0\] is empty", lambda t: t.submit("store", [key(1)], [b""])),
    (kv.InvalidArgument, r"buffers\[0\] has 536870912 bytes, the .* takes at most",
     lambda t: t.submit("store", [key(1)], [np.zeros(1 << 29, np.uint8)])),
    (kv.InvalidArgument, "timeout is -1", lambda t: t.submit("exists", [key(1)], timeout=-1)),
    (kv.InvalidArgument, "timeout is", lambda t: t.wait(float("nan"))),
    (TypeError, "timeout is no float", lambda t: t.wait("soon")),
])
def test_what_is_wrong_is_refused_and_nothing_begins(open_tier, error, text, call):
    with open_tier() as tier:
        with pytest.raises(error, match=text):
            call(tier)
        assert tier.poll() == [] and tier.wait() == []


def test_a_tier_of_other_options_is_refused_by_their_names(tmp_path):
    for error, text, options in [
            (kv.InvalidArgument, "bytes", {"bytes": 5}),
            (kv.InvalidArgument, "engine is 'tape'", {"engine": "tape"}),
            (kv.InvalidArgument, "key", {"key": b"short"}),
            (TypeError, "key is no bytes", {"key": "k" * 32}),
            (kv.InvalidArgument, "queue_depth", {"queue_depth": 2**40}),
    ]:
        with pytest.raises(error, match=text):
            disk_tier(tmp_path, **options)
    with pytest.raises(kv.InvalidArgument, match="a:b:c"):
        tiers.RedisTier("a:b:c")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "diary").write_text("mine")
    with pytest.raises(kv.FailedPrecondition):
        tiers.DiskTier(tmp_path / "full", bytes=8 << 20)
    with pytest.raises(kv.NotFound):
        tiers.check_disk(tmp_path)


def test_a_closed_tier_refuses_work_and_gives_out_what_had_ended(tmp_path):
    tier = disk_tier(tmp_path)
    tickets = tier.submit("store", [key(1)], [b"abc"])
    tier.close()
    tier.close()
    assert tier.event_fd() == -1
    assert [done.ticket for done in tier.poll()] == list(tickets)
    for call in (lambda: tier.submit("exists", [key(1)]), tier.stats, tier.describe, tier.health):
        with pytest.raises(kv.FailedPrecondition, match="the disk tier is closed"):
            call()
    assert tier.poll() == [] and tier.wait() == []


def test_a_directory_has_one_writer_until_that_closes(tmp_path):
    first = disk_tier(tmp_path)
    code = ("import sys; from kvfolio import tiers\n"
            "try: tiers.DiskTier(sys.argv[1], bytes=8 << 20)\n"
            "except Exception as error: print(type(error).__name__, error)")
    ran = subprocess.run([sys.executable, "-c", code, str(tmp_path / "disk")], capture_output=True, text=True,
                         timeout=60)
    assert ran.stdout.startswith("FailedPrecondition"), ran.stdout + ran.stderr
    first.close()
    disk_tier(tmp_path).close()


def test_a_process_that_is_killed_leaves_what_it_stored(tmp_path):
    code = ("import os, signal, sys; from kvfolio import tiers\n"
            "t = tiers.DiskTier(sys.argv[1], bytes=8 << 20, segment_bytes=1 << 20)\n"
            "t.submit('store', [bytes([i]) * 72 for i in range(20)], [bytes([i]) * 5000 for i in range(20)])\n"
            "assert {d.result for d in t.wait(30, all=True)} == {'ok'}\n"
            "os.kill(os.getpid(), signal.SIGKILL)")
    ran = subprocess.run([sys.executable, "-c", code, str(tmp_path / "disk")], timeout=60, check=False)
    assert ran.returncode == -signal.SIGKILL
    with disk_tier(tmp_path) as tier:
        assert tier.stats().recovered == 20
        buffers = [bytearray(5000) for _ in range(20)]
        assert results(tier, "load", [bytes([i]) * 72 for i in range(20)], buffers) == ["ok"] * 20
        assert [bytes(each) for each in buffers] == [bytes([i]) * 5000 for i in range(20)]


def test_of_32_records_with_a_flipped_byte_none_is_handed_over(tmp_path):
    rng = np.random.default_rng(1)
    data = rng.integers(0, 256, (32, 8192), np.uint8)
    keys = [key(i) for i in range(32)]
    with disk_tier(tmp_path) as tier:
        assert results(tier, "store", keys, data) == ["ok"] * 32
    for path in (tmp_path / "disk").glob("segment-*"):
        content = bytearray(path.read_bytes())
        for record in data:
            at = content.find(record.tobytes())
            if at >= 0:
                content[at + int(rng.integers(8192))] ^= 1 << int(rng.integers(8))
        path.write_bytes(content)
    found = tiers.check_disk(tmp_path / "disk")
    assert found.damaged == 32 and found.records == 0 and "segment" in found.faults[0].file
    with disk_tier(tmp_path) as tier:
        assert results(tier, "load", keys, np.zeros_like(data)) == ["corrupt"] * 32
        assert results(tier, "load", keys, np.zeros_like(data)) == ["miss"] * 32  # not found again
        assert tier.stats().corrupt == 32


def test_a_record_of_another_key_is_never_believed_and_stays_for_its_owner(open_tier):
    with open_tier(key=KEY) as tier:
        assert results(tier, "store", [key(1)], [b"mine"]) == ["ok"]
    buffer = bytearray(4)
    with open_tier(key=KEY[::-1], accepted_key=KEY) as tier:
        assert results(tier, "load", [key(1)], [buffer]) == ["ok"] and buffer == b"mine"
    for options in ({"key": KEY[::-1]}, {}):
        with open_tier(**options) as tier:
            assert results(tier, "load", [key(1)], [buffer]) == ["miss"]
            assert results(tier, "store", [key(1)], [b"ours"]) == ["ok"]  # as what is there already
            assert tier.health().of_another_key == 1 and tier.health().failures == 0
    with open_tier(key=KEY) as tier:
        assert results(tier, "load", [key(1)], [buffer]) == ["ok"] and buffer == b"mine"


def test_buffers_are_kept_until_their_ticket_has_ended(open_tier):
    class Buffer(np.ndarray):
        """Weakly referable."""

    with open_tier() as tier:
        buffer = np.full(4096, 7, np.uint8).view(Buffer)
        alive = weakref.ref(buffer)
        tier.submit("store", [key(1)], [buffer])
        del buffer
        gc.collect()
        assert alive() is not None
        assert [done.result for done in tier.wait(10)] == ["ok"]
        assert alive() is None
        kept = np.zeros(4096, np.uint8)
        before = sys.getrefcount(kept)
        for _ in range(200):
            assert results(tier, "load", [key(1)], [kept]) == ["ok"]
        assert sys.getrefcount(kept) == before and (kept == 7).all()


class Meddler:
    """An array that does something else first when it is asked for its memory, once."""

    def __init__(self, data, act):
        self.data, self.act = data, act

    def __dlpack_device__(self):
        return self.data.__dlpack_device__()

    def __dlpack__(self, **options):
        act, self.act = self.act, None
        if act is not None:
            act()
        return self.data.__dlpack__(**options)


def test_a_buffer_that_submits_meanwhile_shares_no_ticket(open_tier):
    data = np.random.default_rng(2).integers(0, 256, (4, 5000), np.uint8)
    with open_tier() as tier:
        tickets = []
        meddler = Meddler(data[1], lambda: tickets.extend(tier.submit("store", [key(2), key(3)], data[2:])))
        tickets.extend(tier.submit("store", [key(0), key(1)], [data[0], meddler]))
        assert len(set(tickets)) == len(tickets) == 4
        assert sorted(done.ticket for done in tier.wait(10, all=True)) == sorted(tickets)
        back = np.zeros_like(data)
        assert results(tier, "load", [key(i) for i in range(4)], back) == ["ok"] * 4
        assert (back == data).all()


def test_a_buffer_that_closes_or_lends_the_tier_is_not_submitted(tmp_path):
    manager, held = new_cache(), []
    tier = disk_tier(tmp_path)

    def lend():
        held.append(tiers.Offload(manager, MODEL, arena_bytes=1 << 20, tiers=[tier]))

    for act, text in ((lend, "an Offload uses it"), (tier.close, "closed")):
        meddler = Meddler(np.zeros(100, np.uint8), act)
        with pytest.raises(kv.FailedPrecondition, match=text):
            tier.submit("store", [key(1)], [meddler])
        while held:
            assert not held.pop().close()
    with disk_tier(tmp_path) as tier:
        assert results(tier, "exists", [key(1)]) == ["miss"]


def test_memory_of_a_ticket_is_exported_until_it_has_ended(deaf):
    buffer = bytearray(b"abc")
    deaf.submit("store", [key(1)], [buffer], timeout=60)
    with pytest.raises(BufferError):
        buffer.append(1)
    deaf.close(0)
    buffer.append(1)


def test_a_poll_that_is_interrupted_loses_no_answer(tmp_path, monkeypatch):
    """Ctrl-C may arrive while the records of an answer are made, which is code of Python."""
    made = []

    def interrupted(*fields):
        made.append(fields)
        if len(made) == 2:
            raise KeyboardInterrupt
        return fields

    with disk_tier(tmp_path) as tier:
        tickets = tier.submit("exists", [key(i) for i in range(5)])
        with monkeypatch.context() as patch:
            patch.setattr("kvfolio_tiers._types.Done", interrupted)
            with pytest.raises(KeyboardInterrupt):
                tier.wait(10, all=True)
        assert sorted(tier.poll()) == [(ticket, "miss") for ticket in tickets]


@pytest.mark.parametrize("call", ["tier.wait()", "offload.wait()", "offload.poll()", "manager.check_invariants()",
                                  "tier.health()", "offload.reset()", "refused(manager)"])
def test_a_program_ends_while_daemon_threads_are_inside(call):
    """They want the GIL back when there is no interpreter any more."""
    code = (
        "import socket, sys, threading, time; sys.path.insert(0, sys.argv[1])\n"
        "from tier_cache import *\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "alone, tier = (tiers.RedisTier('127.0.0.1:%d' % server.getsockname()[1], connect_timeout=60,\n"
        "                               stall_timeout=60) for _ in range(2))\n"
        "manager = new_cache()\n"
        "offload = tiers.Offload(manager, MODEL, arena_bytes=1 << 20, tiers=[alone], timeout=60)\n"
        "assert offload.open(prompt(1)).pending and tier.submit('exists', [bytes(72)], timeout=60)\n"
        "def refused(manager):\n"
        "    try: manager.info(12345)\n"
        "    except kv.NotFound: pass\n"
        "def loop():\n"
        f"    while True: {call}; manager.sequences()\n"
        "for _ in range(3): threading.Thread(target=loop, daemon=True).start()\n"
        "time.sleep(0.1)\n"
        "print('end', flush=True)\n")
    ran = subprocess.run([sys.executable, "-c", code, str(pathlib.Path(__file__).parent)], capture_output=True,
                         text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, "end\n"), ran.stdout + ran.stderr


def test_a_tier_that_nobody_holds_ends_before_its_buffers(tmp_path):
    for _ in range(20):
        tier = disk_tier(tmp_path)
        tier.submit("store", [key(1)], [np.zeros(100000, np.uint8)])
        tier.submit("load", [key(1)], [np.zeros(100000, np.uint8)])
        del tier
        gc.collect()
    disk_tier(tmp_path).close()


def test_asyncio_waits_for_the_descriptor(open_tier):
    async def main(tier):
        loop, waiting = asyncio.get_running_loop(), {}

        def on_ready():
            for done in tier.poll():
                waiting.pop(done.ticket).set_result(done.result)

        async def run(op, number, buffer):
            (ticket,) = tier.submit(op, [key(number)], [buffer], timeout=10)
            waiting[ticket] = loop.create_future()
            return await asyncio.wait_for(waiting[ticket], 15)

        loop.add_reader(tier.event_fd(), on_ready)
        try:
            stored = await asyncio.gather(*(run("store", i, bytes([i]) * 9000) for i in range(20)))
            buffers = [bytearray(9000) for _ in range(20)]
            loaded = await asyncio.gather(*(run("load", i, buffers[i]) for i in range(20)))
        finally:
            loop.remove_reader(tier.event_fd())
        return stored, loaded, buffers

    with open_tier() as tier:
        stored, loaded, buffers = asyncio.run(main(tier))
    assert stored == loaded == ["ok"] * 20
    assert all(buffer == bytes([i]) * 9000 for i, buffer in enumerate(buffers))


def test_two_threads_share_a_tier_in_200_rounds(open_tier):
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    ended, lock = {}, threading.Lock()
    failures = []
    with open_tier() as tier:
        def body(thread):
            try:
                for number in range(200):
                    name, data = key(thread * 1000 + number), bytes([thread, number % 256]) * 500
                    mine = {tier.submit("store", [name], [data], timeout=30)[0]: "store"}
                    buffer = None
                    while mine:
                        for done in tier.wait(0.05):
                            with lock:
                                ended[done.ticket] = done.result
                        with lock:
                            over = [ticket for ticket in mine if ticket in ended]
                        for ticket in over:
                            assert ended[ticket] == "ok", ended[ticket]
                            if mine.pop(ticket) == "store":
                                buffer = bytearray(1000)
                                mine[tier.submit("load", [name], [buffer], timeout=30)[0]] = "load"
                    assert buffer == data
            except BaseException as error:  # noqa: BLE001
                failures.append(error)

        threads = [threading.Thread(target=body, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
    sys.setswitchinterval(interval)
    assert not failures, failures
    assert len(ended) == 800


def test_closing_while_threads_submit_answers_every_ticket(open_tier):
    tier = open_tier()
    accepted, ended, begun = [], [], threading.Event()

    def body():
        try:
            for number in range(10**6):
                accepted.extend(tier.submit("store", [key(number)], [bytes(2000)]))
                ended.extend(tier.poll())
                begun.set()
        except kv.FailedPrecondition as error:
            assert "closed" in str(error)

    thread = threading.Thread(target=body)
    thread.start()
    assert begun.wait(30)
    tier.close(5)
    thread.join(60)
    assert not thread.is_alive()
    ended.extend(tier.poll())
    assert sorted(accepted) == sorted(done.ticket for done in ended)


@pytest.fixture
def deaf():
    """A tier of Redis whose server takes connections and never says a word."""
    server = socket.create_server(("127.0.0.1", 0))
    yield tiers.RedisTier(f"127.0.0.1:{server.getsockname()[1]}", connect_timeout=600, stall_timeout=600)
    server.close()


def test_a_server_that_says_nothing_costs_the_timeout_and_no_more(deaf):
    tickets = deaf.submit("load", [key(1), key(2)], [bytearray(9), bytearray(9)], timeout=0.2)
    begin = time.monotonic()
    ended = deaf.wait(300, all=True)
    assert {done.ticket for done in ended} == set(tickets)
    assert {done.result for done in ended} <= {"timeout", "unavailable"}
    assert time.monotonic() - begin < 60
    with pytest.raises(kv.TimedOut):
        deaf.wait_until_ready(0.1)
    deaf.close(0.1)


def test_a_wait_gives_up_the_gil_and_ends_at_its_time(deaf):
    deaf.submit("exists", [key(1)], timeout=60)
    counted, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            counted[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    assert deaf.wait(0.3) == []
    seen = counted[0]
    stop.set()
    thread.join()
    assert seen > 1000
    deaf.close(0)
    assert [done.result for done in deaf.poll()] == ["closed"]


def test_ctrl_c_ends_a_wait_and_leaves_the_tier_usable(deaf):
    deaf.submit("exists", [key(1)], timeout=60)
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        deaf.wait(60)
    assert deaf.poll() == []
    deaf.close(0)
    assert [done.result for done in deaf.poll()] == ["closed"]


def test_a_server_that_dies_costs_misses_and_nothing_waits(tmp_path):
    if redis_program() is None:
        pytest.skip("no redis-server here: scripts/redis-here brings one")
    server = Server(tmp_path)
    with tiers.RedisTier(server.address) as tier:
        tier.wait_until_ready(5)
        assert results(tier, "store", [key(1)], [b"abc"]) == ["ok"]
        assert tier.nodes()[0].connected and server.address in tier.describe()
        server.stop()
        begin = time.monotonic()
        for op, buffers in (("load", [bytearray(3)]), ("store", [b"xyz"]), ("exists", None)):
            tickets = tier.submit(op, [key(2)], buffers, timeout=0.3)
            assert all(done.result in ("timeout", "unavailable", "io_error") for done in tier.wait(300, all=True))
            assert len(tickets) <= 1
        assert time.monotonic() - begin < 60
        assert tier.counters().connections_lost > 0


def test_a_damaged_value_in_redis_is_not_handed_over(tmp_path):
    if redis_program() is None:
        pytest.skip("no redis-server here: scripts/redis-here brings one")
    server = Server(tmp_path)
    with tiers.RedisTier(server.address, key_prefix="t:") as tier:
        tier.wait_until_ready(5)
        keys = [key(i) for i in range(32)]
        assert results(tier, "store", keys, [bytes([i]) * 3000 for i in range(32)]) == ["ok"] * 32
        for i, name in enumerate(keys):
            assert server.ask("SETRANGE", "t:" + name.hex(), 192 + 90 * i, b"\xff") == "3192"
        assert "ok" not in results(tier, "load", keys, [bytearray(3000) for _ in keys])
    server.stop()


def test_names_of_other_models_seeds_salts_and_groups_never_meet():
    fields = {"engine": "vllm 0.33", "model": "m", "weights": "w", "model_dtype": "bf16", "hash": "sha256_cbor",
              "hash_seed": "none", "layout": "bf16 HND"}
    names = tiers.ForeignIdentity(**fields, num_groups=2)
    keys = {names.key(b"h"), names.key(b"i"), names.key(b"h", salt=b"a"), names.key(b"h", group=1)}
    for field in fields:
        keys.add(tiers.ForeignIdentity(**{**fields, field: "other"}, num_groups=2).key(b"h"))
    assert len(keys) == 4 + len(fields) and {len(each) for each in keys} == {72}
    assert names.key(b"h") == tiers.ForeignIdentity(**fields, num_groups=2).key(b"h")
    for field in fields:
        with pytest.raises(kv.InvalidArgument, match=field):
            tiers.ForeignIdentity(**{**fields, field: ""})
    with pytest.raises(kv.InvalidArgument, match="group is 2, allowed: 0 to 1"):
        names.key(b"h", group=2)


def test_without_the_package_kvfolio_tiers_says_what_to_install():
    code = ("import sys; sys.modules['kvfolio_tiers'] = None\n"
            "import kvfolio\nimport kvfolio.tiers")
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1
    assert f"pip install kvfolio-tiers=={kv.__version__}" in ran.stderr.splitlines()[-1]


def test_a_base_of_another_build_is_refused_with_both_versions():
    code = ("import kvfolio; kvfolio._core._interface_id = lambda: 'ffff-abi1'\n"
            "import kvfolio.tiers")
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1
    last = ran.stderr.splitlines()[-1]
    assert last.startswith("ImportError") and "ffff-abi1" in last and kv._core._interface_id() in last


def test_the_wheel_of_tiers_is_for_the_version_of_the_base():
    text = (pathlib.Path(__file__).parents[1] / "tiers" / "pyproject.toml").read_text()
    assert f'"kvfolio=={kv.__version__}"' in text and tiers.__all__ == sorted(tiers.__all__)


def test_bytes_are_an_int_or_text_with_a_unit_wherever_they_are_wanted(tmp_path):
    spec = [kv.GroupSpec(head_dim=64, num_blocks=0)]
    assert kv.fit(spec, "1 MiB") == kv.fit(spec, 1 << 20) != kv.fit(spec, "1MB")
    manager = new_cache(max_root_key_bytes="64KiB")
    tiers.RedisTier("127.0.0.1:1", record_bytes_max="1MiB", bytes_in_flight_max="2MiB", bytes_per_poll="64KiB").close()
    with disk_tier(tmp_path, bytes="8MiB", segment_bytes="1MiB", queued_bytes_max="1MB", scrub_bytes_per_s="0") as disk, \
            tiers.Offload(manager, MODEL, arena_bytes="1MiB", tiers=[disk], bytes_per_poll=np.int64(1 << 20)) as cache:
        assert "8 MiB in segments of 1 MiB" in disk.describe() and cache.arena().bytes == 1 << 20


@pytest.mark.parametrize("error, bytes, says", [
    (kv.InvalidArgument, "8 apples", "segment_bytes is '8 apples', allowed: a number of bytes, or one with KB"),
    (kv.InvalidArgument, "9" * 400, "segment_bytes is '9999"),  # no float has it
    (TypeError, 1.5, "segment_bytes is 1.5: an int of bytes, or words such as"),
    (TypeError, True, "segment_bytes is True: an int of bytes"),
    (TypeError, [1], "segment_bytes is of type list: an int of bytes"),
    (TypeError, np.zeros(3), "segment_bytes is of type ndarray: an int of bytes"),
    (kv.InvalidArgument, "99999999999TiB", "segment_bytes"),
])
def test_what_is_no_number_of_bytes_is_refused_by_the_name_of_the_argument(error, bytes, says, tmp_path):
    with pytest.raises(error, match=says):
        disk_tier(tmp_path, segment_bytes=bytes)


def test_a_repr_says_where_a_tier_is_or_that_it_is_closed(tmp_path):
    redis = tiers.RedisTier("127.0.0.1:1,127.0.0.1:2")
    assert repr(redis) == "<kvfolio.tiers.RedisTier: 2 servers, 0 connected>"
    folder = bytes(tmp_path) + b"/\xff"
    with tiers.DiskTier(folder, bytes="8MiB") as disk:
        assert repr(disk).startswith(f"<kvfolio.tiers.DiskTier: disk {tmp_path}/\\xff: 8 MiB in segments of ")
        with tiers.Offload(new_cache(), MODEL, arena_bytes="1MiB", tiers=[disk]) as cache:
            assert repr(cache) == "<kvfolio.tiers.Offload over 1 tier>" and "8 MiB" in repr(disk)
    assert (repr(disk), repr(cache)) == ("<kvfolio.tiers.DiskTier, closed>", "<kvfolio.tiers.Offload, closed>")
