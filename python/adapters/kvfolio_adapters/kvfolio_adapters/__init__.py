# SPDX-License-Identifier: Apache-2.0
"""What the adapters for vLLM, LMCache and SGLang share: options, names, and the thread that owns a tier.

Nothing here is for programs: kvfolio.tiers is. An engine's configuration becomes a tier (Options), the engine's
hashes become keys (Options.names), and its batches become jobs that end exactly once (Owner).
"""

from __future__ import annotations

import collections
import contextlib
import json
import logging
import math
import os
import pathlib
import select
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

import kvfolio as kv
from kvfolio import tiers

if TYPE_CHECKING:
    from kvfolio_tiers._types import Op

__version__ = "0.1.0"
__all__ = ["Job", "Options", "Owner", "check_version"]

Medium = Union[tiers.DiskTier, tiers.RedisTier]
logger = logging.getLogger(__name__)

# How a field that only the user knows is asked for.
_MEANINGS = {
    "directory": "a folder of a local disk, or give 'servers' for Redis",
    "bytes": "how much of the disk may be used",
    "models": "an object: for each model that is served, by its name, a digest or revision of its weights",
    "weights": "a digest or revision of the weights, adapters included, and of what changes what they compute",
    "model_dtype": "the type that the model computes with, such as bfloat16",
    "kv_dtype": "the element type of keys and values, such as bfloat16 or fp8_e4m3",
    "hash": "the algorithm of the engine's block hashes",
    "model": "its name, since the engine has none",
    "engine": "what computes keys and values, with its version",
    "layout": "what orders the bytes of a block: the attention backend, NHD or HND",
}


def check_version(package: str, wanted: str, found: object) -> None:
    """ImportError unless `found` is `wanted` or a patch of it: the adapter knows that version's calls."""
    text = str(found)
    if text != wanted and not text.startswith((wanted + ".", wanted + "+")):
        raise ImportError(f"kvfolio_{package} {__version__} is for {package} {wanted}, and {package} {text} is installed: "
                          f"install the kvfolio-{package} that names this version")


class Options:
    """The user's options, taken one by one; what is missing is refused by its name, and so is what is left over."""

    def __init__(self, adapter: str, given: Mapping[str, Any]) -> None:
        self.adapter = adapter
        self._given = dict(given)

    def refusal(self, field: str, why: str) -> ValueError:
        return ValueError(f"{self.adapter}: the option '{field}' {why}")

    def required(self, field: str) -> str:
        """A text that is not empty."""
        value = self._given.pop(field, None)
        if not isinstance(value, str) or not value.strip():
            is_it = "is missing" if value is None or value == "" else f"is {value!r}, wanted: a text"
            raise self.refusal(field, f"{is_it} ({_MEANINGS[field]}): without it blocks of another model could be found")
        return value

    def text(self, field: str, default: str = "") -> str:
        value = self._given.pop(field, default)
        if not isinstance(value, str):
            raise self.refusal(field, f"is {value!r}, wanted: a text")
        return value

    def number(self, field: str, default: float, least: float = 0) -> float:
        value = self._given.pop(field, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < least:
            raise self.refusal(field, f"is {value!r}, wanted: a number of at least {least:g}")
        return value

    def count(self, field: str, default: int, least: int = 0) -> int:
        return int(self.number(field, default, least))

    def texts(self, field: str) -> dict[str, str]:
        """An object of names and texts, neither empty."""
        value = self._given.pop(field, None)
        if not isinstance(value, Mapping) or not value:
            raise self.refusal(field, f"is missing ({_MEANINGS[field]})" if not value else f"is {value!r}, wanted: "
                               f"{_MEANINGS[field]}")
        for name, text in value.items():
            if not name or not isinstance(text, str) or not text.strip():
                raise self.refusal(field, f"has {text!r} for {name!r}, wanted: a text")
        return dict(value)

    def _secret(self, field: str) -> str:
        """The first line of a file: engines write their options into logs, so none is a secret itself."""
        path = self.text(field)
        if not path:
            return ""
        secret = pathlib.Path(path).read_text(encoding="utf-8").split("\n", maxsplit=1)[0].strip()
        if not secret:  # as of a volume that is not mounted: records would be neither sealed nor refused
            raise self.refusal(field, f"names {path}, whose first line is empty")
        return secret

    def tier(self, subfolder: str = "") -> Medium:
        """The tier, and nothing may be left after it."""
        servers = self.text("servers")
        secret = self._secret("record_key_file")
        try:
            seal = bytes.fromhex(secret) if secret else None
        except ValueError:
            raise self.refusal("record_key_file", "names a file without 64 hexadecimal digits") from None
        if servers:
            user, password = self.text("user"), self._secret("password_file")
            prefix, ttl = self.text("key_prefix", "kvfolio:"), self.number("ttl", 0)
            tls = self._given.pop("tls", None)
            self.end()
            return tiers.RedisTier(servers, user=user, password=password, key_prefix=prefix, ttl=float(ttl), key=seal,
                                   tls=None if tls is None else tiers.RedisTls(**tls))
        directory = pathlib.Path(self.required("directory"), subfolder)
        if "bytes" not in self._given:
            raise self.refusal("bytes", f"is missing ({_MEANINGS['bytes']})")
        size, segment = self.count("bytes", 0, 1), self.count("segment_bytes", 0)
        self.end()
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return tiers.DiskTier(directory, bytes=size, segment_bytes=segment, key=seal)

    def rest(self) -> dict[str, Any]:
        """What was not taken yet."""
        return dict(self._given)

    def end(self) -> None:
        """Refuses options that the adapter does not have: a mistake in the configuration."""
        for field in self._given:
            raise self.refusal(field, "is not known here")

    @staticmethod
    def layout(fields: Mapping[str, Any]) -> str:
        """All that decides the bytes of a block as one text, in which no two fields can run into each other."""
        return json.dumps(fields, sort_keys=True, separators=(",", ":"), default=str)


def _size(buffer: Any) -> int:
    """Its bytes, or 0: what is no memory the tier refuses."""
    try:
        return memoryview(buffer).nbytes
    except (TypeError, ValueError, BufferError):
        return 0


class Job:
    """A batch. `results` has one for each key, in order, once it has ended: those of Done, or "refused"."""

    def __init__(self, op: Op, keys: Sequence[bytes | None], buffers: Sequence[Any] | None, timeout: float,
                 done: Callable[[Job], None]) -> None:
        self.op, self.keys, self.buffers, self.done = op, keys, buffers, done
        self.sizes = [_size(buffer) for buffer in buffers or ()] if op == "store" else []
        self.results: list[str] = ["refused"] * len(keys)
        self.begun = time.monotonic()
        self.seconds = 0.0
        self.deadline = self.begun + timeout
        # Places of the keys that go to the tier; those before `next` it has.
        self.order = [at for at, key in enumerate(keys) if key is not None]
        self.left, self.next = len(self.order), 0

    @property
    def ok(self) -> bool:
        return all(result == "ok" for result in self.results)


class Owner:
    """The thread that alone submits to a tier and polls it.

    Any thread may begin a job; that never waits. Each job ends exactly once, on this thread, at the latest a moment
    after its deadline. Loads go before stores, and of stores at most STORE_BYTES are in flight. The child of a fork has
    no such thread: all is closed there.
    """

    STORE_BYTES = 64 << 20
    TICK = 0.02  # seconds: a deadline does not make a descriptor readable
    ERASE_TIMEOUT = 5.0

    def __init__(self, tier: Medium, name: str) -> None:
        self.tier = tier
        #: How many keys ended how: "store ok", "load corrupt".
        self.counters: collections.Counter[str] = collections.Counter()
        self._name = name
        self._process = os.getpid()
        self._closes = threading.RLock()  # who closes; others wait for the end of it
        self._closed = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._changed = threading.Condition()
        self._new: list[Job] = []
        self._open = 0  # jobs that have not ended
        self._closing = self._abort = False
        # Only the thread uses these: what waits, the most urgent first, and what the tier has.
        self._waiting: dict[Op, collections.deque[Job]] = {"erase": collections.deque(), "exists": collections.deque(),
                                                           "load": collections.deque(), "store": collections.deque()}
        self._flying: dict[int, tuple[Job, int]] = {}
        self._store_bytes = 0
        self._said = -math.inf
        self._poller = select.poll()
        self._poller.register(self._wake, select.POLLIN)
        self._poller.register(tier.event_fd(), select.POLLIN)
        self._thread = threading.Thread(target=self._run, name=f"kvfolio {name}", daemon=True)
        self._thread.start()

    def begin(self, op: Op, keys: Sequence[bytes | None], buffers: Sequence[Any] | None, timeout: float,
              done: Callable[[Job], None]) -> None:
        """done(job) at its end. A key that is None, and a batch of unequal lengths, end as "refused"."""
        if op in ("load", "store") and len(buffers or ()) != len(keys):
            self._warn(f"a {op} of {len(keys)} keys has {len(buffers or ())} buffers")
            keys = [None] * len(keys)
        job = Job(op, keys, buffers, timeout, done)
        if os.getpid() != self._process:  # where a lock may be held for ever
            job.results = ["closed"] * len(keys)
            done(job)
            return
        with self._changed:
            self._open += 1
            if not self._closing:
                self._new.append(job)
                self._wake_up()
                return
        job.results = ["closed"] * len(keys)
        self._finish(job)

    def run(self, op: Op, keys: Sequence[bytes | None], buffers: Sequence[Any] | None, timeout: float) -> list[str]:
        """begin(), and waits for its end, even if it is interrupted: until then the tier has the buffers."""
        jobs: list[Job] = []
        ended = threading.Event()

        def done(job: Job) -> None:
            jobs.append(job)
            ended.set()

        self.begin(op, keys, buffers, timeout, done)
        try:
            ended.wait()
        except BaseException:
            ended.wait()
            raise
        return jobs[0].results

    def drain(self, timeout: float | None = None) -> bool:
        """Waits until every job has ended: the last deadline says how long that takes at most."""
        if os.getpid() != self._process:
            return True
        with self._changed:
            return self._changed.wait_for(lambda: self._open == 0, timeout)

    def close(self, timeout: float = 10.0) -> None:
        """Takes no more jobs, gives those there are `timeout` seconds, and closes the tier. All of them end.

        When it returns, on whichever thread, nothing touches a buffer any more. After an interrupt: call it again. A
        signal handler may call it while it waits on the same thread.
        """
        if os.getpid() != self._process:
            return
        with self._closes:
            if self._closed:
                return
            with self._changed:
                self._closing = True
            until = time.monotonic() + timeout
            self.drain(timeout)
            if self._closed:  # by a signal handler meanwhile, and the descriptor may be another's by now
                return
            with self._changed:
                self._abort = True
                self._wake_up()
            while not self._closed:
                try:
                    self.tier.close(max(0.1, until - time.monotonic()))
                    break
                except kv.TimedOut:  # the medium still touches the engine's memory, which it must not have back yet
                    logger.error("%s: the tier does not end: %s", self._name, self.tier.describe())
            self._thread.join()
            if self._closed:
                return
            self._closed = True
            os.close(self._wake)

    def _wake_up(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self._wake, 1)

    # ---- the thread ----

    def _run(self) -> None:
        while True:
            try:
                busy = self._step()
            except Exception:  # what the tier has must be seen to its end
                logger.exception("%s: a step of the owner", self._name)
                busy = True
            if self._abort:
                if not busy and self.tier.closed:
                    return
                time.sleep(self.TICK / 4)  # the tier's descriptor may be gone
                continue
            self._poller.poll(self.TICK * 1000 if busy else None)
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)

    def _step(self) -> bool:
        """Whether something is left to do."""
        with self._changed:
            new, self._new = self._new, []
        for job in new:
            if job.left:
                self._waiting[job.op].append(job)
            else:
                self._finish(job)
        for op, jobs in self._waiting.items():
            self._feed(op, jobs)
        for done in self.tier.poll():
            job, at = self._flying.pop(done.ticket)
            if job.op == "store":
                self._store_bytes -= job.sizes[at]
            job.results[at] = done.result
            self._ended(job, 1)
        return bool(self._flying) or any(self._waiting.values()) or bool(self._new)

    def _feed(self, op: Op, jobs: collections.deque[Job]) -> None:
        """Gives the tier what it takes of one kind."""
        while jobs:
            job = jobs[0]
            left = job.deadline - time.monotonic()
            if self._abort or left <= 0:
                self._drop(jobs.popleft(), "closed" if self._abort else "timeout")
                continue
            places = self._next_places(job)
            if not places:
                return
            buffers = None if job.buffers is None else [job.buffers[at] for at in places]
            try:
                tickets = self.tier.submit(op, [job.keys[at] or b"" for at in places], buffers, timeout=left)
            except Exception as error:  # whatever it is, it would be the same in the next step
                self._warn(f"a {op} is refused: {error}")
                self._drop(jobs.popleft(), "closed" if self.tier.closed else "refused")
                continue
            for ticket, at in zip(tickets, places):
                self._flying[ticket] = job, at
                if op == "store":
                    self._store_bytes += job.sizes[at]
            job.next += len(tickets)
            if job.next == len(job.order):
                jobs.popleft()
            elif not self._flying:
                self._drop(jobs.popleft(), "unavailable")  # it has nothing to do and takes nothing
            elif len(tickets) < len(places):
                return  # the tier is full

    def _next_places(self, job: Job) -> list[int]:
        """What of it may go now."""
        places = job.order[job.next:]
        if job.op != "store":
            return places
        count, size = 0, self._store_bytes
        while count < len(places) and (size == 0 or size < self.STORE_BYTES):
            size += job.sizes[places[count]]
            count += 1
        return places[:count]

    def _drop(self, job: Job, result: str) -> None:
        """What the tier was not given of it ends so."""
        rest = job.order[job.next:]
        job.next = len(job.order)
        for at in rest:
            job.results[at] = result
        self._ended(job, len(rest))

    def _ended(self, job: Job, count: int) -> None:
        job.left -= count
        if job.left == 0:
            self._finish(job)

    def _finish(self, job: Job) -> None:
        job.seconds = time.monotonic() - job.begun
        job.buffers = None
        failed: collections.Counter[str] = collections.Counter()
        with self._changed:
            for result in job.results:
                self.counters[f"{job.op} {result}"] += 1
                if result not in ("ok", "miss"):
                    failed[result] += 1
        if failed:
            self._warn(f"{job.op}: " + ", ".join(f"{count} {result}" for result, count in failed.items()))
        if job.op == "load" and failed["corrupt"]:
            # Redis keeps what did not verify, and would take no other value under its name.
            bad = [key for key, result in zip(job.keys, job.results) if result == "corrupt"]
            self.begin("erase", bad, None, self.ERASE_TIMEOUT, lambda _: None)
        try:
            job.done(job)
        except Exception:  # an adapter's mistake must not stop the others
            logger.exception("%s: at the end of a job", self._name)
        with self._changed:
            self._open -= 1
            self._changed.notify_all()

    def _warn(self, text: str) -> None:
        """Now and then: a medium that is gone must not fill the disk with its obituary."""
        now = time.monotonic()
        if now - self._said >= 10:
            self._said = now
            where = ""
            with contextlib.suppress(kv.Error):  # closed
                where = self.tier.describe()
            logger.warning("%s: %s. So far: %s. %s", self._name, text, dict(self.counters), where)
