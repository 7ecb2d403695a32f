# SPDX-License-Identifier: Apache-2.0
"""The owner of a tier, over one that does what a test says."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import kvfolio as kv
import pytest
from kvfolio import tiers
from kvfolio_adapters import Owner


class Tier:
    """Takes at most `room` items at a time, and ends them when it is told to."""

    def __init__(self, room):
        self.room, self.tickets, self.given, self.ended = room, 0, [], []
        self.lock, self.closed, self.fd = threading.Lock(), False, os.eventfd(0, os.EFD_NONBLOCK)

    def submit(self, op, keys, buffers, *, timeout):
        with self.lock:
            assert timeout > 0
            taken = min(len(keys), self.room - len(self.given))
            first, self.tickets = self.tickets, self.tickets + taken
            self.given += [(first + i, op, keys[i]) for i in range(taken)]
            return range(first, first + taken)

    def end(self, result="ok", count=10**6):
        with self.lock:
            over, self.given = self.given[:count], self.given[count:]
            self.ended += [tiers.Done(ticket, result) for ticket, *_ in over]
        os.eventfd_write(self.fd, 1)

    def poll(self):
        with self.lock:
            ended, self.ended = self.ended, []
        return ended

    def event_fd(self):
        return self.fd

    def describe(self):
        return "a tier of a test"

    def close(self, timeout):
        self.end("closed")
        self.closed = True


def until(ask):
    for _ in range(1000):
        if ask():
            return
        time.sleep(0.005)
    raise AssertionError("it did not come to that")


@pytest.fixture
def tier():
    return Tier(room=4)


@pytest.fixture
def owner(tier):
    made = Owner(tier, "test")
    yield made
    made.close(0)


def keys(count):
    return [b"%072d" % i for i in range(count)]


def test_what_a_full_tier_never_takes_ends_at_its_deadline(tier, owner):
    ended = []
    owner.begin("load", keys(6), [bytearray(1)] * 6, 0.2, ended.append)
    until(lambda: len(tier.given) == 4)
    begin = time.monotonic()
    assert owner.run("load", keys(2), [bytearray(1)] * 2, 0.2) == ["timeout"] * 2
    assert time.monotonic() - begin < 60 and not ended  # the tier still has four of the first
    tier.end("timeout")
    until(lambda: ended)
    assert ended[0].results == ["timeout"] * 6 and owner.counters["load timeout"] == 8


def test_what_waits_goes_when_there_is_room_loads_first(tier, owner):
    ended = []
    for op in ("store", "store", "load"):
        owner.begin(op, keys(4), [bytearray(1)] * 4, 60, ended.append)
        until(lambda: len(tier.given) == 4)  # the first is there before the others come
    for _ in range(3):
        until(lambda: len(tier.given) == 4)
        tier.end()
    until(lambda: len(ended) == 3)
    assert [job.op for job in ended] == ["store", "load", "store"] and all(job.ok for job in ended)
    assert owner.drain(5)


def test_stores_in_flight_have_a_limit_in_bytes():
    tier = Tier(room=100)
    owner = Owner(tier, "test")
    buffers = [bytearray(1)] * 10
    owner.STORE_BYTES = 3
    ended = []
    owner.begin("store", keys(10), buffers, 60, ended.append)
    for wanted in (3, 3, 3, 1):
        until(lambda wanted=wanted: len(tier.given) == wanted)
        time.sleep(0.05)
        assert len(tier.given) == wanted
        tier.end()
    until(lambda: ended)
    assert ended[0].ok
    owner.STORE_BYTES = 0  # one that is larger than all of it still goes, alone
    owner.begin("store", keys(2), buffers[:2], 60, ended.append)
    for _ in range(2):
        until(lambda: len(tier.given) == 1)
        tier.end()
    until(lambda: len(ended) == 2)
    owner.close()


def test_a_tier_that_takes_nothing_and_has_nothing_is_not_waited_for():
    owner = Owner(Tier(room=0), "test")
    assert owner.run("store", keys(2), [bytearray(1)] * 2, 60) == ["unavailable"] * 2
    owner.close()


def test_a_record_that_does_not_verify_is_erased_before_the_job_has_ended(tier, owner):
    ended = []
    owner.begin("load", keys(2), [bytearray(1)] * 2, 60, ended.append)
    until(lambda: len(tier.given) == 2)
    tier.end("corrupt", 1)
    tier.end("ok")
    until(lambda: ended)
    assert ended[0].results == ["corrupt", "ok"]
    until(lambda: [(op, key) for _, op, key in tier.given] == [("erase", keys(1)[0])])
    assert not owner.drain(0.05)
    tier.end()
    assert owner.drain(5)


def test_an_adapters_mistake_at_the_end_of_a_job_stops_no_other(tier, owner):
    owner.begin("exists", keys(1), None, 60, lambda job: 1 / 0)
    until(lambda: tier.given)
    tier.end()
    ended = []
    owner.begin("exists", keys(1), None, 60, ended.append)
    until(lambda: tier.given)
    tier.end("miss")
    until(lambda: ended)
    assert ended[0].results == ["miss"] and owner.drain(5)


def test_closing_ends_what_waits_and_what_is_in_flight(tier):
    owner = Owner(tier, "test")
    ended = []
    for _ in range(3):
        owner.begin("store", keys(3), [bytearray(1)] * 3, 60, ended.append)
    until(lambda: len(tier.given) == 4)
    owner.close(0.1)
    assert [job.results for job in ended] == [["closed"] * 3] * 3
    assert owner.run("exists", keys(1), None, 1) == ["closed"]


@pytest.mark.parametrize("buffer", [None, 7, memoryview(b"x")], ids=["none", "number", "released"])
def test_a_buffer_that_is_none_fails_its_job_and_stops_no_other(disk, buffer):
    if isinstance(buffer, memoryview):
        buffer.release()
    owner = Owner(tiers.DiskTier(disk.folder, bytes=16 << 20, segment_bytes=8 << 20), "test")
    for op in ("store", "load"):
        assert owner.run(op, keys(2), [bytearray(5), buffer], 5) == ["refused"] * 2
    assert owner.run("store", keys(1), [b"abc"], 5) == ["ok"]
    owner.close()


@pytest.mark.parametrize("error", [MemoryError, RuntimeError])
def test_what_a_tier_raises_fails_the_job_and_no_other(tier, owner, monkeypatch, error):
    def submit(*args, **options):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(tier, "submit", submit)
        assert owner.run("load", keys(2), [bytearray(1)] * 2, 60) == ["refused"] * 2
    ended = []
    owner.begin("load", keys(1), [bytearray(1)], 60, ended.append)
    until(lambda: tier.given)
    tier.end()
    until(lambda: ended)
    assert ended[0].ok


class Slow(Tier):
    """Closing it takes a while, and says at first that it is not over."""

    def __init__(self):
        super().__init__(room=4)
        self.calls, self.over = 0, threading.Event()

    def close(self, timeout):
        self.calls += 1
        if not self.over.wait(0.05):
            raise kv.TimedOut("busy")
        super().close(timeout)


def test_every_thread_that_closes_waits_for_the_end():
    """The engine unmaps its memory then. And the descriptor is closed once: its number may be another's by now."""
    tier = Slow()
    owner = Owner(tier, "test")
    owner.begin("store", keys(1), [bytearray(1)], 60, lambda _: None)
    seen, failures = [], []

    def close():
        try:
            owner.close(0)
            seen.append(tier.closed)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=close) for _ in range(4)]
    for thread in threads:
        thread.start()
    until(lambda: tier.calls > 2)
    assert not seen
    tier.over.set()
    for thread in threads:
        thread.join(30)
    assert seen == [True] * 4 and not failures


def test_a_close_that_was_interrupted_can_be_called_again(monkeypatch):
    tier = Slow()
    owner = Owner(tier, "test")

    def interrupted(timeout):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tier, "close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            owner.close(0)
    assert not tier.closed and not owner._closed
    tier.over.set()
    owner.close(0)
    assert tier.closed and not owner._thread.is_alive()


@contextlib.contextmanager
def handled(handler):
    """SIGUSR1 is handled so, and what hangs fails after half a minute."""

    def late(*_):
        raise AssertionError("it hangs")

    before = [(number, signal.signal(number, handle)) for number, handle in
              ((signal.SIGUSR1, lambda *_: handler()), (signal.SIGALRM, late))]
    signal.alarm(30)
    try:
        yield
    finally:
        signal.alarm(0)
        for number, handle in before:
            signal.signal(number, handle)


def interrupt_main():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)


def test_a_signal_handler_that_closes_during_the_wait_of_a_close_closes_the_descriptor_once(tier):
    """The second time its number may be another's."""
    owner = Owner(tier, "test")
    wake, others = owner._wake, []
    owner.begin("store", keys(1), [bytearray(1)], 60, lambda _: None)
    until(lambda: tier.given)

    def handler():
        owner.close(0)
        others.append(os.eventfd(0, os.EFD_NONBLOCK))

    with handled(handler):
        timer = threading.Timer(0.2, interrupt_main)
        timer.start()
        owner.close(20)
        timer.join()
    assert others == [wake] and tier.closed  # the number is taken again, and it is open and was not written to
    with pytest.raises(BlockingIOError):
        os.eventfd_read(wake)
    os.close(wake)


def test_a_signal_handler_that_closes_at_the_end_of_a_close_closes_the_descriptor_once(tier, monkeypatch):
    owner = Owner(tier, "test")
    wake, others, signals, join = owner._wake, [], [interrupt_main], owner._thread.join

    def handler():
        owner.close(0)
        others.append(os.eventfd(0, os.EFD_NONBLOCK))

    with handled(handler), monkeypatch.context() as patch:
        patch.setattr(owner._thread, "join", lambda: (join(), signals and signals.pop()()))
        owner.close(0)
    assert others == [wake]
    with pytest.raises(BlockingIOError):
        os.eventfd_read(wake)
    os.close(wake)


def test_ctrl_c_in_a_wait_arrives_when_the_tier_has_let_go_of_the_memory(tier, owner):
    """Else the caller could use it for something else while a load still fills it."""
    ended = []

    def end():
        until(lambda: tier.given)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(0.2)
        ended.append(len(tier.given))
        tier.end()

    thread = threading.Thread(target=end)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        owner.run("load", keys(1), [bytearray(1)], 60)
    assert ended == [1] and not tier.given
    thread.join()


def test_a_child_of_fork_is_answered_at_once_and_touches_nothing(disk):
    """It has no owner's thread, and another thread may have had a lock."""
    owner = Owner(tiers.DiskTier(disk.folder, bytes=16 << 20, segment_bytes=8 << 20), "test")
    assert owner.run("store", keys(1), [b"abc"], 5) == ["ok"]
    with owner._changed:
        child = os.fork()
        if child == 0:
            said = owner.run("load", keys(1), [bytearray(3)], 60)
            owner.begin("exists", keys(1), None, 60, lambda job: said.extend(job.results))
            fine = owner.drain() and said == ["closed"] * 2
            owner.close()
            os._exit(7 if fine else 1)
    begin = time.monotonic()
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() - begin > 60:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    assert os.waitstatus_to_exitcode(ended[1]) == 7
    back = bytearray(3)
    assert owner.run("load", keys(1), [back], 5) == ["ok"] and back == b"abc"
    owner.close()


def test_a_program_that_never_closes_ends_with_its_own_code(disk):
    code = ("import sys; sys.path[:0] = sys.argv[1:3]\n"
            "from kvfolio import tiers\n"
            "from kvfolio_adapters import Owner\n"
            "owner = Owner(tiers.DiskTier(sys.argv[3], bytes=64 << 20, segment_bytes=8 << 20), 'test')\n"
            "for n in range(200): owner.begin('store', [n.to_bytes(8, 'big') * 9], [bytes(100000)], 60, lambda job: None)\n"
            "sys.exit(3)\n")
    here = pathlib.Path(__file__).parent
    for _ in range(3):
        ran = subprocess.run([sys.executable, "-c", code, here, here.parent / "kvfolio_adapters", disk.folder],
                             capture_output=True, text=True, timeout=60)
        assert (ran.returncode, ran.stdout, ran.stderr) == (3, "", "")
