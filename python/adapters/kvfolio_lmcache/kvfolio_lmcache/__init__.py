# SPDX-License-Identifier: Apache-2.0
"""A native_plugin client of LMCache 0.5.6 over kvfolio's disk or Redis: what is handed back has the bytes that were stored.

README.md has the line of configuration.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import re
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import lmcache
from kvfolio import tiers
from kvfolio_adapters import Job, Options, Owner, check_version

if TYPE_CHECKING:
    from kvfolio_tiers._types import Op

check_version("lmcache", "0.5.6", lmcache.__version__)

__version__ = "0.1.0"
__all__ = ["Client"]

logger = logging.getLogger(__name__)

# model@rank@group@hash, and @salt if there is one: none of the texts has an @.
_KEY = re.compile(r"([^@]+)@([0-9a-f]{8})@([0-9a-f]{1,4})@((?:[0-9a-f]{2}){16,64})(?:@([^@]+))?")


class Client:
    """LMCache submits from its controllers' threads, under a lock, and drains on one of its own."""

    def __init__(self, **adapter_params: Any) -> None:
        options = Options("kvfolio_lmcache", adapter_params)
        self._models = options.texts("models")
        self._fields = {
            "engine": f"lmcache {lmcache.__version__}, {options.required('engine')}",
            "model_dtype": options.required("model_dtype"), "hash": options.required("hash"),
            "hash_seed": os.environ.get("PYTHONHASHSEED", "none")}
        if self._fields["hash"] == "builtin":
            raise options.refusal("hash", "is builtin, which differs from process to process: start LMCache with blake3")
        self._layout = {"kv_dtype": options.required("kv_dtype"), "layout": options.required("layout"),
                        "salt": options.text("salt")}
        self._timeouts = {"load": options.number("load_timeout", 10), "store": options.number("store_timeout", 30)}
        self._names: dict[tuple[str, str, str], tiers.ForeignIdentity] = {}
        self._lock = threading.Lock()
        self._ids = 0
        self._ended: collections.deque[tuple[int, bool, str, list[bool] | None]] = collections.deque()
        self._owner = Owner(options.tier(), "kvfolio_lmcache")
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        logger.info("kvfolio_lmcache: %s, models %s", self._owner.tier.describe(), sorted(self._models))

    @property
    def counters(self) -> dict[str, int]:
        """How many keys ended how, by operation and result."""
        return dict(self._owner.counters)

    def event_fd(self) -> int:
        return self._event

    def submit_batch_set(self, keys: Sequence[str], memoryviews: Sequence[Any]) -> int:
        return self._submit("store", keys, memoryviews)

    def submit_batch_get(self, keys: Sequence[str], memoryviews: Sequence[Any]) -> int:
        return self._submit("load", keys, memoryviews)

    def submit_batch_exists(self, keys: Sequence[str]) -> int:
        return self._submit("exists", keys, None)

    def submit_batch_delete(self, keys: Sequence[str]) -> int:
        return self._submit("erase", keys, None)

    def drain_completions(self) -> list[tuple[int, bool, str, list[bool] | None]]:
        """What has ended since, each once: its number, whether all of it is well, what is not, and each key."""
        with self._lock, contextlib.suppress(BlockingIOError):
            if self._event >= 0:
                os.eventfd_read(self._event)
        ended = []
        while self._ended:
            ended.append(self._ended.popleft())
        return ended

    def close(self) -> None:
        self._owner.close()
        with self._lock:
            event, self._event = self._event, -1
        if event >= 0:
            os.close(event)

    def _submit(self, op: Op, keys: Sequence[str], views: Sequence[Any] | None) -> int:
        with self._lock:
            self._ids += 1
            number = self._ids
        # LMCache holds its objects until they have ended, and the job holds the views.
        self._owner.begin(op, [self._name(key) for key in keys], None if views is None else list(views),
                          self._timeouts.get(op, self._timeouts["load"]), lambda job: self._end(number, job))
        return number

    def _name(self, key: str) -> bytes | None:
        """The key of the tier; None, which ends as "refused", for a model that has no weights here."""
        match = _KEY.fullmatch(key)
        if match is None or match[1] not in self._models:
            return None
        model, rank, group, digest, salt = match.groups()
        names = self._names.get((model, rank, group))
        if names is None:
            layout = Options.layout({**self._layout, "kv_rank": rank, "object_group": group})
            names = self._names[model, rank, group] = tiers.ForeignIdentity(
                model=model, weights=self._models[model], layout=layout, **self._fields)
        return names.key(bytes.fromhex(digest), salt=(salt or "").encode())

    def _end(self, number: int, job: Job) -> None:
        """On the owner's thread."""
        good = [result == "ok" for result in job.results]
        failed = collections.Counter(result for result in job.results if result != "ok")
        # A key that is not there is an answer; an erase of it, too.
        ok = not set(failed) - ({"miss"} if job.op in ("exists", "erase") else set())
        error = ", ".join(f"{count} of {len(good)} {result}" for result, count in failed.items())
        self._ended.append((number, ok or job.op == "exists", "" if ok else error,
                            None if job.op == "store" else good))
        with self._lock:
            if self._event >= 0:
                os.eventfd_write(self._event, 1)
