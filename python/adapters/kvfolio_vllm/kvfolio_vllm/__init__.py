# SPDX-License-Identifier: Apache-2.0
"""A secondary tier of vLLM 0.33 over kvfolio's disk or Redis: what is handed back has the bytes that were stored.

README.md has the line of configuration. A load that does not verify is a miss, and stays one for its request.
"""

from __future__ import annotations

import collections
import logging
import os
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import vllm
from kvfolio import tiers
from kvfolio_adapters import Job, Options, Owner, check_version

check_version("vllm", "0.33", vllm.__version__)

from vllm.v1.kv_offload.base import (  # noqa: E402
    Locality,
    LookupResult,
    Medium,
    OffloadingEvent,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob  # noqa: E402

if TYPE_CHECKING:
    from kvfolio_tiers._types import Op
    from vllm.v1.kv_offload.base import OffloadingSpec, OffloadKey
    from vllm.v1.kv_offload.tiering.backpressure import BackpressureDetector

__version__ = "0.1.0"
__all__ = ["KvfolioTier"]

logger = logging.getLogger(__name__)

HASH_BYTES = 32  # of sha256; a shorter hash is none that an adversary cannot meet
STORED_MAX = 1 << 18  # names that are remembered without asking


def _names(config: Any, row_bytes: int, options: Options) -> tiers.ForeignIdentity:
    """All that decides the bytes of a chunk, by what vLLM says and what it does not."""
    algorithm = options.required("hash")
    if algorithm not in ("sha256", "sha256_cbor"):
        raise options.refusal("hash", f"is {algorithm!r}, wanted: sha256 or sha256_cbor, as --prefix-caching-hash-algo")
    parallel = config.parallel
    fields = {
        "kv_dtype": config.model.dtype, "row_bytes": row_bytes, "tokens_per_hash": config.cache.tokens_per_hash,
        "blocks_per_chunk": config.cache.blocks_per_chunk, "worker_bytes": config.worker_kv_bytes_per_block,
        "groups": [[group.group_id, group.tokens_per_block, list(group.layer_names)] for group in config.groups],
        "ranks": [parallel.rank, parallel.world_size, parallel.tp_size, parallel.pp_size, parallel.pcp_size,
                  parallel.dcp_size],
        "replicated": config.replicated_layout, "canonical": config.canonical_layout,
        "kv_cache_layout": config.kv_cache_layout,
        # vLLM may not know: then the user has to.
        "layout": options.text("layout") if config.kv_cache_layout else options.required("layout"),
        "salt": options.text("salt"),
    }
    return tiers.ForeignIdentity(
        engine=f"vllm {vllm.__version__}", model=config.model.name, weights=options.required("weights"),
        model_dtype=options.required("model_dtype"), hash=algorithm,
        hash_seed=os.environ.get("PYTHONHASHSEED", "vllm-none-hash"),  # as kv_cache_utils
        layout=Options.layout(fields), num_groups=_num_groups(config))


def _num_groups(config: Any) -> int:
    """A key has the index of vLLM's own list, of which not all groups need be offloaded."""
    return 1 + max((group.group_id for group in config.groups), default=0)


class KvfolioTier(SecondaryTierManager):
    """Its methods are called under vLLM's lock; the tier itself is the owner's thread's."""

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(self, offloading_spec: OffloadingSpec, primary_kv_view: memoryview, tier_type: str,
                 backpressure_detector: BackpressureDetector | None = None, locality: str | None = None,
                 enable_kv_events: bool = False, **options: Any) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self.locality = None if locality is None else Locality(locality)
        rows = np.asarray(primary_kv_view)
        if rows.ndim != 2 or not rows.flags.writeable or not rows.flags.c_contiguous:
            raise ValueError(f"kvfolio_vllm: the primary tier is {rows.ndim}-D, writable: {rows.flags.writeable}; "
                             "wanted: rows without gaps that can be written")
        self._rows = rows.view(np.uint8)
        self._row_bytes = self._rows.shape[1]
        config, given = offloading_spec.config, Options("kvfolio_vllm", options)
        self._names = _names(config, self._row_bytes, given)
        self._num_groups = _num_groups(config)
        self._load_timeout = given.number("load_timeout", 5)
        self._store_timeout = given.number("store_timeout", 30)
        # Each engine of a data parallel group has a process, and a directory has one writer.
        parallel = config.parallel
        engine = f"dp{parallel.data_parallel_index}" if parallel.data_parallel_size > 1 else ""
        self._owner = Owner(given.tier(engine), "kvfolio_vllm")
        logger.info("kvfolio_vllm: %s. Names: %s", self._owner.tier.describe(), self._names.fields)

        self._ended: collections.deque[tuple[Any, Job]] = collections.deque()  # by the owner: (what for, how)
        self._results: list[JobResult] = []
        events = enable_kv_events and offloading_spec.kv_events_config.enable_kv_cache_events
        self._events: list[OffloadingEvent] | None = [] if events else None
        # What this process stored and has not failed to load since, the oldest first; and what is being stored.
        self._stored: dict[OffloadKey, None] = {}
        self._storing: collections.Counter[OffloadKey] = collections.Counter()
        # Answers for the requests that asked, until these end: None is one that is not there yet.
        self._verdicts: dict[OffloadKey, bool | None] = {}
        self._askers: dict[str, set[OffloadKey]] = {}
        self._asked_by: collections.Counter[OffloadKey] = collections.Counter()
        self._ask: list[OffloadKey] = []

    @property
    def counters(self) -> dict[str, int]:
        """How many chunks ended how, by operation and result."""
        return dict(self._owner.counters)

    def _key(self, key: OffloadKey) -> bytes | None:
        group = int.from_bytes(key[HASH_BYTES:], "big")
        if len(key) != HASH_BYTES + 4 or group >= self._num_groups:
            return None  # ends as "refused"
        return self._names.key(key[:HASH_BYTES], group=group)

    # ---- what there is ----

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        self._absorb()
        if key not in self._verdicts:
            if key in self._stored:
                return LookupResult.HIT
            if key in self._storing:
                return LookupResult.RETRY
            self._verdicts[key] = None
            self._ask.append(key)
        self._link(key, req_context.req_id)
        verdict = self._verdicts[key]
        if verdict is None:
            return LookupResult.RETRY
        return LookupResult.HIT if verdict else LookupResult.MISS

    def _link(self, key: OffloadKey, req_id: str) -> None:
        keys = self._askers.setdefault(req_id, set())
        if key not in keys:
            keys.add(key)
            self._asked_by[key] += 1

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        self._askers.setdefault(req_context.req_id, set())
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        for key in self._askers.pop(req_context.req_id, ()):
            self._asked_by[key] -= 1
            if not self._asked_by[key]:
                del self._asked_by[key]
                self._verdicts.pop(key, None)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        asked = [key for key in self._ask if key in self._verdicts]
        self._ask = []
        if asked:
            self._begin("exists", asked, asked, None, self._load_timeout)

    # ---- transfers ----

    def submit_store(self, job_metadata: TransferJob) -> None:
        self._storing.update(job_metadata.keys)
        self._transfer("store", job_metadata, self._store_timeout)

    def submit_load(self, job_metadata: TransferJob) -> None:
        self._transfer("load", job_metadata, self._load_timeout)

    def _transfer(self, op: Op, job: TransferJob, timeout: float) -> None:
        rows = [self._rows[int(chunk)] for chunk in job.chunk_ids if 0 <= chunk < len(self._rows)]
        self._begin(op, job, list(job.keys), rows, timeout)

    def _begin(self, op: Op, what: Any, keys: list[OffloadKey], rows: list[Any] | None, timeout: float) -> None:
        self._owner.begin(op, [self._key(key) for key in keys], rows, timeout,
                          lambda job: self._ended.append((what, job)))

    def get_finished_jobs(self) -> Iterable[JobResult]:
        self._absorb()
        results, self._results = self._results, []
        return results

    def _absorb(self) -> None:
        """What the owner has ended, on vLLM's thread."""
        while self._ended:
            what, job = self._ended.popleft()
            if job.op == "exists":
                for key, result in zip(what, job.results):
                    if self._verdicts.get(key, False) is None:
                        self._verdicts[key] = result == "ok"
                continue
            keys = list(what.keys)
            good = [key for key, result in zip(keys, job.results) if result == "ok"]
            if job.op == "store":
                self._stores_ended(keys, good)
            else:
                self._loads_failed([key for key, result in zip(keys, job.results) if result != "ok"], what.req_context)
            self._results.append(JobResult(
                job_id=what.job_id, success=job.ok, transfer_time=job.seconds,
                successful_keys=tuple(good) if good and job.op == "load" and not job.ok else None,
                transfer_bytes=len(good) * self._row_bytes))

    def _stores_ended(self, keys: list[OffloadKey], good: list[OffloadKey]) -> None:
        for key in keys:
            self._storing[key] -= 1
            if self._storing[key] <= 0:
                del self._storing[key]
        for key in good:
            self._stored.pop(key, None)
            self._stored[key] = None
            if key in self._verdicts:
                self._verdicts[key] = True
        while len(self._stored) > STORED_MAX:
            del self._stored[next(iter(self._stored))]
        if self._events is not None and good:
            self._events.append(OffloadingEvent(keys=good, medium=self.medium, removed=False, locality=self.locality))

    def _loads_failed(self, keys: list[OffloadKey], req_context: ReqContext) -> None:
        """vLLM asks for them again in the next step: a miss, or that would never end."""
        for key in keys:
            self._stored.pop(key, None)
            if req_context.req_id in self._askers:
                self._link(key, req_context.req_id)
            if key in self._asked_by:
                self._verdicts[key] = False

    def take_events(self) -> Iterable[OffloadingEvent]:
        if self._events:
            yield from self._events
            self._events.clear()

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """The disk gives up its oldest segment, and keeps what was loaded from it; Redis has its policy."""

    def drain_jobs(self) -> None:
        self._owner.drain()

    def shutdown(self) -> None:
        self._owner.close()
        # vLLM unmaps what they lie in, and could not while there is a view of it.
        self._rows = np.empty((0, self._row_bytes), np.uint8)
